"""The tables of a ledger and where they lie under its location."""

import enum
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.outcomes import ALLOWED_BY
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import CLEANING, OPERATION, RECORDED_FINDING, RESULT, RUN

# Find the retention that topics had when it was last enforced.

_RUN_OF_TOPIC: Final = ("root", "topic", "run_id")
_LIMITS: Final = ("retention_ms", "retention_bytes")
# Columns of the results table that the answer needs.
COLUMNS: Final = (*_RUN_OF_TOPIC, "reason", *_LIMITS)


def last_enforced(rows: pa.Table) -> pa.Table:
    """Return the limits of each topic's last run without a refusal. Partitions in which nothing
    expired say the limit, too, of which others were refused.

    Args:
        rows: COLUMNS of partitions with a limit, of any runs; all partitions of a topic.

    Returns:
        root, topic, run_id, retention_ms and retention_bytes.
    """
    is_refused = pc.is_in(rows["reason"], value_set=pa.array(sorted(ALLOWED_BY), pa.string()))
    refused = rows.filter(is_refused).select(_RUN_OF_TOPIC)
    enforced = rows.join(refused, list(_RUN_OF_TOPIC), join_type="left anti")
    # Names of runs sort by time.
    latest = ("run_id", *_LIMITS)
    ordered = enforced.sort_by([(name, "descending") for name in latest])
    any_value = pc.ScalarAggregateOptions(skip_nulls=False)
    last = ordered.group_by(["root", "topic"], use_threads=False).aggregate(
        [(name, "first", any_value) for name in latest]
    )
    return last.select(["root", "topic", *(f"{name}_first" for name in latest)]).rename_columns(
        ["root", "topic", *latest]
    )


# Both ways to write the URL of a file; to Hadoop they are the same.
_FILE_SCHEME: Final = re.compile("file:(?://)?(?=/)")
# deltalake turns a backslash into a slash, and panics at the other characters on writing (1.6).
_NOT_UNDERSTOOD: Final = frozenset("\\[]^|")


class LedgerTable(enum.StrEnum):
    """One table, named as its folder is."""

    RUNS = "runs"
    RESULTS = "results"
    OPERATIONS = "operations"
    FINDINGS = "findings"
    CLEANINGS = "cleanings"


class LedgerFormat(enum.StrEnum):
    """How the tables are stored."""

    DELTA = "delta"
    PARQUET = "parquet"


SCHEMAS: Final[dict[LedgerTable, pa.Schema]] = {
    LedgerTable.RUNS: RUN,
    LedgerTable.RESULTS: RESULT,
    LedgerTable.OPERATIONS: OPERATION,
    LedgerTable.FINDINGS: RECORDED_FINDING,
    LedgerTable.CLEANINGS: CLEANING,
}


def parquet_files(folder: Path, table: LedgerTable) -> list[Path]:
    """Return the Parquet files of a table; none for a Delta table."""
    files = folder / table
    return [] if (files / "_delta_log").exists() else sorted(files.glob("*.parquet"))


def why_spark(location: str) -> str | None:
    """Return why a local ledger needs Spark, None if it does not.

    Args:
        location: Path, or URL; nothing is said of an object store's.
    """
    folder = local_folder(location)
    if folder is None:
        return None
    odd = sorted(set(str(folder)) & _NOT_UNDERSTOOD)
    if odd:
        return f"deltalake understands no {' '.join(odd)} in a path"
    # A Delta table created over Parquet files has none of their rows.
    if parquet_files(folder, LedgerTable.RUNS):
        return "it was begun as Parquet, by a session without Delta"
    return None


def is_for_deltalake(location: str) -> bool:
    """Whether ``deltalake`` can use a ledger: a local path, not Parquet. Only Spark's settings
    say how to open an object store."""
    return local_folder(location) is not None and why_spark(location) is None


def local_folder(location: str) -> Path | None:
    """Return a location's local directory, None for an object store's. The path of a URL is
    taken as it stands, as Spark does."""
    scheme = _FILE_SCHEME.match(location)
    path = location[scheme.end() :] if scheme is not None else location
    return None if "://" in path else Path(path).absolute()


def table_location(location: str, table: LedgerTable) -> str:
    """Return path or URL of one table of the ledger at location."""
    return f"{location.rstrip('/')}/{table}"


# Write the ledger: tables first, then appended rows, never changed. Every table exists before a
# run does anything.
#
# A run writes its START row first and its END row last; a run without an END row died. Each append
# to a Delta table carries the run's id and a number (``txnAppId``, ``txnVersion``): an append that
# is made again, because its answer was lost, adds nothing. Spark writes the tables, or the package
# ``deltalake`` where there is no session; each goes on with what the other has written.


class Ledger(ABC):
    """The tables of one ledger, open for one run."""

    location: str  # path or URL under which the tables lie
    run_id: str

    @abstractmethod
    def append(self, table: LedgerTable, rows: pa.Table, *, number: int) -> None:
        """Append rows to a table; in Delta, a repeated number adds nothing.

        Args:
            number: Number of the append among the run's appends to this table, rising.
        """

    @abstractmethod
    def append_rows(
        self, table: LedgerTable, engine: Engine[RowsT], rows: RowsT, *, number: int
    ) -> None:
        """Append rows of tasks once. With Spark the rows do not pass through the driver.

        Args:
            rows: Rows of the engine with the table's columns.
        """

    def append_row(self, table: LedgerTable, row: dict[str, Any], *, number: int) -> None:
        """Append one row; see ``append``."""
        batch = rows_to_batch(SCHEMAS[table], [row])
        self.append(table, pa.Table.from_batches([batch]), number=number)
