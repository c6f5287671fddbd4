"""Replay a coordinator's partition record by record, as a coordinator does.

A coordinator that takes over a partition of ``__consumer_offsets`` or ``__transaction_state`` reads
it from the log start to the log end. The same is done here, in windows, so that memory does not
grow with the log. It is Python for each record: these topics are compacted, and hold what a cluster
remembers, not what it carries. Source: ``CoordinatorLoaderImpl``.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from storage_core.errors import BadBytesError
from storage_core.filenames import TRANSACTION_STATE_TOPIC, sorted_logs
from storage_core.formats.batch_v2 import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from storage_core.formats.control import ControlType
from storage_core.messages.internal_records import DecodedRecord, Problem, decode_internal_record
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
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


# Count a coordinator's undecodable records by kind; keep the first of each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded:
    """Undecodable records of one type and version; the log keeps them."""

    problem: Problem
    type_id: int | None  # number of their type, None where the key is too short for one
    type: str | None  # Kafka's name of the type, None for an unknown one
    version: int | None  # the version of their values, None if it was not reached
    first_offset: int
    count: int
    reason: str

    def stops_load(self, topic: str) -> bool:
        """Whether a coordinator of Kafka 4.4 stops its load there.

        Types that it does not know it ignores, and of ``__transaction_state`` unknown versions too.
        Sources: ``CoordinatorLoaderImpl``, ``TransactionStateManager``.
        """
        if self.problem is Problem.UNKNOWN_VERSION:
            return topic != TRANSACTION_STATE_TOPIC
        return self.problem is Problem.MALFORMED


class UndecodedRecords:
    """Count undecodable records in memory independent of their number."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[Problem, int | None, int | None], Undecoded] = {}

    def add(self, record: ReplayedRecord, problem: Problem) -> None:
        """Take note of one."""
        decoded = record.decoded
        kind = (problem, decoded.type_id, decoded.version)
        before = self._by_kind.get(kind)
        if before is not None:
            self._by_kind[kind] = replace(before, count=before.count + 1)
            return
        self._by_kind[kind] = Undecoded(
            problem=problem,
            type_id=decoded.type_id,
            type=decoded.type,
            version=decoded.version,
            first_offset=record.offset,
            count=1,
            reason=decoded.reason,
        )

    def all(self) -> Iterable[Undecoded]:
        """Return them, in the order in which the log met them."""
        return tuple(self._by_kind.values())


def find_undecoded(store: LogStore, topic: str, *, start_offset: int = 0) -> tuple[Undecoded, ...]:
    """Return the kinds of a coordinator's records that Kafka 4.4 cannot read. A batch that is
    damaged ends the look.

    Args:
        start_offset: The log start: records below it do not count.
    """
    records = UndecodedRecords()
    try:
        for event in replay_partition(store, topic, start_offset=start_offset):
            if isinstance(event, ReplayedRecord) and event.decoded.problem is not None:
                records.add(event, event.decoded.problem)
    except BadBytesError:
        pass  # the verification of its segments has found it
    return tuple(records.all())
