"""Find the differences between a log and its copy in another cluster.

Epochs, producers, borders of batches and codecs are those of one cluster. Compared are records:
key, value, headers and timestamp. Both logs are aligned first. What only one of them has is then
looked for in all of the other: a record that was copied twice, or later, is called that however far
away the other one is.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.alignment import (
    IDENTITY,
    IS_ABORTED,
    KEY,
    NULL,
    OFFSET,
    TIMESTAMP,
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
    logs = original, copy
    aborted = [_read_aborted(log) for log in logs]
    aligner = Aligner(
        partial(_open, original, aborted[0], has_times),
        partial(_open, copy, aborted[1], has_times),
        syncs,
    )
    alignment = aligner.run()
    report = ListedDifferences(logs=logs, has_times=has_times, is_mapped=syncs is not None)
    comparison = _CopyComparison(
        report=report,
        aborted=(aborted[0], aborted[1]),
        cleaned=(
            _cleaned(original, aligner.original.readers, is_compacted[0]),
            _cleaned(copy, aligner.copy.readers, is_compacted[1]),
        ),
    )
    report.add_damage(0, aligner.original.readers)
    report.add_damage(1, aligner.copy.readers)
    comparison.explain(alignment)
    readers = [*aligner.original.readers, *aligner.copy.readers]
    return CopyDifferences(
        differences=report.sorted(),
        untold=report.untold + alignment.untold,
        records=alignment.records,
        read_bytes=comparison.read_bytes + sum(reader.read_bytes for reader in readers),
        has_times=has_times,
    )


def _open(
    log: RestingLog,
    aborted: Sequence[AbortedTxn],
    has_times: bool,  # noqa: FBT001 - is bound by position
    first: int,
) -> RecordReader:
    return RecordReader(log, aborted, has_times=has_times, skips_aborted=True, first=first)


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


def _cleaned(log: RestingLog, readers: Sequence[RecordReader], is_compacted: bool) -> int:  # noqa: FBT001
    sparse_end = max(reader.sparse_end for reader in readers)
    return cleaned_end(log, sparse_end, is_compacted=is_compacted)


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


@dataclass(slots=True, kw_only=True)
class _CopyComparison:
    """A log and its copy once they are aligned."""

    report: ListedDifferences
    aborted: tuple[Sequence[AbortedTxn], Sequence[AbortedTxn]]
    cleaned: tuple[int, int]  # below which offset a cleaner was, of each
    read_bytes: int = 0
    _moved: list[NDArray[np.int64]] = field(default_factory=lambda: [np.empty(0, np.int64)])
    _foreign: dict[int, _Foreign] = field(default_factory=dict)
    _unmet: NDArray[np.int64] = field(default_factory=lambda: np.empty((5, 0), np.int64))

    def explain(self, alignment: Alignment) -> None:
        """Find out what became of all that is not alike."""
        gaps = [self._without_deleted(gap) for gap in alignment.gaps]
        self._unmet = np.concatenate([self._unmet, *alignment.unmet], axis=1)
        self._look_for_copied(gaps)
        if self.report.is_mapped and self._unmet.size:
            first_row, last_row = self._unmet[:, 0].tolist(), self._unmet[:, -1].tolist()
            wrong = WrongOffsets(
                records=self._unmet.shape[1],
                first=first_row[0],
                last=last_row[0],
                copy_first=first_row[1],
                copy_last=last_row[1],
                time_ms=first_row[3],
            )
            self.report.add_wrong_offsets(wrong, expected=first_row[2])
        else:
            self.report.add_wrong_offsets(alignment.wrong, expected=alignment.wrong.first)
        moved = np.sort(np.concatenate(self._moved))
        none = np.empty((0, 3), np.int64)
        candidates: tuple[list[Spans], list[Spans]] = ([none], [none])
        for number, gap in enumerate(gaps):
            foreign = self._foreign.get(number, _Foreign())
            if not gap.records and not foreign.records:
                continue
            if self.report.is_full:
                self.report.untold += 1
                continue
            self._explain_gap(gap, foreign, moved, candidates)
        for number in (0, 1):
            wanted = np.concatenate(candidates[number])
            if len(wanted):
                self._add_unsurvived(number, wanted)

    def _without_deleted(self, gap: Mismatch) -> Mismatch:
        """Return a gap without what retention has taken from the other log."""
        if not gap.is_first or (gap.is_last and self.report.is_mapped):
            return gap
        starts = self.report.logs[1].log_start_offset, self.report.logs[0].log_start_offset
        floors = starts
        if self.report.is_mapped:
            # At the start of one log, the offset in the other is unknown.
            floors = (gap.last + 1) * (starts[0] > 0), (gap.copy_last + 1) * (starts[1] > 0)
        changed = gap
        if floors[0] > gap.first:
            rest = self._sum_up(0, floors[0], gap.last)
            changed = changed._replace(
                first=max(gap.first, min(floors[0], gap.last + 1)),
                records=rest.records,
                time_ms=rest.time_ms,
            )
        if floors[1] > gap.copy_first:
            rest = self._sum_up(1, floors[1], gap.copy_last)
            changed = changed._replace(
                copy_first=max(gap.copy_first, min(floors[1], gap.copy_last + 1)),
                copy_records=rest.records,
                copy_time_ms=rest.time_ms,
            )
        return changed

    def _sum_up(self, number: int, first: int, last: int) -> Passed:
        passed = Passed()
        if first <= last:
            for rows in self._read(number, [(first, last)]):
                passed.add(rows)
        return passed

    def _read(
        self,
        number: int,
        spans: Sequence[tuple[int, int]] | Spans | None = None,
        *,
        first: int = 0,
        skips_aborted: bool = True,
    ) -> Iterator[Rows]:
        """Yield records of a log, at some offsets or from one on."""
        reader = RecordReader(
            self.report.logs[number],
            self.aborted[number],
            has_times=self.report.has_times,
            skips_aborted=skips_aborted,
            spans=None if spans is None else np.array(spans, np.int64).reshape(-1, 2),
            first=first,
        )
        try:
            while (rows := reader.read()) is not None:
                yield rows
        finally:
            self.read_bytes += reader.read_bytes

    def _look_for_copied(self, gaps: Sequence[Mismatch]) -> None:
        """Look in the original for what the copy alone seems to have."""
        spans = _spans_of(gaps, 1)
        if not len(spans):
            return
        numbers = np.array([n for n, gap in enumerate(gaps) if gap.copy_first <= gap.copy_last])
        unmatched = _spans_of(gaps, 0)
        next_offset = 0
        before: tuple[int, int, int] | None = None
        number = -1  # of the last difference added
        for rows in _pieces(self._read(1, spans)):
            match = self._find_origin(rows, unmatched, next_offset)
            # The copy may have records of aborted transactions as often as the original has. A
            # moved record that is there once more is doubled.
            times = _rank(rows[IDENTITY])
            is_aborted = times < match.aborted
            is_moved = match.is_unmatched & (times == match.aborted)
            origin = match.offset
            is_moved &= ~np.isin(origin, np.concatenate(self._moved))
            self._moved.append(origin[is_moved])
            if self._unmet.size:
                # For a doubled record a map may name the other one.
                at = np.searchsorted(rows[OFFSET], self._unmet[2])
                there = rows[:, np.minimum(at, rows.shape[1] - 1)]
                is_met = (there[OFFSET] == self._unmet[2]) & (there[IDENTITY] == self._unmet[4])
                self._unmet = self._unmet[:, ~is_met]
            if origin.max() >= 0:
                next_offset = int(origin[origin >= 0][-1]) + 1
            gap = numbers[np.searchsorted(spans[:, 1], rows[OFFSET])]
            state = np.select(
                [is_aborted, is_moved, origin >= 0],
                [_State.ABORTED, _State.MOVED, _State.DOUBLED],
                _State.FOREIGN,
            )
            is_border = (np.diff(state) != 0) | (np.diff(gap) != 0) | (np.diff(origin) < 0)
            for start, end in runs(is_border):
                count = end - start + 1
                first, last = (int(rows[OFFSET, at]) for at in (start, end))
                here = int(gap[start]), int(state[start]), int(origin[start])
                goes_on = before is not None and before[:2] == here[:2] and before[2] < here[2]
                before = *here[:2], int(origin[end])
                if state[start] == _State.ABORTED:
                    continue
                if state[start] == _State.FOREIGN:
                    foreign = self._foreign.setdefault(int(gap[start]), _Foreign())
                    foreign.spans.append((first, last))
                    foreign.records += count
                    continue
                if goes_on and not start and number == len(self.report.differences) - 1:
                    # The former piece ended inside of it.
                    self.report.lengthen(
                        number, records=count, last_offset=int(origin[end]), copy_last_offset=last
                    )
                    continue
                has_moved = state[start] == _State.MOVED
                number = len(self.report.differences)
                self.report.add(
                    kind=DifferenceKind.ORDER if has_moved else DifferenceKind.DOUBLED,
                    records=count,
                    original=(int(origin[start]), int(origin[end])),
                    copy=(first, last),
                    time_ms=int(rows[TIMESTAMP, start]),
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
        last = MOST_OFFSET if self.aborted[0] else last
        is_done = False
        for first, end in ((next_offset, MOST_OFFSET), (0, next_offset)):
            for piece in self._read(0, first=first, skips_aborted=False):
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

    def _explain_gap(
        self,
        gap: Mismatch,
        foreign: _Foreign,
        moved: NDArray[np.int64],
        candidates: tuple[list[Spans], list[Spans]],
    ) -> None:
        """Add what one gap has, moved and doubled records left out.

        Args:
            foreign: Records of the copy's part that the original has nowhere.
            moved: Offsets of the original's records that the copy has elsewhere.
            candidates: To be added to: records of each log that a cleaner may have removed from the
                other, int64[n, 3], first and last offset, and where they would be in the other.
        """
        lacks_kind = DifferenceKind.BEHIND if gap.is_last else DifferenceKind.MISSING
        is_cleaned = gap.copy_first < self.cleaned[1], gap.first < self.cleaned[0]
        has_moved = np.searchsorted(moved, gap.first) < np.searchsorted(moved, gap.last, "right")
        if not foreign.records and not has_moved and not is_cleaned[0]:
            whole = Passed(gap.first, gap.last, gap.records, gap.time_ms)
            self.report.add_span(0, lacks_kind, whole, gap.copy_first)
            return
        lacked = self._take(0, [(gap.first, gap.last)], moved)
        added = self._take(1, foreign.spans, np.empty(0, np.int64))
        pairs = self._pair(lacked, added, is_by_place=not any(is_cleaned), is_last=gap.is_last)
        if len(pairs[1]) < added.records and not is_cleaned[1]:
            # The copy has other records there: no more will come.
            lacks_kind = DifferenceKind.MISSING
        self.report.add_pairs(lacked.rows, added.rows, pairs)
        for number, unlike in enumerate((lacked, added)):
            is_left = np.ones(unlike.rows.shape[1], np.bool_)
            is_left[pairs[number]] = False
            if is_cleaned[number]:
                near = gap.first if number else gap.copy_first
                offsets = unlike.rows[OFFSET, is_left]
                candidates[number].append(
                    np.column_stack([offsets, offsets, np.full_like(offsets, near)])
                )
                if unlike.rest.last >= 0:
                    rest = [(unlike.rest.first, unlike.rest.last, near)]
                    candidates[number].append(np.array(rest, np.int64))
            elif number:
                self.report.add_rest(1, DifferenceKind.EXTRA, unlike, is_left, gap.first)
            else:
                # Up to the copy's last record, perhaps in another form, no more will come.
                is_before = np.arange(is_left.size) < max(pairs[0], default=-1)
                before = Unlike(unlike.rows, Passed())
                self.report.add_rest(
                    0, DifferenceKind.MISSING, before, is_left & is_before, gap.copy_first
                )
                self.report.add_rest(0, lacks_kind, unlike, is_left & ~is_before, gap.copy_first)

    def _take(
        self, number: int, spans: Sequence[tuple[int, int]], moved: NDArray[np.int64]
    ) -> Unlike:
        """Return a log's records at some offsets, except the moved ones."""
        parts, total, rest = [no_rows()], 0, Passed()
        for piece in self._read(number, spans) if spans else ():
            near = moved[slice(*np.searchsorted(moved, [piece[OFFSET, 0], piece[OFFSET, -1] + 1]))]
            rows = piece[:, ~np.isin(piece[OFFSET], near)]
            room = WINDOW_RECORDS - total
            parts.append(rows[:, :room])
            total += parts[-1].shape[1]
            rest.add(rows[:, room:])
        return Unlike(np.concatenate(parts, axis=1), rest)

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
            rows[KEY] ^ (rows[TIMESTAMP] * _ODD) if self.report.has_times else rows[KEY]
            for rows in (one, two)
        ]
        _, first, second = np.intersect1d(*marks, return_indices=True)
        order = np.argsort(first)
        first, second = first[order], second[order]
        is_rising = second == np.maximum.accumulate(second)
        return first[is_rising], second[is_rising]

    def _add_unsurvived(self, number: int, wanted: NDArray[np.int64]) -> None:
        """Add records of one log, lost from the other without a cleaner. No cleaner can have
        removed them from that log.

        Args:
            wanted: int64[n, 3], first and last offset of those that the other one lacks, and where
                they would be there.
        """
        passes = 1 + int((wanted[:, 1] - wanted[:, 0] + 1).sum()) // WINDOW_RECORDS
        lost = [np.empty((5, 0), np.int64)]
        for turn in range(passes):
            mine = self._read_keys(number, wanted[:, :2], (turn, passes))
            names = np.unique(mine.halves[0])
            newer = [
                _keys_of(rows, names)
                for rows in self._read(1 - number, first=int(wanted[:, 2].min()))
            ]
            theirs = Keys(
                np.concatenate([mine.halves[:, :0], *(each.halves for each in newer)], axis=1),
                np.concatenate([mine.facts[:, :0], *(each.facts for each in newer)], axis=1),
            )
            at = np.searchsorted(wanted[:, 1], mine.facts[0])
            lost.append(find_unexplained(mine, theirs, wanted[at, 2] - 1))
        facts = np.concatenate(lost, axis=1)
        facts = facts[:, np.argsort(facts[0])]
        message = (
            "the original's cleaner cannot have removed it"
            if number
            else "its key has no newer record either"
        )
        nothing = None, None
        for start, end in runs(np.diff(facts[0]) != 1) if facts.shape[1] else ():
            offsets = int(facts[0, start]), int(facts[0, end])
            self.report.add(
                kind=DifferenceKind.EXTRA if number else DifferenceKind.COMPACTION,
                records=end - start + 1,
                original=nothing if number else offsets,
                copy=offsets if number else nothing,
                time_ms=int(facts[1, start]),
                message=message,
            )

    def _read_keys(self, number: int, wanted: Spans, turn: tuple[int, int]) -> Keys:
        """Return the keys of some records for one pass of several."""
        parts = []
        for rows in self._read(number, wanted):
            counts = rows[KEY] != NULL
            counts &= rows[KEY].view(np.uint64) % np.uint64(turn[1]) == turn[0]
            parts.append(_keys_of(rows[:, counts]))
        empty = _keys_of(no_rows())
        return Keys(
            np.concatenate([empty.halves, *(each.halves for each in parts)], axis=1),
            np.concatenate([empty.facts, *(each.facts for each in parts)], axis=1),
        )


def _keys_of(rows: Rows, names: NDArray[np.uint64] | None = None) -> Keys:
    """Return keys of records, those among some names alone."""
    if names is not None:
        rows = rows[:, np.isin(rows[KEY].view(np.uint64), names)]
    key = np.ascontiguousarray(rows[KEY]).view(np.uint64)
    facts = np.zeros((5, rows.shape[1]), np.int64)
    facts[0], facts[1], facts[4] = rows[OFFSET], rows[TIMESTAMP], rows[VALUE] == NULL
    return Keys(np.stack([key, key]), facts)


def _spans_of(gaps: Sequence[Mismatch], number: int) -> Spans:
    """Return the offsets of one log's records that are in gaps."""
    spans = [gap[4 * number : 4 * number + 2] for gap in gaps]
    return np.array([span for span in spans if span[0] <= span[1]], np.int64).reshape(-1, 2)


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
