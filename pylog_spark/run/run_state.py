"""The state of a run, and its listeners besides the ledger. Log, metrics and lineage are
listeners; none of them may change how a run ends."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.exit_code import ExitCode
from pylog_spark.options import JobOptions
from pylog_spark.run.run_report import Report, RunSummary, summarise
from pylog_spark.schemas import RunEvent, Status
from pylog_spark.structured_logs import is_json_logged, log_fields

_log: Final = logging.getLogger(__name__)

# How OpenLineage's client is told where its events go.
_LINEAGE_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")


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
