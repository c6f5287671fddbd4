"""List log directories: which partition directories there are, and their segments.

Kafka's own reading of a log directory: every sub-directory is a partition, but for the cache of
remote indexes; three suffixes mark directories on their way in or out; a name that does not parse
would stop a broker's start, so it is reported, never skipped in silence.
"""

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.schemas import PARTITION, SEGMENT, rows_to_batch, rows_to_batches
from pylog_spark.tasks.failures import describe_failure
from storage_core.errors import InvalidNameError, PylogError
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    REMOTE_INDEX_CACHE_DIRECTORY,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    directory_state,
    kind_of,
    offset_of,
    parse_partition_directory,
)
from storage_core.store import FileInfo, LocalStore


class DirectoryKind(enum.StrEnum):
    """What a sub-directory of a log directory is."""

    PARTITION = "partition"
    METADATA = "metadata"
    FUTURE = "future"
    DELETE = "delete"
    STRAY = "stray"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFilter:
    """Which topics a run is about.

    Attributes:
        topics: Globs; a topic has to match one of them. None of them lets every topic in.
        exclude: Globs; a topic that matches one of them is left out.
    """

    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def admits(self, topic: str | None) -> bool:
        """Whether a topic passes; None, for a directory of none, passes if none was asked for."""
        if topic is None:
            return not self.topics
        asked = not self.topics or any(fnmatchcase(topic, glob) for glob in self.topics)
        return asked and not any(fnmatchcase(topic, glob) for glob in self.exclude)


def classify_directory(name: str) -> tuple[DirectoryKind, TopicPartition | None]:
    """Say what a sub-directory is by its name, and whose.

    Returns:
        Its kind, and topic and partition as far as the name gives them: the topic of a directory
        that Kafka renamed may have been cut.
    """
    state = directory_state(name)
    stem = name.rpartition(".")[0] if state else name
    try:
        partition = parse_partition_directory(stem)
    except InvalidNameError:
        return (DirectoryKind(state) if state else DirectoryKind.FOREIGN), None
    if state:
        return DirectoryKind(state), partition
    if partition.topic == CLUSTER_METADATA_TOPIC:
        return DirectoryKind.METADATA, partition
    return DirectoryKind.PARTITION, partition


def list_partitions(root: str, role: str, topics: TopicFilter) -> list[dict[str, Any]]:
    """Return one row of ``schemas.PARTITION`` for each sub-directory of a log directory.

    A directory that cannot be listed yields one row with its error and no topic.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        return [{"root": root, "role": role, "directory": root, **describe_failure(error)}]
    rows = []
    for name in names:
        if name == REMOTE_INDEX_CACHE_DIRECTORY:
            continue
        kind, partition = classify_directory(name)
        if not topics.admits(partition.topic if partition else None):
            continue
        rows.append(
            {
                "root": root,
                "topic": partition.topic if partition else None,
                "partition": partition.partition if partition else None,
                "role": role,
                "directory": str(Path(root) / name),
                "kind": kind.value,
            }
        )
    return rows


def list_roots(batches: Iterator[pa.RecordBatch], topics: TopicFilter) -> Iterator[pa.RecordBatch]:
    """Turn rows (root, role) into rows of ``schemas.PARTITION``."""
    for batch in batches:
        for row in batch.to_pylist():
            yield rows_to_batch(PARTITION, list_partitions(row["root"], row["role"], topics))


def list_segments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.SEGMENT``.

    Only names and sizes are read. A directory that vanished or cannot be listed has one row, with
    the error.
    """
    listed = (row for batch in batches for row in batch.to_pylist())
    yield from rows_to_batches(
        SEGMENT,
        (segment for row in listed if row["topic"] is not None for segment in _segments_of(row)),
    )


def _segments_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = {key: row[key] for key in ("root", "topic", "partition", "directory")}
    try:
        segments = segment_rows(LocalStore(Path(row["directory"])).list_files())
    except PylogError as error:
        segments = [describe_failure(error)]
    return [name | segment for segment in segments]


def segment_rows(files: Sequence[FileInfo]) -> list[dict[str, Any]]:
    """Return base offset, sizes and times of each segment in a listing, in offset order."""
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
