"""Hypothesis strategies: records, batches and segments that are right, and batches that are not."""

import dataclasses
from typing import Final

from hypothesis import strategies as st

from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    Codec,
    TimestampType,
)
from storage_core.formats.legacy import MAGIC_V0, MAGIC_V1
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    in_a_row,
)
from tests.kit.damage import (
    BadRecord,
    bad_record,
    decompression_bomb,
    truncated,
    with_codec,
    with_int32,
    with_lying_count,
    with_lying_length,
    with_trailing_bytes,
    with_wrong_crc,
)
from tests.kit.legacy import LegacyEntry, LegacyMessage, LegacySet

_INT32: Final = st.integers(-(2**31), 2**31 - 1)
_BOMB_BYTES: Final = 4 * 1024 * 1024

codecs: Final = st.sampled_from(Codec)
_compressing: Final = st.sampled_from([codec for codec in Codec if codec is not Codec.NONE])
# Few keys, so that they repeat; also empty and no keys.
keys: Final = st.one_of(st.sampled_from([b"a", b"b", b"c", b""]), st.binary(max_size=80), st.none())
values: Final = st.one_of(st.none(), st.binary(max_size=100))
# Anything that a producer may say, far apart: 32 bits do not hold the distance.
timestamps: Final = st.one_of(st.integers(SOME_TIME_MS, SOME_TIME_MS + 1000), st.integers(0, 2**45))
headers: Final = st.lists(
    st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3
).map(tuple)

records: Final = st.builds(
    RecordSpec, key=keys, value=values, timestamp=timestamps, headers=headers
)


@st.composite
def batches(draw: st.DrawFn, *, max_records: int = 8) -> BatchSpec:
    """Valid v2 batches: gaps in their offsets, any codec, producer, horizon and timestamp type."""
    parts = draw(st.lists(records, max_size=max_records))
    deltas = _rising(draw, len(parts))
    has_producer = draw(st.booleans())
    is_log_append = draw(st.booleans())
    return BatchSpec(
        records=tuple(
            dataclasses.replace(record, offset_delta=delta)
            for record, delta in zip(parts, deltas, strict=True)
        ),
        base_offset=draw(st.integers(0, 2**40)),
        codec=draw(codecs) if parts else Codec.NONE,
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if is_log_append else TimestampType.CREATE_TIME
        ),
        max_timestamp=draw(st.integers(0, 2**45)) if is_log_append else None,
        producer_id=draw(st.integers(0, 2**40)) if has_producer else NO_PRODUCER_ID,
        producer_epoch=draw(st.integers(0, 2**15 - 1)) if has_producer else -1,
        base_sequence=draw(st.integers(0, MAX_SEQUENCE)) if has_producer else -1,
        is_transactional=has_producer and draw(st.booleans()),
        delete_horizon_ms=draw(st.one_of(st.none(), st.integers(0, 2**45))) if parts else None,
        # Compaction removed the last records, so the range ends past them.
        last_offset_delta=(deltas[-1] if deltas else 0) + draw(st.integers(0, 3)),
    )


def _rising(draw: st.DrawFn, count: int) -> list[int]:
    gaps = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    deltas: list[int] = []
    for gap in gaps:
        deltas.append((deltas[-1] + 1 if deltas else 0) + gap)
    return deltas


@st.composite
def segments(draw: st.DrawFn, *, max_batches: int = 6) -> list[BatchSpec]:
    """Batches of one segment, their offset ranges following each other."""
    parts = draw(st.lists(batches(), max_size=max_batches))
    return in_a_row(parts, base_offset=draw(st.integers(0, 2**40)))


@st.composite
def legacy_entries(draw: st.DrawFn, *, max_messages: int = 5) -> LegacyEntry:
    """Valid entries of formats v0 and v1: plain messages, and sets of every codec with gaps."""
    magic = draw(st.integers(MAGIC_V0, MAGIC_V1))
    offset = draw(st.integers(0, 2**40))
    if draw(st.booleans()):
        return _legacy_message(draw, offset, magic)
    count = draw(st.integers(1, max_messages))
    messages = tuple(
        # Brokers left a message of the other format where it was.
        _legacy_message(draw, offset + delta, draw(st.sampled_from([magic, magic, 1 - magic])))
        for delta in _rising(draw, count)
    )
    is_log_append = draw(st.booleans())
    return LegacySet(
        messages=messages,
        codec=draw(st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4])),
        magic=magic,
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if is_log_append else TimestampType.CREATE_TIME
        ),
        timestamp=draw(timestamps) if is_log_append else None,
    )


def _legacy_message(draw: st.DrawFn, offset: int, magic: int) -> LegacyMessage:
    return LegacyMessage(
        offset=offset,
        key=draw(keys),
        value=draw(values),
        timestamp=draw(timestamps),
        magic=magic,
    )


@st.composite
def hostile_batches(draw: st.DrawFn) -> bytes:
    """Encoded batches with one lie in them; all CRCs are right but where the lie is the CRC."""
    spec = draw(batches().filter(lambda batch: batch.records))
    batch = encode_batch(spec)
    damaged: st.SearchStrategy[bytes] = st.one_of(
        st.integers(0, len(batch) - 1).map(lambda size: truncated(batch, size)),
        _INT32.map(lambda length: with_lying_length(batch, length)),
        _INT32.map(lambda count: with_lying_count(batch, count)),
        st.integers(5, 7).map(lambda codec: with_codec(batch, codec)),
        st.sampled_from(BadRecord).map(lambda bad: bad_record(bad, spec)),
        st.binary(min_size=1, max_size=9).map(lambda extra: with_trailing_bytes(spec, extra)),
        st.just(with_wrong_crc(batch)),
        _compressing.map(lambda codec: decompression_bomb(codec, value_bytes=_BOMB_BYTES)),
        _field_changes(batch),
    )
    return draw(damaged)


def _field_changes(batch: bytes) -> st.SearchStrategy[bytes]:
    """Any four bytes after the length, changed, with the CRC made right."""
    positions = st.integers(BATCH_LENGTH_AT + 4, len(batch) - 4)
    return st.builds(lambda at, number: with_int32(batch, at, number), positions, _INT32)
