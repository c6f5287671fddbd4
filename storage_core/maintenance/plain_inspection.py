"""Inspect many partitions of one root: plain ones together, all others alone.

Plain are the partitions of ``Listings`` in a log directory that was closed cleanly. Each of their
directories is listed once, and each file that the answer needs is opened once: the ends of indexes,
the first batch of the log and its last ones, and the small files that a load reads. The rows are
those of ``inspect_partition``, which looks at everything that is not plain.
"""

from bisect import bisect_right
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
from storage_core.filenames import LOG_SUFFIX, log_file
from storage_core.formats.batch_v2 import CONTROL_BIT, HEADER_BYTES, MAGIC_V2, NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.kernels import batch_scan
from storage_core.kernels import compaction_walk as walk
from storage_core.kernels.batch_scan import COLUMN_COUNT, DONE, TRUNCATED, scan_batches
from storage_core.local_files import OpenFolder, list_open, open_folder
from storage_core.maintenance.compaction.plan import CompactionFacts, weigh_dirt
from storage_core.maintenance.listings import (
    PLAIN_FILES,
    CheckpointColumns,
    DirectoryLook,
    Listings,
    read_end,
    read_last_time,
)
from storage_core.reading.inspection import PARTITION_COLUMNS, RootView, inspect_partition
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import Window
from storage_core.roots.open_root import map_over_root

# So many directories are decided about together.
_ENTRIES_AT_ONCE: Final = 512
# Of a log's start so much is read, and more if its first batch is longer.
_HEAD_BYTES: Final = 1 << 12
_MOST_HEAD_BYTES: Final = 1 << 16
_MOST_HEAD_BATCHES: Final = 64
_OF_FIRST_BATCH: Final = (
    batch_scan.MAGIC,
    batch_scan.SIZE,
    batch_scan.POSITION,
    batch_scan.ATTRIBUTES,
    batch_scan.RECORD_COUNT,
    batch_scan.LAST_OFFSET,
)

Row = dict[str, Any]


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
class _Look(DirectoryLook):
    """What one look at a directory shows that may be plain."""

    number: int  # of its entry
    topic: _Topic
    marks: PartitionCheckpoints
    index_bytes: int
    newest_timestamp: int
    # uint8[n], the first batch with a record that may be read; None where all segments are empty.
    first_batch: NDArray[np.uint8] | None


class _Observer:
    """Looks at the partitions of one root."""

    def __init__(self, view: RootView, now_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms
        self._topic_of = cache(self._read_topic)

    def tell(self, entries: Sequence[SubDirectory]) -> Iterator[tuple[int, Row]]:
        """Yield the rows of plain partitions, each with its place among the entries."""
        looks = [self._look(number, entry) for number, entry in enumerate(entries)]
        listings = Listings.of_looks(looks)
        plain = [look for look in map(looks.__getitem__, listings.places) if look is not None]
        if not plain:
            return
        oldest = _oldest_timestamps(plain)
        dirt = self._weigh(plain, listings)
        columns = (
            listings.counts.tolist(),
            listings.total_bytes.tolist(),
            listings.base_offsets[listings.starts].tolist(),
            listings.log_ends.tolist(),
        )
        for place, (look, segments, size_bytes, base, end) in enumerate(
            zip(plain, *columns, strict=True)
        ):
            if place not in oldest or place not in dirt:
                continue
            marks, entry = look.marks, entries[look.number]
            log_start = max(marks.log_start_offset or 0, base)
            if look.topic.may_be_tiered and (
                self._view.remote.has_tier or marks.start_in_tier(log_start) is not None
            ):
                continue
            newest = look.newest_timestamp
            partition = entry.topic_partition
            yield (
                look.number,
                dict.fromkeys(PARTITION_COLUMNS)
                | {
                    "root": self._view.row["root"],
                    "topic": partition and partition.topic,
                    "partition": partition and partition.partition,
                    "directory": entry.name,
                    "kind": entry.kind.value,
                    "topic_id": entry.topic_id,
                    "cleanup_policy": look.topic.policy,
                    "segments": segments,
                    "size_bytes": size_bytes,
                    "index_bytes": look.index_bytes,
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

    def _look(self, number: int, entry: SubDirectory) -> _Look | None:
        """Look at a directory; None where it is surely not plain."""
        partition = entry.topic_partition
        is_log = entry.kind is DirectoryKind.PARTITION and not entry.problem
        topic = self._topic_of(partition.topic) if partition is not None and is_log else None
        if partition is None or topic is None:
            return None
        marks = self._view.checkpoints.of(partition)
        log_start = marks.log_start_offset or 0
        try:
            with open_folder(entry.path) as descriptor:
                folder = OpenFolder(descriptor)
                _, names, are_files = list_open(descriptor, None)
                logs = sorted(name for name in names if name.endswith(LOG_SUFFIX))
                others = [name for name in names if not name.endswith(LOG_SUFFIX)]
                if not logs or not are_files:
                    return None
                last_times = [read_last_time(folder, log) for log in logs]
                end = read_end(folder, entry.path, logs, others, log_start)
                # Zeros at the end of a time index are no entry.
                if (
                    end is None
                    or end.newest_timestamp is None
                    or not all(map(_is_used, last_times))
                ):
                    return None
                # As a load searches them: from the segment that has the log's start.
                first = max(bisect_right(logs, log_file(log_start)) - 1, 0)
                sizes = {name: folder.size_of(name) for name in names if name not in PLAIN_FILES}
                head = next((name for name in logs[first:] if sizes[name]), None)
                first_batch = None if head is None else _read_first_batch(folder, head, log_start)
                if head is not None and first_batch is None:
                    return None
        except (OSError, PylogError):
            return None
        times = np.frombuffer(b"".join(last_times), TIME_INDEX_ENTRY)["timestamp"]
        newest = int(times.max(initial=NO_TIMESTAMP))
        return _Look(
            number=number,
            topic=topic,
            marks=marks,
            logs={name: (sizes.pop(name), 0) for name in logs},
            others=others,
            end=end,
            index_bytes=sum(sizes.values()),
            newest_timestamp=max(
                NO_TIMESTAMP, end.newest_timestamp, newest if newest > 0 else NO_TIMESTAMP
            ),
            first_batch=first_batch,
        )

    def _weigh(self, plain: Sequence[_Look], listings: Listings) -> dict[int, Row]:
        """Return by place what is known of dirty bytes; nothing where ages of segments decide."""
        facts = CompactionFacts.of_listings(
            listings,
            [look.topic.config or LogConfig() for look in plain],
            CheckpointColumns.of([look.marks for look in plain]).up_to_log_ends(),
        )
        answers = facts.decide(now_ms=self._now_ms)
        clean, cleanable = answers[walk.CLEAN_BYTES], answers[walk.CLEANABLE_BYTES]
        ratios = (cleanable / np.maximum(clean + cleanable, 1)).tolist()
        is_known = answers[walk.MISSING] == walk.NOTHING
        dirt: dict[int, Row] = {}
        for place, look in enumerate(plain):
            config = look.topic.config
            if look.marks.cleaner_offset is None and not (config and config.is_compacted):
                dirt[place] = {}
            elif is_known[place]:
                dirt[place] = {
                    "dirty_bytes": int(cleanable[place]),
                    "dirty_ratio": round(ratios[place], 4),
                }
        return dirt


def _is_used(entry: bytes) -> bool:
    return not entry or any(entry)


def _read_first_batch(folder: OpenFolder, name: str, log_start: int) -> NDArray[np.uint8] | None:
    """Return the first batch of a segment with a data record that may be read; None where it is
    no batch of format v2 among the first bytes."""
    for most_bytes in (_HEAD_BYTES, _MOST_HEAD_BYTES):
        content, facts = folder.read(name, 0, most_bytes)
        data = np.frombuffer(bytearray(content), np.uint8)
        table = np.empty((COLUMN_COUNT, _MOST_HEAD_BATCHES), np.int64)
        count, _, status = scan_batches(data, 0, len(content), table)
        # A few numbers are sooner looked at one by one than as arrays.
        columns = (table[column, :count].tolist() for column in _OF_FIRST_BATCH)
        batches = list(zip(*columns, strict=True))
        if any(magic != MAGIC_V2 or size < HEADER_BYTES for magic, size, *_ in batches):
            return None
        for _, size, start, attributes, records, last in batches:
            if not attributes & CONTROL_BIT and records > 0 and last >= log_start:
                return data[start : start + size]
        if status != TRUNCATED or len(content) == facts.st_size:
            return None
    return None


def _oldest_timestamps(looks: Sequence[_Look]) -> dict[int, int | None]:
    """Return by place the timestamp of the first record that may be read, None where all segments
    are empty; nothing where the records of its batch do not tell."""
    oldest: dict[int, int | None] = {
        place: None for place, look in enumerate(looks) if look.first_batch is None
    }
    places = [place for place in range(len(looks)) if place not in oldest]
    if not places:
        return oldest
    firsts = [batch for look in looks if (batch := look.first_batch) is not None]
    data = np.concatenate(firsts)
    table = np.empty((COLUMN_COUNT, len(firsts)), np.int64)
    count, _, status = scan_batches(data, 0, len(data), table)
    if count < len(firsts) or status != DONE:
        raise AssertionError("batches that were found alone are batches together")
    window = Window("", 0, data, BatchTable(table))
    log_starts = np.array([looks[place].marks.log_start_offset or 0 for place in places])
    try:
        for records in decode_records(window, np.ones(len(firsts), np.bool_), DEFAULT_LIMITS):
            (readable,) = np.nonzero(records.offset >= log_starts[records.batch])
            of = records.batch[readable]
            (at,) = np.nonzero(np.append(True, of[1:] != of[:-1])[: len(of)])
            of, timestamps = of[at], records.timestamp[readable[at]].tolist()
            for number, timestamp in zip(of.tolist(), timestamps, strict=True):
                oldest[places[number]] = None if timestamp == NO_TIMESTAMP else timestamp
    except (BadBytesError, DecompressionError):
        return {}  # who looks at each alone finds out which
    return oldest
