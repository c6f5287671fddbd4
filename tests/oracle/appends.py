"""Random appends, good and bad, played to Kafka's UnifiedLog and to ours from the same bytes.

A plan comes out of a seed: a configuration and steps. Every step is done by Kafka first, then by
us; both have to answer alike, with the same offsets or the same kind of error, and stand alike
after it.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jpype
import pytest

from storage_core import errors
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from storage_core.log.producer_state import AppendOrigin
from storage_core.log.unified_log import LogAppendInfo, UnifiedLog
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    with_valid_crc,
)
from tests.oracle.jvm import KafkaFailure, java, java_bytes, kafka_failures
from tests.oracle.kafka import Kafka
from tests.oracle.partition import LOG, OpenPartition
from tests.oracle.records import INTERNAL, compression

START_MS = 1_700_000_000_000
NO_VERSION = -1

# Kafka's exceptions, and ours.
KINDS: Mapping[str, tuple[type[errors.PylogError], ...]] = {
    "InvalidRecordException": (errors.InvalidRecordError,),
    "RecordValidationException": (errors.RecordValidationError, errors.InvalidTimestampError),
    "CorruptRecordException": (errors.CorruptRecordError,),
    "RecordTooLargeException": (errors.RecordTooLargeError,),
    "RecordBatchTooLargeException": (errors.RecordBatchTooLargeError,),
    "OutOfOrderSequenceException": (errors.OutOfOrderSequenceError,),
    "InvalidProducerEpochException": (errors.InvalidProducerEpochError,),
    "InvalidTxnStateException": (errors.ProducerTxnStateError,),
    "TransactionCoordinatorFencedException": (errors.TransactionCoordinatorFencedError,),
    "UnsupportedForMessageFormatException": (errors.UnsupportedForMessageFormatError,),
    "UnexpectedAppendOffsetException": (errors.UnexpectedAppendOffsetError,),
    "OffsetsOutOfOrderException": (errors.OffsetsOutOfOrderError,),
    "OffsetOutOfRangeException": (errors.OffsetOutOfRangeError,),
    "IllegalArgumentException": (
        errors.InvalidAppendError,
        errors.UnsupportedCompressionError,
    ),
    "UnsupportedOperationException": (errors.InvalidAppendError,),
    "KafkaException": (errors.RollError, errors.InvalidRecordError),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an append, or another step, gave: offsets, or the kind of error."""

    offsets: tuple[int | None, int] | None = None
    failure: str | None = None


class BothLogs:
    """One partition, held open by Kafka and by us, each in a directory of its own."""

    def __init__(
        self,
        root: Path,
        config: Mapping[str, object],
        *,
        recompresses: bool = False,
        log_start_offset: int = 0,
    ) -> None:
        self.kafka = Kafka(now_ms=START_MS)
        self.clock = ManualClock(START_MS)
        self.settings = dict(config)
        self.config = LogConfig.from_topic_overrides(
            {
                key: str(value).lower() if isinstance(value, bool) else str(value)
                for key, value in config.items()
            }
        )
        self.theirs_at, self.ours_at = root / "kafka" / "t-0", root / "ours" / "t-0"
        self.recompresses = recompresses
        self.log_start_offset = log_start_offset
        self.open()

    def open(self) -> None:
        self.theirs: OpenPartition = self.kafka.open_partition(
            self.theirs_at, config=self.settings, log_start_offset=self.log_start_offset
        )
        self.ours = UnifiedLog.open(
            self.ours_at,
            config=self.config,
            clock=self.clock,
            log_start_offset=self.log_start_offset,
        )

    def reopen(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.log_start_offset = self.ours.log_start_offset
        self.theirs.close()
        self.ours.close()

    def wait(self, milliseconds: int) -> None:
        self.kafka.now_ms += milliseconds
        self.clock.advance(milliseconds)

    def append_as_leader(
        self,
        data: bytes,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        version: int = NO_VERSION,
        to_magic: int = 2,
    ) -> Answer:
        def theirs() -> Any:
            if to_magic < 2:
                return self.theirs.log.appendAsLeaderWithRecordVersion(
                    memory_records(data),
                    leader_epoch,
                    java(INTERNAL + "RecordVersion").lookup(jpype.JByte(to_magic)),
                )
            return self.theirs.log.appendAsLeader(
                memory_records(data),
                leader_epoch,
                java(LOG + "AppendOrigin").valueOf(origin.name),
                java("org.apache.kafka.server.common.RequestLocal").noCaching(),
                java(LOG + "VerificationGuard").SENTINEL,
                jpype.JShort(version),
            )

        return self.both(
            theirs,
            lambda: self.ours.append_as_leader(
                data,
                leader_epoch=leader_epoch,
                origin=origin,
                transaction_version=version,
                to_magic=to_magic,
            ),
        )

    def append_as_follower(self, data: bytes, *, leader_epoch: int) -> Answer:
        return self.both(
            lambda: self.theirs.log.appendAsFollower(memory_records(data), leader_epoch),
            lambda: self.ours.append_as_follower(data, leader_epoch=leader_epoch),
        )

    def both(self, theirs: Callable[[], Any], ours: Callable[[], object]) -> Answer:
        """Do a step on both sides; compare what they say."""
        expected = Answer()
        try:
            with kafka_failures():
                info = theirs()
                if info is not None and hasattr(info, "firstOffset"):
                    expected = Answer(offsets=(int(info.firstOffset()), int(info.lastOffset())))
        except KafkaFailure as failure:
            expected = Answer(failure=failure.java_class.rpartition(".")[2])
            kinds = KINDS[expected.failure or ""]
            with pytest.raises(kinds):
                ours()
        else:
            found = ours()
            if expected.offsets is not None:
                assert isinstance(found, LogAppendInfo)
                first = -1 if found.first_offset is None else found.first_offset
                assert (first, found.last_offset) == expected.offsets
        self.compare()
        return expected

    def compare(self) -> None:
        """Compare where the two logs stand."""
        theirs, ours = self.theirs.answer(), self.ours
        assert ours.log_end_offset == theirs.log_end_offset
        assert ours.log_start_offset == theirs.log_start_offset
        assert ours.high_watermark == theirs.high_watermark
        assert ours.recovery_point == theirs.recovery_point
        bases = [base for base, _ in theirs.segments]
        assert [base for base, _ in ours.segments] == bases
        if not self.recompresses:  # another build of a compressor, other sizes
            assert ours.segments == theirs.segments
        assert ours.first_unstable_offset == theirs.first_unstable_offset
        assert ours.last_stable_offset == theirs.last_stable_offset
        assert {key: p.last_sequence for key, p in ours.producers.items()} == theirs.producers
        assert tuple((e.epoch, e.start_offset) for e in ours.epochs) == theirs.epochs
        assert ours.last_stable_offset <= ours.high_watermark <= ours.log_end_offset
        assert ours.log_start_offset <= ours.high_watermark
        if ours.last_stable_offset < ours.log_start_offset:
            # The log start lies inside of the batch with which a transaction began.
            assert ours.first_unstable_offset == ours.last_stable_offset


def memory_records(data: bytes) -> Any:
    """Return Kafka's MemoryRecords over a copy of these bytes."""
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    return java(INTERNAL + "MemoryRecords").readableRecords(buffer)


def legacy_set(
    records: list[RecordSpec], *, magic: int, codec: str = "none", base_offset: int = 0
) -> bytes:
    """Return a message set as Kafka's builder writes it."""
    builder = java(INTERNAL + "MemoryRecords").builder(
        java("java.nio.ByteBuffer").allocate(512),
        jpype.JByte(magic),
        compression(codec),
        java("org.apache.kafka.common.record.TimestampType").CREATE_TIME,
        jpype.JLong(base_offset),
    )
    for i, record in enumerate(records):
        builder.appendWithOffset(
            jpype.JLong(base_offset + i),
            jpype.JLong(record.timestamp if magic else -1),
            java_bytes(record.key),
            java_bytes(record.value),
        )
    buffer = builder.build().buffer()
    array = jpype.JArray(jpype.JByte)(int(buffer.remaining()))
    buffer.duplicate().get(array)
    return bytes(array)


def random_config(dice: random.Random, *, recompresses: bool) -> dict[str, object]:
    """Return topic settings: small segments and dense indexes."""
    target = dice.choice(("gzip", "snappy", "lz4", "zstd"))
    return {
        "cleanup.policy": dice.choice(("delete", "delete", "compact")),
        "compression.type": target
        if recompresses
        else dice.choice(("producer", "producer", "uncompressed")),
        "internal.segment.bytes": 10_000_000 if recompresses else dice.randrange(1_500, 12_000),
        "index.interval.bytes": dice.choice((0, 1, 200, 700, 4096)),
        "segment.index.bytes": dice.choice((10_485_760, 10_485_760, 12, 24, 36, 48, 120)),
        "segment.ms": dice.choice((604_800_000, 60_000, 3_600_000)),
        "max.compaction.lag.ms": dice.choice((2**63 - 1, 90_000)),
        "max.message.bytes": dice.choice((1_048_588, 900)),
        "message.timestamp.type": dice.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "message.timestamp.before.max.ms": dice.choice((2**63 - 1, 5_000_000)),
        "message.timestamp.after.max.ms": dice.choice((3_600_000, 10_000)),
        "preallocate": dice.choice((False, False, True)),
        "flush.messages": dice.choice((2**63 - 1, 2**63 - 1, 25)),
        "retention.ms": -1,
    }


class RandomAppends:
    """Steps out of a seed, done on both logs."""

    def __init__(self, logs: BothLogs, dice: random.Random, *, codecs: tuple[Codec, ...]) -> None:
        self.logs = logs
        self.dice = dice
        self.codecs = codecs
        # Where an index fills up within one append, Kafka writes the batches and then throws.
        index_bytes = logs.settings["segment.index.bytes"]
        self.most_batches = 1 if isinstance(index_bytes, int) and index_bytes < 1000 else 4
        self.leader_epoch = dice.randrange(3)
        self.answers: list[Answer] = []

    def step(self) -> None:
        """Do one step."""
        kinds: list[tuple[int, Callable[[], Answer | None]]] = [
            (8, self.plain),
            (5, self.idempotent),
            (6, self.transactional),
            (5, self.marker),
            (5, self.follower),
            (3, self.legacy),
            (4, self.bad),
            (2, self.coordinator),
            (2, self.epoch),
            (2, self.time),
            (1, self.roll),
            (2, self.watermark),
            (1, self.log_start),
            (1, self.reopen),
            (1, self.flush),
            (1, self.far),
        ]
        weights, actions = zip(*kinds, strict=True)
        answer = self.dice.choices(actions, weights)[0]()
        if answer is not None:
            self.answers.append(answer)

    def records(self, count: int | None = None) -> tuple[RecordSpec, ...]:
        dice, now_ms = self.dice, self.logs.clock.now_ms()
        is_old = dice.random() < 0.05
        return tuple(
            RecordSpec(
                key=None if dice.random() < 0.01 else b"k%d" % dice.randrange(50),
                value=None if dice.random() < 0.1 else bytes(dice.randbytes(dice.randrange(60))),
                timestamp=-1
                if dice.random() < 0.02
                else now_ms
                - dice.choice((0, 0, 1, 50_000, 9_000_000 if is_old else 0))
                + dice.choice((0, 0, 0, 9_000, 20_000 if is_old else 0)),
                headers=tuple(
                    (dice.choice(("h", "", "größe")), dice.choice((None, b"", b"x" * 9)))
                    for _ in range(dice.choice((0, 0, 0, 1, 3)))
                ),
            )
            for _ in range(dice.randrange(1, 12) if count is None else count)
        )

    def batch(self, **fields: Any) -> BatchSpec:
        return BatchSpec(
            **(
                {
                    "records": self.records(),
                    "codec": self.dice.choice(self.codecs),
                    "leader_epoch": -1,
                }
                | fields
            )
        )

    def lead(self, data: bytes, **fields: Any) -> Answer:
        return self.logs.append_as_leader(data, leader_epoch=self.leader_epoch, **fields)

    def plain(self) -> Answer:
        return self.lead(encode_batch(self.batch()))

    def producer(self, producer_id: int) -> tuple[int, int]:
        """Return an epoch and a sequence that are right, mostly."""
        known = self.logs.ours.producers.get(producer_id)
        if known is None:
            return self.dice.choice((0, 0, 3)), self.dice.choice((0, 0, 2**31 - 4))
        epoch = max(0, known.producer_epoch) + self.dice.choice((0,) * 12 + (1, -1))
        sequence = 0 if epoch > known.producer_epoch else known.next_sequence
        return max(0, epoch), min(
            max(0, sequence + self.dice.choice((0,) * 12 + (1, -1))), 2**31 - 1
        )

    def idempotent(self) -> Answer:
        producer_id = 1000 + self.dice.randrange(3)
        epoch, sequence = self.producer(producer_id)
        data = encode_batch(
            self.batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        )
        answer = self.lead(data)
        if self.dice.random() < 0.2:
            answer = self.lead(data)  # sent again
        return answer

    def transactional(self) -> Answer:
        producer_id = 2000 + self.dice.randrange(3)
        epoch, sequence = self.producer(producer_id)
        return self.lead(
            encode_batch(
                self.batch(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    is_transactional=self.dice.random() < 0.95,
                )
            )
        )

    def marker(self) -> Answer:
        producer_id = 2000 + self.dice.randrange(3)
        version = self.dice.choice((0, 1, 1, 2))
        known = self.logs.ours.producers.get(producer_id)
        epoch = max(0, 0 if known is None else known.producer_epoch)
        epoch += self.dice.choice((1, 1, 0) if version == 2 else (0, 0, 0, 0, 1))
        epoch = max(0, epoch - self.dice.choice((0,) * 9 + (1,)))
        marker = end_txn_marker(
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            control_type=self.dice.choice((ControlType.COMMIT, ControlType.ABORT)),
            timestamp=self.logs.clock.now_ms(),
            coordinator_epoch=self.dice.choice((4, 4, 4, 4, 5, 3)),
            leader_epoch=-1,
        )
        return self.lead(encode_batch(marker), origin=AppendOrigin.COORDINATOR, version=version)

    def coordinator(self) -> Answer:
        """A coordinator's own batches: no sequence checks, keys or not; sometimes with gaps."""
        records = tuple(
            dataclasses.replace(record, offset_delta=2 * i if self.dice.random() < 0.3 else None)
            for i, record in enumerate(self.records(3))
        )
        spec = self.batch(records=records)
        if spec.offset_deltas != sorted(set(spec.offset_deltas)):
            spec = self.batch()
        return self.lead(encode_batch(spec), origin=AppendOrigin.COORDINATOR, version=1)

    def follower(self) -> Answer:
        """Some batches as replication brings them, with gaps, old epochs and markers."""
        offset = self.logs.ours.log_end_offset + self.dice.choice((0, 0, 0, 5, 1000, -1))
        parts = []
        epoch = self.leader_epoch
        for _ in range(self.dice.randrange(1, self.most_batches + 1)):
            base_offset = max(0, offset)
            batch_epoch = max(0, epoch + self.dice.choice((0,) * 9 + (-1, 1)))
            producer_id = 2000 + self.dice.randrange(3)
            kind = self.dice.choice(("plain", "plain", "txn", "marker"))
            known = self.logs.ours.producers.get(producer_id)
            producer_epoch = max(0, 0 if known is None else known.producer_epoch)
            if kind == "marker":
                spec = end_txn_marker(
                    base_offset=base_offset,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    control_type=self.dice.choice((ControlType.COMMIT, ControlType.ABORT)),
                    timestamp=self.logs.clock.now_ms(),
                    coordinator_epoch=4,
                    leader_epoch=batch_epoch,
                )
            elif kind == "txn":
                spec = self.batch(
                    base_offset=base_offset,
                    leader_epoch=batch_epoch,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=self.dice.randrange(100),
                    is_transactional=True,
                )
            else:
                time_type = self.dice.choice(tuple(TimestampType))
                spec = self.batch(
                    base_offset=base_offset, leader_epoch=batch_epoch, timestamp_type=time_type
                )
            parts.append(encode_batch(spec))
            offset = spec.next_offset + self.dice.choice(
                (0, 0, 3, -1 if self.dice.random() < 0.2 else 0)
            )
        return self.logs.append_as_follower(b"".join(parts), leader_epoch=self.leader_epoch)

    def legacy(self) -> Answer:
        """Messages of old formats: converted by a leader, kept by a follower."""
        magic = self.dice.choice((0, 1))
        codec = self.dice.choice(self.codecs)
        codec = Codec.NONE if codec is Codec.ZSTD else codec
        is_wrapped = codec is not Codec.NONE
        count = 1 if self.most_batches == 1 and not is_wrapped else None
        records = [dataclasses.replace(r, headers=()) for r in self.records(count)]
        name = codec.name.lower()
        if self.dice.random() < 0.5 or (is_wrapped and not self.logs.recompresses):
            base = self.logs.ours.log_end_offset + self.dice.choice((0, 4))
            data = legacy_set(records, magic=magic, codec=name, base_offset=base)
            return self.logs.append_as_follower(data, leader_epoch=self.leader_epoch)
        data = legacy_set(records, magic=magic, codec=name)
        return self.lead(data, to_magic=self.dice.choice((2, 2, 1, 0)))

    def bad(self) -> Answer:
        """Bytes that a leader or follower has to refuse, or to cut."""
        spec = self.batch(codec=Codec.NONE)
        damage = self.dice.choice(
            (
                {"base_offset": 7},
                {"record_count": len(spec.records) + 1},
                {"record_count": 0},
                {"record_count": -1},
                {"last_offset_delta": 0, "record_count": 2},
                {"last_offset_delta": -1},
                {"is_control": True},
                {"producer_id": 5, "producer_epoch": 0},
                {"timestamp_type": TimestampType.LOG_APPEND_TIME},
                {"max_timestamp": 5},
            )
        )
        data = encode_batch(dataclasses.replace(spec, **damage))
        good = encode_batch(self.batch())
        choice = self.dice.randrange(9)
        if choice == 0:
            at = self.dice.randrange(len(good))
            data = good[:at] + bytes([good[at] ^ (1 << self.dice.randrange(8))]) + good[at + 1 :]
        elif choice == 1:
            data = good[: self.dice.randrange(len(good))]
        elif choice == 2:
            data = good + good
        elif choice == 3:
            data = good + good[: self.dice.randrange(len(good))]
        elif choice == 4:
            data = good[:8] + (5).to_bytes(4, "big") + good[12:]
        elif choice == 5:
            data = with_valid_crc(good[:61] + bytes([good[61] ^ 0x40]) + good[62:])
        elif choice == 6:
            data = b"".join(
                encode_batch(self.batch(base_offset=self.logs.ours.log_end_offset + offset))
                for offset in (100, 50)
            )
            return self.logs.append_as_follower(data, leader_epoch=self.leader_epoch)
        return self.lead(data)

    def epoch(self) -> None:
        self.leader_epoch += 1

    def time(self) -> None:
        self.logs.wait(self.dice.choice((1, 30_000, 61_000, 3_700_000)))

    def roll(self) -> Answer:
        return self.logs.both(self.theirs_roll, self.logs.ours.roll)

    def theirs_roll(self) -> None:
        self.logs.theirs.roll()

    def flush(self) -> Answer:
        return self.logs.both(lambda: self.logs.theirs.log.flush(False), self.logs.ours.flush)

    def watermark(self) -> Answer:
        ours = self.logs.ours
        offset = self.dice.randrange(ours.high_watermark, ours.log_end_offset + 2)
        return self.logs.both(
            lambda: self.logs.theirs.set_high_watermark(offset),
            lambda: ours.update_high_watermark(offset),
        )

    def log_start(self) -> Answer:
        ours = self.logs.ours
        offset = self.dice.randrange(ours.log_start_offset, ours.high_watermark + 3)
        return self.logs.both(
            lambda: self.logs.theirs.raise_log_start(offset),
            lambda: ours.maybe_increment_log_start_offset(offset),
        )

    def reopen(self) -> None:
        self.logs.reopen()
        self.logs.compare()

    def far(self) -> Answer:
        """Offsets that no segment's 31 bits reach."""
        base = self.logs.ours.log_end_offset + 2**31 - self.dice.randrange(3)
        data = encode_batch(self.batch(base_offset=base, leader_epoch=self.leader_epoch))
        if self.dice.random() < 0.3:  # of these the first offset is not known
            record = RecordSpec(key=b"k", timestamp=self.logs.clock.now_ms())
            data = legacy_set([record], magic=1, base_offset=base)
        return self.logs.append_as_follower(data, leader_epoch=self.leader_epoch)
