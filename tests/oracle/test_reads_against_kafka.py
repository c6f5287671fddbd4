"""Random logs read by Apache Kafka and by us: every fetch, every offset for a time."""

import contextlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jpype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import OffsetOutOfRangeError
from storage_core.log.log_loader import load_log
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from tests.kit.log_reader import Isolation, LogReader
from tests.kit.offset_queries import OffsetTarget, find_offset
from tests.oracle.jvm import KafkaFailure, java, kafka_failures, python_bytes
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS, Kafka
from tests.oracle.loading import write_log
from tests.oracle.partition import OpenPartition
from tests.oracle.random_loads import LoadPlan, load_plans
from tests.oracle.random_logs import against_kafka, scratch_folder
from tests.oracle.rounds import DIRECTORY

READS_PER_LOG = 150
LIMITS = Limits(max_record_bytes=1 << 24, max_batch_bytes=1 << 26)
NAMES = {
    Isolation.LOG_END: "LOG_END",
    Isolation.READ_UNCOMMITTED: "HIGH_WATERMARK",
    Isolation.READ_COMMITTED: "TXN_COMMITTED",
}

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a fetch is; place and first batch only where there is something to read.

    Where a bound lies inside of a compressed legacy message, Kafka may find that there is nothing
    to read before it looks at the size.
    """

    data: bytes
    place: tuple[int, int] | None
    is_first_batch_incomplete: bool
    aborted: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BothSides:
    """A log that Kafka holds open, and our reader of the same files."""

    partition: OpenPartition
    reader: LogReader


@pytest.mark.thorough
@against_kafka
@given(plan=load_plans(), high_watermark=st.sampled_from((1.0, 1.0, 0.9, 0.5)))
@pytest.mark.item("IDX-11", "IDX-13", "IDX-14", "RD-01", "RD-02", "RD-03", "RD-04", "RD-05")
@pytest.mark.item("RD-06", "RD-07", "REC-29")
def test_every_fetch_is_the_one_of_kafka(plan: LoadPlan, high_watermark: float) -> None:
    with opened(plan, high_watermark) as sides:
        dice = random.Random(repr(plan))
        offsets, sizes = interesting(sides.partition)
        for _ in range(READS_PER_LOG):
            offset, size = dice.choice(offsets), dice.choice(sizes)
            isolation, whole = dice.choice(list(Isolation)), dice.choice((True, False))
            expected = read_by_kafka(sides.partition, offset, size, isolation, whole)
            found = read_by_us(sides.reader, offset, size, isolation, whole)
            assert found == expected, (offset, size, isolation, whole, sides.partition.answer())


@pytest.mark.thorough
@against_kafka
@given(plan=load_plans())
@pytest.mark.item("IDX-12", "RD-09", "RD-10", "RD-11")
def test_every_time_has_the_offset_that_kafka_finds(plan: LoadPlan) -> None:
    with opened(plan, 1.0) as sides:
        for target in [*map(int, OffsetTarget), *times(sides.partition)]:
            found = find_offset(sides.reader, target, limits=LIMITS)
            expected = time_by_kafka(sides.partition, target)
            ours = None if found is None else (found.timestamp, found.offset, found.leader_epoch)
            assert ours == expected, f"{target}: {ours} {expected} {sides.partition.answer()}"


@contextlib.contextmanager
def opened(plan: LoadPlan, fraction: float) -> Iterator[BothSides]:
    """Write the log of a plan, close it, and open equal files on both sides.

    Tiny indexes would fail some appends, and with them the close.
    """
    config = {**plan.config, "segment.index.bytes": 8_000}
    plan = replace(plan, config=config, ends_cleanly=True)
    with scratch_folder() as scratch:
        directory = scratch / DIRECTORY
        log = write_log(plan, directory)
        kafka = Kafka(now_ms=log.now_ms)
        store = LocalStore(directory)
        high_watermark = int(log.log_end_offset * fraction)
        loaded = load_log(
            store,
            config=LogConfig.from_topic_overrides({k: str(v) for k, v in plan.config.items()}),
            cleaner=CleanerConfig(producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS),
            now_ms=log.now_ms,
            high_watermark=high_watermark,
        )
        # An open log has its active indexes preallocated: each side has its own files.
        twin = scratch / "kafka" / DIRECTORY
        shutil.copytree(directory, twin)
        partition = kafka.open_partition(twin, config=plan.config)
        try:
            partition.set_high_watermark(high_watermark)
            yield BothSides(partition, LogReader(store, loaded))
        finally:
            partition.abandon()


def batches_of(partition: OpenPartition) -> Iterator[Any]:
    for path in sorted(partition.directory.glob("*.log")):
        with kafka_failures():
            records = java("org.apache.kafka.common.record.internal.FileRecords").open(
                java("java.io.File")(str(path)), False
            )
            yield from records.batches()
            records.close()


def interesting(partition: OpenPartition) -> tuple[list[int], list[int]]:
    """Return offsets at and beside every batch, and sizes at and beside those of batches."""
    end = partition.log_end_offset
    offsets = {-1, 0, end - 1, end, end + 1, partition.answer().high_watermark}
    sizes = {0, 1, 100, 3_000, 1 << 20}
    for batch in batches_of(partition):
        base, last = int(batch.baseOffset()), int(batch.lastOffset())
        offsets |= {base - 1, base, (base + last) // 2, last, last + 1}
        size = int(batch.sizeInBytes())
        sizes |= {size - 1, size, size + 1}
    return sorted(offsets), sorted(sizes)


def times(partition: OpenPartition) -> list[int]:
    found = {0, 2**62}
    for batch in batches_of(partition):
        for time in (int(batch.maxTimestamp()), *(int(r.timestamp()) for r in batch)):
            found |= {max(0, time - 1), max(0, time), time + 1}
    chosen = sorted(found)
    return chosen[:: max(1, len(chosen) // READS_PER_LOG)]


def read_by_kafka(
    partition: OpenPartition, offset: int, size: int, isolation: Isolation, whole: bool
) -> Answer | None:
    level = java("org.apache.kafka.server.storage.log.FetchIsolation").valueOf(NAMES[isolation])
    try:
        with kafka_failures():
            fetched = partition.log.read(jpype.JLong(offset), size, level, whole)
    except KafkaFailure as failure:
        if "OffsetOutOfRange" not in failure.java_class:
            raise
        return None
    records = fetched.records
    length = int(records.sizeInBytes())
    data = b""
    if length:
        buffer = java("java.nio.ByteBuffer").allocate(length)
        records.readInto(buffer, 0)
        data = python_bytes(buffer) or b""
    place = fetched.fetchOffsetMetadata
    aborted = fetched.abortedTransactions
    return Answer(
        data=data,
        place=(int(place.segmentBaseOffset), int(place.relativePositionInSegment))
        if data
        else None,
        is_first_batch_incomplete=bool(data) and bool(fetched.firstEntryIncomplete),
        aborted=tuple((int(t.producerId()), int(t.firstOffset())) for t in aborted.get())
        if aborted.isPresent()
        else (),
    )


def read_by_us(
    reader: LogReader, offset: int, size: int, isolation: Isolation, whole: bool
) -> Answer | None:
    try:
        fetch = reader.read(offset, max_bytes=size, isolation=isolation, min_one_message=whole)
    except OffsetOutOfRangeError:
        return None
    data = reader.read_bytes(fetch)
    assert len(data) == fetch.size_bytes
    return Answer(
        data=data,
        place=(fetch.segment_base_offset, fetch.position) if data else None,
        is_first_batch_incomplete=bool(data) and fetch.is_first_batch_incomplete,
        aborted=tuple((t.producer_id, t.first_offset) for t in fetch.aborted),
    )


def time_by_kafka(partition: OpenPartition, target: int) -> tuple[int, int, int] | None:
    with kafka_failures():
        holder = partition.log.fetchOffsetByTimestamp(
            jpype.JLong(target), java("java.util.Optional").empty()
        )
        found = holder.timestampAndOffsetOpt()
        if not found.isPresent():
            return None
        epoch = found.get().leaderEpoch
        return (
            int(found.get().timestamp),
            int(found.get().offset),
            int(epoch.get()) if epoch.isPresent() else -1,
        )
