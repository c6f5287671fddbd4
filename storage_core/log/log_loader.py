"""A partition's log as Kafka loads it after a clean shutdown: observed, with what would change.

The loader reads and decides; what it would write stands in ``LoadedLog.operations``. A segment
that Kafka would recover (its offset index is missing, or its transaction index contradicts it) is
refused: recovery is an operation of its own.
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np

from storage_core.checkpoint.leader_epoch_file import (
    EpochEntry,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import CorruptSnapshotError, RecoveryRequiredError
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import HEADER_BYTES, MAX_TIMESTAMP_AT, NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.time_index import TimeIndex
from storage_core.index.transaction_index import parse_transaction_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.end_offset import (
    MAX_INDEX_BYTES,
    find_batch,
    find_next_offset,
    find_position,
    read_offset_index,
)
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.leftovers import settle_leftovers
from storage_core.log.log_segment import SegmentState
from storage_core.log.producer_snapshot import (
    MAX_SNAPSHOT_BYTES,
    ProducerEntry,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from storage_core.log.producer_state import ProducerState
from storage_core.plan.operations import Operation
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store.base import LogStore

_MAX_EPOCH_FILE_BYTES = 1 << 26
_REPLAY_WINDOW_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log that has been loaded.

    Attributes:
        location: Path or URL of the partition directory.
        segments: In order of base offsets, the active one last.
        log_start_offset: First offset that may be read.
        log_end_offset: Offset that the next record would get.
        high_watermark: First offset that is not known to be on all in-sync replicas.
        last_stable_offset: First offset that a committed read does not reach.
        producers: Those alive, in the order in which the log met them.
        epochs: Leader epochs.
        snapshot_offsets: Offsets of the producer snapshots, as the operations will leave them.
        operations: What Kafka changes in the directory when it loads and cleanly closes this log.
    """

    location: str
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    producers: tuple[ProducerEntry, ...]
    epochs: tuple[EpochEntry, ...]
    snapshot_offsets: frozenset[int]
    operations: tuple[Operation, ...]

    @property
    def active_segment(self) -> SegmentState:
        """The segment that takes appends."""
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return sum(segment.size_bytes for segment in self.segments)


def load_log(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
    high_watermark: int | None = None,
) -> LoadedLog:
    """Load a log that was closed cleanly.

    Args:
        store: The partition directory.
        config: The topic's configuration.
        cleaner: For the expiry of producers.
        now_ms: The run's clock, epoch milliseconds.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        high_watermark: Clamped into the log; None for the log end offset.

    Raises:
        RecoveryRequiredError: Kafka would recover a segment, or the log has none.
        CorruptIndexError: A transaction index has an unknown version.
        CorruptRecordError: The last segment's tail is no batch.
        UnsupportedFormatError: A batch that must be read has message format v0 or v1.
        CheckpointError: The leader epoch file is malformed.
        InvalidTxnStateError: Batches contradict each other's transactions.
        StorageError: The store failed.
    """
    view = DirectoryView(store)
    settle_leftovers(view)
    segments = _open_segments(view, needs_first_timestamp=config.is_compacted)
    active = segments[-1]
    end = find_next_offset(
        view,
        active.base_offset,
        log_file(active.base_offset),
        segment_file(active.base_offset, OFFSET_INDEX_SUFFIX),
    )
    if end < log_start_checkpoint:
        raise RecoveryRequiredError(
            store.location,
            f"the log ends at offset {end}, below its log start offset {log_start_checkpoint}: "
            "Kafka would delete every segment of it",
        )
    start = max(log_start_checkpoint, segments[0].base_offset)
    epochs = _load_epochs(view, end, log_start_checkpoint)
    snapshots = _Snapshots(view, segments)
    state = snapshots.load_state(start, end, now_ms, cleaner.producer_id_expiration_ms)
    snapshots.plan_changes()
    _close_active_indexes(view, active)
    watermark = end if high_watermark is None else min(max(high_watermark, start), end)
    state.advance_high_watermark(watermark)
    unstable = state.first_unstable_offset
    stable = watermark
    if unstable is not None:
        stable = min(watermark, _batch_base_offset(view, segments, max(unstable, start), end))
    return LoadedLog(
        location=store.location,
        segments=tuple(segments),
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=watermark,
        last_stable_offset=stable,
        producers=tuple(state.producers.values()),
        epochs=epochs,
        snapshot_offsets=frozenset(snapshots.offsets),
        operations=tuple(view.operations),
    )


def _batch_base_offset(
    view: DirectoryView, segments: list[SegmentState], offset: int, end_offset: int
) -> int:
    """Return the base offset of the first batch that reaches offset, end_offset without one.

    This is what Kafka makes of the first unstable offset of a log that it has just loaded: the
    batch may begin below it, or above it where compaction left a gap.
    """
    floor = max((s.base_offset for s in segments if s.base_offset <= offset), default=0)
    for segment in segments:
        if segment.base_offset < floor:
            continue
        name = log_file(segment.base_offset)
        index_name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
        index = read_offset_index(view, segment.base_offset, index_name)
        batch = find_batch(view, name, offset, index.look_up(offset))
        if batch is not None:
            return batch.base_offset
    return end_offset


def _open_segments(view: DirectoryView, *, needs_first_timestamp: bool) -> list[SegmentState]:
    """Return the segments, and plan what opening them changes: pass 4 of Kafka's loader."""
    segments = []
    for name in view.names:
        offset = offset_of(name)
        kind = kind_of(name)
        if kind in INDEX_SUFFIXES and offset is not None and log_file(offset) not in view:
            view.delete(name, "index without a log")
        elif kind == LOG_SUFFIX and offset is not None:
            if name != log_file(offset):
                raise RecoveryRequiredError(
                    view.store.location, f"{name}: expected the name {log_file(offset)}"
                )
            segments.append(
                _open_segment(view, offset, needs_first_timestamp=needs_first_timestamp)
            )
    if not segments:
        raise RecoveryRequiredError(view.store.location, "the directory has no segment")
    return sorted(segments, key=lambda segment: segment.base_offset)


def _open_segment(
    view: DirectoryView, base_offset: int, *, needs_first_timestamp: bool
) -> SegmentState:
    log_name = log_file(base_offset)
    index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
    if index_name not in view:
        raise RecoveryRequiredError(
            view.store.location, f"{index_name} is missing: the segment has to be recovered"
        )
    if time_name in view:
        times = TimeIndex.parse(base_offset, view.read(time_name, limit_bytes=MAX_INDEX_BYTES))
    else:
        view.create_empty(time_name, "the time index is missing")
        times = TimeIndex.parse(base_offset, b"")
    has_txn_index = txn_name in view
    txn_data = view.read(txn_name, limit_bytes=MAX_INDEX_BYTES) if has_txn_index else b""
    log = view.source(log_name)
    index = view.source(index_name)
    entry_bytes = OFFSET_INDEX_ENTRY.itemsize
    return SegmentState(
        base_offset=base_offset,
        log_file=log.name,
        offset_index_file=index.name,
        size_bytes=log.size_bytes,
        modified_ms=log.modified_ms,
        offset_index_bytes=index.size_bytes // entry_bytes * entry_bytes,
        time_index_bytes=len(times.entries) * TIME_INDEX_ENTRY.itemsize,
        max_timestamp=times.last_timestamp,
        first_batch_timestamp=(
            _first_batch_timestamp(view, log_name) if needs_first_timestamp else NO_TIMESTAMP
        ),
        aborted=parse_transaction_index(txn_name, base_offset, txn_data),
        has_txn_index=has_txn_index,
    )


def _first_batch_timestamp(view: DirectoryView, log_name: str) -> int:
    """Return the largest timestamp of a segment's first batch, NO_TIMESTAMP without one."""
    header = np.empty(HEADER_BYTES, np.uint8)
    with closing(view.store.open_file(view.source(log_name).name)) as reader:
        if reader.read_into(0, header) < HEADER_BYTES:
            return NO_TIMESTAMP
    field = header[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8].tobytes()
    return int.from_bytes(field, "big", signed=True)


def _load_epochs(
    view: DirectoryView, end_offset: int, log_start_checkpoint: int
) -> tuple[EpochEntry, ...]:
    if LEADER_EPOCH_FILE not in view:
        view.create_empty(LEADER_EPOCH_FILE, "the leader epoch file is missing")
        return ()
    data = view.read(LEADER_EPOCH_FILE, limit_bytes=_MAX_EPOCH_FILE_BYTES)
    cache = LeaderEpochCache(parse_leader_epochs(data, file=LEADER_EPOCH_FILE))
    is_written = cache.truncate_from_end(end_offset)
    is_written |= cache.truncate_from_start(log_start_checkpoint)
    content = encode_leader_epochs(cache.entries)
    if is_written and content != data:
        view.write(LEADER_EPOCH_FILE, content, "epochs of the log")
    return cache.entries


def _close_active_indexes(view: DirectoryView, active: SegmentState) -> None:
    """Plan what a clean close does to the active segment's indexes: a ragged tail goes."""
    for suffix, entry_bytes in (
        (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY.itemsize),
        (TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY.itemsize),
    ):
        name = segment_file(active.base_offset, suffix)
        size = view.source(name).size_bytes
        if size % entry_bytes:
            view.truncate(name, size - size % entry_bytes, "tail that is no whole entry")


class _Snapshots:
    """The producer snapshots of a log: those on disk, and what loading adds and removes."""

    def __init__(self, view: DirectoryView, segments: list[SegmentState]) -> None:
        self._view = view
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._written: dict[int, bytes] = {}
        self._deleted: dict[int, str] = {}
        self.offsets = {
            offset
            for name in view.names
            if name.endswith(SNAPSHOT_SUFFIX) and (offset := offset_of(name)) is not None
        }
        self._map_end = 0
        self._last_snapshot = 0

    def load_state(self, start: int, end: int, now_ms: int, expiration_ms: int) -> ProducerState:
        """Return the producers at `end`: newest snapshot plus a replay of what follows it."""
        state = ProducerState()
        self._remove_strays()
        at = {*self._bases[-2:], end}
        if not self.offsets:
            # After a clean shutdown a log without any snapshot counts as one without producers.
            for offset in sorted(at):
                self._map_end = offset
                self._take(state)
            return state
        was_empty_log = end <= 0
        for offset in sorted(self.offsets):
            if offset > end or offset <= start:
                self._remove(offset, f"outside of the log, which is {start} to {end}")
        if end != 0:
            self._load_newest(state, start, now_ms, expiration_ms)
        else:
            self._map_end = max(self._map_end, start)
            self._last_snapshot = max(self.offsets, default=start)
        if end > self._map_end and not was_empty_log:
            self._replay(state, start, end, at)
        self._map_end = end
        self._take(state)
        return state

    def plan_changes(self) -> None:
        """Hand the writes and deletions to the directory view."""
        for offset, reason in sorted(self._deleted.items()):
            if snapshot_file(offset) in self._view and offset not in self._written:
                self._view.delete(snapshot_file(offset), reason)
        for offset, content in sorted(self._written.items()):
            self._view.write(snapshot_file(offset), content, "producers as of this offset")

    def _remove_strays(self) -> None:
        """Of the snapshots at no segment's base keep the newest, and only if it is not buried."""
        strays = sorted(self.offsets - set(self._bases))
        for offset in strays[:-1]:
            self._remove(offset, "stray: no segment begins here, and a newer one is there")
        if strays and strays[-1] < self._bases[-1]:
            self._remove(strays[-1], "stray: no segment begins here")

    def _remove(self, offset: int, reason: str) -> None:
        self.offsets.discard(offset)
        self._written.pop(offset, None)
        self._deleted[offset] = reason

    def _take(self, state: ProducerState) -> None:
        if self._map_end > self._last_snapshot:
            self._written[self._map_end] = encode_producer_snapshot(state.producers.values())
            self.offsets.add(self._map_end)
            self._last_snapshot = self._map_end

    def _load_newest(
        self, state: ProducerState, start: int, now_ms: int, expiration_ms: int
    ) -> None:
        while self.offsets:
            offset = max(self.offsets)
            name = snapshot_file(offset)
            try:
                data = self._view.read(name, limit_bytes=MAX_SNAPSHOT_BYTES)
                entries = parse_producer_snapshot(name, data)
            except CorruptSnapshotError as error:
                self._remove(offset, str(error))
                continue
            state.load(entries, now_ms=now_ms, expiration_ms=expiration_ms)
            self._last_snapshot = self._map_end = offset
            return
        self._last_snapshot = self._map_end = start

    def _replay(self, state: ProducerState, start: int, end: int, at: set[int]) -> None:
        first = max((i for i, base in enumerate(self._bases) if base <= self._map_end), default=0)
        holder = max((base for base in self._bases if base <= end), default=None)
        for segment in self._segments[first:]:
            if segment.base_offset >= end:
                break
            begin = max(segment.base_offset, self._map_end, start)
            self._map_end = begin
            if segment.base_offset in at:
                self._take(state)
            name = log_file(segment.base_offset)
            index_name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
            index = read_offset_index(self._view, segment.base_offset, index_name)
            position = find_position(self._view, name, begin, index.look_up(begin))
            if position is None:
                continue
            stop = None
            if segment.base_offset == holder:
                stop = find_position(self._view, name, end, index.look_up(end))
            with closing(self._view.store.open_file(self._view.source(name).name)) as reader:
                state.replay(
                    scan_windows(
                        reader,
                        start=position,
                        end=stop,
                        window_bytes=_REPLAY_WINDOW_BYTES,
                        crc=CrcCheck.SKIP,
                        tail=Tail.STOP,
                    )
                )
