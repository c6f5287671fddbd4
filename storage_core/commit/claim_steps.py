"""Encode a commit's operations in a claim; refuse those not ours.

A claim lies where its run could write, and the run that finishes it may be root's. So nothing in it
is taken on trust: a step is of a kind that commits have, its files are plain names of one partition
directory of the log directory that is being worked on, and what it takes in or keeps lies where
runs put that. None of these is a link: no run makes one.
"""

import stat
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from storage_core.commit.plan import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    KeepFile,
    Operation,
    PromoteFile,
    RecordLeft,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
)
from storage_core.commit.trash import find_run_folder
from storage_core.errors import ManifestError
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.json_values import read_part, to_plain
from storage_core.store.local import plain_path, storage_errors

_KINDS: Final[tuple[type[Operation], ...]] = (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    KeepFile,
    PromoteFile,
    RecordLeft,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
)
_FILE_NAMES: Final = frozenset({"name", "source", "target"})
_KIND: Final = "operation"


def encode_step(step: Operation) -> dict[str, Any]:
    """Return an operation as plain values."""
    return {_KIND: type(step).__name__, **to_plain(step)}


def decode_step(row: Mapping[str, Any], *, file: str, where: str) -> Operation:
    """Return the operation that ``encode_step`` encoded."""
    kinds = [kind for kind in _KINDS if kind.__name__ == row.get(_KIND)]
    if not kinds:
        raise ManifestError(file, f"{where}.{_KIND}", "expected an operation of a commit")
    values = {name: value for name, value in row.items() if name != _KIND}
    step: Operation = read_part(kinds[0], values, file=file, where=where)
    return step


def require_places(
    steps: Iterable[Operation], location: str, *, claim: Path, log_directory: Path
) -> None:
    """Check that steps stay within a run's places on one log directory.

    Args:
        location: Path of the partition directory that it says it worked on.
        log_directory: The directory whose lock is held.
    """
    directory = Path(location)
    with storage_errors(directory):
        is_inside = directory.name not in {"", ".."} and directory.parent.samefile(log_directory)
        is_itself = is_inside and stat.S_ISDIR(directory.lstat().st_mode)
    if not is_itself:
        what = "a link, or no directory" if is_inside else location
        raise ManifestError(
            str(claim), "location", f"expected a directory in {log_directory}, found {what}"
        )
    for step in steps:
        for field in fields(step):
            name = getattr(step, field.name) if field.name in _FILE_NAMES else None
            if name is not None and not _is_file_or_free(directory / name):
                raise ManifestError(
                    str(claim), type(step).__name__, f"{name} is a link or a folder, and no file"
                )
        match step:
            case PromoteFile(scratch_path=path):
                is_ours = _is_scratch(Path(path), claim, directory)
            case KeepFile(path=path) | WriteRecord(path=path) | RecordLeft(path=path):
                is_known = find_run_folder(Path(path), directory) is not None
                is_ours = is_known and not _is_linked(Path(path), directory)
            case _:
                continue
        if not is_ours:
            raise ManifestError(
                str(claim), type(step).__name__, f"expected a place of a run, found {path}"
            )


def trash_of(steps: Iterable[Operation], location: str) -> list[Path]:
    """Return the distinct run folders in the trash used by steps. Steps keep files in them, or
    write records.

    Args:
        steps: Steps of one commit, accepted by ``require_places``.
    """
    places = (
        find_run_folder(Path(step.path), Path(location))
        for step in steps
        if isinstance(step, KeepFile | WriteRecord | RecordLeft)
    )
    return sorted({place for place in places if place is not None})


def _is_file_or_free(path: Path, *, most_names: int | None = None) -> bool:
    """Tell whether a path is a regular file or free; no link.

    Args:
        most_names: How many names the file may have, None for any number.
    """
    with storage_errors(path):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            return True
    return stat.S_ISREG(facts.st_mode) and (most_names is None or facts.st_nlink <= most_names)


def _is_scratch(path: Path, claim: Path, directory: Path) -> bool:
    """Tell whether a path is a scratch file of the claim's run."""
    if not path.name.startswith(SCRATCH_PREFIX):
        return False
    with storage_errors(path.parent):
        # The killed run may have known the log directory by another name.
        is_inside = path.parent == directory or path.parent.samefile(claim.parent)
    # The trash gives files of a partition second names; a scratch file has only one.
    return is_inside and _is_file_or_free(path, most_names=1)


def _is_linked(path: Path, directory: Path) -> bool:
    """Tell whether a link is among a run's own trash folders. The run makes these folders for the
    files of a partition.

    Those above are the operator's, and may be links.
    """
    depth = len(plain_path(directory).parts) + 1
    with storage_errors(path):
        return any(folder.is_symlink() for folder in path.parents[:depth])
