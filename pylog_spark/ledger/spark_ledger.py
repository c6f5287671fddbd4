"""The ledger as a Spark session writes and reads it.

What the driver has it appends itself, where it can: a job of Spark's, and Delta's state computed by
three more, are seconds for an append of a few rows. What tasks have Spark appends.

Parquet has no transaction ids; it is used only where the session has no Delta, or the ledger was
begun so, and never without a word.
"""

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own habit

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.engines.session_facts import has_delta, has_files_of_driver, is_connect
from pylog_spark.engines.spark_engine import SparkRows
from pylog_spark.ledger.tables import (
    COLUMNS,
    SCHEMAS,
    Ledger,
    LedgerFormat,
    LedgerTable,
    is_for_deltalake,
    last_enforced,
    table_location,
)
from pylog_spark.outcomes import Action
from pylog_spark.rows import spark_ddl
from storage_core import interruption
from storage_core.errors import ConfigError, StorageError

_log: Final = logging.getLogger(__name__)
# These characters make a path a pattern to Spark, unless a backslash precedes them.
_PATTERN_CHARACTER: Final = re.compile(r"[][{}*?\\]")

# With more names Spark is asked for all topics.
_MOST_NAMED: Final = 1000
_LIMITS_DDL: Final = (
    "root string, topic string, run_id string, retention_ms bigint, retention_bytes bigint"
)
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
class SparkLedger(Ledger):
    """The tables of one ledger, open for one run of a session."""

    location: str  # path or URL under which the tables lie
    run_id: str
    format: LedgerFormat  # how the tables are stored
    driver: Ledger | None  # appends what the driver has; None where Spark does that too
    _callers_session: SparkSession
    _session: SparkSession
    _by_spark: set[LedgerTable] = field(default_factory=set)

    @classmethod
    def open(cls, spark: SparkSession, location: str, *, run_id: str) -> "SparkLedger":
        """Create the tables that are not there yet and return the ledger."""
        session = _ledger_session(spark)
        driver = _open_on_driver(location, run_id) if driver_reaches(spark, location) else None
        kind = LedgerFormat.DELTA if driver is not None else format_at(spark, location)
        if kind is LedgerFormat.PARQUET:
            _warn_of_parquet(spark, location)
        ledger = cls(
            location=location,
            run_id=run_id,
            format=kind,
            driver=driver,
            _callers_session=spark,
            _session=session,
        )
        if driver is None:
            for table in LedgerTable:
                ledger._create(table)
            ledger._give_back()
        return ledger

    def append(self, table: LedgerTable, rows: pa.Table, *, number: int) -> None:
        """Append rows to a table; in Delta, a repeated number adds nothing. What the driver
        cannot write, Spark does: a table of which its owner turned features on."""
        if self.driver is not None and table not in self._by_spark:
            try:
                self.driver.append(table, rows, number=number)
            except StorageError as error:
                self._append_by_spark(table, rows, number, error)
        else:
            self._save(self._frame(table, rows), table, number)

    def _append_by_spark(
        self, table: LedgerTable, rows: pa.Table, number: int, refusal: StorageError
    ) -> None:
        try:
            self._save(self._frame(table, rows), table, number)
        except Exception as error:
            if interruption.is_requested():
                raise
            raise refusal from error
        self._by_spark.add(table)
        _log.warning("%s: Spark writes this table: %s", self.location, refusal)

    def append_rows(
        self, table: LedgerTable, engine: Engine[RowsT], rows: RowsT, *, number: int
    ) -> None:
        """Append rows of tasks, which do not pass through the driver, once."""
        if not isinstance(rows, SparkRows):
            raise TypeError(f"expected rows of a Spark session, found those of {engine.name}")
        engine.describe(f"write {table}")
        self._save(rows.frame, table, number)

    def _save(self, frame: DataFrame, table: LedgerTable, number: int) -> None:
        writer = frame.write.format(self.format).mode("append")
        if self.format is LedgerFormat.DELTA:
            writer = writer.option("txnAppId", f"{self.run_id}/{table}")
            writer = writer.option("txnVersion", number)
            # Add columns that are newer than the table.
            writer = writer.option("mergeSchema", "true")
        writer.save(table_location(self.location, table))
        self._give_back()

    def _create(self, table: LedgerTable) -> None:
        writer = self._frame(table, SCHEMAS[table].empty_table()).write.format(self.format)
        if self.format is LedgerFormat.DELTA:
            writer = writer.option("delta.appendOnly", "true")
            writer = writer.option("delta.checkpointInterval", "100")
        # "ignore" does not change an existing table.
        writer.mode("ignore").save(table_location(self.location, table))

    def _give_back(self) -> None:
        """Make the caller's session the active one again. Creating a DataFrame makes another
        session active."""
        self._callers_session.createDataFrame([], "nothing INT")

    def _frame(self, table: LedgerTable, rows: pa.Table) -> DataFrame:
        ddl = spark_ddl(SCHEMAS[table], comments=True)
        plain = rows.cast(SCHEMAS[table]).replace_schema_metadata()
        return self._session.createDataFrame(plain, ddl).coalesce(1)


def read_table(
    spark: SparkSession, location: str, table: LedgerTable, *, run_id: str | None = None
) -> DataFrame:
    """Return a ledger's table, of one run or of all. The session must match the ledger's format:
    with Delta, or without."""
    # Parquet files have the columns of the version that wrote them; ask all of some files.
    kind, place = format_at(spark, location), table_location(location, table)
    reader = spark.read.format(kind).option("mergeSchema", "true")
    frame = reader.load(place if kind is LedgerFormat.DELTA else literal_path(place))
    return frame if run_id is None else frame.where(frame["run_id"] == run_id)


def last_limits(
    spark: SparkSession,
    location: str,
    topics: Collection[str],
    *,
    run_id: str,
    may_be_missing: bool,
) -> list[dict[str, Any]]:
    """Return what retention topics had when it was last enforced; see ``ledger.last_limits``."""
    if driver_reaches(spark, location):
        from pylog_spark.ledger import local_ledger  # noqa: PLC0415  # deltalake

        try:
            return local_ledger.last_limits(
                location, topics, run_id=run_id, may_be_missing=may_be_missing
            )
        except StorageError as error:
            _log.warning("%s: Spark reads the ledger: %s", location, error)
    try:
        rows = read_table(spark, location, LedgerTable.RESULTS)
    except AnalysisException:
        if may_be_missing:
            return []
        raise
    if "retention_ms" not in rows.columns:
        return []
    limit_rows = rows.where(
        (F.col("action") == Action.RETAIN.value)
        & F.col("retention_ms").isNotNull()
        & (F.col("run_id") != run_id)
    )
    if len(topics) <= _MOST_NAMED:
        limit_rows = limit_rows.where(F.col("topic").isin(sorted(topics)))
    by_topic = limit_rows.select(*COLUMNS).distinct().groupBy("root", "topic")
    last = by_topic.applyInArrow(last_enforced, _LIMITS_DDL)
    limits: list[dict[str, Any]] = last.toArrow().to_pylist()
    return limits


def driver_reaches(spark: SparkSession, location: str) -> bool:
    """Whether the driver itself can use a ledger as its session would.

    That takes a path of the driver's machine, and a session with Delta: without it, a ledger is
    Parquet.
    """
    return (
        ledger_format(spark) is LedgerFormat.DELTA
        and is_for_deltalake(location)
        and has_files_of_driver(spark)
    )


def _open_on_driver(location: str, run_id: str) -> Ledger:
    from pylog_spark.ledger.local_ledger import LocalLedger  # noqa: PLC0415  # deltalake

    return LocalLedger.open(location, run_id=run_id)


def ledger_format(spark: SparkSession) -> LedgerFormat:
    """Return a new ledger's format: Delta where configured, else Parquet."""
    return LedgerFormat.DELTA if has_delta(spark) else LedgerFormat.PARQUET


def format_at(spark: SparkSession, location: str) -> LedgerFormat:
    """Return an existing ledger's format, whatever the session supports."""
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
    # A Delta table created over Parquet files has none of their rows.
    is_parquet = new is LedgerFormat.DELTA and _is_there(spark.read.format("parquet"), runs)
    return LedgerFormat.PARQUET if is_parquet else new


def literal_path(path: str) -> str:
    """Return a path escaped against Spark's file patterns."""
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
    """Return a session for small tables; with Spark Connect, the same."""
    if is_connect(spark):
        return spark
    session = spark.newSession()
    for key, value in _LEDGER_SETTINGS.items():
        session.conf.set(key, value)
    return session
