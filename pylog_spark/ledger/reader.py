"""Read a ledger as DataFrames."""

from pyspark.sql import DataFrame, SparkSession

from pylog_spark.ledger.tables import LedgerFormat, LedgerTable, table_location
from pylog_spark.ledger.writer import format_at, literal_path


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
    kind, place = format_at(spark, location), table_location(location, table)
    reader = spark.read.format(kind).option("mergeSchema", "true")
    frame = reader.load(place if kind is LedgerFormat.DELTA else literal_path(place))
    return frame if run_id is None else frame.where(frame["run_id"] == run_id)
