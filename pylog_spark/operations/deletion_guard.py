"""The last word on what retention takes: not too much at once, and not by a wrong clock."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pylog_spark.config import RunLimits
from pylog_spark.schemas import Reason, Status
from storage_core.maintenance.retention.plan import Hold

# Where age was asked and a record was found that is young enough, or too young to be true.
_CLOCK_WITNESSES: Final = frozenset({Hold.WITHIN_TIME, Hold.FUTURE_TIMESTAMP})
_COLUMNS: Final = (
    "root",
    "topic",
    "partition",
    "status",
    "bytes",
    "by_size_bytes",
    "by_time_bytes",
    "blocked_by",
    "newest_timestamp",
)
_OVERRIDE: Final = "CLOCK_PAST_RETENTION"

Row = Mapping[str, Any]
Refusal = tuple[Reason, str]


def refuse_deletions(plans: pa.Table, limits: RunLimits) -> pa.Table:
    """Turn plans that may not be carried out into skipped rows.

    What an operator asked to be deleted, by raising a log's start, counts for nothing here.

    Args:
        plans: Rows of ``schemas.RETENTION_PLAN``, of all partitions of a run.
        limits: How much may go, and which guards are overridden.
    """
    rows = plans.select(list(_COLUMNS)).to_pylist()
    refusals = _find_shares(rows, limits.max_delete_ratio)
    if _OVERRIDE not in limits.overrides:
        refusals = {**refusals, **_find_wrong_clocks(rows)}
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


def _find_shares(rows: Sequence[Row], most: float) -> dict[int, Refusal]:
    """Return the planned rows that lose too much: alone, with their topic, or with the run."""
    members: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        members["the run"].append(number)
        if row["topic"] is not None:
            members[f"topic {row['topic']}"].append(number)
            members[f"partition {row['topic']}-{row['partition']} of {row['root']}"].append(number)
    refusals: dict[int, Refusal] = {}
    for what, numbers in members.items():
        total = sum(rows[number]["bytes"] or 0 for number in numbers)
        lost = sum(_expired_bytes(rows[number]) for number in numbers)
        if lost > most * total:
            why = (
                f"{lost} of the {total} bytes of {what} would go, {lost / total:.0%}: "
                f"--max-delete-ratio {most:g} allows less"
            )
            for number in numbers:
                if rows[number]["status"] == Status.PLANNED and _expired_bytes(rows[number]):
                    refusals[number] = (Reason.DELETES_TOO_MUCH, why)
    return refusals


def _find_wrong_clocks(rows: Sequence[Row]) -> dict[int, Refusal]:
    """Return the rows that lose something by age where no log has a record that is not too old.

    A clock that is far ahead makes every record too old; one log that somebody wrote to lately
    shows that it is not.
    """
    trusted = {row["root"] for row in rows if row["blocked_by"] in _CLOCK_WITNESSES}
    refusals: dict[int, Refusal] = {}
    for number, row in enumerate(rows):
        if row["status"] == Status.PLANNED and row["by_time_bytes"] and row["root"] not in trusted:
            why = (
                f"every record of every log in {row['root']} is older than its retention, the "
                f"newest here is of {row['newest_timestamp']} ms: if the clock is right, "
                f"--override {_OVERRIDE}"
            )
            refusals[number] = (Reason.CLOCK_PAST_RETENTION, why)
    return refusals


def _expired_bytes(row: Row) -> int:
    if row["status"] != Status.PLANNED:
        return 0
    return int(row["by_size_bytes"] or 0) + int(row["by_time_bytes"] or 0)
