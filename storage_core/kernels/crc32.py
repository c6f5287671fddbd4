"""CRC-32 (IEEE 802.3) over a range of a buffer. Messages before format v2 have this checksum."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import load_word
from storage_core.kernels._jit import kernel

_POLYNOMIAL: Final = 0xEDB88320
_SLICES: Final = 16


def _tables() -> NDArray[np.uint32]:
    """Return uint32[16, 256], the effects of bytes on the register. Row i is for a byte with i
    others after it."""
    tables = np.empty((_SLICES, 256), np.uint32)
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    tables[0] = table
    for i in range(1, _SLICES):
        tables[i] = (tables[i - 1] >> 8) ^ tables[0][tables[i - 1] & 0xFF]
    return tables


_TABLES: Final = _tables()


@kernel
def crc32(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32 of buffer[start:end], sixteen bytes a step. Each of the sixteen has a
    table of its own."""
    crc = np.uint32(0xFFFFFFFF)
    position = start
    mask = np.uint64(0xFF)
    while position + _SLICES <= end:
        low = np.uint64(load_word(buffer, position)) ^ np.uint64(crc)
        high = np.uint64(load_word(buffer, position + 8))
        crc = (
            _TABLES[15, low & mask]
            ^ _TABLES[14, (low >> np.uint64(8)) & mask]
            ^ _TABLES[13, (low >> np.uint64(16)) & mask]
            ^ _TABLES[12, (low >> np.uint64(24)) & mask]
            ^ _TABLES[11, (low >> np.uint64(32)) & mask]
            ^ _TABLES[10, (low >> np.uint64(40)) & mask]
            ^ _TABLES[9, (low >> np.uint64(48)) & mask]
            ^ _TABLES[8, low >> np.uint64(56)]
            ^ _TABLES[7, high & mask]
            ^ _TABLES[6, (high >> np.uint64(8)) & mask]
            ^ _TABLES[5, (high >> np.uint64(16)) & mask]
            ^ _TABLES[4, (high >> np.uint64(24)) & mask]
            ^ _TABLES[3, (high >> np.uint64(32)) & mask]
            ^ _TABLES[2, (high >> np.uint64(40)) & mask]
            ^ _TABLES[1, (high >> np.uint64(48)) & mask]
            ^ _TABLES[0, high >> np.uint64(56)]
        )
        position += _SLICES
    while position < end:
        crc = _TABLES[0, (crc ^ np.uint32(buffer[position])) & np.uint32(0xFF)] ^ (
            crc >> np.uint32(8)
        )
        position += 1
    return int(crc ^ np.uint32(0xFFFFFFFF))
