"""A task's part of a write: records become batches in its file. Each task has a file of its own.

The file has the batches of all partitions that the task has records for, in extents: whole batches
of one partition, whose offsets begin at 0. Which offsets they get is decided at the commit; in a
batch these lie outside of the checksum and of what is compressed. A second, small file lists the
extents.
"""

import io
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.config import LogConfig
from storage_core.errors import ConfigError, GuardRefusedError, InvalidColumnError, StorageError
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    MAX_PARTITION,
    TopicPartition,
    validate_topic,
)
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels import partitioner
from storage_core.log.append.segment import LocalAppendFiles
from storage_core.log.append.validator import (
    batch_settings,
    check_append_size,
    check_columns,
    check_sizes,
)
from storage_core.records.batch_builder import build_batches
from storage_core.records.new_records import ByteColumn, NewRecords
from storage_core.store.local import LocalStore

# A write request, and the values for its tasks. Both consist of values only.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTransaction:
    """An application's name and version of a write, to write once. A repeated version is not
    written again."""

    app_id: str
    # Version of the write, 0 or more. A version up to the last committed one is done already.
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """What a write asks for."""

    directory: str
    is_overwrite: bool = False
    topic: str | None = None  # topic of every record; None where a column says it
    # How many partitions topics have that are not in the directory; None where records ask for
    # their partitions.
    partitions: int | None = None
    by_key: bool = True  # whether the key of a record decides about its partition
    config: LogConfig
    codec: Codec = Codec.NONE  # codec of batches if the configuration leaves it to the producer
    batch_bytes: int | None = None  # size of a batch before compression; None for max.message.bytes
    # Ids of topics, for their ``partition.metadata``; a topic without one has no such file.
    topic_ids: Mapping[str, str]
    # None for a write that happens as often as it is started.
    transaction: WriteTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRun:
    """A write that has begun."""

    request: WriteRequest
    run_id: str
    staging: str  # path of its own folder, in which tasks leave what they made
    now_ms: int  # its clock, epoch milliseconds: of records without a time, and of append times
    counts: Mapping[str, int]
    # Whether its transaction was committed by a former run: there is nothing to do.
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecords:
    """What one task left in the staging folder."""

    name: str  # name of its file of batches, which gives that of its extents
    destinations: tuple[tuple[str, int], ...]
    records: int
    size_bytes: int


# Columns of an extent.
DESTINATION: Final = 0
POSITION: Final = 1
SIZE: Final = 2
RECORDS: Final = 3
EXTENT_COLUMNS: Final = 4

# Records in memory until they become batches: the more, the larger the batches of a task with many
# partitions.
_HELD_BYTES: Final = 64 << 20
_RECORD_COLUMNS: Final = ("key", "value", "headers", "timestamp")
_NO_LIMIT: Final = 2**31 - 1
_PER_MILLISECOND: Final = {"us": 1_000, "ns": 1_000_000}
_MAX_EXTENTS_BYTES: Final = 1 << 30


def extents_name(name: str) -> str:
    """Return the name of the extents list of a task's file."""
    return f"{name}.extents"


def stage_records(
    run: WriteRun, batches: Iterable[pa.RecordBatch], *, task_id: int
) -> StagedRecords:
    """Write a task's records into the staging folder of their write.

    An attempt has files of its own: another one of the same task, before, after or at the same
    time, is not disturbed.

    Args:
        batches: Columns as ``RecordStager.add`` takes them.
        task_id: Number of the task among those of the write; where records without a key begin to
            take turns.
    """
    stager = RecordStager(run, task_id=task_id)
    try:
        for batch in batches:
            stager.add(batch)
        return stager.finish()
    except StorageError as error:
        if Path(run.staging).is_dir():
            raise
        raise superseded(run) from error
    finally:
        stager.close()


def superseded(run: WriteRun) -> GuardRefusedError:
    """Return the error of a write whose folder is not there."""
    return GuardRefusedError(
        "WRITE_SUPERSEDED",
        f"{run.staging} is not there: a later write to {run.request.directory} has begun and takes "
        "the place of this one, or this host does not see the directory",
    )


class RecordStager:
    """Collects the records of one attempt of a task."""

    def __init__(self, run: WriteRun, *, task_id: int) -> None:
        self._run = run
        self._task_id = task_id
        self._name = f"task-{task_id}-{uuid.uuid4().hex}"
        self._store = LocalStore(Path(run.staging))
        try:
            self._file = LocalAppendFiles(self._store).open_file(self._name)
        except StorageError as error:
            if Path(run.staging).is_dir():
                raise
            raise superseded(run) from error
        self._topics: dict[str, int] = {}
        self._counts: list[int] = []
        self._turns = np.empty(0, np.int64)
        self._destinations: dict[tuple[int, int], int] = {}
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._extents: list[tuple[int, int, int, int]] = []
        self._is_open = True

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records.

        Args:
            batch: With ``value``, and if they are there ``key``, ``headers``, ``timestamp`` (an
                Arrow timestamp, or int64 milliseconds), ``topic``, ``partition``.
        """
        if not batch.num_rows:
            return
        if "value" not in batch.schema.names:
            raise InvalidColumnError("value", "there is no such column")
        topics = self._topics_of(batch)
        partitions = self._choose(batch, topics)
        columns = [name for name in _RECORD_COLUMNS if name in batch.schema.names]
        records = self._with_times(batch.select(columns))
        # One number for each destination, in order of topics and partitions.
        numbers = (topics << 32) | partitions
        if (numbers != numbers[0]).any():
            order = np.argsort(numbers, kind="stable")
            numbers = numbers[order]
            records = records.take(pa.array(order))
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = [*first[1:].tolist(), len(numbers)]
        for row, end in zip(first.tolist(), ends, strict=True):
            number = int(numbers[row])
            destination = self._destinations.setdefault(
                (number >> 32, number & MAX_PARTITION), len(self._destinations)
            )
            self._held.setdefault(destination, []).append(records.slice(row, end - row))
        self._held_bytes += records.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    def finish(self) -> StagedRecords:
        """Write the buffered records and the list of extents; all durable."""
        self._flush()
        self._file.sync()
        extents = np.array(self._extents, np.int64).reshape(-1, EXTENT_COLUMNS)
        content = io.BytesIO()
        np.save(content, extents, allow_pickle=False)
        self._store.write_file(extents_name(self._name), content.getvalue())
        names = list(self._topics)
        return StagedRecords(
            name=self._name,
            destinations=tuple((names[topic], number) for topic, number in self._destinations),
            records=int(extents[:, RECORDS].sum()),
            size_bytes=self._file.size_bytes,
        )

    def close(self) -> None:
        """Release the file."""
        if self._is_open:
            self._is_open = False
            self._file.close()

    def _topics_of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the number of each record's topic."""
        fixed = self._run.request.topic
        if fixed is not None:
            return np.full(batch.num_rows, self._number_of(fixed), np.int64)
        if "topic" not in batch.schema.names:
            raise InvalidColumnError("topic", "there is no such column, and no option topic")
        column = batch.column("topic")
        if column.null_count:
            raise InvalidColumnError("topic", "a record has none; the option topic names one")
        coded = pc.dictionary_encode(column.cast(pa.string()))
        numbers = [self._number_of(name) for name in coded.dictionary.to_pylist()]
        numbers_of_rows: NDArray[np.int64] = np.array(numbers, np.int64)[coded.indices.to_numpy()]
        return numbers_of_rows

    def _number_of(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            if topic == CLUSTER_METADATA_TOPIC:
                raise InvalidColumnError("topic", f"{topic} is the cluster's own log")
            number = self._topics[validate_topic(topic)] = len(self._topics)
            self._counts.append(self._count_of(topic))
            self._turns = np.append(self._turns, self._task_id)
        return number

    def _count_of(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 where nobody says it."""
        request = self._run.request
        there = self._run.counts.get(topic)
        if there is None:
            return request.partitions or 0
        if request.partitions not in {None, there}:
            reason = f"{topic} has {there} partitions in {request.directory}"
            raise ConfigError("partitions", request.partitions, reason)
        return there

    def _choose(self, batch: pa.RecordBatch, topics: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the partition of each record."""
        count = batch.num_rows
        keys = ByteColumn.nulls(count)
        if "key" in batch.schema.names:
            keys = ByteColumn.from_arrow(batch.column("key"), column="key")
        asked = np.full(count, partitioner.NOT_ASKED, np.int64)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
                raise InvalidColumnError(
                    "partition", f"expected whole numbers, found {column.type}"
                )
            asked = column.cast(pa.int64()).fill_null(partitioner.NOT_ASKED).to_numpy()
        partition = np.empty(count, np.int64)
        row, status = partitioner.choose_partitions(
            keys.data,
            keys.start,
            keys.length,
            topics,
            np.array(self._counts, np.int64),
            np.array(asked, np.int64),
            self._run.request.by_key,
            self._turns,
            partition,
        )
        if status == partitioner.DONE and int(partition.max()) <= MAX_PARTITION:
            return partition
        row = int(partition.argmax()) if status == partitioner.DONE else row
        topic = list(self._topics)[int(topics[row])]
        if status == partitioner.NO_COUNT:
            raise ConfigError(
                "partitions",
                None,
                f"{topic} is not in {self._run.request.directory} and a record asks for no "
                "partition: say how many partitions the topic has",
            )
        there = self._counts[int(topics[row])]
        raise InvalidColumnError(
            "partition",
            f"row {row}: {asked[row]} is no partition of {topic}"
            + (f", which has {there}" if there else ""),
        )

    def _with_times(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Fill missing record timestamps with the write's time, as a producer does."""
        now_ms = self._run.now_ms
        if "timestamp" not in batch.schema.names:
            times = pa.array(np.full(batch.num_rows, now_ms, np.int64))
            return batch.append_column("timestamp", times)
        column = batch.column("timestamp")
        kind = column.type
        if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
            raise InvalidColumnError("timestamp", f"expected timestamp or int64, found {kind}")
        unit = kind.unit if pa.types.is_timestamp(kind) else "ms"
        times = column.cast(pa.int64()).fill_null(0).to_numpy() * (1000 if unit == "s" else 1)
        # Rounded down to the millisecond, before 1970 too.
        times = np.floor_divide(times, _PER_MILLISECOND.get(unit, 1))
        times = np.where(column.is_null().to_numpy(zero_copy_only=False), now_ms, times)
        place = batch.schema.get_field_index("timestamp")
        return batch.set_column(place, "timestamp", pa.array(times))

    def _flush(self) -> None:
        names = list(self._topics)
        places = list(self._destinations)
        for destination in sorted(self._held):
            topic, number = places[destination]
            partition = TopicPartition(names[topic], number)
            together = pa.Table.from_batches(self._held[destination]).combine_chunks()
            for chunk in together.to_batches():
                self._write(destination, str(partition), NewRecords.from_arrow(chunk))
        self._held.clear()
        self._held_bytes = 0

    def _write(self, destination: int, partition: str, records: NewRecords) -> None:
        run = self._run
        config = run.request.config
        check_columns(partition, config, records, run.now_ms)
        settings = batch_settings(
            config,
            source=run.request.codec,
            base_offset=0,
            leader_epoch=0,
            now_ms=run.now_ms,
            producer=None,
            next_sequence=0,
        ).limited(max_bytes=run.request.batch_bytes, max_records=_NO_LIMIT)
        position = self._file.size_bytes
        for block in build_batches(records, settings):
            check_sizes(partition, config, block.batches)
            check_append_size(partition, config, int(block.batches.size.max()))
            self._file.append(block.data.data)
        size = self._file.size_bytes - position
        self._extents.append((destination, position, size, len(records)))


def read_extents(store: LocalStore, staged: StagedRecords) -> NDArray[np.int64]:
    """Return a task's extents, int64[n, EXTENT_COLUMNS], in order of its records."""
    name = extents_name(staged.name)
    content = store.read_file(name, limit_bytes=_MAX_EXTENTS_BYTES)
    where = f"{store.location}/{name}"
    try:
        extents: NDArray[np.int64] = np.load(io.BytesIO(content), allow_pickle=False)
    except (EOFError, OSError, ValueError) as error:
        raise StorageError(where, f"is no list of extents: {error}") from error
    is_one = extents.dtype == np.int64 and extents.shape[1:] == (EXTENT_COLUMNS,)
    if not is_one or (extents < 0).any():
        raise StorageError(where, "is no list of extents")
    ends = np.cumsum(extents[:, SIZE])
    is_whole = np.array_equal(extents[:, POSITION], ends - extents[:, SIZE])
    end = int(ends[-1]) if ends.size else 0
    named = int(extents[:, DESTINATION].max(initial=-1))
    if not is_whole or end != staged.size_bytes or named >= len(staged.destinations):
        raise StorageError(where, f"does not describe the {staged.size_bytes} bytes of its task")
    return extents
