"""Align a copy's records with the original's, by content and order.

What the two have in common is told by the digests of records, not by their offsets: markers of
transactions and cleaners leave gaps in one log alone. Where the next records differ, the nearest
place is looked for at which both go on alike: among the next ``WINDOW_RECORDS`` of both, then
between those of one and all that follow in the other. Only windows of both logs are in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.log_batches import MOST_OFFSET, find_start, is_within
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import BadBytesError
from storage_core.filenames import log_file
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels import record_digest
from storage_core.kernels.record_digest import NULL_DIGEST, digest_records
from storage_core.log.directory_view import DirectoryView
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows

# Read a log's records as digests, by offset, piece by piece.
#
# Control records are left out, and records below the log's start. A batch with a wrong checksum,
# or with offsets that do not fit between its neighbours', is damage: nobody knows its records.

# Rows of a piece, int64[COLUMNS, n], that identify a record. Digests are bits, not numbers.
OFFSET: Final = 0
TIMESTAMP: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADERS: Final = 4
IDENTITY: Final = 5
IS_ABORTED: Final = 6
COLUMNS: Final = 7
NULL: Final = int(NULL_DIGEST.view(np.int64))

Rows = NDArray[np.int64]
# First and last offset of each, int64[n, 2], rising.
Spans = NDArray[np.int64]

_WINDOW_BYTES: Final = 1 << 20
_MOST_DAMAGE: Final = 1000


def no_rows() -> Rows:
    """Return a piece without a record."""
    return np.empty((COLUMNS, 0), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBatch:
    """A batch that cannot be read, or bytes that are none."""

    file: str
    position: int
    first_offset: int
    last_offset: int
    reason: str


class RecordReader:
    """Reads the records of a log from an offset on.

    Args:
        has_times: Whether timestamps are part of the identity.
        skips_aborted: Whether records of aborted transactions are left out.
        spans: Only records at these offsets; None for all.

    Attributes:
        damage: The damage in the part read so far.
        sparse_end: Just past the last batch with fewer records than offsets: a cleaner was there.
        has_append_times: Whether the first batch has the time of the broker that wrote it; None
            before there is one.
    """

    def __init__(
        self,
        log: RestingLog,
        aborted: Sequence[AbortedTxn],
        *,
        has_times: bool = True,
        skips_aborted: bool = False,
        spans: Spans | None = None,
        first: int = 0,
    ) -> None:
        self.damage: list[DamagedBatch] = []
        self.read_bytes = 0
        self.sparse_end = 0
        self.has_append_times: bool | None = None
        self._log = log
        self._has_times = has_times
        self._skips_aborted = skips_aborted
        self._spans = spans
        self._first = max(first, log.log_start_offset)
        self._end = MOST_OFFSET
        if spans is not None:
            self._first = max(self._first, int(spans[0, 0])) if len(spans) else MOST_OFFSET
            self._end = int(spans[-1, 1]) + 1 if len(spans) else 0
        fields = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted]
        self._aborted = np.array(fields, np.int64).reshape(-1, 3)
        self._next = 0
        self._pieces = iter(()) if log.view is None else self._scan(log.view)

    def read(self) -> Rows | None:
        """Return the next records, at least one; None at the end."""
        return next((rows for rows in self._pieces if rows.shape[1]), None)

    def _scan(self, view: DirectoryView) -> Iterator[Rows]:
        bases = self._log.base_offsets
        for base_offset, end_offset in pairwise((*bases, MOST_OFFSET)):
            if end_offset <= self._first or base_offset >= self._end:
                continue
            name = log_file(base_offset)
            start = find_start(view, base_offset, self._first)
            with closing(view.open(name)) as reader:
                windows = scan_windows(
                    reader,
                    start=start,
                    window_bytes=_WINDOW_BYTES,
                    crc=CrcCheck.NOTE,
                    tail=Tail.ZEROS,
                    large=Large.VALID,
                )
                while self._next < self._end:
                    try:
                        window = next(windows, None)
                    except BadBytesError as error:
                        at = max(self._next, base_offset)
                        file = view.place(name)[0]
                        self._note(file, error.position, (at, at), str(error))
                        break
                    if window is None:
                        break
                    self.read_bytes += window.size_bytes
                    is_readable = self._judge(view.place(name)[0], end_offset, window)
                    yield from self._digest(window, is_readable)

    def _judge(self, file: str, end_offset: int, window: Window) -> NDArray[np.bool_]:
        """Return which batches can be read, and take note of the others."""
        batches = window.batches
        base, last = batches.base_offset, batches.last_offset
        before = np.concatenate([[self._next - 1], last[:-1]])
        after = np.concatenate([base[1:], [end_offset]])
        is_misplaced = ~((before < base) & (base <= last) & (last < after))
        # Between such offsets a neighbour's batch has no room.
        is_misplaced &= (before + 1 < after) & ~batches.is_legacy
        is_bad = is_misplaced | (batches.crc_ok == 0)
        is_bad |= not window.is_whole
        for row in np.flatnonzero(is_bad).tolist():
            first = int(base[row])
            reason = "the checksum is wrong"
            if is_misplaced[row]:
                first, reason = int(before[row]) + 1, "its offsets do not fit between others"
            if first >= self._first:
                span = first, max(first, min(int(last[row]), int(after[row]) - 1))
                self._note(file, window.position_of(row), span, reason)
        good = np.flatnonzero(~is_bad)
        if good.size:
            self._next = int(last[good].max()) + 1
            data = good[~batches.is_control[good]]
            if self.has_append_times is None and data.size:
                self.has_append_times = bool(batches.is_log_append_time[data[0]])
            is_sparse = ~is_bad & ~batches.is_legacy & (batches.record_count < last - base + 1)
            if is_sparse.any():
                self.sparse_end = max(self.sparse_end, int(last[is_sparse].max()) + 1)
        is_readable: NDArray[np.bool_] = ~is_bad
        return is_readable

    def _note(self, file: str, position: int, span: tuple[int, int], reason: str) -> None:
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(
                DamagedBatch(
                    file=file,
                    position=position,
                    first_offset=span[0],
                    last_offset=span[1],
                    reason=reason,
                )
            )

    def _digest(self, window: Window, is_readable: NDArray[np.bool_]) -> Iterator[Rows]:
        batches = window.batches
        wanted = is_readable & ~batches.is_control & (batches.last_offset >= self._first)
        if self._spans is not None:
            at = np.searchsorted(self._spans[:, 1], batches.base_offset)
            starts = np.append(self._spans[:, 0], MOST_OFFSET)[at]
            wanted &= (starts <= batches.last_offset) | batches.is_message_set
        if not wanted.any():
            return
        is_aborted = self._find_aborted(batches)
        for records in decode_records(window, wanted, DEFAULT_LIMITS):
            timestamp = records.timestamp
            digests = np.empty((record_digest.DIGEST_COUNT, len(records)), np.uint64)
            payload = records.payload
            digest_records(
                window.data,
                payload.arena,
                payload.in_arena,
                np.ascontiguousarray(records.table),
                np.ascontiguousarray(timestamp) if self._has_times else np.zeros_like(timestamp),
                digests,
            )
            rows = np.empty((COLUMNS, len(records)), np.int64)
            rows[OFFSET], rows[TIMESTAMP] = records.offset, timestamp
            rows[KEY : IDENTITY + 1] = digests.view(np.int64)
            rows[IS_ABORTED] = is_aborted[records.batch]
            is_wanted = rows[OFFSET] >= self._first
            if self._skips_aborted:
                is_wanted &= rows[IS_ABORTED] == 0
            if self._spans is not None:
                is_wanted &= is_within(rows[OFFSET], self._spans)
            yield rows if is_wanted.all() else rows[:, is_wanted]

    def _find_aborted(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return which batches are of an aborted transaction."""
        is_aborted: NDArray[np.bool_] = np.zeros(len(batches), np.bool_)
        first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
        near = (self._aborted[:, 1] <= last) & (self._aborted[:, 2] >= first)
        for producer_id, begin, end in self._aborted[near].tolist():
            is_aborted |= (
                batches.is_transactional
                & (batches.producer_id == producer_id)
                & (batches.base_offset >= begin)
                & (batches.last_offset <= end)
            )
        return is_aborted


# Records of each log that are held at once, 56 bytes each.
WINDOW_RECORDS: Final = 1 << 18
# Records searched first: most logs soon agree again.
_FIRST_WINDOWS: Final = (64, 4096)
# Gaps beyond these are only counted.
_MOST_GAPS: Final = 1 << 16


# A record that does not lie where a map says.
UNMET: Final = np.dtype(
    [
        ("offset", np.int64),  # in the original
        ("copy_offset", np.int64),
        ("mapped_offset", np.int64),  # in the copy, as the map has it
        ("time_ms", np.int64),
        ("identity", np.int64),
    ]
)


@dataclass(slots=True)
class Passed:
    """Records of one log that follow each other."""

    first: int = -1
    last: int = -1  # offset of the last one, -1 without one
    records: int = 0
    time_ms: int = -1

    def add(self, rows: Rows) -> None:
        """Take note of records that follow."""
        if not rows.shape[1]:
            return
        if self.last < 0:
            self.first, self.time_ms = int(rows[OFFSET, 0]), int(rows[TIMESTAMP, 0])
        self.last = int(rows[OFFSET, -1])
        self.records += rows.shape[1]

    def or_before(self, offset: int) -> "Passed":
        """Return these records; where there are none, the place before an offset."""
        return self if self.last >= 0 else Passed(offset, offset - 1)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Records of both logs between two places at which they are alike.

    Where a log has none there, ``first`` is the offset of its next record, and ``last`` below it.
    """

    original: Passed
    copy: Passed
    is_first: bool  # whether nothing before was alike
    is_last: bool  # whether nothing behind is alike


@dataclass(slots=True)
class WrongOffsets:
    """Records at different offsets in original and copy, despite equal numbering."""

    records: int = 0
    first: int = 0
    last: int = 0
    copy_first: int = 0
    copy_last: int = 0
    time_ms: int = 0

    def add(self, original: Rows, offsets: NDArray[np.int64]) -> None:
        """Take note of records."""
        if not self.records:
            self.first, self.copy_first = int(original[OFFSET, 0]), int(offsets[0])
            self.time_ms = int(original[TIMESTAMP, 0])
        self.records += len(offsets)
        self.last, self.copy_last = int(original[OFFSET, -1]), int(offsets[-1])


@dataclass(slots=True)
class Alignment:
    """What two logs have in common."""

    gaps: list[Mismatch] = field(default_factory=list)  # where they differ, in order
    untold: int = 0  # how many places more
    records: int = 0
    # Records at other offsets than in the original, where there is no map.
    wrong: WrongOffsets = field(default_factory=WrongOffsets)
    unmet: list[NDArray[np.void]] = field(default_factory=list)  # of UNMET each


class _AlignedLog:
    """One log and its records read but not yet aligned."""

    def __init__(self, open_at: Callable[[int], RecordReader]) -> None:
        self._open_at = open_at
        self.readers = [open_at(0)]
        self.rows = no_rows()
        self.is_at_end = False
        self.next_offset = 0  # behind the last record in use

    def read(self) -> Rows | None:
        """Return the next piece without adding it to the rows. None at the end of the log."""
        rows = self.readers[-1].read()
        self.is_at_end = rows is None
        return rows

    def fill(self, count: int) -> None:
        """Read until there are so many records, or the log ends."""
        parts, total = [self.rows], self.rows.shape[1]
        while total < count and not self.is_at_end:
            rows = self.read()
            if rows is not None:
                parts.append(rows)
                total += rows.shape[1]
        if len(parts) > 1:
            self.rows = np.concatenate(parts, axis=1)

    def go_back_to(self, offset: int) -> None:
        """Read on from an offset that was passed already."""
        self.readers.append(self._open_at(offset))
        self.is_at_end = False


@dataclass(frozen=True, slots=True)
class Names:
    """Identities of some records, rising, and which record has each first."""

    values: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, identities: NDArray[np.int64]) -> "Names":
        """Return those of some records."""
        return cls(*np.unique(identities, return_index=True))

    def find(self, identities: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return indexes of the identities among these, and their places."""
        if not self.values.size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.values, identities), self.values.size - 1)
        matches = np.flatnonzero(self.values[at] == identities)
        return matches, self.place[at[matches]]


class Aligner:
    """Aligns two logs.

    Args:
        open_original: Returns a reader of the original from an offset on.
        syncs: int64[n, 2], offsets in the original, rising, and in the copy, that a map says; None
            where all offsets should be equal.
    """

    def __init__(
        self,
        open_original: Callable[[int], RecordReader],
        open_copy: Callable[[int], RecordReader],
        syncs: NDArray[np.int64] | None,
    ) -> None:
        self.original, self.copy = _AlignedLog(open_original), _AlignedLog(open_copy)
        self._syncs = syncs
        self._answer = Alignment()

    def run(self) -> Alignment:
        """Read both logs, and return what they have in common."""
        one, two = self.original, self.copy
        while True:
            one.fill(1)
            two.fill(1)
            count = self._count_equal()
            if count:
                self._take(count)
                continue
            if not one.rows.shape[1] and not two.rows.shape[1]:
                return self._answer
            self._pass_gap()

    def _count_equal(self) -> int:
        """Return how many of the next records are equal."""
        one, two = self.original.rows[IDENTITY], self.copy.rows[IDENTITY]
        most = min(one.size, two.size)
        done = 0
        length = _FIRST_WINDOWS[0]
        while done < most:
            end = min(done + length, most)
            other = np.flatnonzero(one[done:end] != two[done:end])
            if other.size:
                return done + int(other[0])
            done, length = end, 4 * length
        return done

    def _take(self, count: int) -> None:
        """Use records that are equal."""
        original, offsets = self.original.rows[:, :count], self.copy.rows[OFFSET, :count]
        self._answer.records += count
        if self._syncs is None:
            is_wrong = original[OFFSET] != offsets
            if is_wrong.any():
                self._answer.wrong.add(original[:, is_wrong], offsets[is_wrong])
        elif len(self._syncs):
            first, last = np.searchsorted(
                self._syncs[:, 0], [original[OFFSET, 0], original[OFFSET, -1] + 1]
            )
            syncs = self._syncs[first:last]
            at = np.minimum(np.searchsorted(original[OFFSET], syncs[:, 0]), count - 1)
            is_wrong = (original[OFFSET, at] == syncs[:, 0]) & (offsets[at] != syncs[:, 1])
            if is_wrong.any():
                at = at[is_wrong]
                unmet = np.empty(len(at), UNMET)
                unmet["offset"], unmet["copy_offset"] = original[OFFSET, at], offsets[at]
                unmet["mapped_offset"] = syncs[is_wrong, 1]
                unmet["time_ms"], unmet["identity"] = original[[TIMESTAMP, IDENTITY]][:, at]
                self._answer.unmet.append(unmet)
        for side in (self.original, self.copy):
            side.next_offset = int(side.rows[OFFSET, count - 1]) + 1
            side.rows = side.rows[:, count:]

    def _pass_gap(self) -> None:
        """Go on to the next place at which both are alike."""
        passed = Passed(), Passed()
        is_first = not self._answer.records
        if not self._meet_near(passed):
            self._meet_far(passed)
        one, two = self.original, self.copy
        one.fill(1)
        two.fill(1)
        for side, each in zip((one, two), passed, strict=True):
            side.next_offset = max(side.next_offset, each.last + 1)
        spans = [
            each.or_before(int(side.rows[OFFSET, 0]) if side.rows.shape[1] else side.next_offset)
            for side, each in zip((one, two), passed, strict=True)
        ]
        is_last = not one.rows.shape[1] and not two.rows.shape[1]
        if len(self._answer.gaps) < _MOST_GAPS:
            self._answer.gaps.append(Mismatch(spans[0], spans[1], is_first, is_last))
        else:
            self._answer.untold += 1

    def _meet_near(self, passed: tuple[Passed, Passed]) -> bool:
        """Look among the next records of both; return whether they meet."""
        sides = self.original, self.copy
        for size in (*_FIRST_WINDOWS, WINDOW_RECORDS):
            for side in sides:
                side.fill(size)
            # The last search takes all records read, which are in memory anyway.
            end = size if size < WINDOW_RECORDS else None
            one, two = (side.rows[IDENTITY, :end] for side in sides)
            row, place = Names.of(two).find(one)
            if row.size:
                best = int(np.argmin(row + place))
                for side, each, count in zip(
                    sides, passed, (int(row[best]), int(place[best])), strict=True
                ):
                    each.add(side.rows[:, :count])
                    side.rows = side.rows[:, count:]
                return True
            if one.size < size and two.size < size:
                break
        return False

    def _meet_far(self, passed: tuple[Passed, Passed]) -> None:
        """Search all later records of each log for the other's next."""
        sides = self.original, self.copy
        held = [side.rows for side in sides]
        names = [Names.of(rows[IDENTITY]) for rows in held]
        # Records read beyond those in memory.
        beyond: tuple[Passed, Passed] = (Passed(), Passed())
        while not all(side.is_at_end or not held[1 - n].size for n, side in enumerate(sides)):
            for number, side in enumerate(sides):
                other = 1 - number
                rows = None if side.is_at_end or not held[other].size else side.read()
                if rows is None:
                    continue
                row, place = names[other].find(rows[IDENTITY])
                if not row.size:
                    beyond[number].add(rows)
                    continue
                count, start = int(row[0]), int(place[0])
                _join(passed[number], held[number], beyond[number], rows[:, :count])
                side.rows = rows[:, count:]
                passed[other].add(held[other][:, :start])
                sides[other].rows = held[other][:, start:]
                if beyond[other].last >= 0:
                    sides[other].go_back_to(int(held[other][OFFSET, -1]) + 1)
                return
        for number, side in enumerate(sides):
            _join(passed[number], held[number], beyond[number], no_rows())
            side.rows = no_rows()
            while (rows := side.read()) is not None:
                passed[number].add(rows)


def _join(passed: Passed, held: Rows, beyond: Passed, rest: Rows) -> None:
    """Count held records, those beyond them, and a rest as passed."""
    passed.add(held)
    if beyond.last >= 0:
        if passed.last < 0:
            passed.first, passed.time_ms = beyond.first, beyond.time_ms
        passed.last = beyond.last
        passed.records += beyond.records
    passed.add(rest)
