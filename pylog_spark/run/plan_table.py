"""The driver's table of plans: put in order, checked across directories, turned into results."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options import Order
from pylog_spark.run.outcome import Outcome
from pylog_spark.schemas import RESULT, Reason, Status, rows_to_batch
from storage_core.errors import GuardRefusedError
from storage_core.filenames import directory_state
from storage_core.store.generations import unpinned

_KEPT_NAMES: Final = (
    *("root", "topic", "partition", "directory", "status", "reason", "error_class", "error"),
)
# Of a retention alone.
_LIMITS: Final = ("retention_ms", "retention_bytes")

# By which column what is due is put in order, and how; None for the name alone.
_SORTED_BY: Final[Mapping[Order, tuple[str, str | None]]] = {
    Order.URGENCY: ("cleanable_ratio", "descending"),
    Order.LARGEST: ("cleanable_bytes", "descending"),
    Order.SMALLEST: ("cleanable_bytes", "ascending"),
    Order.NAME: ("cleanable_ratio", None),
}

# Root and directory; root, topic and number of a row that is about no directory.
RowKey = tuple[str | int | None, ...]

# Each has a list of segments.
_ROWS_AT_ONCE: Final = 1000


def row_key(row: Mapping[str, Any]) -> RowKey:
    """Return what tells the rows about one partition directory from all others.

    A topic and a number do not: ``x-0`` may stand beside ``x-0.<id>-delete`` or a copy of it. The
    generation of a managed partition does not count: it rises from step to step.
    """
    if row["directory"] is None:
        return row["root"], row["topic"], row["partition"]
    return row["root"], unpinned(row["directory"])


def row_keys(plans: pa.Table) -> list[RowKey]:
    """Return the keys of a table's rows, in its order."""
    columns = ["root", "topic", "partition", "directory"]
    return [row_key(row) for row in plans.select(columns).to_pylist()]


def only_planned(plans: pa.Table, keys: Collection[RowKey]) -> pa.Table:
    """Return the planned rows of these partition directories."""
    statuses = plans["status"].to_pylist()
    return _take(
        plans,
        [
            number
            for number, key in enumerate(row_keys(plans))
            if key in keys and statuses[number] == Status.PLANNED
        ],
    )


def sort_plans(plans: pa.Table, order: Order = Order.URGENCY) -> pa.Table:
    """Return the rows in the order of a report: what is due, as asked for, then the others.

    Kafka cleans the filthiest log first; equal ones follow by name. Whole columns are compared: of
    a hundred thousand rows no object is made.
    """
    is_due = pc.equal(plans["status"], Status.PLANNED.value)
    name, direction = _SORTED_BY[order]
    urgency = pc.if_else(is_due, pc.fill_null(plans[name].cast(pa.float64()), 0.0), 0.0)
    keyed = plans.select(["topic", "partition", "root"]).append_column("urgency", urgency)
    keyed = keyed.append_column("is_left", pc.invert(is_due).cast(pa.int8()))
    # A directory that is no partition has no topic; it stands last, as nulls do.
    keys = [("is_left", "ascending")] + ([] if direction is None else [("urgency", direction)])
    keys += [(name, "ascending") for name in ("topic", "partition", "root")]
    return plans.take(pc.sort_indices(keyed, sort_keys=keys))


def refuse_duplicates(plans: pa.Table, brokers: Mapping[str, object]) -> pa.Table:
    """Fail every partition that two directories of one broker hold: which is right is unknown.

    Args:
        plans: Rows of ``schemas.PLAN``, or of another table of partition directories.
        brokers: Which broker each root belongs to; roots of equal values are one broker's.
    """
    holders = defaultdict(list)
    rows = plans.select(["root", "topic", "partition", "directory", "reason"]).to_pylist()
    for number, row in enumerate(rows):
        is_renamed = directory_state(Path(row["directory"]).name) is not None
        is_replica = not is_renamed and row["reason"] != Reason.INTERNAL_METADATA
        if row["topic"] is not None and is_replica:
            holders[brokers[row["root"]], row["topic"], row["partition"]].append(number)
    duplicates = {number: held for held in holders.values() if len(held) > 1 for number in held}
    if not duplicates:
        return plans
    refused = _refused_rows(plans, duplicates, [row["directory"] for row in rows])
    order = np.arange(plans.num_rows)
    order[list(duplicates)] = plans.num_rows + np.arange(len(duplicates))
    return pa.concat_tables([plans, refused]).take(pa.array(order))


def _refused_rows(
    plans: pa.Table, duplicates: Mapping[int, Sequence[int]], directories: Sequence[str]
) -> pa.Table:
    """Return what the rows of partitions that are there twice become, in the order of the keys."""
    changed = _take(plans, duplicates).to_pylist()
    for row, held in zip(changed, duplicates.values(), strict=True):
        places = ", ".join(sorted(directories[other] for other in held))
        row |= {
            "status": Status.FAILED.value,
            "reason": Reason.DUPLICATE_PARTITION.value,
            "error_class": GuardRefusedError.__name__,
            "error": f"one broker holds this partition in several directories: {places}",
        }
        if "plan" in row:
            row["plan"] = None
    return pa.Table.from_pylist(changed, schema=plans.schema)


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
        rows.append({"run_id": run_id, "action": action} | _result(plan, outcomes.get(number)))
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)


def _result(plan: Mapping[str, Any], outcome: Outcome | None) -> dict[str, Any]:
    row = {name: plan[name] for name in _KEPT_NAMES}
    row |= {name: plan[name] for name in _LIMITS if name in plan}
    row |= {"bytes_before": plan["bytes"], "segments_before": plan["segments"]}
    row |= {"duration_ms": plan["duration_ms"]}
    unchanged = {"bytes_after": plan["bytes"], "segments_after": plan["segments"]}
    if outcome is None or not outcome.has_ended:
        is_planned = plan["status"] == Status.PLANNED
        return row | ({"bytes_after": plan["bytes_after"]} if is_planned else unchanged)
    row["duration_ms"] += outcome.duration_ms
    if not outcome.was_touched:
        row |= unchanged
    return row | {name: value for name, value in outcome.columns.items() if name in RESULT.names}


def _take(table: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return table.take(pa.array(numbers, pa.int64()))


def planned_rows(plans: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and row of what is planned, a few at a time: each has a list of segments."""
    for first in range(0, plans.num_rows, _ROWS_AT_ONCE):
        for number, row in enumerate(plans.slice(first, _ROWS_AT_ONCE).to_pylist()):
            if row["status"] == Status.PLANNED:
                yield first + number, row
