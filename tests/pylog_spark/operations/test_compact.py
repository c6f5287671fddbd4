"""Whole runs on Spark; Apache Kafka's own results and the in-process cleaner are the referees."""

import shutil
import time
from dataclasses import replace

import pytest

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import RunLimits, Strategy, Tuning
from pylog_spark.run import planning, upkeep
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.config import CleanerConfig
from storage_core.errors import StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    TopicPartition,
    offset_of,
)
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.kit.golden_data import Golden
from tests.kit.one_partition import clean_partition, retain_partition
from tests.pylog_spark.broker_roots import (
    CLEANED_ALONE,
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    cleaner,
    differences_from_kafka,
    expected_points,
    read_points,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.spark

SMALL = ["clean-headers-none-s101", "clean-hw-none-s161"]
NOT_DUE = "clean-ratio-none-s191-2"


@pytest.mark.sampled(1)
@pytest.mark.item("CMP-36", "CMP-39", "CMP-02")
@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.AUTO])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(CLEANED_ALONE, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds, compressed, with transactions"],
)
def test_every_partition_ends_as_apache_kafka_left_it(spark, tmp_path, names, now_ms, strategy):
    root = broker_directory(tmp_path / "log", names)
    in_process = root.copy(tmp_path / "copy")
    report = compact(spark, [root.path], root.options(now_ms), strategy=strategy)

    assert report.exit_code == 0
    assert differences_from_kafka(root.path, names, tmp_path) == []
    assert read_points(root.path) == expected_points(names)
    assert (root.path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":11}'
    assert sorted(path.name for path in tmp_path.glob("*scratch*")) == []
    for topic, row in rows_of(report).items():
        result = clean_partition(
            in_process.path / f"{topic}-0",
            config=root.config(topic),
            cleaner=cleaner(),
            request=root.request(topic, now_ms),
        )
        ours, theirs = (read_tree(r.path / f"{topic}-0") for r in (root, in_process))
        assert ours == theirs
        assert row["bytes_after"] == result.size
        assert row["status"] == ("skipped" if result.nothing_to_clean else "done")


@pytest.mark.thorough
def test_a_run_with_nothing_to_do_changes_nothing_and_starts_no_pass(spark, tmp_path):
    root = broker_directory(tmp_path / "log", SMALL)
    compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    before = state_of(tmp_path)
    started = time.perf_counter()
    again = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    took = time.perf_counter() - started
    assert {row["reason"] for row in rows_of(again).values()} == {"NOTHING_TO_CLEAN"}
    assert again.exit_code == 0
    # The lock file comes and goes: that is a change of the directory's own time.
    changed = {path for path, *_ in set(state_of(tmp_path)) ^ set(before)}
    assert changed <= {str(root.path)}
    assert took < 30


@pytest.mark.thorough
def test_a_partition_that_leads_into_another_log_directory_is_left_alone(spark, tmp_path):
    """A broker may hold the lock of that one; the other partitions are cleaned."""
    other = broker_directory(tmp_path / "other", ["clean-hw-none-s161"])
    root = broker_directory(tmp_path / "log", SMALL)
    linked = root.path / "clean-hw-none-s161-0"
    shutil.rmtree(linked)
    linked.symlink_to(other.path / "clean-hw-none-s161-0")
    before = state_of(other.path)
    with LogDirectoryLock(other.path):
        report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
        assert [state for state in state_of(other.path) if LOCK_FILE not in state[0]] == before
    rows = rows_of(report)
    row = rows["clean-hw-none-s161"]
    assert (row["status"], row["reason"]) == ("skipped", "LINKED_DIRECTORY")
    assert rows["clean-headers-none-s101"]["status"] == "done"
    assert report.exit_code == 0


@pytest.mark.thorough
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(spark, tmp_path):
    root = broker_directory(tmp_path / "log", [*SMALL, NOT_DUE])
    ledger = tmp_path / "ledger"
    options = root.options(FIRST_ROUNDS_MS, dry_run=True, ledger=str(ledger), role=None)
    before = state_of(tmp_path)
    report = compact(spark, [root.path], options)
    assert state_of(tmp_path) == before

    assert (report.exit_code, report.summary.planned, report.summary.done) == (0, 2, 0)
    planned = {row["topic"]: row for row in report.plans_frame(spark).toArrow().to_pylist()}
    row = planned["clean-hw-none-s161"]
    assert (row["first_dirty_offset"], row["first_uncleanable_offset"], row["groups"]) == (0, 57, 3)
    compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    for topic in SMALL:
        size = sum(path.stat().st_size for path in root.path.glob(f"{topic}-0/*.log"))
        assert size <= planned[topic]["bytes_after"]


@pytest.mark.thorough
@pytest.mark.item("CMP-43", "FLT-03", "CMP-39", "CMP-08", "ERR-02", "ERR-15")
@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.AUTO])
def test_one_damaged_partition_stops_no_other(spark, tmp_path, strategy):
    names = [*SMALL, "clean-epochs-mixed-s151"]
    root = broker_directory(tmp_path / "log", names)
    broken = names[0]
    log = min((root.path / f"{broken}-0").glob("*.log"))
    flip(log)
    before = read_tree(root.path / f"{broken}-0")
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS), strategy=strategy)

    rows = rows_of(report)
    assert report.exit_code == 4
    assert (rows[broken]["status"], rows[broken]["error_class"]) == ("failed", "CorruptRecordError")
    assert log.name in rows[broken]["error"]
    assert "position" in rows[broken]["error"]
    assert read_tree(root.path / f"{broken}-0") == before
    assert differences_from_kafka(root.path, names[1:], tmp_path) == []
    assert TopicPartition(broken, 0) not in read_points(root.path)
    # Its files are as they were: the directory is as clean as the broker left it.
    assert (root.path / ".kafka_cleanshutdown").exists()


@pytest.mark.thorough
def test_small_budgets_take_several_rounds_and_change_no_byte(spark, tmp_path):
    names = CLEANED_ALONE[:6]
    root = broker_directory(tmp_path / "log", names)
    tuning = Tuning(broadcast_max_bytes=9000, unit_min_bytes=1, unit_max_bytes=4096)
    options = root.options(FIRST_ROUNDS_MS, tuning=tuning)
    report = compact(spark, [root.path], options, strategy=Strategy.BROADCAST)
    assert report.exit_code == 0
    assert differences_from_kafka(root.path, names, tmp_path) == []


@pytest.mark.thorough
@pytest.mark.item("CMP-08")
def test_a_partition_whose_map_was_full_is_repeated_until_nothing_is_due(spark, tmp_path):
    name = "clean-group-all-s211"
    root = broker_directory(tmp_path / "log", [name, SMALL[0]])
    twin = root.copy(tmp_path / "copy")
    bounded = CleanerConfig(dedupe_buffer_bytes=24 * 40)
    partition, rounds, point = TopicPartition(name, 0), 0, None
    request = twin.request(name, FIRST_ROUNDS_MS)
    while True:
        result = clean_partition(
            twin.path / f"{name}-0",
            config=twin.config(name),
            cleaner=bounded,
            request=replace(
                request, checkpoints=replace(request.checkpoints, cleaner_offset=point)
            ),
        )
        if result.nothing_to_clean:
            break
        rounds, point = rounds + 1, result.cleaner_checkpoint
    options = root.options(FIRST_ROUNDS_MS, cleaner=bounded, until_clean=True)
    report = compact(spark, [root.path], options)

    assert rounds > 3
    assert read_tree(root.path / f"{name}-0") == read_tree(twin.path / f"{name}-0")
    assert read_points(root.path)[partition] == point == 270
    row = rows_of(report)[name]
    assert (row["status"], row["records_before"]) == ("done", 270)
    assert row["bytes_after"] == result.size


@pytest.mark.thorough
@pytest.mark.parametrize("looks_here", [0, planning.MOST_LOOKS_HERE])
def test_spark_jobs_say_what_they_do_and_carry_the_runs_tag(
    spark, tmp_path, monkeypatch, looks_here
):
    """The looks of a local session are none where its driver makes them."""
    monkeypatch.setattr(planning, "MOST_LOOKS_HERE", looks_here)
    root = broker_directory(tmp_path / "log", SMALL)
    seen = []
    collect = SparkEngine.collect

    def note(self, rows, schema, description, **how):
        table = collect(self, rows, schema, description, **how)
        seen.append((description, set(spark.sparkContext.getJobTags())))
        return table

    monkeypatch.setattr(SparkEngine, "collect", note)
    options = root.options(FIRST_ROUNDS_MS)
    report = compact(spark, [root.path], options, strategy=Strategy.BROADCAST)
    names = "clean-headers-none-s101-0, clean-hw-none-s161-0"
    looks = [
        f"pylog compact: look what is due in {root.path}",
        f"pylog compact: look again at 2 partitions of {root.path}",
    ]
    stages = [f"pylog compact {names}: {stage}" for stage in ("pass one and merge", "pass two")]
    stages.append(f"pylog compact {names}: commit")
    expected = stages if looks_here else [looks[0], *stages, looks[1]]
    assert [description for description, _ in seen] == expected
    assert [tags for _, tags in seen] == [{f"pylog-{report.run_id}"}] * len(seen)
    assert not spark.sparkContext.getJobTags()
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


@pytest.mark.thorough
def test_what_is_left_of_a_deleted_partition_has_a_row_of_its_own(spark, tmp_path):
    """``x-0`` beside ``x-0.<id>-delete``: one was cleaned, the other is nobody's business."""
    name = "clean-hw-none-s161"
    root = broker_directory(tmp_path / "log", [name])
    left = root.path / f"{name}-0.0123456789abcdef0123456789abcdef-delete"
    shutil.copytree(root.path / f"{name}-0", left)
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    found = {row["directory"]: row for row in report.results.to_pylist()}
    assert {place: (row["status"], row["reason"]) for place, row in found.items()} == {
        str(root.path / f"{name}-0"): ("done", None),
        str(left): ("skipped", "DELETE_DIRECTORY"),
    }
    assert report.summary.planned == 0
    assert differences_from_kafka(root.path, [name], tmp_path) == []


def test_an_empty_log_directory_is_done(spark, tmp_path):
    root = broker_directory(tmp_path / "log", [])
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    assert (report.exit_code, report.results.num_rows) == (0, 0)


@pytest.mark.thorough
def test_several_log_directories_of_one_broker_are_one_run(spark, tmp_path):
    first = broker_directory(tmp_path / "a", SMALL[:1])
    second = broker_directory(tmp_path / "b", [*SMALL[1:], SMALL[0]])
    options = replace(
        first.options(FIRST_ROUNDS_MS), topic_configs={**first.configs, **second.configs}
    )
    report = compact(spark, [first.path, second.path], options)
    rows = report.results.to_pylist()
    # Both directories hold SMALL[0]: nobody can tell which of the two is right.
    assert [(r["topic"], r["status"]) for r in rows if r["status"] == "done"] == [
        (SMALL[1], "done")
    ]
    assert {r["reason"] for r in rows if r["status"] == "failed"} == {"DUPLICATE_PARTITION"}
    assert differences_from_kafka(second.path, SMALL[1:], tmp_path) == []


@pytest.mark.thorough
def test_the_directory_of_a_real_broker_knows_its_topics_itself(spark, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    (path / "cleaner-offset-checkpoint").unlink()
    root = broker_directory(tmp_path / "none", [])
    options = replace(
        root.options(Golden("broker-dir").case["clock_ms"]),
        topic_settings={"min.cleanable.dirty.ratio": "0.0"},
    )
    report = compact(spark, [path], options, strategy=Strategy.BROADCAST)
    found = [
        (r["topic"], r["partition"], r["status"], r["reason"]) for r in report.results.to_pylist()
    ]
    assert sorted(found)[:4] == [
        ("__cluster_metadata", 0, "skipped", "INTERNAL_METADATA"),
        ("__consumer_offsets", 0, "skipped", "NOTHING_TO_CLEAN"),
        ("__consumer_offsets", 1, "skipped", "NOTHING_TO_CLEAN"),
        ("__consumer_offsets", 2, "skipped", "NOTHING_TO_CLEAN"),
    ]
    assert sorted(row[:2] for row in found if row[2] == "done") == [
        ("compacted", 0),
        ("compacted", 1),
        ("compacted-delete", 0),
        ("payments.txn", 0),
        ("payments.txn", 1),
    ]
    assert {row[0] for row in found if row[3] == "NOT_COMPACTED"} == {"events", "recompressed"}
    assert read_points(path) == {
        TopicPartition("compacted", 0): 459,
        TopicPartition("compacted", 1): 533,
        TopicPartition("compacted-delete", 0): 606,
        TopicPartition("payments.txn", 0): 126,
        TopicPartition("payments.txn", 1): 123,
    }


@pytest.mark.thorough
def test_what_the_budget_does_not_reach_is_left_and_said(spark, tmp_path):
    root = broker_directory(tmp_path / "log", SMALL)
    options = replace(
        root.options(FIRST_ROUNDS_MS), limits=RunLimits(max_duration_ms=0, max_bytes=10)
    )
    report = compact(spark, [root.path], options)
    assert {(r["status"], r["reason"]) for r in report.results.to_pylist()} == {
        ("skipped", "BUDGET_SPENT")
    }
    assert report.exit_code == 0
    assert compact(spark, [root.path], root.options(FIRST_ROUNDS_MS)).summary.done == len(SMALL)
    assert differences_from_kafka(root.path, SMALL, tmp_path) == []


@pytest.mark.thorough
def test_a_partition_that_its_owner_switched_off_is_left_alone(spark, tmp_path):
    root = broker_directory(tmp_path / "log", SMALL)
    (root.path / f"{SMALL[0]}-0" / "pylog-off").touch()
    before = read_tree(root.path / f"{SMALL[0]}-0")
    rows = rows_of(compact(spark, [root.path], root.options(FIRST_ROUNDS_MS)))
    assert rows[SMALL[0]]["reason"] == "SWITCHED_OFF"
    assert read_tree(root.path / f"{SMALL[0]}-0") == before
    assert rows[SMALL[1]]["status"] == "done"


@pytest.mark.thorough
@pytest.mark.item("RET-15")
def test_where_segments_may_be_in_remote_storage_a_topic_has_to_be_known_not_to_be(spark, tmp_path):
    root = broker_directory(tmp_path / "log", SMALL)
    (root.path / "remote-log-index-cache").mkdir()
    options = root.options(FIRST_ROUNDS_MS)
    rows = rows_of(compact(spark, [root.path], options))
    assert {row["reason"] for row in rows.values()} == {"REMOTE_STORAGE"}
    topics = dict(options.topic_configs)
    topics[SMALL[0]] = {**topics[SMALL[0]], "remote.storage.enable": "false"}
    rows = rows_of(compact(spark, [root.path], replace(options, topic_configs=topics)))
    assert rows[SMALL[0]]["status"] == "done"
    overridden = replace(options, limits=RunLimits(overrides=frozenset({"REMOTE_STORAGE"})))
    assert rows_of(compact(spark, [root.path], overridden))[SMALL[1]]["status"] == "done"


@pytest.mark.thorough
@pytest.mark.item("RET-13", "RET-04")
def test_what_lies_below_a_log_start_goes_after_the_compaction(spark, tmp_path):
    name = "clean-checkpoint-below-s201"
    root = broker_directory(tmp_path / "log", [name])
    twin = root.copy(tmp_path / "twin")
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    assert [(r["action"], r["status"]) for r in report.results.to_pylist()] == [
        ("compact", "done"),
        ("retain", "done"),
    ]
    directory, config = twin.path / f"{name}-0", root.config(name)
    request = twin.request(name, FIRST_ROUNDS_MS)
    clean_partition(directory, config=config, cleaner=cleaner(), request=request)
    retain_partition(
        directory,
        config=config,
        cleaner=cleaner(),
        now_ms=FIRST_ROUNDS_MS,
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
        high_watermark=request.checkpoints.high_watermark,
    )
    assert read_tree(root.path / f"{name}-0") == read_tree(directory)


@pytest.mark.thorough
def test_a_plan_that_cannot_be_saved_at_the_end_keeps_no_directory_from_being_given_back(
    spark, tmp_path, monkeypatch
):
    root = broker_directory(tmp_path / "log", SMALL)
    marker = (root.path / CLEAN_SHUTDOWN_FILE).read_bytes()

    def fail(_: object) -> None:
        raise StorageError("plan.json", "No space left on device")

    monkeypatch.setattr(upkeep, "write_planned", fail)
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    assert report.exit_code == ExitCode.FAILED
    assert any("No space left" in note for note in report.notes)
    assert {row["status"] for row in report.results.to_pylist()} == {"done"}
    assert differences_from_kafka(root.path, SMALL, tmp_path) == []
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == marker
    assert not (root.path / LOCK_FILE).exists()


@pytest.mark.thorough
@pytest.mark.item("RET-11", "CKP-04")
def test_a_log_start_that_a_killed_run_left_is_forgotten_where_the_log_begins_there(
    spark, tmp_path
):
    name = "retain-compact-delete-s501"
    root = broker_directory(tmp_path / "log", [name])
    limits = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
    options = root.options(Golden(name).case["clock_ms"], limits=limits)
    compact(spark, [root.path], options)
    # Written before the segments went; it was killed before it could take the entry back.
    first = offset_of(min(path.name for path in (root.path / f"{name}-0").glob("*.log")))
    assert first
    entry = encode_offset_checkpoint({TopicPartition(name, 0): first})
    (root.path / LOG_START_FILE).write_bytes(entry)
    compact(spark, [root.path], options)
    assert read_points(root.path, LOG_START_FILE) == {}
