import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pylog_spark.operations.compact import task as measure
from pylog_spark.operations.compact.task import count_records
from pylog_spark.operations.survey_task import survey_partitions
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import PARTITION, PLAN
from pylog_spark.tasks import observe as observe_module
from pylog_spark.tasks.listing import directory_row, list_partitions
from pylog_spark.tasks.observe import decode_plan, encode_plan, observe_partition
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import Checkpoints
from storage_core.config import CleanerConfig
from storage_core.errors import InvalidRecordError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    TopicPartition,
    log_file,
)
from storage_core.formats.batch_v2 import Codec
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.records import payload
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import LocalStore, local
from tests.kit.builders import log_with, some_batches
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.one_partition import clean_partition
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.observed import run_context

TOPIC = "clean-active-none-s161"
HEX = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> BrokerDirectory:
    return broker_directory(tmp_path / "log", [TOPIC])


def context_of(root: BrokerDirectory, **changes) -> RunContext:
    return run_context(str(root.path), root.configs, JobOptions(now_ms=FIRST_ROUNDS_MS), **changes)


def observe(root: BrokerDirectory, context: RunContext | None = None) -> dict:
    """Return the row of the root's only directory, checked against the table's columns."""
    (listed,) = list_partitions(str(root.path), "broker", TopicFilter())
    row = {"error_class": None, "error": None} | listed
    seen = observe_partition(row, context or context_of(root), root_checkpoints)
    return rows_to_batch(PLAN, [seen]).to_pylist()[0]


def test_a_due_partition_is_planned_with_its_range_and_bounds(root):
    row = observe(root)
    size = sum(path.stat().st_size for path in root.path.glob("*/*.log"))
    assert (row["status"], row["reason"], row["error"]) == ("planned", None, None)
    assert (row["first_dirty_offset"], row["first_uncleanable_offset"]) == (0, 61)
    assert row["cleanable_ratio"] == 1.0
    assert row["bytes"] == size
    assert row["bytes_after"] > size
    assert row["peak_extra_bytes"] > sum(row["segment_bytes"]) > 0
    assert decode_plan(row["plan"]).location == row["directory"]


def test_a_plan_is_the_same_behind_a_row(root):
    plan = decode_plan(observe(root)["plan"])
    aborted = tuple(
        AbortedTxn(producer_id=n, first_offset=n, last_offset=20 + n, last_stable_offset=20)
        for n in range(2)
    )
    first, *others = plan.segments
    assert others
    plan = replace(plan, segments=(replace(first, aborted=aborted, max_timestamp=5), *others))
    assert decode_plan(encode_plan(plan)) == plan


def test_a_partition_is_opened_and_listed_as_often_with_many_segments_as_with_few(
    tmp_path, monkeypatch
):
    folders: list[str] = []
    listings: list[int] = []
    open_folder, scan = local.open_folder, local.FolderEntries.of_folder

    def opened(path, **how):
        folders.append(str(path))
        return open_folder(path, **how)

    def scanned(folder):
        listings.append(folder)
        return scan(folder)

    monkeypatch.setattr(local, "open_folder", opened)
    monkeypatch.setattr(local.FolderEntries, "of_folder", scanned)
    counts = []
    for count in (3, 12):
        root = broker_directory(tmp_path / str(count), [TOPIC])
        shutil.rmtree(root.path / f"{TOPIC}-0")
        write_partition(
            root.path / f"{TOPIC}-0",
            [
                SegmentSpec(base_offset=base, batches=some_batches(count=2, base_offset=base))
                for base in range(0, 2 * count, 2)
            ],
        )
        folders.clear()
        listings.clear()
        row = observe(root)
        assert (row["status"], row["segments"]) == ("planned", count)
        counts.append((len(folders), len(listings)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("topic", ["clean-legacy1-none-s310-horizon", "clean-upgrade-s321"])
def test_the_bounds_of_a_log_in_an_old_format_hold_the_headers_of_its_new_batches(tmp_path, topic):
    root = broker_directory(tmp_path / "log", [topic])
    row = observe(root)
    # If not one message of the range went, each would have a header of its own.
    messages = row["first_uncleanable_offset"]
    assert row["bytes_after"] > row["bytes"] + 61 * messages
    assert row["peak_extra_bytes"] > sum(row["segment_bytes"]) + 61 * messages


def rename(root: BrokerDirectory, name: str) -> None:
    (root.path / f"{TOPIC}-0").rename(root.path / name)


@pytest.mark.item("CMP-01")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"{TOPIC}-0.{HEX}-future", "FUTURE_DIRECTORY"),
        (f"{TOPIC}-0.{HEX}-delete", "DELETE_DIRECTORY"),
        (f"{TOPIC}-0.{HEX}-stray", "STRAY_DIRECTORY"),
        ("__cluster_metadata-0", "INTERNAL_METADATA"),
        ("lost+found", "INVALID_DIRECTORY_NAME"),
        ("unheard-of-0", "CONFIG_UNKNOWN"),
    ],
)
def test_a_directory_that_is_no_partition_to_be_cleaned_is_skipped(root, name, reason):
    rename(root, name)
    row = observe(root)
    assert (row["status"], row["reason"]) == ("skipped", reason)


@pytest.mark.item("CMP-01")
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("cleanup.policy", "delete", "NOT_COMPACTED"),
        ("cleanup.policy", "", "NOT_COMPACTED"),
        ("min.cleanable.dirty.ratio", "1.0", "RATIO_BELOW_MINIMUM"),
        ("min.compaction.lag.ms", "9000000000000", "NOTHING_TO_CLEAN"),
    ],
    ids=["delete only", "kept for ever", "not dirty enough", "too young"],
)
def test_a_topic_whose_config_says_no_is_skipped(root, setting, value, reason):
    root.configs[TOPIC][setting] = value
    row = observe(root)
    assert (row["status"], row["reason"]) == ("skipped", reason)


def test_a_tiered_topic_is_skipped(root):
    root.configs[TOPIC] |= {"remote.storage.enable": "true", "cleanup.policy": "delete"}
    assert observe(root)["reason"] == "TIERED"


def test_a_directory_that_was_not_cleanly_shut_down_needs_recovery_first(root):
    context = context_of(root, unclean_roots=frozenset({str(root.path)}))
    assert observe(root, context)["reason"] == "UNCLEAN_SHUTDOWN"


@pytest.mark.item("CFG-30")
def test_a_switched_off_cleaner_cleans_nothing(root):
    options = JobOptions(now_ms=FIRST_ROUNDS_MS, cleaner=CleanerConfig(enabled=False))
    context = context_of(root, options=options)
    assert observe(root, context)["reason"] == "CLEANER_DISABLED"


@pytest.mark.item("RET-03")
def test_without_a_high_watermark_nothing_is_assumed(root):
    root.high_watermarks.clear()
    root.write_files()
    row = observe(root)
    assert (row["status"], row["reason"]) == ("skipped", "NO_HIGH_WATERMARK")


def test_the_log_end_is_the_high_watermark_only_if_that_is_said(root):
    root.high_watermarks = {TopicPartition(TOPIC, 0): 30}
    root.write_files()
    bounded = observe(root)
    options = JobOptions(now_ms=FIRST_ROUNDS_MS, high_watermark=HighWatermarkSource.LOG_END)
    free = observe(root, context_of(root, options=options))
    assert bounded["first_uncleanable_offset"] <= 30 < free["first_uncleanable_offset"]


@pytest.mark.item("CMP-02")
@pytest.mark.parametrize(
    ("name", "first_dirty", "is_reset"),
    [
        ("clean-checkpoint-below-s201", 102, True),
        ("clean-checkpoint-beyond-s201", 0, True),
        ("clean-active-none-s161", 0, False),
    ],
    ids=["below the log start", "beyond the log end", "no entry"],
)
def test_a_cleaner_point_outside_of_the_log_is_corrected(tmp_path, name, first_dirty, is_reset):
    row = observe(broker_directory(tmp_path / "log", [name]))
    assert (row["first_dirty_offset"], row["checkpoint_reset"]) == (first_dirty, is_reset)


@pytest.mark.item("CMP-02")
def test_it_is_corrected_too_where_the_manifest_alone_shows_that_nothing_is_due(
    tmp_path, monkeypatch
):
    name = "clean-checkpoint-below-s201"
    origin = broker_directory(tmp_path / "log", [name])
    twin = managed_twin(origin, tmp_path / "managed")
    config = origin.configs[name] | {"min.compaction.lag.ms": "9000000000000"}
    context = context_of(origin, catalogs={twin.location: TopicCatalog(explicit={name: config})})
    monkeypatch.setattr(observe_module, "load_for_round", None)
    (listed,) = list_partitions(twin.location, "managed", TopicFilter())
    row = observe_partition(
        {"error_class": None, "error": None} | listed, context, root_checkpoints
    )
    assert (row["status"], row["reason"]) == ("skipped", "NOTHING_TO_CLEAN")
    assert (row["first_dirty_offset"], row["checkpoint_reset"]) == (102, True)


@pytest.mark.item("DIR-10")
def test_a_directory_of_another_topic_of_the_same_name_is_skipped(root):
    ours, other = "V3CHegy_ZdcmiWckVUA0FQ", "ohZNig90xgRlmLmr-NUttg"
    path = root.path / f"{TOPIC}-0" / "partition.metadata"
    catalog = TopicCatalog(explicit=root.configs)
    known = replace(catalog.find(TOPIC), topic_id=ours)
    context = context_of(root, catalogs={str(root.path): replace(catalog, topics={TOPIC: known})})
    path.write_text(f"version: 0\ntopic_id: {other}")
    assert observe(root, context)["reason"] == "INCONSISTENT_TOPIC_ID"
    path.write_text(f"version: 0\ntopic_id: {ours}")
    assert observe(root, context)["status"] == "planned"
    path.unlink()
    assert observe(root, context)["status"] == "planned"


def test_a_partition_that_needs_recovery_is_skipped_with_what_is_missing(root):
    next(iter((root.path / f"{TOPIC}-0").glob("*.index"))).unlink()
    row = observe(root)
    assert (row["status"], row["reason"]) == ("skipped", "RECOVERY_REQUIRED")
    assert ".index" in row["error"]


def test_a_broken_checkpoint_is_the_row_of_each_partition(root):
    (root.path / CLEANER_FILE).write_text("0\n1\nt zero 5\n")
    row = observe(root)
    assert (row["status"], row["error_class"]) == ("failed", "CheckpointError")
    assert CLEANER_FILE in row["error"]


def test_a_bad_setting_of_a_topic_is_the_row_of_its_partitions(root):
    root.configs[TOPIC]["segment.ms"] = "soon"
    row = observe(root)
    assert (row["status"], row["error_class"]) == ("failed", "ConfigError")
    assert "segment.ms" in row["error"]


def test_a_mistake_in_the_program_is_a_row_that_says_where(root, monkeypatch):
    def load_badly(*arguments, **more):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("pylog_spark.tasks.observe.load_for_round", load_badly)
    row = observe(root)
    assert (row["status"], row["error_class"]) == ("failed", "ZeroDivisionError")
    assert "oh (unexpected at " in row["error"]
    assert "test_observe.py:" in row["error"]


@pytest.mark.item("FLT-13")
def test_the_wall_clock_of_an_executor_decides_nothing(root, monkeypatch):
    expected = observe(root)

    def read_clock() -> int:
        raise AssertionError("a task read the wall clock")

    monkeypatch.setattr("time.time", read_clock)
    monkeypatch.setattr("time.time_ns", read_clock)
    seen = observe(root)
    assert seen | {"duration_ms": 0} == expected | {"duration_ms": 0}


def test_what_was_cleaned_is_observed_without_reading_records(tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", ["clean-group-all-s211"])
    topic = "clean-group-all-s211"
    result = clean_partition(
        root.path / f"{topic}-0",
        config=root.config(topic),
        cleaner=CleanerConfig(),
        request=root.request(topic, FIRST_ROUNDS_MS),
    )
    root.cleaner_points[TopicPartition(topic, 0)] = result.cleaner_checkpoint
    root.write_files()
    read = {}
    read_into = local.LocalFileReader.read_into

    def count(self, position, target):
        filled = read_into(self, position, target)
        read[self.name] = read.get(self.name, 0) + filled
        return filled

    monkeypatch.setattr(local.LocalFileReader, "read_into", count)
    assert observe(root)["reason"] == "NOTHING_TO_CLEAN"
    logs = {name: size for name, size in read.items() if name.endswith(".log")}
    largest = max(path.stat().st_size for path in root.path.glob("*/*.log"))
    assert largest > 1000
    assert all(size <= 200 for size in logs.values()), logs


def test_observing_changes_nothing(root):
    before = sorted((p, p.stat().st_mtime_ns) for p in root.path.rglob("*"))
    observe(root)
    assert sorted((p, p.stat().st_mtime_ns) for p in root.path.rglob("*")) == before


# How many records segments hold, told by headers where those tell it.


LOG = "00000000000000000000.log"
MESSAGES = tuple(LegacyMessage(offset=offset) for offset in range(5))
SET = encode_entry(LegacySet(messages=MESSAGES, codec=Codec.GZIP))
PLAIN = b"".join(map(encode_entry, MESSAGES))


def counted(directory: Path, data: bytes) -> int:
    (directory / LOG).write_bytes(data)
    return count_records(LocalStore(directory), [LOG])


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_all_formats_are_counted_up_to_the_last_whole_batch(
    tmp_path: Path, monkeypatch, window_bytes: int
):
    monkeypatch.setattr(measure, "_WINDOW_BYTES", window_bytes)
    new = log_with(batches=3, records=4, codec=Codec.LZ4)
    assert counted(tmp_path, new) == 12
    assert counted(tmp_path, PLAIN) == 5
    assert counted(tmp_path, SET * 3 + PLAIN + new + SET + new[:70]) == 15 + 5 + 12 + 5
    assert counted(tmp_path, b"") == 0


def test_sets_are_opened_as_many_at_a_time_as_memory_allows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(payload, "ARENA_BUDGET_BYTES", 1)
    assert counted(tmp_path, SET * 3 + PLAIN + SET) == 25


def test_nothing_is_opened_that_counts_its_records(tmp_path: Path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a batch was opened")

    monkeypatch.setattr(payload, "open_batches", refuse)
    assert counted(tmp_path, log_with(batches=2, codec=Codec.GZIP) + PLAIN) == 7


def test_a_set_that_cannot_be_opened_is_told_with_its_place(tmp_path: Path):
    bad = encode_entry(LegacySet(messages=MESSAGES, payload=None))
    with pytest.raises(InvalidRecordError) as caught:
        counted(tmp_path, PLAIN + bad)
    assert (caught.value.file, caught.value.position) == (LOG, len(PLAIN))


# What a listing alone says of one partition, by its cleanup policies.


NOW_MS = 1_795_000_000_000
DAY_MS = 86_400_000
# Written four, three, two, one and no days ago.
SEGMENTS = [(100 * number, 1000, NOW_MS - (4 - number) * DAY_MS) for number in range(5)]


def surveyed(settings: dict[str, str], *, log_start: int | None = None, cleaned: int = 0) -> dict:
    partition = TopicPartition("t", 0)
    context = run_context("/r", {"t": settings}, JobOptions(now_ms=NOW_MS))
    row = {
        "root": "/r",
        "topic": "t",
        "partition": 0,
        "role": "mirror",
        "directory": "/r/t-0",
        "kind": "partition",
        "file_names": [log_file(base) for base, _, _ in SEGMENTS],
        "file_bytes": [size for _, size, _ in SEGMENTS],
        "file_times_ms": [at for _, _, at in SEGMENTS],
        "file_etags": [""] * len(SEGMENTS),
    }
    checkpoints = Checkpoints(
        entries={
            REPLICATION_FILE: {partition: 450},
            LOG_START_FILE: {} if log_start is None else {partition: log_start},
            CLEANER_FILE: {partition: cleaned},
        }
    )
    batches = survey_partitions(
        iter([rows_to_batch(PARTITION, [row])]), context, lambda _: checkpoints
    )
    (found,) = pa.Table.from_batches(batches).to_pylist()
    assert found["error"] is None
    return found


BOTH = {"cleanup.policy": "compact,delete", "retention.ms": str(2 * DAY_MS)}


def test_a_usual_directory_on_a_disk_is_listed_once_by_this_thread_and_no_file_is_opened(
    tmp_path, monkeypatch
):
    names = [f"t-{number}" for number in range(3)]
    for name in names:
        write_partition(tmp_path / name, [plain_segment(base, 2) for base in (0, 2)])
    rows = [directory_row(str(tmp_path), "mirror", name) for name in names]
    context = run_context(str(tmp_path), {"t": BOTH}, JobOptions(now_ms=NOW_MS))
    batch = rows_to_batch(PARTITION, rows)

    def survey_them() -> list[dict]:
        batches = survey_partitions(iter([batch]), context, lambda _: Checkpoints(entries={}))
        return pa.Table.from_batches(batches).to_pylist()

    found = survey_them()  # loads kernels, too
    assert [(row["segments"], row["error"]) for row in found] == [(2, None)] * len(names)
    opened, threads = [], threading.active_count()
    open_one = os.open

    def count(path, *arguments, **options):
        opened.append(Path(path).name)
        assert threading.active_count() == threads
        return open_one(path, *arguments, **options)

    monkeypatch.setattr(os, "open", count)
    survey_them()
    assert opened == names


def test_what_is_compacted_and_deleted_loses_what_is_too_old_and_is_cleaned():
    row = surveyed(BOTH)
    assert (row["status"], row["policy"]) == ("planned", "compact+delete")
    assert (row["removable_segments"], row["removable_bytes"]) == (2, 2000)
    assert (row["bytes_after"], row["segments_after"]) == (3000, 3)
    assert (row["blocked_by"], row["wait_ms"]) == ("WITHIN_TIME", 1)
    assert row["cleanable_bytes"] == 4000
    assert row["due_bytes"] == 4000 + 2000


def test_what_expires_is_due_though_nothing_is_to_be_cleaned():
    row = surveyed(BOTH, cleaned=400)
    assert (row["status"], row["reason"], row["due_bytes"]) == ("planned", None, 2000)
    assert (row["cleanable_bytes"], row["clean_bytes"]) == (0, 4000)


@pytest.mark.parametrize(("log_start", "removable"), [(None, 0), (200, 2)])
def test_what_is_only_compacted_loses_what_lies_below_its_log_start(log_start, removable):
    row = surveyed({"cleanup.policy": "compact"}, log_start=log_start, cleaned=400)
    assert row["removable_segments"] == removable
    assert row["status"] == ("planned" if removable else "skipped")
    assert row["reason"] == (None if removable else "NOTHING_TO_CLEAN")


def test_what_is_only_deleted_says_nothing_of_cleaning():
    row = surveyed({"cleanup.policy": "delete", "retention.ms": "-1"})
    assert (row["status"], row["reason"]) == ("skipped", "NOTHING_TO_RETAIN")
    assert row["cleanable_bytes"] is None
