"""Verify many small partitions together, and tell those in which nothing but gaps is found.

Of a partition with few bytes the batches take no time: the functions that check one segment, one
index and one partition do, for each of them. Here the batches and index entries of many partitions
are checked as arrays. Whatever is not surely right, or seldom, is not told: its partition is
verified alone, by the functions that know every rule and its words.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import (
    EpochEntry,
    PartitionCheckpoints,
    parse_leader_epochs,
    parse_partition_metadata,
)
from storage_core.errors import PylogError
from storage_core.filenames import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, TopicPartition
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.kernels.batch_scan import COLUMN_COUNT, DONE, check_crcs, scan_batches
from storage_core.log.leader_epoch_cache import EpochRun, LeaderEpochCache
from storage_core.log.producer_snapshot import parse_producer_snapshot
from storage_core.maintenance.listings import Mask, Numbers, have_plain_names
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.epochs_and_snapshots import judge_epochs
from storage_core.maintenance.verification.findings import (
    DirectoryContext,
    Finding,
    VerifyOptions,
)
from storage_core.maintenance.verification.partition import (
    COORDINATOR_TOPICS,
    PartitionFacts,
    check_checkpoints,
    check_gaps,
)
from storage_core.maintenance.verification.segment_scan import SegmentFacts, TailKind
from storage_core.maintenance.verification.transactions import SegmentTransactions
from storage_core.records.batch_table import BatchTable
from storage_core.records.file_starts import (
    EPOCHS,
    KINDS,
    LOG,
    METADATA,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Folders,
)

# What lies in a partition is read whole. A larger one is worth a look of its own.
LARGEST_PLAIN_BYTES: Final = 1 << 18
_PARTITIONS_AT_ONCE: Final = 128
_OWNERS: Final = 0o600  # its owner may read and write it
# Above 32 bits: numbers below of one owner are compared with each other only.
_OWNER_SHIFT: Final = 32


class Verifiable(Protocol):
    """A partition that is to be verified."""

    @property
    def directory(self) -> str:
        """Its path or location."""

    @property
    def partition(self) -> TopicPartition:
        """Its name."""

    @property
    def context(self) -> DirectoryContext:
        """Of its directory."""

    @property
    def checkpoints(self) -> PartitionCheckpoints:
        """Its entries in the checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPartition:
    """A partition that was verified together with others."""

    facts: PartitionFacts
    findings: Sequence[Finding]
    active_index_bytes: tuple[int, int]  # of the offset and the time index of the last segment


def verify_plain(
    targets: Sequence[Verifiable], options: VerifyOptions
) -> dict[int, PlainPartition]:
    """Verify what is plain and small among partitions on local disks.

    Returns:
        By number of the target what ``fold_partition`` says of it; those that are not there have to
        be verified alone.
    """
    told: dict[int, PlainPartition] = {}
    if options.is_deep or options.is_live:
        return told
    known = [number for number, target in enumerate(targets) if _may_be_plain(target)]
    for first in range(0, len(known), _PARTITIONS_AT_ONCE):
        started = time.perf_counter()
        numbers = known[first : first + _PARTITIONS_AT_ONCE]
        plain = _Check([targets[number] for number in numbers]).plain_partitions(started)
        told |= {numbers[place]: each for place, each in plain.items()}
    return told


def _may_be_plain(target: Verifiable) -> bool:
    context = target.context
    is_closed = context.is_clean and not context.is_copy and not context.is_tiered
    is_coordinators = target.partition.topic in COORDINATOR_TOPICS
    return is_closed and not is_coordinators and target.directory.startswith("/")


class _Log(NamedTuple):
    """A log whose segments are sound."""

    place: int
    first: int  # of its segments, and end behind them
    end: int
    first_row: int  # of its batches, and end_row behind them
    end_row: int
    start: int
    log_end: int
    size_bytes: int
    records: int
    has_producers: bool
    has_gap: bool  # whether offsets are missing that nothing explains
    offset_index_bytes: int  # of the last segment
    time_index_bytes: int


class _Check:
    """Reads partitions whole, and checks together the files of those that have plain ones.

    A large one, or one where something has to be looked at alone, is left out.
    """

    def __init__(self, targets: Sequence[Verifiable]) -> None:
        folders = Folders([target.directory for target in targets])
        files = folders.list_files()
        wanted = files.parts(most_bytes=LARGEST_PLAIN_BYTES)
        parts = folders.read(wanted, most_of_folder=LARGEST_PLAIN_BYTES)
        users = [target.context.user for target in targets]
        owner = np.array([-1 if user is None else user.number for user in users])[files.folders]
        is_odd = (parts.lengths != parts.sizes) | (files.kinds == TXN_INDEX)
        is_odd |= (owner >= 0) & ((parts.users != owner) | (parts.modes & _OWNERS != _OWNERS))
        is_told = have_plain_names(files) & ~files.have(is_odd)
        for kind in (EPOCHS, METADATA):
            is_told &= files.have(files.kinds == kind)
        # Numbers are those of these partitions from here on.
        self._numbers = np.flatnonzero(is_told).tolist()
        self._targets = [targets[number] for number in self._numbers]
        self._files = files.of(is_told)
        self._parts = parts.of(is_told[files.folders])
        # The files of each kind, by partition and offset.
        self._rows = [np.flatnonzero(self._files.kinds == kind) for kind in range(len(KINDS))]
        logs = self._rows[LOG]
        self._bases, self._sizes = self._files.offsets[logs], self._parts.sizes[logs]
        counts = np.bincount(self._files.folders[logs], minlength=len(self._targets))
        self._end_log = np.cumsum(counts)
        self._first_log = self._end_log - counts
        holders = self._files.folders[self._rows[SNAPSHOT]]
        self._snapshots = np.searchsorted(holders, np.arange(len(self._targets) + 1)).tolist()

    def plain_partitions(self, started: float) -> dict[int, PlainPartition]:
        """Return by target what is told of plain partitions."""
        if not self._targets:
            return {}
        batches = self._scan()
        if batches is None:
            return {}
        is_right = self._check_batches(batches)
        is_right &= self._check_offset_indexes(batches)
        is_right &= self._check_time_indexes(batches)
        follows = np.ones(len(self._bases), np.bool_)
        follows[1:] = self._bases[1:] > self._last_offsets[:-1]
        follows[self._first_log] = True
        is_right = np.logical_and.reduceat(is_right & follows, self._first_log)
        seconds = (time.perf_counter() - started) / len(self._targets)
        told = {}
        for log in self._logs_of(batches, is_right):
            plain = self._judge(log, batches, seconds)
            if plain is not None:
                told[self._numbers[log.place]] = plain
        return told

    def _scan(self) -> BatchTable | None:
        """Return the batches of all logs; None where one of these does not end with a batch."""
        data = self._parts.bytes_of(self._rows[LOG])
        table = np.empty((COLUMN_COUNT, len(data) // HEADER_BYTES + 1), np.int64)
        count, _, status = scan_batches(data, 0, len(data), table)
        batches = BatchTable(table[:, :count])
        self._log_starts = np.cumsum(self._sizes) - self._sizes
        at = np.searchsorted(batches.position, self._log_starts)
        begins = batches.position[np.minimum(at, max(count - 1, 0))] if count else np.empty(0)
        has_bytes = self._sizes > 0
        if status != DONE or (has_bytes.any() and (begins != self._log_starts)[has_bytes].any()):
            return None
        check_crcs(data, batches.columns, count)
        # An empty log begins where the next one does.
        self._owners = np.searchsorted(self._log_starts, batches.position, side="right") - 1
        self._counts = np.bincount(self._owners, minlength=len(self._bases))
        self._row_ends = np.cumsum(self._counts)
        has_batches = self._counts > 0
        self._last_offsets = self._bases - 1
        self._last_offsets[has_batches] = batches.last_offset[self._row_ends[has_batches] - 1]
        return batches

    def _check_batches(self, batches: BatchTable) -> Mask:
        """Return by log whether all its batches are usual ones, in order."""
        first, last, bases = batches.base_offset, batches.last_offset, self._bases[self._owners]
        is_right = (batches.magic == MAGIC_V2) & (batches.size >= HEADER_BYTES)
        is_right &= (batches.crc_ok == 1) & ~batches.is_control & ~batches.is_transactional
        is_right &= (batches.record_count >= 0) & ~batches.has_negative_timestamp
        is_right &= (batches.leader_epoch >= 0) & (batches.max_timestamp > 0)
        is_right &= (bases <= first) & (first <= last) & (last - bases <= MAX_RELATIVE_OFFSET)
        is_next = self._owners[1:] == self._owners[:-1]
        is_right[1:] &= ~is_next | (first[1:] > last[:-1])
        return self._all_of(self._owners, is_right)

    def _check_offset_indexes(self, batches: BatchTable) -> Mask:
        """Return by log whether each entry of its offset index leads to its batch."""
        entries, owners, is_whole = self._entries(OFFSET_INDEX, OFFSET_INDEX_ENTRY)
        offsets = entries["relative_offset"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        places = self._log_starts[owners] + positions
        rows = np.minimum(np.searchsorted(batches.position, places), max(len(batches) - 1, 0))
        holders, is_right = self._find_holders(batches, owners, offsets)
        if len(batches):
            is_right &= (batches.position[rows] == places) & (self._owners[rows] == owners)
        is_right &= (positions > 0) & (holders >= rows)
        is_next = owners[1:] == owners[:-1]
        is_rising = (offsets[1:] > offsets[:-1]) & (positions[1:] > positions[:-1])
        is_right[1:] &= ~is_next | is_rising
        return is_whole & self._all_of(owners, is_right)

    def _check_time_indexes(self, batches: BatchTable) -> Mask:
        """Return by log whether its time index has its newest time, and right entries."""
        entries, owners, is_whole = self._entries(TIME_INDEX, TIME_INDEX_ENTRY)
        offsets = entries["relative_offset"].astype(np.int64)
        times = entries["timestamp"].astype(np.int64)
        holders, is_right = self._find_holders(batches, owners, offsets)
        newest = np.full(len(self._bases), -1)
        if len(batches):
            ranks = np.searchsorted(np.sort(batches.max_timestamp), batches.max_timestamp)
            ranked = (self._owners << _OWNER_SHIFT) + ranks
            largest = np.maximum.accumulate(ranked)
            is_right &= (batches.max_timestamp[holders] == times) & (
                largest[holders] == ranked[holders]
            )
            has_batches = self._counts > 0
            (firsts,) = np.nonzero(np.append(True, self._owners[1:] != self._owners[:-1]))
            newest[has_batches] = np.maximum.reduceat(batches.max_timestamp, firsts)
        is_next = owners[1:] == owners[:-1]
        is_right[1:] &= ~is_next | ((times[1:] > times[:-1]) & (offsets[1:] >= offsets[:-1]))
        indexed = np.full(len(self._bases), -1)
        indexed[owners] = times  # the last one of each stays
        is_right_log: Mask = is_whole & (indexed == newest) & self._all_of(owners, is_right)
        return is_right_log

    def _entries(self, kind: int, entry: np.dtype[Any]) -> tuple[NDArray[np.void], Numbers, Mask]:
        """Return the entries of indexes, of each the number of its log, and by log whether its
        index has whole entries only."""
        rows = self._rows[kind]
        lengths = self._parts.lengths[rows]
        is_whole = lengths % entry.itemsize == 0
        counts = np.where(is_whole, lengths // entry.itemsize, 0)
        owners = np.repeat(np.arange(len(rows)), counts)
        return self._parts.entries(rows[is_whole], entry), owners, is_whole

    def _find_holders(
        self, batches: BatchTable, owners: Numbers, offsets: Numbers
    ) -> tuple[Numbers, Mask]:
        """Return of offsets, relative to their logs' bases, the first batch that reaches each, and
        whether it has it."""
        if not len(batches):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
        bases = self._bases[self._owners]
        ends = np.clip(batches.last_offset - bases, 0, MAX_RELATIVE_OFFSET)
        reached = (self._owners << _OWNER_SHIFT) + ends
        rows = np.searchsorted(reached, (owners << _OWNER_SHIFT) + np.maximum(offsets, 0))
        rows = np.minimum(rows, len(batches) - 1)
        is_held = (self._owners[rows] == owners) & (offsets >= 0)
        is_held &= batches.base_offset[rows] - bases[rows] <= offsets
        is_held &= offsets <= ends[rows]
        return rows, is_held

    def _all_of(self, owners: Numbers, is_right: Mask) -> Mask:
        """Return by log whether all of its things are right."""
        has_none: Mask = np.bincount(owners[~is_right], minlength=len(self._bases)) == 0
        return has_none

    def _logs_of(self, batches: BatchTable, is_right: Mask) -> Iterable[_Log]:
        """Return what is known of each log whose segments are sound."""
        first, end = self._first_log, self._end_log
        first_row, end_row = self._row_ends[first] - self._counts[first], self._row_ends[end - 1]

        def sums(column: NDArray[Any]) -> Numbers:
            """Return the sums of a column of batches by log."""
            before = np.concatenate([[0], np.cumsum(column, dtype=np.int64)])
            of_logs: Numbers = before[end_row] - before[first_row]
            return of_logs

        checkpoints = [target.checkpoints for target in self._targets]
        begins = [each.log_start_offset or 0 for each in checkpoints]
        starts = np.maximum(np.array(begins, np.int64), self._bases[first])
        points = np.array([each.cleaner_offset or 0 for each in checkpoints], np.int64)
        explained = np.repeat(np.maximum(starts, points), end - first)
        is_gap = (np.append(-1, self._last_offsets[:-1]) + 1 < self._bases) & (
            self._bases > explained
        )
        is_gap[first] = False
        columns = (
            np.arange(len(first)),
            first,
            end,
            first_row,
            end_row,
            starts,
            np.maximum.reduceat(self._last_offsets, first) + 1,
            np.add.reduceat(self._sizes, first),
            sums(batches.record_count),
            sums(batches.has_producer_id) > 0,
            np.logical_or.reduceat(is_gap, first),
            *(
                self._parts.lengths[self._rows[kind][end - 1]]
                for kind in (OFFSET_INDEX, TIME_INDEX)
            ),
        )
        # Where another epoch begins within a log.
        is_other = np.diff(batches.leader_epoch, prepend=-1) != 0
        is_other[first_row[first_row < end_row]] = False
        (self._epoch_rows,) = np.nonzero(is_other)
        self._epoch_starts = np.searchsorted(
            self._epoch_rows, np.append(first_row, len(batches))
        ).tolist()
        return map(_Log._make, zip(*(each[is_right].tolist() for each in columns), strict=True))

    def _judge(self, log: _Log, batches: BatchTable, seconds: float) -> PlainPartition | None:
        """Return what is told of a partition with sound segments; None where something else is
        to be said."""
        context, checkpoints = (target := self._targets[log.place]).context, target.checkpoints
        epochs = _parse_epochs(self._content(EPOCHS, log.place))
        if not (
            epochs is not None
            and _is_metadata_sound(self._content(METADATA, log.place))
            and self._are_snapshots_usual(log)
        ):
            return None
        findings = FindingCollector()
        entries, cache = epochs
        runs = self._epoch_runs(batches, log)
        if not _is_one_epoch(entries, runs, log.start):
            judge_epochs(entries, cache, runs, log.start, findings)
        check_checkpoints(log.start, log.log_end, checkpoints, context, findings)
        if findings.findings():
            return None
        if log.has_gap:
            facts = [self._segment_facts(number) for number in range(log.first, log.end)]
            check_gaps(facts, log.start, checkpoints, context, findings)
        return PlainPartition(
            facts=PartitionFacts(
                segments=log.end - log.first,
                size_bytes=log.size_bytes,
                batches=log.end_row - log.first_row,
                records=log.records,
                log_start_offset=log.start,
                log_end_offset=log.log_end,
                read_bytes=log.size_bytes,
                read_seconds=seconds,
            ),
            findings=findings.findings(),
            active_index_bytes=(log.offset_index_bytes, log.time_index_bytes),
        )

    def _content(self, kind: int, place: int) -> bytes:
        """Return the small file of a kind, of which each partition has one."""
        return self._parts.content(int(self._rows[kind][place]))

    def _are_snapshots_usual(self, log: _Log) -> bool:
        """Whether all snapshots can be read, and lie where segments begin or the log ends; and
        there is one if there were producers."""
        rows, offsets = self._rows[SNAPSHOT], self._files.offsets
        first, end = self._snapshots[log.place : log.place + 2]
        bases = self._bases[log.first : log.end]
        return (first < end or not log.has_producers) and all(
            (offsets[row] == log.log_end or offsets[row] in bases)
            and _is_snapshot_sound(self._parts.content(int(row)))
            for row in rows[first:end]
        )

    def _epoch_runs(self, batches: BatchTable, log: _Log) -> list[EpochRun]:
        """Return the runs of leader epochs of a partition's batches, without their places."""
        first, end = self._epoch_starts[log.place : log.place + 2]
        starts = [log.first_row, *self._epoch_rows[first:end], log.end_row]
        return [
            EpochRun(
                epoch=int(batches.leader_epoch[at]),
                first_offset=int(batches.base_offset[at]),
                last_offset=int(batches.last_offset[until - 1]),
                batches=until - at,
            )
            for at, until in pairwise(starts)
            if until > at
        ]

    def _segment_facts(self, log: int) -> SegmentFacts:
        """Return the facts of a sound segment that decide about gaps."""
        base, size_bytes = int(self._bases[log]), int(self._sizes[log])
        return SegmentFacts(
            base_offset=base,
            first_offset=base,
            last_offset=int(self._last_offsets[log]),
            size_bytes=size_bytes,
            end_position=size_bytes,
            tail=TailKind.NOTHING,
            batches=int(self._counts[log]),
            bad_batches=0,
            records=0,
            max_timestamp=-1,
            has_producers=False,
            epochs=(),
            transactions=SegmentTransactions(),
            read_seconds=0.0,
        )


def _is_one_epoch(entries: Sequence[EpochEntry], runs: Sequence[EpochRun], start: int) -> bool:
    """Whether a log has one epoch, and its file says so from the first batch on."""
    if len(entries) != 1 or len(runs) != 1:
        return False
    entry, run = entries[0], runs[0]
    return entry.epoch == run.epoch and entry.start_offset <= max(run.first_offset, start)


# Many partitions have equal small files.
@lru_cache(maxsize=1024)
def _parse_epochs(content: bytes) -> tuple[Sequence[EpochEntry], LeaderEpochCache] | None:
    """Return the entries of an epoch file and what a broker makes of them; None where it cannot
    be read."""
    try:
        entries = parse_leader_epochs(content, file=LEADER_EPOCH_FILE)
        return entries, LeaderEpochCache(entries)
    except (PylogError, ValueError):
        return None


@lru_cache(maxsize=1024)
def _is_metadata_sound(content: bytes) -> bool:
    try:
        parse_partition_metadata(content, file=PARTITION_METADATA_FILE)
    except PylogError:
        return False
    return True


@lru_cache(maxsize=1024)
def _is_snapshot_sound(content: bytes) -> bool:
    try:
        parse_producer_snapshot("", content)
    except PylogError:
        return False
    return True
