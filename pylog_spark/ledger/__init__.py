"""The ledger: a history of every run, in append-only tables. Any Delta client reads them."""

from collections.abc import Collection
from typing import Any

from pylog_spark.engines.choice import Local, Place
from pylog_spark.ledger.tables import Ledger, LedgerTable

__all__ = ["Ledger", "LedgerTable", "last_limits", "open_ledger"]


def open_ledger(place: Place, location: str, *, run_id: str) -> Ledger:
    """Create the tables that are not there yet and return the ledger.

    Args:
        place: The writer: a Spark session, or this machine.
    """
    if isinstance(place, Local):
        from pylog_spark.ledger.local_ledger import LocalLedger  # noqa: PLC0415  # deltalake

        return LocalLedger.open(location, run_id=run_id)
    from pylog_spark.ledger.spark_ledger import SparkLedger  # noqa: PLC0415  # Spark

    return SparkLedger.open(place, location, run_id=run_id)


def last_limits(
    place: Place,
    location: str,
    topics: Collection[str],
    *,
    run_id: str,
    may_be_missing: bool,
) -> list[dict[str, Any]]:
    """Return the last enforced retention of topics before this run.

    A limit that was refused, be it in one partition, was not enforced: the one before counts.

    Args:
        place: The reader of the ledger: a Spark session, or this machine.
        may_be_missing: Whether a ledger that nobody has made yet has no rows.

    Returns:
        root, topic, run_id, retention_ms and retention_bytes, a row a topic and root.
    """
    if isinstance(place, Local):
        from pylog_spark.ledger import local_ledger  # noqa: PLC0415  # deltalake

        return local_ledger.last_limits(
            location, topics, run_id=run_id, may_be_missing=may_be_missing
        )
    from pylog_spark.ledger import spark_ledger  # noqa: PLC0415  # Spark

    return spark_ledger.last_limits(
        place, location, topics, run_id=run_id, may_be_missing=may_be_missing
    )
