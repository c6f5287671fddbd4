"""128-bit digests of whole batches, and their sums over ranges of offsets.

A digest tells equal bytes from others: a stored checksum may be as wrong as the bytes are, and two
batches may have the same one. Four lanes take a word each, one multiplication a word, so that a
core digests as fast as it checks CRCs. Each step is a bijection of the lane, and the state of 256
bits is merged twice, in two orders of the lanes. Primes and last steps are those of xxHash
(XXH64). It finds damage; it does not stop whoever forges a log.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import MAGIC_AT, MAGIC_V2
from storage_core.formats.legacy import ENTRY_CRC_AT
from storage_core.kernels._intrinsics import load_word, prefetch_byte
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_scan import (
    BASE_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    POSITION,
    SIZE,
)

_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5: Final = np.uint64(0x27D4EB2F165667C5)
_STRIPE: Final = 32
# Bytes of a mapped file are in no cache yet, and the CPU asks for too few of them by itself.
_AHEAD: Final = 1024


@inlined_kernel
def _rotate(value: int, bits: int) -> int:
    return (np.uint64(value) << np.uint64(bits)) | (np.uint64(value) >> np.uint64(64 - bits))


@inlined_kernel
def _round(lane: int, word: int) -> int:
    return np.uint64(_rotate(np.uint64(lane) ^ np.uint64(word), 29)) * _PRIME_1


@inlined_kernel
def _merge(total: int, lane: int) -> int:
    mixed = np.uint64(total) ^ np.uint64(_round(np.uint64(0), lane))
    return mixed * _PRIME_1 + _PRIME_4


@inlined_kernel
def take_word(total: int, word: int) -> int:
    """Return the state of a digest after one more word."""
    mixed = np.uint64(total) ^ np.uint64(_round(np.uint64(0), word))
    return np.uint64(_rotate(mixed, 27)) * _PRIME_1 + _PRIME_4


@inlined_kernel
def avalanche(total: int) -> int:
    """Return a digest of its last state."""
    mixed = np.uint64(total)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * _PRIME_2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _PRIME_3
    return mixed ^ (mixed >> np.uint64(32))


@kernel
def digest_bytes(data: NDArray[np.uint8], start: int, end: int) -> tuple[int, int]:
    """Return the two 64-bit halves of the digest of data[start:end]."""
    position = start
    first, second = _PRIME_1 + _PRIME_2, _PRIME_2
    third, fourth = np.uint64(0), np.uint64(0) - _PRIME_1
    while position + 2 * _STRIPE <= end:
        prefetch_byte(data, position + _AHEAD)
        for at in range(position, position + 2 * _STRIPE, _STRIPE):
            first = np.uint64(_round(first, load_word(data, at)))
            second = np.uint64(_round(second, load_word(data, at + 8)))
            third = np.uint64(_round(third, load_word(data, at + 16)))
            fourth = np.uint64(_round(fourth, load_word(data, at + 24)))
        position += 2 * _STRIPE
    if position + _STRIPE <= end:
        first = np.uint64(_round(first, load_word(data, position)))
        second = np.uint64(_round(second, load_word(data, position + 8)))
        third = np.uint64(_round(third, load_word(data, position + 16)))
        fourth = np.uint64(_round(fourth, load_word(data, position + 24)))
        position += _STRIPE
    low = np.uint64(_rotate(first, 1)) + np.uint64(_rotate(second, 7))
    low += np.uint64(_rotate(third, 12)) + np.uint64(_rotate(fourth, 18))
    high = np.uint64(_rotate(fourth, 1)) + np.uint64(_rotate(third, 7))
    high += np.uint64(_rotate(second, 12)) + np.uint64(_rotate(first, 18))
    low = np.uint64(_merge(_merge(_merge(_merge(low, first), second), third), fourth))
    high = np.uint64(_merge(_merge(_merge(_merge(high, fourth), third), second), first))
    low += np.uint64(end - start)
    high ^= np.uint64(end - start) * _PRIME_5
    while position + 8 <= end:
        word = load_word(data, position)
        low, high = np.uint64(take_word(low, word)), np.uint64(take_word(high, word))
        position += 8
    rest = np.uint64(0)
    for at in range(position, end):
        rest |= np.uint64(data[at]) << np.uint64(8 * (at - position))
    low, high = np.uint64(take_word(low, rest)), np.uint64(take_word(high, rest))
    return avalanche(low), avalanche(high)


@kernel
def digest_batches(
    data: NDArray[np.uint8], table: NDArray[np.int64], digests: NDArray[np.uint64]
) -> None:
    """Compute the digests of the batches of a window. Leader epoch and base offset are left out.

    Args:
        data: uint8[n], the window.
        table: int64[COLUMN_COUNT, count], its batches.
        digests: uint64[2, count], the two halves of each.
    """
    for row in range(table.shape[1]):
        start = table[POSITION, row]
        end = start + table[SIZE, row]
        first = start + (MAGIC_AT if table[MAGIC, row] >= MAGIC_V2 else ENTRY_CRC_AT)
        digests[0, row], digests[1, row] = digest_bytes(data, first, end)


@kernel
def fold_digests(
    table: NDArray[np.int64],
    digests: NDArray[np.uint64],
    first_range: int,
    shift: int,
    sums: NDArray[np.uint64],
) -> None:
    """Add the digests of batches to the sums of offset ranges.

    Each digest is added with the base offset and leader epoch of its batch. The order of batches
    does not matter, nor in which file they are.

    Args:
        table: int64[COLUMN_COUNT, count], the batches.
        digests: uint64[2, count], of ``digest_batches``.
        shift: A range has 2**shift offsets; by its number begins the offset ``number << shift``.
        sums: uint64[ranges, 2], added to. What lies in none of them is left out.
    """
    for row in range(table.shape[1]):
        at = (table[BASE_OFFSET, row] >> shift) - first_range
        if not 0 <= at < sums.shape[0]:
            continue
        place = np.uint64(table[BASE_OFFSET, row])
        epoch = np.uint64(table[LEADER_EPOCH, row])
        low = np.uint64(take_word(take_word(digests[0, row], place), epoch))
        high = np.uint64(take_word(take_word(digests[1, row], epoch), place))
        sums[at, 0] += np.uint64(avalanche(low))
        sums[at, 1] += np.uint64(avalanche(high))
