"""List roots at URLs: directories first, then their files by runs.

It goes page by page, in threads.

One task lists the directories of one root, which is a request for each thousand of them. Its rows
are runs: neighbouring directories whose files one thread lists in one go. A task gets many runs
and keeps several requests on their way at once; that is what hides the store's answering time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import LISTING_RUN, PARTITION
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.listing import (
    directory_row,
    listing_columns,
    rows_of,
)
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import Role, local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import PylogError, describe_failure
from storage_core.local_files import folder_names
from storage_core.store.listing import RootListing, is_plain_name, key_order, open_listing

# Directories that one thread lists in one go: some pages each, so that a page that begins in the
# middle of one costs little.
RUN_DIRECTORIES: Final = 64

ListingOpener = Callable[[str], RootListing]
_WITHOUT_FILES: Final = (DirectoryKind.FOREIGN, DirectoryKind.CACHE)


def list_runs(
    batches: Iterator[pa.RecordBatch], topics: TopicFilter, opener: ListingOpener = open_listing
) -> Iterator[pa.RecordBatch]:
    """Turn rows (root, role) into rows of ``schemas.LISTING_RUN``.

    A root that cannot be listed is one row with its error.
    """
    yield from rows_to_batches(
        LISTING_RUN,
        (
            run
            for row in rows_of(batches)
            for run in _runs_of(row["root"], row["role"], topics, opener)
        ),
    )


def list_run_partitions(
    batches: Iterator[pa.RecordBatch], opener: ListingOpener = open_listing
) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.LISTING_RUN`` into rows of ``schemas.PARTITION``, files included.

    The rows of a managed root have no files: their manifests say what there is.

    Args:
        batches: The runs.
        opener: Returns the listing of a root, be it a URL or a path.
    """
    ended = map_ahead(lambda run: _list_run(run, opener), rows_of(batches))
    yield from rows_to_batches(PARTITION, (row for rows in ended for row in rows))


def plan_runs(names: Sequence[str], admitted: frozenset[str]) -> list[list[str]]:
    """Cut the admitted directories into runs of neighbours.

    A run has no other directory in between.

    Args:
        names: All directories of a root, in any order.
        admitted: Those that are asked for.
    """
    runs: list[list[str]] = []
    is_open = False
    for name in sorted(names, key=key_order):
        if name not in admitted:
            is_open = False
        elif is_open and len(runs[-1]) < RUN_DIRECTORIES:
            runs[-1].append(name)
        else:
            runs.append([name])
            is_open = True
    return runs


def _runs_of(
    root: str, role: str, topics: TopicFilter, opener: ListingOpener
) -> Iterator[dict[str, Any]]:
    try:
        names = list(_directories(root, opener))
    except (PylogError, OSError) as error:
        yield {"root": root, "role": role, **describe_failure(error)}
        return
    rows = (directory_row(root, role, name) for name in names)
    admitted = frozenset(
        name
        for name, row in zip(names, rows, strict=True)
        if row is not None and topics.admits(row["topic"])
    )
    for run in plan_runs(names, admitted):
        yield {"root": root, "role": role, "directories": run}


def _directories(root: str, opener: ListingOpener) -> Iterator[str]:
    path = local_path(root)
    if path is None:
        yield from opener(root).directories()
        return
    yield from filter(is_plain_name, folder_names(path))


def _list_run(run: dict[str, Any], opener: ListingOpener) -> list[dict[str, Any]]:
    root, role = run["root"], run["role"]
    if run["error_class"] is not None:
        kept = {name: run[name] for name in ("root", "role", "error_class", "error")}
        return [kept | {"directory": root}]
    try:
        return list(_partitions(root, role, run["directories"], opener))
    except (PylogError, OSError) as error:
        if local_path(root) is not None and len(run["directories"]) > 1:
            # On a disk one directory may be refused, a link above all; a store fails as a whole.
            alone = (run | {"directories": [name]} for name in run["directories"])
            return [row for one in alone for row in _list_run(one, opener)]
        failure = describe_failure(error)
        rows = (directory_row(root, role, name) for name in run["directories"])
        return [row | failure for row in rows if row is not None]


def _partitions(
    root: str, role: str, directories: Sequence[str], opener: ListingOpener
) -> Iterator[dict[str, Any]]:
    rows = {name: directory_row(root, role, name) or {} for name in directories}
    has_files = [name for name in directories if _has_files(role, name)]
    if has_files:
        for name, files in opener(root).files(has_files):
            rows[name] |= listing_columns(files)
    yield from rows.values()


def _has_files(role: str, directory: str) -> bool:
    return (
        not Role(role).facts.has_manifests
        and classify_directory(directory)[0] not in _WITHOUT_FILES
    )
