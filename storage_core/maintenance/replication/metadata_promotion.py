"""Give a voter without a copy of the metadata somebody else's.

The copy becomes the voter's own under the voter's node id and directory id, so that the set of
voters stays as it is. Nobody knows any more for whom the voter has voted, or that it led. So its
``quorum-state`` begins far above every epoch that a copy names: in none of these it can vote again,
and nobody takes it for the leader that it was (a node ends that hears so of itself). Nothing is
replaced: a voter that has a log keeps it.
"""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, Voter
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MetaProperties,
    encode_meta_properties,
    encode_quorum_state,
    parse_meta_properties,
)
from storage_core.checkpoint.checkpoint_files import INT_MAX
from storage_core.checkpoint.lock import LogDirectoryLock, query_lock
from storage_core.commit import CommitPlan, RestoreFile, SyncDirectory, WriteFile, commit
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    kind_of,
    parse_cluster_snapshot,
)
from storage_core.local_files import folder_names, is_there, open_file, open_folder
from storage_core.maintenance.replication.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    VotersSource,
    one_cluster,
)
from storage_core.store.base import FileInfo
from storage_core.store.local import LocalStore, make_folder, storage_errors

# A folder of this name is what is left of a deleted partition: a node that starts passes it over.
_UNFINISHED_SUFFIX: Final = "-delete"
# Elections that no copy knows of happened in between, perhaps.
_EPOCH_MARGIN: Final = 100
_OTHER_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A voter that gets a copy.

    Attributes:
        voter: The voter.
        directory: Its log directory, which has no metadata log yet.
        source: The copy that it gets.
        files: The files of the copy, without indexes: a start makes these.
        properties: The identity that its ``meta.properties`` gets; None where it has the file.
        epoch: The epoch in which it begins.
        voters: Node ids of the voters; None where the log has them.
        is_done: Whether a former call gave it the copy, and no node has started on it since.
    """

    voter: Voter
    directory: Path
    source: MetadataCopy
    files: tuple[FileInfo, ...]
    properties: MetaProperties | None
    epoch: int
    voters: tuple[int, ...] | None
    is_done: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.size_bytes for file in self.files)


def plan_promotions(
    clusters: Sequence[ComparedCopies], targets: Mapping[int, Path]
) -> list[Promotion]:
    """Plan to give voters the longest readable copy.

    By the quorum's own rule no voter refuses its vote to that one.

    Args:
        clusters: The compared copies.
        targets: Log directories of voters, by node id.

    Raises:
        ConfigError: There is no copy, or copies of several clusters; a node is no voter; a
            directory is not there, or another node's.
        GuardRefusedError: A directory has a metadata log, or the copy's node runs.
        StorageError: A directory cannot be read.
    """
    cluster = one_cluster(clusters)
    source = cluster.copies[0]
    if cluster.cluster_id is None:
        raise ConfigError("ROOT", source.root, "nothing says the id of its cluster")
    lock = query_lock(Path(source.root))
    if lock.is_held:
        raise GuardRefusedError(
            "LOG_DIRECTORY_IN_USE", f"{source.root}: its node runs; stop it first"
        )
    folder = LocalStore(Path(source.root, CLUSTER_METADATA_DIRECTORY))
    files = tuple(file for file in folder.list_files() if _is_copied(file.name))
    is_dynamic = cluster.voters_source is VotersSource.RECORD
    return [
        Promotion(
            voter=(voter := _voter_of(cluster, node)),
            directory=directory,
            source=source,
            files=files,
            properties=_missing_properties(directory, voter, cluster.cluster_id),
            epoch=min(cluster.largest_epoch + _EPOCH_MARGIN, INT_MAX),
            voters=None if is_dynamic else tuple(each.node_id for each in cluster.voters),
            is_done=_has_copy(directory, files),
        )
        for node, directory in sorted(targets.items())
    ]


def promote(promotion: Promotion) -> None:
    """Write a voter's metadata log, whole or not at all.

    A second call after a kill begins anew; the log has its name once all of it is on the disk.
    What is done already is left alone.

    Raises:
        GuardRefusedError: The directory has a metadata log, or a node runs there.
        StorageError: The disk failed; the directory has no metadata log.
    """
    directory = promotion.directory
    with LogDirectoryLock(directory) as lock:
        if _has_copy(directory, promotion.files):
            return
        _remove_unfinished(directory)
        home = LocalStore(directory, may_be_link=True)
        if promotion.properties is not None:
            home.write_file(META_PROPERTIES_FILE, encode_meta_properties(promotion.properties))
            home.sync_directory()
        unfinished = directory / _unfinished_name()
        with storage_errors(unfinished):
            make_folder(unfinished)
            with open_folder(unfinished) as opened:
                home.hand_on_ownership(opened)
        source = Path(promotion.source.root, CLUSTER_METADATA_DIRECTORY)
        reason = "the voter has no copy"
        copies = [
            RestoreFile(
                path=str(source / file.name),
                name=file.name,
                size_bytes=file.size_bytes,
                is_copy=True,
                reason=reason,
            )
            for file in promotion.files
        ]
        store = LocalStore(unfinished)
        state = WriteFile(
            name=QUORUM_STATE_FILE,
            content=encode_quorum_state(epoch=promotion.epoch, voters=promotion.voters),
            reason="it may have voted, or led, in an earlier epoch",
        )
        plan = CommitPlan(
            location=store.location, operations=(*copies, state, SyncDirectory(reason=reason))
        )
        commit(plan, store)
        for file in promotion.files:
            _own(home, unfinished / file.name)
        lock.validate_held()
        with storage_errors(directory), open_folder(directory, may_be_link=True) as above:
            os.rename(
                unfinished.name, CLUSTER_METADATA_DIRECTORY, src_dir_fd=above, dst_dir_fd=above
            )
            os.fsync(above)


def _own(home: LocalStore, file: Path) -> None:
    """Give a copied file the owner of the voter's directory, whoever made the copy."""
    with storage_errors(file):
        descriptor = open_file(file)
        try:
            home.hand_on_ownership(descriptor, file.name)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_copied(name: str) -> bool:
    return (
        kind_of(name) == LOG_SUFFIX
        or parse_cluster_snapshot(name) is not None
        or name in _OTHER_FILES
    )


def _voter_of(cluster: ComparedCopies, node: int) -> Voter:
    for voter in cluster.voters:
        if voter.node_id == node:
            own = cluster.copy_of(voter)
            if own is not None:
                raise GuardRefusedError(
                    "TARGET_NOT_EMPTY", f"voter {node} has a copy of its own in {own.root}"
                )
            return voter
    voters = ", ".join(str(voter.node_id) for voter in cluster.voters) or "not known"
    raise ConfigError("--into", node, f"is no voter of this quorum; its voters: {voters}")


def _missing_properties(directory: Path, voter: Voter, cluster_id: str) -> MetaProperties | None:
    """Return the identity that a directory lacks, None for none.

    Without a directory id a node gives its directory one when it starts.
    """
    if not is_there(directory, may_be_link=True) or not directory.is_dir():
        raise ConfigError("--into", directory, "no such directory")
    wanted = MetaProperties(
        version=1,
        cluster_id=cluster_id,
        node_id=voter.node_id,
        directory_id=voter.directory_id,
    )
    store = LocalStore(directory, may_be_link=True)
    if not store.has(META_PROPERTIES_FILE):
        return wanted
    data = store.read_file(META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES)
    present = parse_meta_properties(data, file=str(directory / META_PROPERTIES_FILE))
    for name in ("cluster_id", "node_id", "directory_id"):
        want, value = getattr(wanted, name), getattr(present, name)
        if want is not None and value != want:
            raise ConfigError(
                "--into", directory, f"expected {name} {want} in {META_PROPERTIES_FILE}: {value}"
            )
    return None


def _has_copy(directory: Path, files: Sequence[FileInfo]) -> bool:
    """Return whether a directory has just the files of a promotion.

    Raises:
        GuardRefusedError: It has another metadata log.
        StorageError: It cannot be read.
    """
    log = directory / CLUSTER_METADATA_DIRECTORY
    with storage_errors(log):
        if not is_there(log, may_be_link=True):
            return False
    there = {file.name: file.size_bytes for file in LocalStore(log).list_files()}
    if there.pop(QUORUM_STATE_FILE, None) is not None and there == {
        file.name: file.size_bytes for file in files
    }:
        return True
    raise GuardRefusedError("TARGET_NOT_EMPTY", f"{log} is there: nothing is replaced")


def _unfinished_name() -> str:
    return f"{CLUSTER_METADATA_DIRECTORY}.{uuid.uuid4().hex}{_UNFINISHED_SUFFIX}"


def _remove_unfinished(directory: Path) -> None:
    """Remove what a killed promotion has left."""
    with storage_errors(directory):
        for name in folder_names(directory):
            is_ours = name.startswith(f"{CLUSTER_METADATA_DIRECTORY}.")
            if is_ours and name.endswith(_UNFINISHED_SUFFIX):
                shutil.rmtree(directory / name)
