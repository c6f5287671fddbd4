"""Safe access to files in directories writable by other users. All access to such files goes
through this module.

A log directory belongs to the broker's user, a job on it may be root's. What its owner puts there
must lead a job nowhere that the owner could not go alone. So whoever opens, lists, creates or
removes a file inside of a root does it through this module, or through a store that does:

- a folder is opened first, by its last name without following a link, and files by their names in
  the open folder: whoever swaps the folder for a link in between changes nothing. What leads to a
  root, links and all, is the word of the person who named the root (``may_be_link``);
- no file is followed that is a link, wherever it leads;
- what is opened is a regular file. A FIFO, a socket or a device is refused at once and never waited
  for;
- a file with several names (hard links) that belongs to somebody else than its folder does is
  refused where we have rights that the folder's owner has not: the owner may have given another
  user's file a name in there;
- what is created was not there, and nobody but its owner can open it until it has the manners of
  what it is like;
- what is read back as truth, because a run of ours wrote it, is ours, and nobody else may write it
  (``require_ours``).

Refusals are ``OSError``, as those of the operating system are: callers name the path in theirs.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

# The usual mode of a new file, before the umask.
PUBLIC_FILE_MODE: Final = 0o666
ROOT_USER: Final = 0
PRIVATE_FILE_MODE: Final = 0o600
_OTHERS_MAY_WRITE: Final = 0o022
# Opening a FIFO without O_NONBLOCK would wait for another process to open its other end.
CAREFUL: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
# Of a file that grows while it is read.
_GROWN_BYTES: Final = 1 << 20
_KINDS: Final = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
)


class Entry(NamedTuple):
    """One entry of a folder.

    It is no dataclass, since their module takes as long to import as all other imports of a lock's
    process.
    """

    name: str
    facts: os.stat_result  # stat result of the entry itself: a link is not followed

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.facts.st_mode)

    @property
    def is_folder(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.facts.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.facts.st_mode)


@contextmanager
def open_folder(path: str | Path, *, may_be_link: bool = False) -> Iterator[int]:
    """Open a folder for the time of a block.

    Args:
        path: Path of the folder; above its last name there may be links.
        may_be_link: Whether the last name may be one, too: for what a person named.
    """
    descriptor = _open_folder(path, None, may_be_link=may_be_link)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_folder_below(folder: int, names: tuple[str, ...]) -> Iterator[int]:
    """Open a folder some levels below an open one, without links."""
    descriptor = os.dup(folder)
    try:
        for name in names:
            below = _open_folder(name, descriptor, may_be_link=False)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _open_folder(path: str | Path, folder: int | None, *, may_be_link: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags | (0 if may_be_link else os.O_NOFOLLOW), dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and not may_be_link:
            _refuse_link(path, folder, "a directory")
        raise


def open_in(
    folder: int, name: str, flags: int = os.O_RDONLY, *, mode: int = PRIVATE_FILE_MODE
) -> int:
    """Open a regular file of an open folder, itself and no other.

    Args:
        mode: Mode of a new file, before the umask; by default its owner alone may open it.

    Returns:
        Its descriptor.
    """
    return open_with_facts(folder, name, flags, mode=mode)[0]


def open_with_facts(
    folder: int, name: str, flags: int = os.O_RDONLY, *, mode: int = PRIVATE_FILE_MODE
) -> tuple[int, os.stat_result]:
    """Open a file as `open_in`; return its descriptor and its stat result."""
    descriptor = _open_in(folder, name, flags, mode)
    try:
        facts = os.fstat(descriptor)
        _require_regular(facts)
        if facts.st_nlink > 1:
            _require_own(facts, os.fstat(folder))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, facts


def _open_in(folder: int, name: str, flags: int, mode: int) -> int:
    """Open a name of an open folder that is no link; what it is has to be looked at then."""
    try:
        return os.open(name, flags | CAREFUL, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _refuse_link(name, folder, "a file")
        elif error.errno == errno.ENXIO:
            _require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        raise


class OpenFolder:
    """An open folder of which parts of many files are read, each opened as by ``open_in``.

    Attributes:
        descriptor: Of the folder; it is not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._facts = os.fstat(descriptor)
        self._owner = self._facts.st_uid

    def read(self, name: str, position: int, most_bytes: int) -> tuple[bytes, os.stat_result]:
        """Return up to so many bytes of a file from a position on, and its stat result."""
        descriptor = _open_in(self.descriptor, name, os.O_RDONLY, PRIVATE_FILE_MODE)
        try:
            facts = self._facts_of(descriptor)
            wanted = min(most_bytes, facts.st_size - position)
            return os.pread(descriptor, wanted, position) if wanted > 0 else b"", facts
        finally:
            os.close(descriptor)

    def read_last(
        self, name: str, entry_bytes: int, most_entries: int
    ) -> tuple[bytes, os.stat_result]:
        """Return up to so many of the last whole entries of a file, and its stat result."""
        descriptor = _open_in(self.descriptor, name, os.O_RDONLY, PRIVATE_FILE_MODE)
        try:
            facts = self._facts_of(descriptor)
            end = facts.st_size // entry_bytes * entry_bytes
            wanted = min(end, most_entries * entry_bytes)
            return os.pread(descriptor, wanted, end - wanted) if wanted else b"", facts
        finally:
            os.close(descriptor)

    def _facts_of(self, descriptor: int) -> os.stat_result:
        """Return the stat result of an open file; refuse it as ``open_in`` does."""
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            _require_regular(facts)
        if facts.st_uid != self._owner and facts.st_nlink > 1:
            _require_own(facts, self._facts)
        return facts


def create_in(folder: int, name: str, *, mode: int = PRIVATE_FILE_MODE) -> int:
    """Create a file in an open folder, replacing its namesake.

    Returns:
        Its descriptor, for writing and reading.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    with suppress(FileExistsError):
        return open_in(folder, name, flags, mode=mode)
    with suppress(FileNotFoundError):
        # A file or link of a crashed write; never write through a link.
        os.unlink(name, dir_fd=folder)
    return open_in(folder, name, flags, mode=mode)


def require_ours(facts: os.stat_result, *trusted: int) -> None:
    """Refuse a file or folder that somebody else owns or may write.

    Args:
        facts: Stat result of the open file: its name may lead to another file a moment later.
        trusted: Users whose word counts as ours, beside root's: the owner of a log directory may do
            to it whatever a file about it can have us do.
    """
    owner, mode = facts.st_uid, stat.S_IMODE(facts.st_mode)
    users = list(dict.fromkeys((os.geteuid(), ROOT_USER, *trusted)))
    if owner not in users:
        raise OSError(
            errno.EPERM,
            f"belongs to user {owner} (mode {mode:04o}), expected user "
            f"{' or '.join(map(str, users))}: what somebody else wrote is not taken for ours",
        )
    if mode & _OTHERS_MAY_WRITE:
        raise OSError(
            errno.EPERM,
            f"may be written by others than its owner (user {owner}, mode {mode:04o}, expected "
            f"{mode & ~_OTHERS_MAY_WRITE:04o}): `chmod go-w` makes it ours alone; remove what they "
            "may have put there",
        )


def require_own_file(path: Path, facts: os.stat_result) -> None:
    """Refuse a file that a person names and others may write.

    Its folder is ours, too, or one as /tmp, where only the owner of a file can replace it.

    Args:
        path: Its path; links lead to it.
    """
    require_ours(facts)
    if not stat.S_ISREG(facts.st_mode):
        return  # a pipe that this user's process has made
    folder = path.resolve().parent
    around = folder.stat()
    if around.st_mode & stat.S_ISVTX and around.st_uid == ROOT_USER:
        return
    try:
        require_ours(around)
    except OSError as error:
        raise OSError(error.errno, f"its folder {folder} {error.strerror}") from error


def require_as_private(facts: os.stat_result, directory: os.stat_result) -> None:
    """Refuse a directory's file that more users than its own may write.

    Args:
        directory: Of the directory: its owner, and its group if that may write there, can do to it
            whatever the file can have us do.
    """
    is_same_group = facts.st_gid == directory.st_gid
    shared = directory.st_mode & (_OTHERS_MAY_WRITE if is_same_group else stat.S_IWOTH)
    require_ours(_without_mode(facts, shared & _OTHERS_MAY_WRITE), directory.st_uid)


def _without_mode(facts: os.stat_result, mode: int) -> os.stat_result:
    """Return a stat result with some bits of its mode taken away."""
    return os.stat_result((facts.st_mode & ~mode, *facts[1:]))


def require_fixed_place(folder: Path) -> None:
    """Refuse a folder replaceable by other users.

    Whoever may write a folder above it can do that, as sshd's StrictModes knows. With the sticky
    bit, as in /tmp, only the owner of what lies there can.
    """
    for above in dict.fromkeys([*folder.absolute().parents, *folder.resolve().parents]):
        facts = above.stat()
        is_shared = facts.st_mode & _OTHERS_MAY_WRITE and not facts.st_mode & stat.S_ISVTX
        if is_shared or facts.st_uid not in {os.geteuid(), ROOT_USER}:
            raise PermissionError(
                f"{above}: belongs to somebody else, or others can write to it, and so replace "
                f"{folder}, from which code is run"
            )


@contextmanager
def open_own_folder(path: Path) -> Iterator[int]:
    """Open our own folder for the block; refuse one writable by others."""
    with open_folder(path) as folder:
        require_ours(os.fstat(folder))
        yield folder


def open_own_in(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open our own file in an open folder, unless others may write.

    Returns:
        Its descriptor.
    """
    descriptor = open_in(folder, name, flags)
    try:
        require_ours(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path, flags: int = os.O_RDONLY, *, may_be_link: bool = False) -> int:
    """Open a regular file by its path.

    Args:
        may_be_link: Whether its folder may be a link; the file may not.
    """
    with open_folder(path.parent, may_be_link=may_be_link) as folder:
        return open_in(folder, path.name, flags)


def create_file(path: Path) -> int:
    """Create a file by its path, as ``create_in``; refuse a linked folder."""
    with open_folder(path.parent) as folder:
        return create_in(folder, path.name)


def read_small(
    path: Path,
    limit_bytes: int,
    *,
    may_be_link: bool = False,
    trusted: tuple[int, ...] | None = None,
) -> bytes:
    """Return what is in a small file.

    Args:
        limit_bytes: How long it may be; a longer one is not read.
        may_be_link: Whether the path may be a link, as for ``open_file``.
        trusted: Where the file has to be ours, as for require_ours; None where anybody's will do.
    """
    descriptor = open_file(path, may_be_link=may_be_link)
    with os.fdopen(descriptor, "rb") as file:
        if trusted is not None:
            require_ours(os.fstat(file.fileno()), *trusted)
        return read_limited(file.fileno(), limit_bytes)


def read_limited(descriptor: int, limit_bytes: int) -> bytes:
    """Return an open file's content after a check of its size."""
    size = os.fstat(descriptor).st_size
    if size > limit_bytes:
        raise OSError(errno.EFBIG, f"is longer than the {limit_bytes} bytes it may have: {size}")
    parts: list[bytes] = []
    position = 0
    wanted = size + 1  # read at once: joining parts takes twice the memory
    while position <= limit_bytes:
        part = os.pread(descriptor, min(wanted, limit_bytes + 1 - position), position)
        if not part:
            return b"".join(parts)
        parts.append(part)
        position += len(part)
        wanted = _GROWN_BYTES
    raise OSError(errno.EFBIG, f"is longer than the {limit_bytes} bytes it may have")


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all bytes to an open file: one call may write a part of them, where there is little
    room or very much to write."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def find_data_end(descriptor: int, size_bytes: int) -> int:
    """Return the start of an open file's final hole, else its length. On a filesystem that does
    not report holes it is the length."""
    end = 0
    while end < size_bytes:
        try:
            data = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # from here on it is a hole
                return end
            if error.errno in {errno.EINVAL, errno.ENOTSUP}:
                return size_bytes
            raise
        end = os.lseek(descriptor, data, os.SEEK_HOLE)
    return size_bytes


def facts_in(folder: int, name: str) -> os.stat_result | None:
    """Return an entry's stat result in an open folder, else None. A link is not followed."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def facts_of(path: Path, *, may_be_link: bool = False) -> os.stat_result | None:
    """Return the stat result of a path, else None. A link is not followed. A missing folder gives
    None, too.

    Args:
        may_be_link: Whether its folder may be a link.
    """
    try:
        with open_folder(path.parent, may_be_link=may_be_link) as folder:
            return facts_in(folder, path.name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_there(path: Path, *, may_be_link: bool = False) -> bool:
    """Whether anything has a path; a link is something, wherever it leads."""
    return facts_of(path, may_be_link=may_be_link) is not None


def entry_names(path: str | Path, *, may_be_link: bool = False) -> list[str]:
    """Return the names in a folder, in any order, without stat calls."""
    with open_folder(path, may_be_link=may_be_link) as folder:
        return os.listdir(folder)  # noqa: PTH208  # an open folder has no path


def scan_folder(path: Path, *, may_be_link: bool = False) -> list[Entry]:
    """Return a folder's entries, sorted by name. Entries that vanish meanwhile are left out."""
    with open_folder(path, may_be_link=may_be_link) as folder:
        return scan_open(folder)


def scan_open(folder: int) -> list[Entry]:
    """Return the entries of an open folder, as scan_folder does."""
    entries = []
    with os.scandir(folder) as listing:
        for entry in listing:
            try:
                entries.append(Entry(entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    entries.sort()  # no name is there twice
    return entries


def list_open(folder: int, suffix: str | None) -> tuple[dict[str, os.stat_result], list[str], bool]:
    """Return an open folder's names, with stat results for one suffix. Each stat result costs as
    much as a name.

    Args:
        suffix: Suffix of the names whose stat results are returned; None for no such names.

    Returns:
        (facts, others, are_files): facts by name where it has the suffix, all other names, in any
        order, and whether every entry is a regular file.
    """
    facts: dict[str, os.stat_result] = {}
    others: list[str] = []
    are_files = True
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if suffix is not None and name.endswith(suffix):
                facts[name] = entry.stat(follow_symlinks=False)
            else:
                others.append(name)
            are_files = are_files and entry.is_file(follow_symlinks=False)
    return facts, others, are_files


def folder_names(path: Path) -> list[str]:
    """Return the sorted names of a root's folders and links to folders.

    Nothing is done through such a link: it is refused by name where it is opened, for to leave it
    out would hide a partition that a broker loads.

    Args:
        path: The root; it may be a link.
    """
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if _may_be_folder(entry))


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry may be a folder, or link to one.

    A link that leads in circles leads nobody anywhere. Where one leads that may not be followed, a
    broker of another user may know.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        return error.errno not in {errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG}


def _refuse_link(path: str | Path, folder: int | None, expected: str) -> None:
    """Raise an error with the link's name and what to do."""
    if stat.S_ISLNK(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, f"is a link, expected {expected}")


def _require_regular(facts: os.stat_result) -> None:
    if stat.S_ISREG(facts.st_mode):
        return
    if stat.S_ISDIR(facts.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    kinds = (name for is_kind, name in _KINDS if is_kind(facts.st_mode))
    raise OSError(errno.EINVAL, f"is {next(kinds, 'a device')}, expected a regular file")


def _require_own(facts: os.stat_result, around: os.stat_result) -> None:
    """Refuse a file of several names that may be another user's than its folder's."""
    if is_foreign(facts, around):
        raise OSError(
            errno.EPERM,
            f"has {facts.st_nlink} names and belongs to user {facts.st_uid}, its directory to user "
            f"{around.st_uid}, who may have given another user's file a name here: not opened",
        )


def is_foreign(facts: os.stat_result, folder: os.stat_result) -> bool:
    """Tell whether a file is another user's than its folder's. The folder's owner may have no right
    to read that file.

    Where that owner is this process's own user, or root, there is nothing to win by it.
    """
    return facts.st_uid != folder.st_uid and folder.st_uid not in {ROOT_USER, os.geteuid()}
