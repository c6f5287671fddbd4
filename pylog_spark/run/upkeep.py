"""Run changes to logs under all roots' locks, with undo and plan."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote

from pylog_spark.engines.choice import Place
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.job import Job, run_trash
from pylog_spark.run.run import Run
from pylog_spark.run.saved_plans import write_planned
from pylog_spark.run.store_costs import bucket_notes
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, read_checkpoints
from storage_core.commit.keep import is_same_filesystem
from storage_core.commit.trash import RUN_FILE, TrashedRoot, TrashedRun, hold_run
from storage_core.errors import StorageError
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import write_record


@contextmanager
def open_upkeep(place: Place, job: Job) -> Iterator[Run]:
    """Open a run to change its roots' logs, or to plan that.

    It holds all roots; what it found there is in its trash before the first file is touched, so
    that it can be undone; the plan that was asked for is saved when its last step has ended.
    """
    with Run(place, job) as run:
        run.notes += (*dump_notes(job.options, job.roots), *bucket_notes(job.roots))
        run.hold_roots(trash=run_trash(job))
        changed = [root for root in job.roots if not root.role.facts.keeps_generations]
        begin_trash(job, [root.location for root in changed], run.held)
        run.notes += tuple(trash_notes(job))
        yield run
        try:
            write_planned(run)
        except StorageError as error:
            # The answer of the dry run is known, and is shown.
            run.problems.append(f"{job.options.plan_out}: the plan was not saved: {error}")
    run.notes += tuple(
        f"{location}: the disk failed, and the run did no more there: the directory has no "
        f"marker of a clean shutdown, the next run finishes what had begun: {failure}"
        for location, failure in run.failures.items()
    )


def begin_trash(job: Job, locations: Sequence[str], held: ExitStack) -> None:
    """Write down the roots' state for an undo; nothing without a trash. It is called under the
    locks of its log directories, before any file changes.

    Args:
        held: Keeps the run's trash from a purge and from an undo until it is closed.
    """
    folder = run_trash(job)
    if folder is None or not locations or job.options.dry_run:
        return
    run = TrashedRun(
        run_id=job.run_id,
        action=job.action,
        started_ms=job.clock.now_ms(),
        roots=tuple(map(observe_root, locations)),
    )
    write_record(folder / RUN_FILE, run.encode())
    held.enter_context(hold_run(folder))


def trash_notes(job: Job) -> Iterator[str]:
    """Yield notes on what the trash copies and fills, for report readers."""
    folder, trash = run_trash(job), job.options.trash
    roots = [root for root in job.roots if not root.role.facts.keeps_generations]
    if folder is None or trash is None or not roots:
        return
    beside = roots_beside_trash(roots, folder)
    names = [root.location for root in roots if root.location in beside]
    if names:
        disk = "the same disk" if len(names) == len(roots) else f"the disk of {', '.join(names)}"
        yield (
            f"the trash {trash} is on {disk}: what goes there frees nothing before "
            f"`pylog purge --trash {quote(trash)} --older-than 0s`, which ends the way back"
        )
    for root in roots:
        if root.location not in beside:
            yield (
                f"{root.location}: the trash {trash} is on another filesystem, so what the run "
                "replaces or removes is copied there, not renamed"
            )


def roots_beside_trash(roots: Iterable[LogRoot], trash: Path) -> frozenset[str]:
    """Return the local roots on the same filesystem as a trash. The files in the trash occupy
    their space."""
    return frozenset(
        root.location
        for root in roots
        if (path := local_path(root.location)) is not None and is_same_filesystem(path, trash)
    )


def observe_root(location: str) -> TrashedRoot:
    """Return a log directory's marker and checkpoint entries as of now."""
    root = BrokerRoot(Path(location))
    read = read_checkpoints(root, strict=False)
    return TrashedRoot(
        location=location,
        was_clean=read_clean_shutdown(root) is not None,
        checkpoints={
            name: {
                str(partition): offset for partition, offset in read.entries.get(name, {}).items()
            }
            for name in CHECKPOINT_FILES
            if name not in read.problems
        },
    )
