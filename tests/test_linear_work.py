"""Four times as many segments are four times the work, not sixteen, and batches are no work of
Python's: counted, not timed."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pylog_spark.cli.dump_lines import JsonLines
from pylog_spark.cli.dump_segment import dump_segment
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import TopicPartition, log_file, segment_file
from storage_core.kafka_log import open_logs
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.retention.partition import plan_retain
from storage_core.reading.inspection import _describe_files
from storage_core.store.local import LocalStore
from storage_core.store.managed_store import ManagedStore
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.one_partition import clean_partition

FEW, MANY = 60, 240
PARTITION = TopicPartition("t", 0)
LOAD = {"config": LogConfig.from_topic_overrides({}), "cleaner": CleanerConfig(), "now_ms": 10**13}

Work = Callable[[], Any]


def lines_of(work: Work) -> int:
    """Return how many lines of Python a call goes through, each turn of a loop counted."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    work()  # what is done once: imports, compilers, caches
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def empty_segments(directory: Path, count: int, *suffixes: str) -> LocalStore:
    directory.mkdir(parents=True)
    for base in range(count):
        for suffix in suffixes or (".log", ".index", ".timeindex"):
            (directory / segment_file(base, suffix)).touch()
    return LocalStore(directory)


def recovery(tmp_path: Path, count: int) -> Work:
    store = empty_segments(tmp_path / f"{count}" / "t-0", count)
    return lambda: plan_recovery(store, **LOAD)


def recovery_with_snapshots(tmp_path: Path, count: int) -> Work:
    directory = tmp_path / f"{count}" / "t-0"
    specs = [SegmentSpec(base_offset=base * 10, batches=[]) for base in range(count)]
    write_partition(directory, specs)
    for spec in specs:
        (directory / segment_file(spec.base_offset, ".snapshot")).write_bytes(b"")
    return lambda: plan_recovery(LocalStore(directory), **LOAD)


def recovery_that_drops_all_but_one(tmp_path: Path, count: int) -> Work:
    store = empty_segments(tmp_path / f"{count}" / "t-0", count)
    Path(store.location, log_file(0)).write_bytes(b"no batch" * 20)
    return lambda: plan_recovery(store, **LOAD)


def leftovers(tmp_path: Path, count: int) -> Work:
    suffixes = (".log.deleted", ".index.deleted", ".timeindex.deleted")
    store = empty_segments(tmp_path / f"{count}" / "t-0", count, *suffixes)
    empty_segments(tmp_path / f"{count}-1" / "t-1", 1)
    return lambda: plan_recovery(store, **LOAD, clean_shutdown=True)


def swaps(tmp_path: Path, count: int) -> Work:
    suffixes = (".log.swap", ".index.swap", ".timeindex.swap")
    store = empty_segments(tmp_path / f"{count}" / "t-0", count, *suffixes)
    return lambda: plan_recovery(store, **LOAD, clean_shutdown=True)


def sweep(tmp_path: Path, count: int) -> Work:
    store = empty_segments(tmp_path / f"{count}" / "t-0", count)
    config = LogConfig.from_topic_overrides({"retention.ms": "1"})
    return lambda: plan_retain(store, **LOAD | {"config": config})


def inspection(tmp_path: Path, count: int) -> Work:
    store = empty_segments(tmp_path / f"{count}" / "t-0", count, ".log", ".log.deleted", ".other")
    return lambda: _describe_files(store.list_files())


def managed_files(tmp_path: Path, count: int) -> Work:
    """Files of a managed partition, written and read: their manifest names all of them."""
    url = f"memory://linear-{count}"

    def work() -> None:
        forget_memory(url)
        store = ManagedStore(MemoryObjectStore(url), PARTITION, is_new=True)
        for base in range(count):
            store.write_file(segment_file(base, ".index"), b"12345678")
            store.write_file(segment_file(base, ".timeindex"), b"123456789012")
        store.publish(run_id="r")
        store = ManagedStore(MemoryObjectStore(url), PARTITION)
        for file in store.list_files():
            assert len(store.read_file(file.name, limit_bytes=100)) == file.size_bytes

    return work


WORK = {
    "a recovery": recovery,
    "a recovery with snapshots": recovery_with_snapshots,
    "a recovery that drops all but one": recovery_that_drops_all_but_one,
    "what a deletion left": leftovers,
    "what a swap left": swaps,
    "a sweep of all": sweep,
    "an inspection": inspection,
    "files of a manifest": managed_files,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_segments_not_with_their_square(tmp_path, name):
    few, many = (lines_of(WORK[name](tmp_path, count)) for count in (FEW, MANY))
    assert many < few * (MANY / FEW) * 1.3


def batches_of_one_record(tmp_path: Path, count: int) -> Path:
    directory = tmp_path / f"{count}" / "t-0"
    return write_partition(directory, [plain_segment(0, count), plain_segment(count, 1)])


def compaction_of_batches(tmp_path: Path, count: int) -> Work:
    source = batches_of_one_record(tmp_path, count)
    config = LogConfig.from_topic_overrides({"cleanup.policy": "compact"})
    request = CleanRequest(now_ms=10**13, first_dirty_offset=0)

    def work() -> None:
        copy = tmp_path / "copy" / "t-0"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
        clean_partition(copy, config=config, cleaner=CleanerConfig(), request=request, threads=1)

    return work


def recovery_of_batches(tmp_path: Path, count: int) -> Work:
    store = LocalStore(batches_of_one_record(tmp_path, count))
    return lambda: plan_recovery(store, **LOAD)


def arrow_of_batches(tmp_path: Path, count: int) -> Work:
    directory = batches_of_one_record(tmp_path, count)
    return lambda: sum(batch.num_rows for batch in open_logs(directory).read())


def dump_of_batches(tmp_path: Path, count: int) -> Work:
    directory = batches_of_one_record(tmp_path, count)
    name = segment_file(0, ".log")

    def work() -> None:
        lines = JsonLines(name)
        text = "".join(
            line
            for content in dump_segment(LocalStore(directory), name, None)
            for line in lines.lines(content)
        )
        assert text.count("\n") == 2 * count

    return work


OF_BATCHES = {
    "a compaction": compaction_of_batches,
    "a recovery": recovery_of_batches,
    "a read": arrow_of_batches,
    "a dump": dump_of_batches,
}


@pytest.mark.parametrize("name", OF_BATCHES)
def test_no_line_of_python_is_run_for_a_batch(tmp_path, name):
    few, many = (lines_of(OF_BATCHES[name](tmp_path, count)) for count in (100, 1100))
    assert many < few + 100
