"""Read the ages of segments of many plain partitions together, and what their records say of them.

The rules are those of ``check_segment_ages``. What is not sure by a few bytes, whatever the reason,
is left to who looks at a partition alone.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
    NO_TIMESTAMP,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.kernels import retention_walk as walk
from storage_core.kernels.batch_scan import DONE, check_crcs
from storage_core.kernels.file_starts import (
    ENTRY_BYTES,
    FOLDER,
    KIND,
    MOST_BYTES,
    OFFSET,
    PART_COLUMNS,
    POSITION,
)
from storage_core.maintenance.listings import Listings, Mask, Numbers
from storage_core.maintenance.retention.plan import RetentionFacts
from storage_core.records.batch_table import BatchTable
from storage_core.records.file_starts import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    Folders,
    FoundBatches,
    FoundParts,
)

# Of a time index with a newest record that is not among the last ones, the batch of that is found
# by one of so many entries of the offset index, and all behind it is read.
_NEWEST_ENTRIES: Final = 64
_MOST_TAIL_BYTES: Final = 1 << 20
# What is read of tails at the same time, at most.
_BYTES_AT_ONCE: Final = 32 << 20


class SegmentAges:
    """The ages of segments of plain partitions.

    Args:
        directories: The partitions of the listings, in their order.
    """

    def __init__(self, directories: Sequence[str], listings: Listings) -> None:
        self._listings = listings
        self._folders = Folders(directories)
        self._owners = np.repeat(np.arange(len(listings)), listings.counts)

    def complete(
        self, facts: RetentionFacts, answers: Numbers, asked: Mask, *, now_ms: int
    ) -> Numbers:
        """Return the answers of the walk, once it asks no age of some partitions that can be read.
        Ages are read oldest first, and twice as many at each turn.

        Args:
            answers: Of ``facts.decide``.
            asked: Of which partitions.
        """
        is_odd, most = np.zeros(len(self._owners), np.bool_), 1
        while True:
            (asking,) = np.nonzero(asked & (answers[walk.MISSING] == walk.TIMESTAMP))
            first = self._listings.starts[asking] + answers[walk.MISSING_OF, asking]
            ends = self._listings.starts[asking] + self._listings.counts[asking]
            rows = (first[:, None] + np.arange(most)).ravel()
            rows = rows[(rows < np.repeat(ends, most)) & ~np.repeat(is_odd[first], most)]
            if not len(rows):
                return answers
            ages, is_read = self._read_ages(rows)
            is_odd[rows] = ~is_read
            facts.segments[walk.LARGEST_TIMESTAMP, rows[is_read]] = ages[is_read]
            answers, most = facts.decide(now_ms=now_ms), 2 * most

    def agree(self, removed: Numbers, asked: Mask, limits_ms: Numbers) -> Mask:
        """Return which of some partitions lose by age what their records, too, say is old.

        Args:
            removed: As ``SweptLogs``.
            limits_ms: Of each the time from which on a record is too young, epoch milliseconds.
        """
        counts = np.where(asked, removed[walk.BY_TIME], 0)
        owners = np.repeat(np.arange(len(asked)), counts)
        first = self._listings.starts + removed[: walk.BY_TIME].sum(axis=0)
        rows = np.arange(len(owners)) + (first - np.cumsum(counts) + counts)[owners]
        has_bytes = self._listings.sizes[rows] > 0
        owners, rows = owners[has_bytes], rows[has_bytes]
        agree = np.ones(len(asked), np.bool_)
        most = np.minimum(self._listings.sizes[rows], _MOST_TAIL_BYTES)
        bounds = np.flatnonzero(np.diff(np.cumsum(most) // _BYTES_AT_ONCE)) + 1
        for some in np.split(np.arange(len(rows)), bounds) if len(rows) else ():
            agree[owners[some][~self._are_old(rows[some], limits_ms[owners[some]])]] = False
        return agree

    def newest(self, asked: Mask) -> tuple[Numbers, Mask, Mask]:
        """Return the ages of the newest segments with bytes of some partitions, which of them have
        one, and of which it could be read, or is not asked."""
        sizes = self._listings.sizes
        last = np.maximum.reduceat(
            np.where(sizes > 0, np.arange(len(sizes)), -1), self._listings.starts
        )
        has_newest = asked & (last >= 0)
        newest, is_read = np.zeros(len(asked), np.int64), np.ones(len(asked), np.bool_)
        newest[has_newest], is_read[has_newest] = self._read_ages(last[has_newest])
        return newest, has_newest, is_read

    def _read_ages(self, rows: Numbers) -> tuple[Numbers, Mask]:
        """Return the ages of segments as Kafka knows them, and which of them could be read.

        Args:
            rows: Of the segments in the listings.
        """
        found = self._read(rows, TIME_INDEX, TIME_INDEX_ENTRY.itemsize, entries=1)
        timestamps, _ = _last_entries(found, self._listings.base_offsets[rows])
        ages = np.where(timestamps > NO_TIMESTAMP, timestamps, self._listings.times_ms[rows])
        return ages, found.lengths >= 0

    def _are_old(self, rows: Numbers, limits_ms: Numbers) -> Mask:
        """Return which segments are surely older than a limit, by their records too."""
        bases, sizes = self._listings.base_offsets[rows], self._listings.sizes[rows]
        times = self._read(rows, TIME_INDEX, TIME_INDEX_ENTRY.itemsize, entries=1)
        newest, offsets = _last_entries(times, bases)
        heads = self._read(rows, LOG, HEADER_BYTES)
        is_true = (times.lengths >= 0) & (heads.lengths == HEADER_BYTES)
        positions, is_found = self._find_positions(rows, offsets)
        is_true &= is_found
        tails = self._read(rows, LOG, np.minimum(sizes, _MOST_TAIL_BYTES), positions=positions)
        is_true &= (tails.sizes == sizes) & (positions + tails.lengths == sizes)
        found = FoundBatches(tails, np.arange(len(rows)))
        table, owners = found.table, found.owners
        is_true &= found.statuses == DONE
        is_true[owners[(table.magic != MAGIC_V2) | (table.size < HEADER_BYTES)]] = False
        (firsts,) = np.nonzero(found.is_first)
        of_first = owners[firsts]
        checked = np.ascontiguousarray(table.columns[:, firsts])
        check_crcs(tails.room, checked, len(firsts))
        is_indexed = positions[of_first] > 0
        is_wrong = BatchTable(checked).crc_ok != 1
        is_wrong |= (table.base_offset[firsts] < bases[of_first]) | (
            table.base_offset[firsts] > offsets[of_first]
        )
        is_true[of_first[is_indexed & is_wrong]] = False
        # The first batch that reaches the offset is the one that the index speaks of.
        reaching = np.flatnonzero(table.last_offset >= offsets[owners])
        reached, at = np.unique(owners[reaching], return_index=True)
        named = np.full(len(rows), NO_TIMESTAMP)
        named[reached] = table.max_timestamp[reaching[at]]
        is_true &= (newest <= NO_TIMESTAMP) | (newest == named)
        seen = np.full(len(rows), NO_TIMESTAMP)
        np.maximum.at(seen, owners, table.max_timestamp)
        whole = np.flatnonzero(is_true)
        headers = heads.bytes_of(whole).view(BATCH_HEADER)
        lengths = headers["batch_length"].astype(np.int64) + LENGTH_OVERHEAD
        is_batch = (headers["magic"] == MAGIC_V2) & (lengths >= HEADER_BYTES)
        is_true[whole] = is_batch & (lengths <= sizes[whole])
        seen[whole] = np.maximum(seen[whole], headers["max_timestamp"].astype(np.int64))
        are_old: Mask = is_true & (seen < limits_ms)
        return are_old

    def _find_positions(self, rows: Numbers, offsets: Numbers) -> tuple[Numbers, Mask]:
        """Return where the last batch that an index has begins which does not lie behind an offset,
        0 without one, and of which segments that is sure."""
        found = self._read(rows, OFFSET_INDEX, OFFSET_INDEX_ENTRY.itemsize, entries=_NEWEST_ENTRIES)
        counts = np.maximum(found.lengths, 0) // OFFSET_INDEX_ENTRY.itemsize
        entries = found.entries(np.arange(len(rows)), OFFSET_INDEX_ENTRY)
        owners = np.repeat(np.arange(len(rows)), counts)
        relative = entries["relative_offset"].astype(np.int64)
        at = entries["position"].astype(np.int64)
        is_odd = (relative < 0) | (at <= 0)
        is_odd[1:] |= (owners[1:] == owners[:-1]) & (
            (relative[1:] <= relative[:-1]) | (at[1:] <= at[:-1])
        )
        is_found = found.lengths >= 0
        is_found[owners[is_odd]] = False
        is_below = relative + self._listings.base_offsets[rows][owners] <= offsets[owners]
        positions = np.zeros(len(rows), np.int64)
        np.maximum.at(positions, owners[is_below], at[is_below])
        is_whole = counts == found.sizes // OFFSET_INDEX_ENTRY.itemsize
        return positions, is_found & (is_whole | (positions > 0))

    def _read(
        self,
        rows: Numbers,
        kind: int,
        most_bytes: int | Numbers,
        *,
        entries: int = 0,
        positions: Numbers | int = 0,
    ) -> FoundParts:
        """Read a file of each segment: its first bytes, those from a position on, or its last
        entries of so many bytes."""
        parts = np.zeros((PART_COLUMNS, len(rows)), np.int64)
        parts[FOLDER], parts[KIND] = self._owners[rows], kind
        parts[OFFSET] = self._listings.base_offsets[rows]
        parts[MOST_BYTES] = most_bytes * max(entries, 1)
        parts[ENTRY_BYTES] = most_bytes if entries else 0
        parts[POSITION] = positions
        return self._folders.read(parts, most_of_folder=_BYTES_AT_ONCE + _MOST_TAIL_BYTES)


def _last_entries(found: FoundParts, bases: Numbers) -> tuple[Numbers, Numbers]:
    """Return timestamps and offsets of the last entries of time indexes; NO_TIMESTAMP and the base
    offset without one."""
    timestamps, offsets = np.full(len(bases), NO_TIMESTAMP), bases.copy()
    (rows,) = np.nonzero(found.lengths > 0)
    entries = found.entries(rows, TIME_INDEX_ENTRY)
    timestamps[rows] = np.maximum(entries["timestamp"].astype(np.int64), NO_TIMESTAMP)
    offsets[rows] += entries["relative_offset"]
    return timestamps, offsets
