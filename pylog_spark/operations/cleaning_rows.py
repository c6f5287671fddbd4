"""What rounds of compaction read and wrote, as rows of ``schemas.CLEANING``, and a run's totals."""

import json
from collections.abc import Mapping
from dataclasses import asdict

import pyarrow as pa

from pylog_spark.rows import rows_to_batch
from pylog_spark.run.outcome import Outcome
from pylog_spark.schemas import CLEANING, Status
from storage_core.maintenance.compaction.statistics import (
    CleanedLog,
    CleanerStats,
    CleanerTotals,
    total_of,
)

_OF_PLAN = ("root", "topic", "partition", "cleanable_ratio", "compaction_delay_ms")


def cleaning_rows(plans: pa.Table, outcomes: Mapping[int, Outcome], *, run_id: str) -> pa.Table:
    """Return a row for each round on each partition.

    Args:
        plans: Rows of ``schemas.PLAN``.
        outcomes: What became of them, by their number.
        run_id: The run.
    """
    rows = []
    for number, outcome in sorted(outcomes.items()):
        names = {name: plans[name][number].as_py() for name in _OF_PLAN if outcome.rounds}
        rows += [
            {"run_id": run_id, "round": index + 1, **names, **json.loads(text)}
            for index, text in enumerate(outcome.rounds)
        ]
    return pa.Table.from_batches([rows_to_batch(CLEANING, rows)], schema=CLEANING)


def cleaner_totals(plans: pa.Table, outcomes: Mapping[int, Outcome]) -> CleanerTotals:
    """Return the totals of a run over the partitions that were due.

    Args:
        plans: Rows of ``schemas.PLAN``.
        outcomes: What became of them, by their number.
    """
    names = ["status", "cleanable_ratio", "cleanable_bytes", "compaction_delay_ms"]
    logs = []
    for number, row in enumerate(plans.select(names).to_pylist()):
        if row["status"] != Status.PLANNED:
            continue
        outcome = outcomes.get(number, Outcome())
        rounds = [CleanerStats.from_json(text) for text in outcome.rounds]
        logs.append(
            CleanedLog(
                cleanable_ratio=row["cleanable_ratio"],
                cleanable_bytes=row["cleanable_bytes"],
                compaction_delay_ms=row["compaction_delay_ms"] or 0,
                has_failed=outcome.columns.get("status") == Status.FAILED.value,
                stats=rounds[-1] if rounds else None,
            )
        )
    return total_of(logs)


def describe_totals(totals: CleanerTotals) -> dict[str, int]:
    """Return the totals by the names that Kafka's gauges have."""
    return {name.replace("_", "-"): value for name, value in asdict(totals).items()}
