"""Buffers that are used again for every window of a round.

The first touch of a page costs as much as the work on what then lies in it, so neither a segment
nor the second pass begins with new memory.
"""

from collections import deque

from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.records.batch_table import BatchNotes
from storage_core.records.codecs import Arena
from storage_core.records.reader import WindowRoom


class WindowBuffers:
    """Memory for what is made of one window.

    Attributes:
        raw: For rebuilt records before they are compressed.
    """

    def __init__(self, plan: CompactionPlan) -> None:
        self.keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self.arena = Arena()
        self.raw = Arena()
        self.packed = Arena()
        self.out = Arena()
        self._notes = BatchNotes.empty(0)

    def notes(self, count: int) -> BatchNotes:
        """Return room for the notes of the window's batches."""
        if len(self._notes) < count:
            self._notes = BatchNotes.empty(count + count // 2)
        return self._notes.rows(0, count)


class RoundBuffers:
    """The buffers of one round, used in turns. A segment goes on with them where the one before it
    ended.

    Attributes:
        windows: Where the windows themselves lie, as `scan_windows` takes them.
    """

    def __init__(self) -> None:
        self.windows: deque[WindowRoom] = deque()
        self._buffers: deque[WindowBuffers] = deque()

    def reserve(self, count: int, plan: CompactionPlan) -> None:
        """Provide buffers for so many windows, valid at the same time."""
        while len(self._buffers) < count:
            self.windows.append(WindowRoom())
            self._buffers.append(WindowBuffers(plan))

    def next(self) -> WindowBuffers:
        """Return the buffers for what is made of the next window."""
        self._buffers.rotate(-1)
        return self._buffers[-1]
