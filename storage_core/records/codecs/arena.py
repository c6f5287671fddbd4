"""Blocks of bytes, and one shared buffer to expand or pack them."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# How much larger a frame may be than its contents.
_GROWTH_PART: Final = 64
_FRAME_BYTES: Final = 256


class Blocks(NamedTuple):
    """Some blocks of one buffer."""

    data: NDArray[np.uint8]  # uint8[], contiguous
    start: NDArray[np.int64]  # int64[n], where each block begins in data
    end: NDArray[np.int64]  # int64[n], where it ends

    def view(self, number: int) -> memoryview:
        """Return the bytes of one block."""
        return self.data.data[self.start[number] : self.end[number]]


class Arena:
    """A growing byte buffer for many blocks, reused after `clear`. The bytes lie end to end.

    Attributes:
        buffer: uint8[capacity]; what `content` gave before lies elsewhere once it has grown.
    """

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)
        self.used = 0

    @property
    def content(self) -> NDArray[np.uint8]:
        """The bytes in use, a view."""
        return self.buffer[: self.used]

    def clear(self) -> None:
        """Use the buffer anew."""
        self.used = 0

    def reserve(self, size_bytes: int) -> None:
        """Grow the buffer to at least this size, used bytes included."""
        if size_bytes > self.buffer.size:
            larger = np.empty(max(size_bytes, 2 * self.buffer.size), np.uint8)
            larger[: self.used] = self.content
            self.buffer = larger

    def add(self, piece: bytes | bytearray | NDArray[np.uint8]) -> None:
        """Put bytes behind those that are there."""
        end = self.used + len(piece)
        self.reserve(end)
        self.buffer[self.used : end] = np.frombuffer(piece, np.uint8)
        self.used = end

    def reserve_for(self, blocks: Blocks) -> NDArray[np.int64]:
        """Grow the buffer for packed blocks; return the bytes for each. The most that LZ4 and
        Zstandard make of incompressible bytes is less."""
        sizes = blocks.end - blocks.start
        room: NDArray[np.int64] = sizes + sizes // _GROWTH_PART + _FRAME_BYTES
        self.reserve(self.used + int(room.sum()))
        return room
