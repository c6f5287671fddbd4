"""Digests of records and of batches: every field counts, compiled as in plain Python."""

from itertools import combinations

import numpy as np
import pytest

from storage_core.formats.batch_v2 import Codec
from storage_core.kernels.batch_digest import digest_batches, digest_bytes, fold_digests
from storage_core.kernels.batch_scan import COLUMN_COUNT, scan_batches
from storage_core.kernels.record_digest import (
    DIGEST_COUNT,
    HEADERS,
    IDENTITY,
    KEY,
    NULL_DIGEST,
    VALUE,
    digest_records,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import Window
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch


def digests_of(*records: RecordSpec, codec: Codec = Codec.NONE) -> np.ndarray:
    """Return the digests of a batch, by compiled and by plain code."""
    data = np.frombuffer(encode_batch(BatchSpec(records=records, codec=codec)), np.uint8)
    table = np.empty((COLUMN_COUNT, 2), np.int64)
    count, _, _ = scan_batches(data, 0, data.size, table)
    window = Window("log", 0, data, BatchTable(table[:, :count]))
    (columns,) = decode_records(window, np.ones(1, np.bool_), DEFAULT_LIMITS)
    both = []
    for function in (digest_records, digest_records.py_func):
        digests = np.empty((DIGEST_COUNT, len(columns)), np.uint64)
        payload = columns.payload
        arrays = (data, payload.arena, payload.in_arena, np.ascontiguousarray(columns.table))
        with np.errstate(over="ignore"):
            function(*arrays, np.ascontiguousarray(columns.timestamp), digests)
        both.append(digests)
    assert (both[0] == both[1]).all()
    return both[0]


PLAIN = RecordSpec(key=b"k", value=b"v", headers=(("h", b"1"),))
OTHERS = {
    KEY: [RecordSpec(key=key, value=b"v", headers=PLAIN.headers) for key in (b"l", b"", None)],
    VALUE: [RecordSpec(key=b"k", value=v, headers=PLAIN.headers) for v in (b"v\0", b"", None)],
    HEADERS: [
        RecordSpec(key=b"k", value=b"v", headers=headers)
        for headers in (
            (),
            (("h", None),),
            (("h", b""),),
            (("i", b"1"),),
            (("h", b"1"), ("h", b"1")),
            (("h1", b""),),
        )
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("field", OTHERS)
def test_each_field_has_its_own_digest_and_counts(field: int):
    first, *others = digests_of(PLAIN, *OTHERS[field]).T
    for one, two in combinations([first, *others], 2):
        assert one[field] != two[field]
        assert one[IDENTITY] != two[IDENTITY]
        for other in {KEY, VALUE, HEADERS} - {field}:
            assert one[other] == two[other]


def test_the_timestamp_counts_only_in_the_whole():
    one, two = digests_of(RecordSpec(timestamp=5), RecordSpec(timestamp=6)).T
    assert (one[:IDENTITY] == two[:IDENTITY]).all()
    assert one[IDENTITY] != two[IDENTITY]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("codec", list(Codec))
def test_neither_codec_nor_batch_matters(codec: Codec):
    records = [PLAIN, RecordSpec(key=None, value=None), RecordSpec(key=bytes(300), value=b"w")]
    together = digests_of(*records, codec=codec)
    alone = np.concatenate([digests_of(record) for record in records], axis=1)
    assert (together == alone).all()
    assert together[KEY, 1] == together[VALUE, 1] == NULL_DIGEST


DATA = np.random.default_rng(3).integers(0, 256, 200).astype(np.uint8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, 200])
def test_every_bit_and_the_length_count(size: int):
    data = DATA[:size].copy()
    seen = {digest_bytes(data, 0, size)}
    for position in range(size):
        for bit in (1, 128):
            data[position] ^= bit
            seen.add(digest_bytes(data, 0, size))
            data[position] ^= bit
    longer = np.append(data, np.uint8(0))
    seen.add(digest_bytes(longer, 0, size + 1))
    assert len(seen) == 2 * size + 2
    # Both halves tell them apart.
    assert len({low for low, _ in seen}) == len({high for _, high in seen}) == len(seen)
    with np.errstate(over="ignore"):
        assert digest_bytes.py_func(data, 0, size) == digest_bytes(data, 0, size)


@pytest.mark.thorough
def test_a_digest_knows_neither_epoch_nor_offset_but_a_sum_does():
    first = BatchSpec(records=(RecordSpec(value=b"a"),), base_offset=5)
    others = [
        BatchSpec(records=(RecordSpec(value=b"a"),), base_offset=6),
        BatchSpec(records=(RecordSpec(value=b"a"),), base_offset=5, leader_epoch=9),
        BatchSpec(records=(RecordSpec(value=b"b"),), base_offset=5),
    ]
    digests, sums = [], []
    for batches in ([first], [others[0]], [others[1]], [others[2]], [first, others[0]]):
        for ordered in (batches, batches[::-1]):
            data = np.frombuffer(b"".join(map(encode_batch, ordered)), np.uint8)
            table = np.empty((COLUMN_COUNT, 4), np.int64)
            count, _, _ = scan_batches(data, 0, data.size, table)
            columns = np.ascontiguousarray(table[:, :count])
            halves = np.empty((2, count), np.uint64)
            digest_batches(data, columns, halves)
            total = np.zeros((1, 2), np.uint64)
            fold_digests(columns, halves, 0, 3, total)
        digests.append(halves[:, 0].tolist())
        sums.append(tuple(total[0].tolist()))
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert len(set(sums)) == 5
    assert sums[4] == tuple((sums[0][half] + sums[1][half]) % 2**64 for half in (0, 1))
