"""``pylog doctor`` of several brokers where something cannot be read: the others go on."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli import doctor
from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.filenames import LOCK_FILE, META_PROPERTIES_FILE
from tests.kit.bound_rights import bound_rights
from tests.kit.cluster_truth import Cluster

NOW = ("--now-ms", 1_800_000_000_000)


def forbid_root(root: Path) -> Path:
    root.chmod(0)
    return root


def forbid_identity(root: Path) -> Path:
    (root / META_PROPERTIES_FILE).chmod(0)
    return root / META_PROPERTIES_FILE


def garble_identity(root: Path) -> Path:
    (root / META_PROPERTIES_FILE).write_text("version=1\nnode.id=two\ncluster.id=x\n")
    return root / META_PROPERTIES_FILE


def remove_identity(root: Path) -> Path:
    (root / META_PROPERTIES_FILE).unlink()
    return root


def forbid_partition(root: Path) -> Path:
    (root / "ledger-0").chmod(0)
    return root / "ledger-0"


def forbid_log(root: Path) -> Path:
    log = max((root / "ledger-0").glob("*.log"))
    log.chmod(0)
    return log


def rows_of(result: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *diagnoses, cluster = (json.loads(line) for line in result.stdout.splitlines())
    for row in diagnoses:
        row["partitions"] = [{**each, "duration_ms": None} for each in row["partitions"]]
    assert {row["type"] for row in diagnoses} == {"diagnosis"}
    assert cluster["type"] == "cluster"
    return diagnoses, cluster


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("harm", "broker", "name", "way"),
    [
        pytest.param(forbid_root, None, "{two}", "run this as its owner, or as root", id="root"),
        pytest.param(
            forbid_identity, None, "{two}", "run this as its owner, or as root", id="identity"
        ),
        pytest.param(
            garble_identity,
            None,
            "{two}",
            "`pylog doctor {two} --role broker` says how to mend it",
            id="garbled identity",
        ),
        pytest.param(
            remove_identity,
            None,
            "{two}",
            "`pylog doctor {two} --role broker` says how to mend it",
            id="no identity",
        ),
        pytest.param(
            forbid_partition, 2, "broker 2", "run it as the directory's owner", id="partition"
        ),
        pytest.param(forbid_log, 2, "broker 2", "run it as the directory's owner", id="log"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_other_brokers_are_diagnosed(
    pylog: Callable,
    tmp_path: Path,
    harm: Callable[[Path], Path],
    broker: int | None,
    name: str,
    way: str,
):
    roots = Cluster("clean", tmp_path).roots
    two = roots[1]
    whole, _ = rows_of(pylog("doctor", *roots, *NOW, "--output", "json"))
    place = harm(two)
    with bound_rights():
        result = pylog("doctor", *roots, *NOW, "--output", "json")
        shown = pylog("doctor", *roots, *NOW)
    diagnoses, cluster = rows_of(result)
    assert result.exit_code == shown.exit_code == ExitCode.PARTLY_FAILED
    assert [row["broker"] for row in diagnoses] == [1, 3]
    for before, after in zip((whole[0], whole[2]), diagnoses, strict=True):
        same = ("advice", "headline", "commands", "roots", "findings", "partitions")
        assert {key: after[key] for key in same} == {key: before[key] for key in same}
    (unread,) = cluster["unread"]
    assert (unread["broker"], unread["roots"]) == (broker, [str(two)])
    assert unread["error"].startswith(str(place))
    assert way.format(two=two) in unread["error"]
    assert unread["error"] in cluster["reasons"]
    assert unread["error"] in result.stderr
    assert cluster["advice"] == "look-before-start"
    assert cluster["headline"] == (
        f"Do not start yet: {name.format(two=two)} cannot be read. "
        "With the readable directories alone, start 1, then 3: nothing is lost."
    )
    (again,) = cluster["commands"]
    assert sorted(again.split()) == sorted(["pylog", "doctor", *map(str, roots)])
    for partition in cluster["partitions"]:
        assert not any(each.get("missing") for each in partition["replicas"])
        (own,) = [each for each in partition["replicas"] if each["broker"] == 2] or [{}]
        assert "log_end" in own or 2 in partition["unseen"] or partition["safe"] == []
    assert " ".join(shown.stdout.split()).startswith(cluster["headline"])


@pytest.mark.thorough
def test_a_folder_above_that_may_not_be_opened_names_the_root(pylog: Callable, tmp_path: Path):
    roots = Cluster("clean", tmp_path / "c").roots
    above = tmp_path / "above"
    above.mkdir()
    moved = roots[1].rename(above / "b2")
    above.chmod(0)
    with bound_rights():
        result = pylog("doctor", roots[0], moved, roots[2], *NOW, "--output", "json")
        compared = pylog("audit", roots[0], moved, roots[2], *NOW, "--output", "json")
        alone = pylog("doctor", moved, *NOW)
    _, cluster = rows_of(result)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert [each["roots"] for each in cluster["unread"]] == [[str(moved)]]
    assert compared.exit_code == ExitCode.PARTLY_FAILED
    assert f"{moved}: Permission denied: nothing of it was compared" in compared.stderr
    assert alone.exit_code == ExitCode.FAILED
    assert f"{moved}: Permission denied" in alone.stderr


@pytest.mark.thorough
def test_one_of_two_directories_of_a_broker_leaves_its_replicas_unseen(
    pylog: Callable, tmp_path: Path
):
    cluster = Cluster("reassigned", tmp_path)
    first, second = (root for root in cluster.roots if root.parent.name == "b2")
    away = {path.name for path in second.iterdir()}
    second.chmod(0)
    with bound_rights():
        result = pylog("doctor", *cluster.roots, *NOW, "--output", "json")
    diagnoses, answer = rows_of(result)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    # What a start of broker 2 does hangs on both.
    assert [row["broker"] for row in diagnoses] == [1, 3]
    assert [(each["broker"], each["roots"]) for each in answer["unread"]] == [
        (None, [str(second)]),
        (2, [str(first)]),
    ]
    assert answer["headline"].startswith(f"Do not start yet: {second} and broker 2 cannot be read.")
    assert answer["unread"][1]["error"] == (
        "broker 2: 1 of its 2 log directories can be read: no verdict on it"
    )
    assert not any("begins them empty" in each for each in answer["reasons"])
    partitions = [
        each for each in answer["partitions"] if f"{each['topic']}-{each['partition']}" in away
    ]
    assert partitions
    for each in partitions:
        assert 2 in each["unseen"]


@pytest.mark.thorough
@pytest.mark.parametrize("is_forbidden", [False, True])
def test_a_root_that_is_locked_keeps_no_other_from_being_judged(
    pylog: Callable, tmp_path: Path, *, is_forbidden: bool
):
    roots = Cluster("clean", tmp_path).roots
    with ExitStack() as held:
        if is_forbidden:
            (roots[1] / LOCK_FILE).touch(0)
            held.enter_context(bound_rights())
        else:
            held.enter_context(LogDirectoryLock(roots[1]))
        result = pylog("doctor", *roots, *NOW, "--output", "json")
    diagnoses, cluster = rows_of(result)
    assert cluster["unread"] == []
    advice = "start-broker" if is_forbidden else "in-use"
    assert [row["advice"] for row in diagnoses] == ["start-broker", advice, "start-broker"]
    first = "Do not start broker 2 before its repair. After that, s" if not is_forbidden else "S"
    assert cluster["headline"] == f"{first}tart 1, then 2, then 3: nothing is lost."


@pytest.mark.thorough
@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_disk_that_goes_away_meanwhile_is_named_and_the_others_compared(
    pylog: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_mount_point: bool,
    is_before: bool,
):
    roots = Cluster("clean", tmp_path).roots
    diagnose = doctor.diagnose

    def lose_and_diagnose(place: object, some: list[str], *others: Any, **options: Any) -> Any:
        if some == [str(roots[1] if is_before else roots[2])]:
            shutil.rmtree(roots[1])
            if is_mount_point:
                roots[1].mkdir()
        return diagnose(place, some, *others, **options)

    monkeypatch.setattr(doctor, "diagnose", lose_and_diagnose)
    result = pylog("doctor", *roots, *NOW, "--output", "json")
    diagnoses, cluster = rows_of(result)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert [row["broker"] for row in diagnoses] == [1, 3]
    (unread,) = cluster["unread"]
    assert (unread["broker"], unread["roots"]) == (2, [str(roots[1])])
    assert str(roots[1]) in unread["error"]
    reason = "is its disk mounted?" if is_mount_point else "no such directory"
    assert reason in unread["error"]
    assert cluster["commands"] == [f"pylog doctor {' '.join(map(str, roots))}"]
    for each in cluster["partitions"]:
        assert each["unseen"] == [2]
        assert [own["broker"] for own in each["replicas"]] == [1, 3]


@pytest.mark.thorough
def test_brokers_of_which_none_can_be_read_are_an_error(pylog: Callable, tmp_path: Path):
    roots = Cluster("clean", tmp_path).roots
    for root in roots:
        root.chmod(0)
    with bound_rights():
        result = pylog("doctor", *roots, *NOW)
    assert result.exit_code == ExitCode.FAILED
    assert f"{roots[0]}: Permission denied" in result.stderr
    for root in roots:
        root.chmod(0o700)
        (root / "ledger-0").chmod(0)
    with bound_rights():
        result = pylog("doctor", *roots, *NOW)
    assert result.exit_code == ExitCode.FAILED
    assert f"{roots[0]}/ledger-0: this process may not read it" in result.stderr


@pytest.mark.thorough
def test_nothing_is_elected_by_hand_over_a_root_that_cannot_be_read(
    pylog: Callable, tmp_path: Path
):
    roots = Cluster("wiped-disk", tmp_path).roots
    _, whole = rows_of(pylog("doctor", *roots, *NOW, "--output", "json"))
    assert "--election-out" in whole["commands"][-1]
    roots[2].chmod(0)
    with bound_rights():
        result = pylog("doctor", *roots, *NOW, "--output", "json")
    _, cluster = rows_of(result)
    assert cluster["starts"]["manual"] is not None
    assert cluster["headline"] == (
        f"Do not start yet: {roots[2]} cannot be read. With the readable directories alone, "
        "start 1, then 2: 3 partitions stay without a leader, nothing is lost."
    )
    assert not any("by hand" in each for each in cluster["reasons"])
    assert cluster["commands"] == [f"pylog doctor {' '.join(map(str, roots))}"]
