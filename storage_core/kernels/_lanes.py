"""SipHash-1-3 of several messages at once, one per vector lane.

Called from Python `hash_lanes` runs as written; called from a kernel it becomes vector instructions
(`_overloads`), of whatever width the CPU has: its rounds are additions, rotations and xor, which a
core does for four lanes in the time of one.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import load_word

# Two vectors of AVX2, one of AVX-512: the rounds of one fill the waits of the other.
LANES: Final = 8
# What a hash begins with, before the hash key: SipHash with 128 bits of output.
SIP_START: Final = (
    0x736F6D6570736575,
    0x646F72616E646F6D ^ 0xEE,
    0x6C7967656E657261,
    0x7465646279746573,
)
# Before the last rounds of each half, and how many they are.
SIP_LOW: Final = 0xEE
SIP_HIGH: Final = 0xDD
SIP_LAST_ROUNDS: Final = 3


def hash_lanes(
    data: NDArray[np.uint8],
    start: NDArray[np.uint64],
    length: NDArray[np.uint64],
    first: int,
    words: int,
    key_low: int,
    key_high: int,
) -> None:
    """Hash ``LANES`` messages of data at once, from first on.

    The halves of each hash replace its start and length. The caller has checked the bounds: behind
    the last whole word of each, 8 more bytes can be read.

    Args:
        data: uint8[n].
        start: uint64[], by message its first byte.
        length: uint64[], its bytes.
        words: How many whole words of 8 bytes each of them has.
        key_low: Lower half of the hash key.
        key_high: Upper half.
    """
    lanes = range(first, first + LANES)
    starts = [int(start[i]) for i in lanes]
    lengths = np.array([int(length[i]) for i in lanes], np.uint64)
    key = np.array([key_low, key_high] * 2, np.uint64)
    v = [np.full(LANES, half) for half in key ^ np.array(SIP_START, np.uint64)]
    for number in range(words + 1):
        word = np.array([load_word(data, each + 8 * number) for each in starts], np.uint64)
        if number == words:
            above = np.uint64(2**64 - 1) << (lengths % np.uint64(8) * np.uint64(8))
            word = (word & ~above) | (lengths << np.uint64(56))
        v[3] ^= word
        _round(v)
        v[0] ^= word
    for place, half, mark in ((2, start, SIP_LOW), (1, length, SIP_HIGH)):
        v[place] ^= np.uint64(mark)
        for _ in range(SIP_LAST_ROUNDS):
            _round(v)
        half[first : first + LANES] = v[0] ^ v[1] ^ v[2] ^ v[3]


def _round(v: list[NDArray[np.uint64]]) -> None:
    v[0] = v[0] + v[1]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] = v[2] + v[3]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def _rotated(lanes: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    rotated: NDArray[np.uint64] = (lanes << np.uint64(bits)) | (lanes >> np.uint64(64 - bits))
    return rotated
