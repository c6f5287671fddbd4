"""Zstandard: frames (``formats.zstd_frame``), read and written as Kafka does.

The data are frames to the very end, as zstd-jni's input stream has it: contents are joined,
skippable frames skipped, and anything else after a frame is an error. (Of a second frame that is
cut, zstd-jni hands out what there is without an error; it is an error here.) A window larger than
128 MiB, libzstd's limit for streams, is refused. Kafka writes one streaming frame, level 3,
without content size and checksum.

The walk over the block headers finds where a frame ends and how far it can expand, so that a cut
frame is told from one beyond the limit, and nothing is allocated on the word of a header.
"""

import ctypes
import functools
import threading
import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.zstd_frame import (
    BLOCK_HEADER_BYTES,
    CHECKSUM_BYTES,
    COMPRESSED,
    KIND_MASK,
    KIND_SHIFT,
    LAST_BLOCK,
    MAGIC_BYTES,
    MAX_BLOCK_BYTES,
    MAX_HEADER_BYTES,
    MAX_WINDOW_BYTES,
    RAW,
    REPEATED,
    SIZE_SHIFT,
    SKIPPABLE_LENGTH_BYTES,
    SKIPPABLE_MAGIC,
    SKIPPABLE_MASK,
)
from storage_core.kernels._intrinsics import addresses_of
from storage_core.kernels.zstd_blocks import (
    CONTEXT,
    EXPAND,
    EXPANDER_WORDS,
    PACK,
    PACKER_WORDS,
    RESET,
    expand_zstd,
    pack_zstd,
)
from storage_core.records.codecs.base import (
    Arena,
    Blocks,
    expand_by,
    find_library,
    limit_error,
    pack_by,
)

_NAME: Final = Codec.ZSTD.name.lower()

_LEVEL: Final = 3
_LEVEL_PARAMETER: Final = 100  # ZSTD_c_compressionLevel


_LIBRARY_FUNCTIONS: Final = ("ZSTD_decompressDCtx", "ZSTD_compressStream2", "ZSTD_CCtx_reset")
_CONTEXT_FUNCTIONS: Final = (
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_createCCtx",
    "ZSTD_freeCCtx",
    "ZSTD_CCtx_setParameter",
)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library, None if kernels cannot call it."""
    library = find_library("zstandard._cffi")
    if addresses_of(library, _LIBRARY_FUNCTIONS + _CONTEXT_FUNCTIONS) is None:
        return None
    return library


class _NativeContext:
    """A context of the zstd library with its functions. The context is a ``ZSTD_DCtx``, or a
    ``ZSTD_CCtx`` of a level.

    Attributes:
        library: int64[], what `expand_zstd` or `pack_zstd` calls; None where it cannot be called.
    """

    def __init__(self, level: int | None) -> None:
        self.library: NDArray[np.int64] | None = None
        library, addresses = _library(), addresses_of(_library(), _LIBRARY_FUNCTIONS)
        if library is None or addresses is None:
            return
        kind = "DCtx" if level is None else "CCtx"
        create, free = library[f"ZSTD_create{kind}"], library[f"ZSTD_free{kind}"]
        create.restype = ctypes.c_void_p
        free.argtypes = [ctypes.c_void_p]
        context = create()
        if context is None:  # there was no memory for it
            return
        weakref.finalize(self, free, context)
        expand, pack, reset = addresses
        if level is None:
            self.library = np.zeros(EXPANDER_WORDS, np.int64)
            self.library[EXPAND] = expand
        else:
            put = library["ZSTD_CCtx_setParameter"]
            put.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
            put(context, _LEVEL_PARAMETER, level)
            self.library = np.zeros(PACKER_WORDS, np.int64)
            self.library[PACK], self.library[RESET] = pack, reset
        self.library[CONTEXT] = context


class _Contexts(threading.local):
    """Compressors and decompressors of one thread: threads cannot share them."""

    def __init__(self) -> None:
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self._native: dict[int | None, _NativeContext] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def compressor_of(self, level: int) -> zstandard.ZstdCompressor:
        """Return this thread's compressor of a level."""
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return self._compressors[level]

    def library_of(self, level: int | None) -> NDArray[np.int64] | None:
        """Return the library argument of a kernel for packing or expanding. The kernel packs
        with a level, and expands with None."""
        if level not in self._native:
            self._native[level] = _NativeContext(level)
        return self._native[level].library


_CONTEXTS: Final = _Contexts()


def _expander() -> NDArray[np.int64] | None:
    """Return what `expand_zstd` calls, None where it cannot."""
    return _CONTEXTS.library_of(None)


def _packer(level: int | None) -> NDArray[np.int64] | None:
    """Return what `pack_zstd` calls for a level, None where it cannot."""
    return _CONTEXTS.library_of(_LEVEL if level is None else level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where a frame ends, and bounds for the size of its contents."""

    end: int  # position just past it
    least_bytes: int  # what its raw and repeated blocks expand to
    most_bytes: int  # the most that all of its blocks can expand to
    content_bytes: int | None  # what its header claims; None where it claims nothing


def decompress(data: bytes | bytearray | memoryview, *, limit_bytes: int) -> bytes:
    """Expand every frame of the block; see ``RecordCodec``."""
    view = memoryview(data)
    parts = []
    position, room = 0, limit_bytes
    while position < len(view):
        frame = _read_frame(view, position)
        part = _decompress_frame(view[position : frame.end], frame, room, limit_bytes)
        parts.append(part)
        room -= len(part)
        position = frame.end
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_frame(data: memoryview, frame: _Frame, room: int, limit_bytes: int) -> bytes:
    if max(frame.least_bytes, frame.content_bytes or 0) > room:
        raise limit_error(Codec.ZSTD, limit_bytes)
    if frame.content_bytes is not None and frame.content_bytes > frame.most_bytes:
        raise DecompressionError(
            _NAME,
            f"corrupt: a frame claims {frame.content_bytes} bytes, "
            f"its blocks have at most {frame.most_bytes}",
        )
    if frame.most_bytes == 0:
        return b""
    # One byte more than there is room for shows a frame that is too large.
    capacity = min(frame.most_bytes, room + 1)
    try:
        out = _CONTEXTS.decompressor.decompress(data, max_output_size=capacity)
    except zstandard.ZstdError as error:
        if capacity > room and "did not decompress full frame" in str(error):
            raise limit_error(Codec.ZSTD, limit_bytes) from error
        raise DecompressionError(_NAME, f"corrupt: {error}") from error
    if len(out) > room:
        raise limit_error(Codec.ZSTD, limit_bytes)
    return out


def _read_frame(view: memoryview, start: int) -> _Frame:
    magic = int.from_bytes(view[start : start + MAGIC_BYTES], "little")
    if magic & SKIPPABLE_MASK == SKIPPABLE_MAGIC:
        return _read_skippable_frame(view, start)
    head = view[start : start + MAX_HEADER_BYTES]
    try:
        parameters = zstandard.get_frame_parameters(head)
        position = start + zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise DecompressionError(_NAME, f"no frame at {start}: {error}") from error
    if parameters.window_size > MAX_WINDOW_BYTES:
        raise DecompressionError(
            _NAME,
            f"the frame at {start} has a window of {parameters.window_size} bytes, "
            f"expected at most {MAX_WINDOW_BYTES}",
        )
    end, least_bytes, most_bytes = _walk_blocks(
        view, position, min(parameters.window_size, MAX_BLOCK_BYTES)
    )
    end += CHECKSUM_BYTES if parameters.has_checksum else 0
    if end > len(view):
        raise _truncated(start, len(view))
    content_bytes = parameters.content_size
    return _Frame(
        end=end,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        content_bytes=None if content_bytes == zstandard.CONTENTSIZE_UNKNOWN else content_bytes,
    )


def _read_skippable_frame(view: memoryview, start: int) -> _Frame:
    contents_at = start + MAGIC_BYTES + SKIPPABLE_LENGTH_BYTES
    length = int.from_bytes(view[start + MAGIC_BYTES : contents_at], "little")
    if contents_at + length > len(view):
        raise _truncated(start, len(view))
    return _Frame(end=contents_at + length, least_bytes=0, most_bytes=0, content_bytes=None)


def _walk_blocks(view: memoryview, position: int, max_block_bytes: int) -> tuple[int, int, int]:
    """Return the end of the blocks and bounds of their expanded size. The bounds are the least
    and the most."""
    least_bytes = most_bytes = 0
    is_last = False
    while not is_last:
        contents_at = position + BLOCK_HEADER_BYTES
        if contents_at > len(view):
            raise _truncated(position, len(view))
        header = int.from_bytes(view[position:contents_at], "little")
        is_last = bool(header & LAST_BLOCK)
        kind, size = header >> KIND_SHIFT & KIND_MASK, header >> SIZE_SHIFT
        if kind == COMPRESSED:
            most_bytes += max_block_bytes
        elif kind in {RAW, REPEATED}:
            least_bytes += size
            most_bytes += size
        else:
            raise DecompressionError(_NAME, f"corrupt: the block at {position} has kind {kind}")
        position = contents_at + (1 if kind == REPEATED else size)
    return position, least_bytes, most_bytes


def _truncated(position: int, size: int) -> DecompressionError:
    return DecompressionError(
        _NAME, f"truncated: what begins at {position} has no end at {size} bytes"
    )


def compress(data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress a block into one streaming frame; see ``RecordCodec``."""
    # A stream, for the one-call function would know the size, choose by it and write it down.
    # Java's streams flush before they close, so that the last block of a frame is an empty one.
    stream = _CONTEXTS.compressor_of(_LEVEL if level is None else level).compressobj()
    blocks = (
        stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) if data else b""
    )
    return blocks + stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


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
    return expand_by(
        expand_zstd, _expander(), blocks, first, arena, ends, limit_bytes, budget_bytes
    )


def compress_blocks(
    blocks: Blocks, arena: Arena, ends: NDArray[np.int64], *, level: int | None = None
) -> int:
    """Make frames of blocks; see ``BlockPacker``."""
    return pack_by(pack_zstd, _packer(level), blocks, arena, ends)
