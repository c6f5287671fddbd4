"""Collect each log's outcome in a compaction, as rows and totals. They are collected round by
round."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa

from pylog_spark.rows import table_of
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.plan_table import RowKey, result_rows, row_keys
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.schemas import Action, CleaningRow, PartitionName, Reason, Status
from storage_core.maintenance.compaction.statistics import (
    CleanedLog,
    CleanerStats,
    total_of,
)

_ACTION = Action.COMPACT.value


class CleanedLogs:
    """The partitions that a run compacts, and what became of each.

    Args:
        run: The run; its record is told of what has ended.
        plans: Rows of ``schemas.PLAN``; their numbers are the ordinals.
        outcomes: What became of them, by their number, where nothing is cleaned.
    """

    def __init__(self, run: Run, plans: pa.Table, outcomes: Outcomes | None = None) -> None:
        self._run = run
        self.plans = plans
        self.outcomes: Outcomes = outcomes or {}

    def record(self, plans: pa.Table, outcomes: Outcomes) -> None:
        """Tell the ledger what became of partitions in a wave.

        Args:
            plans: Rows of ``schemas.PLAN``, of the round.
        """
        self._run.recorder.outcomes(plans, outcomes, action=_ACTION)
        for outcome in outcomes.values():
            # Of no use any more, and for many partitions too much to keep.
            outcome.columns.pop("operations", None)
        rows = _cleanings(plans, outcomes, run_id=self._run.job.run_id)
        self._run.recorder.cleanings(rows)

    def record_others(self) -> None:
        """Tell the ledger of the partitions that no round was about."""
        numbers = range(self.plans.num_rows)
        self.record(self.plans, {n: Outcome() for n in numbers if n not in self.outcomes})

    def end_round(self, plans: pa.Table, ended: Outcomes) -> set[RowKey]:
        """Record a round's outcomes; return the partitions due for another round.

        These are the partitions of which a segment was split in place of the round, and, where a
        run goes on until all is clean, those whose offset map was full before.

        Args:
            plans: Rows of ``schemas.PLAN``, of the round.
        """
        numbers = {key: number for number, key in enumerate(row_keys(self.plans))}
        keys = row_keys(plans)
        ends = plans["first_uncleanable_offset"]
        again = set()
        for ordinal, outcome in ended.items():
            number = numbers[keys[ordinal]]
            self.outcomes[number] = outcome.after(self.outcomes.get(number))
            point = outcome.next_offset
            is_split = outcome.columns.get("reason") == Reason.SEGMENT_SPLIT.value
            is_unfinished = (
                self._run.job.options.until_clean
                and point is not None
                and plans["first_dirty_offset"][ordinal].as_py() < point < ends[ordinal].as_py()
            )
            if is_split or is_unfinished:
                again.add(keys[ordinal])
        return again

    def results(self) -> pa.Table:
        """Return the rows of ``schemas.RESULT``, in the order of the plans."""
        run_id = self._run.job.run_id
        return result_rows(self.plans, self.outcomes, run_id=run_id, action=_ACTION)

    def cleanings(self) -> pa.Table:
        """Return the rows of ``schemas.CLEANING``: what each round on each partition did."""
        return _cleanings(self.plans, self.outcomes, run_id=self._run.job.run_id)

    def totals(self) -> dict[str, int]:
        """Return the totals of all due partitions by Kafka's gauge names."""
        return _gauges(log for _, log in self._due())

    def root_totals(self) -> dict[str, dict[str, int]]:
        """Return the same of each root of the run."""
        logs: dict[str, list[CleanedLog]] = {root.location: [] for root in self._run.job.roots}
        for root, log in self._due():
            logs[root].append(log)
        return {root: _gauges(those) for root, those in logs.items()}

    def _due(self) -> Iterator[tuple[str, CleanedLog]]:
        """Yield root and numbers of each partition that was due."""
        names = ["root", "status", "cleanable_ratio", "cleanable_bytes", "compaction_delay_ms"]
        for number, row in enumerate(self.plans.select(names).to_pylist()):
            if row["status"] != Status.PLANNED:
                continue
            outcome = self.outcomes.get(number, Outcome())
            yield (
                row["root"],
                CleanedLog(
                    cleanable_ratio=row["cleanable_ratio"],
                    cleanable_bytes=row["cleanable_bytes"],
                    compaction_delay_ms=row["compaction_delay_ms"] or 0,
                    has_failed=outcome.columns.get("status") == Status.FAILED.value
                    or outcome.columns.get("reason") == Reason.NEGATIVE_TIMESTAMP.value,
                    stats=CleanerStats.from_json(outcome.rounds[-1]) if outcome.rounds else None,
                ),
            )


def _gauges(logs: Iterable[CleanedLog]) -> dict[str, int]:
    """Return the totals of some partitions by Kafka's gauge names."""
    return {name.replace("_", "-"): value for name, value in asdict(total_of(logs)).items()}


def _cleanings(plans: pa.Table, outcomes: Mapping[int, Outcome], *, run_id: str) -> pa.Table:
    """Return a row for each round on each partition.

    Args:
        plans: Rows of ``schemas.PLAN``.
    """
    rows = []
    for number, outcome in sorted(outcomes.items()):
        if not outcome.rounds:
            continue
        of_plan = ("root", "topic", "partition", "cleanable_ratio", "compaction_delay_ms")
        root, topic, partition, ratio, delay_ms = (plans[name][number].as_py() for name in of_plan)
        rows += [
            CleaningRow(
                run_id=run_id,
                name=PartitionName(root=root, topic=topic, partition=partition),
                round=index,
                cleanable_ratio=ratio,
                compaction_delay_ms=delay_ms,
                **json.loads(text),
            )
            for index, text in enumerate(outcome.rounds, 1)
        ]
    return table_of(CleaningRow, rows)
