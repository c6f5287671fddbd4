"""gzip: RFC 1952 members, read by ISA-L, written by zlib.

Kafka writes one member at level -1 through Java's ``GZIPOutputStream``, whose header has neither
time nor name, and operating system 255 since JDK 16 (0 before). Java's Deflater is zlib, so zlib
writes here: ISA-L is twice as fast but makes other, larger output.

The end of the data is as ``GZIPInputStream`` has it: further members follow directly, and their
contents are joined; what follows a member and does not begin like one, or is too short to be one,
is ignored. Each member's CRC and size are checked. (Java also ignores a member whose header is
cut; it is an error here.)
"""

import ctypes
import functools
import struct
import threading
import zlib
from typing import Final, cast

import numpy as np
from isal import igzip_lib, isal_zlib
from numpy.typing import NDArray

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.gzip_member import MEMBER_START
from storage_core.kernels._intrinsics import addresses_of
from storage_core.kernels.gzip_blocks import CRC32, INFLATE, STATE, expand_gzip
from storage_core.records.codecs.base import (
    Arena,
    Blocks,
    expand_by,
    find_library,
    limit_error,
)

_NAME: Final = Codec.GZIP.name.lower()
# The stubs of isal declare the class as an instance.
_IsalError: Final = cast("type[Exception]", igzip_lib.IsalError)

_GZIP_WINDOW_BITS: Final = zlib.MAX_WBITS + 16  # a gzip header is expected
_RAW_WINDOW_BITS: Final = -zlib.MAX_WBITS  # no header: ours is written by hand
_LEVEL: Final = -1
_MEMORY_LEVEL: Final = 8  # java.util.zip.Deflater's, and zlib's default

# Magic, method, flags, no time, no extra flags, unknown operating system: as JDK 16 and later.
_HEADER: Final = MEMBER_START + bytes(6) + b"\xff"
_TRAILER: Final = struct.Struct("<II")  # CRC-32 and size of the contents, modulo 2^32
_MIN_MEMBER_BYTES: Final = len(_HEADER) + 2 + _TRAILER.size

# ISA-L hands back a copy of what follows a member. A second and later member is fed in pieces
# from this size on, doubling, so that many tiny members cost no quadratic copying.
_FIRST_PIECE_BYTES: Final = 512

# ISA-L's inflate_state is a third of this.
_STATE_BYTES: Final = 256 * 1024
_PROOF: Final = b"a fox and another fox"


def decompress(data: bytes | bytearray | memoryview, *, limit_bytes: int) -> bytes:
    """Expand every member of the block; see ``RecordCodec``."""
    view = memoryview(data)
    parts: list[bytes] = []
    position, room = _decompress_member(view, 0, len(view), limit_bytes, limit_bytes, parts)
    while _is_member_at(view, position):
        position, room = _decompress_member(
            view, position, _FIRST_PIECE_BYTES, room, limit_bytes, parts
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_member_at(view: memoryview, position: int) -> bool:
    return (
        len(view) - position >= _MIN_MEMBER_BYTES
        and bytes(view[position : position + len(MEMBER_START)]) == MEMBER_START
    )


def _decompress_member(
    view: memoryview,
    position: int,
    piece_bytes: int,
    room: int,
    limit_bytes: int,
    parts: list[bytes],
) -> tuple[int, int]:
    """Append a member's contents to parts; return position and room after."""
    decoder = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    while not decoder.eof:
        piece = view[position : position + piece_bytes]
        if not piece:
            raise DecompressionError(
                _NAME, f"truncated: the member has no end at {len(view)} bytes"
            )
        try:
            # One byte more than there is room for shows a block that is too large.
            part = decoder.decompress(piece, room + 1)
        except _IsalError as error:
            raise DecompressionError(_NAME, f"corrupt: {error}") from error
        if len(part) > room:
            raise limit_error(Codec.GZIP, limit_bytes)
        parts.append(part)
        room -= len(part)
        position += len(piece) - len(decoder.unused_data)
        piece_bytes *= 2
    return position, room


def compress(data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress a block into one member; see ``RecordCodec``."""
    level = _LEVEL if level is None else level
    deflater = zlib.compressobj(level, zlib.DEFLATED, _RAW_WINDOW_BITS, _MEMORY_LEVEL)
    trailer = _TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_HEADER, deflater.compress(data), deflater.flush(), trailer))


class _Thread(threading.local):
    """What one thread has: threads cannot share a state of the library."""

    @functools.cached_property
    def library(self) -> NDArray[np.int64] | None:
        """What `expand_gzip` calls and works with; None where it cannot be called."""
        library = find_library("isal.isal_zlib")
        names = ("isal_inflate_stateless", "crc32_gzip_refl", "isal_inflate_init")
        addresses = addresses_of(library, names)
        if library is None or addresses is None:
            return None
        words = np.zeros(STATE + _STATE_BYTES // 8, np.int64)
        words[INFLATE], words[CRC32], _ = addresses
        library["isal_inflate_init"](ctypes.c_void_p(words[STATE:].ctypes.data))
        return words


_THREAD: Final = _Thread()


@functools.cache
def _has_expected_layout() -> bool:
    """Whether the library's state is laid out as the kernel has it."""
    proof = compress(_PROOF)
    blocks = Blocks(np.frombuffer(bytearray(proof), np.uint8), *np.array([[0], [len(proof)]]))
    arena = Arena()
    limit = len(_PROOF)
    expand_by(expand_gzip, _THREAD.library, blocks, 0, arena, np.empty(1, np.int64), limit, limit)
    return arena.content.tobytes() == _PROOF


def _expander() -> NDArray[np.int64] | None:
    """Return what `expand_gzip` calls, None where it cannot."""
    return _THREAD.library if _has_expected_layout() else None


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
        expand_gzip, _expander(), blocks, first, arena, ends, limit_bytes, budget_bytes
    )
