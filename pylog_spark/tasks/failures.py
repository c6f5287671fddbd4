"""What is left of an error when it becomes part of a row.

Tasks yield rows for broken partitions, because Spark hands the driver a raised error as text and
drops the good rows of the stage with it. Damage and failing disks are what rows are for. A mistake
in the program must not be lost either: its row carries the place in the code, the partition counts
as failed, and the others go on.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from pylog_spark.schemas import Reason, Status
from storage_core.errors import RecoveryRequiredError, describe_failure


def error_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of a row that could not be made for another's error; None without one."""
    if row["error_class"] is None:
        return None
    return {
        "status": Status.FAILED,
        "error_class": row["error_class"],
        "error": row["error"],
    }


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the columns that work returns, or else its error; and the time it took."""
    started = time.perf_counter()
    try:
        row = work()
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        row = describe_failure(error)
    return row | {"duration_ms": round((time.perf_counter() - started) * 1000)}


def attempt_row(
    work: Callable[[], dict[str, Any]],
    refusal_of: Callable[[Exception], str | None] = lambda _: None,
) -> dict[str, Any]:
    """Return the columns that work returns, of a row with a status; else as attempt.

    Args:
        work: Returns the columns.
        refusal_of: Returns the reason of an error by which a partition is skipped; None for one by
            which it fails.
    """
    started = time.perf_counter()
    try:
        row = work()
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        reason = refusal_of(error)
        status = Status.FAILED if reason is None else Status.SKIPPED
        row = {"status": status, "reason": reason, **describe_failure(error)}
    return row | {"duration_ms": round((time.perf_counter() - started) * 1000)}


def attempt_directory(
    row: Mapping[str, Any],
    work: Callable[[], dict[str, Any]],
    refusal_of: Callable[[Exception], str | None] = lambda _: None,
) -> dict[str, Any]:
    """Return the row of a partition directory: its name, and as attempt_row.

    Args:
        row: Of ``schemas.PARTITION``; an error that it carries is handed on, and nothing tried.
        work: As there.
        refusal_of: As there.
    """
    name = {key: row[key] for key in ("root", "topic", "partition", "directory")}
    return name | attempt_row(lambda: error_of(row) or work(), refusal_of)


def needs_recovery(error: Exception) -> Reason | None:
    """Return why a log that has to be recovered first is skipped; None for any other error."""
    return Reason.RECOVERY_REQUIRED if isinstance(error, RecoveryRequiredError) else None
