"""A log held open: opened or begun, rolled, flushed and closed."""

import random
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, Self

import numpy as np

from storage_core.checkpoint.checkpoints import EpochEntry, encode_leader_epochs
from storage_core.clock import Clock, SystemClock
from storage_core.commit import (
    CommitPlan,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    WriteFile,
    commit,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    InvalidAppendError,
    LogClosedError,
    OffsetOutOfRangeError,
    RollError,
    StorageError,
)
from storage_core.filenames import (
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    parse_partition_directory,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import OffsetIndex, TimeIndex
from storage_core.log.append.segment import (
    AppendFiles,
    AppendSegment,
    IndexTail,
    LocalAppendFiles,
    choose_segment_jitter_ms,
)
from storage_core.log.batch_search import (
    MAX_INDEX_BYTES,
    find_batch_base_offset,
    first_batch_timestamp,
)
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.log.producer_snapshot import ProducerEntry, encode_producer_snapshot
from storage_core.log.producer_state import REMEMBERED_BATCHES, ProducerState
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import LogStore
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder

# Segments, leader epochs and producer snapshots of a log open for appends. Changes besides those
# of the active segment are written at once.

_NEW_SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


def plan_first_segment(location: str, base_offset: int) -> CommitPlan:
    """Plan the files of an empty log that begins at an offset."""
    return CommitPlan(
        location=location,
        operations=tuple(
            CreateEmptyFile(name=segment_file(base_offset, suffix), reason="a new log")
            for suffix in _NEW_SEGMENT_SUFFIXES
        ),
    )


class LocalLog:
    """Segments on a local disk, the last of them open for appends.

    Args:
        loaded: The log as it was loaded; its operations have been committed.
        is_new: Whether its first segment was created just now.

    Attributes:
        recovery_point: First offset that is not known to be durable.
        last_flush_ms: When that last changed.
    """

    def __init__(
        self,
        partition: str,
        store: LogStore,
        files: AppendFiles,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        is_new: bool,
        now_ms: int,
        dice: random.Random,
    ) -> None:
        self._partition = partition
        self._store = store
        self._files = files
        self._config = config
        self._dice = dice
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.last_flush_ms = now_ms
        # State of the segments before the active one.
        self._closed_sizes = {s.base_offset: s.size_bytes for s in loaded.segments[:-1]}
        base_offset = loaded.active_segment.base_offset
        with closing(store.open_file(log_file(base_offset))) as reader:
            first_timestamp = first_batch_timestamp(reader)
        self.active = AppendSegment(
            files,
            base_offset,
            self._config,
            created_ms=now_ms,
            jitter_ms=self._choose_jitter_ms(),
            tail=None if is_new else self._read_tail(base_offset),
            first_batch_timestamp=first_timestamp,
        )

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Base offset and bytes of every segment, in order."""
        active = (self.active.base_offset, self.active.size_bytes)
        return (*self._closed_sizes.items(), active)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return sum(size for _, size in self.segments)

    def _choose_jitter_ms(self) -> int:
        return choose_segment_jitter_ms(
            self._dice,
            segment_jitter_ms=self._config.segment_jitter_ms,
            segment_ms=self._config.segment_ms,
        )

    def _read_tail(self, base_offset: int) -> IndexTail:
        def read(suffix: str) -> bytes:
            name = segment_file(base_offset, suffix)
            return self._store.read_file(name, limit_bytes=MAX_INDEX_BYTES)

        offset_data, time_data = read(OFFSET_INDEX_SUFFIX), read(TIME_INDEX_SUFFIX)
        offsets = OffsetIndex.parse(base_offset, offset_data)
        times = TimeIndex.parse(base_offset, time_data)
        last_time_offset = base_offset
        if len(times.entries):
            last_time_offset += int(times.entries["relative_offset"][-1])
        return IndexTail(
            offset_entries=len(offset_data) // OFFSET_INDEX_ENTRY.itemsize,
            last_index_offset=offsets.last_offset,
            time_entries=len(time_data) // TIME_INDEX_ENTRY.itemsize,
            last_time=times.last_timestamp,
            last_time_offset=last_time_offset,
        )

    def _new_segment(self, base_offset: int, now_ms: int) -> AppendSegment:
        return AppendSegment(
            self._files,
            base_offset,
            self._config,
            created_ms=now_ms,
            jitter_ms=self._choose_jitter_ms(),
        )

    def advance(self, end_offset: int) -> None:
        """Take note of what was appended, or cut."""
        self.log_end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)

    def roll(self, wanted_offset: int, now_ms: int) -> AppendSegment:
        """Begin a segment at the log's end or at a later offset.

        Returns:
            The segment that was the active one; to be closed once it has been flushed.
        """
        base_offset = max(wanted_offset, self.log_end_offset)
        old = self.active
        if base_offset == old.base_offset:
            if old.size_bytes:
                raise RollError(self._partition, base_offset, "the active segment begins there")
            self._replace_active(base_offset, now_ms)
            return old
        if base_offset < old.base_offset:
            raise RollError(
                self._partition, base_offset, f"the active segment begins at {old.base_offset}"
            )
        self._commit(
            *(
                DeleteFile(name=segment_file(base_offset, suffix), reason="in a new segment's way")
                for suffix in SEGMENT_SUFFIXES
            )
        )
        old.become_inactive()
        self.active = self._new_segment(base_offset, now_ms)
        self._closed_sizes[old.base_offset] = old.size_bytes
        return old

    def _replace_active(self, base_offset: int, now_ms: int) -> None:
        """Make the active segment anew, without records, at an offset."""
        old = self.active
        names = {file.name for file in self._store.list_files()}
        present = [name for suffix in SEGMENT_SUFFIXES if (name := old.file_name(suffix)) in names]
        reason = "the active segment is made anew"
        self._commit(
            *(
                RenameFile(source=name, target=name + DELETED_SUFFIX, reason=reason)
                for name in present
            )
        )
        self.active = self._new_segment(base_offset, now_ms)
        self._commit(*(DeleteFile(name=name + DELETED_SUFFIX, reason=reason) for name in present))

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Remove every segment and begin at an offset."""
        names = {file.name for file in self._store.list_files()}
        self._commit(
            *(
                DeleteFile(name=name, reason=f"the log starts over at {offset}")
                for base in self._closed_sizes
                for suffix in SEGMENT_SUFFIXES
                if (name := segment_file(base, suffix)) in names
            )
        )
        self._closed_sizes.clear()
        old = self.active
        self._replace_active(offset, now_ms)
        old.close()
        self.advance(offset)

    def flush(self, end_offset: int, *, recovery_point: int, now_ms: int) -> None:
        """Make durable what lies below end_offset, then move the recovery point.

        Args:
            end_offset: Segments that begin below it are synced, from the recovery point's on.
            recovery_point: The new recovery point, if it is beyond the present one.
        """
        if end_offset <= self.recovery_point:
            return
        bases = [*self._closed_sizes, self.active.base_offset]
        first = max(0, bisect_right(bases, self.recovery_point) - 1)
        synced = [base for base in bases[first:] if base < end_offset]
        for base in synced:
            if base == self.active.base_offset:
                self.active.sync()
            else:
                self._sync_closed(base)
        if any(base >= self.recovery_point for base in synced):
            self._files.sync_directory()
        if recovery_point > self.recovery_point:
            self.recovery_point = recovery_point
            self.last_flush_ms = now_ms

    def _sync_closed(self, base_offset: int) -> None:
        names = {file.name for file in self._store.list_files()}
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(base_offset, suffix)
            if name in names:
                file = self._files.open_file(name)
                file.sync()
                file.close()

    def _commit(self, *operations: Operation) -> None:
        commit(CommitPlan(location=self._store.location, operations=operations), self._store)


_LEGACY: Final = -2  # no leader epoch


class AppendEpochs:
    """Leader epochs; every change is written down at once."""

    def __init__(self, partition: str, store: LogStore, entries: Iterable[EpochEntry]) -> None:
        self._partition = partition
        self._store = store
        self._cache = LeaderEpochCache(entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The epochs, oldest first."""
        return self._cache.entries

    def note(self, batches: BatchTable) -> None:
        """Add the epochs of batches; a legacy batch, without one, ends all."""
        keys = np.where(batches.is_legacy, np.int64(_LEGACY), batches.leader_epoch)
        is_new = np.ones(len(batches), np.bool_)
        is_new[1:] = (keys[1:] != keys[:-1]) | (batches.base_offset[1:] < batches.base_offset[:-1])
        changed = False
        try:
            for row in is_new.nonzero()[0].tolist():
                if batches.magic[row] < MAGIC_V2:
                    changed |= bool(self._cache.entries)
                    self._cache = LeaderEpochCache()
                else:
                    changed |= self._assign(
                        int(batches.leader_epoch[row]), int(batches.base_offset[row])
                    )
        finally:
            if changed:
                self._write()

    def truncate_from_start(self, offset: int) -> None:
        """Let the log begin at an offset."""
        if self._cache.truncate_from_start(offset):
            self._write()

    def clear(self) -> None:
        """Forget all epochs."""
        self._cache = LeaderEpochCache()
        self._write()

    def _assign(self, epoch: int, start_offset: int) -> bool:
        try:
            return self._cache.assign(epoch, start_offset)
        except ValueError as error:
            raise InvalidAppendError(
                self._partition, f"expected a leader epoch of at least 0, found {error}"
            ) from error

    def _write(self) -> None:
        operation = WriteFile(
            name=LEADER_EPOCH_FILE,
            content=encode_leader_epochs(self._cache.entries),
            reason="epochs of the log",
        )
        commit(CommitPlan(location=self._store.location, operations=(operation,)), self._store)


class AppendSnapshots:
    """Which snapshots there are, and up to where producers are known.

    Args:
        map_end: Up to where producers are known.
        log_start_offset: The last snapshot's offset if there is no snapshot.
    """

    def __init__(
        self, store: LogStore, offsets: Iterable[int], *, map_end: int, log_start_offset: int
    ) -> None:
        self._store = store
        self._offsets = set(offsets)
        self._last = max(self._offsets, default=log_start_offset)
        self.map_end = map_end

    def take(self, entries: Iterable[ProducerEntry]) -> None:
        """Write the producers down, unless a snapshot reaches as far already."""
        if self.map_end <= self._last:
            return
        operation = WriteFile(
            name=snapshot_file(self.map_end),
            content=encode_producer_snapshot(entries),
            reason="producers as of this offset",
        )
        commit(CommitPlan(location=self._store.location, operations=(operation,)), self._store)
        self._offsets.add(self.map_end)
        self._last = self.map_end

    def raise_log_start(self, offset: int) -> None:
        """Take note of another log start offset."""
        self.map_end = max(self.map_end, offset)
        self._last = max(self._offsets, default=offset)

    def start_over(self, offset: int) -> None:
        """Delete every snapshot; the log begins at an offset."""
        operations = tuple(
            DeleteFile(name=snapshot_file(snapshot), reason=f"the log starts over at {offset}")
            for snapshot in sorted(self._offsets)
        )
        commit(CommitPlan(location=self._store.location, operations=operations), self._store)
        self._offsets.clear()
        self.map_end = self._last = offset


class OpenLog:
    """Everything of a UnifiedLog but its appends; made by `open`.

    Args:
        loaded: The log as it was loaded; its operations have been committed.
        clock: Where the time comes from.
    """

    def __init__(
        self,
        partition: str,
        store: LocalStore,
        loaded: LoadedLog,
        local: LocalLog,
        *,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.config = config
        self._clock = clock
        self._store = store
        self._local = local
        self._epochs = AppendEpochs(partition, store, loaded.epochs)
        self._producers = ProducerState(loaded.producers, remembered_batches=REMEMBERED_BATCHES)
        self._snapshots = AppendSnapshots(
            store,
            loaded.snapshot_offsets,
            map_end=loaded.log_end_offset,
            log_start_offset=loaded.log_start_offset,
        )
        # First offsets of transactions that were open when the log was loaded.
        self._loaded_txns = frozenset(
            entry.current_txn_first_offset
            for entry in loaded.producers
            if entry.current_txn_first_offset >= 0
        )
        self._log_start_offset = loaded.log_start_offset
        self._high_watermark = loaded.log_start_offset
        self._is_closed = False

    @classmethod
    def open(  # noqa: PLR0913 - a broker says as much
        cls,
        directory: Path,
        *,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        cleaner: CleanerConfig | None = None,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean_shutdown: bool = True,
        files: AppendFiles | None = None,
        dice: random.Random | None = None,
    ) -> Self:
        """Open the log of a directory, or begin one.

        Args:
            directory: ``<topic>-<partition>``; created if it is not there.
            config: The topic's configuration; Kafka's defaults without one.
            clock: Where the time comes from; the machine's clock without one.
            cleaner: For the expiry of producers.
            log_start_offset: The partition's entry in the log-start checkpoint.
            recovery_point: The partition's entry in the recovery-point checkpoint; of a log that
                was closed cleanly it does not count, for all of that is durable.
            clean_shutdown: Whether the log was closed cleanly. If not it is recovered from the
                recovery point on, as a broker does after a crash: what is damaged is cut off.
        """
        partition = str(parse_partition_directory(directory.name))
        config = LogConfig() if config is None else config
        clock = SystemClock() if clock is None else clock
        try:
            make_folder(directory, mode=PUBLIC_MODE)
        except OSError as error:
            raise StorageError(str(directory), error.strerror or str(error)) from error
        store = LocalStore(directory)
        is_new = not any(kind_of(file.name) == LOG_SUFFIX for file in store.list_files())
        if is_new:
            commit(plan_first_segment(store.location, log_start_offset), store)
        now_ms = clock.now_ms()
        loader = LogLoader(
            store,
            config=config,
            cleaner=CleanerConfig() if cleaner is None else cleaner,
            now_ms=now_ms,
            log_start_checkpoint=log_start_offset,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            may_repair=not clean_shutdown,
        )
        loaded = loader.load().close(high_watermark=0)
        commit(loaded.plan, store)
        local = LocalLog(
            partition,
            store,
            LocalAppendFiles(store) if files is None else files,
            config,
            loaded,
            is_new=is_new,
            now_ms=now_ms,
            dice=random.SystemRandom() if dice is None else dice,
        )
        return cls(partition, store, loaded, local, config=config, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StorageError):
            self.abandon()
        elif not self._is_closed:
            self.close()

    # Offsets.

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """First offset not known to be on all in-sync replicas. A new log's is its log start."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """First offset that is not known to be durable."""
        return self._local.recovery_point

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Base offset and bytes of every segment, in order."""
        return self._local.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return self._local.size_bytes

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs, and where they began."""
        return self._epochs.entries

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers that are alive, by id."""
        return dict(self._producers.producers)

    @property
    def first_unstable_offset(self) -> int | None:
        """Start of the oldest transaction open or not replicated; None without one."""
        first = self._producers.transactions.first_unstable_offset
        if first is None:
            return None
        if first >= self._log_start_offset and first not in self._loaded_txns:
            return first
        # Kafka then looks for the batch, which may begin elsewhere.
        bases = [base for base, _ in self.segments]
        base_offset = find_batch_base_offset(
            DirectoryView(self._store), bases, max(first, self._log_start_offset)
        )
        return self.log_end_offset if base_offset is None else base_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset that a committed read does not reach."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(self.partition)

    def roll(self, wanted_offset: int = 0) -> int:
        """Begin an active segment at the log's end or later offset. The former segment and its
        producer snapshot are durable on return.

        Returns:
            Its base offset.
        """
        self._check_open()
        now_ms = self._clock.now_ms()
        old = self._local.roll(wanted_offset, now_ms)
        base_offset = self._local.active.base_offset
        self._snapshots.map_end = base_offset
        self._snapshots.take(self._producers.producers.values())
        self._local.flush(base_offset, recovery_point=base_offset, now_ms=now_ms)
        old.close()
        return base_offset

    def flush(self) -> None:
        """Sync all appends and move the recovery point to the log's end."""
        self._check_open()
        end = self.log_end_offset
        self._local.flush(end, recovery_point=end, now_ms=self._clock.now_ms())

    # Boundaries.

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to the log, and return it."""
        self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
        self._producers.transactions.advance_high_watermark(self._high_watermark)
        return self._high_watermark

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset as DeleteRecords; return whether it changed. Segments below
        it stay: retention removes them."""
        self._check_open()
        if offset > self._high_watermark:
            raise OffsetOutOfRangeError(
                self.partition, offset, self._log_start_offset, self._high_watermark + 1
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._local.recovery_point = max(self._local.recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._producers.transactions.advance_high_watermark(offset)
        self._snapshots.raise_log_start(offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin at an offset: segments, producers, epochs."""
        self._check_open()
        now_ms = self._clock.now_ms()
        self._local.truncate_fully_and_start_at(offset, now_ms)
        self._epochs.clear()
        self._producers.clear()
        self._snapshots.start_over(offset)
        self._log_start_offset = offset
        self._high_watermark = offset

    # The end.

    def close(self) -> None:
        """Close the log cleanly: indexes complete, everything durable, producers written down."""
        self._check_open()
        self._local.active.become_inactive()
        end = self.log_end_offset
        self._local.flush(end + 1, recovery_point=end, now_ms=self._clock.now_ms())
        self._snapshots.take(self._producers.producers.values())
        self.abandon()

    def abandon(self) -> None:
        """Release the files as after a crash: the log needs recovery then."""
        if not self._is_closed:
            self._is_closed = True
            self._local.active.close()
