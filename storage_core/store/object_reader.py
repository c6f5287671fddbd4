"""Ranged reads of one object: straight into the caller's array, or ahead of it.

A reader that goes through a large file from front to back would wait for the store before every
window. So, once reads follow each other, the blocks that come next are fetched meanwhile, a bounded
number of them; a window may begin a little before the last one's end, as windows of whole batches
do. One large read is cut into ranges that are fetched side by side. Small reads here and there,
those of an index, are asked for as they are.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.store.object_store import ObjectStore

BLOCK_BYTES: Final = 16 << 20
# Beside the blocks that a window touches, one or two: at most 64 MiB a reader.
BLOCKS_AHEAD: Final = 2
_SEQUENTIAL_BYTES: Final = 1 << 20
# More of them do not pay: on loopback two to four gave most, and a host runs many processes.
_THREADS: Final = 4


class ObjectFileReader:
    """One file that is a stretch of one version of an object.

    Args:
        objects: Where the object is.
        key: Its key.
        name: Of the file, for messages.
        size_bytes: Length of the file.
        start: Where in the object it begins.
        etag: Version to read; empty for whichever there is.

    Attributes:
        name: Of the file.
        size_bytes: Its length.
        block_bytes: Size of the ranges of large reads and of reads ahead.
    """

    block_bytes = BLOCK_BYTES

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        name: str,
        size_bytes: int,
        start: int = 0,
        etag: str = "",
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
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
    """Return the threads of this process that read; those of another do not survive a fork."""
    del process
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="pylog-read")
