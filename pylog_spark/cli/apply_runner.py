"""A saved plan: file, session, operation, exit status."""

import signal
from pathlib import Path

from pylog_spark.cli.job_runner import write_report
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.apply import ApplyOptions, apply_saved, options_of
from pylog_spark.operations.guards import check_roots
from pylog_spark.operations.plan_file import read_plan_file
from pylog_spark.session import build_session


def run_apply(path: Path, said: ApplyOptions, *, as_json: bool) -> int:
    """Apply a plan, print what became of each partition and return the exit status.

    Args:
        path: Its file.
        said: What is said anew.
        as_json: JSON lines instead of a table.

    Raises:
        PylogError: It could not run, or a guard refused it.
    """
    saved = read_plan_file(path)
    options = options_of(saved, path, said)
    if saved.action != "recover":
        roots = [root.location for root in saved.roots]
        # The job checks this again. Here it spares a person the start of a Spark session.
        check_roots(resolve_roots(roots, said=options.role), options)
    session = build_session(
        options.master,
        options.spark_conf,
        app_name="pylog apply",
        delta=options.ledger is not None,
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report = apply_saved(session, saved, options)
    write_report(report, as_json=as_json)
    return report.exit_code
