"""Whole sweeps on Spark; Apache Kafka's own results are the referees."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.retain.driver import retain
from pylog_spark.options import HighWatermarkSource, JobOptions, RunLimits
from pylog_spark.upkeep_directory import UpkeepDirectory
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.errors import GuardRefusedError
from storage_core.filenames import (
    LOG_START_FILE,
    TopicPartition,
)
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import (
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
    read_points,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.spark

# Of these the clock decides nothing.
BY_START_AND_SIZE = [
    "retain-empty-s501",
    "retain-logstart-end-s501",
    "retain-logstart-mid-s501",
    "retain-logstart-s501",
    "retain-size-exact-s501",
    "retain-size-hw-s501",
    "retain-size-s501",
    "retain-size-small-s501",
    "retain-size-zero-s501",
]
BY_AGE = ["retain-time-all-s501", "retain-time-hw-s501", "retain-future-s501", "retain-both-s501"]
SOME_TIME = 1_700_000_000_000
# Golden logs lose most of what they have; that a run may not is the guard's own test.
ANYTHING = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
MARKER = '{"version":0,"brokerEpoch":11}'
FUTURE = ".0123456789abcdef0123456789abcdef-future"


def options_of(root: BrokerDirectory, now_ms: int = SOME_TIME, **changes) -> JobOptions:
    return root.options(now_ms, **{"limits": ANYTHING} | changes)


def clock_of(name: str) -> int:
    return int(Golden(name).case["clock_ms"])


def retentions_of(report) -> dict[str, dict]:
    return {row["topic"]: row for row in report.retentions.to_pylist()}


def expected_starts(names) -> dict[TopicPartition, int]:
    """Return the entries of logs that start above their first segment, after Kafka's pass."""
    starts = {}
    for name in names:
        expected = Golden(name).case["expected"]
        if expected["log_start"] > expected["segments"][0][0]:
            starts[TopicPartition(name, 0)] = expected["log_start"]
    return starts


@pytest.mark.sampled(1)
@pytest.mark.item("RET-01", "RET-02", "RET-03", "RET-10", "RET-11", "CKP-06")
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(BY_START_AND_SIZE, SOME_TIME), *(([name], clock_of(name)) for name in BY_AGE)],
    ids=["by start and size", *BY_AGE],
)
def test_every_partition_ends_as_apache_kafka_left_it(spark, tmp_path, names, now_ms):
    root = broker_directory(tmp_path / "log", names)
    report = retain(spark, [root.path], options_of(root, now_ms))

    assert report.exit_code == 0
    assert differences_from_kafka(root.path, names, tmp_path) == []
    assert read_points(root.path, LOG_START_FILE) == expected_starts(names)
    assert (root.path / ".kafka_cleanshutdown").read_text() == MARKER
    assert sorted(path.name for path in tmp_path.glob("*scratch*")) == []
    for topic, row in rows_of(report).items():
        expected = Golden(topic).case["expected"]
        assert row["status"] == ("done" if expected["deleted"] else "skipped"), topic
        assert row["segments_after"] == len(expected["segments"])
        assert row["bytes_after"] == sum(size for _, size in expected["segments"])
        found = retentions_of(report)[topic]
        assert found["deleted_segments"] == expected["deleted"]
        assert found["log_start_offset"] == expected["log_start"]


@pytest.mark.thorough
@pytest.mark.item("RET-14")
def test_the_report_says_what_went_for_which_reason_and_what_keeps_the_rest(spark, tmp_path):
    name = "retain-both-s501"
    root = broker_directory(tmp_path / "log", [name])
    row = retentions_of(retain(spark, [root.path], options_of(root, clock_of(name))))[name]
    by = [row[f"by_{what}_segments"] for what in ("log_start", "size", "time")]
    assert by == [1, 1, 0]
    assert row["deleted_segments"] == sum(by)
    assert (row["by_log_start_bytes"], row["by_size_bytes"]) == (1716, 1789)
    assert row["deleted_bytes"] == 1716 + 1789
    assert (row["old_log_start_offset"], row["log_start_offset"]) == (46, 94)
    assert row["percent"] == (1618 + 1656 + 431) * 100 // 2403
    assert (row["blocked_by"], row["blocked_offset"]) == ("WITHIN_TIME", 94)
    assert row["wait_ms"] > 0


@pytest.mark.thorough
def test_a_second_run_finds_nothing_and_changes_nothing(spark, tmp_path):
    root = broker_directory(tmp_path / "log", BY_START_AND_SIZE)
    retain(spark, [root.path], options_of(root))
    before = state_of(tmp_path)
    again = retain(spark, [root.path], options_of(root))
    assert {row["reason"] for row in rows_of(again).values()} == {"NOTHING_TO_RETAIN"}
    assert again.exit_code == 0
    # The lock file comes and goes: that is a change of the directory's own time.
    assert {path for path, *_ in set(state_of(tmp_path)) ^ set(before)} <= {str(root.path)}


def test_a_dry_run_says_what_would_go_and_writes_nothing(spark, tmp_path):
    root = broker_directory(tmp_path / "log", BY_START_AND_SIZE)
    before = state_of(tmp_path)
    options = options_of(root, dry_run=True, role=None)
    report = retain(spark, [root.path], options)
    assert state_of(tmp_path) == before
    due = [n for n in BY_START_AND_SIZE if Golden(n).case["expected"]["deleted"]]
    assert (report.summary.planned, report.summary.done) == (len(due), 0)
    row = retentions_of(report)["retain-size-zero-s501"]
    assert (row["status"], row["rolls"], row["percent"]) == ("planned", True, 0)
    kinds = [step["operation"] for step in json.loads(row["operations"])]
    assert kinds[:4] == ["WriteFile", "CreateEmptyFile", "CreateEmptyFile", "CreateEmptyFile"]


@pytest.mark.thorough
@pytest.mark.item("SEG-09")
def test_files_may_be_left_as_deleted_to_the_broker(spark, tmp_path):
    name = "retain-size-s501"
    root = broker_directory(tmp_path / "log", [name])
    options = options_of(root, keep_deleted=True)
    retain(spark, [root.path], options)
    left = [path.name for path in (root.path / f"{name}-0").glob("*.deleted")]
    assert "00000000000000000000.log.deleted" in left
    assert rows_of(retain(spark, [root.path], options))[name]["reason"] == "NOTHING_TO_RETAIN"
    retain(spark, [root.path], options_of(root))
    assert differences_from_kafka(root.path, [name], tmp_path) == []


@pytest.mark.thorough
@pytest.mark.item("RET-03")
def test_without_a_checkpointed_high_watermark_nothing_goes(spark, tmp_path):
    name = "retain-size-s501"
    root = broker_directory(tmp_path / "log", [name])
    root.high_watermarks = {}
    root.write_files()
    before = read_tree(root.path / f"{name}-0")
    report = retain(spark, [root.path], options_of(root))
    assert rows_of(report)[name]["reason"] == "NO_HIGH_WATERMARK"
    assert report.exit_code == 3
    assert read_tree(root.path / f"{name}-0") == before
    said = options_of(root, high_watermark=HighWatermarkSource.LOG_END)
    assert retain(spark, [root.path], said).exit_code == 0
    assert differences_from_kafka(root.path, [name], tmp_path) == []
    # More went than the controller may take for replicated: no broker epoch vouches for it.
    marker = (root.path / ".kafka_cleanshutdown").read_text()
    assert marker == '{"version":0,"brokerEpoch":-1}'


@pytest.mark.thorough
@pytest.mark.item("RET-13", "DIR-07")
def test_copies_on_their_way_are_swept_and_compacted_topics_are_not(spark, tmp_path):
    name, compacted = "retain-size-s501", "retain-compact-s501"
    root = broker_directory(tmp_path / "log", [compacted])
    other = BrokerDirectory(tmp_path / "log")
    directory = other.add(Golden(name))
    directory.rename(root.path / f"{name}-0{FUTURE}")
    root.configs |= other.configs
    root.high_watermarks |= other.high_watermarks
    root.write_files()
    before = read_tree(root.path / f"{compacted}-0")
    report = retain(spark, [root.path], options_of(root))
    assert rows_of(report)[compacted]["reason"] == "COMPACTED"
    assert read_tree(root.path / f"{compacted}-0") == before
    assert rows_of(report)[name]["status"] == "done"
    (root.path / f"{name}-0{FUTURE}").rename(root.path / f"{name}-0")
    assert differences_from_kafka(root.path, [name], tmp_path) == []


@pytest.mark.thorough
@pytest.mark.item("FLT-11")
def test_one_damaged_partition_stops_no_other(spark, tmp_path):
    names = ["retain-size-s501", "retain-logstart-s501", "retain-size-zero-s501"]
    root = broker_directory(tmp_path / "log", names)
    (root.path / f"{names[0]}-0" / "leader-epoch-checkpoint").write_text("0\n1\nzero 0\n")
    min((root.path / f"{names[1]}-0").glob("*.index")).unlink()
    before = [read_tree(root.path / f"{name}-0") for name in names[:2]]
    report = retain(spark, [root.path], options_of(root))
    rows = rows_of(report)
    assert report.exit_code == 4
    assert (rows[names[0]]["status"], rows[names[0]]["error_class"]) == (
        "failed",
        "CheckpointError",
    )
    assert "leader-epoch-checkpoint: line 3" in rows[names[0]]["error"]
    assert rows[names[1]]["reason"] == "RECOVERY_REQUIRED"
    assert [read_tree(root.path / f"{name}-0") for name in names[:2]] == before
    assert differences_from_kafka(root.path, names[2:], tmp_path) == []
    # Their files are as they were: the directory is as clean as the broker left it.
    assert (root.path / ".kafka_cleanshutdown").read_text() == MARKER


@pytest.mark.thorough
@pytest.mark.item("RET-11")
def test_what_a_killed_run_left_is_finished_by_the_next(spark, tmp_path):
    name = "retain-logstart-s501"
    root = broker_directory(tmp_path / "log", [name])
    whole = root.copy(tmp_path / "whole")
    retain(spark, [whole.path], options_of(whole))
    # As after a kill between the renames of a segment: its records are gone, its indexes not.
    directory = root.path / f"{name}-0"
    base = "00000000000000000000"
    (directory / f"{base}.log").rename(directory / f"{base}.log.deleted")
    report = retain(spark, [root.path], options_of(root))
    assert report.exit_code == 0
    assert read_tree(directory) == read_tree(whole.path / f"{name}-0")
    # And as after a kill between the last file and the checkpoint.
    first = Golden(name).case["expected"]["segments"][0][0]
    stale = replace(root, log_starts={TopicPartition(name, 0): first})
    stale.write_files()
    retain(spark, [root.path], options_of(root))
    assert read_points(root.path, LOG_START_FILE) == {}


@pytest.mark.thorough
def test_a_directory_in_use_or_not_cleanly_closed_is_refused(spark, tmp_path):
    name = "retain-size-s501"
    root = broker_directory(tmp_path / "log", [name])
    before = read_tree(root.path / f"{name}-0")
    lock = LogDirectoryLock(root.path)
    lock.acquire()
    try:
        with pytest.raises(GuardRefusedError):
            retain(spark, [root.path], options_of(root))
    finally:
        lock.release()
    (root.path / ".kafka_cleanshutdown").unlink()
    report = retain(spark, [root.path], options_of(root))
    assert rows_of(report)[name]["reason"] == "UNCLEAN_SHUTDOWN"
    assert report.exit_code == 3
    assert read_tree(root.path / f"{name}-0") == before


def test_a_log_start_stays_checkpointed_where_a_guard_refuses_the_sweep(spark, tmp_path):
    """Else what was deleted by an operator would be there again."""
    name = "retain-logstart-mid-s501"
    root = broker_directory(tmp_path / "log", [name])
    root.configs[name] |= {"retention.bytes": "0"}
    starts = read_points(root.path, LOG_START_FILE)
    assert starts
    before = read_tree(root.path / f"{name}-0")
    report = retain(spark, [root.path], options_of(root, limits=RunLimits(max_delete_ratio=0.1)))
    assert rows_of(report)[name]["reason"] == "DELETES_TOO_MUCH"
    assert read_tree(root.path / f"{name}-0") == before
    assert read_points(root.path, LOG_START_FILE) == starts


MOST = "retain-size-small-s501"  # of 7210 bytes, 431 stay
OWN = {"topic_configs": {}, "limits": RunLimits()}


@pytest.mark.thorough
def test_what_the_cluster_itself_says_goes_be_it_nearly_everything(spark, tmp_path):
    root = broker_directory(tmp_path / "log", [MOST])
    said = options_of(root, limits=RunLimits(), dry_run=True)
    (refused,) = retain(spark, [root.path], said).results.to_pylist()
    assert refused["reason"] == "DELETES_TOO_MUCH"
    assert "its retention.bytes is what --set or a --config file says" in refused["error"]
    root.write_metadata()
    report = retain(spark, [root.path], options_of(root, **OWN))
    assert rows_of(report)[MOST]["status"] == "done"
    assert differences_from_kafka(root.path, [MOST], tmp_path) == []


@pytest.mark.thorough
def test_a_retention_that_was_much_longer_at_the_last_run_waits_for_a_person(tmp_path):
    root = broker_directory(tmp_path / "log", [MOST])
    own = {**OWN, "ledger": str(tmp_path / "ledger")}
    small = root.configs[MOST]["retention.bytes"]
    root.configs[MOST]["retention.bytes"] = "-1"
    root.write_metadata()
    report = retain(Local(), [root.path], options_of(root, **own))
    (row,) = [row for row in report.results.to_pylist() if row["topic"] == MOST]
    assert (row["reason"], row["retention_bytes"]) == ("NOTHING_TO_RETAIN", -1)

    root.configs[MOST]["retention.bytes"] = small
    root.write_metadata()
    for dry_run in (True, False, False):
        # What was refused was not enforced: it is no new habit of the topic.
        refused = rows_of(retain(Local(), [root.path], options_of(root, **own, dry_run=dry_run)))
        assert refused[MOST]["reason"] == "DELETES_TOO_MUCH"
        said = f"its retention.bytes was without limit in run {report.run_id} and is {small}"
        assert said in refused[MOST]["error"]
    allowed = {**own, "limits": RunLimits(max_delete_ratio=1.0)}
    done = retain(Local(), [root.path], options_of(root, **allowed))
    assert rows_of(done)[MOST]["status"] == "done"


@pytest.mark.thorough
@pytest.mark.item("FLT-13")
def test_a_busy_topic_that_keeps_everything_shows_that_the_clock_is_right(spark, tmp_path):
    """Of the pass over compacted topics, and of the other one, in which it is not looked at."""
    idle, compacted, busy = (
        *("retain-time-s501", "retain-compact-delete-s501", "retain-notimestamp-s501"),
    )
    root = broker_directory(tmp_path / "log", [idle, compacted, busy])
    root.configs[busy] |= {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    now_ms = clock_of(idle) + 30 * 86_400_000
    for log in (root.path / f"{busy}-0").glob("*.log"):
        os.utime(log, (now_ms // 1000 - 3600,) * 2)
    options = options_of(root, now_ms, limits=RunLimits(max_delete_ratio=1.0), dry_run=True)
    found = retentions_of(run_nightly(spark, [root.path], options))
    assert {name: found[name]["status"] for name in (idle, compacted)} == {
        idle: "planned",
        compacted: "planned",
    }
    shutil.rmtree(root.path / f"{busy}-0")
    reasons = {row["reason"] for row in retain(spark, [root.path], options).results.to_pylist()}
    assert reasons == {"CLOCK_PAST_RETENTION", "COMPACTED"}


@pytest.mark.thorough
def test_the_public_face_answers_with_rows(spark, tmp_path):
    name = "retain-size-s501"
    root = broker_directory(tmp_path / "log", [name])
    logs = UpkeepDirectory.for_path(spark, root.path, options=options_of(root))
    before = state_of(root.path)
    (planned,) = logs.retain(dry_run=True).toArrow().to_pylist()
    assert (planned["status"], planned["action"]) == ("planned", "retain")
    assert state_of(root.path) == before
    (done,) = logs.retain().toArrow().to_pylist()
    assert (done["status"], done["bytes_after"]) == ("done", planned["bytes_after"])
    assert differences_from_kafka(root.path, [name], tmp_path) == []
