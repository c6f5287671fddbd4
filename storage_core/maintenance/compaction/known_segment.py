"""Judge a clean segment by its sidecar, to read only changed batches. A batch is read only where
something happens to it.

The sidecar stands in for pass one, which has not read the segment: the keys that the round's map
does not hold are those whose records stay, a bit each.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError
from storage_core.kernels.batch_scan import CRC_OK, POSITION
from storage_core.kernels.record_scan import HAS_TOMBSTONE
from storage_core.maintenance.compaction.index import CompactionIndex
from storage_core.maintenance.compaction.key_sidecar import KeySidecar
from storage_core.records.reader import Window

# Shorter stretches of batches to which nothing happens are read with their neighbours.
LEAST_RUN_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """Consecutive batches of a segment."""

    first_row: int
    end_row: int
    is_read: bool  # whether they are read and judged; otherwise what becomes of them is known
    stays: bool  # of those that are not read, whether they stay, every byte of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The fate of a segment's batches before any is read."""

    is_settled: NDArray[np.bool_]  # bool[batches], whether it is known what becomes of them
    stays: NDArray[np.bool_]  # bool[batches], whether they stay as they are
    # bool[batches], whether Kafka's cleaner would look at their records.
    was_read: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSegment:
    """A segment with a sidecar, asked by a round."""

    file: str
    sidecar: KeySidecar
    # uint8[batches], what pass one would have noted of them; but that a batch has tombstones is
    # left out where nothing happens to them.
    flags: NDArray[np.uint8]
    keeps_all_tombstones: NDArray[np.bool_]  # bool[batches], where that is
    words: NDArray[np.uint64]  # uint64[], the survivors' bitmap

    @classmethod
    def ask(
        cls, file: str, sidecar: KeySidecar, index: CompactionIndex, now_ms: int
    ) -> "KnownSegment":
        """Look up all keys of a segment in a round's map. The segment lies before the round's
        dirty part."""
        batches = sidecar.batches
        counts = sidecar.key_count
        words, absent = index.offset_map.mark_absent(sidecar.low, sidecar.high, counts)
        has_time = batches.has_delete_horizon & (batches.base_timestamp > now_ms)
        has_tombstone = (sidecar.flags & HAS_TOMBSTONE) != 0
        keeps_all = has_tombstone & has_time & (absent == counts)
        flags = sidecar.flags.copy()
        flags[keeps_all] &= ~np.uint8(HAS_TOMBSTONE)
        return cls(
            file=file, sidecar=sidecar, flags=flags, keeps_all_tombstones=keeps_all, words=words
        )

    def window(self) -> Window:
        """Return all batches as a window without their bytes."""
        nothing = np.empty(0, np.uint8)
        return Window(self.file, 0, nothing, self.sidecar.batches, is_whole=False)

    def rows_of(self, window: Window) -> slice:
        """Return which batches of the sidecar a window has that was read."""
        table = self.sidecar.batches
        first = int(np.searchsorted(table.position, window.file_position))
        here = slice(first, first + len(window.batches))
        expected, actual = table.columns[:, here], window.batches.columns
        if expected.shape == actual.shape:
            is_other = expected != actual
            # The position counts from the window, and whether the CRC is right is another matter.
            is_other[POSITION] = window.file_position + actual[POSITION] != expected[POSITION]
            is_other[CRC_OK] = False
            if not is_other.any():
                return here
        raise ChangedWhileReadError(
            self.file, "the batches that its key sidecar tells of", "others, after that was written"
        )


def find_stretches(size: NDArray[np.int64], foreseen: Foresight) -> list[BatchRun]:
    """Cut a segment into stretches that are read, stay, or go.

    Args:
        size: int64[batches], bytes of each.
    """
    kind = np.where(foreseen.is_settled, np.where(foreseen.stays, 1, 2), 0)
    bounds = _bounds(kind)
    run_bytes = np.add.reduceat(size, bounds[:-1]) if size.size else size
    is_short = (run_bytes < LEAST_RUN_BYTES) & (len(bounds) > 2)  # noqa: PLR2004  # one run is whole
    kind[np.repeat(is_short, np.diff(bounds))] = 0
    bounds = _bounds(kind)
    return [
        BatchRun(
            first_row=first,
            end_row=end,
            is_read=bool(kind[first] == 0),
            stays=bool(kind[first] == 1),
        )
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _bounds(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each run of one kind, and the end."""
    inner = np.flatnonzero(np.diff(kind)) + 1
    return np.concatenate([[0], inner, [kind.size]]) if kind.size else np.zeros(1, np.int64)
