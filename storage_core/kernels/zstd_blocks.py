"""Many Zstandard frames at one call, by the library's own functions.

``expand_zstd`` takes what is plainly good: one whole frame without a dictionary. At anything else
it stops, and leaves it to ``records.codecs.zstd``, which knows what to accept and how to refuse.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.zstd_frame import (
    BLOCK_HEADER_BYTES,
    CHECKSUM_BIT,
    CHECKSUM_BYTES,
    COMPRESSED,
    CONTENT_SIZE_SHIFT,
    DICTIONARY_MASK,
    KIND_MASK,
    KIND_SHIFT,
    LAST_BLOCK,
    MAGIC,
    MAGIC_BYTES,
    MAX_BLOCK_BYTES,
    MAX_HEADER_BYTES,
    MAX_WINDOW_BYTES,
    MIN_WINDOW_LOG,
    RAW,
    REPEATED,
    RESERVED_BIT,
    SINGLE_SEGMENT_BIT,
    SIZE_SHIFT,
    TWO_BYTE_SIZE_START,
    WINDOW_LOG_SHIFT,
    WINDOW_MANTISSA_MASK,
)
from storage_core.kernels._intrinsics import call_function
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import read_u32_le

# Words of the library: addresses of functions, and what belongs to them.
CONTEXT: Final = 0  # a ZSTD_DCtx to expand; to pack a ZSTD_CCtx, whose parameters hold
EXPAND: Final = 1  # ZSTD_decompressDCtx
EXPANDER_WORDS: Final = 2
PACK: Final = 1  # ZSTD_compressStream2
RESET: Final = 2  # ZSTD_CCtx_reset
_TARGET: Final = 3  # room for a ZSTD_outBuffer: address, size, and how far it is used
_SOURCE: Final = 6  # and for a ZSTD_inBuffer
PACKER_WORDS: Final = 9

_NOT_PLAIN: Final = -1
_UNKNOWN_SIZE: Final = -1
# What ZSTD_compressStream2 is to do, and ZSTD_CCtx_reset.
_FLUSH: Final = 1
_END: Final = 2
_RESET_SESSION: Final = 1


@kernel
def _read_header(data: NDArray[np.uint8], start: int, end: int) -> tuple[int, int, int]:
    """Return (position of the first block, window, content size) of a frame. The position may be
    _NOT_PLAIN. A content size that is not there is _UNKNOWN_SIZE."""
    # No header is longer, and a frame that is shorter than this has nothing worth the hurry.
    if end - start < MAX_HEADER_BYTES or read_u32_le(data, start) != MAGIC:
        return _NOT_PLAIN, 0, 0
    descriptor = np.int64(data[start + MAGIC_BYTES])
    if descriptor & (RESERVED_BIT | DICTIONARY_MASK):
        return _NOT_PLAIN, 0, 0
    position = start + MAGIC_BYTES + 1
    is_single = descriptor & SINGLE_SEGMENT_BIT != 0
    window = 0
    if not is_single:
        byte = np.int64(data[position])
        position += 1
        window_log = MIN_WINDOW_LOG + (byte >> WINDOW_LOG_SHIFT)
        window = (1 << window_log) + (1 << window_log >> 3) * (byte & WINDOW_MANTISSA_MASK)
    kind = descriptor >> CONTENT_SIZE_SHIFT
    size = np.int64(_UNKNOWN_SIZE)
    if kind == 0 and is_single:
        size = np.int64(data[position])
        position += 1
    elif kind == 1:
        size = np.int64(data[position]) + (np.int64(data[position + 1]) << 8) + TWO_BYTE_SIZE_START
        position += 2
    elif kind == 2:
        size = np.int64(read_u32_le(data, position))
        position += 4
    elif kind == 3:
        size = read_u32_le(data, position) | (read_u32_le(data, position + 4) << 32)
        position += 8
        if size < 0:
            return _NOT_PLAIN, 0, 0
    if is_single:
        window = size
    if window > MAX_WINDOW_BYTES:
        return _NOT_PLAIN, 0, 0
    return position, window, size


@kernel
def _most_bytes(data: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the largest expansion of one frame, or _NOT_PLAIN. data[start:end] has this frame
    and no other."""
    position, window, size = _read_header(data, start, end)
    if position < 0:
        return _NOT_PLAIN
    block_bytes = min(window, MAX_BLOCK_BYTES)
    most = 0
    is_last = False
    while not is_last:
        if position + BLOCK_HEADER_BYTES > end:
            return _NOT_PLAIN
        header = (
            np.int64(data[position])
            | np.int64(data[position + 1]) << 8
            | np.int64(data[position + 2]) << 16
        )
        position += BLOCK_HEADER_BYTES
        is_last = header & LAST_BLOCK != 0
        kind = header >> KIND_SHIFT & KIND_MASK
        length = header >> SIZE_SHIFT
        if kind == COMPRESSED:
            most += block_bytes
        elif kind in (RAW, REPEATED):
            most += length
        else:
            return _NOT_PLAIN
        position += 1 if kind == REPEATED else length
    if data[start + MAGIC_BYTES] & CHECKSUM_BIT:
        position += CHECKSUM_BYTES
    if position != end or size > most:
        return _NOT_PLAIN
    return most if size == _UNKNOWN_SIZE else size


@kernel
def expand_zstd(
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
        library: int64[EXPANDER_WORDS], which nobody else uses meanwhile.
        data: uint8[], where the frames lie.
        start: int64[n], where each begins in data.
        end: int64[n], where it ends.
        limit_bytes: The most that one may expand to.
        budget_bytes: The last frame is the one with which out has more than so many bytes.
        out: uint8[].
        out_end: int64[n], where each frame's contents end in out.

    Returns:
        (row, at, room): the frame that was not expanded, n if all were; the end in out; how large
        out has to be for that frame, 0 where it is not plainly good or the budget is used up.
    """
    into = np.int64(out.ctypes.data)
    source = np.int64(data.ctypes.data)
    for row in range(first, start.size):
        if at > budget_bytes:
            return row, at, 0
        most = _most_bytes(data, start[row], end[row])
        if most < 0:
            return row, at, 0
        room = min(most, limit_bytes)
        if at + room > out.size:
            return row, at, at + room
        size = call_function(
            library[EXPAND],
            library[CONTEXT],
            into + at,
            room,
            source + start[row],
            end[row] - start[row],
        )
        if size < 0 or size > room:
            return row, at, 0
        at += size
        out_end[row] = at
    return start.size, at, 0


@kernel
def pack_zstd(
    library: NDArray[np.int64],
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    room_bytes: NDArray[np.int64],
    out: NDArray[np.uint8],
    at: int,
    out_end: NDArray[np.int64],
) -> tuple[int, int]:
    """Make a streaming frame of each block, end to end in out[at:].

    A flush and then an end, as Java's streams do it: the last block of a frame is an empty one.

    Args:
        library: int64[PACKER_WORDS], which nobody else uses meanwhile.
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
    pack, reset, context = library[PACK], library[RESET], library[CONTEXT]
    target, block = library[_TARGET:], library[_SOURCE:]
    target_at, block_at = np.int64(target.ctypes.data), np.int64(block.ctypes.data)
    for row in range(start.size):
        room = room_bytes[row]
        if room > out.size - at:
            return row, at
        size = end[row] - start[row]
        target[0], target[1], target[2] = into + at, room, 0
        block[0], block[1], block[2] = source + start[row], size, 0
        result = call_function(reset, context, _RESET_SESSION, 0, 0, 0)
        if result == 0 and size > 0:
            result = call_function(pack, context, target_at, block_at, _FLUSH, 0)
        if result == 0 and block[2] == size:
            result = call_function(pack, context, target_at, block_at, _END, 0)
        if result != 0 or block[2] != size or target[2] > room:
            return row, at
        at += target[2]
        out_end[row] = at
    return start.size, at
