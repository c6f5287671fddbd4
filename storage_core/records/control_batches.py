"""Control batches that a broker writes on its own."""

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_LEADER_EPOCH
from storage_core.formats.control import CONTROL_KEY, END_TXN_VALUE, ControlType
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.new_records import ByteColumn, NewRecords


def end_txn_marker(  # noqa: PLR0913 - what a marker says
    *,
    producer_id: int,
    producer_epoch: int,
    is_abort: bool,
    timestamp: int,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> NDArray[np.uint8]:
    """Return the batch with the marker that ends a transaction.

    Args:
        producer_id: Whose transaction it is.
        producer_epoch: Its epoch; with transaction version 2 one more than its last batch had.
        is_abort: Whether it aborts; else it commits.
        timestamp: Epoch milliseconds.
        coordinator_epoch: Of the transaction coordinator.
        base_offset: Its offset; a leader gives it another.
        leader_epoch: Of the partition; a leader writes its own.
    """
    key = np.zeros(1, CONTROL_KEY)
    key["type"] = ControlType.ABORT if is_abort else ControlType.COMMIT
    value = np.zeros(1, END_TXN_VALUE)
    value["coordinator_epoch"] = coordinator_epoch
    records = NewRecords.of(
        keys=_column(key.tobytes()),
        values=_column(value.tobytes()),
        timestamps=np.array([timestamp], np.int64),
    )
    settings = BatchSettings(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    return build_all(records, settings).data


def _column(content: bytes) -> ByteColumn:
    data = np.frombuffer(content, np.uint8)
    return ByteColumn.of_offsets(data, np.array([0, data.size]))
