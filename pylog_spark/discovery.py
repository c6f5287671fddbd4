"""Log directories as rows of partitions and segments.

Tasks do the listing: the driver hands out the roots and gets rows back, or better, hands them on to
other tasks. One task lists a local root; a root on an object store is listed by many, a page at a
time; an inventory takes the place of listing. One row is one sub-directory, whatever it is.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pylog_spark.engines.choice import ListedLogs
from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.options.arguments import said_as
from pylog_spark.rows import rows_to_batch, rows_to_batches
from pylog_spark.schemas import LISTED_DIRECTORY, PARTITION, SEGMENT
from pylog_spark.tasks.inventory import (
    OPTION,
    InventoryPart,
    InventoryRoot,
    find_parts,
    partition_rows,
    read_part,
)
from pylog_spark.tasks.listing import (
    LISTING_COLUMNS,
    ListingOpener,
    ListingRun,
    list_partitions,
    list_run_partitions,
    list_runs,
    list_segments,
    list_tier_partitions,
)
from pylog_spark.tasks.message import join_messages
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import LOG_SUFFIX, META_PROPERTIES_FILE, is_text
from storage_core.local_files import folder_names, list_open, open_folder
from storage_core.maintenance.listings import Logs, list_logs, sizes_by_offset
from storage_core.redaction import plain_places
from storage_core.roots.open_root import LogRoot, check_log_directory, check_no_tier, find_tier
from storage_core.store.listing import open_listing
from storage_core.store.local import plain_path, storage_errors
from storage_core.store.open_objects import MANAGED_PREFIX, names_manifest, open_object_store
from storage_core.store.tier_archive import names_archive, parse_archive

# Tasks that list object stores, for each slot: each has several requests on their way, so that a
# slot with one task listing alone would be as quick but for the last of its runs.
_LISTING_TASKS_PER_SLOT: Final = 2
_INVENTORY_TASKS: Final = 256
_DIRECTORY_KEYS: Final = ("root", "role", "directory")
# Of so many logs the listing is kept that chose the engine: a few megabytes.
_MOST_KEPT_LOGS: Final = 100_000
_LISTED_AT_ONCE: Final = 512


def resolve_roots(
    roots: Sequence[str | Path],
    *,
    role: Role | None,
    must_open: bool = True,
    may_be_tiers: bool = False,
) -> list[LogRoot]:
    """Check the log directories of a run and describe them.

    Args:
        roots: Paths or URLs, at least one.
        role: The role that the owner named, None if nobody did.
        must_open: False where one that cannot be listed is told of later.
        may_be_tiers: Whether the run reads tiers (KIP-405), too.
    """
    by_identity: dict[str, LogRoot] = {}
    for root in roots:
        is_tier = names_archive(str(root))
        if is_tier and not may_be_tiers:
            check_no_tier(root)
        tier = parse_archive(str(root)) if is_tier else None
        location, identity = _locate(root if tier is None else tier.place, must_open=must_open)
        if identity in by_identity:
            raise ConfigError(
                "ROOT", root, f"is the same directory as {by_identity[identity].location}"
            )
        says_itself = names_manifest(str(root))
        is_mirror = not says_itself and (role or guess_role(location)) is Role.MIRROR
        if tier is None and may_be_tiers and is_mirror:
            tier = find_tier(location)
        if tier is not None:
            place = str(replace(tier, place=location))
            by_identity[identity] = LogRoot(location=place, role=guess_role(place), is_said=False)
            continue
        explicit_role = role or (Role.MANAGED if says_itself else None)
        root_role = explicit_role or guess_role(location)
        path = local_path(location)
        if path is not None and not root_role.facts.has_manifests:
            with nullcontext() if must_open else suppress(StorageError):
                check_log_directory(root, path)
        elif path is not None and os.path.lexists(path / META_PROPERTIES_FILE):
            reason = f"{META_PROPERTIES_FILE} lies there: it is a broker's, say --role broker"
            raise ConfigError("ROOT", root, reason)
        by_identity[identity] = LogRoot(
            location=location, role=root_role, is_said=explicit_role is not None
        )
    if not by_identity:
        raise ConfigError("ROOT", None, "expected at least one log directory")
    return list(by_identity.values())


def resolve_managed(roots: Sequence[str]) -> list[LogRoot]:
    """Check the managed roots that a command takes only as such."""
    return resolve_roots(roots, role=Role.MANAGED)


def _locate(root: str | Path, *, must_open: bool) -> tuple[str, str]:
    """Return location and identity of a root. Two roots with one identity are the same."""
    text = str(root).removeprefix(MANAGED_PREFIX)
    path = local_path(Path(text) if isinstance(root, Path) and "://" not in text else text)
    if path is None:
        scheme, _, rest = text.partition("://")
        place = rest.strip("/")
        if not place:
            raise ConfigError("ROOT", root, "expected a bucket, and maybe a prefix, after ://")
        location = f"{'s3' if scheme == 's3a' else scheme}://{place}"
        with said_as("ROOT", root):
            open_object_store(location)  # asks nothing of the store
        return location, location
    # Who may not look into the folder above it does not know whether it is there.
    with storage_errors(path) if must_open else suppress(PermissionError):
        if not path.is_dir():
            reason = "is not a directory" if path.exists() else "no such directory"
            raise ConfigError("ROOT", root, reason)
    plain = str(plain_path(path))
    if not is_text(plain):
        reason = "its path is not UTF-8, which Spark cannot be told; give it a link that is"
        raise ConfigError("ROOT", root, reason)
    return plain, str(path.resolve())


def discover_partitions(
    engine: Engine[RowsT],
    roots: Sequence[LogRoot],
    topics: TopicFilter,
    *,
    file_list: str | None = None,
    with_files: bool = False,
    opener: ListingOpener = open_listing,
) -> RowsT:
    """Return a row of ``schemas.PARTITION`` for each sub-directory of the roots. Rows of mirrors on
    object stores, and of mirrors with an inventory, include their files; rows of tiers never do.

    Args:
        file_list: Path or URL of an inventory; mirrors are not listed then.
        with_files: Whether the rows of local directories have their files with them, too.
        opener: Returns the listing of a URL; a value that pickles.
    """
    parts: list[RowsT] = []
    mirrors = [
        root
        for root in roots
        if file_list is not None
        and root.role.facts.takes_inventory
        and not names_archive(root.location)
    ]
    if file_list is not None:
        if not mirrors:
            raise ConfigError(
                OPTION, file_list, "stands for the listing of a mirror; none of the roots is one"
            )
        parts.append(_read_inventory(engine, mirrors, topics, find_parts(file_list)))
    local: list[tuple[str, str]] = []
    remote: list[tuple[str, str]] = []
    tiers = [root for root in roots if names_archive(root.location)]
    if tiers:

        def list_tier(root: LogRoot) -> Iterator[pa.RecordBatch]:
            yield from rows_to_batches(PARTITION, list_tier_partitions(root, topics))

        parts.append(engine.each(tiers, list_tier, PARTITION))
    for root in roots:
        if root not in mirrors and root not in tiers:
            is_local = local_path(root.location) is not None and not with_files
            (local if is_local else remote).append((root.location, root.role.value))
    if local:

        def list_local(place: tuple[str, str]) -> Iterator[pa.RecordBatch]:
            yield rows_to_batch(PARTITION, list_partitions(*place, topics))

        parts.append(engine.each(local, list_local, PARTITION))
    if remote:

        def list_run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return list_run_partitions(join_messages(ListingRun, batches), opener=opener)

        runs = engine.spread(remote, partial(list_runs, topics=topics, opener=opener), ListingRun)
        tasks = _LISTING_TASKS_PER_SLOT * engine.slots
        parts.append(runs.deal_out(tasks).map(list_run, PARTITION))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.union(part)
    return rows


def discover_segments(partitions: RowsT) -> RowsT:
    """Return a row of ``schemas.SEGMENT`` for each segment of the partitions."""
    return partitions.map(list_segments, SEGMENT)


def count_directories(roots: Sequence[LogRoot]) -> int | None:
    """Return the most rows of ``discover_partitions``; None if asking costs requests."""
    count = 0
    for root in roots:
        path = local_path(root.location)
        if path is None:
            return None
        # A managed root that is to be made is not there yet; what cannot be listed is an error of
        # whoever opens it.
        with suppress(OSError):
            count += len(folder_names(path))
    return count


def list_few(
    roots: Sequence[LogRoot], topics: TopicFilter, *, most_partitions: int, most_bytes: int
) -> ListedLogs | None:
    """List the partitions of some roots if they lie here, are at most so many, and hold at most so
    many bytes. Only names and lengths are read, and none beyond the limits.

    Args:
        roots: One that is to be made counts as empty; the cluster's metadata counts with its bytes.

    Returns:
        The logs of the first directories that hold files alone; None where there is more, or it
        lies elsewhere.
    """
    tiers = [plain_places(root.location) for root in roots if names_archive(root.location)]
    roots = [root for root in roots if not names_archive(root.location)]
    paths = [local_path(root.location) for root in roots]
    if None in paths or None in map(local_path, tiers):
        return None
    remaining = most_bytes
    remaining -= sum(info.size_bytes for tier in tiers for info in open_object_store(tier).list())
    if remaining < 0:
        return None
    places = [
        (path, list_partitions(root.location, root.role.value, topics))
        for root, path in zip(roots, paths, strict=True)
        if path is not None and os.path.exists(path)  # noqa: PTH110 - the other one raises errors
    ]
    kinds = [row.get("kind") for _, rows in places for row in rows]
    if len(kinds) - kinds.count(DirectoryKind.METADATA) > most_partitions:
        return None
    listed: dict[str, Logs] = {}
    kept = 0
    directories = [
        f"{path}/{row['directory'].rpartition('/')[2]}" for path, rows in places for row in rows
    ]
    for first in range(0, len(directories), _LISTED_AT_ONCE):
        some = directories[first : first + _LISTED_AT_ONCE]
        plain = list_logs(some)
        for directory in some:
            logs, size_bytes = plain.get(directory), 0
            # What cannot be listed is an error of its row later.
            with suppress(OSError):
                if logs is None:
                    logs, size_bytes = _list_alone(directory)
                else:
                    size_bytes = sum(logs[1])
            remaining -= size_bytes
            if logs is not None and kept < _MOST_KEPT_LOGS:
                listed[directory] = logs
                kept += len(logs[0])
        if remaining < 0:
            return None
    return listed


def _list_alone(directory: str) -> tuple[Logs | None, int]:
    """Return a directory's logs, None where there are other things than files, and their bytes."""
    with open_folder(directory, may_be_link=True) as folder:
        logs, _, are_files = list_open(folder, LOG_SUFFIX)
    sizes = {name: facts.st_size for name, facts in logs.items()}
    return sizes_by_offset(sizes) if are_files else None, sum(sizes.values())


def _read_inventory(
    engine: Engine[RowsT],
    roots: Sequence[LogRoot],
    topics: TopicFilter,
    parts: Sequence[InventoryPart],
) -> RowsT:
    """Return the directories of an inventory, each with all its files. One directory may be
    spread over several files of the inventory."""
    places = [InventoryRoot(location=root.location, role=root.role.value) for root in roots]

    def read(some: Sequence[InventoryPart]) -> Iterator[pa.RecordBatch]:
        for part in some:
            yield from read_part(part, places, topics)

    tasks = min(len(parts), _INVENTORY_TASKS)
    files = engine.each([parts[n::tasks] for n in range(tasks)], read, LISTED_DIRECTORY)
    # As many tasks as parts were worth one, whatever a session does with its own shuffles.
    grouped = files.deal_by(_DIRECTORY_KEYS, tasks).sort_within(*_DIRECTORY_KEYS)
    return grouped.map(_directory_rows, PARTITION)


def _directory_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn sorted rows of ``schemas.LISTED_DIRECTORY`` into rows of ``schemas.PARTITION``."""
    return partition_rows(_whole_directories(batches))


def _whole_directories(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join sorted rows into one for each directory, with all its files."""
    waiting: list[pa.RecordBatch] = []  # of one directory, which the next batch may go on with
    for batch in batches:
        begins = _find_begins(batch, waiting[-1] if waiting else None)
        if not len(begins):
            waiting += [batch] if batch.num_rows else []
            continue
        before = sum(rows.num_rows for rows in waiting)
        last = int(begins[-1])
        if before + last:
            starts = before + begins[:-1]
            yield _join_stretches(
                [*waiting, batch.slice(0, last)], np.append(0, starts) if before else starts
            )
        waiting = [batch.slice(last)]
    if waiting:
        yield _join_stretches(waiting, np.zeros(1, np.int64))


def _find_begins(batch: pa.RecordBatch, before: pa.RecordBatch | None) -> NDArray[np.int64]:
    """Return the rows at which a new directory begins."""
    begins = np.zeros(batch.num_rows, np.bool_)
    if before is None:
        begins[:1] = True
    for name in _DIRECTORY_KEYS:
        keys = batch.column(name)
        begins[1:] |= pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if before is not None and batch.num_rows:
            begins[0] |= keys[0] != before.column(name)[-1]
    return np.flatnonzero(begins)


def _join_stretches(batches: Sequence[pa.RecordBatch], starts: NDArray[np.int64]) -> pa.RecordBatch:
    """Return one row for each directory, with its rows' lists."""
    (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    lists = pa.StructArray.from_arrays(
        [rows.column(name) for name in LISTING_COLUMNS], LISTING_COLUMNS
    )
    offsets = pa.array(np.append(starts, rows.num_rows), pa.int32())
    stretches = pa.ListArray.from_arrays(offsets, lists)
    keys = [rows.column(name).take(pa.array(starts)) for name in _DIRECTORY_KEYS]
    return pa.RecordBatch.from_arrays([*keys, stretches], [*_DIRECTORY_KEYS, "stretches"])
