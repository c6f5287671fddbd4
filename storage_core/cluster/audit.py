"""Judge a partition's replicas: high watermark, divergence, loss under each leader."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.cluster.log_batches import (
    BatchRows,
    LogReader,
    Ranges,
    ReadDepth,
    clip,
    contain,
    count,
    intersect,
    no_ranges,
    of_offsets,
    pieces,
    subtract,
    union,
)
from storage_core.cluster.places import PartitionRegistration
from storage_core.cluster.replica import (
    Damage,
    Hindrance,
    Leader,
    LogSpan,
    OpenedLog,
    Replica,
    find_truncation,
)
from storage_core.errors import CheckpointError, StorageError
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.log.leader_epoch_cache import (
    NO_EPOCH,
    DoubtfulRun,
    EpochRun,
    find_believed_entries,
    find_doubtful_runs,
)
from storage_core.log.loading_log import read_epochs
from storage_core.records.batch_table import BatchTable

# Compare replicas record by record: differences, and records of one alone.
#
# All logs are read once, side by side, in pieces of offsets. Batches that are the same in two of
# them are told by their headers: offsets, epoch, checksum, size. Records are decoded only where a
# batch has no such twin, and both logs have batches at its offsets, as where a cleaner went over
# one.


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLogs:
    """Logs of a partition, compared with each other."""

    damage: tuple[tuple[Damage, ...], ...]
    # First offset at which two differ, by their numbers, the smaller one first; None where they do
    # not.
    differences: dict[tuple[int, int], int | None]
    # Records of another log that a log lacks, by its number and the other's.
    missing: dict[tuple[int, int], Ranges]
    epochs: tuple[tuple[EpochRun, ...], ...]  # each log's leader epochs as its batches have them
    # Those that are not believed. In ``missing`` such a batch counts with the epoch that its leader
    # had.
    doubtful: tuple[tuple[DoubtfulRun, ...], ...]
    largest_producer_id: int  # largest producer id of a batch, -1 without one
    largest_coordinator_epoch: int  # largest epoch of a marker's coordinator, -1 without one

    def believed_epochs(self) -> set[int]:
        """Return the epochs of all batches, without those that are not believed."""
        wrong = {each.run for own in self.doubtful for each in own}
        return {run.epoch for runs in self.epochs for run in runs if run not in wrong}


def compare_logs(
    logs: Sequence[OpenedLog | None], *, largest_epoch: int | None = None
) -> ComparedLogs:
    """Compare each log with each other one, by batches. Batches with a wrong checksum are ignored.

    Args:
        logs: None for a log without a record.
        largest_epoch: The largest one that the quorum knows of; None where nothing says it.
    """
    compared = _compare_all(logs, [()] * len(logs))
    doubtful = find_doubtful_runs(
        [
            (runs, () if log is None else _file_entries(log))
            for log, runs in zip(logs, compared.epochs, strict=True)
        ],
        largest_epoch=largest_epoch,
    )
    if not any(doubtful):
        return compared
    # Brokers leave a wrong epoch as it is: it stays a difference, and no record is missing for it.
    return replace(_compare_all(logs, doubtful), differences=compared.differences)


def _file_entries(log: OpenedLog) -> Sequence[EpochEntry]:
    """Return the entries of a log's epoch file, as it lies there; none of a bad file."""
    try:
        return read_epochs(log.view.store).entries
    except (CheckpointError, StorageError):
        return ()


def _compare_all(
    logs: Sequence[OpenedLog | None], doubtful: Sequence[Sequence[DoubtfulRun]]
) -> ComparedLogs:
    readers = [
        LogReader(None, (), ReadDepth.CHECKSUMS)
        if log is None
        else LogReader(log.view, log.base_offsets, ReadDepth.CHECKSUMS, doubtful=own)
        for log, own in zip(logs, doubtful, strict=True)
    ]
    differences: dict[tuple[int, int], int | None] = {}
    missing: dict[tuple[int, int], list[Ranges]] = {}
    producer_id, coordinator_epoch = NO_PRODUCER_ID, -1
    for pair in combinations(range(len(logs)), 2):
        differences[pair] = None
        missing[pair], missing[pair[::-1]] = [], []
    for start, end, read in pieces(readers):
        parts = [part.take(part.batches.crc_ok != 0) for part in read]
        names = [batch_names(part.batches) for part in parts]
        for batches in (part.batches for part in parts if len(part)):
            producer_id = max(producer_id, int(batches.producer_id.max()))
            coordinator_epoch = max(coordinator_epoch, int(batches.coordinator_epoch.max()))
        for pair in combinations(range(len(logs)), 2):
            one, two = pair
            alone = (
                parts[one].take(~np.isin(names[one], names[two])),
                parts[two].take(~np.isin(names[two], names[one])),
            )
            lowest, lacked = _compare(alone, start, end)
            difference = differences[pair]
            if lowest is not None and (difference is None or lowest < difference):
                differences[pair] = lowest
            missing[pair].append(lacked[0])
            missing[pair[::-1]].append(lacked[1])
    return ComparedLogs(
        damage=tuple(
            (*(() if log is None else log.cut), *reader.damage)
            for log, reader in zip(logs, readers, strict=True)
        ),
        differences=differences,
        missing={pair: union(ranges) for pair, ranges in missing.items()},
        epochs=tuple(tuple(reader.epochs) for reader in readers),
        doubtful=tuple(map(tuple, doubtful)),
        largest_producer_id=producer_id,
        largest_coordinator_epoch=coordinator_epoch,
    )


def _compare(
    alone: tuple[BatchRows, BatchRows], start: int, end: int
) -> tuple[int | None, tuple[Ranges, Ranges]]:
    """Compare two logs between two offsets.

    Args:
        alone: Each log's batches without a twin in the other.

    Returns:
        The first offset at which they differ, and what the first lacks of the second, and the
        other way round.
    """
    is_met = alone[0].that_meet(alone[1]), alone[1].that_meet(alone[0])
    lacked: tuple[list[Ranges], list[Ranges]] = ([], [])
    lowest: int | None = None
    for number in (0, 1):
        lacked[1 - number].append(alone[number].take(~is_met[number]).offsets())
    met = alone[0].take(is_met[0]), alone[1].take(is_met[1])
    for matched in match_batches(met, start, end):
        if len(matched.other) and lowest is None:
            lowest = int(matched.other.min())
        for number, table in enumerate(matched.tables):
            lacked[1 - number].append(without(table, matched.same))
    ranges = [clip(union(parts), start=start, end=end) for parts in lacked]
    return lowest, (ranges[0], ranges[1])


def _between(rows: BatchRows, start: int, end: int) -> pa.Table:
    """Return the records of batches at offsets from start on, below end."""
    inside = rows.take((rows.lowest < end) & (rows.batches.last_offset >= start))
    table = inside.records()
    offset = table["offset"]
    return table.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, end)))


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """Records of two logs, at the same offsets."""

    tables: tuple[pa.Table, pa.Table]  # each log's compared records, of ``log_batches.RECORDS``
    # int64[], offsets at which both have the same record; its epoch may be another.
    same: NDArray[np.int64]
    other: NDArray[np.int64]  # int64[], offsets at which anything differs, be it the epoch alone


def match_batches(
    rows: tuple[BatchRows, BatchRows], start: int, end: int
) -> Iterator[MatchedRecords]:
    """Read two logs' records between two offsets; match them by offset.

    Args:
        rows: Rows of each log; the first log's decide how many are in memory at once.
    """
    groups = [int(group.batches.last_offset.max()) + 1 for group in rows[0].groups()]
    for low, high in pairwise([start, *groups[:-1], end] if groups else []):
        tables = (_between(rows[0], low, high), _between(rows[1], low, high))
        yield MatchedRecords(tables, *_match(*tables))


def _match(first: pa.Table, second: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of equal records, and of different ones. Epochs may differ: a reader
    sees the same record."""
    offsets, rows_1, rows_2 = np.intersect1d(
        first["offset"].to_numpy(), second["offset"].to_numpy(), return_indices=True
    )
    one, two = first.take(rows_1), second.take(rows_2)
    is_same = _have_same_headers(one["headers"], two["headers"])
    for name in ("timestamp", "key", "value"):
        is_same &= _are_equal(one[name], two[name])
    is_of_same_epoch = _are_equal(one["epoch"], two["epoch"])
    return offsets[is_same], offsets[~(is_same & is_of_same_epoch)]


def _are_equal(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Compare two columns by value; a null equals a null."""
    both_null = pc.and_(pc.is_null(first), pc.is_null(second))
    equal = pc.or_(pc.fill_null(pc.equal(first, second), fill_value=False), both_null)
    is_equal: NDArray[np.bool_] = np.asarray(equal, np.bool_)
    return is_equal


def _have_same_headers(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    counts = [np.asarray(pc.list_value_length(lists)) for lists in (first, second)]
    is_same: NDArray[np.bool_] = counts[0] == counts[1]
    owner = np.repeat(np.flatnonzero(is_same), counts[0][is_same])
    mask = pa.array(is_same)
    one, two = (pc.list_flatten(lists.filter(mask)) for lists in (first, second))
    for name in ("key", "value"):
        fields = [pc.struct_field(headers, name) for headers in (one, two)]
        is_same[owner[~_are_equal(*fields)]] = False
    return is_same


def without(table: pa.Table, same: NDArray[np.int64]) -> Ranges:
    """Return a table's data records at offsets other than the given. Data records exclude
    control records."""
    offsets = table["offset"].to_numpy()
    is_other = ~np.isin(offsets, same) & ~np.asarray(table["is_control"], np.bool_)
    return of_offsets(offsets[is_other], table["epoch"].to_numpy()[is_other])


def batch_names(batches: BatchTable, digests: NDArray[np.uint64] | None = None) -> NDArray[np.void]:
    """Return one comparable value for each batch.

    Args:
        digests: uint64[m, batches], of all their bytes; None to go by their headers.
    """
    columns = [
        batches.base_offset,
        batches.last_offset,
        batches.leader_epoch,
        batches.crc,
        batches.size,
        *(() if digests is None else digests.view(np.int64)),
    ]
    values = np.ascontiguousarray(np.stack(columns, axis=1))
    return values.view([(str(number), np.int64) for number in range(values.shape[1])]).ravel()


_NOTHING: Final = LogSpan(
    log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), first_segment_offset=0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A copy of the partition that has records of a loss."""

    replica: Replica
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """The size, the time and some keys of records."""

    size_bytes: int = 0
    # Smallest timestamp, epoch milliseconds; None where none has one.
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    keys: tuple[bytes, ...] = ()  # the first of their keys, each once; no more than were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerCut:
    """The change of one replica if a candidate leads."""

    replica: Replica
    offset: int  # new log end offset; the old one if nothing is cut
    is_restart: bool  # whether it is emptied and begins at the offset
    rounds: tuple[int, ...]  # offsets of the cuts, in order
    # Up to it the follower agrees with the leader. Below ``offset`` and the leader's log end, Kafka
    # leaves the two different and says nothing.
    same_until: int
    committed: Ranges  # committed records that the cut takes, and that the leader lacks
    # Whether its broker may stay in ISR and ELR: it is in neither, or has all below the high
    # watermark afterwards.
    stays_eligible: bool
    hindrance: Hindrance | None = None  # the epoch that keeps it out of sync thereafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica if it led next."""

    replica: Replica
    cuts: tuple[FollowerCut, ...]
    lost: Ranges
    committed: Ranges  # the lost records that were committed on their branch
    # The lost records that were not, as a closed in-sync replica never had them. The others are
    # undecided: they are younger than the last checkpoint.
    uncommitted: Ranges
    weight: Weight  # their size and time
    # The copies that have them; those that moves and deletions left, too.
    holders: tuple[Holder, ...]
    is_safe: bool  # whether nothing committed is lost, it has no damage, and every replica was read
    # The epochs of its log once its broker has opened it, without those that are not believed.
    epochs: tuple[EpochEntry, ...] = ()
    doubtful: tuple[DoubtfulRun, ...] = ()  # epochs of its batches that are not believed


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The replicas of one partition together."""

    # First offset not known to be on all in-sync replicas, as far as the directories tell; None
    # without a replica that can be opened.
    high_watermark: int | None
    divergence: int | None  # first offset at which two replicas have other records; None without
    # Each replica's damage, in the given order: batches with a wrong checksum and bytes that are no
    # batch, including those that opening cuts off.
    damage: tuple[tuple[Damage, ...], ...]
    # Each replica's epochs that are not believed, in the given order.
    doubtful: tuple[tuple[DoubtfulRun, ...], ...]
    candidates: tuple[Candidate, ...]  # in the order of the assignment
    largest_epoch: int  # largest believed leader epoch that a copy names, -1 without one
    largest_producer_id: int  # largest producer id that a copy names, -1 without one
    largest_coordinator_epoch: int  # largest epoch of a transaction's coordinator, -1 without one


def audit_partition(
    replicas: Sequence[Replica],
    state: PartitionRegistration | None,
    beside: Sequence[Replica] = (),
    *,
    most_keys: int = 0,
) -> PartitionAudit:
    """Compare the replicas of one partition, and let each of them lead.

    Args:
        replicas: One a broker; those that are missing too.
        state: The partition's registration, None if unknown.
        beside: Copies that moves and deletions left: none of them leads or follows.
        most_keys: How many keys of each loss are wanted.
    """
    return _JudgedPartition(replicas, state, beside, most_keys).result()


class _JudgedPartition:
    """The replicas of one partition, while they are judged."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        state: PartitionRegistration | None,
        beside: Sequence[Replica],
        most_keys: int,
    ) -> None:
        self._replicas = replicas
        self._most_keys = most_keys
        self._beside = beside
        self._state = state
        known = NO_EPOCH if state is None else state.leader_epoch
        self._logs = [copy.log for copy in (*replicas, *beside)]
        self._compared = compare_logs(self._logs, largest_epoch=known if known >= 0 else None)
        self._epochs = [
            () if log is None else tuple(find_believed_entries(log.epochs, runs, doubtful))
            for log, runs, doubtful in zip(
                self._logs, self._compared.epochs, self._compared.doubtful, strict=True
            )
        ]
        entries = (entry.epoch for epochs in self._epochs for entry in epochs)
        self._largest_epoch = max([NO_EPOCH, *entries, *self._compared.believed_epochs()])
        # A controller that knows less than the logs is older than they are: a newer one leads.
        self._next_epoch = 1 + max(known, self._largest_epoch)
        numbers = list(range(len(replicas)))
        if state is not None:
            by_broker = {replica.broker: number for number, replica in enumerate(replicas)}
            numbers = [by_broker[broker] for broker in state.replicas if broker in by_broker]
        self._is_whole = not any(replicas[number].error for number in numbers)
        self._usable = [number for number in numbers if not replicas[number].error]
        # Copies that no file assigns to a broker, such as mirrors and managed roots. Where brokers
        # are known, copies neither lead nor follow, and records only in them would be lost.
        self._copies = [
            number
            for number, replica in enumerate(replicas)
            if number not in numbers and replica.broker is None and replica.log is not None
        ]
        in_sync = self._find_in_sync()
        self._in_sync = list(map(self._lineage, in_sync))
        self._witnesses = [
            self._lineage(number) for number in in_sync if self._is_witness(replicas[number])
        ]
        self._watermark = self._estimate_high_watermark()

    def result(self) -> PartitionAudit:
        replicas = len(self._replicas)
        differences = [
            at
            for (_, two), at in self._compared.differences.items()
            if two < replicas and at is not None
        ]
        logs = [log for log in self._logs if log is not None]
        return PartitionAudit(
            high_watermark=self._watermark,
            divergence=min(differences, default=None),
            damage=self._compared.damage[:replicas],
            doubtful=self._compared.doubtful[:replicas],
            candidates=tuple(map(self._candidate, self._usable)),
            largest_epoch=self._largest_epoch,
            largest_producer_id=max(
                self._compared.largest_producer_id, *(log.largest_producer_id for log in logs), -1
            ),
            largest_coordinator_epoch=max(
                self._compared.largest_coordinator_epoch,
                *(log.largest_coordinator_epoch for log in logs),
                -1,
            ),
        )

    def _lineage(self, number: int) -> LogSpan:
        """Return what a replica's log tells of its history: without epochs that nobody led in."""
        return replace(_span(self._replicas[number]), epochs=self._epochs[number])

    def _find_in_sync(self) -> list[int]:
        """Return the in-sync replicas: ISR, ELR, last known leader, or all. The first of these
        sets with a member counts."""
        if self._state is not None:
            for brokers in (self._state.isr, self._state.elr, self._state.last_known_elr):
                if brokers:
                    usable = self._usable
                    return [each for each in usable if self._replicas[each].broker in brokers]
        return self._usable

    def _estimate_high_watermark(self) -> int | None:
        """Estimate the high watermark: the smallest log end of the in-sync replicas. The result is
        at least each checkpoint of a log that reaches it. Too few replicas in sync commit nothing:
        then the largest checkpoint counts."""
        if not self._in_sync:
            return None
        state = self._state
        lower_bound = max(min(span.high_watermark, span.log_end_offset) for span in self._in_sync)
        if state is not None and state.isr:
            least = min(state.min_insync_replicas, len(state.replicas))
            if len(state.isr) < least:
                return lower_bound
        return max(lower_bound, min(span.log_end_offset for span in self._in_sync))

    def _candidate(self, number: int) -> Candidate:
        span = _span(self._replicas[number])
        leader = Leader(span, self._next_epoch, self._compared.epochs[number])
        deleted = max([span.log_start_offset, *(each.log_start_offset for each in self._in_sync)])
        cuts: list[FollowerCut] = []
        lost: list[Ranges] = []
        committed: list[Ranges] = []
        uncommitted: list[Ranges] = []
        holders: list[tuple[Replica, OpenedLog, Ranges]] = []
        for other in (*self._usable, *self._copies):
            follower = self._replicas[other]
            if other == number or follower.log is None:
                continue
            cut = self._cut(other, follower.log, number, leader)
            start = deleted
            if self._state is not None and self._state.is_compacted:
                # Records removed by its cleaner and not by the other's are not lost.
                start = max(deleted, cut.offset)
            alone = clip(self._compared.missing[number, other], start=start)
            lost.append(alone)
            holders.append((follower, follower.log, alone))
            end = self._committed_end(other)
            committed.append(clip(alone, end=end))
            is_cut = cut.rounds or cut.same_until < min(cut.offset, span.log_end_offset)
            if (is_cut or cut.hindrance is not None) and other not in self._copies:
                whole = 0 if cut.is_restart else follower.log.whole_end(cut.offset)
                cuts.append(
                    replace(
                        cut,
                        committed=clip(committed[-1], start=whole),
                        stays_eligible=self._stays_eligible(follower, whole),
                    )
                )
            if end is not None:
                uncommitted.append(self._refuted(other, clip(alone, start=end)))
        all_lost, all_committed = union(lost), union(committed)
        for other, copy in enumerate(self._beside, start=len(self._replicas)):
            if copy.log is not None:
                alone = self._compared.missing[number, other]
                holders.append((copy, copy.log, intersect(alone, all_lost)))
        return Candidate(
            replica=self._replicas[number],
            cuts=tuple(cuts),
            lost=all_lost,
            committed=all_committed,
            uncommitted=subtract(union(uncommitted), all_committed),
            weight=_weigh(
                [(log, ranges, self._doubtful_of(log)) for _, log, ranges in holders],
                most_keys=self._most_keys,
            ),
            holders=tuple(
                Holder(replica=copy, records=count(ranges))
                for copy, _, ranges in holders
                if count(ranges)
            ),
            is_safe=self._is_whole
            and not self._compared.damage[number]
            and not count(all_committed),
            epochs=self._epochs[number],
            doubtful=self._compared.doubtful[number],
        )

    def _doubtful_of(self, log: OpenedLog) -> Sequence[DoubtfulRun]:
        return next(
            own
            for each, own in zip(self._logs, self._compared.doubtful, strict=True)
            if each is log
        )

    def _stays_eligible(self, follower: Replica, end: int) -> bool:
        """Whether a replica's log end justifies its place in ISR or ELR. True for a replica in
        neither; false if the cluster's state is unknown."""
        state = self._state
        if state is None:
            return False
        if follower.broker not in (*state.isr, *state.elr):
            return True
        return self._watermark is not None and end >= self._watermark

    def _committed_end(self, number: int) -> int | None:
        """Return the end of a replica's committed records; None for all. The in-sync replicas'
        high watermark binds a log as far as both are equal."""
        checkpoint = self._replicas[number].place.checkpoints.high_watermark
        if checkpoint is None:
            return None
        span, epoch = self._lineage(number), self._next_epoch
        ends = [find_truncation(span, Leader(each, epoch)).offset for each in self._in_sync]
        shared = max(ends, default=0)
        return max(checkpoint, min(self._watermark or 0, shared))

    def _is_witness(self, replica: Replica) -> bool:
        """Whether a replica had, and still has, all committed records. It is a member of the
        ISR, was closed cleanly, and loses nothing when opened."""
        state = self._state
        return (
            state is not None
            and replica.broker in state.isr
            and replica.place.is_clean
            and replica.log is not None
            and not replica.log.cut
        )

    def _refuted(self, number: int, ranges: Ranges) -> Ranges:
        """Return which records of a replica were not committed.

        What a leader wrote is committed once all of the ISR has it. A member that was closed and
        lacks it has not had it, unless an epoch followed in which it was cut.
        """
        if self._state is None:
            return no_ranges()
        is_known = ranges[:, 2] <= self._state.leader_epoch
        parts: list[Ranges] = []
        for witness in self._witnesses:
            leader = Leader(witness, self._next_epoch)
            shared = find_truncation(self._lineage(number), leader).offset
            latest = max((entry.epoch for entry in witness.epochs), default=0)
            parts.append(clip(ranges[is_known & (ranges[:, 2] >= latest)], start=shared))
        return union(parts)

    def _cut(self, number: int, log: OpenedLog, leading: int, leader: Leader) -> FollowerCut:
        follower = self._replicas[number]
        truncation = find_truncation(_span(follower), leader)
        same_until = truncation.offset
        if not truncation.is_restart:
            if truncation.rounds:
                same_until = log.whole_end(truncation.offset)
            pair = (min(number, leading), max(number, leading))
            difference = self._compared.differences[pair]
            if difference is not None:
                same_until = min(same_until, difference)
        return FollowerCut(
            replica=follower,
            offset=truncation.offset,
            is_restart=truncation.is_restart,
            rounds=truncation.rounds,
            same_until=same_until,
            committed=no_ranges(),
            stays_eligible=False,
            hindrance=truncation.hindrance,
        )


def _span(replica: Replica) -> LogSpan:
    return _NOTHING if replica.log is None else replica.log


def _weigh(
    parts: Iterable[tuple[OpenedLog, Ranges, Sequence[DoubtfulRun]]], *, most_keys: int = 0
) -> Weight:
    """Weigh records of several logs, each record once."""
    size_bytes = 0
    times: list[int] = []
    keys: dict[bytes, None] = {}
    done: Ranges | None = None
    for log, ranges, doubtful in parts:
        new = ranges if done is None else subtract(ranges, done)
        done = ranges if done is None else np.concatenate([done, new])
        if not count(new):
            continue
        # A batch may begin below the first of them.
        first = log.whole_end(int(new[0, 0]))
        span = (first, int(new[:, 1].max()) + 1)
        reader = LogReader(
            log.view, log.base_offsets, ReadDepth.HEADERS, ranges=[span], doubtful=doubtful
        )
        while not reader.is_at_end:
            reader.fill()
            rows, reader.rows = reader.rows, reader.rows.take(np.empty(0, np.int64))
            batches = rows.batches
            at = np.searchsorted(new[:, 1], rows.lowest)
            begin = np.append(new[:, 0], span[1])[at]
            for group in rows.take((begin <= batches.last_offset) & ~batches.is_control).groups():
                table = group.records()
                is_in = contain(new, table["offset"].to_numpy(), table["epoch"].to_numpy())
                lost = table.filter(is_in)
                for name in ("key", "value"):
                    size_bytes += pc.sum(pc.binary_length(lost[name]), min_count=0).as_py()
                if len(keys) < most_keys:
                    # Of so many, at least the wanted number is new.
                    some = pc.unique(lost["key"].drop_null()).slice(0, most_keys)
                    keys |= dict.fromkeys(some.to_pylist())
                times_ms = lost["timestamp"].to_numpy()
                times_ms = times_ms[times_ms >= 0]
                if len(times_ms):
                    times += [int(times_ms.min()), int(times_ms.max())]
    return Weight(
        size_bytes=size_bytes,
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
        keys=tuple(keys)[:most_keys],
    )
