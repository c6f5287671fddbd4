"""Offset map: key hash to the place of the key's newest record.

Open addressing with linear probing over ``uint64[slots, 3]``: both halves of the hash, and the
value plus one, so that a slot of zeros is empty. slots is a power of two. A value is a record's
*rank*: the number of its segment among the dirty ones in the upper 32 bits, its ordinal in the
segment in the lower ones. Ranks rise with offsets, so the larger rank is the newer record.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import prefetch_row
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import FLAGS, LOOK_UP_BIT, NOT_DIRTY, OWN_RANK
from storage_core.kernels.record_scan import OPENED

SLOT_WORDS: Final = 3
ABSENT: Final = -1
ORDINAL_BITS: Final = 32
ORDINAL_MASK: Final = 2**ORDINAL_BITS - 1
# How many keys ahead a slot is asked for: enough to cover the latency of memory.
_AHEAD: Final = 12
# How many hashes are looked up together.
LOOK_UP_BLOCK: Final = 1024


@inlined_kernel
def _find_slot(table: NDArray[np.uint64], low: np.uint64, high: np.uint64) -> np.uint64:
    """Return the slot of a hash, or the empty slot for it.

    Slots are unsigned: an array is asked for a negative place at each look otherwise. Whether one
    holds the hash comes first: it nearly always does.
    """
    mask = np.uint64(table.shape[0] - 1)
    slot = low & mask
    while (table[slot, 0] != low or table[slot, 1] != high) and table[slot, 2] != 0:
        slot = (slot + np.uint64(1)) & mask
    return slot


@inlined_kernel
def _prefetch_slot(table: NDArray[np.uint64], low: np.uint64) -> None:
    """Ask for the slot where the search for a hash begins."""
    prefetch_row(table, np.int64(low & np.uint64(table.shape[0] - 1)))


@kernel
def insert_block(
    table: NDArray[np.uint64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    rank: NDArray[np.int64],
    first: int,
    count: int,
    used: int,
    max_used: int,
    max_keys: int,
) -> tuple[int, int]:
    """Put hashes[first:count] into the table, in order. A key that is there already keeps its
    larger rank.

    Args:
        table: uint64[slots, 3].
        low: uint64[>= count], lower halves.
        high: uint64[>= count], upper halves.
        rank: int64[>= count].
        used: Keys in the table so far.
        max_used: Stop before a new key would make more than this many; the caller grows the table.
        max_keys: Stop before *any* put once this many keys are in: Kafka's full-map rule, which
            looks at the number of keys alone, even where the next key is known already.

    Returns:
        (next, used): the first index that was not put, count where all were.
    """
    for i in range(first, count):
        if i + _AHEAD < count:
            _prefetch_slot(table, low[i + _AHEAD])
        if used >= max_keys:
            return i, used
        slot = _find_slot(table, low[i], high[i])
        if table[slot, 2] == 0:
            if used >= max_used:
                return i, used
            used += 1
            table[slot, 0] = low[i]
            table[slot, 1] = high[i]
        table[slot, 2] = max(table[slot, 2], np.uint64(rank[i] + 1))
    return count, used


@kernel
def look_up_block(
    table: NDArray[np.uint64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    count: int,
    rank: NDArray[np.int64],
) -> None:
    """Set rank[i] to what the table holds for hash i, or ABSENT."""
    for i in range(count):
        if i + _AHEAD < count:
            _prefetch_slot(table, low[i + _AHEAD])
        slot = _find_slot(table, low[i], high[i])
        rank[i] = np.int64(table[slot, 2]) - 1


@inlined_kernel
def _may_hold(hash_bits: NDArray[np.uint64], high: int) -> bool:
    """Whether the bit of a hash is set in hash_bits. The number of words of hash_bits is a power
    of two."""
    word = np.int64((np.uint64(high) >> np.uint64(6)) & np.uint64(hash_bits.size - 1))
    return (hash_bits[word] >> (np.uint64(high) & np.uint64(63))) & np.uint64(1) != 0


@inlined_kernel
def _list_suspects(
    hash_bits: NDArray[np.uint64],
    high: NDArray[np.uint64],
    first: int,
    end: int,
    suspects: NDArray[np.int64],
) -> int:
    """List which of high[first:end] a table may hold; return their number. Nothing is decided here
    by a branch: a CPU would guess it wrongly for every tenth hash."""
    count = 0
    for i in range(first, end):
        suspects[count] = i
        count += _may_hold(hash_bits, high[i])
    return count


@inlined_kernel
def _set_bits(bit: NDArray[np.int64], first: int, end: int, words: NDArray[np.uint64]) -> None:
    """Set bits[first:end], which rise, a word at a time: the next bit of a word would wait until
    the last one is written."""
    word, mask = bit[first] >> 6, np.uint64(0)
    for i in range(first, end):
        if bit[i] >> 6 != word:
            words[word] |= mask
            word, mask = bit[i] >> 6, np.uint64(0)
        mask |= np.uint64(1) << np.uint64(bit[i] & 63)
    words[word] |= mask


@kernel
def mark_latest(
    table: NDArray[np.uint64],
    hash_bits: NDArray[np.uint64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    batch: NDArray[np.int64],
    bit: NDArray[np.int64],
    notes: NDArray[np.int64],
    suspects: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> None:
    """Set the bit of every record not older than its key's rank. The rank of a key is what the
    table holds for it.

    Args:
        table: uint64[slots, 3].
        hash_bits: uint64[], as of mark_absent.
        low: uint64[n], lower halves of the records' keys.
        high: uint64[n], upper halves.
        batch: int64[n], their batches.
        bit: int64[n], which bit is a record's; those of a batch begin at LOOK_UP_BIT.
        notes: int64[NOTE_COUNT, batches]. A batch that is OPENED has a rank a record, from
            OWN_RANK on; all records of another one have that rank.
        suspects: int64[LOOK_UP_BLOCK], room to work in.
        words: uint64[], zeroed.
    """
    for first in range(0, low.size, LOOK_UP_BLOCK):
        end = min(first + LOOK_UP_BLOCK, low.size)
        _set_bits(bit, first, end, words)
        count = _list_suspects(hash_bits, high, first, end, suspects)
        for place in range(count):
            if place + _AHEAD < count:
                _prefetch_slot(table, low[suspects[place + _AHEAD]])
            i = suspects[place]
            latest = np.int64(table[_find_slot(table, low[i], high[i]), 2]) - 1
            row = batch[i]
            rank = np.int64(ABSENT)
            if notes[OWN_RANK, row] != NOT_DIRTY:
                rank = notes[OWN_RANK, row]
                if notes[FLAGS, row] & OPENED:
                    rank += bit[i] - notes[LOOK_UP_BIT, row]
            if rank < latest:
                words[bit[i] >> 6] &= ~(np.uint64(1) << np.uint64(bit[i] & 63))


@kernel
def note_hashes(table: NDArray[np.uint64], hash_bits: NDArray[np.uint64]) -> None:
    """Set a bit in hash_bits for each hash of a table. Several hashes may have the same bit.

    Args:
        table: uint64[slots, 3].
        hash_bits: uint64[n], zeros, n a power of two; so small that it stays in a CPU's cache.
    """
    for i in range(table.shape[0]):
        if table[i, 2] != 0:
            word = np.int64((table[i, 1] >> np.uint64(6)) & np.uint64(hash_bits.size - 1))
            hash_bits[word] |= np.uint64(1) << (table[i, 1] & np.uint64(63))


@kernel
def mark_absent(
    table: NDArray[np.uint64],
    hash_bits: NDArray[np.uint64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    suspects: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> None:
    """Clear the bits of hashes in the table.

    Bit i of words, all ones before, is that of hash i. Most hashes are absent: hash_bits, made by
    note_hashes, tells that of nearly all of them without a look into the table; where its bits are
    all set it tells nothing.

    Args:
        suspects: int64[LOOK_UP_BLOCK], room to work in.
    """
    for first in range(0, low.size, LOOK_UP_BLOCK):
        end = min(first + LOOK_UP_BLOCK, low.size)
        count = _list_suspects(hash_bits, high, first, end, suspects)
        for place in range(count):
            if place + _AHEAD < count:
                _prefetch_slot(table, low[suspects[place + _AHEAD]])
            i = suspects[place]
            if table[_find_slot(table, low[i], high[i]), 2] != 0:
                words[i >> 6] &= ~(np.uint64(1) << np.uint64(i & 63))


@kernel
def count_before_empty(table: NDArray[np.uint64]) -> int:
    """Return the number of slots before the first empty one. Not all slots of the table are
    used."""
    count = 0
    while table[count, 2] != 0:
        count += 1
    return count


@kernel
def copy_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Put the entries of a table into another one. All slots of the source may be used. The
    target has none of these entries."""
    for i in range(source.shape[0]):
        if source[i, 2] != 0:
            slot = _find_slot(target, source[i, 0], source[i, 1])
            for word in range(SLOT_WORDS):
                target[slot, word] = source[i, word]


@kernel
def spread_entries(table: NDArray[np.uint64], first: int, end: int) -> None:
    """Move entries to their new slots after a table has grown.

    An entry stays in the part that the table had, or goes as far behind it: so both are written in
    the order in which the part is read, and no entry meets one that is still to be moved.

    Args:
        table: uint64[slots, 3]; what lies behind end is empty.
        first: The first empty slot of the part; those before it have been emptied.
        end: How many slots the part has.
    """
    for i in range(first, end):
        if table[i, 2] == 0:
            continue
        low, high, value = table[i, 0], table[i, 1], table[i, 2]
        table[i, 2] = 0
        slot = _find_slot(table, low, high)
        if slot != np.uint64(i):
            table[i, 0] = 0
            table[i, 1] = 0
            table[slot, 0] = low
            table[slot, 1] = high
        table[slot, 2] = value


@kernel
def list_entries(
    table: NDArray[np.uint64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    rank: NDArray[np.int64],
) -> int:
    """List the table's entries in slot order; return their number."""
    count = 0
    for i in range(table.shape[0]):
        if table[i, 2] != 0:
            low[count] = table[i, 0]
            high[count] = table[i, 1]
            rank[count] = np.int64(table[i, 2]) - 1
            count += 1
    return count
