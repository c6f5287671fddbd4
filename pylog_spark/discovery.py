"""Log directories as DataFrames of partitions and segments.

Executors do the listing: the driver hands out the roots and gets rows back, or better, hands the
DataFrame on. One task lists a local root; a root on an object store is listed by many, a page at a
time; an inventory takes the place of listing. One row is one sub-directory, whatever it is.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

from pylog_spark.arrow_tasks import map_in_arrow
from pylog_spark.options.arguments import said_as
from pylog_spark.schemas import LISTED_DIRECTORY, LISTING_RUN, PARTITION, SEGMENT
from pylog_spark.session_facts import count_slots
from pylog_spark.tasks.inventory import InventoryRoot, partition_rows, read_part
from pylog_spark.tasks.inventory_files import OPTION, InventoryPart, find_parts
from pylog_spark.tasks.listing import (
    LISTING_COLUMNS,
    TopicFilter,
    list_roots,
    list_segments,
)
from pylog_spark.tasks.root_listing import ListingOpener, list_run_partitions, list_runs
from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.errors import ConfigError
from storage_core.filenames import is_text
from storage_core.local_files import folder_names
from storage_core.roots.open_root import LogRoot, check_log_directory
from storage_core.store.listing import open_listing
from storage_core.store.local import plain_path, storage_errors
from storage_core.store.open_objects import MANAGED_PREFIX, open_object_store

# Tasks that list object stores, for each slot: each has several requests on their way, so that a
# slot with one task listing alone would be as quick but for the last of its runs.
_LISTING_TASKS_PER_SLOT: Final = 2
_INVENTORY_TASKS: Final = 256


def resolve_roots(roots: Sequence[str | Path], *, said: Role | None) -> list[LogRoot]:
    """Check the log directories that a run is given and say what they are.

    Args:
        roots: Paths or URLs, at least one.
        said: The role that the owner named, None if nobody did.

    Raises:
        ConfigError: One of them is no log directory of this machine, is no URL of a root or one
            that nothing installed here can open, or is there twice.
        PylogError: A URL was given without a role, and its store cannot be asked.
    """
    found: dict[str, LogRoot] = {}
    for root in roots:
        location, identity = _locate(root)
        if identity in found:
            raise ConfigError("ROOT", root, f"is the same directory as {found[identity].location}")
        is_managed = str(root).startswith(MANAGED_PREFIX)
        role = said or (Role.MANAGED if is_managed else guess_role(location))
        path = local_path(location)
        if path is not None and role is not Role.MANAGED:
            check_log_directory(root, path)
        found[identity] = LogRoot(
            location=location, role=role, is_said=said is not None or is_managed
        )
    if not found:
        raise ConfigError("ROOT", None, "expected at least one log directory")
    return list(found.values())


def _locate(root: str | Path) -> tuple[str, str]:
    """Return location and identity of a root: two of one identity are the same."""
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
    if not path.is_dir():
        reason = "is not a directory" if path.exists() else "no such directory"
        raise ConfigError("ROOT", root, reason)
    plain = str(plain_path(path))
    if not is_text(plain):
        reason = "its path is not UTF-8, which Spark cannot be told; give it a link that is"
        raise ConfigError("ROOT", root, reason)
    return plain, str(path.resolve())


def discover_partitions(
    spark: SparkSession,
    roots: Sequence[LogRoot],
    topics: TopicFilter,
    *,
    file_list: str | None = None,
    with_files: bool = False,
    opener: ListingOpener = open_listing,
) -> DataFrame:
    """Return a row of ``schemas.PARTITION`` for each sub-directory of the roots.

    Rows of mirrors on object stores, and of all mirrors where there is an inventory, have their
    files with them.

    Args:
        spark: The session.
        roots: At least one.
        topics: Which topics to list.
        file_list: Path or URL of an inventory; mirrors are not listed then.
        with_files: Whether the rows of local directories have their files with them, too.
        opener: Returns the listing of a URL; a value that pickles.

    Raises:
        ConfigError: The inventory is of no known kind, lacks a column, or is of no use here.
        StorageError: The inventory cannot be read.
    """
    parts: list[DataFrame] = []
    known = [root for root in roots if file_list is not None and root.role is Role.MIRROR]
    if file_list is not None:
        if not known:
            raise ConfigError(
                OPTION, file_list, "stands for the listing of a mirror; none of the roots is one"
            )
        parts.append(_read_inventory(spark, known, topics, find_parts(file_list)))
    others = [root for root in roots if root not in known]
    local = [r for r in others if local_path(r.location) is not None and not with_files]
    if local:
        parts.append(_root_rows(spark, local, partial(list_roots, topics=topics), PARTITION))
    remote = [root for root in others if root not in local]
    if remote:
        runs = _root_rows(
            spark, remote, partial(list_runs, topics=topics, opener=opener), LISTING_RUN
        )
        parts.append(
            map_in_arrow(
                runs.repartition(_listing_tasks(spark)),
                partial(list_run_partitions, opener=opener),
                PARTITION,
            )
        )
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionByName(part)
    return frame


def discover_segments(partitions: DataFrame) -> DataFrame:
    """Return a row of ``schemas.SEGMENT`` for each segment of the partitions.

    Args:
        partitions: Of ``discover_partitions``.
    """
    return map_in_arrow(partitions, list_segments, SEGMENT)


def count_directories(roots: Sequence[LogRoot]) -> int | None:
    """Return how many rows ``discover_partitions`` has at most; None where asking costs requests.

    Args:
        roots: The roots.
    """
    count = 0
    for root in roots:
        path = local_path(root.location)
        if path is None or root.role is Role.MANAGED:
            return None
        with storage_errors(path):
            count += len(folder_names(path))
    return count


def _listing_tasks(spark: SparkSession) -> int:
    return _LISTING_TASKS_PER_SLOT * count_slots(spark)


def _root_rows(
    spark: SparkSession,
    roots: Sequence[LogRoot],
    work: partial[Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return what work makes of rows (root, role), one task a root."""
    rows = [{"root": root.location, "role": root.role.value} for root in roots]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = [rows[number] for number in batch.column(0).to_pylist()]
            yield from work(iter([pa.RecordBatch.from_pylist(chosen)]))

    numbers = spark.range(0, len(rows), 1, len(rows))
    return map_in_arrow(numbers, run, schema)


def _read_inventory(
    spark: SparkSession,
    roots: Sequence[LogRoot],
    topics: TopicFilter,
    parts: Sequence[InventoryPart],
) -> DataFrame:
    """Return the directories of an inventory: its files, brought together by Spark's shuffle."""
    places = [InventoryRoot(location=root.location, role=root.role.value) for root in roots]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(parts[number], places, topics)

    tasks = min(len(parts), _INVENTORY_TASKS)
    numbers = spark.range(0, len(parts), 1, tasks)
    files = map_in_arrow(numbers, read, LISTED_DIRECTORY)
    stretches = F.collect_list(F.struct(*LISTING_COLUMNS)).alias("stretches")
    keys = ["root", "role", "directory"]
    # As many tasks as parts were worth one, whatever the session does with its own shuffles.
    grouped = files.repartition(tasks, *keys).groupBy(*keys).agg(stretches)
    return map_in_arrow(grouped, partition_rows, PARTITION)
