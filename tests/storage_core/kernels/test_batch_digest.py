"""Digests of batches: every byte counts, and compiled code says what plain code does."""

import numpy as np
import pytest

from storage_core.kernels.batch_digest import digest_batches, digest_bytes, fold_digests
from storage_core.kernels.batch_scan import COLUMN_COUNT, scan_batches
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch

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
