"""Two replicas of a partition, compared batch by batch.

Batches are told apart by their headers, or by digests of all of their bytes. Records are decoded
only where batches differ, and both logs have some at these offsets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.comparison import (
    MatchedRecords,
    batch_names,
    match_batches,
)
from storage_core.cluster.difference import (
    MOST_LISTED,
    Difference,
    DifferenceKind,
    Side,
)
from storage_core.cluster.log_batches import BatchRows, ReadDepth
from storage_core.cluster.offset_ranges import Ranges, clip, of_offsets, union
from storage_core.cluster.resting_log import RestingLog
from storage_core.cluster.survivors import find_lost
from storage_core.errors import PylogError
from storage_core.filenames import log_file


@dataclass(frozen=True, slots=True)
class PairPiece:
    """The batches of two logs that reach into a range of offsets."""

    parts: tuple[BatchRows, BatchRows]
    behind: tuple[BatchRows, BatchRows]
    start: int
    end: int

    def place_behind(self, number: int, log: RestingLog, offset: int) -> Side:
        """Return the first batch's place behind an offset, else the log's end."""
        if log.view is None:
            return Side(log=log)
        for rows in (self.parts[number], self.behind[number]):
            at = np.flatnonzero(rows.lowest > offset)
            if at.size:
                file = log.view.place(log_file(int(rows.segment[at[0]])))[0]
                return Side(log=log, file=file, position=int(rows.batches.position[at[0]]))
        return Side(log=log, file=log.last_file, position=log.end_position)


@dataclass(slots=True)
class ReplicaPair:
    """Two replicas, while they are compared."""

    logs: tuple[RestingLog, RestingLog]
    look: ReadDepth = ReadDepth.HEADERS
    cleaned: tuple[int, int] = (0, 0)  # below which offsets a cleaner was, of each
    differences: list[Difference] = field(default_factory=list)
    untold: int = 0  # how many ranges more
    undecided: int = 0  # batches of which the headers do not tell whether they differ
    # Records of the second that the first lacks and a cleaner may have removed, and the other way.
    lacked: tuple[list[Ranges], list[Ranges]] = field(default_factory=lambda: ([], []))

    def add(self, difference: Difference) -> None:
        """Add a difference, or extend an adjacent one of its kind."""
        for number in range(len(self.differences) - 1, max(len(self.differences) - 5, -1), -1):
            last = self.differences[number]
            if (
                last.kind is difference.kind
                and last.side.log is difference.side.log
                and last.message == difference.message
                and last.first_offset <= difference.first_offset <= last.last_offset + 1
            ):
                end = max(last.last_offset, difference.last_offset)
                self.differences[number] = replace(last, last_offset=end)
                return
        if len(self.differences) < MOST_LISTED:
            self.differences.append(difference)
        else:
            self.untold += 1

    def compare(self, piece: PairPiece) -> None:
        """Compare what both have in a range of offsets."""
        floor = max(log.log_start_offset for log in self.logs)
        one, two = (part.take(part.batches.last_offset >= floor) for part in piece.parts)
        names = tuple(batch_names(part.batches, part.digests) for part in (one, two))
        alone = one.take(~np.isin(names[0], names[1])), two.take(~np.isin(names[1], names[0]))
        if not len(alone[0]) and not len(alone[1]):
            return
        piece = replace(piece, start=max(piece.start, floor))
        _, at_1, at_2 = np.intersect1d(
            alone[0].batches.base_offset, alone[1].batches.base_offset, return_indices=True
        )
        is_pair = alone[0].batches.last_offset[at_1] == alone[1].batches.last_offset[at_2]
        at_1, at_2 = at_1[is_pair], at_2[is_pair]
        paired = alone[0].take(at_1), alone[1].take(at_2)
        is_same = _has_same_content(*paired)
        self._add_rows(DifferenceKind.EPOCH, paired[0].take(is_same), paired[1].take(is_same))
        changed = paired[0].take(~is_same), paired[1].take(~is_same)
        self._compare_changed(changed, piece)
        rest = alone[0].take(_others(alone[0], at_1)), alone[1].take(_others(alone[1], at_2))
        is_met = rest[0].that_meet(rest[1]), rest[1].that_meet(rest[0])
        for number in (0, 1):
            alone_here = rest[number].take(~is_met[number])
            self._note_lack(1 - number, alone_here, piece)
        self._compare_overlapping((rest[0].take(is_met[0]), rest[1].take(is_met[1])), piece)

    def _compare_changed(self, changed: tuple[BatchRows, BatchRows], piece: PairPiece) -> None:
        """Compare batches of the same offsets and another content."""
        one, two = changed
        if not len(one):
            return
        is_cleaned = one.batches.base_offset < max(self.cleaned)
        if self.look is ReadDepth.HEADERS:
            is_comparable = ~is_cleaned | _has_same_form(one, two)
            self.undecided += int((~is_comparable).sum())
            self._add_rows(DifferenceKind.BYTES, one.take(is_comparable), two.take(is_comparable))
            return
        is_damaged = (one.batches.crc_ok == 0) | (two.batches.crc_ok == 0)
        for row in np.flatnonzero(is_damaged).tolist():
            rows = one.take(np.array([row])), two.take(np.array([row]))
            self._add_rows(DifferenceKind.BYTES, *rows, message=self._damage_text(*rows))
        sound = one.take(~is_damaged), two.take(~is_damaged)
        if len(sound[0]):
            self._compare_records(sound, piece)

    def _damage_text(self, one: BatchRows, two: BatchRows) -> str:
        damaged = [
            f"broker {log.place.broker}"
            for log, rows in zip(self.logs, (one, two), strict=True)
            if (rows.batches.crc_ok == 0).any()
        ]
        return f"the checksum is wrong at {' and '.join(damaged)}"

    def _compare_overlapping(self, rows: tuple[BatchRows, BatchRows], piece: PairPiece) -> None:
        """Compare batches that share some offsets and begin or end at others."""
        if not len(rows[0]):
            return
        first = min(int(each.lowest.min()) for each in rows)
        if self.look is ReadDepth.HEADERS:
            if first < max(self.cleaned):
                self.undecided += sum(map(len, rows))
                return
            self._add_range(DifferenceKind.BYTES, rows, "the batches begin or end at other offsets")
            return
        sound = []
        for each in rows:
            is_damaged = each.batches.crc_ok == 0
            if is_damaged.any():
                damaged = [each.take(is_damaged) if other is each else other for other in rows]
                text = "the checksum is wrong, or the offsets of a batch are"
                self._add_range(DifferenceKind.BYTES, (damaged[0], damaged[1]), text)
            sound.append(each.take(~is_damaged))
        if len(sound[0]) and len(sound[1]):
            self._compare_records((sound[0], sound[1]), piece)

    def _compare_records(self, rows: tuple[BatchRows, BatchRows], piece: PairPiece) -> None:
        """Decode batches, and compare what is at each offset."""
        is_listed = False
        first, _ = _bounds(rows)
        try:
            for matched in match_batches(rows, piece.start, piece.end):
                is_listed |= self._add_records(matched, rows, piece)
        except PylogError as error:
            self._add_range(DifferenceKind.BYTES, rows, f"records cannot be read: {error}")
            return
        if not is_listed and first >= max(self.cleaned):
            self._add_range(DifferenceKind.BYTES, rows, "the records are the same")

    def _add_records(
        self, matched: MatchedRecords, rows: tuple[BatchRows, BatchRows], piece: PairPiece
    ) -> bool:
        is_epoch = np.isin(matched.other, matched.same)
        is_listed = bool(len(matched.other))
        for kind, offsets in (
            (DifferenceKind.EPOCH, matched.other[is_epoch]),
            (DifferenceKind.RECORD, matched.other[~is_epoch]),
        ):
            for low, high in _runs(offsets):
                sides = [self._side(number, rows[number], low, low) for number in (0, 1)]
                self.add(
                    Difference(
                        kind=kind,
                        first_offset=low,
                        last_offset=high,
                        side=sides[1],
                        other=sides[0],
                    )
                )
        for number, table in enumerate(matched.tables):
            theirs = matched.tables[1 - number]["offset"].to_numpy()
            offsets = table["offset"].to_numpy()
            is_alone = ~np.isin(offsets, theirs)
            is_cleaned = offsets < self.cleaned[1 - number]
            is_control = np.asarray(table["is_control"], np.bool_)
            epochs = table["epoch"].to_numpy()
            is_missing = is_alone & is_cleaned & ~is_control
            self.lacked[1 - number].append(of_offsets(offsets[is_missing], epochs[is_missing]))
            for low, high in _runs(offsets[is_alone & ~is_cleaned]):
                is_listed = True
                side = self._side(number, rows[number], low, low)
                place = piece.place_behind(1 - number, self.logs[1 - number], high)
                self.add(
                    Difference(
                        kind=DifferenceKind.MISSING,
                        first_offset=low,
                        last_offset=high,
                        side=place,
                        other=side,
                    )
                )
        return is_listed

    def _note_lack(self, lacking: int, rows: BatchRows, piece: PairPiece) -> None:
        """Take note of batches at whose offsets the other log has nothing."""
        is_cleaned = rows.batches.last_offset < self.cleaned[lacking]
        cleaned = rows.take(is_cleaned)
        if self.look is ReadDepth.HEADERS:
            self.undecided += len(cleaned)
        else:
            lacked = cleaned.take(cleaned.batches.crc_ok != 0).offsets()
            self.lacked[lacking].append(clip(lacked, start=piece.start, end=piece.end))
        plain = rows.take(~is_cleaned)
        for first, last in _groups(plain):
            # The other part of a batch that crosses the piece's ends is compared with other
            # batches.
            base = max(int(plain.lowest[first]), piece.start)
            offset = min(int(plain.batches.last_offset[last]), piece.end - 1)
            self.add(
                Difference(
                    kind=DifferenceKind.MISSING,
                    first_offset=base,
                    last_offset=offset,
                    side=piece.place_behind(lacking, self.logs[lacking], offset),
                    other=self._side(1 - lacking, plain, base, offset),
                )
            )

    def _add_rows(
        self, kind: DifferenceKind, one: BatchRows, two: BatchRows, message: str = ""
    ) -> None:
        """Add batches of the same offsets, one by one; neighbours become one."""
        for first, last in _groups(one):
            low = int(one.lowest[first])
            self.add(
                Difference(
                    kind=kind,
                    first_offset=low,
                    last_offset=int(one.batches.last_offset[last]),
                    side=self._side(1, two, low, low),
                    other=self._side(0, one, low, low),
                    message=message,
                )
            )

    def _add_range(
        self, kind: DifferenceKind, rows: tuple[BatchRows, BatchRows], message: str
    ) -> None:
        low, high = _bounds(rows)
        self.add(
            Difference(
                kind=kind,
                first_offset=low,
                last_offset=high,
                side=self._side(1, rows[1], low, high),
                other=self._side(0, rows[0], low, high),
                message=message,
            )
        )

    def _side(self, number: int, rows: BatchRows, first: int, last: int) -> Side:
        """Return the place of the first batch in a range of offsets. That batch may begin below
        the range."""
        log = self.logs[number]
        at = np.flatnonzero((rows.batches.last_offset >= first) & (rows.lowest <= last))
        if not at.size or log.view is None:
            return Side(log=log)
        row = int(at[0])
        epoch = int(rows.batches.leader_epoch[row])
        return Side(
            log=log,
            epoch=epoch if epoch >= 0 else None,
            file=log.view.place(log_file(int(rows.segment[row])))[0],
            position=int(rows.batches.position[row]),
        )

    def find_lost(self) -> int:
        """Find records no cleaner can have removed; return the bytes read."""
        read_bytes = 0
        for lacking in (0, 1):
            floor = max(log.log_start_offset for log in self.logs)
            missing = clip(union(self.lacked[lacking]), start=floor)
            if not len(missing):
                continue
            missing = missing[np.argsort(missing[:, 0])]
            has, lacks = self.logs[1 - lacking], self.logs[lacking]
            lost, read = find_lost(has, lacks, missing)
            read_bytes += read
            view = has.view
            for low, high in _runs(lost.offset):
                at = int(np.searchsorted(lost.offset, low))
                epoch = int(lost.epoch[at])
                file = "" if view is None else view.place(log_file(int(lost.segment[at])))[0]
                self.add(
                    Difference(
                        kind=DifferenceKind.COMPACTION,
                        first_offset=low,
                        last_offset=high,
                        side=Side(log=lacks),
                        other=Side(
                            log=has,
                            epoch=epoch if epoch >= 0 else None,
                            file=file,
                            position=int(lost.position[at]),
                        ),
                        message="its key has no newer record either",
                    )
                )
        return read_bytes


def _has_same_content(one: BatchRows, two: BatchRows) -> NDArray[np.bool_]:
    """Mark batches with equal offsets and content; epochs may differ."""
    is_same: NDArray[np.bool_] = (one.batches.size == two.batches.size) & (
        one.batches.crc == two.batches.crc
    )
    is_same &= (one.digests == two.digests).all(axis=0)
    return is_same


def _has_same_form(one: BatchRows, two: BatchRows) -> NDArray[np.bool_]:
    """Mark batches with equal offsets and record counts, and not rebuilt."""
    is_same = np.ones(len(one), np.bool_)
    for name in ("size", "record_count", "attributes", "base_timestamp", "magic"):
        is_same &= getattr(one.batches, name) == getattr(two.batches, name)
    return is_same


def _others(rows: BatchRows, indexes: NDArray[np.int64]) -> NDArray[np.bool_]:
    is_other = np.ones(len(rows), np.bool_)
    is_other[indexes] = False
    return is_other


def _bounds(rows: tuple[BatchRows, BatchRows]) -> tuple[int, int]:
    """Return two logs' first and last offset; one may be empty."""
    filled = [each for each in rows if len(each)]
    return (
        max(int(each.lowest.min()) for each in filled),
        min(int(each.batches.last_offset.max()) for each in filled),
    )


def _groups(rows: BatchRows) -> Iterator[tuple[int, int]]:
    """Yield first and last row of each run of batches without gaps."""
    if not len(rows):
        return
    gaps = np.flatnonzero(rows.lowest[1:] > rows.batches.last_offset[:-1] + 1)
    starts = [0, *(gaps + 1).tolist()]
    ends = [*gaps.tolist(), len(rows) - 1]
    yield from zip(starts, ends, strict=True)


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of consecutive, rising offsets."""
    if not offsets.size:
        return
    gaps = np.flatnonzero(np.diff(offsets) > 1)
    starts = offsets[np.append(0, gaps + 1)]
    ends = offsets[np.append(gaps, offsets.size - 1)]
    yield from zip(starts.tolist(), ends.tolist(), strict=True)
