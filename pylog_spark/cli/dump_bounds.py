"""The part of a log in a dump: start, end, most records."""

from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.clock import epoch_ms
from storage_core.filenames import MAX_OFFSET
from storage_core.records.batch_table import BatchTable
from storage_core.records.columns import RecordColumns

# Whatever damaged bytes say, below what can be asked for.
_FIRST_OFFSET: Final = -(2**63)


class DumpBounds:
    """Cuts a dump to its bounds, batch after batch. Batches come in the order of their offsets.

    A time stands for the first record at or after it, as it does for a consumer.

    Args:
        start: First offset, or a time; None for the beginning.
        end: Just past the last offset, or a time; None for the end.
        most: How many records at most, at least one; None for all.

    Attributes:
        is_over: Whether nothing more is to be shown.
    """

    def __init__(
        self,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        most: int | None = None,
    ) -> None:
        self._start = start if isinstance(start, int) else _FIRST_OFFSET
        self._end = end if isinstance(end, int) else MAX_OFFSET
        self._start_ms = epoch_ms(start) if isinstance(start, datetime) else None
        self._end_ms = epoch_ms(end) if isinstance(end, datetime) else None
        self._left = most
        self._is_range = start is not None or end is not None
        self.is_over = False

    @property
    def is_range(self) -> bool:
        """Whether there is a start or an end."""
        return self._is_range

    def may_have(self, base_offset: int, next_base_offset: int | None) -> bool:
        """Whether a segment may have something that is to be shown."""
        is_before = next_base_offset is not None and next_base_offset <= self._start
        return not (self.is_over or is_before or base_offset >= self._end)

    def rows(self, batches: BatchTable) -> tuple[int, int]:
        """Return the range of batches with a possible part in the dump. It is the first of them,
        and the one behind the last."""
        if not self._is_range:
            return 0, len(batches)
        may_be = (batches.last_offset >= self._start) & batches.may_reach_below(self._end)
        if self._start_ms is not None:
            may_be &= batches.max_timestamp >= self._start_ms
        (rows,) = np.nonzero(may_be)
        if len(batches) and int(batches.base_offset[-1]) >= self._end:
            self.is_over |= not bool(batches.is_message_set[-1])
        if not rows.size:
            return 0, 0
        # Behind the first record at or after a time there are older ones, too.
        last = int(rows[-1]) if self._start_ms is None else len(batches) - 1
        return int(rows[0]), last + 1

    def cut(
        self, records: RecordColumns, first_row: int, end_row: int
    ) -> tuple[RecordColumns, int, int] | None:
        """Return the dumped part of batches: records, first batch, end.

        Args:
            records: Those of the batches that are opened, in order.

        Returns:
            None for nothing.
        """
        is_shown: NDArray[np.bool_] = np.ones(len(records), np.bool_)
        if self._is_range:
            is_shown = (records.offset >= self._start) & (records.offset < self._end)
        if self._start_ms is not None:
            is_shown &= np.logical_or.accumulate(is_shown & (records.timestamp >= self._start_ms))
            if not is_shown.any():
                return None
            self._start_ms = None
            first_row = int(records.batch[np.argmax(is_shown)])
        if self._end_ms is not None:
            is_late = np.logical_or.accumulate(is_shown & (records.timestamp >= self._end_ms))
            if is_late.any():
                end_row = self._end_at(records, is_shown & ~is_late, first_row)
                is_shown &= ~is_late
        if self._left is not None:
            is_counted = np.cumsum(is_shown) <= self._left
            self._left -= int((is_shown & is_counted).sum())
            is_shown &= is_counted
            if not self._left:
                end_row = self._end_at(records, is_shown, first_row)
        if end_row <= first_row:
            return None
        return records.select(is_shown), first_row, end_row

    def take_entry(self) -> bool:
        """Count an entry, and return whether it is shown. It is of a file without records."""
        if self._left is not None:
            if not self._left:
                return False
            self._left -= 1
        return True

    def _end_at(self, records: RecordColumns, is_shown: NDArray[np.bool_], first_row: int) -> int:
        """Mark the end; return the row behind the last shown batch."""
        self.is_over = True
        (rows,) = np.nonzero(is_shown)
        return int(records.batch[rows[-1]]) + 1 if rows.size else first_row
