"""Many gzip members expanded at one call, by the library's own functions.

What is plainly good is taken: one whole member without optional fields, to the last byte. At
anything else it stops, and leaves it to ``records.codecs.gzip``, which knows what to accept and how
to refuse.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.gzip_member import (
    CRC_BYTES,
    FLAGS_AT,
    HEADER_BYTES,
    MAX_RATIO,
    MEMBER_START,
    TRAILER_BYTES,
)
from storage_core.kernels._intrinsics import call_function
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import read_u32_le

_START: Final = int.from_bytes(MEMBER_START, "little")
_START_MASK: Final = (1 << 8 * len(MEMBER_START)) - 1

# Words of the library: addresses of functions, and its state.
INFLATE: Final = 0  # isal_inflate_stateless
CRC32: Final = 1  # crc32_gzip_refl
STATE: Final = 2  # an inflate_state
# The first fields of that, as 64-bit words; the rest is its own business.
_NEXT_OUT: Final = STATE
_AVAILABLE_OUT: Final = STATE + 1  # lower half; the upper one counts what was written
_NEXT_IN: Final = STATE + 2
_AVAILABLE_IN: Final = STATE + 4  # lower half


@kernel
def expand_gzip(
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
    """Expand members end to end to out[at:].

    Args:
        library: int64[], words of the library, which nobody else uses meanwhile.
        data: uint8[], where the members lie.
        start: int64[n], where each begins in data.
        end: int64[n], where it ends.
        limit_bytes: The most that one may expand to.
        budget_bytes: The last member is the one with which out has more than so many bytes.
        out: uint8[].
        out_end: int64[n], where each member's contents end in out.

    Returns:
        (row, at, room): the member that was not expanded, n if all were; the end in out; how large
        out has to be for that member, 0 where it is not plainly good or the budget is used up.
    """
    into = np.int64(out.ctypes.data)
    source = np.int64(data.ctypes.data)
    state_at = np.int64(library.ctypes.data) + STATE * library.itemsize
    for row in range(first, start.size):
        position = start[row]
        length = end[row] - position - HEADER_BYTES - TRAILER_BYTES
        if (
            at > budget_bytes
            or length <= 0
            or read_u32_le(data, position) & _START_MASK != _START
            or data[position + FLAGS_AT]
        ):
            return row, at, 0
        trailer = end[row] - TRAILER_BYTES
        size = read_u32_le(data, trailer + CRC_BYTES)
        if size > limit_bytes or size > MAX_RATIO * length:
            return row, at, 0
        if at + size > out.size:
            return row, at, at + size
        library[_NEXT_OUT], library[_AVAILABLE_OUT] = into + at, size
        library[_NEXT_IN], library[_AVAILABLE_IN] = source + position + HEADER_BYTES, length
        result = call_function(library[INFLATE], state_at, 0, 0, 0, 0)
        if (
            result & 0xFFFFFFFF  # it is a C int
            or library[_AVAILABLE_IN] & 0xFFFFFFFF
            or library[_AVAILABLE_OUT] != size << 32
        ):
            return row, at, 0
        checksum = call_function(library[CRC32], 0, into + at, size, 0, 0) & 0xFFFFFFFF
        if checksum != read_u32_le(data, trailer):
            return row, at, 0
        at += size
        out_end[row] = at
    return start.size, at, 0
