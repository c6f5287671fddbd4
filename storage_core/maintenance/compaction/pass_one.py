"""Pass one: read and hash the keyed records of the dirty section. They are read once, whatever
becomes of their keys.

``SegmentReading`` is the one loop over the batches of a segment. What it hashes it hands to a sink:

- ``index_round`` has one that puts the keys of all segments into one map, in process, up to a full
  one;
- ``partial.py`` keeps the keys of one segment, in memory or in scratch files, for a merge;
- ``key_exchange.py`` deals them out by hash into messages.
"""

import enum
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, CorruptRecordError
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.legacy import MAGIC_V0
from storage_core.kernels.batch_scan import (
    BAD_CONTROL_RECORD,
    HAS_LEGACY,
    HAS_UNREADABLE,
)
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
from storage_core.log.loaded_log import SegmentState
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import (
    KEPT_BYTES,
    KEPT_HASHES,
    KEPT_RATIO,
    NO_OFFSET,
    CompactionIndex,
    IndexedSegment,
    IndexStats,
    KeptHashes,
    KeptRecords,
    RoundBuffers,
    WindowBuffers,
    bitmap_bounds,
    rank_of,
)
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.codecs import Arena
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import CrcCheck, Window, check_crc, scan_windows
from storage_core.store.base import LogStore, is_mapped
from storage_core.threads import in_order

LOWEST_OFFSET: Final = -(2**63)
NO_ROW: Final = -1


class CleanPart(enum.Enum):
    """What is read of a segment before its dirty part."""

    NOTHING = "nothing"
    HEADERS = "headers"  # of the batches: for their transactions
    KEYS = "keys"  # of all records


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where a sink was full."""

    row: int  # batch of the window of which it did not take every key
    records: int  # records of that batch before the first key that it did not take


@dataclass(frozen=True, slots=True)
class Choice:
    """The batches of a window that are read for their keys."""

    wanted: NDArray[np.bool_]  # bool[n], which they are
    # int64[n], number of a batch among those of suspects, NO_ROW where it is none; empty where the
    # sink does not tell them apart.
    suspect_row: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


class HashedBatches:
    """Some batches of a window and the keys of their records. They are valid until they were taken.

    Attributes:
        choice: What the sink chose of their window.
        keys: Their keys; ranks count from first_rank.
        first_rank: Rank of the first record that has an ordinal; 0 until `count_from` says it.
    """

    def __init__(
        self, payload: Payload, choice: Choice, plan: CompactionPlan, keys: KeyBlock
    ) -> None:
        self.payload = payload
        self.choice = choice
        self.keys = keys
        self.first_rank = 0
        self._wanted = choice.wanted
        self._plan = plan

    def hash_from(self, first_offset: int, *, checks_crc: bool = False) -> None:
        """Hash the keys from an offset on, in place of earlier ones."""
        self.keys.read(
            self.payload,
            self._wanted,
            self._plan.limits,
            first_offset=first_offset,
            checks_crc=checks_crc,
        )
        if self.first_rank:
            self.keys.rank[: self.keys.count] += self.first_rank

    def count_from(self, first_rank: int) -> None:
        """Count the keys' ranks from that of the first record; call once."""
        self.first_rank = first_rank
        self.keys.rank[: self.keys.count] += first_rank

    def may_reach_below(self, offset: int) -> bool:
        """Whether a hashed batch may have records below an offset."""
        here = slice(self.payload.first_row, self.payload.end_row)
        base_offsets = self.payload.batches.base_offset[here]
        return bool((self._wanted[here] & (base_offsets < offset)).any())

    @property
    def ordinal_count(self) -> int:
        """Number of records with an ordinal: those of all hashed batches."""
        here = slice(self.payload.first_row, self.payload.end_row)
        return int(self.payload.batches.record_count[here][self._wanted[here]].sum())

    def row_of(self, key: int) -> int:
        """Return the batch of a key, as a row of the window."""
        return self.payload.first_row + int(self.keys.batch[key])

    def place_of(self, key: int) -> int:
        """Return how many records of its own batch stand before a key."""
        row = int(self.keys.batch[key])
        opened = self.keys.flags[:row] != 0
        here = slice(self.payload.first_row, self.payload.first_row + row)
        before = int(self.payload.batches.record_count[here][opened].sum())
        return int(self.keys.rank[key]) - self.first_rank - before

    def offset_of(self, key: int) -> int:
        """Return the offset of the record of a key."""
        payload, row = self.payload, self.row_of(key)
        batches = payload.batches
        records = np.empty((RECORD_COLUMN_COUNT, int(batches.record_count[row])), np.int64)
        decode_records(
            payload.window.data,
            payload.arena,
            batches.record_count,
            payload.notes.columns,
            np.array([row]),
            self._plan.max_record_bytes,
            records,
        )
        return int(batches.base_offset[row] + records[RECORD_OFFSET_DELTA, self.place_of(key)])


class PassOneSink(Protocol):
    """Decides what is read of a segment, and takes its keys."""

    @property
    def clean_part(self) -> CleanPart:
        """What it wants to see of the part before the dirty one."""
        ...

    def choose(self, window: Window, *, is_dirty: bool) -> Choice:
        """Choose the batches of the next window to read for their keys.

        Windows are chosen from in order, but ahead of those that were taken, and by another thread.
        """
        ...

    def take(self, batches: HashedBatches, *, is_dirty: bool) -> Stop | None:
        """Take the next batches' keys; return the stop, None with room. The stop says where there
        was no room.

        Those of the dirty part come from the first dirty offset on, those of the clean part all. A
        sink may hash the batches again: the flags of the last time count.
        """
        ...


@dataclass(frozen=True, slots=True)
class _HashRequest:
    """A window, and what the sink wants of it."""

    reading: "SegmentReading"
    is_dirty: bool  # whether it is of the dirty part
    window: Window
    choice: Choice  # what the sink wants of it
    buffers: WindowBuffers


@dataclass(frozen=True, slots=True)
class _Read:
    """A window as far as it can be read without the sink."""

    request: _HashRequest
    # Its keys, up to where memory ended; None where only the headers were of interest.
    batches: HashedBatches | None


class SegmentReading:
    """Pass one over one segment, with every key for a sink.

    Args:
        sink: Takes the keys.
        throttler: Slows the reading down.
        records: Keeps what was decompressed, None where nobody asks for it again.
        hashes: Keeps the hashes of the keys, None where nobody asks for them again.
        threads: How many threads to use: with more than one, windows are checked and hashed beside
            each other, and beside the sink.
        pool: The memory to use, None for new.

    Attributes:
        is_full: Whether the sink had no room for all of the segment.
    """

    def __init__(  # noqa: PLR0913  # what is read, who takes it, and at what pace
        self,
        store: LogStore,
        plan: CompactionPlan,
        segment: SegmentState,
        sink: PassOneSink,
        *,
        number: int,
        throttler: Throttler | None = None,
        records: KeptRecords | None = None,
        hashes: KeptHashes | None = None,
        threads: int = 1,
        pool: RoundBuffers | None = None,
    ) -> None:
        self.number = number
        self.is_full = False
        self._pool = RoundBuffers() if pool is None else pool
        self._records = records or KeptRecords()
        self._hashes = hashes or KeptHashes()
        self._store = store
        self._plan = plan
        self._segment = segment
        self._sink = sink
        self._throttler = throttler or Throttler(UNLIMITED)
        self._pace = plan.pace(threads, is_mapped=is_mapped(store))
        self._start = 0
        self._flags: list[NDArray[np.uint8]] = []
        self._legacy_counts: list[NDArray[np.int64]] = []
        self._ordinal = 0
        self._bytes_read = 0
        self._messages_read = 0

    def run(self) -> IndexedSegment:
        """Read the segment."""
        for _ in self.windows():
            pass
        return self.result()

    def windows(self) -> Iterator[None]:
        """Read the segment as `run` does, with a yield after each window. A window may be
        yielded after in parts."""
        with closing(_read_windows([self], self._pace.threads)) as windows:
            for read in windows:
                yield from self.take(read)
                if self.is_full:
                    return

    def result(self) -> IndexedSegment:
        """Return what was noted of the windows read so far."""
        return IndexedSegment(
            base_offset=self._segment.base_offset,
            start_position=self._start,
            flags=np.concatenate([np.empty(0, np.uint8), *self._flags]),
            legacy_counts=np.concatenate([np.empty(0, np.int64), *self._legacy_counts]),
            record_count=self._ordinal,
            bytes_read=self._bytes_read,
            messages_read=self._messages_read,
        )

    def _parts(self, size_bytes: int) -> Iterator[tuple[int, int | None, bool]]:
        """Yield (start, end, is_dirty) of the parts to read. Parts without bytes are left out."""
        clean_part = self._sink.clean_part
        is_dirty = self._segment.base_offset in self._plan.number_of_dirty
        begin = start_position(self._store, self._plan, self._segment) if is_dirty else size_bytes
        if is_dirty and clean_part is not CleanPart.KEYS:
            self._start = begin
        if clean_part is not CleanPart.NOTHING and begin > 0:
            yield 0, begin, False
        if is_dirty and begin < size_bytes:
            yield begin, None, True

    def read(self) -> Generator[_HashRequest]:
        """Read, and ask the sink what it wants of each window."""
        plan, pace = self._plan, self._pace
        crc = CrcCheck.LATER if plan.verify_crc else CrcCheck.SKIP
        self._pool.reserve(pace.at_once, plan)
        with closing(self._store.open_file(self._segment.log_file)) as reader:
            for start, end, is_dirty in self._parts(reader.size_bytes):
                for window in scan_windows(
                    reader,
                    start=start,
                    end=end,
                    window_bytes=pace.window_bytes,
                    crc=crc,
                    rooms=self._pool.windows,
                ):
                    choice = self._sink.choose(window, is_dirty=is_dirty)
                    yield _HashRequest(self, is_dirty, window, choice, self._pool.next())

    def hash_window(self, request: _HashRequest) -> _Read:
        """Check a window and hash its keys, without regard to earlier ones."""
        window, checks_crc = request.window, self._plan.verify_crc
        is_hashed = request.is_dirty or self._sink.clean_part is CleanPart.KEYS
        # Batch by batch, each in the cache of the CPU then, where nothing has to be expanded.
        if checks_crc and not (is_hashed and window.batches.are_plain):
            check_crc(window)
            checks_crc = False
        check_batches(window)
        if not is_hashed:
            return _Read(request, None)
        try:
            return _Read(request, self._hash_from(request, 0, checks_crc=checks_crc))
        except BadBytesError:
            if checks_crc:  # of what seems to be wrong in a window it is the cause
                check_crc(window)
            raise

    def _hash_from(
        self, request: _HashRequest, row: int, *, checks_crc: bool = False
    ) -> HashedBatches:
        """Hash a window's keys from a row on, as many as fit. The limit is the memory of the
        buffers."""
        plan, buffers = self._plan, request.buffers
        notes = buffers.notes(len(request.window.batches))
        payload = open_batches(
            request.window, request.choice.wanted, row, plan.limits, buffers.arena, notes
        )
        batches = HashedBatches(payload, request.choice, plan, buffers.keys)
        first_offset = plan.first_dirty_offset if request.is_dirty else LOWEST_OFFSET
        batches.hash_from(first_offset, checks_crc=checks_crc)
        return batches

    def take(self, read: _Read) -> Iterator[None]:
        """Give the next window's keys to the sink; yield after each part."""
        request, batches = read.request, read.batches
        self._throttler.use(len(request.window.data))
        count = len(request.window.batches)
        while batches is not None:
            batches.count_from(rank_of(self.number, self._ordinal))
            if self._records.put(batches.payload):
                request.buffers.arena = Arena()
            stop = self._sink.take(batches, is_dirty=request.is_dirty)
            self._note(batches, stop, is_dirty=request.is_dirty)
            self._hashes.put(self._segment.base_offset, batches.keys, rank_of(self.number, 0))
            if self.is_full:
                return
            row = batches.payload.end_row
            if row == count:
                break
            yield
            batches = self._hash_from(request, row)
        if request.is_dirty:
            self._bytes_read += len(request.window.data)
        yield

    def _note(self, batches: HashedBatches, stop: Stop | None, *, is_dirty: bool) -> None:
        """Note batches after a sink took their keys, up to its stop. The sink stops where it is
        full."""
        payload, flags = batches.payload, batches.keys.flags
        table = payload.batches.rows(payload.first_row, payload.end_row)
        if table.kinds & HAS_LEGACY:
            is_legacy = table.is_legacy & ((flags & OPENED) != 0)
            self._legacy_counts.append(table.record_count[is_legacy])
        self._ordinal += batches.ordinal_count
        end = len(flags)
        if stop is not None:
            self.is_full = True
            self._messages_read += stop.records
            end = stop.row - payload.first_row
            if is_dirty:
                self._bytes_read += int(payload.batches.position[stop.row])
            flags[end:] &= ~np.uint8(INDEXED)
        self._flags.append(flags)
        if is_dirty:
            # A control batch has one record, whatever its header says.
            counts = np.where(table.is_control, 1, table.record_count)
            self._messages_read += int(counts[:end].sum())


def _read_windows(readings: Sequence[SegmentReading], threads: int) -> Generator[_Read]:
    """Read segments' windows, one segment after another; hash their keys.

    Args:
        readings: The segments; they share their pool.
        threads: How many threads to use: a segment is begun while the one before it is taken.
    """

    def requests() -> Generator[_HashRequest]:
        for reading in readings:
            yield from reading.read()

    return in_order(
        requests(), lambda request: request.reading.hash_window(request), threads=threads
    )


class _MapSink:
    """Put the keys of all dirty segments into one map. They come in order, up to a full map.

    Attributes:
        latest_offset: How far the log is mapped.
    """

    clean_part = CleanPart.NOTHING

    def __init__(self, plan: CompactionPlan) -> None:
        self.offset_map = OffsetMap(plan.max_keys)
        self.latest_offset = NO_OFFSET
        self._first_dirty_offset = plan.first_dirty_offset
        self._tracker = TransactionTracker()
        self._tracker.add_aborted(plan.aborted_of_round)

    def choose(self, window: Window, *, is_dirty: bool) -> Choice:  # noqa: ARG002  # all of it is
        """Leave control batches out, and what belongs to aborted transactions."""
        rows, transactions = TransactionRows.select(window.batches)
        discard, _ = self._tracker.decide(transactions)
        wanted = ~window.batches.is_control
        wanted[rows[discard]] = False
        return Choice(wanted)

    def take(self, batches: HashedBatches, *, is_dirty: bool) -> Stop | None:  # noqa: ARG002  # as choose
        """Put the keys into the map."""
        keys, payload = batches.keys, batches.payload
        put = self.offset_map.put(keys.low, keys.high, keys.rank, keys.count)
        if put == keys.count:
            self._reach(payload, payload.end_row)
            return None
        row = batches.row_of(put)
        self._reach(payload, row)
        if put:
            # The last put may lie in the batch before: then that batch's end is further.
            self.latest_offset = max(self.latest_offset, batches.offset_of(put - 1))
        return Stop(row=row, records=batches.place_of(put))

    def _reach(self, payload: Payload, end_row: int) -> None:
        """Note a payload's batches up to end_row as mapped."""
        last_offsets = payload.batches.last_offset[payload.first_row : end_row]
        reaching = last_offsets[last_offsets >= self._first_dirty_offset]
        if reaching.size:
            self.latest_offset = int(reaching[-1])


def index_round(
    store: LogStore,
    plan: CompactionPlan,
    *,
    throttler: Throttler | None = None,
    keeps_hashes: bool = False,
    threads: int = 1,
) -> CompactionIndex:
    """Index the dirty segments of a round until its map is full. They are read in order.

    Args:
        throttler: Slows the reading down.
        keeps_hashes: Whether pass two asks for the hashes of the keys.
    """
    sink = _MapSink(plan)
    dirty = plan.dirty_segments
    records = KeptRecords(min(KEPT_BYTES, KEPT_RATIO * sum(each.size_bytes for each in dirty)))
    pool = RoundBuffers()
    hashes = KeptHashes(KEPT_HASHES if keeps_hashes else 0)
    readings = [
        SegmentReading(
            store,
            plan,
            segment,
            sink,
            number=number,
            throttler=throttler,
            records=records,
            hashes=hashes,
            threads=threads,
            pool=pool,
        )
        for number, segment in enumerate(dirty)
    ]
    pace = plan.pace(threads, is_mapped=is_mapped(store))
    begun = 0
    with closing(_read_windows(readings, pace.threads)) as windows:
        for read in windows:
            reading = read.request.reading
            if reading.number > begun:
                begun = reading.number
                sink.latest_offset = dirty[begun].base_offset - 1  # all before it is mapped
            for _ in reading.take(read):
                pass
            if reading.is_full:
                break
    if dirty and readings[begun].is_full:
        del readings[begun + 1 :]
    elif dirty:
        sink.latest_offset = plan.first_uncleanable_offset - 1
    indexed = [reading.result() for reading in readings]
    index = index_of_map(indexed, sink.offset_map, sink.latest_offset)
    return replace(index, records=records, hashes=hashes, pool=pool)


def index_of_map(
    segments: list[IndexedSegment], offset_map: OffsetMap, latest_offset: int
) -> CompactionIndex:
    """Return the index of dirty segments with all keys in one map.

    Args:
        offset_map: The map; it may be full.
        latest_offset: How far the log is mapped.
    """
    bounds = bitmap_bounds(segments)
    words = np.zeros(int(bounds[-1]), np.uint64)
    mark_survivors(offset_map.table, bounds[:-1], words)
    return CompactionIndex(
        offset_map=offset_map,
        segments={segment.base_offset: segment for segment in segments},
        words=words,
        latest_offset=latest_offset,
        stats=IndexStats(
            bytes_read=sum(segment.bytes_read for segment in segments),
            messages_read=sum(segment.messages_read for segment in segments),
            keys=len(offset_map),
        ),
    )


def start_position(store: LogStore, plan: CompactionPlan, segment: SegmentState) -> int:
    """Return pass one's start in a dirty segment, by its offset index. Kafka does the same."""
    if plan.first_dirty_offset <= segment.base_offset:
        return 0
    index = read_offset_index(DirectoryView(store), segment.base_offset, segment.offset_index_file)
    return index.look_up(plan.first_dirty_offset)


def check_batches(window: Window) -> None:
    """Refuse batches of unknown formats, and unreadable control records. Kafka's cleaner cannot
    take them either."""
    batches = window.batches
    if not batches.kinds & HAS_UNREADABLE:
        return
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
