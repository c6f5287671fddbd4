"""Heal a log by what other replicas have where it is damaged.

Damage lies between two valid batches, and a donor counts if it has both of them, with valid batches
between: these are what was there, or is to be there. Donors that count and differ heal nothing. All
else of the log stays as it is, what recovery would cut behind the damage too.

Where a cleaner went over donor and target apart, batches are not the same. Then whole segments are
taken, if both are clean there, and the donor at least as far as the target: for no tombstone that
one of them has dropped has the other one kept a value.
"""

import enum
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.cluster.audit import batch_names
from storage_core.cluster.log_batches import BatchRows, LogReader, ReadDepth
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import BadBytesError, CorruptRecordError
from storage_core.filenames import MAX_OFFSET, log_file
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.json_values import OMITTED, SystemText
from storage_core.kernels import batch_scan
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import NO_EPOCH, are_batches_believed, are_epochs_outside
from storage_core.log.settled_store import FilePiece, PiecedSegment, find_crc
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import BatchFinder, scan_checked_headers
from storage_core.records.reader import find_zeros
from storage_core.store.base import FileReader, SliceReader, data_end_of

# What becomes of damage in a log, by name alone.


class DamageState(enum.StrEnum):
    """What becomes of damage: it is filled, or why it is left."""

    FILLED = "FILLED"
    NO_DONOR = "NO_DONOR"
    DONOR_LACKS = "DONOR_LACKS"
    DONOR_DAMAGED = "DONOR_DAMAGED"
    DONOR_DIVERGED = "DONOR_DIVERGED"
    COMPACTED_APART = "COMPACTED_APART"
    DONORS_DIFFER = "DONORS_DIFFER"
    SEGMENT_LEFT = "SEGMENT_LEFT"


# Find where a log has no whole, valid batch.
#
# A segment is read from batch to batch. Where that ends, or a batch is not what its checksum says,
# the next valid one is looked for byte by byte: its offsets have to lie between its neighbours'.
# So has its leader epoch, which lies outside of the checksum, too.

# More than a disk damages; hostile bytes may have one for each batch.
_MOST_PLACES: Final = 10_000


class BatchName(NamedTuple):
    """What tells a batch from every other one of its partition."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    size_bytes: int
    magic: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a segment's log."""

    segment: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDamage:
    """A place between two valid batches, or behind the last one. Bytes there are no valid
    batches, or batches are missing."""

    # Bytes there that are no valid batches, in order; none where a file is missing.
    ranges: tuple[FileRange, ...]
    before: BatchName | None  # the valid batch before it, None at the beginning of the log
    before_segment: int
    after: BatchName | None  # the valid batch behind it, None at the end of the log
    after_segment: int | None  # base offset of the segment with that, None at the end of the log
    # Whether it is the end, and no byte there is other than zero, as in a file with room to grow.
    is_blank: bool = False

    @property
    def first_offset(self) -> int:
        """First offset that may be missing."""
        return self.before_segment if self.before is None else self.before.last_offset + 1

    @property
    def end_offset(self) -> int | None:
        """First offset behind it; None at the end of the log."""
        return None if self.after is None else self.after.base_offset

    @property
    def segments(self) -> frozenset[int]:
        """Base offsets of the segments with bytes that are no valid batches."""
        return frozenset(each.segment for each in self.ranges)

    @property
    def size_bytes(self) -> int:
        """Bytes there that are no valid batches."""
        return sum(each.size_bytes for each in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScan:
    """Where a log is damaged."""

    # In order. The last one is the end of the log, where nothing need be missing.
    all_damage: tuple[LogDamage, ...]
    has_transactions: bool  # whether a valid batch is of a transaction


class _SoundRun(NamedTuple):
    """Valid batches of a segment that follow each other."""

    position: int
    end: int
    first: BatchName
    last: BatchName
    has_transactions: bool


def find_damage(
    view: DirectoryView, base_offsets: Sequence[int], *, cleaner_offset: int | None
) -> LogScan:
    """Read a whole log, and return where it is damaged.

    Args:
        base_offsets: Base offsets of its segments, rising; at least one.
        cleaner_offset: Its entry in the cleaner checkpoint: below it a cleaner removes offsets
            between segments. None without an entry.
    """
    all_damage: list[LogDamage] = []
    ranges: list[FileRange] = []
    before: BatchName | None = None
    before_segment = base_offsets[0]
    has_transactions, is_blank = False, True

    def end_damage(after: BatchName | None, segment: int | None) -> None:
        if len(all_damage) >= _MOST_PLACES:
            raise CorruptRecordError(
                log_file(before_segment), 0, f"more than {_MOST_PLACES} places are damaged"
            )
        all_damage.append(
            LogDamage(
                ranges=tuple(ranges),
                before=before,
                before_segment=before_segment,
                after=after,
                after_segment=segment,
                is_blank=after is None and is_blank,
            )
        )
        ranges.clear()

    for segment, end_offset in pairwise([*base_offsets, MAX_OFFSET]):
        with closing(view.open(log_file(segment))) as reader:
            position, is_first = 0, True
            for run in _find_runs(reader, segment, end_offset):
                if run.position > position:
                    ranges.append(FileRange(segment, position, run.position - position))
                first = base_offsets[0] if before is None else before.last_offset + 1
                is_hole = (
                    is_first
                    and run.first.base_offset > first >= (cleaner_offset or 0)
                    and run.first.magic >= MAGIC_V2
                )
                if ranges or is_hole:
                    end_damage(run.first, segment)
                is_blank = True
                before, before_segment = run.last, segment
                position, is_first = run.end, False
                has_transactions |= run.has_transactions
            if position < reader.size_bytes:
                ranges.append(FileRange(segment, position, reader.size_bytes - position))
                is_blank = is_blank and find_zeros(reader, position, reader.size_bytes) == position
    end_damage(None, None)
    return LogScan(all_damage=tuple(all_damage), has_transactions=has_transactions)


def _find_runs(reader: FileReader, segment: int, end_offset: int) -> Iterator[_SoundRun]:
    """Yield the runs of valid batches in a segment."""
    stop = data_end_of(reader)
    finder = BatchFinder(reader, stop)
    position: int | None = 0
    last, epoch = segment - 1, NO_EPOCH
    while position is not None and position < stop:
        reached = position
        held = np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)
        try:
            for window in scan_checked_headers(reader, start=position, end=stop):
                columns = window.batches.columns.copy()
                columns[batch_scan.POSITION] += window.file_position
                columns = np.concatenate([held, columns], axis=1)
                # What the last one is its successor tells.
                held = columns[:, -1:]
                for run in _runs_of(BatchTable(columns), last, epoch, end_offset, is_end=False):
                    last, epoch, reached = run.last.last_offset, run.last.leader_epoch, run.end
                    yield run
        except BadBytesError:
            pass
        for run in _runs_of(BatchTable(held), last, epoch, end_offset, is_end=True):
            last, epoch, reached = run.last.last_offset, run.last.leader_epoch, run.end
            yield run
        # The length of what follows the last valid batch is not to be believed.
        position = finder.find(max(reached, position + 1), last + 1, end_offset)


def _runs_of(
    batches: BatchTable, last: int, epoch: int, end_offset: int, *, is_end: bool
) -> Iterator[_SoundRun]:
    """Yield the runs among batches that lie one behind the other.

    Args:
        last: Last offset of the valid batch before them.
        epoch: Leader epoch of that batch; NO_EPOCH without one.
        is_end: Whether nothing is known to follow; else the last one is not judged.
    """
    is_valid = _are_valid(batches, last, epoch, end_offset)
    if not is_end:
        is_valid[-1:] = False
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_valid.view(np.int8), [0]])))
    for first, end in edges.reshape(-1, 2).tolist():
        run = batches.rows(first, end)
        yield _SoundRun(
            int(run.position[0]),
            int(run.position[-1] + run.size[-1]),
            name_of(run, 0),
            name_of(run, -1),
            bool(run.is_transactional.any()),
        )


def _are_valid(batches: BatchTable, last: int, epoch: int, end_offset: int) -> NDArray[np.bool_]:
    """Return which batches have a right checksum, offsets and epoch.

    First offset and leader epoch lie outside of the checksum: one that jumps is told by those
    around it.
    """
    base, ends = batches.base_offset, batches.last_offset
    is_valid: NDArray[np.bool_] = (
        (batches.crc_ok == 1) & (base > last) & (ends >= base) & (ends < end_offset)
    )
    rows = np.flatnonzero(is_valid)
    if rows.size:
        before = np.concatenate([[last], ends[rows][:-1]])
        after = np.concatenate([base[rows][1:], [end_offset]])
        is_odd = ((before >= base[rows]) | (ends[rows] >= after)) & (before < after)
        is_valid[rows[is_odd]] = False
        rows = rows[~is_odd]
        highest = np.maximum.accumulate(np.concatenate([[last], ends[rows]]))[:-1]
        is_valid[rows[base[rows] <= highest]] = False
    rows = np.flatnonzero(is_valid)
    is_valid[rows[are_epochs_outside(batches.leader_epoch[rows], epoch)]] = False
    return is_valid


def name_of(batches: BatchTable, row: int) -> BatchName:
    """Return the name of one of some batches."""
    return BatchName(
        int(batches.base_offset[row]),
        int(batches.last_offset[row]),
        int(batches.leader_epoch[row]),
        int(batches.crc[row]),
        int(batches.size[row]),
        int(batches.magic[row]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageAnswer:
    """Damage, and what becomes of it."""

    state: DamageState  # whether it is filled, else why not
    first_offset: int  # first offset that may be missing
    end_offset: int | None  # first offset that is there again, None at the end of the log
    file: str  # the segment's file with the first bytes that are no batch; empty where none are
    position: int
    size_bytes: int
    filled_bytes: int = 0  # bytes that take their place; of whole segments, where a cleaner was
    filled_batches: int = 0
    donors: tuple[SystemText, ...] = ()
    reason: SystemText = ""  # why it is left, donor by donor


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """What heals a log."""

    all_damage: tuple[DamageAnswer, ...] = ()  # all of it, in order
    # The segments that become others, rising; one without pieces goes.
    segments: tuple[PiecedSegment, ...] = ()
    # Epochs in the epoch file that only a damaged batch has: a start has believed them.
    wrong_epochs: Annotated[tuple[int, ...], OMITTED] = ()


class _DonorPiece(NamedTuple):
    """Batches that lie one behind the other at a donor."""

    segment: int
    first_offset: int
    piece: FilePiece


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Filling:
    """What one donor has in the place of damage."""

    damage: LogDamage  # the damage, or whole segments around it
    donor: RestingLog
    names: NDArray[np.void]
    pieces: tuple[_DonorPiece, ...]

    def agrees(self, other: "_Filling") -> bool:
        """Tell whether it equals another one. At the end of the log, the beginning of that one
        is enough."""
        count = len(self.names)
        is_whole = count == len(other.names) or self.damage.after_segment is None
        return (
            is_whole
            and self.damage == other.damage
            and np.array_equal(self.names, other.names[:count])
        )


class _NoFilling(NamedTuple):
    """Why one donor fills nothing."""

    state: DamageState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patient:
    """A log that is to be healed."""

    log: RestingLog
    view: DirectoryView
    has_transactions: bool
    # Up to it records are known to be committed, here or at a donor; None where nothing says it.
    committed: int | None
    lineages: tuple[tuple[EpochEntry, ...], ...]


def plan_healing(log: RestingLog, donors: Sequence[RestingLog], *, quorum: int = 0) -> Healing:
    """Plan how donors heal a log; nothing is written.

    Args:
        donors: The same partition elsewhere.
        quorum: How many donors have to agree on damage, if these are more than half of those that
            count; 0: all that count.
    """
    view = log.view
    if view is None or not log.base_offsets:
        return Healing()
    scan = find_damage(view, log.base_offsets, cleaner_offset=log.checkpoints.cleaner_offset)
    wrong = _find_wrong_entries(log, scan.all_damage)
    log = replace(log, epochs=tuple(entry for entry in log.epochs if entry not in wrong))
    marks = [each.checkpoints.high_watermark for each in (log, *donors)]
    patient = _Patient(
        log=log,
        view=view,
        has_transactions=scan.has_transactions,
        committed=max((mark for mark in marks if mark is not None), default=None),
        lineages=tuple(each.epochs for each in (log, *donors)),
    )
    answers: list[tuple[DamageAnswer, LogDamage]] = []
    fillings: list[_Filling] = []
    whole: set[int] = set()
    for damage in scan.all_damage:
        if damage.after is None and not _lacks_end(damage, patient):
            continue
        if damage.segments and damage.segments <= whole:
            continue
        answer, filling = _fill(damage, patient, donors, quorum)
        if filling is not None and filling.damage is not damage:
            # What was to fill some of these segments is in them.
            others = [each for each in fillings if each.damage.segments & filling.damage.segments]
            if all(each.damage.segments <= filling.damage.segments for each in others):
                fillings = [each for each in fillings if each not in others]
                whole |= filling.damage.segments
            else:
                reason = "was compacted apart, and damage before it goes across two segments"
                answer, filling = _leave(answer, DamageState.COMPACTED_APART, reason), None
        answers.append((answer, damage))
        fillings += [] if filling is None else [filling]
    fillings, answers = _leave_segments(fillings, answers)
    return Healing(
        all_damage=tuple(answer for answer, _ in answers),
        segments=tuple(_assemble(patient, fillings)),
        wrong_epochs=tuple(entry.epoch for entry in wrong),
    )


def _find_wrong_entries(log: RestingLog, all_damage: Sequence[LogDamage]) -> list[EpochEntry]:
    """Return the entries of an epoch file that damaged batches brought in."""
    return [
        entry
        for entry in log.epochs
        for damage in all_damage
        if damage.after is not None
        and damage.first_offset <= entry.start_offset < damage.after.base_offset
        and entry.epoch > damage.after.leader_epoch >= 0
    ]


def _lacks_end(damage: LogDamage, patient: _Patient) -> bool:
    """Tell whether a log lost its end.

    One that is only behind others has all that it ever had: its broker fetches the rest.
    """
    own = patient.log.checkpoints.high_watermark or 0
    committed = own if damage.is_blank else (patient.committed or 0)
    return damage.first_offset < committed


_Answers = list[tuple[DamageAnswer, LogDamage]]


def _leave_segments(fillings: list[_Filling], answers: _Answers) -> tuple[list[_Filling], _Answers]:
    """Leave segments whole in which there is damage that nothing fills.

    A segment that is swapped is read anew by a loader, and cut where it is still damaged.
    """
    while True:
        stay: set[int] = set().union(
            *(
                damage.segments
                for answer, damage in answers
                if answer.state is not DamageState.FILLED
            )
        )
        kept_fillings = [each for each in fillings if not stay & each.damage.segments]
        if len(kept_fillings) == len(fillings):
            return fillings, answers
        fillings = kept_fillings
        reason = "a segment of it has other damage that nothing fills: it stays as it is"
        answers = [
            (
                _leave(answer, DamageState.SEGMENT_LEFT, reason)
                if answer.state is DamageState.FILLED and stay & damage.segments
                else answer,
                damage,
            )
            for answer, damage in answers
        ]


def _leave(answer: DamageAnswer, state: DamageState, reason: str) -> DamageAnswer:
    """Return an answer that says why damage stays."""
    return replace(answer, state=state, filled_bytes=0, filled_batches=0, donors=(), reason=reason)


def _fill(
    damage: LogDamage, patient: _Patient, donors: Sequence[RestingLog], quorum: int
) -> tuple[DamageAnswer, _Filling | None]:
    """Return what becomes of damage."""
    first = next(iter(damage.ranges), None)
    head = DamageAnswer(
        state=DamageState.NO_DONOR,
        first_offset=damage.first_offset,
        end_offset=damage.end_offset,
        file="" if first is None else log_file(first.segment),
        position=0 if first is None else first.position,
        size_bytes=damage.size_bytes,
        reason="no other replica of this partition was given",
    )
    candidates: list[_Filling] = []
    refusals: list[tuple[str, _NoFilling]] = []
    for donor in donors:
        result = _ask(damage, patient, donor)
        if isinstance(result, _Filling):
            candidates.append(result)
        else:
            refusals.append((donor.place.directory, result))
    if not candidates:
        if not refusals:
            return head, None
        reason = "; ".join(f"{place} {refusal.reason}" for place, refusal in refusals)
        return replace(head, state=refusals[0][1].state, reason=reason), None
    agreeing = [[one for one in candidates if one.agrees(other)] for other in candidates]
    number = max(range(len(candidates)), key=lambda n: (len(agreeing[n]), len(candidates[n].names)))
    filling, count = candidates[number], len(agreeing[number])
    least = max(quorum, len(candidates) // 2 + 1) if quorum else len(candidates)
    if count < least:
        places = ", ".join(each.donor.place.directory for each in candidates)
        reason = (
            f"{count} of {len(candidates)} replicas have the same there, {least} have to: {places}"
        )
        return replace(head, state=DamageState.DONORS_DIFFER, reason=reason), None
    answer = replace(
        head,
        state=DamageState.FILLED,
        filled_bytes=sum(each.piece.size_bytes for each in filling.pieces),
        filled_batches=len(filling.names),
        donors=tuple(each.donor.place.directory for each in agreeing[number]),
        reason="",
    )
    return answer, filling


def _ask(damage: LogDamage, patient: _Patient, donor: RestingLog) -> _Filling | _NoFilling:
    """Return what a donor has in the place of damage."""
    refusal = _refuse(damage, donor)
    if refusal is not None:
        return refusal
    before, after = damage.before, damage.after
    first = damage.first_offset if before is None else before.base_offset
    end = (patient.committed or 0) if after is None else after.base_offset + 1
    rows = _read(donor, first, end)
    batches = rows.batches
    is_dense = len(rows) > 0 and bool(
        (batches.base_offset[1:] == batches.last_offset[:-1] + 1).all()
        and (before is not None or batches.base_offset[0] == first)
    )
    between = rows.take(
        np.arange(len(rows))[0 if before is None else 1 : None if after is None else -1]
    )
    if after is None:
        between = between.take(between.batches.last_offset < end)
    # What was cleaned alike here and there has the same bytes for it.
    is_as_long = len(damage.ranges) == 1 and between.batches.size.sum() == damage.size_bytes
    has_neighbours = (
        len(rows) >= (before is not None) + (after is not None)
        and (before is None or name_of(batches, 0) == before)
        and (after is None or name_of(batches, -1) == after)
    )
    is_whole = is_as_long or (is_dense and _keeps_tombstones(damage, patient, donor, between))
    if not (has_neighbours and is_whole):
        return _take_segments(damage, patient, donor, has_neighbours=has_neighbours)
    fault = _find_fault(patient, rows)
    if fault is not None:
        return fault
    stale = np.flatnonzero(_find_least_epochs(patient.log, between) > between.batches.leader_epoch)
    if stale.size:
        at, epoch = (
            int(column[stale[0]])
            for column in (between.batches.base_offset, between.batches.leader_epoch)
        )
        reason = f"has epoch {epoch} at offset {at}, where this log had a later one"
        return _NoFilling(DamageState.DONOR_DIVERGED, reason)
    if after is None and not len(between):
        reason = f"has no whole batch from offset {damage.first_offset} on"
        return _NoFilling(DamageState.DONOR_LACKS, reason)
    return _filling_of(damage, donor, between, patient.log.base_offsets)


def _find_fault(patient: _Patient, rows: BatchRows) -> _NoFilling | None:
    """Return why batches of a donor heal nothing, or None.

    A leader epoch lies outside of the checksum. With one that no leader had, the healed replica
    would never be in sync again.
    """
    bad = rows.batches.base_offset[rows.batches.crc_ok != 1]
    if bad.size:
        return _NoFilling(DamageState.DONOR_DAMAGED, f"is damaged there, too, at offset {bad[0]}")
    wrong = np.flatnonzero(~are_batches_believed(rows.batches, patient.lineages))
    if not wrong.size:
        return None
    at, epoch = (
        int(column[wrong[0]]) for column in (rows.batches.base_offset, rows.batches.leader_epoch)
    )
    reason = (
        f"has leader epoch {epoch} at offset {at}, which neither the batches around it nor the "
        "epoch files have"
    )
    return _NoFilling(DamageState.DONOR_DAMAGED, reason)


def _find_least_epochs(log: RestingLog, rows: BatchRows) -> NDArray[np.int64]:
    """Return the epochs that a log's epoch file has for batches.

    -1 where it has none. A replica that was not there when a later leader wrote has other records
    at these offsets.
    """
    starts = np.array([entry.start_offset for entry in log.epochs], np.int64)
    epochs = np.array([-1, *(entry.epoch for entry in log.epochs)], np.int64)
    least = epochs[np.searchsorted(starts, rows.batches.base_offset, side="right")]
    # Batches of old formats have no epoch.
    return np.where(rows.batches.leader_epoch < 0, -1, least)


def _keeps_tombstones(
    damage: LogDamage, patient: _Patient, donor: RestingLog, rows: BatchRows
) -> bool:
    """Tell whether batches bring back no value whose tombstone is gone. A cleaner also takes
    records out of batches, which keep their offsets then."""
    own = patient.log.checkpoints.cleaner_offset or 0
    other = donor.checkpoints.cleaner_offset or 0
    batches = rows.batches
    span = batches.last_offset - batches.base_offset + 1
    is_complete = bool((batches.counted_records == span).all())
    if is_complete:
        return own <= max(damage.first_offset, other)
    has_transactions = patient.has_transactions or bool(batches.is_transactional.any())
    end = damage.end_offset
    return end is not None and end <= own <= other and not has_transactions


def _refuse(damage: LogDamage, donor: RestingLog) -> _NoFilling | None:
    """Return why a donor is not even read, or None."""
    if donor.view is None:
        return _NoFilling(DamageState.DONOR_LACKS, donor.error or "has no log")
    if damage.before is None and damage.after is None:
        reason = "may have another log: no batch is left here to compare; take the whole directory"
        return _NoFilling(DamageState.NO_DONOR, reason)
    before = damage.before
    if damage.after is None and damage.ranges and before is not None and before.magic < MAGIC_V2:
        # Behind damage only batches of format v2 are found: what is not committed would go.
        reason = "cannot say how a log of an old message format went on here; `pylog recover` cuts"
        return _NoFilling(DamageState.NO_DONOR, reason)
    if not donor.log_start_offset <= damage.first_offset < donor.log_end_offset:
        reason = (
            f"has offsets {donor.log_start_offset} to {donor.log_end_offset - 1}, "
            f"not {damage.first_offset}"
        )
        return _NoFilling(DamageState.DONOR_LACKS, reason)
    return None


def _take_segments(
    damage: LogDamage, patient: _Patient, donor: RestingLog, *, has_neighbours: bool
) -> _Filling | _NoFilling:
    """Return whole segments of a donor that a cleaner went over."""
    own, other = patient.log.checkpoints.cleaner_offset, donor.checkpoints.cleaner_offset
    if own is None or other is None or damage.first_offset >= max(own, other):
        if has_neighbours:
            state, what = DamageState.COMPACTED_APART, "the same {}, but was cleaned otherwise"
        else:
            state, what = DamageState.DONOR_DIVERGED, "other batches {}: its log is another one"
        reason = what.format(f"around offset {damage.first_offset}")
        return _NoFilling(state, f"has {reason}")
    bases = patient.log.base_offsets
    damaged = [each.segment for each in damage.ranges]
    if not damaged or damaged[-1] == bases[-1]:
        reason = "was compacted apart, and no closed segment here is damaged"
        return _NoFilling(DamageState.COMPACTED_APART, reason)
    first, end = damaged[0], bases[bases.index(damaged[-1]) + 1]
    if not end <= own <= other:
        reason = (
            f"was compacted apart: offsets {first} to {end} have to be clean here (they are to "
            f"{own}) and at least as far there ({other})"
        )
        return _NoFilling(DamageState.COMPACTED_APART, reason)
    rows = _read(donor, first, end)
    fault = _find_fault(patient, rows)
    if fault is not None:
        return fault
    if patient.has_transactions or rows.batches.is_transactional.any():
        reason = "was compacted apart, and markers of transactions may be gone from one of both"
        return _NoFilling(DamageState.COMPACTED_APART, reason)
    whole = LogDamage(
        ranges=tuple(
            FileRange(base, 0, patient.view.source(log_file(base)).size_bytes)
            for base in bases
            if first <= base < end
        ),
        before=None,
        before_segment=first,
        after=None,
        after_segment=end,
    )
    return _filling_of(whole, donor, rows, bases)


def _read(log: RestingLog, first: int, end: int) -> BatchRows:
    """Return the batches that begin from one offset on, below another."""
    reader = LogReader(log.view, log.base_offsets, ReadDepth.CHECKSUMS, ranges=[(first, end)])
    rows = reader.rows
    while not reader.is_at_end:
        reader.fill()
        rows = rows.join(reader.rows)
        reader.rows = reader.rows.take(np.zeros(len(reader.rows), np.bool_))
    return rows


def _filling_of(
    damage: LogDamage, donor: RestingLog, rows: BatchRows, base_offsets: Sequence[int]
) -> _Filling:
    """Return batches of a donor as a filling.

    Args:
        base_offsets: The segments of the log to be healed; no piece lies in two of them.
    """
    pieces = []
    batches = rows.batches
    homes = np.searchsorted(base_offsets, batches.base_offset, side="right")
    is_edge = (
        (rows.segment[1:] != rows.segment[:-1])
        | (batches.position[1:] != batches.position[:-1] + batches.size[:-1])
        | (homes[1:] != homes[:-1])
    )
    starts = [0, *(np.flatnonzero(is_edge) + 1).tolist(), len(rows)] if len(rows) else []
    for start, end in pairwise(starts):
        segment, position = int(rows.segment[start]), int(batches.position[start])
        size_bytes = int(batches.size[start:end].sum())
        assert donor.view is not None  # noqa: S101  # it has batches
        with closing(donor.view.open(log_file(segment))) as reader:
            crc = find_crc(SliceReader(reader, position, size_bytes))
        piece = FilePiece(
            directory=donor.place.directory,
            file=log_file(segment),
            position=position,
            size_bytes=size_bytes,
            crc=crc,
        )
        pieces.append(_DonorPiece(segment, int(batches.base_offset[start]), piece))
    return _Filling(damage=damage, donor=donor, names=batch_names(batches), pieces=tuple(pieces))


def _assemble(patient: _Patient, fillings: Sequence[_Filling]) -> Iterator[PiecedSegment]:
    """Yield the segments that become others, rising."""
    view, bases = patient.view, patient.log.base_offsets
    # By segment, what comes where bytes of it go: position and length of these, and the pieces.
    changes: dict[int, list[tuple[int, int, list[FilePiece]]]] = {}
    added: dict[int, tuple[RestingLog, list[FilePiece]]] = {}
    for filling in fillings:
        homes: dict[int, list[FilePiece]] = {}
        for each in filling.damage.ranges:
            homes[each.segment] = []
            change = each.position, each.size_bytes, homes[each.segment]
            changes.setdefault(each.segment, []).append(change)
        place: list[FilePiece] = []
        before: tuple[int, int] | None = None
        for segment, first_offset, piece in filling.pieces:
            home = _home(filling.damage, first_offset, bases)
            if home == filling.damage.after_segment and home not in homes:
                homes[home] = []
                changes.setdefault(home, []).insert(0, (0, 0, homes[home]))
            is_new_home = before is None or before[0] != home
            if is_new_home and home in homes:
                place = homes[home]
            elif is_new_home or (
                before is not None and before[1] != segment and home != filling.damage.after_segment
            ):
                # Segments that are missing have the donor's bounds.
                place = []
                added[first_offset] = filling.donor, place
            place.append(piece)
            before = home, segment
    for base in sorted({*changes, *added}):
        if base in added:
            donor, pieces = added[base]
            assert donor.view is not None  # noqa: S101  # it has the pieces
            modified_ms = donor.view.source(pieces[0].file).modified_ms
        else:
            file = view.source(log_file(base))
            modified_ms = file.modified_ms
            pieces = _with_changes(log_file(base), file.size_bytes, changes[base])
        yield PiecedSegment(base_offset=base, modified_ms=modified_ms, pieces=tuple(pieces))


def _home(damage: LogDamage, first_offset: int, base_offsets: Sequence[int]) -> int:
    """Return the existing segment that a filling's batch belongs to."""
    if damage.before is not None and damage.before_segment == damage.after_segment:
        return damage.before_segment
    number = bisect_right(base_offsets, first_offset) - 1
    return max(damage.before_segment, base_offsets[max(number, 0)])


def _with_changes(
    name: str, size_bytes: int, changes: Sequence[tuple[int, int, list[FilePiece]]]
) -> list[FilePiece]:
    """Return a segment's own pieces, with others in place of some bytes."""
    pieces: list[FilePiece] = []
    position = 0
    for start, length, others in sorted(changes, key=itemgetter(0)):
        if start > position:
            pieces.append(
                FilePiece(directory="", file=name, position=position, size_bytes=start - position)
            )
        pieces += others
        position = start + length
    if position < size_bytes:
        pieces.append(
            FilePiece(directory="", file=name, position=position, size_bytes=size_bytes - position)
        )
    return pieces
