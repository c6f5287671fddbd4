"""Messages of formats v0 and v1 through the whole reader: as columns, or refused by name."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import InvalidRecordError, UnsupportedCompressionError
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.records import payload as payload_module
from storage_core.records.payload import Limits, RecordColumns, decode_records, open_batches
from storage_core.records.reader import CrcCheck
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.damage import decompression_bomb
from tests.kit.decode import decode_segment
from tests.kit.golden_data import Golden, goldens
from tests.kit.legacy import (
    AnyBatch,
    LegacyMessage,
    LegacySet,
    encode_any,
    encode_entry,
)
from tests.kit.strategies import legacy_entries, segments
from tests.storage_core.records.memory_file import FILE, only_window_of, windows_of

LIMITS = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=2**20)
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
MESSAGES = tuple(LegacyMessage(offset=i, key=b"k%d" % i, value=b"v" * i) for i in range(3))
every_magic = pytest.mark.parametrize("magic", [0, 1])


def rows_of(columns: RecordColumns) -> list[tuple[Any, ...]]:
    return list(
        zip(
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            columns.sequence.tolist(),
            columns.keys().to_pylist(),
            columns.values().to_pylist(),
            columns.headers().to_pylist(),
            strict=True,
        )
    )


def all_rows(data: bytes, **how: Any) -> list[tuple[Any, ...]]:
    return [
        row
        for window in windows_of(data, **how)
        for columns in decode_records(window, np.ones(len(window.batches), bool), LIMITS)
        for row in rows_of(columns)
    ]


def expected_rows(data: bytes) -> list[tuple[Any, ...]]:
    """Return the same by the slow decoder; sequences and headers apart."""
    return [
        (one.offset, one.timestamp, one.key, one.value)
        for batch in decode_segment(data)[0]
        for one in batch.records
    ]


def old_messages(magic: int) -> tuple[LegacyMessage, ...]:
    return tuple(dataclasses.replace(one, magic=magic) for one in MESSAGES)


@pytest.mark.thorough
@given(
    old=st.lists(legacy_entries(), max_size=4),
    new=segments(max_batches=3),
    window_bytes=st.sampled_from([1, 150, 1 << 20]),
)
def test_any_mixed_log_is_read_as_the_slow_decoder_reads_it(old, new, window_bytes):
    batches: list[AnyBatch] = [*old[:2], *new, *old[2:]]
    data = b"".join(map(encode_any, batches))
    found = all_rows(data, window_bytes=window_bytes)
    assert [(row[0], row[1], row[3], row[4]) for row in found] == expected_rows(data)


@pytest.mark.item("FMT-14", "FMT-18", "FMT-19", "FMT-21", "FMT-22")
@pytest.mark.parametrize("golden", goldens("clean-*legacy*"), ids=lambda golden: golden.name)
def test_kafkas_old_logs_are_read(golden: Golden, tmp_path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        found = all_rows(data)
        seen += len(found)
        assert [(row[0], row[1], row[3], row[4]) for row in found] == expected_rows(data)
        # No producer, no headers.
        assert {(row[2], tuple(row[5])) for row in found} <= {(-1, ())}
    assert seen == golden.case["expected"]["leo"]


@pytest.mark.item("FMT-22")
@every_magic
def test_an_opened_set_knows_its_first_offset_and_its_count(magic):
    entry = LegacySet(
        messages=tuple(dataclasses.replace(one, offset=70 + 2 * one.offset) for one in MESSAGES),
        magic=magic,
    )
    window = only_window_of(encode_entry(entry))
    (columns,) = decode_records(window, np.ones(1, bool), LIMITS)
    opened = columns.payload.batches
    assert (opened.base_offset.tolist(), opened.last_offset.tolist()) == ([70], [74])
    assert opened.record_count.tolist() == [3]
    # The window goes on to say what the header says.
    assert (window.batches.base_offset.tolist(), window.batches.record_count.tolist()) == (
        [74],
        [-1],
    )
    for table in (opened, window.batches):
        assert table.leader_epoch.tolist() == table.producer_id.tolist() == [-1]
        assert table.last_sequence.tolist() == [-1]
        assert not (table.is_transactional | table.is_control | table.has_delete_horizon).any()


def test_which_batches_may_reach_below_an_offset_is_known_unopened():
    data = b"".join(
        map(
            encode_any,
            [
                LegacyMessage(offset=5),
                LegacySet(messages=(LegacyMessage(offset=6), LegacyMessage(offset=9))),
                BatchSpec(base_offset=10, records=(RecordSpec(),) * 3),
            ],
        )
    )
    batches = only_window_of(data).batches
    # The set could begin anywhere.
    assert batches.may_reach_below(5).tolist() == [False, True, False]
    assert batches.may_reach_below(6).tolist() == [True, True, False]
    assert batches.may_reach_below(11).tolist() == [True, True, True]


@pytest.mark.item("FMT-16", "FMT-21")
def test_the_timestamp_type_is_kafkas_number():
    data = b"".join(
        map(
            encode_any,
            [
                LegacyMessage(magic=0, attributes=8),
                LegacyMessage(magic=1),
                LegacyMessage(magic=1, attributes=8),
                BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=5),
            ],
        )
    )
    batches = only_window_of(data).batches
    assert batches.timestamp_type_id.tolist() == [-1, 0, 1, 1]
    assert batches.has_timestamps.tolist() == [False, True, True, True]


@pytest.mark.item("FMT-16", "FMT-25", "FMT-26")
@every_magic
@pytest.mark.parametrize("codec", OLD_CODECS, ids=lambda codec: codec.name)
def test_every_codec_of_the_time_is_read(codec, magic):
    entry = LegacySet(messages=old_messages(magic), codec=codec, magic=magic)
    rows = all_rows(encode_entry(entry))
    assert [(row[0], row[3], row[4]) for row in rows] == [
        (one.offset, one.key, one.value) for one in MESSAGES
    ]


@pytest.mark.item("FMT-26")
def test_the_header_checksum_of_lz4_is_looked_at_from_v1_on():
    old = LegacySet(messages=old_messages(0), codec=Codec.LZ4, magic=0)
    new = LegacySet(messages=MESSAGES, codec=Codec.LZ4, magic=1)
    for entry, wrong in ((old, 0x82), (new, 0x1A)):
        data = bytearray(encode_entry(entry))
        at = data.index(bytes.fromhex("04224d186040")) + 6
        assert data[at] != wrong
        data[at] = wrong
        (window,) = windows_of(bytes(data), crc=CrcCheck.SKIP)
        chosen = decode_records(window, np.ones(1, bool), LIMITS)
        if entry is old:
            assert [len(columns) for columns in chosen] == [3]
        else:
            with pytest.raises(InvalidRecordError, match="lz4"):
                list(chosen)


def refusal(data: bytes, error: type[Exception] = InvalidRecordError, **limits: int) -> str:
    """Open what stands behind a good message; return why it is refused."""
    good = encode_entry(LegacyMessage())
    window = only_window_of(good + data)
    changed = dataclasses.replace(LIMITS, **limits)
    with pytest.raises(error) as caught:
        list(decode_records(window, np.ones(2, bool), changed))
    assert (caught.value.file, caught.value.position) == (FILE, len(good))
    # What is not asked for is not looked at.
    assert len(next(decode_records(window, np.array([True, False]), changed))) == 1
    return str(caught.value)


@pytest.mark.item("FMT-16")
@every_magic
def test_zstd_is_no_codec_of_old_formats(magic):
    entry = LegacySet(messages=old_messages(magic), codec=Codec.ZSTD, magic=magic)
    assert "zstd" in refusal(encode_entry(entry))


@pytest.mark.item("FMT-23")
@every_magic
@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_refused(magic, number):
    entry = LegacyMessage(magic=magic, attributes=number, value=b"anything")
    assert f"found {number}" in refusal(encode_entry(entry), UnsupportedCompressionError)


@pytest.mark.item("FMT-20")
@every_magic
@pytest.mark.parametrize("codec", OLD_CODECS, ids=lambda codec: codec.name)
def test_a_set_that_is_null_or_empty_is_refused(codec, magic):
    null = LegacySet(messages=MESSAGES, codec=codec, magic=magic, payload=None)
    assert "no value" in refusal(encode_entry(null))
    empty = LegacyMessage(magic=magic, attributes=int(codec), value=b"")
    assert codec.name.lower() in refusal(encode_entry(empty))


@pytest.mark.item("FMT-20")
def test_what_a_kernel_refuses_is_told_with_its_place():
    inside = LegacySet(messages=MESSAGES)
    nested = LegacySet(messages=(LegacyMessage(value=b"", attributes=1),))
    assert "inside a compressed message" in refusal(encode_entry(nested))
    low = dataclasses.replace(inside, offset=1, first_inner_offset=0)
    assert "below the last one inside" in refusal(encode_entry(low))
    assert "offset 1:" in refusal(encode_entry(low))


@pytest.mark.item("FMT-29")
@every_magic
def test_expansion_is_bounded(magic):
    large = LegacyMessage(offset=0, value=bytes(1 << 20), magic=magic)
    entry = encode_entry(LegacySet(messages=(large,), magic=magic))
    size = len(encode_entry(large)) - 12
    assert len(entry) < 1 << 14
    assert "expands to more" in refusal(entry, max_batch_bytes=1 << 16)
    bound = {"max_batch_bytes": 1 << 22}
    why = refusal(entry, **bound, max_record_bytes=size - 1)
    assert "max.decompressed.message.bytes" in why
    limits = Limits(max_record_bytes=size, **bound)
    (columns,) = decode_records(only_window_of(entry), np.ones(1, bool), limits)
    assert columns.value_length.tolist() == [1 << 20]
    # A message by itself has been sent as it is.
    tiny = Limits(max_record_bytes=1, **bound)
    (columns,) = decode_records(only_window_of(encode_entry(large)), np.ones(1, bool), tiny)
    assert len(columns) == 1


def test_a_block_ends_with_the_set_that_exceeds_the_budget(monkeypatch):
    sets = [
        LegacySet(
            messages=(LegacyMessage(offset=number, value=b"x" * 100),),
            magic=1,
        )
        for number in range(4)
    ]
    plain = LegacyMessage(offset=4)
    window = only_window_of(b"".join(map(encode_any, [*sets, plain])))
    monkeypatch.setattr(payload_module, "ARENA_BUDGET_BYTES", 200)
    wanted = np.ones(5, bool)
    blocks = []
    row = 0
    while row < 5:
        payload = open_batches(window, wanted, row, LIMITS)
        blocks.append((row, payload.end_row))
        row = payload.end_row
    assert blocks == [(0, 2), (2, 4), (4, 5)]
    rows = [
        row[0] for columns in decode_records(window, wanted, LIMITS) for row in rows_of(columns)
    ]
    assert rows == [0, 1, 2, 3, 4]


def test_old_and_new_compressed_batches_share_a_block():
    new = BatchSpec(
        base_offset=3, records=(RecordSpec(key=b"n", value=b"new"),) * 2, codec=Codec.GZIP
    )
    bomb = decompression_bomb(Codec.ZSTD, value_bytes=1000)
    data = encode_entry(LegacySet(messages=MESSAGES)) + encode_batch(new) + bomb
    data += encode_entry(LegacySet(messages=MESSAGES, codec=Codec.SNAPPY))
    (columns,) = decode_records(only_window_of(data), np.ones(4, bool), LIMITS)
    assert columns.offset.tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2]
    assert columns.keys().to_pylist()[2:6] == [b"k2", b"n", b"n", b"bomb"]
