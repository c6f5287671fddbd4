"""Compare the copies of the cluster's metadata that several nodes hold.

Every controller and every broker has a copy of ``__cluster_metadata-0``. The log says neither how
far it was committed nor that it is complete; several copies together say more.
"""

import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage_core.catalog.bootstrap_snapshot import BOOTSTRAP_SNAPSHOT
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    QuorumRecords,
    Voter,
    read_cluster_metadata,
    read_quorum,
)
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MAX_QUORUM_STATE_BYTES,
    MetaProperties,
    encode_meta_properties,
    parse_meta_properties,
    parse_quorum_state,
)
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster.audit import compare_logs
from storage_core.cluster.replica import OpenedLog, open_log
from storage_core.commit import CommitPlan, RestoreFile, SyncDirectory, WriteFile, commit
from storage_core.commit.scratch import METADATA_LOG, remove_unfinished, unfinished_name
from storage_core.config import LogConfig
from storage_core.errors import ConfigError, GuardRefusedError, PylogError, located
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    LOCK_FILE,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    QUORUM_STATE_FILE,
    kind_of,
    parse_cluster_snapshot,
)
from storage_core.local_files import entry_names, facts_in, is_there, open_file, open_folder
from storage_core.log.leader_epoch_cache import (
    DoubtfulEpoch,
    LastEpoch,
    find_last_epoch,
    read_epoch_runs,
)
from storage_core.log.loading_log import read_epochs
from storage_core.maintenance.recovery.salvage import measure_cuts
from storage_core.store.local import LocalStore, make_folder_like, storage_errors

# Make the metadata log of a node: whole or not at all.
#
# It is written under a name that a start passes over, and renamed once all of it is on the disk.
# Nothing is replaced but what ``kafka-storage format`` writes. The directory's identity follows
# the log: a controller that has the one and not the other begins an empty cluster.


def missing_properties(directory: Path, wanted: MetaProperties) -> MetaProperties | None:
    """Return the identity that a directory lacks, None for none. Without a directory id a node
    gives its directory one when it starts."""
    if not is_there(directory, may_be_link=True) or not directory.is_dir():
        raise ConfigError("--into", directory, "no such directory")
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


def has_at_most_format(directory: Path) -> bool:
    """Return whether a log directory's metadata log is absent, or just formatted."""
    log = directory / CLUSTER_METADATA_DIRECTORY
    with storage_errors(log):
        if not is_there(log, may_be_link=True):
            return True
    return [entry.name for entry in LocalStore(log).scan()] == [BOOTSTRAP_SNAPSHOT]


def has_only_metadata(directory: Path) -> bool:
    """Return whether a log directory has nothing but identity and metadata."""
    with storage_errors(directory):
        names = set(entry_names(directory, may_be_link=True))
    own = {META_PROPERTIES_FILE, BOOTSTRAP_SNAPSHOT_FILE, CLUSTER_METADATA_DIRECTORY, LOCK_FILE}
    return names <= own


def log_is_there(directory: Path) -> GuardRefusedError:
    """Return the refusal of a log directory that has a metadata log."""
    log = directory / CLUSTER_METADATA_DIRECTORY
    return GuardRefusedError("TARGET_NOT_EMPTY", f"{log} is there: nothing is replaced")


def write_metadata_log(
    directory: Path,
    lock: LogDirectoryLock,
    operations: Sequence[RestoreFile | WriteFile],
) -> None:
    """Write a metadata log, in place of a formatted one. The files get the owner of the
    directory.

    Args:
        operations: Of its files; with none of them, a formatted log is only taken away.
    """
    home = LocalStore(directory, may_be_link=True)
    unfinished = directory / unfinished_name(METADATA_LOG)
    if operations:
        make_folder_like(home, unfinished)
        store = LocalStore(unfinished)
        last = SyncDirectory(reason="the log is whole")
        commit(CommitPlan(location=store.location, operations=(*operations, last)), store)
    for operation in operations:
        if isinstance(operation, RestoreFile):
            _own(home, unfinished / operation.name)
    lock.validate_held()
    with storage_errors(directory), open_folder(directory, may_be_link=True) as above:
        if facts_in(above, CLUSTER_METADATA_DIRECTORY) is not None:
            os.rename(
                CLUSTER_METADATA_DIRECTORY,
                unfinished_name(METADATA_LOG),
                src_dir_fd=above,
                dst_dir_fd=above,
            )
        if operations:
            os.rename(
                unfinished.name, CLUSTER_METADATA_DIRECTORY, src_dir_fd=above, dst_dir_fd=above
            )
        os.fsync(above)
    remove_unfinished(directory)


def write_identity(directory: Path, properties: MetaProperties | None) -> None:
    """Let a node start in a directory that has its metadata log.

    Args:
        properties: The content of its ``meta.properties``; None where that is there.
    """
    if properties is not None:
        store = LocalStore(directory, may_be_link=True)
        store.write_file(META_PROPERTIES_FILE, encode_meta_properties(properties))


def _own(home: LocalStore, file: Path) -> None:
    """Give a copied file the owner of the voter's directory."""
    with storage_errors(file):
        descriptor = open_file(file)
        try:
            home.hand_on_ownership(descriptor, file.name)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class VotersSource(enum.StrEnum):
    """Where the voters of a quorum are named.

    RECORD: a record of the log (``kraft.version`` 1). ELECTION: the last election in the log.
    STATE: a ``quorum-state``. A quorum of fixed voters has them in each node's configuration; the
    last two are what an election then knew.
    """

    RECORD = "record"
    ELECTION = "election"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCopy:
    """A node's copy of the cluster's metadata. Its log is described as the node's start leaves
    it."""

    root: str
    properties: MetaProperties | None  # whose it is; None where no file says it
    # The log; None where it cannot be opened, or ends before the snapshot.
    log: OpenedLog | None = None
    # Offset of the first record; what lies below is in the snapshot alone.
    log_start_offset: int = 0
    log_end_offset: int = 0
    last_epoch: int = -1  # newest epoch of a record that is believed; -1 without one
    # The first epoch of a record that is not believed; None without one. A node that starts on it
    # believes it, and wins each election by it.
    doubtful: DoubtfulEpoch | None = None
    cut_records: int = 0  # how many readable records its start cuts behind damage
    cut_end: tuple[int, int] = (-1, 0)  # epoch and end of the last of these; (-1, 0) without one
    # End of the newest snapshot, below which all is committed; 0 without one.
    snapshot_offset: int = 0
    size_bytes: int = 0
    metadata: ClusterMetadata | None = None  # what it says; None where that cannot be read
    quorum: QuorumRecords = field(default_factory=QuorumRecords)  # what its control records say
    # The fields of ``quorum-state``; empty without the file.
    election: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # why it cannot be read; else empty
    damage: str = ""  # where its node's start would cut records, or miss some; else empty

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster, None where no file says it."""
        return None if self.properties is None else self.properties.cluster_id

    @property
    def node_id(self) -> int | None:
        """Id of the node, None where no file says it."""
        return None if self.properties is None else self.properties.node_id

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and end: voters elect nobody whose position is behind theirs."""
        return self.last_epoch, self.log_end_offset

    @property
    def started_position(self) -> tuple[int, int]:
        """The same once its node has started: it believes rising epochs."""
        epochs = self.log.epochs if self.log is not None else ()
        return max([self.last_epoch, *(entry.epoch for entry in epochs)]), self.log_end_offset

    def is_of(self, voter: Voter) -> bool:
        """Whether it is the copy of a voter."""
        own = None if self.properties is None else self.properties.directory_id
        return self.node_id == voter.node_id and voter.directory_id in {None, own}


def read_copy(root: str, properties: MetaProperties | None, *, now_ms: int) -> MetadataCopy:
    """Read a copy; an error is part of the answer.

    Args:
        root: Path of a log directory with ``__cluster_metadata-0``.
    """
    try:
        return _read(root, properties, now_ms)
    except (PylogError, OSError) as error:
        return MetadataCopy(root=root, properties=properties, error=str(error))


@located
def _read(root: str, properties: MetaProperties | None, now_ms: int) -> MetadataCopy:
    directory = Path(root, CLUSTER_METADATA_DIRECTORY)
    store = LocalStore(directory)
    # No checkpoint and no marker is about this log: a node recovers all of it.
    log = open_log(
        store,
        checkpoints=PartitionCheckpoints(),
        is_clean=False,
        now_ms=now_ms,
        most_index_bytes=LogConfig().segment_index_bytes,
    )
    start, end = log.log_start_offset, log.log_end_offset
    election: Mapping[str, Any] = {}
    if store.has(QUORUM_STATE_FILE):
        data = store.read_file(QUORUM_STATE_FILE, limit_bytes=MAX_QUORUM_STATE_BYTES)
        election = parse_quorum_state(data, file=QUORUM_STATE_FILE)
    last_epoch = log.epochs[-1].epoch if log.epochs else -1
    cut_records, cut_end = measure_cuts(store, log.cuts)
    metadata, quorum = read_quorum(directory)
    damage = ""
    try:
        read_cluster_metadata(directory)
    except PylogError as error:
        damage = str(error)
    snapshot_end, snapshot_epoch = parse_cluster_snapshot(metadata.snapshot or "") or (0, -1)
    has_log = (snapshot_epoch, snapshot_end) <= (last_epoch, end)
    if not has_log:  # a start goes on from the snapshot, with an empty log
        start, end, last_epoch = snapshot_end, snapshot_end, snapshot_epoch
    last = LastEpoch(epoch=last_epoch)
    if has_log:
        last = find_last_epoch(
            read_epoch_runs(log.view.open, log.base_offsets),
            # As the file is, not as a start leaves it.
            [read_epochs(store).entries],
            largest_epoch=election.get("leader_epoch"),
        )
    return MetadataCopy(
        root=root,
        properties=properties,
        log=log if has_log else None,
        log_start_offset=start,
        log_end_offset=end,
        last_epoch=max(last.epoch, snapshot_epoch),
        doubtful=last.doubtful,
        cut_records=cut_records,
        cut_end=cut_end,
        snapshot_offset=snapshot_end,
        size_bytes=log.size_bytes
        + sum(each.size_bytes for each in store.list_files() if parse_cluster_snapshot(each.name)),
        metadata=metadata,
        quorum=quorum,
        election=election,
        damage=damage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingCopies:
    """Two copies with other records at one offset."""

    roots: tuple[str, str]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCopies:
    """What the copies of one cluster's metadata say together."""

    cluster_id: str | None  # id of the cluster, None where no file says it
    # The copies; the longest first, those that cannot be read last.
    copies: tuple[MetadataCopy, ...]
    # The voters, as the longest copy that names them does; empty where none does.
    voters: tuple[Voter, ...] = ()
    voters_source: VotersSource | None = None
    # Pairs of copies that differ. Each offset was written by another leader; a start cuts what the
    # quorum did not commit.
    differences: tuple[DivergingCopies, ...] = ()
    # Below it, a majority of the voters has the log of the longest copy; None where the copies of
    # no majority were given.
    majority_offset: int | None = None

    @property
    def majority(self) -> int:
        """How many voters elect a leader and commit a record."""
        return len(self.voters) // 2 + 1

    @property
    def absent_voters(self) -> tuple[Voter, ...]:
        """The voters without a readable copy here."""
        return tuple(voter for voter in self.voters if self.copy_of(voter) is None)

    @property
    def lacks_majority(self) -> bool:
        """Whether no majority of the known voters has a copy here."""
        present = len(self.voters) - len(self.absent_voters)
        return bool(self.voters) and present < self.majority

    @property
    def committed_offset(self) -> int:
        """Offset below which a majority or a snapshot has all.

        A majority's records of an earlier epoch may yet be cut by a voter with a later one: Raft
        commits them only with a record of the epoch whose leader sends them.
        """
        snapshots = [copy.snapshot_offset for copy in self.copies]
        return max(*snapshots, self.majority_offset or 0)

    @property
    def largest_epoch(self) -> int:
        """Largest epoch that a record or a ``quorum-state`` names, at least 0. A node that
        starts on an epoch which is not believed takes it for its own."""
        epochs: list[int] = [copy.election.get("leader_epoch", -1) for copy in self.copies]
        epochs += [copy.doubtful.epoch for copy in self.copies if copy.doubtful is not None]
        return max(0, *epochs, *(copy.last_epoch for copy in self.copies))

    def copy_of(self, voter: Voter) -> MetadataCopy | None:
        """Return a voter's readable copy, None without one here."""
        own = (copy for copy in self.copies if not copy.error and copy.is_of(voter))
        return next(own, None)

    def may_lead(self, copy: MetadataCopy) -> bool | None:
        """Return whether the voters would elect a copy's node.

        None means that voters decide it whose copies are not here, or that it is no voter.
        """
        if copy.error or not any(copy.is_of(voter) for voter in self.voters):
            return None
        copies = [self.copy_of(voter) for voter in self.voters]
        granting = sum(
            each is not None and each.started_position <= copy.started_position for each in copies
        )
        if granting >= self.majority:
            return True
        return None if granting + copies.count(None) >= self.majority else False


def compare_copies(copies: Iterable[MetadataCopy]) -> list[ComparedCopies]:
    """Compare copies, cluster by cluster."""
    clusters: dict[str | None, list[MetadataCopy]] = {}
    for copy in copies:
        clusters.setdefault(copy.cluster_id, []).append(copy)
    return [_compare(cluster_id, own) for cluster_id, own in clusters.items()]


def one_cluster(clusters: Sequence[ComparedCopies]) -> ComparedCopies:
    """Return the only cluster with a readable copy."""
    readable = [each for each in clusters if not each.copies[0].error]
    if len(readable) != 1:
        ids = ", ".join(str(each.cluster_id) for each in readable) or "none"
        reason = "expected readable copies of one cluster's metadata"
        if not readable:
            reason += "; where none is left, `pylog metadata rebuild` makes them anew"
        raise ConfigError("ROOT", ids, reason)
    return readable[0]


def _compare(cluster_id: str | None, copies: Sequence[MetadataCopy]) -> ComparedCopies:
    # Of equal copies one with an epoch that is not believed comes last.
    by_position = sorted(
        copies,
        key=lambda copy: (not copy.error, copy.position, copy.doubtful is None),
        reverse=True,
    )
    compared = compare_logs([copy.log for copy in by_position])
    voters, source = _find_voters(by_position)
    answer = ComparedCopies(
        cluster_id=cluster_id,
        copies=tuple(by_position),
        voters=voters,
        voters_source=source,
        differences=tuple(
            DivergingCopies(roots=(by_position[one].root, by_position[other].root), offset=offset)
            for (one, other), offset in sorted(compared.differences.items())
            if offset is not None
        ),
    )
    longest = by_position[0].root
    departures = {
        each.roots[1]: each.offset for each in answer.differences if each.roots[0] == longest
    }
    ends = sorted(
        (
            min(copy.log_end_offset, departures.get(copy.root, copy.log_end_offset))
            for voter in voters
            if (copy := answer.copy_of(voter)) is not None
        ),
        reverse=True,
    )
    if voters and len(ends) >= answer.majority:
        answer = replace(answer, majority_offset=ends[answer.majority - 1])
    return answer


def _find_voters(
    copies: Sequence[MetadataCopy],
) -> tuple[tuple[Voter, ...], VotersSource | None]:
    """Return the voters that the first copy names, and where."""
    for copy in copies:
        if copy.quorum.voters:
            return copy.quorum.voters, VotersSource.RECORD
        if copy.quorum.electors:
            return copy.quorum.electors, VotersSource.ELECTION
        named = copy.election.get("current_voters")
        if named:
            return tuple(Voter(node_id=each["voterId"]) for each in named), VotersSource.STATE
    return (), None
