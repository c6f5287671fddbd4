"""Appends: columns and ready batches to our log, the same batches to Kafka's UnifiedLog.

    python -m tests.bench.bench_append [--rounds 5] [--megabytes 400] [--record-bytes 200]

Every timing goes from the open log to the end of a clean close, syncs included, on one thread each.
Kafka gets batches that were built before and lie in the JVM, in calls of about a megabyte, so that
the way from Python does not count: one large batch to its leader, many small ones to its follower.
Ours does the same, and more: it also builds the batches out of columns.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.log.unified_log import UnifiedLog
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.new_records import ByteColumn, NewRecords
from tests.bench.bench_compaction import find_memory
from tests.bench.figures import Figure
from tests.bench.shared import CACHE, run_with_options
from tests.oracle.appends import memory_records
from tests.oracle.jvm import start_jvm
from tests.oracle.kafka import Kafka

SCRATCH: Final = CACHE / "append"
NOW_MS: Final = 1_700_000_000_000
CALL_BYTES: Final = 1_000_000
SMALL_BATCH_BYTES: Final = 16_384
KAFKA: Final = "Kafka"
COLUMNS: Final = "ours, columns into 16 KB batches"
KAFKA_AS_LEADER: Final = "Kafka, ready 1 MB batches as leader"
KEY_BYTES: Final = 16
RECORD_OVERHEAD_BYTES: Final = 16  # lengths and deltas, at most
CONFIG: Final = {"retention.ms": "-1", "segment.bytes": "268435456"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Seconds of every round, by what was measured."""

    log_bytes: int  # of the log that each way writes
    seconds: dict[str, list[float]]  # by the clock
    cpu_seconds: dict[str, list[float]]  # of processors; a JVM's own threads are in them

    def rate(self, name: str) -> float:
        """Return the median MB/s over the rounds after the first."""
        return self.log_bytes / 1e6 / statistics.median(self.seconds[name][1:])

    def figures(self) -> list[Figure]:
        """Return columns beside Kafka's leader: by the clock, and by processor seconds."""
        return [
            Figure(
                work=f"append of columns, open to clean close, by {what}",
                unit="MB/s",
                ours=self._rates(seconds[COLUMNS]),
                theirs={KAFKA: self._rates(seconds[KAFKA_AS_LEADER])},
                targets={KAFKA: 2},
                least=400,
            )
            for what, seconds in (
                ("the clock", self.seconds),
                ("processor seconds", self.cpu_seconds),
            )
        ]

    def _rates(self, seconds: list[float]) -> list[float]:
        return [self.log_bytes / 1e6 / each for each in seconds[1:]]

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield f"{self.log_bytes / 1e6:.0f} MB of uncompressed batches, open to clean close"
        for name, seconds in self.seconds.items():
            slowest = self.log_bytes / 1e6 / max(seconds[1:])
            yield f"{name:52}{self.rate(name):8.0f} MB/s{slowest:8.0f} at worst"
        yield from (figure.line() for figure in self.figures())


def generated_columns(megabytes: int, record_bytes: int) -> NewRecords:
    """Return records with random keys and values."""
    count = megabytes * 1_000_000 // record_bytes
    data = np.random.default_rng(7).integers(0, 256, count * record_bytes, np.uint8)
    offsets = np.arange(count + 1, dtype=np.int64)
    return NewRecords.of(
        keys=ByteColumn.of_offsets(data, offsets * KEY_BYTES),
        values=ByteColumn.of_offsets(data, offsets * record_bytes),
        timestamps=np.full(count, NOW_MS),
    )


def ready_calls(records: NewRecords, *, batch_bytes: int) -> list[bytes]:
    """Return the bytes of appends of about CALL_BYTES, offsets and epochs as a leader has them."""
    built = build_all(records, BatchSettings(max_batch_bytes=batch_bytes, leader_epoch=0))
    ends = built.batches.position + built.batches.size
    calls, start = [], 0
    while start < built.data.size:
        row = max(int(np.searchsorted(ends, start + CALL_BYTES, "right")) - 1, 0)
        end = int(ends[row]) if ends[row] > start else int(ends[row + 1])
        calls.append(built.data[start:end].tobytes())
        start = end
    return calls


def measure(*, megabytes: int = 400, record_bytes: int = 200, rounds: int = 7) -> Report:
    """Append the same records by every way, in turns."""
    start_jvm(heap="3g")
    records = generated_columns(megabytes, record_bytes)
    large = [
        build_all(records.rows(first, end), BatchSettings(max_batch_bytes=2**31 - 1)).data.tobytes()
        for first, end in _spans(
            len(records), CALL_BYTES // (record_bytes + KEY_BYTES + RECORD_OVERHEAD_BYTES)
        )
    ]
    small = ready_calls(records, batch_bytes=SMALL_BATCH_BYTES)
    ways: dict[str, Callable[[], tuple[int, float]]] = {
        "ours, columns into 1 MB batches": lambda: _columns(records, CALL_BYTES),
        COLUMNS: lambda: _columns(records, SMALL_BATCH_BYTES),
        "ours, ready 1 MB batches as leader": lambda: _ours(large, as_leader=True),
        "ours, ready 16 KB batches as follower": lambda: _ours(small, as_leader=False),
        KAFKA_AS_LEADER: lambda: _kafka(large, as_leader=True),
        "Kafka, ready 16 KB batches as follower": lambda: _kafka(small, as_leader=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    log_bytes = 0
    turns = list(ways.items())
    for _ in range(rounds):
        # Each is the first one once.
        turns.append(turns.pop(0))
        for name, way in turns:
            shutil.rmtree(SCRATCH, ignore_errors=True)
            SCRATCH.mkdir(parents=True)
            os.sync()  # nobody waits for what the one before has left to the disk
            find_memory(3 * megabytes * 1_000_000)
            before = time.process_time()
            log_bytes, taken = way()
            cpu_seconds[name].append(time.process_time() - before)
            seconds[name].append(taken)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    return Report(log_bytes=log_bytes, seconds=seconds, cpu_seconds=cpu_seconds)


def _spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, step):
        yield first, min(first + step, count)


def _open() -> UnifiedLog:
    return UnifiedLog.open(
        SCRATCH / "t-0",
        config=LogConfig.from_topic_overrides(CONFIG),
        clock=ManualClock(NOW_MS),
    )


def _columns(records: NewRecords, batch_bytes: int) -> tuple[int, float]:
    before = time.perf_counter()
    with _open() as log:
        log.append_columns(records, batch_bytes=batch_bytes)
    return log.size_bytes, time.perf_counter() - before


def _ours(calls: list[bytes], *, as_leader: bool) -> tuple[int, float]:
    before = time.perf_counter()
    with _open() as log:
        append = log.append_as_leader if as_leader else log.append_as_follower
        for data in calls:
            append(data, leader_epoch=0)
    return log.size_bytes, time.perf_counter() - before


def _kafka(calls: list[bytes], *, as_leader: bool) -> tuple[int, float]:
    kafka = Kafka(now_ms=NOW_MS)
    # In the JVM before the clock runs, and new each time: a leader writes into what it is given.
    buffers = [memory_records(data) for data in calls]
    before = time.perf_counter()
    with kafka.open_partition(SCRATCH / "t-0", config=CONFIG) as partition:
        append = partition.log.appendAsLeader if as_leader else partition.log.appendAsFollower
        for records in buffers:
            append(records, 0)
        log_bytes = int(partition.log.size())
    return log_bytes, time.perf_counter() - before


if __name__ == "__main__":
    run_with_options(measure)
