"""Guess where a v2 batch begins in the middle of a segment. Nobody has read the segment's
beginning.

Only whoever goes from batch to batch knows where the next one begins; what looks like a header may
lie in a record's value. So what is found here is a guess, and who uses it has to prove it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
)
from storage_core.kernels.batch_scan import COLUMN_COUNT, scan_batches
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import FileReader

# Three batches of a producer's default size fit in the first look, in the second those of the
# largest that a broker takes by default.
_LOOKS_BYTES: Final = (1 << 16, 4 << 20)
# Tries in one look: bytes may be made to look like headers, one beside the other.
_MOST_TRIES: Final = 64
# So many that follow each other are hardly chance.
_IN_A_ROW: Final = 2


def possible_headers(data: NDArray[np.uint8], remaining_bytes: int) -> NDArray[np.int64]:
    """Return where headers may begin whose fields make sense, in order.

    Args:
        data: uint8[n], bytes of a segment.
        remaining_bytes: How many bytes the segment has from ``data[0]`` on; a batch has to end
            within them.

    Returns:
        int64[m], positions in data, with a whole header behind each.
    """
    starts = max(0, data.size - HEADER_BYTES + 1)
    magics = data[MAGIC_AT : MAGIC_AT + starts]
    # Only the low byte of the attributes is in use.
    unused = data[ATTRIBUTES_AT : ATTRIBUTES_AT + starts]
    places = np.flatnonzero((magics == MAGIC_V2) & (unused == 0))
    sizes = read_numbers(data, places + BATCH_LENGTH_AT, 4) + LENGTH_OVERHEAD
    is_sane = (sizes >= HEADER_BYTES) & (sizes <= remaining_bytes - places)
    return places[is_sane]


def read_numbers(
    data: NDArray[np.uint8], places: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """Return the signed big-endian numbers of width bytes at the places."""
    sign = data[places].astype(np.int8).astype(np.int64)
    number = sign
    for step in range(1, width):
        number = (number << 8) | data[places + step]
    return number


def guess_batch_start(reader: FileReader, position: int, stop: int) -> int | None:
    """Return the likely start of a batch near a position. It is at the position or a little behind
    it.

    Args:
        stop: Nothing counts that does not end before.

    Returns:
        A position from which whole batches with rising offsets follow each other; None where none
        was found near by, as among batches of old formats or of many megabytes.
    """
    table = np.empty((COLUMN_COUNT, _IN_A_ROW), np.int64)
    for look_bytes in _LOOKS_BYTES:
        data = np.empty(min(look_bytes, stop - position), np.uint8)
        data = data[: reader.read_into(position, data)]
        places = possible_headers(data, data.size)
        tries: list[int] = places[:_MOST_TRIES].tolist()
        for place in tries:
            count, _, _ = scan_batches(data, place, data.size, table)
            batches = BatchTable(table)
            is_next = batches.base_offset[1:] > batches.last_offset[:-1]
            if count == _IN_A_ROW and is_next.all() and (batches.magic == MAGIC_V2).all():
                return position + place
        if data.size < look_bytes:
            break
    return None
