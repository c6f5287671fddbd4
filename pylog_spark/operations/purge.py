"""Purge files put aside by brokers or by our runs.

They go for good, once their time is over.

In a broker's directory that are ``.deleted`` files and directories of deleted partitions, which
the broker would remove itself; in the trash, what runs replaced or removed; in a managed root,
generations and objects that no manifest within the grace period names. No records are read.
Tasks do it for managed roots; what lies on this host's disks goes from here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.broker_purge import purge_broker
from pylog_spark.operations.managed_purge import purge_managed
from pylog_spark.operations.set_aside import describe_set_aside
from pylog_spark.options import JobOptions
from pylog_spark.run.catalogs import build_catalogs, dump_notes
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import Action
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.tasks.purge_rows import Gone, Row, apply_purge, purge_row
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.clock import Clock
from storage_core.commit.purge import find_runs, plan_purge_trash
from storage_core.commit.trash import hold_run
from storage_core.errors import ConfigError, PylogError
from storage_core.maintenance.inspection import inspect_root


def purge(
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    place: "Place | None" = None,
    clock: Clock | None = None,
) -> RunReport:
    """Purge log directories, managed roots and the trash, under their locks.

    Args:
        roots: Log directories and managed roots; none for the trash alone.
        options: The trash, the time, which topics, the ledger, and whether this is a dry run.
        place: What writes the ledger: a Spark session, or this machine, which None stands for.
        clock: For the name of the run, and the times in the ledger.

    Raises:
        ConfigError: There is nothing to purge, a root is no directory, or the ledger cannot be
            written there.
        GuardRefusedError: A root's role was not said or is read-only, or it is in use.
        StorageError: The disk of the only root failed.
        PylogError: The cluster's metadata or a root's own files cannot be read.
    """
    log_roots = resolve_roots(roots, said=options.role) if roots else []
    if not log_roots and options.trash is None:
        raise ConfigError("ROOT", None, "expected a log directory, a managed root or --trash")
    # Beside roots it may be that no run has kept anything there yet.
    if not log_roots and not Path(options.trash or "").is_dir():
        raise ConfigError("--trash", options.trash, "no such directory")
    check_roots(log_roots, options)
    job = new_job(Action.PURGE.value, log_roots, options, clock=clock)
    # A purge removes what was deleted, so its owner is looked up before.
    disks = []
    for root in log_roots:
        if root.role.facts.is_owned_by_broker:
            with suppress(PylogError):  # the report has the error
                disks.append(inspect_root(root.location))
    set_aside = tuple(describe_set_aside(disks, job.topics))
    with Run(place or Local(), job) as run:
        run.notes += dump_notes(options)
        run.hold_roots()
        results = purge_step(run, build_catalogs(log_roots, options))
    failed = [
        f"{location}: the disk failed, and nothing more was purged there: {failure}"
        for location, failure in run.failures.items()
    ]
    return run.report(RunReport, results, notes=(*set_aside, *failed))


@log_fields(step=Action.PURGE.value)
def purge_step(
    run: Run, catalogs: Mapping[str, TopicCatalog], *, listed: pa.Table | None = None
) -> pa.Table:
    """Purge old leftovers; return a row per directory with any.

    They are rows of ``schemas.RESULT``.

    What is wrong with one directory is in its row and stops no other. The rows, and what was done,
    are in the run's record when this returns.

    Args:
        run: The run; it holds the roots, and its own trash stays.
        catalogs: What is known of their topics, by root.
        listed: Rows of ``schemas.PARTITION``: the directories of brokers in which there may be
            something; None to list them.

    Raises:
        StorageError: A managed root cannot be listed.
    """
    steps = (
        _purge_log_directories(run, catalogs, listed),
        _purge_managed_roots(run),
        _purge_trash(run),
    )
    return run.recorder.each_result(chain.from_iterable(steps), action=Action.PURGE.value)


def _purge_log_directories(
    run: Run, catalogs: Mapping[str, TopicCatalog], listed: pa.Table | None
) -> Iterator[Row]:
    for root in run.job.roots:
        # Where the disk has failed the run says so in its notes, and does nothing more.
        if root.role.facts.is_owned_by_broker and root.location not in run.failures:
            if listed is None:
                rows = list_partitions(root.location, root.role.value, run.job.topics)
            else:
                of_root = listed.filter(pc.equal(listed["root"], root.location))
                rows = of_root.sort_by("directory").to_pylist()
            held = run.roots.get(root.location)
            yield from purge_broker(rows, catalogs[root.location], run.job.options, held)


def _purge_managed_roots(run: Run) -> Iterator[Row]:
    for root in run.job.roots:
        if root.role.facts.keeps_generations:
            yield from purge_managed(run, root.location)


def _purge_trash(run: Run) -> Iterator[Row]:
    """Purge what runs have kept; what this run keeps itself stays."""
    options = run.job.options
    for folder in () if options.trash is None else find_runs(Path(options.trash)):
        if folder.name != run.job.run_id:
            row = purge_row(
                {"root": str(folder)},
                partial(_purge_run, folder, options),
                dry_run=options.dry_run,
            )
            if row is not None:
                yield row


def _purge_run(folder: Path, options: JobOptions) -> Gone:
    with nullcontext() if options.dry_run else hold_run(folder):
        purge = plan_purge_trash(
            folder, now_ms=options.now_ms, older_than_ms=options.purge_after_ms
        )
        return apply_purge(purge, dry_run=options.dry_run)
