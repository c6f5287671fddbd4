"""Purge directories: a row of each in which something went, or would go.

A row says what that is, and why something did not go.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import PURGED, STEPS, Status
from pylog_spark.tasks.ahead import AT_ONCE, PURGES_AT_ONCE, map_ahead
from storage_core.commit.purge import Purged
from storage_core.errors import GuardRefusedError, describe_failure
from storage_core.roots.purge import PurgeT, Stretch

Row = dict[str, Any]


def purge_stretches(
    stretches: Sequence[Stretch[PurgeT]],
    find_due: Callable[[Stretch[PurgeT]], Stretch[PurgeT]],
    apply: Callable[[PurgeT], Purged],
    *,
    is_here: bool,
    dry_run: bool,
) -> Iterator[Row]:
    """Purge directories, several at once; yield their rows.

    Args:
        stretches: The directories.
        find_due: As in ``RootPurge``, and so are the next two.
        apply: Removes what goes.
        is_here: Whether that lies on a disk of this host.
        dry_run: Whether nothing is removed.
    """

    def purge_one(purge: PurgeT) -> Row | None:
        name = {
            "topic": purge.partition and purge.partition.topic,
            "partition": purge.partition and purge.partition.partition,
            "directory": purge.location,
        }
        return purge_row(name, lambda: apply(purge), dry_run=dry_run)

    due = chain.from_iterable(map_ahead(find_due, stretches))
    at_once = PURGES_AT_ONCE if is_here else AT_ONCE
    yield from filter(None, map_ahead(purge_one, due, at_once=at_once))


def purge_in_task(
    stretches: Sequence[Stretch[PurgeT]],
    find_due: Callable[[Stretch[PurgeT]], Stretch[PurgeT]],
    apply: Callable[[PurgeT], Purged],
    *,
    dry_run: bool,
) -> Iterator[pa.RecordBatch]:
    """Purge directories as ``purge_stretches``; yield rows of ``schemas.PURGED``."""
    rows = purge_stretches(stretches, find_due, apply, is_here=False, dry_run=dry_run)
    yield from rows_to_batches(
        PURGED, (row | {STEPS: json.dumps(row.get(STEPS, ()))} for row in rows)
    )


def purge_row(name: Mapping[str, Any], work: Callable[[], Purged], *, dry_run: bool) -> Row | None:
    """Purge one directory; return its row, or None for nothing to purge.

    What is wrong with it is in its row.

    Args:
        name: Columns that say whose it is.
        work: Removes what goes; in a dry run only looks.
        dry_run: Whether nothing is removed.
    """
    started = time.perf_counter()
    row = dict(name)
    try:
        purged = work()
    except GuardRefusedError as error:
        row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other directories go on
        row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if not purged.files:
            return None
        status = Status.PLANNED if dry_run else Status.DONE
        row |= {"status": status.value, "bytes_before": purged.size_bytes, "bytes_after": 0}
        row[STEPS] = purged.steps
    row["duration_ms"] = round((time.perf_counter() - started) * 1000)
    return row
