"""List differences between a log and its copy: kind, count, place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.alignment import (
    HEADERS,
    KEY,
    OFFSET,
    TIMESTAMP,
    VALUE,
    Passed,
    RecordReader,
    Rows,
    WrongOffsets,
)
from storage_core.cluster.differences import (
    MOST_LISTED,
    DifferenceKind,
    Side,
    place_of,
)
from storage_core.cluster.resting_log import RestingLog

_FIELDS: Final = {"key": KEY, "value": VALUE, "headers": HEADERS, "timestamp": TIMESTAMP}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDifference:
    """One difference between a log and its copy."""

    kind: DifferenceKind
    records: int
    first_offset: int | None = None  # offset of the first one in the original, None without one
    last_offset: int | None = None
    copy_first_offset: int | None = None  # offset of the first one in the copy, None without one
    copy_last_offset: int | None = None
    timestamp_ms: int | None = None  # timestamp of the first one, None if unknown
    side: Side
    other: Side
    message: str = ""  # further facts; often empty


@dataclass(frozen=True, slots=True)
class Unlike:
    """Records of one log in a gap."""

    rows: Rows
    rest: Passed  # the rest, if there are more than are in memory at once

    @property
    def records(self) -> int:
        """How many there are."""
        return int(self.rows.shape[1]) + self.rest.records


@dataclass(slots=True, kw_only=True)
class ListedDifferences:
    """The differences between a log and its copy, as they are listed."""

    logs: tuple[RestingLog, RestingLog]
    has_times: bool  # whether timestamps are compared
    is_mapped: bool  # whether a map says where records should be
    differences: list[CopyDifference] = field(default_factory=list)
    untold: int = 0  # how many ranges more

    @property
    def is_full(self) -> bool:
        """Whether further differences are counted only."""
        return len(self.differences) >= MOST_LISTED

    def sorted(self) -> tuple[CopyDifference, ...]:
        """Return the differences in the order of the original's offsets."""

        def order(difference: CopyDifference) -> tuple[int, int]:
            offsets = difference.first_offset, difference.copy_first_offset
            present = [offset for offset in offsets if offset is not None]
            return present[0], present[-1]

        return tuple(sorted(self.differences, key=order))

    def lengthen(
        self, number: int, *, records: int, last_offset: int, copy_last_offset: int
    ) -> None:
        """Make a difference longer, by records that follow it."""
        difference = self.differences[number]
        self.differences[number] = replace(
            difference,
            records=difference.records + records,
            last_offset=last_offset,
            copy_last_offset=copy_last_offset,
        )

    def add_damage(self, number: int, readers: Sequence[RecordReader]) -> None:
        """Add the batches of a log that cannot be read."""
        damage = {(each.file, each.position): each for reader in readers for each in reader.damage}
        for each in damage.values():
            place = Side(log=self.logs[number], file=each.file, position=each.position)
            empty = Side(log=self.logs[1 - number])
            span = each.first_offset, each.last_offset
            self.add(
                kind=DifferenceKind.BYTES,
                records=0,
                original=(None, None) if number else span,
                copy=span if number else (None, None),
                sides=(place, empty) if number else (empty, place),
                message=f"{each.reason} in the {'copy' if number else 'original'}",
            )

    def add_wrong_offsets(self, wrong: WrongOffsets, expected: int) -> None:
        """Add records at other offsets than they should have."""
        if wrong.records:
            who = "the map says" if self.is_mapped else "without a map it should be"
            self.add(
                kind=DifferenceKind.OFFSET,
                records=wrong.records,
                original=(wrong.first, wrong.last),
                copy=(wrong.copy_first, wrong.copy_last),
                time_ms=wrong.time_ms,
                message=f"{who} {expected} for the first one",
            )

    def add_pairs(
        self, one: Rows, two: Rows, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> None:
        """Add records that stand in the copy in another form."""
        first, second = pairs
        if not first.size:
            return
        names = [name for name in _FIELDS if self.has_times or name != "timestamp"]
        is_other = np.stack(
            [one[_FIELDS[name], first] != two[_FIELDS[name], second] for name in names]
        )
        is_border = (is_other[:, 1:] != is_other[:, :-1]).any(axis=0)
        is_border |= (np.diff(first) != 1) | (np.diff(second) != 1)
        for start, end in runs(is_border):
            others = ", ".join(
                name for name, other in zip(names, is_other[:, start], strict=True) if other
            )
            self.add(
                kind=DifferenceKind.DIFFERENT,
                records=end - start + 1,
                original=(int(one[OFFSET, first[start]]), int(one[OFFSET, first[end]])),
                copy=(int(two[OFFSET, second[start]]), int(two[OFFSET, second[end]])),
                time_ms=int(one[TIMESTAMP, first[start]]),
                message=f"not the same: {others}",
            )

    def add_rest(
        self,
        number: int,
        kind: DifferenceKind,
        unlike: Unlike,
        is_left: NDArray[np.bool_],
        near: int,
    ) -> None:
        """Add records that only one log has."""
        rows = unlike.rows
        at = np.flatnonzero(is_left)
        spans = []
        for start, end in runs(np.diff(at) != 1) if at.size else ():
            span = Passed()
            span.add(rows[:, at[start] : at[end] + 1])
            spans.append(span)
        rest = unlike.rest
        if rest.last >= 0:
            if at.size and at[-1] == rows.shape[1] - 1:
                spans[-1].last, spans[-1].records = rest.last, spans[-1].records + rest.records
            else:
                spans.append(rest)
        for span in spans:
            self.add_span(number, kind, span, near)

    def add_span(self, number: int, kind: DifferenceKind, span: Passed, near: int) -> None:
        """Add consecutive records of one log, missing from the other."""
        offsets = span.first, span.last
        nothing = None, None
        self.add(
            kind=kind,
            records=span.records,
            original=nothing if number else offsets,
            copy=offsets if number else nothing,
            time_ms=span.time_ms,
            near=near,
        )

    def add(
        self,
        *,
        kind: DifferenceKind,
        records: int,
        original: tuple[int | None, int | None],
        copy: tuple[int | None, int | None],
        time_ms: int = -1,
        sides: tuple[Side, Side] | None = None,
        near: int | None = None,
        message: str = "",
    ) -> None:
        """Add a difference.

        Args:
            time_ms: Timestamp of the first one, -1 for none.
            sides: Where it lies in the copy and in the original; None to look for it.
            message: Further facts.
        """
        if self.is_full:
            self.untold += 1
            return
        if sides is None:
            offsets = [near if first is None else first for first in (copy[0], original[0])]
            one, two = (
                _place_of(log, at) for log, at in zip(self.logs[::-1], offsets, strict=True)
            )
            sides = one, two
        self.differences.append(
            CopyDifference(
                kind=kind,
                records=records,
                first_offset=original[0],
                last_offset=original[1],
                copy_first_offset=copy[0],
                copy_last_offset=copy[1],
                timestamp_ms=time_ms if time_ms >= 0 else None,
                side=sides[0],
                other=sides[1],
                message=message,
            )
        )


def _place_of(log: RestingLog, offset: int | None) -> Side:
    """Return the place of an offset in a log, or its end. Every offset behind the end has the
    end's place."""
    if offset is None or log.view is None:
        return Side(log=log)
    if offset >= log.log_end_offset:
        return Side(log=log, file=log.last_file, position=log.end_position)
    return place_of(log, offset, None)


def runs(is_border: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each run between borders. A border separates neighbours
    of different runs."""
    starts = np.flatnonzero(np.append(True, is_border))
    ends = np.append(starts[1:], len(is_border) + 1) - 1
    yield from zip(starts.tolist(), ends.tolist(), strict=True)
