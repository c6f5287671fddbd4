"""Find the next batch behind bytes that are none.

What is found is sure: its checksum is right, and its offsets are in order. A batch in a record's
value has these, too: so where a length leads to the next batch, that is to be believed first.
"""

from typing import Final

import numpy as np

from storage_core.errors import BadBytesError
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT, HEADER_BYTES, LENGTH_OVERHEAD
from storage_core.records.header_search import possible_headers, read_numbers
from storage_core.records.reader import CrcCheck, Large, Tail, scan_windows
from storage_core.store.base import FileReader

_LOOK_BYTES: Final = 1 << 20
# What looks like headers may claim to be long: so often as much as there is is read for them.
_MOST_READS: Final = 4


class BatchFinder:
    """Searches a segment for v2 batches, byte by byte.

    Args:
        stop: Nothing counts that does not end before.
    """

    def __init__(self, reader: FileReader, stop: int) -> None:
        self._reader = reader
        self._stop = stop
        self._budget = _MOST_READS * stop
        self._data = np.empty(min(_LOOK_BYTES, stop), np.uint8)

    def find(self, position: int, first_offset: int, end_offset: int) -> int | None:
        """Return where the next batch begins, None without one.

        Args:
            end_offset: Nor is it this, or above.
        """
        while position + HEADER_BYTES <= self._stop:
            rest = self._stop - position
            look = self._data[: min(self._data.size, rest)]
            look = look[: self._reader.read_into(position, look)]
            if look.size < HEADER_BYTES:  # the file was longer when it was opened
                return None
            places = possible_headers(look, rest)
            bases = read_numbers(look, places, 8)
            places = places[(bases >= first_offset) & (bases < end_offset)]
            sizes = read_numbers(look, places + BATCH_LENGTH_AT, 4) + LENGTH_OVERHEAD
            for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
                self._budget -= size
                if self._budget < 0:
                    return None
                start: int = position + place
                if self.is_batch(start, start + size):
                    return start
            # A header may lie across the end of what was looked at.
            position += look.size - HEADER_BYTES + 1
        return None

    def is_batch(self, start: int, end: int | None = None) -> bool:
        """Tell whether a batch with a right checksum begins at a position.

        Args:
            end: Where it ends at most; None for the finder's own end.
        """
        try:
            windows = scan_windows(
                self._reader,
                start=start,
                end=self._stop if end is None else end,
                window_bytes=HEADER_BYTES,
                crc=CrcCheck.NOTE,
                tail=Tail.STOP,
                large=Large.HEADER,
            )
            window = next(windows, None)
            return window is not None and int(window.batches.crc_ok[0]) == 1
        except BadBytesError:
            return False
