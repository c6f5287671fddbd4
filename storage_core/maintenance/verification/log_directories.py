"""Verifies log directories as a whole: owners, sub-directories, checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
    classify_directory,
    read_topic_id,
    read_topic_ids,
)
from storage_core.catalog.roles import Role, local_path
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MetaProperties,
    parse_meta_properties,
)
from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    MAX_OFFSET_CHECKPOINT_BYTES,
    Checkpoints,
    read_checkpoints,
)
from storage_core.config import NEWEST_RELEASE
from storage_core.errors import CheckpointError, PylogError, StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    is_text,
)
from storage_core.local_files import entry_names
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import NOT_TEXT, find_forbidden
from storage_core.maintenance.verification.findings import Code, DirectoryContext, Severity
from storage_core.maintenance.verification.observed_root import (
    ObservedRoot,
    PlacedFinding,
    place,
)
from storage_core.maintenance.verification.one_broker import check_together
from storage_core.roots.open_root import map_over_root, open_root, read_marker
from storage_core.roots.root import Root
from storage_core.store.tier_archive import names_archive
from storage_core.wording import count_text

_SPECIAL: Final = {
    DirectoryKind.FOREIGN: (Code.DIRECTORY_FOREIGN, "expected <topic>-<partition>"),
    DirectoryKind.DELETE: (Code.DIRECTORY_DELETED, "marked for deletion"),
    DirectoryKind.STRAY: (Code.DIRECTORY_STRAY, "marked as stray"),
    DirectoryKind.FUTURE: (Code.DIRECTORY_FUTURE, "a copy that a move was making"),
}
_LOST_PROPERTIES: Final = frozenset(
    {
        Code.META_PROPERTIES_MISSING,
        Code.META_PROPERTIES_BROKEN,
        Code.META_PROPERTIES_INCOMPLETE,
    }
)
# Kinds of directories with a log that is verified.
VERIFIED_KINDS: Final = frozenset(
    {DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.METADATA}
)


def verify_log_directories(
    roots: Sequence[tuple[str, Role]], *, release: str = NEWEST_RELEASE
) -> tuple[list[ObservedRoot], list[PlacedFinding]]:
    """Look at log directories, but not into their partitions' logs.

    Args:
        release: The release of Kafka that is to start, one of ``FEATURE_LEVELS``.

    Returns:
        The directories, and what was found; what cannot be parsed is a finding.
    """
    observed: list[ObservedRoot] = []
    placed: list[PlacedFinding] = []
    for location, role in roots:
        findings = FindingCollector()
        root = _observe(open_root(location, role=role), role, findings)
        observed.append(root)
        placed += [PlacedFinding(root=location, finding=finding) for finding in findings.findings()]
        placed += _special_directories(root)
    judged, together = check_together(observed, release=release)
    fixes = {root.location: root.properties_fix for root in judged}
    placed = [
        replace(each, finding=replace(each.finding, fix=fixes[each.root]))
        if each.finding.code in _LOST_PROPERTIES
        else each
        for each in placed
    ]
    return judged, placed + together


def observe_each(
    roots: Sequence[tuple[str, Role]],
) -> tuple[list[ObservedRoot], dict[str, str]]:
    """Look at log directories that are not one broker's, each by itself.

    Returns:
        Those that can be read, and the reason, by location, of each that cannot.
    """
    observed: list[ObservedRoot] = []
    unread: dict[str, str] = {}
    for location, role in roots:
        try:
            observed.append(_observe(open_root(location, role=role), role, FindingCollector()))
        except (PylogError, OSError) as error:
            unread[location] = str(error)
    return observed, unread


def _observe(files: Root, role: Role, findings: FindingCollector) -> ObservedRoot:
    names = files.directories()
    path = local_path(files.location)
    marker = read_marker(files)
    context = DirectoryContext(
        role=role,
        is_clean=marker is not None,
        user=find_forbidden(path, findings)
        if role.facts.is_owned_by_broker and path is not None
        else None,
    )
    if role.facts.is_owned_by_broker and not context.is_clean:
        message = "the broker did not close its logs, or is running"
        findings.add(Code.UNCLEAN_SHUTDOWN, message, file=CLEAN_SHUTDOWN_FILE)
    ids = read_topic_ids(map(files.locate, names))
    entries = tuple(
        map_over_root(files, lambda name: _observe_entry(files.locate(name), name, ids), names)
    )
    owners = {
        entry.topic_partition
        for entry in entries
        if entry.kind in VERIFIED_KINDS and entry.topic_partition is not None
    }
    return ObservedRoot(
        location=files.location,
        context=context,
        meta_properties=_read_meta_properties(files, role, findings),
        entries=entries,
        checkpoints=_read_checkpoints(files, role, owners, findings),
        marker=marker,
    )


def _observe_entry(location: str, name: str, ids: Mapping[str, str]) -> SubDirectory:
    kind, partition = classify_directory(name)
    path = location if location.startswith("/") else local_path(location)
    topic_id, problem = ids.get(location) if kind in VERIFIED_KINDS else None, ""
    is_link = topic_id is None and path is not None and Path(path).is_symlink()
    if topic_id is None and kind in VERIFIED_KINDS and not is_link:
        try:
            topic_id = read_topic_id(location)
        except (PylogError, OSError) as error:
            problem = str(error)  # the partition reports it
    return SubDirectory(
        path=location,
        kind=kind,
        topic_partition=partition,
        topic_id=topic_id,
        problem=problem,
        is_link=is_link,
    )


def _read_meta_properties(
    files: Root, role: Role, findings: FindingCollector
) -> MetaProperties | None:
    name = META_PROPERTIES_FILE
    try:
        content = files.read(name, limit_bytes=MAX_META_PROPERTIES_BYTES)
        if content is not None:
            properties = parse_meta_properties(content, file=name)
            missing = "node" if properties.node_id is None else "cluster"
            if role.facts.is_owned_by_broker and None in {
                properties.node_id,
                properties.cluster_id,
            }:
                message = f"expected a node and a cluster, the {missing} is missing"
                findings.add(Code.META_PROPERTIES_INCOMPLETE, message, file=name)
            return properties
    except (StorageError, CheckpointError) as error:
        findings.add(Code.META_PROPERTIES_BROKEN, str(error), file=name)
        return None
    if role.facts.has_marker and not names_archive(files.location):
        severity = Severity.INFO if role.facts.is_synced else None
        message = "the file is not there"
        findings.add(Code.META_PROPERTIES_MISSING, message, file=name, severity=severity)
    return None


def _read_checkpoints(
    files: Root, role: Role, owners: set[TopicPartition], findings: FindingCollector
) -> Checkpoints:
    entries: dict[str, Mapping[TopicPartition, int]] = {}
    for name in CHECKPOINT_FILES:
        try:
            read = read_checkpoints(files, [name], strict=False)
        except StorageError as error:
            findings.add(Code.FILE_UNREADABLE, error.reason, file=name)
            continue
        for problem in read.problems.values():
            # The finding names the directory's owner.
            message = str(CheckpointError(name, problem.line, problem.reason))
            findings.add(Code.CHECKPOINT_BROKEN, message, file=name)
        entries |= read.entries
        unknown = sorted(read.entries.get(name, {}).keys() - owners)
        if unknown:
            message = f"{len(unknown)} partitions are not here, {unknown[0]} the first of them"
            findings.add(Code.CHECKPOINT_PARTITION_UNKNOWN, message, file=name)
    # A broker creates the file empty, long before the first recovery point.
    flushed = entries.get(RECOVERY_POINT_FILE, {})
    logs = sum(point > 0 for partition, point in flushed.items() if partition in owners)
    is_without = REPLICATION_FILE in entries and not entries[REPLICATION_FILE]
    if role.facts.is_owned_by_broker and logs and is_without:
        content = files.read(REPLICATION_FILE, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
        if content == b"":
            message = f"it is empty beside {count_text(logs, 'log')} with a recovery point"
            findings.add(Code.HIGH_WATERMARKS_UNKNOWN, message, file=REPLICATION_FILE)
    return Checkpoints(entries=entries)


def _special_directories(root: ObservedRoot) -> Iterable[PlacedFinding]:
    for entry in root.entries:
        findings = FindingCollector()
        if entry.is_link and entry.kind is not DirectoryKind.FOREIGN:
            message = "it is a link: a broker follows it, this program does not"
            yield place(root.location, Code.PARTITION_LINKED, message, entry)
            continue
        if entry.kind not in _SPECIAL:
            continue
        code, message = _SPECIAL[entry.kind]
        if entry.name == CLEAN_SHUTDOWN_FILE and root.context.role.facts.is_owned_by_broker:
            # A start removes the marker before it looks for logs; of folders only an empty one.
            if not entry_names(Path(entry.path)):
                continue
            code, message = Code.FILE_IS_FOLDER, "expected a file, found a folder with files"
        is_unseen = not is_text(entry.name)
        is_foreign_copy = entry.kind is DirectoryKind.FOREIGN and root.context.is_copy
        severity = Severity.INFO if is_foreign_copy or is_unseen else None
        message = NOT_TEXT if is_unseen else message
        findings.add(code, message, file=entry.name, severity=severity)
        for finding in findings.findings():
            yield PlacedFinding(
                root=root.location, finding=finding, partition=entry.topic_partition
            )
