"""What it takes to commit many small partitions: on a local disk, and on a slow object store.

A small partition costs hardly more than its commit: syncs one after the other on a disk, requests
one after the other on an object store. Two pieces of work are timed, as tasks do them: a sweep
(some segments go) and a round of compaction; on a disk with a trash, so that a run may be undone.
``one by one`` hands the tasks a partition at a time, ``together`` all of them.

The object store is memory that answers each request after 20 ms. Syncs are what the disk makes of
them, and once more 3 ms longer, as a network volume's are: those of a disk with a cache that
survives a power cut take a tenth of that.

    python -m tests.bench.bench_commits [--partitions 100]
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

from pylog_spark.operations.compact.task import CompactionWork, clean_partitions
from pylog_spark.operations.retain.task import RetentionContext, SweepWork, commit_sweeps
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.rows import row_reader
from pylog_spark.run.plan_table import read_planned
from pylog_spark.tasks.listing import directory_row, list_partitions
from pylog_spark.tasks.observe import Step, observe_partition
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.filenames import LOG_SUFFIX, TopicPartition
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import ManagedStore, open_objects, syncing
from storage_core.store.generations import create_root
from storage_core.store.managed_store import upload_file
from tests.bench.figures import table_row
from tests.bench.shared import CACHE, run_with_options, show
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.pylog_spark.tasks.observed import observed

LATENCY_SECONDS: Final = 0.02
SYNC_SECONDS: Final = 0.003
DISK: Final = "disk"
SLOW_DISK: Final = "disk, 3 ms a sync"
OBJECTS: Final = "object store"
NOW_MS: Final = 1_700_000_000_000
SEGMENTS: Final = 3
RECORDS: Final = 20
URL: Final = "memory://bench-commits/root"
CONFIGS: Final = {
    "swept": {"cleanup.policy": "delete", "retention.ms": "1000"},
    "cleaned": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a piece of work took on all partitions."""

    place: str  # where they are
    work: str  # what was done
    partitions: int  # how many there are
    one_by_one: float  # seconds for tasks that are given a partition each, one after the other
    together: float  # seconds for one task that is given them all
    requests: dict[str, float]  # of a partition, to an object store; by method

    @property
    def ratio(self) -> float:
        """How many times faster they are together."""
        return self.one_by_one / self.together

    def line(self) -> str:
        """Return the row of the table."""
        asked = ", ".join(f"{name} {number:g}" for name, number in self.requests.items())
        return table_row(
            f"{self.partitions} {self.work}",
            self.place,
            f"{self.one_by_one:.2f}",
            f"{self.together:.2f}",
            f"{self.ratio:.1f}",
            asked,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSyncs:
    """What the disk itself takes to make small new files durable."""

    files: int
    one_by_one: float  # seconds: each is written and synced before the next one
    together: float  # seconds: all are written, then their filesystem is synced
    fdatasyncs: float  # a second, of a file that has grown by a block
    syncfs: float  # a second, with one such file

    def line(self) -> str:
        """Return the row of the table."""
        return table_row(
            f"{self.files} new files of 4 KiB, nothing else",
            DISK,
            f"{self.one_by_one:.2f}",
            f"{self.together:.2f}",
            f"{self.one_by_one / self.together:.1f}",
            f"fdatasync {self.fdatasyncs:,.0f} a second, syncfs {self.syncfs:,.0f} a second",
        )


class SlowMemoryObjects(MemoryObjectStore):
    """Objects in memory, each request answered after LATENCY_SECONDS; counts them."""

    requests: ClassVar[Counter[str]] = Counter()
    latency_seconds = 0.0

    def _wait(self, method: str) -> None:
        SlowMemoryObjects.requests[method] += 1
        time.sleep(self.latency_seconds)

    def get_with_etag(self, *args: Any, **kwargs: Any) -> tuple[bytes, str]:
        """Answer late."""
        self._wait("get")
        return super().get_with_etag(*args, **kwargs)

    def get_range(self, *args: Any, **kwargs: Any) -> bytes:
        """Answer late."""
        self._wait("get")
        return super().get_range(*args, **kwargs)

    def put(self, *args: Any, **kwargs: Any) -> str:
        """Answer late."""
        self._wait("put")
        return super().put(*args, **kwargs)

    def _put_if(self, *args: Any, **kwargs: Any) -> str:
        self._wait("put if")
        return super()._put_if(*args, **kwargs)

    def head(self, *args: Any, **kwargs: Any) -> Any:
        """Answer late."""
        self._wait("head")
        return super().head(*args, **kwargs)

    def list(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Answer late."""
        self._wait("list")
        yield from super().list(*args, **kwargs)


def measure(*, partitions: int = 100) -> Iterator[Timing]:
    """Yield the timings of both pieces of work in all places, on fresh partitions each."""
    for place, prepared in (
        (DISK, _broker_root),
        (SLOW_DISK, _slow_broker_root),
        (OBJECTS, _managed_root),
    ):
        for topic, work in (("swept", _sweep), ("cleaned", _clean)):
            with prepared(topic, 1) as (run, context):  # compiles, imports
                work(run, context, in_one=True)
            seconds = []
            for in_one in (False, True):
                with prepared(topic, partitions) as (run, context):
                    seconds.append(work(run, context, in_one=in_one))
                    asked = SlowMemoryObjects.requests.copy()
            yield Timing(
                place=place,
                work=topic,
                partitions=partitions,
                one_by_one=seconds[0],
                together=seconds[1],
                requests={name: round(n / partitions, 2) for name, n in sorted(asked.items())},
            )


def measure_disk(*, files: int = 300) -> DiskSyncs:
    """Return how fast the disk of the measurements syncs by itself."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="syncs-", dir=CACHE.resolve()) as folder:

        def write(name: str, sync: Callable[[int], Any] | None, blocks: int = 1) -> float:
            begin = time.perf_counter()
            with Path(folder, name).open("wb", buffering=0) as file:
                for _ in range(blocks):
                    file.write(bytes(4096))
                    if sync is not None:
                        sync(file.fileno())
            return time.perf_counter() - begin

        one_by_one = sum(write(f"one-{number}", os.fdatasync) for number in range(files))
        together = sum(write(f"all-{number}", None) for number in range(files))
        together += write("last", syncing.sync_filesystem)
        return DiskSyncs(
            files=files,
            one_by_one=one_by_one,
            together=together,
            fdatasyncs=files / write("grown", os.fdatasync, files),
            syncfs=files / write("grown by all", syncing.sync_filesystem, files),
        )


def _sweep(run: "_Run", write: WriteContext, *, in_one: bool) -> float:
    context = RetentionContext(run=run.context, step=Step.RETAIN)
    works = list(read_planned(SweepWork, observed(run.listed, run.context, Step.RETAIN)))
    return _time(works, lambda items: commit_sweeps(items, context, write), run, in_one=in_one)


def _clean(run: "_Run", write: WriteContext, *, in_one: bool) -> float:
    planned = [observe_partition(row, run.context, root_checkpoints) for row in run.listed]
    works = [
        row_reader(CompactionWork)(row | {"ordinal": number}) for number, row in enumerate(planned)
    ]
    return _time(works, lambda items: clean_partitions(items, write), run, in_one=in_one)


def _time(
    works: Sequence[Any],
    work: Callable[[Sequence[Any]], Iterator[Any]],
    run: "_Run",
    *,
    in_one: bool,
) -> float:
    """Return the seconds that a piece of work takes; each partition has to be done."""
    assert len(works) == len(run.listed)
    run.begin(works)
    units = [works] if in_one else [[each] for each in works]
    SlowMemoryObjects.requests.clear()
    SlowMemoryObjects.latency_seconds = LATENCY_SECONDS
    started = time.perf_counter()
    try:
        commits = [commit for unit in units for commit in work(unit)]
        seconds = time.perf_counter() - started
    finally:
        SlowMemoryObjects.latency_seconds = 0.0
    assert [commit.failure.error for commit in commits] == [None] * len(works)
    assert [commit.ordinal for commit in commits] == [each.ref.ordinal for each in works]
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run, and the partitions that it is about, as rows of ``schemas.PARTITION``."""

    context: RunContext
    listed: list[dict[str, Any]]
    begin: Callable[[Sequence[Any]], None]


@contextmanager
def _broker_root(topic: str, partitions: int) -> Iterator[tuple[_Run, WriteContext]]:
    # Beside the sources: /tmp may be memory, whose syncs cost nothing.
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commits-", dir=CACHE.resolve()) as folder:
        root = Path(folder, "log")
        for number in range(partitions):
            _write_partition(root / f"{topic}-{number}")
        trash = Path(folder, "trash", "run")
        with HeldBrokerRoot(str(root), run_id="run", mark_clean=False, trash=trash) as held:
            held.begin_writing()
            listed = list_partitions(str(root), Role.BROKER.value, TopicFilter())
            run = _Run(
                context=_run_context(str(root)),
                listed=[{"error_class": None, "error": None} | row for row in listed],
                begin=lambda works: held.allow_commits([each.ref.directory for each in works]),
            )
            yield run, WriteContext(run=run.context, roots={str(root): held.access})
            held.settle_commits({}, is_whole=True)


@contextmanager
def _slow_broker_root(topic: str, partitions: int) -> Iterator[tuple[_Run, WriteContext]]:
    def slow(sync: Callable[[int], Any]) -> Callable[[int], Any]:
        def wait(descriptor: int) -> Any:
            answer = sync(descriptor)
            time.sleep(SYNC_SECONDS)
            return answer

        return wait

    with (
        _broker_root(topic, partitions) as prepared,
        patch.object(os, "fsync", slow(os.fsync)),
        patch.object(syncing, "sync_filesystem", slow(syncing.sync_filesystem)),
    ):
        yield prepared


@contextmanager
def _managed_root(topic: str, partitions: int) -> Iterator[tuple[_Run, WriteContext]]:
    with (
        patch.dict(open_objects.OPENERS, {"memory": SlowMemoryObjects}),
        tempfile.TemporaryDirectory() as folder,
    ):
        objects = open_objects.open_object_store(URL)
        create_root(objects, now_ms=NOW_MS)
        source = _write_partition(Path(folder, f"{topic}-0"))
        names = [f"{topic}-{number}" for number in range(partitions)]
        for number in range(partitions):
            _upload(objects, TopicPartition(topic, number), source)
        rows = [directory_row(URL, Role.MANAGED.value, name) for name in names]
        run = _Run(
            context=_run_context(URL),
            listed=[{"error_class": None, "error": None, **(row or {})} for row in rows],
            begin=lambda _works: None,
        )
        with HeldManagedRoot(URL, run_id="run") as held:
            yield run, WriteContext(run=run.context, roots={URL: held.access})
        forget_memory(URL)


def _run_context(root: str) -> RunContext:
    return RunContext(
        run_id="run",
        options=JobOptions(now_ms=NOW_MS, high_watermark=HighWatermarkSource.LOG_END),
        hash_key=bytes(16),
        catalogs={root: TopicCatalog(explicit=CONFIGS)},
        unclean_roots=frozenset(),
    )


def _write_partition(directory: Path) -> Path:
    specs = []
    for number in range(SEGMENTS):
        at = NOW_MS - 10**8 + number
        records = tuple(
            RecordSpec(key=b"key-%d" % (place % 5), value=b"v" * 100, timestamp=at)
            for place in range(RECORDS)
        )
        specs.append(
            SegmentSpec(
                base_offset=number * RECORDS,
                batches=(BatchSpec(records=records, base_offset=number * RECORDS),),
                modified_ms=at,
                producers=(),
            )
        )
    return write_partition(directory, specs)


def _upload(objects: Any, partition: TopicPartition, source: Path) -> None:
    store = ManagedStore(objects, partition, is_new=True)
    for path in sorted(source.iterdir()):
        if path.name.endswith(LOG_SUFFIX):
            place = upload_file(objects, partition, store.attempt_id, path, path.name)
            store.promote(place, path.name)
        else:
            modified_ms = path.stat().st_mtime_ns // 1_000_000
            store.write_file(path.name, path.read_bytes(), modified_ms=modified_ms)
    store.publish(run_id="made-for-a-bench")


if __name__ == "__main__":
    show(measure_disk())
    run_with_options(measure)
