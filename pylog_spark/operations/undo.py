"""Undo a run in log directories and managed roots.

What it replaced, cut or removed is put back.

Of a local log directory everything that is needed lies in the trash of the run, of a managed root
in the root itself.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.broker_undo import BrokerUndo
from pylog_spark.operations.managed_undo import undo_managed
from pylog_spark.options import JobOptions
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import new_job
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import RESULT, Action
from storage_core.catalog.roles import Role
from storage_core.clock import Clock
from storage_core.commit.trash import RUN_FILE, hold_run, read_run
from storage_core.errors import ConfigError
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.open_root import LogRoot


def undo(
    run_id: str,
    options: JobOptions,
    *,
    roots: Sequence[str] = (),
    place: "Place | None" = None,
    clock: Clock | None = None,
) -> RunReport:
    """Undo a run in local log directories or managed roots.

    Args:
        run_id: The run, as its report and the ledger name it.
        options: The trash it was given, which topics, the ledger, and whether this is a dry run.
        roots: Managed roots that it worked on; local log directories stand in the trash.
        place: Where its tasks run: a Spark session, or this machine, which None stands for.
        clock: For the name of this run, and the times in the ledger.

    Raises:
        ConfigError: There is no trash, or it does not know the run; the ledger would lie inside of
            a log directory, or cannot be written there.
        GuardRefusedError: A log directory is in use, or the run's trash is.
        CheckpointError: The trash cannot be understood.
        StorageError: The disk of the only root failed, or the trash cannot be read.
    """
    touched = check_undo(run_id, options, roots)
    request = {"undoes": run_id}
    job = new_job(Action.UNDO.value, touched, options, clock=clock, request=request)
    with Run(place or Local(), job) as run:
        tables = list(_undo_roots(run, run_id))
    results = pa.concat_tables(tables) if tables else RESULT.empty_table()
    return run.report(RunReport, results)


def _undo_roots(run: Run, run_id: str) -> Iterator[pa.Table]:
    """Undo the run in all roots; yield each root's recorded rows."""
    job, options = run.job, run.job.options
    # All of them are held before the first is touched: whoever is refused one has changed nothing.
    managed = [root.location for root in job.roots if root.role is Role.MANAGED]
    for location in () if options.dry_run else managed:
        run.hold(HeldManagedRoot(location, run_id=job.run_id))
    for each in _broker_undos(run, run_id):
        if options.dry_run:
            each.check()
        else:
            each.undo()
        run.notes += tuple(each.notes)
        yield run.recorder.each_result(each.results(), action=job.action)
    for location in managed:
        rows = undo_managed(run, location, run_id)
        yield run.recorder.each_result(rows, action=job.action)


def _broker_undos(run: Run, run_id: str) -> list[BrokerUndo]:
    """Return the undos of local log directories, each under its lock.

    The run's trash names the directories.
    """
    job, options = run.job, run.job.options
    if all(root.role is not Role.BROKER for root in job.roots):
        return []
    folder = _run_folder(run_id, options.trash)
    if not options.dry_run:
        run.held.enter_context(hold_run(folder))
    undos = [
        BrokerUndo(run, folder, before, number)
        for number, before in enumerate(read_run(folder).roots)
    ]
    for each in () if options.dry_run else undos:
        each.hold()
    return undos


def check_undo(run_id: str, options: JobOptions, roots: Sequence[str] = ()) -> tuple[LogRoot, ...]:
    """Return the roots that an undo is about, before anything is touched.

    Args:
        run_id: The run that is undone.
        options: The trash and the ledger.
        roots: Managed roots; local log directories stand in the trash.

    Raises:
        ConfigError: There is no trash, it does not know the run, or the ledger would lie inside of
            a log directory.
        CheckpointError: The trash cannot be understood.
    """
    found = resolve_roots(roots, said=Role.MANAGED) if roots else []
    if options.trash is not None or not roots:
        run = read_run(_run_folder(run_id, options.trash))
        found += [
            LogRoot(location=root.location, role=Role.BROKER, is_said=True) for root in run.roots
        ]
    check_ledger(found, options.ledger)
    return tuple(found)


def _run_folder(run_id: str, trash: str | None) -> Path:
    if trash is None:
        raise ConfigError("--trash", None, "say where the run's trash is")
    folder = Path(trash, run_id)
    if Path(run_id).name != run_id or not (folder / RUN_FILE).is_file():
        raise ConfigError(
            "RUN",
            run_id,
            f"the trash {trash} has no run of that name: it kept nothing, or was purged",
        )
    return folder
