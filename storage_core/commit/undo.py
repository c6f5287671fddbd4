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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from storage_core.commit.executor import commit
from storage_core.commit.fingerprint import FileFingerprint, fingerprint_files
from storage_core.commit.keep import is_same_filesystem
from storage_core.commit.plan import (
    CommitPlan,
    CreateDirectory,
    DeleteFile,
    Operation,
    RenameFile,
    RestoreFile,
    RetireDirectory,
    SyncDirectory,
    WriteRecord,
)
from storage_core.commit.trash import (
    BEGUN,
    DONE,
    KEPT_FOLDER,
    UNDO_FILE,
    TrashedCommit,
    encode_undo,
    read_commit,
    require_own_kept,
)
from storage_core.errors import (
    ChangedWhileReadError,
    GuardRefusedError,
    PartitionNotFoundError,
)
from storage_core.filenames import (
    CLEANED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    kind_of,
    log_file,
    offset_of,
)
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from storage_core.store.log_identity import read_identity

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
