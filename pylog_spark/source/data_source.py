"""The format ``kafka-log``: Kafka's log files with Spark's Kafka columns. A topic looks as in
Spark's own Kafka source.

It defines no ``pushFilters``: in PySpark 4.2 a reader that has accepted a filter stays attached to
the DataFrame and narrows later, unfiltered actions too. Ranges and columns are options instead.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pylog_spark.rows import spark_ddl
from pylog_spark.source.options import (
    SourceOptions,
    canonical_names,
    parse_options,
    warn_of_meaningless,
)
from pylog_spark.source.reader import KafkaLogReader
from pylog_spark.source.stream import KafkaLogStreamReader
from pylog_spark.source.writer import KafkaLogWriter
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.checkpoints import parse_uuid
from storage_core.clock import SystemClock
from storage_core.config import LogConfig
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.errors import ConfigError, InvalidColumnError, InvalidNameError
from storage_core.filenames import MAX_OFFSET, MAX_PARTITION, validate_topic
from storage_core.formats.batch_v2 import Codec
from storage_core.json_values import parse_json
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.store.local import plain_path
from storage_core.store.open_objects import names_manifest
from storage_core.store.requests import logged_requests
from storage_core.writing.publication import begin_write
from storage_core.writing.staging import (
    WriteRequest,
    WriteTransaction,
)

# The options and columns of ``df.write.format("kafka-log")``: Spark's Kafka sink's, and more.
#
# What a topic is configured with has Kafka's own names (``compression.type``). What a producer is
# configured with has them behind ``kafka.``, as in Spark's sink; of these the two count that are
# seen in the files.

_CODEC: Final = "kafka.compression.type"
_BATCH_SIZE: Final = "kafka.batch.size"
NAMES: Final = (
    "path",
    "topic",
    "partitions",
    "partitioner",
    "topicIds",
    "txnAppId",
    "txnVersion",
    _CODEC,
    _BATCH_SIZE,
    *TOPIC_KEYS,
)
_PARTITIONERS: Final = {"murmur2": True, "roundrobin": False}
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_MAX_JSON_BYTES: Final = 16 << 20
_Choice = TypeVar("_Choice")
_TEXT: Final = (BinaryType, StringType)
COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": (IntegerType, LongType, ShortType, ByteType),
    "timestamp": (TimestampType, TimestampNTZType, LongType),
    "headers": (ArrayType,),
}
# Columns of ``spark.read.format("kafka-log")`` and of Spark's Kafka source that are not written:
# offsets are assigned anew.
READERS_OWN: Final = ("offset", "timestampType")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write asks for."""

    request: WriteRequest
    without_meaning: tuple[str, ...]


def parse_sink_options(options: Mapping[str, str], *, is_overwrite: bool) -> SinkOptions:
    """Read the options of a write.

    Args:
        options: Options as Spark passes them, with names in any case.
        is_overwrite: Whether the mode is overwrite.

    Raises:
        ConfigError: An option is unknown or malformed, or the path is none of this machine's.
    """
    texts, without_meaning = canonical_names(options, NAMES)
    overrides = {name: texts[name] for name in TOPIC_KEYS if name in texts}
    request = WriteRequest(
        directory=_parse_path(texts),
        is_overwrite=is_overwrite,
        topic=_parse_topic(texts),
        partitions=_parse_number(texts, "partitions", least=1, most=MAX_PARTITION),
        by_key=_parse_word(texts, "partitioner", _PARTITIONERS, "murmur2"),
        config=LogConfig.from_topic_overrides(overrides),
        codec=_parse_word(texts, _CODEC, _CODECS, "none"),
        batch_bytes=_parse_number(texts, _BATCH_SIZE, least=0, most=MAX_PARTITION),
        topic_ids=_parse_topic_ids(texts),
        transaction=_parse_transaction(texts),
    )
    return SinkOptions(request=request, without_meaning=without_meaning)


def record_columns(schema: StructType, *, has_topic: bool) -> tuple[str, ...]:
    """Return the columns of a DataFrame that are written.

    Args:
        schema: The DataFrame's schema.

    Raises:
        InvalidColumnError: A column is missing, unknown or of another type.
    """
    names = schema.fieldNames()
    for name in ("value",) if has_topic else ("value", "topic"):
        if name not in names:
            reason = "the DataFrame has no such column"
            raise InvalidColumnError(
                name, reason + (", and there is no option topic" * (name == "topic"))
            )
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None and field.name not in READERS_OWN:
            there = ", ".join((*COLUMNS, *READERS_OWN))
            raise InvalidColumnError(field.name, f"is no column of a record; there are: {there}")
        if kinds is not None and not _is_one(field.dataType, kinds):
            expected = " or ".join(kind.typeName() for kind in kinds)
            actual = field.dataType.simpleString()
            if field.name == "headers":
                expected = "array<struct<key:string,value:binary>>"
            raise InvalidColumnError(field.name, f"expected {expected}, found {actual}")
    return tuple(name for name in names if name in COLUMNS and not (name == "topic" and has_topic))


def _is_one(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    if not isinstance(kind, ArrayType):
        return isinstance(kind, kinds)
    inner = kind.elementType
    if kinds != (ArrayType,) or not isinstance(inner, StructType):
        return False
    return [(f.name, type(f.dataType)) for f in inner.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def _parse_path(texts: Mapping[str, str]) -> str:
    text = texts.get("path")
    if not text:
        raise ConfigError("path", None, 'say where to write: .save("/path/to/log/directory")')
    path = local_path(text)
    if path is None or names_manifest(text):
        raise ConfigError(
            "path",
            text,
            "expected a directory on a disk that all workers see; a managed root takes it in: "
            "pylog ingest DIRECTORY MANAGED",
        )
    return os.fspath(plain_path(Path(path)))


def _parse_topic(texts: Mapping[str, str]) -> str | None:
    if "topic" not in texts:
        return None
    try:
        return validate_topic(texts["topic"])
    except InvalidNameError as error:
        raise ConfigError("topic", texts["topic"], error.reason) from error


def _parse_number(texts: Mapping[str, str], name: str, *, least: int, most: int) -> int | None:
    if name not in texts:
        return None
    text = texts[name].strip()
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ConfigError(name, texts[name], f"expected a number from {least} to {most}")
    return int(text)


def _parse_word(
    texts: Mapping[str, str], name: str, words: Mapping[str, _Choice], default: str
) -> _Choice:
    text = texts.get(name, default).strip().lower()
    if text not in words:
        raise ConfigError(name, texts[name], f"expected one of: {', '.join(words)}")
    return words[text]


def _parse_topic_ids(texts: Mapping[str, str]) -> dict[str, str]:
    name = "topicIds"
    if name not in texts:
        return {}
    example = 'expected JSON like {"orders":"z7Bq0v9lTLWsqe1eqY2Bhg"}'
    try:
        ids = parse_json(texts[name], limit_bytes=_MAX_JSON_BYTES)
        if not isinstance(ids, dict):
            raise ConfigError(name, texts[name], example)
        return {validate_topic(topic): parse_uuid(str(text)) for topic, text in ids.items()}
    except (InvalidNameError, ValueError) as error:
        raise ConfigError(name, texts[name], f"{example}: {error}") from error


def _parse_transaction(texts: Mapping[str, str]) -> WriteTransaction | None:
    names = [name for name in ("txnAppId", "txnVersion") if name in texts]
    if not names:
        return None
    version = _parse_number(texts, "txnVersion", least=0, most=MAX_OFFSET)
    app_id = texts.get("txnAppId")
    if not app_id or version is None:
        raise ConfigError(names[0], texts[names[0]], "txnAppId and txnVersion go together")
    return WriteTransaction(app_id=app_id, version=version)


FORMAT_NAME: Final = "kafka-log"


class KafkaLogDataSource(DataSource):
    """The format; ``source.register`` makes it known to a session.

    Attributes:
        max_partition_bytes: How much a task reads where no option says it.
    """

    max_partition_bytes = DEFAULT_RANGE_BYTES

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT_NAME

    def schema(self) -> str:
        """Return the columns for the options. Spark does not tell whether the columns are for a
        stream."""
        options = None
        with suppress(ConfigError):  # a stream may have options that a query may not
            options = self._options()
        if options is None:
            options = self._options(is_stream=True)
        return spark_ddl(options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a query's reader, with the columns of the options."""
        del schema
        return KafkaLogReader(self._options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Return a stream's reader, with the columns of the options."""
        del schema
        return KafkaLogStreamReader(self._options(is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Begin a write, on the driver, and return what does it.

        Raises:
            PylogError: An option or column is not to be written, or the directory is not.
        """
        options = parse_sink_options(self.options, is_overwrite=overwrite)
        warn_of_meaningless(options.without_meaning)
        request = options.request
        columns = record_columns(schema, has_topic=request.topic is not None)
        return KafkaLogWriter(begin_write(request, clock=SystemClock()), columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Refuse: a stream is written batch by batch.

        Raises:
            ConfigError: Always, with what to do.
        """
        del schema, overwrite
        reason = "use foreachBatch: df.write with txnAppId and txnVersion writes each batch once"
        raise ConfigError("writeStream", None, reason)

    def _options(self, *, is_stream: bool = False) -> SourceOptions:
        with logged_requests("the options of kafka-log"):  # what is there?
            return parse_options(
                self.options, max_partition_bytes=self.max_partition_bytes, is_stream=is_stream
            )
