"""Segments, leader epochs and producer snapshots of a log open for appends. Changes besides
those of the active segment are written at once."""

import random
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from typing import Final

import numpy as np

from storage_core.checkpoint.checkpoint_files import EpochEntry, encode_leader_epochs
from storage_core.commit import (
    CommitPlan,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    WriteFile,
    commit,
)
from storage_core.config import LogConfig
from storage_core.errors import InvalidAppendError, RollError
from storage_core.filenames import (
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    log_file,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import OffsetIndex, TimeIndex
from storage_core.log.append.roll import choose_segment_jitter_ms
from storage_core.log.append.segment import AppendFiles, AppendSegment, IndexTail
from storage_core.log.batch_search import MAX_INDEX_BYTES, first_batch_timestamp
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.producer_snapshot import ProducerEntry, encode_producer_snapshot
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import LogStore

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
