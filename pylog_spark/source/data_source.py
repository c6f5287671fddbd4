"""The format ``kafka-log``: Kafka's log files with Spark's Kafka columns. A topic looks as in
Spark's own Kafka source.

It defines no ``pushFilters``: in PySpark 4.2 a reader that has accepted a filter stays attached to
the DataFrame and narrows later, unfiltered actions too. Ranges and columns are options instead.
"""

from contextlib import suppress
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pylog_spark.rows import spark_ddl
from pylog_spark.source.options import SourceOptions, parse_options, warn_of_meaningless
from pylog_spark.source.reader import KafkaLogReader
from pylog_spark.source.stream import KafkaLogStreamReader
from pylog_spark.source.write_options import parse_sink_options, record_columns
from pylog_spark.source.writer import KafkaLogWriter
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.writing.publication import begin_write

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
        return parse_options(
            self.options, max_partition_bytes=self.max_partition_bytes, is_stream=is_stream
        )
