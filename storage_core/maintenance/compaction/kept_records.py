"""Keep decompressed records from pass one for pass two. They are kept while there is room.

Pass two needs the batches again of which some records stay. Where both passes run in one process it
asks here first; what it does not find it decompresses once more.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import Codec
from storage_core.kernels.record_scan import EXPANDED, IN_WINDOW
from storage_core.records.batch_table import BatchNotes
from storage_core.records.payload import Payload
from storage_core.records.reader import Window

# The most that is kept between the passes. Later batches have more records that stay, so the
# earlier ones go first.
KEPT_BYTES: Final = 128 * 1024 * 1024
# And how many times the bytes of a log: small ones are cleaned many at a time, and a few bytes may
# expand to very many.
KEPT_RATIO: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptBatches:
    """A payload's facts about the batches of a window, without the window."""

    # int64[batches], where they begin, counted from the window's first byte.
    position: NDArray[np.int64]
    size: NDArray[np.int64]  # int64[batches], how many bytes they have
    arena: NDArray[np.uint8]  # uint8[], as in Payload
    place: NDArray[np.int64]  # int64[batches], as in BatchNotes; the next two, too
    records_start: NDArray[np.int64]  # int64[batches]
    records_end: NDArray[np.int64]  # int64[batches]


class KeptRecords:
    """Decompressed records of whole windows, by file and position. The first ones go first.

    Any thread may take what one has put.

    Args:
        limit_bytes: The most to keep, at least 0.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[tuple[str, int], _KeptBatches] = OrderedDict()
        self._taking = threading.Lock()

    def put(self, payload: Payload) -> bool:
        """Keep a payload; return whether its arena was taken over. Such an arena may not be used
        again.

        Only one that has all of a window and nothing of the formats before v2 is kept.
        """
        window = payload.window
        size = payload.arena.size
        is_whole = payload.first_row == 0 and payload.end_row == len(window.batches)
        is_plain = bool((payload.notes.place <= EXPANDED).all())
        if not size or size > self._limit_bytes or not (is_whole and is_plain):
            return False
        while self._used_bytes + size > self._limit_bytes:
            _, gone = self._entries.popitem(last=False)
            self._used_bytes -= gone.arena.size
        self._used_bytes += size
        self._entries[window.file, window.file_position] = _KeptBatches(
            # The window's table is overwritten by the next one's.
            position=window.batches.position.copy(),
            size=window.batches.size.copy(),
            arena=payload.arena,
            place=payload.notes.place.copy(),
            records_start=payload.notes.records_start.copy(),
            records_end=payload.notes.records_end.copy(),
        )
        return True

    def take(self, window: Window, wanted: NDArray[np.bool_], notes: BatchNotes) -> Payload | None:
        """Return and forget the wanted batches of a window. None where one of them was not kept.

        Args:
            wanted: bool[batches].
            notes: Those of the window, to which the places of the records are added.
        """
        place = window.file, window.file_position
        entry = self._entries.get(place)
        batches = window.batches
        if (
            entry is None
            or not np.array_equal(entry.position, batches.position)
            or not np.array_equal(entry.size, batches.size)
        ):
            return None
        is_compressed = (batches.codec != Codec.NONE) & (batches.record_count != 0)
        is_missing = batches.is_legacy | (is_compressed & (entry.place == IN_WINDOW))
        if (wanted & is_missing).any():
            return None
        with self._taking:
            self._used_bytes -= self._entries.pop(place).arena.size
        notes.place[:] = entry.place
        notes.records_start[:] = entry.records_start
        notes.records_end[:] = entry.records_end
        payload = Payload(
            window=window,
            batches=batches,
            first_row=0,
            end_row=len(batches),
            arena=entry.arena,
            notes=notes,
        )
        payload.check_counts(wanted)
        return payload
