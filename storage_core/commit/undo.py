"""Undo the commits of a run on a partition, newest first. Operations that restore the former files
follow from what a commit kept and left.

Cleaned and deleted segments come back as Kafka's own swap of several segments, so that its loader
and ours bring a crash to the old or the new state: all files of all of them appear as ``.cleaned``;
they are renamed to ``.swap``, the highest segment first, so that the last rename, of the lowest
one, is the moment from which on the former segments count; what they replace goes, durably, for a
filesystem may keep names that were not synced in any order; they lose the suffix, records before
indexes and the lowest first, each durably before the next. The epochs, of which the former ones are
never fewer, come back before that moment, producer snapshots after it.

A directory that was put in place as a whole goes as a whole, by one rename. Of an empty log that it
had replaced, any part is an empty log. A kill between its record and its rename leaves no file to
put back, but entries in checkpoints: its commit is undone like the others.

What a recovery or a truncation had cut comes back in place: such a segment may end in bytes that no
loader could swap in. The log directory is unclean then, by its recovery point and its missing
marker. Until all is back every start would read again what has come back, and cut the same again
where it is bad.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from storage_core.commit.executor import commit
from storage_core.commit.plan import (
    FINGERPRINTS,
    CommitPlan,
    CreateDirectory,
    DeleteFile,
    FileFingerprint,
    KeepFile,
    Operation,
    RecordLeft,
    RenameFile,
    RestoreFile,
    RetireDirectory,
    SyncDirectory,
    WriteRecord,
    fingerprint_files,
    follow_step,
    is_scratch,
)
from storage_core.commit.trash import (
    BEGUN,
    DONE,
    KEPT_FOLDER,
    LEFT_FILE,
    RECORD_FILE,
    SYNCED_FILE,
    UNDO_FILE,
    TrashedCommit,
    encode_undo,
    new_commit_folder,
    read_commit,
    require_own_kept,
)
from storage_core.errors import ChangedWhileReadError, GuardRefusedError, PartitionNotFoundError
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TRANSIENT_SUFFIXES,
    kind_of,
    log_file,
    offset_of,
)
from storage_core.local_files import is_there
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore, plain_path, storage_errors
from storage_core.store.log_identity import read_identity, topic_id_of

# From a plan to one that keeps what it takes away.
#
# Before the plan's own steps every file that they replace, cut or remove gets a second name in the
# trash: on the same filesystem a hard link, so that what follows is in effect a rename into the
# trash and copies nothing; elsewhere a copy. The steps themselves stay as they are, and so does
# what a crash among them leaves. The last step writes down what the directory looks like then.
#
# What a former crash left behind (``.cleaned``, ``.swap``, ``.deleted`` files), and what loading
# makes of it, is not kept: the directory before the run is the one that a loader would have
# opened.


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


_NOTHING: Final = "no such file"
# Steps that cut segments and do not change their other files.
_CUTS: Final = frozenset({"recover", "truncate"})
_TRANSIENT: Final = (CLEANED_SUFFIX, SWAP_SUFFIX)
# Plans a log loader's steps for a killed swap; a parameter, since loading is built upon commits.
PlanSettling = Callable[[LogStore], CommitPlan]
Files = Mapping[str, FileFingerprint]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndonePartition:
    """What an undo did to a partition, or would do."""

    bytes_before: int
    bytes_after: int  # the same afterwards
    segments_before: int
    segments_after: int
    plans: tuple[CommitPlan, ...]

    @property
    def steps(self) -> int:
        """How many operations it takes."""
        return sum(len(plan.operations) for plan in self.plans)


def check_partition(store: LogStore, folders: Sequence[Path]) -> UndonePartition:
    """Return what an undo of a run's commits would do, without writing.

    Args:
        folders: The commits' trash, oldest first.
    """
    plans = []
    commits = _newest_first(folders)
    present = files = _files_of(store, commits)
    for trashed in _to_undo(commits):
        _check_whole(store, trashed)
        transient = [name for name in files if name.endswith(_TRANSIENT)]
        if transient and trashed.undo is None:
            raise ChangedWhileReadError(transient[0], _NOTHING, str(files[transient[0]]))
        if not transient:
            _verify_left(trashed, files)
        plans.append(_plan_undo(store, trashed, files))
        files = _files_before(trashed, files)
    return _summarise(present, files, plans)


def undo_partition(
    store: LogStore, folders: Sequence[Path], *, settling: PlanSettling
) -> UndonePartition:
    """Undo the commits of one run, newest first; finish a killed undo.

    Args:
        store: The partition directory, under Kafka's lock.
        folders: The commits' trash, oldest first.
        settling: Brings a swap that a killed undo left to its end, or back to its beginning.
    """
    commits = _newest_first(folders)
    files = _files_of(store, commits)
    plans = [_undo_commit(store, trashed, settling) for trashed in _to_undo(commits)]
    return _summarise(files, _files_of(store, commits), plans)


def is_undone(store: LogStore, folders: Sequence[Path]) -> bool:
    """Tell whether a partition's files are exactly those before the run.

    Args:
        folders: The commits' trash, oldest first; at least one.
    """
    commits = _newest_first(folders)
    expected: Files = {file.name: file for file in commits[0].files_after or ()}
    for trashed in commits:
        expected = _files_before(trashed, expected)
    return _are_same(expected, _files_of(store, commits))


def _undo_commit(store: LogStore, trashed: TrashedCommit, settling: PlanSettling) -> CommitPlan:
    """Undo one commit and return the operations that it took."""
    _check_whole(store, trashed)
    if trashed.undo is not None and not trashed.is_placement:
        commit(settling(store), store)
    files = _files_of(store, [trashed])
    _verify_left(trashed, files)
    plan = _plan_undo(store, trashed, files)
    commit(plan, store)
    return plan


def _newest_first(folders: Sequence[Path]) -> list[TrashedCommit]:
    return [read_commit(folder) for folder in reversed(folders)]


def _files_of(store: LogStore, commits: Iterable[TrashedCommit] = ()) -> dict[str, FileFingerprint]:
    """Return the fingerprints of a directory's files by name. Where one of the commits had made
    the directory, it may be absent."""
    try:
        return {file.name: file for file in fingerprint_files(store)}
    except PartitionNotFoundError:
        if any(each.is_placement for each in commits):
            return {}
        raise


def _are_same(files: Files, others: Files) -> bool:
    return files.keys() == others.keys() and all(
        file.matches(others[name]) for name, file in files.items()
    )


def _to_undo(commits: Iterable[TrashedCommit]) -> list[TrashedCommit]:
    """Return the commits that are not undone yet."""
    return [trashed for trashed in commits if trashed.undo != DONE]


def _check_whole(store: LogStore, trashed: TrashedCommit) -> None:
    """Check the log's ids, the commit's end and the trash."""
    read_identity(store).require(trashed.identity, store.location)
    kept_folder = trashed.folder / KEPT_FOLDER
    if trashed.files_after is None:
        raise GuardRefusedError(
            "RUN_NOT_ENDED",
            f"{store.location}: run {trashed.run_id} was stopped in the middle of its "
            f"commit here, so what it left is not known; what it replaced lies in {kept_folder}",
        )
    copies: Files = {}
    if trashed.former_files:
        require_own_kept(kept_folder, trashed.directory)
        copies = _files_of(LocalStore(kept_folder))
    for file in trashed.former_files:
        now = copies.get(file.name)
        if not file.matches(now):
            raise ChangedWhileReadError(str(kept_folder / file.name), _text(file), _text(now))


def _verify_left(trashed: TrashedCommit, files: Files) -> None:
    """Check that every file is as the run left it.

    After the beginning of an undo, a file may also be as it was before the run.
    """
    after = {file.name: file for file in trashed.files_after or ()}
    replaced = {file.name: file for file in trashed.former_files}
    if trashed.is_placement and (not files or _are_same(replaced, files)):
        return  # a kill came before the renames, between them, or between two steps of an undo
    before = set(trashed.before)
    for name in sorted(after.keys() | files.keys()):
        expected, now = after.get(name), files.get(name)
        is_left = now is None if expected is None else expected.matches(now)
        if is_left:
            continue
        # A loader that finished the swap may have removed the files that the undo puts back last.
        is_back = now is None or (name in replaced and replaced[name].matches(now))
        is_back = is_back and (name in replaced or name not in before)
        if trashed.undo is None or not is_back:
            raise ChangedWhileReadError(name, _text(expected), _text(now))


def _files_before(trashed: TrashedCommit, files: Files) -> dict[str, FileFingerprint]:
    """Return the files of the directory as an undo leaves them.

    Args:
        trashed: The run's commit, from the trash; verified.
    """
    all_files = {**files, **{file.name: file for file in trashed.former_files}}
    return {name: all_files[name] for name in trashed.before if name in all_files}


def _plan_undo(store: LogStore, trashed: TrashedCommit, files: Files) -> CommitPlan:
    """Plan what puts the former files back.

    Args:
        trashed: The run's commit, from the trash; verified.
        files: The directory's files, none of them transient.
    """
    is_copy = not is_same_filesystem(Path(store.location).parent, trashed.folder)
    after = {file.name: file for file in trashed.files_after or ()}
    back = [
        file
        for file in trashed.former_files
        if not file.matches(files.get(file.name))
        # A large one that was replaced by one of its size and time looks as if it were back.
        or (file.crc32 is None and file.matches(after.get(file.name)))
    ]
    added = sorted(files.keys() - set(trashed.before))
    has_new_log = any(kind_of(name) == LOG_SUFFIX for name in added)
    if trashed.is_placement:
        steps = _take_away(trashed, files, is_copy=is_copy)
    elif trashed.action in _CUTS and not has_new_log:
        steps = _put_back(trashed, back, added, is_copy=is_copy)
    else:
        steps = _swap_back(trashed, back, added, is_copy=is_copy)
    path = str(trashed.folder / UNDO_FILE)
    begun = WriteRecord(path=path, content=encode_undo(BEGUN), reason="from here on it is finished")
    done = WriteRecord(path=path, content=encode_undo(DONE), reason="nothing is left to undo")
    return CommitPlan(location=store.location, operations=(begun, *steps, done))


def _swap_back(
    trashed: TrashedCommit, back: list[FileFingerprint], added: list[str], *, is_copy: bool
) -> list[Operation]:
    restore, why = partial(_restore, trashed, is_copy=is_copy), _why(trashed)
    logs = {file.name for file in back if kind_of(file.name) == LOG_SUFFIX}
    # A loader that finds a swapped log drops the segment's other files: so all are swapped.
    swapped = [
        file
        for file in trashed.former_files
        if _is_of_segment(file.name) and log_file(offset_of(file.name) or 0) in logs
    ]
    in_swap = {file.name for file in swapped}
    others = [file for file in back if file.name not in in_swap]
    epochs = [file for file in others if file.name == LEADER_EPOCH_FILE]
    side_files = [file for file in others if file.name != LEADER_EPOCH_FILE]
    steps: list[Operation] = [restore(file) for file in epochs]
    if swapped:
        names = [file.name for file in swapped]
        rising = sorted(names, key=lambda name: (offset_of(name) or 0, name))
        lowest = offset_of(rising[0])
        steps += [restore(file, suffix=CLEANED_SUFFIX) for file in swapped]
        steps.append(SyncDirectory(reason="the former segments are all there"))
        higher = [name for name in reversed(rising) if offset_of(name) != lowest]
        if higher:
            steps += _rename(higher, CLEANED_SUFFIX, SWAP_SUFFIX, why)
            steps.append(SyncDirectory(reason="they do not count before the lowest one does"))
        last = [name for name in rising if offset_of(name) == lowest]
        steps += _rename(sorted(last, key=_is_log), CLEANED_SUFFIX, SWAP_SUFFIX, why)
        steps.append(SyncDirectory(reason="from here on they count"))
    superseded = _delete([name for name in added if _is_of_segment(name)])
    steps += superseded
    if swapped:
        if superseded:
            # A part of a segment must not be beside the whole one.
            steps.append(SyncDirectory(reason="what they replace is gone"))
        *lower, highest = [name for name in rising if _is_log(name)]
        for name in lower:
            steps += _rename([name], SWAP_SUFFIX, "", why)
            # Found between two logs with the suffix, it would be what these replace.
            steps.append(SyncDirectory(reason="a lower segment is back"))
        indexes = [name for name in rising if not _is_log(name)]
        steps += _rename([highest, *indexes], SWAP_SUFFIX, "", why)
        steps.append(SyncDirectory(reason="the former segments are back"))
    steps += [restore(file) for file in side_files]
    steps += _delete([name for name in added if not _is_of_segment(name)])
    return [*steps, SyncDirectory(reason="everything is back")] if steps else []


def _take_away(trashed: TrashedCommit, files: Files, *, is_copy: bool) -> list[Operation]:
    former = {file.name: file for file in trashed.former_files}
    if _are_same(former, files):
        return []  # a kill came between the record and the rename
    are_former = all(file.matches(former.get(name)) for name, file in files.items())
    steps: list[Operation] = []
    if not are_former:
        steps.append(RetireDirectory(reason="was not there before the run"))
    if former:
        steps.append(CreateDirectory(reason=_why(trashed)))
        steps += [_restore(trashed, file, is_copy=is_copy) for file in trashed.former_files]
        steps.append(SyncDirectory(reason="everything is back"))
    return steps


def _put_back(
    trashed: TrashedCommit, back: list[FileFingerprint], added: list[str], *, is_copy: bool
) -> list[Operation]:
    restore = partial(_restore, trashed, is_copy=is_copy)
    logs_first = sorted(back, key=lambda file: (not _is_log(file.name), file.name))
    steps = [*(restore(file) for file in logs_first), *_delete(added)]
    return [*steps, SyncDirectory(reason="everything is back")] if steps else []


def _restore(
    trashed: TrashedCommit, file: FileFingerprint, *, is_copy: bool, suffix: str = ""
) -> RestoreFile:
    """Return the step to restore a kept file with a suffix."""
    return RestoreFile(
        path=str(trashed.kept_path(file.name)),
        name=file.name + suffix,
        size_bytes=file.size_bytes,
        is_copy=is_copy,
        reason=_why(trashed),
    )


def _why(trashed: TrashedCommit) -> str:
    return f"as it was before run {trashed.run_id}"


def _rename(names: Iterable[str], old: str, new: str, reason: str) -> list[Operation]:
    return [RenameFile(source=name + old, target=name + new, reason=reason) for name in names]


def _delete(names: Iterable[str]) -> list[Operation]:
    """Delete files of the run's own making, the newest segment first."""
    ordered = sorted(names, key=lambda name: (-(offset_of(name) or 0), not _is_log(name), name))
    return [DeleteFile(name=name, reason="was not there before the run") for name in ordered]


def _is_of_segment(name: str) -> bool:
    return kind_of(name) in SEGMENT_SUFFIXES


def _is_log(name: str) -> bool:
    return name.endswith(LOG_SUFFIX)


def _text(file: FileFingerprint | None) -> str:
    return _NOTHING if file is None else str(file)


def _summarise(before: Files, after: Files, plans: Sequence[CommitPlan]) -> UndonePartition:
    old, new = _log_sizes(before), _log_sizes(after)
    return UndonePartition(
        bytes_before=sum(old),
        bytes_after=sum(new),
        segments_before=len(old),
        segments_after=len(new),
        plans=tuple(plans),
    )


def _log_sizes(files: Files) -> list[int]:
    return [file.size_bytes for file in files.values() if kind_of(file.name) == LOG_SUFFIX]
