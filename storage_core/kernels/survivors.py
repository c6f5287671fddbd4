"""Bitmaps of survivors: one bit for each record ordinal of a segment.

A record of the dirty section survives exactly when its rank is the one that the offset map holds
for its key, so the whole map reduces to one bit a record. Bit i of a map is bit ``i % 64`` of
word ``i // 64``.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import (
    FIRST_BIT,
    FIRST_RECORD,
    HASHES,
    IS_LOOKED_UP,
    LOOK_UP_BIT,
    MARKS,
    NEEDS_RECORDS,
)
from storage_core.kernels.offset_table import ORDINAL_BITS, ORDINAL_MASK

# Where the hashes of a batch are, in HASHES.
NOWHERE: Final = 0
NOTED: Final = 1  # of pass one, or of the sidecar of the source segment
LOOKED_UP: Final = 2  # of a look-up in pass two


@kernel
def mark_survivors(
    table: NDArray[np.uint64], first_word: NDArray[np.int64], words: NDArray[np.uint64]
) -> None:
    """Set the bit of every record that the offset table names.

    Args:
        table: uint64[slots, 3], an offset table.
        first_word: int64[n_segments], where each segment's bitmap begins in words.
        words: uint64[], the bitmaps of all segments, zeroed.
    """
    for i in range(table.shape[0]):
        if table[i, 2] != 0:
            rank = np.int64(table[i, 2]) - 1
            ordinal = rank & ORDINAL_MASK
            word = first_word[rank >> ORDINAL_BITS] + (ordinal >> 6)
            words[word] |= np.uint64(1) << np.uint64(ordinal & 63)


@kernel
def mark_ordinals(ordinals: NDArray[np.uint32], first_word: int, words: NDArray[np.uint64]) -> None:
    """Set the bits of some records of one segment. A record beyond the bitmap is left out.

    Args:
        ordinals: uint32[], of the segment's records.
        words: uint64[], bitmaps.
    """
    for i in range(ordinals.size):
        word = first_word + np.int64(ordinals[i] >> np.uint32(6))
        if word < words.size:
            words[word] |= np.uint64(1) << np.uint64(ordinals[i] & np.uint32(63))


@kernel
def pick_hashes(
    record_count: NDArray[np.int64],
    notes: NDArray[np.int64],
    keep: NDArray[np.uint8],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    look_up_low: NDArray[np.uint64],
    look_up_high: NDArray[np.uint64],
    out_low: NDArray[np.uint64],
    out_high: NDArray[np.uint64],
) -> int:
    """Copy the hashes of batches' surviving records; return their number.

    Args:
        record_count: int64[n], of the batches.
        notes: int64[NOTE_COUNT, n]; HASHES says where those of a batch are.
        keep: uint8[], by record, of the batches that NEED_RECORDS; of others all stay.
        low: uint64[], lower halves of what was noted.
        high: uint64[], upper halves.
        look_up_low: uint64[], as low, of what was looked up.
        look_up_high: uint64[].
        out_low: uint64[], with room for all.
        out_high: uint64[].
    """
    count = 0
    for row in range(record_count.size):
        place = notes[HASHES, row]
        if place == NOWHERE:
            continue
        marks, first_record = notes[MARKS, row], notes[FIRST_RECORD, row]
        first = notes[LOOK_UP_BIT, row] if marks & IS_LOOKED_UP else notes[FIRST_BIT, row]
        for i in range(record_count[row]):
            if marks & NEEDS_RECORDS and not keep[first_record + i]:
                continue
            at = first + i
            if place == NOTED:
                out_low[count], out_high[count] = low[at], high[at]
            else:
                out_low[count], out_high[count] = look_up_low[at], look_up_high[at]
            count += 1
    return count


@inlined_kernel
def is_set(words: NDArray[np.uint64], bit: int) -> bool:
    """Whether a bit is set."""
    return (words[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1) != 0


@kernel
def count_range(words: NDArray[np.uint64], first: int, end: int) -> int:
    """Count the bits that are set in [first, end)."""
    total = 0
    bit = first
    while bit < end:
        word = words[bit >> 6] >> np.uint64(bit & 63)
        width = min(64 - (bit & 63), end - bit)
        if width < 64:
            word &= (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        while word != 0:
            word &= word - np.uint64(1)
            total += 1
        bit += width
    return total


@kernel
def count_ranges(
    words: NDArray[np.uint64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Count the bits that are set in stretches that follow each other.

    Args:
        lengths: int64[n], bits of each stretch.
        counts: int64[n], out.
    """
    first = 0
    for row in range(lengths.size):
        counts[row] = count_range(words, first, first + lengths[row])
        first += lengths[row]
