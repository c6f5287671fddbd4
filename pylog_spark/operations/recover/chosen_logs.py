"""Recover some partitions, each with something more that was planned for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from pylog_spark.operations.recover.recovered_logs import RecoveredLogs
from pylog_spark.operations.recover.task import observe_recovery
from pylog_spark.operations.recover.waves import RecoveryStages, find_due_logs
from pylog_spark.run.job import run_context
from pylog_spark.run.run import Run
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.run.waves import NO_LIMIT, run_waves
from pylog_spark.schemas import RECOVERY_WORK, Action
from pylog_spark.tasks.run_context import RunContext
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES
from storage_core.filenames import CLEANER_FILE, TopicPartition
from storage_core.roots.open_root import root_checkpoints

_NAMES: Final = ("root", "topic", "partition")
# Of these names.
LogKey = tuple[str, str, int]


def recover_chosen(
    run: Run,
    columns_of: Mapping[LogKey, Mapping[str, Any]],
    stages_type: type[RecoveryStages],
    *,
    action: Action,
    what: str,
) -> RecoveredLogs:
    """Recover some partitions of an open run; a dry run only reports.

    Args:
        columns_of: What is planned for each, as columns of ``schemas.RECOVERY_WORK``, by root,
            topic and partition.
        what: What they are, for Spark's user interface.
    """
    options = run.job.options
    context = run_context(run.job, run.unclean_roots)
    observed = _observe(run, context, columns_of, what)
    partitions = settle_plans(run, context, observed, action=action.value)
    logs = RecoveredLogs(run, partitions, action)
    stages = stages_type(run, context, may_write=not options.dry_run)
    budget = replace(NO_LIMIT, read_bytes=options.tuning.wave_max_bytes)
    for ended in run_waves(run, stages, find_due_logs(partitions), budget=budget):
        logs.end(ended)
    if not options.dry_run:
        logs.record(range(partitions.num_rows))
    return logs


def _observe(
    run: Run, context: RunContext, columns_of: Mapping[LogKey, Mapping[str, Any]], what: str
) -> pa.Table:
    """Return the rows of ``schemas.RECOVERY_WORK`` of the partitions that were columns_of."""

    def observe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return observe_recovery(batches, context)

    observed = run.observe(observe, RECOVERY_WORK, f"look at {what} in {run.job.places}")
    checkpoints = {
        root.location: root_checkpoints(root.location, CHECKPOINT_FILES, strict=False)
        for root in run.job.roots
    }
    keys: Sequence[LogKey] = list(
        zip(*(observed[name].to_pylist() for name in _NAMES), strict=True)
    )
    rows = []
    for row in observed.filter(pa.array([key in columns_of for key in keys])).to_pylist():
        entries = checkpoints[row["root"]].entries.get(CLEANER_FILE, {})
        cleaner_offset = entries.get(TopicPartition(row["topic"], row["partition"]))
        columns = columns_of[row["root"], row["topic"], row["partition"]]
        rows.append(row | {"cleaner_offset": cleaner_offset} | columns)
    return pa.Table.from_pylist(rows, schema=RECOVERY_WORK)
