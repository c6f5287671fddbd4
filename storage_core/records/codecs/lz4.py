"""LZ4: one frame of independent blocks.

::

    frame      = magic flags block_descriptor [content_size] header_checksum block* end_mark
                 [content_checksum]
    block      = uint32 length, its highest bit set if stored; the bytes; [block_checksum]

All numbers are little-endian. Kafka reads frames with a class of its own, and what that does holds
here: dependent blocks, dictionaries and other versions are refused; the header's checksum (but
for message format v0, whose writers computed it over the magic too) and the
blocks' are verified; the content size is skipped and the content checksum not verified; the data
end with the first end mark, and what follows it is ignored. (Kafka also takes a stored block of no
bytes for the end mark; here it is an empty block.) Kafka writes 64 KiB blocks without checksums
and without a content size.
"""

import functools
from typing import Final

import lz4.frame

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs.base import limit_error

_NAME: Final = Codec.LZ4.name.lower()

_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLAGS_AT: Final = len(_MAGIC)
_BLOCK_DESCRIPTOR_AT: Final = _FLAGS_AT + 1
_HEADER_BYTES: Final = _BLOCK_DESCRIPTOR_AT + 2  # with the header checksum
_CONTENT_SIZE_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4

_CHECKSUM_AT: Final = _BLOCK_DESCRIPTOR_AT + 1
# What the writers of message format v0 made of the header that Kafka writes.
_CHECKSUM_OF_V0: Final = b"\x1a"

_RESERVED_FLAGS: Final = 0x03  # the lower one is nowadays a dictionary's
_CONTENT_CHECKSUM_FLAG: Final = 0x04
_CONTENT_SIZE_FLAG: Final = 0x08
_BLOCK_CHECKSUM_FLAG: Final = 0x10
_INDEPENDENT_FLAG: Final = 0x20
_VERSION_SHIFT: Final = 6
_VERSION: Final = 1

# Kafka's default, which is the fast compressor; every other level is the slow one.
_DEFAULT_LEVEL: Final = 9
_FIRST_SLOW_LEVEL: Final = 3  # below it the library is fast

_BLOCK_SIZE_SHIFT: Final = 4
_BLOCK_SIZES: Final = range(lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB + 1)

# One byte of a match's length stands for at most 255 bytes: no block expands further.
_MAX_RATIO: Final = 255


def decompress(
    data: bytes | bytearray | memoryview, *, limit_bytes: int, checks_header: bool = True
) -> bytes:
    """Expand the first frame of the block; see ``RecordCodec``.

    Args:
        data: As there.
        limit_bytes: As there.
        checks_header: Whether the header's checksum has to be right.

    Raises:
        DecompressionError: As there.
    """
    view = memoryview(data)
    flags, block_size, body_at = _read_header(view)
    context = lz4.frame.create_decompression_context()
    # One byte more than the limit shows a block that is too large.
    room = min(limit_bytes + 1, _MAX_RATIO * len(view))
    try:
        if checks_header:
            lz4.frame.decompress_chunk(context, view[:body_at])
        if not checks_header or flags & (_CONTENT_SIZE_FLAG | _CONTENT_CHECKSUM_FLAG):
            # The library would hold the frame to what Kafka does not: it gets another header.
            context = lz4.frame.create_decompression_context()
            has_checksums = bool(flags & _BLOCK_CHECKSUM_FLAG)
            lz4.frame.decompress_chunk(context, _plain_header(block_size, has_checksums))
        out: bytes
        out, used, is_whole = lz4.frame.decompress_chunk(context, view[body_at:], max_length=room)
    except RuntimeError as error:
        raise DecompressionError(_NAME, f"corrupt: {error}") from error
    if len(out) > limit_bytes:
        raise limit_error(Codec.LZ4, limit_bytes)
    trailer_bytes = _CHECKSUM_BYTES if flags & _CONTENT_CHECKSUM_FLAG else 0
    if not is_whole or body_at + used + trailer_bytes > len(view):
        raise DecompressionError(_NAME, f"truncated: the frame has no end at {len(view)} bytes")
    return out


def _read_header(view: memoryview) -> tuple[int, int, int]:
    """Return the flags, the number that stands for the block size, and where the blocks begin."""
    if len(view) < _HEADER_BYTES:
        raise DecompressionError(_NAME, f"truncated: {len(view)} bytes are no frame header")
    magic = bytes(view[: len(_MAGIC)])
    if magic != _MAGIC:
        raise DecompressionError(
            _NAME, f"the frame begins with {magic.hex()}, expected {_MAGIC.hex()}"
        )
    flags, descriptor = view[_FLAGS_AT], view[_BLOCK_DESCRIPTOR_AT]
    if flags & _RESERVED_FLAGS:
        raise DecompressionError(_NAME, f"reserved bits are set in the frame flags {flags:#04x}")
    if not flags & _INDEPENDENT_FLAG:
        raise DecompressionError(_NAME, "the blocks of the frame depend on each other")
    if flags >> _VERSION_SHIFT != _VERSION:
        raise DecompressionError(
            _NAME, f"the frame has version {flags >> _VERSION_SHIFT}, expected {_VERSION}"
        )
    block_size = descriptor >> _BLOCK_SIZE_SHIFT
    if descriptor & (1 << _BLOCK_SIZE_SHIFT) - 1 or block_size not in _BLOCK_SIZES:
        raise DecompressionError(_NAME, f"the frame has block descriptor {descriptor:#04x}")
    body_at = _HEADER_BYTES + (_CONTENT_SIZE_BYTES if flags & _CONTENT_SIZE_FLAG else 0)
    if len(view) < body_at:
        raise DecompressionError(_NAME, f"truncated: {len(view)} bytes are no frame header")
    return flags, block_size, body_at


@functools.cache
def _plain_header(block_size: int, has_checksums: bool) -> bytes:  # noqa: FBT001 a cache key
    """Return a frame header without content size and content checksum."""
    header: bytes = lz4.frame.compress_begin(
        lz4.frame.create_compression_context(),
        block_size=block_size,
        block_linked=False,
        block_checksum=has_checksums,
        content_checksum=False,
    )
    return header


def compress(data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress a block into one frame; see ``RecordCodec``.

    Exactly at the default level Kafka takes the fast compressor, else the slow one of that level.
    """
    is_fast = level is None or level == _DEFAULT_LEVEL
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=0 if is_fast else max(level or 0, _FIRST_SLOW_LEVEL),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def with_checksum_of_v0(frame: bytes) -> bytes:
    """Return a frame that compress made, with the header's checksum as message format v0 has it."""
    return frame[:_CHECKSUM_AT] + _CHECKSUM_OF_V0 + frame[_CHECKSUM_AT + len(_CHECKSUM_OF_V0) :]
