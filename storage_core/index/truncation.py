"""Cutting the indexes of a segment to what lies below an offset."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.slot_search import find_slots
from storage_core.index.transaction_index import AbortedTxn


def truncate_offset_index(base_offset: int, data: bytes, offset: int) -> bytes:
    """Return the entries of an offset index below an offset, a ragged tail left out."""
    return _truncate(base_offset, data, offset, OFFSET_INDEX_ENTRY)


def truncate_time_index(base_offset: int, data: bytes, offset: int) -> bytes:
    """Return the entries of a time index whose offsets lie below an offset."""
    return _truncate(base_offset, data, offset, TIME_INDEX_ENTRY)


def truncate_aborted(aborted: Sequence[AbortedTxn], offset: int) -> tuple[AbortedTxn, ...]:
    """Return the entries of a transaction index before the first that ends at offset or later."""
    kept = next(
        (row for row, entry in enumerate(aborted) if entry.last_offset >= offset), len(aborted)
    )
    return tuple(aborted[:kept])


def _truncate(base_offset: int, data: bytes, offset: int, entry: np.dtype[np.void]) -> bytes:
    count = len(data) // entry.itemsize
    column: NDArray[np.int32] = np.frombuffer(data, entry, count)["relative_offset"]
    relative = offset - base_offset
    slot = find_slots(column, relative, entry_bytes=entry.itemsize).at_or_below
    if slot >= 0 and int(column[slot]) != relative:
        slot += 1
    return data[: max(slot, 0) * entry.itemsize]
