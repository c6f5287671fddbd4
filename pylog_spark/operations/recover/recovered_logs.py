"""Collect each log's outcome in a recovery, as rows. People and the ledger get these rows."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recover.task import observe_recovery
from pylog_spark.operations.recover.waves import RecoveryStages, find_due_logs
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.rows import table_of
from pylog_spark.run.guards import check_truncation
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import PlannedPartition, SavedPlan
from pylog_spark.run.plan_table import Outcome, result_rows, sort_rows
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import note_operations, settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import NO_LIMIT, Outcomes, run_waves
from pylog_spark.schemas import RECOVERY_WORK, CutRow, PartitionName, RecoveryRow
from pylog_spark.tasks.run_context import RunContext
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES
from storage_core.clock import Clock
from storage_core.errors import ConfigError
from storage_core.filenames import CLEANER_FILE, LEADER_EPOCH_FILE, TopicPartition
from storage_core.json_values import from_json
from storage_core.maintenance.recovery.salvage import Salvage
from storage_core.maintenance.verification.findings import Severity
from storage_core.roots.open_root import root_checkpoints
from storage_core.wording import count_text

# What does not keep a directory from being marked clean: no broker loads it by the marker, or at
# all.
_NOT_LOADED: Final = frozenset(
    {Reason.INTERNAL_METADATA, Reason.DELETE_DIRECTORY, Reason.STRAY_DIRECTORY}
)
# Partitions that a note names; the rows have all.
_MOST_NAMED: Final = 10
# What is said of logs that end below their high watermark, by what became of them.
_LOW_ENDS: Final = {
    Status.DONE.value: (
        "{logs} ended below the checkpointed high watermark, which was lowered to the end"
    ),
    Status.PLANNED.value: (
        "{logs} would end below the checkpointed high watermark, which would be lowered to the end"
    ),
}
_LEFT_LOW: Final = (
    "{logs} would end below the checkpointed high watermark; nothing was done to them"
)
_CUT_BY_STATUS: Final = {
    Status.DONE.value: "were cut",
    Status.PLANNED.value: "would be cut",
}

Row = dict[str, Any]


class RecoveredLogs:
    """The partitions that a run recovers, and what became of each.

    Args:
        run: The run; its record is told of what has ended, unless it is dry.
        partitions: Rows of ``schemas.RECOVERY_WORK``; their numbers are the ordinals.

    Attributes:
        outcomes: By ordinal; of what was begun, with the columns of ``RecoveredLog``.
    """

    def __init__(self, run: Run, partitions: pa.Table, action: Action = Action.RECOVER) -> None:
        self._run = run
        self._action = action.value
        self.partitions = partitions
        self.outcomes: Outcomes = {}
        self._recorded: set[int] = set()
        # Of those that were loaded first, and then put in order.
        self._load_ms: dict[int, int] = {}

    def leave_idle(self, loaded: Outcomes) -> frozenset[int]:
        """Leave alone the logs without need of repair; return these."""
        idle = {
            ordinal: outcome
            for ordinal, outcome in loaded.items()
            if outcome.columns["status"] == Status.PLANNED and not outcome.columns["is_repaired"]
        }
        for outcome in idle.values():
            skipped = {"status": Status.SKIPPED, "reason": Reason.NOTHING_TO_RECOVER}
            outcome.columns |= skipped
        self.outcomes |= idle
        self._load_ms = {
            ordinal: outcome.duration_ms
            for ordinal, outcome in loaded.items()
            if ordinal not in idle
        }
        return frozenset(idle)

    def end(self, ended: Outcomes) -> None:
        """Record the outcomes of a wave's partitions. The run's record gets them, and a plan
        that is to be saved."""
        for ordinal, outcome in ended.items():
            outcome.duration_ms += self._load_ms.pop(ordinal, 0)
        self.outcomes |= ended
        directories = self.partitions["directory"]
        texts = {
            directories[ordinal].as_py(): outcome.columns["operations"]
            for ordinal, outcome in ended.items()
            if "operations" in outcome.columns
        }
        note_operations(self._run, self._action, texts)
        if not self._run.job.options.dry_run:
            self.record(ended)

    def record(self, ordinals: Iterable[int]) -> None:
        """Tell the ledger of partitions that it does not know of yet."""
        fresh = [ordinal for ordinal in ordinals if ordinal not in self._recorded]
        self._recorded |= set(fresh)
        self._run.recorder.results(self._results(fresh))
        ended = {n: self.outcomes[n] for n in fresh if n in self.outcomes}
        texts = {
            ordinal: outcome.columns["operations"]
            for ordinal, outcome in ended.items()
            if outcome.columns["status"] == Status.DONE
        }
        self._run.recorder.operations(self.partitions, texts)
        for outcome in ended.values():
            # Of no use any more, and for many partitions too much to keep.
            outcome.columns.pop("operations", None)

    def unrecovered(self) -> frozenset[str]:
        """Return the partition directories that are not in order."""
        return frozenset(row["directory"] for row in self._unwell())

    def count_unrecovered(self) -> Counter[str]:
        """Return how many logs of each root are not in order."""
        return Counter(row["root"] for row in self._unwell())

    def gauges(self) -> dict[str, dict[str, int]]:
        """Return the remaining logs and segments per root, by Kafka's gauge names."""
        counts = {root.location: [0, 0] for root in self._run.job.roots}
        for row in self._unwell():
            counts[row["root"]][0] += 1
            counts[row["root"]][1] += row["unread_segments"] or 0
        return {
            root: {"remaining-logs-to-recover": logs, "remaining-segments-to-recover": segments}
            for root, (logs, segments) in counts.items()
        }

    def _unwell(self) -> Iterator[Mapping[str, Any]]:
        """Yield a row for each log not in order. It has the root, the directory and the number
        of unread segments, among others."""
        # But not its segments: all logs have too many of them to be made objects at once.
        table = self.partitions.select(["root", "directory", "status", "reason"])
        unread = pc.list_value_length(self.partitions["scan_offsets"])
        rows = table.append_column("unread_segments", unread).to_pylist()
        for ordinal, row in enumerate(rows):
            outcome = self.outcomes.get(ordinal)
            columns = row if outcome is None else outcome.columns
            is_idle = columns.get("reason") in {*_NOT_LOADED, Reason.NOTHING_TO_RECOVER}
            if columns["status"] != Status.DONE and not is_idle:
                yield row

    def results(self) -> pa.Table:
        """Return the rows of ``schemas.RESULT``, worst first."""
        rows = self._results(range(self.partitions.num_rows))
        is_failed = pc.equal(rows["status"], Status.FAILED.value)
        is_skipped = pc.equal(rows["status"], Status.SKIPPED.value)
        rank = pc.if_else(is_failed, 0, pc.if_else(is_skipped, 2, 1))
        return sort_rows(rows, (rank, "ascending"))

    def _results(self, ordinals: Collection[int]) -> pa.Table:
        ended = {
            ordinal: _result_of(self.outcomes[ordinal])
            for ordinal in ordinals
            if ordinal in self.outcomes
        }
        # Not the segments, of which all logs have too many.
        plans = self.partitions.drop_columns(["scan_offsets", "scan_bytes"])
        return result_rows(
            plans.append_column("bytes_after", plans["bytes"]),
            ended,
            run_id=self._run.job.run_id,
            action=self._action,
            only=ordinals,
        )

    def cuts(self) -> pa.Table:
        """Return the rows of ``schemas.CUT``: what was cut, or would be."""
        rows = []
        for ordinal, outcome in sorted(self.outcomes.items()):
            salvage = outcome.columns.get("salvage")
            rows += [
                CutRow(
                    name=self._name(ordinal),
                    status=outcome.columns["status"],
                    file=cut["file"],
                    position=cut["position"],
                    size_bytes=cut["size_bytes"],
                    records=cut["records"],
                    first_offset=cut["first_offset"],
                    is_whole_segment=cut["is_whole_segment"],
                    salvaged_to=None if salvage is None else from_json(Salvage, salvage).directory,
                    reason=cut["reason"],
                )
                for cut in _cuts(outcome)
            ]
        return table_of(CutRow, rows)

    def recoveries(self) -> pa.Table:
        """Return the recovered logs as rows of ``schemas.RECOVERY``. They say what was loaded,
        and where each log ends."""
        return table_of(
            RecoveryRow,
            (
                RecoveryRow(
                    name=self._name(ordinal),
                    log_start_offset=outcome.columns["log_start_offset"],
                    log_end_offset=outcome.columns["log_end_offset"],
                    high_watermark=self.partitions["high_watermark"][ordinal].as_py(),
                    rebuilt_segments=outcome.columns["rebuilt_segments"],
                    steps=outcome.columns["steps"],
                    operations=outcome.columns.get("operations"),
                    directory=self.partitions["directory"][ordinal].as_py(),
                )
                for ordinal, outcome in sorted(self.outcomes.items())
                if outcome.columns.get("log_end_offset") is not None
            ),
        )

    def _name(self, ordinal: int) -> PartitionName:
        names = ("root", "topic", "partition")
        return PartitionName(**{name: self.partitions[name][ordinal].as_py() for name in names})

    def worst_cut(self) -> Severity | None:
        """Return how bad the worst cut is, None without any."""
        cuts = [cut for outcome in self.outcomes.values() for cut in _cuts(outcome)]
        if not cuts:
            return None
        is_bad = any(self._low_ends()) or any(cut["records"] for cut in cuts)
        return Severity.ERROR if is_bad else Severity.WARN

    def has_missing_tail(self) -> bool:
        """Return whether a log's tail was gone before the recovery. Then the log ends below what
        was acknowledged, although nothing was cut."""
        return any(not _cuts(self.outcomes[ordinal]) for ordinal, _, _ in self._low_ends())

    def _low_ends(self) -> Iterator[tuple[int, int, int]]:
        """Yield the logs with an end below the high watermark. Each is its ordinal, its log end
        offset and its high watermark."""
        for ordinal, outcome in sorted(self.outcomes.items()):
            mark = self.partitions["high_watermark"][ordinal].as_py()
            end = outcome.columns.get("log_end_offset")
            if mark is not None and end is not None and end < mark:
                yield ordinal, end, mark

    def low_end_notes(self, context: RunContext) -> Iterator[str]:
        """Yield notes about logs ending below their high watermark. They say which brokers to start
        first.

        Args:
            context: What tasks are told; it has the catalogues.
        """
        by_status: dict[str, list[str]] = {}
        others: set[bool | None] = set()
        for ordinal, end, mark in self._low_ends():
            name = self._name(ordinal)
            status = self.outcomes[ordinal].columns["status"]
            others.add(context.catalogs[name.root].has_other_replicas(name.topic_partition))
            by_status.setdefault(_LOW_ENDS.get(status, _LEFT_LOW), []).append(
                f"{name.topic}-{name.partition} at {end} instead of {mark}"
            )
        for what, low in by_status.items():
            yield f"{what.format(logs=count_text(len(low), 'log'))}: {_named(low)}"
        if others & {True, None}:
            yield (
                f"{'' if True in others else 'if there are other replicas, '}start the brokers "
                "that hold other replicas of such a log first, and keep "
                "unclean.leader.election.enable off, so that this one fetches from them what it "
                "lost"
            )
        if False in others:
            yield "of such a log without another replica only a backup may have the missing records"

    def readable_cut_notes(self, salvage: str | None) -> Iterator[str]:
        """Yield how many readable records are cut, and where they are then.

        Args:
            salvage: Folder that receives what is cut, None for none.
        """
        roots = self._run.job.roots
        brokers = " ".join(
            quote(root.location) for root in roots if root.role.facts.is_owned_by_broker
        )
        for status, what in _CUT_BY_STATUS.items():
            cut: dict[str, int] = {}
            for ordinal, outcome in sorted(self.outcomes.items()):
                records = sum(each["records"] for each in _cuts(outcome))
                if records and outcome.columns["status"] == status:
                    name = self._name(ordinal)
                    cut[f"{name.topic}-{name.partition}"] = records
            if cut:
                trash = self._run.job.options.trash
                keeper = "nothing keeps them: --salvage DIR does"
                if trash is not None:
                    keeper = f"the trash {trash} keeps them until it is purged"
                if salvage is not None:
                    keeper = f"{salvage} keeps them"
                    # A follower's go back by an undo: replayed, they would be another branch again.
                    if brokers and self._action == Action.RECOVER:
                        when = "after the run, " if status == Status.PLANNED else ""
                        keeper += (
                            f"; what gives them back, {when}before you start the broker: "
                            f"pylog salvage replay {quote(salvage)} {brokers} --role broker"
                        )
                number = count_text(sum(cut.values()), "record")
                yield f"{number} that can be read {what}: {_named(list(cut))}; {keeper}"

    def doubtful_epoch_notes(self) -> Iterator[str]:
        """Yield a note about wrong leader epochs that recovery wrote down."""
        for ordinal, outcome in sorted(self.outcomes.items()):
            doubtful = outcome.columns.get("doubtful_epoch")
            if doubtful is not None:
                name = self._name(ordinal)
                yield (
                    f"{name.topic}-{name.partition}: {doubtful} is not believed, and goes into the "
                    f"epoch file as a broker's own recovery writes it; keep the former "
                    f"{LEADER_EPOCH_FILE}. `pylog explain EPOCH_DOUBTFUL` says what to do"
                )

    def guessed_config_notes(self, context: RunContext) -> Iterator[str]:
        """Yield a note about topics recovered with Kafka's default config. No source knows the
        config of these topics.

        Args:
            context: What tasks are told; it has the catalogues.
        """
        rows = self.partitions.select(["root", "topic", "status"]).to_pylist()
        planned = {(row["root"], row["topic"]) for row in rows if row["status"] == Status.PLANNED}
        unknown = sorted({t for root, t in planned if context.catalogs[root].find(t) is None})
        if unknown:
            more = "" if len(unknown) == 1 else f" and {len(unknown) - 1} more topics"
            yield (
                f"no source knows the config of {unknown[0]}{more}: recovered with Kafka's "
                "defaults, which decide only how dense rebuilt indexes are"
            )


def _result_of(outcome: Outcome) -> Outcome:
    """Return what a result row tells of an outcome."""
    names: Sequence[str] = ("status", "reason", "error_class", "error")
    if outcome.columns["status"] in {Status.DONE, Status.PLANNED}:
        names = (*names, "bytes_after", "segments_after")
    columns = {name: outcome.columns.get(name) for name in names}
    return Outcome(columns=columns, duration_ms=outcome.duration_ms)


def _named(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    others = len(names) - _MOST_NAMED
    more = f" and {others} more" if others > 0 else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _cuts(outcome: Outcome) -> list[Row]:
    cuts: list[Row] = json.loads(outcome.columns.get("cuts") or "[]")
    return cuts


# Recover chosen logs, each with something more that was planned for it.

_NAMES: Final = ("root", "topic", "partition")
LogKey = tuple[str, str, int]  # of these names
Planned = Mapping[str, Any]  # what is planned for a log, as columns of ``schemas.RECOVERY_WORK``


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecovery:
    """An operation that is planned by a look at other replicas, and done by ``pylog apply``."""

    action: Action
    stages: type[RecoveryStages]
    what: str  # what the logs are, in titles of stages
    planned_by: str  # the command that makes a plan
    planned: Callable[[PlannedPartition], Planned]  # of a saved plan; it raises what is wrong
    notes: Callable[[Iterable[Planned]], Iterable[str]] = lambda _: ()  # what an apply leaves to do
    report: type[RunReport] = RunReport

    def __call__(
        self,
        place: Place,
        roots: Sequence[str | Path],
        options: JobOptions,
        *,
        clock: Clock | None = None,
        saved: SavedPlan | None = None,
        chosen: Mapping[LogKey, Planned] | None = None,
        **told: Any,
    ) -> Any:
        """Do what is planned, log by log. A dry run only says what would be done.

        Args:
            options: What may be cut, and what keeps it.
            clock: For the times in the ledger; what is decided follows ``options.now_ms``.
            chosen: What is planned; None: what the saved plan says.
            **told: What the report has besides.
        """
        log_roots = resolve_roots(roots, role=options.role)
        check_truncation(log_roots, options)
        job = new_job(self.action.value, log_roots, options, clock=clock, saved=saved)
        chosen = self._saved(job.saved) if chosen is None else chosen
        with open_upkeep(place, job) as run:
            logs = self._recover(run, chosen)
        notes = () if saved is None else self.notes(chosen.values())
        return run.report(
            self.report,
            logs.results(),
            notes=[*logs.readable_cut_notes(options.salvage), *notes],
            cuts=logs.cuts(),
            recoveries=logs.recoveries(),
            **told,
        )

    def _saved(self, saved: SavedPlan | None) -> dict[LogKey, Planned]:
        if saved is None:
            raise ConfigError("ACTION", self.action.value, f"is planned by {self.planned_by}")
        try:
            return {
                (each.root, str(each.topic), int(each.partition or 0)): self.planned(each)
                for each in saved.partitions
                if each.action == self.action and each.plan
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("PLAN", saved.run_id, f"is no saved plan: {error}") from error

    def _recover(self, run: Run, chosen: Mapping[LogKey, Planned]) -> RecoveredLogs:
        options = run.job.options
        context = run_context(run.job, run.unclean_roots)
        observed = _observe(run, context, chosen, self.what)
        partitions = settle_plans(run, context, observed, action=self.action.value)
        logs = RecoveredLogs(run, partitions, self.action)
        stages = self.stages(run, context, may_write=not options.dry_run)
        budget = replace(NO_LIMIT, read_bytes=options.tuning.wave_max_bytes)
        for ended in run_waves(run, stages, find_due_logs(partitions), budget=budget):
            logs.end(ended)
        if not options.dry_run:
            logs.record(range(partitions.num_rows))
        return logs


def _observe(
    run: Run, context: RunContext, chosen: Mapping[LogKey, Planned], what: str
) -> pa.Table:
    """Return the rows of ``schemas.RECOVERY_WORK`` of the chosen logs."""
    observe = partial(observe_recovery, context=context)
    observed = run.observe(observe, RECOVERY_WORK, f"look at {what} in {run.job.places}")
    checkpoints = {
        root.location: root_checkpoints(root.location, CHECKPOINT_FILES, strict=False)
        for root in run.job.roots
    }
    keys: Sequence[LogKey] = list(
        zip(*(observed[name].to_pylist() for name in _NAMES), strict=True)
    )
    rows = []
    for row in observed.filter(pa.array([key in chosen for key in keys])).to_pylist():
        entries = checkpoints[row["root"]].entries.get(CLEANER_FILE, {})
        cleaner_offset = entries.get(TopicPartition(row["topic"], row["partition"]))
        columns = chosen[row["root"], row["topic"], row["partition"]]
        rows.append(row | {"cleaner_offset": cleaner_offset} | columns)
    return pa.Table.from_pylist(rows, schema=RECOVERY_WORK)
