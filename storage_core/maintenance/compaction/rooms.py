"""Where what is made of a segment's windows lies: memory of a round, used again for each window.

The first touch of a page costs as much as the work on what then lies in it, so neither a segment
nor the second pass begins with new memory.
"""

from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.records.codecs import Arena
from storage_core.records.reader import WindowRoom


class Room:
    """Memory for one window.

    Args:
        plan: The round.

    Attributes:
        window: For the window itself.
        keys: For keys of its records.
        arena: For what is decompressed.
        raw: For rebuilt records before they are compressed.
        packed: For what they are compressed to.
        out: For what is written.
    """

    def __init__(self, plan: CompactionPlan) -> None:
        self.window = WindowRoom()
        self.keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self.arena = Arena()
        self.raw = Arena()
        self.packed = Arena()
        self.out = Arena()


class Rooms:
    """The rooms of one round, for one segment after the other."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []

    def first(self, count: int, plan: CompactionPlan) -> list[Room]:
        """Return so many rooms, always the same ones.

        Args:
            count: How many windows are valid at the same time.
            plan: The round.
        """
        self._rooms += [Room(plan) for _ in range(count - len(self._rooms))]
        return self._rooms[:count]
