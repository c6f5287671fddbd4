"""Remove what has expired from log directories: observe, plan, commit, record.

Log starts rise in the checkpoint of a directory before its first file goes. A partition that is
compacted is not swept here, but after its compaction, by the same function for another step.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.ledger import last_limits
from pylog_spark.operations.observation import Observation
from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
    commit_sweeps,
    observe_newest,
)
from pylog_spark.options import JobOptions, RunLimits
from pylog_spark.outcomes import ALLOWED_BY, Action, Reason, Status
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import Outcome, read_planned, result_rows, sort_rows
from pylog_spark.run.planning import Demand, WorkItem, pack_units
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import SWEEP, settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import NEWEST_RECORD, RETENTION
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.message import PartitionCommit
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource
from storage_core.checkpoint.checkpoints import log_start_entry
from storage_core.clock import Clock
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.errors import StorageError
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.roots.root import HeldRoot
from storage_core.wording import span_text, time_text

# Guard a retention against a wrong config or a wrong clock. It has the last word on what retention
# takes.
#
# What Kafka would delete goes where the topic's limits are the cluster's own and the clock is not
# suspect. Elsewhere no more than a share goes: where the limits are second-hand, where they were
# much longer at the last run, and where a topic that is still written to would lose everything.

# A topic that had a record so shortly before the newest of all is still written to.
STILL_WRITTEN_MS: Final = 24 * 3_600_000
# A limit that was more than so many times what it is now was much longer.
MUCH_LONGER: Final = 2
# What takes segments, and what of a topic decides about that; also the names of columns.
_LIMITS: Final = {
    "by_time_bytes": ("retention.ms", "retention_ms"),
    "by_size_bytes": ("retention.bytes", "retention_bytes"),
}
_COLUMNS: Final = (
    *("root", "topic", "partition", "directory", "status", "bytes"),
    *("by_size_bytes", "by_time_bytes", "retention_ms", "retention_bytes"),
)
_LOOKED_AT: Final = ("topic", "directory", "bytes", "newest_timestamp", "blocked_timestamp")

Row = Mapping[str, Any]
Refusal = tuple[Reason, str]
# Root and topic.
TopicPlace = tuple[str, str]


class FormerLimits(NamedTuple):
    """A topic's retention limits at their last enforcement. -1 is no limit, None unknown."""

    run_id: str
    retention_ms: int | None
    retention_bytes: int | None


class Evidence(Protocol):
    """What speaks for or against deletions, beside what was observed."""

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        ...

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting may not be the cluster's own, or None."""
        ...

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of each topic's newest record. The topics are all that the run is
        about."""
        ...

    def checkpoint_ms(self, root: str) -> int | None:
        """Return the time of the broker's last checkpoint write. None where that tells nothing."""
        ...

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics."""
        ...


def refuse_deletions(
    plans: pa.Table, limits: RunLimits, evidence: Evidence, *, observed: pa.Table | None = None
) -> pa.Table:
    """Turn plans that may not be carried out into skipped rows. What an operator asked to be
    deleted, by raising a log's start, counts for nothing here.

    Args:
        plans: Rows of ``schemas.RETENTION_PLAN`` that are to be carried out, or reported.
        limits: How much may go, and which guards are overridden.
        evidence: What else is known; asked only where something is in doubt.
        observed: Rows of all partitions that were looked at: they say what is whole, and how late
            it is; None where these are the plans.
    """
    numbers = pc.indices_nonzero(pc.equal(plans["status"], Status.PLANNED.value))
    rows = plans.select(list(_COLUMNS)).take(numbers).to_pylist()
    planned = zip(numbers.to_pylist(), rows, strict=True)
    losing = {number: row for number, row in planned if _expired_bytes(row)}
    if not losing:
        return plans
    looked = (plans if observed is None else observed).select(list(_LOOKED_AT)).to_pylist()
    refusals = _Shares(losing, looked, limits.max_delete_ratio).refuse(evidence)
    if Reason.CLOCK_PAST_RETENTION not in limits.overrides:
        refusals |= _find_wrong_clocks(losing, looked, evidence)
    if not refusals:
        return plans
    changed = {name: plans[name].to_pylist() for name in ("status", "reason", "error")}
    for number, (reason, why) in refusals.items():
        changed["status"][number] = Status.SKIPPED.value
        changed["reason"][number] = reason.value
        changed["error"][number] = why
    for name, values in changed.items():
        place = plans.schema.get_field_index(name)
        plans = plans.set_column(place, plans.schema.field(name), pa.array(values, pa.string()))
    return plans


class _Excess(NamedTuple):
    """An excessive loss: its place, lost bytes and total bytes. It is a loss of the run, a topic
    or a partition directory."""

    what: str
    lost: int
    total: int


class _Shares:
    """The lost shares of the run, its topics and its partitions."""

    def __init__(self, losing: Mapping[int, Row], looked: Sequence[Row], most: float) -> None:
        self._losing = losing
        self._most = most
        self._totals: dict[str, int] = defaultdict(int)
        for row in looked:
            for what in _wholes(row):
                self._totals[what] += row["bytes"] or 0

    def refuse(self, evidence: Evidence) -> dict[int, Refusal]:
        """Return the rows to refuse for too large a loss.

        They would lose more than the share on a word that is not good enough for that.
        """
        candidates = self._excesses(self._losing)
        held = self._hold(candidates, evidence)
        refusals = {}
        for number, (what, lost, total) in self._excesses(held).items():
            why = (
                f"{lost} of the {total} bytes of {what} would go, {lost / total:.0%}, and "
                f"{held[number]}: --max-delete-ratio {self._most:g} allows less; "
                f"{ALLOWED_BY[Reason.DELETES_TOO_MUCH]} allows it"
            )
            refusals[number] = (Reason.DELETES_TOO_MUCH, why)
        return refusals

    def _excesses(self, numbers: Collection[int]) -> dict[int, _Excess]:
        """Return what some rows, if they go together, take too much of."""
        lost: dict[str, int] = defaultdict(int)
        for number in numbers:
            for what in _wholes(self._losing[number]):
                lost[what] += _expired_bytes(self._losing[number])
        excesses = {}
        for number in numbers:
            # The smallest whole is the one to hear of.
            for what in reversed(_wholes(self._losing[number])):
                if lost[what] > self._most * self._totals[what]:
                    excesses[number] = _Excess(what, lost[what], self._totals[what])
                    break
        return excesses

    def _hold(self, candidates: Collection[int], evidence: Evidence) -> dict[int, str]:
        """Return the rows for which the share counts, and why it does."""
        if not candidates:
            return {}
        held = {
            number: why
            for number, row in self._losing.items()
            if (why := _second_hand(row, evidence)) is not None
        }
        rows = {n: self._losing[n] for n in candidates if n not in held}
        held |= self._whole_topics(rows, evidence)
        rows = {number: row for number, row in rows.items() if number not in held}
        if rows:
            try:
                former = evidence.former_limits(
                    {(row["root"], row["topic"]) for row in rows.values()}
                )
            except StorageError as error:
                # What a ledger cannot say stops these deletions, and hides no work of the run.
                return held | dict.fromkeys(rows, f"its former limits cannot be read: {error}")
            for number, row in rows.items():
                why = _was_much_longer(row, former.get((row["root"], row["topic"])))
                if why is not None:
                    held[number] = why
        return held

    def _whole_topics(self, rows: Mapping[int, Row], evidence: Evidence) -> dict[int, str]:
        """Return the rows of live topics about to lose everything."""
        lost: dict[str, int] = defaultdict(int)
        for row in self._losing.values():
            lost[row["topic"]] += _expired_bytes(row)
        whole = {
            number: row
            for number, row in rows.items()
            if lost[row["topic"]] >= self._totals[f"topic {row['topic']}"]
        }
        if not whole:
            return {}
        newest: dict[str, int] = {}
        for (_, topic), at in evidence.newest_records().items():
            # A record of the future says that its topic was written to, not when.
            newest[topic] = max(newest.get(topic, 0), min(at, evidence.now_ms))
        latest = max(newest.values(), default=0)
        return {
            number: f"topic {row['topic']} is still written to and would lose everything"
            for number, row in whole.items()
            if newest.get(row["topic"], 0) >= latest - STILL_WRITTEN_MS
        }


def _wholes(row: Row) -> tuple[str, ...]:
    """Return what a partition is part of, the largest first."""
    if row["topic"] is None:
        return ("the run",)
    return "the run", f"topic {row['topic']}", row["directory"]


def _second_hand(row: Row, evidence: Evidence) -> str | None:
    """Return why a row's limit may not be the cluster's own. Only limits by which something goes
    are asked about; None if they are the cluster's own."""
    for loss_column, (key, _) in _LIMITS.items():
        if row[loss_column]:
            doubt = evidence.doubt(row["root"], row["topic"], key)
            if doubt is not None:
                return doubt
    return None


def _was_much_longer(row: Row, former: FormerLimits | None) -> str | None:
    """Return the limit with a much longer value at its last enforcement. None if there is none."""
    if former is None:
        return None
    for loss_column, (key, column) in _LIMITS.items():
        before, now = getattr(former, column), row[column]
        if not row[loss_column] or before is None:
            continue
        if before < 0 or before > MUCH_LONGER * now:
            was = "without limit" if before < 0 else str(before)
            return f"its {key} was {was} in run {former.run_id} and is {now}"
    return None


def _find_wrong_clocks(
    losing: Mapping[int, Row], looked: Sequence[Row], evidence: Evidence
) -> dict[int, Refusal]:
    """Return the rows to refuse because of a suspect clock. They lose something by age, and the
    clock is far from every time known.

    A clock that is ahead makes every record too old; one record written lately, in whatever
    partition, shows that it is not, and so does a checkpoint of the broker.
    """
    aged = {number: row for number, row in losing.items() if row["by_time_bytes"]}
    if not aged:
        return {}
    now_ms, shortest = evidence.now_ms, min(row["retention_ms"] for row in aged.values())
    newest = max(
        (row[name] for row in looked for name in _TIMES if row[name] is not None), default=0
    )
    if now_ms - newest > shortest:
        # What was read on the way does not show it: look at the end of every partition.
        newest = max([newest, *evidence.newest_records().values()])
    refusals: dict[int, Refusal] = {}
    for number, row in aged.items():
        limit, checkpoint = row["retention_ms"], evidence.checkpoint_ms(row["root"])
        if now_ms - newest > limit:
            sign = f"the newest record of all partitions is of {time_text(newest)}"
        elif checkpoint is not None and now_ms - checkpoint > limit:
            sign = f"the newest checkpoint in {row['root']} is of {time_text(checkpoint)}"
        else:
            continue
        why = (
            f"the clock says {time_text(now_ms)}, and {sign}: that is longer ago than "
            f"retention.ms, {limit} ({span_text(limit)}); if the clock is right, "
            f"{ALLOWED_BY[Reason.CLOCK_PAST_RETENTION]}"
        )
        refusals[number] = (Reason.CLOCK_PAST_RETENTION, why)
    return refusals


_TIMES: Final = ("newest_timestamp", "blocked_timestamp")


def _expired_bytes(row: Row) -> int:
    if row["status"] != Status.PLANNED:
        return 0
    return int(row["by_size_bytes"] or 0) + int(row["by_time_bytes"] or 0)


# Gather what speaks against deletions: doubtful configs, newest records, former limits.


class RunEvidence:
    """The evidence of one run, gathered on demand. What costs a stage is looked for once."""

    def __init__(self, run: Run, context: RunContext) -> None:
        self._run = run
        self._context = context
        self._doubts: dict[tuple[str, str, str], str | None] = {}
        self._newest: dict[TopicPlace, int] | None = None

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        return self._run.job.options.now_ms

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting may not be the cluster's own, or None."""
        place = (root, topic, key)
        if place not in self._doubts:
            doubt = self._doubt(root, topic, key)
            self._doubts[place] = None if doubt is None else f"its {key} {doubt}"
        return self._doubts[place]

    def _doubt(self, root: str, topic: str, key: str) -> str | None:
        options, catalog = self._run.job.options, self._context.catalogs[root]
        entry = catalog.find(topic)
        if entry is None or entry.source is TopicConfigSource.ASSUMED:
            return "is an assumed default (--assume-defaults)"
        if key in catalog.explicit_settings(topic):
            return "is what --set or a --config file says"
        if entry.source is TopicConfigSource.EXPLICIT:
            if key in entry.config_overrides:
                return "is what a --config file said at the ingest"
            return "is a default of a topic that only a --config file knows"
        if entry.source is TopicConfigSource.IMPORTED_DUMP and self._is_old(entry.taken_ms):
            return "is of a --topic-dump that is older than topic_dump_max_age"
        return None if key in entry.config_overrides else _doubt_default(key, catalog, options)

    def _is_old(self, taken_ms: int | None) -> bool:
        """Whether an export was made too long ago, or nobody knows when."""
        max_age_ms = self._run.job.options.topic_dump_max_age_ms
        return taken_ms is None or self.now_ms - taken_ms > max_age_ms

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of each topic's newest record. The topics are all that the run is
        about."""
        if self._newest is None:
            what = f"find the newest records in {self._run.job.places}"
            table = self._run.observe(observe_newest, NEWEST_RECORD, what)
            names = ["root", "topic", "newest_timestamp"]
            self._newest = {}
            for row in table.select(names).to_pylist():
                place, at = (row["root"], row["topic"]), row["newest_timestamp"]
                if at is not None:
                    self._newest[place] = max(at, self._newest.get(place, at))
        return self._newest

    def checkpoint_ms(self, root: str) -> int | None:
        """Return the time of the broker's last checkpoint write. None where that tells nothing.

        It is the time of a file by the machine's clock: no measure of a clock that somebody said.
        """
        return None if self._run.job.options.now_is_said else self._run.checkpoint_times.get(root)

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics."""
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
        rows = engine.wait_for(engine.alongside(ask))
        return {
            (row["root"], row["topic"]): FormerLimits(
                row["run_id"], row["retention_ms"], row["retention_bytes"]
            )
            for row in rows
        }


def _doubt_default(key: str, catalog: TopicCatalog, options: JobOptions) -> str | None:
    """Return why a broker-wide value may not be the broker's own. None if it is."""
    names = {name.name for name in TOPIC_KEYS[key].broker_names}
    if names & options.broker_overrides.keys():
        return "is what --set says of the broker"
    if names & catalog.broker.keys() or options.broker_settings:
        return None
    return "is Kafka's default: the broker's own is in no --server-properties"


# Sweep a wave of partitions: raise log starts, then remove segments. After that the log starts
# that stay are written.

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
    segment begins there. A run that was killed after its commits has left them.

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


# Reasons that the sweep of compacted partitions does not report.
_OUT_OF_SCOPE: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
        Reason.NOT_COMPACTED,
        Reason.CLEANER_DISABLED,
        Reason.CONFIG_UNKNOWN,
        Reason.METADATA_UNKNOWN,
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
        options: What to do, and how; its dry run writes nothing.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_roots(log_roots, options)
    job = new_job(Action.RETAIN.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        context = run_context(job, run.unclean_roots)
        step = retain_step(run, Observation(run, context, {Step.RETAIN}))
    return run.report(RunReport, step.results, notes=step.notes, retentions=step.retentions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What a sweep over a run's partitions found and did."""

    results: pa.Table  # rows of ``schemas.RESULT``
    retentions: pa.Table  # rows of ``schemas.RETENTION``, in the same order
    notes: tuple[str, ...] = ()  # what a reader should know of it, line by line


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
        step: RETAIN, or SWEEP for partitions that are compacted, after their compaction. Of these
            only the ones in which something goes, or went wrong, have rows.
        excluded: Partition directories that are left alone: their compaction failed.
    """
    job, context = run.job, observation.context
    shared = RetentionContext(
        run=context,
        step=step,
        excluded=excluded,
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
        ordinals = outcomes.keys() | refused.keys()
        others = {n: Outcome() for n in range(plans.num_rows) if n not in ordinals}
        run.recorder.outcomes(plans, others, action=Action.RETAIN.value)
    return RetentionStep(
        results=result_rows(plans, outcomes, run_id=job.run_id, action=Action.RETAIN.value),
        retentions=_retentions(plans, outcomes),
    )


def _sort(plans: pa.Table) -> pa.Table:
    """Return the rows, largest losses first, then by name. This is the order of a report."""
    is_left = pc.not_equal(plans["status"], Status.PLANNED.value)
    lost = pc.if_else(is_left, 0, pc.fill_null(plans["deleted_bytes"], 0))
    order = (is_left.cast(pa.int8()), "ascending"), (lost, "descending")
    return sort_rows(plans, *order, names=("topic", "partition", "root", "directory"))


def _swept_rows(plans: pa.Table) -> pa.Table:
    """Return the rows of compacted partitions with something to tell."""
    silent = pa.array(sorted(reason.value for reason in _OUT_OF_SCOPE))
    return plans.filter(pc.invert(pc.is_in(plans["reason"], silent)))


def _refused(plans: pa.Table) -> Outcomes:
    """Return the outcomes of the rows that the guard of deletions refused."""
    is_refused = pc.is_in(plans["reason"], pa.array(sorted(ALLOWED_BY), pa.string()))
    return {number: Outcome() for number in pc.indices_nonzero(is_refused).to_pylist()}


def _retentions(plans: pa.Table, outcomes: Mapping[int, Outcome]) -> pa.Table:
    """Return the retention of each partition, as rows of ``schemas.RETENTION``. They say what
    went, or would, and what keeps the rest."""
    statuses = plans["status"].to_pylist()
    for number, outcome in outcomes.items():
        statuses[number] = outcome.columns.get("status", statuses[number])
    place = plans.schema.get_field_index("status")
    settled = plans.set_column(place, plans.schema.field("status"), pa.array(statuses, pa.string()))
    looked = settled.filter(pc.is_valid(settled["old_log_start_offset"]))
    return looked.select(RETENTION.names).cast(RETENTION)
