"""Raw blocks of snappy streams: their places and claimed uncompressed sizes.

What is plainly good is listed: whole streams of snappy-java, and bare blocks. At any other the list
ends, and it is left to ``records.codecs.snappy``, which knows what to accept and how to refuse.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.snappy_stream import (
    HEADER_BYTES,
    LENGTH_BYTES,
    MAGIC,
    MAX_CHUNK_BYTES,
    MAX_RATIO,
    MAX_SIZE_BYTES,
)
from storage_core.kernels._intrinsics import load_word
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import read_i32

_MAGIC: Final = np.uint64(int.from_bytes(MAGIC, "little"))
_NOT_PLAIN: Final = -1

# Columns of the table that list_chunks fills, int64[CHUNK_COLUMN_COUNT, capacity].
CHUNK_STREAM: Final = 0
CHUNK_START: Final = 1
CHUNK_END: Final = 2
CHUNK_OUT: Final = 3  # where its contents go
CHUNK_OUT_END: Final = 4
CHUNK_COLUMN_COUNT: Final = 5


@kernel
def _contents_bytes(data: NDArray[np.uint8], start: int, end: int) -> int:
    """Return how large a block says that its contents are, or _NOT_PLAIN."""
    size = 0
    for i in range(min(end - start, MAX_SIZE_BYTES)):
        byte = np.int64(data[start + i])
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size if size <= MAX_RATIO * (end - start) else _NOT_PLAIN
    return _NOT_PLAIN


@kernel
def list_chunks(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    first: int,
    limit_bytes: int,
    budget_bytes: int,
    at: int,
    chunks: NDArray[np.int64],
    out_end: NDArray[np.int64],
) -> tuple[int, int]:
    """List the blocks of snappy streams. The contents of the blocks will lie end to end from ``at``
    on.

    Args:
        data: uint8[], where the streams lie.
        start: int64[n], where each begins in data.
        end: int64[n], where it ends.
        limit_bytes: The most that one may expand to.
        budget_bytes: The last stream is the one with which there are more than so many bytes.
        at: Where the contents of the first one go.
        chunks: int64[CHUNK_COLUMN_COUNT, capacity], the list.
        out_end: int64[n], where the contents of each stream will end.

    Returns:
        (stream, count): the first stream that is not listed whole, n if all are; chunks of those
        before it.
    """
    count = 0
    for row in range(first, start.size):
        if at > budget_bytes:
            return row, count
        position = start[row]
        is_framed = end[row] - position >= HEADER_BYTES and load_word(data, position) == _MAGIC
        if is_framed:
            position += HEADER_BYTES
        next_chunk = count
        size = 0
        while position < end[row]:
            length = end[row] - position
            if is_framed:
                if length < LENGTH_BYTES:
                    return row, count
                length = read_i32(data, position)
                position += LENGTH_BYTES
                if length > MAX_CHUNK_BYTES or length > end[row] - position:
                    return row, count
            if length <= 0 or next_chunk == chunks.shape[1]:
                return row, count
            expanded = _contents_bytes(data, position, position + length)
            if expanded < 0 or size + expanded > limit_bytes:
                return row, count
            chunks[CHUNK_STREAM, next_chunk] = row
            chunks[CHUNK_START, next_chunk] = position
            chunks[CHUNK_END, next_chunk] = position + length
            chunks[CHUNK_OUT, next_chunk] = at + size
            size += expanded
            chunks[CHUNK_OUT_END, next_chunk] = at + size
            next_chunk += 1
            position += length
        if next_chunk == count:
            return row, count
        count = next_chunk
        at += size
        out_end[row] = at
    return start.size, count
