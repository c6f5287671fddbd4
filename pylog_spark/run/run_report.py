"""What a run over log directories did: its rows, its numbers, its exit status."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pylog_spark.schemas import (
    CLEANING,
    CUT,
    PLAN,
    RECOVERY,
    RESULT,
    RETENTION,
    Reason,
    Status,
    spark_ddl,
)

EXIT_DONE: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_REFUSED: Final = 3
EXIT_PARTLY_FAILED: Final = 4

# Refusals by a guard: nothing is wrong with what was done, but something was not allowed.
_GUARDS: Final = frozenset(
    {
        Reason.CONFIG_UNKNOWN,
        Reason.NO_HIGH_WATERMARK,
        Reason.UNCLEAN_SHUTDOWN,
        Reason.RECOVERY_REQUIRED,
        Reason.NO_SPACE,
        Reason.DELETES_TOO_MUCH,
        Reason.CLOCK_PAST_RETENTION,
        Reason.REMOTE_STORAGE,
        Reason.TIERED,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.SWITCHED_OFF,
    }
)
# What no run ever works on; neither done nor refused.
_NOT_ASKED_FOR: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.FUTURE_DIRECTORY,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
    }
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
class RunReport:
    """The outcome of a run.

    Attributes:
        run_id: Its name.
        action: What was asked for.
        dry_run: Whether nothing was to be written.
        notes: What a reader should know of the run as a whole, line by line.
        results: Rows of ``schemas.RESULT``: first what was done, most urgent first.
        summary: The numbers.
        exit_code: Exit status for the process that asked for the run.
        plans: Rows of ``schemas.PLAN``, in the same order; of compaction only.
        cuts: Rows of ``schemas.CUT``; of recovery only.
        recoveries: Rows of ``schemas.RECOVERY``; of recovery only.
        retentions: Rows of ``schemas.RETENTION``; of retention only.
        cleanings: Rows of ``schemas.CLEANING``; of compaction only.
        cleaner: Totals of compaction by the names of Kafka's gauges.
    """

    run_id: str
    action: str
    dry_run: bool
    notes: tuple[str, ...]
    results: pa.Table
    summary: RunSummary
    exit_code: int
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

    def results_frame(self, spark: SparkSession) -> DataFrame:
        """Return the result rows as a DataFrame."""
        return spark.createDataFrame(self.results.replace_schema_metadata(), spark_ddl(RESULT))

    def plans_frame(self, spark: SparkSession) -> DataFrame:
        """Return what was observed and planned as a DataFrame; the plans themselves left out."""
        columns = [name for name in PLAN.names if name != "plan"]
        table = self.plans.select(columns).replace_schema_metadata()
        return spark.createDataFrame(table, spark_ddl(pa.schema([PLAN.field(c) for c in columns])))


def notes_of_empty_roots(
    results: pa.Table, roots: Iterable[str], *, are_topics_chosen: bool
) -> tuple[str, ...]:
    """Return a line for each root of which there is no row: a wrong glob should not pass unseen.

    Args:
        results: Rows of ``schemas.RESULT``.
        roots: Locations of all roots of the run.
        are_topics_chosen: Whether the run was asked for some topics only.
    """
    seen = set(pc.unique(results["root"]).to_pylist())
    return tuple(
        note_of_empty_root(root, are_topics_chosen=are_topics_chosen)
        for root in roots
        if root not in seen
    )


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


def exit_code_of(
    results: pa.Table,
    *,
    refused_alone: Collection[Reason] = (),
    failures: Collection[str] = (),
) -> int:
    """Return the exit status for a run's rows.

    4 if a partition failed, or the disk of a log directory. 3 if a guard refused every partition of
    a root that was asked for: a scheduler must not take a root that nobody was allowed to touch for
    one that is done. Single refusals among partitions that are in order are rows of the result, and
    0.

    Args:
        results: Rows of ``schemas.RESULT``.
        refused_alone: Reasons of which a single row is enough for 3: what was asked for was
            begun, and a person has to decide about the rest.
        failures: Log directories whose disk failed.
    """
    failed = pc.equal(results["status"], Status.FAILED.value)
    if failures or pc.any(failed).as_py():
        return EXIT_PARTLY_FAILED
    refused_alone = {*refused_alone, Reason.INPUTS_CHANGED}
    refused: set[str] = set()
    accepted: set[str] = set()
    kinds = results.select(["root", "reason"]).group_by(["root", "reason"]).aggregate([])
    for row in kinds.to_pylist():
        if row["reason"] in refused_alone:
            return EXIT_REFUSED
        if row["reason"] in _GUARDS:
            refused.add(row["root"])
        elif row["reason"] not in _NOT_ASKED_FOR:
            accepted.add(row["root"])
    return EXIT_REFUSED if refused - accepted else EXIT_DONE
