"""From what a commit kept and left to the operations that put the former files back.

Cleaned and deleted segments come back as Kafka's own swap of several segments, so that its loader
and ours bring a crash to the old or the new state: all files of all of them appear as ``.cleaned``;
they are renamed to ``.swap``, the highest segment first, so that the last rename, of the lowest
one, is the moment from which on the former segments count; what they replace goes, durably, for a
filesystem may keep names that were not synced in any order; they lose the suffix, records before
indexes and the lowest first. The epochs, of which the former ones are never fewer, come back before
that moment, producer snapshots after it.

What recovery had cut comes back in place: such a segment may end in bytes that no loader could
swap in. The log directory is unclean then, by its recovery point and its missing marker, and until
all is back every start would cut the same again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from storage_core.commit.fingerprint import FileFingerprint
from storage_core.commit.plan import (
    DeleteFile,
    Operation,
    Plan,
    RenameFile,
    RestoreFile,
    SyncDirectory,
    WriteRecord,
)
from storage_core.commit.trash import BEGUN, DONE, UNDO_FILE, TrashedCommit, encode_undo
from storage_core.errors import ChangedWhileReadError
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

NOTHING: Final = "no such file"
RECOVER: Final = "recover"

Files = Mapping[str, FileFingerprint]


def verify_left(trashed: TrashedCommit, found: Files) -> None:
    """Check that every file is what the run left; of an undo that was begun, or was before it.

    Args:
        trashed: What the run kept and left.
        found: The directory's files.

    Raises:
        ChangedWhileReadError: A file is another one, is gone, or was not there.
    """
    left = {file.name: file for file in trashed.left or ()}
    kept = {file.name: file for file in trashed.record.kept}
    before = set(trashed.record.before)
    for name in sorted(left.keys() | found.keys()):
        expected, now = left.get(name), found.get(name)
        is_left = now is None if expected is None else expected.matches(now)
        if is_left:
            continue
        # A loader that finished the swap may have taken away what the undo puts back last.
        is_back = now is None or (name in kept and kept[name].matches(now))
        is_back = is_back and (name in kept or name not in before)
        if trashed.undo is None or not is_back:
            raise ChangedWhileReadError(name, _text(expected), _text(now))


def verify_kept(trashed: TrashedCommit, kept: Files) -> None:
    """Check that the trash still has what it was given.

    Args:
        trashed: What the run kept.
        kept: The files that are in the trash.

    Raises:
        ChangedWhileReadError: A file is gone from it or is another one.
    """
    for file in trashed.record.kept:
        now = kept.get(file.name)
        if not file.matches(now):
            raise ChangedWhileReadError(str(trashed.kept_path(file.name)), _text(file), _text(now))


def files_before(trashed: TrashedCommit, found: Files) -> dict[str, FileFingerprint]:
    """Return the files of the directory as an undo leaves them.

    Args:
        trashed: What the run kept and left; verified.
        found: The directory's files.
    """
    files = {**found, **{file.name: file for file in trashed.record.kept}}
    return {name: files[name] for name in trashed.record.before if name in files}


def plan_undo(trashed: TrashedCommit, found: Files, *, location: str, is_copy: bool) -> Plan:
    """Plan what puts the former files back; empty where it was done before.

    Args:
        trashed: What the run kept and left; verified.
        found: The directory's files, none of them transient.
        location: Path of the partition directory.
        is_copy: Whether the trash is on another filesystem.
    """
    if trashed.undo == DONE:
        return Plan(location=location, operations=())
    restorer = _Restorer(trashed, is_copy=is_copy)
    back = [file for file in trashed.record.kept if not file.matches(found.get(file.name))]
    added = sorted(found.keys() - set(trashed.record.before))
    if trashed.record.action == RECOVER and not any(kind_of(name) == LOG_SUFFIX for name in added):
        steps = _in_place(restorer, back, added)
    else:
        steps = _swapped(restorer, back, added, trashed.record.kept)
    path = str(trashed.folder / UNDO_FILE)
    begun = WriteRecord(path=path, content=encode_undo(BEGUN), reason="from here on it is finished")
    done = WriteRecord(path=path, content=encode_undo(DONE), reason="nothing is left to undo")
    return Plan(location=location, operations=(begun, *steps, done))


class _Restorer:
    """Makes the operations that bring kept files back."""

    def __init__(self, trashed: TrashedCommit, *, is_copy: bool) -> None:
        self._trashed = trashed
        self._is_copy = is_copy
        self.why = f"as it was before run {trashed.record.run_id}"

    def restore(self, file: FileFingerprint, suffix: str = "") -> RestoreFile:
        return RestoreFile(
            path=str(self._trashed.kept_path(file.name)),
            name=file.name + suffix,
            size_bytes=file.size_bytes,
            is_copy=self._is_copy,
            reason=self.why,
        )


def _swapped(
    restorer: _Restorer,
    back: list[FileFingerprint],
    added: list[str],
    kept: Iterable[FileFingerprint],
) -> list[Operation]:
    logs = {file.name for file in back if kind_of(file.name) == LOG_SUFFIX}
    # A loader that finds the swap of a segment's records drops its other files: all are swapped.
    swapped = [file for file in kept if _is_of_segment(file.name) and _log_of(file.name) in logs]
    in_swap = {file.name for file in swapped}
    others = [file for file in back if file.name not in in_swap]
    epochs = [file for file in others if file.name == LEADER_EPOCH_FILE]
    side_files = [file for file in others if file.name != LEADER_EPOCH_FILE]
    steps: list[Operation] = [restorer.restore(file) for file in epochs]
    if swapped:
        names = [file.name for file in swapped]
        rising = sorted(names, key=lambda name: (offset_of(name) or 0, name))
        lowest = offset_of(rising[0])
        steps += [restorer.restore(file, CLEANED_SUFFIX) for file in swapped]
        steps.append(SyncDirectory(reason="the former segments are all there"))
        higher = [name for name in reversed(rising) if offset_of(name) != lowest]
        if higher:
            steps += _rename(higher, CLEANED_SUFFIX, SWAP_SUFFIX, restorer.why)
            steps.append(SyncDirectory(reason="they do not count before the lowest one does"))
        last = [name for name in rising if offset_of(name) == lowest]
        steps += _rename(sorted(last, key=_is_log), CLEANED_SUFFIX, SWAP_SUFFIX, restorer.why)
        steps.append(SyncDirectory(reason="from here on they count"))
    superseded = _delete([name for name in added if _is_of_segment(name)])
    steps += superseded
    if swapped:
        if superseded:
            # A part of a segment must not be there beside the whole one.
            steps.append(SyncDirectory(reason="what they replace is gone"))
        logs_first = sorted(rising, key=lambda name: not _is_log(name))
        steps += _rename(logs_first, SWAP_SUFFIX, "", restorer.why)
        steps.append(SyncDirectory(reason="the former segments are back"))
    steps += [restorer.restore(file) for file in side_files]
    steps += _delete([name for name in added if not _is_of_segment(name)])
    return [*steps, SyncDirectory(reason="everything is back")] if steps else []


def _in_place(
    restorer: _Restorer, back: list[FileFingerprint], added: list[str]
) -> list[Operation]:
    logs_first = sorted(back, key=lambda file: (not _is_log(file.name), file.name))
    steps = [*(restorer.restore(file) for file in logs_first), *_delete(added)]
    return [*steps, SyncDirectory(reason="everything is back")] if steps else []


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


def _log_of(name: str) -> str:
    return log_file(offset_of(name) or 0)


def _text(file: FileFingerprint | None) -> str:
    return NOTHING if file is None else str(file)
