"""Open the listeners of a run besides the ledger: log, metrics and lineage. None of them may
change how a run ends."""

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final, Protocol

import pyarrow.compute as pc

from pylog_spark.options import JobOptions
from pylog_spark.run.run_report import Report, RunState
from pylog_spark.schemas import Status
from pylog_spark.structured_logs import is_json_logged, log_fields

_log: Final = logging.getLogger(__name__)

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
