"""The trash of a run: what it says of itself there before it touches anything."""

from contextlib import ExitStack
from pathlib import Path

from pylog_spark.run.job import Job, run_trash
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, read_checkpoints
from storage_core.commit.keep import is_same_filesystem
from storage_core.commit.trash import RUN_FILE, TrashedRoot, TrashedRun, hold_run
from storage_core.roots.broker import BrokerRoot
from storage_core.store.local import write_record


def begin_trash(job: Job, held: ExitStack) -> tuple[str, ...]:
    """Write down what a run found, so that it can be undone; nothing without a trash.

    To be called under the locks of its log directories, before the first file is touched.

    Args:
        job: The run.
        held: Keeps the run's trash from a purge and from an undo until it is closed.

    Returns:
        What a reader of the report should know.

    Raises:
        StorageError: A file cannot be read or written.
    """
    folder = run_trash(job)
    roots = [root for root in job.roots if root.role is not Role.MANAGED]
    if folder is None or not roots or job.options.dry_run:
        return ()
    run = TrashedRun(
        run_id=job.run_id,
        action=job.action,
        started_ms=job.clock.now_ms(),
        roots=tuple(observe_root(root.location) for root in roots),
    )
    write_record(folder / RUN_FILE, run.encode())
    held.enter_context(hold_run(folder))
    return tuple(
        f"{root.location}: the trash {job.options.trash} is on another filesystem, so what the run "
        "replaces or removes is copied there, not renamed"
        for root in roots
        if not is_same_filesystem(Path(root.location), folder)
    )


def observe_root(location: str) -> TrashedRoot:
    """Return a log directory as it is now: its marker, and the entries of its checkpoints.

    Raises:
        StorageError: A file cannot be read.
    """
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
