"""What a consumer with ``isolation.level=read_committed`` gets to see of a log's batches."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from storage_core.index.transaction_index import AbortedTxn
from storage_core.log.transaction_tracker import TransactionRows, TransactionTracker
from storage_core.records.batch_table import BatchTable


class ReadCommitted:
    """Leaves out control batches and the batches of aborted transactions.

    The batches must come in offset order, from the first that the aborted transactions given
    reach into. Where to stop, at the last stable offset, is the caller's business.

    Args:
        aborted: Aborted transactions that reach into the range that is read.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._tracker = TransactionTracker()
        self._tracker.add_aborted(aborted)

    def visible(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return which of the next batches a consumer sees."""
        rows, transactions = TransactionRows.select(batches)
        discard, _ = self._tracker.decide(transactions)
        visible = ~batches.is_control
        visible[rows[discard]] = False
        return visible
