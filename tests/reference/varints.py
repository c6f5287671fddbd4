"""Zigzag varints, a bit at a time."""

CONTINUE_BIT = 0x80
MAX_BYTES = {32: 5, 64: 10}


class MalformedVarintError(ValueError):
    """The number has no end within its bytes, or within the bytes that there are."""


def decode_varint(data: bytes, position: int, end: int, *, bits: int = 32) -> tuple[int, int]:
    """Return (value, next position) of the zigzag varint at position.

    Bits beyond those that the number may have are dropped, as Java's shifts drop them.

    Raises:
        MalformedVarintError: None of the first 5 (32 bits) or 10 (64 bits) bytes ends it, or
            the end comes before.
    """
    zigzag = 0
    for i in range(MAX_BYTES[bits]):
        if position + i >= end:
            raise MalformedVarintError(position)
        byte = data[position + i]
        zigzag += (byte % CONTINUE_BIT) * 2 ** (7 * i)
        if byte < CONTINUE_BIT:
            zigzag %= 2**bits
            value = zigzag // 2 if zigzag % 2 == 0 else -(zigzag + 1) // 2
            return value, position + i + 1
    raise MalformedVarintError(position)


def encode_varint(value: int) -> bytes:
    """Return the zigzag varint of a number of 64 bits or fewer."""
    zigzag = 2 * value if value >= 0 else -2 * value - 1
    groups = []
    while True:
        groups.append(zigzag % CONTINUE_BIT)
        zigzag //= CONTINUE_BIT
        if zigzag == 0:
            break
    return bytes([group + CONTINUE_BIT for group in groups[:-1]] + groups[-1:])
