"""The protocols of a codec, and what several codecs share.

A codec module is the implementation: ``gzip``, ``snappy``, ``lz4`` and ``zstd`` each have the two
functions of ``RecordCodec``. Input and output are the bytes after a batch's header.

Bytes are hostile. Whatever a header claims, no codec takes more memory than twice the limit it was
given (some libraries hand over a copy) and a constant; and whatever the bytes are, the outcome is
the expanded bytes or one of the two errors, never an exception of the library beneath.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import DecompressionLimitError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs.arena import Arena, Blocks


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
