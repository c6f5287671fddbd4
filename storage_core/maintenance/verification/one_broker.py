"""Judge one broker's log directories together, by owner and metadata.

A broker of KRaft decides by the cluster's metadata which of the logs on its disks are its own,
before it serves anybody. It sets aside what the metadata does not give it, ends moves between its
disks, and makes an empty log where the metadata expects one and there is none. Source:
``LogManager.isStrayKraftReplica``, ``LogManager.recoverAbandonedFutureLogs`` and
``ReplicaManager.applyDelta`` of Kafka 4.4.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Final, TypeVar

from storage_core.catalog.bootstrap_snapshot import BOOTSTRAP_SNAPSHOT
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    MetadataFile,
    read_broker_metadata,
    read_cluster_metadata,
    read_cut_records,
)
from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
    find_duplicate_partitions,
    find_inconsistent_topic_ids,
)
from storage_core.catalog.metadata_image import (
    FeatureLevelRecord,
    PartitionRecord,
    decode_metadata_record,
)
from storage_core.catalog.release_features import FEATURE_LEVELS, METADATA_VERSION
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import (
    MAX_QUORUM_STATE_BYTES,
    parse_quorum_state,
    validate_one_broker,
)
from storage_core.config import NEWEST_RELEASE, merge_dynamic_configs, refused_topic_settings
from storage_core.config.broker_config import spell_directories
from storage_core.config.values import CORDONED_KEY
from storage_core.errors import (
    CheckpointError,
    InconsistentClusterIdError,
    InconsistentDirectoriesError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    QUORUM_STATE_FILE,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
)
from storage_core.local_files import is_there
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code, Severity
from storage_core.maintenance.verification.observed_root import (
    ObservedRoot,
    PlacedFinding,
    Start,
    place,
)
from storage_core.store.local import LocalStore
from storage_core.wording import count_text

T = TypeVar("T")

# With less, the checkpoints, indexes and snapshots of a start may not fit.
_LITTLE_ROOM_BYTES: Final = 1 << 20
# An index of this size has room for entries to come; few of its blocks hold entries.
_PREALLOCATED_BYTES: Final = 1 << 20
_KEPT_INDEX_BYTES: Final = 8192
_STAT_BLOCK_BYTES: Final = 512
_OWN_LOGS: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.FUTURE})


def check_together(
    roots: Sequence[ObservedRoot],
    *,
    release: str = NEWEST_RELEASE,
) -> tuple[list[ObservedRoot], list[PlacedFinding]]:
    """Report contradictions between log directories, and what the cluster's metadata decides.

    Args:
        release: The release of Kafka that is to start, one of ``FEATURE_LEVELS``.

    Returns:
        The directories, with the fates of their sub-directories, and the findings.
    """
    placed = [*_check_owner(roots), *_check_room(roots)]
    judged: dict[str, ObservedRoot] = {}
    brokers = [_Broker(roots_of_broker, release) for roots_of_broker in _brokers(roots)]
    for broker in brokers:
        broker.judge()
        placed += broker.placed
    copies = (broker.metadata for broker in brokers if broker.metadata is not None)
    fixes = _properties_fixes(roots, next(copies, None))
    for broker in brokers:
        for root in broker.roots:
            judged[root.location] = replace(
                root,
                has_metadata=broker.metadata is not None,
                lacks_metadata=broker.lacks_metadata,
                absent_directories=broker.absent_directories,
                tiered_topics=broker.tiered_topics,
                fates=_in_root(root, broker.fates),
                homes=_in_root(root, broker.homes),
                properties_fix=fixes.get(root.location, ""),
            )
    return [judged[root.location] for root in roots], placed


def _in_root(root: ObservedRoot, by_path: Mapping[str, T]) -> dict[str, T]:
    """Return what is of the sub-directories of one log directory."""
    home = root.location.rstrip("/")
    return {path: value for path, value in by_path.items() if path.rpartition("/")[0] == home}


@dataclass(slots=True)
class _Broker:
    """The log directories of one broker, while they are judged."""

    roots: Sequence[ObservedRoot]
    release: str
    placed: list[PlacedFinding] = field(default_factory=list)
    fates: dict[str, Start] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    metadata: ClusterMetadata | None = None
    lacks_metadata: bool = False
    absent_directories: int = 0
    differing_copies: str = ""

    @property
    def tiered_topics(self) -> frozenset[str]:
        """The topics with segments in remote storage."""
        configs = {} if self.metadata is None else self.metadata.topic_configs
        return frozenset(
            topic
            for topic, settings in configs.items()
            if settings.get("remote.storage.enable", "").strip().lower() == "true"
        )

    @property
    def _by_id(self) -> dict[str, ObservedRoot]:
        return {root.directory_id: root for root in self.roots if root.directory_id is not None}

    def judge(self) -> None:
        entries = [entry for root in self.roots for entry in root.entries]
        owner = {entry.path: (root, entry) for root in self.roots for entry in root.entries}
        for entry in entries:
            if entry.is_link and entry.topic_partition is not None:
                self.fates[entry.path] = Start.UNKNOWN
        self.metadata = metadata = self._read_metadata()
        node_id = next((r.meta_properties.node_id for r in self.roots if r.meta_properties), None)
        # Another finding reports a broken one, or one behind a link.
        self.lacks_metadata = not any(
            entry.kind is DirectoryKind.METADATA for entry in entries
        ) and any(entry.kind in _OWN_LOGS and not _is_empty(entry.path) for entry in entries)
        if metadata is not None and node_id is not None:
            node_id = self._check_node(metadata, node_id)
            self._check_features(metadata)
            self._check_configs(metadata, node_id)
            self._judge_logs(metadata, node_id)
        else:
            self._find_beside([*owner.values()], Severity.ERROR)
        for duplicate in find_duplicate_partitions(
            entry for entry in entries if self.fates.get(entry.path) is not Start.STRAYED
        ):
            root, entry = owner[duplicate.paths[-1]]
            message = str(duplicate)
            if entry.kind is DirectoryKind.METADATA and self.differing_copies:
                message = f"{message}; {self.differing_copies}"
            self._add(Code.PARTITION_DUPLICATE, message, root, entry)
        if metadata is None:
            for inconsistent in find_inconsistent_topic_ids(entries):
                message = str(inconsistent)
                self._add(Code.TOPIC_ID_INCONSISTENT, message, *owner[inconsistent.path])

    def _add(
        self,
        code: Code,
        message: str,
        root: ObservedRoot,
        entry: SubDirectory | None,
        severity: Severity | None = None,
    ) -> None:
        self.placed.append(place(root.location, code, message, entry, severity))

    def _read_metadata(self) -> ClusterMetadata | None:
        """Return a node's copy of the metadata as its start leaves it. Of two copies that differ
        none counts: a start does not come that far."""
        copies: dict[Path, ClusterMetadata] = {}
        for root in self.roots:
            for entry in root.entries:
                is_here = entry.kind is DirectoryKind.METADATA and not entry.is_link
                path = local_path(entry.path) if is_here else None
                if root.context.role.facts.is_owned_by_broker and path is not None:
                    self._check_quorum_state(root, entry, path)
                    self._check_bootstrap(root)
                    try:
                        copies[path] = read_cluster_metadata(
                            path, is_recovered=True, may_be_new=True
                        )
                    except PylogError as error:
                        self._add(Code.CLUSTER_METADATA_BROKEN, str(error), root, entry)
                    else:
                        self._check_bootstrap_end(root, entry, copies[path])
                        self._check_cut(root, entry, path, copies[path])
        if len(copies) > 1:
            try:
                read_broker_metadata(list(copies))
            except PylogError as error:
                self.differing_copies = str(error)
                return None
        return next(iter(copies.values()), None)

    def _check_cut(
        self, root: ObservedRoot, entry: SubDirectory, path: Path, rest: ClusterMetadata
    ) -> None:
        """Report records of the metadata that a start cuts or lacks."""
        problem = "a part that a snapshot covers is damaged"
        try:
            read_cluster_metadata(path)
        except PylogError as error:
            problem = str(error)
        else:
            if rest.cut is None or not read_cut_records(path, rest).records:
                return
        message = f"{problem}; a start goes on by what stood there below offset {rest.end_offset}"
        if rest.cut is not None:
            records = read_cut_records(path, rest)
            message += f", and cuts {count_text(records.records, 'record')} that can be read"
            message += f": {records.describe()}" if records.records else ""
        self._add(Code.CLUSTER_METADATA_CUT, message, root, entry)

    def _check_bootstrap_end(
        self, root: ObservedRoot, entry: SubDirectory, metadata: ClusterMetadata
    ) -> None:
        """Report a snapshot with which the quorum began that lost its end."""
        if metadata.bootstrap_cut_at is None:
            return
        severity = Severity.HARMLESS if metadata.end_offset > 0 else None
        message = (
            f"{BOOTSTRAP_SNAPSHOT}: no whole batch from byte {metadata.bootstrap_cut_at} on, and "
            "no footer"
        )
        self._add(Code.BOOTSTRAP_SNAPSHOT_CUT, message, root, entry, severity)

    def _check_quorum_state(self, root: ObservedRoot, entry: SubDirectory, path: Path) -> None:
        store = LocalStore(path)
        try:
            if store.has_file(QUORUM_STATE_FILE):
                data = store.read_file(QUORUM_STATE_FILE, limit_bytes=MAX_QUORUM_STATE_BYTES)
                parse_quorum_state(data, file=QUORUM_STATE_FILE)
        except (CheckpointError, StorageError) as error:
            self._add(Code.QUORUM_STATE_BROKEN, str(error), root, entry)

    def _check_bootstrap(self, root: ObservedRoot) -> None:
        """Check the cluster's bootstrap file; a controller reads it at each start."""
        path = Path(root.location, BOOTSTRAP_SNAPSHOT_FILE)
        if not is_there(path, may_be_link=True):
            return
        message = f"expected the level of {METADATA_VERSION}, it is not in the file"
        try:
            for batch in MetadataFile(path, may_be_torn=False).batches():
                for offset, value in batch.values:
                    record = decode_metadata_record(value, file=str(path), offset=offset)
                    if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
                        return
        except PylogError as error:
            message = str(error)
        findings = FindingCollector()
        findings.add(Code.CLUSTER_METADATA_BROKEN, message, file=path.name)
        self.placed.append(PlacedFinding(root=root.location, finding=findings.findings()[0]))

    def _metadata_place(self) -> tuple[ObservedRoot, SubDirectory]:
        """Return the log directory with the metadata, and their sub-directory."""
        return next(
            (root, entry)
            for root in self.roots
            for entry in root.entries
            if entry.kind is DirectoryKind.METADATA and not entry.is_link
        )

    def _check_configs(self, metadata: ClusterMetadata, node_id: int) -> None:
        """Find configs that a broker refuses or ignores. A node that is only a controller
        applies none of them."""
        broker = metadata.brokers.get(node_id)
        if broker is None:
            return
        root, entry = self._metadata_place()
        for topic in sorted(metadata.topics.values(), key=lambda topic: topic.name):
            settings = metadata.topic_configs.get(topic.name, {})
            for error in refused_topic_settings(settings, self.release):
                message = f"topic {topic.name}: {error}"
                self._add(Code.TOPIC_CONFIG_REFUSED, message, root, entry)
        counted = merge_dynamic_configs(
            {},
            metadata.broker_configs.get("", {}),
            metadata.broker_configs.get(str(node_id), {}),
            directories=spell_directories(root.location for root in self.roots),
            release=self.release,
        )
        for error in counted.ignored:
            message = f"{error}: Kafka ignores this value"
            self._add(Code.BROKER_CONFIG_IGNORED, message, root, entry)
        if counted.refusal is not None:
            which = "every dynamic config" if counted.is_all_dropped else "every dynamic default"
            is_named = len(self.roots) >= len(broker.log_directories)
            is_doubtful = counted.refusal.key == CORDONED_KEY and not is_named
            doubt = ", if log.dirs has only what was named" if is_doubtful else ""
            message = f"{counted.refusal}: Kafka drops {which} of this broker with it{doubt}"
            severity = Severity.WARN if is_doubtful else Severity.ERROR
            self._add(Code.BROKER_CONFIG_IGNORED, message, root, entry, severity)

    def _check_features(self, metadata: ClusterMetadata) -> None:
        root, entry = self._metadata_place()
        levels = metadata.feature_levels
        if METADATA_VERSION not in levels and (metadata.brokers or metadata.topics):
            message = f"expected a level of {METADATA_VERSION}, there is none: it is a preview's"
            self._add(Code.FEATURE_LEVEL_UNKNOWN, message, root, entry)
        for name, level in sorted(levels.items()):
            supported = FEATURE_LEVELS[self.release].get(name)
            kafka = f"Kafka {self.release}"
            if supported is None:
                message = f"{name} is at level {level}, and {kafka} knows no such feature"
            elif level not in supported:
                message = (
                    f"{name} is at level {level}, {kafka} knows {supported[0]} to {supported[-1]}"
                )
            else:
                continue
            self._add(Code.FEATURE_LEVEL_UNKNOWN, message, root, entry)

    def _check_node(self, metadata: ClusterMetadata, node_id: int) -> int:
        """Report a node id that is not the registered one; return that.

        A node registers the ids of its log directories: another node's here mean that the number
        was edited, and not that all of its logs belong elsewhere.
        """
        nodes = {
            directory_id: node
            for node, broker in metadata.brokers.items()
            for directory_id in broker.log_directories
        }
        registered = {nodes.get(root.directory_id or "", node_id) for root in self.roots}
        if len(registered) != 1 or registered == {node_id}:
            return node_id
        (node,) = registered
        for root in self.roots:
            message = (
                f"node.id is {node_id}; the cluster's metadata have this log directory "
                f"({root.directory_id}) as one of node {node}"
            )
            self._add(Code.NODE_ID_WRONG, message, root, None)
        return node

    def _judge_logs(self, metadata: ClusterMetadata, node_id: int) -> None:
        ids = {topic.name: topic.topic_id for topic in metadata.topics.values()}
        own: dict[TopicPartition, list[tuple[ObservedRoot, SubDirectory]]] = {}
        for root in self.roots:
            for entry in root.entries:
                name = entry.topic_partition
                if entry.kind not in _OWN_LOGS or name is None or entry.problem:
                    continue
                if why := _stray(metadata, node_id, ids, entry):
                    code, message = why
                    self.fates[entry.path] = Start.STRAYED
                    severity = Severity.WARN if _is_empty(entry.path) else None
                    self._add(code, f"{name}: {message}", root, entry, severity)
                else:
                    own.setdefault(name, []).append((root, entry))
        by_id = self._by_id
        for name, logs in own.items():
            record = _record(metadata, ids.get(name.topic), name.partition)
            assigned = None if record is None else _directory(record, node_id)
            self._judge_moves(name, logs, assigned)
            own_home = by_id.get(assigned or "")
            here = [(root, entry) for root, entry in logs if root is own_home]
            self._find_beside(here, Severity.FATAL)
            self._find_beside([log for log in logs if log not in here], Severity.WARN)
            home = None if assigned is None else by_id.get(assigned)
            if home is not None and all(root is not home for root, _ in logs):
                self.homes |= {entry.path: f"{home.location}/{name}" for _, entry in logs}
        self._find_absent(metadata, node_id)

    def _judge_moves(
        self,
        name: TopicPartition,
        logs: Sequence[tuple[ObservedRoot, SubDirectory]],
        assigned: str | None,
    ) -> None:
        """Judge the copies of a partition from a move between log directories."""
        futures = [(r, e) for r, e in logs if e.kind is DirectoryKind.FUTURE and not e.is_link]
        current = [(r, e) for r, e in logs if e.kind is DirectoryKind.PARTITION]
        for root, entry in futures:
            if assigned is not None and root.directory_id == assigned:
                if current and current[0][0] is not root:  # else the rename fails
                    message = f"{name} is assigned to this log directory: {entry.name} replaces it"
                    self._add(Code.FUTURE_PROMOTED, message, *current[0])
                    if not current[0][1].is_link:
                        self.fates[current[0][1].path] = Start.DELETED
            elif not current:
                self.fates[entry.path] = Start.EMPTIED
                severity = Severity.WARN if _is_empty(entry.path) else None
                message = f"{name} itself is in no log directory that was named"
                self._add(Code.FUTURE_ALONE, message, root, entry, severity)

    def _find_beside(
        self, logs: Sequence[tuple[ObservedRoot, SubDirectory]], severity: Severity
    ) -> None:
        """Report copies of a move beside the partition itself."""
        if len(logs) < 2:  # noqa: PLR2004  # a copy and the partition
            return
        homes = {
            (root.location, entry.topic_partition)
            for root, entry in logs
            if entry.kind is DirectoryKind.PARTITION
        }
        for root, entry in logs:
            is_beside = (root.location, entry.topic_partition) in homes
            if entry.kind is DirectoryKind.FUTURE and is_beside:
                message = f"{entry.topic_partition} is in the same log directory"
                self._add(Code.FUTURE_BESIDE_LOG, message, root, entry, severity)

    def _find_absent(self, metadata: ClusterMetadata, node_id: int) -> None:
        """Find partitions in the broker's metadata but in no directory."""
        present = {
            entry.topic_partition
            for root in self.roots
            for entry in root.entries
            if entry.kind in _OWN_LOGS
        }
        by_id = self._by_id
        broker = metadata.brokers.get(node_id)
        registered = () if broker is None else broker.log_directories
        # A directory with a lost id gets a new one, and still belongs to the broker.
        owned = [root for root in self.roots if root.meta_properties is not None]
        is_all = bool(registered) and len(owned) >= len(registered)
        logs = Counter(
            root.location
            for root in self.roots
            for entry in root.entries
            if entry.kind in _OWN_LOGS and self.fates.get(entry.path) is not Start.STRAYED
        )
        absent = sorted(set(registered) - by_id.keys())
        unnamed = len(registered) - len(self.roots) if absent else 0
        elsewhere: list[str] = []
        for topic in metadata.topics.values():
            for number, record in sorted(topic.partitions.items()):
                name = TopicPartition(topic.name, number)
                if node_id not in record.replicas or name in present:
                    continue
                assigned = by_id.get(_directory(record, node_id) or "")
                # If it is assigned to no directory, a broker tries them one after the other.
                homes = [assigned] if assigned is not None else owned
                for home in sorted(homes, key=lambda root: logs[root.location]):
                    missing = SubDirectory(
                        path=f"{home.location}/{name}",
                        kind=DirectoryKind.PARTITION,
                        topic_partition=name,
                    )
                    message = f"the cluster's metadata gives {name} to this broker"
                    if is_there(Path(missing.path), may_be_link=True):
                        message += ", and what has its name is no directory"
                        self._add(Code.PARTITION_ABSENT, message, home, missing, Severity.FATAL)
                        continue
                    if assigned is not None or is_all:
                        self.fates[missing.path] = Start.CREATED
                        # The others are in sync: this replica fetches their records.
                        is_copied = bool(record.isr) and node_id not in record.isr
                        severity = Severity.WARN if is_copied else None
                        self._add(Code.PARTITION_ABSENT, message, home, missing, severity)
                    elif unnamed > 0:
                        self.fates[missing.path] = Start.CREATED
                        elsewhere.append(str(name))
                    logs[home.location] += 1
                    break
        if elsewhere:
            self.absent_directories = unnamed
            root, entry = self._metadata_place()
            message = (
                f"the broker registered {len(registered)} log directories, {', '.join(absent)} was "
                f"not named: without it a start makes {count_text(len(elsewhere), 'partition')} "
                f"anew, {elsewhere[0]} the first"
            )
            self._add(Code.LOG_DIRECTORY_ABSENT, message, root, entry)


def _stray(
    metadata: ClusterMetadata, node_id: int, ids: Mapping[str, str], entry: SubDirectory
) -> tuple[Code, str] | None:
    """Return why a broker sets a log aside, None without a reason."""
    name = entry.topic_partition
    expected = None if name is None else ids.get(name.topic)
    code = Code.PARTITION_STRAYED
    # Links are not followed here: at best the id is right.
    topic_id = expected if entry.is_link else entry.topic_id
    record = None if name is None else _record(metadata, topic_id, name.partition)
    if entry.is_link and expected is None:
        message = "the cluster has no topic of that name"
    elif topic_id is None:
        hint = f"; the topic's id is {expected}" if expected is not None else ""
        message = f"it has no partition.metadata{hint}"
    elif topic_id not in metadata.topics and expected is not None:
        code = Code.TOPIC_ID_INCONSISTENT
        message = f"the topic's id is {expected}, that of the directory {topic_id}"
    elif topic_id not in metadata.topics:
        message = f"the cluster has no topic with the id {topic_id}"
    elif record is None:
        message = "its topic has no such partition"
    elif node_id not in record.replicas:
        replicas = ", ".join(map(str, record.replicas))
        message = f"its replicas are on {replicas}, this is node {node_id}"
    else:
        return None
    return code, message


def _record(metadata: ClusterMetadata, topic_id: str | None, number: int) -> PartitionRecord | None:
    topic = None if topic_id is None else metadata.topics.get(topic_id)
    return None if topic is None else topic.partitions.get(number)


def _directory(record: PartitionRecord, node_id: int) -> str | None:
    """Return the id of a replica's assigned log directory, None for none."""
    if node_id not in record.replicas or len(record.directories) != len(record.replicas):
        return None
    return record.directories[record.replicas.index(node_id)]


def _is_empty(location: str) -> bool:
    """Whether a log has no byte of records."""
    try:
        files = LocalStore(Path(location)).list_files()
    except PylogError:
        return False  # the partition reports it
    return not any(file.size_bytes for file in files if kind_of(file.name) == LOG_SUFFIX)


def _check_owner(roots: Sequence[ObservedRoot]) -> Iterable[PlacedFinding]:
    properties = {root.location: root.meta_properties for root in roots if root.meta_properties}
    try:
        validate_one_broker(properties)
    except (InconsistentClusterIdError, InconsistentDirectoriesError) as error:
        is_copy = any(root.context.is_copy for root in roots)
        severity = Severity.WARN if is_copy else None
        yield place(error.path, Code.DIRECTORIES_INCONSISTENT, str(error), None, severity)


def _check_room(roots: Sequence[ObservedRoot]) -> Iterable[PlacedFinding]:
    """Yield which disks have no room for what a broker's start writes."""
    disks: dict[int, os.statvfs_result] = {}
    freed: Counter[int] = Counter()
    homes: list[tuple[ObservedRoot, int]] = []
    for root in roots:
        path = local_path(root.location)
        if path is not None and root.context.role.facts.is_owned_by_broker:
            with suppress(OSError):  # a directory that cannot be looked at is found elsewhere
                device = path.stat().st_dev
                disks[device] = os.statvfs(path)
                freed[device] += _preallocated_bytes(path / CLUSTER_METADATA_DIRECTORY)
                homes.append((root, device))
    for root, device in homes:
        disk = disks[device]
        room = disk.f_bavail * disk.f_frsize + freed[device]
        severity = Severity.WARN if root.context.is_clean else Severity.ERROR
        if disk.f_files and not disk.f_favail:
            message, severity = "no inode of the disk is free: no file can be made", Severity.FATAL
        elif not room:
            message, severity = "0 bytes of the disk are free", Severity.FATAL
        elif room < _LITTLE_ROOM_BYTES:
            message = f"{disk.f_bavail * disk.f_frsize:,} bytes of the disk are free"
        else:
            continue
        findings = FindingCollector()
        findings.add(Code.DISK_FULL, message, severity=severity)
        yield PlacedFinding(root=root.location, finding=findings.findings()[0])


def _preallocated_bytes(directory: Path) -> int:
    """Return the bytes that a start frees in the metadata log's indexes."""
    freed = 0
    for path in (
        *directory.glob(f"*{OFFSET_INDEX_SUFFIX}"),
        *directory.glob(f"*{TIME_INDEX_SUFFIX}"),
    ):
        facts = path.lstat()
        if facts.st_size >= _PREALLOCATED_BYTES:
            freed += max(0, facts.st_blocks * _STAT_BLOCK_BYTES - _KEPT_INDEX_BYTES)
    return freed


def _properties_fixes(
    roots: Sequence[ObservedRoot], metadata: ClusterMetadata | None
) -> dict[str, str]:
    """Return commands to rewrite lost meta.properties, by path. The broker's other log directories
    tell the content.

    A broker's registration has the ids of all its log directories. One is free if none of those
    that were given has it. A lost directory has the free one that its partitions are assigned to.
    """
    whole = [root for root in roots if _owner(root) is not None]
    owners = {owner for root in roots if (owner := _owner(root)) is not None}
    if len(owners) != 1:
        return {}
    [(cluster_id, node_id)] = owners
    lost = [
        root
        for root in roots
        if root.context.role.facts.is_owned_by_broker
        and _owner(root) is None
        and _may_be_replaced(Path(root.location, META_PROPERTIES_FILE))
    ]
    free: set[str] = set()
    if metadata is not None and node_id in metadata.brokers:
        registered = {*metadata.brokers[node_id].log_directories}
        ids = {root.directory_id for root in whole if root.directory_id is not None}
        # Else the metadata are older than a directory, or another cluster's.
        free = registered - ids if ids <= registered else set()
    assigned = {root.location: _assigned(root, metadata, node_id) & free for root in lost}
    fixes = {}
    for root in lost:
        theirs = {id_ for path, ids in assigned.items() if path != root.location for id_ in ids}
        likely = sorted(assigned[root.location] or free - theirs)
        lines = ["version=1", f"node.id={node_id}", f"cluster.id={cluster_id}"]
        note = ""
        if likely:
            lines.append(f"directory.id={likely[0] if len(likely) == 1 else 'ID'}")
        if len(likely) > 1:
            note = (
                f"; ID is the one of {', '.join(likely)} that no other log directory of the broker "
                "has (give all of log.dirs)"
            )
        elif metadata is None:
            note = (
                "; it lacks directory.id: give the log directory with the cluster's metadata as "
                "well, and it is named"
            )
        file = quote(f"{root.location.rstrip('/')}/{META_PROPERTIES_FILE}")
        path = Path(root.location, META_PROPERTIES_FILE)
        keep = f"cp {file} {file}.broken && " if path.exists() and path.stat().st_size else ""
        fixes[root.location] = (
            f"write it again, as the broker's user: {keep}printf '%s\\n' {' '.join(lines)} > {file}"
            f"{note}"
        )
    return fixes


def _owner(root: ObservedRoot) -> tuple[str, int] | None:
    """Return a directory's cluster id and KRaft node id, None if unknown."""
    own = root.meta_properties
    if own is None or own.version != 1 or own.cluster_id is None or own.node_id is None:
        return None
    # Other characters would need quotes in a shell; Kafka's ids have none.
    is_plain = re.fullmatch(r"[\w-]+", own.cluster_id, re.ASCII) is not None
    return (own.cluster_id, own.node_id) if is_plain else None


def _may_be_replaced(path: Path) -> bool:
    """Whether a command may write a file: it is absent or readable. It is not so for a link, a
    folder or an unreadable file."""
    if not is_there(path, may_be_link=True):
        return True
    return path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)


def _assigned(root: ObservedRoot, metadata: ClusterMetadata | None, node_id: int) -> set[str]:
    """Return the assigned log directory ids of a directory's partitions."""
    if metadata is None:
        return set()
    ids = set()
    for entry in root.entries:
        name = entry.topic_partition
        if entry.kind is DirectoryKind.PARTITION and name is not None:
            record = _record(metadata, entry.topic_id, name.partition)
            assigned = None if record is None else _directory(record, node_id)
            ids |= set() if assigned is None else {assigned}
    return ids


def _brokers(roots: Sequence[ObservedRoot]) -> Iterable[list[ObservedRoot]]:
    """Return the roots by the broker they belong to.

    A root without an id belongs to the only broker of the others; if they have several, to one of
    its own.
    """
    brokers: dict[object, list[ObservedRoot]] = {}
    for root in roots:
        properties = root.meta_properties
        key: object = root.location
        if properties is not None:
            key = (properties.cluster_id, properties.node_id)
        brokers.setdefault(key, []).append(root)
    owners = [key for key in brokers if isinstance(key, tuple)]
    if len(owners) == 1:
        return [list(roots)]
    return brokers.values()
