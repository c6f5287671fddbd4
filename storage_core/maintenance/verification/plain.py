"""Verify many small partitions together, and tell those in which nothing but gaps is found.

Of a partition with few bytes the batches take no time: the functions that check one segment, one
index and one partition do, for each of them. Here the batches and index entries of many partitions
are checked as arrays. Whatever is not surely right, or seldom, is not told: its partition is
verified alone, by the functions that know every rule and its words.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import (
    EpochEntry,
    PartitionCheckpoints,
    parse_leader_epochs,
    parse_partition_metadata,
)
from storage_core.errors import PylogError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_of,
)
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.kernels.batch_scan import COLUMN_COUNT, DONE, check_crcs, scan_batches
from storage_core.local_files import OpenFolder, list_open, open_folder
from storage_core.log.leader_epoch_cache import EpochRun, LeaderEpochCache
from storage_core.log.producer_snapshot import parse_producer_snapshot
from storage_core.maintenance.listings import DirectoryLook, Listings, Mask, Numbers
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.epochs_and_snapshots import judge_epochs
from storage_core.maintenance.verification.findings import (
    BrokerUser,
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

# What lies in a partition is read whole. A larger one is worth a look of its own.
LARGEST_PLAIN_BYTES: Final = 1 << 18
_BYTES_AT_ONCE: Final = 1 << 22
_PARTITIONS_AT_ONCE: Final = 256
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
    reads: list[_Read] = []
    started, size_bytes = time.perf_counter(), 0
    for number, target in enumerate(targets):
        read = _read(number, target)
        if read is not None:
            reads.append(read)
            size_bytes += sum(map(len, read.log_bytes))
        if len(reads) == _PARTITIONS_AT_ONCE or size_bytes > _BYTES_AT_ONCE:
            told |= _Check(targets, reads).plain_partitions(started)
            reads, started, size_bytes = [], time.perf_counter(), 0
    if reads:
        told |= _Check(targets, reads).plain_partitions(started)
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(DirectoryLook):
    """The files of a partition that may be plain; of segments by base offset."""

    number: int  # of its target
    log_bytes: Sequence[bytes]
    offset_index_bytes: Sequence[bytes]
    time_index_bytes: Sequence[bytes]
    epochs: bytes
    partition_metadata: bytes
    snapshots: Mapping[str, bytes]


def _read(number: int, target: Verifiable) -> _Read | None:
    """Read a partition whole; None where it is surely not plain, or large."""
    context = target.context
    is_closed = context.is_clean and not context.is_copy and not context.is_tiered
    is_coordinators = target.partition.topic in COORDINATOR_TOPICS
    if not is_closed or is_coordinators or not target.directory.startswith("/"):
        return None
    try:
        with open_folder(target.directory) as folder:
            content = _read_files(folder, context.user)
    except OSError:
        return None
    if content is None:
        return None
    logs = sorted(name for name in content if name.endswith(LOG_SUFFIX))
    stems = [log.removesuffix(LOG_SUFFIX) for log in logs]
    try:
        return _Read(
            number=number,
            logs={name: (len(content[name]), 0) for name in logs},
            others=list(content.keys() - logs),
            log_bytes=[content[name] for name in logs],
            offset_index_bytes=[content[stem + OFFSET_INDEX_SUFFIX] for stem in stems],
            time_index_bytes=[content[stem + TIME_INDEX_SUFFIX] for stem in stems],
            epochs=content[LEADER_EPOCH_FILE],
            partition_metadata=content[PARTITION_METADATA_FILE],
            snapshots={n: content[n] for n in content if n.endswith(SNAPSHOT_SUFFIX)},
        )
    except KeyError:
        return None  # a file is missing, which is a finding


def _read_files(descriptor: int, user: BrokerUser | None) -> dict[str, bytes] | None:
    """Return all of an open folder by name; None where there is something that has to be looked
    at alone."""
    _, names, are_files = list_open(descriptor, None)
    if not are_files:
        return None
    folder = OpenFolder(descriptor)
    content: dict[str, bytes] = {}
    size_bytes = 0
    for name in names:
        content[name], facts = folder.read(name, 0, LARGEST_PLAIN_BYTES)
        size_bytes += facts.st_size
        if size_bytes > LARGEST_PLAIN_BYTES or len(content[name]) != facts.st_size:
            return None
        is_ours = user is None or (
            facts.st_uid == user.number and facts.st_mode & _OWNERS == _OWNERS
        )
        if not is_ours or name.endswith(TXN_INDEX_SUFFIX):
            return None
    return content


class _Check:
    """Checks the files of some partitions together."""

    def __init__(self, targets: Sequence[Verifiable], reads: Sequence[_Read]) -> None:
        self._targets = targets
        listings = Listings.of_looks(reads)
        self._reads = [reads[place] for place in listings.places]
        self._bases, self._sizes = listings.base_offsets, listings.sizes
        self._first_log = listings.starts
        self._end_log = listings.starts + listings.counts

    def plain_partitions(self, started: float) -> dict[int, PlainPartition]:
        """Return by target what is told of plain partitions."""
        if not self._reads:
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
        seconds = (time.perf_counter() - started) / len(self._reads)
        told = {}
        for place in np.flatnonzero(is_right).tolist():
            plain = self._judge(place, batches, seconds)
            if plain is not None:
                told[self._reads[place].number] = plain
        return told

    def _scan(self) -> BatchTable | None:
        """Return the batches of all logs; None where one of these does not end with a batch."""
        data = np.frombuffer(
            bytearray(b"".join(b for r in self._reads for b in r.log_bytes)), np.uint8
        )
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
        files = [content for read in self._reads for content in read.offset_index_bytes]
        entries, owners, is_whole = _entries(files, OFFSET_INDEX_ENTRY)
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
        files = [content for read in self._reads for content in read.time_index_bytes]
        entries, owners, is_whole = _entries(files, TIME_INDEX_ENTRY)
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

    def _judge(self, place: int, batches: BatchTable, seconds: float) -> PlainPartition | None:
        """Return what is told of a partition with sound segments; None where something else is
        to be said."""
        read = self._reads[place]
        target = self._targets[read.number]
        checkpoints = target.checkpoints
        first, end = int(self._first_log[place]), int(self._end_log[place])
        logs = slice(first, end)
        rows = slice(int(self._row_ends[first] - self._counts[first]), int(self._row_ends[end - 1]))
        start = max(checkpoints.log_start_offset or 0, int(self._bases[first]))
        log_end = int(self._last_offsets[logs].max()) + 1
        if not (
            _is_metadata_sound(read.partition_metadata)
            and _are_snapshots_usual(read.snapshots, self._bases[logs].tolist(), log_end)
            and (read.snapshots or not batches.has_producer_id[rows].any())
        ):
            return None
        findings = FindingCollector()
        epochs = _parse_epochs(read.epochs)
        if epochs is None:
            return None
        entries, cache = epochs
        runs = self._epoch_runs(batches, rows)
        if not _is_one_epoch(entries, runs, start):
            judge_epochs(entries, cache, runs, start, findings)
        check_checkpoints(start, log_end, checkpoints, target.context, findings)
        if findings.findings():
            return None
        explained = max(start, checkpoints.cleaner_offset or 0)
        is_gap = self._last_offsets[first : end - 1] + 1 < self._bases[first + 1 : end]
        if (is_gap & (self._bases[first + 1 : end] > explained)).any():
            facts = [self._segment_facts(log) for log in range(first, end)]
            check_gaps(facts, start, checkpoints, target.context, findings)
        size_bytes = int(self._sizes[logs].sum())
        return PlainPartition(
            facts=PartitionFacts(
                segments=end - first,
                size_bytes=size_bytes,
                batches=rows.stop - rows.start,
                records=int(batches.record_count[rows].sum()),
                log_start_offset=start,
                log_end_offset=log_end,
                read_bytes=size_bytes,
                read_seconds=seconds,
            ),
            findings=findings.findings(),
            active_index_bytes=(
                len(read.offset_index_bytes[-1]),
                len(read.time_index_bytes[-1]),
            ),
        )

    def _epoch_runs(self, batches: BatchTable, rows: slice) -> list[EpochRun]:
        """Return the runs of leader epochs of a partition's batches, without their places."""
        epochs = batches.leader_epoch[rows]
        if not epochs.size:
            return []
        starts = np.flatnonzero(np.append(True, epochs[1:] != epochs[:-1])).tolist()
        ends = [*starts[1:], epochs.size]
        return [
            EpochRun(
                epoch=int(epochs[first]),
                first_offset=int(batches.base_offset[rows.start + first]),
                last_offset=int(batches.last_offset[rows.start + end - 1]),
                batches=end - first,
            )
            for first, end in zip(starts, ends, strict=True)
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


def _entries(
    files: Sequence[bytes], entry: np.dtype[Any]
) -> tuple[NDArray[np.void], Numbers, Mask]:
    """Return the entries of index files, of each the number of its file, and by file whether it
    has whole entries only."""
    lengths = np.fromiter(map(len, files), np.int64, len(files))
    is_whole = lengths % entry.itemsize == 0
    counts = np.where(is_whole, lengths // entry.itemsize, 0)
    content = b"".join(c for c, is_so in zip(files, is_whole.tolist(), strict=True) if is_so)
    return np.frombuffer(content, entry), np.repeat(np.arange(len(files)), counts), is_whole


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


def _are_snapshots_usual(snapshots: Mapping[str, bytes], bases: Sequence[int], end: int) -> bool:
    """Whether all snapshots can be read, and lie where segments begin or the log ends."""
    return all(
        (offset_of(name) in bases or offset_of(name) == end) and _is_snapshot_sound(content)
        for name, content in snapshots.items()
    )
