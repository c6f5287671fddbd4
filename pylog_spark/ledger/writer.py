"""Write the ledger: every table created before anything is done, then appended to, never changed.

A run writes its START row first and its END row last; a run without an END row died. With Delta
each append carries the run's id and a number (``txnAppId``, ``txnVersion``): an append that is
made again, because its answer was lost, adds nothing. Parquet has no such thing; it is used only
where the session has no Delta.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pylog_spark.ledger.tables import SCHEMAS, LedgerFormat, LedgerTable, table_location
from pylog_spark.schemas import rows_to_batch, spark_ddl

_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"

# The tables are small and appended to by a few rows a run. Delta computes a table's state before
# each append; for such a table one partition does that, not fifty: an append took 3 s instead of
# 12 s on a busy machine (append rows in a loop, with and without these). They must not leak into a
# session that does other work, so they are set on a session of the ledger's own.
_LEDGER_SETTINGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The tables of one ledger, open for one run.

    Attributes:
        location: Path or URL under which the tables lie.
        run_id: The run that writes.
        format: How the tables are stored.
    """

    location: str
    run_id: str
    format: LedgerFormat
    _callers_session: SparkSession
    _session: SparkSession

    @classmethod
    def open(cls, spark: SparkSession, location: str, *, run_id: str) -> "Ledger":
        """Create the tables that are not there yet and return the ledger.

        Raises:
            pyspark.errors.PySparkException: The location cannot be written.
        """
        session = _ledger_session(spark)
        ledger = cls(
            location=location,
            run_id=run_id,
            format=ledger_format(spark),
            _callers_session=spark,
            _session=session,
        )
        for table in LedgerTable:
            ledger._create(table)
        ledger._give_back()
        return ledger

    def append(self, table: LedgerTable, rows: pa.Table, *, number: int) -> None:
        """Append rows to a table, once: a second call with the same number adds nothing (Delta).

        Args:
            table: Which table.
            rows: Rows with the table's columns.
            number: Number of the append among the run's appends to this table, rising.

        Raises:
            pyspark.errors.PySparkException: The location cannot be written.
        """
        self._save(self._frame(table, rows), table, number)

    def append_frame(self, table: LedgerTable, frame: DataFrame, *, number: int) -> None:
        """Append the rows of a DataFrame, which do not pass through the driver; see ``append``.

        Args:
            table: Which table.
            frame: Rows with the table's columns.
            number: As for ``append``.
        """
        self._save(frame, table, number)

    def append_row(self, table: LedgerTable, row: dict[str, Any], *, number: int) -> None:
        """Append one row; see ``append``."""
        batch = rows_to_batch(SCHEMAS[table], [row])
        self.append(table, pa.Table.from_batches([batch]), number=number)

    def _save(self, frame: DataFrame, table: LedgerTable, number: int) -> None:
        writer = frame.write.format(self.format).mode("append")
        if self.format is LedgerFormat.DELTA:
            writer = writer.option("txnAppId", f"{self.run_id}/{table}")
            writer = writer.option("txnVersion", number)
            # A table that an older version made gets the columns that came since.
            writer = writer.option("mergeSchema", "true")
        writer.save(table_location(self.location, table))
        self._give_back()

    def _create(self, table: LedgerTable) -> None:
        writer = self._frame(table, SCHEMAS[table].empty_table()).write.format(self.format)
        if self.format is LedgerFormat.DELTA:
            writer = writer.option("delta.appendOnly", "true")
            writer = writer.option("delta.checkpointInterval", "100")
        # "ignore" leaves a table that exists as it is.
        writer.mode("ignore").save(table_location(self.location, table))

    def _give_back(self) -> None:
        """Make the caller's session the active one again, which creating a DataFrame does."""
        self._callers_session.createDataFrame([], "nothing INT")

    def _frame(self, table: LedgerTable, rows: pa.Table) -> DataFrame:
        ddl = spark_ddl(SCHEMAS[table], comments=True)
        plain = rows.cast(SCHEMAS[table]).replace_schema_metadata()
        return self._session.createDataFrame(plain, ddl).coalesce(1)


def ledger_format(spark: SparkSession) -> LedgerFormat:
    """Return how a session stores ledgers: Delta where that is configured, else Parquet."""
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    return LedgerFormat.DELTA if _DELTA_EXTENSION in extensions else LedgerFormat.PARQUET


def _ledger_session(spark: SparkSession) -> SparkSession:
    """Return a session with settings for small tables; with Spark Connect, the same one."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return spark
    session = spark.newSession()
    for key, value in _LEDGER_SETTINGS.items():
        session.conf.set(key, value)
    return session
