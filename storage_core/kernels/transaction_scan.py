"""Find batches of aborted transactions, and markers without their transaction.

The rules are those of the cleaner's CleanedTransactionMetadata, over arrays: producers and aborted
transactions are dense numbers that the caller assigns, and all state that lasts from one block of
batches to the next lies in arrays that the caller keeps.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.control import NO_CONTROL_RECORD
from storage_core.kernels._jit import kernel

NO_TXN: Final = -1
ABORT: Final = 0
COMMIT: Final = 1

# Columns of batches, int64[ROW_COLUMNS, n]: those that are transactional or control.
ROW_PRODUCER_ID: Final = 0
ROW_LAST_OFFSET: Final = 1
ROW_KIND: Final = 2  # type of a control batch, or DATA
ROW_COLUMNS: Final = 3
DATA: Final = -(2**16)  # a control type has 16 bits

# Columns of aborted transactions, int64[PENDING_COLUMNS, m], their first offsets ascending.
PENDING_FIRST_OFFSET: Final = 0
PENDING_PRODUCER: Final = 1
PENDING_ENTRY: Final = 2  # what the caller knows them by
PENDING_COLUMNS: Final = 3

# Columns of producers, int64[PRODUCER_COLUMNS, producers].
PRODUCER_ABORTED_ENTRY: Final = 0  # the entry that a producer is in, or NO_TXN
PRODUCER_HAS_ABORTED_DATA: Final = 1  # whether a data batch of that entry passed
PRODUCER_HAS_COMMITTED_DATA: Final = 2  # whether a data batch of a committed transaction passed
PRODUCER_COLUMNS: Final = 3


@kernel
def track_transactions(
    rows: NDArray[np.int64],
    row_producer: NDArray[np.int64],
    pending: NDArray[np.int64],
    pending_next: int,
    producers: NDArray[np.int64],
    discard: NDArray[np.uint8],
    ended: NDArray[np.int64],
) -> int:
    """Decide for batches that are transactional or control, in offset order.

    Args:
        rows: int64[ROW_COLUMNS, n].
        row_producer: int64[n], dense number of each batch's producer.
        pending: int64[PENDING_COLUMNS, m].
        pending_next: How many of them are consumed already.
        producers: int64[PRODUCER_COLUMNS, producers].
        discard: uint8[n], out: whether nothing refers to the batch any more.
        ended: int64[n], out: the entry whose abort marker this batch is and of which a data batch
            was seen, else NO_TXN.

    Returns:
        pending_next as it is after the last batch.
    """
    for row in range(rows.shape[1]):
        while (
            pending_next < pending.shape[1]
            and pending[PENDING_FIRST_OFFSET, pending_next] <= rows[ROW_LAST_OFFSET, row]
        ):
            holder = pending[PENDING_PRODUCER, pending_next]
            if producers[PRODUCER_ABORTED_ENTRY, holder] == NO_TXN:
                producers[PRODUCER_ABORTED_ENTRY, holder] = pending[PENDING_ENTRY, pending_next]
                producers[PRODUCER_HAS_ABORTED_DATA, holder] = 0
            pending_next += 1
        who = row_producer[row]
        kind = rows[ROW_KIND, row]
        ended[row] = NO_TXN
        discard[row] = 0
        if kind == DATA:
            if producers[PRODUCER_ABORTED_ENTRY, who] != NO_TXN:
                producers[PRODUCER_HAS_ABORTED_DATA, who] = 1
                discard[row] = 1
            else:
                producers[PRODUCER_HAS_COMMITTED_DATA, who] = 1
        elif kind == NO_CONTROL_RECORD:
            discard[row] = 1
        elif kind == ABORT:
            entry = producers[PRODUCER_ABORTED_ENTRY, who]
            producers[PRODUCER_ABORTED_ENTRY, who] = NO_TXN
            if entry != NO_TXN and producers[PRODUCER_HAS_ABORTED_DATA, who]:
                ended[row] = entry
            else:
                discard[row] = 1
        elif kind == COMMIT:
            discard[row] = 0 if producers[PRODUCER_HAS_COMMITTED_DATA, who] else 1
            producers[PRODUCER_HAS_COMMITTED_DATA, who] = 0
    return pending_next
