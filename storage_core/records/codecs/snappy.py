"""snappy: raw blocks in the framing of snappy-java (called xerial), or one bare block.

::

    stream = header chunk*
    header = magic (8 bytes) int32 version int32 minimum_version
    chunk  = int32 length, that many bytes of one raw snappy block

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

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs.base import limit_error

_NAME: Final = Codec.SNAPPY.name.lower()

_MAGIC: Final = b"\x82SNAPPY\x00"
_VERSIONS: Final = struct.Struct(">ii")
_VERSION: Final = 1
_HEADER: Final = _MAGIC + _VERSIONS.pack(_VERSION, _VERSION)
_LENGTH: Final = struct.Struct(">i")
# Read as a chunk length, the magic is this negative number; no other negative one is allowed.
(_MAGIC_AS_LENGTH,) = _LENGTH.unpack_from(_MAGIC)

_CHUNK_BYTES: Final = 32 * 1024
_MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024  # snappy-java's
# The densest element, a copy, makes 64 bytes out of 3: a block that claims more than this many
# bytes a byte lies about its size.
_MAX_RATIO: Final = 22


def decompress(data: bytes | bytearray | memoryview, *, limit_bytes: int) -> bytearray:
    """Expand a framed stream or a bare block; see ``RecordCodec``."""
    view = memoryview(data)
    if not view:
        raise DecompressionError(_NAME, "truncated: the stream is empty")
    is_framed = len(view) >= len(_HEADER) and bytes(view[: len(_MAGIC)]) == _MAGIC
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
        if not 0 <= length <= _MAX_CHUNK_BYTES:
            raise DecompressionError(
                _NAME,
                f"corrupt: a chunk at {position} has length {length}, "
                f"expected 0 to {_MAX_CHUNK_BYTES}",
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
    is_header = header.startswith(_MAGIC)
    version, _ = _VERSIONS.unpack_from(header, len(_MAGIC))
    if is_header and version < _VERSION:
        raise DecompressionError(
            _NAME, f"a header at {position} has version {version}, expected {_VERSION} or more"
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
    if size > _MAX_RATIO * len(block):
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
    """Compress a block into one framed stream; see ``RecordCodec``. Snappy has no levels."""
    del level
    view = memoryview(data)
    parts = [_HEADER]
    for start in range(0, len(view), _CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _CHUNK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)
