"""Give directories that a broker set aside as stray their names back.

A broker renames a log to ``-stray`` when it starts with metadata that does not assign the partition
to it: metadata that is older, rebuilt, or of another cluster. Once the metadata is right, nothing
renames it back.
"""

import enum
import errno
import os
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.log_directories import (
    DirectoryKind,
    classify_directory,
    read_topic_id,
)
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.errors import PylogError
from storage_core.filenames import TopicPartition
from storage_core.local_files import facts_in, folder_names, open_folder
from storage_core.store.local import LocalStore, storage_errors
from storage_core.store.log_identity import LogIdentity, read_identity


class StrayReason(enum.StrEnum):
    """Why a stray directory keeps its name."""

    NO_TOPIC_ID = "NO_TOPIC_ID"
    TOPIC_UNKNOWN = "TOPIC_UNKNOWN"
    NOT_ASSIGNED = "NOT_ASSIGNED"
    NAME_TAKEN = "NAME_TAKEN"
    SEVERAL_STRAYS = "SEVERAL_STRAYS"
    STRAY_IS_LINK = "STRAY_IS_LINK"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedDirectory:
    """A log directory of a broker."""

    location: str
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayDirectory:
    """A stray directory, and what becomes of it."""

    root: str
    name: str
    topic_id: str | None  # the id in its ``partition.metadata``, None where nothing says it
    partition: TopicPartition | None  # whose it is by that id, else by its name, which may be cut
    # Why it keeps its name; None where it gets that of its partition.
    reason: StrayReason | None = None
    detail: str = ""  # the same in words; empty without a reason


def plan_adoptions(
    roots: Sequence[OwnedDirectory], metadata: ClusterMetadata
) -> list[StrayDirectory]:
    """Return all stray directories, with what becomes of each.

    Args:
        roots: All log directories of the brokers: a name may be taken in any of a broker's.
    """
    strays: list[tuple[OwnedDirectory, StrayDirectory]] = []
    names: dict[int, set[str]] = {}
    for root in roots:
        with storage_errors(Path(root.location)):
            folders = folder_names(Path(root.location))
        names.setdefault(root.node_id, set()).update(folders)
        for name in folders:
            kind, partition = classify_directory(name)
            if kind is DirectoryKind.STRAY:
                strays.append((root, _look(root, name, partition, metadata)))
    claims = Counter((root.node_id, stray.partition) for root, stray in strays if not stray.reason)
    return [
        _settle(stray, names[root.node_id], claims[root.node_id, stray.partition])
        for root, stray in strays
    ]


def adopt(strays: Sequence[StrayDirectory]) -> None:
    """Rename stray directories of one log directory, under its lock; all durable. What was
    renamed before a kill stays so, and is nothing to plan any more."""
    root = Path(strays[0].root)
    with LogDirectoryLock(root) as lock:
        for stray in strays:
            lock.validate_held()
            store = LocalStore(root / stray.name)
            read_identity(store).require(LogIdentity(topic_id=stray.topic_id), store.location)
            with storage_errors(root / stray.name), open_folder(root, may_be_link=True) as folder:
                name = str(stray.partition)
                if facts_in(folder, name) is not None:
                    raise FileExistsError(errno.EEXIST, "its partition has a directory by now")
                os.rename(stray.name, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)


def _look(
    root: OwnedDirectory, name: str, partition: TopicPartition | None, metadata: ClusterMetadata
) -> StrayDirectory:
    """Return a stray directory as the metadata knows it."""

    def keep(reason: StrayReason, detail: str, topic_id: str | None = None) -> StrayDirectory:
        return StrayDirectory(
            root=root.location,
            name=name,
            topic_id=topic_id,
            partition=partition,
            reason=reason,
            detail=detail,
        )

    location = Path(root.location, name)
    if location.is_symlink():
        return keep(StrayReason.STRAY_IS_LINK, "it is a link")
    try:
        topic_id = read_topic_id(str(location))
    except PylogError as error:
        return keep(StrayReason.NO_TOPIC_ID, str(error))
    if topic_id is None or partition is None:
        return keep(StrayReason.NO_TOPIC_ID, "it has no partition.metadata")
    topic = metadata.topics.get(topic_id)
    if topic is None:
        reason = f"the cluster has no topic with the id {topic_id}"
        return keep(StrayReason.TOPIC_UNKNOWN, reason, topic_id)
    record = topic.partitions.get(partition.partition)
    if record is None or root.node_id not in record.replicas:
        replicas = ", ".join(map(str, record.replicas)) if record else "no node"
        reason = f"its replicas are on {replicas}, this is node {root.node_id}"
        return keep(StrayReason.NOT_ASSIGNED, reason, topic_id)
    # A long topic is cut in the name.
    own = TopicPartition(topic.name, partition.partition)
    return StrayDirectory(root=root.location, name=name, topic_id=topic_id, partition=own)


def _settle(stray: StrayDirectory, names: Set[str], claims: int) -> StrayDirectory:
    """Return a stray directory, with a reason if its name is taken."""
    if stray.reason is not None:
        return stray
    if str(stray.partition) in names:
        detail = f"the broker has a directory {stray.partition}: `pylog audit` compares them"
        return replace(stray, reason=StrayReason.NAME_TAKEN, detail=detail)
    if claims > 1:
        detail = f"{claims} stray directories are of {stray.partition}: move all but one away"
        return replace(stray, reason=StrayReason.SEVERAL_STRAYS, detail=detail)
    return stray
