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
from typing import Any, Final

from pylog_spark.schemas import Reason, Status
from pylog_spark.structured_logs import log_fields
from storage_core.errors import NegativeTimestampError, RecoveryRequiredError, describe_failure

_log: Final = logging.getLogger(__name__)


def error_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row's failure after another row's error, or None.

    The row could not be made because of that error; None is for no error.
    """
    if row["error_class"] is None:
        return None
    return {
        "status": Status.FAILED,
        "error_class": row["error_class"],
        "error": row["error"],
    }


def attempt_row(
    work: Callable[[], dict[str, Any]],
    refusal_of: Callable[[Exception], str | None] = lambda _: None,
) -> dict[str, Any]:
    """Return the columns of work, or its error, with status and duration.

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
        log_end(row, error)
    else:
        log_end(row)
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
    with log_fields(**{key: name[key] for key in ("root", "topic", "partition")}):
        return name | attempt_row(lambda: error_of(row) or work(), refusal_of)


def needs_recovery(error: Exception) -> Reason | None:
    """Return the reason to skip a log after an error.

    Nothing can be done to such a log yet; None for any other error.
    """
    if isinstance(error, NegativeTimestampError):
        return Reason.NEGATIVE_TIMESTAMP
    return Reason.RECOVERY_REQUIRED if isinstance(error, RecoveryRequiredError) else None


def log_end(row: Mapping[str, Any], error: Exception | None = None) -> None:
    """Log a partition's changed files, or the error of its work.

    Nothing else is logged.

    The driver logs a failure as an error when the row has reached it; this line comes at once, and
    has a traceback where no commit has made a row of the error before.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    if row.get("error_class") is not None:
        directory = getattr(error, "directory", None)
        with log_fields(error_class=row["error_class"], directory=directory):
            _log.info("%s", row["error"], exc_info=error)
    elif row.get("operations") and row.get("status") in {None, Status.DONE}:
        operations = json.loads(row["operations"])
        with log_fields(operations=len(operations)):
            _log.info("committed")
