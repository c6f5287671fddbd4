"""``--dry-run=exact``: what compaction would make of each planned partition, to the byte.

Both passes are made as in a run, over all executors, one partition a task; nothing is written.
"""

from dataclasses import replace
from typing import Final

import pyarrow as pa

from pylog_spark.operations.compact.measure_task import RoundMeasurement, measure_partitions
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.planning import WorkItem, pack_units
from pylog_spark.run.run import Run
from pylog_spark.schemas import Action, Failure, Reason, Status
from storage_core.errors import KeylessRecordsError
from storage_core.maintenance.compaction.guards import refuse_keyless

EXACT_NOTE: Final = "what is planned was read and filtered: its figures are exact, no bounds"


def measure_plans(run: Run, plans: pa.Table) -> tuple[pa.Table, dict[int, Outcome]]:
    """Measure the planned rows of a table of plans.

    Args:
        plans: Rows of ``schemas.PLAN``.

    Returns:
        (plans, outcomes): the plans with exact bytes afterwards, and the columns of each result.
    """
    statuses = plans["status"].to_pylist()
    planned = [n for n, status in enumerate(statuses) if status == Status.PLANNED.value]
    if not planned:
        return plans, {}
    # The longest first: it must not be what everything waits for.
    items = (
        WorkItem(
            value=(number, plans["plan"][number].as_py()),
            size_bytes=sum(plans["segment_bytes"][number].as_py()),
            disk=run.disks.of(plans["root"][number].as_py()),
        )
        for number in planned
    )
    units = [unit.values for unit in pack_units(items, unit_bytes=0, per_disk=run.disks.per_disk)]
    title = f"{run.job.title}: measure what {len(planned)} partitions would become"
    outcomes = {}
    exact: dict[str, int] = {}
    sizes = plans["bytes_after"].to_pylist()
    for row in run.engine.ask(units, measure_partitions, RoundMeasurement, title):
        outcome = outcomes[row.ordinal] = Outcome(duration_ms=row.duration_ms)
        if row.failure:
            outcome.fail(row.failure)
            continue
        try:
            if Reason.RECORDS_WITHOUT_KEY not in run.job.options.limits.overrides:
                refuse_keyless(
                    plans["directory"][row.ordinal].as_py(),
                    keyless=row.records_without_key,
                    records=row.messages_read,
                )
        except KeylessRecordsError as error:
            outcome.fail(Failure.of(error))
            outcome.columns["records_without_key"] = row.records_without_key
            continue
        outcome.columns = {
            "status": Status.PLANNED.value,
            "bytes_after": row.bytes_after,
            "segments_after": row.segments_after,
            "records_before": row.records_before,
            "records_after": row.records_after,
            "records_without_key": row.records_without_key or None,
        }
        sizes[row.ordinal] = row.bytes_after
        exact[plans["directory"][row.ordinal].as_py()] = row.bytes_after
    run.planned[:] = [
        replace(noted, figures={**noted.figures, "bytes_after": exact[noted.directory]})
        if noted.action == Action.COMPACT.value and noted.directory in exact
        else noted
        for noted in run.planned
    ]
    place = plans.column_names.index("bytes_after")
    column = pa.array(sizes, pa.int64())
    return plans.set_column(place, plans.schema.field("bytes_after"), column), outcomes
