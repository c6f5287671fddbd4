"""Write the ledger: every table created before anything is done, then appended to, never changed.

A run writes its START row first and its END row last; a run without an END row died. With Delta
each append carries the run's id and a number (``txnAppId``, ``txnVersion``): an append that is
made again, because its answer was lost, adds nothing. Parquet has no such thing; it is used only
where the session has no Delta, or the ledger was begun so, and never without a word.
"""

import logging
import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from pylog_spark.ledger.tables import SCHEMAS, LedgerFormat, LedgerTable, table_location
from pylog_spark.schemas import rows_to_batch, spark_ddl
from pylog_spark.session_facts import has_delta, is_connect
from storage_core.errors import ConfigError

_log: Final = logging.getLogger(__name__)
# What makes a path a pattern to Spark; a backslash in front takes that away.
_PATTERN_CHARACTER: Final = re.compile(r"[][{}*?\\]")

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
            ConfigError: Its tables are Delta's, and the session has no Delta.
            pyspark.errors.PySparkException: The location cannot be written.
        """
        session = _ledger_session(spark)
        kind = format_at(spark, location)
        if kind is LedgerFormat.PARQUET:
            _warn_of_parquet(spark, location)
        ledger = cls(
            location=location,
            run_id=run_id,
            format=kind,
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
    """Return how a session stores a new ledger: Delta where that is configured, else Parquet."""
    return LedgerFormat.DELTA if has_delta(spark) else LedgerFormat.PARQUET


def format_at(spark: SparkSession, location: str) -> LedgerFormat:
    """Return how the ledger at location is stored: as it was begun, whatever the session has.

    Raises:
        ConfigError: Its tables are Delta's, and the session has no Delta: rows beside a Delta
            table's log would be in no table.
    """
    new = ledger_format(spark)
    runs = table_location(location, LedgerTable.RUNS)
    if _is_there(spark.read.format("text"), f"{runs}/_delta_log"):
        if new is LedgerFormat.DELTA:
            return new
        raise ConfigError(
            "--ledger",
            location,
            "its tables are Delta's, and this session has no Delta: start Spark with Delta's jars "
            "and spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension, or name another "
            "ledger",
        )
    # A Delta table that is made over files of Parquet has none of their rows.
    is_parquet = new is LedgerFormat.DELTA and _is_there(spark.read.format("parquet"), runs)
    return LedgerFormat.PARQUET if is_parquet else new


def literal_path(path: str) -> str:
    """Return a path so that Spark's readers of files take none of its characters for a pattern."""
    return _PATTERN_CHARACTER.sub(r"\\\g<0>", path)


def _is_there(reader: DataFrameReader, path: str) -> bool:
    """Whether there are files that a reader understands.

    Of a single path, plain or a pattern, Spark looks whether a stream writes there, and warns with
    the stack of an exception if there is nothing. Of two paths it does not; so this one is said
    twice.
    """
    try:
        reader.load([literal_path(path)] * 2).schema  # noqa: B018  # looks for them
    except AnalysisException:
        return False
    return True


def _warn_of_parquet(spark: SparkSession, location: str) -> None:
    reason = (
        "it was begun as Parquet, and goes on so (name another ledger for Delta tables)"
        if ledger_format(spark) is LedgerFormat.DELTA
        else "this session has no Delta (spark.sql.extensions does not name Delta's), so the "
        "ledger is written as Parquet"
    )
    _log.warning("%s: %s: an append that Spark repeats is there twice", location, reason)


def _ledger_session(spark: SparkSession) -> SparkSession:
    """Return a session with settings for small tables; with Spark Connect, the same one."""
    if is_connect(spark):
        return spark
    session = spark.newSession()
    for key, value in _LEDGER_SETTINGS.items():
        session.conf.set(key, value)
    return session
