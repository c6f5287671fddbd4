"""The same records for the same offsets, times and isolation as a real broker's consumer gets.

One broker, one partition of many segments: plain, idempotent and transactional batches of all
codecs, committed and aborted transactions, and one that is still open while everything is compared.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.log_loader import load_log
from storage_core.records.payload import Limits, decode_records
from storage_core.store.local import LocalStore
from tests.kit.log_reader import Isolation, LogReader, consume
from tests.kit.offset_queries import OffsetTarget, list_offset
from tests.kit.one_partition import recover_partition
from tests.oracle.broker import new_broker
from tests.oracle.broker_clients import Message, Producer, Topic, create_topics
from tests.oracle.broker_reads import PartitionConsumer

TOPIC = "reads"
START_MS = 1_700_000_000_000
STEP_MS = 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Smaller than a topic may say in public.
CONFIG = {"internal.segment.bytes": "1500", "index.interval.bytes": "100"}
LIMITS = Limits(max_record_bytes=1 << 24, max_batch_bytes=1 << 26)
MAX_BYTES = (1, 1_000, 1 << 20)

# Its broker takes ten seconds of a processor.
pytestmark = [pytest.mark.oracle, pytest.mark.thorough, pytest.mark.usefixtures("kafka_jvm")]
Row = tuple[int, int, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class BothSides:
    """A broker with an open transaction, and our reader of a copy of its partition."""

    bootstrap_servers: str
    reader: LogReader


class Writer:
    """Sends batches of a few records whose times go forth and sometimes back."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._number = 0

    def producer(self, codec: str, transactional_id: str | None = None) -> Producer:
        config = {"compression.type": codec}
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        return Producer(self._bootstrap_servers, config)

    def batch(self, producer: Producer, size: int = 4) -> None:
        for _ in range(size):
            self._number += 1
            back = 5 * STEP_MS if self._number % 7 == 0 else 0
            producer.send(
                Message(
                    topic=TOPIC,
                    key=b"k%d" % self._number,
                    value=None if self._number % 11 == 0 else b"v" * (self._number % 50),
                    timestamp_ms=START_MS + self._number * STEP_MS - back,
                )
            )
        producer.flush()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, kafka_jvm: None) -> Iterator[BothSides]:
    folder = tmp_path_factory.mktemp("reads")
    with new_broker(folder) as broker:
        servers = broker.bootstrap_servers
        create_topics(servers, {TOPIC: Topic(partitions=1, config=CONFIG)})
        writer = Writer(servers)
        for codec in CODECS:
            with writer.producer(codec) as plain, writer.producer(codec, f"t-{codec}") as open_one:
                writer.batch(plain)
                for ends in (open_one.commit, open_one.abort):
                    open_one.begin()
                    writer.batch(open_one)
                    writer.batch(plain)
                    writer.batch(open_one)
                    ends()
        with writer.producer("none", "t-hangs") as hanging, writer.producer("none") as plain:
            hanging.begin()
            writer.batch(hanging)
            writer.batch(plain)
            yield BothSides(servers, reader_of(broker.log_directory, folder / "copy"))
            hanging.abort()
        broker.stop()


def reader_of(log_directory: Path, copy: Path) -> LogReader:
    """Recover a copy of the running broker's partition, and open that."""
    directory = copy / f"{TOPIC}-0"
    shutil.copytree(log_directory / f"{TOPIC}-0", directory)
    config = LogConfig.from_topic_overrides(CONFIG)
    now_ms = START_MS
    recover_partition(directory, config=config, cleaner=CleanerConfig(), now_ms=now_ms)
    store = LocalStore(directory)
    log = load_log(store, config=config, cleaner=CleanerConfig(), now_ms=now_ms)
    assert len(log.segments) > 5
    return LogReader(store, log)


def read_by_us(reader: LogReader, offset: int, isolation: Isolation, max_bytes: int) -> list[Row]:
    rows: list[Row] = []
    for part in consume(reader, offset, isolation=isolation, max_bytes=max_bytes):
        for records in decode_records(part.window, part.visible, LIMITS):
            kept = records.select(np.asarray(records.offset >= part.first_offset))
            rows += zip(
                kept.offset.tolist(),
                kept.timestamp.tolist(),
                kept.keys().to_pylist(),
                kept.values().to_pylist(),
                strict=True,
            )
    return rows


@pytest.mark.item("RD-02", "RD-04", "RD-07", "RD-08")
@pytest.mark.parametrize(
    "isolation",
    [Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED],
    ids=lambda isolation: isolation.value,
)
def test_from_every_offset_the_same_records(sides: BothSides, isolation: Isolation):
    committed = isolation is Isolation.READ_COMMITTED
    end = sides.reader.log.log_end_offset
    with PartitionConsumer(
        sides.bootstrap_servers, (TOPIC, 0), read_committed=committed
    ) as consumer:
        stable = sides.reader.log.last_stable_offset
        assert consumer.end_offset() == (stable if committed else end)
        assert stable < end
        for offset in range(0, consumer.end_offset() + 1, 7):
            expected = [(r.offset, r.timestamp, r.key, r.value) for r in consumer.read_from(offset)]
            max_bytes = MAX_BYTES[offset % len(MAX_BYTES)]
            assert read_by_us(sides.reader, offset, isolation, max_bytes) == expected, offset


@pytest.mark.item("RD-09", "RD-10", "RD-12")
@pytest.mark.parametrize(
    "isolation",
    [Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED],
    ids=lambda isolation: isolation.value,
)
def test_for_every_time_the_same_offset(sides: BothSides, isolation: Isolation):
    committed = isolation is Isolation.READ_COMMITTED
    newest = list_offset(
        sides.reader, OffsetTarget.MAX_TIMESTAMP, isolation=Isolation.LOG_END, limits=LIMITS
    )
    assert newest is not None
    times = range(START_MS - STEP_MS, START_MS + 150 * STEP_MS, STEP_MS)
    # Markers bear the clock of the broker: one of its times, and one that is yet to come.
    with PartitionConsumer(
        sides.bootstrap_servers, (TOPIC, 0), read_committed=committed
    ) as consumer:
        for time in [*times, newest.timestamp, newest.timestamp + 1]:
            found = list_offset(sides.reader, time, isolation=isolation, limits=LIMITS)
            ours = None if found is None else (found.timestamp, found.offset)
            assert ours == consumer.offset_for_time(time), time
