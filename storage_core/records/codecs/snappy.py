"""snappy: raw blocks in snappy-java's framing (xerial), or one bare block.

Kafka cuts its records into chunks of 32 KiB. Other clients write one bare block without framing,
which snappy-java takes too: a stream that does not begin with the whole header is a block. As in
snappy-java, a header in the place of a chunk is skipped (streams may be concatenated), a tail of
fewer than four bytes is ignored, and something that only begins like a header ends the stream.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import cramjam
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.snappy_stream import MAGIC, MAX_CHUNK_BYTES, MAX_RATIO, VERSION
from storage_core.kernels.snappy_chunks import (
    CHUNK_COLUMN_COUNT,
    CHUNK_OUT_END,
    list_chunks,
)
from storage_core.records.codecs.base import Arena, Blocks, limit_error

_NAME: Final = Codec.SNAPPY.name.lower()

_VERSIONS: Final = struct.Struct(">ii")
_HEADER: Final = MAGIC + _VERSIONS.pack(VERSION, VERSION)
_LENGTH: Final = struct.Struct(">i")
# Read as a chunk length, the magic is this negative number; no other negative one is allowed.
(_MAGIC_AS_LENGTH,) = _LENGTH.unpack_from(MAGIC)

_CHUNK_BYTES: Final = 32 * 1024
# The room that the library wants beside as many bytes as a chunk has: a sixth and this.
_GROWTH_PART: Final = 6
_CHUNK_GROWTH_BYTES: Final = _LENGTH.size + 32
# How many chunks are listed at a time.
_LIST_LENGTH: Final = 4096


def decompress(data: bytes | bytearray | memoryview, *, limit_bytes: int) -> bytearray:
    """Expand a framed stream or a bare block; see ``RecordCodec``."""
    view = memoryview(data)
    if not view:
        raise DecompressionError(_NAME, "truncated: the stream is empty")
    is_framed = len(view) >= len(_HEADER) and bytes(view[: len(MAGIC)]) == MAGIC
    # Its frames first; then the claims are added up; nothing is allocated before. None of that is
    # kept: of a chunk of one byte a list would hold a hundred times as much.
    if is_framed:
        deque(_chunks(view), maxlen=0)
    room = limit_bytes
    for block in _chunks(view) if is_framed else (view,):
        room -= _claimed_size(block, room=room, limit_bytes=limit_bytes)
    out = bytearray(limit_bytes - room)
    _decompress_blocks(_chunks(view) if is_framed else (view,), memoryview(out))
    return out


def _chunks(view: memoryview) -> Iterator[memoryview]:
    position = len(_HEADER)
    while position + _LENGTH.size <= len(view):
        (length,) = _LENGTH.unpack_from(view, position)
        if length == _MAGIC_AS_LENGTH:
            if not _is_header_at(view, position):
                break
            position += len(_HEADER)
            continue
        if not 0 <= length <= MAX_CHUNK_BYTES:
            raise DecompressionError(
                _NAME,
                f"corrupt: a chunk at {position} has length {length}, "
                f"expected 0 to {MAX_CHUNK_BYTES}",
            )
        position += _LENGTH.size
        if position + length > len(view):
            raise DecompressionError(
                _NAME,
                f"truncated: a chunk at {position - _LENGTH.size} has {length} bytes, "
                f"{len(view) - position} are left",
            )
        yield view[position : position + length]
        position += length


def _is_header_at(view: memoryview, position: int) -> bool:
    header = bytes(view[position : position + len(_HEADER)])
    if len(header) < len(_HEADER):
        raise DecompressionError(_NAME, f"truncated: a header at {position} is cut")
    is_header = header.startswith(MAGIC)
    version, _ = _VERSIONS.unpack_from(header, len(MAGIC))
    if is_header and version < VERSION:
        raise DecompressionError(
            _NAME, f"a header at {position} has version {version}, expected {VERSION} or more"
        )
    return is_header


def _claimed_size(block: memoryview, *, room: int, limit_bytes: int) -> int:
    if not block:
        raise DecompressionError(_NAME, "corrupt: a block has no byte, not even its size")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise DecompressionError(_NAME, f"corrupt: {error}") from error
    if size > room:
        raise limit_error(Codec.SNAPPY, limit_bytes)
    if size > MAX_RATIO * len(block):
        raise DecompressionError(
            _NAME, f"corrupt: a block of {len(block)} bytes claims to expand to {size}"
        )
    return size


def _decompress_blocks(blocks: Iterable[memoryview], free: memoryview) -> None:
    for block in blocks:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            cramjam.snappy.decompress_raw_into(block, free[:size])
        except cramjam.DecompressionError as error:
            raise DecompressionError(_NAME, f"corrupt: {error}") from error
        free = free[size:]


def compress(data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress a block into one framed stream; snappy has no levels. See ``RecordCodec``."""
    del level
    view = memoryview(data)
    parts = [_HEADER]
    for start in range(0, len(view), _CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _CHUNK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def decompress_blocks(
    blocks: Blocks,
    first: int,
    arena: Arena,
    ends: NDArray[np.int64],
    *,
    limit_bytes: int,
    budget_bytes: int,
) -> int:
    """Expand blocks that are plainly good; see ``BlockExpander``.

    A call a chunk: the library has no other, but it is all that Python does for one.
    """
    chunks = np.empty((CHUNK_COLUMN_COUNT, _LIST_LENGTH), np.int64)
    expand = cramjam.snappy.decompress_raw_into
    data = blocks.data.data
    while True:
        listed, count = list_chunks(
            *blocks, first, limit_bytes, budget_bytes, arena.used, chunks, ends
        )
        if not count:
            return first
        arena.reserve(int(chunks[CHUNK_OUT_END, count - 1]))
        out = arena.buffer.data
        rows: list[list[int]] = chunks[:, :count].T.tolist()
        for stream, start, end, into, into_end in rows:
            try:
                expand(data[start:end], out[into:into_end])
            except cramjam.DecompressionError:
                if stream > first:
                    arena.used = int(ends[stream - 1])
                return stream
        first, arena.used = listed, int(ends[listed - 1])


def compress_blocks(
    blocks: Blocks, arena: Arena, ends: NDArray[np.int64], *, level: int | None = None
) -> int:
    """Compress blocks into framed streams, one library call a chunk. See ``BlockPacker``."""
    del level
    sizes = blocks.end - blocks.start
    # As much as the library wants to be given, whatever it needs.
    most = sizes + sizes // _GROWTH_PART + _CHUNK_GROWTH_BYTES * (sizes // _CHUNK_BYTES + 1)
    arena.reserve(arena.used + int(most.sum()) + len(_HEADER) * sizes.size)
    pack = cramjam.snappy.compress_raw_into
    data, out = blocks.data.data, arena.buffer.data
    at = arena.used
    for number, (start, end) in enumerate(
        zip(blocks.start.tolist(), blocks.end.tolist(), strict=True)
    ):
        out[at : at + len(_HEADER)] = _HEADER
        at += len(_HEADER)
        for chunk in range(start, end, _CHUNK_BYTES):
            records_at = at + _LENGTH.size
            size = pack(data[chunk : min(chunk + _CHUNK_BYTES, end)], out[records_at:])
            _LENGTH.pack_into(out, at, size)
            at = records_at + size
        ends[number] = at
    arena.used = at
    return sizes.size
