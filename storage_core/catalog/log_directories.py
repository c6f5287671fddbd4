"""Observe the content of a broker's log directories, or of a copy.

As a broker sees it: every sub-directory of a log directory is a partition's, but for the cache of
remote indexes and the cluster's metadata log; three suffixes mark directories on their way in or
out. A name that does not parse keeps a broker from starting; here it is reported.
Source: ``org.apache.kafka.storage.internals.log.LogManager`` and ``LocalLog``.
"""

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from storage_core.checkpoint.broker_files import CleanShutdown, MetaProperties
from storage_core.checkpoint.checkpoints import (
    parse_partition_metadata,
)
from storage_core.errors import (
    DuplicatePartitionError,
    InconsistentTopicIdError,
    InvalidNameError,
    PylogError,
)
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    PARTITION_METADATA_FILE,
    REMOTE_INDEX_CACHE_DIRECTORY,
    TopicPartition,
    parse_partition_directory,
    parse_renamed_directory,
)
from storage_core.kernels.file_starts import FOLDER, KIND, MOST_BYTES, PART_COLUMNS
from storage_core.records.file_starts import METADATA, Folders
from storage_core.store import open_store
from storage_core.store.log_identity import topic_id_of

# Names of files and folders, and their beginnings, that Kafka never writes in a log directory.
_NAMES: Final = {
    "redpanda": "Redpanda",
    "kafka_internal": "Redpanda",
    "commitlog": "Apache RocketMQ",
    "consumequeue": "Apache RocketMQ",
    "current": "Apache BookKeeper (Pulsar)",
}
_PREFIXES: Final = {"_confluent-tier-state-": "Confluent Server with Tiered Storage"}


class DirectoryKind(enum.StrEnum):
    """The kind of a sub-directory of a log directory.

    PARTITION holds a log. METADATA is the cluster's own log, read but never modified. FUTURE is
    the copy that a move between log directories is making. DELETE waits for its removal, STRAY is
    of a partition that the broker does not own: both are left alone. CACHE holds indexes of
    remote segments. FOREIGN is none of Kafka's; a broker would not start.
    """

    PARTITION = "partition"
    METADATA = "metadata"
    FUTURE = "future"
    DELETE = "delete"
    STRAY = "stray"
    CACHE = "cache"
    FOREIGN = "foreign"


# A file with a version and an id; one with more in it is read alone.
_USUAL_METADATA_BYTES: Final = 256
_LOG_KINDS: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.FUTURE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SubDirectory:
    """One sub-directory of a log directory."""

    path: str  # its path, or its location as ``open_store`` takes it
    kind: DirectoryKind
    # Its partition; None for CACHE and FOREIGN. For DELETE and STRAY the topic may be cut.
    topic_partition: TopicPartition | None = None
    topic_id: str | None = None  # the id in its ``partition.metadata``, None without the file
    # Why the topic id could not be read, or why the name does not parse; else empty.
    problem: str = ""
    # Whether the name is that of a link, which a broker follows and we do not.
    is_link: bool = False

    @property
    def name(self) -> str:
        """Its own name."""
        return self.path.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryState:
    """The content of one log directory."""

    path: str
    # The content of ``meta.properties``, None without the file.
    meta_properties: MetaProperties | None
    clean_shutdown: CleanShutdown | None  # the content of the marker, None without one
    entries: tuple[SubDirectory, ...]  # its sub-directories, sorted by name

    def of_kind(self, kind: DirectoryKind) -> tuple[SubDirectory, ...]:
        """Return the sub-directories of a kind."""
        return tuple(entry for entry in self.entries if entry.kind is kind)


def classify_directory(name: str) -> tuple[DirectoryKind, TopicPartition | None]:
    """Return kind and partition of a log directory's sub-directory, by name.

    Returns:
        Its kind, and the partition in its name; None where the name has none.
    """
    if name == REMOTE_INDEX_CACHE_DIRECTORY:
        return DirectoryKind.CACHE, None
    try:
        renamed = parse_renamed_directory(name)
        if renamed is not None:
            return DirectoryKind(renamed[1]), renamed[0]
        partition = parse_partition_directory(name)
    except InvalidNameError:
        return DirectoryKind.FOREIGN, None
    if partition.topic == CLUSTER_METADATA_TOPIC:
        return DirectoryKind.METADATA, partition
    return DirectoryKind.PARTITION, partition


def read_topic_id(location: str) -> str | None:
    """Return the topic id in a partition's ``partition.metadata``, None without one."""
    return topic_id_of(open_store(location))


def read_topic_ids(locations: Iterable[str]) -> dict[str, str]:
    """Return the topic ids of local directories, not links, that have a sound
    ``partition.metadata``; about others `read_topic_id` says what is wrong."""
    paths = [location for location in locations if location.startswith("/")]
    parts = np.zeros((PART_COLUMNS, len(paths)), np.int64)
    parts[FOLDER], parts[KIND] = np.arange(len(paths)), METADATA
    parts[MOST_BYTES] = _USUAL_METADATA_BYTES
    found = Folders(paths).read(parts, most_of_folder=_USUAL_METADATA_BYTES)
    whole = np.flatnonzero(found.lengths == found.sizes).tolist()
    ids = {paths[number]: _parse_topic_id(found.content(number)) for number in whole}
    return {path: topic_id for path, topic_id in ids.items() if topic_id is not None}


@lru_cache(maxsize=256)
def _parse_topic_id(content: bytes) -> str | None:
    """Return the id in ``partition.metadata``, None where that is malformed."""
    try:
        return parse_partition_metadata(content, file=PARTITION_METADATA_FILE).topic_id
    except PylogError:
        return None


def find_duplicate_partitions(
    directories: Iterable[SubDirectory],
) -> list[DuplicatePartitionError]:
    """Return an error for each partition with several directories of one kind.

    A partition and its future copy are no duplicates; two of either are, and concern nobody else.
    Nor does a broker start with two copies of the cluster's metadata.
    """
    kinds = _LOG_KINDS | {DirectoryKind.METADATA}
    paths: dict[tuple[TopicPartition, DirectoryKind], list[str]] = {}
    for entry in directories:
        if entry.topic_partition is not None and entry.kind in kinds:
            paths.setdefault((entry.topic_partition, entry.kind), []).append(entry.path)
    several = {key: places for key, places in paths.items() if len(places) > 1}
    return [
        DuplicatePartitionError(str(partition), tuple(places))
        for (partition, _), places in sorted(several.items())
    ]


def find_inconsistent_topic_ids(
    directories: Iterable[SubDirectory],
) -> list[InconsistentTopicIdError]:
    """Return an error for each directory with an unexpected topic id.

    Args:
        directories: Sub-directories of one broker's log directories. The id of a topic's first one
            is expected of the others; a directory without an id contradicts nothing.
    """
    topic_ids: dict[str, str] = {}
    errors = []
    for entry in directories:
        if entry.kind not in _LOG_KINDS:
            continue
        if entry.topic_partition is not None and entry.topic_id is not None:
            wanted = topic_ids.setdefault(entry.topic_partition.topic, entry.topic_id)
            if entry.topic_id != wanted:
                errors.append(InconsistentTopicIdError(entry.path, wanted, entry.topic_id))
    return errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFormat:
    """A system other than Kafka, although its log directory may look alike."""

    product: str
    evidence: str  # the entry of the directory that only it has


def find_foreign_format(entries: Collection[str]) -> ForeignFormat | None:
    """Return a directory's other system; None without a sign of one."""
    for name in sorted(entries):
        if name in _NAMES:
            return ForeignFormat(product=_NAMES[name], evidence=name)
        for prefix, product in _PREFIXES.items():
            if name.startswith(prefix):
                return ForeignFormat(product=product, evidence=name)
    return None
