"""Recovery of whole log directories on Spark; the in-process loader and Kafka's answers judge."""

import json
import os
import shutil
from typing import Any

import deltalake
import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.recover.waves import RecoveryStages
from pylog_spark.options import Tuning
from pylog_spark.run.progress import Progress, progress_text
from pylog_spark.upkeep_directory import UpkeepDirectory
from storage_core.catalog.off_switch import OFF_SWITCH_FILE
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.kit.golden_data import Golden
from tests.kit.one_partition import recover_partition
from tests.pylog_spark.broker_roots import read_points, state_of
from tests.pylog_spark.crashed_roots import (
    MANY_KINDS,
    MARKER_OF_OURS,
    METADATA,
    UNCLEAN,
    crashed_directory,
    forget_high_watermarks,
    killed_broker,
    logs_of,
    partition_of,
    tear,
)

pytestmark = pytest.mark.spark

FOREIGN = TopicPartition("foreign", 3)
ATTRIBUTE, ATTRIBUTE_VALUE = "user.pylog-test", b"kept"
# One byte a task: every segment is read by a task of its own, and its log put in order by another.
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1)


def rows_of(report) -> dict[str, dict]:
    return {f"{row['topic']}-{row['partition']}": row for row in report.results.to_pylist()}


@pytest.mark.sampled(1)
@pytest.mark.item("REC-01", "REC-21", "REC-24")
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_the_directory_of_a_killed_broker_ends_as_partition_recover_leaves_it(
    spark, tmp_path, tuning
):
    root = killed_broker(tmp_path)
    twin = root.copy(tmp_path / "twin")
    report = recover(spark, [root.path], root.with_options(tuning=tuning))
    results = twin.recover_one_by_one()

    assert report.exit_code == 0
    assert root.trees() == twin.trees()
    assert read_tree(root.path / METADATA) == read_tree(twin.path / METADATA)
    rows = rows_of(report)
    assert rows.pop(METADATA)["reason"] == "INTERNAL_METADATA"
    assert {(row["status"], row["action"]) for row in rows.values()} == {("done", "recover")}
    ends = {str(p): end for p, end in read_points(root.path, RECOVERY_POINT_FILE).items()}
    for name, row in rows.items():
        kafka = UNCLEAN.case["expected"][name]["expected"]
        assert results[name].log_end_offset == kafka["leo"] == ends[name]
        assert results[name].log_start_offset == kafka["log_start"]
        assert row["segments_after"] == len(kafka["segments"])
        assert row["bytes_after"] == sum(size for _, size in kafka["segments"])
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-dir-unclean", "twin"]


@pytest.mark.thorough
@pytest.mark.item("REC-10", "REC-30")
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_logs_of_every_kind_with_torn_tails_end_as_partition_recover_leaves_them(
    spark, tmp_path, tuning
):
    root = crashed_directory(tmp_path / "log", MANY_KINDS)
    forget_high_watermarks(root.path)
    for directory in root.partitions()[::2]:
        tear(directory)
    tear(root.path / "clean-group-all-s211-0", segment=1, size_bytes=3)
    twin = root.copy(tmp_path / "twin")
    # Of the log that is torn in its middle records are cut that can be read.
    report = recover(spark, [root.path], root.with_options(tuning=tuning, allow_truncate=True))
    twin.recover_one_by_one()
    assert report.exit_code == 0
    assert root.trees() == twin.trees()


@pytest.mark.thorough
@pytest.mark.item("CKP-06", "CKP-07", "REC-29")
def test_checkpoints_say_where_logs_start_and_end_and_keep_lines_that_are_not_ours(spark, tmp_path):
    low, high, gone = MANY_KINDS[0], MANY_KINDS[2], MANY_KINDS[5]
    root = crashed_directory(tmp_path / "log", [low, high, gone])
    starts = {TopicPartition(low, 0): 0, TopicPartition(high, 0): 25, FOREIGN: 4}
    marks = {TopicPartition(low, 0): 3, TopicPartition(high, 0): 10, FOREIGN: 9}
    (root.path / LOG_START_FILE).write_bytes(encode_offset_checkpoint(starts))
    (root.path / REPLICATION_FILE).write_bytes(encode_offset_checkpoint(marks))
    (root.path / RECOVERY_POINT_FILE).write_bytes(encode_offset_checkpoint({FOREIGN: 7}))
    cleaner = (root.path / CLEANER_FILE).read_bytes()
    report = recover(spark, [root.path], root.options)

    assert report.exit_code == 0
    ends = {
        TopicPartition(topic, 0): Golden(topic).case["expected"]["leo"]
        for topic in (low, high, gone)
    }
    assert read_points(root.path, RECOVERY_POINT_FILE) == {FOREIGN: 7, **ends}
    # Of the first log the checkpoint says no more than its first segment does: no line.
    assert read_points(root.path, LOG_START_FILE) == {TopicPartition(high, 0): 25, FOREIGN: 4}
    assert read_points(root.path, REPLICATION_FILE) == {
        TopicPartition(low, 0): 3,
        TopicPartition(high, 0): 25,
        FOREIGN: 9,
    }
    assert (root.path / CLEANER_FILE).read_bytes() == cleaner


@pytest.mark.thorough
@pytest.mark.item("CKP-05", "FLT-11")
@pytest.mark.parametrize("name", [RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE])
def test_a_malformed_checkpoint_counts_as_empty_and_stays_as_it_is(spark, tmp_path, name):
    root = crashed_directory(tmp_path / "log", MANY_KINDS[:2])
    (root.path / name).write_bytes(b"0\n2\nonly 0 1\n")
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    report = recover(spark, [root.path], root.options)
    assert (root.path / name).read_bytes() == b"0\n2\nonly 0 1\n"
    assert root.trees() == twin.trees()
    [note] = [note for note in report.notes if name in note]
    assert "counts as empty and stays as it is" in note
    assert report.summary.done == 2


@pytest.mark.thorough
@pytest.mark.item("REC-31", "REC-32")
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_a_dry_run_writes_nothing_and_says_what_the_run_then_does(spark, tmp_path, tuning):
    root = crashed_directory(tmp_path / "log", MANY_KINDS)
    forget_high_watermarks(root.path)
    for directory in root.partitions()[1::2]:
        tear(directory)
    first = root.partitions()[0]
    log = logs_of(first)[0]
    flip(log, 30)
    options = root.with_options(tuning=tuning, allow_truncate=True)
    before, sizes = state_of(tmp_path), sizes_of(root)
    salvage, ledger = str(tmp_path / "salvage"), str(tmp_path / "ledger")
    said = recover(
        spark,
        [root.path],
        root.with_options(
            tuning=tuning, allow_truncate=True, dry_run=True, salvage=salvage, ledger=ledger
        ),
    )
    assert state_of(tmp_path) == before
    done = recover(spark, [root.path], options)

    assert said.cuts.drop("status").equals(done.cuts.drop("status"))
    assert {*said.cuts["status"].to_pylist()} == {"planned"}
    assert {*done.cuts["status"].to_pylist()} == {"done"}
    assert said.cuts.num_rows >= 6
    # Every byte of records that is gone is in the report, and no other.
    lost: dict[str, int] = {}
    for cut in said.cuts.to_pylist():
        name = f"{cut['topic']}-{cut['partition']}"
        lost[name] = lost.get(name, 0) + cut["size_bytes"]
    after = sizes_of(root)
    assert {name: sizes[name] - after[name] for name in sizes if sizes[name] != after[name]} == lost
    for name, row in rows_of(said).items():
        ran = rows_of(done)[name]
        assert (row["status"], ran["status"]) == ("planned", "done")
        columns = ("bytes_before", "bytes_after", "segments_before", "segments_after")
        assert [row[c] for c in columns] == [ran[c] for c in columns]
        assert ran["bytes_after"] == after[name]


def sizes_of(root) -> dict[str, int]:
    return {d.name: sum(log.stat().st_size for log in logs_of(d)) for d in root.partitions()}


@pytest.mark.thorough
@pytest.mark.item("REC-32", "DIR-14")
def test_recovering_twice_changes_nothing_more(spark, tmp_path):
    root = killed_broker(tmp_path)
    tear(root.path / "events-0")
    forget_high_watermarks(root.path)
    recover(spark, [root.path], root.options)
    before = state_of(root.path)
    again = recover(spark, [root.path], root.options)
    rows = rows_of(again)
    del rows[METADATA]
    assert {(row["status"], row["reason"]) for row in rows.values()} == {
        ("skipped", "NOTHING_TO_RECOVER")
    }
    assert again.exit_code == 0
    assert state_of(root.path) == before
    # The same by hand, without the marker: everything is read again, no byte differs.
    (root.path / CLEAN_SHUTDOWN_FILE).unlink()
    trees = root.trees()
    third = recover(spark, [root.path], root.options)
    assert third.summary.done == len(rows)
    assert root.trees() == trees


@pytest.mark.thorough
@pytest.mark.item("REC-14", "DIR-03")
def test_a_directory_that_was_cleanly_shut_down_is_not_touched_and_keeps_its_epoch(spark, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    marker = (path / CLEAN_SHUTDOWN_FILE).read_bytes()
    assert marker != MARKER_OF_OURS
    # A segment below the active one: a broker that was cleanly shut down does not look at it.
    log = logs_of(path / "events-0")[0]
    flip(log)
    before = state_of(path)
    options = killed_broker(tmp_path).options
    for is_dry in (True, False):
        report = UpkeepDirectory.for_path(spark, path, options=options).recover_with_report(
            dry_run=is_dry
        )
        reasons = {row["reason"] for row in report.results.to_pylist()}
        assert reasons == {"NOTHING_TO_RECOVER", "INTERNAL_METADATA"}
        assert state_of(path) == before
    assert (path / CLEAN_SHUTDOWN_FILE).read_bytes() == marker


@pytest.mark.thorough
@pytest.mark.item("REC-08", "DIR-03")
def test_a_clean_directory_that_needed_work_loses_the_epoch_of_its_marker(spark, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    index = logs_of(path / "events-0")[0].with_suffix(".index")
    content = index.read_bytes()
    index.unlink()
    untouched = state_of(path / "events-1")
    report = recover(spark, [path], killed_broker(tmp_path).options)
    done = [name for name, row in rows_of(report).items() if row["status"] == "done"]
    assert done == ["events-0"]
    assert index.read_bytes() == content
    assert (path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    assert state_of(path / "events-1") == untouched


@pytest.mark.thorough
@pytest.mark.item("REC-08", "DIR-03")
def test_it_loses_the_epoch_too_where_the_run_ends_before_it_takes_note(
    spark, tmp_path, monkeypatch
):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    path = Golden("broker-dir").unpack(tmp_path)
    index = logs_of(path / "events-0")[0].with_suffix(".index")
    index.unlink()
    monkeypatch.setattr(RecoveryStages, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recover(spark, [path], killed_broker(tmp_path).options)
    assert index.exists()
    assert (path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS


@pytest.mark.thorough
@pytest.mark.item("REC-17", "REC-30", "REC-31")
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_a_log_that_kafka_does_not_load_is_a_row_and_the_others_finish(spark, tmp_path, tuning):
    root = crashed_directory(tmp_path / "log", MANY_KINDS)
    broken = "clean-txn-none-s101-3"
    log = logs_of(root.path / f"{broken}-0")[0]
    # Of no version that there ever was: Kafka stops at it.
    snapshot_of(root.path / f"{broken}-0", log)
    before = read_tree(root.path / f"{broken}-0")
    twin = root.copy(tmp_path / "twin")
    report = recover(spark, [root.path], root.with_options(tuning=tuning))

    row = rows_of(report)[f"{broken}-0"]
    assert report.exit_code == 4
    assert row["status"] == "failed"
    assert row["error_class"]
    assert ".txnindex" in row["error"]
    assert read_tree(root.path / f"{broken}-0") == before
    assert report.summary.done == len(MANY_KINDS) - 1
    assert TopicPartition(broken, 0) not in read_points(root.path, RECOVERY_POINT_FILE)
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert any("1 of its logs were not recovered" in note for note in report.notes)
    for each in (root.path, twin.path):
        for file in (each / f"{broken}-0").iterdir():
            file.unlink()
        (each / f"{broken}-0").rmdir()
    twin.recover_one_by_one()
    assert root.trees() == twin.trees()


def snapshot_of(directory, log) -> None:
    """Give a segment a transaction index of an unknown version."""
    log.with_suffix(".txnindex").write_bytes(b"\x00\x63" + bytes(32))


@pytest.mark.thorough
@pytest.mark.item("REC-31")
def test_the_ledger_has_a_row_a_partition_and_every_operation(tmp_path):
    root = crashed_directory(tmp_path / "log", MANY_KINDS[:3])
    forget_high_watermarks(root.path)
    torn = tear(root.path / f"{MANY_KINDS[0]}-0")
    ledger = tmp_path / "ledger"
    options = root.with_options(ledger=str(ledger), spark_conf={"spark.secret": "hidden"})
    report = recover(Local(), [root.path], options)
    tables = {
        name: deltalake.DeltaTable(str(ledger / name)).to_pyarrow_table().to_pylist()
        for name in ("runs", "results", "operations")
    }
    assert [run["event"] for run in sorted(tables["runs"], key=lambda run: run["at"])] == [
        "START",
        "END",
    ]
    assert {run["action"] for run in tables["runs"]} == {"recover"}
    # The options of a run are in its record, without the session's secrets.
    recorded = json.loads(tables["runs"][0]["options"])
    assert recorded["max_truncate_bytes"] == 64 * 1024 * 1024
    assert "spark_conf" not in recorded
    assert {(row["topic"], row["status"]) for row in tables["results"]} == {
        (name, "done") for name in MANY_KINDS[:3]
    }
    cuts = [row for row in tables["operations"] if row["operation"] == "TruncateFile"]
    assert [(row["file"], row["size_bytes"]) for row in cuts if row["file"] == torn.name] == [
        (torn.name, torn.stat().st_size)
    ]
    assert {row["run_id"] for row in tables["operations"]} == {report.run_id}


@pytest.mark.thorough
def test_owner_group_mode_and_attributes_of_every_file_stay(spark, tmp_path):
    root = killed_broker(tmp_path)
    forget_high_watermarks(root.path)
    tear(root.path / "events-0")
    tear(root.path / "payments.txn-0")
    owner = (4711, 4712) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for path in [root.path, *root.path.rglob("*")]:
        path.chmod(0o750 if path.is_dir() else 0o640)
        if os.geteuid() == 0:
            os.chown(path, *owner)
        set_attribute(path)
    kept = {path for path in root.path.rglob("*") if get_attribute(path)}
    recover(spark, [root.path], root.options)
    for path in [root.path, *root.path.rglob("*")]:
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == owner, path
        assert facts.st_mode & 0o7777 == (0o750 if path.is_dir() else 0o640), path
        if path in kept:
            assert get_attribute(path) == ATTRIBUTE_VALUE, path


def set_attribute(path) -> None:
    """Set an extended attribute, where the filesystem of the test has such."""
    try:
        os.setxattr(path, ATTRIBUTE, ATTRIBUTE_VALUE)
    except OSError:
        return


def get_attribute(path) -> bytes | None:
    try:
        return os.getxattr(path, ATTRIBUTE)
    except OSError:
        return None


@pytest.mark.thorough
@pytest.mark.item("REC-22", "DIR-05", "DIR-06", "DIR-07", "DIR-08")
def test_renamed_directories_are_known_by_their_names(spark, tmp_path):
    names = MANY_KINDS[:4]
    root = crashed_directory(tmp_path / "log", names)
    forget_high_watermarks(root.path)
    code = "0" * 31 + "1"
    renamed = {}
    for name, kind in zip(names[1:], ("future", "delete", "stray"), strict=True):
        renamed[kind] = root.path / f"{name}-0.{code}-{kind}"
        (root.path / f"{name}-0").rename(renamed[kind])
        tear(renamed[kind])
    before = {kind: state_of(path) for kind, path in renamed.items()}
    report = recover(spark, [root.path], root.options)
    found = {(row["topic"], row["status"], row["reason"]) for row in report.results.to_pylist()}
    assert found == {
        (names[0], "done", None),
        (names[1], "done", None),
        (names[2], "skipped", "DELETE_DIRECTORY"),
        (names[3], "skipped", "STRAY_DIRECTORY"),
    }
    assert state_of(renamed["future"]) != before["future"]
    assert all(state_of(renamed[kind]) == before[kind] for kind in ("delete", "stray"))
    assert (root.path / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
def test_a_topic_whose_config_nobody_knows_is_recovered_with_kafkas_defaults(spark, tmp_path):
    """Nothing is lost by that guess: no setting but of indexes matters to a loader."""
    root = crashed_directory(tmp_path / "log", MANY_KINDS[:2])
    unknown = root.path / f"{MANY_KINDS[0]}-0"
    known = {MANY_KINDS[1]: root.options.topic_configs[MANY_KINDS[1]]}
    twin = tmp_path / "twin" / unknown.name
    shutil.copytree(unknown, twin)
    result = recover_partition(
        twin,
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=root.options.now_ms,
        recovery_point=read_points(root.path, RECOVERY_POINT_FILE).get(partition_of(unknown), 0),
        log_start_offset=read_points(root.path, LOG_START_FILE).get(partition_of(unknown), 0),
    )
    report = recover(spark, [root.path], root.with_options(topic_configs=known))
    row = rows_of(report)[unknown.name]
    assert (row["status"], row["reason"]) == ("done", None)
    assert read_tree(unknown) == read_tree(twin)
    [note] = [note for note in report.notes if "no source knows the config" in note]
    assert f"of {MANY_KINDS[0]}: recovered with Kafka's defaults" in note
    assert (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert read_points(root.path, RECOVERY_POINT_FILE)[partition_of(unknown)] == (
        result.log_end_offset
    )


@pytest.mark.thorough
@pytest.mark.item("REC-31")
def test_small_waves_change_no_byte_and_spark_shows_what_is_left(spark, tmp_path, monkeypatch):
    root = crashed_directory(tmp_path / "log", MANY_KINDS)
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    seen: list[str] = []
    collect = SparkEngine.collect

    def note(self, rows, schema, description, **how):
        seen.append(description)
        return collect(self, rows, schema, description, **how)

    monkeypatch.setattr(SparkEngine, "collect", note)
    steps: list[Progress] = []
    report = recover(
        spark,
        [root.path],
        root.with_options(tuning=Tuning(wave_max_bytes=40_000)),
        on_progress=steps.append,
    )
    assert report.summary.done == len(MANY_KINDS)
    assert root.trees() == twin.trees()
    waves = [text for text in seen if "wave " in text]
    assert len(waves) > 2
    assert waves[0].endswith(f" segments left) (wave 1 of {len(waves)})")
    assert " (about " in waves[0]
    assert "to go)" in waves[-1]
    assert (steps[-1].done_bytes, steps[-1].done_segments) == (
        steps[-1].total_bytes,
        steps[-1].total_segments,
    )
    assert steps[-1].total_segments == sum(len(logs_of(d)) for d in twin.partitions())
    assert [step.done_bytes for step in steps] == sorted(step.done_bytes for step in steps)


@pytest.mark.item("REC-31")
def test_progress_is_told_as_what_is_left_and_how_long_it_takes():
    half = Progress(
        done_bytes=1 << 30,
        total_bytes=3 << 30,
        done_segments=2,
        total_segments=1_502,
        seconds=64.0,
    )
    assert (
        progress_text(half) == "about 2.0 GiB in 1,500 segments left, 16.0 MiB/s, 2 min 8 s to go"
    )
    fresh = Progress(done_bytes=0, total_bytes=100, done_segments=0, total_segments=1, seconds=0.0)
    assert progress_text(fresh) == "about 100 B in 1 segment left"


class NoBroadcast(SparkEngine):
    """A session like Spark Connect's, which has no broadcast variables."""

    def __init__(self, spark, *, tag):
        super().__init__(spark, tag=tag)
        self.can_broadcast = False


@pytest.mark.thorough
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_a_session_without_broadcasts_leaves_the_same(spark, tmp_path, monkeypatch, tuning):
    monkeypatch.setattr("pylog_spark.engines.spark_engine.SparkEngine", NoBroadcast)
    root = crashed_directory(tmp_path / "log", MANY_KINDS[:4])
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    assert recover(spark, [root.path], root.with_options(tuning=tuning)).exit_code == 0
    assert root.trees() == twin.trees()


@pytest.mark.thorough
def test_rows_are_worst_first(spark, tmp_path):
    root = crashed_directory(tmp_path / "log", MANY_KINDS[:3])
    snapshot_of(root.path / f"{MANY_KINDS[2]}-0", logs_of(root.path / f"{MANY_KINDS[2]}-0")[0])
    (root.path / f"{MANY_KINDS[0]}-0" / OFF_SWITCH_FILE).touch()
    report = recover(spark, [root.path], root.options)
    assert report.results["status"].to_pylist() == ["failed", "done", "skipped"]
    assert json.dumps(report.results.to_pylist(), default=str)
