"""Record a run in the ledger; tell listeners its begin and end."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.exit_code import ExitCode, exit_code_of
from pylog_spark.ledger import Ledger, LedgerTable
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import RunEvent, Status
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.plan_table import Outcome, result_rows
from pylog_spark.run.run_report import Report, RunState, RunSummary, summarise
from pylog_spark.schemas import OPERATION, RESULT, STEPS
from pylog_spark.structured_logs import is_json_logged, log_fields
from pylog_spark.tasks.message import slice_table
from pylog_spark.text import one_line
from storage_core import __version__, interruption
from storage_core.clock import Clock

# Open the listeners of a run besides the ledger: log, metrics and lineage. None of them may
# change how a run ends.

# How OpenLineage's client is told where its events go.
_LINEAGE_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")


class RunListener(Protocol):
    """A listener for the begin and the end of a run."""

    @property
    def failure(self) -> str:
        """What to warn of when ``tell`` raises."""
        ...

    def tell(self, state: RunState) -> None:
        """Pass on the state of a run; errors only cause a warning."""
        ...


def open_listeners(
    options: JobOptions, environment: Mapping[str, str] = os.environ
) -> tuple[RunListener, ...]:
    """Return the listeners for a run's options; none for a dry run.

    Args:
        environment: Variables of this process.
    """
    return () if options.dry_run else tuple(_listeners(options, environment))


def _listeners(options: JobOptions, environment: Mapping[str, str]) -> Iterator[RunListener]:
    # Each needs a package that the others do not.
    if is_json_logged():
        yield RunLog()
    if options.metrics_file is not None or options.metrics_push is not None:
        from pylog_spark.run.metrics import MetricsFile, MetricsPush  # noqa: PLC0415

        if options.metrics_file is not None:
            yield MetricsFile(options.metrics_file)
        if options.metrics_push is not None:
            yield MetricsPush(options.metrics_push)
    if any(name.startswith(_LINEAGE_VARIABLES) for name in environment):
        try:
            from pylog_spark.run.lineage import Lineage  # noqa: PLC0415
        except ImportError as error:
            _log.warning(
                "OpenLineage is not told of the run: %s: pip install 'pylog-spark[openlineage]'",
                error,
            )
        else:
            yield Lineage()


class RunLog:
    """Writes log lines about a run."""

    failure = "what became of the run was not logged"

    def tell(self, state: RunState) -> None:
        """Log the begin and end of a run, and each failed partition."""
        with log_fields(action=state.row["action"]):
            if state.is_start:
                with log_fields(roots=state.roots):
                    _log.info("the run begins")
            elif state.report is not None:
                _log_failed(state.report)
                with log_fields(**asdict(state.report.summary), exit_code=state.exit_code):
                    level = logging.INFO if state.is_good else logging.ERROR
                    _log.log(level, "the run has ended")
            else:
                with log_fields(error_class=state.row["error_class"], exit_code=state.exit_code):
                    _log.error("the run has ended: %s", state.row["error"])


def _log_failed(report: Report) -> None:
    failed = report.results.filter(pc.equal(report.results["status"], Status.FAILED.value))
    names = ["root", "topic", "partition", "directory", "error_class"]
    for row in failed.to_pylist():
        with log_fields(step=row["action"], **{name: row[name] for name in names}):
            _log.error("%s", row["error"])


_log: Final = logging.getLogger(__name__)

# An append takes about a second, however few rows it has.
_STEPS_AT_ONCE: Final = 20_000
_ROWS_AT_ONCE: Final = 1_000


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Writes the rows of one run; without a ledger it writes nothing.

    A ledger that fails in the middle of a run stops no work, and hides none: the table that failed
    gets no more rows of this run, its error is kept for the report, and the END row says it.
    """

    ledger: Ledger | None  # where to; None for nowhere
    clock: Clock
    facts: Mapping[str, Any]
    # Reasons of result rows that are left out: another step has a row for the partition.
    unsaid: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()  # locations that the run writes
    # Are told what these two rows say, once they are written.
    listeners: tuple[RunListener, ...] = ()
    problems: dict[LedgerTable, Exception] = field(default_factory=dict)
    _appended: dict[LedgerTable, int] = field(default_factory=dict)
    _started: datetime | None = None
    _has_ended: bool = False

    def start(self) -> None:
        """Write the START row, before anything is touched."""
        row = self._run_row({"event": RunEvent.START.value})
        if self.ledger is not None:
            number = self._next(LedgerTable.RUNS)
            self.ledger.append_row(LedgerTable.RUNS, row, number=number)
        self._tell(RunState(row=row, started=row["at"], outputs=self.outputs))

    def end(self, report: Report, *, summarise: Callable[..., RunSummary] = summarise) -> None:
        """Write the END row; what fails is among the problems."""
        summary = report.summary
        row = self._run_row(
            {
                "event": RunEvent.END.value,
                "exit_code": report.exit_code,
                "partitions_done": summary.done,
                "partitions_skipped": summary.skipped,
                "partitions_failed": summary.failed,
                "bytes_before": summary.bytes_before,
                "bytes_after": summary.bytes_after,
                "duration_ms": summary.duration_ms,
                **self._problem_columns(),
            }
        )
        try:
            self._write_run(row)
        except BaseException as error:
            self._tell_failure(error)
            raise
        self._tell_end(
            RunState(
                row={**row, **self._problem_columns()},
                started=self._started or row["at"],
                outputs=self.outputs,
                exit_code=ExitCode.FAILED if self.problems else report.exit_code,
                report=report,
                summarise=summarise,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Write the END row of a run that an error ended."""
        try:
            self._write_run(self._failure_row(error))
        finally:
            self._tell_failure(error)

    def _tell_failure(self, error: BaseException) -> None:
        row = self._failure_row(error)
        self._tell_end(
            RunState(
                row=row,
                started=self._started or row["at"],
                outputs=self.outputs,
                exit_code=exit_code_of(error),
                error=error,
            )
        )

    def _tell_end(self, state: RunState) -> None:
        """Tell listeners how the run ended. Errors after that do not belong to the run."""
        if not self._has_ended:
            self._has_ended = True
            self._tell(state)

    def _tell(self, state: RunState) -> None:
        for listener in self.listeners:
            with log_fields(run_id=self.facts["run_id"]):
                try:
                    listener.tell(state)
                except Exception as error:  # noqa: BLE001  # the run is what it is
                    _log.warning(
                        "%s, which changes nothing for the run: %s", listener.failure, error
                    )

    def results(self, rows: pa.Table) -> None:
        """Write result rows."""
        mask = pc.invert(pc.is_in(rows["reason"], pa.array(sorted(self.unsaid), pa.string())))
        self._append(LedgerTable.RESULTS, rows.filter(mask))

    def each_result(self, rows: Iterable[Mapping[str, Any]], *, action: str) -> pa.Table:
        """Write result rows and their operations as they come; return the rows. Finished work is
        recorded even if the source of rows raises.

        Args:
            rows: Columns of ``schemas.RESULT`` but for the run and the action; under ``STEPS`` what
                was applied.
        """
        done: list[pa.Table] = []
        results: list[dict[str, Any]] = []
        steps: list[dict[str, Any]] = []

        def write() -> None:
            behind = _table(OPERATION, steps)
            done.append(_table(RESULT, results))
            results.clear()
            steps.clear()
            self.results(done[-1])
            self._append(LedgerTable.OPERATIONS, behind)

        try:
            for row in rows:
                columns = {"run_id": self.facts["run_id"], "action": action, **row}
                steps += self._steps(columns, columns.pop(STEPS, ()))
                results.append(columns)
                if len(results) >= _ROWS_AT_ONCE or len(steps) >= _STEPS_AT_ONCE:
                    write()
        finally:
            write()
        return pa.concat_tables(done)

    def cleanings(self, rows: pa.Table) -> None:
        """Write what rounds of compaction read and wrote."""
        self._append(LedgerTable.CLEANINGS, rows)

    def outcomes(self, plans: pa.Table, outcomes: Mapping[int, Outcome], *, action: str) -> None:
        """Write the outcomes of planned rows and the operations behind them."""
        run_id = self.facts["run_id"]
        self.results(result_rows(plans, outcomes, run_id=run_id, action=action, only=outcomes))
        self.operations(plans, {n: each.columns.get("operations") for n, each in outcomes.items()})

    def findings(self, engine: Engine[RowsT], rows: RowsT) -> None:
        """Write findings, rows of ``schemas.RECORDED_FINDING``, from where tasks have them."""
        if (ledger := self.ledger) is not None:
            number = self._next(LedgerTable.FINDINGS)
            self._write(
                LedgerTable.FINDINGS,
                lambda: ledger.append_rows(LedgerTable.FINDINGS, engine, rows, number=number),
            )

    def operations(self, partitions: pa.Table, texts: Mapping[int, str | None]) -> None:
        """Write the operations of commits, some at a time. A row takes twice the memory of its
        text.

        Args:
            texts: Operations as JSON, by row; None where there are none.
        """
        if self.ledger is None:
            return
        rows: list[dict[str, Any]] = []
        for ordinal, text in texts.items():
            if text is None:
                continue
            names = {
                name: partitions[name][ordinal].as_py() for name in ("root", "topic", "partition")
            }
            rows += self._steps(names, json.loads(text))
            if len(rows) >= _STEPS_AT_ONCE:
                self._append(LedgerTable.OPERATIONS, _table(OPERATION, rows))
                rows.clear()
        self._append(LedgerTable.OPERATIONS, _table(OPERATION, rows))

    def _steps(
        self, place: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yield rows of ``schemas.OPERATION`` for the operations on one partition or folder."""
        names = {name: place.get(name) for name in ("root", "topic", "partition")}
        for step, operation in enumerate(operations):
            yield {"run_id": self.facts["run_id"], **names, "step": step, **_describe(operation)}

    def _failure_row(self, error: BaseException) -> dict[str, Any]:
        return self._run_row(
            {
                "event": RunEvent.END.value,
                "error_class": type(error).__name__,
                "error": str(error),
            }
        )

    def _run_row(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of ``schemas.RUN`` as it is now."""
        at = datetime.fromtimestamp(self.clock.now_ms() / 1000, tz=UTC)
        self._started = self._started or at
        return {**self.facts, **columns, "at": at, "version": __version__}

    def _write_run(self, row: dict[str, Any]) -> None:
        if (ledger := self.ledger) is not None:
            number = self._next(LedgerTable.RUNS)
            self._write(
                LedgerTable.RUNS, lambda: ledger.append_row(LedgerTable.RUNS, row, number=number)
            )

    def _append(self, table: LedgerTable, rows: pa.Table) -> None:
        if (ledger := self.ledger) is not None:
            for part in slice_table(rows):
                write = partial(ledger.append, table, part, number=self._next(table))
                self._write(table, write)

    def _write(self, table: LedgerTable, write: Callable[[], None]) -> None:
        """Write to a table unless it has failed; keep its error. Work that was done, and its
        rows in the report, are not lost by it."""
        if table in self.problems:
            return
        try:
            write()
        except Exception as error:
            # An interrupted call of Spark's fails in many ways: that is the end of the run.
            if interruption.is_requested():
                raise
            self.problems[table] = error
            text = one_line(str(error))
            _log.error("the ledger's table %s gets no more rows of this run: %s", table, text)

    def _problem_columns(self) -> dict[str, str]:
        """Return the END row's columns about tables that failed."""
        for table, error in self.problems.items():
            return {
                "error_class": type(error).__name__,
                "error": f"table {table}: {one_line(str(error))}",
            }
        return {}

    def _next(self, table: LedgerTable) -> int:
        number = self._appended.get(table, 0)
        self._appended[table] = number + 1
        return number


def ledger_problem_notes(problems: Mapping[LedgerTable, Exception]) -> Iterator[str]:
    """Yield a note on each table that lacks rows of a run."""
    for table, error in problems.items():
        lacks = (
            "the run's END row"
            if table is LedgerTable.RUNS
            else f"what this run wrote to its table {table} from then on"
        )
        yield f"the work above is done; the ledger lacks {lacks}: {one_line(str(error))}"


def _table(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_batches([rows_to_batch(schema, rows)], schema=schema)


def _describe(operation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of ``schemas.OPERATION`` for one step of a plan."""
    return {
        "operation": operation["operation"],
        "file": operation.get("name", operation.get("source")),
        "target": operation.get("target"),
        "size_bytes": operation.get("size_bytes"),
        "reason": operation["reason"],
    }
