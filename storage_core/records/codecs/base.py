"""The protocols of a codec, and what several codecs share.

A codec module is the implementation: ``gzip``, ``snappy``, ``lz4`` and ``zstd`` each have the two
functions of ``RecordCodec``. Input and output are the bytes after a batch's header.

Bytes are hostile. Whatever a header claims, no codec takes more memory than twice the limit it was
given (some libraries hand over a copy) and a constant; and whatever the bytes are, the outcome is
the expanded bytes or one of the two errors, never an exception of the library beneath.
"""

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import DecompressionLimitError
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels._intrinsics import CAN_CALL

# Blocks of bytes, and one shared buffer to expand or pack them.

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


# Addresses of the codec libraries' C functions, for calls from kernels. Kernels call them without
# Python.
#
# The wheels of lz4 and zstandard hold their library in an extension module, in which its functions
# are found as in any shared library; a package that was built upon the system's library leads to
# that one. Where a function cannot be found, blocks go one by one through the Python interface.


def find_library(module: str) -> ctypes.CDLL | None:
    """Load the library in an extension module; None if not callable."""
    spec = importlib.util.find_spec(module)
    if not CAN_CALL or spec is None or spec.origin is None:
        return None
    try:
        return ctypes.CDLL(spec.origin)
    except OSError:
        return None


class RecordCodec(Protocol):
    """Both directions of one compression."""

    def decompress(
        self, data: bytes | bytearray | memoryview, *, limit_bytes: int
    ) -> bytes | bytearray:
        """Expand a whole compressed block.

        Args:
            data: The block, contiguous, one byte an item.
            limit_bytes: The largest size to expand to, at least 0.
        """
        ...

    def compress(self, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
        """Compress a block in Kafka's framing; level None is Kafka's default."""
        ...


class BlockExpander(Protocol):
    """Expands many blocks at one call, without Python for each."""

    def __call__(
        self,
        blocks: Blocks,
        first: int,
        arena: Arena,
        ends: NDArray[np.int64],
        *,
        limit_bytes: int,
        budget_bytes: int,
    ) -> int:
        """Expand blocks, each as ``RecordCodec.decompress`` would, up to the first doubtful one.

        Args:
            arena: Their contents are put behind what it has.
            ends: int64[blocks], where the contents of each block end in the arena.
            limit_bytes: The largest size of one, at least 0.
            budget_bytes: The last block is the one with which the arena has more than so many.

        Returns:
            The block that was not expanded, for the budget or because it is not plainly good; how
            many there are if all were.
        """
        ...


class BlockPacker(Protocol):
    """Compresses many blocks at one call, without Python for each."""

    def __call__(
        self,
        blocks: Blocks,
        arena: Arena,
        ends: NDArray[np.int64],
        *,
        level: int | None = None,
    ) -> int:
        """Compress blocks from the first on, each as ``RecordCodec.compress`` would.

        Args:
            arena: What becomes of them is put behind what it has.
            ends: int64[blocks], where that of each block ends in the arena.
            level: As ``RecordCodec.compress`` has it.

        Returns:
            The block that the library could not compress; how many there are if it did all.
        """
        ...


def expand_by(  # a kernel, what it calls, and all that BlockExpander has
    kernel: Callable[..., tuple[int, int, int]],
    library: NDArray[np.int64] | None,
    blocks: Blocks,
    first: int,
    arena: Arena,
    ends: NDArray[np.int64],
    limit_bytes: int,
    budget_bytes: int,
) -> int:
    """Expand blocks by a kernel that calls the codec's library.

    Args:
        kernel: ``expand_lz4`` or its like.
        library: Its first argument, what it calls and with which state; None where it cannot.
        blocks: From here on as in ``BlockExpander``, the result too.
        limit_bytes: The most of one block.
        budget_bytes: The most of all but the last.
    """
    if library is None:
        return first
    while True:
        first, arena.used, room = kernel(
            library,
            *blocks,
            first,
            limit_bytes,
            budget_bytes,
            arena.buffer,
            arena.used,
            ends,
        )
        if not room:
            return first
        arena.reserve(room)


def pack_by(
    kernel: Callable[..., tuple[int, int]],
    library: NDArray[np.int64] | None,
    blocks: Blocks,
    arena: Arena,
    ends: NDArray[np.int64],
) -> int:
    """Compress blocks by a kernel that calls the codec's library.

    Args:
        kernel: ``pack_lz4`` or its like.
        blocks: From here on as in ``BlockPacker``, the result too.
    """
    if library is None:
        return 0
    room = arena.reserve_for(blocks)
    done, arena.used = kernel(library, *blocks, room, arena.buffer, arena.used, ends)
    return done


def limit_error(codec: Codec, limit_bytes: int) -> DecompressionLimitError:
    """Return the error for a block that expands beyond its limit."""
    return DecompressionLimitError(
        codec.name.lower(), f"expands to more than the limit of {limit_bytes} bytes"
    )
