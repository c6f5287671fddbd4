"""Pass one spread over processes: a partial index a segment, and their merge.

A segment can be indexed without knowing the ones before it, but for one thing: whether a
transactional batch was aborted depends on what came before. The keys of the batches that may be
(their producer has an aborted transaction in the range) are therefore kept apart, by batch, until
the merge has run the transaction tracker over all segments in order.

Only rounds without a limit of keys can be spread like this (``CompactionPlan.max_keys`` is None).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.index.transaction_index import AbortedTxn, collect_aborted
from storage_core.kernels.offset_table import SLOT_WORDS
from storage_core.kernels.survivors import mark_survivors
from storage_core.log.log_segment import SegmentState
from storage_core.log.transaction_tracker import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import (
    NO_OFFSET,
    CompactionIndex,
    DirtySegment,
    IndexStats,
    check_batches,
    legacy_counts_of,
    rank_of,
    start_position,
    words_for,
)
from storage_core.maintenance.compaction.key_files import (
    create_table,
    map_set,
    map_table,
    write_set,
)
from storage_core.maintenance.compaction.key_sink import (
    ChunkedKeys,
    FileSink,
    KeySink,
    MemorySink,
    SuspectBlock,
    read_keys,
    read_suspects,
)
from storage_core.maintenance.compaction.key_sink import KeyBlock as Keys
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.payload import open_batches
from storage_core.records.reader import CrcCheck, Window, scan_windows
from storage_core.store.base import LogStore

_ROW_FIELDS = ("producer_id", "last_offset", "is_transactional", "is_control", "control_type")
_ARRAYS = (
    "flags",
    "legacy_counts",
    "low",
    "high",
    "rank",
    "suspect_low",
    "suspect_high",
    "suspect_rank",
    "suspect_row",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialIndex:
    """What one segment of a round says.

    Attributes:
        base_offset: Which segment.
        is_dirty: Whether its keys were collected; of the others only transactions are of interest.
        start_position: Where its keys begin.
        record_count: Records that have an ordinal.
        bytes_read: Bytes of the batches read for their keys.
        messages_read: Records of those batches, markers included.
        rows: The transactional and control batches of the whole segment.
        first_dirty_row: The first of them at or after start_position.
        flags: uint8[n], of each batch from start_position on.
        legacy_counts: int64[], records of those of legacy formats.
        low, high: uint64[keys], hashes of the segment's keys.
        rank: int64[keys], newest record of each.
        suspect_low, suspect_high: uint64[m], hashes of the records of batches that may be aborted.
        suspect_rank: int64[m].
        suspect_row: int64[m], which of rows each of them belongs to.
        prefix: Of the streams that hold the keys in place of these arrays, None without.
    """

    base_offset: int
    is_dirty: bool
    start_position: int
    record_count: int
    bytes_read: int
    messages_read: int
    rows: TransactionRows
    first_dirty_row: int
    flags: NDArray[np.uint8]
    legacy_counts: NDArray[np.int64]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    rank: NDArray[np.int64]
    suspect_low: NDArray[np.uint64]
    suspect_high: NDArray[np.uint64]
    suspect_rank: NDArray[np.int64]
    suspect_row: NDArray[np.int64]
    prefix: Path | None = None

    def key_blocks(self) -> Iterator[Keys]:
        """Yield the segment's keys; one may come several times."""
        if self.prefix is not None:
            yield from read_keys(self.prefix)
        yield self.low, self.high, self.rank

    def suspect_blocks(self) -> Iterator[SuspectBlock]:
        """Yield the records of batches that may be aborted."""
        if self.prefix is not None:
            yield from read_suspects(self.prefix)
        yield self.suspect_low, self.suspect_high, self.suspect_rank, self.suspect_row

    def to_bytes(self) -> bytes:
        """Return the partial index as bytes, for another process of the same run."""
        return pack_arrays(*self._parts())

    @classmethod
    def from_bytes(cls, data: bytes) -> "PartialIndex":
        """Return what to_bytes packed."""
        return cls._of(*unpack_arrays(data))

    def to_file(self, prefix: Path) -> None:
        """Write the partial index beside the streams that hold its keys."""
        write_set(_partial_file(prefix), *self._parts())

    @classmethod
    def from_file(cls, prefix: Path) -> "PartialIndex":
        """Return what to_file wrote, mapped into memory."""
        return cls._of(*map_set(_partial_file(prefix)), prefix=prefix)

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        facts = {
            "base_offset": self.base_offset,
            "is_dirty": self.is_dirty,
            "start_position": self.start_position,
            "record_count": self.record_count,
            "bytes_read": self.bytes_read,
            "messages_read": self.messages_read,
            "first_dirty_row": self.first_dirty_row,
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"rows.{name}": getattr(self.rows, name) for name in _ROW_FIELDS}
        return facts, arrays

    @classmethod
    def _of(
        cls, facts: dict[str, Any], arrays: dict[str, NDArray[Any]], prefix: Path | None = None
    ) -> "PartialIndex":
        rows = TransactionRows(*(arrays[f"rows.{name}"] for name in _ROW_FIELDS))
        fields: dict[str, Any] = facts | {name: arrays[name] for name in _ARRAYS}
        return cls(rows=rows, prefix=prefix, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """One group of pass two, and the transaction tracker as it stands before it.

    Attributes:
        base_offsets: Base offsets of the group's segments.
        tracker: State of the tracker, as TransactionTracker.state gives it.
    """

    base_offsets: tuple[int, ...]
    tracker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedIndex:
    """The merge of all partial indexes of a round: all that pass two needs.

    Attributes:
        index: As a round in process would have built it.
        groups: What pass two has to do, oldest first.
        needs_map: Whether a record may have to be looked up in the offset map: where pass one saw
            every record of the round, the bitmaps alone decide.
    """

    index: CompactionIndex
    groups: tuple[GroupStart, ...]
    needs_map: bool

    def to_bytes(self) -> bytes:
        """Return the merged index as bytes, for the processes of pass two."""
        facts, arrays = self._parts()
        whole = self.index.offset_map if self.needs_map else OffsetMap()
        arrays["low"], arrays["high"], arrays["rank"] = whole.entries()
        return pack_arrays(facts, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "MergedIndex":
        """Return what to_bytes packed."""
        facts, arrays = unpack_arrays(data)
        whole = OffsetMap.from_entries(arrays["low"], arrays["high"], arrays["rank"])
        return cls._of(facts, arrays, whole)

    def to_file(self, path: Path) -> None:
        """Write the merged index to a file; where it needs the map, its table lies in another."""
        write_set(path, *self._parts())

    @classmethod
    def from_file(cls, path: Path, table: Path | None) -> "MergedIndex":
        """Return what to_file wrote, mapped into memory.

        Args:
            path: Its file.
            table: That of the offset map's table, None if it is not needed.
        """
        facts, arrays = map_set(path)
        whole = OffsetMap()
        if table is not None:
            whole = OffsetMap.over(map_table(table, SLOT_WORDS), facts["stats"][2])
        return cls._of(facts, arrays, whole)

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        index = self.index
        facts = {
            "latest_offset": index.latest_offset,
            "stats": [index.stats.bytes_read, index.stats.messages_read, index.stats.keys],
            "segments": [
                [known.base_offset, known.start_position, known.record_count, known.first_word]
                for known in index.segments.values()
            ],
            "needs_map": self.needs_map,
            "groups": [[list(group.base_offsets), group.tracker] for group in self.groups],
        }
        arrays: dict[str, NDArray[Any]] = {"words": index.words}
        for base, known in index.segments.items():
            arrays |= {f"flags.{base}": known.flags, f"legacy_counts.{base}": known.legacy_counts}
        return facts, arrays

    @classmethod
    def _of(
        cls, facts: dict[str, Any], arrays: dict[str, NDArray[Any]], whole: OffsetMap
    ) -> "MergedIndex":
        segments = {
            base: DirtySegment(
                base_offset=base,
                start_position=start,
                flags=arrays[f"flags.{base}"],
                legacy_counts=arrays[f"legacy_counts.{base}"],
                record_count=count,
                first_word=word,
            )
            for base, start, count, word in facts["segments"]
        }
        bytes_read, messages_read, keys = facts["stats"]
        return cls(
            index=CompactionIndex(
                offset_map=whole,
                segments=segments,
                words=arrays["words"],
                latest_offset=facts["latest_offset"],
                stats=IndexStats(bytes_read=bytes_read, messages_read=messages_read, keys=keys),
            ),
            groups=tuple(
                GroupStart(base_offsets=tuple(bases), tracker=tracker)
                for bases, tracker in facts["groups"]
            ),
            needs_map=facts["needs_map"],
        )


def segments_of_round(plan: CompactionPlan) -> list[SegmentState]:
    """Return the segments that need a partial index: all that the round may rewrite."""
    return plan.segments_below(plan.first_uncleanable_offset)


def index_segment(
    store: LogStore,
    plan: CompactionPlan,
    segment: SegmentState,
    *,
    throttler: Throttler | None = None,
) -> PartialIndex:
    """Read one segment of a round.

    Args:
        store: The partition directory.
        plan: The round, without a limit of keys.
        segment: One of segments_of_round.
        throttler: Slows the reading down.

    Raises:
        BadBytesError: A batch or record is malformed; its text has file and position.
        StorageError: A file cannot be read.
    """
    sink = MemorySink()
    read = _SegmentIndexer(store, plan, segment, sink, throttler or Throttler(UNLIMITED)).run()
    arrays: dict[str, Any] = sink.arrays()
    return replace(read, **arrays)


def index_segment_to_files(
    store: LogStore,
    plan: CompactionPlan,
    segment: SegmentState,
    prefix: Path,
    *,
    throttler: Throttler | None = None,
) -> None:
    """Read one segment of a round into scratch files, for ``PartialIndex.from_file``.

    Args:
        store: The partition directory.
        plan: The round, without a limit of keys.
        segment: One of segments_of_round.
        prefix: Path of the files but for their endings.
        throttler: Slows the reading down.

    Raises:
        BadBytesError: A batch or record is malformed; its text has file and position.
        StorageError: A file cannot be read or written.
    """
    with FileSink(prefix) as sink:
        read = _SegmentIndexer(store, plan, segment, sink, throttler or Throttler(UNLIMITED)).run()
    read.to_file(prefix)


def _partial_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".partial")


class _SegmentIndexer:
    """Builds the partial index of one segment, window by window."""

    def __init__(
        self,
        store: LogStore,
        plan: CompactionPlan,
        segment: SegmentState,
        sink: KeySink,
        throttler: Throttler,
    ) -> None:
        if plan.max_keys is not None:
            raise ValueError("a round with a limit of keys cannot be spread over segments")
        self._sink = sink
        self._throttler = throttler
        self._store = store
        self._plan = plan
        self._segment = segment
        dirty = [known.base_offset for known in plan.dirty_segments]
        self._is_dirty = segment.base_offset in dirty
        self._number = dirty.index(segment.base_offset) if self._is_dirty else 0
        self._start = start_position(store, plan, segment) if self._is_dirty else 0
        self._chunked = ChunkedKeys(sink)
        self._keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self._suspects = np.array(
            sorted({aborted.producer_id for aborted in aborted_of_round(plan)}), np.int64
        )
        self._rows: list[TransactionRows] = []
        self._row_count = 0
        self._first_dirty_row = 0
        self._flags: list[NDArray[np.uint8]] = []
        self._legacy_counts: list[NDArray[np.int64]] = []
        self._ordinal = 0
        self._bytes_read = 0
        self._messages_read = 0

    def run(self) -> PartialIndex:
        """Read the segment."""
        crc = CrcCheck.RAISE if self._plan.verify_crc else CrcCheck.SKIP
        with closing(self._store.open_file(self._segment.log_file)) as reader:
            # Before the first dirty offset only transactions matter.
            begin = self._start if self._is_dirty else reader.size_bytes
            for start, end, is_dirty in ((0, begin, False), (begin, None, self._is_dirty)):
                if start == end or (start and start >= reader.size_bytes):
                    continue
                if is_dirty:
                    self._first_dirty_row = self._row_count
                for window in scan_windows(
                    reader, start=start, end=end, window_bytes=self._plan.window_bytes, crc=crc
                ):
                    self._throttler.use(len(window.data))
                    check_batches(window)
                    rows, transactions = TransactionRows.select(window.batches)
                    if is_dirty:
                        self._read_keys(window, rows)
                    self._rows.append(transactions)
                    self._row_count += len(rows)
        return self._finish()

    def _read_keys(self, window: Window, rows: NDArray[np.int64]) -> None:
        batches = window.batches
        wanted = ~batches.is_control
        is_suspect = (
            wanted & batches.is_transactional & np.isin(batches.producer_id, self._suspects)
        )
        number_of_row = np.zeros(len(batches), np.int64)
        number_of_row[rows] = self._row_count + np.arange(len(rows))
        flags = np.zeros(len(batches), np.uint8)
        row = 0
        while row < len(batches):
            payload = open_batches(window, wanted, row, self._plan.limits)
            self._keys.read(
                payload,
                wanted,
                self._plan.limits,
                first_offset=self._plan.first_dirty_offset,
                first_rank=rank_of(self._number, self._ordinal),
            )
            flags[row : payload.end_row] = self._keys.flags
            self._take(number_of_row[row:], is_suspect[row:])
            counts = payload.batches.record_count[row : payload.end_row]
            counts = np.where(wanted[row : payload.end_row], counts, 0)
            self._legacy_counts.append(legacy_counts_of(payload, self._keys.flags))
            self._ordinal += int(counts.sum())
            # A control batch has one record, whatever its header says.
            self._messages_read += int(counts.sum()) + int((~wanted[row : payload.end_row]).sum())
            row = payload.end_row
        self._flags.append(flags)
        self._bytes_read += len(window.data)

    def _take(self, number_of_row: NDArray[np.int64], is_suspect: NDArray[np.bool_]) -> None:
        """Put the keys of the current block into the map, or apart."""
        count = self._keys.count
        low, high = self._keys.low[:count], self._keys.high[:count]
        ranks = self._keys.rank[:count]
        batch = self._keys.batch[:count]
        apart = is_suspect[batch]
        if apart.any():
            self._sink.put_suspects(
                (low[apart], high[apart], ranks[apart], number_of_row[batch[apart]])
            )
            low, high, ranks = low[~apart], high[~apart], ranks[~apart]
        self._chunked.put(low, high, ranks)

    def _finish(self) -> PartialIndex:
        """Return what was read, without the keys: the sink has them."""
        self._chunked.flush()
        no_keys: dict[str, Any] = MemorySink().arrays()
        return PartialIndex(
            base_offset=self._segment.base_offset,
            is_dirty=self._is_dirty,
            start_position=self._start,
            record_count=self._ordinal,
            bytes_read=self._bytes_read,
            messages_read=self._messages_read,
            rows=TransactionRows.concatenate(self._rows),
            first_dirty_row=self._first_dirty_row,
            flags=np.concatenate([np.empty(0, np.uint8), *self._flags]),
            legacy_counts=np.concatenate([np.empty(0, np.int64), *self._legacy_counts]),
            **no_keys,
        )


def merge_indexes(
    plan: CompactionPlan, partials: Sequence[PartialIndex], whole: OffsetMap | None = None
) -> MergedIndex:
    """Merge the partial indexes of a round.

    Args:
        plan: The round.
        partials: One for each of segments_of_round, in any order.
        whole: The empty map that is to hold all keys, None for one in memory.

    Raises:
        ValueError: A segment is missing, or is there twice.
    """
    ordered = sorted(partials, key=lambda partial: partial.base_offset)
    expected = [segment.base_offset for segment in segments_of_round(plan)]
    if [partial.base_offset for partial in ordered] != expected:
        raise ValueError(
            f"expected partial indexes of {expected}, "
            f"found {[partial.base_offset for partial in ordered]}"
        )
    dirty = [partial for partial in ordered if partial.is_dirty]
    index = _merge_keys(plan, dirty, OffsetMap() if whole is None else whole)
    return MergedIndex(
        index=index,
        groups=start_groups(
            plan, index.end_offset, {partial.base_offset: partial.rows for partial in ordered}
        ),
        needs_map=bool(aborted_of_round(plan))
        or not all(partial.is_dirty for partial in ordered)
        or any(partial.base_offset < plan.first_dirty_offset for partial in ordered),
    )


def merge_files(
    plan: CompactionPlan, prefixes: Sequence[Path], target: Path
) -> tuple[Path, Path | None]:
    """Merge the partial indexes that lie in scratch files; the map never lies in memory.

    Args:
        plan: The round.
        prefixes: Of the files of each of segments_of_round, in any order.
        target: Path of the merged index's files but for their endings.

    Returns:
        (merged, table): for ``MergedIndex.from_file``; no table where none is needed.

    Raises:
        StorageError: A file cannot be read or written.
        ValueError: A segment is missing, or is there twice.
    """
    tables: list[Path] = []

    def allocate(slots: int) -> NDArray[np.uint64]:
        tables.append(target.with_name(f"{target.name}.table-{len(tables)}"))
        return create_table(tables[-1], (slots, SLOT_WORDS))

    partials = [PartialIndex.from_file(prefix) for prefix in prefixes]
    merged = merge_indexes(plan, partials, OffsetMap(allocate=allocate))
    file = target.with_name(target.name + ".merged")
    merged.to_file(file)
    *outgrown, last = tables
    for path in outgrown if merged.needs_map else tables:
        path.unlink()
    return file, last if merged.needs_map else None


def _merge_keys(
    plan: CompactionPlan, dirty: Sequence[PartialIndex], whole: OffsetMap
) -> CompactionIndex:
    tracker = TransactionTracker()
    tracker.add_aborted(aborted_of_round(plan))
    segments: dict[int, DirtySegment] = {}
    first_word = 0
    for partial in dirty:
        first = partial.first_dirty_row
        discard = np.zeros(len(partial.rows.producer_id), bool)
        discard[first:], _ = tracker.decide(partial.rows.rows_from(first))
        for low, high, rank in partial.key_blocks():
            whole.put(low, high, rank, len(rank))
        for low, high, rank, row in partial.suspect_blocks():
            lives = ~discard[row]
            whole.put(low[lives], high[lives], rank[lives], int(lives.sum()))
        segments[partial.base_offset] = DirtySegment(
            base_offset=partial.base_offset,
            start_position=partial.start_position,
            flags=partial.flags,
            legacy_counts=partial.legacy_counts,
            record_count=partial.record_count,
            first_word=first_word,
        )
        first_word += words_for(partial.record_count)
    words = np.zeros(first_word, np.uint64)
    first_words = np.array([known.first_word for known in segments.values()], np.int64)
    mark_survivors(whole.table, first_words, words)
    return CompactionIndex(
        offset_map=whole,
        segments=segments,
        words=words,
        latest_offset=plan.first_uncleanable_offset - 1 if dirty else NO_OFFSET,
        stats=IndexStats(
            bytes_read=sum(partial.bytes_read for partial in dirty),
            messages_read=sum(partial.messages_read for partial in dirty),
            keys=len(whole),
        ),
    )


def start_groups(
    plan: CompactionPlan, end_offset: int, rows: Mapping[int, TransactionRows]
) -> tuple[GroupStart, ...]:
    """Run the tracker of pass two over a round, and note how it stands before each group.

    Args:
        plan: The round.
        end_offset: Where the segments end that are rewritten.
        rows: The transactional and control batches of each of them, by base offset.
    """
    tracker = TransactionTracker()
    starts = []
    for group in group_segments(plan, end_offset):
        bases = tuple(segment.base_offset for segment in group)
        starts.append(GroupStart(base_offsets=bases, tracker=json.dumps(tracker.state())))
        for base in bases:
            tracker.add_aborted(plan.aborted_near(base))
            tracker.decide(rows[base])
    return tuple(starts)


def aborted_of_round(plan: CompactionPlan) -> list[AbortedTxn]:
    """Return the aborted transactions that pass one has to know."""
    return collect_aborted(
        plan.aborted_from(plan.first_dirty_offset),
        fetch_offset=plan.log_start_offset,
        upper_bound_offset=plan.first_uncleanable_offset,
    )
