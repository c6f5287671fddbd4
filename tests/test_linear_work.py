"""Four times as many segments are four times the work, not sixteen: counted, not timed."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import TopicPartition, log_file, segment_file
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.retention.partition import plan_retain
from storage_core.reading.inspection import _describe_files
from storage_core.store.local import LocalStore
from storage_core.store.managed_store import ManagedStore
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.memory_objects import MemoryObjectStore, forget_memory

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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_segments_not_with_their_square(tmp_path, name):
    few, many = (lines_of(WORK[name](tmp_path, count)) for count in (FEW, MANY))
    assert many < few * (MANY / FEW) * 1.3
