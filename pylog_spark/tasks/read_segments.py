"""Read a range of a partition's segments into Arrow: the executor's half of ``kafka-log``.

Memory is bounded by a window of the file and what one run of its batches expands to. Nothing here
knows Spark.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.filenames import TopicPartition, log_file
from storage_core.index.transaction_index import AbortedTxn
from storage_core.log.isolation import ReadCommitted
from storage_core.log.position_search import ListedSegment, find_start_position
from storage_core.records.columns import RecordColumns, decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import Tail, Window, scan_windows
from storage_core.store import LogStore, open_store

# Spark copies a batch as a whole; a few of these are in memory at a time.
_WINDOW_BYTES: Final = 4 << 20
_ROWS_AT_A_TIME: Final = 1 << 16
_MICROSECONDS: Final = 1000
_LARGEST_MS: Final = (2**63 - 1) // _MICROSECONDS

# Columns of Spark's Kafka source as Arrow gives them.
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What one task reads.

    Attributes:
        directory: Where the partition is; of a managed one, the generation that is read.
        partition: Topic and partition.
        segments: Consecutive segments, in offset order.
        ends_log: Whether the last of them is the last of the log, whose tail may be torn.
        start_offset: First offset that counts.
        end_offset: Just past the last one, None for no bound but the files' ends.
        aborted: Aborted transactions that reach into the range; None shows all records.
        columns: Names of the columns, in order.
        limits: What a batch may expand to.
    """

    directory: str
    partition: TopicPartition
    segments: tuple[ListedSegment, ...]
    ends_log: bool
    start_offset: int
    end_offset: int | None
    aborted: tuple[AbortedTxn, ...] | None
    columns: tuple[str, ...]
    limits: Limits


def read_range(wanted: ReadRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in offset order.

    Raises:
        BadBytesError: A batch is corrupt; the text says which file and where.
        StorageError: The disk failed.
    """
    store = open_store(wanted.directory)
    committed = None if wanted.aborted is None else ReadCommitted(wanted.aborted)
    schema = pa.schema([(name, COLUMN_TYPES[name]) for name in wanted.columns])
    for segment in wanted.segments:
        for window in _windows(store, wanted, segment):
            batches = window.batches
            visible = ~batches.is_control if committed is None else committed.visible(batches)
            visible &= batches.last_offset >= wanted.start_offset
            if wanted.end_offset is not None:
                visible &= batches.may_reach_below(wanted.end_offset)
            for records in decode_records(window, visible, wanted.limits):
                chosen = records.select(_is_inside(records.offset, wanted))
                yield from _to_arrow(chosen, wanted, schema)


def _windows(store: LogStore, wanted: ReadRange, segment: ListedSegment) -> Iterator[Window]:
    position = find_start_position(store, segment, wanted.start_offset)
    is_last = wanted.ends_log and segment is wanted.segments[-1]
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        reached = wanted.start_offset
        for window in scan_windows(
            reader,
            start=position,
            end=segment.size_bytes,
            window_bytes=_WINDOW_BYTES,
            # A batch that is cut off in the middle of a log is damage; at its end, a writer died.
            tail=Tail.STOP if is_last else Tail.RAISE,
        ):
            batches = window.batches
            if wanted.end_offset is not None:
                is_behind = not batches.rows(0, 1).may_reach_below(wanted.end_offset).any()
                if is_behind or reached >= wanted.end_offset:
                    return
            yield window
            reached = int(batches.last_offset[-1]) + 1


def _is_inside(offset: NDArray[np.int64], wanted: ReadRange) -> NDArray[np.bool_]:
    inside = offset >= wanted.start_offset
    if wanted.end_offset is not None:
        inside &= offset < wanted.end_offset
    return inside


def _to_arrow(
    records: RecordColumns, wanted: ReadRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(records), _ROWS_AT_A_TIME):
        part = RecordColumns(
            payload=records.payload, table=records.table[:, first : first + _ROWS_AT_A_TIME]
        )
        arrays = [_column(part, name, wanted.partition) for name in wanted.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(records: RecordColumns, name: str, partition: TopicPartition) -> pa.Array:
    match name:
        case "key":
            column = records.keys()
        case "value":
            column = records.values()
        case "topic":
            column = pa.repeat(pa.scalar(partition.topic), len(records))
        case "partition":
            column = pa.array(np.full(len(records), partition.partition, np.int32))
        case "offset":
            column = pa.array(records.offset)
        case "timestamp":
            column = _timestamps(records.timestamp)
        case "timestampType":
            types = records.payload.batches.timestamp_type_id[records.batch]
            column = pa.array(types.astype(np.int32))
        case "headers":
            column = _headers(records)
        case _:
            raise KeyError(name)
    return column


def _timestamps(epoch_ms: NDArray[np.int64]) -> pa.Array:
    """Return Spark's microseconds; a point in time beyond their range is null."""
    beyond = (epoch_ms > _LARGEST_MS) | (epoch_ms < -_LARGEST_MS)
    scaled = np.where(beyond, 0, epoch_ms) * _MICROSECONDS
    return pa.array(scaled, mask=beyond).cast(COLUMN_TYPES["timestamp"])


def _headers(records: RecordColumns) -> pa.Array:
    """Return the headers; null where there are none, as Spark's own source has it."""
    headers = records.headers()
    counts = np.diff(headers.offsets.to_numpy(zero_copy_only=False))
    mask = pa.array(counts == 0)
    return pa.ListArray.from_arrays(headers.offsets, headers.values, mask=mask).cast(
        COLUMN_TYPES["headers"]
    )
