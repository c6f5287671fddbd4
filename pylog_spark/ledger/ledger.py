"""Write the ledger: tables first, then appended rows, never changed. Every table exists before a
run does anything.

A run writes its START row first and its END row last; a run without an END row died. Each append to
a Delta table carries the run's id and a number (``txnAppId``, ``txnVersion``): an append that is
made again, because its answer was lost, adds nothing. Spark writes the tables, or the package
``deltalake`` where there is no session; each goes on with what the other has written.
"""

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.ledger.tables import SCHEMAS, LedgerTable
from pylog_spark.rows import rows_to_batch


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
