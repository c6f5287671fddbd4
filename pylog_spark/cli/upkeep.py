"""Commands that need no Spark but for their ledger: undo and purge, from flags to exit status."""

import signal
from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pylog_spark.cli.job_runner import write_report
from pylog_spark.discovery import LogRoot, resolve_roots
from pylog_spark.operations.guards import check_roots
from pylog_spark.operations.purge import purge
from pylog_spark.operations.run_report import RunReport, note_of_empty_root
from pylog_spark.operations.undo import check_undo, undo
from pylog_spark.options import JobOptions
from pylog_spark.options.load import Flags, load_config
from pylog_spark.session import build_session
from pylog_spark.tasks.listing import TopicFilter, list_partitions
from storage_core.catalog.roles import Role
from storage_core.clock import SystemClock
from storage_core.store import open_object_store
from storage_core.store.managed_root import list_partitions as list_managed


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
    touched = [root.location for root in check_undo(run_id, options, roots)]
    report = undo(run_id, options, roots=roots, spark=_ledger_session("undo", options))
    notes = _notes_of_nothing_to_undo(report, touched, options)
    write_report(replace(report, notes=(*report.notes, *notes)), as_json=as_json)
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
    log_roots = resolve_roots(roots, said=options.role) if roots else []
    check_roots(log_roots, options)
    notes = _notes_of_empty_roots(log_roots, options)
    report = purge(roots, options, spark=_ledger_session("purge", options))
    write_report(replace(report, notes=(*report.notes, *notes)), as_json=as_json)
    return report.exit_code


def _notes_of_nothing_to_undo(
    report: RunReport, roots: Sequence[str], options: JobOptions
) -> tuple[str, ...]:
    """Return a line for each root of the run of which nothing was undone, nor refused."""
    seen = set(pc.unique(report.results["root"]).to_pylist())
    are_chosen = options.include or options.exclude
    of_what = " of a topic that --topics and --exclude ask for" if are_chosen else ""
    return tuple(
        f"{root}: the run left nothing to undo there{of_what}" for root in roots if root not in seen
    )


def _notes_of_empty_roots(roots: Sequence[LogRoot], options: JobOptions) -> tuple[str, ...]:
    """Return a line for each root in which a purge was asked for no partition that is there.

    A purge has no row of a partition that has nothing to purge, so its rows do not tell.
    """
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    return tuple(
        note_of_empty_root(
            root.location, are_topics_chosen=bool(options.include or options.exclude)
        )
        for root in roots
        if not _has_partition(root, topics)
    )


def _has_partition(root: LogRoot, topics: TopicFilter) -> bool:
    if root.role is Role.MANAGED:
        found = list_managed(open_object_store(root.location))
        return any(topics.admits(partition.topic) for partition in found)
    return bool(list_partitions(root.location, root.role.value, topics))


def _ledger_session(command: str, options: JobOptions) -> SparkSession | None:
    """Return a session for the ledger, None where nothing is written to one."""
    if options.ledger is None or options.dry_run:
        return None
    session = build_session(
        options.master, options.spark_conf, app_name=f"pylog {command}", delta=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return session
