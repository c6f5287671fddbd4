"""Spread pass one over processes: one partial index for each segment. The partial indexes are
merged afterwards.

A segment can be indexed without knowing the ones before it, but for one thing: whether a
transactional batch was aborted depends on what came before. The keys of the batches that may be
(their producer has an aborted transaction in the range: a *suspect*) are therefore kept apart, by
batch, until the merge has run the transaction tracker over all segments in order.

Keys are gathered in a small map, so that of the records of one key that lie near each other only
the newest goes on; a full map is emptied. What comes out may hold a key several times, once a
map: the merge keeps the largest rank.

Only rounds without a limit of keys can be spread like this (``CompactionPlan.max_keys`` is None).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from storage_core.log.loaded_log import SegmentState
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import BASE_OFFSET, IndexedSegments
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.pass_one import (
    NO_ROW,
    Choice,
    CleanPart,
    HashedBatches,
    SegmentReading,
    Stop,
)
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.reader import Window
from storage_core.store.base import LogStore

# Keys of the small map: 24 MiB of entries, and a table of 48 MiB.
CHUNK_KEYS: Final = 1 << 20

# (low, high, rank), and with the row of the batch of each.
KeyColumns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]
SuspectColumns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]

_KEY_ARRAYS: Final = {"low": np.uint64, "high": np.uint64, "rank": np.int64}
_SUSPECT_ARRAYS: Final = {
    "suspect_low": np.uint64,
    "suspect_high": np.uint64,
    "suspect_rank": np.int64,
    "suspect_row": np.int64,
}


class KeyReceiver(Protocol):
    """Where the keys of one segment go."""

    def put(self, keys: KeyColumns) -> None:
        """Take keys that count in any case."""
        ...

    def put_suspects(self, keys: SuspectColumns) -> None:
        """Take keys of batches that may turn out to be aborted."""
        ...


class SegmentKeys:
    """Takes the keys of one segment, those of suspects apart.

    Args:
        plan: The round, without a limit of keys.

    Attributes:
        suspects: Rows of suspects' batches and markers that were seen so far.
        first_dirty_row: How many of them lie before the dirty part.
    """

    clean_part = CleanPart.HEADERS
    plain_map = None

    def __init__(self, plan: CompactionPlan, receiver: KeyReceiver) -> None:
        if plan.max_keys is not None:
            raise ValueError("a round with a limit of keys cannot be spread over segments")
        self.first_dirty_row = 0
        self._receiver = receiver
        self._producers = plan.aborted_producers
        self._rows: list[TransactionRows] = []
        self._suspect_row_count = 0
        self._map = OffsetMap()

    def choose(self, window: Window, *, is_dirty: bool) -> Choice:
        """Take note of transactions; all but control batches may have keys."""
        batches = window.batches
        rows, transactions = TransactionRows.select(batches)
        self._rows.append(transactions)
        of_suspect = np.isin(batches.producer_id, self._producers)
        wanted = ~batches.is_control
        of_suspect_rows = rows[of_suspect[rows]]
        suspect_row = np.full(len(batches), NO_ROW, np.int64)
        suspect_row[of_suspect_rows] = self._suspect_row_count + np.arange(len(of_suspect_rows))
        suspect_row[~(wanted & batches.is_transactional)] = NO_ROW
        self._suspect_row_count += len(of_suspect_rows)
        if not is_dirty:
            self.first_dirty_row = self._suspect_row_count
        return Choice(wanted, suspect_row)

    def take(self, batches: HashedBatches, *, is_dirty: bool) -> Stop | None:  # noqa: ARG002  # all are alike
        """Add keys to the chunk's map; keep keys of possibly aborted batches apart. Of several
        records of one key in the map, the newest goes on."""
        keys, count = batches.keys, batches.keys.count
        low, high, rank = keys.low[:count], keys.high[:count], keys.rank[:count]
        suspect_row = batches.choice.suspect_row[batches.payload.first_row + keys.batch[:count]]
        apart = suspect_row != NO_ROW
        if apart.any():
            self._receiver.put_suspects((low[apart], high[apart], rank[apart], suspect_row[apart]))
            low, high, rank = low[~apart], high[~apart], rank[~apart]
        self._map.put(low, high, rank, len(rank))
        if len(self._map) >= CHUNK_KEYS:
            self.flush()
        return None

    def flush(self) -> None:
        """Hand on what is in the small map."""
        if len(self._map):
            self._receiver.put(self._map.entries())
            self._map = OffsetMap()

    def rows(self) -> TransactionRows:
        """Return the transactional and control batches of all windows seen."""
        return TransactionRows.concatenate(self._rows)


def rows_of_suspects(plan: CompactionPlan, rows: TransactionRows) -> TransactionRows:
    """Return the rows of producers with aborted transactions. They can tell which batches of a
    round were aborted."""
    return rows.of_producers(plan.aborted_producers)


def find_aborted(
    plan: CompactionPlan, segments: Iterable[tuple[int, TransactionRows]]
) -> Iterator[NDArray[np.bool_]]:
    """Yield, segment by segment, which rows of suspects belong to aborted transactions.

    Args:
        segments: Of each dirty segment, oldest first: how many rows lie before its dirty part, and
            all its rows of suspects. Of those before nothing is aborted.
    """
    tracker = TransactionTracker()
    tracker.add_aborted(plan.aborted_of_round)
    for first_dirty_row, rows in segments:
        discard = np.zeros(len(rows), bool)
        discard[first_dirty_row:], _ = tracker.decide(rows.rows_from(first_dirty_row))
        yield discard


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialIndex:
    """What one segment of a round says."""

    segment: IndexedSegments  # what pass one noted of it
    # Whether its keys were collected; of the others only transactions are of interest.
    is_dirty: bool
    rows: TransactionRows  # the transactional and control batches of the whole segment
    first_dirty_row: int  # how many rows of suspects lie before its dirty part
    keys: tuple[KeyColumns, ...] = ()  # its keys, in blocks; one may come several times
    # Keys of suspects' records, with the row of suspects that each belongs to.
    suspects: tuple[SuspectColumns, ...] = ()

    @property
    def base_offset(self) -> int:
        """Which segment."""
        return int(self.segment.columns[BASE_OFFSET, 0])

    def to_bytes(self) -> bytes:
        """Pack the partial index into bytes for another process. The other process belongs to
        the same run."""
        facts = {"is_dirty": self.is_dirty, "first_dirty_row": self.first_dirty_row}
        arrays = self.segment.to_arrays() | self.rows.to_arrays()
        arrays |= _join(self.keys, _KEY_ARRAYS) | _join(self.suspects, _SUSPECT_ARRAYS)
        return pack_arrays(facts, arrays)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "PartialIndex":
        """Return what to_bytes packed."""
        facts, arrays = unpack_arrays(data)
        low, high, rank = (arrays[name] for name in _KEY_ARRAYS)
        suspect_low, suspect_high, suspect_rank, row = (arrays[name] for name in _SUSPECT_ARRAYS)
        return cls(
            segment=IndexedSegments.from_arrays(arrays),
            is_dirty=facts["is_dirty"],
            rows=TransactionRows.from_arrays(arrays),
            first_dirty_row=facts["first_dirty_row"],
            keys=((low, high, rank),),
            suspects=((suspect_low, suspect_high, suspect_rank, row),),
        )


def _join(
    blocks: Iterable[KeyColumns | SuspectColumns], names: Mapping[str, type]
) -> dict[str, NDArray[Any]]:
    """Return the columns of all blocks end to end, by name."""
    listed = list(blocks)
    return {
        name: np.concatenate([np.empty(0, kind), *(block[number] for block in listed)])
        for number, (name, kind) in enumerate(names.items())
    }


class _MemoryReceiver:
    """Keeps the keys in memory."""

    def __init__(self) -> None:
        self.keys: list[KeyColumns] = []
        self.suspects: list[SuspectColumns] = []

    def put(self, keys: KeyColumns) -> None:
        self.keys.append(keys)

    def put_suspects(self, keys: SuspectColumns) -> None:
        self.suspects.append(keys)


def index_segment(
    store: LogStore,
    plan: CompactionPlan,
    segment: SegmentState,
    *,
    throttler: Throttler | None = None,
    threads: int = 1,
) -> PartialIndex:
    """Read one segment of a round.

    Args:
        plan: The round, without a limit of keys.
        throttler: Slows the reading down.
    """
    number = plan.number_of_dirty.get(segment.base_offset)
    receiver = _MemoryReceiver()
    sink = SegmentKeys(plan, receiver)
    reading = SegmentReading(
        store, plan, [[segment]], sink, number=number or 0, throttler=throttler, threads=threads
    )
    indexed = reading.run()
    sink.flush()
    return PartialIndex(
        segment=indexed,
        is_dirty=number is not None,
        rows=sink.rows(),
        first_dirty_row=sink.first_dirty_row,
        keys=tuple(receiver.keys),
        suspects=tuple(receiver.suspects),
    )
