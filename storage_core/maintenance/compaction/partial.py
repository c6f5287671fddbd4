"""Pass one spread over processes: a partial index a segment, and their merge.

A segment can be indexed without knowing the ones before it, but for one thing: whether a
transactional batch was aborted depends on what came before. The keys of the batches that may be
(their producer has an aborted transaction in the range) are therefore kept apart, by batch, until
the merge has run the transaction tracker over all segments in order.

Only rounds without a limit of keys can be spread like this (``CompactionPlan.max_keys`` is None).
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.index.transaction_index import AbortedTxn, collect_aborted
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
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
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

    def to_bytes(self) -> bytes:
        """Return the partial index as bytes, for another process of the same run."""
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
        return pack_arrays(facts, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "PartialIndex":
        """Return what to_bytes packed."""
        facts, arrays = unpack_arrays(data)
        rows = TransactionRows(*(arrays[f"rows.{name}"] for name in _ROW_FIELDS))
        fields: dict[str, Any] = facts | {name: arrays[name] for name in _ARRAYS}
        return cls(rows=rows, **fields)


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
        index = self.index
        low, high, rank = (index.offset_map if self.needs_map else OffsetMap()).entries()
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
        arrays: dict[str, NDArray[Any]] = {
            "words": index.words,
            "low": low,
            "high": high,
            "rank": rank,
        }
        for base, known in index.segments.items():
            arrays |= {f"flags.{base}": known.flags, f"legacy_counts.{base}": known.legacy_counts}
        return pack_arrays(facts, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "MergedIndex":
        """Return what to_bytes packed."""
        facts, arrays = unpack_arrays(data)
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
                offset_map=OffsetMap.from_entries(arrays["low"], arrays["high"], arrays["rank"]),
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


def index_segment(store: LogStore, plan: CompactionPlan, segment: SegmentState) -> PartialIndex:
    """Read one segment of a round.

    Args:
        store: The partition directory.
        plan: The round, without a limit of keys.
        segment: One of segments_of_round.

    Raises:
        BadBytesError: A batch or record is malformed; its text has file and position.
        StorageError: A file cannot be read.
    """
    if plan.max_keys is not None:
        raise ValueError("a round with a limit of keys cannot be spread over segments")
    return _SegmentIndexer(store, plan, segment).run()


class _SegmentIndexer:
    """Builds the partial index of one segment, window by window."""

    def __init__(self, store: LogStore, plan: CompactionPlan, segment: SegmentState) -> None:
        self._store = store
        self._plan = plan
        self._segment = segment
        dirty = [known.base_offset for known in plan.dirty_segments]
        self._is_dirty = segment.base_offset in dirty
        self._number = dirty.index(segment.base_offset) if self._is_dirty else 0
        self._start = start_position(store, plan, segment) if self._is_dirty else 0
        self._map = OffsetMap()
        self._keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self._suspects = np.array(
            sorted({aborted.producer_id for aborted in _aborted_of_round(plan)}), np.int64
        )
        self._rows: list[TransactionRows] = []
        self._row_count = 0
        self._first_dirty_row = 0
        self._flags: list[NDArray[np.uint8]] = []
        self._legacy_counts: list[NDArray[np.int64]] = []
        self._apart: list[
            tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
        ] = []
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
            self._apart.append((low[apart], high[apart], ranks[apart], number_of_row[batch[apart]]))
            low, high, ranks = low[~apart], high[~apart], ranks[~apart]
        self._map.put(low, high, ranks, len(ranks))

    def _finish(self) -> PartialIndex:
        low, high, rank = self._map.entries()
        apart = list(zip(*self._apart, strict=True)) or [()] * 4
        kinds = (np.uint64, np.uint64, np.int64, np.int64)
        suspects = [
            np.concatenate([np.empty(0, kind), *parts])
            for kind, parts in zip(kinds, apart, strict=True)
        ]
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
            low=low,
            high=high,
            rank=rank,
            suspect_low=suspects[0],
            suspect_high=suspects[1],
            suspect_rank=suspects[2],
            suspect_row=suspects[3],
        )


def merge_indexes(plan: CompactionPlan, partials: Sequence[PartialIndex]) -> MergedIndex:
    """Merge the partial indexes of a round.

    Args:
        plan: The round.
        partials: One for each of segments_of_round, in any order.

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
    index = _merge_keys(plan, [partial for partial in ordered if partial.is_dirty])
    return MergedIndex(
        index=index,
        groups=_start_groups(plan, index, ordered),
        needs_map=bool(_aborted_of_round(plan))
        or not all(partial.is_dirty for partial in ordered)
        or any(partial.base_offset < plan.first_dirty_offset for partial in ordered),
    )


def _merge_keys(plan: CompactionPlan, dirty: Sequence[PartialIndex]) -> CompactionIndex:
    whole = OffsetMap()
    tracker = TransactionTracker()
    tracker.add_aborted(_aborted_of_round(plan))
    segments: dict[int, DirtySegment] = {}
    first_word = 0
    for partial in dirty:
        first = partial.first_dirty_row
        discard = np.zeros(len(partial.rows.producer_id), bool)
        discard[first:], _ = tracker.decide(partial.rows.rows_from(first))
        whole.put(partial.low, partial.high, partial.rank, len(partial.rank))
        lives = ~discard[partial.suspect_row]
        rank = partial.suspect_rank[lives]
        whole.put(partial.suspect_low[lives], partial.suspect_high[lives], rank, len(rank))
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


def _start_groups(
    plan: CompactionPlan, index: CompactionIndex, partials: Sequence[PartialIndex]
) -> tuple[GroupStart, ...]:
    """Run the tracker of pass two over all segments, and note how it stands before each group."""
    by_base = {partial.base_offset: partial for partial in partials}
    tracker = TransactionTracker()
    starts = []
    for group in group_segments(plan, index.end_offset):
        bases = tuple(segment.base_offset for segment in group)
        starts.append(GroupStart(base_offsets=bases, tracker=json.dumps(tracker.state())))
        for base in bases:
            tracker.add_aborted(plan.aborted_near(base))
            tracker.decide(by_base[base].rows)
    return tuple(starts)


def _aborted_of_round(plan: CompactionPlan) -> list[AbortedTxn]:
    return collect_aborted(
        plan.aborted_from(plan.first_dirty_offset),
        fetch_offset=plan.log_start_offset,
        upper_bound_offset=plan.first_uncleanable_offset,
    )
