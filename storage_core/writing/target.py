"""A log directory owned by writes: its lock, state and staging folders.

A file of ours in the directory, which Kafka ignores, says that it is one, which write was the last
and which transactions were committed. Only an absent, an empty or such a directory is written, and
not once it is a broker's: other replicas would not have the records.

A write waits for its commit in a folder of its own beside the directory. There is one write at a
time: whoever begins one takes the folders of all others away, so that what is left of a killed
write, a task of it that still runs included, comes to nothing.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit.scratch import scratch_home
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import (
    LOCK_FILE,
    META_PROPERTIES_FILE,
    STAGING_PREFIX,
    TEMPORARY_SUFFIX,
)
from storage_core.json_values import parse_json, read_value, to_json
from storage_core.local_files import is_there, open_folder, require_ours, scan_folder
from storage_core.roots.guards import check_off_switch
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder, storage_errors

STATE_FILE: Final = "pylog-write.json"
_FORMAT: Final = "pylog-write"
_VERSION: Final = 1
_REMOVALS_BESIDE_TASKS: Final = 20
_MAX_STATE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the file of a written directory says."""

    run_id: str = ""  # the last write that was committed; empty before the first
    # Last committed version by application.
    transactions: Mapping[str, int] = field(default_factory=dict)
    format: str = _FORMAT
    version: int = _VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDirectory:
    """A directory that nobody else writes at this moment."""

    state: TargetState
    lock: LogDirectoryLock


@contextmanager
def hold_directory(directory: Path) -> Iterator[HeldDirectory]:
    """Hold a directory, made if missing, for the block under Kafka's lock."""
    read_target(directory)
    with storage_errors(directory):
        make_folder(directory, mode=PUBLIC_MODE)
    check_off_switch(directory)
    with LogDirectoryLock(directory) as lock:
        state = read_target(directory)
        if not LocalStore(directory, may_be_link=True).has(STATE_FILE):
            write_target(directory, state)
        yield HeldDirectory(state=state, lock=lock)


def read_target(directory: Path) -> TargetState:
    """Return a directory's state; absent or empty ones have a new one."""
    with storage_errors(directory):
        there = directory.exists()
        entries = scan_folder(directory, may_be_link=True) if there else []
    names = {entry.name for entry in entries}
    # Remains of a write that was killed in its first step.
    if names <= {STATE_FILE + TEMPORARY_SUFFIX, LOCK_FILE}:
        return TargetState()
    if META_PROPERTIES_FILE in names:
        raise GuardRefusedError(
            "TARGET_IS_A_BROKERS",
            f"{directory} is a broker's log directory ({META_PROPERTIES_FILE}): records that are "
            "written into it would be on no other replica; write a directory of its own",
        )
    if STATE_FILE not in names:
        other = min(names - {LOCK_FILE})
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} has {other} and was not begun by a write; name an empty one",
        )
    store = LocalStore(directory, may_be_link=True)
    content = store.read_file(STATE_FILE, limit_bytes=_MAX_STATE_BYTES)
    try:
        state: TargetState = read_value(
            TargetState, parse_json(content, limit_bytes=_MAX_STATE_BYTES), "state"
        )
    except ValueError as error:
        reason = f"is not what this program writes: {error}"
        raise StorageError(str(directory / STATE_FILE), reason) from error
    if (state.format, state.version) != (_FORMAT, _VERSION):
        reason = f"expected {_FORMAT} {_VERSION}, found {state.format} {state.version}"
        raise StorageError(str(directory / STATE_FILE), reason)
    return state


def write_target(directory: Path, state: TargetState) -> None:
    """Write the file of a directory that says what it is."""
    content = to_json(state).encode()
    LocalStore(directory, may_be_link=True).write_file(STATE_FILE, content)


def staging_home(directory: Path) -> Path:
    """Return the folder beside a directory in which writes have theirs."""
    home = scratch_home(directory, STAGING_PREFIX)
    if home is None:
        raise GuardRefusedError(
            "NO_STAGING",
            f"{directory} is a mount point, or lies in a broker's log directory: nothing beside it "
            "can be renamed into it; name a folder below the mount point",
        )
    return home


def staged_runs(home: Path, owner: int) -> list[str]:
    """Return the names of the writes with a folder beside a directory.

    Args:
        owner: User id of the directory's owner.
    """
    with storage_errors(home):
        if not is_there(home, may_be_link=True):
            return []
        with open_folder(home) as opened:
            require_ours(os.fstat(opened), owner)
        return [entry.name for entry in scan_folder(home) if entry.is_folder]


def remove_staging(folder: Path) -> None:
    """Remove a write's folder, and the folder above if empty then."""
    # A task that was told to end, or was superseded, may still put a file into a folder that is
    # being emptied, or take one out; once the folder is removed, it cannot.
    for _ in range(_REMOVALS_BESIDE_TASKS):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)  # which follows no link
    with storage_errors(folder):
        if folder.is_dir():
            shutil.rmtree(folder)
    remove_if_empty(folder.parent)


def remove_if_empty(home: Path) -> None:
    """Remove the folder of all writes to a directory if empty."""
    with storage_errors(home):
        if home.is_dir() and not scan_folder(home):
            home.rmdir()
