"""Offset and time indexes of a log, each read when it is first needed and kept until released."""

from storage_core.filenames import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from storage_core.index.offset_index import OffsetIndex
from storage_core.index.time_index import TimeIndex
from storage_core.store.base import LogStore


class LazyIndexes:
    """The indexes of one partition's segments.

    A file that is missing is as an empty one.

    Args:
        store: The partition directory.
        names: The files that there are; one that is not among them is not looked for.
        limit_bytes: The most that an index may have.

    Attributes:
        opened: How many index files have been read.
    """

    def __init__(self, store: LogStore, names: frozenset[str], *, limit_bytes: int) -> None:
        self._store = store
        self._names = names
        self._limit_bytes = limit_bytes
        self._offsets: dict[int, OffsetIndex] = {}
        self._times: dict[int, TimeIndex] = {}
        self.opened = 0

    def offset_index(self, base_offset: int) -> OffsetIndex:
        """Return the offset index of a segment.

        Raises:
            StorageError: It cannot be read, or is too large.
        """
        index = self._offsets.get(base_offset)
        if index is None:
            data = self._read(segment_file(base_offset, OFFSET_INDEX_SUFFIX))
            index = self._offsets[base_offset] = OffsetIndex.parse(base_offset, data)
        return index

    def time_index(self, base_offset: int) -> TimeIndex:
        """Return the time index of a segment.

        Raises:
            StorageError: It cannot be read, or is too large.
        """
        index = self._times.get(base_offset)
        if index is None:
            data = self._read(segment_file(base_offset, TIME_INDEX_SUFFIX))
            index = self._times[base_offset] = TimeIndex.parse(base_offset, data)
        return index

    def release(self) -> None:
        """Forget what has been read; it is read again when it is needed again."""
        self._offsets.clear()
        self._times.clear()

    def _read(self, name: str) -> bytes:
        if name not in self._names:
            return b""
        self.opened += 1
        return self._store.read_file(name, limit_bytes=self._limit_bytes)
