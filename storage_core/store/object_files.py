"""Read files in objects: byte ranges, a manifest's files, a mirror's directories.

A reader that goes through a large file from front to back would wait for the store before every
window. So, once reads follow each other, the blocks that come next are fetched meanwhile, a bounded
number of them; a window may begin a little before the last one's end, as windows of whole batches
do. One large read is cut into ranges that are fetched side by side. Small reads here and there,
those of an index, are asked for as they are. Whoever loads a log asks for the same few of them
again and again, so the stretches that were read of a partition last are kept.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ObjectNotFoundError, PartitionNotFoundError, StorageError
from storage_core.filenames import COMPANIONS_SUFFIX
from storage_core.store.base import FileInfo, FileReader, ReadOnlyStore
from storage_core.store.generations import URL_MARK, FileEntry, split_adopted
from storage_core.store.object_store import ObjectInfo, ObjectStore
from storage_core.store.open_objects import open_object_store

BLOCK_BYTES: Final = 16 << 20
# Besides the one or two blocks that a window needs: at most 64 MiB for each reader.
BLOCKS_AHEAD: Final = 2
_SEQUENTIAL_BYTES: Final = 1 << 20
# More threads do not pay: on loopback two to four were fastest, and a host runs many processes.
_THREADS: Final = 4
_PACK_BYTES: Final = 8 << 20
# For one partition; a task has some of them open at once.
_KEPT_BYTES: Final = 8 << 20
# A longer range is not cached; a file up to this length is read whole by its first read.
_KEPT_READ_BYTES: Final = 64 << 10
# A larger file of a shared object is read by ranges: its reader may want only its end.
_PACKED_READ_BYTES: Final = 64 << 10


class KeptStretches:
    """A cache of recently read byte ranges of objects, bounded in size.

    Threads may share it. Versions of objects do not change, so what is kept is what a read returns.
    """

    def __init__(self) -> None:
        self._stretches: dict[tuple[str, str, int, int], NDArray[np.uint8]] = {}
        self._bytes = 0
        self._keeping = threading.Lock()

    def read(
        self, place: tuple[str, str, int, int], ask: Callable[[], NDArray[np.uint8]]
    ) -> NDArray[np.uint8]:
        """Return a stretch of an object, shorter where the object ends before.

        Args:
            place: Key and version of the object, where the stretch begins, its length in bytes.
            ask: Asks the store for it; called if it is not kept.
        """
        cached = self._stretches.get(place)
        if cached is not None:
            return cached
        content = ask()
        with self._keeping:
            self._bytes += content.nbytes - self._size_of(self._stretches.pop(place, None))
            self._stretches[place] = content
            while self._bytes > _KEPT_BYTES and len(self._stretches) > 1:
                self._bytes -= self._size_of(self._stretches.pop(next(iter(self._stretches))))
        return content

    @staticmethod
    def _size_of(content: NDArray[np.uint8] | None) -> int:
        return 0 if content is None else content.nbytes


class ObjectFileReader:
    """One file that is a stretch of one version of an object.

    Args:
        etag: Version to read; empty for whichever there is.
        cache: Keeps small reads; None for no cache. Without a version nothing is kept.

    Attributes:
        version: Identity of its object, the object's version, and the range.
        block_bytes: Size of the ranges of large reads and of reads ahead.
    """

    block_bytes = BLOCK_BYTES

    def __init__(  # an object, its range and version
        self,
        objects: ObjectStore,
        key: str,
        *,
        name: str,
        size_bytes: int,
        start: int = 0,
        etag: str = "",
        cache: KeptStretches | None = None,
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.version = f"{etag}:{start}:{size_bytes}:{key}" if etag else ""
        self._cache = cache if etag else None
        self._objects = objects
        self._key = key
        self._start = start
        self._etag = etag
        self._blocks: dict[int, Future[NDArray[np.uint8]]] = {}
        self._last_start = -1
        self._last_end = 0

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        wanted = min(target.size, self.size_bytes - position)
        if wanted <= 0:
            return 0
        if wanted > 2 * self.block_bytes:
            filled = self._read_side_by_side(position, target[:wanted])
        elif self._goes_on(position, wanted):
            filled = self._read_blocks(position, target[:wanted])
        else:
            filled = self._read(position, target[:wanted])
        self._last_start, self._last_end = position, position + filled
        return filled

    def close(self) -> None:
        """Drop what was read ahead."""
        for block in self._blocks.values():
            block.cancel()
        self._blocks.clear()

    def _goes_on(self, position: int, wanted: int) -> bool:
        """Tell whether reading ahead will pay."""
        if self.size_bytes <= self.block_bytes:
            return False
        if position // self.block_bytes in self._blocks:
            return True
        follows = self._last_start < position <= self._last_end
        return follows and wanted >= min(_SEQUENTIAL_BYTES, self.block_bytes)

    def _read_blocks(self, position: int, target: NDArray[np.uint8]) -> int:
        first, last = (at // self.block_bytes for at in (position, position + target.size - 1))
        end = min(last + BLOCKS_AHEAD, (self.size_bytes - 1) // self.block_bytes)
        for number in [number for number in self._blocks if not first <= number <= end]:
            self._blocks.pop(number).cancel()
        for number in range(first, end + 1):
            if number not in self._blocks:
                self._blocks[number] = _pool(os.getpid()).submit(self._load_block, number)
        filled = 0
        while filled < target.size:
            number, skipped = divmod(position + filled, self.block_bytes)
            block = self._blocks[number].result()
            part = block[skipped : skipped + target.size - filled]
            if not part.size:
                break
            target[filled : filled + part.size] = part
            filled += part.size
        return filled

    def _load_block(self, number: int) -> NDArray[np.uint8]:
        position = number * self.block_bytes
        block = np.empty(min(self.block_bytes, self.size_bytes - position), np.uint8)
        return block[: self._read(position, block)]

    def _read_side_by_side(self, position: int, target: NDArray[np.uint8]) -> int:
        starts = range(0, target.size, self.block_bytes)
        parts = [target[start : start + self.block_bytes] for start in starts]
        counts = _pool(os.getpid()).map(self._read, [position + start for start in starts], parts)
        filled = 0
        for part, count in zip(parts, list(counts), strict=True):
            filled += count
            if count < part.size:
                break
        return filled

    def _read(self, position: int, target: NDArray[np.uint8]) -> int:
        if self._cache is None or target.size > _KEPT_READ_BYTES:
            return self._ask(position, target)
        first, size = position, target.size
        if self.size_bytes <= _KEPT_READ_BYTES:
            first, size = 0, self.size_bytes

        def ask() -> NDArray[np.uint8]:
            content = np.empty(size, np.uint8)
            return content[: self._ask(first, content)]

        place = (self._key, self._etag, self._start + first, size)
        content = self._cache.read(place, ask)
        part = content[position - first : position - first + target.size]
        target[: part.size] = part
        return int(part.size)

    def _ask(self, position: int, target: NDArray[np.uint8]) -> int:
        return self._objects.read_into(self._key, self._start + position, target, etag=self._etag)


class BytesReader:
    """A file that is in memory."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.size_bytes = len(content)
        self._content = np.frombuffer(content, np.uint8)

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        part = self._content[position : position + target.size]
        target[: part.size] = part
        return int(part.size)

    def close(self) -> None:
        """Do nothing: the bytes go when nobody holds them."""


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Return this process's reader threads; a forked process starts its own."""
    del process
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="pylog-read")


class EntryReader:
    """Read the files of a manifest from any store with few requests.

    Small files of a segment share an object. One of them is asked for by fetching the whole object,
    if that is small, and the others are served from it. Threads may share a reader.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._cache = KeptStretches()
        # The end of the used part of a shared object, by key.
        self._ends: dict[str, int] = {}
        self._adopted_from: dict[str, ObjectStore] = {}

    def note(self, entries: Iterable[FileEntry]) -> None:
        """Announce files to be read: one request for a shared object."""
        for entry in entries:
            if entry.key.endswith(COMPANIONS_SUFFIX):
                end = entry.start + entry.size_bytes
                self._ends[entry.key] = max(end, self._ends.get(entry.key, 0))

    def read(self, name: str, entry: FileEntry) -> bytes:
        """Return a file whole."""
        if not entry.size_bytes:
            return b""
        own_end = entry.start + entry.size_bytes
        end = max(own_end, self._ends.get(entry.key, 0))
        if not entry.key.endswith(COMPANIONS_SUFFIX) or end > _PACK_BYTES:
            return self._fetch(name, entry)
        whole = replace(entry, start=0, size_bytes=end)
        pack = self._cache.read(
            (entry.key, entry.etag, 0, end),
            lambda: np.frombuffer(self._fetch(name, whole), np.uint8),
        )
        return pack[entry.start : own_end].tobytes()

    def open(self, name: str, entry: FileEntry) -> FileReader:
        """Open a file for ranged reads; arguments and errors as of read."""
        is_packed = entry.key.endswith(COMPANIONS_SUFFIX)
        if not entry.size_bytes or (is_packed and entry.size_bytes <= _PACKED_READ_BYTES):
            return BytesReader(name, self.read(name, entry))
        objects, key = self.place_of(entry)
        return ObjectFileReader(
            objects,
            key,
            name=name,
            size_bytes=entry.size_bytes,
            start=entry.start,
            etag=entry.etag,
            cache=self._cache,
        )

    def place_of(self, entry: FileEntry) -> tuple[ObjectStore, str]:
        """Return an object's store and key; adopted objects lie elsewhere."""
        if URL_MARK not in entry.key:
            return self._objects, entry.key
        store, key = split_adopted(entry.key, self._objects.url)
        if store not in self._adopted_from:
            self._adopted_from[store] = open_object_store(store)
        return self._adopted_from[store], key

    def _fetch(self, name: str, entry: FileEntry) -> bytes:
        objects, key = self.place_of(entry)
        content = objects.get_range(key, entry.start, entry.size_bytes, etag=entry.etag)
        if len(content) < entry.size_bytes:
            raise StorageError(
                f"{objects.url}/{key}",
                f"ends after {entry.start + len(content)} bytes, but {name} lies in it up to byte "
                f"{entry.start + entry.size_bytes}",
            )
        return content


class ObjectDirectory(ReadOnlyStore):
    """A folder's objects as the read-only files of a partition. Objects in folders below it do not
    count.

    There is one LIST, the first time that something needs it. A file that was listed is read in the
    version that was listed: if the sync replaces it meanwhile, the read fails instead of mixing
    two.

    Args:
        folder: Its key, without a slash at the end; empty for the store's own top.
        listing: Its files, if known from a listing of many folders.
    """

    def __init__(
        self, objects: ObjectStore, folder: str, listing: Iterable[ObjectInfo] | None = None
    ) -> None:
        self._objects = objects
        self._prefix = f"{folder}/" if folder else ""
        self._listing = None if listing is None else self._by_name(listing)

    @property
    def location(self) -> str:
        """URL of the directory."""
        return f"{self._objects.url}/{self._prefix}".rstrip("/")

    def list_objects(self) -> Mapping[str, ObjectInfo]:
        """Return the directory's objects by file name."""
        if self._listing is None:
            self._listing = self._by_name(self._objects.list_folder(self._prefix))
        if not self._listing:
            raise PartitionNotFoundError(self.location)
        return self._listing

    def list_files(self) -> list[FileInfo]:
        """Return the files, sorted by name."""
        return sorted(
            FileInfo(name, info.size_bytes, info.modified_ms, info.etag)
            for name, info in self.list_objects().items()
        )

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._objects.get(self._prefix + name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> ObjectFileReader:
        """Open a file for ranged reads."""
        info = self._listing.get(name) if self._listing else None
        if info is None:
            info = self._objects.head(self._prefix + name)
        return ObjectFileReader(
            self._objects, info.key, name=name, size_bytes=info.size_bytes, etag=info.etag
        )

    def open_identified(self, name: str, identity: str) -> ObjectFileReader | None:
        """Open a file in one version; None if that version is gone. A version from a listing
        needs no request: reading another version fails."""
        info = self._listing.get(name) if self._listing else None
        if info is None or info.etag != identity:
            try:
                info = self._objects.head(self._prefix + name)
            except ObjectNotFoundError:
                return None
        if info.etag != identity:
            return None
        return ObjectFileReader(
            self._objects, info.key, name=name, size_bytes=info.size_bytes, etag=info.etag
        )

    def _by_name(self, listing: Iterable[ObjectInfo]) -> dict[str, ObjectInfo]:
        return {info.key[len(self._prefix) :]: info for info in listing}
