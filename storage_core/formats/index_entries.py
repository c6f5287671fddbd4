"""Entries of a segment's three indexes, big-endian. An index file is an array of entries, without a
header.

Offset and time index hold offsets relative to the segment's base offset. An index of a broker
that did not close cleanly is preallocated and ends in zero entries.
"""

from typing import Final

import numpy as np

# One entry of <base_offset>.index, strictly increasing in both columns.
OFFSET_INDEX_ENTRY: Final = np.dtype(
    [
        ("relative_offset", ">i4"),  # last offset of the batch minus the segment's base offset
        ("position", ">i4"),  # byte position of that batch in the .log
    ]
)

# One entry of <base_offset>.timeindex: no record at or before the offset is newer.
TIME_INDEX_ENTRY: Final = np.dtype(
    [
        ("timestamp", ">i8"),  # largest timestamp so far, strictly increasing
        ("relative_offset", ">i4"),  # last offset of the batch that holds it, minus the base
    ]
)

# One entry of <base_offset>.txnindex, written when an abort marker passes.
TXN_INDEX_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),  # of the marker, strictly increasing
        ("last_stable_offset", ">i8"),  # after the end of this transaction
    ]
)
TXN_INDEX_VERSION: Final = 0
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
