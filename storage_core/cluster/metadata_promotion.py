"""Give a voter without a copy of the metadata somebody else's.

The copy becomes the voter's own under the voter's node id and directory id, so that the set of
voters stays as it is. Nobody knows any more for whom the voter has voted, or that it led. So its
``quorum-state`` begins far above every epoch that a copy names: in none of these it can vote again,
and nobody takes it for the leader that it was (a node ends that hears so of itself). Nothing is
replaced: a voter that has a log keeps it. What ``kafka-storage format`` writes is no log yet.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, Voter
from storage_core.checkpoint.broker_files import MetaProperties, encode_quorum_state
from storage_core.checkpoint.checkpoints import INT_MAX
from storage_core.checkpoint.lock import LogDirectoryLock, require_stopped
from storage_core.cluster.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    VotersSource,
    has_at_most_format,
    log_is_there,
    missing_properties,
    one_cluster,
    write_identity,
    write_metadata_log,
)
from storage_core.commit import RestoreFile, WriteFile
from storage_core.commit.scratch import remove_unfinished
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
from storage_core.store.base import FileInfo
from storage_core.store.local import LocalStore
from storage_core.wording import count_text

# Elections that no copy knows of happened in between, perhaps.
_EPOCH_MARGIN: Final = 100
_OTHER_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A voter that gets a copy."""

    voter: Voter
    directory: Path
    source: MetadataCopy
    files: tuple[FileInfo, ...]  # the files of the copy, without indexes: a start makes these
    # The identity that its ``meta.properties`` gets; None where it has the file.
    properties: MetaProperties | None
    epoch: int
    voters: tuple[int, ...] | None  # node ids of the voters; None where the log has them
    is_done: bool  # whether a former call gave it the copy, and no node has started on it since

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.size_bytes for file in self.files)


def plan_promotions(
    clusters: Sequence[ComparedCopies], targets: Mapping[int, Path]
) -> list[Promotion]:
    """Plan to give voters the longest readable copy. By the quorum's own rule no voter refuses its
    vote to that one.

    Args:
        targets: Log directories of voters, by node id.
    """
    for copy in (copy for each in clusters for copy in each.copies):
        if copy.error:  # it may be the longest
            reason = f"cannot be read: {copy.error}; leave it out to do without it"
            raise ConfigError("ROOT", copy.root, reason)
        if copy.cluster_id is None:
            reason = f"expected the id of its cluster in {META_PROPERTIES_FILE}"
            raise ConfigError("ROOT", copy.root, reason)
        require_stopped(Path(copy.root), "its node runs; stop it first")
    cluster = one_cluster(clusters)
    source = cluster.copies[0]
    # Of a single copy the rest is the best that is left.
    for copy in cluster.copies if cluster.copies[1:] else ():
        if copy.cut_records and (copy is source or copy.cut_end > source.position):
            records = count_text(copy.cut_records, "readable record")
            reason = (
                f"its start would cut {records} of the metadata behind damage, up to offset "
                f"{copy.cut_end[1] - 1}; give a whole copy that has them, or leave this one out "
                "to do without them"
            )
            raise ConfigError("ROOT", copy.root, reason)
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
    voters = None if is_dynamic else tuple(each.node_id for each in cluster.voters)
    promotions = []
    for node, directory in sorted(targets.items()):
        voter = _voter_of(cluster, node)
        missing = missing_properties(directory, _properties_of(voter, source.cluster_id))
        promotions.append(
            Promotion(
                voter=voter,
                directory=directory,
                source=source,
                files=files,
                properties=missing,
                epoch=epoch,
                voters=voters,
                is_done=_has_copy(directory, files) and missing is None,
            )
        )
    return promotions


def promote(promotion: Promotion) -> None:
    """Write a voter's metadata log, whole or not at all.

    A second call after a kill begins anew; the log has its name once all of it is on the disk.
    What is done already is left alone.
    """
    directory = promotion.directory
    with LogDirectoryLock(directory) as lock:
        remove_unfinished(directory)
        wanted = _properties_of(promotion.voter, promotion.source.cluster_id)
        properties = missing_properties(directory, wanted)
        if _has_copy(directory, promotion.files):
            write_identity(directory, properties)
            return
        source = Path(promotion.source.root, CLUSTER_METADATA_DIRECTORY)
        copies = [
            RestoreFile(
                path=str(source / file.name),
                name=file.name,
                size_bytes=file.size_bytes,
                is_copy=True,
                reason="the voter has no copy",
            )
            for file in promotion.files
        ]
        state = WriteFile(
            name=QUORUM_STATE_FILE,
            content=encode_quorum_state(epoch=promotion.epoch, voters=promotion.voters),
            reason="it may have voted, or led, in an earlier epoch",
        )
        write_metadata_log(directory, lock, [*copies, state])
        write_identity(directory, properties)


def _properties_of(voter: Voter, cluster_id: str | None) -> MetaProperties:
    return MetaProperties(
        version=1,
        cluster_id=cluster_id,
        node_id=voter.node_id,
        directory_id=voter.directory_id,
    )


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


def _has_copy(directory: Path, files: Sequence[FileInfo]) -> bool:
    """Return whether a directory has just the files of a promotion."""
    if has_at_most_format(directory):
        return False
    store = LocalStore(directory / CLUSTER_METADATA_DIRECTORY)
    there = {file.name: file.size_bytes for file in store.list_files()}
    if there.pop(QUORUM_STATE_FILE, None) is not None and there == {
        file.name: file.size_bytes for file in files
    }:
        return True
    raise log_is_there(directory)
