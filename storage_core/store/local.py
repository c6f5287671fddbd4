"""A partition directory on a local disk.

Every failure of the operating system becomes a ``StorageError`` that names the path. Files that
this store creates get owner, group and mode of their kin, so that whoever could open the files
before can open them now, and nobody else: the file they replace, at once or when a swap drops the
suffix; the log of the same segment; or else the directory. A file hands on its extended attributes
too.

The directory, and folders above it, may be links. A file that is one is read, replaced, renamed and
deleted like others, but what it leads to is never changed: that is refused.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import PartitionNotFoundError, StorageError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    offset_of,
)
from storage_core.store.base import FileInfo


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses in the block into a StorageError that names path."""
    try:
        yield
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error


def plain_path(path: Path) -> Path:
    """Return an absolute path without ``..`` that leads to the same place.

    Who takes the names of a path one by one needs it: ``..`` is no name, and after a link it does
    not lead back to where the link is. So only what stands before the last ``..`` is resolved; a
    link after it keeps the name by which it is known.
    """
    names = path.absolute().parts
    if ".." not in names:
        return Path(*names)
    last = len(names) - names[::-1].index("..")
    return Path(os.path.realpath(Path(*names[:last])), *names[last:])


# Bytes asked for at once. The kernel reads ahead between calls of this size; two processes that
# ask for 8 MiB at once got half as much from a disk of which nothing was cached.
_READ_BYTES: Final = 1 << 18


class LocalFileReader:
    """Ranged reads of one local file: a file that shrinks ends a read, never the process."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with storage_errors(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            facts = os.fstat(self._descriptor)
        self.size_bytes = facts.st_size
        self.identity = _identity(facts)

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        filled = 0
        view = target.data
        with storage_errors(self._path):
            while filled < len(view):
                part = view[filled : filled + _READ_BYTES]
                count = os.preadv(self._descriptor, [part], position + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self._descriptor)


class LocalStore:
    """The files of one partition directory on a local disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def location(self) -> str:
        """Path of the directory."""
        return str(self.directory)

    def list_files(self) -> list[FileInfo]:
        """Return the regular files, sorted by name."""
        if not self.directory.is_dir():
            raise PartitionNotFoundError(self.location)
        files = []
        with storage_errors(self.directory), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_file():
                    facts = entry.stat()
                    modified_ms = facts.st_mtime_ns // 1_000_000
                    files.append(FileInfo(entry.name, facts.st_size, modified_ms, _identity(facts)))
        return sorted(files)

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        path = self.directory / name
        with storage_errors(path), path.open("rb") as file:
            content = file.read(limit_bytes + 1)
        if len(content) > limit_bytes:
            raise StorageError(str(path), f"is longer than the {limit_bytes} bytes it may have")
        return content

    def open_file(self, name: str) -> LocalFileReader:
        """Open a file for ranged reads."""
        return LocalFileReader(self.directory / name)

    def open_identified(self, name: str, identity: str) -> LocalFileReader | None:
        """Open a file if the name is still that of this one."""
        try:
            reader = self.open_file(name)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        if reader.identity == identity:
            return reader
        reader.close()
        return None

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Create or replace a small file: temporary file beside it, sync, rename, sync."""
        path = self.directory / name
        temporary = path.with_name(name + TEMPORARY_SUFFIX)
        with storage_errors(path):
            # A file or link of a write that crashed; what it leads to is nobody's to write.
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                _adopt_manners(file.fileno(), self._kin_of(path))
                if modified_ms is not None:
                    _set_modified(file.fileno(), modified_ms)
                os.fsync(file.fileno())
            temporary.replace(path)
        self.sync_directory()

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Copy a stretch of a file to a new one, by the kernel where the filesystem can."""
        path = self.directory / target
        with storage_errors(path), (self.directory / source).open("rb") as file:
            path.unlink(missing_ok=True)
            with path.open("xb") as copy:
                _copy(file.fileno(), start, size_bytes, copy.fileno())
                _adopt_manners(copy.fileno(), self.directory / source)
                _set_modified(copy.fileno(), modified_ms)
                os.fsync(copy.fileno())

    def create_empty(self, name: str) -> None:
        """Create an empty file unless there is one of that name."""
        path = self.directory / name
        with storage_errors(path):
            kin = self._kin_of(path)
            descriptor = _open_itself(path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                if _adopt_manners(descriptor, kin):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def promote(self, scratch_path: str, name: str) -> None:
        """Move a finished scratch file of the same filesystem into the directory."""
        path = self.directory / name
        with storage_errors(path):
            descriptor = _open_itself(scratch_path, os.O_RDONLY)
            try:
                # What it was given before, its writer has synced.
                if _adopt_manners(descriptor, self._kin_of(path)):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            Path(scratch_path).replace(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target if there is one."""
        path = self.directory / source
        with storage_errors(path):
            path.replace(self.directory / target)

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone already is no error."""
        path = self.directory / name
        with storage_errors(path):
            path.unlink(missing_ok=True)

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file to size_bytes and sync it.

        A file with several hard links is replaced by what is left of it: the other names' data,
        somebody's snapshot maybe, stays.
        """
        path = self.directory / name
        with storage_errors(path), open(path, "rb+", opener=_open_itself) as file:
            facts = os.fstat(file.fileno())
            if facts.st_nlink == 1:
                file.truncate(size_bytes)
                os.fsync(file.fileno())
                return
            temporary = path.with_name(name + TEMPORARY_SUFFIX)
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as copy:
                _copy(file.fileno(), 0, min(size_bytes, facts.st_size), copy.fileno())
                copy.truncate(size_bytes)
                _adopt_manners(copy.fileno(), path)
                os.fsync(copy.fileno())
            temporary.replace(path)
        self.sync_directory()

    def sync_file(self, name: str) -> None:
        """Make a file's content durable."""
        path = self.directory / name
        with storage_errors(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        with storage_errors(self.directory):
            sync_folder(self.directory)

    def keep(self, name: str, path: str, *, is_copy: bool) -> None:
        """Keep a file under a path outside of the directory, too.

        Where the kernel gives a file no second name (it is another user's, or has too many) it is
        copied after all.
        """
        source, target = self.directory / name, Path(path)
        with storage_errors(source):
            make_folder(target.parent)
            if not source.exists() and target.exists():
                return
            _duplicate(source, target, is_copy=is_copy)

    def restore(self, path: str, name: str, *, is_copy: bool) -> None:
        """Give a file from outside a name in the directory too, replacing what has the name."""
        source = Path(path)
        with storage_errors(source):
            _duplicate(source, self.directory / name, is_copy=is_copy)

    def write_record(self, path: str, content: bytes) -> None:
        """Create or replace a small file outside; it and its folder's entries are durable then."""
        write_record(Path(path), content)

    def remove_directory(self) -> None:
        """Remove the directory if it is there."""
        with storage_errors(self.directory):
            if self.directory.exists():
                self.directory.rmdir()
                sync_folder(self.directory.parent)

    def _kin_of(self, path: Path) -> Path:
        """Return what a file of that name should be like: what it replaces, or lies beside."""
        suffixes = (CLEANED_SUFFIX, SWAP_SUFFIX)
        transient = path.suffix if path.suffix in suffixes else ""
        names = [path.name, path.name.removesuffix(transient)]
        if offset_of(path.name) is not None:
            log = path.name.partition(".")[0] + LOG_SUFFIX
            names += [log, log + transient]
        candidates = [self.directory / name for name in names]
        return next((kin for kin in candidates if kin.is_file()), self.directory)


# As any program gives it to a folder: the rest is the umask's.
PUBLIC_MODE: Final = 0o777


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Create a folder, and those above it; durable.

    So is the lowest one that was there already: a process that was killed between the creation of
    a folder and the sync, be it one of this function, leaves at most that name to be lost.

    Args:
        folder: Nothing happens if it is there.
        mode: Who may open it; only its owner where nothing else is said.
    """
    if folder.is_dir():
        return
    above = folder.parent
    if not above.is_dir():
        make_folder(above, mode=mode)
    elif os.access(above.parent, os.R_OK | os.W_OK) and not above.is_mount():
        # Where we may not write, and of filesystems, we have made none.
        sync_folder(above.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(above)


def write_record(path: Path, content: bytes) -> None:
    """Create or replace a small file, and its folders; it and its folder's entries are durable.

    Raises:
        StorageError: The disk failed.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with storage_errors(path):
        make_folder(path.parent)
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


# A file gets no second name: another filesystem after all (a bind mount), another user's file
# (fs.protected_hardlinks), too many names, or a filesystem without.
_NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP}
)


def _duplicate(source: Path, target: Path, *, is_copy: bool) -> None:
    """Give a file another name, or copy it there with its times and manners; over what is there."""
    if target.exists() and target.samefile(source):
        return
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    if is_copy or not _link(source, temporary):
        with source.open("rb") as file, temporary.open("xb") as copy:
            facts = os.fstat(file.fileno())
            _copy(file.fileno(), 0, facts.st_size, copy.fileno())
            _adopt_manners(copy.fileno(), source)
            os.utime(copy.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
            os.fsync(copy.fileno())
    temporary.replace(target)


def _link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _identity(facts: os.stat_result) -> str:
    return f"{facts.st_dev}:{facts.st_ino}"


def _open_itself(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a file that is going to be changed; a link is not followed.

    Raises:
        OSError: It cannot be opened.
        StorageError: It is a link.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and Path(path).is_symlink():
            raise StorageError(str(path), "is a link, expected a file") from error
        raise


def _copy(source: int, start: int, size_bytes: int, target: int) -> None:
    copied = 0
    while copied < size_bytes:
        count = os.sendfile(target, source, start + copied, size_bytes - copied)
        if count == 0:
            raise OSError(
                errno.EIO,
                f"ends after {start + copied} bytes, expected {start + size_bytes} of them",
            )
        copied += count


def _set_modified(descriptor: int, modified_ms: int) -> None:
    nanoseconds = modified_ms * 1_000_000
    os.utime(descriptor, ns=(nanoseconds, nanoseconds))


def _adopt_manners(descriptor: int, kin: Path) -> bool:
    """Give an open file owner, group and mode of its kin, and what else a file hands on.

    Returns:
        Whether it did not have all of that before.
    """
    is_changed = _adopt_owner(descriptor, kin.stat())
    if kin.is_file():
        is_changed |= _adopt_attributes(descriptor, kin)
    return is_changed


def _adopt_owner(descriptor: int, kin: os.stat_result) -> bool:
    mine = os.fstat(descriptor)
    is_foreign = (mine.st_uid, mine.st_gid) != (kin.st_uid, kin.st_gid) and os.geteuid() == 0
    if is_foreign:
        os.fchown(descriptor, kin.st_uid, kin.st_gid)
    mode = stat.S_IMODE(kin.st_mode) & 0o666
    if stat.S_IMODE(mine.st_mode) != mode:
        os.fchmod(descriptor, mode)
        return True
    return is_foreign


def _adopt_attributes(descriptor: int, path: Path) -> bool:
    """Copy extended attributes, access control lists among them; return whether one was new."""
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return False
        raise
    is_changed = False
    present = set(os.listxattr(descriptor))
    for name in names:
        value = os.getxattr(path, name)
        if name in present and os.getxattr(descriptor, name) == value:
            continue
        try:
            os.setxattr(descriptor, name, value)
            is_changed = True
        except OSError as error:
            # Labels of a security module are its own to give; only a privileged process may.
            if error.errno not in {errno.EPERM, errno.EACCES, errno.ENOTSUP}:
                raise
    return is_changed
