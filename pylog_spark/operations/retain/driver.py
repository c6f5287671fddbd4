"""Remove what has expired from log directories: observe, plan, commit, record.

Log starts rise in the checkpoint of a directory before its first file goes. A partition that is
compacted is not swept here, but after its compaction, by the same function for another step.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.ledger import last_limits
from pylog_spark.operations.observation.driver import Observation
from pylog_spark.operations.retain.deletion_guard import FormerLimits, TopicPlace, refuse_deletions
from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
    commit_sweeps,
    observe_newest,
)
from pylog_spark.options import JobOptions
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import read_planned, result_rows
from pylog_spark.run.planning import Demand, WorkItem, pack_units
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import SWEEP, settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import (
    ALLOWED_BY,
    NEWEST_RECORD,
    RETENTION,
    Action,
    Reason,
    Status,
)
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.admission import Step
from pylog_spark.tasks.message import PartitionCommit
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource
from storage_core.checkpoint.checkpoints import log_start_entry
from storage_core.clock import Clock
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.roots.root import HeldRoot

# Some renames and a sync: about as long as reading this much.
_SEGMENT_BYTES: Final = 256 * 1024
# What the pass over compacted partitions has nothing to say of.
_OUT_OF_SCOPE: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
        Reason.NOT_COMPACTED,
        Reason.CLEANER_DISABLED,
        Reason.CONFIG_UNKNOWN,
        Reason.NOTHING_TO_RETAIN,
        Reason.COMPACTED,
    }
)


def retain(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    saved: SavedPlan | None = None,
) -> RunReport:
    """Remove the segments that have expired, as Kafka's log manager would.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        roots: Paths of log directories.
        options: What to do, and how; its dry run writes nothing.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger; or the file
            of ``options.plan_in`` is no plan.
        GuardRefusedError: A root's role was not said or is read-only, it is locked, roots are of
            several brokers, or the machine's clock is behind the newest checkpoint.
        PylogError: The cluster's metadata or a root's own files cannot be read.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
    check_roots(log_roots, options)
    job = new_job(Action.RETAIN.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        context = run_context(job, run.unclean_roots)
        step = retain_step(run, Observation(run, context, {Step.RETAIN}))
    return run.report(RunReport, step.results, notes=step.notes, retentions=step.retentions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What a sweep over a run's partitions found and did.

    Attributes:
        results: Rows of ``schemas.RESULT``.
        retentions: Rows of ``schemas.RETENTION``, in the same order.
        notes: What a reader should know of it, line by line.
    """

    results: pa.Table
    retentions: pa.Table
    notes: tuple[str, ...] = ()


@log_fields(step=Action.RETAIN.value)
def retain_step(
    run: Run,
    observation: Observation,
    *,
    step: Step = Step.RETAIN,
    excluded: frozenset[str] = frozenset(),
) -> RetentionStep:
    """Remove expired segments in an open run; a dry run only plans.

    Args:
        run: The run; each wave is in its record when this returns.
        observation: What was seen of its partitions.
        step: RETAIN, or SWEEP for partitions that are compacted, after their compaction. Of
            these only the ones in which something goes, or went wrong, have rows.
        excluded: Partition directories that are left alone: their compaction failed.

    Raises:
        StorageError: A root's own files cannot be read or written.
        pyspark.errors.PySparkException: Spark failed.
    """
    job, context = run.job, observation.context
    shared = RetentionContext(
        run=context,
        step=step,
        excluded=excluded,
        unlink=not job.options.keep_deleted,
        with_operations=job.options.dry_run,
    )
    observed = observation.rows(step, excluded=excluded)
    plans = _sort(observed)
    if step is Step.SWEEP:
        plans = _swept_rows(plans)
    plans = settle_plans(
        run,
        context,
        plans,
        action=Action.RETAIN.value if step is Step.RETAIN else SWEEP,
    )
    plans = refuse_deletions(
        plans, job.options.limits, RunEvidence(run, context), observed=observed
    )
    outcomes: Outcomes = {}
    if not job.options.dry_run:
        # Before anything goes: of a run that is killed the ledger would say, by the rows of what
        # went, that a limit was enforced which in another partition of the topic was refused.
        refused = _refused(plans)
        run.recorder.outcomes(plans, refused, action=Action.RETAIN.value)
        due = list(read_planned(SweepWork, plans))
        for ended in run_waves(run, SweepStages(run, shared), due):
            outcomes |= ended
            observation.note_changes(plans, ended)
            run.recorder.outcomes(plans, ended, action=Action.RETAIN.value)
        drop_stale_log_starts(run, observed)
        said = outcomes.keys() | refused.keys()
        others = {n: Outcome() for n in range(plans.num_rows) if n not in said}
        run.recorder.outcomes(plans, others, action=Action.RETAIN.value)
    return RetentionStep(
        results=result_rows(plans, outcomes, run_id=job.run_id, action=Action.RETAIN.value),
        retentions=_retentions(plans, outcomes),
    )


def _sort(plans: pa.Table) -> pa.Table:
    """Return the rows, largest losses first, then by name.

    This is the order of a report.
    """
    is_left = pc.not_equal(plans["status"], Status.PLANNED.value)
    lost = pc.if_else(is_left, 0, pc.fill_null(plans["deleted_bytes"], 0))
    # A directory that is no partition has no topic; it stands last, as nulls do.
    keyed = plans.select(["topic", "partition", "root", "directory"])
    keyed = keyed.append_column("is_left", is_left.cast(pa.int8())).append_column("lost", lost)
    keys = [("is_left", "ascending"), ("lost", "descending")]
    keys += [(name, "ascending") for name in ("topic", "partition", "root", "directory")]
    return plans.take(pc.sort_indices(keyed, sort_keys=keys))


def _swept_rows(plans: pa.Table) -> pa.Table:
    """Return the rows of compacted partitions with something to tell."""
    silent = pa.array(sorted(reason.value for reason in _OUT_OF_SCOPE))
    return plans.filter(pc.invert(pc.is_in(plans["reason"], silent)))


def _refused(plans: pa.Table) -> Outcomes:
    """Return the outcomes of the rows that the guard of deletions refused."""
    is_refused = pc.is_in(plans["reason"], pa.array(sorted(ALLOWED_BY), pa.string()))
    return {number: Outcome() for number in pc.indices_nonzero(is_refused).to_pylist()}


def _retentions(plans: pa.Table, outcomes: Mapping[int, Outcome]) -> pa.Table:
    """Return the retention of each partition, as rows of ``schemas.RETENTION``.

    They say what went, or would, and what keeps the rest.
    """
    statuses = plans["status"].to_pylist()
    for number, outcome in outcomes.items():
        statuses[number] = outcome.columns.get("status", statuses[number])
    place = plans.schema.get_field_index("status")
    settled = plans.set_column(place, plans.schema.field("status"), pa.array(statuses, pa.string()))
    looked = settled.filter(pc.is_valid(settled["old_log_start_offset"]))
    return looked.select(RETENTION.names).cast(RETENTION)


class RunEvidence:
    """The evidence of one run, gathered on demand.

    What costs a stage is looked for once.

    Args:
        run: The run.
        context: What its tasks share.
    """

    def __init__(self, run: Run, context: RunContext) -> None:
        self._run = run
        self._context = context
        self._doubts: dict[tuple[str, str, str], str | None] = {}
        self._newest: dict[TopicPlace, int] | None = None

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        return self._context.now_ms

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting may not be the cluster's own, or None."""
        place = (root, topic, key)
        if place not in self._doubts:
            found = self._doubt(root, topic, key)
            self._doubts[place] = None if found is None else f"its {key} {found}"
        return self._doubts[place]

    def _doubt(self, root: str, topic: str, key: str) -> str | None:
        options, catalog = self._run.job.options, self._context.catalogs[root]
        entry = catalog.find(topic)
        if entry is None or entry.source is TopicConfigSource.ASSUMED:
            return "is an assumed default (--assume-defaults)"
        if key in catalog.explicit_settings(topic):
            return "is what --set or a --config file says"
        if entry.source is TopicConfigSource.EXPLICIT:
            return "is a default of a topic that only a --config file knows"
        if entry.source is TopicConfigSource.IMPORTED_DUMP and self._is_old(entry.taken_ms):
            return "is of a --topic-dump that is older than topic_dump_max_age"
        return None if key in entry.config_overrides else _doubt_default(key, catalog, options)

    def _is_old(self, taken_ms: int | None) -> bool:
        """Whether an export was made too long ago, or nobody knows when."""
        max_age_ms = self._run.job.options.topic_dump_max_age_ms
        return taken_ms is None or self.now_ms - taken_ms > max_age_ms

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of each topic's newest record.

        The topics are all that the run is about.
        """
        if self._newest is None:
            what = f"find the newest records in {self._run.job.places}"
            found = self._run.observe(observe_newest, NEWEST_RECORD, what)
            names = ["root", "topic", "newest_timestamp"]
            self._newest = {}
            for row in found.select(names).to_pylist():
                place, at = (row["root"], row["topic"]), row["newest_timestamp"]
                if at is not None:
                    self._newest[place] = max(at, self._newest.get(place, at))
        return self._newest

    def checkpoint_ms(self, root: str) -> int | None:
        """Return the time of the broker's last checkpoint write.

        None where that tells nothing.

        It is the time of a file by the machine's clock: no measure of a clock that somebody said.
        """
        return None if self._run.job.options.now_is_said else self._run.checkpoint_times.get(root)

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics.

        Raises:
            PylogError: The ledger cannot be read.
            pyspark.errors.PySparkException: The same, where Spark reads.
        """
        job, engine = self._run.job, self._run.engine
        ledger, names = job.options.ledger, {topic for _, topic in topics}
        if ledger is None:
            return {}

        def ask() -> list[dict[str, Any]]:
            return last_limits(
                self._run.place,
                ledger,
                names,
                run_id=job.run_id,
                # Nobody has made the ledger yet, and a dry run does not.
                may_be_missing=job.options.dry_run,
            )

        engine.describe(f"{job.title}: what retention topics had")
        found = engine.wait_for(engine.alongside(ask))
        return {
            (row["root"], row["topic"]): FormerLimits(
                row["run_id"], row["retention_ms"], row["retention_bytes"]
            )
            for row in found
        }


def _doubt_default(key: str, catalog: TopicCatalog, options: JobOptions) -> str | None:
    """Return why a broker-wide value may not be the broker's own.

    None if it is.
    """
    names = {name.name for name in TOPIC_KEYS[key].broker_names}
    if names & options.broker_overrides.keys():
        return "is what --set says of the broker"
    if names & catalog.broker.keys() or options.broker_settings:
        return None
    return "is Kafka's default: the broker's own is in no --server-properties"


class SweepStages:
    """Sweeps the partitions of a wave.

    Args:
        run: The run; it holds the roots.
        context: What its tasks share.
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
        """Write the log starts of a wave's partitions in one root.

        A partition that did not lose a file has its old log start back.
        """
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
    """Drop needless log-start entries, as Kafka does.

    An entry is needless where the log's first segment begins there.

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
