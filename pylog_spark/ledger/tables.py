"""The tables of a ledger and where they lie under its location."""

import enum
from typing import Final

import pyarrow as pa

from pylog_spark.schemas import CLEANING, OPERATION, RECORDED_FINDING, RESULT, RUN


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


def table_location(location: str, table: LedgerTable) -> str:
    """Return path or URL of one table of the ledger at location."""
    return f"{location.rstrip('/')}/{table}"
