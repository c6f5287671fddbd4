"""Compact the partitions of log directories: observe, plan, commit, record."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from pylog_spark.config import JobOptions
from pylog_spark.discovery import discover_partitions, resolve_roots
from pylog_spark.operations.broker_root import BrokerRoot
from pylog_spark.operations.dispatch import Dispatcher, run_apart
from pylog_spark.operations.due_partitions import Outcome, RoundLimits
from pylog_spark.operations.guards import check_roots
from pylog_spark.operations.job import (
    OBSERVE_TASKS_PER_SLOT,
    Job,
    brokers_of,
    new_run_id,
    open_recorder,
    run_context,
    unclean_roots,
)
from pylog_spark.operations.plan_table import (
    PartitionName,
    only_planned,
    partition_names,
    refuse_duplicates,
    result_rows,
    sort_plans,
)
from pylog_spark.operations.recording import Recorder
from pylog_spark.operations.rounds import CompactionRounds, Outcomes
from pylog_spark.operations.run_report import RunReport, exit_code_of, summarise
from pylog_spark.planning import Strategy
from pylog_spark.schemas import PLAN, Action, spark_ddl
from pylog_spark.tasks.listing import TopicFilter
from pylog_spark.tasks.observe import observe_partitions
from pylog_spark.tasks.run_context import RunContext
from storage_core.clock import Clock, SystemClock
from storage_core.filenames import TopicPartition
from storage_core.maintenance.compaction.plan import map_capacity

_log: Final = logging.getLogger(__name__)

_NO_BROADCAST: Final = (
    "this session has no broadcast variables: each partition is cleaned whole, in one task"
)


def compact(  # what, where, how; the rest serves other operations and tests
    spark: SparkSession,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    action: str = Action.COMPACT.value,
    strategy: Strategy = Strategy.AUTO,
    clock: Clock | None = None,
) -> RunReport:
    """Compact every partition that is due, as Kafka's log cleaner would.

    Args:
        spark: The session.
        roots: Paths of log directories.
        options: What to do, and how; its dry run writes nothing.
        action: The command that asked for it.
        strategy: How partitions are spread; AUTO leaves it to their sizes.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger.
        GuardRefusedError: A root's role was not said or is read-only, it is locked, roots are of
            several brokers, or the machine's clock is behind the newest checkpoint.
        PylogError: The cluster's metadata or a root's own files cannot be read.
        pyspark.errors.PySparkException: Spark failed.
    """
    started = time.perf_counter()
    clock = clock or SystemClock()
    log_roots = tuple(resolve_roots(roots, said=options.role))
    check_roots(log_roots, options)
    job = Job(run_id=new_run_id(clock), action=action, roots=log_roots, options=options)
    with ExitStack() as stack:
        recorder = open_recorder(spark, job, clock)
        dispatcher = stack.enter_context(Dispatcher(spark, tag=f"pylog-{job.run_id}"))
        if not dispatcher.can_broadcast:
            _log.info(_NO_BROADCAST)
        try:
            if options.dry_run:
                context = run_context(job, unclean_roots(job.roots))
                plans = _observe(spark, dispatcher, job, context)
                outcomes = Outcomes()
            else:
                recorder.start()
                plans, outcomes = _clean(spark, dispatcher, job, recorder, strategy)
        except BaseException as error:
            run_apart("write the run's END row", partial(recorder.fail, error))
            raise
    results = result_rows(plans, outcomes, run_id=job.run_id, action=action)
    summary = summarise(results, duration_ms=round((time.perf_counter() - started) * 1000))
    report = RunReport(
        run_id=job.run_id,
        action=action,
        dry_run=options.dry_run,
        notes=() if dispatcher.can_broadcast else (_NO_BROADCAST,),
        results=results,
        plans=plans,
        summary=summary,
        exit_code=exit_code_of(results),
    )
    recorder.end(summary, exit_code=report.exit_code)
    return report


def _clean(
    spark: SparkSession,
    dispatcher: Dispatcher,
    job: Job,
    recorder: Recorder,
    strategy: Strategy,
) -> tuple[pa.Table, Outcomes]:
    """Observe, plan and clean under the locks of all roots; record each round when it has ended."""
    options = job.options
    with ExitStack() as stack:
        roots = {
            root.location: stack.enter_context(
                BrokerRoot(root.location, run_id=job.run_id, mark_clean=options.mark_clean)
            )
            for root in job.roots
        }
        unclean = frozenset(location for location, root in roots.items() if not root.was_clean)
        context = run_context(job, unclean)
        plans = _observe(spark, dispatcher, job, context)
        for location, points in _reset_points(plans).items():
            roots[location].begin_writing()
            roots[location].write_cleaner_points(points)
        limits = RoundLimits(
            least_unit_bytes=options.tuning.unit_min_bytes,
            most_unit_bytes=options.tuning.unit_max_bytes,
            budget_bytes=options.tuning.broadcast_max_bytes,
            slots=dispatcher.slots,
            can_broadcast=dispatcher.can_broadcast,
            max_keys=map_capacity(options.cleaner),
            strategy=strategy,
        )
        rounds = CompactionRounds(dispatcher, roots, context, limits, title=job.title)
        left, outcomes = plans, Outcomes()
        while left.num_rows:
            ended = _clean_once(rounds, left, recorder, job)
            outcomes |= _merge(plans, outcomes, left, ended)
            if not options.until_clean or not (names := _unfinished(left, ended)):
                break
            left = only_planned(_observe(spark, dispatcher, job, context), names)
    others = {number: Outcome() for number in range(plans.num_rows) if number not in outcomes}
    _record(recorder, plans, others, job)
    return plans, outcomes


def _clean_once(
    rounds: CompactionRounds, plans: pa.Table, recorder: Recorder, job: Job
) -> Outcomes:
    outcomes = Outcomes()
    for ended in rounds.clean(plans):
        outcomes |= ended
        _record(recorder, plans, ended, job)
    return outcomes


def _merge(plans: pa.Table, outcomes: Outcomes, left: pa.Table, ended: Outcomes) -> Outcomes:
    """Return outcomes by their rows in plans, put together with those of former rounds."""
    numbers = {name: number for number, name in enumerate(partition_names(plans))}
    merged = Outcomes()
    for ordinal, name in enumerate(partition_names(left)):
        if ordinal in ended:
            number = numbers[name]
            merged[number] = ended[ordinal].after(outcomes.get(number))
    return merged


def _unfinished(plans: pa.Table, outcomes: Outcomes) -> set[PartitionName]:
    """Return the partitions whose offset map was full before all that is dirty was cleaned."""
    first = plans["first_dirty_offset"].to_pylist()
    end = plans["first_uncleanable_offset"].to_pylist()
    names = partition_names(plans)
    return {
        names[ordinal]
        for ordinal, outcome in outcomes.items()
        if outcome.next_offset is not None and first[ordinal] < outcome.next_offset < end[ordinal]
    }


def _observe(
    spark: SparkSession, dispatcher: Dispatcher, job: Job, context: RunContext
) -> pa.Table:
    """Return the table of plans, most urgent first."""
    options = job.options
    topics = TopicFilter(topics=options.include, exclude=options.exclude)

    def observe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return observe_partitions(batches, context)

    partitions = discover_partitions(spark, job.roots, topics)
    spread = partitions.repartition(OBSERVE_TASKS_PER_SLOT * dispatcher.slots)
    frame = spread.mapInArrow(observe, spark_ddl(PLAN))
    plans = dispatcher.collect(frame, PLAN, f"{job.title}: observe and plan {job.places}")
    return sort_plans(refuse_duplicates(plans, brokers_of(job.roots)))


def _reset_points(plans: pa.Table) -> dict[str, dict[TopicPartition, int]]:
    """Return, by root, the cleaner points that lay outside of their log, corrected.

    They are written back at once, be the partition cleaned or not, as Kafka does.
    """
    points: dict[str, dict[TopicPartition, int]] = {}
    names = ["root", "topic", "partition", "first_dirty_offset", "checkpoint_reset"]
    for row in plans.select(names).to_pylist():
        if row["checkpoint_reset"]:
            partition = TopicPartition(row["topic"], row["partition"])
            points.setdefault(row["root"], {})[partition] = row["first_dirty_offset"]
    return points


def _record(recorder: Recorder, plans: pa.Table, outcomes: Mapping[int, Outcome], job: Job) -> None:
    rows = result_rows(plans, outcomes, run_id=job.run_id, action=job.action, only=outcomes)
    recorder.results(rows)
    recorder.operations(
        plans, {number: outcome.columns.get("operations") for number, outcome in outcomes.items()}
    )
