"""Commands that need no Spark but for their ledger: undo and purge, from flags to exit status."""

import signal
from collections.abc import Sequence

from pyspark.sql import SparkSession

from pylog_spark.cli.job_runner import write_report
from pylog_spark.config import JobOptions
from pylog_spark.config.load import Flags, load_config
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.guards import check_roots
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import check_undo, undo
from pylog_spark.session import build_session
from storage_core.clock import SystemClock


def run_undo(run_id: str, roots: Sequence[str], flags: Flags, *, as_json: bool) -> int:
    """Undo a run, print what became of each partition and return the exit status.

    Args:
        run_id: The run.
        roots: Managed roots; local log directories stand in the trash.
        flags: What the command line says.
        as_json: JSON lines instead of a table.

    Raises:
        PylogError: It could not run, or a guard refused it.
    """
    options = load_config(flags, now_ms=SystemClock().now_ms()).options
    check_undo(run_id, options, roots)
    report = undo(run_id, options, roots=roots, spark=_ledger_session("undo", options))
    write_report(report, as_json=as_json)
    return report.exit_code


def run_purge(roots: Sequence[str], flags: Flags, *, as_json: bool) -> int:
    """Purge roots and the trash, print what went and return the exit status.

    Args:
        roots: Log directories and managed roots.
        flags: What the command line says.
        as_json: JSON lines instead of a table.

    Raises:
        PylogError: It could not run, or a guard refused it.
    """
    options = load_config(flags, now_ms=SystemClock().now_ms()).options
    if roots:
        check_roots(resolve_roots(roots, said=options.role), options)
    report = purge(roots, options, spark=_ledger_session("purge", options))
    write_report(report, as_json=as_json)
    return report.exit_code


def _ledger_session(command: str, options: JobOptions) -> SparkSession | None:
    """Return a session for the ledger, None where nothing is written to one."""
    if options.ledger is None or options.dry_run:
        return None
    session = build_session(
        options.master, options.spark_conf, app_name=f"pylog {command}", delta=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return session
