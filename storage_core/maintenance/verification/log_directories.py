"""Verifies log directories as a whole: owners, sub-directories, checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
    classify_directory,
    find_duplicate_partitions,
    find_inconsistent_topic_ids,
    read_topic_id,
)
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MetaProperties,
    parse_meta_properties,
    validate_one_broker,
)
from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    Checkpoints,
    PartitionCheckpoints,
    read_checkpoints,
)
from storage_core.errors import (
    CheckpointError,
    InconsistentClusterIdError,
    InconsistentDirectoriesError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    TopicPartition,
    is_text,
)
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import NOT_TEXT
from storage_core.maintenance.verification.findings import Code, Finding, Severity
from storage_core.maintenance.verification.options import Surroundings
from storage_core.roots.observation import read_marker
from storage_core.roots.open_root import map_over_root, open_root
from storage_core.roots.root import Root

_SPECIAL: Final = {
    DirectoryKind.FOREIGN: (Code.DIRECTORY_FOREIGN, "expected <topic>-<partition>"),
    DirectoryKind.DELETE: (Code.DIRECTORY_DELETED, "marked for deletion"),
    DirectoryKind.STRAY: (Code.DIRECTORY_STRAY, "marked as stray"),
    DirectoryKind.FUTURE: (Code.DIRECTORY_FUTURE, "a copy that a move was making"),
}
# What holds a log that is worth a look.
VERIFIED_KINDS: Final = frozenset(
    {DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.METADATA}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFinding:
    """A finding about a log directory.

    Attributes:
        root: The log directory.
        finding: What was found.
        partition: Whose directory it is about, None for the log directory itself.
    """

    root: str
    finding: Finding
    partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRoot:
    """One log directory.

    Attributes:
        location: Its path or URL.
        surroundings: Its role, and whether it was shut down cleanly.
        meta_properties: Whose it is, None where nothing says so.
        entries: Its sub-directories, sorted by name.
        checkpoints: What its checkpoint files say; one that is broken or missing is empty.
    """

    location: str
    surroundings: Surroundings
    meta_properties: MetaProperties | None
    entries: tuple[SubDirectory, ...]
    checkpoints: Checkpoints

    def surroundings_of(self, entry: SubDirectory) -> Surroundings:
        """Return the surroundings of a sub-directory.

        The controllers' quorum keeps the cluster's metadata by itself: the marker of a clean
        shutdown says nothing of that log.
        """
        if entry.kind is DirectoryKind.METADATA:
            return Surroundings(role=self.surroundings.role, is_clean=False)
        return self.surroundings

    def checkpoints_of(self, partition: TopicPartition | None) -> PartitionCheckpoints:
        """Return a partition's entries in the checkpoints."""
        if partition is None:
            return PartitionCheckpoints()
        return self.checkpoints.of(partition)


def verify_log_directories(
    roots: Sequence[tuple[str, Role]],
) -> tuple[list[ObservedRoot], list[PlacedFinding]]:
    """Look at log directories, but not into their partitions' logs.

    Args:
        roots: Path or URL, and role of each.

    Returns:
        The directories, and what was found; what cannot be parsed is a finding.

    Raises:
        StorageError: A directory cannot be listed.
    """
    observed: list[ObservedRoot] = []
    placed: list[PlacedFinding] = []
    for location, role in roots:
        findings = FindingCollector()
        root = _observe(open_root(location, role=role), role, findings)
        observed.append(root)
        placed += [PlacedFinding(root=location, finding=finding) for finding in findings.findings()]
        placed += _special_directories(root)
    placed += _check_together(observed)
    return observed, placed


def _observe(files: Root, role: Role, findings: FindingCollector) -> ObservedRoot:
    surroundings = Surroundings(role=role, is_clean=read_marker(files) is not None)
    if role is Role.BROKER and not surroundings.is_clean:
        message = "the broker did not close its logs, or is running"
        findings.add(Code.UNCLEAN_SHUTDOWN, message, file=CLEAN_SHUTDOWN_FILE)
    names = files.directories()
    entries = tuple(
        map_over_root(files, lambda name: _observe_entry(files.locate(name), name), names)
    )
    owners = {
        entry.topic_partition
        for entry in entries
        if entry.kind in VERIFIED_KINDS and entry.topic_partition is not None
    }
    return ObservedRoot(
        location=files.location,
        surroundings=surroundings,
        meta_properties=_read_meta_properties(files, role, findings),
        entries=entries,
        checkpoints=_read_checkpoints(files, owners, findings),
    )


def _observe_entry(location: str, name: str) -> SubDirectory:
    kind, partition = classify_directory(name)
    topic_id = None
    if kind in VERIFIED_KINDS:
        try:
            topic_id = read_topic_id(location)
        except (PylogError, OSError):
            topic_id = None  # a finding of the partition itself
    return SubDirectory(path=location, kind=kind, topic_partition=partition, topic_id=topic_id)


def _read_meta_properties(
    files: Root, role: Role, findings: FindingCollector
) -> MetaProperties | None:
    name = META_PROPERTIES_FILE
    try:
        content = files.read(name, limit_bytes=MAX_META_PROPERTIES_BYTES)
        if content is not None:
            return parse_meta_properties(content, file=name)
    except StorageError as error:
        findings.add(Code.FILE_UNREADABLE, error.reason, file=name)
        return None
    except CheckpointError as error:
        findings.add(Code.META_PROPERTIES_BROKEN, str(error), file=name)
        return None
    if role is not Role.MANAGED:
        severity = Severity.INFO if role is Role.MIRROR else None
        message = "the file is not there"
        findings.add(Code.META_PROPERTIES_MISSING, message, file=name, severity=severity)
    return None


def _read_checkpoints(
    files: Root, owners: set[TopicPartition], findings: FindingCollector
) -> Checkpoints:
    entries: dict[str, Mapping[TopicPartition, int]] = {}
    for name in CHECKPOINT_FILES:
        try:
            read = read_checkpoints(files, [name], strict=False)
        except StorageError as error:
            findings.add(Code.FILE_UNREADABLE, error.reason, file=name)
            continue
        for problem in read.problems.values():
            # The finding says whose directory it is in.
            message = str(CheckpointError(name, problem.line, problem.reason))
            findings.add(Code.CHECKPOINT_BROKEN, message, file=name)
        entries |= read.entries
        unknown = sorted(read.entries.get(name, {}).keys() - owners)
        if unknown:
            message = f"{len(unknown)} partitions are not here, {unknown[0]} the first of them"
            findings.add(Code.CHECKPOINT_PARTITION_UNKNOWN, message, file=name)
    return Checkpoints(entries=entries)


def _special_directories(root: ObservedRoot) -> Iterable[PlacedFinding]:
    for entry in root.entries:
        if entry.kind not in _SPECIAL:
            continue
        code, message = _SPECIAL[entry.kind]
        findings = FindingCollector()
        is_unseen = not is_text(entry.name)
        is_foreign_copy = entry.kind is DirectoryKind.FOREIGN and root.surroundings.is_copy
        severity = Severity.INFO if is_foreign_copy or is_unseen else None
        message = NOT_TEXT if is_unseen else message
        findings.add(code, message, file=entry.name, severity=severity)
        for finding in findings.findings():
            yield PlacedFinding(
                root=root.location, finding=finding, partition=entry.topic_partition
            )


def _check_together(roots: Sequence[ObservedRoot]) -> Iterable[PlacedFinding]:
    """Report contradictions between the directories of one broker."""
    yield from _check_owner(roots)
    for broker in _brokers(roots):
        entries = [entry for root in broker for entry in root.entries]
        owner = {entry.path: (root.location, entry) for root in broker for entry in root.entries}
        for duplicate in find_duplicate_partitions(entries):
            root, entry = owner[duplicate.paths[-1]]
            yield _place(root, Code.PARTITION_DUPLICATE, str(duplicate), entry)
        for inconsistent in find_inconsistent_topic_ids(entries, {}):
            root, entry = owner[inconsistent.path]
            yield _place(root, Code.TOPIC_ID_INCONSISTENT, str(inconsistent), entry)


def _check_owner(roots: Sequence[ObservedRoot]) -> Iterable[PlacedFinding]:
    properties = {root.location: root.meta_properties for root in roots if root.meta_properties}
    try:
        validate_one_broker(properties)
    except (InconsistentClusterIdError, InconsistentDirectoriesError) as error:
        is_copy = any(root.surroundings.is_copy for root in roots)
        severity = Severity.WARN if is_copy else None
        yield _place(error.path, Code.DIRECTORIES_INCONSISTENT, str(error), None, severity)


def _place(
    root: str,
    code: Code,
    message: str,
    entry: SubDirectory | None,
    severity: Severity | None = None,
) -> PlacedFinding:
    findings = FindingCollector()
    file = META_PROPERTIES_FILE if entry is None else entry.name
    findings.add(code, message, file=file, severity=severity)
    partition = None if entry is None else entry.topic_partition
    return PlacedFinding(root=root, finding=findings.findings()[0], partition=partition)


def _brokers(roots: Sequence[ObservedRoot]) -> Iterable[list[ObservedRoot]]:
    """Return the roots by the broker they belong to; one that does not say stands for itself."""
    brokers: dict[object, list[ObservedRoot]] = {}
    for root in roots:
        properties = root.meta_properties
        key: object = root.location
        if properties is not None:
            key = (properties.cluster_id, properties.node_id)
        brokers.setdefault(key, []).append(root)
    return brokers.values()
