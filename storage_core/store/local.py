"""A partition directory on a local disk.

Every failure of the operating system becomes a ``StorageError`` that names the path. Files that
this store creates get owner, group and mode of their kin, so that whoever could open the files
before can open them now, and nobody else: the file they replace, at once or when a swap drops the
suffix; the log of the same segment; or else the directory. A file hands on its extended attributes
too.

Files are opened through ``local_files``, whose rules hold here: what is above the directory may be
links; the directory itself is none, unless a person named it; a file that is one is replaced,
renamed and deleted like others, but never read or changed.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.lock import LockShare
from storage_core.errors import PartitionNotFoundError, StorageError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    deleted_directory,
    is_file_name,
    is_text,
    offset_of,
    parse_partition_directory,
)
from storage_core.local_files import (
    PRIVATE_FILE_MODE,
    PUBLIC_FILE_MODE,
    create_in,
    facts_in,
    find_data_end,
    is_foreign,
    open_folder,
    open_in,
    open_with_facts,
    read_limited,
    write_all,
)
from storage_core.store.base import (
    DeletingStore,
    DescriptorReader,
    FileInfo,
    HoldableStore,
    HoledReader,
    MappedReader,
    OwnedFiles,
    UnsharedStore,
)
from storage_core.store.folder_entries import FolderEntries, delete_names
from storage_core.store.syncing import sync
from storage_core.threads import waiting

_SECTOR_BYTES: Final = 512
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class storage_errors:  # noqa: N801  # reads like the context managers of contextlib
    """Turn an OSError of the block into a StorageError with its path.

    All calls of a store are in such a block, so paths are joined only for errors.

    Args:
        name: Name of a file in it; without one the error is about the path itself.
    """

    __slots__ = ("_name", "_path")

    def __init__(self, path: Path | str, name: str = "") -> None:
        self._path = path
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise _storage_error(Path(self._path, self._name), error) from error


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(str(path), error.strerror or str(error))


def is_without_room(error: StorageError) -> bool:
    """Return whether a disk, or a user's quota, had no room."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM


def _is_overwritten(folder: int, name: str, content: bytes) -> bool:
    """Return whether a file now has this content, in its own blocks.

    A disk writes one sector whole or not at all. A file with a second name, as one in the trash,
    is left as it is.
    """
    try:
        with os.fdopen(open_in(folder, name, os.O_RDWR), "r+b", buffering=0) as file:
            if file.read(len(content) + 1) != content:
                facts = os.fstat(file.fileno())
                is_whole = 0 < facts.st_size <= _SECTOR_BYTES and len(content) <= _SECTOR_BYTES
                if not is_whole or facts.st_nlink != 1:
                    return False
                os.pwrite(file.fileno(), content, 0)
                os.ftruncate(file.fileno(), len(content))
            sync(file.fileno())
    except FileNotFoundError:
        return False
    return True


class _Opened:
    """An open file of a block, by its descriptor alone."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_error: object) -> None:
        os.close(self._descriptor)


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


# Bytes of one read. The kernel reads ahead between calls of this size; two processes with reads of
# 8 MiB got half as much from a disk without a cache. Two threads with reads of a quarter took a
# fifth longer: each call waits for the interpreter's lock.
_READ_BYTES: Final = 1 << 20
# From Linux 5.14: loads pages of a mapping, and reports a page that cannot be loaded.
_POPULATE_READ: Final = 22
_libc: Final = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# Where freed blocks are discarded at once, a mebibyte takes about as long as a sync.
_LARGE_BYTES: Final = 1 << 20
# The name of a folder for itself.
_ITSELF: Final = "."


class LocalFileReader(MappedReader, DescriptorReader, HoledReader):
    """Ranged reads of one local file. If the file shrinks, a read fails; the process does not.

    Args:
        descriptor: The file, open; this object closes it.
        facts: Its stat result.
        may_map: Whether ``map`` may have the file to itself.

    Attributes:
        is_shared: Threads may read at the same moment.
    """

    is_shared = True

    def __init__(
        self,
        directory: Path,
        name: str,
        descriptor: int,
        facts: os.stat_result,
        *,
        may_map: bool = False,
    ) -> None:
        self.name = name
        self._directory = directory
        self._descriptor = descriptor
        self._facts = facts
        self.size_bytes = self._facts.st_size
        self._may_map = may_map
        self._has_lease = False

    @property
    def descriptor(self) -> int:
        """The open file."""
        return self._descriptor

    @property
    def identity(self) -> str:
        """Which file it is, as a listing has it."""
        return _identity(self._facts.st_dev, self._facts.st_ino)

    @property
    def version(self) -> str:
        """An opaque tag; differs for another file and after any change."""
        facts = self._facts
        # Unlike the modification time, the change time cannot be set.
        times = f"{facts.st_mtime_ns}:{facts.st_ctime_ns}"
        return f"{self.identity}:{facts.st_size}:{times}"

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        filled = 0
        view = target.data
        with storage_errors(self._directory, self.name):
            while filled < len(view):
                part = view[filled : filled + _READ_BYTES]
                count = os.preadv(self._descriptor, [part], position + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def data_end(self) -> int:
        """Return the start of the final hole; the length without one."""
        with storage_errors(self._directory, self.name):
            return min(find_data_end(self._descriptor, self.size_bytes), self.size_bytes)

    def map(self, position: int, size_bytes: int) -> NDArray[np.uint8] | None:
        """Map bytes of the page cache; None if they must be read.

        Whoever looks at a page that a file no longer has ends with the process. So the file is
        leased, as long as it is open or one of its mappings is there: nobody opens it to write, or
        cuts it, before the kernel has asked for the lease back and waited (45 seconds, unless set
        otherwise). And the pages are brought in by a call that fails where a disk does. What
        ``read_into`` then says is the error.
        """
        if not self._may_map or not size_bytes:
            return None
        if not self._has_lease:  # a file that is never mapped takes no lease
            self._has_lease = _take_lease(self._descriptor)
        start = position - position % mmap.ALLOCATIONGRANULARITY
        length = position + size_bytes - start
        try:
            if fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                self._may_map = False
                return None
            # ACCESS_COPY, though nobody writes: kernels are compiled for this kind of array.
            pages = mmap.mmap(self._descriptor, length, access=mmap.ACCESS_COPY, offset=start)
        except (OSError, ValueError):  # no more mappings, or the file has become shorter
            return None
        data = np.frombuffer(pages, np.uint8)
        if _libc.madvise(data.ctypes.data, length, _POPULATE_READ) != 0:
            return None
        return data[position - start :]

    def close(self) -> None:
        """Release the descriptor; mappings have one of their own."""
        os.close(self._descriptor)


def _take_lease(descriptor: int) -> bool:
    """Have the kernel announce writers of a file; return whether it will.

    It does not if another process has the file open for writing, the file is another user's, or the
    filesystem has no leases.
    """
    try:
        # An ignored signal announces a waiting writer, in place of one that would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    return True


class LocalStore(UnsharedStore, HoldableStore, DeletingStore, OwnedFiles):
    """The files of one local directory: a partition's or a root's own.

    Args:
        may_be_link: Whether its last name may be a link: a person named it, as they name a log
            directory. A partition of one may not: it could lead into another log directory, whose
            lock nobody holds.
        is_ours: Whether nobody else has to write there meanwhile: a run holds its lock, or a person
            cleans or recovers this one directory. Then files may be mapped.
        fence: Asked right before each change: raises where the directory is not ours any more.
    """

    def __init__(
        self,
        directory: Path,
        *,
        may_be_link: bool = False,
        is_ours: bool = False,
        fence: Callable[[], None] | None = None,
    ) -> None:
        self.directory = directory
        self._may_be_link = may_be_link
        self.is_ours = is_ours
        self._fence = fence
        self._held: int | None = None
        self._share_of_held: LockShare | None = None
        self._is_looking = False
        # The entries that the last ``one_look`` found; None before it, and after a change.
        self.seen: FolderEntries | None = None
        # Names that it found to be of small files, whose deletion takes no time.
        self._small: frozenset[str] = frozenset()

    @property
    def location(self) -> str:
        """Path of the directory."""
        return str(self.directory)

    @contextmanager
    def held(self, *, share: LockShare | None = None) -> Iterator[None]:
        """Keep the directory open for the block's calls. Otherwise each call would open it.

        One that cannot be opened is no error of this call; each of those in the block says so.

        Args:
            share: Asked in the block in place of the store's own fence, about the open directory.
        """
        with ExitStack() as opened:
            with suppress(OSError):
                self._held = opened.enter_context(self.folder())
                self._share_of_held = share
            opened.callback(self._let_go)
            yield

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """List the directory once for all listings of the block; ``seen`` has it after that, too.
        A change made by this store ends it."""
        self.seen = None
        self._is_looking = True
        try:
            yield
        finally:
            self._is_looking = False

    def list_files(self) -> list[FileInfo]:
        """Return the regular files visible to a broker, sorted by name. ``is_text`` tells which
        names a broker sees."""
        try:
            found = self.scan()
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise PartitionNotFoundError(self.location) from error
            raise
        for name, mode in zip(found.names, found.modes, strict=True):
            if stat.S_ISLNK(mode) and is_file_name(name):
                raise StorageError(str(self.directory / name), "is a link, expected a file")
        rows = zip(
            found.names,
            found.modes,
            found.sizes,
            found.modified_ns,
            found.devices,
            found.inodes,
            strict=True,
        )
        return [
            FileInfo(name, size_bytes, modified_ns // 1_000_000, _identity(device, inode))
            for name, mode, size_bytes, modified_ns, device, inode in rows
            if stat.S_ISREG(mode) and is_text(name)
        ]

    def has(self, name: str) -> bool:
        """Whether anything has that name; a link is something, wherever it leads."""
        return self._facts_of(name) is not None

    def has_file(self, name: str) -> bool:
        """Tell whether a name is a regular file or a link. FIFOs, folders and devices are
        something else."""
        facts = self._facts_of(name)
        return facts is not None and (stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode))

    def _facts_of(self, name: str) -> os.stat_result | None:
        try:
            with storage_errors(self.directory, name), self.folder() as folder:
                return facts_in(folder, name)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise

    def open_descriptor(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file, no link, and return its descriptor."""
        with storage_errors(self.directory, name), self.folder() as folder:
            return open_in(folder, name, flags)

    def list_unseen(self) -> list[str]:
        """Return all names, sorted, that ``list_files`` leaves out by name."""
        return [name for name in self.scan().names if not is_text(name)]

    def scan(self) -> FolderEntries:
        """Return all that lies in the folder, sorted by name."""
        if self._is_looking and self.seen is not None:
            return self.seen
        with storage_errors(self.directory), self.folder() as folder:
            found = FolderEntries.of_folder(folder)
        if self._is_looking:
            self.seen = found
            sizes = zip(found.names, found.sizes, strict=True)
            self._small = frozenset(name for name, size in sizes if size < _LARGE_BYTES)
        return found

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        with storage_errors(self.directory, name), _Opened(self.open_descriptor(name)) as file:
            return read_limited(file, limit_bytes)

    def open_file(self, name: str) -> LocalFileReader:
        """Open a file for ranged reads."""
        with storage_errors(self.directory, name), self.folder() as folder:
            descriptor, facts = open_with_facts(folder, name)
        return LocalFileReader(self.directory, name, descriptor, facts, may_map=self.is_ours)

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
        """Create or replace a small file durably and atomically.

        It writes and syncs a temporary file beside it, renames that, and syncs the folder. On a
        disk without room a file that has the content stays, and one sector is written in place.
        """
        temporary = name + TEMPORARY_SUFFIX
        with storage_errors(self.directory, name), self._folder_to_change() as folder:
            is_written = False
            try:
                with _Opened(create_in(folder, temporary)) as file:
                    write_all(file, content)
                    is_written = True
                    _adopt_ownership(file, folder, _kin_of(folder, name))
                    if modified_ms is not None:
                        _set_modified(file, modified_ms)
                    sync(file)
            except OSError as error:
                if is_written or error.errno not in NO_ROOM:
                    raise
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                if not _is_overwritten(folder, name, content):
                    raise
                return
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Copy a byte range of a file to a new file. The kernel copies if the filesystem can."""
        with (
            storage_errors(self.directory, target),
            self._folder_to_change() as folder,
            os.fdopen(open_in(folder, source), "rb") as file,
            os.fdopen(create_in(folder, target), "wb") as copy,
        ):
            _copy(file.fileno(), start, size_bytes, copy.fileno())
            _adopt_ownership(copy.fileno(), folder, source)
            _set_modified(copy.fileno(), modified_ms)
            sync(copy.fileno())

    def create_empty(self, name: str) -> None:
        """Create an empty file unless there is one of that name."""
        with storage_errors(self.directory, name), self._folder_to_change() as folder:
            kin = _kin_of(folder, name)
            # A file created with its final attributes is durable with its name.
            facts = os.stat(kin, dir_fd=folder, follow_symlinks=False)
            is_ours = (facts.st_uid, facts.st_gid) == (os.geteuid(), os.getegid())
            # Until the file has its owner, nobody else may open it.
            mode = _file_mode(facts) if is_ours else PRIVATE_FILE_MODE
            flags = os.O_WRONLY | os.O_CREAT
            with _Opened(open_in(folder, name, flags, mode=mode)) as file:
                if _adopt_ownership(file, folder, kin):
                    sync(file)

    def promote(self, scratch_path: str, name: str) -> None:
        """Move a finished scratch file of the same filesystem into the directory."""
        scratch = Path(scratch_path)
        with (
            storage_errors(self.directory, name),
            self._folder_to_change() as folder,
            open_folder(scratch.parent) as source,
        ):
            with _Opened(open_in(source, scratch.name)) as file:
                # Its writer has synced its earlier content.
                if _adopt_ownership(file, folder, _kin_of(folder, name)):
                    sync(file)
            os.replace(scratch.name, name, src_dir_fd=source, dst_dir_fd=folder)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target if there is one."""
        with storage_errors(self.directory, source), self._folder_to_change() as folder:
            os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone already is no error."""
        if self._held is not None and name in self._small:
            # A commit deletes hundreds of them: each block around the call takes as long as it.
            self._require_ours()
            try:
                os.unlink(name, dir_fd=self._held)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _storage_error(self.directory / name, error) from error
            return
        with (
            storage_errors(self.directory, name),
            suppress(FileNotFoundError),
            self._folder_to_change() as folder,
        ):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            # The disk needs time to free the room of a large file.
            is_large = facts.st_nlink == 1 and facts.st_size >= _LARGE_BYTES
            with waiting() if is_large else nullcontext():
                os.unlink(name, dir_fd=folder)

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files in this order, small ones together."""
        folder, share, deleted = self._held, self._share_of_held, 0
        is_small = self._small.issuperset(names)
        while deleted < len(names):
            if folder is not None and share is not None and is_small:
                self.seen = None
                deleted += delete_names(folder, names[deleted:], share.file)
            for name in names[deleted : deleted + 1]:
                self.delete(name)
            deleted += 1

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file to size_bytes and sync it.

        A file with several hard links is replaced: data under the other names, perhaps a
        snapshot's, stays.
        """
        temporary = name + TEMPORARY_SUFFIX
        with (
            storage_errors(self.directory, name),
            self._folder_to_change() as folder,
            os.fdopen(open_in(folder, name, os.O_RDWR), "rb+") as file,
        ):
            facts = os.fstat(file.fileno())
            if facts.st_nlink == 1:
                file.truncate(size_bytes)
                sync(file.fileno())
                return
            with os.fdopen(create_in(folder, temporary), "wb") as copy:
                _copy(file.fileno(), 0, min(size_bytes, facts.st_size), copy.fileno())
                copy.truncate(size_bytes)
                _adopt_ownership(copy.fileno(), folder, name)
                sync(copy.fileno())
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)

    def sync_file(self, name: str) -> None:
        """Make a file's content durable."""
        with storage_errors(self.directory, name), _Opened(self.open_descriptor(name)) as file:
            sync(file)

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        with storage_errors(self.directory), self.folder() as folder:
            sync(folder)

    def keep(self, name: str, path: str, *, is_copy: bool) -> None:
        """Keep a file under a second path, outside of the directory.

        If the kernel refuses a second name (the file is another user's, or has too many), it is
        copied.
        """
        target = Path(path)
        with storage_errors(self.directory, name), self._folder_to_change() as folder:
            if not target.parent.is_dir():
                # The trash's writer makes the name durable.
                make_folder(target.parent.parent)
                target.parent.mkdir(mode=_PRIVATE_FOLDER_MODE, exist_ok=True)
            with open_folder(target.parent) as target_folder:
                try:
                    _duplicate(folder, name, target_folder, target.name, is_copy=is_copy)
                except FileNotFoundError:
                    # A former attempt may have kept it already.
                    if facts_in(target_folder, target.name) is None:
                        raise

    def restore(self, path: str, name: str, *, is_copy: bool) -> None:
        """Put a kept file into the directory, replacing its namesake."""
        source = Path(path)
        with (
            storage_errors(source),
            self._folder_to_change() as folder,
            open_folder(source.parent) as source_folder,
        ):
            _duplicate(source_folder, source.name, folder, name, is_copy=is_copy)

    def write_record(self, path: str, content: bytes) -> None:
        """Create or replace a small file outside, durable with its folder's entries."""
        self._require_ours()
        write_record(Path(path), content)

    def create_directory(self) -> None:
        """Create the directory, with its log directory's owner, unless it is there."""
        self._require_ours()
        make_folder_like(LocalStore(self.directory.parent, may_be_link=True), self.directory)

    def retire_directory(self) -> None:
        """Rename the directory as a deleted partition's, then remove it."""
        self._require_ours()
        name = deleted_directory(parse_partition_directory(self.directory.name))
        with (
            storage_errors(self.directory),
            open_folder(self.directory.parent, may_be_link=True) as above,
        ):
            if facts_in(above, self.directory.name) is None:
                return
            os.rename(self.directory.name, name, src_dir_fd=above, dst_dir_fd=above)
            self._let_go()  # the next call is about another directory of this name
            sync(above)
            shutil.rmtree(name, dir_fd=above)

    def remove_directory(self) -> None:
        """Remove the directory if it is there."""
        self._require_ours()
        with (
            storage_errors(self.directory),
            open_folder(self.directory.parent, may_be_link=True) as above,
        ):
            if facts_in(above, self.directory.name) is not None:
                os.rmdir(self.directory.name, dir_fd=above)
                sync(above)

    def hand_on_ownership(self, descriptor: int, name: str = _ITSELF) -> None:
        """Give an open file elsewhere owner, group and mode of one here.

        Args:
            descriptor: The other one; a folder, too.
            name: Name of a file here, or of a future one; by default the directory itself, to a
                folder.
        """
        with storage_errors(self.directory, name), self.folder() as folder:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                facts = os.fstat(folder)
                _give(descriptor, facts, stat.S_IMODE(facts.st_mode))
            else:
                _adopt_ownership(descriptor, folder, _kin_of(folder, name))

    def _folder_to_change(self) -> AbstractContextManager[int]:
        """Return the open directory, for whoever is about to change something."""
        self._require_ours()
        return self.folder()

    def _let_go(self) -> None:
        self._held = self._share_of_held = None

    def _require_ours(self) -> None:
        self.seen = None
        if self._share_of_held is not None:
            self._share_of_held.validate(self._held)
        elif self._fence is not None:
            self._fence()

    def folder(self) -> AbstractContextManager[int]:
        """Return the open directory."""
        if self._held is not None:
            return nullcontext(self._held)
        return open_folder(self.directory, may_be_link=self._may_be_link)


def _kin_of(folder: int, name: str) -> str:
    """Return the file to copy owner and mode from: replaced or neighbour.

    Returns:
        The name of a regular file in the folder, or ``.`` for the folder.
    """
    transient = next((each for each in (CLEANED_SUFFIX, SWAP_SUFFIX) if name.endswith(each)), "")
    names = [name, name.removesuffix(transient)]
    if offset_of(name) is not None:
        log = name.partition(".")[0] + LOG_SUFFIX
        names += [log, log + transient]
    for kin in names:
        facts = facts_in(folder, kin)
        if facts is not None and stat.S_ISREG(facts.st_mode):
            return kin
    return _ITSELF


# The usual mode of a new folder, before the umask.
PUBLIC_MODE: Final = 0o777
_PRIVATE_FOLDER_MODE: Final = 0o700


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, mode: int = _PRIVATE_FOLDER_MODE) -> None:
    """Create a folder, and those above it; durable.

    So is the lowest one that was there already: a process that was killed between the creation of
    a folder and the sync, be it one of this function, leaves at most that name to be lost.

    Args:
        folder: Nothing happens if it is there.
        mode: Mode of a new folder; by default only its owner may open it.
    """
    if folder.is_dir():
        return
    above = folder.parent
    if not above.is_dir():
        make_folder(above, mode=mode)
    elif os.access(above.parent, os.R_OK | os.W_OK) and not above.is_mount():
        # Without write permission, or at a mount point, we did not create the folder above.
        sync_folder(above.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(above)


def make_folder_like(home: LocalStore, folder: Path) -> None:
    """Create a folder with owner, group and mode of a directory; durable.

    Args:
        folder: Stays where it is there, but gets these as well.
    """
    with storage_errors(folder):
        make_folder(folder)
        with open_folder(folder) as opened:
            home.hand_on_ownership(opened)


def write_record(path: Path, content: bytes) -> None:
    """Create or replace a small file and its folders; all durable. The folder's entries are
    durable, too."""
    temporary = path.name + TEMPORARY_SUFFIX
    with storage_errors(path):
        make_folder(path.parent)
        with open_folder(path.parent) as folder:
            with _Opened(create_in(folder, temporary)) as file:
                if content:  # an empty file has nothing but its name
                    write_all(file, content)
                    sync(file)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)


# The kernel refuses a second name: another filesystem (a bind mount), another user's file
# (fs.protected_hardlinks), too many names, or a filesystem without links.
_NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP}
)


def _duplicate(
    source_folder: int, source: str, target_folder: int, target: str, *, is_copy: bool
) -> None:
    """Link or copy a file to another name, replacing its namesake. A copy has the original's
    times, owner, mode and extended attributes."""
    temporary = target + TEMPORARY_SUFFIX
    with _Opened(open_in(source_folder, source)) as file:
        facts = os.fstat(file)
        there = facts_in(target_folder, target)
        if there is not None and os.path.samestat(there, facts):
            return
        # A file with a second name would not be opened any more if it is not its folder owner's.
        is_copy = is_copy or is_foreign(facts, os.fstat(source_folder))
        if there is None and not is_copy:
            if _link(source_folder, source, target_folder, target, facts):
                return
            is_copy = True
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=target_folder)
        if is_copy or not _link(source_folder, source, target_folder, temporary, facts):
            with _Opened(create_in(target_folder, temporary)) as copy:
                _copy(file, 0, facts.st_size, copy)
                _adopt_ownership(copy, source_folder, source)
                os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
                sync(copy)
        os.replace(temporary, target, src_dir_fd=target_folder, dst_dir_fd=target_folder)


def _link(
    source_folder: int, source: str, target_folder: int, target: str, facts: os.stat_result
) -> bool:
    """Give a file a second name; return whether it got one."""
    try:
        os.link(
            source,
            target,
            src_dir_fd=source_folder,
            dst_dir_fd=target_folder,
            follow_symlinks=False,
        )
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    linked = facts_in(target_folder, target)
    if linked is None or not os.path.samestat(linked, facts):
        raise OSError(errno.ESTALE, "became another file while it was kept")
    return True


def _identity(device: int, inode: int) -> str:
    return f"{device}:{inode}"


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


def _file_mode(kin: os.stat_result) -> int:
    """Return a file's mode, taken from another file or a folder."""
    return stat.S_IMODE(kin.st_mode) & PUBLIC_FILE_MODE


def _adopt_ownership(descriptor: int, folder: int, kin: str) -> bool:
    """Give an open file its kin's owner, group, mode and extended attributes.

    Args:
        kin: Name of what it is like in there; ``.`` for the folder.

    Returns:
        Whether it did not have all of that before.
    """
    facts = os.stat(kin, dir_fd=folder, follow_symlinks=False)
    is_changed = _give(descriptor, facts, _file_mode(facts))
    if stat.S_ISREG(facts.st_mode):
        is_changed |= _adopt_attributes(descriptor, f"/proc/self/fd/{folder}/{kin}")
    return is_changed


def _give(descriptor: int, kin: os.stat_result, mode: int) -> bool:
    """Set an open file's mode, and its owner and group if allowed."""
    mine = os.fstat(descriptor)
    has_other = (mine.st_uid, mine.st_gid) != (kin.st_uid, kin.st_gid) and os.geteuid() == 0
    if has_other:
        os.fchown(descriptor, kin.st_uid, kin.st_gid)
    if stat.S_IMODE(mine.st_mode) != mode:
        os.fchmod(descriptor, mode)
        return True
    return has_other


def _adopt_attributes(descriptor: int, path: str) -> bool:
    """Copy extended attributes and access lists; return whether one was new."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return False
        raise
    is_changed = False
    present = set(os.listxattr(descriptor))
    for name in names:
        value = os.getxattr(path, name, follow_symlinks=False)
        if name in present and os.getxattr(descriptor, name) == value:
            continue
        try:
            os.setxattr(descriptor, name, value)
            is_changed = True
        except OSError as error:
            # A security module sets its own labels; only a privileged process may do that.
            if error.errno not in {errno.EPERM, errno.EACCES, errno.ENOTSUP}:
                raise
    return is_changed
