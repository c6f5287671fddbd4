"""Tables of everything in logs except records: files, contents, groups.

A view has a name, columns, and what makes its rows of some partitions or of a root. Damage is an
error with file and position, but where a table has a column for it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.tasks.coordinators import (
    COMMIT_SCHEMA,
    GROUP_SCHEMA,
    HOLDING_SCHEMA,
    TRANSACTION_SCHEMA,
    CoordinatorRow,
    CoordinatorSettings,
    observe_groups,
    observe_transactions,
    views_beside,
)
from storage_core.checkpoint.checkpoints import MAX_LEADER_EPOCH_BYTES, parse_leader_epochs
from storage_core.config import BrokerConfig
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    offset_of,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.formats.producer_snapshot import SNAPSHOT_ENTRY
from storage_core.index.segment_indexes import read_entries, read_transactions
from storage_core.kafka_log import PARTITION_SCHEMA, SEGMENT_SCHEMA, open_logs
from storage_core.log.batch_search import MAX_INDEX_BYTES
from storage_core.log.producer_snapshot import MAX_SNAPSHOT_BYTES, parse_snapshot_table
from storage_core.log.settled_store import SettledStore, settle
from storage_core.reading.inspection import RootView, group_by_broker, inspect_root
from storage_core.reading.ranges import BATCH_SCHEMA, ReadRange, read_batches, to_time
from storage_core.store import open_store

_TIME: Final = pa.timestamp("us", tz="UTC")
_PLACE: Final = (("topic", pa.string()), ("partition", pa.int32()))
_FILE: Final = (*_PLACE, ("file", pa.string()))
_SNAPSHOT_TIME: Final = "last_timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPart:
    """What a task shows."""

    # Path or URL of the root; behind ``managed+`` that of a managed one. Of a view of whole roots
    # all of them: the directories of one broker tell of each other.
    roots: tuple[str, ...]
    partitions: tuple[tuple[TopicPartition, str], ...]
    # Of which topics there are to be rows, where a view is of whole roots; None for all.
    topics: frozenset[str] | None
    now_ms: int  # the query's clock, epoch milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeView:
    """A view of ranges of offsets."""

    schema: pa.Schema
    read: Callable[[ReadRange], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """A view of the files of partitions, or of whole roots."""

    schema: pa.Schema
    show: Callable[[ViewPart], Iterator[pa.RecordBatch]]
    is_of_roots: bool = False  # whether its rows are made of roots as a whole


def _show_partitions(part: ViewPart) -> Iterator[pa.RecordBatch]:
    table = open_logs(*part.roots).partitions(partitions=[place for place, _ in part.partitions])
    yield from table.cast(_PARTITIONS).to_batches()


def _show_segments(part: ViewPart) -> Iterator[pa.RecordBatch]:
    table = open_logs(*part.roots).segments(partitions=[place for place, _ in part.partitions])
    yield from table.cast(_SEGMENTS).to_batches()


def _show_indexes(part: ViewPart) -> Iterator[pa.RecordBatch]:
    """Yield the entries of offset and time indexes, without padding. The zeros of a preallocated
    file are padding."""
    kinds = {OFFSET_INDEX_SUFFIX: OFFSET_INDEX_ENTRY, TIME_INDEX_SUFFIX: TIME_INDEX_ENTRY}
    for partition, store, file in _files(part, kinds):
        entry = kinds[kind_of(file) or ""]
        row = 0
        for piece in read_entries(store, file, entry, limit_bytes=MAX_INDEX_BYTES):
            relative = piece["relative_offset"].astype(np.int64)
            zeros = np.flatnonzero(relative == 0)
            padding = zeros[zeros + row > 0]
            count = int(padding[0]) if len(padding) else len(relative)
            columns = {
                "offset": pa.array(relative[:count] + (offset_of(file) or 0)),
                "position": pa.nulls(count, pa.int64()),
                "timestamp": pa.nulls(count, _TIME),
            }
            if entry is OFFSET_INDEX_ENTRY:
                columns["position"] = pa.array(piece["position"][:count].astype(np.int64))
            else:
                times = piece["timestamp"][:count].astype(np.int64)
                columns["timestamp"] = to_time(times, is_null=times == NO_TIMESTAMP)
            yield _in_file(_INDEXES, partition, file, columns)
            if len(padding):
                break
            row += len(relative)


def _show_producers(part: ViewPart) -> Iterator[pa.RecordBatch]:
    """Yield the entries of producer snapshots."""
    for partition, store, file in _files(part, {SNAPSHOT_SUFFIX}):
        data = store.read_file(file, limit_bytes=MAX_SNAPSHOT_BYTES)
        entries = parse_snapshot_table(file, data)
        columns = {
            name: pa.array(entries[name].astype(entries[name].dtype.newbyteorder("="))).cast(
                _PRODUCERS.field(name).type
            )
            for name in SNAPSHOT_ENTRY.names or ()
            if name != _SNAPSHOT_TIME
        }
        times = entries[_SNAPSHOT_TIME].astype(np.int64)
        columns[_SNAPSHOT_TIME] = to_time(times, is_null=times == NO_TIMESTAMP)
        yield _in_file(_PRODUCERS, partition, file, columns)


def _show_aborted(part: ViewPart) -> Iterator[pa.RecordBatch]:
    """Yield the entries of transaction indexes."""
    for partition, store, file in _files(part, {TXN_INDEX_SUFFIX}):
        position = 0
        for piece in read_entries(store, file, TXN_INDEX_ENTRY, limit_bytes=MAX_INDEX_BYTES):
            transactions = read_transactions(file, offset_of(file) or 0, piece, start=position)
            where = {**_place(partition), "file": file}
            yield from rows_to_batches(_ABORTED, (where | asdict(each) for each in transactions))
            position += piece.nbytes


def _show_epochs(part: ViewPart) -> Iterator[pa.RecordBatch]:
    """Yield the entries of leader-epoch checkpoints."""
    rows = []
    for partition, location in part.partitions:
        store = settle(open_store(location))
        if LEADER_EPOCH_FILE not in store.files:
            continue
        data = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        entries = parse_leader_epochs(data, file=LEADER_EPOCH_FILE)
        rows += [_place(partition) | asdict(entry) for entry in entries]
    yield from rows_to_batches(_EPOCHS, rows)


def _show_groups(part: ViewPart) -> Iterator[pa.RecordBatch]:
    return _show_told(part, observe_groups, "group", GROUP_SCHEMA)


def _show_commits(part: ViewPart) -> Iterator[pa.RecordBatch]:
    return _show_told(part, observe_groups, "commit", COMMIT_SCHEMA)


def _show_transactions(part: ViewPart) -> Iterator[pa.RecordBatch]:
    return _show_told(part, observe_transactions, "transaction", TRANSACTION_SCHEMA)


def _show_open_transactions(part: ViewPart) -> Iterator[pa.RecordBatch]:
    return _show_told(part, observe_transactions, "open_transaction", HOLDING_SCHEMA)


def _show_told(
    part: ViewPart, observe: Callable[..., Iterator[CoordinatorRow]], kind: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one kind, and errors as rows. What could not be read is a row with an
    error."""
    settings = CoordinatorSettings(now_ms=part.now_ms, broker=BrokerConfig())
    topics = part.topics

    def is_asked_for(topic: str) -> bool:
        return topics is None or topic in topics

    brokers = group_by_broker([inspect_root(root) for root in part.roots])
    for views in brokers:
        beside = views_beside(views, brokers)
        rows = observe(views, settings, is_asked_for=is_asked_for, beside=beside)
        yield from rows_to_batches(schema, _rows_of(kind, views, rows))


def _rows_of(
    kind: str, views: Iterable[RootView], rows: Iterable[CoordinatorRow]
) -> Iterator[Mapping[str, Any]]:
    for view in views:
        for error in view.row["errors"]:
            yield {"root": view.row["root"], "error": error}
    for what, row in rows:
        if what == kind:
            yield row
        elif what == "partition":
            yield {"root": row["root"], "error": f"{row['directory']}: {row['error']}"}
        elif what == "undecoded":
            first, count = row["first_offset"], row["count"]
            reason = f"{count} records are not understood, the first at offset {first}"
            yield {"root": row["root"], "error": f"{row['directory']}: {reason}: {row['reason']}"}


def _files(
    part: ViewPart, kinds: Collection[str]
) -> Iterator[tuple[TopicPartition, SettledStore, str]]:
    """Yield the files of some kinds, by name, in loadable state. They are as a load would leave
    them."""
    for partition, location in part.partitions:
        store = settle(open_store(location))
        for file in store.list_files():
            if (kind_of(file.name) or "") in kinds:
                yield partition, store, file.name


def _place(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _in_file(
    schema: pa.Schema, partition: TopicPartition, file: str, columns: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Return rows of a file as a batch."""
    count = len(next(iter(columns.values())))
    where = {
        "topic": pa.repeat(pa.scalar(partition.topic), count),
        "partition": pa.array(np.full(count, partition.partition, np.int32)),
        "file": pa.repeat(pa.scalar(file), count),
    }
    arrays = [where[name] if name in where else columns[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_microseconds(schema: pa.Schema) -> pa.Schema:
    """Return columns with the times that Spark has."""
    return pa.schema(
        [field.with_type(_TIME) if pa.types.is_timestamp(field.type) else field for field in schema]
    )


def _entry_types(entry: np.dtype[Any]) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the column types of a format's table. Spark's people have no use for 16 bits."""
    for name in entry.names or ():
        yield name, pa.int64() if entry[name].itemsize == np.int64().itemsize else pa.int32()


_PARTITIONS: Final = _with_microseconds(PARTITION_SCHEMA)
_SEGMENTS: Final = _with_microseconds(SEGMENT_SCHEMA)
_INDEXES: Final = pa.schema(
    [*_FILE, ("offset", pa.int64()), ("position", pa.int64()), ("timestamp", _TIME)]
)
_PRODUCERS: Final = pa.schema(
    [
        *_FILE,
        *(
            (name, _TIME if name == _SNAPSHOT_TIME else kind)
            for name, kind in _entry_types(SNAPSHOT_ENTRY)
        ),
    ]
)
_ABORTED: Final = pa.schema(
    [*_FILE, *(column for column in _entry_types(TXN_INDEX_ENTRY) if column[0] != "version")]
)
_EPOCHS: Final = pa.schema([*_PLACE, ("epoch", pa.int32()), ("start_offset", pa.int64())])

VIEWS: Final[Mapping[str, RangeView | FileView]] = {
    "batches": RangeView(schema=BATCH_SCHEMA, read=read_batches),
    "segments": FileView(schema=_SEGMENTS, show=_show_segments),
    "indexes": FileView(schema=_INDEXES, show=_show_indexes),
    "producers": FileView(schema=_PRODUCERS, show=_show_producers),
    "aborted_transactions": FileView(schema=_ABORTED, show=_show_aborted),
    "epochs": FileView(schema=_EPOCHS, show=_show_epochs),
    "partitions": FileView(schema=_PARTITIONS, show=_show_partitions),
    "consumer_offsets": FileView(schema=COMMIT_SCHEMA, show=_show_commits, is_of_roots=True),
    "groups": FileView(schema=GROUP_SCHEMA, show=_show_groups, is_of_roots=True),
    "transactions": FileView(schema=TRANSACTION_SCHEMA, show=_show_transactions, is_of_roots=True),
    "open_transactions": FileView(
        schema=HOLDING_SCHEMA, show=_show_open_transactions, is_of_roots=True
    ),
}
