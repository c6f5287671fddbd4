"""Make the rows of a purge, one for each directory.

A row says what went, or would, and why it did not.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pylog_spark.schemas import STEPS, Status
from pylog_spark.tasks.ahead import PURGES_AT_ONCE, map_ahead
from storage_core.commit import CommitPlan, commit
from storage_core.commit.purge import Purge
from storage_core.errors import GuardRefusedError, describe_failure
from storage_core.store import LocalStore

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """What was removed of one directory, or would be.

    Attributes:
        files: How many files or objects.
        size_bytes: Their bytes.
        steps: What was applied, described.
    """

    files: int
    size_bytes: int
    steps: Sequence[Mapping[str, Any]]


def purge_row(name: Mapping[str, Any], work: Callable[[], Gone], *, dry_run: bool) -> Row | None:
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
        gone = work()
    except GuardRefusedError as error:
        row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other directories go on
        row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if not gone.files:
            return None
        status = Status.PLANNED if dry_run else Status.DONE
        row |= {"status": status.value, "bytes_before": gone.size_bytes, "bytes_after": 0}
        row[STEPS] = gone.steps
    row["duration_ms"] = round((time.perf_counter() - started) * 1000)
    return row


def apply_purge(purge: Purge, *, dry_run: bool, fence: Callable[[], None] | None = None) -> Gone:
    """Commit the plans of a purge, unless in a dry run.

    In what was done, paths begin at the purge's place.

    Folders that lie equally deep go at the same time, those below others first.

    Args:
        purge: What goes.
        dry_run: Whether nothing is removed.
        fence: Asked right before each change: raises where the place is not ours any more.
    """
    done: list[Row] = []
    plans = () if dry_run else purge.plans

    def depth(plan: CommitPlan) -> int:
        return -len(Path(plan.location).parts)

    def remove(plan: CommitPlan) -> None:
        commit(plan, LocalStore(Path(plan.location), fence=fence))

    for _, level in groupby(sorted(plans, key=depth), key=depth):
        deque(map_ahead(remove, level, at_once=PURGES_AT_ONCE), 0)
    for plan in plans:
        below = Path(plan.location).relative_to(purge.location)
        done += [
            {**step, "name": str(below / str(step.get("name", "")))} for step in plan.describe()
        ]
    return Gone(files=purge.files, size_bytes=purge.size_bytes, steps=done)
