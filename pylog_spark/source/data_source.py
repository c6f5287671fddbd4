"""The format ``kafka-log``: Kafka's log files as Spark's own Kafka source shows a topic.

It defines no ``pushFilters``: in PySpark 4.2 a reader that has accepted a filter stays attached to
the DataFrame and narrows later, unfiltered actions too. Ranges and columns are options instead.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pylog_spark.source.options import SourceOptions, parse_options
from pylog_spark.source.task_planning import plan_tasks
from pylog_spark.source.write_options import parse_sink_options, record_columns
from pylog_spark.source.writer import KafkaLogWriter
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.reading.ranges import ReadRange, read_range
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.writing.publication import begin_write

FORMAT_NAME: Final = "kafka-log"
_SPARK_TYPES: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>",
}


_log: Final = logging.getLogger(__name__)


def _name_without_meaning(names: Sequence[str]) -> None:
    if names:
        _log.warning("kafka-log: options that mean nothing here: %s", ", ".join(names))


class RangesPartition(InputPartition):
    """The ranges of one task, as Spark carries them to it."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class KafkaLogReader(DataSourceReader):
    """Plans the tasks of a query and does one."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return what the query's tasks read; an empty list for no records."""
        _name_without_meaning(self._options.without_meaning)
        tasks = plan_tasks(self._options, now_ms=SystemClock().now_ms())
        return [RangesPartition(ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches."""
        freeze_modules()
        if isinstance(partition, RangesPartition):
            for wanted in partition.ranges:
                yield from read_range(wanted)


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
        """Return the columns that the options ask for."""
        columns = self._options().request.columns
        return ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query; its columns are those of the options."""
        del schema
        return KafkaLogReader(self._options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Begin a write, on the driver, and return what does it.

        Raises:
            PylogError: An option or column is not to be written, or the directory is not.
        """
        options = parse_sink_options(self.options, is_overwrite=overwrite)
        _name_without_meaning(options.without_meaning)
        request = options.request
        columns = record_columns(schema, has_topic=request.topic is not None)
        return KafkaLogWriter(begin_write(request, clock=SystemClock()), columns)

    def _options(self) -> SourceOptions:
        return parse_options(self.options, max_partition_bytes=self.max_partition_bytes)
