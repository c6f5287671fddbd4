"""One segment as a listing and its small files describe it."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.index.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """What is known of a segment without its records.

    Attributes:
        base_offset: Lower bound of its offsets; names its files.
        log_file: Name of the file that holds its records now. After a crash inside a swap this
            may be a ``.swap`` file, which the load operations rename.
        offset_index_file: Name of the file that holds its offset index now.
        size_bytes: Length of the records file.
        modified_ms: Its last modification, epoch milliseconds.
        offset_index_bytes: Length of the offset index, whole entries only.
        time_index_bytes: Length of the time index, whole entries only.
        max_timestamp: Of the last time index entry, NO_TIMESTAMP where there is none.
        first_batch_timestamp: Largest timestamp of the first batch, NO_TIMESTAMP where there is
            none or it was not asked for.
        aborted: Its transaction index.
        has_txn_index: Whether it has a transaction index file, an empty one included.
    """

    base_offset: int
    log_file: str
    offset_index_file: str
    size_bytes: int
    modified_ms: int
    offset_index_bytes: int
    time_index_bytes: int
    max_timestamp: int
    first_batch_timestamp: int
    aborted: tuple[AbortedTxn, ...]
    has_txn_index: bool

    @property
    def largest_timestamp(self) -> int:
        """Age of the segment's newest record: by the time index, else by the file."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms


def segments_from(base_offsets: Sequence[int], offset: int) -> Sequence[int]:
    """Return the segments that may hold an offset or what follows it, as Kafka chooses them.

    Args:
        base_offsets: Of all segments, ascending.
        offset: Below the first segment it means all of them.
    """
    return base_offsets[max(0, bisect_right(base_offsets, offset) - 1) :]
