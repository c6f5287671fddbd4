"""Run both passes of compaction over one partition.

Tasks of jobs and `pylog partition` do it here. Nothing in the directory is replaced: what was
cleaned lies in scratch files.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from storage_core.config import OffsetMapHash
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.compaction.rewrite import CleanedGroup, RewriteStats, clean_groups
from storage_core.maintenance.compaction.sidecar_folder import PartitionSidecars, SidecarFolder
from storage_core.maintenance.throttler import Throttler
from storage_core.store.base import LogStore, version_of
from storage_core.store.generations import current_location


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """The result of both passes over a partition."""

    end_offset: int
    groups: tuple[CleanedGroup, ...]
    index: IndexStats  # what pass one read and found
    spent_secs: float  # time spent on the passes, summed over tasks
    index_secs: float | None = None  # on pass one, None where that was not told apart
    sidecars: PartitionSidecars | None = None  # of the partition, staged; None for none

    @property
    def stats(self) -> RewriteStats:
        """Numbers of pass two."""
        return sum((group.stats for group in self.groups), RewriteStats())

    def publish_sidecars(self, store: LogStore, plan: CompactionPlan) -> None:
        """Publish the staged sidecars, if any, after the commit.

        Args:
            store: The partition as the commit left it.
        """
        if self.sidecars is None:
            return
        bases = {segment.base_offset for segment in plan.segments}
        for group in self.groups:
            bases.difference_update(group.base_offsets[1:])
        self.sidecars.publish(store, bases)


def run_passes(
    store: LogStore,
    plan: CompactionPlan,
    *,
    sidecar_folder: str,
    scratch: Callable[[], AbstractContextManager[Path]],
    attempt: str,
    keep: Callable[[CleanedGroup], CleanedGroup],
    throttler: Throttler,
    threads: int,
) -> CleanedPartition:
    """Run both passes over a whole partition in this process.

    Args:
        store: The partition; it is only read.
        sidecar_folder: Where key sidecars lie; empty for none.
        scratch: As `clean_groups`.
        keep: Takes the files of a group out of its scratch folder, if they cannot stay there.
        throttler: Slows reading and writing down.
        threads: How many threads to use; the result is the same.
    """
    started = time.perf_counter()
    plan, sidecars = _with_sidecars(store, plan, sidecar_folder)
    index = index_round(
        store, plan, throttler=throttler, keeps_hashes=sidecars is not None, threads=threads
    )
    indexed = time.perf_counter()
    cleaning = clean_groups(
        store,
        plan,
        index,
        group_segments(plan, index.end_offset),
        TransactionTracker(),
        scratch=scratch,
        attempt=attempt,
        throttler=throttler,
        sidecars=sidecars,
        threads=threads,
    )
    with closing(cleaning):
        groups = tuple(map(keep, cleaning))
    return CleanedPartition(
        end_offset=index.end_offset,
        groups=groups,
        index=index.stats,
        spent_secs=time.perf_counter() - started,
        index_secs=indexed - started,
        sidecars=sidecars,
    )


def _with_sidecars(
    store: LogStore, plan: CompactionPlan, folder: str
) -> tuple[CompactionPlan, PartitionSidecars | None]:
    """Return a round with a folder's secret, and its partition's sidecars. The round knows keys by
    that secret.

    Args:
        folder: Where sidecars lie; empty for none, and then the plan is as it was. So it is where
            the folder cannot be used, keys are known by MD5, or the store does not tell one version
            of a file from another.
    """
    if not folder or plan.offset_map_hash is not OffsetMapHash.SIPHASH:
        return plan, None
    with closing(store.open_file(plan.segments[0].log_file)) as reader:
        if not version_of(reader):
            return plan, None
    sidecars = SidecarFolder(Path(folder)).of(current_location(plan.location))
    if sidecars is None:
        return plan, None
    return replace(plan, hash_key=sidecars.secret.hex()), sidecars
