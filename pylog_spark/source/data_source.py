"""The format ``kafka-log``: Kafka's log files as Spark's own Kafka source shows a topic.

It defines no ``pushFilters``: in PySpark 4.2 a reader that has accepted a filter stays attached to
the DataFrame and narrows later, unfiltered actions too. Ranges and columns are options instead.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pylog_spark.rows import spark_ddl
from pylog_spark.source.options import SourceOptions, parse_options, warn_of_meaningless
from pylog_spark.source.stream import KafkaLogStreamReader
from pylog_spark.source.task_planning import plan_parts, plan_tasks
from pylog_spark.source.write_options import parse_sink_options, record_columns
from pylog_spark.source.writer import KafkaLogWriter
from pylog_spark.tasks.views import VIEWS, FileView, RangeView, ViewPart
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.reading.ranges import ReadRange, read_range
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.writing.publication import begin_write

FORMAT_NAME: Final = "kafka-log"


class RangesPartition(InputPartition):
    """The ranges of one task, as Spark carries them to it."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class FilesPartition(InputPartition):
    """What one task of a view of files shows, as Spark carries it there."""

    def __init__(self, part: ViewPart) -> None:
        super().__init__(part)
        self.part = part


class KafkaLogReader(DataSourceReader):
    """Plans the tasks of a query and does one."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return what the query's tasks read; an empty list for no records."""
        warn_of_meaningless(self._options.without_meaning)
        now_ms = SystemClock().now_ms()
        view = VIEWS.get(self._options.view)
        if isinstance(view, FileView):
            request = self._options.request
            parts = plan_parts(request, is_of_root=view.is_of_root, now_ms=now_ms)
            return [FilesPartition(part) for part in parts]
        tasks = plan_tasks(self._options, now_ms=now_ms)
        return [RangesPartition(ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches."""
        freeze_modules()
        view = VIEWS.get(self._options.view)
        if view is None and isinstance(partition, RangesPartition):
            for wanted in partition.ranges:
                yield from read_range(wanted)
        elif isinstance(view, RangeView) and isinstance(partition, RangesPartition):
            for wanted in partition.ranges:
                yield from self._select(view.read(wanted))
        elif isinstance(view, FileView) and isinstance(partition, FilesPartition):
            yield from self._select(view.show(partition.part))

    def _select(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the columns that were asked for."""
        for batch in batches:
            yield batch.select(self._options.columns)


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
        """Return the columns that the options ask for; whether of a stream, Spark does not say."""
        options = None
        with suppress(ConfigError):  # a stream may say what a query may not
            options = self._options()
        if options is None:
            options = self._options(is_stream=True)
        return spark_ddl(options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query; its columns are those of the options."""
        del schema
        return KafkaLogReader(self._options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Return the reader of a stream; its columns are those of the options."""
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
        return parse_options(
            self.options, max_partition_bytes=self.max_partition_bytes, is_stream=is_stream
        )
