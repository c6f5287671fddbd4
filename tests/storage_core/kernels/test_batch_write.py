"""Batches written out against the obvious builder, byte for byte."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage_core.formats import batch_v2
from storage_core.kernels import batch_notes, batch_scan, batch_write
from storage_core.kernels.batch_filter import BAD_ORDER, BAD_TIMESTAMP
from storage_core.kernels.batch_write import (
    GONE,
    HEADER_ONLY,
    MAX_RECORD_GROWTH_BYTES,
    REBUILT,
    VERBATIM,
)
from storage_core.kernels.record_scan import BAD_RECORD, DONE
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    encode_varint,
    end_txn_marker,
    segment_bytes,
)
from tests.kit.decode import decode_segment
from tests.kit.strategies import segments
from tests.storage_core.kernels.arguments import Opened, as_array, noted, opened
from tests.storage_core.kernels.twins import in_both_ways

LOG_APPEND = batch_v2.TimestampType.LOG_APPEND_TIME
UNTOUCHED = 0xEE


@dataclasses.dataclass(frozen=True)
class Written:
    """What write_batches wrote."""

    data: bytes
    sizes: list[int]
    max_timestamps: list[int]
    row: int
    status: int


def run(
    write_batches,
    segment: bytes,
    *,
    fate: list[int],
    keep: list[bool],
    horizon: list[int] | None = None,
    at: int = 0,
    packed: Opened | None = None,
) -> Written:
    """Write batches; what is rebuilt and compressed is in the arena of packed, and its notes."""
    window = opened(segment)
    notes = prepared(window, fate, keep, horizon).notes
    arena = as_array(b"")
    if packed is not None:
        notes, arena = packed.notes, packed.arena
    room = at + len(segment) + len(window.arena) + len(arena)
    room += batch_v2.HEADER_BYTES * len(window) + MAX_RECORD_GROWTH_BYTES * len(keep)
    out = np.full(room, UNTOUCHED, np.uint8)
    end, row, status = write_batches(
        out,
        at,
        window.data,
        window.arena,
        window.table,
        notes,
        np.array(keep, np.uint8),
        arena,
        batch_v2.NO_TIMESTAMP,
    )
    assert (out[:at] == UNTOUCHED).all()
    sizes, largest = notes[[batch_notes.NEW_SIZE, batch_notes.NEW_MAX_TIMESTAMP]].tolist()
    return Written(out[at:end].tobytes(), sizes, largest, row, status)


def prepared(
    window: Opened, fate: list[int], keep: list[bool], horizon: list[int] | None = None
) -> Opened:
    """Note what becomes of the batches of a window."""
    notes = window.notes
    notes[batch_notes.FATE] = fate
    notes[batch_notes.SURVIVORS] = kept_of(window, keep)
    notes[batch_notes.FIRST_RECORD] = window.first_record
    notes[batch_notes.DELETE_HORIZON] = horizon or batch_v2.NO_TIMESTAMP
    return window


def kept_of(window: Opened, keep: list[bool]) -> NDArray[np.int64]:
    count = np.maximum(window.record_count, 0)
    parts = np.split(np.array(keep, int), np.cumsum(count)[:-1])
    return np.array([sum(part) for part in parts], np.int64)


def rebuilt(spec: BatchSpec, keep: list[bool], horizon: int) -> BatchSpec:
    """What Kafka's builder would have been told."""
    has_append_time = spec.timestamp_type is LOG_APPEND
    records = [
        dataclasses.replace(
            record,
            offset_delta=delta,
            timestamp=spec.largest_timestamp if has_append_time else record.timestamp,
        )
        for record, delta, stays in zip(spec.records, spec.offset_deltas, keep, strict=True)
        if stays
    ]
    return dataclasses.replace(
        spec,
        records=tuple(records),
        codec=batch_v2.Codec.NONE,
        delete_horizon_ms=None if horizon == batch_v2.NO_TIMESTAMP else horizon,
        base_timestamp=None,
        last_offset_delta=spec.last_offset - spec.base_offset,
        max_timestamp=spec.largest_timestamp if has_append_time else None,
    )


def emptied(spec: BatchSpec) -> BatchSpec:
    return dataclasses.replace(
        spec,
        records=(),
        codec=batch_v2.Codec.NONE,
        delete_horizon_ms=None,
        base_timestamp=batch_v2.NO_TIMESTAMP,
        max_timestamp=spec.largest_timestamp,
        last_offset_delta=spec.last_offset - spec.base_offset,
    )


@pytest.mark.thorough
@in_both_ways(write_batches=batch_write.write_batches)
@given(specs=segments(max_batches=4).filter(bool), data=st.data())
def test_every_fate_gives_the_bytes_of_the_obvious_builder(write_batches, specs, data):
    fate, keep, horizon, expected = [], [], [], []
    for spec in specs:
        stays = [data.draw(st.booleans()) for _ in spec.records]
        possible = [GONE, VERBATIM, HEADER_ONLY]
        if any(stays) and spec.codec is batch_v2.Codec.NONE:
            possible += [REBUILT] * 3
        chosen = data.draw(st.sampled_from(possible))
        at = data.draw(st.sampled_from([batch_v2.NO_TIMESTAMP, 0, SOME_TIME_MS, 2**45]))
        expected.append(
            {
                GONE: None,
                VERBATIM: spec,
                HEADER_ONLY: emptied(spec),
                REBUILT: rebuilt(spec, stays, at),
            }[chosen]
        )
        fate.append(chosen)
        keep += stays
        horizon.append(at)
    found = run(write_batches, segment_bytes(specs), fate=fate, keep=keep, horizon=horizon, at=5)
    encoded = [b"" if spec is None else encode_batch(spec) for spec in expected]
    assert found.data == b"".join(encoded)
    assert (found.row, found.status) == (len(specs), DONE)
    assert found.sizes == [len(batch) for batch in encoded]
    for spec, largest in zip(expected, found.max_timestamps, strict=True):
        assert spec is None or largest == spec.largest_timestamp


def one_rebuilt(
    write_batches, spec: BatchSpec, keep: list[bool], horizon: int = batch_v2.NO_TIMESTAMP
) -> bytes:
    written = run(write_batches, encode_batch(spec), fate=[REBUILT], keep=keep, horizon=[horizon])
    assert written.status == DONE
    return written.data


def some_records(count: int, **changes) -> tuple[RecordSpec, ...]:
    return tuple(RecordSpec(key=b"%d" % i, **changes) for i in range(count))


@pytest.mark.item("FMT-04")
@in_both_ways(write_batches=batch_write.write_batches)
@pytest.mark.parametrize("keep", [[True, False, False], [False, True, False], [False, False, True]])
def test_a_batch_keeps_its_range_of_offsets_whichever_record_is_left(write_batches, keep):
    spec = BatchSpec(records=some_records(3), base_offset=40, last_offset_delta=5)
    (batch,), _ = decode_segment(one_rebuilt(write_batches, spec, keep))
    assert (batch.base_offset, batch.last_offset) == (40, 45)
    assert [record.offset for record in batch.records] == [40 + keep.index(True)]


@pytest.mark.item("FMT-05")
@in_both_ways(write_batches=batch_write.write_batches)
def test_the_largest_timestamp_counts_not_the_last(write_batches):
    times = [SOME_TIME_MS + step for step in (900, 500, 100)]
    spec = BatchSpec(records=tuple(RecordSpec(key=b"k", timestamp=time) for time in times))
    (batch,), _ = decode_segment(one_rebuilt(write_batches, spec, [False, True, True]))
    assert batch.header["base_timestamp"] == SOME_TIME_MS + 500
    assert batch.header["max_timestamp"] == SOME_TIME_MS + 500
    assert [record.timestamp for record in batch.records] == times[1:]


@pytest.mark.item("FMT-05")
@in_both_ways(write_batches=batch_write.write_batches)
def test_with_log_append_time_every_record_is_written_with_the_brokers(write_batches):
    times = [SOME_TIME_MS + step for step in (900, 500)]
    spec = BatchSpec(
        records=tuple(RecordSpec(key=b"k", timestamp=time) for time in times),
        timestamp_type=LOG_APPEND,
        max_timestamp=SOME_TIME_MS + 10_000,
    )
    written = one_rebuilt(write_batches, spec, [False, True])
    (batch,), _ = decode_segment(written)
    assert batch.header["base_timestamp"] == batch.header["max_timestamp"] == SOME_TIME_MS + 10_000
    assert written[batch_v2.HEADER_BYTES + 2] == 0  # the delta
    assert batch.records[0].timestamp == SOME_TIME_MS + 10_000


@pytest.mark.item("FMT-06")
@in_both_ways(write_batches=batch_write.write_batches)
@pytest.mark.parametrize("horizon", [SOME_TIME_MS + 86_400_000, 0, 2**62, SOME_TIME_MS])
def test_a_delete_horizon_changes_no_timestamp(write_batches, horizon):
    times = [SOME_TIME_MS, 0, 2**45, SOME_TIME_MS - 1, -1]
    spec = BatchSpec(
        records=tuple(RecordSpec(key=b"k", value=None, timestamp=time) for time in times)
    )
    (batch,), _ = decode_segment(one_rebuilt(write_batches, spec, [True] * 5, horizon))
    assert batch.header["attributes"] & batch_v2.DELETE_HORIZON_BIT
    assert batch.header["base_timestamp"] == horizon
    assert [record.timestamp for record in batch.records] == times
    # And back again: a horizon that is there is what the deltas are read from.
    again = dataclasses.replace(spec, delete_horizon_ms=horizon)
    (batch,), _ = decode_segment(one_rebuilt(write_batches, again, [True] * 5, horizon))
    assert [record.timestamp for record in batch.records] == times


@pytest.mark.item("FMT-06", "FMT-13")
@in_both_ways(write_batches=batch_write.write_batches)
def test_a_marker_grows_from_78_to_82_bytes_with_a_horizon(write_batches):
    marker = end_txn_marker(base_offset=9, producer_id=4, producer_epoch=1)
    assert len(encode_batch(marker)) == 78
    written = one_rebuilt(write_batches, marker, [True], SOME_TIME_MS + 2 * 86_400_000)
    assert len(written) == 82
    expected = dataclasses.replace(marker, delete_horizon_ms=SOME_TIME_MS + 2 * 86_400_000)
    assert written == encode_batch(expected)


@pytest.mark.item("FMT-09")
@in_both_ways(write_batches=batch_write.write_batches)
def test_headers_nulls_and_empty_strings_come_through(write_batches):
    headers = (("again", b"1"), ("again", b"1"), ("", b""), ("ä", None), ("x" * 200, b"y" * 200))
    spec = BatchSpec(
        records=(
            RecordSpec(key=None, value=None, headers=headers),
            RecordSpec(key=b"", value=b""),
            RecordSpec(key=b"k", value=None, headers=headers[::-1]),
        )
    )
    (batch,), _ = decode_segment(one_rebuilt(write_batches, spec, [True, False, True]))
    found = [(record.key, record.value, record.headers) for record in batch.records]
    names = tuple((name.encode(), value) for name, value in headers)
    assert found == [(None, None, names), (b"k", None, names[::-1])]


@pytest.mark.item("FMT-08")
@in_both_ways(write_batches=batch_write.write_batches)
def test_whatever_a_producer_encoded_oddly_is_encoded_plainly(write_batches):
    spec = BatchSpec(records=(RecordSpec(key=None, value=None, headers=(("h", None),)),))
    odd = b"".join(
        (
            b"\x7f",  # attributes
            b"\x80\x80\x00",  # a timestamp delta of 0, in three bytes
            b"\x80\x00",  # the same for the offset delta
            encode_varint(-7),  # no key
            encode_varint(-(2**31)),  # no value
            b"\x82\x00",  # one header
            b"\x82\x80\x00h",
            encode_varint(-2),
        )
    )
    record = encode_varint(len(odd)) + odd
    written = run(write_batches, encode_batch(spec, payload=record), fate=[REBUILT], keep=[True])
    assert written.data == encode_batch(spec)


def padded(number: bytes, more: int) -> bytes:
    """The same varint in more bytes."""
    if not more:
        return number
    return number[:-1] + bytes([number[-1] | 0x80]) + b"\x80" * (more - 1) + b"\x00"


@pytest.mark.item("FMT-08")
@in_both_ways(write_batches=batch_write.write_batches)
@given(
    more=st.lists(st.one_of(st.just(0), st.integers(0, 2)), min_size=5, max_size=5),
    sizes=st.tuples(st.sampled_from([0, 16, 63, 64]), st.sampled_from([0, 110, 8191, 8192])),
    keep=st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    horizon=st.sampled_from([batch_v2.NO_TIMESTAMP, SOME_TIME_MS + 86_400_000]),
)
def test_numbers_in_more_bytes_than_they_need_are_written_in_fewer(
    write_batches, more, sizes, keep, horizon
):
    record = RecordSpec(key=b"k" * sizes[0], value=b"v" * sizes[1])
    deltas = (0, 63, 64, 2**13)
    records = tuple(
        dataclasses.replace(record, offset_delta=delta, timestamp=SOME_TIME_MS + delta)
        for delta in deltas
    )
    spec = BatchSpec(records=records, base_timestamp=SOME_TIME_MS)
    odd = [
        b"\x07"
        + padded(encode_varint(delta), more[0])
        + padded(encode_varint(delta), more[1])
        + padded(encode_varint(sizes[0]), more[2])
        + b"k" * sizes[0]
        + padded(encode_varint(sizes[1]), more[3])
        + b"v" * sizes[1]
        + padded(encode_varint(0), more[4])
        for delta in deltas
    ]
    payload = b"".join(encode_varint(len(each)) + each for each in odd)
    batch = encode_batch(spec, payload=payload)
    written = run(write_batches, batch, fate=[REBUILT], keep=keep, horizon=[horizon])
    assert written.data == encode_batch(rebuilt(spec, keep, horizon))


@pytest.mark.item("FMT-08")
@in_both_ways(write_batches=batch_write.write_batches)
def test_bits_of_a_number_that_do_not_count_are_not_written(write_batches):
    spec = BatchSpec(records=(RecordSpec(key=b"k", offset_delta=2**30),))
    plain = encode_varint(2**30)
    payload = encode_batch(spec)[batch_v2.HEADER_BYTES :]
    odd = payload.replace(plain, plain[:-1] + bytes([plain[-1] | 0x70]))
    assert odd != payload
    written = run(write_batches, encode_batch(spec, payload=odd), fate=[REBUILT], keep=[True])
    assert written.data == encode_batch(spec)


@pytest.mark.sampled(2)
@in_both_ways(write_records=batch_write.write_records)
@pytest.mark.parametrize(
    ("base", "delta", "new_base"),
    [
        pytest.param(2**63 - 1, 2, 0, id="past the largest number"),
        pytest.param(-(2**63), -(2**62), 0, id="past the smallest number"),
        pytest.param(2**63 - 1, -(2**63), 2**63 - 1, id="a distance of 64 bits"),
    ],
)
def test_timestamps_wrap_around_as_64_bits_do(write_records, base, delta, new_base):
    def wrapped(number: int) -> int:
        return (number + 2**63) % 2**64 - 2**63

    timestamp = wrapped(base + delta)
    records = encode_records(
        BatchSpec(records=(RecordSpec(key=b"k", timestamp=delta),), base_timestamp=0)
    )
    status, written, header = write_one(write_records, records, [1], base, new_base)
    if timestamp < batch_v2.NO_TIMESTAMP:
        assert status == BAD_TIMESTAMP
        return
    assert (header, status) == ((new_base, timestamp), DONE)
    again = BatchSpec(
        records=(RecordSpec(key=b"k", timestamp=wrapped(timestamp - new_base)),), base_timestamp=0
    )
    assert written == encode_records(again)


def write_one(
    write_records, records: bytes, keep: list[int], base: int, horizon: int = batch_v2.NO_TIMESTAMP
) -> tuple[int, bytes, tuple[int, int]]:
    """Write records of a batch; return (status, bytes, base and largest timestamp)."""
    out = np.zeros(len(records) + MAX_RECORD_GROWTH_BYTES * len(keep), np.uint8)
    table = np.zeros((batch_scan.COLUMN_COUNT, 1), np.int64)
    table[batch_scan.MAGIC] = batch_v2.MAGIC_V2
    table[batch_scan.RECORD_COUNT] = len(keep)
    table[batch_scan.BASE_TIMESTAMP] = base
    notes = noted(
        1, records_start=0, records_end=len(records), first_record=0, delete_horizon=horizon
    )
    end, status = write_records(
        out, 0, as_array(records), table, notes, 0, np.array(keep, np.uint8), batch_v2.NO_TIMESTAMP
    )
    header = tuple(
        notes[[batch_notes.NEW_BASE_TIMESTAMP, batch_notes.NEW_MAX_TIMESTAMP], 0].tolist()
    )
    return status, out[:end].tobytes(), header


@in_both_ways(write_records=batch_write.write_records)
def test_records_that_no_reader_would_take_are_not_written(write_records):
    def status_of(records: bytes, count: int, keep: list[int], base: int = 0) -> int:
        assert count == len(keep)
        return write_one(write_records, records, keep, base)[0]

    def records_at(*deltas: int) -> bytes:
        specs = tuple(RecordSpec(key=b"k", offset_delta=delta) for delta in deltas)
        return encode_records(BatchSpec(records=specs))

    assert status_of(records_at(0, 1), 2, [1, 1]) == DONE
    assert status_of(records_at(1, 1), 2, [1, 1]) == BAD_ORDER
    assert status_of(records_at(2, 1), 2, [1, 1]) == BAD_ORDER
    assert status_of(records_at(2, 1), 2, [0, 1]) == DONE
    assert status_of(records_at(0), 1, [1], base=-1) == DONE
    assert status_of(records_at(0), 1, [1], base=-2) == BAD_TIMESTAMP
    assert status_of(records_at(0)[:-1], 1, [1]) == BAD_RECORD
    assert status_of(records_at(0)[:-1], 1, [0]) == BAD_RECORD
    assert status_of(b"\xff" * 9, 1, [0]) == BAD_RECORD
    assert status_of(encode_varint(-1), 1, [0]) == BAD_RECORD


@in_both_ways(write_batches=batch_write.write_batches)
def test_a_batch_that_cannot_be_rebuilt_is_named_and_nothing_of_it_counts(write_batches):
    good = BatchSpec(records=some_records(2))
    bad = BatchSpec(
        records=(RecordSpec(key=b"a", offset_delta=1), RecordSpec(key=b"b", offset_delta=0)),
        base_offset=2,
        last_offset_delta=1,
    )
    found = run(
        write_batches,
        segment_bytes([good, bad, good]),
        fate=[VERBATIM, REBUILT, VERBATIM],
        keep=[True] * 6,
    )
    assert (found.row, found.status) == (1, BAD_ORDER)
    assert found.data == encode_batch(good)


def rebuild(
    rebuild_compressed,
    segment: bytes,
    *,
    fate: list[int],
    keep: list[bool],
    rows: tuple[int, int],
    room: int = 10_000,
) -> tuple[int, int, Opened]:
    """Return (row, status) and the window; its arena has the records, as if compressed."""
    window = prepared(opened(segment), fate, keep)
    raw = np.full(room, UNTOUCHED, np.uint8)
    here = slice(*rows)
    count, status = rebuild_compressed(
        raw,
        window.data,
        window.arena,
        window.table[:, here],
        window.notes[:, here],
        np.array(keep, np.uint8),
        batch_v2.NO_TIMESTAMP,
    )
    return rows[0] + count, status, dataclasses.replace(window, arena=raw)


@in_both_ways(
    rebuild_compressed=batch_write.rebuild_compressed, write_batches=batch_write.write_batches
)
@pytest.mark.parametrize("time", list(batch_v2.TimestampType)[1:], ids=lambda time: time.value)
def test_a_compressed_batch_is_written_from_the_records_that_were_rebuilt_before(
    rebuild_compressed, write_batches, time
):
    plain = BatchSpec(records=some_records(2))
    packed = dataclasses.replace(plain, codec=batch_v2.Codec.GZIP, timestamp_type=time)
    specs, fate = [plain, packed, packed, plain], [REBUILT, REBUILT, VERBATIM, VERBATIM]
    keep = [True, False, False, True, True, True, True, True]
    segment = segment_bytes(specs)
    done = rebuild(rebuild_compressed, segment, fate=fate, keep=keep, rows=(0, 4))
    row, status, window = done
    assert (row, status) == (4, DONE)
    places = window.notes[[batch_notes.PACKED_START, batch_notes.PACKED_END]]
    assert places[:, [0, 2, 3]].tolist() == [[99] * 3] * 2
    survivor = rebuilt(packed, keep[2:4], batch_v2.NO_TIMESTAMP)
    records = encode_records(survivor)
    assert places[:, 1].tolist() == [0, len(records)]
    assert window.arena[: len(records)].tobytes() == records
    # The codec's own bytes do not matter to these two: here it leaves the records as they are.
    found = run(write_batches, segment, fate=fate, keep=keep, packed=window)
    expected = [
        encode_batch(rebuilt(plain, keep[:2], batch_v2.NO_TIMESTAMP)),
        encode_batch(dataclasses.replace(survivor, codec=batch_v2.Codec.GZIP), payload=records),
        encode_batch(packed),
        encode_batch(plain),
    ]
    assert (found.row, found.status) == (4, DONE)
    assert found.data == b"".join(expected)
    assert found.sizes == list(map(len, expected))


@in_both_ways(rebuild_compressed=batch_write.rebuild_compressed)
def test_rebuilding_stops_where_there_is_no_room_and_goes_on_from_there(rebuild_compressed):
    packed = BatchSpec(records=some_records(2), codec=batch_v2.Codec.LZ4)
    segment = segment_bytes([packed] * 3)
    size = len(encode_records(packed))
    room = size + 2 * MAX_RECORD_GROWTH_BYTES
    how = {"fate": [REBUILT] * 3, "keep": [True] * 6}
    assert rebuild(rebuild_compressed, segment, rows=(0, 3), room=room, **how)[:2] == (1, DONE)
    row, status, window = rebuild(rebuild_compressed, segment, rows=(1, 3), room=size + room, **how)
    assert (row, status) == (3, DONE)
    places = window.notes[[batch_notes.PACKED_START, batch_notes.PACKED_END], 1:].tolist()
    assert places == [[0, size], [size, 2 * size]]
    assert rebuild(rebuild_compressed, segment, rows=(0, 3), room=room - 1, **how)[:2] == (0, DONE)


@in_both_ways(rebuild_compressed=batch_write.rebuild_compressed)
def test_a_compressed_batch_that_cannot_be_rebuilt_is_named(rebuild_compressed):
    good = BatchSpec(records=some_records(2), codec=batch_v2.Codec.ZSTD)
    bad = dataclasses.replace(
        good, records=(RecordSpec(offset_delta=1), RecordSpec(offset_delta=0)), last_offset_delta=1
    )
    done = rebuild(
        rebuild_compressed,
        segment_bytes([good, bad, good]),
        fate=[REBUILT] * 3,
        keep=[True] * 6,
        rows=(0, 3),
    )
    assert done[:2] == (1, BAD_ORDER)


@pytest.mark.item("FMT-03")
@in_both_ways(kept_attributes=batch_write.kept_attributes)
def test_a_rebuilt_batch_keeps_its_type_and_loses_unused_bits(kept_attributes):
    kept = batch_v2.TIMESTAMP_TYPE_BIT | batch_v2.TRANSACTIONAL_BIT | batch_v2.CONTROL_BIT
    for attributes in [*range(128), 0x80, 0x7FFF, -(2**15)]:
        for codec in (0, 4):
            plain = kept_attributes(attributes, codec, False)
            assert plain == (attributes & kept | codec)
            assert kept_attributes(attributes, codec, True) == plain | batch_v2.DELETE_HORIZON_BIT
            assert plain & batch_v2.CODEC_MASK == codec


@pytest.mark.item("FMT-01")
@in_both_ways(write_header=batch_write.write_header, check_crcs=batch_scan.check_crcs)
@given(specs=segments(max_batches=3))
def test_a_header_comes_back_as_it_was(write_header, check_crcs, specs):
    segment = segment_bytes(specs)
    window = opened(segment)
    again = window.data.copy()
    for row in range(len(window)):
        column = window.table[:, row]
        start = column[batch_scan.POSITION]
        again[start : start + batch_v2.HEADER_BYTES] = UNTOUCHED
        write_header(
            again,
            start,
            window.table,
            row,
            column[batch_scan.SIZE],
            column[batch_scan.ATTRIBUTES],
            column[batch_scan.BASE_TIMESTAMP],
            column[batch_scan.MAX_TIMESTAMP],
            column[batch_scan.RECORD_COUNT],
        )
    assert again.tobytes() == segment
    assert check_crcs(again, window.table, len(window)) == -1
