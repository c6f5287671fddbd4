"""128-bit hashes of keys: SipHash from its definition, MD5 from the standard library.

SipHash is parameterised by its rounds, because the published vectors are those of SipHash-2-4.
"""

import hashlib

WORD = 2**64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) % WORD


def _round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) % WORD
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] = (v[2] + v[3]) % WORD
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) % WORD
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) % WORD
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def siphash_128(key: bytes, data: bytes, *, rounds: int, final_rounds: int) -> bytes:
    """Return SipHash-rounds-final_rounds with 128 bits of output, as 16 bytes.

    Args:
        key: 16 bytes.
        data: The message.
        rounds: Compression rounds after each word.
        final_rounds: Rounds before each half of the output.
    """
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [
        k0 ^ int.from_bytes(b"somepseu", "big"),
        k1 ^ int.from_bytes(b"dorandom", "big") ^ 0xEE,
        k0 ^ int.from_bytes(b"lygenera", "big"),
        k1 ^ int.from_bytes(b"tedbytes", "big"),
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        for _ in range(rounds):
            _round(v)
        v[0] ^= word
    halves = []
    for place, constant in ((2, 0xEE), (1, 0xDD)):
        v[place] ^= constant
        for _ in range(final_rounds):
            _round(v)
        halves.append((v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little"))
    return b"".join(halves)


def siphash_1_3_128(key: bytes, data: bytes) -> tuple[int, int]:
    """Return the two little-endian halves of SipHash-1-3-128."""
    return halves_of(siphash_128(key, data, rounds=1, final_rounds=3))


def md5_128(data: bytes) -> tuple[int, int]:
    """Return the two little-endian halves of the MD5."""
    return halves_of(hashlib.md5(data, usedforsecurity=False).digest())


def halves_of(digest: bytes) -> tuple[int, int]:
    """Return 16 bytes as two little-endian numbers."""
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's producer chooses a partition: Murmur2, 32 bits."""
    factor, seed, word = 0x5BD1E995, 0x9747B28C, 2**32
    value = seed ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * factor % word
        part = (part ^ part >> 24) * factor % word
        value = value * factor % word ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor % word
    value = (value ^ value >> 13) * factor % word
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
