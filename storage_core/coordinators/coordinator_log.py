"""Replay a coordinator's partition record by record, as a coordinator does.

A coordinator that takes over a partition of ``__consumer_offsets`` or ``__transaction_state`` reads
it from the log start to the log end. The same is done here, in windows, so that memory does not
grow with the log. It is Python for each record: these topics are compacted, and hold what a cluster
remembers, not what it carries. Source: ``CoordinatorLoaderImpl``.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from storage_core.filenames import sorted_logs
from storage_core.formats.batch_v2 import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from storage_core.formats.control import ControlType
from storage_core.messages.internal_records import DecodedRecord, decode_internal_record
from storage_core.records.columns import decode_records
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.records.reader import Tail, Window, scan_windows
from storage_core.store.base import LogStore

_WINDOW_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRecord:
    """A record of a coordinator."""

    offset: int
    timestamp_ms: int
    producer_id: int  # the producer of its transaction, NO_PRODUCER_ID without one
    decoded: DecodedRecord
    producer_epoch: int = NO_PRODUCER_EPOCH  # that producer's epoch, NO_PRODUCER_EPOCH without one


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """A marker: it commits or aborts a producer's writes since the last."""

    offset: int
    producer_id: int
    is_commit: bool  # whether it is committed


def replay_partition(
    store: LogStore, topic: str, *, start_offset: int = 0
) -> Iterator[ReplayedRecord | TransactionEnd]:
    """Yield what a coordinator replays of one of its partitions.

    Args:
        topic: ``__consumer_offsets``, ``__transaction_state`` or ``__share_group_state``.
        start_offset: The log start: records below it do not count.
    """
    for name in sorted_logs(file.name for file in store.list_files()):
        with closing(store.open_file(name)) as reader:
            for window in scan_windows(reader, window_bytes=_WINDOW_BYTES, tail=Tail.ZEROS):
                for event in _replay_window(window, topic):
                    if event.offset >= start_offset:
                        yield event


def _replay_window(window: Window, topic: str) -> Iterator[ReplayedRecord | TransactionEnd]:
    """Yield a window's records and markers in offset order."""
    batches = window.batches
    row = 0
    for columns in decode_records(window, ~batches.is_control, DEFAULT_LIMITS):
        rows = zip(
            columns.batch.tolist(),
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            columns.keys().to_pylist(),
            columns.values().to_pylist(),
            strict=True,
        )
        for batch, offset, timestamp_ms, key, value in rows:
            yield from _markers(window, row, batch)
            row = batch
            is_transactional = bool(batches.is_transactional[batch])
            yield ReplayedRecord(
                offset=offset,
                timestamp_ms=timestamp_ms,
                producer_id=int(batches.producer_id[batch]) if is_transactional else NO_PRODUCER_ID,
                decoded=decode_internal_record(topic, key, value),
                producer_epoch=(
                    int(batches.producer_epoch[batch]) if is_transactional else NO_PRODUCER_EPOCH
                ),
            )
    yield from _markers(window, row, len(batches))


def _markers(window: Window, start: int, stop: int) -> Iterator[TransactionEnd]:
    """Yield the markers among the batches [start, stop)."""
    batches = window.batches
    for row in range(start, stop):
        control = int(batches.control_type[row])
        if batches.is_control[row] and control in {ControlType.COMMIT, ControlType.ABORT}:
            yield TransactionEnd(
                offset=int(batches.base_offset[row]),
                producer_id=int(batches.producer_id[row]),
                is_commit=control == ControlType.COMMIT,
            )
