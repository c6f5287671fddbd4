"""Tell the log when a run begins, what failed, and how it ended: where log lines are JSON."""

import logging
from dataclasses import asdict
from typing import Final

import pyarrow.compute as pc

from pylog_spark.run.run_report import Report
from pylog_spark.run.run_state import RunState
from pylog_spark.schemas import Status
from pylog_spark.structured_logs import log_fields

_log: Final = logging.getLogger(__name__)


class RunLog:
    """Writes log lines about a run."""

    failure = "what became of the run was not logged"

    def tell(self, state: RunState) -> None:
        """Write a line when the run begins; at its end one a failed partition, and one of it."""
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
