"""What a run over log directories did: its rows and its numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.run.plan_table import RowKey, row_key
from pylog_spark.schemas import (
    CLEANING,
    CUT,
    PLAN,
    RECOVERY,
    RESULT,
    RETENTION,
    Reason,
    Status,
    rows_to_batch,
    spark_ddl,
)

_PLAN_COLUMNS: Final = (
    "root",
    "topic",
    "partition",
    "directory",
    "first_dirty_offset",
    "first_uncleanable_offset",
    "clean_bytes",
    "cleanable_bytes",
    "cleanable_ratio",
    "groups",
    "bytes_after",
    "peak_extra_bytes",
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A step's way of saying that a partition is another step's business.
NOT_OF_THIS_STEP: Final = frozenset(
    {Reason.NOT_COMPACTED, Reason.COMPACTED, Reason.NOTHING_TO_RECOVER}
)
_RANK: Final = {Status.FAILED: 0, Status.DONE: 1, Status.PLANNED: 1, Status.SKIPPED: 2}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The numbers of a run.

    Attributes:
        planned: Partitions that a dry run would work on.
        done: Partitions that were worked on.
        skipped: Partitions left alone.
        failed: Partitions that could not be worked on.
        bytes_before: Bytes of the partitions planned or done.
        bytes_after: The same afterwards.
        duration_ms: From start to end.
    """

    planned: int
    done: int
    skipped: int
    failed: int
    bytes_before: int
    bytes_after: int
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a run, whatever it was about.

    Attributes:
        run_id: Its name.
        action: What was asked for.
        dry_run: Whether nothing was to be written.
        notes: What a reader should know of the run as a whole, line by line.
        results: Rows of ``schemas.RESULT``: first what was done, most urgent first.
        summary: The numbers.
        exit_code: Exit status for the process that asked for the run.
        engine: What did its tasks: ``spark`` or ``local``, which is this machine.
    """

    run_id: str
    action: str
    dry_run: bool
    notes: tuple[str, ...]
    results: pa.Table
    summary: RunSummary
    exit_code: int
    engine: str

    def run_row(self) -> dict[str, Any]:
        """Return what a program is told of the run as a whole."""
        return {
            "run_id": self.run_id,
            "action": self.action,
            "dry_run": self.dry_run,
            "engine": self.engine,
            **asdict(self.summary),
            "exit_code": self.exit_code,
            "notes": list(self.notes),
        }

    def with_notes(self, notes: Iterable[str]) -> Self:
        """Return the same report with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_empty_roots(self, roots: Iterable[str], *, are_topics_chosen: bool) -> Self:
        """Return the same report with a line for each root of which there is no row.

        A wrong glob should not pass unseen.

        Args:
            roots: Locations of all roots of the run.
            are_topics_chosen: Whether the run was asked for some topics only.
        """
        seen = set(pc.unique(self.results["root"]).to_pylist())
        return self.with_notes(
            note_of_empty_root(root, are_topics_chosen=are_topics_chosen)
            for root in roots
            if root not in seen
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Report):
    """The outcome of a run that changes logs; a table of a step that there was not is empty.

    Attributes:
        plans: Rows of ``schemas.PLAN``, in the order of the results; of compaction only.
        cuts: Rows of ``schemas.CUT``; of recovery only.
        recoveries: Rows of ``schemas.RECOVERY``; of recovery only.
        retentions: Rows of ``schemas.RETENTION``; of retention only.
        cleanings: Rows of ``schemas.CLEANING``; of compaction only.
        cleaner: Totals of compaction by the names of Kafka's gauges.
    """

    plans: pa.Table = field(default_factory=PLAN.empty_table)
    cuts: pa.Table = field(default_factory=CUT.empty_table)
    recoveries: pa.Table = field(default_factory=RECOVERY.empty_table)
    retentions: pa.Table = field(default_factory=RETENTION.empty_table)
    cleanings: pa.Table = field(default_factory=CLEANING.empty_table)
    cleaner: Mapping[str, int] = field(default_factory=dict)

    def planned_rows(self) -> list[dict[str, Any]]:
        """Return the plans of a dry run as a person needs them: ranges, groups and bounds.

        ``bytes_after`` is an upper bound; only what a compressor makes of a batch that loses some
        of its records has none that could be known without reading it.
        """
        planned = self.plans.filter(pc.equal(self.plans["status"], Status.PLANNED.value))
        rows: list[dict[str, Any]] = planned.select(list(_PLAN_COLUMNS)).to_pylist()
        return rows

    def results_frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the result rows as a DataFrame."""
        return spark.createDataFrame(self.results.replace_schema_metadata(), spark_ddl(RESULT))

    def plans_frame(self, spark: "SparkSession") -> "DataFrame":
        """Return what was observed and planned as a DataFrame; the plans themselves left out."""
        columns = [name for name in PLAN.names if name != "plan"]
        table = self.plans.select(columns).replace_schema_metadata()
        return spark.createDataFrame(table, spark_ddl(pa.schema([PLAN.field(c) for c in columns])))


def note_of_empty_root(root: str, *, are_topics_chosen: bool) -> str:
    """Return the line about a root in which there is nothing that a run was asked for."""
    what = (
        "no partition there is of a topic that --topics and --exclude ask for"
        if are_topics_chosen
        else "there is no partition in it"
    )
    return f"{root}: {what}"


def summarise(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of a run."""
    counts = {
        row["values"]: row["counts"] for row in pc.value_counts(results["status"]).to_pylist()
    }
    worked_on = pc.is_in(results["status"], pa.array([Status.DONE.value, Status.PLANNED.value]))
    chosen = results.filter(worked_on)
    return RunSummary(
        planned=counts.get(Status.PLANNED.value, 0),
        done=counts.get(Status.DONE.value, 0),
        skipped=counts.get(Status.SKIPPED.value, 0),
        failed=counts.get(Status.FAILED.value, 0),
        bytes_before=pc.sum(chosen["bytes_before"]).as_py() or 0,
        bytes_after=pc.sum(chosen["bytes_after"]).as_py() or 0,
        duration_ms=duration_ms,
    )


def merge_steps(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all steps that say something, what failed first, what was done next.

    A step that left a partition to another one says nothing of it, unless nobody else does; two
    steps that left it alone for one reason say it once.

    Args:
        tables: Rows of ``schemas.RESULT``, step by step.
    """
    by_key: dict[RowKey, list[Row]] = {}
    for table in tables:
        for row in table.to_pylist():
            by_key.setdefault(row_key(row), []).append(row)
    rows = [row for of_one in by_key.values() for row in _telling(of_one)]
    rows.sort(key=lambda row: _RANK[Status(row["status"])])
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)


def summarise_steps(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of a run of several steps; bytes count once a partition.

    Args:
        results: Of ``merge_steps``: the rows of a partition stand in the order of the steps.
        duration_ms: From start to end.
    """
    counted = summarise(results, duration_ms=duration_ms)
    before: dict[RowKey, int] = {}
    after: dict[RowKey, int] = {}
    names = ["root", "topic", "partition", "directory", "status", "bytes_before", "bytes_after"]
    for row in results.select(names).to_pylist():
        if row["status"] in {Status.DONE, Status.PLANNED}:
            key = row_key(row)
            before.setdefault(key, row["bytes_before"] or 0)
            after[key] = row["bytes_after"] or 0
    return RunSummary(
        planned=counted.planned,
        done=counted.done,
        skipped=counted.skipped,
        failed=counted.failed,
        bytes_before=sum(before.values()),
        bytes_after=sum(after.values()),
        duration_ms=duration_ms,
    )


def _telling(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one partition that are worth a line."""
    own = [row for row in rows if row["reason"] not in NOT_OF_THIS_STEP] or list(rows[:1])
    told: list[Row] = []
    for row in own:
        is_said = any(
            row["status"] == other["status"] == Status.SKIPPED and row["reason"] == other["reason"]
            for other in told
        )
        if not is_said:
            told.append(row)
    return told
