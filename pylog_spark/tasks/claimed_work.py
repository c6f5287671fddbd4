"""A piece of work on one partition under its claim, and what becomes of its errors.

A row that says an error also says whether files may have been changed: then the log directory gets
no marker of a clean shutdown. What is not known counts as changed. A former attempt may have been
killed amid its commit; so an attempt that cannot look into the claim, for whatever reason, cannot
say that nothing was touched.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pylog_spark.tasks.failures import describe_failure
from storage_core.commit.claim import CommitClaim, hold_claim
from storage_core.errors import GuardRefusedError

TOUCHED: Final = "touched"


def work_claimed(
    path: Path, work: Callable[[CommitClaim], dict[str, Any]], *, validate: Callable[[], None]
) -> dict[str, Any]:
    """Return what work returns, or else the error, and whether files may have been changed.

    Args:
        path: The partition's claim.
        work: Is given the claim, held. It does or finishes the commit.
        validate: Raises GuardRefusedError if this run may not write, or not from here. Asked before
            the claim is opened.
    """
    try:
        validate()
        with hold_claim(path) as claim:
            try:
                return work(claim)
            except Exception as error:  # noqa: BLE001  # the row carries it
                return {TOUCHED: claim.is_begun, **describe_failure(error)}
    except GuardRefusedError as error:
        return {TOUCHED: _may_have_begun(path), **describe_failure(error)}
    except Exception as error:  # noqa: BLE001  # the row carries it
        return {TOUCHED: True, **describe_failure(error)}


def _may_have_begun(path: Path) -> bool:
    """Whether an attempt may have begun with the commit that a claim allows.

    Of an attempt that is refused: it only looks, and holds nothing. Where no claim is the run is
    over, and has looked itself; or this is another host, which sees none of the run's files.
    """
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True
