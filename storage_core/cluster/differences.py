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
from storage_core.records.batch_table import BatchTable

# Find records missing from a compacted log without a cleaner's reason. Neither the record nor a
# newer one of its key is there.
#
# A cleaner removes a record when its key has a newer one, a deletion (tombstone) after its time, a
# record of an aborted transaction, and one without a key. Everything else has to be there still.

# Keys in memory at once. More keys take several passes.
_MOST_KEYS: Final = 1 << 22


# A record with a key, by which it is found again.
KEYED_RECORD: Final = np.dtype(
    [
        ("offset", np.int64),
        ("epoch", np.int64),
        ("segment", np.int64),  # base offset of its segment
        ("position", np.int64),  # of its batch in that segment's file
        ("is_tombstone", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keyed records that are not of an aborted transaction."""

    hashes: NDArray[np.uint64]  # uint64[n], of the keys
    records: NDArray[np.void]  # n of KEYED_RECORD, or of a dtype with its offset and is_tombstone

    @classmethod
    def join(cls, parts: Sequence["Keys"]) -> "Keys":
        """Return the keys of several parts, at least one."""
        return cls(
            np.concatenate([each.hashes for each in parts]),
            np.concatenate([each.records for each in parts]),
        )


def find_lost(has: RestingLog, lacks: RestingLog, missing: Ranges) -> tuple[NDArray[np.void], int]:
    """Return records missing from a compacted log without a newer one.

    Returns:
        The records, of KEYED_RECORD in order of offsets, and how many bytes were read to find out.
    """
    passes = 1 + count(missing) // _MOST_KEYS
    parts = [np.empty(0, KEYED_RECORD)]
    read_bytes = 0
    for number in range(passes):
        wanted, mine = _read_keys(has, number, passes, missing)
        other, theirs = _read_keys(lacks, number, passes, None)
        parts.append(wanted.records[find_unexplained(wanted, other)])
        read_bytes += mine + theirs
    lost = np.concatenate(parts)
    return lost[np.argsort(lost["offset"])], read_bytes


def find_unexplained(
    wanted: Keys, other: Keys, places: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Mark missing records without a newer one in the other log. A newer record has the same key.

    Args:
        places: Behind which offset of that log each would be; None for its own offset.
    """
    names, of_wanted = np.unique(wanted.hashes, return_inverse=True)
    newest = np.full(len(names), -1, np.int64)
    slot = np.minimum(np.searchsorted(names, other.hashes), max(len(names) - 1, 0))
    is_known = names[slot] == other.hashes if len(names) else np.zeros(len(slot), np.bool_)
    np.maximum.at(newest, slot[is_known], other.records["offset"][is_known])
    offset = wanted.records["offset"]
    # For each key, its newest missing record.
    last = np.full(len(names), -1, np.int64)
    np.maximum.at(last, of_wanted, offset)
    is_last = last[of_wanted] == offset
    is_expired = np.zeros(len(names), np.bool_)
    is_expired[of_wanted[is_last & wanted.records["is_tombstone"]]] = True
    is_lost: NDArray[np.bool_] = newest[of_wanted] <= (offset if places is None else places)
    return is_lost & ~is_expired[of_wanted]


def _read_keys(log: RestingLog, number: int, passes: int, only: Ranges | None) -> tuple[Keys, int]:
    """Return a log's keys for one pass of several, and bytes read."""
    parts = [Keys(np.empty(0, np.uint64), np.empty(0, KEYED_RECORD))]
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
            row = np.searchsorted(group.batches.last_offset, offset)
            records = np.empty(len(offset), KEYED_RECORD)
            records["offset"], records["epoch"] = offset, table["epoch"].to_numpy()
            records["segment"] = group.segment[row]
            records["position"] = group.batches.position[row]
            records["is_tombstone"] = np.asarray(table["value"].is_null(), np.bool_)
            is_of_pass = hashes % np.uint64(passes) == number
            parts.append(Keys(hashes[is_of_pass], records[is_of_pass]))
    return Keys.join(parts), read_bytes


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
    """Hash keys, none of them null, into uint64[n]: halves of their digests."""
    _, offsets, data = keys.buffers()
    if not len(keys):
        return np.empty(0, np.uint64)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    # Where each key begins and how long it is; the hash takes their place.
    halves: NDArray[np.uint64] = np.stack([ends[:-1], np.diff(ends)]).astype(np.uint64)
    content = np.zeros(1, np.uint8) if data is None or not len(data) else data
    siphash_each(np.frombuffer(content, np.uint8), halves[0], halves[1], 0, len(keys), 0, 0)
    hashes: NDArray[np.uint64] = halves[0]
    return hashes


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


@dataclass(slots=True)
class Replica:
    """One of two replicas, while they are compared."""

    log: RestingLog
    cleaned_end: int = 0  # a cleaner was below this offset
    # Records that the other one has, and a cleaner may have removed here.
    lacked: list[Ranges] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batches:
    """Some batches of one of two replicas that reach into a range of offsets."""

    replica: Replica
    rows: BatchRows
    around: tuple[BatchRows, BatchRows]  # all that the replica has in the range, and behind it
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Batches":
        """Return some of them."""
        return replace(self, rows=self.rows.take(rows))

    @property
    def headers(self) -> BatchTable:
        """Their headers."""
        return self.rows.batches

    @property
    def has_right_checksum(self) -> NDArray[np.bool_]:
        """Which of them have the checksum of their bytes."""
        is_right: NDArray[np.bool_] = self.headers.crc_ok != 0
        return is_right

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yield first and last row of each run of batches without gaps."""
        if not len(self):
            return
        gaps = np.flatnonzero(self.rows.lowest[1:] > self.headers.last_offset[:-1] + 1)
        starts = [0, *(gaps + 1).tolist()]
        ends = [*gaps.tolist(), len(self) - 1]
        yield from zip(starts, ends, strict=True)

    def place(self, first: int, last: int) -> Side:
        """Return the place of the first batch in a range of offsets. That batch may begin below
        the range."""
        log = self.replica.log
        at = np.flatnonzero((self.headers.last_offset >= first) & (self.rows.lowest <= last))
        if not at.size or log.view is None:
            return Side(log=log)
        row = int(at[0])
        epoch = int(self.headers.leader_epoch[row])
        return Side(
            log=log,
            epoch=epoch if epoch >= 0 else None,
            file=log.view.place(log_file(int(self.rows.segment[row])))[0],
            position=int(self.headers.position[row]),
        )

    def place_behind(self, offset: int) -> Side:
        """Return the first batch's place behind an offset, else the log's end."""
        log = self.replica.log
        if log.view is None:
            return Side(log=log)
        for rows in self.around:
            at = np.flatnonzero(rows.lowest > offset)
            if at.size:
                file = log.view.place(log_file(int(rows.segment[at[0]])))[0]
                return Side(log=log, file=file, position=int(rows.batches.position[at[0]]))
        return Side(log=log, file=log.last_file, position=log.end_position)


@dataclass(slots=True)
class ReplicaPair:
    """Two replicas, while they are compared."""

    one: Replica
    two: Replica
    look: ReadDepth = ReadDepth.HEADERS
    differences: list[Difference] = field(default_factory=list)
    untold: int = 0  # how many ranges more
    undecided: int = 0  # batches of which the headers do not tell whether they differ

    @property
    def log_start_offset(self) -> int:
        """The first offset that both may have."""
        return max(self.one.log.log_start_offset, self.two.log.log_start_offset)

    @property
    def cleaned_end(self) -> int:
        """Below this offset a cleaner was in one of them."""
        return max(self.one.cleaned_end, self.two.cleaned_end)

    def add(
        self,
        kind: DifferenceKind,
        offsets: tuple[int, int],
        side: Side,
        other: Side,
        message: str = "",
    ) -> None:
        """Add a difference, or extend an adjacent one of its kind.

        Args:
            side: The replica that lacks something, or the second one.
        """
        first, end = offsets
        for number in range(len(self.differences) - 1, max(len(self.differences) - 5, -1), -1):
            last = self.differences[number]
            if (
                last.kind is kind
                and last.side.log is side.log
                and last.message == message
                and last.first_offset <= first <= last.last_offset + 1
            ):
                self.differences[number] = replace(last, last_offset=max(last.last_offset, end))
                return
        if len(self.differences) >= MOST_LISTED:
            self.untold += 1
            return
        self.differences.append(
            Difference(
                kind=kind,
                first_offset=first,
                last_offset=end,
                side=side,
                other=other,
                message=message,
            )
        )

    def compare(self, one: Batches, two: Batches) -> None:
        """Compare what both have in a range of offsets."""
        floor = self.log_start_offset
        one, two = (
            replace(each, start=max(each.start, floor)).take(each.headers.last_offset >= floor)
            for each in (one, two)
        )
        names, others = (batch_names(each.headers, each.rows.digests) for each in (one, two))
        one, two = one.take(~np.isin(names, others)), two.take(~np.isin(others, names))
        if not len(one) and not len(two):
            return
        _, at_1, at_2 = np.intersect1d(
            one.headers.base_offset, two.headers.base_offset, return_indices=True
        )
        is_pair = one.headers.last_offset[at_1] == two.headers.last_offset[at_2]
        at_1, at_2 = at_1[is_pair], at_2[is_pair]
        first, second = one.take(at_1), two.take(at_2)
        is_same = _has_same_content(first, second)
        self._add_each(DifferenceKind.EPOCH, first.take(is_same), second.take(is_same))
        self._compare_changed(first.take(~is_same), second.take(~is_same))
        one, two = one.take(_others(one, at_1)), two.take(_others(two, at_2))
        is_met = one.rows.that_meet(two.rows), two.rows.that_meet(one.rows)
        self._note_lack(one.take(~is_met[0]), two)
        self._note_lack(two.take(~is_met[1]), one)
        self._compare_overlapping(one.take(is_met[0]), two.take(is_met[1]))

    def _compare_changed(self, one: Batches, two: Batches) -> None:
        """Compare batches of the same offsets and another content."""
        if not len(one):
            return
        if self.look is ReadDepth.HEADERS:
            is_plain = one.headers.base_offset >= self.cleaned_end
            is_comparable = is_plain | _has_same_form(one.headers, two.headers)
            self.undecided += int((~is_comparable).sum())
            self._add_each(DifferenceKind.BYTES, one.take(is_comparable), two.take(is_comparable))
            return
        is_sound = one.has_right_checksum & two.has_right_checksum
        for row in np.flatnonzero(~is_sound).tolist():
            pair = one.take(np.array([row])), two.take(np.array([row]))
            damaged = [
                f"broker {each.replica.log.place.broker}"
                for each in pair
                if not each.has_right_checksum.all()
            ]
            message = f"the checksum is wrong at {' and '.join(damaged)}"
            self._add_each(DifferenceKind.BYTES, *pair, message=message)
        if is_sound.any():
            self._compare_records(one.take(is_sound), two.take(is_sound))

    def _compare_overlapping(self, one: Batches, two: Batches) -> None:
        """Compare batches that share some offsets and begin or end at others."""
        if not len(one):
            return
        if self.look is ReadDepth.HEADERS:
            if min(int(each.rows.lowest.min()) for each in (one, two)) < self.cleaned_end:
                self.undecided += len(one) + len(two)
                return
            message = "the batches begin or end at other offsets"
            self._add_range(DifferenceKind.BYTES, one, two, message)
            return
        message = "the checksum is wrong, or the offsets of a batch are"
        sound = [each.take(each.has_right_checksum) for each in (one, two)]
        if len(sound[0]) < len(one):
            damaged = one.take(~one.has_right_checksum)
            self._add_range(DifferenceKind.BYTES, damaged, two, message)
        if len(sound[1]) < len(two):
            damaged = two.take(~two.has_right_checksum)
            self._add_range(DifferenceKind.BYTES, one, damaged, message)
        if all(map(len, sound)):
            self._compare_records(*sound)

    def _compare_records(self, one: Batches, two: Batches) -> None:
        """Decode batches, and compare what is at each offset."""
        is_listed = False
        try:
            for matched in match_batches((one.rows, two.rows), one.start, one.end):
                is_listed |= self._add_records(matched, one, two)
        except PylogError as error:
            message = f"records cannot be read: {error}"
            self._add_range(DifferenceKind.BYTES, one, two, message)
            return
        if not is_listed and _bounds(one, two)[0] >= self.cleaned_end:
            self._add_range(DifferenceKind.BYTES, one, two, "the records are the same")

    def _add_records(self, matched: MatchedRecords, one: Batches, two: Batches) -> bool:
        """Add what differs record by record; return whether anything does."""
        is_listed = bool(len(matched.other))
        is_epoch = np.isin(matched.other, matched.same)
        for kind, offsets in (
            (DifferenceKind.EPOCH, matched.other[is_epoch]),
            (DifferenceKind.RECORD, matched.other[~is_epoch]),
        ):
            for low, high in _runs(offsets):
                self.add(kind, (low, high), two.place(low, low), one.place(low, low))
        tables = matched.tables
        for has, lacks, table, others in ((one, two, *tables), (two, one, *tables[::-1])):
            offsets = table["offset"].to_numpy()
            is_alone = ~np.isin(offsets, others["offset"].to_numpy())
            is_cleaned = offsets < lacks.replica.cleaned_end
            is_missing = is_alone & is_cleaned & ~np.asarray(table["is_control"], np.bool_)
            epochs = table["epoch"].to_numpy()
            lacks.replica.lacked.append(of_offsets(offsets[is_missing], epochs[is_missing]))
            for low, high in _runs(offsets[is_alone & ~is_cleaned]):
                is_listed = True
                side, other = lacks.place_behind(high), has.place(low, low)
                self.add(DifferenceKind.MISSING, (low, high), side, other)
        return is_listed

    def _note_lack(self, alone: Batches, lacks: Batches) -> None:
        """Take note of batches at whose offsets the other log has nothing."""
        is_cleaned = alone.headers.last_offset < lacks.replica.cleaned_end
        cleaned = alone.take(is_cleaned)
        if self.look is ReadDepth.HEADERS:
            self.undecided += len(cleaned)
        else:
            lacked = cleaned.rows.take(cleaned.has_right_checksum).offsets()
            lacks.replica.lacked.append(clip(lacked, start=alone.start, end=alone.end))
        plain = alone.take(~is_cleaned)
        for first, last in plain.groups():
            # The other part of a batch that crosses the range's ends is compared with other
            # batches.
            low = max(int(plain.rows.lowest[first]), plain.start)
            high = min(int(plain.headers.last_offset[last]), plain.end - 1)
            side, other = lacks.place_behind(high), plain.place(low, high)
            self.add(DifferenceKind.MISSING, (low, high), side, other)

    def _add_each(
        self, kind: DifferenceKind, one: Batches, two: Batches, message: str = ""
    ) -> None:
        """Add batches of the same offsets, one by one; neighbours become one."""
        for first, last in one.groups():
            low, high = int(one.rows.lowest[first]), int(one.headers.last_offset[last])
            self.add(kind, (low, high), two.place(low, low), one.place(low, low), message)

    def _add_range(self, kind: DifferenceKind, one: Batches, two: Batches, message: str) -> None:
        """Add all offsets that batches of both have."""
        low, high = _bounds(one, two)
        self.add(kind, (low, high), two.place(low, high), one.place(low, high), message)

    def find_lost(self) -> int:
        """Find records no cleaner can have removed; return the bytes read."""
        read_bytes = 0
        for lacks, has in ((self.one, self.two), (self.two, self.one)):
            missing = clip(union(lacks.lacked), start=self.log_start_offset)
            if not len(missing):
                continue
            missing = missing[np.argsort(missing[:, 0])]
            lost, read = find_lost(has.log, lacks.log, missing)
            read_bytes += read
            view = has.log.view
            for low, high in _runs(lost["offset"]):
                record = lost[np.searchsorted(lost["offset"], low)]
                place = Side(
                    log=has.log,
                    epoch=int(record["epoch"]) if record["epoch"] >= 0 else None,
                    file="" if view is None else view.place(log_file(int(record["segment"])))[0],
                    position=int(record["position"]),
                )
                message = "its key has no newer record either"
                side = Side(log=lacks.log)
                self.add(DifferenceKind.COMPACTION, (low, high), side, place, message)
        return read_bytes


def _has_same_content(one: Batches, two: Batches) -> NDArray[np.bool_]:
    """Mark batches with equal offsets and content; epochs may differ."""
    is_same: NDArray[np.bool_] = (one.headers.size == two.headers.size) & (
        one.headers.crc == two.headers.crc
    )
    is_same &= (one.rows.digests == two.rows.digests).all(axis=0)
    return is_same


def _has_same_form(one: BatchTable, two: BatchTable) -> NDArray[np.bool_]:
    """Mark batches with equal offsets and record counts, and not rebuilt."""
    is_same = np.ones(len(one), np.bool_)
    for name in ("size", "record_count", "attributes", "base_timestamp", "magic"):
        is_same &= getattr(one, name) == getattr(two, name)
    return is_same


def _others(batches: Batches, indexes: NDArray[np.int64]) -> NDArray[np.bool_]:
    is_other = np.ones(len(batches), np.bool_)
    is_other[indexes] = False
    return is_other


def _bounds(*logs: Batches) -> tuple[int, int]:
    """Return two logs' first and last offset; one may be empty."""
    filled = [each for each in logs if len(each)]
    return (
        max(int(each.rows.lowest.min()) for each in filled),
        min(int(each.headers.last_offset.max()) for each in filled),
    )


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
            ReplicaPair(Replica(logs[one], cleaned[one]), Replica(logs[two], cleaned[two]), look)
            for one, two in self._numbers
        ]

    @property
    def has_differences(self) -> bool:
        """Whether any two replicas differ, or one lacks what the other has."""
        return any(
            pair.differences or any(map(len, pair.one.lacked + pair.two.lacked))
            for pair in self.pairs
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of batches that were looked at."""
        return sum(reader.read_bytes for reader in self.readers)

    def run(self) -> None:
        """Read all, and compare."""
        for start, end, parts in pieces(self.readers):
            for pair, numbers in zip(self.pairs, self._numbers, strict=True):
                one, two = (
                    Batches(replica, parts[n], (parts[n], self.readers[n].rows), start, end)
                    for replica, n in zip((pair.one, pair.two), numbers, strict=True)
                )
                pair.compare(one, two)


def _compare_offsets(one: RestingLog, two: RestingLog) -> ReplicaPair:
    """Compare two replicas' ends, and epochs at the offsets of both."""
    pair = ReplicaPair(Replica(one), Replica(two))
    start = max(one.log_start_offset, two.log_start_offset)
    end = min(one.log_end_offset, two.log_end_offset)
    starts = {entry.start_offset for log in (one, two) for entry in log.epochs}
    bounds = sorted({start, end, *(at for at in starts if start < at < end)})
    for low, high in pairwise(bounds):
        epochs = one.cache.epoch_for_offset(low), two.cache.epoch_for_offset(low)
        if epochs[0] != epochs[1] and low < end:
            side, other = place_of(two, low, epochs[1]), place_of(one, low, epochs[0])
            pair.add(DifferenceKind.EPOCH, (low, high - 1), side, other)
    for short, long in ((one, two), (two, one)):
        low = max(start, short.log_end_offset)
        if low < long.log_end_offset:
            side, message = Side(log=short), "nothing is there"
            if short.view is not None:
                side = Side(log=short, file=short.last_file, position=short.end_position)
                message = ""
            other = place_of(long, low, long.cache.epoch_for_offset(low))
            offsets = low, long.log_end_offset - 1
            pair.add(DifferenceKind.MISSING, offsets, side, other, message)
    return pair


def _put_together(
    logs: Sequence[RestingLog], pairs: Sequence[ReplicaPair], findings: Sequence[LogFinding]
) -> Differences:
    """Collect the differences of all pairs, each difference once. A pair without the first log
    adds only differences that neither log has from the first."""
    first = logs[0] if logs else None
    of_first = {id(pair.two.log): pair.differences for pair in pairs if pair.one.log is first}
    differences: list[Difference] = []
    for pair in pairs:
        if pair.one.log is first:
            differences += pair.differences
            continue
        first_differences = of_first[id(pair.one.log)], of_first[id(pair.two.log)]
        differences += [
            each
            for each in pair.differences
            if all(_overlaps(each, others) for others in first_differences)
        ]
    return Differences(
        differences=tuple(differences),
        untold=sum(pair.untold for pair in pairs),
        findings=tuple(findings),
        undecided=sum(pair.undecided for pair in pairs if pair.one.log is first),
        read_bytes=0,
    )


def _overlaps(difference: Difference, others: Sequence[Difference]) -> bool:
    return any(
        other.first_offset <= difference.last_offset
        and difference.first_offset <= other.last_offset
        for other in others
    )
