"""Check, before it starts, the rest of a commit against the files.

A commit that was killed is made for the files as its own steps left them. So steps are noted with
what they left, a group at a time; of the group that comes next the first ones may have been done,
the last of those by half perhaps, without having been noted. All other files are exactly those that
are known, or somebody else has been at work, and nothing of the commit may be done any more. Then
the steps that are left are gone through without being done: each finds the files that it needs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from storage_core.commit.plan import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    FileVersion,
    KeepFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncFile,
    TruncateFile,
    Versions,
    WriteFile,
    changed_names,
    follow_step,
    independent_groups,
    observe_versions,
    version_of,
)
from storage_core.errors import ChangedWhileReadError
from storage_core.store.local import LocalStore

_NOTHING = "no such file"
# For a new file only the length is known before its step.
_NEW = -1


def verify_fit(
    directory: Path, steps: Sequence[Operation], *, expected: Versions, scratch: Versions
) -> None:
    """Check that files are as the finished part of steps left them. Of the steps' first group, some
    first ones may be done; no other step is. Nothing is changed.

    Args:
        steps: The remaining steps of a commit; of their first independent group, some may be done.
        expected: The version of each file as the step before them left it.
    """
    actual = observe_versions(directory)
    done = _done(steps, directory, expected, actual, scratch)
    doubtful = {name for step in done for name in changed_names(step)}
    for name in sorted((expected.keys() | actual.keys()) - doubtful):
        if expected.get(name) != actual.get(name):
            raise ChangedWhileReadError(name, _text(expected.get(name)), _text(actual.get(name)))
    files = dict(expected)
    # Scratch files that still have the versions of when they were written.
    ready = {
        path: version for path, version in scratch.items() if version_of(Path(path)) == version
    }
    new_version = partial(_made, scratch=scratch)
    for step in steps:
        if not any(step is other for other in done):
            _require_sources(step, directory, files, ready)
        follow_step(step, files, new_version)


def _done(
    steps: Sequence[Operation],
    directory: Path,
    expected: Versions,
    actual: Versions,
    scratch: Versions,
) -> list[Operation]:
    """Return the first group's finished steps, and a last half-done one.

    They were done in their order: one that is done after one that is not is somebody else's work.
    """
    done: list[Operation] = []
    new_version = partial(_made, scratch=scratch)
    for step in next(independent_groups(steps), ()):
        names = changed_names(step)
        before = {name: expected[name] for name in names if name in expected}
        if before == {name: actual[name] for name in names if name in actual}:
            after = dict(before)
            follow_step(step, after, new_version)
            if after != before:
                break
        elif _is_amid(step, directory, expected, actual, scratch):
            done.append(step)
            if isinstance(step, DeleteFiles) and not actual.keys().isdisjoint(step.names):
                break
        else:
            break
    return done


def _is_amid(
    step: Operation, directory: Path, expected: Versions, actual: Versions, scratch: Versions
) -> bool:
    """Tell whether files look as a finished or half-done step leaves them. A kill in the middle
    leaves a half-done step."""
    match step:
        case WriteFile(name=name):
            is_amid = _holds(directory, step, actual.get(name))
        case CreateEmptyFile(name=name):
            is_amid = name not in expected and name in actual and actual[name].size_bytes == 0
        case PromoteFile(scratch_path=path, name=name):
            moved = scratch.get(path)
            is_amid = (
                moved is not None and actual.get(name) == moved and version_of(Path(path)) is None
            )
        case CopyRange(target=name, size_bytes=size_bytes):
            # The step creates it anew in any case.
            is_amid = name not in actual or actual[name].size_bytes <= size_bytes
        case RenameFile(source=source, target=target):
            moved = expected.get(source)
            is_amid = moved is not None and source not in actual and actual.get(target) == moved
        case DeleteFile(name=name):
            is_amid = name not in actual
        case DeleteFiles(names=names):
            there = [name for name in names if name in expected]
            left = [name for name in names if name in actual]
            is_amid = left == there[len(there) - len(left) :] and all(
                actual[name] == expected[name] for name in left
            )
        case TruncateFile(name=name, size_bytes=size_bytes):
            is_amid = name in expected and name in actual and actual[name].size_bytes == size_bytes
        case _:
            is_amid = False
    return is_amid


def _holds(directory: Path, step: WriteFile, version: FileVersion | None) -> bool:
    """Whether a file has the content that a step gives it."""
    if version is None or version.size_bytes != len(step.content):
        return False
    store = LocalStore(directory)
    return store.read_file(step.name, limit_bytes=len(step.content)) == step.content


def _require_sources(
    step: Operation,
    directory: Path,
    files: Mapping[str, FileVersion],
    ready: dict[str, FileVersion],
) -> None:
    """Check that a step will find what it works with."""
    match step:
        case PromoteFile(scratch_path=path, size_bytes=size_bytes):
            version = ready.pop(path, None)
            if version is None or version.size_bytes != size_bytes:
                raise ChangedWhileReadError(
                    path, f"{size_bytes} bytes as they were written", _text(version_of(Path(path)))
                )
        case CopyRange(source=source, start=start, size_bytes=size_bytes):
            size = files[source].size_bytes if source in files else None
            if size is None or (size != _NEW and size < start + size_bytes):
                least = f"at least {start + size_bytes} bytes"
                raise ChangedWhileReadError(source, least, _text(files.get(source)))
        case (
            RenameFile(source=name)
            | TruncateFile(name=name)
            | SyncFile(name=name)
            | KeepFile(name=name)
        ):
            if name not in files:
                raise ChangedWhileReadError(str(directory / name), "a file", _NOTHING)
        case _:
            return


def _made(step: Operation, scratch: Versions) -> FileVersion:
    """Return the version after a step, as far as known before. At most its length is known."""
    match step:
        case WriteFile(content=content):
            return _new(len(content))
        case PromoteFile(scratch_path=path):
            return scratch.get(path, _new(_NEW))
        case CopyRange(size_bytes=size_bytes) | TruncateFile(size_bytes=size_bytes):
            return _new(size_bytes)
        case _:
            return _new(0)


def _new(size_bytes: int) -> FileVersion:
    return FileVersion(size_bytes=size_bytes, modified_ns=_NEW, inode=_NEW)


def _text(version: FileVersion | None) -> str:
    return _NOTHING if version is None else str(version)
