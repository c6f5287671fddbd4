"""Let go what a sweep has planned, wave by wave.

For each log directory of a wave: the log starts rise in its checkpoint, tasks remove the segments,
and entries that say no more than the names of segments do are dropped again. What a wave has
finished stays, whatever comes after it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pylog_spark.operations.due_partitions import Outcome
from pylog_spark.operations.job import run_trash
from pylog_spark.operations.open_run import OpenRun
from pylog_spark.planning import WorkItem, choose_unit_bytes, pack_units
from pylog_spark.schemas import SWEPT, Reason, Status
from pylog_spark.tasks.retention import RetentionContext, SweepWork, commit_sweeps
from storage_core.commit.trash import drop_raised, write_raised
from storage_core.filenames import TopicPartition

# With more partitions than this, the rows of one wave weigh on the driver.
_MOST_PARTITIONS: Final = 5000
# Some renames and a sync: about as long as reading this much.
_SEGMENT_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSweep:
    """A partition of which something goes.

    Attributes:
        work: What tasks are told of it.
        partition: Its name.
        first_base_offset: Of its first segment afterwards.
        is_replicated: Whether all that goes lies below the checkpointed high watermark.
    """

    work: SweepWork
    partition: TopicPartition
    first_base_offset: int
    is_replicated: bool


class SweepWaves:
    """Sweeps the partitions of one run.

    Args:
        run: The run; it holds the roots.
        context: What its tasks share.
    """

    def __init__(self, run: OpenRun, context: RetentionContext) -> None:
        self._run = run
        self._context = context

    def sweep(self, plans: pa.Table) -> Iterator[dict[int, Outcome]]:
        """Sweep the planned rows of a table of plans.

        Args:
            plans: Rows of ``schemas.RETENTION_PLAN``; a row's number is its ordinal.

        Yields:
            What became of the partitions of each wave, by ordinal.
        """
        due = find_due(plans)
        waves = [due[at : at + _MOST_PARTITIONS] for at in range(0, len(due), _MOST_PARTITIONS)]
        for number, members in enumerate(waves, 1):
            ended = self._left_out(members)
            if ended:
                yield ended
            chosen = [sweep for sweep in members if sweep.work.ordinal not in ended]
            if not chosen:
                continue
            segments = sum(len(sweep.work.removed) for sweep in chosen)
            title = f"{self._run.job.title}: remove {segments} segments of {len(chosen)} partitions"
            if len(waves) > 1:
                title += f" (wave {number} of {len(waves)})"
            yield self._sweep_wave(chosen, title)
            self._run.dispatcher.release()

    def _failed(self, due: Iterable[DueSweep]) -> dict[int, Outcome]:
        """Return the partitions whose log directory is out of the run: its disk has failed."""
        return {
            sweep.work.ordinal: Outcome.failed(failure)
            for sweep in due
            if (failure := self._run.roots[sweep.work.root].failure) is not None
        }

    def _left_out(self, due: Sequence[DueSweep]) -> dict[int, Outcome]:
        """Return what is not begun any more: its disk has failed, or the budget is spent."""
        ended = self._failed(due)
        spent = self._run.budget.refusal()
        if spent is None:
            return ended
        return {sweep.work.ordinal: Outcome.refused(*spent) for sweep in due} | ended

    def _sweep_wave(self, due: Sequence[DueSweep], title: str) -> dict[int, Outcome]:
        trash = run_trash(self._run.job)
        if trash is not None:
            # An undo has to know of those whose commits did not begin before a kill.
            write_raised(trash, _starts_by_root(due))
        for location, members in _by_root(due).items():
            root = self._run.roots[location]
            root.begin_writing()
            root.write_log_starts(
                {sweep.partition: sweep.work.log_start_offset for sweep in members}
            )
            if not all(sweep.is_replicated for sweep in members):
                root.disown_marker()
            root.allow_commits(sweep.work.directory for sweep in members)
        # Where that failed no task could commit.
        outcomes = self._failed(due)
        due = [sweep for sweep in due if sweep.work.ordinal not in outcomes]
        if not due:
            return outcomes
        context, write = self._context, self._run.write_context(self._context.run)
        listed = self._units(due)

        def commit(items: Sequence[SweepWork]) -> Iterator[pa.RecordBatch]:
            return commit_sweeps(items, context, write)

        frame = self._run.dispatcher.spread(listed, commit, SWEPT)
        rows = self._run.dispatcher.collect(frame, SWEPT, title).to_pylist()
        outcomes |= {row["ordinal"]: _outcome(row) for row in rows}
        for location, members in _by_root(due).items():
            self._settle(location, members, outcomes)
        if trash is not None:
            roots = self._run.roots
            ended = [location for location in _by_root(due) if roots[location].failure is None]
            drop_raised(trash, ended)
        return outcomes

    def _units(self, due: Sequence[DueSweep]) -> list[list[SweepWork]]:
        """Return what each task is given."""
        costs = {s.work.ordinal: (len(s.work.removed) + 1) * _SEGMENT_BYTES for s in due}
        tuning = self._run.job.options.tuning
        unit_bytes = choose_unit_bytes(
            sum(costs.values()),
            slots=self._run.dispatcher.slots,
            least_bytes=tuning.unit_min_bytes,
            most_bytes=tuning.unit_max_bytes,
        )
        works = {sweep.work.ordinal: sweep.work for sweep in due}
        disks = self._run.disks
        items = (
            WorkItem(ordinal=n, number=0, size_bytes=cost, disk=disks.of(works[n].root))
            for n, cost in costs.items()
        )
        units = pack_units(items, unit_bytes=unit_bytes, per_disk=disks.per_disk)
        return [[works[item.ordinal] for item in unit.items] for unit in units]

    def _settle(
        self, location: str, members: Sequence[DueSweep], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Close a wave in one log directory: who did not lose a file has its old log start back."""
        root = self._run.roots[location]
        entries: dict[TopicPartition, int | None] = {}
        for sweep in members:
            outcome = outcomes[sweep.work.ordinal]
            if outcome.columns["status"] == Status.DONE:
                start = sweep.work.log_start_offset
                entries[sweep.partition] = start if start > sweep.first_base_offset else None
            elif not outcome.was_touched:
                entries[sweep.partition] = sweep.work.log_start_checkpoint or None
        touched = any(outcomes[sweep.work.ordinal].was_touched for sweep in members)
        root.settle_commits({}, is_whole=not touched)
        root.write_log_starts(entries)

    def drop_entries(self, plans: pa.Table) -> None:
        """Drop entries of log starts at which a log's first segment begins, as Kafka does.

        A run that was killed after its commits has left them.

        Args:
            plans: Rows of ``schemas.RETENTION_PLAN``, of logs that keep everything, too.
        """
        names = ["root", "topic", "partition", "reason", "log_start_checkpoint"]
        stale: dict[str, dict[TopicPartition, int | None]] = {}
        for row in plans.select([*names, "first_base_offset"]).to_pylist():
            entry = row["log_start_checkpoint"]
            # Of a row that a guard refused, the first segment is the one that was planned.
            is_idle = row["reason"] == Reason.NOTHING_TO_RETAIN and entry is not None
            if is_idle and entry <= row["first_base_offset"]:
                name = TopicPartition(row["topic"], row["partition"])
                stale.setdefault(row["root"], {})[name] = None
        for location, entries in stale.items():
            self._run.roots[location].write_log_starts(entries)


def find_due(plans: pa.Table) -> list[DueSweep]:
    """Return the partitions that are planned, in the table's order."""
    names = (
        "root",
        "directory",
        "topic",
        "partition",
        "status",
        "log_start_checkpoint",
        "high_watermark",
        "removed",
        "log_start_offset",
        "first_base_offset",
        "is_replicated",
    )
    due = []
    for ordinal, row in enumerate(plans.select(list(names)).to_pylist()):
        if row["status"] != Status.PLANNED:
            continue
        work = SweepWork(
            ordinal=ordinal,
            root=row["root"],
            directory=row["directory"],
            topic=row["topic"],
            log_start_checkpoint=row["log_start_checkpoint"] or 0,
            high_watermark=row["high_watermark"],
            removed=tuple(row["removed"]),
            log_start_offset=row["log_start_offset"],
        )
        due.append(
            DueSweep(
                work=work,
                partition=TopicPartition(row["topic"], row["partition"]),
                first_base_offset=row["first_base_offset"],
                is_replicated=row["is_replicated"],
            )
        )
    return due


def _outcome(row: Mapping[str, Any]) -> Outcome:
    outcome = Outcome(duration_ms=row["duration_ms"] or 0)
    if row["error_class"] is not None:
        outcome.was_touched = bool(row["touched"])
        outcome.fail(row)
        return outcome
    names = ("bytes_after", "segments_after", "operations")
    outcome.columns = {"status": Status.DONE.value} | {name: row[name] for name in names}
    return outcome


def _starts_by_root(due: Sequence[DueSweep]) -> dict[str, dict[str, int]]:
    """Return where logs of broker roots start after a sweep, as the trash knows them."""
    return {
        root: {str(sweep.partition): sweep.work.log_start_offset for sweep in members}
        for root, members in _by_root(due).items()
    }


def _by_root(due: Sequence[DueSweep]) -> dict[str, list[DueSweep]]:
    found: dict[str, list[DueSweep]] = {}
    for sweep in due:
        found.setdefault(sweep.work.root, []).append(sweep)
    return found
