"""The tables of a ledger and where they lie under its location."""

import enum
import re
from pathlib import Path
from typing import Final

import pyarrow as pa

from pylog_spark.schemas import CLEANING, OPERATION, RECORDED_FINDING, RESULT, RUN

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
