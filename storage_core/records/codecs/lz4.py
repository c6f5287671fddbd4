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
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.lz4_frame import (
    BLOCK_CHECKSUM_FLAG,
    BLOCK_DESCRIPTOR_AT,
    BLOCK_SIZE_SHIFT,
    BLOCK_SIZES,
    CONTENT_CHECKSUM_FLAG,
    CONTENT_SIZE_FLAG,
    FLAGS_AT,
    HEADER_BYTES,
    HEADER_CHECKSUM_AT,
    INDEPENDENT_FLAG,
    MAGIC,
    MAX_RATIO,
    RESERVED_FLAGS,
    VERSION,
    VERSION_SHIFT,
)
from storage_core.kernels._intrinsics import addresses_of
from storage_core.kernels.lz4_blocks import (
    CHECKSUMS,
    EXPAND,
    EXPANDER_WORDS,
    PACK,
    PREFERENCES,
    expand_lz4,
    pack_lz4,
)
from storage_core.records.codecs.base import (
    Arena,
    Blocks,
    expand_by,
    find_library,
    limit_error,
    pack_by,
)

_NAME: Final = Codec.LZ4.name.lower()

_CONTENT_SIZE_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4

# What the writers of message format v0 made of the header that Kafka writes.
_CHECKSUM_OF_V0: Final = b"\x1a"

# Kafka's default, which is the fast compressor; every other level is the slow one.
_DEFAULT_LEVEL: Final = 9
_FIRST_SLOW_LEVEL: Final = 3  # below it the library is fast

# liblz4's LZ4F_preferences_t, a struct of its public interface.
_PREFERENCES: Final = np.dtype(
    [
        ("block_size", "u4"),
        ("block_mode", "u4"),
        ("content_checksum", "u4"),
        ("frame_type", "u4"),
        ("content_size", "u8"),
        ("dictionary", "u4"),
        ("block_checksum", "u4"),
        ("level", "i4"),
        ("rest", "u4", 5),
    ]
)
_INDEPENDENT: Final = 1  # in block_mode


def decompress(
    data: bytes | bytearray | memoryview, *, limit_bytes: int, checks_header: bool = True
) -> bytes:
    """Expand the first frame of the block; see ``RecordCodec``.

    Args:
        checks_header: Whether the header's checksum has to be right.
    """
    view = memoryview(data)
    flags, block_size, body_at = _read_header(view)
    context = lz4.frame.create_decompression_context()
    # One byte more than the limit shows a block that is too large.
    room = min(limit_bytes + 1, MAX_RATIO * len(view))
    try:
        if checks_header:
            lz4.frame.decompress_chunk(context, view[:body_at])
        if not checks_header or flags & (CONTENT_SIZE_FLAG | CONTENT_CHECKSUM_FLAG):
            # The library would hold the frame to what Kafka does not: it gets another header.
            context = lz4.frame.create_decompression_context()
            has_checksums = bool(flags & BLOCK_CHECKSUM_FLAG)
            lz4.frame.decompress_chunk(context, _plain_header(block_size, has_checksums))
        out: bytes
        out, used, is_whole = lz4.frame.decompress_chunk(context, view[body_at:], max_length=room)
    except RuntimeError as error:
        raise DecompressionError(_NAME, f"corrupt: {error}") from error
    if len(out) > limit_bytes:
        raise limit_error(Codec.LZ4, limit_bytes)
    trailer_bytes = _CHECKSUM_BYTES if flags & CONTENT_CHECKSUM_FLAG else 0
    if not is_whole or body_at + used + trailer_bytes > len(view):
        raise DecompressionError(_NAME, f"truncated: the frame has no end at {len(view)} bytes")
    return out


def _read_header(view: memoryview) -> tuple[int, int, int]:
    """Return the flags, the block size code and the first block's position."""
    if len(view) < HEADER_BYTES:
        raise DecompressionError(_NAME, f"truncated: {len(view)} bytes are no frame header")
    magic = bytes(view[: len(MAGIC)])
    if magic != MAGIC:
        raise DecompressionError(
            _NAME, f"the frame begins with {magic.hex()}, expected {MAGIC.hex()}"
        )
    flags, descriptor = view[FLAGS_AT], view[BLOCK_DESCRIPTOR_AT]
    if flags & RESERVED_FLAGS:
        raise DecompressionError(_NAME, f"reserved bits are set in the frame flags {flags:#04x}")
    if not flags & INDEPENDENT_FLAG:
        raise DecompressionError(_NAME, "the blocks of the frame depend on each other")
    if flags >> VERSION_SHIFT != VERSION:
        raise DecompressionError(
            _NAME, f"the frame has version {flags >> VERSION_SHIFT}, expected {VERSION}"
        )
    block_size = descriptor >> BLOCK_SIZE_SHIFT
    if descriptor & (1 << BLOCK_SIZE_SHIFT) - 1 or block_size not in BLOCK_SIZES:
        raise DecompressionError(_NAME, f"the frame has block descriptor {descriptor:#04x}")
    body_at = HEADER_BYTES + (_CONTENT_SIZE_BYTES if flags & CONTENT_SIZE_FLAG else 0)
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
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=_level_of_library(level),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def with_checksum_of_v0(frame: bytes) -> bytes:
    """Return a frame with the header checksum of message format v0. The frame is one that
    compress made."""
    return (
        frame[:HEADER_CHECKSUM_AT]
        + _CHECKSUM_OF_V0
        + frame[HEADER_CHECKSUM_AT + len(_CHECKSUM_OF_V0) :]
    )


def _level_of_library(level: int | None) -> int:
    """Return the library's level for Kafka's."""
    if level is None or level == _DEFAULT_LEVEL:
        return 0
    return max(level, _FIRST_SLOW_LEVEL)


def _address_of(function: str) -> int | None:
    """Return the address of a library function, None if not callable."""
    addresses = addresses_of(find_library("lz4.frame._frame"), (function,))
    return None if addresses is None else addresses[0]


@functools.cache
def _expander() -> NDArray[np.int64] | None:
    """Return what `expand_lz4` calls, None where it cannot."""
    address = _address_of("LZ4_decompress_safe")
    if address is None:
        return None
    library = np.empty(EXPANDER_WORDS, np.int64)
    library[EXPAND] = address
    headers = [_plain_header(block_size, has_checksums=False) for block_size in BLOCK_SIZES]
    library[CHECKSUMS:] = [header[HEADER_CHECKSUM_AT] for header in headers]
    return library


@functools.cache
def _packer(level: int | None) -> NDArray[np.int64] | None:
    """Return the library argument of `pack_lz4` for a level, or None.

    The frames that it packs are Kafka's. The result is None where the library cannot be called.
    """
    address = _address_of("LZ4F_compressFrame")
    if address is None:
        return None
    preferences = np.zeros(1, _PREFERENCES)
    preferences["block_size"] = BLOCK_SIZES[0]
    preferences["block_mode"] = _INDEPENDENT
    preferences["level"] = _level_of_library(level)
    library = np.empty(PREFERENCES + preferences.itemsize // 8, np.int64)
    library[PACK] = address
    library[PREFERENCES:] = preferences.view(np.int64)
    return library


def decompress_blocks(
    blocks: Blocks,
    first: int,
    arena: Arena,
    ends: NDArray[np.int64],
    *,
    limit_bytes: int,
    budget_bytes: int,
) -> int:
    """Expand blocks that are plainly good; see ``BlockExpander``."""
    return expand_by(expand_lz4, _expander(), blocks, first, arena, ends, limit_bytes, budget_bytes)


def compress_blocks(
    blocks: Blocks, arena: Arena, ends: NDArray[np.int64], *, level: int | None = None
) -> int:
    """Make frames of blocks; see ``BlockPacker``."""
    return pack_by(pack_lz4, _packer(level), blocks, arena, ends)
