"""Find differences between a partition's replicas, and contradictions within one. Replicas are
compared as they are, including bytes that a start of their brokers would cut."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.cluster.audit import MatchedRecords, batch_names, match_batches
from storage_core.cluster.log_batches import (
    BatchRows,
    LogReader,
    Ranges,
    ReadDepth,
    clip,
    count,
    is_within,
    of_offsets,
    pieces,
    union,
)
from storage_core.cluster.places import PartitionRegistration
from storage_core.cluster.resting_log import RestingLog, check_log
from storage_core.errors import PylogError
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    OFFSET_INDEX_SUFFIX,
    TRANSACTION_STATE_TOPIC,
    log_file,
    segment_file,
)
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.key_hash import siphash_each
from storage_core.log.batch_search import find_batch, read_offset_index
from storage_core.log.committed_view import scan_committed_view
from storage_core.log.directory_view import DirectoryView
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code, Finding

# Find records missing from a compacted log without a cleaner's reason. Neither the record nor a
# newer one of its key is there.
#
# A cleaner removes a record when its key has a newer one, a deletion (tombstone) after its time, a
# record of an aborted transaction, and one without a key. Everything else has to be there still.

# Keys in memory at once. More keys take several passes.
_MOST_KEYS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records of a log, in order of offsets."""

    offset: NDArray[np.int64]  # int64[n]
    epoch: NDArray[np.int64]  # int64[n]
    segment: NDArray[np.int64]  # int64[n], base offset of the segment of each
    position: NDArray[np.int64]  # int64[n], of its batch in that segment's file


@dataclass(frozen=True, slots=True)
class Keys:
    """Keyed records that are not of an aborted transaction."""

    halves: NDArray[np.uint64]  # uint64[2, n], hashes of the keys
    # int64[5, n], offset, epoch, segment, position, and whether it is a tombstone.
    facts: NDArray[np.int64]


def find_lost(has: RestingLog, lacks: RestingLog, missing: Ranges) -> tuple[LostRecords, int]:
    """Return records missing from a compacted log without a newer one.

    Returns:
        The records, and how many bytes were read to find out.
    """
    passes = 1 + count(missing) // _MOST_KEYS
    parts: list[NDArray[np.int64]] = [np.empty((5, 0), np.int64)]
    read_bytes = 0
    for number in range(passes):
        wanted, mine = _read_keys(has, number, passes, missing)
        other, theirs = _read_keys(lacks, number, passes, None)
        parts.append(find_unexplained(wanted, other))
        read_bytes += mine + theirs
    facts = np.concatenate(parts, axis=1)
    facts = facts[:, np.argsort(facts[0])]
    return LostRecords(*facts[:4]), read_bytes


def find_unexplained(
    wanted: Keys, other: Keys, places: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return missing records without a newer one in the other log. A newer record has the same key.

    Args:
        places: Behind which offset of that log each would be; None for its own offset.
    """
    names, of_wanted = np.unique(wanted.halves[0], return_inverse=True)
    newest = np.full(len(names), -1, np.int64)
    slot = np.minimum(np.searchsorted(names, other.halves[0]), max(len(names) - 1, 0))
    is_known = names[slot] == other.halves[0] if len(names) else np.zeros(len(slot), np.bool_)
    np.maximum.at(newest, slot[is_known], other.facts[0, is_known])
    offset = wanted.facts[0]
    # For each key, its newest missing record.
    last = np.full(len(names), -1, np.int64)
    np.maximum.at(last, of_wanted, offset)
    is_last = last[of_wanted] == offset
    is_expired = np.zeros(len(names), np.bool_)
    is_expired[of_wanted[is_last & (wanted.facts[4] != 0)]] = True
    is_lost = newest[of_wanted] <= (offset if places is None else places)
    is_lost &= ~is_expired[of_wanted]
    return wanted.facts[:, is_lost]


def _read_keys(log: RestingLog, number: int, passes: int, only: Ranges | None) -> tuple[Keys, int]:
    """Return a log's keys for one pass of several, and bytes read."""
    halves: list[NDArray[np.uint64]] = [np.empty((2, 0), np.uint64)]
    facts: list[NDArray[np.int64]] = [np.empty((5, 0), np.int64)]
    read_bytes = 0
    assert log.view is not None  # noqa: S101  # it was compared
    aborted = scan_committed_view(log.view.store).aborted
    transactions = [txn for _, txns in aborted for txn in txns]
    for rows in _committed_rows(log.view, log.base_offsets, transactions, only):
        for group in rows.groups():
            read_bytes += int(group.batches.size.sum())
            table = group.records()
            offset = table["offset"].to_numpy()
            is_wanted = np.asarray(table["key"].is_valid(), np.bool_)
            if only is not None:
                is_wanted &= is_within(offset, only)
            table, offset = table.filter(pa.array(is_wanted)), offset[is_wanted]
            hashes = _hash(table["key"].combine_chunks())
            is_of_pass = hashes[0] % np.uint64(passes) == number
            row = np.searchsorted(group.batches.last_offset, offset)
            tombstone = np.asarray(table["value"].is_null(), np.int64)
            columns = [
                offset,
                table["epoch"].to_numpy(),
                group.segment[row],
                group.batches.position[row],
                tombstone,
            ]
            halves.append(hashes[:, is_of_pass])
            facts.append(np.stack(columns)[:, is_of_pass])
    return Keys(np.concatenate(halves, axis=1), np.concatenate(facts, axis=1)), read_bytes


def _committed_rows(
    view: DirectoryView,
    base_offsets: tuple[int, ...],
    aborted: list[AbortedTxn],
    only: Ranges | None,
) -> Iterator[BatchRows]:
    """Yield batches with a right checksum, of data that did not abort."""
    reader = LogReader(view, base_offsets, ReadDepth.CHECKSUMS)
    while True:
        reader.fill()
        if reader.is_at_end:
            return
        rows = reader.rows
        batches = rows.batches
        is_wanted = (batches.crc_ok != 0) & ~batches.is_control
        for txn in aborted:
            is_wanted &= (
                ~batches.is_transactional
                | (batches.producer_id != txn.producer_id)
                | (batches.base_offset < txn.first_offset)
                | (batches.last_offset > txn.last_offset)
            )
        if only is not None:
            at = np.searchsorted(only[:, 1], rows.lowest)
            starts = np.append(only[:, 0], np.iinfo(np.int64).max)
            is_wanted &= starts[at] <= batches.last_offset
        yield rows.take(is_wanted)
        reader.rows = rows.take(np.zeros(len(rows), np.bool_))


def _hash(keys: pa.BinaryArray) -> NDArray[np.uint64]:
    """Hash keys, none of them null, into halves, uint64[2, n]."""
    _, offsets, data = keys.buffers()
    if not len(keys):
        return np.empty((2, 0), np.uint64)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    halves = np.stack([ends[:-1], np.diff(ends)]).astype(np.uint64)
    content = np.zeros(1, np.uint8) if data is None or not len(data) else data
    siphash_each(np.frombuffer(content, np.uint8), halves[0], halves[1], 0, len(keys), 0, 0)
    return halves


# One difference between two logs of a partition: kind, offsets, places.

# Differences of two logs in a list; further ones are counted.
MOST_LISTED: Final = 1000


class DifferenceKind(enum.StrEnum):
    """The kind of a difference.

    MISSING: one has records that the other has not. EPOCH: the same records, of another leader
    epoch. BYTES: a batch has other bytes. RECORD: another record has the offset. COMPACTION: one
    lacks a record and all that a cleaner may have removed it for. The others are of copies in other
    clusters. DOUBLED: the copy has a record twice. DIFFERENT: another key, value, timestamp or
    other headers. ORDER: the copy has a record elsewhere. EXTRA: only the copy has a record.
    OFFSET: a record is at another offset than it should be. BEHIND: what follows the last record
    that the copy has; not a loss.
    """

    MISSING = "missing"
    EPOCH = "epoch"
    BYTES = "bytes"
    RECORD = "record"
    COMPACTION = "compaction"
    DOUBLED = "doubled"
    DIFFERENT = "different"
    ORDER = "order"
    EXTRA = "extra"
    OFFSET = "offset"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two replicas at a difference."""

    log: RestingLog
    epoch: int | None = None  # leader epoch of the first batch that differs, None where it has none
    file: str = ""  # name of the segment's file, empty where nothing is
    # Where in it that batch lies, or what it lacks would; None where nothing is.
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two replicas."""

    kind: DifferenceKind
    first_offset: int
    last_offset: int
    side: Side  # the replica that lacks something, or the one that is compared
    other: Side
    message: str = ""  # further facts; often empty


def place_of(log: RestingLog, offset: int, epoch: int | None) -> Side:
    """Return the place of an offset in a replica. Only headers near the offset are read from its
    file."""
    bases = [base for base in log.base_offsets if base <= offset]
    if log.view is None or not bases:
        return Side(log=log, epoch=epoch)
    name = log_file(bases[-1])
    index = read_offset_index(log.view, bases[-1], segment_file(bases[-1], OFFSET_INDEX_SUFFIX))
    try:
        place = find_batch(log.view, name, offset, index.look_up(offset))
    except PylogError:
        place = None  # the bytes before the offset are no batches
    position = None if place is None else place.position
    return Side(log=log, epoch=epoch, file=log.view.place(name)[0], position=position)


# Two replicas of a partition, compared batch by batch.
#
# Batches are told apart by their headers, or by digests of all of their bytes. Records are decoded
# only where batches differ, and both logs have some at these offsets.


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


COMPACTED_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """What contradicts itself within one replica."""

    log: RestingLog
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The answer about one partition."""

    differences: tuple[Difference, ...]  # between two replicas each
    untold: int  # ranges that differ beyond those
    findings: tuple[LogFinding, ...]  # within one replica each
    undecided: int  # batches that a cleaner may have left apart: their headers do not tell
    read_bytes: int


def find_differences(
    logs: Sequence[RestingLog],
    topic: str,
    state: PartitionRegistration | None,
    look: ReadDepth | None,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> Differences:
    """Compare each replica with each other one.

    A replica that cannot be read is left out. What two replicas do not share with the first one
    is told of these two as well; what follows from that is not repeated.

    Args:
        state: The partition's registration, None if unknown.
        look: How much of each batch to look at; None for the offsets and epochs of the logs alone.
        ranges: Only batches that begin in one of these, first and end offset; None for all. Then
            nothing is said of single replicas.
    """
    readable = [log for log in logs if not log.error]
    leader = None if state is None else state.leader
    # The replica that most others follow: the leader, else the longest.
    readable.sort(key=lambda log: (log.place.broker != leader, -log.log_end_offset))
    if look is None:
        pairs = [_compare_offsets(*pair) for pair in combinations(readable, 2)]
        findings = [
            LogFinding(log=log, finding=finding)
            for log in readable
            for finding in check_log(log, (), state)
        ]
        return _put_together(readable, pairs, findings)
    is_compacted = topic in COMPACTED_TOPICS or (state is not None and state.is_compacted)
    sparse_ends = [0] * len(readable)
    read_bytes = 0
    while True:
        # Traces of a cleaner are complete only after reading all batches.
        cleaned = [
            cleaned_end(log, sparse, is_compacted=is_compacted)
            for log, sparse in zip(readable, sparse_ends, strict=True)
        ]
        comparison = _Comparison(readable, look, cleaned, ranges)
        comparison.run()
        read_bytes += comparison.read_bytes
        traces = [reader.sparse_end for reader in comparison.readers]
        if traces == sparse_ends or not comparison.has_differences:
            break
        sparse_ends = traces
    lost = [pair.find_lost() for pair in comparison.pairs]
    findings = []
    if ranges is None:
        findings = [
            LogFinding(log=log, finding=finding)
            for log, reader in zip(readable, comparison.readers, strict=True)
            for finding in findings_of(log, reader, state)
        ]
    answer = _put_together(readable, comparison.pairs, findings)
    return replace(answer, read_bytes=read_bytes + sum(lost))


def findings_of(
    log: RestingLog, reader: LogReader, state: PartitionRegistration | None
) -> list[Finding]:
    """Return contradictions within a replica that was read. Verification reports wrong checksums
    that all replicas have.

    Args:
        state: The partition's registration, None if unknown.
    """
    findings = FindingCollector()
    for damage in reader.damage:
        code = Code.BATCH_LENGTH_IMPOSSIBLE
        if damage.is_tail:
            code = Code.TORN_TAIL if damage.file == log.last_file else Code.TORN_SEGMENT
        findings.add(code, damage.reason, file=damage.file, position=damage.position)
    for fall in reader.falls:
        findings.add(
            Code.EPOCH_GOES_BACK,
            f"leader epoch {fall.run.epoch} follows {fall.before}",
            file=fall.file,
            position=fall.position,
            offset=fall.run.first_offset,
        )
    return [*findings.findings(), *check_log(log, reader.epochs, state)]


def cleaned_end(log: RestingLog, sparse_end: int, *, is_compacted: bool) -> int:
    """Return the end of possibly compacted offsets; 0 for none. A cleaner may have removed
    records below it."""
    if log.checkpoints.cleaner_offset:
        return log.checkpoints.cleaner_offset
    if not log.base_offsets or not (is_compacted or sparse_end):
        return 0
    return max(log.base_offsets[-1], sparse_end)


class _Comparison:
    """All replicas of a partition, read once, side by side.

    Args:
        cleaned: Below which offset a cleaner was in each.
        ranges: Where to look, None for everywhere.
    """

    def __init__(
        self,
        logs: Sequence[RestingLog],
        look: ReadDepth,
        cleaned: Sequence[int],
        ranges: Sequence[tuple[int, int]] | None,
    ) -> None:
        self.readers = [LogReader(log.view, log.base_offsets, look, ranges=ranges) for log in logs]
        self._numbers = list(combinations(range(len(logs)), 2))
        self.pairs = [
            ReplicaPair((logs[one], logs[two]), look, (cleaned[one], cleaned[two]))
            for one, two in self._numbers
        ]

    @property
    def has_differences(self) -> bool:
        """Whether any two replicas differ, or one lacks what the other has."""
        return any(
            pair.differences or any(map(len, pair.lacked[0] + pair.lacked[1]))
            for pair in self.pairs
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of batches that were looked at."""
        return sum(reader.read_bytes for reader in self.readers)

    def run(self) -> None:
        """Read all, and compare."""
        for start, end, parts in pieces(self.readers):
            for pair, (one, two) in zip(self.pairs, self._numbers, strict=True):
                behind = self.readers[one].rows, self.readers[two].rows
                pair.compare(PairPiece((parts[one], parts[two]), behind, start, end))


def _compare_offsets(one: RestingLog, two: RestingLog) -> ReplicaPair:
    """Compare two replicas' ends, and epochs at the offsets of both."""
    pair = ReplicaPair((one, two))
    start = max(one.log_start_offset, two.log_start_offset)
    end = min(one.log_end_offset, two.log_end_offset)
    starts = {entry.start_offset for log in (one, two) for entry in log.epochs}
    bounds = sorted({start, end, *(at for at in starts if start < at < end)})
    for low, high in pairwise(bounds):
        epochs = one.cache.epoch_for_offset(low), two.cache.epoch_for_offset(low)
        if epochs[0] != epochs[1] and low < end:
            pair.add(
                Difference(
                    kind=DifferenceKind.EPOCH,
                    first_offset=low,
                    last_offset=high - 1,
                    side=place_of(two, low, epochs[1]),
                    other=place_of(one, low, epochs[0]),
                )
            )
    for short, long in ((one, two), (two, one)):
        low = max(start, short.log_end_offset)
        if low < long.log_end_offset:
            last = long.log_end_offset - 1
            pair.add(
                Difference(
                    kind=DifferenceKind.MISSING,
                    first_offset=low,
                    last_offset=last,
                    side=Side(log=short, file=short.last_file, position=short.end_position)
                    if short.view is not None
                    else Side(log=short),
                    other=place_of(long, low, long.cache.epoch_for_offset(low)),
                    message="nothing is there" if short.view is None else "",
                )
            )
    return pair


def _put_together(
    logs: Sequence[RestingLog], pairs: Sequence[ReplicaPair], findings: Sequence[LogFinding]
) -> Differences:
    """Collect the differences of all pairs, each difference once. A pair without the first log
    adds only differences that neither log has from the first."""
    first = logs[0] if logs else None
    of_first = {id(pair.logs[1]): pair.differences for pair in pairs if pair.logs[0] is first}
    differences: list[Difference] = []
    for pair in pairs:
        if pair.logs[0] is first:
            differences += pair.differences
            continue
        first_differences = of_first[id(pair.logs[0])], of_first[id(pair.logs[1])]
        differences += [
            each
            for each in pair.differences
            if all(_overlaps(each, others) for others in first_differences)
        ]
    return Differences(
        differences=tuple(differences),
        untold=sum(pair.untold for pair in pairs),
        findings=tuple(findings),
        undecided=sum(pair.undecided for pair in pairs if pair.logs[0] is first),
        read_bytes=0,
    )


def _overlaps(difference: Difference, others: Sequence[Difference]) -> bool:
    return any(
        other.first_offset <= difference.last_offset
        and difference.first_offset <= other.last_offset
        for other in others
    )
