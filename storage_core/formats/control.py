"""Control records: the single record of a control batch.

The key is ``int16 version, int16 type``; a version above 0 is read as 0. The value of an
end-transaction marker is ``int16 version, int32 coordinator_epoch``. Control records are never
handed to applications. Source: ``ControlRecordType`` and ``EndTransactionMarker`` of
``org.apache.kafka.common.record.internal``.
"""

import enum
from typing import Final

import numpy as np

from storage_core.formats.fields import field_at

CONTROL_KEY: Final = np.dtype([("version", ">i2"), ("type", ">i2")])
CONTROL_TYPE_AT: Final = field_at(CONTROL_KEY, "type")
CONTROL_KEY_BYTES: Final = CONTROL_KEY.itemsize

END_TXN_VALUE: Final = np.dtype([("version", ">i2"), ("coordinator_epoch", ">i4")])
COORDINATOR_EPOCH_AT: Final = field_at(END_TXN_VALUE, "coordinator_epoch")
END_TXN_VALUE_BYTES: Final = END_TXN_VALUE.itemsize


class ControlType(enum.IntEnum):
    """Type of a control record; other numbers count as UNKNOWN."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


# A control batch without a record: compaction emptied it.
NO_CONTROL_RECORD: Final = -2
