"""128-bit hashes of record keys: keyed SipHash-1-3 and MD5. SipHash is the default; MD5 is the hash
of Kafka's cleaner.

SipHash: Aumasson and Bernstein, "SipHash: a fast short-input PRF", with 128-bit output as in the
authors' reference implementation; one compression and three finalisation rounds. MD5: RFC 1321.
Both give two 64-bit halves.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import load_word
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels._lanes import (
    LANES,
    SIP_HIGH,
    SIP_LAST_ROUNDS,
    SIP_LOW,
    SIP_START,
    hash_lanes,
)

_SIP_0: Final = np.uint64(SIP_START[0])
_SIP_1: Final = np.uint64(SIP_START[1])
_SIP_2: Final = np.uint64(SIP_START[2])
_SIP_3: Final = np.uint64(SIP_START[3])

_MD5_SINES: Final = np.array(
    [int(abs(math.sin(i + 1)) * 2**32) & 0xFFFFFFFF for i in range(64)], np.uint32
)
_MD5_SHIFTS: Final = np.array(
    [7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4, np.uint32
)
_MD5_BLOCK: Final = 64
MD5_WORDS: Final = 16
_MD5_LENGTH_BYTES: Final = 8


@inlined_kernel
def _rotate(value: int, bits: int) -> int:
    return (np.uint64(value) << np.uint64(bits)) | (np.uint64(value) >> np.uint64(64 - bits))


@inlined_kernel
def _sip_round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = np.uint64(v0) + np.uint64(v1)
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = np.uint64(v2) + np.uint64(v3)
    v3 = _rotate(v3, 16) ^ v2
    v0 = np.uint64(v0) + np.uint64(v3)
    v3 = _rotate(v3, 21) ^ v0
    v2 = np.uint64(v2) + np.uint64(v1)
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined_kernel
def _last_word(data: NDArray[np.uint8], start: int, length: int) -> np.uint64:
    """Return the last word of a message: trailing bytes and length. The trailing bytes are those
    that make no whole word."""
    tail = start + (length & ~7)
    if tail + 8 <= data.size:
        above = np.uint64(2**64 - 1) << np.uint64(8 * (length & 7))
        rest = np.uint64(load_word(data, tail)) & ~above
    else:
        rest = np.uint64(0)
        for i in range(length & 7):
            rest |= np.uint64(data[tail + i]) << np.uint64(8 * i)
    return rest | (np.uint64(length & 0xFF) << np.uint64(56))


@inlined_kernel
def siphash_1_3_128(
    data: NDArray[np.uint8], start: int, length: int, key_low: int, key_high: int
) -> tuple[int, int]:
    """Return the two 64-bit halves of a message's SipHash-1-3. The message is data[start : start
    + length]."""
    v0 = np.uint64(key_low) ^ _SIP_0
    v1 = np.uint64(key_high) ^ _SIP_1
    v2 = np.uint64(key_low) ^ _SIP_2
    v3 = np.uint64(key_high) ^ _SIP_3
    words = length // 8
    for i in range(words):
        word = np.uint64(load_word(data, start + 8 * i))
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
    last = _last_word(data, start, length)
    v3 ^= last
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= last
    v2 ^= np.uint64(SIP_LOW)
    for _ in range(SIP_LAST_ROUNDS):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(SIP_HIGH)
    for _ in range(SIP_LAST_ROUNDS):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@inlined_kernel
def _can_share_lanes(
    data: NDArray[np.uint8], start: NDArray[np.uint64], length: NDArray[np.uint64], first: int
) -> bool:
    """Whether LANES messages from first on can share vector lanes. All must have as many words,
    and 8 bytes of data behind them."""
    words = length[first] >> np.uint64(3)
    is_same = True
    for i in range(first, first + LANES):
        is_same &= length[i] >> np.uint64(3) == words
        is_same &= np.int64(start[i] + words * np.uint64(8)) <= data.size - 8
    return is_same


@kernel
def siphash_each(
    data: NDArray[np.uint8],
    start: NDArray[np.uint64],
    length: NDArray[np.uint64],
    first: int,
    end: int,
    key_low: int,
    key_high: int,
) -> None:
    """Hash the messages first to end of data. The halves of each hash replace its start and length.

    Args:
        data: uint8[n].
        start: uint64[>= end], by message its first byte.
        length: uint64[>= end], its bytes.
        key_low: Lower half of the hash key.
        key_high: Upper half.
    """
    for group in range(first, end, LANES):
        if group + LANES <= end and _can_share_lanes(data, start, length, group):
            words = np.int64(length[group] >> np.uint64(3))
            hash_lanes(data, start, length, group, words, key_low, key_high)
            continue
        for i in range(group, min(group + LANES, end)):
            start[i], length[i] = siphash_1_3_128(
                data, np.int64(start[i]), np.int64(length[i]), key_low, key_high
            )


@kernel
def _md5_word(data: NDArray[np.uint8], start: int, length: int, at: int, padded: int) -> int:
    """Return the little-endian 32-bit word at byte `at` of the padded message."""
    word = np.uint32(0)
    for i in range(4):
        k = at + i
        if k < length:
            byte = np.uint32(data[start + k])
        elif k == length:
            byte = np.uint32(0x80)
        elif k >= padded - _MD5_LENGTH_BYTES:
            shift = np.uint64(8 * (k - (padded - _MD5_LENGTH_BYTES)))
            byte = np.uint32(((np.uint64(length) * np.uint64(8)) >> shift) & np.uint64(0xFF))
        else:
            byte = np.uint32(0)
        word |= byte << np.uint32(8 * i)
    return word


@kernel
def md5_128(
    data: NDArray[np.uint8], start: int, length: int, words: NDArray[np.uint32]
) -> tuple[int, int]:
    """Return the two little-endian 64-bit halves of a message's MD5. The message is data[start :
    start + length].

    Args:
        data: uint8[n].
        words: uint32[MD5_WORDS], scratch space.
    """
    a0 = np.uint32(0x67452301)
    b0 = np.uint32(0xEFCDAB89)
    c0 = np.uint32(0x98BADCFE)
    d0 = np.uint32(0x10325476)
    padded = ((length + _MD5_LENGTH_BYTES) // _MD5_BLOCK + 1) * _MD5_BLOCK
    for block in range(0, padded, _MD5_BLOCK):
        for w in range(MD5_WORDS):
            words[w] = _md5_word(data, start, length, block + 4 * w, padded)
        a, b, c, d = a0, b0, c0, d0
        for i in range(64):
            if i < 16:
                mixed = (b & c) | (~b & d)
                g = i
            elif i < 32:
                mixed = (d & b) | (~d & c)
                g = (5 * i + 1) & 15
            elif i < 48:
                mixed = b ^ c ^ d
                g = (3 * i + 5) & 15
            else:
                mixed = c ^ (b | ~d)
                g = (7 * i) & 15
            total = np.uint32(mixed + a + _MD5_SINES[i] + words[g])
            shift = _MD5_SHIFTS[i]
            a, d, c = d, c, b
            b = np.uint32(b + ((total << shift) | (total >> (np.uint32(32) - shift))))
        a0 = np.uint32(a0 + a)
        b0 = np.uint32(b0 + b)
        c0 = np.uint32(c0 + c)
        d0 = np.uint32(d0 + d)
    low = (np.uint64(b0) << np.uint64(32)) | np.uint64(a0)
    high = (np.uint64(d0) << np.uint64(32)) | np.uint64(c0)
    return low, high
