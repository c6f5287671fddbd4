"""Turn errors into columns of rows.

Tasks yield rows for broken partitions, because Spark hands the driver a raised error as text and
drops the good rows of the stage with it. Damage and failing disks are what rows are for. A mistake
in the program must not be lost either: its row carries the place in the code, the partition counts
as failed, and the others go on.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pylog_spark.schemas import Reason, Status
from pylog_spark.structured_logs import log_fields
from storage_core.errors import (
    ContradictedAgeError,
    NegativeTimestampError,
    RecoveryRequiredError,
    describe_failure,
)

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")
RefusalOf = Callable[[Exception], str | None]


def error_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row's failure after another row's error, or None. The row could not be made
    because of that error; None is for no error."""
    if row["error_class"] is None:
        return None
    return {
        "status": Status.FAILED,
        "error_class": row["error_class"],
        "error": row["error"],
    }


def run_and_log(
    work: Callable[[], T],
    failed: Callable[[Exception], T],
    row_of: Callable[[T], Mapping[str, Any]],
) -> tuple[T, int]:
    """Return what work returns, or what its error becomes, and its milliseconds.

    Args:
        failed: Returns the value for an error; other partitions go on.
        row_of: Returns the columns of a value, for the log line of the end.
    """
    started = time.perf_counter()
    error = None
    try:
        value = work()
    except Exception as caught:  # noqa: BLE001  # the value carries it
        value, error = failed(caught), caught
    if _log.isEnabledFor(logging.INFO):
        _log_end(row_of(value), error)
    return value, round((time.perf_counter() - started) * 1000)


def attempt_row(
    name: Mapping[str, Any],
    work: Callable[[], dict[str, Any]],
    refusal_of: RefusalOf = lambda _: None,
) -> dict[str, Any]:
    """Return a partition's name and the columns of work, or its error. An error comes with its
    status; the duration is there in either case.

    Args:
        refusal_of: Returns the reason of an error by which the partition is skipped; None for one
            by which it fails.
    """

    def failed(error: Exception) -> dict[str, Any]:
        reason = refusal_of(error)
        status = Status.FAILED if reason is None else Status.SKIPPED
        return {"status": status, "reason": reason, **describe_failure(error)}

    with log_fields(**{key: name[key] for key in ("root", "topic", "partition")}):
        row, duration_ms = run_and_log(work, failed, dict)
    return {**name, **row, "duration_ms": duration_ms}


def attempt_directory(
    row: Mapping[str, Any],
    work: Callable[[], dict[str, Any]],
    refusal_of: RefusalOf = lambda _: None,
) -> dict[str, Any]:
    """Return ``attempt_row`` of a partition directory.

    Args:
        row: Of ``schemas.PARTITION``; an error that it carries is handed on, and nothing tried.
    """
    name = {key: row[key] for key in ("root", "topic", "partition", "directory")}
    return attempt_row(name, lambda: error_of(row) or work(), refusal_of)


def needs_recovery(error: Exception) -> Reason | None:
    """Return the reason to skip a log after an error. Nothing can be done to such a log yet;
    None for any other error."""
    if isinstance(error, NegativeTimestampError):
        return Reason.NEGATIVE_TIMESTAMP
    if isinstance(error, ContradictedAgeError):
        return Reason.AGE_CONTRADICTED
    return Reason.RECOVERY_REQUIRED if isinstance(error, RecoveryRequiredError) else None


def _log_end(row: Mapping[str, Any], error: Exception | None) -> None:
    """Log a partition's changed files, or the error of its work. Nothing else is logged.

    The driver logs a failure as an error when the row has reached it; this line comes at once, and
    has a traceback where no commit has made a row of the error before.
    """
    if row.get("error_class") is not None:
        directory = getattr(error, "directory", None)
        with log_fields(error_class=row["error_class"], directory=directory):
            _log.info("%s", row["error"], exc_info=error)
    elif row.get("operations") and row.get("status") in {None, Status.DONE}:
        operations = json.loads(row["operations"])
        with log_fields(operations=len(operations)):
            _log.info("committed")
