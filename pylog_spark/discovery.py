"""Log directories as DataFrames of partitions and segments.

Executors do the listing: the driver hands out the roots and gets rows back, or better, hands the
DataFrame on. One task lists one root; one row in it is one sub-directory, whatever it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pylog_spark.schemas import PARTITION, SEGMENT, spark_ddl
from pylog_spark.tasks.listing import TopicFilter, list_roots, list_segments
from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRoot:
    """A log directory that a run is given.

    Attributes:
        location: Its path, absolute.
        role: What may be done to it.
        is_said: Whether the role was said; a guessed one serves reading only.
    """

    location: str
    role: Role
    is_said: bool


def resolve_roots(roots: Sequence[str | Path], *, said: Role | None) -> list[LogRoot]:
    """Check the log directories that a run is given and say what they are.

    Args:
        roots: Paths, at least one.
        said: The role that the owner named, None if nobody did.

    Raises:
        ConfigError: One of them is no directory of this machine, or is there twice.
    """
    found: dict[Path, LogRoot] = {}
    for root in roots:
        path = local_path(root)
        if path is None:
            raise ConfigError("ROOT", root, "expected a path; object storage is not supported yet")
        if not path.is_dir():
            raise ConfigError("ROOT", root, "is not a directory")
        real = path.resolve()
        if real in found:
            raise ConfigError("ROOT", root, f"is the same directory as {found[real].location}")
        role = guess_role(path) if said is None else said
        found[real] = LogRoot(location=str(path.absolute()), role=role, is_said=said is not None)
    if not found:
        raise ConfigError("ROOT", "", "expected at least one log directory")
    return list(found.values())


def discover_partitions(
    spark: SparkSession, roots: Sequence[LogRoot], topics: TopicFilter
) -> DataFrame:
    """Return a row of ``schemas.PARTITION`` for each sub-directory of the roots.

    Args:
        spark: The session.
        roots: At least one.
        topics: Which topics to list.
    """
    rows = [(root.location, root.role.value) for root in roots]

    def list_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = [rows[number] for number in batch.column(0).to_pylist()]
            named = pa.RecordBatch.from_pylist(
                [{"root": root, "role": role} for root, role in chosen]
            )
            yield from list_roots(iter([named]), topics)

    numbers = spark.range(0, len(rows), 1, len(rows))
    return numbers.mapInArrow(list_one, spark_ddl(PARTITION))


def discover_segments(partitions: DataFrame) -> DataFrame:
    """Return a row of ``schemas.SEGMENT`` for each segment of the partitions.

    Args:
        partitions: Of ``discover_partitions``.
    """
    return partitions.mapInArrow(list_segments, spark_ddl(SEGMENT))
