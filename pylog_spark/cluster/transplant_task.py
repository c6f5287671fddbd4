"""Plan what becomes of partitions of a source, and build their replicas."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pylog_spark.outcomes import Status
from pylog_spark.schemas import PartitionName, TransplantRow
from pylog_spark.tasks.message import attempt
from storage_core.checkpoint.lock import share_lock
from storage_core.cluster.transplant.plan import Assignment, open_log, plan_transplant
from storage_core.cluster.transplant.replica import build_replicas
from storage_core.coordinators.transactions import TransactionCoordinators
from storage_core.errors import ChangedWhileReadError
from storage_core.filenames import TopicPartition, parse_partition_directory
from storage_core.roots.broker import BrokerAccess
from storage_core.wording import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContext:
    """What tasks are told that build replicas: values only."""

    access: Mapping[Path, BrokerAccess]  # the target's log directories under their locks, by path
    scratches: Mapping[Path, Path]  # the folder in each of them where replicas are built
    coordinators: TransactionCoordinators  # what the source's coordinators know of transactions


def plan_transplants(
    assignments: Sequence[Assignment], coordinators: TransactionCoordinators
) -> Iterator[TransplantRow]:
    """Read the logs of partitions, and yield what becomes of each."""
    for each in assignments:
        head = TransplantRow(
            name=PartitionName(
                root=str(Path(each.places[0].location).parent),
                topic=each.source.topic,
                partition=each.source.partition,
            ),
            target=str(each.target.partition),
            status=Status.FAILED.value,
        )
        yield attempt(head, partial(_plan, each, coordinators), head.name)


def build_transplants(
    planned: Sequence[tuple[Assignment, TransplantRow]], context: TargetContext
) -> Iterator[TransplantRow]:
    """Build the replicas of planned partitions; yield each as done. They have no names yet in
    their log directories."""
    for assignment, row in planned:
        head = replace(row, status=Status.FAILED.value)
        yield attempt(head, partial(_build, assignment, context), row.name)


def _plan(
    assignment: Assignment, coordinators: TransactionCoordinators, head: TransplantRow
) -> TransplantRow:
    plan = plan_transplant(assignment, coordinators)
    row = replace(
        head,
        status=Status.PLANNED.value,
        detail=plan.detail,
        source=plan.location or None,
        directories=tuple(str(home / str(assignment.target.partition)) for home in plan.homes),
        undecided_transactions=plan.undecided_transactions,
        undecided_records=plan.undecided_records,
    )
    if plan.location:
        row = replace(row, name=replace(row.name, root=str(Path(plan.location).parent)))
    if plan.reason is not None:
        return replace(row, status=Status.SKIPPED.value, reason=plan.reason.value)
    if plan.is_done:
        detail = "a former call has written it"
        row = replace(row, status=Status.SKIPPED.value, detail=detail)
    return replace(
        row,
        topic_id=assignment.target.topic_id,
        leader_epoch=assignment.target.leader_epoch,
        log_start_offset=plan.log_start_offset,
        log_end_offset=plan.log_end_offset,
        newest_ms=None if plan.newest_ms < 0 else plan.newest_ms,
        aborted_transactions=plan.aborted_transactions,
        aborted_records=plan.aborted_records,
        committed_transactions=plan.committed_transactions,
        committed_records=plan.committed_records,
        cut_bytes=plan.cut_bytes,
        size_bytes=plan.size_bytes,
    )


def _build(assignment: Assignment, context: TargetContext, head: TransplantRow) -> TransplantRow:
    homes = homes_of(head)
    with ExitStack() as shares:
        # Nobody else gets a log directory while something is written there.
        for home in homes:
            shares.enter_context(share_lock(context.access[home].lock))
        log = open_log(assignment, str(head.source), context.coordinators)
        planned = (head.log_start_offset, head.log_end_offset, head.size_bytes)
        now = (log.source.log_start_offset, log.log_end_offset, log.size_bytes)
        if now != planned:
            raise ChangedWhileReadError(str(head.source), _extent_text(planned), _extent_text(now))
        build_replicas(log, [context.scratches[home] for home in homes])
    return replace(head, status=Status.DONE.value)


def homes_of(row: TransplantRow) -> tuple[Path, ...]:
    """Return the log directories of the target that get a partition."""
    return tuple(Path(directory).parent for directory in row.directories or ())


def target_of(row: TransplantRow) -> TopicPartition:
    """Return the partition of the target that a row is about."""
    return parse_partition_directory(str(row.target))


def _extent_text(extent: tuple[int | None, int | None, int | None]) -> str:
    start, end, size_bytes = extent
    return f"offsets from {start} to {end} in {count_text(size_bytes or 0, 'byte')}"
