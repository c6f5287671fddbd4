"""The driver's table of plans: put in order, checked across directories, turned into results."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from pylog_spark.operations.due_partitions import Outcome
from pylog_spark.schemas import PLAN, RESULT, Reason, Status, rows_to_batch
from storage_core.errors import GuardRefusedError

_KEPT_NAMES: Final = ("root", "topic", "partition", "status", "reason", "error_class", "error")


def sort_plans(plans: pa.Table) -> pa.Table:
    """Return the rows in the order of a report: what is due by falling ratio, then the others.

    Kafka cleans the filthiest log first; equally filthy ones follow by name.
    """
    rows = plans.select(["status", "cleanable_ratio", "topic", "partition", "root"]).to_pylist()

    def urgency(number: int) -> tuple[Any, ...]:
        row = rows[number]
        is_due = row["status"] == Status.PLANNED
        # A directory that is no partition has no topic; it stands last.
        name = (row["topic"] is None, row["topic"] or "", row["partition"] or 0, row["root"])
        return (not is_due, -(row["cleanable_ratio"] or 0.0) if is_due else 0.0, *name)

    return _take(plans, sorted(range(len(rows)), key=urgency))


def refuse_duplicates(plans: pa.Table, brokers: Mapping[str, object]) -> pa.Table:
    """Fail every partition that two directories of one broker hold: which is right is unknown.

    Args:
        plans: Rows of ``schemas.PLAN``.
        brokers: Which broker each root belongs to; roots of equal values are one broker's.
    """
    holders = defaultdict(list)
    rows = plans.select(["root", "topic", "partition", "directory", "reason"]).to_pylist()
    not_a_replica = {
        Reason.FUTURE_DIRECTORY,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INTERNAL_METADATA,
    }
    for number, row in enumerate(rows):
        if row["topic"] is not None and row["reason"] not in not_a_replica:
            holders[brokers[row["root"]], row["topic"], row["partition"]].append(number)
    duplicates = {number: held for held in holders.values() if len(held) > 1 for number in held}
    if not duplicates:
        return plans
    changed = plans.to_pylist()
    for number, held in duplicates.items():
        places = ", ".join(sorted(rows[other]["directory"] for other in held))
        changed[number] |= {
            "status": Status.FAILED.value,
            "reason": Reason.DUPLICATE_PARTITION.value,
            "plan": None,
            "error_class": GuardRefusedError.__name__,
            "error": f"one broker holds this partition in several directories: {places}",
        }
    return pa.Table.from_pylist(changed, schema=PLAN)


def result_rows(
    plans: pa.Table,
    outcomes: Mapping[int, Outcome],
    *,
    run_id: str,
    action: str,
    only: Collection[int] | None = None,
) -> pa.Table:
    """Return the result rows of a run, in the order of its plans.

    Args:
        plans: Rows of ``schemas.PLAN``.
        outcomes: What became of the planned ones, by their number; none for a dry run.
        run_id: The run.
        action: What it did.
        only: The rows that are asked for, None for all.
    """
    rows = []
    columns = [name for name in plans.column_names if name not in {"plan", "segment_bytes"}]
    numbers = range(plans.num_rows) if only is None else sorted(only)
    for number, plan in zip(
        numbers, _take(plans.select(columns), numbers).to_pylist(), strict=True
    ):
        row = {name: plan[name] for name in _KEPT_NAMES} | {
            "run_id": run_id,
            "action": action,
            "bytes_before": plan["bytes"],
            # What is left alone keeps its size.
            "bytes_after": plan["bytes"] if plan["bytes_after"] is None else plan["bytes_after"],
            "segments_before": plan["segments"],
            "duration_ms": plan["duration_ms"],
        }
        outcome = outcomes.get(number)
        if outcome is not None and outcome.has_ended:
            row |= {"bytes_after": None} | outcome.columns
            row["duration_ms"] += outcome.duration_ms
            row.pop("operations", None)
        rows.append(row)
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)


def _take(table: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return table.take(pa.array(numbers, pa.int64()))
