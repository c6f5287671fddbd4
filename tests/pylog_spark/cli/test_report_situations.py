"""Situations of public reports: what the commands say of them, and what they leave alone.

A broker of Kafka 4.4 wrote each directory of ``tests/golden/reports`` and was started on a copy.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.compare import read_tree
from tests.kit.report_situations import NOW_MS, unpack
from tests.pylog_spark.cli.prescriptions import Shell


def night(roots: list[Path], *words: object) -> tuple[object, ...]:
    return ("run", *roots, "--role", "broker", "--now-ms", NOW_MS, "--engine", "local", *words)


def row_of(pylog: Any, topic: str, *words: object) -> dict[str, Any]:
    lines = pylog(*words, "--output", "json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    [row] = [row for row in rows if row.get("topic") == topic and row["type"] == "result"]
    return row


def row_of_explain(pylog: Any, *words: object) -> dict[str, Any]:
    [line] = pylog(*words, "--output", "json").stdout.splitlines()
    row: dict[str, Any] = json.loads(line)
    return row


def logs_of(roots: list[Path], partition: str) -> dict[str, bytes]:
    paths = [path for root in roots for path in root.glob(f"{partition}/*.log")]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.thorough
def test_zeros_in_time_indexes_delete_nothing_and_are_named(pylog, tmp_path):
    roots = unpack("time_index_padded", tmp_path)
    before = logs_of(roots, "timed-0")
    assert len(before) == 3
    shell = Shell(pylog, NOW_MS)
    _, said = shell.ask(*roots)
    assert said["advice"] == "look-before-start"
    named = {(f["code"], f["severity"], f["topic"]) for f in said["findings"]}
    assert ("TIME_INDEX_PADDED", "error", "timed") in named
    row = row_of(pylog, "timed", *night(roots))
    assert (row["status"], row["reason"]) == ("skipped", "AGE_CONTRADICTED")
    assert "00000000000000000000.timeindex" in row["error"]
    assert logs_of(roots, "timed-0") == before
    words = ("explain", *roots, "--topics", "timed", "--now-ms", NOW_MS)
    [deletion] = [a for a in row_of_explain(pylog, *words)["answers"] if a["about"] == "deletion"]
    assert (deletion["is_due"], deletion["held_by"]) == (False, "AGE_CONTRADICTED")
    assert "pylog recover" in deletion["way_out"]
    # The printed command makes the ages right: nothing is too old.
    for command in said["commands"]:
        shell.run(command)
    assert shell.ask(*roots)[1]["advice"] == "start-broker"
    assert row_of(pylog, "timed", *night(roots))["reason"] == "NOTHING_TO_RETAIN"
    assert logs_of(roots, "timed-0") == before


@pytest.mark.thorough
def test_the_empty_file_that_keeps_offsets_is_named_and_its_loss_refused(pylog, tmp_path):
    roots = unpack("drained_nofile", tmp_path)
    shell = Shell(pylog, NOW_MS)
    _, said = shell.ask(*roots)
    assert said["advice"] == "look-before-start"
    loud = [f for f in said["findings"] if f["severity"] in {"warn", "error", "fatal"}]
    assert [(f["code"], f["severity"], f["topic"]) for f in loud] == [
        ("NO_SEGMENT", "error", "drained")
    ]
    assert "pylog recover" not in pylog("doctor", *roots, "--all-commands").stdout
    log = roots[0] / "drained-0" / "00000000000000000300.log"
    assert f"touch {log}" in loud[0]["fix"]
    # A recovery does not lower the offsets either.
    recover = ("recover", *roots, "--role", "broker", "--engine", "local", "--now-ms", NOW_MS)
    recover += ("--topics", "drained", "--from-start", "--salvage", tmp_path / "salvage")
    before = sorted(path.name for path in log.parent.iterdir())
    row = row_of(pylog, "drained", *recover)
    assert (row["status"], row["reason"]) == ("skipped", "BEGINS_ANEW")
    assert "300" in row["error"]
    alone = pylog("partition", "recover", log.parent, "--no-truncate", "--now-ms", NOW_MS)
    assert (alone.exit_code, "BEGINS_ANEW" in alone.stderr) == (3, True)
    assert sorted(path.name for path in log.parent.iterdir()) == before
    # With the file that is named it goes on at 300.
    log.touch()
    assert shell.ask(*roots)[1]["advice"] == "start-broker"
    row = row_of(pylog, "drained", *recover)
    assert (row["status"], row["reason"]) == ("done", None)
    assert log.exists()
    checkpoint = (roots[0] / "replication-offset-checkpoint").read_text()
    assert "drained 0 300" in checkpoint


def test_a_coordinator_that_does_not_load_is_named_with_the_record(pylog, tmp_path):
    roots = unpack("offsets_version", tmp_path)
    _, said = Shell(pylog, NOW_MS).ask(*roots)
    assert said["advice"] == "look-before-start"
    [found] = [f for f in said["findings"] if f["severity"] in {"warn", "error", "fatal"}]
    place = (found["code"], found["topic"], found["partition"], found["offset"])
    assert place == ("COORDINATOR_NOT_LOADED", "__consumer_offsets", 0, 2)
    assert "found 63" in found["message"]
    groups = pylog("groups", *roots, "--output", "json", "--now-ms", NOW_MS).stdout.splitlines()
    rows = [json.loads(line) for line in groups]
    [group] = [row for row in rows if row["type"] == "group"]
    assert "offset 2" in group["not_loaded"]
    commits = [row for row in rows if row["type"] == "commit"]
    assert commits
    assert all("coordinator-not-loaded" in row["findings"] for row in commits)
    table = pylog("groups", *roots, "--now-ms", NOW_MS).stdout
    assert "not loaded" in table
    assert "coordinator does not load" in " ".join(table.split())


@pytest.mark.thorough
def test_records_without_a_key_are_counted_and_most_of_a_log_is_kept(pylog, tmp_path):
    """The policy of ``turned`` was delete before; that of ``keep`` is empty."""
    roots = unpack("keyless", tmp_path)
    before = logs_of(roots, "turned-0")
    exact = pylog(*night(roots, "--dry-run=exact")).stdout
    assert "206 of the 310 records" in " ".join(exact.split())
    row = row_of(pylog, "turned", *night(roots, "--dry-run=exact"))
    assert (row["status"], row["reason"]) == ("skipped", "RECORDS_WITHOUT_KEY")
    assert row["records_without_key"] == 206
    row = row_of(pylog, "turned", *night(roots))
    assert (row["status"], row["reason"]) == ("skipped", "RECORDS_WITHOUT_KEY")
    assert logs_of(roots, "turned-0") == before
    words = ("free", *roots, "--exact", "--now-ms", NOW_MS, "--engine", "local")
    steps = pylog.rows(*words)
    [step] = [each for each in steps if each.get("topic") == "turned"]
    assert (step["frees_bytes"], step["refused_by"]) == (0, "RECORDS_WITHOUT_KEY")
    allowed = night(roots, "--override", "RECORDS_WITHOUT_KEY")
    planned = row_of(pylog, "turned", *allowed, "--dry-run=exact")
    assert (planned["status"], planned["records_without_key"]) == ("planned", 206)
    done = row_of(pylog, "turned", *allowed)
    assert (done["status"], done["records_without_key"]) == ("done", 206)
    assert done["records_after"] == planned["records_after"]
    # Neither delete nor compact: not even years later.
    late = ("retain", *roots, "--role", "broker", "--topics", "keep", "--engine", "local")
    years = NOW_MS + 10 * 365 * 86_400_000
    assert row_of(pylog, "keep", *late, "--now-ms", years)["reason"] == "NOTHING_TO_RETAIN"


@pytest.mark.thorough
def test_zeros_in_a_time_index_shorten_no_lag_of_compaction(pylog, tmp_path):
    roots = unpack("keyless", tmp_path)
    lag = ("--set", f"min.compaction.lag.ms={400 * 86_400_000}", "--topics", "orders")
    words = ("compact", roots[0], "--role", "broker", "--now-ms", NOW_MS, "--engine", "local", *lag)
    with (roots[0] / "orders-1" / "00000000000000000000.timeindex").open("ab") as file:
        file.write(bytes(24))
    before = logs_of(roots, "orders-1")
    lines = pylog(*words, "--output", "json").stdout.splitlines()
    reasons = {
        row["partition"]: row["reason"] for row in map(json.loads, lines) if row["type"] == "result"
    }
    assert reasons == {0: "NOTHING_TO_CLEAN", 1: "AGE_CONTRADICTED"}
    assert logs_of(roots, "orders-1") == before


@pytest.mark.thorough
def test_one_partition_is_cleaned_by_the_rules_of_a_night(pylog, tmp_path):
    """By the lag and the guard of records without a key, as in ``pylog compact``."""
    orders, turned = (
        next(root / name for root in unpack("keyless", tmp_path) if (root / name).is_dir())
        for name in ("orders-1", "turned-0")
    )
    words = ("partition", "clean", "--now-ms", NOW_MS, "--set", "cleanup.policy=compact")
    before = read_tree(turned)
    refused = pylog(*words, turned)
    assert refused.exit_code == ExitCode.REFUSED
    assert "206 of the 310 records that a round reads have no key" in refused.stderr
    assert "--override RECORDS_WITHOUT_KEY" in refused.stderr
    assert read_tree(turned) == before
    allowed = pylog(*words, turned, "--override", "RECORDS_WITHOUT_KEY")
    assert json.loads(allowed.stdout)["invalid_messages_read"] == 206

    with (orders / "00000000000000000000.timeindex").open("ab") as file:
        file.write(bytes(24))
    before = read_tree(orders)
    lag = ("--set", f"min.compaction.lag.ms={400 * 86_400_000}")
    for dry in ((), ("--dry-run",)):
        early = pylog(*words, *lag, orders, *dry)
        assert early.exit_code == ExitCode.REFUSED
        assert "AGE_CONTRADICTED" in early.stderr
    assert read_tree(orders) == before
