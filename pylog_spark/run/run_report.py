"""What a run over log directories did: its rows and its numbers."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pylog_spark.exit_code import ExitCode
from pylog_spark.outcomes import Reason, RunEvent, Status
from pylog_spark.rows import spark_frame
from pylog_spark.run.plan_table import RowKey, row_key
from pylog_spark.schemas import CLEANING, CUT, PLAN, RECOVERY, RESULT, RETENTION
from storage_core.store.generations import GENERATION_MARK

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
    "bytes",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The numbers of a run."""

    planned: int  # partitions that a dry run would work on
    done: int
    skipped: int  # partitions left alone
    failed: int
    bytes_before: int
    bytes_after: int  # the same afterwards
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a run, whatever it was about."""

    run_id: str
    action: str
    dry_run: bool  # whether nothing was to be written
    notes: tuple[str, ...]  # what a reader should know of the run as a whole, line by line
    results: pa.Table  # rows of ``schemas.RESULT``: first what was done, most urgent first
    summary: RunSummary
    exit_code: int  # exit status for the process that asked for the run
    engine: str  # what did its tasks: ``spark`` or ``local``, which is this machine
    # Numbers of each root, by the names of Kafka's gauges; without those of steps that there were
    # not.
    gauges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

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

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Return what ``LogDirectory`` answers with: the rows that this kind of run is about."""
        return spark_frame(spark, self.results)

    def with_notes(self, notes: Iterable[str]) -> Self:
        """Return the same report with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_empty_roots(self, roots: Iterable[str], *, are_topics_chosen: bool) -> Self:
        """Return the report with a note for each root without rows. A wrong glob should not pass
        unseen.

        Args:
            are_topics_chosen: Whether the run was asked for some topics only.
        """
        reported = set(pc.unique(self.results["root"]).to_pylist())
        return self.with_notes(
            note_of_empty_root(root, are_topics_chosen=are_topics_chosen)
            for root in roots
            if root not in reported
        )

    def with_unknown_configs(self, files: Sequence[Path]) -> Self:
        """Return the report with notes on topics of unknown config. Each root with such topics
        has one note."""
        is_unknown = pc.equal(self.results["reason"], Reason.CONFIG_UNKNOWN.value)
        rows = self.results.select(["root", "topic"]).filter(is_unknown).to_pylist()
        partitions = ((row["root"], row["topic"]) for row in rows)
        return self.with_notes(unknown_config_notes(partitions, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Report):
    """The outcome of a run with changes to logs. The table of a missing step is empty."""

    # Rows of ``schemas.PLAN``, in the order of the results; of compaction only.
    plans: pa.Table = field(default_factory=PLAN.empty_table)
    # Rows of ``schemas.CUT``; of recovery only.
    cuts: pa.Table = field(default_factory=CUT.empty_table)
    # Rows of ``schemas.RECOVERY``; of recovery only.
    recoveries: pa.Table = field(default_factory=RECOVERY.empty_table)
    # Rows of ``schemas.RETENTION``; of retention only.
    retentions: pa.Table = field(default_factory=RETENTION.empty_table)
    # Rows of ``schemas.CLEANING``; of compaction only.
    cleanings: pa.Table = field(default_factory=CLEANING.empty_table)
    # Totals of compaction by the names of Kafka's gauges.
    cleaner: Mapping[str, int] = field(default_factory=dict)

    def planned_rows(self) -> list[dict[str, Any]]:
        """Return a dry run's plans for people: ranges, groups and bounds.

        ``bytes_after`` is an upper bound; only what a compressor makes of a batch that loses some
        of its records has none that could be known without reading it.
        """
        planned = self.plans.filter(pc.equal(self.plans["status"], Status.PLANNED.value))
        rows: list[dict[str, Any]] = planned.select(list(_PLAN_COLUMNS)).to_pylist()
        return rows

    def plans_frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the observations and plans as a DataFrame, without encoded plans."""
        return spark_frame(spark, self.plans.drop_columns(["plan"]))


def note_of_empty_root(root: str, *, are_topics_chosen: bool) -> str:
    """Return the note about a root without any requested partition."""
    what = (
        "no partition there is of a topic that --topics and --exclude ask for"
        if are_topics_chosen
        else "there is no partition in it"
    )
    return f"{root}: {what}"


def unknown_config_notes(partitions: Iterable[tuple[str, str]], files: Sequence[Path]) -> list[str]:
    """Return a note for each root with topics of unknown config. It counts the partitions of these
    topics.

    Args:
        files: What was said with ``--config``: somebody may be filling one in, and no command that
            is to be copied may write over it.
    """
    topics_of: dict[str, list[str]] = defaultdict(list)
    for root, topic in partitions:
        topics_of[root].append(topic)
    return [
        f"{root}: {len(topics):,} partitions of {len(set(topics)):,} topics left alone, for no "
        f"source says their config (CONFIG_UNKNOWN): {_way_to_say(root, files)}"
        for root, topics in topics_of.items()
    ]


def _way_to_say(root: str, files: Sequence[Path]) -> str:
    command = config_init_command(root)
    if files:
        return f"not {files[-1]} either; `{command}` prints what may be added to it"
    return f"`{command} > topics.yaml` writes what to fill in, `--config topics.yaml` says it"


def config_init_command(root: str) -> str:
    """Return the command to write a root's topic configs for editing."""
    return f"pylog config init {shlex.quote(root)}"


def summarise(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of a run."""
    counts = {
        row["values"]: row["counts"] for row in pc.value_counts(results["status"]).to_pylist()
    }
    worked_on = pc.is_in(results["status"], pa.array([Status.DONE.value, Status.PLANNED.value]))
    counted = results.filter(worked_on)
    return RunSummary(
        planned=counts.get(Status.PLANNED.value, 0),
        done=counts.get(Status.DONE.value, 0),
        skipped=counts.get(Status.SKIPPED.value, 0),
        failed=counts.get(Status.FAILED.value, 0),
        bytes_before=pc.sum(counted["bytes_before"]).as_py() or 0,
        bytes_after=pc.sum(counted["bytes_after"]).as_py() or 0,
        duration_ms=duration_ms,
    )


def merge_steps(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the rows of all steps: failed ones first, then done.

    A step that left a partition to another one says nothing of it, unless nobody else does; two
    steps that left it alone for one reason say it once. Whole columns are compared: a night has
    several rows of each partition.

    Args:
        tables: Rows of ``schemas.RESULT``, step by step.
    """
    rows = pa.concat_tables([RESULT.empty_table(), *tables])
    keys = _codes(pc.fill_null(_locations(rows), ""), rows["root"])
    nameless = _codes(*(rows[name] for name in ("root", "topic", "partition")))
    is_nameless = rows["directory"].is_null().to_numpy()
    keys = np.where(is_nameless, -1 - nameless, keys)
    _, firsts, keys = np.unique(keys, return_index=True, return_inverse=True)
    # Numbered by their first rows, which come before all others of a key.
    first_rows = firsts[keys]
    elsewhere = pa.array(sorted(NOT_OF_THIS_STEP), pa.string())
    is_own = ~pc.is_in(rows["reason"], elsewhere).to_numpy()
    has_own = np.bincount(keys[is_own], minlength=len(firsts)) > 0
    numbers = np.arange(rows.num_rows)
    is_told = is_own | (~has_own[keys] & (first_rows == numbers))
    is_skipped = pc.equal(rows["status"], Status.SKIPPED.value).to_numpy()
    (left_alone,) = np.nonzero(is_told & is_skipped)
    told_again = _repeated(_codes(pa.array(keys), rows["reason"])[left_alone])
    is_told[left_alone[told_again]] = False
    ranks = np.array([_RANK[Status(s)] for s in rows["status"].to_pylist()], np.int8)
    order = np.lexsort((numbers, first_rows, ranks))
    return rows.take(pa.array(order[is_told[order]]))


def _locations(rows: pa.Table) -> pa.ChunkedArray:
    """Return where partitions are, without generations: these rise from step to step."""
    return pc.replace_substring_regex(rows["directory"], f"(?s){GENERATION_MARK}.*", "")


def _codes(*columns: pa.ChunkedArray | pa.Array) -> NDArray[np.int64]:
    """Return a number for each row, equal for equal columns. Nulls are equal, too."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = whole.dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _repeated(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values stood before."""
    is_repeated = np.ones(len(codes), np.bool_)
    is_repeated[np.unique(codes, return_index=True)[1]] = False
    return is_repeated


def summarise_steps(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of several steps; count bytes once per partition.

    Args:
        results: Of ``merge_steps``: the rows of a partition stand in the order of the steps.
    """
    counted = summarise(results, duration_ms=duration_ms)
    before: dict[RowKey, int] = {}
    after: dict[RowKey, int] = {}
    names = ["root", "topic", "partition", "directory", "bytes_before", "bytes_after"]
    worked_on = pc.is_in(results["status"], pa.array([Status.DONE.value, Status.PLANNED.value]))
    for row in results.filter(worked_on).select(names).to_pylist():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run that has begun, or one that has ended."""

    row: Mapping[str, Any]  # its row in the ledger's table ``runs``: columns of ``schemas.RUN``
    started: datetime  # when it began, by the clock of the ledger's times
    outputs: tuple[str, ...] = ()  # locations that it writes
    exit_code: int | None = None  # exit status of its process; None at the start
    # What ended it; None where it came to its end, and at the start.
    error: BaseException | None = None
    report: Report | None = None  # what it found and did; None after an error, and at the start
    # Counts rows of the report, as its summary was counted.
    summarise: Callable[..., RunSummary] = summarise

    @property
    def is_start(self) -> bool:
        """Whether it has just begun."""
        return bool(self.row["event"] == RunEvent.START.value)

    @property
    def is_good(self) -> bool:
        """Whether a scheduler goes on after its exit status."""
        return self.exit_code in {ExitCode.DONE, ExitCode.FINDINGS}

    @property
    def roots(self) -> list[str]:
        """The run's log directories, with others from its report's rows."""
        roots: list[str] = list(self.row["roots"])
        if self.report is not None:
            reported = pc.unique(self.report.results["root"]).to_pylist()
            roots += [root for root in reported if root not in roots]
        return roots

    def results_of(self, root: str) -> pa.Table:
        """Return the result rows of one root."""
        if self.report is None:
            raise ValueError("a run without a report has no rows")
        return self.report.results.filter(pc.equal(self.report.results["root"], root))
