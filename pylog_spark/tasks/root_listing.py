"""List roots at URLs: directories first, then their files by runs. It goes page by page, in
threads.

One task lists the directories of one root, which is a request for each thousand of them. Its rows
are runs: neighbouring directories whose files one thread lists in one go. A task gets many runs
and keeps several requests on their way at once; that is what hides the store's answering time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import Texts, column, rows_to_batches
from pylog_spark.schemas import PARTITION, Failure
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.listing import directory_row, listing_columns
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingRun:
    """Directories of a root that one task lists together."""

    root: str = column("log directory, as the run was given it")
    role: str = column("broker, mirror or managed")
    directories: Texts = column("names, in the order of keys")
    failure: Failure = Failure()


def list_runs(
    root: tuple[str, str], topics: TopicFilter, opener: ListingOpener = open_listing
) -> Iterator[ListingRun]:
    """Yield the runs of a root, or one run with its error.

    Args:
        root: Path or URL, and role.
        opener: Returns the listing of a root, be it a URL or a path.
    """
    location, role = root
    try:
        names = list(_directories(location, opener))
    except (PylogError, OSError) as error:
        yield ListingRun(root=location, role=role, failure=Failure.of(error))
        return
    rows = (directory_row(location, role, name) for name in names)
    admitted = frozenset(
        name
        for name, row in zip(names, rows, strict=True)
        if row is not None and topics.admits(row["topic"])
    )
    for run in plan_runs(names, admitted):
        yield ListingRun(root=location, role=role, directories=tuple(run))


def list_run_partitions(
    runs: Iterable[ListingRun], opener: ListingOpener = open_listing
) -> Iterator[pa.RecordBatch]:
    """Turn runs into rows of ``schemas.PARTITION``, files included. The rows of a managed root
    have no files: their manifests say what there is."""
    ended = map_ahead(lambda run: _list_run(run, opener), runs)
    yield from rows_to_batches(PARTITION, (row for rows in ended for row in rows))


def plan_runs(names: Sequence[str], admitted: frozenset[str]) -> list[list[str]]:
    """Cut the admitted directories into runs of neighbours. A run has no other directory in
    between.

    Args:
        names: All directories of a root, in any order.
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


def _directories(root: str, opener: ListingOpener) -> Iterator[str]:
    path = local_path(root)
    if path is None:
        yield from opener(root).directories()
        return
    yield from filter(is_plain_name, folder_names(path))


def _list_run(run: ListingRun, opener: ListingOpener) -> list[dict[str, Any]]:
    root, role, directories = run.root, run.role, run.directories or ()
    if run.failure:
        return [{"root": root, "role": role, "directory": root, **asdict(run.failure)}]
    try:
        return list(_partitions(root, role, directories, opener))
    except (PylogError, OSError) as error:
        if local_path(root) is not None and len(directories) > 1:
            # On a disk one directory may be refused, a link above all; a store fails as a whole.
            alone = (replace(run, directories=(name,)) for name in directories)
            return [row for one in alone for row in _list_run(one, opener)]
        failure = describe_failure(error)
        rows = (directory_row(root, role, name) for name in directories)
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
