"""The active segment of a log open for appends: files, indexes, age.

A log that is open for appends writes as it goes, like a broker: what a crash leaves is what a log
loader recovers. So these files do not go through plans; everything else that happens to a
partition's files does.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.config import LogConfig
from storage_core.errors import (
    BadBytesError,
    CorruptIndexError,
    IndexFullError,
    OffsetOverflowError,
)
from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.index.segment_indexes import AbortedTxn, encode_transaction_index
from storage_core.kernels import append_plan, index_build
from storage_core.records.batch_table import BatchTable
from storage_core.store.local import LocalStore, storage_errors
from storage_core.store.syncing import WriteBehind

# When a log begins a new segment.


@dataclass(frozen=True, slots=True, kw_only=True)
class RollParams:
    """What an append brings to the decision."""

    max_segment_ms: int  # age at which a segment is closed
    max_segment_bytes: int  # size that no segment exceeds
    max_timestamp: int  # largest timestamp of the append, NO_TIMESTAMP for none
    last_offset: int
    append_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What the active segment brings to the decision."""

    base_offset: int
    size_bytes: int
    first_batch_timestamp: int  # largest timestamp of its first batch, NO_TIMESTAMP for none
    created_ms: int  # when it was created or, since, opened
    jitter_ms: int  # by how much its age limit is cut
    is_index_full: bool  # whether the offset or the time index takes no further entry


def time_waited_for_roll_ms(segment: SegmentAge, params: RollParams) -> int:
    """Return the age of a segment at an append.

    It is measured in the records' time, from the segment's first batch to the append; where the
    first batch has no timestamp, by the clock.
    """
    if segment.first_batch_timestamp > NO_TIMESTAMP:
        return params.max_timestamp - segment.first_batch_timestamp
    return params.now_ms - segment.created_ms


def should_roll(segment: SegmentAge, params: RollParams) -> bool:
    """Whether an append has to go to a new segment."""
    waited_ms = time_waited_for_roll_ms(segment, params)
    relative_offset = params.last_offset - segment.base_offset
    return (
        segment.size_bytes > params.max_segment_bytes - params.append_bytes
        or (segment.size_bytes > 0 and waited_ms > params.max_segment_ms - segment.jitter_ms)
        or segment.is_index_full
        or not 0 <= relative_offset <= MAX_RELATIVE_OFFSET
    )


def choose_segment_jitter_ms(
    dice: random.Random, *, segment_jitter_ms: int, segment_ms: int
) -> int:
    """Return a random part of ``segment.jitter.ms`` below ``segment.ms``; 0 without jitter."""
    if segment_jitter_ms == 0:
        return 0
    return dice.randrange(2**31) % min(segment_jitter_ms, segment_ms)


def choose_roll_offset(*, first_offset: int | None, last_offset: int) -> int:
    """Return the base offset that an append wants for its segment.

    Of legacy entries that bring their own offsets the first is not known before they are opened:
    then the base is as low as the last offset allows. A roll never goes below the log's end.
    """
    return last_offset - MAX_RELATIVE_OFFSET if first_offset is None else first_offset


class AppendFile(Protocol):
    """A file that grows."""

    @property
    def size_bytes(self) -> int:
        """Bytes that were written; a preallocated file is longer."""
        ...

    def append(self, content: bytes | bytearray | memoryview) -> None:
        """Write bytes behind those that were written before."""
        ...

    def trim(self) -> None:
        """Cut a preallocated file to what was written."""
        ...

    def sync(self) -> None:
        """Make the bytes durable."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class AppendFiles(Protocol):
    """What opens the files of segments."""

    def open_file(self, name: str, *, preallocate_bytes: int = 0) -> AppendFile:
        """Open a file at its end, or create it.

        Args:
            preallocate_bytes: Length that a new or empty file gets.
        """
        ...

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        ...


class LocalAppendFile:
    """A local file that grows.

    Args:
        descriptor: The file, open for writing; this object closes it.
    """

    def __init__(self, path: Path, descriptor: int, *, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._descriptor = descriptor
        self._behind = WriteBehind(descriptor, size_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes that were written."""
        return self._size_bytes

    def append(self, content: bytes | bytearray | memoryview) -> None:
        """Write bytes behind those that were written before."""
        view = memoryview(content).cast("B")
        written = 0
        with storage_errors(self._path):
            while written < len(view):
                written += os.pwrite(self._descriptor, view[written:], self._size_bytes + written)
            self._behind.reach(self._size_bytes + written)
        self._size_bytes += len(view)

    def trim(self) -> None:
        """Cut the file to what was written."""
        with storage_errors(self._path):
            if os.fstat(self._descriptor).st_size != self._size_bytes:
                os.ftruncate(self._descriptor, self._size_bytes)

    def sync(self) -> None:
        """Make the bytes durable."""
        with storage_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the file."""
        with storage_errors(self._path):
            os.close(self._descriptor)


class LocalAppendFiles:
    """Opens the files of one partition directory."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def open_file(self, name: str, *, preallocate_bytes: int = 0) -> LocalAppendFile:
        """Open a file at its end; create it like its directory. A new file has the directory's
        owner and mode."""
        path = self._store.directory / name
        self._store.create_empty(name)
        descriptor = self._store.open_descriptor(name, os.O_WRONLY)
        with storage_errors(path):
            size_bytes = os.fstat(descriptor).st_size
            if preallocate_bytes and not size_bytes:
                os.ftruncate(descriptor, preallocate_bytes)
        return LocalAppendFile(path, descriptor, size_bytes=size_bytes)

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        self._store.sync_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTail:
    """How the indexes of a segment end that is opened again."""

    offset_entries: int
    last_index_offset: int
    time_entries: int
    last_time: int  # timestamp of the last of them, NO_TIMESTAMP without one
    last_time_offset: int


_EMPTY: Final = np.empty((0, 2), np.int64)


class AppendSegment:
    """A segment that takes batches.

    Args:
        created_ms: When it was created or is opened again.
        jitter_ms: By how much its age limit is cut.
        tail: How its indexes end; None for a new segment, whose files are created or empty.
        first_batch_timestamp: Largest timestamp of its first batch, NO_TIMESTAMP without one.
    """

    def __init__(
        self,
        files: AppendFiles,
        base_offset: int,
        config: LogConfig,
        *,
        created_ms: int,
        jitter_ms: int,
        tail: IndexTail | None = None,
        first_batch_timestamp: int = NO_TIMESTAMP,
    ) -> None:
        self.base_offset = base_offset
        self._config = config
        self._created_ms = created_ms
        self._jitter_ms = jitter_ms
        self._files = files
        self._log = files.open_file(
            self.file_name(LOG_SUFFIX),
            preallocate_bytes=(config.segment_bytes if config.preallocate and tail is None else 0),
        )
        self._offset_index = files.open_file(self.file_name(OFFSET_INDEX_SUFFIX))
        self._time_index = files.open_file(self.file_name(TIME_INDEX_SUFFIX))
        self._txn_index: AppendFile | None = None
        self._state = index_build.new_state(
            base_offset, config.index_interval_bytes, config.segment_index_bytes
        )
        self._state[index_build.STATE_POSITION] = self._log.size_bytes
        self._state[index_build.STATE_FIRST_BATCH_TIMESTAMP] = first_batch_timestamp
        if tail is not None:
            self._state[index_build.STATE_OFFSET_ENTRIES] = tail.offset_entries
            self._state[index_build.STATE_LAST_INDEX_OFFSET] = tail.last_index_offset
            self._state[index_build.STATE_TIME_ENTRIES] = tail.time_entries
            for column in (index_build.STATE_MAX_TIMESTAMP, index_build.STATE_LAST_TIME):
                self._state[column] = tail.last_time
            for column in (
                index_build.STATE_MAX_TIMESTAMP_OFFSET,
                index_build.STATE_LAST_TIME_OFFSET,
            ):
                self._state[column] = tail.last_time_offset

    def file_name(self, suffix: str) -> str:
        """Return the name of one of its files."""
        return segment_file(self.base_offset, suffix)

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self._log.size_bytes

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp that is known of it, NO_TIMESTAMP for none."""
        return int(self._state[index_build.STATE_MAX_TIMESTAMP])

    @property
    def age(self) -> SegmentAge:
        """What counts for a roll."""
        state = self._state
        is_full = (
            state[index_build.STATE_OFFSET_ENTRIES] >= state[index_build.STATE_MAX_OFFSET_ENTRIES]
            or state[index_build.STATE_TIME_ENTRIES]
            >= state[index_build.STATE_MAX_TIME_ENTRIES] - 1
        )
        return SegmentAge(
            base_offset=self.base_offset,
            size_bytes=self.size_bytes,
            first_batch_timestamp=int(state[index_build.STATE_FIRST_BATCH_TIMESTAMP]),
            created_ms=self._created_ms,
            jitter_ms=self._jitter_ms,
            is_index_full=bool(is_full),
        )

    def append(self, data: NDArray[np.uint8], batches: BatchTable) -> None:
        """Write the batches of one append; nothing if an index is full."""
        count = len(batches)
        if not count:
            return
        state = self._state.copy()
        offsets = np.empty((count, 2), np.int64)
        times = np.empty((count, 2), np.int64)
        row, status = index_build.add_batches(
            state, batches.size, batches.last_offset, batches.max_timestamp, offsets, times
        )
        if status != index_build.DONE:
            raise self._error(status, int(state[index_build.STATE_POSITION]), batches, row)
        self._write(data, state, offsets, times)

    def append_each(
        self,
        data: NDArray[np.uint8],
        batches: BatchTable,
        *,
        now_ms: int,
        was_rolled: bool,
    ) -> int:
        """Write batches as single appends, up to the first needing a roll.

        Args:
            data: uint8[], the batches from data[0] on, end to end.
            was_rolled: Whether the segment has just been rolled for the first of them.

        Returns:
            How many were written.
        """
        state = self._state.copy()
        offsets = np.empty((len(batches), 2), np.int64)
        times = np.empty((len(batches), 2), np.int64)
        count, status = append_plan.add_until_roll(
            state,
            batches.size,
            batches.last_offset,
            batches.max_timestamp,
            was_rolled,
            now_ms - self._created_ms,
            self._config.max_segment_ms - self._jitter_ms,
            self._config.segment_bytes,
            offsets,
            times,
        )
        if status not in {index_build.DONE, append_plan.ROLL}:
            raise self._error(status, int(state[index_build.STATE_POSITION]), batches, count)
        if count:
            end = int(batches.position[count - 1] + batches.size[count - 1])
            start = int(batches.position[0])
            self._write(data[start:end], state, offsets, times)
        return count

    def _write(
        self,
        data: NDArray[np.uint8],
        state: NDArray[np.int64],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> None:
        self._log.append(data.data)
        new_offsets = (
            state[index_build.STATE_OFFSET_ENTRIES] - self._state[index_build.STATE_OFFSET_ENTRIES]
        )
        new_times = (
            state[index_build.STATE_TIME_ENTRIES] - self._state[index_build.STATE_TIME_ENTRIES]
        )
        self._state = state
        self._write_entries(offsets[:new_offsets], times[:new_times])

    def _write_entries(self, offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        if len(offsets):
            entries = np.empty(len(offsets), OFFSET_INDEX_ENTRY)
            entries["relative_offset"] = offsets[:, 0] - self.base_offset
            entries["position"] = offsets[:, 1]
            self._offset_index.append(entries.tobytes())
        if len(times):
            rows = np.empty(len(times), TIME_INDEX_ENTRY)
            rows["timestamp"] = times[:, 0]
            rows["relative_offset"] = times[:, 1] - self.base_offset
            self._time_index.append(rows.tobytes())

    def add_aborted(self, transaction: AbortedTxn) -> None:
        """Write an entry of the transaction index; the first creates the file."""
        if self._txn_index is None:
            self._txn_index = self._files.open_file(self.file_name(TXN_INDEX_SUFFIX))
        self._txn_index.append(encode_transaction_index([transaction]))

    def become_inactive(self) -> None:
        """Offer the largest timestamp to the time index; trim preallocated files."""
        last = np.empty((1, 2), np.int64)
        before = int(self._state[index_build.STATE_TIME_ENTRIES])
        status = index_build.offer_time_entry(
            self._state,
            last,
            before,
            True,  # noqa: FBT003  # a kernel takes no keywords
        )
        if status != index_build.DONE:
            raise CorruptIndexError(
                self.file_name(TIME_INDEX_SUFFIX),
                before * TIME_INDEX_ENTRY.itemsize,
                "the offset of the largest timestamp lies below that of the last entry",
            )
        self._write_entries(
            _EMPTY, last[: int(self._state[index_build.STATE_TIME_ENTRIES]) - before]
        )
        self._log.trim()

    def sync(self) -> None:
        """Make everything durable."""
        for file in self._open_files:
            file.sync()

    def close(self) -> None:
        """Release the files."""
        for file in self._open_files:
            file.close()

    @property
    def _open_files(self) -> list[AppendFile]:
        files = [self._log, self._offset_index, self._time_index]
        return files if self._txn_index is None else [*files, self._txn_index]

    def _error(self, status: int, position: int, batches: BatchTable, row: int) -> BadBytesError:
        file = self.file_name(LOG_SUFFIX)
        offset = int(batches.last_offset[row])
        if status == index_build.OVERFLOW:
            return OffsetOverflowError(
                file,
                position,
                f"offset {offset} does not fit a segment with base offset {self.base_offset}",
            )
        if status == index_build.BAD_OFFSET:
            return CorruptIndexError(
                file, position, f"offset {offset} does not rise above the last index entry"
            )
        return IndexFullError(
            file, position, "an index is full within one append; append less at once"
        )
