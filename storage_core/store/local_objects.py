"""Objects as files of a local folder.

A file is written under ``.pylog-tmp/`` of the root, synced, and then takes its name: by a link
where there must be none yet, by a rename otherwise. A conditional replacement compares and renames
under a lock on the file's folder. The tag of a version is its modification time and size; the
digits of that time below a millisecond are random, since the kernel's own clock is coarse.

The folder may be a link; nothing in it is followed that is one (see ``local_files``).
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.filenames import is_file_name, is_text
from storage_core.local_files import (
    PUBLIC_FILE_MODE,
    Entry,
    create_in,
    open_file,
    open_folder,
    open_folder_below,
    open_in,
    read_limited,
    scan_open,
)
from storage_core.store.local import PUBLIC_MODE, make_folder, storage_errors
from storage_core.store.object_store import (
    DEFAULT_LIMIT_BYTES,
    ObjectInfo,
    settle_write,
    validate_key,
    validate_prefix,
)

TEMPORARY_FOLDER: Final = ".pylog-tmp"
# Attempts: a deletion removes the emptied folder, and a writer that has just made it makes it
# again.
_ATTEMPTS: Final = 10

T = TypeVar("T")


class LocalObjectStore:
    """The files below one folder."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        """Path of the folder."""
        return str(self._folder)

    def get(self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return a small object whole."""
        return self.get_with_etag(key, limit_bytes=limit_bytes)[0]

    def get_with_etag(
        self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        """Return a small object whole, and the tag of the same version."""
        path = self._path(key)
        with _errors(path), self._open(path) as file:
            etag = _etag(os.fstat(file.fileno()))
            content = read_limited(file.fileno(), limit_bytes)
        return content, etag

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        target = np.empty(size_bytes, np.uint8)
        return target[: self.read_into(key, start, target, etag=etag)].tobytes()

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on; return the number of bytes."""
        path = self._path(key)
        view = target.data
        filled = 0
        with _errors(path), self._open(path) as file:
            current_etag = _etag(os.fstat(file.fileno()))
            if etag and current_etag != etag:
                raise ChangedWhileReadError(str(path), f"version {etag}", f"version {current_etag}")
            while filled < len(view):
                count = os.preadv(file.fileno(), [view[filled:]], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object."""
        path = self._path(key)
        with _errors(path), self._temporary(content, path) as temporary:
            return self._take_name(temporary, path)

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file."""
        target = self._path(key)
        with _errors(target), self._temporary(Path(path), target) as temporary:
            return self._take_name(temporary, target)

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one."""
        path = self._path(key)
        with _errors(path), self._temporary(content, path) as temporary:
            try:
                self._in_folder(
                    path,
                    lambda folder: os.link(
                        temporary.name,
                        path.name,
                        src_dir_fd=temporary.folder,
                        dst_dir_fd=folder,
                        follow_symlinks=False,
                    ),
                )
            except FileExistsError:
                return settle_write(self, key, content, "")
            with self._folder_of(path) as folder:
                os.fsync(folder)
            return temporary.etag

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object."""
        path = self._path(key)
        with _errors(path), self._temporary(content, path) as temporary:
            try:
                with self._folder_of(path) as folder:
                    # Held against other conditional replacements in it.
                    fcntl.flock(folder, fcntl.LOCK_EX)
                    facts = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
                    if _etag(facts) == etag and stat.S_ISREG(facts.st_mode):
                        return self._take_name(temporary, path)
            except FileNotFoundError:
                raise ConditionFailedError(str(path), etag, "") from None
        return settle_write(self, key, content, etag)

    def head(self, key: str) -> ObjectInfo:
        """Return size, tag and time of an object without reading it."""
        path = self._path(key)
        with _errors(path), self._folder_of(path) as folder:
            facts = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            raise StorageError(str(path), "is a link, expected a file")
        if not stat.S_ISREG(facts.st_mode):
            raise ObjectNotFoundError(str(path), "is no file")
        return _info(key, facts)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix, in order of keys."""
        folder, _, _ = validate_prefix(prefix).rpartition("/")
        yield from (info for info in self._walk(folder) if info.key.startswith(prefix))

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below a folder.

        A link is among them: what leads elsewhere is refused by name when it is opened, where to
        leave it out would hide a partition.
        """
        for entry in self._scan(validate_prefix(prefix).rstrip("/")):
            if entry.is_folder or entry.is_link:
                yield entry.name

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys."""
        for entry in self._scan(validate_prefix(prefix).rstrip("/")):
            if entry.is_link and is_file_name(entry.name):
                # To pass over it would give the partition another log.
                place = self._folder / f"{prefix}{entry.name}"
                raise StorageError(str(place), "is a link, expected a file")
            if entry.is_file:
                yield _info(f"{prefix}{entry.name}", entry.facts)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and the folders that this leaves empty."""
        folders: set[Path] = set()
        for key in keys:
            path = self._path(key)
            with _errors(path), suppress(FileNotFoundError):  # noqa: SIM117
                with self._folder_of(path) as folder:
                    os.unlink(path.name, dir_fd=folder)
            folders.update(parent for parent in path.parents if self._folder in parent.parents)
        for emptied in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            try:
                with self._folder_of(emptied) as folder:
                    os.rmdir(emptied.name, dir_fd=folder)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                    raise StorageError(str(emptied), error.strerror or str(error)) from error

    def _path(self, key: str) -> Path:
        return self._folder / validate_key(key)

    @contextmanager
    def _folder_of(self, path: Path) -> Iterator[int]:
        """Open a path's parent folder below the root without following links."""
        names = path.parent.relative_to(self._folder).parts
        with (
            open_folder(self._folder, may_be_link=True) as root,
            open_folder_below(root, names) as folder,
        ):
            yield folder

    @contextmanager
    def _open(self, path: Path) -> Iterator[BinaryIO]:
        with self._folder_of(path) as folder:
            descriptor = open_in(folder, path.name)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            yield file

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield all files below a folder, in order of keys. A folder is sorted with its slash.
        Links are no objects: what a purge finds here, it deletes."""
        entries = self._scan(folder)
        for entry in sorted(entries, key=lambda one: one.name + "/" if one.is_folder else one.name):
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_folder:
                yield from self._walk(key)
            elif entry.is_file:
                yield _info(key, entry.facts)

    def _scan(self, folder: str) -> Sequence[Entry]:
        path = self._folder / folder
        with _errors(path):
            try:
                with (
                    open_folder(self._folder, may_be_link=True) as root,
                    open_folder_below(root, Path(folder).parts) as below,
                ):
                    # A key is text; a file with another name is no object.
                    return [entry for entry in scan_open(below) if is_text(entry.name)]
            except FileNotFoundError:
                return []  # object stores have no empty folders

    @contextmanager
    def _temporary(self, source: bytes | Path, target: Path) -> Iterator["_Temporary"]:
        """Yield a synced temporary file with that content and a unique name.

        Where we may, it belongs to whom the folder of its target belongs: a process that is killed
        right after a link leaves it two names, and of another user than its folder it would not be
        opened then.
        """
        path = self._folder / TEMPORARY_FOLDER / secrets.token_hex(16)
        stamp = self._clock.now_ms() * 1_000_000 + secrets.randbelow(1_000_000)
        owner = self._owner_of(target) if os.geteuid() == 0 else None
        etag = self._in_folder(path, lambda folder: _write(source, folder, path.name, stamp, owner))
        try:
            with self._folder_of(path) as folder:
                yield _Temporary(folder=folder, name=path.name, etag=etag)
        finally:
            with suppress(FileNotFoundError), self._folder_of(path) as folder:
                os.unlink(path.name, dir_fd=folder)
            with suppress(OSError):  # others write into it
                path.parent.rmdir()

    def _owner_of(self, path: Path) -> os.stat_result | None:
        """Return the owner of a path's folder; None before it exists."""
        try:
            with self._folder_of(path) as folder:
                return os.fstat(folder)
        except FileNotFoundError:
            return None

    def _in_folder(self, path: Path, action: Callable[[int], T]) -> T:
        """Run an action in a path's folder; make the folder if missing. If another process
        removes it meanwhile, it is made again."""
        for _ in range(_ATTEMPTS):
            try:
                with self._folder_of(path) as folder:
                    return action(folder)
            except FileNotFoundError:
                # Another process removed the folder, or the file just after it was found there.
                with suppress(FileNotFoundError, FileExistsError):
                    make_folder(path.parent, mode=PUBLIC_MODE)
        with self._folder_of(path) as folder:
            return action(folder)

    def _take_name(self, temporary: "_Temporary", path: Path) -> str:
        def take(folder: int) -> None:
            os.replace(temporary.name, path.name, src_dir_fd=temporary.folder, dst_dir_fd=folder)
            os.fsync(folder)

        self._in_folder(path, take)
        return temporary.etag


@dataclass(frozen=True, slots=True, kw_only=True)
class _Temporary:
    """A file that is going to be given a name."""

    folder: int
    name: str
    etag: str  # the tag that it has under any name


def _write(
    source: bytes | Path, folder: int, name: str, modified_ns: int, owner: os.stat_result | None
) -> str:
    """Write a new, durable file and return its tag. It is given to the owner, if there is one."""
    with os.fdopen(create_in(folder, name, mode=PUBLIC_FILE_MODE), "wb") as file:
        if owner is not None:
            with suppress(PermissionError):  # root of a container may lack the right
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        if isinstance(source, bytes):
            file.write(source)
        else:
            _copy(source, file)
        file.flush()
        # Before the sync: the time is the version's tag, by which a durable manifest names it.
        os.utime(file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(file.fileno())
        return _etag(os.fstat(file.fileno()))


def _copy(source: Path, target: BinaryIO) -> None:
    with storage_errors(source):
        descriptor = open_file(source)
    with os.fdopen(descriptor, "rb") as content:
        shutil.copyfileobj(content, target, 1 << 20)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an error that names path."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFoundError(str(path), error.strerror or str(error)) from error
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error


def _etag(facts: os.stat_result) -> str:
    return f"{facts.st_mtime_ns:x}-{facts.st_size:x}"


def _info(key: str, facts: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=facts.st_size,
        etag=_etag(facts),
        modified_ms=facts.st_mtime_ns // 1_000_000,
    )
