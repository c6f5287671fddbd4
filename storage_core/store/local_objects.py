"""Objects as files of a local folder.

A file is written under ``.pylog-tmp/`` of the root, synced, and then takes its name: by a link
where there must be none yet, by a rename otherwise. A conditional replacement compares and renames
under a lock on the file's folder. The tag of a version is its modification time and size; the
digits of that time below a millisecond are random, since the kernel's own clock is coarse.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.filenames import is_text
from storage_core.store.conditional_write import settle_write
from storage_core.store.local import PUBLIC_MODE, make_folder, sync_folder
from storage_core.store.object_store import (
    DEFAULT_LIMIT_BYTES,
    ObjectInfo,
    validate_key,
    validate_prefix,
)

TEMPORARY_FOLDER: Final = ".pylog-tmp"
# A folder that a deletion empties is removed; a writer that had just made it makes it again.
_ATTEMPTS: Final = 10


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
        """Return a small object whole, and the tag of the version that was read."""
        path = self._path(key)
        with _errors(path), path.open("rb") as file:
            etag = _etag(os.fstat(file.fileno()))
            content = file.read(limit_bytes + 1)
        if len(content) > limit_bytes:
            raise StorageError(str(path), f"is longer than the {limit_bytes} bytes it may have")
        return content, etag

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        target = np.empty(size_bytes, np.uint8)
        return target[: self.read_into(key, start, target, etag=etag)].tobytes()

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on and return how many bytes there were."""
        path = self._path(key)
        view = target.data
        filled = 0
        with _errors(path), path.open("rb", buffering=0) as file:
            found = _etag(os.fstat(file.fileno()))
            if etag and found != etag:
                raise ChangedWhileReadError(str(path), f"version {etag}", f"version {found}")
            while filled < len(view):
                count = os.preadv(file.fileno(), [view[filled:]], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object."""
        path = self._path(key)
        with _errors(path), self._temporary(content) as temporary:
            return _take_name(temporary, path)

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file."""
        target = self._path(key)
        with _errors(target), self._temporary(Path(path)) as temporary:
            return _take_name(temporary, target)

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one."""
        path = self._path(key)
        with _errors(path), self._temporary(content) as temporary:
            try:
                _in_folder(path, lambda: os.link(temporary, path))
            except FileExistsError:
                return settle_write(self, key, content, "")
            sync_folder(path.parent)
            return _etag(temporary.stat())

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object."""
        path = self._path(key)
        with _errors(path), self._temporary(content) as temporary:
            try:
                with _locked(path.parent):
                    found = _etag(path.stat())
                    if found == etag:
                        return _take_name(temporary, path)
            except FileNotFoundError:
                raise ConditionFailedError(str(path), etag, "") from None
        return settle_write(self, key, content, etag)

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object without reading it."""
        path = self._path(key)
        with _errors(path):
            facts = path.stat()
            if not path.is_file():
                raise ObjectNotFoundError(str(path), "is no file")
        return _info(key, facts)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix, in order of keys."""
        folder, _, _ = validate_prefix(prefix).rpartition("/")
        yield from (info for info in self._walk(folder) if info.key.startswith(prefix))

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below a folder."""
        for entry in self._scan(validate_prefix(prefix).rstrip("/")):
            if entry.is_dir():
                yield entry.name

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys."""
        for entry in self._scan(validate_prefix(prefix).rstrip("/")):
            if entry.is_file():
                yield _info(f"{prefix}{entry.name}", entry.stat())

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and the folders that this leaves empty."""
        folders: set[Path] = set()
        for key in keys:
            path = self._path(key)
            with _errors(path):
                path.unlink(missing_ok=True)
            folders.update(parent for parent in path.parents if self._folder in parent.parents)
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                    raise StorageError(str(folder), error.strerror or str(error)) from error

    def _path(self, key: str) -> Path:
        return self._folder / validate_key(key)

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield all files below a folder, in order of keys: a folder sorts with its slash."""
        for entry in sorted(self._scan(folder), key=_sort_name):
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                yield from self._walk(key)
            elif entry.is_file():
                try:
                    yield _info(key, entry.stat())
                except FileNotFoundError:
                    continue  # deleted while the folder was read

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        path = self._folder / folder
        with _errors(path):
            try:
                # A key is text; what has another name is no object.
                named = (entry for entry in os.scandir(path) if is_text(entry.name))
                return sorted(named, key=lambda entry: entry.name)
            except FileNotFoundError:
                return []  # an object store knows no empty folders

    @contextmanager
    def _temporary(self, source: bytes | Path) -> Iterator[Path]:
        """Yield a synced file with that content, under a name that nobody else has."""
        temporary = self._folder / TEMPORARY_FOLDER / secrets.token_hex(16)
        stamp = self._clock.now_ms() * 1_000_000 + secrets.randbelow(1_000_000)
        _in_folder(temporary, lambda: _write(source, temporary, stamp))
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
            with suppress(OSError):  # others are writing
                temporary.parent.rmdir()


def _sort_name(entry: os.DirEntry[str]) -> str:
    return entry.name + "/" if entry.is_dir() else entry.name


def _write(source: bytes | Path, target: Path, modified_ns: int) -> None:
    with target.open("xb") as file:
        if isinstance(source, bytes):
            file.write(source)
        else:
            _copy(source, file)
        file.flush()
        # Before the sync: the time is the version's tag, by which a durable manifest names it.
        os.utime(file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(file.fileno())


def _copy(source: Path, target: BinaryIO) -> None:
    try:
        content = source.open("rb")
    except OSError as error:
        raise StorageError(str(source), error.strerror or str(error)) from error
    with content:
        shutil.copyfileobj(content, target, 1 << 20)


def _in_folder(path: Path, action: Callable[[], None]) -> None:
    """Do what needs the folder of path, making it as often as somebody else removes it."""
    for _ in range(_ATTEMPTS):
        try:
            return action()
        except FileNotFoundError:
            # Somebody removed its folder, or it itself just after it was found to be there.
            with suppress(FileNotFoundError, FileExistsError):
                make_folder(path.parent, mode=PUBLIC_MODE)
    return action()


def _take_name(temporary: Path, path: Path) -> str:
    _in_folder(path, lambda: os.replace(temporary, path))  # noqa: PTH105 - returns nothing
    sync_folder(path.parent)
    return _etag(path.stat())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against every other conditional replacement in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into errors that name path."""
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
