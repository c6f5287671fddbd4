"""The scratch folder of a run, for task files before their commit. A commit moves the files into
their partitions.

On the filesystem of the log directory, so that promoting is a rename, but outside of it, so that
whatever a killed run leaves behind cannot stop a broker: in a folder beside the log directory,
``pylog-scratch-<name of the log directory>/<run>``; beside its real path, so that a run finds what
another has left that came by a link. Where there is no such place (the log directory
is a mount point, or its parent cannot be written) the files lie inside the partition directories,
under names that Kafka's loader ignores.

On a disk without room not even a claim can be written, and what frees room needs claims. Then a
run's claims and its note of the marker lie on another disk, in a folder named by the log directory
in a place for temporary files; its other files lie inside the partition directories.
"""

import fnmatch
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_core.commit.plan import DeleteFile, Operation
from storage_core.errors import StorageError
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    CLUSTER_METADATA_TOPIC,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SCRATCH_PREFIX,
    TEMPORARY_SUFFIX,
    TopicPartition,
)
from storage_core.local_files import (
    entry_names,
    is_there,
    open_folder,
    require_ours,
    scan_folder,
)
from storage_core.store.filesystems import is_mount_point, read_mount_table
from storage_core.store.local import LocalStore, storage_errors

# The note of a run, in its scratch folder, about the marker that it removed.
REMEMBERED_MARKER: Final = "clean-shutdown-marker"
# A name has at most 255 bytes on Linux; a claim's name may yet get another prefix.
_MOST_CLAIM_NAME: Final = 255 - 32
_CLAIM_SUFFIX: Final = ".claim"
# Inside a log directory, for logs that get their names there as a whole. A broker or controller
# that starts takes such a folder for what is left of a deleted partition.
TRANSPLANTED: Final = "pylog-transplant-0"
METADATA_LOG: Final = str(TopicPartition(CLUSTER_METADATA_TOPIC, 0))
_UNFINISHED_SUFFIX: Final = "-delete"
_UNFINISHED_FILES: Final = frozenset(
    name + TEMPORARY_SUFFIX
    for name in (
        *(RECOVERY_POINT_FILE, REPLICATION_FILE, LOG_START_FILE, CLEANER_FILE),
        *(BOOTSTRAP_SNAPSHOT_FILE, CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE),
    )
)
# Beginning of the name of a folder on another disk.
_ELSEWHERE_PREFIX: Final = "pylog-claims-"
_TEMPORARY_PLACES: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # our folders in there
# With less room on a disk, claims of a run and its note lie on another one.
LEAST_ROOM_BYTES: Final = 1 << 20


def scratch_home(log_directory: Path, prefix: str = SCRATCH_PREFIX) -> Path | None:
    """Return the folder beside a log directory that holds its scratch folders.

    Args:
        prefix: The beginning of the folder's name.

    Returns:
        None where scratch files have to lie inside the partition directories: the log directory is
        a mount point, across which nothing is renamed even within one filesystem; or its parent is
        a log directory itself, in which a broker would stop at an unknown folder.
    """
    with storage_errors(log_directory):
        real = log_directory.resolve(strict=True)
        parent = real.parent
        is_apart = parent == real or parent.stat().st_dev != real.stat().st_dev
        is_apart = is_apart or is_mount_point(real, read_mount_table())
        if is_apart or (parent / META_PROPERTIES_FILE).exists():
            return None
    return parent / f"{prefix}{real.name}"


def create_scratch(log_directory: Path, run_id: str) -> Path | None:
    """Create the scratch folder of a run, under the log directory's lock.

    Returns:
        The folder; None where scratch files have to lie inside the partition directories.
    """
    if not _has_room(log_directory, LEAST_ROOM_BYTES):
        folder = _create_elsewhere(log_directory, run_id)
        if folder is not None:
            return folder
    home = scratch_home(log_directory)
    if home is None:
        return None
    try:
        return _create_run_folder(home, log_directory, run_id)
    except PermissionError:
        return None
    except OSError as error:
        raise StorageError(str(home), error.strerror or str(error)) from error


def _create_run_folder(home: Path, log_directory: Path, run_id: str) -> Path:
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
    # The broker's user may own the folder, and could replace it by a link: so it is opened first.
    # Another user may have made it where all may write: that is refused, since its files become
    # part of a log.
    with open_folder(home) as opened:
        require_ours(os.fstat(opened), log_directory.stat().st_uid)
        os.mkdir(run_id, mode=0o700, dir_fd=opened)
    return home / run_id


def _has_room(folder: Path, room_bytes: int) -> bool:
    """Return whether a folder's disk has so many bytes free."""
    with storage_errors(folder):
        disk = os.statvfs(folder)
    has_inode = not disk.f_files or disk.f_favail > 0
    return has_inode and disk.f_bavail * disk.f_frsize >= room_bytes


def _elsewhere(log_directory: Path) -> Iterator[Path]:
    """Yield places on other disks for a log directory's claims."""
    with storage_errors(log_directory):
        real = log_directory.resolve(strict=True)
        device = real.stat().st_dev
    digest = hashlib.blake2b(os.fsencode(real), digest_size=16).hexdigest()
    for place in dict.fromkeys((os.environ.get("TMPDIR", ""), *_TEMPORARY_PLACES)):
        with suppress(OSError):
            if place and Path(place).stat().st_dev != device:
                yield Path(place, f"{_ELSEWHERE_PREFIX}{digest}")


def _create_elsewhere(log_directory: Path, run_id: str) -> Path | None:
    """Create a run's folder on another disk, None without one."""
    for home in _elsewhere(log_directory):
        with suppress(OSError, StorageError):
            if _has_room(home.parent, LEAST_ROOM_BYTES):
                return _create_run_folder(home, log_directory, run_id)
    return None


def _homes(log_directory: Path) -> list[Path]:
    """Return the folders with files of runs outside of a log directory."""
    beside = scratch_home(log_directory)
    homes = [] if beside is None else [beside]
    # Where all may write, the folder of another user says nothing of ours.
    for home in _elsewhere(log_directory):
        with suppress(OSError), open_folder(home) as opened:
            require_ours(os.fstat(opened), log_directory.stat().st_uid)
            homes.append(home)
    return homes


def find_inside(log_directory: Path) -> list[Path]:
    """Return scratch files inside the partition directories, under the lock.

    That lists every partition: whoever needs the answer twice keeps it. Nothing is asked of the
    files themselves: a root has very many, and of all of them perhaps one is a run's.
    """
    with storage_errors(log_directory):
        return [
            log_directory / folder.name / name
            for folder in scan_folder(log_directory, may_be_link=True)
            if folder.is_folder
            for name in sorted(_names_if_open_to_us(f"{log_directory}/{folder.name}"))
            if name.startswith(SCRATCH_PREFIX)
        ]


def sweep_scratch(log_directory: Path, *, inside: Iterable[Path] | None = None) -> int:
    """Delete the scratch files of every run, under the log directory's lock.

    While this process holds the lock no other run of ours is at work on the directory: what is
    there was left by one that was killed, or by this one at its end.

    Args:
        inside: The result of ``find_inside``, even if files are gone by now; None to call it.

    Returns:
        How many files and folders were there.
    """
    orphans = find_inside(log_directory) if inside is None else list(inside)
    try:
        for path in orphans:
            LocalStore(path.parent).delete(path.name)
        count = len(orphans)
        for home in _homes(log_directory):
            if is_there(home, may_be_link=True):
                count += len(_inside_home(home, "*")) + len(scan_folder(home))
                shutil.rmtree(home)  # which follows no link
    except OSError as error:
        place = str(error.filename or log_directory)
        raise StorageError(place, error.strerror or str(error)) from error
    return count


def unfinished_name(subject: str) -> str:
    """Return a new name for a folder that becomes a log.

    Args:
        subject: ``TRANSPLANTED`` or ``METADATA_LOG``.
    """
    return f"{subject}.{uuid.uuid4().hex}{_UNFINISHED_SUFFIX}"


def remove_unfinished(log_directory: Path) -> None:
    """Remove a log directory's leftovers of killed calls, under its lock.

    These are the folders in which they made logs, and small files that have no name yet.
    """
    with storage_errors(log_directory):
        entries = scan_folder(log_directory, may_be_link=True)
    for entry in entries:
        with storage_errors(log_directory / entry.name):
            # A link of such a name is refused: nobody knows where it leads.
            if (entry.is_folder or entry.is_link) and _is_unfinished(entry.name):
                shutil.rmtree(log_directory / entry.name)
            elif entry.is_file and entry.name in _UNFINISHED_FILES:
                LocalStore(log_directory, may_be_link=True).delete(entry.name)


def _is_unfinished(name: str) -> bool:
    is_ours = name.startswith((f"{TRANSPLANTED}.", f"{METADATA_LOG}."))
    return is_ours and name.endswith(_UNFINISHED_SUFFIX)


def find_claims(log_directory: Path, *, inside: Iterable[Path] | None = None) -> list[Path]:
    """Return the claim files of killed runs, under the log directory's lock.

    Args:
        inside: The result of ``find_inside``; None to call it.
    """
    paths = find_inside(log_directory) if inside is None else inside
    try:
        glob = f"{SCRATCH_PREFIX}*{_CLAIM_SUFFIX}"
        beside = [path for home in _homes(log_directory) for path in _inside_home(home, glob)]
        return sorted([*(path for path in paths if path.name.endswith(_CLAIM_SUFFIX)), *beside])
    except OSError as error:
        raise StorageError(str(log_directory), error.strerror or str(error)) from error


def _inside_home(home: Path, glob: str) -> list[Path]:
    """Return files with matching names in run folders, none without a home."""
    if not is_there(home, may_be_link=True):
        return []
    return [
        home / folder.name / name
        for folder in scan_folder(home)
        if folder.is_folder
        for name in sorted(fnmatch.filter(_names_if_open_to_us(home / folder.name), glob))
    ]


def _names_if_open_to_us(folder: str | Path) -> list[str]:
    """Return a folder's names; none if it is closed or gone. No run of ours can have written
    into a closed folder, and other partitions wait."""
    try:
        return entry_names(folder)
    except (PermissionError, FileNotFoundError):
        return []


def find_remembered_markers(log_directory: Path) -> list[Path]:
    """Return killed runs' notes on the clean shutdown marker, under the lock."""
    with storage_errors(log_directory):
        return [
            path for home in _homes(log_directory) for path in _inside_home(home, REMEMBERED_MARKER)
        ]


def scratch_folder(shared: str | None, partition_directory: Path) -> Path:
    """Return where an attempt on a partition writes.

    Args:
        shared: The run's folder for the partition's log directory, None without one.
    """
    if shared is None or is_elsewhere(shared):
        return partition_directory
    return Path(shared)


def is_elsewhere(shared: str) -> bool:
    """Return whether a run's folder is on another disk, for claims alone."""
    return Path(shared).parent.name.startswith(_ELSEWHERE_PREFIX)


def claim_path(shared: str | None, partition_directory: Path, run_id: str) -> Path:
    """Return the claim file of a partition in a run. For a very long partition name, the file's
    name has its digest."""
    name = f"{SCRATCH_PREFIX}{run_id}-{partition_directory.name}{_CLAIM_SUFFIX}"
    if len(name) > _MOST_CLAIM_NAME:
        digest = hashlib.blake2b(os.fsencode(partition_directory.name), digest_size=16).hexdigest()
        name = f"{SCRATCH_PREFIX}{run_id}-{digest}{_CLAIM_SUFFIX}"
    return Path(shared or partition_directory, name)


def keep_scratch(operations: Iterable[Operation], run_id: str) -> tuple[Operation, ...]:
    """Return a load's plan without the removal of this run's scratch files. A load removes the
    scratch files of killed runs; this run still needs its own."""
    ours = f"{SCRATCH_PREFIX}{run_id}-"
    return tuple(
        step
        for step in operations
        if not (isinstance(step, DeleteFile) and step.name.startswith(ours))
    )
