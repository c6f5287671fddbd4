"""A source that reads nothing: rows of one Arrow batch, made before: what is Spark's own."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pylog_spark.rows import spark_ddl
from storage_core.kafka_log import COLUMNS
from storage_core.reading.ranges import schema_of
from tests.bench.generated_columns import TEXT_BYTES

_SCHEMA: Final = schema_of(name for name in COLUMNS if name != "headers")
_VALUES: Final = {"key": b"k" * 8, "value": b"v" * TEXT_BYTES, "topic": "counted"}


class PremadeSource(DataSource):
    """As many tasks, batches and rows as options say, with the columns of ``kafka-log``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "premade"

    def schema(self) -> str:
        """Return the columns."""
        return spark_ddl(_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what hands the batches over."""
        del schema
        return _Reader(*(int(self.options[name]) for name in ("tasks", "batches", "rows")))


class _Reader(DataSourceReader):
    def __init__(self, tasks: int, batches: int, rows: int) -> None:
        self._tasks = tasks
        self._batches = batches
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one batch again and again."""
        del partition
        columns = [
            pa.repeat(pa.scalar(_VALUES.get(field.name, 0), field.type), self._rows)
            for field in _SCHEMA
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        for _ in range(self._batches):
            yield batch
