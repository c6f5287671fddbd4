"""Verify log directories themselves, and choose the partitions to verify."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pylog_spark.operations.verify.task import NOT_VERIFIED, Target, VerifiedRow, place_finding
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import NEWEST_RELEASE
from storage_core.maintenance.verification.log_directories import (
    VERIFIED_KINDS,
    verify_log_directories,
)
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.maintenance.verification.prescription import recovered_together


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRoots:
    """Log directories that were looked at."""

    observed: tuple[ObservedRoot, ...]
    rows: tuple[VerifiedRow, ...]
    targets: tuple[Target, ...]
    # Directories that a broker loads before it deletes or leaves them.
    set_aside: tuple[Target, ...] = ()


def observe_roots(
    roots: Sequence[tuple[str, Role]],
    topics: TopicFilter,
    *,
    is_live: bool,
    release: str = NEWEST_RELEASE,
) -> VerifiedRoots:
    """Look at log directories, and choose the partitions to be verified.

    Args:
        is_live: Somebody may be writing: checkpoints and logs are of different times.
    """
    observed, placed = verify_log_directories(roots, release=release)
    role_of = dict(roots)
    together = recovered_together(role_of)
    rows = [
        place_finding(
            each.finding,
            root=each.root,
            directory=None,
            partition=each.partition,
            role=role_of[each.root],
            roots=together[each.root],
        )
        for each in placed
        if each.partition is None or topics.admits(each.partition.topic)
    ]
    targets: list[Target] = []
    set_aside: list[Target] = []
    for root in observed:
        for entry in root.entries:
            name = entry.topic_partition
            if entry.is_link or name is None or not topics.admits(name.topic):
                continue
            if entry.kind in VERIFIED_KINDS:
                targets.append(_target(root, entry, len(targets), together, is_live=is_live))
            elif entry.kind in {DirectoryKind.DELETE, DirectoryKind.STRAY}:
                set_aside.append(_target(root, entry, NOT_VERIFIED, together, is_live=is_live))
    return VerifiedRoots(
        observed=tuple(observed),
        rows=tuple(rows),
        targets=tuple(targets),
        set_aside=tuple(set_aside),
    )


def _target(
    root: ObservedRoot,
    entry: SubDirectory,
    ordinal: int,
    together: Mapping[str, tuple[str, ...]],
    *,
    is_live: bool,
) -> Target:
    if entry.topic_partition is None:
        raise ValueError(f"{entry.path} is no partition")
    # A checkpoint that is older than the log is nothing new; the start of the log has to be known.
    checkpoints = root.checkpoints_of(entry.topic_partition)
    live = PartitionCheckpoints(log_start_offset=checkpoints.log_start_offset)
    return Target(
        ordinal=ordinal,
        root=root.location,
        directory=entry.path,
        partition=entry.topic_partition,
        context=root.context_of(entry),
        checkpoints=live if is_live else checkpoints,
        roots=together[root.location],
    )
