"""Which batches belong to aborted transactions, and which markers have lost their transaction.

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


@kernel
def track_transactions(  # arrays side by side
    producer: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    is_transactional: NDArray[np.uint8],
    is_control: NDArray[np.uint8],
    control_type: NDArray[np.int64],
    pending_first_offset: NDArray[np.int64],
    pending_producer: NDArray[np.int64],
    pending_entry: NDArray[np.int64],
    pending_next: int,
    ongoing_aborted: NDArray[np.int64],
    was_seen: NDArray[np.uint8],
    ongoing_committed: NDArray[np.uint8],
    discard: NDArray[np.uint8],
    ended: NDArray[np.int64],
) -> int:
    """Decide for batches that are transactional or control, in offset order.

    Args:
        producer: int64[n], dense number of each batch's producer.
        last_offset: int64[n].
        is_transactional: uint8[n].
        is_control: uint8[n].
        control_type: int64[n], of control batches.
        pending_first_offset: int64[m], first offsets of the aborted transactions, ascending.
        pending_producer: int64[m], their producers.
        pending_entry: int64[m], what the caller knows them by.
        pending_next: How many of them are consumed already.
        ongoing_aborted: int64[producers], the entry that a producer is in, or NO_TXN.
        was_seen: uint8[producers], whether a data batch of that entry passed.
        ongoing_committed: uint8[producers], whether a data batch of a committed one passed.
        discard: uint8[n], out: whether nothing refers to the batch any more.
        ended: int64[n], out: the entry whose abort marker this batch is and of which a
            data batch was seen, else NO_TXN.

    Returns:
        pending_next as it is after the last batch.
    """
    for row in range(producer.size):
        while (
            pending_next < pending_first_offset.size
            and pending_first_offset[pending_next] <= last_offset[row]
        ):
            holder = pending_producer[pending_next]
            if ongoing_aborted[holder] == NO_TXN:
                ongoing_aborted[holder] = pending_entry[pending_next]
                was_seen[holder] = 0
            pending_next += 1
        who = producer[row]
        ended[row] = NO_TXN
        discard[row] = 0
        if is_control[row]:
            if control_type[row] == NO_CONTROL_RECORD:
                discard[row] = 1
            elif control_type[row] == ABORT:
                entry = ongoing_aborted[who]
                ongoing_aborted[who] = NO_TXN
                if entry != NO_TXN and was_seen[who]:
                    ended[row] = entry
                else:
                    discard[row] = 1
            elif control_type[row] == COMMIT:
                discard[row] = 0 if ongoing_committed[who] else 1
                ongoing_committed[who] = 0
        elif is_transactional[row]:
            if ongoing_aborted[who] != NO_TXN:
                was_seen[who] = 1
                discard[row] = 1
            else:
                ongoing_committed[who] = 1
    return pending_next
