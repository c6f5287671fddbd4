"""Read a ledger as DataFrames."""

from pyspark.sql import DataFrame, SparkSession

from pylog_spark.ledger.tables import LedgerTable, table_location
from pylog_spark.ledger.writer import format_at


def read_table(
    spark: SparkSession, location: str, table: LedgerTable, *, run_id: str | None = None
) -> DataFrame:
    """Return a table of the ledger at location, of one run or of all.

    The session has to be of the kind that wrote it: with Delta, or without.

    Raises:
        ConfigError: Its tables are Delta's, and the session has no Delta.
        pyspark.errors.AnalysisException: There is no such table.
    """
    # Files of Parquet have the columns of the version that wrote them; of some files all are asked.
    reader = spark.read.format(format_at(spark, location)).option("mergeSchema", "true")
    frame = reader.load(table_location(location, table))
    return frame if run_id is None else frame.where(frame["run_id"] == run_id)
