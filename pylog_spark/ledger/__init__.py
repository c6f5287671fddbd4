"""The ledger: what every run did, in append-only tables that any Delta client reads."""

from pylog_spark.ledger.ledger import Ledger, last_limits, open_ledger
from pylog_spark.ledger.tables import LedgerTable

__all__ = ["Ledger", "LedgerTable", "last_limits", "open_ledger"]
