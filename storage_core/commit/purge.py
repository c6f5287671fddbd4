"""Delete for good Kafka's renamed files and the trash of runs. Kafka marks a file or directory for
removal by a suffix.

What a broker would remove by itself are ``.deleted`` files and directories of deleted partitions.
It renames first and removes ``file.delete.delay.ms`` later; one that was stopped in between
leaves them. When that was is the time of the last change of a file's entry (``ctime``), for a
rename does not touch the modification time. A directory is only removed if it is what it seems:
its name is one that Kafka gives, it is no symbolic link, and all in it are regular files.

The trash of an old run is removed one folder after the other, what names the run last.
"""

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from storage_core.commit.executor import commit
from storage_core.commit.plan import (
    CommitPlan,
    DeleteFile,
    Operation,
    RemoveDirectory,
    SyncDirectory,
)
from storage_core.commit.trash import (
    BEGUN,
    LEFT_FILE,
    RUN_FILE,
    list_commits,
    read_commit,
    read_run,
    walk_folders,
)
from storage_core.errors import GuardRefusedError, InvalidNameError
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    parse_renamed_directory,
)
from storage_core.local_files import Entry, scan_folder
from storage_core.store.local import LocalStore, storage_errors
from storage_core.threads import in_order

_DELETE: Final = "delete"
# Removals of a disk, which compute hardly anything.
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """The removals of one purge in a directory or a run's trash."""

    location: Path  # the directory, or the run's folder in the trash
    # Plans to remove it, folder by folder; none if nothing is old enough.
    plans: tuple[CommitPlan, ...]
    files: int
    size_bytes: int  # their bytes; those of a file with another name elsewhere are not freed
    # How long the first that is too young still has to wait; None where none is.
    wait_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What was removed of one directory, or would be."""

    files: int
    size_bytes: int
    steps: Sequence[Mapping[str, Any]] = ()  # the applied steps, described


def apply_purge(purge: Purge, *, dry_run: bool, fence: Callable[[], None] | None = None) -> Purged:
    """Commit the plans of a purge, unless in a dry run.

    In what was done, paths begin at the purge's place. Folders that lie equally deep go at the same
    time, those below others first.

    Args:
        dry_run: Whether nothing is removed.
        fence: Asked right before each change: raises where the place is not ours any more.
    """
    plans = () if dry_run else purge.plans

    def depth(plan: CommitPlan) -> int:
        return -len(Path(plan.location).parts)

    def remove(plan: CommitPlan) -> None:
        commit(plan, LocalStore(Path(plan.location), fence=fence))

    for _, level in groupby(sorted(plans, key=depth), key=depth):
        # After an error no other folder is begun.
        for _ in in_order((plan for plan in level), remove, threads=_AT_ONCE):
            pass
    steps = []
    for plan in plans:
        below = Path(plan.location).relative_to(purge.location)
        steps += [
            {**step, "name": str(below / str(step.get("name", "")))} for step in plan.describe()
        ]
    return Purged(files=purge.files, size_bytes=purge.size_bytes, steps=steps)


def plan_purge_partition(directory: Path, *, now_ms: int, delay_ms: int) -> Purge:
    """Plan the removal of the ``.deleted`` files of a partition directory."""
    waiting = [
        entry
        for entry in _entries(directory)
        if entry.name.endswith(DELETED_SUFFIX)
        and not entry.name.endswith(CHECKPOINT_DELETED_SUFFIX)
        and entry.is_file
    ]
    due = [entry for entry in waiting if _changed_ms(entry) + delay_ms <= now_ms]
    steps = [DeleteFile(name=entry.name, reason="its deletion was decided before") for entry in due]
    operations: tuple[Operation, ...] = (*steps, SyncDirectory(reason="they are gone"))
    return Purge(
        location=directory,
        plans=(CommitPlan(location=str(directory), operations=operations),) if due else (),
        files=len(due),
        size_bytes=sum(entry.facts.st_size for entry in due),
        wait_ms=_wait(waiting, now_ms=now_ms, delay_ms=delay_ms),
    )


def plan_purge_directory(directory: Path, *, now_ms: int, delay_ms: int) -> Purge:
    """Plan the removal of the directory of a deleted partition.

    Args:
        directory: Named ``<topic>-<partition>.<32 hexadecimal digits>-delete``.
    """
    try:
        renamed = parse_renamed_directory(directory.name)
    except InvalidNameError:
        renamed = None
    if renamed is None or renamed[1] != _DELETE:
        raise GuardRefusedError("NOT_KAFKAS", f"{directory}: is no name of a deleted partition")
    with storage_errors(directory):
        own = Entry(name=directory.name, facts=directory.lstat())
    if not own.is_folder:
        raise GuardRefusedError("NOT_KAFKAS", f"{directory}: is no directory, but a link or a file")
    entries = _entries(directory)
    strange = [entry.name for entry in entries if not entry.is_file]
    if strange:
        raise GuardRefusedError(
            "NOT_KAFKAS", f"{directory}: {strange[0]} in it is no regular file; nothing was removed"
        )
    wait_ms = _wait([own], now_ms=now_ms, delay_ms=delay_ms)
    ordered = sorted(entries, key=lambda entry: (_rank(entry.name), entry.name))
    why = "its partition was deleted"
    operations: tuple[Operation, ...] = (
        *(DeleteFile(name=entry.name, reason=why) for entry in ordered),
        SyncDirectory(reason="it is empty"),
        RemoveDirectory(reason=why),
    )
    is_due = wait_ms is None
    return Purge(
        location=directory,
        plans=(CommitPlan(location=str(directory), operations=operations),) if is_due else (),
        files=len(entries) if is_due else 0,
        size_bytes=sum(entry.facts.st_size for entry in entries) if is_due else 0,
        wait_ms=wait_ms,
    )


def find_runs(trash: Path) -> list[Path]:
    """Return the run folders in a trash, oldest first. Other folders in the trash are left out."""
    if not trash.is_dir():
        return []
    with storage_errors(trash):
        folders = [path for path in trash.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(folder for folder in folders if (folder / RUN_FILE).is_file())


def plan_purge_trash(folder: Path, *, now_ms: int, older_than_ms: int) -> Purge:
    """Plan the removal of the trash of one run.

    Args:
        folder: The run's, held if it is going to be removed.
        older_than_ms: How long it is kept after the run's last commit.
    """
    run = read_run(folder)
    newest_ms = run.started_ms
    for each in list_commits(folder):
        if read_commit(each).undo == BEGUN:
            raise GuardRefusedError(
                "UNDO_BEGUN",
                f"{each}: an undo of run {run.run_id} was begun and has not ended; run it again",
            )
        result_file = each / LEFT_FILE
        with storage_errors(result_file):
            if result_file.exists():
                newest_ms = max(newest_ms, result_file.stat().st_mtime_ns // 1_000_000)
    wait_ms = newest_ms + older_than_ms - now_ms
    removals = tuple(_removals(folder)) if wait_ms <= 0 else ()
    return Purge(
        location=folder,
        plans=tuple(plan for plan, _ in removals),
        files=sum(len(plan.operations) - 1 for plan, _ in removals),
        size_bytes=sum(size_bytes for _, size_bytes in removals),
        wait_ms=wait_ms if wait_ms > 0 else None,
    )


def _rank(name: str) -> int:
    """Return a file's order of deletion: segments, producer snapshots, the rest.

    Of a segment its records go first: an index without records is dropped by a loader, records
    without an index are read from end to end.
    """
    if name.endswith(LOG_SUFFIX):
        return 0
    if name.endswith(INDEX_SUFFIXES):
        return 1
    return 2 if name.endswith(SNAPSHOT_SUFFIX) else 3


def _wait(entries: list[Entry], *, now_ms: int, delay_ms: int) -> int | None:
    """Return the time until the next entry is old enough, or None."""
    waits = [_changed_ms(entry) + delay_ms - now_ms for entry in entries]
    return min((wait for wait in waits if wait > 0), default=None)


def _entries(directory: Path) -> list[Entry]:
    with storage_errors(directory):
        return scan_folder(directory)


def _changed_ms(entry: Entry) -> int:
    """Return when it got its name, or was written, whichever is later."""
    return max(entry.facts.st_ctime_ns, entry.facts.st_mtime_ns) // 1_000_000


def _removals(folder: Path) -> Iterator[tuple[CommitPlan, int]]:
    """Yield a plan and the bytes for each folder to remove. The run's own folder comes last."""
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
            plan = CommitPlan(location=place, operations=(*steps, RemoveDirectory(reason=why)))
            yield plan, size_bytes
