"""Inspect many partitions of one root: plain ones together, all others alone.

Plain are the partitions of ``Listings`` in a log directory that was closed cleanly. Each of their
directories is listed once, and each file that the answer needs is opened once: the ends of indexes,
the first batch of the log and its last ones, and the small files that a load reads. Machine code
lists and reads very many directories, and arrays tell what is in them. The rows are those of
``inspect_partition``, which looks at everything that is not plain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import LogConfig
from storage_core.errors import BadBytesError, DecompressionError, PylogError
from storage_core.filenames import TXN_INDEX_SUFFIX, segment_file
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2, NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import parse_transaction_index
from storage_core.kernels import compaction_walk as walk
from storage_core.kernels.batch_scan import (
    COLUMN_COUNT,
    DONE,
    TRUNCATED,
    check_crcs,
    scan_batches,
)
from storage_core.kernels.file_starts import BY_ENTRY, ENTRY_BYTES, FOLDER, MOST_BYTES, POSITION
from storage_core.log.log_loader import MAX_LOG_BYTES
from storage_core.log.log_truncation import NEWEST_ENTRIES, check_epochs, has_open_transaction
from storage_core.maintenance.compaction.plan import CompactionFacts, weigh_dirt
from storage_core.maintenance.listings import (
    CheckpointColumns,
    Listings,
    Mask,
    Numbers,
    have_plain_names,
)
from storage_core.reading.inspection import PARTITION_COLUMNS, RootView, inspect_partition
from storage_core.records.batch_table import BatchTable
from storage_core.records.file_starts import (
    EPOCHS,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Folders,
    FoundBatches,
)
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import Window
from storage_core.roots.open_root import map_over_root

# So many directories are decided about together.
_ENTRIES_AT_ONCE: Final = 512
# Of a log's start so much is read, and more if its first batch is longer.
_HEAD_BYTES: Final = 1 << 12
_MOST_HEAD_BYTES: Final = 1 << 16
# Behind the last entry of an offset index there are usually less than 4 KiB and a batch.
_MOST_TAIL_BYTES: Final = 1 << 16
_MOST_SMALL_BYTES: Final = 1 << 16  # of a file that is read whole
# No more than all of these are read of a partition.
_MOST_BYTES: Final = 1 << 20

Row = dict[str, Any]
# What ``index_bytes`` counts.
_INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_NOTHING: Final = dict.fromkeys(PARTITION_COLUMNS)


def inspect_partitions(
    view: RootView, entries: Sequence[SubDirectory], *, now_ms: int
) -> list[Row]:
    """Return the facts of sub-directories of one root, with any error as a column."""
    rows: dict[int, Row] = {}
    # A recovery changes what it finds in the other logs; an object store has requests, no folders.
    if view.recovery_points is None and not view.files.has_requests:
        observer = _Observer(view, now_ms)
        for first in range(0, len(entries), _ENTRIES_AT_ONCE):
            for number, row in observer.tell(entries[first : first + _ENTRIES_AT_ONCE]):
                rows[first + number] = row
    others = [number for number in range(len(entries)) if number not in rows]
    inspect = partial(inspect_partition, view, now_ms=now_ms, weigh_dirt=weigh_dirt)
    looked_at = map_over_root(view.files, inspect, [entries[number] for number in others])
    rows |= zip(others, looked_at, strict=True)
    return [rows[number] for number in range(len(entries))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """What decides about every partition of a topic."""

    config: LogConfig | None  # None where nothing says it
    policy: str | None
    may_be_tiered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A partition that may be plain, as all but its files say."""

    number: int  # of its entry
    topic: _Topic
    marks: PartitionCheckpoints


class _Observer:
    """Looks at the partitions of one root."""

    def __init__(self, view: RootView, now_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms
        self._topic_of = cache(self._read_topic)

    def tell(self, entries: Sequence[SubDirectory]) -> Iterator[tuple[int, Row]]:
        """Yield the rows of plain partitions, each with its place among the entries."""
        candidates = [c for n, e in enumerate(entries) if (c := self._candidate(n, e)) is not None]
        if not candidates:
            return
        look = _Look(
            [entries[one.number].path for one in candidates],
            np.array([one.marks.log_start_offset or 0 for one in candidates], np.int64),
        )
        listings = look.listings
        plain = [candidates[place] for place in listings.places]
        if not plain:
            return
        oldest = look.oldest_timestamps()
        dirt = self._weigh(plain, listings)
        columns = (
            listings.counts.tolist(),
            listings.total_bytes.tolist(),
            listings.base_offsets[listings.starts].tolist(),
            listings.log_ends.tolist(),
            look.index_bytes.tolist(),
            look.newest_timestamps.tolist(),
        )
        for place, (one, segments, size_bytes, base, end, index_bytes, newest) in enumerate(
            zip(plain, *columns, strict=True)
        ):
            if place not in oldest or place not in dirt:
                continue
            marks, entry = one.marks, entries[one.number]
            log_start = max(marks.log_start_offset or 0, base)
            if one.topic.may_be_tiered and (
                self._view.remote.has_tier or marks.start_in_tier(log_start) is not None
            ):
                continue
            partition = entry.topic_partition
            yield (
                one.number,
                _NOTHING
                | {
                    "root": self._view.row["root"],
                    "topic": partition and partition.topic,
                    "partition": partition and partition.partition,
                    "directory": entry.name,
                    "kind": entry.kind.value,
                    "topic_id": entry.topic_id,
                    "cleanup_policy": one.topic.policy,
                    "segments": segments,
                    "size_bytes": size_bytes,
                    "index_bytes": index_bytes,
                    "oldest_timestamp": oldest[place],
                    "newest_timestamp": None if newest == NO_TIMESTAMP else newest,
                    "log_start_offset": log_start,
                    "log_end_offset": end,
                    "last_stable_offset": end,
                    "high_watermark": marks.high_watermark,
                    "cleaner_checkpoint": marks.cleaner_offset,
                    "leftover_files": [],
                    "unknown_files": [],
                    **dirt[place],
                },
            )

    def _read_topic(self, topic: str) -> _Topic | None:
        """Return what is known of a topic; None for an error, which is each partition's own."""
        try:
            config = self._view.catalog.config_for(topic)
        except PylogError:
            return None
        return _Topic(
            config=config,
            policy=None if config is None else ",".join(sorted(config.cleanup_policy)),
            may_be_tiered=self._view.is_tiered(topic) is not False,
        )

    def _candidate(self, number: int, entry: SubDirectory) -> _Candidate | None:
        """Return what is known of a directory; None where it is surely not plain."""
        partition = entry.topic_partition
        is_log = entry.kind is DirectoryKind.PARTITION and not entry.problem
        topic = self._topic_of(partition.topic) if partition is not None and is_log else None
        if partition is None or topic is None:
            return None
        return _Candidate(number=number, topic=topic, marks=self._view.checkpoints.of(partition))

    def _weigh(self, plain: Sequence[_Candidate], listings: Listings) -> dict[int, Row]:
        """Return by place what is known of dirty bytes; nothing where ages of segments decide."""
        facts = CompactionFacts.of_listings(
            listings,
            [one.topic.config or LogConfig() for one in plain],
            CheckpointColumns.of([one.marks for one in plain]).up_to_log_ends(),
        )
        answers = facts.decide(now_ms=self._now_ms)
        clean, cleanable = answers[walk.CLEAN_BYTES], answers[walk.CLEANABLE_BYTES]
        ratios = (cleanable / np.maximum(clean + cleanable, 1)).tolist()
        is_known = answers[walk.MISSING] == walk.NOTHING
        dirt: dict[int, Row] = {}
        for place, one in enumerate(plain):
            config = one.topic.config
            if one.marks.cleaner_offset is None and not (config and config.is_compacted):
                dirt[place] = {}
            elif is_known[place]:
                dirt[place] = {
                    "dirty_bytes": int(cleanable[place]),
                    "dirty_ratio": round(ratios[place], 4),
                }
        return dirt


class _Look:
    """What one look at directories shows of those whose files have plain names.

    Args:
        paths: Of the directories.
        log_starts: int64[n], of each the entry in the log-start checkpoint, 0 without one.
    """

    def __init__(self, paths: Sequence[str], log_starts: Numbers) -> None:
        self._folders = Folders(paths)
        files = self._folders.list_files()
        is_plain = have_plain_names(files)
        places = np.flatnonzero(is_plain)
        self._files = files = files.of(is_plain)
        # Numbers are those of these directories from here on.
        self._count, self._places, self._log_starts = len(places), places, log_starts[places]
        (logs,) = np.nonzero(files.kinds == LOG)
        owners, bases = files.folders[logs], files.offsets[logs]
        counts = np.bincount(owners, minlength=self._count)
        first = np.cumsum(counts) - counts
        # As a load searches them: from the segment that has the log's start.
        below = np.bincount(owners[bases <= self._log_starts[owners]], minlength=self._count)
        head, last = first + np.maximum(below - 1, 0), first + counts - 1
        self._heads, self._tails = logs[head], logs[last]
        self._parts = self._folders.read(self._wanted_parts(), most_of_folder=_MOST_BYTES)
        sizes = self._parts.sizes[: len(files.kinds)]
        # Which of them a look at each alone has to tell about.
        self._is_odd = np.zeros(self._count, np.bool_)
        lengths = self._parts.lengths
        self._refuse(files.folders, lengths[: len(files.kinds)] < 0)
        self._refuse(np.arange(self._count), lengths[self._head_parts] < 0)
        self._refuse(owners, sizes[logs] > MAX_LOG_BYTES)
        ends = np.cumsum(sizes[logs])
        self._has_bytes = ends[last] > ends[head] - sizes[self._heads]
        of_index = np.where(np.isin(files.kinds, _INDEXES), sizes, 0)
        self.index_bytes = np.bincount(files.folders, of_index, self._count).astype(np.int64)
        log_ends, newest = self._read_tails()
        self.newest_timestamps = np.maximum(newest, self._read_time_indexes())
        self._check_small_files(np.maximum(bases[first], self._log_starts), log_ends)
        self.listings = Listings(
            places=places,
            starts=first,
            base_offsets=bases,
            sizes=sizes[logs],
            times_ms=np.zeros(len(logs), np.int64),
            oldest_timestamps=np.full(self._count, NO_TIMESTAMP),
            has_age=np.zeros(self._count, np.bool_),
            log_ends=log_ends,
        )

    def oldest_timestamps(self) -> dict[int, int | None]:
        """Return the timestamp of the first record that may be read, None where all segments are
        empty; nothing of directories that only a look at each alone tells about."""
        is_told = ~self._is_odd
        return dict.fromkeys(np.flatnonzero(is_told & ~self._has_bytes).tolist()) | _read_oldest(
            self._read_first_batches(np.flatnonzero(is_told & self._has_bytes)), self._log_starts
        )

    def _refuse(self, owners: Numbers, is_odd: Mask) -> None:
        self._is_odd[owners[is_odd]] = True

    def _wanted(self, files: Numbers | None, most_bytes: int) -> Numbers:
        """Return what is wanted of files, in the numbers that their folders have."""
        wanted = self._files.parts(files, most_bytes=most_bytes)
        wanted[FOLDER] = self._places[wanted[FOLDER]]
        return wanted

    def _wanted_parts(self) -> Numbers:
        """Return what is wanted of each file, and then of logs that have both the log's start and
        its end."""
        files, is_newest = self._files, self._files.is_newest
        parts = self._wanted(None, 0)
        for is_one, entry_bytes, most in (
            (files.kinds == TIME_INDEX, TIME_INDEX_ENTRY.itemsize, 1),
            (
                (files.kinds == OFFSET_INDEX) & is_newest,
                OFFSET_INDEX_ENTRY.itemsize,
                NEWEST_ENTRIES,
            ),
            ((files.kinds == SNAPSHOT) & is_newest, 1, _MOST_SMALL_BYTES),
            ((files.kinds == TXN_INDEX) | (files.kinds == EPOCHS), 1, _MOST_SMALL_BYTES),
        ):
            parts[ENTRY_BYTES, is_one] = entry_bytes
            parts[MOST_BYTES, is_one] = entry_bytes * most
        parts[MOST_BYTES, self._heads] = _HEAD_BYTES
        parts[MOST_BYTES, self._tails] = _MOST_TAIL_BYTES
        parts[POSITION, self._tails] = BY_ENTRY
        is_shared = self._heads == self._tails
        self._head_parts = np.where(
            is_shared, len(files.kinds) + np.cumsum(is_shared) - 1, self._heads
        )
        shared = self._wanted(self._heads[is_shared], _HEAD_BYTES)
        return np.concatenate([parts, shared], axis=1)

    def _read_time_indexes(self) -> Numbers:
        """Return the newest timestamp in time indexes, NO_TIMESTAMP without one."""
        parts = self._parts
        (rows,) = np.nonzero(self._files.kinds == TIME_INDEX)
        rows = rows[parts.lengths[rows] > 0]
        owners, entries = self._files.folders[rows], parts.entries(rows, TIME_INDEX_ENTRY)
        # Zeros at the end of a time index are no entry.
        self._refuse(owners, (entries["timestamp"] == 0) & (entries["relative_offset"] == 0))
        newest = np.full(self._count, NO_TIMESTAMP, np.int64)
        is_one = entries["timestamp"] > 0
        np.maximum.at(newest, owners[is_one], entries["timestamp"][is_one].astype(np.int64))
        return newest

    def _read_tails(self) -> tuple[Numbers, Numbers]:
        """Return the logs' ends, and the newest timestamps of the batches that lead to them."""
        parts, tails = self._parts, self._tails
        bases, sizes = self._files.offsets[tails], parts.sizes[tails]
        indexed = self._check_offset_indexes(bases)
        found = FoundBatches(parts, tails)
        table, owners, is_first = found.table, found.owners, found.is_first
        firsts, lasts = table.base_offset, table.last_offset
        is_odd = (table.magic != MAGIC_V2) | (table.size < HEADER_BYTES) | (firsts > lasts)
        is_odd[1:] |= ~is_first[1:] & (firsts[1:] <= lasts[:-1])
        starts_at = owners[is_first]
        is_odd[is_first] |= firsts[is_first] < bases[starts_at]
        # After the position of an index entry there is the batch that it names.
        is_by_entry = parts.positions[tails] > 0
        at = indexed[starts_at]
        is_odd[is_first] |= is_by_entry[starts_at] & (
            (firsts[is_first] > at) | (at > lasts[is_first])
        )
        self._refuse(owners, is_odd)
        (checked,) = np.nonzero(is_first & is_by_entry[owners])
        of_checked = np.ascontiguousarray(table.columns[:, checked])
        check_crcs(parts.room, of_checked, len(checked))
        self._refuse(owners[checked], BatchTable(of_checked).crc_ok != 1)
        is_cut = parts.positions[tails] + parts.lengths[tails] != sizes
        is_cut |= (found.statuses != DONE) | (is_by_entry & (sizes == 0))
        self._refuse(np.arange(self._count), is_cut)
        ends, newest = bases.copy(), np.full(self._count, NO_TIMESTAMP)
        ends[owners] = lasts + 1  # the last one of each stays
        np.maximum.at(newest, owners, table.max_timestamp)
        return ends, newest

    def _check_offset_indexes(self, bases: Numbers) -> Numbers:
        """Return the last indexed offset of each newest segment, its base without an entry."""
        parts = self._parts
        (rows,) = np.nonzero((self._files.kinds == OFFSET_INDEX) & self._files.is_newest)
        counts = np.maximum(parts.lengths[rows], 0) // OFFSET_INDEX_ENTRY.itemsize
        entries = parts.entries(rows, OFFSET_INDEX_ENTRY)
        owners = np.repeat(np.arange(self._count), counts)
        offsets = entries["relative_offset"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        is_odd = (offsets < 0) | (positions <= 0)
        is_odd[1:] |= (owners[1:] == owners[:-1]) & (
            (offsets[1:] <= offsets[:-1]) | (positions[1:] <= positions[:-1])
        )
        self._refuse(owners, is_odd)
        last = bases.copy()
        last[owners] += offsets  # of each the last one
        return last

    def _check_small_files(self, log_starts: Numbers, log_ends: Numbers) -> None:
        """Leave out logs that no load reads as they are, and those with open transactions."""
        files, parts = self._files, self._parts
        self._refuse(np.arange(self._count), log_ends < log_starts)
        is_whole = (files.kinds == EPOCHS) | (files.kinds == TXN_INDEX)
        is_whole |= (files.kinds == SNAPSHOT) & files.is_newest
        (rows,) = np.nonzero(is_whole)
        owners = files.folders[rows]
        self._refuse(owners, parts.lengths[rows] != parts.sizes[rows])
        for row, owner in zip(rows.tolist(), owners.tolist(), strict=True):
            if self._is_odd[owner]:
                continue
            kind, offset = files.kinds[row], int(files.offsets[row])
            start, end = log_starts[owner], log_ends[owner]
            try:
                if kind == EPOCHS:
                    check_epochs(parts.content(row))
                elif kind == TXN_INDEX:
                    name = segment_file(offset, TXN_INDEX_SUFFIX)
                    parse_transaction_index(name, offset, parts.content(row))
                elif offset <= start:
                    # It is removed, and a replay follows.
                    self._is_odd[owner] = offset > end or start != end
                else:
                    self._is_odd[owner] = offset != end or has_open_transaction(parts.content(row))
            except PylogError:
                self._is_odd[owner] = True

    def _read_first_batches(self, asked: Numbers) -> dict[int, NDArray[np.uint8]]:
        """Return by directory the first batch with a record that may be read; nothing where it is
        no batch of format v2 among the first bytes."""
        batches: dict[int, NDArray[np.uint8]] = {}
        parts, rows, most_bytes = self._parts, self._head_parts[asked], _HEAD_BYTES
        while len(asked):
            found = FoundBatches(parts, rows)
            table, owners = found.table, found.owners
            is_odd = np.zeros(len(asked), np.bool_)
            is_odd[owners[(table.magic != MAGIC_V2) | (table.size < HEADER_BYTES)]] = True
            is_readable = ~table.is_control & (table.record_count > 0) & ~is_odd[owners]
            is_readable &= table.last_offset >= self._log_starts[asked][owners]
            (readable,) = np.nonzero(is_readable)
            has_one, at = np.unique(owners[readable], return_index=True)
            ends = table.position + table.size
            for number, row in zip(asked[has_one].tolist(), readable[at].tolist(), strict=True):
                batches[number] = parts.room[table.position[row] : ends[row]]
            is_cut = (found.statuses == TRUNCATED) & (parts.lengths[rows] < parts.sizes[rows])
            is_cut &= ~is_odd
            is_cut[has_one] = False
            if most_bytes == _MOST_HEAD_BYTES:
                break
            asked, most_bytes = asked[is_cut], _MOST_HEAD_BYTES
            wanted = self._wanted(self._heads[asked], most_bytes)
            parts = self._folders.read(wanted, most_of_folder=_MOST_BYTES)
            rows = np.arange(len(asked))
        return batches


def _read_oldest(
    batches: dict[int, NDArray[np.uint8]], log_starts: Numbers
) -> dict[int, int | None]:
    """Return by place the timestamp of the first record that may be read; nothing where the
    records of its batch do not tell."""
    oldest: dict[int, int | None] = {}
    if not batches:
        return oldest
    places = list(batches)
    data = np.concatenate(list(batches.values()))
    table = np.empty((COLUMN_COUNT, len(places)), np.int64)
    count, _, status = scan_batches(data, 0, len(data), table)
    if count < len(places) or status != DONE:
        raise AssertionError("batches that were found alone are batches together")
    window = Window("", 0, data, BatchTable(table))
    try:
        for records in decode_records(window, np.ones(len(places), np.bool_), DEFAULT_LIMITS):
            (readable,) = np.nonzero(records.offset >= log_starts[places][records.batch])
            of = records.batch[readable]
            (at,) = np.nonzero(np.append(True, of[1:] != of[:-1])[: len(of)])
            of, timestamps = of[at], records.timestamp[readable[at]].tolist()
            for number, timestamp in zip(of.tolist(), timestamps, strict=True):
                oldest[places[number]] = None if timestamp == NO_TIMESTAMP else timestamp
    except (BadBytesError, DecompressionError):
        return {}  # who looks at each alone finds out which
    return oldest
