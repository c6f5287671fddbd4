"""Legacy entries read and written: against the reference, and each way to refuse one."""

import dataclasses
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, Codec, TimestampType
from storage_core.kernels import batch_scan, legacy_build, legacy_scan, record_scan
from storage_core.kernels.batch_notes import RECORDS_END, RECORDS_START
from storage_core.kernels.record_scan import DONE, RECORD_COLUMN_COUNT, TOO_LARGE
from storage_core.records.codecs import compress
from tests.kit.builders import SOME_TIME_MS, RecordSpec
from tests.kit.decode_legacy import (
    MAX_MESSAGE_BYTES,
    DecodedMessage,
    MalformedEntryError,
    messages_of,
    parse_entry,
)
from tests.kit.legacy import (
    LegacyEntry,
    LegacyMessage,
    LegacySet,
    encode_entry,
    encode_inner_set,
    encode_message,
)
from tests.kit.strategies import legacy_entries
from tests.storage_core.kernels.arguments import NO_BYTES, as_array, noted
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.new_columns import columns_of

# What an arena has before the records of the entries.
ARENA_BYTES = 70
ONE = LegacyMessage(offset=5, key=b"k", value=b"v")


def transcoded(
    transcode_entries,
    entries: list[LegacyEntry],
    *,
    inner: dict[int, bytes] | None = None,
    limit: int = MAX_MESSAGE_BYTES,
) -> tuple[int, int, int, list[list[DecodedMessage]]]:
    """Return (status, row, position in its bytes, messages of each entry).

    Args:
        transcode_entries: The kernel.
        entries: What to transcode.
        inner: Other bytes in place of an entry's set, by the number of the entry.
        limit: Of a message in a set.
    """
    window = bytearray()
    sets = bytearray()
    table = np.zeros((batch_scan.COLUMN_COUNT, len(entries) + 1), np.int64)
    notes = noted(len(entries) + 1)
    # The first batch is none of the entries, and stays as it is.
    for row, entry in enumerate(entries, 1):
        head = parse_entry(encode_entry(entry))
        is_wrapper = isinstance(entry, LegacySet)
        place, data = window, encode_entry(entry)
        if is_wrapper:
            place, data = sets, (inner or {}).get(row - 1, encode_inner_set(entry))
        table[batch_scan.ATTRIBUTES, row] = (
            Codec.GZIP * is_wrapper | TIMESTAMP_TYPE_BIT * head.is_append_time
        )
        table[batch_scan.MAGIC, row] = head.magic
        table[batch_scan.LAST_OFFSET, row] = head.offset
        table[batch_scan.MAX_TIMESTAMP, row] = head.timestamp
        notes[RECORDS_START, row], notes[RECORDS_END, row] = len(place), len(place) + len(data)
        place += data
    starts = notes[RECORDS_START].tolist()
    source_bytes = sum(notes[RECORDS_END, 1:].tolist()) - sum(starts[1:])
    out = np.zeros(2 * (len(window) + len(sets)) + 64, np.uint8)
    used, status, row, position = transcode_entries(
        as_array(window),
        as_array(sets) if sets else NO_BYTES,
        table,
        notes,
        np.arange(1, len(entries) + 1),
        limit,
        out,
        ARENA_BYTES,
    )
    assert used <= source_bytes * 2
    assert not table[:, 0].any()
    assert (notes[:, 0] == 99).all()
    if status != DONE:
        return status, row - 1, position - starts[row], []
    rows = zip(
        (notes[RECORDS_START, 1:] - ARENA_BYTES).tolist(),
        (notes[RECORDS_END, 1:] - ARENA_BYTES).tolist(),
        *table[
            [batch_scan.BASE_OFFSET, batch_scan.BASE_TIMESTAMP, batch_scan.RECORD_COUNT], 1:
        ].tolist(),
        strict=True,
    )
    return status, row, position, [_messages(out, *each) for each in rows]


def _messages(
    out: np.ndarray, start: int, end: int, base_offset: int, base_timestamp: int, count: int
) -> list[DecodedMessage]:
    records = np.empty((RECORD_COLUMN_COUNT, count), np.int64)
    found = record_scan.decode_records(
        out,
        NO_BYTES,
        np.array([count]),
        noted(1, place=0, records_start=start, records_end=end),
        np.zeros(1, np.int64),
        MAX_MESSAGE_BYTES,
        records,
    )
    assert found == (count, DONE, 0, 0)
    return [
        DecodedMessage(
            base_offset + delta,
            _wrapped(base_timestamp + time),
            None if key_size < 0 else out[key : key + key_size].tobytes(),
            None if value_size < 0 else out[value : value + value_size].tobytes(),
        )
        for _, time, delta, key, key_size, value, value_size, _, _ in records.T.tolist()
    ]


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@given(entries=st.lists(legacy_entries(), min_size=1, max_size=4))
def test_any_entries_have_the_messages_that_the_reference_reads(transcode_entries, entries):
    status, _, _, found = transcoded(transcode_entries, entries)
    assert status == DONE
    assert found == [messages_of(parse_entry(encode_entry(entry))) for entry in entries]


@pytest.mark.item("FMT-14", "FMT-17")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["plain", "in a set"])
@pytest.mark.parametrize("magic", [0, 1])
def test_null_and_empty_keys_and_values_are_told_apart(transcode_entries, magic, is_wrapped):
    pairs = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    entries: list[LegacyEntry] = [
        LegacyMessage(offset=i, key=key, value=value, magic=magic)
        for i, (key, value) in enumerate(pairs)
    ]
    if is_wrapped:
        entries = [LegacySet(messages=tuple(entries), magic=magic)]
    _, _, _, found = transcoded(transcode_entries, entries)
    assert [(one.key, one.value) for each in found for one in each] == pairs


@pytest.mark.item("FMT-17")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_is_null(transcode_entries, length):
    entry = encode_entry(LegacyMessage(offset=0, magic=0, key=None, value=None))
    changed = entry[:18] + struct.pack(">ii", length, length)
    wrapper = LegacySet(messages=(LegacyMessage(offset=0),))
    _, _, _, found = transcoded(transcode_entries, [wrapper], inner={0: changed})
    assert found == [[DecodedMessage(0, -1, None, None)]]


def offsets_of(transcode_entries, entry: LegacySet) -> list[int]:
    status, _, _, found = transcoded(transcode_entries, [entry])
    assert status == DONE
    return [message.offset for message in found[0]]


@pytest.mark.item("FMT-18", "FMT-19")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_the_wrapper_has_the_last_offset_and_inner_ones_keep_their_gaps(transcode_entries):
    messages = tuple(LegacyMessage(offset=offset) for offset in (100, 103, 109))
    for magic in (0, 1):
        entry = LegacySet(messages=messages, magic=magic)
        assert entry.last_offset == 109
        assert offsets_of(transcode_entries, entry) == [100, 103, 109]


@pytest.mark.item("FMT-19")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_inner_offsets_count_from_the_wrappers_in_v1_alone(transcode_entries):
    messages = tuple(LegacyMessage(offset=offset) for offset in (4, 7))
    relative = LegacySet(messages=messages, offset=1000, first_inner_offset=4)
    assert offsets_of(transcode_entries, relative) == [997, 1000]
    absolute = dataclasses.replace(relative, magic=0)
    assert offsets_of(transcode_entries, absolute) == [4, 7]
    unknown = dataclasses.replace(relative, offset=0)
    assert offsets_of(transcode_entries, unknown) == [4, 7]


@pytest.mark.item("FMT-19")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_a_wrapper_below_its_last_message_is_refused(transcode_entries):
    messages = (LegacyMessage(offset=4), LegacyMessage(offset=7))
    entry = LegacySet(messages=messages, offset=6, first_inner_offset=4)
    assert transcoded(transcode_entries, [ONE, entry])[:2] == (legacy_scan.BAD_WRAPPER_OFFSET, 1)
    assert transcoded(transcode_entries, [dataclasses.replace(entry, magic=0)])[0] == DONE


@pytest.mark.item("FMT-21")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_the_wrappers_timestamp_holds_inside_where_the_broker_gave_it(transcode_entries):
    messages = tuple(LegacyMessage(offset=i, timestamp=1000 - i) for i in range(3))
    created = LegacySet(messages=messages)
    _, _, _, (found,) = transcoded(transcode_entries, [created])
    assert [message.timestamp for message in found] == [1000, 999, 998]
    assert parse_entry(encode_entry(created)).timestamp == 1000
    appended = dataclasses.replace(
        created, timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp=5555
    )
    _, _, _, (found,) = transcoded(transcode_entries, [appended])
    assert [message.timestamp for message in found] == [5555] * 3
    old = dataclasses.replace(
        appended, messages=tuple(dataclasses.replace(one, magic=0) for one in messages), magic=0
    )
    _, _, _, (found,) = transcoded(transcode_entries, [old])
    assert [message.timestamp for message in found] == [-1] * 3


@pytest.mark.item("FMT-20", "FMT-21")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("is_append", [False, True], ids=["create time", "append time"])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_both_formats_may_lie_in_one_set(transcode_entries, magic, is_append):
    messages = (
        LegacyMessage(offset=0, magic=0),
        LegacyMessage(offset=1, magic=1, timestamp=11),
        LegacyMessage(offset=2, magic=0),
    )
    kind = TimestampType.LOG_APPEND_TIME if is_append else TimestampType.CREATE_TIME
    entry = LegacySet(messages=messages, magic=magic, timestamp_type=kind, timestamp=99)
    _, _, _, (found,) = transcoded(transcode_entries, [entry])
    inner = 99 if is_append and magic == 1 else 11
    assert [message.timestamp for message in found] == [-1, inner, -1]


@pytest.mark.item("FMT-20")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_a_set_in_a_set_is_refused(transcode_entries):
    inside = encode_entry(LegacySet(messages=(ONE,)))
    status, row, position, _ = transcoded(
        transcode_entries,
        [ONE, LegacySet(messages=(ONE,))],
        inner={1: encode_message(ONE, stored_offset=0) + inside},
    )
    assert (status, row, position) == (legacy_scan.NESTED, 1, len(encode_message(ONE)))


@pytest.mark.item("FMT-20")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("data", [b"", bytes(11), struct.pack(">qi", 0, 100) + bytes(99)])
def test_a_set_without_a_whole_message_is_refused(transcode_entries, data):
    entry = LegacySet(messages=(ONE,))
    assert transcoded(transcode_entries, [entry], inner={0: data})[0] == legacy_scan.NO_MESSAGE


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("tail", [1, 11, 12, 26, 29])
def test_a_set_ends_where_no_whole_message_follows(transcode_entries, tail):
    two = LegacySet(messages=(LegacyMessage(offset=0), LegacyMessage(offset=1, value=b"four")))
    data = encode_inner_set(two)
    size = len(encode_message(two.messages[0]))
    _, _, _, (found,) = transcoded(transcode_entries, [two], inner={0: data[: size + tail]})
    assert len(found) == 1


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("size", [13, 0, -1, -12, -(2**31)])
def test_an_inner_message_smaller_than_the_smallest_is_refused(transcode_entries, size):
    data = encode_message(ONE) + struct.pack(">qi", 1, size) + bytes(40)
    status, _, position, _ = transcoded(
        transcode_entries, [LegacySet(messages=(ONE,))], inner={0: data}
    )
    assert (status, position) == (legacy_scan.BAD_MESSAGE_SIZE, len(encode_message(ONE)))


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("length", [2, 100, 2**31 - 1])
def test_lengths_that_do_not_fit_are_refused(transcode_entries, magic, field, length):
    message = LegacyMessage(offset=0, key=None, value=b"v", magic=magic)
    data = bytearray(encode_message(message))
    at = (26 if magic else 18) + (4 if field == "value" else 0)
    struct.pack_into(">i", data, at, length)
    status, _, _, _ = transcoded(
        transcode_entries, [LegacySet(messages=(ONE,))], inner={0: bytes(data)}
    )
    with pytest.raises(MalformedEntryError):
        messages_of(parse_entry(bytes(data)))
    assert status == legacy_scan.BAD_MESSAGE


@pytest.mark.item("FMT-29")
@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
def test_only_a_message_in_a_set_may_be_too_large(transcode_entries):
    large = LegacyMessage(offset=0, value=bytes(1000))
    size = len(encode_message(large)) - 12
    entry = LegacySet(messages=(large,))
    assert transcoded(transcode_entries, [entry], limit=size)[0] == DONE
    assert transcoded(transcode_entries, [entry], limit=size - 1)[0] == TOO_LARGE
    assert transcoded(transcode_entries, [large], limit=1)[0] == DONE
    # Its size is believed before its bytes are looked for.
    cut = encode_inner_set(entry) + encode_message(large)[:-1]
    assert transcoded(transcode_entries, [entry], inner={0: cut}, limit=size)[0] == DONE
    cut = encode_message(LegacyMessage()) + encode_message(large)[:-1]
    assert transcoded(transcode_entries, [entry], inner={0: cut}, limit=size - 1)[0] == TOO_LARGE


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@pytest.mark.parametrize(
    ("offsets", "status"),
    [
        ((0, 2**31 - 1), DONE),
        ((0, 2**31), legacy_scan.BAD_OFFSET_SPAN),
        ((2**31 - 1, 0), DONE),
        ((-(2**62), 2**62), legacy_scan.BAD_OFFSET_SPAN),
        ((5, 5, 4), DONE),
    ],
)
def test_offsets_in_a_set_of_v0_may_be_any_that_are_near_each_other(
    transcode_entries, offsets, status
):
    messages = tuple(LegacyMessage(offset=offset, magic=0) for offset in offsets)
    data = b"".join(encode_message(message) for message in messages)
    entry = LegacySet(messages=messages[:1], magic=0)
    found, _, _, opened = transcoded(transcode_entries, [entry], inner={0: data})
    assert found == status
    if status == DONE:
        assert [message.offset for message in opened[0]] == list(offsets)


@in_both_ways(transcode_entries=legacy_scan.transcode_entries)
@given(
    entry=legacy_entries().filter(lambda one: isinstance(one, LegacySet)),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 60),
)
def test_hostile_sets_are_read_as_the_reference_reads_them_or_refused(
    transcode_entries, entry, changes, cut
):
    data = bytearray(encode_inner_set(entry))
    for at, byte in changes:
        data[at % len(data)] = byte
    data = data[: max(1, len(data) - cut)]
    status, _, _, found = transcoded(transcode_entries, [entry], inner={0: bytes(data)})
    packed = dataclasses.replace(entry, codec=Codec.GZIP, payload=_gzip(bytes(data)))
    try:
        expected = messages_of(parse_entry(encode_entry(packed)))
    except MalformedEntryError:
        assert status != DONE
    else:
        if status != legacy_scan.BAD_OFFSET_SPAN:
            assert status == DONE
            assert found == [[_as_64_bits(message) for message in expected]]


def _gzip(data: bytes) -> bytes:
    return compress(Codec.GZIP, data)


def _as_64_bits(message: DecodedMessage) -> DecodedMessage:
    return dataclasses.replace(message, offset=_wrapped(message.offset))


RECORDS = [
    RecordSpec(key=None, value=b"value", timestamp=SOME_TIME_MS),
    RecordSpec(key=b"", value=None, timestamp=SOME_TIME_MS + 1),
    RecordSpec(key=b"k" * 300, value=b"", timestamp=-1),
]


def nullable(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def by_hand(record, *, offset, magic, attributes=0, time=None):
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", record.timestamp if time is None else time)
    body += nullable(record.key) + nullable(record.value)
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message


@in_both_ways(write_entries=legacy_build.write_entries)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("time", [None, SOME_TIME_MS + 99])
def test_entries_are_those_made_by_hand(write_entries, magic, time):
    attributes = 8 if time is not None and magic else 0
    expected = b"".join(
        by_hand(record, offset=13 + i, magic=magic, attributes=attributes, time=time)
        for i, record in enumerate(RECORDS)
    )
    out = np.zeros(len(expected), np.uint8)
    time = NO_TIMESTAMP if time is None else time
    rows = columns_of(RECORDS).for_kernels(np.arange(3) + 20)
    assert write_entries(out, 0, 3, magic, attributes, time, 7, rows) == out.size
    assert out.tobytes() == expected
