"""Checks of a local directory before any change in it."""

import os
from pathlib import Path
from typing import Final

from storage_core.catalog.log_directories import find_foreign_format
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, first_line, read_off_switch
from storage_core.errors import GuardRefusedError, ObjectNotFoundError
from storage_core.filenames import REMOTE_INDEX_CACHE_DIRECTORY
from storage_core.store import open_object_store
from storage_core.store.filesystems import FilesystemKind, classify_filesystem, find_filesystem
from storage_core.store.local import storage_errors

_ROOT_USER: Final = 0
_TRUSTED: Final = "ext4, xfs, btrfs or zfs"


def check_local_directory(location: str, overrides: frozenset[str]) -> None:
    """Refuse a directory unsafe to change, or not by this process.

    Args:
        overrides: Codes of the refusals that somebody overrode.
    """
    path = Path(location)
    check_off_switch(path)
    _check_format(path, overrides)
    _check_filesystem(path, overrides)
    _check_owner(path, overrides)


def check_off_switch(path: Path) -> None:
    """Refuse a directory with its owner's off switch; nothing overrides that."""
    why = read_off_switch(path)
    if why is not None:
        raise _switched_off(str(path / OFF_SWITCH_FILE), why)


def check_off_object(url: str) -> None:
    """Refuse a root on object storage with its owner's off switch."""
    store = open_object_store(url)
    try:
        content = store.get(OFF_SWITCH_FILE)
    except ObjectNotFoundError:
        return
    raise _switched_off(f"{url}/{OFF_SWITCH_FILE}", first_line(content))


def has_remote_storage(location: str) -> bool:
    """Whether a broker kept segments of this log directory in remote storage."""
    return (Path(location) / REMOTE_INDEX_CACHE_DIRECTORY).is_dir()


def _switched_off(place: str, why: str) -> GuardRefusedError:
    reason = f": {why}" if why else ""
    return GuardRefusedError(
        "SWITCHED_OFF",
        f"{place} says that nothing may be changed here{reason}; remove it to allow that again",
    )


def _check_format(path: Path, overrides: frozenset[str]) -> None:
    with storage_errors(path):
        foreign = find_foreign_format([entry.name for entry in path.iterdir()])
    if foreign is not None and "FOREIGN_FORMAT" not in overrides:
        raise GuardRefusedError(
            "FOREIGN_FORMAT",
            f"{path}: {foreign.evidence} is {foreign.product}'s, whose files are not Kafka's",
            "--override FOREIGN_FORMAT",
        )


def _check_filesystem(path: Path, overrides: frozenset[str]) -> None:
    name = find_filesystem(path.resolve())
    kind = classify_filesystem(name)
    if kind is FilesystemKind.UNSAFE:
        raise GuardRefusedError(
            "FILESYSTEM_UNSAFE",
            f"{path} lies on {name}, where neither renames nor locks are what they are on a disk; "
            f"copy it to {_TRUSTED}: cp -a {path} FOLDER",
        )
    if kind is FilesystemKind.UNKNOWN and "FILESYSTEM_UNKNOWN" not in overrides:
        raise GuardRefusedError(
            "FILESYSTEM_UNKNOWN",
            f"{path} lies on {name or 'a filesystem that nothing names'}, and nobody has tried "
            f"whether that keeps renames, locks and syncs; copy it to {_TRUSTED}: "
            f"cp -a {path} FOLDER; or, if you know that it keeps them, allow it",
            "--override FILESYSTEM_UNKNOWN",
        )


def _check_owner(path: Path, overrides: frozenset[str]) -> None:
    me = os.geteuid()
    with storage_errors(path):
        owner = path.stat().st_uid
    if me not in {_ROOT_USER, owner} and "NOT_THE_OWNER" not in overrides:
        raise GuardRefusedError(
            "NOT_THE_OWNER",
            f"{path} belongs to user {owner}, this process is user {me}: run it as that user, or "
            "as root",
            "--override NOT_THE_OWNER",
        )
