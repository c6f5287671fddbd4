"""List log directories: which partition directories there are, and their segments.

Kafka's own reading of a log directory: every sub-directory is a partition, but for the cache of
remote indexes; three suffixes mark directories on their way in or out; a name that does not parse
would stop a broker's start, so it is reported, never skipped in silence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import Texts, column, rows_to_batches
from pylog_spark.schemas import PARTITION, SEGMENT, Failure
from pylog_spark.tasks.ahead import map_ahead
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import Role, local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import PylogError, describe_failure
from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    offset_of,
)
from storage_core.local_files import folder_names
from storage_core.log.settled_store import settled_files
from storage_core.roots.open_root import LogRoot
from storage_core.store import FileInfo, LogStore, ObjectDirectory, ObjectInfo
from storage_core.store.listing import (
    ListedFile,
    RootListing,
    is_plain_name,
    key_order,
    open_listing,
)
from storage_core.store.open_objects import is_url, name_root, open_object_store
from storage_core.store.open_store import open_store, split_location

# Opens the partition of a row of ``schemas.PARTITION``.
OpenStore = Callable[[Mapping[str, Any]], LogStore]

LISTING_COLUMNS: Final = ("file_names", "file_bytes", "file_times_ms", "file_etags")


_LINKED: Final = (
    "the directory is a link, and nothing is done through one: mount the folder in its place "
    "(mount --bind), or move it into a log directory of its own"
)
# Why a directory is left alone for what it is.
REASON_OF_KIND: Final[Mapping[DirectoryKind, Reason]] = {
    DirectoryKind.METADATA: Reason.INTERNAL_METADATA,
    DirectoryKind.FUTURE: Reason.FUTURE_DIRECTORY,
    DirectoryKind.DELETE: Reason.DELETE_DIRECTORY,
    DirectoryKind.STRAY: Reason.STRAY_DIRECTORY,
    DirectoryKind.FOREIGN: Reason.INVALID_DIRECTORY_NAME,
}
# The same for what treats a copy of a partition on its way to another directory as a partition.
REASON_OF_OTHER_KIND: Final[Mapping[DirectoryKind, Reason]] = {
    kind: reason for kind, reason in REASON_OF_KIND.items() if kind is not DirectoryKind.FUTURE
}


def reason_to_leave(
    row: Mapping[str, Any], reasons: Mapping[DirectoryKind, Reason]
) -> Reason | None:
    """Return the reason to leave a directory for its kind, or None. None if something may be done
    to it.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    path = local_path(row["directory"])
    if path is not None and path.is_symlink():
        return Reason.LINKED_DIRECTORY
    return reasons.get(DirectoryKind(row["kind"]))


def left_alone(row: Mapping[str, Any], reason: Reason) -> dict[str, Any]:
    """Return the columns of a skipped directory. Of one without a topic they say its name, too.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    skipped = {"status": Status.SKIPPED, "reason": reason}
    if reason is Reason.LINKED_DIRECTORY:
        return skipped | {"error": _LINKED}
    if reason is not Reason.INVALID_DIRECTORY_NAME:
        return skipped
    name = row["directory"].rpartition("/")[2]
    return skipped | {"error": f"{name}: expected <topic>-<partition>"}


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows singly, to keep few Python objects in memory. Those of one batch together may
    be gigabytes."""
    for batch in batches:
        for number in range(batch.num_rows):
            yield from batch.slice(number, 1).to_pylist()


def listed_files(row: Mapping[str, Any]) -> list[ListedFile] | None:
    """Return the listed files of a ``schemas.PARTITION`` row. None where none were listed."""
    if row.get("file_names") is None:
        return None
    columns = (row[name] for name in LISTING_COLUMNS)
    return [ListedFile(*facts) for facts in zip(*columns, strict=True)]


def listing_columns(files: Iterable[ListedFile]) -> dict[str, Any]:
    """Return the columns of ``schemas.PARTITION`` that hold a directory's files."""
    columns: tuple[list[Any], ...] = ([], [], [], [])
    for file in files:
        columns[0].append(file.name)
        columns[1].append(file.size_bytes)
        columns[2].append(file.modified_ms)
        columns[3].append(file.etag)
    return dict(zip(LISTING_COLUMNS, columns, strict=True))


def open_partition(row: Mapping[str, Any]) -> LogStore:
    """Open a partition row's directory; reuse its listing. The row is of ``schemas.PARTITION``."""
    location, files = row["directory"], listed_files(row)
    if files is None or not is_url(location):
        return open_store(location)
    root, name = split_location(location)
    return ObjectDirectory(
        open_object_store(root), name, [_object_info(name, file) for file in files]
    )


def _object_info(directory: str, file: ListedFile) -> ObjectInfo:
    return ObjectInfo(
        key=f"{directory}/{file.name}",
        size_bytes=file.size_bytes,
        etag=file.etag,
        modified_ms=file.modified_ms,
    )


def directory_row(root: str, role: str, name: str) -> dict[str, Any] | None:
    """Return a sub-directory's row, or None for caches and the like. One such cache is that of
    remote indexes."""
    kind, partition = classify_directory(name)
    if kind is DirectoryKind.CACHE:
        return None
    has_manifests = Role(role).facts.has_manifests
    if has_manifests and kind is DirectoryKind.FOREIGN:
        return None  # what else a store of ours keeps beside its partitions
    return {
        "root": root,
        "topic": partition.topic if partition else None,
        "partition": partition.partition if partition else None,
        "role": role,
        "directory": f"{name_root(root.rstrip('/'), has_manifests=has_manifests)}/{name}",
        "kind": kind.value,
    }


def list_partitions(root: str, role: str, topics: TopicFilter) -> list[dict[str, Any]]:
    """Return one row of ``schemas.PARTITION`` for each sub-directory of a log directory. A
    directory that cannot be listed yields one row with its error and no topic."""
    try:
        names = folder_names(Path(root))
    except OSError as error:
        return [{"root": root, "role": role, "directory": root, **describe_failure(error)}]
    rows = (directory_row(root, role, name) for name in names)
    return [row for row in rows if row is not None and topics.admits(row["topic"])]


def list_tier_partitions(root: LogRoot, topics: TopicFilter) -> Iterator[dict[str, Any]]:
    """Yield one row of ``schemas.PARTITION``, without files, for each partition of a tier."""
    opened = root.open()
    for name in opened.directories():
        row = directory_row(root.location, root.role.value, name)
        if row is not None and topics.admits(row["topic"]):
            yield row | {"directory": opened.locate(name)}


def list_segments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.SEGMENT``.

    Only names and sizes are read, and what a swap that is not finished ends with: the segments are
    those that a load would leave. A directory that vanished or cannot be listed has one row, with
    the error.
    """
    listed = rows_of(batches)
    yield from rows_to_batches(
        SEGMENT,
        (segment for row in listed if row["topic"] is not None for segment in _segments_of(row)),
    )


def _segments_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = {key: row[key] for key in ("root", "topic", "partition", "directory")}
    try:
        store = open_partition(row)
        segments = segment_rows(settled_files(store, store.list_files()))
    except PylogError as error:
        segments = [describe_failure(error)]
    return [name | segment for segment in segments]


def segment_rows(files: Sequence[FileInfo]) -> list[dict[str, Any]]:
    """Return each listed segment's base offset, sizes and times, in offset order."""
    sizes = {file.name: file.size_bytes for file in files}
    logs = [file for file in files if kind_of(file.name) == LOG_SUFFIX]
    rows = []
    for file in logs:
        stem = file.name.removesuffix(LOG_SUFFIX)
        rows.append(
            {
                "base_offset": offset_of(file.name),
                "size_bytes": file.size_bytes,
                "modified_ms": file.modified_ms,
                "index_bytes": sizes.get(stem + OFFSET_INDEX_SUFFIX),
                "time_index_bytes": sizes.get(stem + TIME_INDEX_SUFFIX),
                "txn_index_bytes": sizes.get(stem + TXN_INDEX_SUFFIX),
                "is_active": file is logs[-1],
            }
        )
    return rows


# List roots at URLs: directories first, then their files by runs. It goes page by page, in
# threads.
#
# One task lists the directories of one root, which is a request for each thousand of them. Its
# rows are runs: neighbouring directories whose files one thread lists in one go. A task gets many
# runs and keeps several requests on their way at once; that is what hides the store's answering
# time.

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
