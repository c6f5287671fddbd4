"""Undo a run in log directories and managed roots. What it replaced, cut or removed is put back.

Of a local log directory everything that is needed lies in the trash of the run, of a managed root
in the root itself.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.discovery import resolve_managed
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.past_runs import LATEST, choose_run
from pylog_spark.operations.undo_task import undo_partitions
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import are_looked_at_here, count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import RESULT, Failure
from pylog_spark.tasks.message import DirectoryResult
from storage_core.catalog.topic_filter import nearest_name
from storage_core.clock import Clock
from storage_core.commit.purge import find_runs
from storage_core.commit.trash import RUN_FILE, hold_run, list_commits
from storage_core.errors import ConfigError, StorageError
from storage_core.roots.managed import newest_runs
from storage_core.roots.open_root import LogRoot, kept_roots
from storage_core.roots.root import HeldRoot, RootUndo, UndoT, UndoWork

# So many are put back by this process about as soon as others have started that could do it.
_FEW: Final = 32
_RUN: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")  # a whole name, as ``new_job`` makes it


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
        run_id: The run, as ``find_run_id`` takes it.
        options: The trash it was given, which topics, the ledger, and whether this is a dry run.
        roots: Managed roots that it worked on; local log directories stand in the trash.
        place: Where its tasks run: a Spark session, or this machine, which None stands for.
        clock: For the name of this run, and the times in the ledger.
    """
    run_id = find_run_id(run_id, options.trash, roots)
    touched = check_undo(run_id, options, roots)
    request = {"undoes": run_id}
    job = new_job(Action.UNDO.value, touched, options, clock=clock, request=request)
    with Run(place or Local(), job) as run:
        tables = list(_undo_roots(run, run_id))
    results = pa.concat_tables(tables) if tables else RESULT.empty_table()
    return run.report(RunReport, results)


def _undo_roots(run: Run, undoes: str) -> Iterator[pa.Table]:
    """Undo a run in all roots; yield each root's recorded rows."""
    job, options = run.job, run.job.options
    folder = None if options.trash is None else _run_folder(undoes, options.trash)
    if folder is not None and not options.dry_run:
        run.held.enter_context(hold_run(folder))
    # A dry run has no disk to leave alone: it tells of one that fails, as of the others.
    is_alone = len(job.roots) == 1 and not options.dry_run
    roots = [
        root.open().hold(run_id=job.run_id, mark_clean=options.mark_clean, is_alone=is_alone)
        for root in job.roots
    ]
    locks = [run.held.enter_context(ExitStack()) for _ in roots]
    # All of them are held before the first is touched: whoever is refused one has changed nothing.
    # Entering a log directory finishes what killed runs began there, so those come last.
    for root, lock in () if options.dry_run else zip(roots, locks, strict=True):
        try:
            run.hold(root, until=lock)
        except StorageError as error:
            root.give_up(error)
    # A store that fails ends the run: by then the disks are undone.
    for _, root, lock in sorted(
        zip(job.roots, roots, locks, strict=True),
        key=lambda each: each[0].role.facts.keeps_generations,
    ):
        undo = root.undo_of(undoes, folder)
        yield run.recorder.each_result(_undo_root(run, root, undo, lock), action=job.action)
        run.note(undo.end())


def _undo_root(
    run: Run, root: HeldRoot, undo: RootUndo[UndoT], lock: ExitStack
) -> Iterator[dict[str, Any]]:
    """Undo a run in one root; give the root back.

    Args:
        root: The root; unless in a dry run it is held, or its disk has failed.
        lock: Gives the root back.

    Yields:
        Columns of ``schemas.RESULT`` of each partition that the run changed, with the operations
        behind it.
    """
    with lock:
        for part in undo.parts(run.job.topics):
            ended: dict[str, DirectoryResult] = {}
            if root.failure is None and run.job.options.dry_run:
                ended = _ask(run, root, undo, part, undo.check, Status.PLANNED)
            elif root.failure is None:
                try:
                    _undo_part(run, root, undo, part, ended)
                except StorageError as error:
                    root.give_up(error)
            for each in part:
                result = ended.get(each.location)
                if result is None and root.failure is not None:
                    # Of the other partitions it is known what became of them before that.
                    result = DirectoryResult(
                        directory=each.location,
                        status=Status.FAILED.value,
                        failure=Failure.of(root.failure),
                    )
                if result is not None:
                    name = {"root": root.location, **asdict(each.partition)}
                    yield result.columns() | name


def _undo_part(
    run: Run,
    root: HeldRoot,
    undo: RootUndo[UndoT],
    part: Sequence[UndoT],
    ended: dict[str, DirectoryResult],
) -> None:
    """Undo a part of a root's partitions; add their results."""
    checked: dict[str, DirectoryResult] = {}
    due = part
    if undo.moves_files:
        checked = _ask(run, root, undo, part, undo.check, Status.PLANNED)
        planned = {place for place, each in checked.items() if each.status == Status.PLANNED.value}
        ended |= {place: each for place, each in checked.items() if place not in planned}
        due = [each for each in part if each.location in planned]
    undo.begin(part, due)
    if not due or root.failure is not None:
        return
    applied = _ask(run, root, undo, due, undo.apply, Status.DONE)
    for place, each in applied.items():
        if place in checked and each.reason == Reason.ALREADY_UNDONE.value:
            # By an attempt of this run that could not say so any more.
            applied[place] = replace(checked[place], status=Status.DONE.value)
    ended |= applied
    done = {place for place, each in applied.items() if each.status == Status.DONE.value}
    undo.settle(due, [each for each in due if each.location in done])


def _ask(
    run: Run,
    root: HeldRoot,
    undo: RootUndo[UndoT],
    part: Sequence[UndoT],
    work: UndoWork[UndoT],
    status: Status,
) -> dict[str, DirectoryResult]:
    """Return what tasks make of partitions, by directory."""
    if not part:
        return {}
    tasks = count_look_tasks(len(part), slots=run.engine.slots)
    is_look = are_looked_at_here(len(part))
    if undo.moves_files:
        tasks = min(tasks, run.disks.per_disk or tasks)
        is_look = len(part) <= _FEW
    what = "compare" if status is Status.PLANNED else "put back"
    # Whoever undoes a partition holds its claim or asks for the lease, wherever that is done.
    results = run.engine.ask(
        [part[number::tasks] for number in range(tasks)],
        partial(undo_partitions, work=work, status=status, in_turns=undo.moves_files),
        DirectoryResult,
        f"{run.job.title}: {what} {len(part)} partitions of {root.location}",
        is_look=is_look,
    )
    return {each.directory or "": each for each in results}


def check_undo(run_id: str, options: JobOptions, roots: Sequence[str] = ()) -> tuple[LogRoot, ...]:
    """Return the roots that an undo is about, before anything is touched. Managed roots come first.

    Args:
        options: The trash and the ledger.
        roots: Managed roots; local log directories stand in the trash.
    """
    touched = resolve_managed(roots) if roots else []
    if options.trash is not None or not roots:
        touched += kept_roots(_run_folder(run_id, options.trash))
    check_ledger(touched, options.ledger)
    return tuple(touched)


def find_run_id(name: str, trash: str | None, roots: Sequence[str] = ()) -> str:
    """Return the name of the run to undo, before anything is touched. An unknown whole name is
    returned as it is; the undo says what it finds.

    Args:
        name: Its name, the beginning of the name or ``latest``: the newest run that kept something
            in the trash, or made the newest generation of a partition. If that is undone, no older
            one is taken in its place.
        roots: Managed roots.
    """
    folders = [] if trash is None else find_runs(Path(trash))
    runs = {each.name: each.name for each in folders if name != LATEST or any(list_commits(each))}
    is_looked_up = bool(roots) and not _RUN.fullmatch(name)
    for root in resolve_managed(roots) if is_looked_up else ():
        runs |= newest_runs(root.location)
    found = choose_run(name, {*runs, *runs.values()})
    if found is None and is_looked_up and trash is None:
        raise ConfigError(
            "RUN",
            name,
            f"no partition of {', '.join(roots)} is as a run of that name has left it; its whole "
            "name, as `pylog runs --ledger DIR` lists it, says what has changed since",
        )
    if name == LATEST and found is not None:
        found = runs[found]
    return found or name


def _run_folder(run_id: str, trash: str | None) -> Path:
    if trash is None:
        raise ConfigError("--trash", None, "say where the run's trash is")
    folder = Path(trash, run_id)
    if Path(run_id).name != run_id or not (folder / RUN_FILE).is_file():
        raise ConfigError("RUN", run_id, _unknown_run(run_id, Path(trash)))
    return folder


def _unknown_run(run_id: str, trash: Path) -> str:
    """Return why a trash lacks a run, as far as it tells."""
    if not trash.is_dir():
        return f"there is no trash {trash}: name the one that the run was given (--trash DIR)"
    runs = [folder.name for folder in find_runs(trash)]
    if not runs:
        return f"the trash {trash} has no run of that name, nor any other"
    near = nearest_name(run_id, runs)
    meant = f"did you mean {near}?" if near is not None else f"the newest is {max(runs)}."
    return (
        f"the trash {trash} has no run of that name; {meant} `pylog runs --trash {trash}` lists "
        "them. A run that took nothing away, or was purged, is not there"
    )
