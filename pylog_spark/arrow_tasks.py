"""The door to ``mapInArrow``."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from pylog_spark.schemas import spark_ddl
from pylog_spark.tasks.worker import freeze_modules

ArrowWork = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, work: ArrowWork, schema: pa.Schema) -> DataFrame:
    """Return the rows that work makes of those of a DataFrame.

    Args:
        frame: Rows.
        work: Runs in a task; captures values only.
        schema: Columns of the rows that it makes.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        yield from work(batches)

    return frame.mapInArrow(run, spark_ddl(schema))
