"""Sweep a wave of partitions: raise log starts, then remove segments. After that the log starts
that stay are written."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
    commit_sweeps,
)
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.planning import Demand, WorkItem, pack_units
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.schemas import (
    Reason,
    Status,
)
from pylog_spark.tasks.message import PartitionCommit
from storage_core.checkpoint.checkpoints import log_start_entry
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.roots.root import HeldRoot

# Some renames and a sync: about as long as reading this much.
_SEGMENT_BYTES: Final = 256 * 1024


class SweepStages:
    """Sweeps the partitions of a wave.

    Args:
        run: The run; it holds the roots.
    """

    def __init__(self, run: Run, context: RetentionContext) -> None:
        self._run = run
        self._context = context

    def demand(self, _each: SweepWork) -> Demand:
        """Return what a sweep needs: no space, and nothing is read."""
        return Demand()

    def title(self, due: Sequence[SweepWork]) -> str:
        """Return what the wave does."""
        segments = sum(len(work.removed) for work in due)
        return f"{self._run.job.title}: remove {segments} segments of {len(due)} partitions"

    def prepare(self, root: HeldRoot, due: Sequence[SweepWork]) -> None:
        """Raise log starts, before the first segment goes."""
        root.raise_log_starts({work.ref.partition: work.log_start_offset for work in due})
        if not all(work.is_replicated for work in due):
            root.disown_marker()

    def work(self, due: Sequence[SweepWork], title: str) -> Outcomes:
        """Remove the segments."""
        context, write = self._context, self._run.write_context(self._context.run)

        def commit(items: Sequence[SweepWork]) -> Iterator[PartitionCommit]:
            return commit_sweeps(items, context, write)

        ended = self._run.engine.ask(self._units(due), commit, PartitionCommit, title)
        return {each.ordinal: Outcome.of(each) for each in ended}

    def _units(self, due: Sequence[SweepWork]) -> list[list[SweepWork]]:
        """Return what each task is given."""
        disks = self._run.disks
        items = [
            WorkItem(
                value=work,
                size_bytes=(len(work.removed) + 1) * _SEGMENT_BYTES,
                disk=disks.of(work.ref.root),
            )
            for work in due
        ]
        unit_bytes = self._run.unit_bytes(sum(item.size_bytes for item in items))
        units = pack_units(items, unit_bytes=unit_bytes, per_disk=disks.per_disk)
        return [unit.values for unit in units]

    def settle(
        self, root: HeldRoot, due: Sequence[SweepWork], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Write the log starts of a wave's partitions in one root. A partition that did not lose
        a file has its old log start back."""
        entries: dict[TopicPartition, int | None] = {}
        for work in due:
            outcome = outcomes[work.ref.ordinal]
            if outcome.columns["status"] == Status.DONE:
                entry = log_start_entry(work.log_start_offset, work.first_base_offset)
                entries[work.ref.partition] = entry
            elif not outcome.was_touched:
                entries[work.ref.partition] = work.log_start_checkpoint or None
        touched = any(outcomes[work.ref.ordinal].was_touched for work in due)
        root.settle_commits({}, is_whole=not touched)
        root.settle_log_starts(entries)


def drop_stale_log_starts(run: Run, plans: pa.Table) -> None:
    """Drop needless log-start entries, as Kafka does. An entry is needless where the log's first
    segment begins there.

    A run that was killed after its commits has left them.

    Args:
        run: The run; it holds the roots.
        plans: Rows of ``schemas.RETENTION_PLAN``, of logs that keep everything, too.
    """
    names = ["root", "topic", "partition"]
    stale: dict[str, dict[TopicPartition, int | None]] = {}
    # Of a row that a guard refused, the first segment is the one that was planned.
    is_idle = pc.equal(plans["reason"], Reason.NOTHING_TO_RETAIN.value)
    is_stale = pc.less_equal(plans["log_start_checkpoint"], plans["first_base_offset"])
    for row in plans.filter(pc.and_kleene(is_idle, is_stale)).select(names).to_pylist():
        name = TopicPartition(row["topic"], row["partition"])
        stale.setdefault(row["root"], {})[name] = None
    for location, entries in stale.items():
        run.roots[location].write_checkpoints({LOG_START_FILE: entries})
