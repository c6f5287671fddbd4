"""Keep hashes of keys from pass one for pass two. Pass two puts those of the records that stay into
sidecars.

What is not kept costs the next round something, and nothing else: it hashes those keys again.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.maintenance.compaction.offset_map import KeyBlock

# The most that is kept: 320 MB of them.
KEPT_HASHES: Final = 16_000_000


# Ordinals, and the halves of their hashes.
_Part = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]


class KeptHashes:
    """Hashes of keys by segment and ordinal, up to a limit. Later ones are not kept where there is
    no room.

    Args:
        limit: The most to keep, at least 0.
    """

    def __init__(self, limit: int = 0) -> None:
        self._left = limit
        self._parts: dict[int, list[_Part]] = {}

    def put(self, base_offset: int, keys: KeyBlock, first_rank: int) -> None:
        """Keep the hashes of some batches of a segment. The ranks of the segment begin at
        first_rank."""
        if self._left <= 0:
            # The segment's ordinals would have holes.
            self._parts.pop(base_offset, None)
            return
        self._left -= keys.count
        here = slice(keys.count)
        part = (
            keys.rank[here] - first_rank,
            keys.low[here].copy(),
            keys.high[here].copy(),
        )
        self._parts.setdefault(base_offset, []).append(part)

    def take(
        self, base_offset: int, record_count: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
        """Return and forget the hashes of a segment's records. None where not all of them were
        kept.

        Returns:
            (low, high): uint64[record_count], by ordinal; 0 for a record that was not hashed.
        """
        parts = self._parts.pop(base_offset, None)
        if parts is None:
            return None
        halves = np.zeros((2, record_count), np.uint64)
        for ordinal, low, high in parts:
            if not ordinal.size:
                continue
            place: NDArray[np.int64] | slice = ordinal
            if ordinal[-1] - ordinal[0] == ordinal.size - 1:
                place = slice(int(ordinal[0]), int(ordinal[-1]) + 1)  # copied at once
            halves[0, place], halves[1, place] = low, high
        return halves[0], halves[1]
