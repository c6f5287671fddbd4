"""Kafka's log files for Python: list logs, read and write Arrow.

This module is the public face for Python: it stays as it is, names are only added. It needs no
Spark, no broker and no Kafka client. Reading writes nothing and takes no lock. ::

    from storage_core import kafka_log

    logs = kafka_log.open_logs("/var/lib/kafka")
    for batch in logs.read("orders"):
        ...
    kafka_log.write("/data/restored", logs.read("orders"))
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypedDict, TypeVar, Unpack

import pyarrow as pa

from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.clock import SystemClock, epoch_ms
from storage_core.config import LogConfig
from storage_core.errors import ConfigError, InvalidColumnError, PylogError
from storage_core.filenames import MAX_OFFSET, MAX_PARTITION, TopicPartition
from storage_core.formats.batch_v2 import Codec
from storage_core.reading.inspection import (
    RootView,
    inspect_partition,
    inspect_root,
    inspect_segments,
)
from storage_core.reading.planning import find_bounds, find_places, plan_ranges
from storage_core.reading.ranges import COLUMN_TYPES, ReadRange, read_range, schema_of
from storage_core.reading.request import (
    DEFAULT_RANGE_BYTES,
    EARLIEST,
    LATEST,
    Bound,
    ReadRequest,
    TopicChoice,
)
from storage_core.roots.open_root import tiers_with
from storage_core.store.local import plain_path
from storage_core.values.registry import (
    SCHEMAS_TOPIC,
    SchemaRegistry,
    read_registry,
    read_schema_file,
    read_schema_folder,
)
from storage_core.values.registry_columns import (
    DEFAULT_NAMES,
    ON_ERROR,
    REGISTRY,
    Misfits,
    OnError,
    OptionNames,
    RegistryColumns,
    choose_columns,
)

if TYPE_CHECKING:
    from storage_core.reading.arrow_dataset import LogDataset

__all__ = [
    "COLUMNS",
    "EARLIEST",
    "LATEST",
    "ConfigError",
    "Logs",
    "PylogError",
    "Records",
    "TopicPartition",
    "open_logs",
    "write",
]

COLUMNS: Final = tuple(COLUMN_TYPES)

_T = TypeVar("_T")

# Topics by name or by a pattern for the whole name; None for all but the cluster's metadata log.
Topics = str | re.Pattern[str] | Iterable[str] | None
# An offset for all partitions, one for each of them, or the first record at or after a time.
Position = int | datetime | Mapping[TopicPartition, int] | None
Isolation = Literal["read_uncommitted", "read_committed"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
# How keys or values become columns: bytes, or what the schemas of a registry make of them.
Form = Literal["registry"] | None


class Decoding(TypedDict, total=False):
    """How keys and values become columns by the schemas of a registry."""

    #: ``registry`` for a column by the schema whose number stands before each key, as the topic
    #: ``_schemas`` in the same directories has it; None for bytes.
    key_format: Form
    value_format: Form  #: Likewise for values.
    #: What reads values (keys, if only these are decoded): the number of a schema, or the path of
    #: one (``.avsc``, ``.json``, ``.proto``). None for the newest of the subject ``<topic>-value``.
    reader_schema: str | Path | int | None
    #: Full name of the message that is read of a Protobuf schema; None for its first one.
    reader_message: str | None
    #: Folder of schemas by number (``7.avsc``, ``8.json``, ``9.proto``) in place of the topic.
    schemas: str | Path | None
    #: What becomes of a value that does not fit: ``fail`` ends the reading, ``null`` reads on, with
    #: a warning at the end; ``raw`` also has its bytes, in a column ``value_raw`` or ``key_raw``.
    on_error: OnError


_READABLE: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.METADATA})
# Read columns that a write sets anew.
_GIVEN_ANEW: Final = frozenset({"offset", "timestampType"})
_TIME: Final = pa.timestamp("ms", tz="UTC")
# A window becomes so many frames of Polars.
_FRAMES_OF_WINDOW: Final = 8
# A record's time may be so much older than one before it.
_LATEST: Final = timedelta(days=36_500)
_log: Final = logging.getLogger(__name__)
PARTITION_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("location", pa.string()),
        ("topic_id", pa.string()),
        ("segments", pa.int64()),
        ("size_bytes", pa.int64()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("last_stable_offset", pa.int64()),
        ("oldest_timestamp", _TIME),
        ("newest_timestamp", _TIME),
        ("error", pa.string()),
        ("local_log_start_offset", pa.int64()),
    ]
)
SEGMENT_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("newest_timestamp", _TIME),
        ("modified", _TIME),
        ("is_active", pa.bool_()),
    ]
)


def open_logs(
    *paths: str | Path,
    with_local: Iterable[str | Path] = (),
    decryption_key: str | Path | None = None,
    topic_ids: Iterable[str] = (),
) -> "Logs":
    """Return the logs below some paths.

    Args:
        paths: At least one path or URL: of a log directory (what ``log.dirs`` names), of a copy of
            one, of one partition directory, of a managed root, or of a tier (KIP-405). Several are
            several directories of one broker.
        with_local: The path is that of a tier: read it and these log directories of a broker as one
            log each.
        decryption_key: Path of the private key of an encrypted tier: RSA, in PEM.
        topic_ids: The topics that are meant, where a tier has several of one name.

    Raises:
        ConfigError: No path is given, or there is nothing at one of them.
        StorageError: A path cannot be listed.
        MissingDriverError: The package that reaches such a URL is not installed.
    """
    if not paths:
        raise ConfigError("path", None, "expected at least one path or URL")
    key = None if decryption_key is None else str(Path(decryption_key).absolute())
    roots = tiers_with(
        map(str, paths),
        with_local=tuple(map(str, with_local)),
        decryption_key=key,
        topic_ids=tuple(topic_ids),
    )
    logs = Logs(roots)
    logs.topics()  # a wrong path is an error here
    return logs


def write(  # noqa: PLR0913  # each is a question of its own, all but the first two by name
    directory: str | Path,
    records: Any,
    *,
    topic: str | None = None,
    partitions: int | None = None,
    mode: Literal["append", "overwrite"] = "append",
    partitioner: Literal["murmur2", "roundrobin"] = "murmur2",
    compression: Compression = "none",
    batch_bytes: int | None = None,
    config: Mapping[str, str] | None = None,
    transaction: tuple[str, int] | None = None,
) -> int:
    """Write records as a log directory for Kafka, all or none.

    Args:
        directory: Path of the log directory: absent, empty, or written so before. Never a broker's.
        records: A table, ``Records``, a DataFrame of Polars, ... : what has Arrow's stream
            interface. Its columns are of ``COLUMNS``: ``value``, and if they are there ``key``,
            ``topic``, ``partition``, ``timestamp``, ``headers``. ``offset`` and ``timestampType``
            are given anew.
        topic: Topic of every record; None where the column says it.
        partitions: How many partitions topics have that the directory does not have yet; None where
            every record says its partition.
        partitioner: ``murmur2`` is Kafka's: by key. With ``roundrobin`` records take turns.
        compression: The producer's codec; a topic's ``compression.type`` comes first.
        batch_bytes: Size of a batch before compression; None for ``max.message.bytes``.
        transaction: Name and version of a write that is done once: a version at or below the last
            that was committed under this name is not written again.

    Returns:
        How many records were written; 0 where the transaction was committed before.

    Raises:
        ConfigError: An argument is malformed.
        InvalidColumnError: A column is missing, unknown or of another type.
        GuardRefusedError: The directory is somebody else's, a broker's, or in use.
        PylogError: Kafka would refuse a record; nothing was written then.
        StorageError: The disk failed; a note of the error says if the write was decided already.
    """
    # Readers need not wait for these imports.
    from storage_core.writing import publication, staging  # noqa: PLC0415
    from storage_core.writing import staging as request  # noqa: PLC0415

    codecs = {codec.name.lower(): codec for codec in Codec}
    for name, value, words in (
        ("mode", mode, ("append", "overwrite")),
        ("partitioner", partitioner, ("murmur2", "roundrobin")),
        ("compression", compression, tuple(codecs)),
    ):
        if value not in words:
            raise ConfigError(name, value, f"expected one of: {', '.join(words)}")
    if partitions is not None and not 1 <= partitions <= MAX_PARTITION:
        raise ConfigError("partitions", partitions, f"expected 1 to {MAX_PARTITION}")
    batches = _record_stream(records, has_topic=topic is not None)
    wanted = request.WriteRequest(
        directory=str(plain_path(Path(directory))),
        is_overwrite=mode == "overwrite",
        topic=topic,
        partitions=partitions,
        by_key=partitioner == "murmur2",
        config=LogConfig.from_topic_overrides(config or {}),
        codec=codecs[compression],
        batch_bytes=batch_bytes,
        topic_ids={},
        transaction=(
            None
            if transaction is None
            else request.WriteTransaction(app_id=transaction[0], version=transaction[1])
        ),
    )
    run = publication.begin_write(wanted, clock=SystemClock())
    if run.is_done:
        return 0
    try:
        staged = staging.stage_records(run, batches, task_id=0)
        publication.commit_write(run, [staged])
    except BaseException:
        publication.abort_write(run)  # a decided write stays decided
        raise
    return staged.records


class Logs:
    """The logs of one or several directories. Each call reads the files anew."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)

    def __repr__(self) -> str:
        return f"Logs({', '.join(map(repr, self._paths))})"

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted.

        Raises:
            StorageError: A directory cannot be listed.
        """
        return sorted({partition.topic for partition in find_places(self._paths)})

    def partitions(
        self, topics: Topics = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> pa.Table:
        """Return a row a partition: its size, offsets and record times.

        A partition costs a listing, its small files and a few headers. What is wrong with one is
        its ``error``; its other columns are null then where they could not be found out.

        Args:
            topics: The topics; None for all but the cluster's own metadata log.

        Returns:
            topic, partition, location, topic_id (null without one), segments, size_bytes (of the
            ``.log`` files), log_start_offset, log_end_offset (of the next record),
            last_stable_offset (where committed reads end), oldest_timestamp, newest_timestamp,
            error, local_log_start_offset (of a tiered topic the first offset that is here, where
            its log starts below; null elsewhere).

        Raises:
            ConfigError: A topic or partition is not there.
            StorageError: A directory cannot be listed.
        """
        now_ms = SystemClock().now_ms()
        rows = []
        for view, entry, partition in self._chosen(topics, partitions):
            row = inspect_partition(view, entry, now_ms=now_ms)
            problems = [*view.row["errors"], *([row["error"]] if row["error"] else [])]
            rows.append(
                row
                | {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "location": entry.path,
                    "error": "; ".join(problems) or None,
                }
            )
        return _table(rows, PARTITION_SCHEMA)

    def segments(
        self, topics: Topics = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> pa.Table:
        """Return a row a segment of the partitions, by offset.

        Args:
            topics: The topics; None for all but the cluster's own metadata log.

        Returns:
            topic, partition, base_offset (lower bound of its offsets), size_bytes (of its ``.log``
            file), newest_timestamp (of its time index, null where that has no entry), modified (of
            its ``.log`` file), is_active (whether it is the last one).

        Raises:
            ConfigError: A topic or partition is not there.
            PylogError: A partition cannot be listed.
        """
        rows = []
        for _, entry, partition in self._chosen(topics, partitions):
            for row in inspect_segments(entry):
                where = {"topic": partition.topic, "partition": partition.partition}
                rows.append(row | where | {"modified": row["modified_ms"]})
        return _table(rows, SEGMENT_SCHEMA)

    def read(  # noqa: PLR0913  # each is a question of its own, all but the first by name
        self,
        topics: Topics = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        start: Position = None,
        end: Position = None,
        keys: Iterable[bytes | str | None] | None = None,
        columns: Iterable[str] | None = None,
        isolation: Isolation = "read_uncommitted",
        fail_on_data_loss: bool = True,
        range_bytes: int = DEFAULT_RANGE_BYTES,
        **decoding: Unpack["Decoding"],
    ) -> "Records":
        """Return the records of some partitions, read on demand.

        Args:
            topics: The topics; None for all but the cluster's own metadata log.
            start: Where to start, inclusive: an offset for all partitions, one for each of them
                (EARLIEST and LATEST are offsets, too), or a time, which stands for the first record
                at or after it. None for the log start.
            end: Where to end, exclusive, likewise. None for the log's end.
            keys: Only records with one of these keys; a string is taken as UTF-8, None is the null
                key. None for all records.
            columns: Names of ``COLUMNS``, in the order that is wanted; only these are built. None
                for all of them.
            isolation: ``read_committed`` leaves out records of aborted transactions and ends at the
                last stable offset, as a consumer does.
            fail_on_data_loss: Whether an offset that is not in a log (any more), and a segment that
                is missing, is an error; else what is there is read, with a warning.
            range_bytes: How much of the files is read in one go, unless one batch is more, at least
                1; ``Records.parts`` has no smaller parts.
            decoding: How keys and values become columns; see ``Decoding``.

        Raises:
            ConfigError: A topic, partition or schema is not there, or an argument is malformed;
                while reading, a value does not fit.
            OffsetOutOfRangeError: An offset is not in a log, and that is to be an error.
            MissingSegmentError: The records of a segment are lost, and that is to be an error.
            OffsetsInTierError: Records lie in the topic's tier, and that is to be an error.
            ChangedWhileReadError: A partition was changed again and again while it was looked at.
            PylogError: A log cannot be read.
        """
        choice = _choice(topics, partitions)
        typed = self.registry_columns(choice, **decoding)
        request = ReadRequest(
            paths=self._paths,
            choice=choice,
            starting=_bound("start", start),
            ending=_bound("end", end),
            columns=_columns(columns),
            keys=_keys(keys),
            fail_on_data_loss=fail_on_data_loss,
            is_committed=_is_committed(isolation),
            range_bytes=range_bytes,
        )
        ranges = plan_ranges(request, now_ms=SystemClock().now_ms())
        records = Records(ranges, schema_of(request.columns))
        return records if typed is None else records.decoded(typed)

    def offsets(
        self,
        topics: Topics = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        start: Position = None,
        end: Position = None,
        fail_on_data_loss: bool = True,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return where ``read`` with the same arguments starts and ends in each partition.

        Arguments and errors are those of ``read``. A partition without a segment has no entry.

        Returns:
            The first offset, and the one behind the last.
        """
        request = ReadRequest(
            paths=self._paths,
            choice=_choice(topics, partitions),
            starting=_bound("start", start),
            ending=_bound("end", end),
            columns=COLUMNS,
            fail_on_data_loss=fail_on_data_loss,
        )
        found = find_bounds(request, now_ms=SystemClock().now_ms())
        return {partition: (bounds.start, bounds.end) for partition, bounds in found.items()}

    def scan(
        self,
        topics: Topics = None,
        *,
        isolation: Isolation = "read_uncommitted",
        fail_on_data_loss: bool = True,
        lateness: timedelta | None = None,
        **decoding: Unpack[Decoding],
    ) -> Any:
        """Return the records as a lazy frame of Polars, with the columns ``COLUMNS``.

        Only columns that the query needs are built. What a filter says of topic and partition,
        of ``offset``, and of the earliest ``timestamp``, is left unread by the indexes of the logs;
        ``head`` ends the reading. Each query reads the logs anew, and logs at its end, at the level
        INFO, how many bytes of the segments it has read.

        Args:
            topics: The topics; None for all but the cluster's own metadata log.
            isolation: As for ``read``.
            fail_on_data_loss: As for ``read``.
            lateness: As for ``dataset``.
            decoding: As for ``read``.

        Raises:
            ConfigError: Polars is not installed, or a topic is not there. The other errors come
                with the query, from Polars.
        """
        polars = _import("polars")
        from polars.io.plugins import register_io_source  # noqa: PLC0415  # as Polars

        from storage_core.reading.polars_source import arrow_filter  # noqa: PLC0415  # as datasets

        dataset = self.dataset(
            topics,
            isolation=isolation,
            fail_on_data_loss=fail_on_data_loss,
            lateness=lateness,
            **decoding,
        )
        whole = dataset.schema
        schema = polars.from_arrow(whole.empty_table()).schema

        def read(
            columns: list[str] | None, predicate: Any, most: int | None, _: int | None
        ) -> Iterator[Any]:
            wanted = columns or whole.names
            needed = {*wanted, *(() if predicate is None else predicate.meta.root_names())}
            places = [place for _, _, place in self._chosen(topics, None)]
            condition = None if predicate is None else arrow_filter(predicate, places)
            for batch in dataset.unfiltered(needed, condition):
                frame = polars.from_arrow(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                frame = frame.select(wanted)
                if most is None:
                    # Polars asks for some frames ahead: no more than one window's.
                    yield from frame.iter_slices(frame.height // _FRAMES_OF_WINDOW + 1)
                    continue
                yield frame.head(most)
                most -= frame.height
                if most <= 0:
                    return

        return register_io_source(read, schema=schema)

    def dataset(
        self,
        topics: Topics = None,
        *,
        isolation: Isolation = "read_uncommitted",
        fail_on_data_loss: bool = True,
        lateness: timedelta | None = None,
        **decoding: Unpack[Decoding],
    ) -> "LogDataset":
        """Return the records as an Arrow dataset, with the columns ``COLUMNS``: a table of DuckDB.

        Only columns that the query needs are built, and what a filter of ``topic``,
        ``partition``, ``offset`` or the earliest ``timestamp`` rules out is left unread by the
        indexes of the logs. ``LIMIT`` ends the reading. Each query reads the logs anew. Of a
        dataset it has ``schema`` and ``scanner``; ``read_bytes`` and ``size_bytes`` tell how much
        of the segments its queries have read.

        Args:
            topics: The topics; None for all but the cluster's own metadata log.
            isolation: As for ``read``.
            fail_on_data_loss: As for ``read``.
            lateness: Your word that no record's ``timestamp`` is older by more than this than that
                of a record before it in its partition: then a filter's latest ``timestamp`` ends
                the reading. A record that is later is not found. With None nothing is taken for
                granted: what may hold an older record is read.
            decoding: As for ``read``.

        Raises:
            ConfigError: A topic is not there. The other errors come with the query, as DuckDB's.
        """
        if lateness is not None and not timedelta() <= lateness <= _LATEST:
            reason = f"expected None, or a timedelta from 0 to {_LATEST.days} days"
            raise ConfigError("lateness", lateness, reason)
        # Arrow's datasets are a library of their own.
        from storage_core.reading.arrow_dataset import LogDataset  # noqa: PLC0415

        self._chosen(topics, None)  # a topic that is not there is refused at once
        how = {"isolation": isolation, "fail_on_data_loss": fail_on_data_loss}
        typed = self.registry_columns(_choice(topics, None), **decoding)
        return LogDataset(self, topics, how, typed=typed, lateness=lateness)

    def schema_registry(self) -> SchemaRegistry:
        """Return the schemas of a registry, as its topic ``_schemas`` has them.

        Raises:
            ConfigError: There is no such topic.
            PylogError: It cannot be read.
        """
        where = ", ".join(self._paths)
        if SCHEMAS_TOPIC not in self.topics():
            reason = f"no topic {SCHEMAS_TOPIC} in {where}: add a root that has it"
            raise ConfigError("schemas", None, reason)
        try:
            return read_registry(self.read([SCHEMAS_TOPIC], columns=["key", "value"]), where)
        except ValueError as error:
            raise ConfigError("schemas", None, str(error)) from error

    def registry_columns(
        self,
        choice: TopicChoice,
        *,
        key_format: Form = None,
        value_format: Form = None,
        reader_schema: str | Path | int | None = None,
        reader_message: str | None = None,
        schemas: str | Path | None = None,
        on_error: OnError = "fail",
        options: OptionNames = DEFAULT_NAMES,
    ) -> RegistryColumns | None:
        """Return what makes columns of keys and values of some topics; None where they stay bytes.
        Other arguments are those of ``Decoding``.

        Args:
            options: What whoever reads calls them.
        """
        forms = {"key": key_format, "value": value_format}
        for name, form in forms.items():
            if form not in {None, REGISTRY}:
                raise ConfigError(getattr(options, name), form, f"expected {REGISTRY}, or nothing")
        if on_error not in ON_ERROR:
            reason = f"expected one of: {', '.join(ON_ERROR)}"
            raise ConfigError(options.on_error, on_error, reason)
        names = [name for name, form in forms.items() if form is not None]
        if not names:
            said = {
                options.reader_schema: reader_schema,
                options.reader_message: reader_message,
                options.schemas: schemas,
            }
            for option, value in said.items():
                if value is not None:
                    raise ConfigError(option, value, f"is for {options.value}={REGISTRY}")
            return None
        places = find_places(self._paths)
        topics = dict.fromkeys(each.topic for each in choice.choose(places, self._paths))
        if not topics:
            return None
        return choose_columns(
            names,
            topics,
            (
                self.schema_registry()
                if schemas is None
                else _of_file(options.schemas, read_schema_folder, schemas)
            ),
            reader=(
                _of_file(options.reader_schema, read_schema_file, reader_schema)
                if isinstance(reader_schema, str | Path)
                else reader_schema
            ),
            message=reader_message,
            on_error=on_error,
            options=options,
        )

    def _chosen(
        self, topics: Topics, partitions: Iterable[TopicPartition] | None
    ) -> list[tuple[RootView, SubDirectory, TopicPartition]]:
        """Return the directories of topics or partitions, in partition order."""
        directories = [
            (view, entry, entry.topic_partition)
            for view in map(inspect_root, self._paths)
            for entry in view.entries
            if entry.topic_partition is not None and entry.kind in _READABLE
        ]
        present = {partition for _, _, partition in directories}
        choice = set(_choice(topics, partitions).choose(present, self._paths))
        return sorted(
            (place for place in directories if place[2] in choice), key=lambda place: place[2]
        )


class Records:
    """Records to read, by partition in the order of their offsets.

    They are read anew each time, batch by batch: no more than a few MiB, or one larger batch, is in
    memory at once. Every time they are those of the moment of ``read``; where the files have
    changed since in a way that makes others of them, that is an error.

    Whatever speaks Arrow's PyCapsule interface takes this object as it takes a table: Polars,
    DuckDB, pandas, deltalake, ``pyarrow.table``.
    """

    def __init__(
        self,
        ranges: Sequence[ReadRange],
        schema: pa.Schema,
        typed: RegistryColumns | None = None,
    ) -> None:
        self._ranges = tuple(ranges)
        self.schema = schema
        self._typed = typed

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield non-empty Arrow batches of at most 65,536 records.

        Raises:
            BadBytesError: A batch is corrupt; the text says which file and where.
            ConfigError: A value does not fit its schema, and that is to be an error.
            ChangedWhileReadError: A file is not any more the one that was there at ``read``.
            MissingSegmentError: Offsets are missing between segments.
            StorageError: The disk failed.
        """
        misfits = Misfits()
        yield from self.batches(misfits)
        if misfits.count:
            _log.warning("%s", misfits)

    def batches(self, misfits: Misfits) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and count values that do not fit instead of warning of them."""
        for wanted in self._ranges:
            for batch in read_range(wanted):
                if self._typed is None:
                    yield batch
                else:
                    yield self._typed.decode(batch, self.schema, misfits)

    def decoded(self, columns: RegistryColumns) -> "Records":
        """Return the same records with keys or values as columns by their schemas."""
        ranges = [
            replace(wanted, columns=columns.needed(self.schema.names)) for wanted in self._ranges
        ]
        return Records(ranges, columns.schema(self.schema), columns)

    def sifted(self, times_ms: tuple[int, int]) -> "Records":
        """Return the same records without batches whose headers say that no record is of some
        times. Records of other times may be among what is left.

        Args:
            times_ms: The first and the last time, epoch milliseconds.
        """
        ranges = [replace(wanted, times_ms=times_ms) for wanted in self._ranges]
        return Records(ranges, self.schema, self._typed)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the records as an Arrow stream, for other libraries. Arrow defines this
        protocol."""
        return self.reader().__arrow_c_stream__(requested_schema)

    @property
    def size_bytes(self) -> int:
        """About how many bytes of files are read for them."""
        return sum(wanted.size_bytes for wanted in self._ranges)

    @property
    def most_records(self) -> int | None:
        """How many offsets the records have at most, and so how many they are at most.

        None where a log is read to an end that is not known yet: ``end`` of ``Logs.read`` was not
        said. LATEST says it.
        """
        total = 0
        for wanted in self._ranges:
            start, end = wanted.span
            if end is None:
                return None
            total += end - start
        return total

    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield records that lie evenly over all of them, each time the same; see ``sampling``.

        Smaller ranges (``range_bytes`` of ``Logs.read``) spread them better over logs with holes.

        Args:
            count: How many, at least 1; there are fewer where there are fewer records.

        Raises:
            ConfigError: The end of a log is not known; ``end=LATEST`` of ``Logs.read`` looks it up.
        """
        from storage_core.reading.sampling import sample_ranges  # noqa: PLC0415  # few need it

        if count < 1:
            raise ConfigError("count", count, "expected at least 1")
        if self.most_records is None:
            raise ConfigError("end", None, "expected the end of the logs: end=kafka_log.LATEST")
        return sample_ranges(self._ranges, count)

    def by_topic(self) -> "dict[str, Records]":
        """Return the records of each topic; of a topic that has nothing to read there are none."""
        ranges: dict[str, list[ReadRange]] = {}
        for wanted in self._ranges:
            ranges.setdefault(wanted.partition.topic, []).append(wanted)
        return {topic: Records(some, self.schema, self._typed) for topic, some in ranges.items()}

    def reader(self) -> pa.RecordBatchReader:
        """Return the records as PyArrow's batch reader, read on demand."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def parts(self, part_bytes: int = DEFAULT_RANGE_BYTES) -> list["Records"]:
        """Return the same records in parts, for several processes: they pickle.

        Args:
            part_bytes: About how much of the files a part reads, at least 1. What is read in one go
                (``range_bytes`` of ``Logs.read``, or one larger batch) is never cut.

        Returns:
            In the order of the records; none where nothing was asked for.
        """
        groups: list[list[ReadRange]] = []
        room = 0
        for wanted in self._ranges:
            if not groups or wanted.size_bytes > room:
                groups.append([])
                room = part_bytes
            groups[-1].append(wanted)
            room -= wanted.size_bytes
        return [Records(group, self.schema, self._typed) for group in groups]

    def to_table(self) -> pa.Table:
        """Return all of the records, in memory. Errors are those of iterating over the records."""
        return pa.Table.from_batches(self, schema=self.schema)

    def to_pandas(self) -> Any:
        """Return all of the records as a pandas DataFrame. Errors are those of iterating over the
        records.

        Raises:
            ConfigError: pandas is not installed.
        """
        _import("pandas")
        return self.to_table().to_pandas()

    def to_polars(self) -> Any:
        """Return all of the records as a Polars DataFrame. Errors are those of iterating over the
        records.

        Raises:
            ConfigError: Polars is not installed.
        """
        return _import("polars").from_arrow(self.to_table())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each record as a dictionary; errors as of iterating over batches.

        It makes a Python object for each value: use it for thousands of records, not for millions.
        """
        for batch in self:
            yield from batch.to_pylist()


def _record_stream(records: Any, *, has_topic: bool) -> pa.RecordBatchReader:
    """Return the columns that are written, of what has Arrow's stream interface."""
    if not hasattr(records, "__arrow_c_stream__"):
        reason = "expected a table, Records or a DataFrame: what has Arrow's stream interface"
        raise ConfigError("records", type(records).__name__, reason)
    reader = pa.RecordBatchReader.from_stream(records)
    names = reader.schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        there = ", ".join(COLUMNS)
        raise InvalidColumnError(unknown[0], f"is no column of a record; there are: {there}")
    left_out = _GIVEN_ANEW | ({"topic"} if has_topic else set())
    columns = [name for name in names if name not in left_out]
    schema = pa.schema([_without_views(reader.schema.field(name)) for name in columns])
    return pa.RecordBatchReader.from_batches(
        schema, (batch.select(columns).cast(schema) for batch in reader)
    )


def _without_views(field: pa.Field) -> pa.Field:
    """Return a column with plain strings in place of Arrow views. Polars exports views, but
    batches cannot be built of them."""
    kind = field.type
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if pa.types.is_list(kind):
        kind = pa.list_(_without_views(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_without_views(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_without_views(each) for each in kind])
    return field.with_type(plain.get(kind, kind))


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _choice(topics: Topics, partitions: Iterable[TopicPartition] | None) -> TopicChoice:
    if partitions is not None:
        if topics is not None:
            raise ConfigError("partitions", None, "say topics or partitions, not both")
        assigned: frozenset[Any] = frozenset(partitions)
        wrong = [each for each in assigned if not isinstance(each, TopicPartition)]
        if wrong or not assigned:
            shown = wrong[0] if wrong else None
            raise ConfigError("partitions", shown, 'expected TopicPartition("orders", 0), ...')
        return TopicChoice(assigned=assigned, option="partitions")
    if topics is None:
        return TopicChoice()
    if isinstance(topics, re.Pattern):
        return TopicChoice(pattern=topics, option="topics")
    names = frozenset([topics] if isinstance(topics, str) else topics)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("topics", None, "expected at least one topic's name")
    return TopicChoice(names=names, option="topics")


def _bound(option: str, position: Position) -> Bound:
    if position is None:
        return Bound()
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise ConfigError(option, position, "expected a time with its zone (tzinfo)")
        return Bound(timestamps_ms=epoch_ms(position), is_past_end_allowed=True, option=option)
    if isinstance(position, Mapping):
        keys: list[Any] = list(position)
        wrong = [each for each in keys if not isinstance(each, TopicPartition)]
        if wrong:
            raise ConfigError(option, wrong[0], 'expected TopicPartition("orders", 0): offset')
        offsets = {each: _offset(option, offset) for each, offset in position.items()}
        return Bound(offsets=offsets, option=option)
    return Bound(offsets=_offset(option, position), option=option)


def _offset(option: str, number: Any) -> int:
    """Return Python's, NumPy's or Arrow's number as a Python integer."""
    is_number = isinstance(number, SupportsIndex) and not isinstance(number, bool)
    offset = index(number) if is_number else None
    if offset is None or not EARLIEST <= offset <= MAX_OFFSET:
        raise ConfigError(option, number, "expected an offset or a datetime")
    return offset


def _columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    if columns is None:
        return COLUMNS
    names = tuple(dict.fromkeys([columns] if isinstance(columns, str) else columns))
    unknown = [name for name in names if name not in COLUMN_TYPES]
    if unknown or not names:
        shown = unknown[0] if unknown else None
        raise ConfigError("columns", shown, f"expected names from: {', '.join(COLUMNS)}")
    return names


def _of_file(option: str, read: Callable[[Path], _T], path: str | Path) -> _T:
    """Return what a file or folder of schemas has."""
    try:
        return read(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(option, path, str(error)) from error


def _keys(keys: Iterable[bytes | str | None] | None) -> frozenset[bytes | None] | None:
    if keys is None:
        return None
    if isinstance(keys, bytes | str):
        keys = [keys]
    encoded: set[bytes | None] = set()
    for key in keys:
        if key is not None and not isinstance(key, bytes | str):
            raise ConfigError("keys", key, "expected bytes, a string or None")
        encoded.add(key.encode() if isinstance(key, str) else key)
    return frozenset(encoded)


def _is_committed(isolation: str) -> bool:
    if isolation not in {"read_uncommitted", "read_committed"}:
        raise ConfigError("isolation", isolation, "expected read_uncommitted or read_committed")
    return isolation == "read_committed"


def _import(package: str) -> Any:
    """Import what only some readers have installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        reason = f"is not installed: pip install {package}"
        raise ConfigError("package", package, reason) from error
