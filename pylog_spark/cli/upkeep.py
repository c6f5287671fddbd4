"""Commands that need no Spark session: undo and purge, from flags to exit status."""

from collections.abc import Sequence

from pylog_spark.cli.job_runner import write_report
from pylog_spark.config.load import Flags, load_config
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import undo
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
    report = undo(run_id, options, roots=roots)
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
    report = purge(roots, options)
    write_report(report, as_json=as_json)
    return report.exit_code
