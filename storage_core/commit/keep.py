"""From a plan to one that keeps what it takes away.

Before the plan's own steps every file that they replace, cut or remove gets a second name in the
trash: on the same filesystem a hard link, so that what follows is in effect a rename into the
trash and copies nothing; elsewhere a copy. The steps themselves stay as they are, and so does what
a crash among them leaves. The last step writes down what the directory looks like then.

What a former crash left behind (``.cleaned``, ``.swap``, ``.deleted`` files), and what loading
makes of it, is not kept: the directory before the run is the one that a loader would have opened.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from storage_core.commit.fingerprint import (
    FINGERPRINTS,
    FileFingerprint,
    fingerprint_files,
    is_scratch,
)
from storage_core.commit.plan import (
    CommitPlan,
    DeleteFile,
    KeepFile,
    Operation,
    RecordLeft,
    RenameFile,
    WriteRecord,
    follow_step,
)
from storage_core.commit.trash import (
    LEFT_FILE,
    RECORD_FILE,
    SYNCED_FILE,
    TrashedCommit,
    new_commit_folder,
)
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    LOG_SUFFIX,
    MAX_OFFSET,
    TRANSIENT_SUFFIXES,
    kind_of,
    offset_of,
)
from storage_core.local_files import is_there
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore, plain_path, storage_errors
from storage_core.store.log_identity import read_identity, topic_id_of


def is_same_filesystem(directory: Path, folder: Path) -> bool:
    """Tell whether a directory's files can be linked into a future folder."""
    with storage_errors(folder):
        while not folder.exists():
            folder = folder.parent
        device = folder.stat().st_dev
    with storage_errors(directory):
        return directory.stat().st_dev == device


def with_trash(plan: CommitPlan, store: LogStore, run_folder: Path, *, action: str) -> CommitPlan:
    """Return a plan plus steps to keep old files in the trash. A plan without changes of files is
    returned as it is.

    Args:
        store: Its directory as it is now, on a local disk.
    """
    files = fingerprint_files(store)
    first = _end_of_leftovers(plan.operations, files)
    before = _follow({file.name: file for file in files}, plan.operations[:first])
    after = _follow(before, plan.operations[first:])
    # By identity: another version with equal bytes counts as changed.
    changed = {name for name, version in before.items() if after.get(name) is not version}
    if not changed and not after.keys() - before.keys():
        return plan
    directory = plain_path(Path(store.location))
    commit = TrashedCommit(
        folder=new_commit_folder(run_folder, directory),
        run_id=run_folder.name,
        action=action,
        directory=directory,
        former_files=tuple(
            replace(before[name], name=name)
            for name in sorted(changed | _near_segments(before, changed))
        ),
        before=tuple(sorted(before)),
        identity=read_identity(store),
    )
    operations = (
        *plan.operations[:first],
        *_keep(commit, is_copy=not is_same_filesystem(directory, run_folder)),
        *plan.operations[first:],
        RecordLeft(path=str(commit.folder / LEFT_FILE), reason="what an undo will look for"),
    )
    return CommitPlan(location=plan.location, operations=operations)


def keep_replaced(
    location: Path, replacement: LogStore, run_folder: Path, *, action: str
) -> CommitPlan:
    """Plan to keep a directory that another one replaces. The record comes last: without it nothing
    has begun.

    Args:
        location: The directory; it may be absent.
        run_folder: The run's folder in the trash.
    """
    directory = plain_path(location)
    files = (
        fingerprint_files(LocalStore(directory)) if is_there(directory, may_be_link=True) else ()
    )
    commit = TrashedCommit(
        folder=new_commit_folder(run_folder, directory),
        run_id=run_folder.name,
        action=action,
        directory=directory,
        former_files=files,
        before=tuple(file.name for file in files),
        identity=replace(read_identity(LocalStore(directory)), topic_id=topic_id_of(replacement)),
    )
    # Nobody has synced the time of an empty file: a loss of power may change it.
    files_after = tuple(
        file if file.size_bytes else replace(file, modified_ms=None)
        for file in fingerprint_files(replacement)
    )
    record = WriteRecord(
        path=str(commit.folder / LEFT_FILE),
        content=FINGERPRINTS.encode(files_after),
        reason="what an undo will look for",
    )
    is_copy = not is_same_filesystem(directory.parent, run_folder)
    return CommitPlan(location=str(directory), operations=(record, *_keep(commit, is_copy=is_copy)))


def _keep(commit: TrashedCommit, *, is_copy: bool) -> list[Operation]:
    """Return the steps to keep and record files in the trash."""
    folder = str(commit.kept_folder)
    steps: list[Operation] = [
        KeepFile(
            name=file.name,
            path=f"{folder}{os.sep}{file.name}",
            size_bytes=file.size_bytes,
            is_copy=is_copy,
            reason=f"run {commit.run_id} may be undone",
        )
        for file in commit.former_files
    ]
    if steps:
        # Make the second names, entries of this folder, durable.
        path = str(commit.kept_path(SYNCED_FILE))
        steps.append(WriteRecord(path=path, content=b"", reason="what was kept is durable"))
    record = WriteRecord(
        path=str(commit.folder / RECORD_FILE),
        content=commit.encode_record(),
        reason="what was kept, before any of it goes",
    )
    return [*steps, record]


def _end_of_leftovers(operations: tuple[Operation, ...], files: Iterable[FileFingerprint]) -> int:
    """Count the first operations of a plan, only for cleanup after crashes."""
    leftovers = {
        file.name
        for file in files
        if file.name.endswith(TRANSIENT_SUFFIXES)
        and not file.name.endswith(CHECKPOINT_DELETED_SUFFIX)
    }
    last = -1
    for number, operation in enumerate(operations):
        match operation:
            case DeleteFile(name=name) | RenameFile(source=name):
                if name in leftovers or is_scratch(name):
                    last = number
            case _:
                break
    return last + 1


def _near_segments(files: Collection[str], changed: set[str]) -> set[str]:
    """Return other files removed by a loader along with a segment's swap. Those are all whose
    number lies in the segments that are swapped: producer snapshots above all."""
    logs = {offset_of(name) or 0: name in changed for name in files if kind_of(name) == LOG_SUFFIX}
    gone = [base for base, is_changed in logs.items() if is_changed]
    if not gone:
        return set()
    later = [base for base in logs if base > max(gone)]
    end = min(later, default=MAX_OFFSET)
    return {
        name
        for name in files
        if (offset := offset_of(name)) is not None
        and min(gone) <= offset < end
        and kind_of(name) != LOG_SUFFIX
        and not name.endswith(TRANSIENT_SUFFIXES)
    }


def _follow(
    files: Mapping[str, FileFingerprint], steps: Iterable[Operation]
) -> dict[str, FileFingerprint]:
    """Return the versions of all files after some steps."""
    now = dict(files)
    for step in steps:
        follow_step(step, now, _made)
    return now


def _made(_step: Operation) -> FileFingerprint:
    """Return a placeholder for a new file; its values are never read."""
    return FileFingerprint(name="", size_bytes=0, modified_ms=None, crc32=None)
