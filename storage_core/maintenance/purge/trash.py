"""Removing the trash of old runs, one folder after the other, what names the run last."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import CheckpointError, GuardRefusedError
from storage_core.maintenance.trash.record import (
    BEGUN,
    LEFT_FILE,
    RUN_FILE,
    list_commits,
    read_commit,
    read_run,
)
from storage_core.plan.operations import DeleteFile, RemoveDirectory
from storage_core.plan.plan import Plan
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
        folder: The run's.
        now_ms: The run's clock, epoch milliseconds.
        older_than_ms: How long it is kept after the run's last commit.

    Raises:
        GuardRefusedError: It holds something that no run puts there, or an undo of it was begun.
        CheckpointError: It cannot be understood.
        StorageError: It cannot be read.
    """
    run = read_run(folder)
    if folder.name != run.run_id:
        raise CheckpointError(str(folder / RUN_FILE), 0, f"is of run {run.run_id}")
    newest_ms = run.started_ms
    for commit in list_commits(folder):
        if read_commit(commit).undo == BEGUN:
            raise GuardRefusedError(
                "UNDO_BEGUN",
                f"{commit}: an undo of run {run.run_id} was begun and has not ended; run it again",
            )
        left = commit / LEFT_FILE
        if left.exists():
            newest_ms = max(newest_ms, left.stat().st_mtime_ns // 1_000_000)
    wait_ms = newest_ms + older_than_ms - now_ms
    plans = tuple(_removals(folder)) if wait_ms <= 0 else ()
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if plans else []
    return TrashPurge(
        folder=folder,
        run_id=run.run_id,
        plans=plans,
        files=len(sizes),
        size_bytes=sum(sizes),
        wait_ms=wait_ms if wait_ms > 0 else None,
    )


def _removals(folder: Path) -> Iterator[Plan]:
    """Yield what empties and removes each folder, the run's own last."""
    why = "the time to undo the run is over"
    with storage_errors(folder):
        for place, names, files in os.walk(folder, topdown=False):
            for name in (*names, *files):
                mode = Path(place, name).lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise GuardRefusedError(
                        "NOT_OURS", f"{Path(place, name)}: is no regular file; nothing was removed"
                    )
            steps = [DeleteFile(name=name, reason=why) for name in sorted(files)]
            yield Plan(location=place, operations=(*steps, RemoveDirectory(reason=why)))
