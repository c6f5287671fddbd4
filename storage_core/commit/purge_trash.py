"""Removing the trash of old runs, one folder after the other, what names the run last."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage_core.commit.plan import DeleteFile, Plan, RemoveDirectory
from storage_core.commit.trash import (
    BEGUN,
    LEFT_FILE,
    RUN_FILE,
    list_commits,
    read_commit,
    read_run,
    walk_folders,
)
from storage_core.errors import GuardRefusedError
from storage_core.store.local import storage_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashPurge:
    """The trash of one run, as a purge sees it.

    Attributes:
        folder: Where it is.
        run_id: The run.
        plans: What removes it, folder by folder; none where it is too young.
        files: How many files it holds.
        size_bytes: Their bytes; those of a file with another name elsewhere are not freed.
        wait_ms: How long it is still kept; None where it is old enough.
    """

    folder: Path
    run_id: str
    plans: tuple[Plan, ...]
    files: int
    size_bytes: int
    wait_ms: int | None


def find_runs(trash: Path) -> list[Path]:
    """Return the folders of runs in a trash, oldest first; of other folders nothing is known.

    Raises:
        StorageError: It cannot be listed.
    """
    if not trash.is_dir():
        return []
    with storage_errors(trash):
        folders = [path for path in trash.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(folder for folder in folders if (folder / RUN_FILE).is_file())


def plan_purge_trash(folder: Path, *, now_ms: int, older_than_ms: int) -> TrashPurge:
    """Plan the removal of the trash of one run.

    Args:
        folder: The run's, held if it is going to be removed.
        now_ms: The run's clock, epoch milliseconds.
        older_than_ms: How long it is kept after the run's last commit.

    Raises:
        GuardRefusedError: It holds something that no run puts there, or an undo of it was begun.
        CheckpointError: It cannot be understood.
        StorageError: It cannot be read.
    """
    run = read_run(folder)
    newest_ms = run.started_ms
    for commit in list_commits(folder):
        if read_commit(commit).undo == BEGUN:
            raise GuardRefusedError(
                "UNDO_BEGUN",
                f"{commit}: an undo of run {run.run_id} was begun and has not ended; run it again",
            )
        left = commit / LEFT_FILE
        with storage_errors(left):
            if left.exists():
                newest_ms = max(newest_ms, left.stat().st_mtime_ns // 1_000_000)
    wait_ms = newest_ms + older_than_ms - now_ms
    removals = tuple(_removals(folder)) if wait_ms <= 0 else ()
    return TrashPurge(
        folder=folder,
        run_id=run.run_id,
        plans=tuple(plan for plan, _ in removals),
        files=sum(len(plan.operations) - 1 for plan, _ in removals),
        size_bytes=sum(size_bytes for _, size_bytes in removals),
        wait_ms=wait_ms if wait_ms > 0 else None,
    )


def _removals(folder: Path) -> Iterator[tuple[Plan, int]]:
    """Yield what empties and removes each folder, the run's own last, and the bytes of its files.

    Raises:
        GuardRefusedError: Something in it is neither a file nor a folder.
        StorageError: It cannot be read.
    """
    why = "the time to undo the run is over"
    with storage_errors(folder):
        for place, names, files in walk_folders(folder, topdown=False):
            size_bytes = 0
            for name in (*names, *files):
                facts = Path(place, name).lstat()
                if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
                    raise GuardRefusedError(
                        "NOT_OURS", f"{Path(place, name)}: is no regular file; nothing was removed"
                    )
                size_bytes += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
            steps = [DeleteFile(name=name, reason=why) for name in sorted(files)]
            plan = Plan(location=place, operations=(*steps, RemoveDirectory(reason=why)))
            yield plan, size_bytes
