"""Pass one: read and hash the keyed records of the dirty section. They are read once, whatever
becomes of their keys.

``SegmentReading`` is the one loop over the batches of segments. What it hashes it hands to a sink:

- ``index_round`` has one that puts the keys of all segments into one map, in process, up to a full
  one;
- ``partial.py`` keeps the keys of one segment, in memory or in scratch files, for a merge;
- ``key_exchange.py`` deals them out by hash into messages.
"""

import enum
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, CorruptRecordError
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.legacy import MAGIC_V0
from storage_core.kernels.batch_scan import (
    BAD_CONTROL_RECORD,
    HAS_LEGACY,
    HAS_TRANSACTION,
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
    BASE_OFFSET,
    BATCHES,
    BYTES_READ,
    KEPT_BYTES,
    KEPT_HASHES,
    KEPT_RATIO,
    LEGACY_SETS,
    MESSAGES_READ,
    NO_OFFSET,
    NOTED_COLUMNS,
    RECORDS,
    START_POSITION,
    CompactionIndex,
    IndexedSegments,
    IndexStats,
    KeptHashes,
    KeptRecords,
    RoundBuffers,
    WindowBuffers,
    rank_of,
)
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.codecs import Arena
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import (
    CrcCheck,
    Window,
    WindowRoom,
    check_crc,
    join_files,
    scan_windows,
)
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
        keys: Their keys; ranks count from that of the first record that has an ordinal, 0 until
            `count_from` says it.
    """

    def __init__(
        self, payload: Payload, choice: Choice, plan: CompactionPlan, keys: KeyBlock
    ) -> None:
        self.payload = payload
        self.choice = choice
        self.keys = keys
        self._first_rank: int | NDArray[np.int64] = 0
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
        self._move_ranks()

    def count_from(self, first_rank: int | NDArray[np.int64]) -> None:
        """Count the keys' ranks from that of the first record; call once.

        Args:
            first_rank: That rank, or what each batch adds to ranks that count from 0: int64[rows].
        """
        self._first_rank = first_rank
        self._move_ranks()

    def _move_ranks(self) -> None:
        first, count = self._first_rank, self.keys.count
        more = first if isinstance(first, int) else first[self.keys.batch[:count]]
        self.keys.rank[:count] += more

    def may_reach_below(self, offset: int) -> bool:
        """Whether a hashed batch may have records below an offset."""
        here = slice(self.payload.first_row, self.payload.end_row)
        base_offsets = self.payload.batches.base_offset[here]
        return bool((self._wanted[here] & (base_offsets < offset)).any())

    @property
    def ordinal_counts(self) -> NDArray[np.int64]:
        """Of each batch, how many of its records have an ordinal: all, or none where it is not
        hashed."""
        here = slice(self.payload.first_row, self.payload.end_row)
        return np.where(self._wanted[here], self.payload.batches.record_count[here], 0)

    def row_of(self, key: int) -> int:
        """Return the batch of a key, as a row of the window."""
        return self.payload.first_row + int(self.keys.batch[key])

    def place_of(self, key: int) -> int:
        """Return how many records of its own batch stand before a key."""
        row = int(self.keys.batch[key])
        first = self._first_rank if isinstance(self._first_rank, int) else self._first_rank[row]
        return int(self.keys.rank[key] - first - self.ordinal_counts[:row].sum())

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

    @property
    def plain_map(self) -> OffsetMap | None:
        """Where the dirty part's keys go if they are of batches without transactions; None where
        `take` has to see the batches."""
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

    first: int  # number of the segment that it begins with, among those of the reading
    is_dirty: bool  # whether it is of the dirty part
    window: Window
    choice: Choice  # what the sink wants of it
    buffers: WindowBuffers
    # Of how many records the keys are hashed; None where they are not yet. The window has the
    # first of their batches alone.
    records: int | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A window as far as it can be read without the sink."""

    request: _HashRequest
    # Its keys, up to where memory ended; None where only the headers were of interest.
    batches: HashedBatches | None


class SegmentReading:
    """Pass one over consecutive segments, with every key for a sink.

    Args:
        runs: The segments, those of a run in one window.
        sink: Takes the keys.
        number: Number of the first segment; the others count on.
        throttler: Slows the reading down.
        records: Keeps what was decompressed, None where nobody asks for it again.
        hashes: Keeps the hashes of the keys, None where nobody asks for them again; then each run
            has one segment.
        threads: How many threads to use: with more than one, windows are checked and hashed beside
            the sink, and mostly beside each other; a segment is begun while the one before it is
            taken.
        pool: The memory to use, None for new.

    Attributes:
        is_full: Whether the sink had no room for all of the segments.
    """

    def __init__(  # noqa: PLR0913  # what is read, who takes it, and at what pace
        self,
        store: LogStore,
        plan: CompactionPlan,
        runs: Sequence[Sequence[SegmentState]],
        sink: PassOneSink,
        *,
        number: int,
        throttler: Throttler | None = None,
        records: KeptRecords | None = None,
        hashes: KeptHashes | None = None,
        threads: int = 1,
        pool: RoundBuffers | None = None,
    ) -> None:
        self.is_full = False
        self._number = number
        self._pool = RoundBuffers() if pool is None else pool
        self._records = records or KeptRecords()
        self._hashes = hashes or KeptHashes()
        self._store = store
        self._plan = plan
        self._runs = runs
        self._segments = [segment for run in runs for segment in run]
        self._sink = sink
        self._throttler = throttler or Throttler(UNLIMITED)
        self._pace = plan.pace(threads, is_mapped=is_mapped(store))
        self._flags: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)]
        self._legacy_counts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._counts = np.zeros((NOTED_COLUMNS, len(self._segments)), np.int64)
        self._counts[BASE_OFFSET] = [segment.base_offset for segment in self._segments]
        self._reached = 0  # number of the last segment of which a window was taken
        # Where `take` need not see batches: one thread hashes them, a second one fills the map. To
        # find batches first, so that more could hash, costs two threads as much as it brings.
        self._plain_map = sink.plain_map if self._pace.threads <= _MOST_IN_TURN else None
        self._is_plain = False  # whether the segment had nothing but batches for `_find_plain`
        self._plain_records: int | None = None  # of the window that it has found

    def run(self) -> IndexedSegments:
        """Read the segments."""
        for _ in self.windows():
            pass
        return self.results()

    def windows(self) -> Iterator[None]:
        """Read the segments as `run` does, with a yield after each window. A window may be
        yielded after in parts."""
        reading = in_order(self._read(), self._hash_window, threads=self._pace.threads)
        with closing(reading) as windows:
            for read in windows:
                yield from self._take(read)
                if self.is_full:
                    return

    def results(self) -> IndexedSegments:
        """Return what was noted of the windows read so far. Segments behind the one where the sink
        was full are left out."""
        noted = IndexedSegments(
            columns=self._counts,
            flags=np.concatenate(self._flags),
            legacy_counts=np.concatenate(self._legacy_counts),
        )
        return noted.between(0, self._reached + 1) if self.is_full else noted

    def _parts(self, number: int, size_bytes: int) -> Iterator[tuple[int, int | None, bool]]:
        """Yield (start, end, is_dirty) of the parts of a segment to read. Parts without bytes are
        left out."""
        clean_part, segment = self._sink.clean_part, self._segments[number]
        is_dirty = segment.base_offset in self._plan.number_of_dirty
        begin = start_position(self._store, self._plan, segment) if is_dirty else size_bytes
        if is_dirty and clean_part is not CleanPart.KEYS:
            self._counts[START_POSITION, number] = begin
        if clean_part is not CleanPart.NOTHING and begin > 0:
            yield 0, begin, False
        if is_dirty and begin < size_bytes:
            yield begin, None, True

    def _read(self) -> Generator[_HashRequest]:
        """Read, and ask the sink what it wants of each window."""
        self._pool.reserve(self._pace.at_once, self._plan)
        first = 0
        for run in self._runs:
            joined = join_run(self._store, run, self._pool)
            if joined is not None:
                yield self._request(first, joined, is_dirty=True)
            else:
                for number in range(first, first + len(run)):
                    yield from self._read_alone(number)
            first += len(run)

    def _read_alone(self, number: int) -> Generator[_HashRequest]:
        """Read a segment that no other shares a window with."""
        pace = self._pace
        crc = CrcCheck.LATER if self._plan.verify_crc else CrcCheck.SKIP
        self._is_plain = self._plain_map is not None
        with closing(self._store.open_file(self._segments[number].log_file)) as reader:
            for start, end, is_dirty in self._parts(number, reader.size_bytes):
                for window in scan_windows(
                    reader,
                    start=start,
                    end=end,
                    window_bytes=pace.window_bytes,
                    crc=crc,
                    rooms=self._pool.windows,
                    find=self._find_plain if self._is_plain and is_dirty else None,
                ):
                    records, self._plain_records = self._plain_records, None
                    yield self._request(number, window, is_dirty=is_dirty, records=records)

    def _find_plain(
        self, room: WindowRoom, buffer: NDArray[np.uint8], _position: int
    ) -> tuple[int, int]:
        """Find the batches of the next window as ``WindowRoom.find_batches`` does; or hash their
        keys, and leave all but the first one out."""
        if self._is_plain:
            plan = self._plan
            records, end = self._pool.following.keys.find(
                buffer, first_offset=plan.first_dirty_offset, checks_crc=plan.verify_crc
            )
            self._is_plain = end > 0
            if self._is_plain:
                self._plain_records = records
                room.find_first(buffer)
                return 1, end
        return room.find_batches(buffer)

    def _request(
        self, first: int, window: Window, *, is_dirty: bool, records: int | None = None
    ) -> _HashRequest:
        choice = self._sink.choose(window, is_dirty=is_dirty)
        return _HashRequest(first, is_dirty, window, choice, self._pool.next(), records)

    def _hash_window(self, request: _HashRequest) -> _Read:
        """Check a window and hash its keys, without regard to earlier ones."""
        if request.records is not None:
            return _Read(request, None)
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

    def _take(self, read: _Read) -> Iterator[None]:
        """Give the next window's keys to the sink; yield after each part."""
        request, batches = read.request, read.batches
        window = request.window
        self._throttler.use(len(window.data))
        bounds = window.row_bounds()
        self._reached = request.first + len(bounds) - 2
        if self._plain_map is not None and request.records is not None:
            self._take_plain(self._plain_map, request, request.records)
        while batches is not None:
            self._number_records(request.first, batches, bounds)
            if self._records.put(batches.payload):
                request.buffers.arena = Arena()
            stop = self._sink.take(batches, is_dirty=request.is_dirty)
            self._note(request, batches, bounds, stop)
            if len(bounds) == _ONE_FILE:
                base_offset = self._segments[request.first].base_offset
                first_rank = rank_of(self._number + request.first, 0)
                self._hashes.put(base_offset, batches.keys, first_rank)
            if self.is_full:
                return
            row = batches.payload.end_row
            if row == len(window.batches):
                break
            yield
            batches = self._hash_from(request, row)
        if request.is_dirty:
            self._note_bytes(request, len(window.data))
        yield

    def _take_plain(self, plain_map: OffsetMap, request: _HashRequest, records: int) -> None:
        """Put the keys of a window's batches into the map, and note the batches."""
        number, keys = request.first, request.buffers.keys
        counts = self._counts[:, number]
        keys.rank[: keys.count] += rank_of(self._number + number, int(counts[RECORDS]))
        plain_map.put(keys.low, keys.high, keys.rank, keys.count)
        self._flags.append(keys.flags)
        base_offset = self._segments[number].base_offset
        self._hashes.put(base_offset, keys, rank_of(self._number + number, 0))
        counts[BATCHES] += len(keys.flags)
        counts[RECORDS] += records
        counts[MESSAGES_READ] += records

    def _number_records(
        self, first: int, batches: HashedBatches, bounds: NDArray[np.int64]
    ) -> None:
        """Give batches their ordinals, and the keys their ranks."""
        payload, counts = batches.payload, batches.ordinal_counts
        here = slice(first, first + len(bounds) - 1)
        ordinals = self._counts[RECORDS, here]
        if len(bounds) == _ONE_FILE:
            batches.count_from(rank_of(self._number + first, int(ordinals[0])))
            ordinals += counts.sum()
            return
        rows = (bounds - payload.first_row).clip(0, len(counts))
        sums = _sums_between(counts, rows)
        numbers = np.arange(len(bounds) - 1) + self._number + first
        first_ranks = rank_of(numbers, ordinals - (np.cumsum(sums) - sums))
        batches.count_from(np.repeat(first_ranks, np.diff(rows)))
        ordinals += sums

    def _note(
        self,
        request: _HashRequest,
        batches: HashedBatches,
        bounds: NDArray[np.int64],
        stop: Stop | None,
    ) -> None:
        """Note batches after a sink took their keys, up to its stop. The sink stops where it is
        full."""
        payload, flags = batches.payload, batches.keys.flags
        table = payload.batches.rows(payload.first_row, payload.end_row)
        rows = (bounds - payload.first_row).clip(0, len(flags))
        counts = self._counts[:, request.first : request.first + len(bounds) - 1]
        counts[BATCHES] += np.diff(rows)
        if payload.batches.kinds & HAS_LEGACY:
            is_legacy = table.is_legacy & ((flags & OPENED) != 0)
            self._legacy_counts.append(table.record_count[is_legacy])
            counts[LEGACY_SETS] += _sums_between(is_legacy, rows)
        self._flags.append(flags)
        end = len(flags)
        if stop is not None:
            self.is_full = True
            number = int(np.searchsorted(bounds, stop.row, side="right")) - 1
            self._reached = request.first + number
            counts[MESSAGES_READ, number] += stop.records
            end = stop.row - payload.first_row
            if request.is_dirty:
                self._note_bytes(request, int(payload.batches.position[stop.row]))
            flags[end:] &= ~np.uint8(INDEXED)
        if request.is_dirty:
            messages = table.record_count
            if payload.batches.kinds & HAS_TRANSACTION:
                # A control batch has one record, whatever its header says.
                messages = np.where(table.is_control, 1, messages)
            counts[MESSAGES_READ] += _sums_between(messages, rows.clip(max=end))

    def _note_bytes(self, request: _HashRequest, end: int) -> None:
        """Note the bytes of a window up to an end as read."""
        starts = request.window.starts or (0,)
        bounds = np.array([*starts, len(request.window.data)]).clip(max=end)
        self._counts[BYTES_READ, request.first : request.first + len(starts)] += np.diff(bounds)


# With so many threads at most, batches without transactions are hashed as they are found.
_MOST_IN_TURN: Final = 2
# How many bounds a window of one file has.
_ONE_FILE: Final = 2


def _sums_between(numbers: NDArray[Any], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n], the sums of numbers between each of int64[n + 1] bounds and the next."""
    if len(bounds) == _ONE_FILE:
        return np.array([numbers[bounds[0] : bounds[1]].sum()], np.int64)
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=sums[1:])
    return np.diff(sums[bounds])


def join_run(store: LogStore, run: Sequence[SegmentState], pool: RoundBuffers) -> Window | None:
    """Read a run of several segments as one window. None where each has to be read alone."""
    if len(run) == 1:
        return None
    files = [segment.log_file for segment in run]
    return join_files(store, files, [segment.size_bytes for segment in run], pool.windows)


class _MapSink:
    """Put the keys of all dirty segments into one map. They come in order, up to a full map.

    Attributes:
        latest_offset: How far the log is mapped.
    """

    clean_part = CleanPart.NOTHING

    def __init__(self, plan: CompactionPlan) -> None:
        self.offset_map = OffsetMap(plan.max_keys)
        self.plain_map = self.offset_map if plan.max_keys is None else None
        self.latest_offset = NO_OFFSET
        self._first_dirty_offset = plan.first_dirty_offset
        self._tracker = TransactionTracker()
        self._tracker.add_aborted(plan.aborted_of_round)

    def choose(self, window: Window, *, is_dirty: bool) -> Choice:  # noqa: ARG002  # all of it is
        """Leave control batches out, and what belongs to aborted transactions."""
        wanted = np.ones(len(window.batches), bool)
        rows, transactions = TransactionRows.select(window.batches)
        if len(transactions):
            discard, _ = self._tracker.decide(transactions)
            wanted &= ~window.batches.is_control
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
        if last_offsets.size and last_offsets[-1] < self._first_dirty_offset:
            last_offsets = last_offsets[last_offsets >= self._first_dirty_offset]
        if last_offsets.size:
            self.latest_offset = int(last_offsets[-1])


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
    pace = plan.pace(threads, is_mapped=is_mapped(store))
    reading = SegmentReading(
        store,
        plan,
        [
            run
            for group in group_segments(plan, plan.first_uncleanable_offset)
            for run in plan.runs_of(group, 0 if keeps_hashes else pace.run_bytes)
            if run[0].base_offset in plan.number_of_dirty
        ],
        sink,
        number=0,
        throttler=throttler,
        records=records,
        hashes=hashes,
        threads=threads,
        pool=pool,
    )
    indexed = reading.run()
    latest_offset = sink.latest_offset
    if reading.is_full and len(indexed) > 1:
        # All before the segment where the map was full is mapped.
        latest_offset = max(latest_offset, int(indexed.columns[BASE_OFFSET, -1]) - 1)
    elif dirty and not reading.is_full:
        latest_offset = plan.first_uncleanable_offset - 1
    index = index_of_map(indexed, sink.offset_map, latest_offset)
    return replace(index, records=records, hashes=hashes, pool=pool)


def index_of_map(
    segments: IndexedSegments, offset_map: OffsetMap, latest_offset: int
) -> CompactionIndex:
    """Return the index of dirty segments with all keys in one map.

    Args:
        offset_map: The map; it may be full.
        latest_offset: How far the log is mapped.
    """
    bounds = segments.word_bounds
    words = np.zeros(int(bounds[-1]), np.uint64)
    mark_survivors(offset_map.table, bounds[:-1], words)
    return CompactionIndex(
        offset_map=offset_map,
        segments=segments,
        words=words,
        latest_offset=latest_offset,
        stats=IndexStats(
            bytes_read=segments.sum_of(BYTES_READ),
            messages_read=segments.sum_of(MESSAGES_READ),
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
            *window.place_of(row),
            f"expected magic 0, 1 or 2, found {batches.magic[row]}",
        )
    for row in np.flatnonzero(~batches.is_legacy & (batches.size < HEADER_BYTES))[:1].tolist():
        raise CorruptRecordError(
            *window.place_of(row),
            f"the batch has {batches.size[row]} bytes, fewer than a header's {HEADER_BYTES}",
        )
    bad = np.flatnonzero(window.batches.control_type == BAD_CONTROL_RECORD)
    if bad.size:
        row = int(bad[0])
        raise CorruptRecordError(
            *window.place_of(row),
            f"control batch at offset {window.batches.base_offset[row]}: "
            "expected a record with a key of a version and a type",
        )
