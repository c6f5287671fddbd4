"""The ledger: what every run did, in append-only tables that any Delta client reads."""

from pylog_spark.ledger.reader import read_table
from pylog_spark.ledger.tables import LedgerTable
from pylog_spark.ledger.writer import Ledger

__all__ = ["Ledger", "LedgerTable", "read_table"]
