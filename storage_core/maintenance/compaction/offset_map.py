"""The offset map of a round, and its rest for pass two."""

import mmap
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import OffsetMapHash
from storage_core.formats.batch_v2 import HEADER_BYTES
from storage_core.kernels import key_scan
from storage_core.kernels.batch_scan import NO_ROOM
from storage_core.kernels.offset_table import (
    LOOK_UP_BLOCK,
    SLOT_WORDS,
    copy_entries,
    count_before_empty,
    insert_block,
    list_entries,
    look_up_block,
    mark_absent,
    note_hashes,
    spread_entries,
)
from storage_core.kernels.record_scan import DONE
from storage_core.kernels.survivors import count_ranges
from storage_core.records.payload import Limits, Payload

# How many keys are hashed without a table of batches, before there is more room.
_USUAL_RECORD_BYTES: Final = 128
_FIRST_SLOTS: Final = 1 << 12
# Linear probing stays short up to here.
_MAX_FILL: Final = 0.625
_GROWTH: Final = 2
_NO_LIMIT = 2**62
# Of what tells absent hashes: bits a key, and how many words of 64 at most, 1 MiB. With less than
# so many bits a key it does not tell enough.
_HASH_BITS: Final = 8
_LEAST_HASH_BITS: Final = 4
_MOST_HASH_BIT_WORDS: Final = 1 << 17
_ALL_HASH_BITS: Final = np.full(1, 2**64 - 1, np.uint64)
_SLOT_BYTES: Final = SLOT_WORDS * np.dtype(np.uint64).itemsize


class _TableMemory:
    """Memory of this process: a table that grows never lies there twice.

    Its pages are large ones where the system has any: keys are all over a table, and with pages of
    4 KiB nearly each of them misses the translation of its address, too.
    """

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def extend(self, slots: int) -> NDArray[np.uint64]:
        """Extend the table to so many slots, with empty ones behind; its memory may move."""
        size_bytes = slots * _SLOT_BYTES
        if self._pages is None:
            self._pages = _large_pages(size_bytes)
        else:
            try:
                self._pages.resize(size_bytes)
            except SystemError:  # not Linux
                smaller, self._pages = self._pages, _large_pages(size_bytes)
                self._pages.write(smaller)
        return np.frombuffer(self._pages, np.uint64).reshape(slots, SLOT_WORDS)


def _large_pages(size_bytes: int) -> mmap.mmap:
    """Return zeroed memory."""
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them says so
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class OffsetMap:
    """Key hash to rank of the newest record, growing as needed.

    Args:
        max_keys: How many keys it may hold, None for no limit.
    """

    def __init__(self, max_keys: int | None = None) -> None:
        self._memory = _TableMemory()
        self.table = self._memory.extend(_FIRST_SLOTS)
        self._max_keys = _NO_LIMIT if max_keys is None else max_keys
        self._used = 0
        self._hash_bits: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return self._used

    @classmethod
    def from_entries(
        cls, low: NDArray[np.uint64], high: NDArray[np.uint64], rank: NDArray[np.int64]
    ) -> "OffsetMap":
        """Return a map of these entries."""
        whole = cls()
        whole.put(low, high, rank, len(rank))
        return whole

    def put(
        self,
        low: NDArray[np.uint64],
        high: NDArray[np.uint64],
        rank: NDArray[np.int64],
        count: int,
    ) -> int:
        """Put the first count hashes, in order.

        Returns:
            How many were put: fewer than count once the map is full.
        """
        done = 0
        while True:
            max_used = int(self.table.shape[0] * _MAX_FILL)
            done, self._used = insert_block(
                self.table, low, high, rank, done, count, self._used, max_used, self._max_keys
            )
            if done == count or self._used >= self._max_keys:
                return done
            self._grow()

    def _grow(self) -> None:
        slots = self.table.shape[0]
        del self.table
        self.table = self._memory.extend(slots * _GROWTH)
        # Those that had no room at the end of the table went on at its begin.
        begin = self.table[: count_before_empty(self.table)]
        moved = begin.copy()
        begin[:] = 0
        spread_entries(self.table, len(moved), slots)
        copy_entries(moved, self.table)

    def look_up(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64], count: int
    ) -> NDArray[np.int64]:
        """Return the ranks of the first count hashes, or ABSENT. ABSENT stands for a hash that
        is not in the map."""
        rank = np.empty(count, np.int64)
        look_up_block(self.table, low, high, count, rank)
        return rank

    def hash_bits(self) -> NDArray[np.uint64]:
        """Return bits of all keys, in the kernels' form. The map is complete by now."""
        if self._hash_bits is None:
            hash_bits = _ALL_HASH_BITS
            if self._used * _LEAST_HASH_BITS <= 64 * _MOST_HASH_BIT_WORDS:
                words = min(max(1, self._used * _HASH_BITS // 64), _MOST_HASH_BIT_WORDS)
                hash_bits = np.zeros(1 << (words - 1).bit_length(), np.uint64)
                note_hashes(self.table, hash_bits)
            self._hash_bits = hash_bits  # whole: other threads ask, too
        return self._hash_bits

    def mark_absent(
        self,
        low: NDArray[np.uint64],
        high: NDArray[np.uint64],
        record_count: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Mark the hashes absent from the map. The map is complete by now.

        Args:
            low: uint64[n], lower halves.
            high: uint64[n], upper halves.
            record_count: int64[batches], of how many records each batch has them, n in all.

        Returns:
            (words, absent): a bit for each hash, set where it is absent, and int64[batches], of how
            many it is.
        """
        words_of_all = np.full(max(1, -(-low.size // 64)), 2**64 - 1, np.uint64)
        suspects = np.empty(LOOK_UP_BLOCK, np.int64)
        mark_absent(self.table, self.hash_bits(), low, high, suspects, words_of_all)
        absent = np.empty(record_count.size, np.int64)
        count_ranges(words_of_all, record_count, absent)
        return words_of_all, absent

    def entries(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
        """Return (low, high, rank) of every key."""
        low = np.empty(self._used, np.uint64)
        high = np.empty(self._used, np.uint64)
        rank = np.empty(self._used, np.int64)
        list_entries(self.table, low, high, rank)
        return low, high, rank


class KeyBlock:
    """The keyed records of some batches, hashed. Its arrays are used again for the next batches.

    Attributes:
        batch: int64[>= count], rows of their batches, counted from the payload's first row.
        low: uint64[>= count], lower halves of the hashes.
        high: uint64[>= count], upper halves.
        rank: int64[>= count], ranks of the records among those of the wanted rows.
        flags: uint8[rows], what was seen of each batch (record_scan.INDEXED and so on).
    """

    def __init__(self, kind: OffsetMapHash, hash_key: bytes) -> None:
        self._hasher = np.zeros(key_scan.HASHER_WORDS, np.uint32)
        self._hasher[key_scan.HASH_KIND] = (
            key_scan.MD5 if kind is OffsetMapHash.MD5 else key_scan.SIPHASH
        )
        self._hasher[key_scan.HASH_KEY : key_scan.SCRATCH] = np.frombuffer(hash_key[:16], "<u4")
        self.count = 0
        self.flags = np.empty(0, np.uint8)
        self._reserve(1)

    def _reserve(self, capacity: int) -> None:
        self._columns = np.empty((key_scan.KEY_COLUMNS, capacity), np.uint64)
        self.low, self.high = self._columns[key_scan.LOW], self._columns[key_scan.HIGH]
        numbers = self._columns.view(np.int64)
        self.rank, self.batch = numbers[key_scan.RANK], numbers[key_scan.BATCH]

    def read(
        self,
        payload: Payload,
        wanted: NDArray[np.bool_],
        limits: Limits,
        *,
        first_offset: int,
        checks_crc: bool = False,
    ) -> None:
        """Hash the keyed records of a payload's wanted rows. Only records at or above first_offset
        count.

        Args:
            wanted: bool[batches], of the window.
            limits: What a record may have.
            checks_crc: Whether checksums are looked at first: of batches of format v2, none of them
                compressed.
        """
        batches = payload.batches.rows(payload.first_row, payload.end_row)
        notes = payload.notes.rows(payload.first_row, payload.end_row)
        wanted_here = wanted[payload.first_row : payload.end_row]
        capacity = int(batches.record_count.sum(where=wanted_here))
        if capacity > len(self.rank):
            self._reserve(capacity + capacity // 2)
        self.flags = wanted_here.astype(np.uint8)
        self.count, status, row, position = key_scan.hash_keys(
            payload.window.data,
            payload.arena,
            batches.columns,
            notes.columns,
            self.flags,
            checks_crc,
            first_offset,
            limits.max_record_bytes,
            self._hasher,
            self._columns,
        )
        if status != DONE:
            raise payload.error(status, payload.first_row + row, position)

    def find(
        self, buffer: NDArray[np.uint8], *, first_offset: int, checks_crc: bool
    ) -> tuple[int, int]:
        """Hash the keyed records of all batches at the begin of some bytes, whose headers nobody
        has read, as `read` does.

        Returns:
            (records, end): how many the batches have, and where they end; 0 at a batch that has to
            be looked at by itself.
        """
        flags = np.empty(buffer.size // HEADER_BYTES + 1, np.uint8)
        while True:
            batches, self.count, records, end, status = key_scan.hash_plain_batches(
                buffer, checks_crc, first_offset, self._hasher, flags, self._columns
            )
            if status != NO_ROOM:
                break
            self._reserve(max(2 * len(self.rank), buffer.size // _USUAL_RECORD_BYTES))
        self.flags = flags[:batches].copy()
        return records, end if status == DONE else 0
