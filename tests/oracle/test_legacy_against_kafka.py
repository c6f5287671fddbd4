"""Message formats v0 and v1: read, built, compressed and cleaned by Kafka, and by us."""

import dataclasses
import random
import tempfile
from pathlib import Path
from typing import Any

import jpype
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import BadBytesError, DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import compress, decompress
from storage_core.records.payload import Limits, decode_records
from storage_core.records.reader import CrcCheck, Tail, Window
from tests.kit.builders import segment_bytes
from tests.kit.compare import Exactness
from tests.kit.legacy import LegacyMessage, compress_set, encode_entry, encode_message
from tests.kit.strategies import legacy_entries, segments
from tests.oracle.jvm import KafkaFailure, java, java_bytes, java_file, kafka_failures, python_bytes
from tests.oracle.log_writer import Append, Roll, Step, Wait
from tests.oracle.random_logs import (
    EXAMPLES,
    LogPlan,
    RoundPlan,
    against_kafka,
    any_contents,
    configs,
    log_plans,
)
from tests.oracle.records import INTERNAL, NewBatch, NewRecord, read_record
from tests.oracle.test_compaction_against_kafka import compare_every_round
from tests.storage_core.records.memory_file import windows_of

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

LIMITS = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=2**24)
DAMAGED = 5 * EXAMPLES
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
Row = tuple[Any, ...]


class Refused(Exception):  # noqa: N818  # an outcome, not an error of the test
    """A side does not take the bytes; what it read before is in `rows`, why in `reason`."""

    def __init__(self, rows: list[Row], reason: str) -> None:
        super().__init__(rows, reason)
        self.rows, self.reason = rows, reason


def kafkas_rows(data: bytes, scratch: Path) -> list[Row]:
    """Return batches and records as Kafka's file iterator gives them."""
    path = scratch / "log"
    path.write_bytes(data)
    rows: list[Row] = []
    try:
        with kafka_failures():
            records = java(INTERNAL + "FileRecords").open(java_file(path), False)
            try:
                for batch in records.batches():
                    rows += _kafkas_batch(batch)
            finally:
                records.close()
    except KafkaFailure as failure:
        raise Refused(rows, failure.java_class) from None
    return rows


def _kafkas_batch(batch: Any) -> list[Row]:
    found = [read_record(record) for record in batch]
    head = (
        int(batch.position()),
        int(batch.sizeInBytes()),
        int(batch.magic()),
        int(batch.baseOffset()),
        int(batch.lastOffset()),
        int(batch.maxTimestamp()),
        int(batch.checksum()),
        bool(batch.isValid()),
        int(batch.compressionType().id),
        int(batch.timestampType().id),
        int(batch.partitionLeaderEpoch()),
        int(batch.producerId()),
        int(batch.baseSequence()),
        bool(batch.isTransactional()),
        bool(batch.isControlBatch()),
    )
    return [head] + [(one.offset, one.timestamp, one.sequence, one.key, one.value) for one in found]


def our_rows(data: bytes) -> list[Row]:
    """Return the same by our reader, the batches opened one by one."""
    rows: list[Row] = []
    try:
        for window in windows_of(data, crc=CrcCheck.NOTE, tail=Tail.STOP):
            for row in range(len(window.batches)):
                rows += _our_batch(window, row)
    except BadBytesError as error:
        raise Refused(rows, error.reason) from None
    return rows


def _our_batch(window: Window, row: int) -> list[Row]:
    wanted = np.arange(len(window.batches)) == row
    (found,) = decode_records(window, wanted, LIMITS)
    batch = found.payload.batches.rows(row, row + 1)
    columns = (
        batch.position + window.file_position,
        batch.size,
        batch.magic,
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp,
        batch.crc,
        batch.crc_ok == 1,
        batch.codec,
        batch.timestamp_type_id,
        batch.leader_epoch,
        batch.producer_id,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
    )
    records = zip(
        found.offset.tolist(),
        found.timestamp.tolist(),
        found.sequence.tolist(),
        found.keys().to_pylist(),
        found.values().to_pylist(),
        strict=True,
    )
    return [tuple(column[0].item() for column in columns), *records]


def outcome(read: Any, *args: Any) -> tuple[str, list[Row], str]:
    try:
        return "read", read(*args), ""
    except Refused as refusal:
        return "refused", refusal.rows, refusal.reason


@pytest.mark.item("FMT-14", "FMT-15", "FMT-16", "FMT-17", "FMT-18", "FMT-19", "FMT-21", "FMT-22")
@against_kafka
@given(entries=st.lists(legacy_entries(), min_size=1, max_size=5), new=segments(max_batches=2))
def test_entries_are_read_as_kafka_reads_them(entries, new):
    data = b"".join(map(encode_entry, entries)) + segment_bytes(new)
    data += b"".join(map(encode_entry, entries[:1]))
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        assert our_rows(data) == kafkas_rows(data, Path(scratch))


@pytest.mark.thorough
@pytest.mark.item("FMT-20", "FMT-28")
def test_damaged_entries_mean_the_same_to_both(tmp_path: Path):
    """Bytes changed, cut and added at random, in a set too, where no CRC is looked at."""
    source = random.Random(11)
    seen = {"read": 0, "refused": 0}
    for number, data in enumerate(_some_entries(source, DAMAGED)):
        kafkas = outcome(kafkas_rows, data, tmp_path)
        ours = outcome(our_rows, data)
        # Kafka takes memory for any size that is claimed; what docs/differences.md says of offsets.
        if "OutOfMemory" in kafkas[2] or "2^31 or more apart" in ours[2]:
            continue
        assert ours[:2] == kafkas[:2], (number, data.hex())
        seen[ours[0]] += 1
    assert min(seen.values()) > DAMAGED // 4, seen


def _some_entries(source: random.Random, count: int) -> list[bytes]:
    """Return damaged logs of a few entries."""
    found = []
    for _ in range(count):
        magic = source.randrange(2)
        codec = source.choice(OLD_CODECS)
        inner = b"".join(
            _message(source, offset, source.choice([magic, magic, 1 - magic]))
            for offset in range(source.randint(1, 3))
        )
        if source.random() < 0.7:
            inner = _damaged(source, inner)
        value = compress_set(codec, inner, magic=magic)
        wrapper = _message(
            source, source.choice([0, 1, 2, 900]), magic, value=value, attributes=int(codec)
        )
        plain = _message(source, 901, source.randrange(2))
        if source.random() < 0.3:
            plain = _damaged(source, plain)
        found.append(plain + wrapper if source.random() < 0.5 else wrapper + plain)
    return found


def _message(
    source: random.Random,
    offset: int,
    magic: int,
    *,
    value: bytes | None = None,
    attributes: int = 0,
) -> bytes:
    return encode_message(
        LegacyMessage(
            offset=offset,
            key=source.choice([None, b"", b"key"]),
            value=source.choice([None, b"", b"value"]) if value is None else value,
            timestamp=source.choice([-1, 0, 1_700_000_000_000]),
            magic=magic,
            attributes=attributes | source.choice([0, 0, 8]),
        )
    )


def _damaged(source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    match source.randrange(4):
        case 0:
            changed[source.randrange(len(changed))] = source.randrange(256)
        case 1:
            del changed[source.randrange(len(changed)) :]
        case 2:
            changed += source.randbytes(source.randrange(1, 40))
        case 3:
            # Sizes and lengths, which decide most.
            at = source.choice([8, 18, 22, 26, 30])
            length = source.choice([-1, 0, 5, 13, 14, 100, 2**31 - 1])
            changed[at : at + 4] = length.to_bytes(4, "big", signed=True)
    return bytes(changed)


@pytest.mark.item("FMT-18", "FMT-19", "FMT-21", "FMT-26")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_what_kafkas_builder_built_is_read(magic: int, codec: str, tmp_path: Path):
    source = random.Random(f"{magic} {codec}")
    for count in (1, 2, 50):
        records = tuple(
            NewRecord(
                key=source.choice([None, b"", b"k%d" % number]),
                value=source.choice([None, b"", bytes(number)]),
                timestamp=source.randrange(2**41),
            )
            for number in range(count)
        )
        batch = NewBatch(records=records, codec=codec, magic=magic)
        built = batch.memory_records(base_offset=7_000_000_000, leader_epoch=-1)
        data = python_bytes(built.buffer()) or b""
        rows = our_rows(data)
        assert rows == kafkas_rows(data, tmp_path)
        assert [row for row in rows if len(row) == 5] == [
            (
                7_000_000_000 + number,
                record.timestamp if magic else -1,
                -1,
                record.key,
                record.value,
            )
            for number, record in enumerate(records)
        ]


def _kafka_codec(codec: Codec) -> Any:
    kinds = java(INTERNAL + "CompressionType")
    return java("org.apache.kafka.common.compress.Compression").of(kinds.forId(int(codec))).build()


def kafkas_set(codec: Codec, data: bytes, magic: int) -> bytes:
    out = java("org.apache.kafka.common.utils.internals.ByteBufferOutputStream")(64)
    with kafka_failures():
        stream = _kafka_codec(codec).wrapForOutput(out, jpype.JByte(magic))
        stream.write(java_bytes(data), 0, len(data))
        stream.close()
    buffer = out.buffer()
    buffer.flip()
    return python_bytes(buffer) or b""


def kafkas_expansion(codec: Codec, data: bytes, magic: int) -> bytes:
    buffers = java("org.apache.kafka.common.utils.internals.BufferSupplier").NO_CACHING
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    with kafka_failures():
        stream = _kafka_codec(codec).wrapForInput(buffer, jpype.JByte(magic), buffers)
        return bytes(stream.readAllBytes())


@pytest.mark.item("FMT-26")
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_checksum_of_an_lz4_header_counts_from_v1_on(magic: int):
    data = b"a set of messages" * 5000
    kafkas = kafkas_set(Codec.LZ4, data, magic)
    assert compress_set(Codec.LZ4, data, magic=magic) == kafkas
    assert kafkas[6] == (0x1A if magic == 0 else 0x82)
    for checksum in (0x1A, 0x82, 0x00):
        frame = kafkas[:6] + bytes([checksum]) + kafkas[7:]
        if magic == 0 or checksum == 0x82:
            assert decompress(Codec.LZ4, frame, limit_bytes=len(data), magic=magic) == data
            assert kafkas_expansion(Codec.LZ4, frame, magic) == data
            continue
        with pytest.raises(DecompressionError):
            decompress(Codec.LZ4, frame, limit_bytes=len(data), magic=magic)
        with pytest.raises(KafkaFailure):
            kafkas_expansion(Codec.LZ4, frame, magic)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=lambda codec: codec.name.lower())
def test_the_codecs_of_old_formats_are_those_of_v2_but_for_that(codec: Codec, magic: int):
    data = bytes(range(256)) * 500
    kafkas = kafkas_set(codec, data, magic)
    assert decompress(codec, kafkas, limit_bytes=len(data), magic=magic) == data
    assert kafkas_expansion(codec, compress_set(codec, data, magic=magic), magic) == data
    if codec is Codec.GZIP:
        assert compress(codec, data) == kafkas


def old_plans(codecs: tuple[str, ...]) -> st.SearchStrategy[LogPlan]:
    """Plans of logs that begin in an old format, or come back to it, and are cleaned by rounds."""
    old: st.SearchStrategy[Step] = st.builds(
        Append,
        contents=any_contents().map(lambda some: dataclasses.replace(some, gaps=0.0)),
        codec=st.sampled_from(codecs),
        magic=st.sampled_from((0, 1)),
        gap_before=st.sampled_from((0, 0, 0, 0, 50)),
    )
    more = st.one_of(old, old, old, st.just(Roll()), st.builds(Wait, milliseconds=st.just(5)))

    def among(plan: LogPlan, draws: list[list[Step]]) -> LogPlan:
        rounds = tuple(
            RoundPlan(
                steps=(*draws[i % len(draws)], *each.steps[: 20 * i]),
                wait_ms=each.wait_ms,
                rolls_before=each.rolls_before,
                clean=each.clean,
            )
            for i, each in enumerate(plan.rounds)
        )
        return dataclasses.replace(plan, rounds=rounds)

    return st.builds(
        among,
        log_plans(compressed=codecs != ("none",)),
        st.lists(st.lists(more, min_size=5, max_size=30), min_size=1, max_size=3),
    )


@pytest.mark.thorough
@pytest.mark.item("CMP-21", "CMP-22", "CMP-31", "CMP-32")
@against_kafka
@given(plan=old_plans(("none",)), config=configs())
def test_old_uncompressed_logs_are_cleaned_byte_for_byte_as_kafka_does(plan, config):
    compare_every_round(dataclasses.replace(plan, config=config), Exactness.BYTES)


@pytest.mark.thorough
@pytest.mark.item("CMP-21", "CMP-22", "CMP-31", "CMP-32", "CMP-33")
@against_kafka
@given(plan=old_plans(("none", "gzip", "snappy", "lz4")))
def test_old_compressed_logs_are_cleaned_record_for_record_as_kafka_does(plan):
    compare_every_round(plan, Exactness.RECORDS)
