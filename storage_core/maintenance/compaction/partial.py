"""Pass one spread over processes: a partial index a segment, and their merge.

A segment can be indexed without knowing the ones before it, but for one thing: whether a
transactional batch was aborted depends on what came before. The keys of the batches that may be
(their producer has an aborted transaction in the range) are therefore kept apart, by batch, until
the merge has run the transaction tracker over all segments in order.

Only rounds without a limit of keys can be spread like this (``CompactionPlan.max_keys`` is None).
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.log.log_segment import SegmentState
from storage_core.log.transaction_tracker import TransactionRows
from storage_core.maintenance.compaction.index import (
    check_batches,
    legacy_counts_of,
    rank_of,
    start_position,
)
from storage_core.maintenance.compaction.key_files import (
    map_set,
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
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.payload import open_batches
from storage_core.records.reader import CrcCheck, Window, scan_windows
from storage_core.store.base import LogStore

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
    def from_bytes(cls, data: bytes | memoryview) -> "PartialIndex":
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
        return facts, arrays | self.rows.to_arrays()

    @classmethod
    def _of(
        cls, facts: dict[str, Any], arrays: dict[str, NDArray[Any]], prefix: Path | None = None
    ) -> "PartialIndex":
        rows = TransactionRows.from_arrays(arrays)
        fields: dict[str, Any] = facts | {name: arrays[name] for name in _ARRAYS}
        return cls(rows=rows, prefix=prefix, **fields)


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
        segment: One of the plan's ``round_segments``.
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
        segment: One of the plan's ``round_segments``.
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
        self._is_dirty = segment.base_offset in plan.number_of_dirty
        self._number = plan.number_of_dirty.get(segment.base_offset, 0)
        self._start = start_position(store, plan, segment) if self._is_dirty else 0
        self._chunked = ChunkedKeys(sink)
        self._keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self._suspects = plan.aborted_producers
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
            self._chunked.take(self._keys, is_suspect[row:], number_of_row[row:])
            counts = payload.batches.record_count[row : payload.end_row]
            counts = np.where(wanted[row : payload.end_row], counts, 0)
            self._legacy_counts.append(legacy_counts_of(payload, self._keys.flags))
            self._ordinal += int(counts.sum())
            # A control batch has one record, whatever its header says.
            self._messages_read += int(counts.sum()) + int((~wanted[row : payload.end_row]).sum())
            row = payload.end_row
        self._flags.append(flags)
        self._bytes_read += len(window.data)

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
