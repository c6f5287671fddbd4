"""Give a voter without a copy of the metadata somebody else's.

The copy becomes the voter's own under the voter's node id and directory id, so that the set of
voters stays as it is. Nobody knows any more for whom the voter has voted, or that it led. So its
``quorum-state`` begins far above every epoch that a copy names: in none of these it can vote again,
and nobody takes it for the leader that it was (a node ends that hears so of itself). Nothing is
replaced: a voter that has a log keeps it. What ``kafka-storage format`` writes is no log yet.
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
from storage_core.local_files import facts_in, folder_names, is_there, open_file, open_folder
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
# End and epoch of the only file that ``kafka-storage format`` makes in a metadata log.
_BOOTSTRAP_SNAPSHOT: Final = (0, 0)
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
        ConfigError: There is no copy, one that cannot be read, or copies of several clusters; a
            node is no voter; a directory is not there, another node's, or a partition's.
        GuardRefusedError: A directory has a metadata log, or a copy's node runs.
        StorageError: A directory cannot be read.
    """
    for copy in (copy for each in clusters for copy in each.copies):
        if copy.error:  # it may be the longest
            reason = f"cannot be read: {copy.error}; leave it out to do without it"
            raise ConfigError("ROOT", copy.root, reason)
        if copy.cluster_id is None:
            reason = f"expected the id of its cluster in {META_PROPERTIES_FILE}"
            raise ConfigError("ROOT", copy.root, reason)
        if query_lock(Path(copy.root)).is_held:
            raise GuardRefusedError(
                "LOG_DIRECTORY_IN_USE", f"{copy.root}: its node runs; stop it first"
            )
    cluster = one_cluster(clusters)
    source = cluster.copies[0]
    epoch = cluster.largest_epoch + _EPOCH_MARGIN
    if epoch >= INT_MAX:  # an election needs a later one
        reason = f"expected epochs below {INT_MAX - _EPOCH_MARGIN}, found {cluster.largest_epoch}"
        raise ConfigError("ROOT", source.root, reason)
    if len({os.path.realpath(directory) for directory in targets.values()}) < len(targets):
        there = ", ".join(map(str, targets.values()))
        raise ConfigError("--into", there, "expected another directory for each voter")
    folder = LocalStore(Path(source.root, CLUSTER_METADATA_DIRECTORY))
    files = tuple(file for file in folder.list_files() if _is_copied(file.name))
    is_dynamic = cluster.voters_source is VotersSource.RECORD
    return [
        Promotion(
            voter=(voter := _voter_of(cluster, node)),
            directory=directory,
            source=source,
            files=files,
            properties=_missing_properties(directory, voter, source.cluster_id),
            epoch=epoch,
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
        ConfigError: By now the directory is another node's.
        GuardRefusedError: The directory has a metadata log, or a node runs there.
        StorageError: The disk failed; the directory has no metadata log.
    """
    directory = promotion.directory
    with LogDirectoryLock(directory) as lock:
        properties = _missing_properties(directory, promotion.voter, promotion.source.cluster_id)
        if _has_copy(directory, promotion.files):
            return
        _remove_unfinished(directory)
        home = LocalStore(directory, may_be_link=True)
        if properties is not None:
            home.write_file(META_PROPERTIES_FILE, encode_meta_properties(properties))
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
            if facts_in(above, CLUSTER_METADATA_DIRECTORY) is not None:
                os.rename(
                    CLUSTER_METADATA_DIRECTORY,
                    _unfinished_name(),
                    src_dir_fd=above,
                    dst_dir_fd=above,
                )
            os.rename(
                unfinished.name, CLUSTER_METADATA_DIRECTORY, src_dir_fd=above, dst_dir_fd=above
            )
            os.fsync(above)
        _remove_unfinished(directory)


def _own(home: LocalStore, file: Path) -> None:
    """Give a copied file the owner of the voter's directory."""
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


def _missing_properties(
    directory: Path, voter: Voter, cluster_id: str | None
) -> MetaProperties | None:
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
    if any(kind_of(entry.name) == LOG_SUFFIX for entry in store.scan()):
        raise ConfigError("--into", directory, "expected a log directory, found a log's files")
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

    What ``kafka-storage format`` writes is as good as nothing.

    Raises:
        GuardRefusedError: It has another metadata log.
        StorageError: It cannot be read.
    """
    log = directory / CLUSTER_METADATA_DIRECTORY
    with storage_errors(log):
        if not is_there(log, may_be_link=True):
            return False
    store = LocalStore(log)
    if [parse_cluster_snapshot(entry.name) for entry in store.scan()] == [_BOOTSTRAP_SNAPSHOT]:
        return False
    there = {file.name: file.size_bytes for file in store.list_files()}
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
                with storage_errors(directory / name):
                    shutil.rmtree(directory / name)
