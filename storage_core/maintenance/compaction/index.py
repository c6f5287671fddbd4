"""Pass one: the newest record of every key of the dirty section.

In process one `CompactionIndexer` goes through the dirty segments in order. Spread over executors,
each segment gives a `PartialIndex` (``partial.py``), and their merge the same `CompactionIndex`.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.legacy import MAGIC_V0
from storage_core.kernels.batch_scan import BAD_CONTROL_RECORD
from storage_core.kernels.offset_table import ORDINAL_BITS
from storage_core.kernels.record_scan import (
    INDEXED,
    OPENED,
    RECORD_COLUMN_COUNT,
    RECORD_OFFSET_DELTA,
    decode_records,
)
from storage_core.kernels.survivors import mark_survivors
from storage_core.log.batch_search import read_offset_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.log_segment import SegmentState
from storage_core.log.transaction_tracker import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import CrcCheck, Window, scan_windows
from storage_core.store.base import LogStore

NO_OFFSET = -1
_WORD_BITS = 64
_NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtySegment:
    """What pass one noted of one dirty segment.

    Attributes:
        base_offset: Which segment.
        start_position: Where pass one began in it.
        flags: uint8[n], of each batch from there on (record_scan.INDEXED and so on).
        legacy_counts: int64[], records of the batches of legacy formats that have ordinals: their
            headers do not say.
        record_count: Records that have an ordinal.
        first_word: Where its bitmap begins in the words of the index.
    """

    base_offset: int
    start_position: int
    flags: NDArray[np.uint8]
    legacy_counts: NDArray[np.int64]
    record_count: int
    first_word: int

    @property
    def word_count(self) -> int:
        """Length of its bitmap in 64-bit words."""
        return words_for(self.record_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """What pass one read.

    Attributes:
        bytes_read: Bytes of the batches.
        messages_read: Records, markers included.
        keys: Distinct keys found.
    """

    bytes_read: int
    messages_read: int
    keys: int


@dataclass(frozen=True, kw_only=True)  # no slots: every segment asks for its number
class CompactionIndex:
    """The result of pass one.

    Attributes:
        offset_map: Every key's newest record, for records that have no bit.
        segments: The dirty segments, by base offset.
        words: uint64[], survivors' bitmaps of all dirty segments.
        latest_offset: Records above it are not touched, -1 where nothing was mapped.
        stats: What was read.
    """

    offset_map: OffsetMap
    segments: dict[int, DirtySegment]
    words: NDArray[np.uint64]
    latest_offset: int
    stats: IndexStats

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Number of each dirty segment among them, by base offset."""
        return {base_offset: number for number, base_offset in enumerate(self.segments)}

    @property
    def end_offset(self) -> int:
        """Segments below it are rewritten, and the next round begins there."""
        return self.latest_offset + 1


def words_for(record_count: int) -> int:
    """Return how many 64-bit words hold a bit for each record."""
    return (record_count + _WORD_BITS - 1) // _WORD_BITS


def rank_of(segment_number: int, ordinal: int) -> int:
    """Return a rank: number of the dirty segment in the upper bits, ordinal in the lower ones."""
    return ordinal + (segment_number << ORDINAL_BITS)


def start_position(store: LogStore, plan: CompactionPlan, segment: SegmentState) -> int:
    """Return where pass one begins in a dirty segment: by its offset index, as Kafka does."""
    if plan.first_dirty_offset <= segment.base_offset:
        return 0
    index = read_offset_index(DirectoryView(store), segment.base_offset, segment.offset_index_file)
    return index.look_up(plan.first_dirty_offset)


def legacy_counts_of(payload: Payload, flags: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the records of those opened batches of a payload that are of a legacy format."""
    batches = payload.batches.rows(payload.first_row, payload.end_row)
    counts: NDArray[np.int64] = batches.record_count[batches.is_legacy & ((flags & OPENED) != 0)]
    return counts


def check_batches(window: Window) -> None:
    """Refuse what Kafka's cleaner cannot take for a batch, or a control record it cannot read.

    Raises:
        CorruptRecordError: There is one.
    """
    batches = window.batches
    is_unknown = (batches.magic < MAGIC_V0) | (batches.magic > MAGIC_V2)
    for row in np.flatnonzero(is_unknown)[:1].tolist():
        raise CorruptRecordError(
            window.file,
            window.position_of(row),
            f"expected magic 0, 1 or 2, found {batches.magic[row]}",
        )
    for row in np.flatnonzero(~batches.is_legacy & (batches.size < HEADER_BYTES))[:1].tolist():
        raise CorruptRecordError(
            window.file,
            window.position_of(row),
            f"the batch has {batches.size[row]} bytes, fewer than a header's {HEADER_BYTES}",
        )
    bad = np.flatnonzero(window.batches.control_type == BAD_CONTROL_RECORD)
    if bad.size:
        row = int(bad[0])
        raise CorruptRecordError(
            window.file,
            window.position_of(row),
            f"control batch at offset {window.batches.base_offset[row]}: "
            "expected a record with a key of a version and a type",
        )


class CompactionIndexer:
    """Builds the offset map over the dirty segments, in order, up to a full map."""

    def __init__(
        self, store: LogStore, plan: CompactionPlan, *, throttler: Throttler | None = None
    ) -> None:
        self._store = store
        self._plan = plan
        self._throttler = throttler or Throttler(UNLIMITED)
        self._map = OffsetMap(plan.max_keys)
        self._keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self._tracker = TransactionTracker()
        self._latest = NO_OFFSET
        self._bytes_read = 0
        self._messages_read = 0
        self._segments: list[DirtySegment] = []
        self._legacy_counts: list[NDArray[np.int64]] = []
        self._next_word = 0

    def run(self) -> CompactionIndex:
        """Read the dirty segments and return the index.

        Raises:
            BadBytesError: A batch or record is malformed; its text has file and position.
            StorageError: A file cannot be read.
        """
        plan = self._plan
        self._tracker.add_aborted(plan.aborted_of_round)
        dirty = plan.dirty_segments
        ends = [segment.base_offset for segment in dirty[1:]] + [plan.first_uncleanable_offset]
        for number, segment in enumerate(dirty):
            if not self._read_segment(number, segment):
                break
            self._latest = ends[number] - 1
        return self._finish()

    def _read_segment(self, number: int, segment: SegmentState) -> bool:
        """Map one segment; return whether the map had room for all of it."""
        start = start_position(self._store, self._plan, segment)
        flags: list[NDArray[np.uint8]] = []
        self._legacy_counts = []
        ordinal = 0
        has_room = True
        with closing(self._store.open_file(segment.log_file)) as reader:
            for window in scan_windows(
                reader,
                start=start,
                window_bytes=self._plan.window_bytes,
                crc=CrcCheck.RAISE if self._plan.verify_crc else CrcCheck.SKIP,
            ):
                self._throttler.use(len(window.data))
                check_batches(window)
                window_flags = np.zeros(len(window.batches), np.uint8)
                flags.append(window_flags)
                ordinal, has_room = self._read_window(number, window, window_flags, ordinal)
                if not has_room:
                    break
                self._bytes_read += len(window.data)
        known = DirtySegment(
            base_offset=segment.base_offset,
            start_position=start,
            flags=np.concatenate(flags) if flags else np.zeros(0, np.uint8),
            legacy_counts=np.concatenate([_NO_COUNTS, *self._legacy_counts]),
            record_count=ordinal,
            first_word=self._next_word,
        )
        self._next_word += known.word_count
        self._segments.append(known)
        return has_room

    def _read_window(
        self, number: int, window: Window, flags: NDArray[np.uint8], ordinal: int
    ) -> tuple[int, bool]:
        """Map one window.

        Returns:
            (ordinal, has_room): ordinal of the next record, and whether the map had room.
        """
        rows, transactions = TransactionRows.select(window.batches)
        discard, _ = self._tracker.decide(transactions)
        wanted = ~window.batches.is_control
        wanted[rows[discard]] = False
        row = 0
        while row < len(wanted):
            payload = open_batches(window, wanted, row, self._plan.limits)
            keys = self._keys
            first_rank = rank_of(number, ordinal)
            keys.read(
                payload,
                wanted,
                self._plan.limits,
                first_offset=self._plan.first_dirty_offset,
                first_rank=first_rank,
            )
            flags[row : payload.end_row] = keys.flags
            put = self._map.put(keys.low, keys.high, keys.rank, keys.count)
            here = slice(row, payload.end_row)
            self._legacy_counts.append(legacy_counts_of(payload, keys.flags))
            ordinal += int(payload.batches.record_count[here][wanted[here]].sum())
            if put < keys.count:
                self._stop_at(payload, put, first_rank, flags)
                return ordinal, False
            self._advance(payload, payload.end_row)
            row = payload.end_row
        return ordinal, True

    def _advance(self, payload: Payload, end_row: int) -> None:
        """Take note that the batches of a payload up to end_row are mapped."""
        batches = payload.batches.rows(payload.first_row, end_row)
        reaching = batches.last_offset[batches.last_offset >= self._plan.first_dirty_offset]
        if reaching.size:
            self._latest = int(reaching[-1])
        self._messages_read += int(np.where(batches.is_control, 1, batches.record_count).sum())

    def _stop_at(
        self, payload: Payload, put: int, first_rank: int, flags: NDArray[np.uint8]
    ) -> None:
        """Take note of where the map was full: before key number `put` of the block."""
        stopped_row = payload.first_row + int(self._keys.batch[put])
        self._advance(payload, stopped_row)
        flags[stopped_row:] &= ~np.uint8(INDEXED)
        self._messages_read += self._place_of_key(payload, put, first_rank)
        if put:
            # The last put may lie in the batch before: then that batch's end is further.
            self._latest = max(self._latest, self._offset_of_key(payload, put - 1, first_rank))

    def _place_of_key(self, payload: Payload, key: int, first_rank: int) -> int:
        """Return how many records of its own batch stand before a key of the current block."""
        row = int(self._keys.batch[key])
        opened = self._keys.flags[:row] != 0
        here = slice(payload.first_row, payload.first_row + row)
        before = int(payload.batches.record_count[here][opened].sum())
        return int(self._keys.rank[key]) - first_rank - before

    def _offset_of_key(self, payload: Payload, key: int, first_rank: int) -> int:
        """Return the offset of a key of the current block."""
        row = payload.first_row + int(self._keys.batch[key])
        batches = payload.batches
        only = slice(row, row + 1)
        records = np.empty((RECORD_COLUMN_COUNT, int(batches.record_count[row])), np.int64)
        decode_records(
            payload.window.data,
            payload.arena,
            payload.in_arena[only],
            payload.start[only],
            payload.end[only],
            batches.record_count[only],
            self._plan.max_record_bytes,
            records,
        )
        place = self._place_of_key(payload, key, first_rank)
        return int(batches.base_offset[row] + records[RECORD_OFFSET_DELTA, place])

    def _finish(self) -> CompactionIndex:
        words = np.zeros(sum(segment.word_count for segment in self._segments), np.uint64)
        first_words = np.array([segment.first_word for segment in self._segments], np.int64)
        mark_survivors(self._map.table, first_words, words)
        return CompactionIndex(
            offset_map=self._map,
            segments={segment.base_offset: segment for segment in self._segments},
            words=words,
            latest_offset=self._latest,
            stats=IndexStats(
                bytes_read=self._bytes_read,
                messages_read=self._messages_read,
                keys=len(self._map),
            ),
        )
