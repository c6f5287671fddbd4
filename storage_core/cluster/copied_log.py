"""Find the differences between a log and its copy in another cluster.

Epochs, producers, borders of batches and codecs are those of one cluster. Compared are records:
key, value, headers and timestamp. Both logs are aligned first. What only one of them has is then
looked for in all of the other: a record that was copied twice, or later, is called that however far
away the other one is.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.alignment import (
    IDENTITY,
    IS_ABORTED,
    KEY,
    NULL,
    OFFSET,
    TIMESTAMP,
    UNMET,
    VALUE,
    WINDOW_RECORDS,
    Aligner,
    Alignment,
    Mismatch,
    Passed,
    RecordReader,
    Rows,
    Spans,
    WrongOffsets,
    no_rows,
)
from storage_core.cluster.copy_report import (
    CopyDifference,
    ListedDifferences,
    Unlike,
    runs,
)
from storage_core.cluster.differences import DifferenceKind, Keys, cleaned_end, find_unexplained
from storage_core.cluster.log_batches import MOST_OFFSET, is_within
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import BadBytesError
from storage_core.filenames import log_file
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.log.committed_view import find_aborted, scan_batch_tables
from storage_core.records.batch_table import BatchTable

# Spreads timestamps over all bits.
_ODD: Final = 0x1E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDifferences:
    """The answer about one partition."""

    differences: tuple[CopyDifference, ...]  # in the order of the original's offsets
    untold: int  # ranges beyond those
    records: int
    read_bytes: int
    has_times: bool  # whether timestamps were compared: not where the copy's broker sets its own


def compare_copy(
    original: RestingLog,
    copy: RestingLog,
    syncs: NDArray[np.int64] | None,
    *,
    is_compacted: tuple[bool, bool] = (False, False),
) -> CopyDifferences:
    """Compare a log with its copy.

    Args:
        syncs: int64[n, 2], offsets in the original, rising, and in the copy, that a map says; None
            where all offsets should be equal.
        is_compacted: Whether the cleanup policy of each removes records by key.
    """
    first = RecordReader(copy, ())
    first.read()
    has_times = not first.has_append_times
    one = _ComparedLog(original, has_times=has_times)
    two = _ComparedLog(copy, has_times=has_times)
    alignment = Aligner(one.open, two.open, syncs).run()
    report = ListedDifferences(
        logs=(original, copy), has_times=has_times, is_mapped=syncs is not None
    )
    for number, log in enumerate((one, two)):
        log.find_cleaned_end(is_compacted=is_compacted[number])
        report.add_damage(number, log.readers)
    _CopyComparison(one, two, report).explain(alignment)
    return CopyDifferences(
        differences=report.sorted(),
        untold=report.untold + alignment.untold,
        records=alignment.records,
        read_bytes=one.read_bytes + two.read_bytes,
        has_times=has_times,
    )


def _read_aborted(log: RestingLog) -> list[AbortedTxn]:
    """Return the aborted transactions of a log's readable batches."""

    def tables() -> Iterator[BatchTable]:
        for base_offset in log.base_offsets if log.view is not None else ():
            assert log.view is not None  # noqa: S101  # nothing is yielded without it
            try:
                yield from scan_batch_tables(
                    log.view.store, log.view.place(log_file(base_offset))[0]
                )
            except BadBytesError:
                continue  # readers of records report it

    aborted, _ = find_aborted(tables(), end_offset=MOST_OFFSET)
    return aborted


# Records that a cleaner may have removed from the other log.
_UNSURE: Final = np.dtype(
    [
        ("first", np.int64),  # offset of the first one
        ("last", np.int64),
        ("near", np.int64),  # where they would be in the other log
    ]
)
# Of `Keys`.
_KEYED_RECORD: Final = np.dtype(
    [("offset", np.int64), ("time_ms", np.int64), ("is_tombstone", np.bool_)]
)


class _ComparedLog:
    """One of the two logs, which is read more than once.

    Attributes:
        cleaned_end: A cleaner was below this offset.
        unsure: Parts of _UNSURE, which are not judged yet.
    """

    def __init__(self, log: RestingLog, *, has_times: bool) -> None:
        self.log = log
        self.aborted = _read_aborted(log)
        self.readers: list[RecordReader] = []
        self.cleaned_end = 0
        self.unsure = [np.empty(0, _UNSURE)]
        self._has_times = has_times
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """Bytes of batches that were looked at."""
        return self._read_bytes + sum(reader.read_bytes for reader in self.readers)

    def open(self, first: int) -> RecordReader:
        """Return a reader for the alignment, from an offset on."""
        self.readers.append(
            RecordReader(
                self.log, self.aborted, has_times=self._has_times, skips_aborted=True, first=first
            )
        )
        return self.readers[-1]

    def find_cleaned_end(self, *, is_compacted: bool) -> None:
        """Find out where a cleaner was, when all was read once."""
        sparse_end = max(reader.sparse_end for reader in self.readers)
        self.cleaned_end = cleaned_end(self.log, sparse_end, is_compacted=is_compacted)

    def read(
        self,
        spans: Sequence[tuple[int, int]] | Spans | None = None,
        *,
        first: int = 0,
        skips_aborted: bool = True,
    ) -> Iterator[Rows]:
        """Yield records, at some offsets or from one on."""
        reader = RecordReader(
            self.log,
            self.aborted,
            has_times=self._has_times,
            skips_aborted=skips_aborted,
            spans=None if spans is None else np.array(spans, np.int64).reshape(-1, 2),
            first=first,
        )
        try:
            while (rows := reader.read()) is not None:
                yield rows
        finally:
            self._read_bytes += reader.read_bytes

    def cut(self, span: Passed, floor: int) -> Passed:
        """Return a span without what lies below an offset."""
        if floor <= span.first:
            return span
        rest = Passed()
        for rows in self.read([(floor, span.last)]) if floor <= span.last else ():
            rest.add(rows)
        return replace(rest, first=min(floor, span.last + 1), last=span.last)

    def take(self, spans: Sequence[tuple[int, int]], moved: NDArray[np.int64]) -> Unlike:
        """Return the records at some offsets, except the moved ones."""
        parts, total, rest = [no_rows()], 0, Passed()
        for piece in self.read(spans) if spans else ():
            near = moved[slice(*np.searchsorted(moved, [piece[OFFSET, 0], piece[OFFSET, -1] + 1]))]
            rows = piece[:, ~np.isin(piece[OFFSET], near)]
            room = WINDOW_RECORDS - total
            parts.append(rows[:, :room])
            total += parts[-1].shape[1]
            rest.add(rows[:, room:])
        return Unlike(np.concatenate(parts, axis=1), rest)

    def read_keys(self, spans: Spans, turn: int, turns: int) -> Keys:
        """Return the keys of some records for one pass of several."""
        parts = [_keys_of(no_rows())]
        for rows in self.read(spans):
            counts = rows[KEY] != NULL
            counts &= rows[KEY].view(np.uint64) % np.uint64(turns) == turn
            parts.append(_keys_of(rows[:, counts]))
        return Keys.join(parts)

    def note_unsure(self, unlike: Unlike, is_left: NDArray[np.bool_], near: int) -> None:
        """Keep records that a cleaner may have removed from the other log, to be judged."""
        offsets = unlike.rows[OFFSET, is_left]
        spans = np.empty(len(offsets), _UNSURE)
        spans["first"], spans["last"], spans["near"] = offsets, offsets, near
        self.unsure.append(spans)
        if unlike.rest.last >= 0:
            rest = unlike.rest
            self.unsure.append(np.array([(rest.first, rest.last, near)], _UNSURE))


class _State(enum.IntEnum):
    """What a record is that only the copy seems to have."""

    FOREIGN = 0  # the original lacks it
    DOUBLED = 1  # it is in the copy twice
    MOVED = 2  # it should be elsewhere
    ABORTED = 3  # its transaction aborted in the original


@dataclass(frozen=True, slots=True)
class _OriginalOffsets:
    """Where the original has some records."""

    offset: NDArray[np.int64]  # int64[n], -1 for none
    is_unmatched: NDArray[np.bool_]  # bool[n], whether it has no place in the copy yet
    aborted: NDArray[np.int64]  # int64[n], how many records of aborted transactions are the same


@dataclass(slots=True)
class _Foreign:
    """Records of one gap of the copy, absent from the original."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    records: int = 0

    def add(self, rows: Rows) -> None:
        """Add records that follow each other."""
        self.spans.append((int(rows[OFFSET, 0]), int(rows[OFFSET, -1])))
        self.records += rows.shape[1]


class _Run(NamedTuple):
    """Records of the copy that follow each other and are alike in what became of them."""

    gap: int
    state: _State
    first_origin: int  # offset of the first one in the original, -1 for none
    last_origin: int

    def goes_on_from(self, before: "_Run | None") -> bool:
        """Return whether this run is the other one's second part."""
        return before is not None and (
            before[:2] == self[:2] and before.last_origin < self.first_origin
        )


class _CopyComparison:
    """A log and its copy once they are aligned."""

    def __init__(
        self, original: _ComparedLog, copy: _ComparedLog, report: ListedDifferences
    ) -> None:
        self._original = original
        self._copy = copy
        self._report = report
        # Offsets of the original's records that the copy has elsewhere.
        self._moved = [np.empty(0, np.int64)]
        self._foreign: dict[int, _Foreign] = {}  # by number of the gap
        self._unmet = np.empty(0, UNMET)

    def explain(self, alignment: Alignment) -> None:
        """Find out what became of all that is not alike."""
        gaps = [self._without_deleted(gap) for gap in alignment.gaps]
        self._unmet = np.concatenate([self._unmet, *alignment.unmet])
        self._look_for_copied(gaps)
        wrong, expected = alignment.wrong, alignment.wrong.first
        if self._report.is_mapped and self._unmet.size:
            first, last = self._unmet[0], self._unmet[-1]
            wrong = WrongOffsets(
                records=self._unmet.size,
                first=int(first["offset"]),
                last=int(last["offset"]),
                copy_first=int(first["copy_offset"]),
                copy_last=int(last["copy_offset"]),
                time_ms=int(first["time_ms"]),
            )
            expected = int(first["mapped_offset"])
        self._report.add_wrong_offsets(wrong, expected=expected)
        moved = np.sort(np.concatenate(self._moved))
        for number, gap in enumerate(gaps):
            foreign = self._foreign.get(number, _Foreign())
            if not gap.original.records and not foreign.records:
                continue
            if self._report.is_full:
                self._report.untold += 1
                continue
            self._explain_gap(gap, foreign, moved)
        self._add_unsurvived(self._original, self._copy)
        self._add_unsurvived(self._copy, self._original)

    def _without_deleted(self, gap: Mismatch) -> Mismatch:
        """Return a gap without what retention has taken from the other log."""
        is_mapped = self._report.is_mapped
        if not gap.is_first or (gap.is_last and is_mapped):
            return gap
        floors = self._copy.log.log_start_offset, self._original.log.log_start_offset
        if is_mapped:
            # At the start of one log, the offset in the other is unknown.
            floors = (
                gap.original.last + 1 if floors[0] > 0 else 0,
                gap.copy.last + 1 if floors[1] > 0 else 0,
            )
        return replace(
            gap,
            original=self._original.cut(gap.original, floors[0]),
            copy=self._copy.cut(gap.copy, floors[1]),
        )

    def _look_for_copied(self, gaps: Sequence[Mismatch]) -> None:
        """Look in the original for what the copy alone seems to have."""
        spans = _spans_of([gap.copy for gap in gaps])
        if not len(spans):
            return
        numbers = np.array([n for n, gap in enumerate(gaps) if gap.copy.first <= gap.copy.last])
        unmatched = _spans_of([gap.original for gap in gaps])
        next_offset = 0
        before: _Run | None = None
        added = -1  # number of the last difference added
        for rows in _pieces(self._copy.read(spans)):
            found = self._find_origin(rows, unmatched, next_offset)
            origin, state = found.offset, self._judge(rows, found)
            self._drop_met(rows)
            if origin.max() >= 0:
                next_offset = int(origin[origin >= 0][-1]) + 1
            gap = numbers[np.searchsorted(spans[:, 1], rows[OFFSET])]
            is_border = (np.diff(state) != 0) | (np.diff(gap) != 0) | (np.diff(origin) < 0)
            for start, end in runs(is_border):
                piece = rows[:, start : end + 1]
                run = _Run(
                    int(gap[start]), _State(state[start]), int(origin[start]), int(origin[end])
                )
                goes_on, before = run.goes_on_from(before), run
                if run.state is _State.ABORTED:
                    continue
                if run.state is _State.FOREIGN:
                    self._foreign.setdefault(run.gap, _Foreign()).add(piece)
                elif goes_on and not start and added == len(self._report.differences) - 1:
                    # The former piece ended inside of it.
                    self._report.lengthen(
                        added,
                        records=piece.shape[1],
                        last_offset=run.last_origin,
                        copy_last_offset=int(piece[OFFSET, -1]),
                    )
                else:
                    added = len(self._report.differences)
                    self._add_copied(run, piece)

    def _judge(self, rows: Rows, found: _OriginalOffsets) -> NDArray[np.int64]:
        """Return the _State of records of the copy, and keep which are moved."""
        # The copy may have records of aborted transactions as often as the original has. A moved
        # record that is there once more is doubled.
        times = _rank(rows[IDENTITY])
        is_aborted = times < found.aborted
        is_moved = found.is_unmatched & (times == found.aborted)
        is_moved &= ~np.isin(found.offset, np.concatenate(self._moved))
        self._moved.append(found.offset[is_moved])
        return np.select(
            [is_aborted, is_moved, found.offset >= 0],
            [_State.ABORTED, _State.MOVED, _State.DOUBLED],
            _State.FOREIGN,
        )

    def _drop_met(self, rows: Rows) -> None:
        """Forget records that lie where a map says after all. Of a doubled record a map may name
        the other one."""
        if self._unmet.size:
            at = np.searchsorted(rows[OFFSET], self._unmet["mapped_offset"])
            there = rows[:, np.minimum(at, rows.shape[1] - 1)]
            is_met = there[OFFSET] == self._unmet["mapped_offset"]
            is_met &= there[IDENTITY] == self._unmet["identity"]
            self._unmet = self._unmet[~is_met]

    def _add_copied(self, run: _Run, rows: Rows) -> None:
        """Add records that the original has elsewhere."""
        has_moved = run.state is _State.MOVED
        self._report.add(
            kind=DifferenceKind.ORDER if has_moved else DifferenceKind.DOUBLED,
            records=rows.shape[1],
            original=(run.first_origin, run.last_origin),
            copy=(int(rows[OFFSET, 0]), int(rows[OFFSET, -1])),
            time_ms=int(rows[TIMESTAMP, 0]),
            message="the copy has it behind later ones" if has_moved else "",
        )

    def _find_origin(self, rows: Rows, unmatched: Spans, next_offset: int) -> _OriginalOffsets:
        """Look for the same records in the original.

        Args:
            unmatched: Offsets of the original's records that have no place in the copy yet.
            next_offset: Where to begin: copies come in runs.
        """
        names, of_row = np.unique(rows[IDENTITY], return_inverse=True)
        offset = np.full(names.size, -1, np.int64)
        is_unmatched = np.zeros(names.size, np.bool_)
        aborted = np.zeros(names.size, np.int64)
        # Records of aborted transactions may come again: then all are searched.
        last = int(unmatched[-1, 1]) if len(unmatched) else -1
        last = MOST_OFFSET if self._original.aborted else last
        is_done = False
        for first, end in ((next_offset, MOST_OFFSET), (0, next_offset)):
            for piece in self._original.read(first=first, skips_aborted=False):
                if piece[OFFSET, 0] >= end or is_done:
                    break
                part = piece[:, piece[OFFSET] < end]
                at = np.minimum(np.searchsorted(names, part[IDENTITY]), names.size - 1)
                is_hit = names[at] == part[IDENTITY]
                np.add.at(aborted, at[is_hit & (part[IS_ABORTED] != 0)], 1)
                is_hit &= part[IS_ABORTED] == 0
                at, offsets = at[is_hit], part[OFFSET, is_hit]
                new, place = np.unique(at, return_index=True)
                is_new = offset[new] < 0
                offset[new[is_new]] = offsets[place[is_new]]
                is_free = is_within(offsets, unmatched)
                offset[at[is_free]] = offsets[is_free]
                is_unmatched[at[is_free]] = True
                is_done = bool((offset >= 0).all()) and piece[OFFSET, -1] >= last
        return _OriginalOffsets(offset[of_row], is_unmatched[of_row], aborted[of_row])

    def _explain_gap(self, gap: Mismatch, foreign: _Foreign, moved: NDArray[np.int64]) -> None:
        """Add what one gap has, moved and doubled records left out.

        Args:
            foreign: Records of the copy's part that the original has nowhere.
            moved: Offsets of the original's records that the copy has elsewhere.
        """
        one, two = gap.original, gap.copy
        is_lack_unsure = two.first < self._copy.cleaned_end
        is_extra_unsure = one.first < self._original.cleaned_end
        lacks_kind = DifferenceKind.BEHIND if gap.is_last else DifferenceKind.MISSING
        has_moved = np.searchsorted(moved, one.first) < np.searchsorted(moved, one.last, "right")
        if not foreign.records and not has_moved and not is_lack_unsure:
            self._report.add_span(0, lacks_kind, one, two.first)
            return
        lacked = self._original.take([(one.first, one.last)], moved)
        added = self._copy.take(foreign.spans, np.empty(0, np.int64))
        is_by_place = not is_lack_unsure and not is_extra_unsure
        pairs = self._pair(lacked, added, is_by_place=is_by_place, is_last=gap.is_last)
        self._report.add_pairs(lacked.rows, added.rows, pairs)
        is_lacked, is_added = (
            ~np.isin(np.arange(each.rows.shape[1]), paired)
            for each, paired in zip((lacked, added), pairs, strict=True)
        )
        if is_lack_unsure:
            self._original.note_unsure(lacked, is_lacked, two.first)
        else:
            if len(pairs[1]) < added.records and not is_extra_unsure:
                # The copy has other records there: no more will come.
                lacks_kind = DifferenceKind.MISSING
            # Up to the copy's last record, perhaps in another form, no more will come.
            is_before = np.arange(is_lacked.size) < max(pairs[0], default=-1)
            before = Unlike(lacked.rows, Passed())
            self._report.add_rest(
                0, DifferenceKind.MISSING, before, is_lacked & is_before, two.first
            )
            self._report.add_rest(0, lacks_kind, lacked, is_lacked & ~is_before, two.first)
        if is_extra_unsure:
            self._copy.note_unsure(added, is_added, one.first)
        else:
            self._report.add_rest(1, DifferenceKind.EXTRA, added, is_added, one.first)

    def _pair(
        self, lacked: Unlike, added: Unlike, *, is_by_place: bool, is_last: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pair records of the original with their changed form in the copy.

        Those at the same place, if both have as many, or if they are the copy's last ones and are
        alike in part; else those of the same key and time.
        """
        one, two = lacked.rows, added.rows
        if is_by_place and lacked.records == added.records:
            both = np.arange(min(one.shape[1], two.shape[1]))
            return both, both
        if is_by_place and is_last and lacked.records > added.records:
            # The last records of the copy, which may be followed by more.
            count = added.rows.shape[1]
            is_alike = np.zeros(count, np.bool_)
            for row in (KEY, VALUE, TIMESTAMP):
                is_alike |= (one[row, :count] == two[row]) & (two[row] != NULL)
            if is_alike.all() and added.rest.last < 0:
                return np.arange(count), np.arange(count)
        marks = [
            rows[KEY] ^ (rows[TIMESTAMP] * _ODD) if self._report.has_times else rows[KEY]
            for rows in (one, two)
        ]
        _, first, second = np.intersect1d(*marks, return_indices=True)
        order = np.argsort(first)
        first, second = first[order], second[order]
        is_rising = second == np.maximum.accumulate(second)
        return first[is_rising], second[is_rising]

    def _add_unsurvived(self, has: _ComparedLog, lacks: _ComparedLog) -> None:
        """Add the unsure records of a log that no cleaner can have removed from the other."""
        unsure = np.concatenate(has.unsure)
        if not unsure.size:
            return
        turns = 1 + int((unsure["last"] - unsure["first"] + 1).sum()) // WINDOW_RECORDS
        spans = np.column_stack([unsure["first"], unsure["last"]])
        parts = []
        for turn in range(turns):
            mine = has.read_keys(spans, turn, turns)
            names = np.unique(mine.hashes)
            newer = lacks.read(first=int(unsure["near"].min()))
            theirs = Keys.join([_keys_of(no_rows()), *(_keys_of(rows, names) for rows in newer)])
            near = unsure["near"][np.searchsorted(unsure["last"], mine.records["offset"])]
            parts.append(mine.records[find_unexplained(mine, theirs, near - 1)])
        lost = np.concatenate(parts)
        lost = lost[np.argsort(lost["offset"])]
        is_extra = has is self._copy
        nothing = None, None
        for start, end in runs(np.diff(lost["offset"]) != 1) if lost.size else ():
            offsets = int(lost["offset"][start]), int(lost["offset"][end])
            self._report.add(
                kind=DifferenceKind.EXTRA if is_extra else DifferenceKind.COMPACTION,
                records=end - start + 1,
                original=nothing if is_extra else offsets,
                copy=offsets if is_extra else nothing,
                time_ms=int(lost["time_ms"][start]),
                message="the original's cleaner cannot have removed it"
                if is_extra
                else "its key has no newer record either",
            )


def _keys_of(rows: Rows, names: NDArray[np.uint64] | None = None) -> Keys:
    """Return keys of records, those among some names alone."""
    if names is not None:
        rows = rows[:, np.isin(rows[KEY].view(np.uint64), names)]
    records = np.empty(rows.shape[1], _KEYED_RECORD)
    records["offset"], records["time_ms"] = rows[OFFSET], rows[TIMESTAMP]
    records["is_tombstone"] = rows[VALUE] == NULL
    return Keys(np.ascontiguousarray(rows[KEY]).view(np.uint64), records)


def _spans_of(parts: Sequence[Passed]) -> Spans:
    """Return the offsets of one log's parts of gaps."""
    spans = [(part.first, part.last) for part in parts if part.first <= part.last]
    return np.array(spans, np.int64).reshape(-1, 2)


def _pieces(pieces: Iterator[Rows]) -> Iterator[Rows]:
    """Yield records so many at a time as are held at once."""
    parts, total = [], 0
    for rows in pieces:
        parts.append(rows)
        total += rows.shape[1]
        if total >= WINDOW_RECORDS:
            yield np.concatenate(parts, axis=1)
            parts, total = [], 0
    if parts:
        yield np.concatenate(parts, axis=1)


def _rank(identities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many equal ones are before each."""
    order = np.argsort(identities, kind="stable")
    ordered = identities[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    lengths = np.diff(np.append(starts, ordered.size))
    rank = np.empty(ordered.size, np.int64)
    rank[order] = np.arange(ordered.size) - np.repeat(starts, lengths)
    return rank
