"""Settle the leftovers of an interrupted swap: the loader's passes 1-3.

``.cleaned`` files are unfinished and go; so do ``.swap`` files at or above the lowest of them. The
other ``.swap`` files are complete: what they replace goes, then they lose the suffix. ``.deleted``
files only waited for their end.
"""

from storage_core.commit import CommitPlan
from storage_core.errors import InvalidNameError
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    SCRATCH_PREFIX,
    SWAP_SUFFIX,
    is_of_no_segment,
    offset_of,
)
from storage_core.log.batch_search import find_next_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.store.base import LogStore


def plan_settling(store: LogStore) -> CommitPlan:
    """Plan what settles the leftovers of a directory, and nothing else."""
    view = DirectoryView(store)
    settle_leftovers(view)
    return CommitPlan(location=store.location, operations=tuple(view.operations))


def settle_leftovers(view: DirectoryView) -> None:
    """Plan the loader's passes 1 to 3 on a directory."""
    _validate_names(view)
    _sweep_scratch(view)
    _drop_deleted(view)
    _drop_unfinished(view)
    _drop_replaced(view)
    _finish_swaps(view)


def _sweep_scratch(view: DirectoryView) -> None:
    for name in view.names:
        if name.startswith(SCRATCH_PREFIX):
            view.delete_now(name, "scratch file of a run that was killed")


def _drop_deleted(view: DirectoryView) -> None:
    for name in view.names:
        if name.endswith(DELETED_SUFFIX) and not name.endswith(CHECKPOINT_DELETED_SUFFIX):
            view.delete_now(name, "leftover of a deletion that was decided before")


def _validate_names(view: DirectoryView) -> None:
    for name in view.names:
        if is_of_no_segment(name):
            raise InvalidNameError(
                name,
                "expected the number of a segment before the first dot; Kafka does not load a "
                "log with such a file: move it away",
            )


def _drop_unfinished(view: DirectoryView) -> None:
    cleaned = [name for name in view.names if name.endswith(CLEANED_SUFFIX)]
    lowest = min(
        (offset for name in cleaned if (offset := offset_of(name)) is not None), default=MAX_OFFSET
    )
    unfinished = [
        name
        for name in view.names
        if name.endswith(SWAP_SUFFIX)
        and (offset := offset_of(name)) is not None
        and offset >= lowest
    ]
    for name in unfinished:
        view.delete_now(name, f"swap that was not complete: a .cleaned file at {lowest} is left")
    if unfinished:
        view.sync("without .cleaned files these would count")
    for name in cleaned:
        view.delete_now(name, "leftover of a cleaning that did not finish")


def _drop_replaced(view: DirectoryView) -> None:
    first, end = MAX_OFFSET, -1
    for name in view.names:
        if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        base = offset_of(name)
        if base is None:
            continue
        index = name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX) + OFFSET_INDEX_SUFFIX + SWAP_SUFFIX
        first = min(first, base)
        end = max(end, find_next_offset(view, base, name, index))
    replaced = [
        name
        for name in view.names
        if not name.endswith(SWAP_SUFFIX)
        and (offset := offset_of(name)) is not None
        and first <= offset < end
    ]
    for name in replaced:
        view.delete_now(name, f"replaced by the swap of offsets {first} to {end}")
    if replaced:
        view.sync("without the suffix the swap would not replace them any more")


def _finish_swaps(view: DirectoryView) -> None:
    """Drop the suffix of swaps, of logs first. A log still with its suffix would replace its own
    indexes."""
    swaps = [name for name in view.names if name.endswith(SWAP_SUFFIX)]
    logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in [*logs, *(name for name in swaps if name not in logs)]:
        view.rename(name, name.removesuffix(SWAP_SUFFIX), "completes an interrupted swap")
        if name in logs[:-1]:
            # Found between two logs with the suffix, it would be what these replace.
            view.sync("a lower segment is in place")
