"""Many LZ4 frames at one call, by the library's own functions.

``expand_lz4`` takes what is plainly good: frames as Kafka and most clients write them. At any other
it stops, and leaves it to ``records.codecs.lz4``, which knows what to accept and how to refuse.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.lz4_frame import (
    BLOCK_DESCRIPTOR_AT,
    BLOCK_LENGTH_BYTES,
    BLOCK_SIZE_SHIFT,
    BLOCK_SIZES,
    FLAGS_AT,
    HEADER_BYTES,
    HEADER_CHECKSUM_AT,
    MAGIC,
    MAX_RATIO,
    PLAIN_FLAGS,
    STORED_SHIFT,
)
from storage_core.kernels._intrinsics import call_function, copy_bytes
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import read_u32_le

# Words of the library: the address of a function, and what belongs to it.
EXPAND: Final = 0  # LZ4_decompress_safe
CHECKSUMS: Final = 1  # four: of the header of a plain frame, by its block size
EXPANDER_WORDS: Final = CHECKSUMS + len(BLOCK_SIZES)
PACK: Final = 0  # LZ4F_compressFrame
PREFERENCES: Final = 1  # its LZ4F_preferences_t

_MAGIC: Final = int.from_bytes(MAGIC, "little")
_FIRST_BLOCK_SIZE: Final = BLOCK_SIZES[0]
_LAST_BLOCK_SIZE: Final = BLOCK_SIZES[-1]
_STORED_BIT: Final = 1 << STORED_SHIFT
_NOT_PLAIN: Final = -1


@kernel
def _block_bytes(library: NDArray[np.int64], data: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the largest block size of a plain frame, or _NOT_PLAIN."""
    if end - start < HEADER_BYTES or read_u32_le(data, start) != _MAGIC:
        return _NOT_PLAIN
    descriptor = np.int64(data[start + BLOCK_DESCRIPTOR_AT])
    number = descriptor >> BLOCK_SIZE_SHIFT
    if (
        data[start + FLAGS_AT] != PLAIN_FLAGS
        or descriptor != number << BLOCK_SIZE_SHIFT
        or number < _FIRST_BLOCK_SIZE
        or number > _LAST_BLOCK_SIZE
        or data[start + HEADER_CHECKSUM_AT] != library[CHECKSUMS + number - _FIRST_BLOCK_SIZE]
    ):
        return _NOT_PLAIN
    return 1 << (8 + 2 * number)


@kernel
def _most_bytes(data: NDArray[np.uint8], position: int, end: int, block_bytes: int) -> int:
    """Return the largest expansion of blocks from position on, or _NOT_PLAIN.

    Plain blocks are whole up to the end mark, and none is empty or longer than block_bytes.
    """
    most = 0
    while position + BLOCK_LENGTH_BYTES <= end:
        length = read_u32_le(data, position)
        position += BLOCK_LENGTH_BYTES
        if length == 0:
            return most
        is_stored = length >= _STORED_BIT
        length &= _STORED_BIT - 1
        if length == 0 or length > block_bytes or length > end - position:
            return _NOT_PLAIN
        most += length if is_stored else min(block_bytes, MAX_RATIO * length)
        position += length
    return _NOT_PLAIN


@kernel
def _expand_blocks(
    function: int,
    data: NDArray[np.uint8],
    position: int,
    block_bytes: int,
    out: NDArray[np.uint8],
    at: int,
    limit_end: int,
) -> int:
    """Expand blocks to out[at:]; return the end there, or _NOT_PLAIN.

    ``_most_bytes`` has seen the blocks before.
    """
    into = np.int64(out.ctypes.data)
    source = np.int64(data.ctypes.data)
    while True:
        length = read_u32_le(data, position)
        position += BLOCK_LENGTH_BYTES
        if length == 0:
            return at
        is_stored = length >= _STORED_BIT
        length &= _STORED_BIT - 1
        if is_stored:
            size = length
            if size > limit_end - at:
                return _NOT_PLAIN
            copy_bytes(out, at, data, position, size)
        else:
            room = min(block_bytes, MAX_RATIO * length)
            size = call_function(function, source + position, into + at, length, room, 0)
            size &= 0xFFFFFFFF  # it is a C int
            if size > room or size > limit_end - at:
                return _NOT_PLAIN
        at += size
        position += length


@kernel
def expand_lz4(
    library: NDArray[np.int64],
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    first: int,
    limit_bytes: int,
    budget_bytes: int,
    out: NDArray[np.uint8],
    at: int,
    out_end: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Expand frames end to end to out[at:].

    Args:
        library: int64[EXPANDER_WORDS].
        data: uint8[], where the frames lie.
        start: int64[n], where each begins in data.
        end: int64[n], where the bytes end that belong to it; what follows a frame is ignored.
        limit_bytes: The most that one may expand to.
        budget_bytes: The last frame is the one with which out has more than so many bytes.
        out: uint8[].
        out_end: int64[n], where each frame's contents end in out.

    Returns:
        (row, at, room): the frame that was not expanded, n if all were; the end in out; how large
        out has to be for that frame, 0 where it is not plainly good or the budget is used up.
    """
    for row in range(first, start.size):
        if at > budget_bytes:
            return row, at, 0
        block_bytes = _block_bytes(library, data, start[row], end[row])
        if block_bytes < 0:
            return row, at, 0
        body = start[row] + HEADER_BYTES
        most = _most_bytes(data, body, end[row], block_bytes)
        if most < 0:
            return row, at, 0
        room = at + min(most, limit_bytes + block_bytes)
        if room > out.size:
            return row, at, room
        expanded = _expand_blocks(
            library[EXPAND], data, body, block_bytes, out, at, at + limit_bytes
        )
        if expanded < 0:
            return row, at, 0
        at = expanded
        out_end[row] = at
    return start.size, at, 0


@kernel
def pack_lz4(
    library: NDArray[np.int64],
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    room_bytes: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    out_end: NDArray[np.int64],
) -> tuple[int, int]:
    """Make a frame of each block, end to end in out[at:].

    Args:
        library: int64[], PACK and PREFERENCES.
        data: uint8[], where the blocks lie.
        start: int64[n], where each begins in data.
        end: int64[n], where it ends.
        room_bytes: int64[n], how large each frame may be.
        out: uint8[].
        out_end: int64[n], where each frame ends in out.

    Returns:
        (row, at): the block that had no room or that the library refused, n for none; the end in
        out.
    """
    into = np.int64(out.ctypes.data)
    source = np.int64(data.ctypes.data)
    preferences_at = np.int64(library.ctypes.data) + PREFERENCES * library.itemsize
    for row in range(start.size):
        room = room_bytes[row]
        if room > out.size - at:
            return row, at
        size = call_function(
            library[PACK],
            into + at,
            room,
            source + start[row],
            end[row] - start[row],
            preferences_at,
        )
        if size < 0 or size > room:
            return row, at
        at += size
        out_end[row] = at
    return start.size, at
