"""``pylog doctor`` of several brokers: each of them, and what they lose together."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.run.guards import split_by_broker
from storage_core.catalog.roles import Role
from tests.kit.cluster_truth import Cluster


def ask(pylog, *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    result = pylog("doctor", *arguments, "--engine", "local", "--output", "json")
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def brokers_of(*roots: Path) -> dict[int, list[str]]:
    brokers, unread = split_by_broker(resolve_roots(roots, role=Role.BROKER))
    assert brokers or not unread
    return {broker: [root.location for root in own] for broker, own in brokers.items()}


def test_a_loss_keeps_all_from_starting_and_elections_by_hand_lose_less(pylog, tmp_path):
    roots = Cluster("wiped-disk", tmp_path).roots
    status, rows = ask(pylog, *roots)
    assert [row["type"] for row in rows] == ["diagnosis", "diagnosis", "diagnosis", "cluster"]
    assert [row["broker"] for row in rows[:3]] == [1, 2, 3]
    cluster = rows[-1]
    assert (status, cluster["advice"]) == (ExitCode.FINDINGS, "look-before-start")
    # What Kafka lost when all three were started; broker 3, whose disk is new, led then.
    assert cluster["starts"]["least"]["lost_committed"] == 534
    assert cluster["headline"] == (
        "Do not start yet. The best order: start 1, then 2, elect leaders of 3 partitions by "
        "hand, then start 3: 58 records are lost, committed."
    )
    assert cluster["starts"]["manual"]["later"] == [3]
    reasons = "; ".join(cluster["reasons"])
    assert "without elections by hand: start 1, then 2, then 3: 534 records are lost" in reasons
    # It may lead before the controller knows its new directory; Kafka then elects nobody.
    assert (
        "534 records are lost, committed; 3 partitions may get another leader, or none" in reasons
    )
    assert "broker 3 lacks 6 of its 6 replicas: it begins them empty" in reasons
    assert f"broker 3 never registered {roots[2]}" in reasons
    assert "Just start the broker" not in reasons
    command = f"pylog audit {' '.join(map(str, roots))} --up 1,2,3 --election-out "
    assert cluster["commands"][-1].startswith(command)
    assert len(cluster["partitions"]) == 6


@pytest.mark.thorough
def test_damage_is_healed_from_the_others_before_anything_is_cut(pylog, tmp_path, monkeypatch):
    """What is printed, run as it is printed: with elections by hand less is lost then."""
    roots = Cluster("corrupt-middle", tmp_path).roots
    monkeypatch.chdir(tmp_path)
    _, rows = ask(pylog, *roots)
    healings = rows[-1]["commands"][:6]
    assert [command.split()[1] for command in healings] == ["heal", "apply"] * 3
    assert not [each for each in rows[-1]["commands"][6:] if each.split()[1] in {"heal", "apply"}]
    shown = pylog("audit", *roots).stdout
    assert shown.count("has damage; what another has of it: pylog heal ") == 3
    for command in healings:
        _, *words = shlex.split(command)
        # 1: a place is left that nobody has.
        assert pylog(*words).exit_code in {ExitCode.DONE, ExitCode.FINDINGS}, command
    _, after = ask(pylog, *roots)
    assert not [each for each in after[-1]["commands"] if each.startswith("pylog heal")]
    headlines = [cluster["headline"] for cluster in (rows[-1], after[-1])]
    assert [int(re.search(r"(\d+) records are lost", text)[1]) for text in headlines] == [73, 53]


@pytest.mark.thorough
def test_brokers_that_lose_nothing_just_start(pylog, tmp_path):
    status, rows = ask(pylog, *Cluster("clean", tmp_path).roots)
    cluster = rows[-1]
    assert cluster["headline"].startswith("Start ")
    assert cluster["headline"].endswith(": nothing is lost.")
    assert cluster["commands"] == []
    assert (status, cluster["advice"]) == (ExitCode.DONE, "start-broker")


@pytest.mark.thorough
def test_a_broker_that_cannot_start_is_named_first(pylog, tmp_path):
    roots = Cluster("epoch-file-corrupt", tmp_path / "c").roots
    status, rows = ask(pylog, *roots)
    stopped = [row["broker"] for row in rows[:-1] if row["advice"] == "do-not-start"]
    assert stopped
    assert (status, rows[-1]["advice"]) == (ExitCode.FINDINGS, "do-not-start")
    assert rows[-1]["headline"].startswith(f"Do not start broker {stopped[0]} before its repair. ")
    page = tmp_path / "page.html"
    said = pylog("doctor", *roots, "--engine", "local", "--report", page).stdout
    assert said.startswith(f"Do not start broker {stopped[0]} before its repair. ")
    assert f"Broker {stopped[0]}\n" in said
    assert f"Broker {stopped[0]}: Log directories" in page.read_text()


def test_directories_are_of_several_brokers_if_these_share_a_partition(tmp_path):
    one, two, three = Cluster("clean", tmp_path).roots
    assert brokers_of(three, one, two) == {1: [str(one)], 2: [str(two)], 3: [str(three)]}
    assert brokers_of(one) == {}
    # Who holds nothing in common with another one has a directory that is not its own.
    for path in two.iterdir():
        if path.is_dir():
            path.rename(path.with_name(f"{path.name}-not-a-log"))
    assert brokers_of(one, two) == {}
    (three / "meta.properties").unlink()
    assert brokers_of(one, three) == {}


@pytest.mark.parametrize("change", ["node.id=x", "cluster.id=QUFBQUFBQUFBQUFBQUFBQQ"])
def test_who_does_not_say_whose_it_is_is_one_brokers(tmp_path, change):
    one, two, _ = Cluster("clean", tmp_path).roots
    file = two / "meta.properties"
    key = change.partition("=")[0]
    lines = [
        change if line.startswith(f"{key}=") else line for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")
    assert brokers_of(one, two) == {}
