"""List producer events of batches, one column of numbers each. An event says what a batch means
for its producer."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    CONTROL_BIT,
    MAGIC_V2,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from storage_core.kernels import batch_scan
from storage_core.kernels._jit import kernel

# Rows of an event table, int64[COLUMN_COUNT, n]: one event a column, in the order of first batches.
PRODUCER_ID: Final = 0
PRODUCER_EPOCH: Final = 1
CONTROL_TYPE: Final = 2  # NOT_A_MARKER, or as the column of batches
IS_TRANSACTIONAL: Final = 3
POSITION: Final = 4  # of the first batch in its file
FIRST_OFFSET: Final = 5  # base offset of the first batch
LAST_OFFSET: Final = 6  # of the last batch, as what follows
OFFSET_DELTA: Final = 7
LAST_SEQUENCE: Final = 8
TIMESTAMP: Final = 9
COORDINATOR_EPOCH: Final = 10
COLUMN_COUNT: Final = 11

NOT_A_MARKER: Final = -1_000


@kernel
def list_events(batches: NDArray[np.int64], file_position: int, events: NDArray[np.int64]) -> int:
    """List one event for each batch with a producer id.

    Args:
        batches: int64[batch_scan.COLUMN_COUNT, n], in file order; legacy ones have no producer.
        events: int64[COLUMN_COUNT, n], out.

    Returns:
        How many events there are.
    """
    count = 0
    for row in range(batches.shape[1]):
        producer_id = batches[batch_scan.PRODUCER_ID, row]
        if producer_id <= NO_PRODUCER_ID or batches[batch_scan.MAGIC, row] < MAGIC_V2:
            continue
        attributes = batches[batch_scan.ATTRIBUTES, row]
        first_offset = batches[batch_scan.BASE_OFFSET, row]
        last_offset = batches[batch_scan.LAST_OFFSET, row]
        base_sequence = batches[batch_scan.BASE_SEQUENCE, row]
        offset_delta = last_offset - first_offset
        control_type = NOT_A_MARKER
        timestamp = batches[batch_scan.MAX_TIMESTAMP, row]
        if attributes & CONTROL_BIT:
            control_type = batches[batch_scan.CONTROL_TYPE, row]
            # With the broker's time the header has it, whatever the record says.
            if not attributes & TIMESTAMP_TYPE_BIT:
                timestamp = batches[batch_scan.MARKER_TIMESTAMP, row]
        last_sequence = NO_SEQUENCE
        if base_sequence != NO_SEQUENCE:  # sequences wrap past MAX_SEQUENCE to 0
            last_sequence = (base_sequence + offset_delta) & MAX_SEQUENCE
        events[PRODUCER_ID, count] = producer_id
        events[PRODUCER_EPOCH, count] = batches[batch_scan.PRODUCER_EPOCH, row]
        events[CONTROL_TYPE, count] = control_type
        events[IS_TRANSACTIONAL, count] = 1 if attributes & TRANSACTIONAL_BIT else 0
        events[POSITION, count] = batches[batch_scan.POSITION, row] + file_position
        events[FIRST_OFFSET, count] = first_offset
        events[LAST_OFFSET, count] = last_offset
        events[OFFSET_DELTA, count] = offset_delta
        events[LAST_SEQUENCE, count] = last_sequence
        events[TIMESTAMP, count] = timestamp
        events[COORDINATOR_EPOCH, count] = batches[batch_scan.COORDINATOR_EPOCH, row]
        count += 1
    return count
