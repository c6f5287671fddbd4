"""Reduce the batches of a segment to changes of producer state.

A producer's batches between two of its markers, of one epoch and all in or all out of a
transaction, leave the same state as one event that has the first one's offset and the last one's
sequence. So a segment of a million batches becomes as many events as it has transactions and
producers.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import MAX_SEQUENCE
from storage_core.kernels.producer_scan import (
    COLUMN_COUNT,
    CONTROL_TYPE,
    IS_TRANSACTIONAL,
    LAST_OFFSET,
    NOT_A_MARKER,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    list_events,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import Window

_FIRST_COLUMNS: Final = slice(PRODUCER_ID, LAST_OFFSET)


class ProducerEvent(NamedTuple):
    """One column of an event table, field by field; see ``kernels.producer_scan``."""

    producer_id: int
    producer_epoch: int
    control_type: int
    is_transactional: int
    position: int
    first_offset: int
    last_offset: int
    offset_delta: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int

    @property
    def first_sequence(self) -> int:
        """First sequence of the last batch; sequences wrap past MAX_SEQUENCE to 0."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


def iterate_events(table: NDArray[np.int64]) -> Iterator[ProducerEvent]:
    """Yield the events of a table in their order."""
    return map(ProducerEvent._make, table.T.tolist())


def no_events() -> NDArray[np.int64]:
    """Return a table without events."""
    return np.empty((COLUMN_COUNT, 0), np.int64)


def events_of(batches: BatchTable, file_position: int) -> NDArray[np.int64]:
    """Return the reduced events of batches that stand side by side."""
    return _collapse(batch_events(batches, file_position))


def batch_events(batches: BatchTable, file_position: int = 0) -> NDArray[np.int64]:
    """Return batches that stand side by side as one event each.

    Args:
        batches: In file order; legacy ones have no producer and count for nothing.

    Returns:
        int64[COLUMN_COUNT, n], columns as in ``kernels.producer_scan``.
    """
    events = np.empty((COLUMN_COUNT, len(batches)), np.int64)
    count = list_events(np.ascontiguousarray(batches.columns), file_position, events)
    return events[:, :count]


def join_events(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the events of stretches of one file, in their order."""
    return _collapse(np.concatenate([no_events(), *parts], axis=1))


def events_of_windows(windows: Iterable[Window]) -> NDArray[np.int64]:
    """Return the events of one file's windows."""
    return join_events(events_of(window.batches, window.file_position) for window in windows)


def _collapse(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge what belongs to one event; columns must be in file order."""
    count = table.shape[1]
    if count <= 1:
        return table
    order = np.argsort(table[PRODUCER_ID], kind="stable")
    by_producer = table[:, order]
    same = by_producer[:, 1:] == by_producer[:, :-1]
    is_data = by_producer[CONTROL_TYPE] == NOT_A_MARKER
    joins = (
        same[PRODUCER_ID]
        & same[PRODUCER_EPOCH]
        & same[IS_TRANSACTIONAL]
        & is_data[1:]
        & is_data[:-1]
    )
    starts = np.flatnonzero(np.concatenate([[True], ~joins]))
    ends = np.append(starts[1:], count) - 1
    merged = by_producer[:, ends]
    merged[_FIRST_COLUMNS] = by_producer[_FIRST_COLUMNS, starts]
    return merged[:, np.argsort(order[starts], kind="stable")]
