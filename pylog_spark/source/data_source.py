"""``spark.read.format("kafka-log")``: Kafka's log files as Spark's own Kafka source shows a topic.

It defines no ``pushFilters``: in PySpark 4.2 a reader that has accepted a filter stays attached to
the DataFrame and narrows later, unfiltered actions too. Ranges and columns are options instead.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pylog_spark.source.options import parse_options
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import ReadRange, read_range
from storage_core.reading.request import ReadRequest

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


class SegmentPartition(InputPartition):
    """One range, as Spark carries it to a task."""

    def __init__(self, wanted: ReadRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class KafkaLogReader(DataSourceReader):
    """Plans the ranges of a query and reads one."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        """Return the ranges that the query's tasks read; an empty list for no records."""
        ranges = plan_ranges(self._request, now_ms=SystemClock().now_ms())
        return [SegmentPartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as Arrow batches."""
        freeze_modules()
        if isinstance(partition, SegmentPartition):
            yield from read_range(partition.wanted)


class KafkaLogDataSource(DataSource):
    """The format; ``source.register`` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT_NAME

    def schema(self) -> str:
        """Return the columns that the options ask for."""
        columns = parse_options(self.options).columns
        return ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query; its columns are those of the options."""
        del schema
        return KafkaLogReader(parse_options(self.options))
