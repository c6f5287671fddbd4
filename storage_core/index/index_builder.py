"""Offset and time index of a segment that is being written."""

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    BadBytesError,
    CorruptIndexError,
    IndexFullError,
    OffsetOverflowError,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.kernels import index_build
from storage_core.kernels.index_build import add_batches, new_state, offer_time_entry


class IndexBuilder:
    """Collects the index entries of one segment, batch by batch."""

    def __init__(
        self, file: str, base_offset: int, *, interval_bytes: int, max_index_bytes: int
    ) -> None:
        self._file = file
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._state = new_state(base_offset, interval_bytes, max_index_bytes)
        self._offset_parts: list[NDArray[np.int64]] = []
        self._time_parts: list[NDArray[np.int64]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches so far."""
        return int(self._state[index_build.STATE_POSITION])

    def add(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> None:
        """Count batches, in file order."""
        _, error = self.add_until(size, last_offset, max_timestamp)
        if error is not None:
            raise error

    def add_until(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> tuple[int, BadBytesError | None]:
        """Count batches, in file order, up to the first that cannot be.

        Returns:
            How many were counted, and what `add` would raise for the next one, None if all were.
        """
        # Each entry but the first of a block has at least interval_bytes before it.
        room = int(size.sum()) // max(1, self._interval_bytes) + 2
        room = min(room, size.size + 1)
        offsets = np.empty((room, 2), np.int64)
        times = np.empty((room, 2), np.int64)
        offset_count = int(self._state[index_build.STATE_OFFSET_ENTRIES])
        time_count = int(self._state[index_build.STATE_TIME_ENTRIES])
        row, status = add_batches(self._state, size, last_offset, max_timestamp, offsets, times)
        self._offset_parts.append(
            offsets[: self._state[index_build.STATE_OFFSET_ENTRIES] - offset_count]
        )
        self._time_parts.append(times[: self._state[index_build.STATE_TIME_ENTRIES] - time_count])
        if status == index_build.DONE:
            return row, None
        return row, self._error(status, int(last_offset[row]))

    def finish(self) -> tuple[bytes, bytes]:
        """Add the last time entry and return the bytes of (.index, .timeindex)."""
        last = np.empty((1, 2), np.int64)
        before = int(self._state[index_build.STATE_TIME_ENTRIES])
        status = offer_time_entry(self._state, last, before, True)  # noqa: FBT003  # a kernel takes no keywords
        if status != index_build.DONE:
            raise self._error(status, int(self._state[index_build.STATE_MAX_TIMESTAMP_OFFSET]))
        self._time_parts.append(last[: self._state[index_build.STATE_TIME_ENTRIES] - before])
        return self.encode()

    def encode(self) -> tuple[bytes, bytes]:
        """Return current bytes of (.index, .timeindex), without a last time entry."""
        nothing = np.empty((0, 2), np.int64)
        rows = np.concatenate([nothing, *self._offset_parts])
        offsets = np.empty(len(rows), OFFSET_INDEX_ENTRY)
        offsets["relative_offset"] = rows[:, 0] - self._base_offset
        offsets["position"] = rows[:, 1]
        rows = np.concatenate([nothing, *self._time_parts])
        times = np.empty(len(rows), TIME_INDEX_ENTRY)
        times["timestamp"] = rows[:, 0]
        times["relative_offset"] = rows[:, 1] - self._base_offset
        return offsets.tobytes(), times.tobytes()

    def _error(self, status: int, offset: int) -> BadBytesError:
        position = self.size_bytes
        if status == index_build.OFFSET_INDEX_FULL:
            entries = self._state[index_build.STATE_MAX_OFFSET_ENTRIES]
            limit = f"{entries} entries of segment.index.bytes"
            return IndexFullError(self._file, position, f"the offset index is full ({limit})")
        if status == index_build.TIME_INDEX_FULL:
            entries = self._state[index_build.STATE_MAX_TIME_ENTRIES]
            limit = f"{entries} entries of segment.index.bytes, one kept for the end"
            return IndexFullError(self._file, position, f"the time index is full ({limit})")
        if status == index_build.OVERFLOW:
            return OffsetOverflowError(
                self._file,
                position,
                f"offset {offset} does not fit a segment with base offset {self._base_offset}",
            )
        return CorruptIndexError(
            self._file, position, f"offset {offset} does not rise above the last index entry"
        )
