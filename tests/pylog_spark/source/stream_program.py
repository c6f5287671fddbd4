"""A program with a stream: what there is of a directory goes to Parquet files, with a checkpoint.

``python -m tests.pylog_spark.source.stream_program ROOT FOLDER``: the rows are in ``FOLDER/rows``.
"""

import sys
from pathlib import Path
from typing import Any

from pylog_spark.session import build_session
from pylog_spark.source import register
from pylog_spark.source.stream import HAS_LIMITS
from tests.kit.spark_classes import FEW_ROWS, spark_options


def copy_stream(spark: Any, root: Path, folder: Path, **options: str) -> Any:
    """Start a query that ends when it has read what was there when it began; returns it."""
    rows = spark.readStream.format("kafka-log").options(**options).load(str(root))
    return (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "rows"))
        .trigger(availableNow=True)
        .start()
    )


def main(root: Path, folder: Path) -> None:
    """Read from the earliest offsets on, in many triggers where there can be more than one."""
    settings = FEW_ROWS | {"spark.driver.extraJavaOptions": spark_options()}
    spark = build_session("local[2]", settings, app_name="stream", delta=False)
    register(spark)
    limit = {"maxOffsetsPerTrigger": "40"} if HAS_LIMITS else {}
    copy_stream(spark, root, folder, startingOffsets="earliest", **limit).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
