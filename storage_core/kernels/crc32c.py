"""CRC-32C (Castagnoli) over a range of a buffer."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import HAS_CRC_INSTRUCTION, crc32c_word, load_word
from storage_core.kernels._jit import kernel

_POLYNOMIAL: Final = 0x82F63B78


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE: Final = _table()


@kernel
def crc32c_by_table(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buffer[start:end], a byte at a time, on any CPU."""
    crc = np.uint32(0xFFFFFFFF)
    for position in range(start, end):
        crc = _TABLE[(crc ^ np.uint32(buffer[position])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return int(crc ^ np.uint32(0xFFFFFFFF))


@kernel
def crc32c_by_instruction(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buffer[start:end], eight bytes an instruction."""
    register = np.uint64(0xFFFFFFFF)
    position = start
    while position + 8 <= end:
        register = np.uint64(crc32c_word(register, load_word(buffer, position)))
        position += 8
    crc = np.uint32(register)
    while position < end:
        crc = _TABLE[(crc ^ np.uint32(buffer[position])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        position += 1
    return int(crc ^ np.uint32(0xFFFFFFFF))


crc32c = crc32c_by_instruction if HAS_CRC_INSTRUCTION else crc32c_by_table
