"""A producer snapshot, ``<next_offset>.snapshot``: a log's producers at that offset.

::

    snapshot = version crc entry_count entry*

The CRC-32C covers everything after itself. Entries stand in the iteration order of a Java hash
map of producer ids (log.producer_state). Source: ``ProducerStateManager.writeSnapshot``.
"""

from typing import Final

import numpy as np

from storage_core.formats.fields import field_at

SNAPSHOT_HEADER: Final = np.dtype([("version", ">i2"), ("crc", ">u4"), ("entry_count", ">i4")])
CRC_START: Final = field_at(SNAPSHOT_HEADER, "entry_count")

SNAPSHOT_ENTRY: Final = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),  # -1: no batch remembered
        ("last_offset", ">i8"),  # -1: no batch remembered
        ("offset_delta", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),  # -1: no transaction open
    ]
)
SNAPSHOT_VERSION: Final = 1
