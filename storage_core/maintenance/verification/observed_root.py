"""A log directory as observed by a verification; findings with a place."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.checkpoint.broker_files import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    MetaProperties,
)
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.filenames import META_PROPERTIES_FILE, TopicPartition
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code, DirectoryContext, Finding, Severity


class Start(enum.StrEnum):
    """The effect of a broker's start on one directory of a partition.

    OPENED: as it is. RECOVERED: read, mended, perhaps cut. REFUSED: not loaded. STRAYED: renamed
    to ``-stray``, and served no more. EMPTIED: no record is left. DELETED: renamed to ``-delete``,
    and removed a minute later. CREATED: there was none, an empty one is made. OFFLINE: its log
    directory is taken offline, for what else is in there. UNKNOWN: it lies behind a link, and was
    not looked at.
    """

    OPENED = "opened"
    RECOVERED = "recovered"
    REFUSED = "refused"
    STRAYED = "strayed"
    EMPTIED = "emptied"
    DELETED = "deleted"
    CREATED = "created"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFinding:
    """A finding about a log directory."""

    root: str
    finding: Finding
    # The partition of the directory, None for the log directory itself.
    partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRoot:
    """One log directory."""

    location: str
    context: DirectoryContext  # its role, and whether it was shut down cleanly
    meta_properties: MetaProperties | None  # its cluster and node, None without the file
    entries: tuple[SubDirectory, ...]  # its sub-directories, sorted by name
    checkpoints: Checkpoints  # its checkpoint files' entries; a broken or missing file has none
    marker: CleanShutdown | None = None  # its marker of a clean shutdown, None without one
    # A start's action on sub-directories by the cluster's metadata, by path; for others their logs
    # decide.
    fates: Mapping[str, Start] = field(default_factory=dict)
    # By path of a log that lies in another log directory than the metadata says, its path in that
    # one: there a start makes an empty log if this directory is offline.
    homes: Mapping[str, str] = field(default_factory=dict)
    # Whether the cluster's metadata was read, here or in another directory of the same broker.
    has_metadata: bool = False
    # Whether the broker has logs with records, and the cluster's metadata are in none of its
    # directories that were named.
    lacks_metadata: bool = False
    # How many log directories the broker registered besides those that were named.
    absent_directories: int = 0
    # Topics with segments in remote storage, by the cluster's metadata.
    tiered_topics: frozenset[str] = frozenset()
    # How to write its meta.properties again, with what it has to say; empty where it is not lost,
    # or nobody knows.
    properties_fix: str = ""

    @property
    def directory_id(self) -> str | None:
        """Its id in the cluster's metadata, None where nothing says it."""
        return self.meta_properties.directory_id if self.meta_properties is not None else None

    def context_of(self, entry: SubDirectory) -> DirectoryContext:
        """Return the context of a sub-directory. The clean shutdown marker does not cover the
        metadata log of the controllers' quorum."""
        if entry.kind is DirectoryKind.METADATA:
            return replace(self.context, is_clean=False)
        topic = None if entry.topic_partition is None else entry.topic_partition.topic
        is_tiered = topic in self.tiered_topics
        # One for most of them: it travels to tasks once.
        is_usual = is_tiered == self.context.is_tiered
        return self.context if is_usual else replace(self.context, is_tiered=is_tiered)

    def checkpoints_of(self, partition: TopicPartition | None) -> PartitionCheckpoints:
        """Return a partition's entries in the checkpoints."""
        if partition is None:
            return PartitionCheckpoints()
        return self.checkpoints.of(partition)


def broker_epoch_of(roots: Iterable[ObservedRoot]) -> int:
    """Return the broker epoch that a start names when it registers.

    A marker of a clean shutdown counts only if all log directories of the broker name the same
    epoch; without one it is UNKNOWN_BROKER_EPOCH.
    """
    epochs = {
        UNKNOWN_BROKER_EPOCH if root.marker is None else root.marker.broker_epoch for root in roots
    }
    return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH


def place(
    root: str,
    code: Code,
    message: str,
    entry: SubDirectory | None,
    severity: Severity | None = None,
) -> PlacedFinding:
    """Return a finding about a sub-directory or a log directory's owner."""
    findings = FindingCollector()
    file = META_PROPERTIES_FILE if entry is None else entry.name
    findings.add(code, message, file=file, severity=severity)
    partition = None if entry is None else entry.topic_partition
    return PlacedFinding(root=root, finding=findings.findings()[0], partition=partition)
