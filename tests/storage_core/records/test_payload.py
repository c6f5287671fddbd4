"""Records made readable: bombs, lying counts and unknown codecs are told with their place."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given

from storage_core.errors import InvalidRecordError, UnsupportedCompressionError
from storage_core.formats.batch_v2 import HEADER_BYTES, Codec
from storage_core.kernels import batch_filter, record_scan
from storage_core.records import payload as payload_module
from storage_core.records.payload import Limits, Payload, open_batches
from storage_core.records.reader import Window
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    segment_bytes,
    some_batches,
)
from tests.kit.damage import decompression_bomb, with_codec, with_lying_count
from tests.kit.strategies import segments
from tests.storage_core.records.memory_file import FILE, only_window_of

LIMITS = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=2**20)
GOOD = encode_batch(some_batches(count=1, records=2)[0])
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
every_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())


def opened(window: Window, *, wanted: list[bool] | None = None, first_row: int = 0) -> Payload:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return open_batches(window, chosen, first_row, LIMITS)


def records_of(payload: Payload, row: int) -> bytes:
    source = payload.arena if payload.in_arena[row] else payload.window.data
    notes = payload.notes
    return source[notes.records_start[row] : notes.records_end[row]].tobytes()


@pytest.mark.thorough
@given(specs=segments(max_batches=5).filter(bool))
def test_the_records_of_every_batch_are_there(specs):
    payload = opened(only_window_of(segment_bytes(specs)))
    assert (payload.first_row, payload.end_row) == (0, len(specs))
    assert [records_of(payload, row) for row in range(len(specs))] == [
        encode_records(spec) for spec in specs
    ]
    assert payload.in_arena.tolist() == [int(spec.codec is not Codec.NONE) for spec in specs]


def test_only_the_wanted_batches_are_decompressed():
    specs = [some_batches(count=1, codec=codec)[0] for codec in (Codec.GZIP, Codec.LZ4, Codec.GZIP)]
    payload = opened(only_window_of(segment_bytes(specs)), wanted=[True, False, True])
    assert payload.in_arena.tolist() == [1, 0, 1]
    assert payload.arena.tobytes() == encode_records(specs[0]) + encode_records(specs[2])


def test_a_block_ends_with_the_batch_that_exceeds_the_budget(monkeypatch):
    specs = some_batches(count=5, records=3, codec=Codec.SNAPPY)
    window = only_window_of(segment_bytes(specs))
    size = len(encode_records(specs[0]))
    monkeypatch.setattr(payload_module, "ARENA_BUDGET_BYTES", 2 * size)
    row, blocks = 0, []
    while row < 5:
        payload = opened(window, first_row=row)
        blocks.append((payload.first_row, payload.end_row))
        found = [records_of(payload, i) for i in range(row, payload.end_row)]
        assert found == [encode_records(spec) for spec in specs[row : payload.end_row]]
        row = payload.end_row
    assert blocks == [(0, 3), (3, 5)]


@pytest.mark.thorough
@every_codec
def test_a_bomb_is_refused_and_takes_no_memory(codec):
    bomb = decompression_bomb(codec, value_bytes=64 * 2**20)
    window = only_window_of(GOOD + bomb)
    tracemalloc.start()
    with pytest.raises(InvalidRecordError, match=codec.name.lower()) as caught:
        opened(window)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))
    assert caught.value.kafka_code == 87


@every_codec
def test_bytes_that_the_codec_does_not_know_are_refused(codec):
    window = only_window_of(GOOD + with_codec(GOOD, codec))
    with pytest.raises(InvalidRecordError, match=f"offset 0: {codec.name.lower()}") as caught:
        opened(window)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))


@pytest.mark.item("FMT-23")
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused_if_its_batch_is_wanted(codec):
    window = only_window_of(GOOD + with_codec(GOOD, codec))
    with pytest.raises(UnsupportedCompressionError, match=f"found {codec}") as caught:
        opened(window)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))
    assert caught.value.kafka_code == 76
    assert opened(window, wanted=[True, False]).end_row == 2


@pytest.mark.item("FMT-11")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=["none", "zstd"])
@pytest.mark.parametrize("count", [-1, -(2**31), 100, 2**31 - 1])
def test_a_count_that_cannot_be_true_is_refused_before_anything_is_reserved(count, codec):
    spec = dataclasses.replace(some_batches(count=1, records=2)[0], codec=codec)
    window = only_window_of(GOOD + with_lying_count(encode_batch(spec), count))
    with pytest.raises(InvalidRecordError, match=f"counts {count} records") as caught:
        opened(window)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))
    assert opened(window, wanted=[True, False]).end_row == 2


def test_empty_batches_have_no_records():
    payload = opened(only_window_of(segment_bytes([BatchSpec(), BatchSpec(base_offset=5)])))
    assert (payload.notes.records_start == payload.notes.records_end).all()
    assert len(payload.arena) == 0


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (record_scan.BAD_RECORD, "lengths contradict"),
        (record_scan.LEFTOVER, "bytes after the last record"),
        (record_scan.TOO_LARGE, "max.decompressed.message.bytes"),
        (batch_filter.BAD_ORDER, "offset does not rise"),
        (batch_filter.BAD_TIMESTAMP, "negative timestamp"),
    ],
)
def test_an_error_names_file_batch_and_position(status, reason):
    spec = BatchSpec(records=(RecordSpec(key=b"k"),), base_offset=40)
    payload = opened(only_window_of(GOOD + encode_batch(spec)))
    error = payload.error(status, 1, len(GOOD) + HEADER_BYTES + 3)
    assert (error.file, error.position) == (FILE, len(GOOD))
    assert "batch at offset 40" in error.reason
    assert reason in error.reason
    assert f"3 bytes into its {len(encode_records(spec))} bytes" in error.reason
