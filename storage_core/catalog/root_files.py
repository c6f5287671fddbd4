"""A root wherever it is: its directories, its own small files, and where its partitions are.

Reading verbs see a local log directory, a mirror on an object store and a managed root through
this. A managed root has no files of its own: what a broker writes into checkpoint files stands in
the manifest of each partition.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote
from threading import Thread
from typing import Final, Protocol, TypeVar

from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.errors import (
    ConfigError,
    InvalidNameError,
    LogDirectoryNotFoundError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    MANIFEST_FILE,
    META_PROPERTIES_FILE,
    TopicPartition,
    kind_of,
    parse_partition_directory,
    parse_renamed_directory,
)
from storage_core.local_files import folder_names, scan_folder
from storage_core.store import LocalStore, ObjectStore, open_object_store
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.local import storage_errors
from storage_core.store.open_objects import MANAGED_PREFIX, is_managed
from storage_core.store.open_store import split_location

_LOOKS_AT_ONCE: Final = 16

T = TypeVar("T")
R = TypeVar("R")


def join_location(location: str, name: str) -> str:
    """Return the path or URL of what has that name in a directory."""
    return f"{location.rstrip('/')}/{name}"


def unpinned(location: str) -> str:
    """Return the location of a partition without the generation that it may name."""
    return location.partition(GENERATION_MARK)[0]


class RootFiles(Protocol):
    """What is read of a root beside its partitions."""

    @property
    def location(self) -> str:
        """Path or URL."""
        ...

    @property
    def is_managed(self) -> bool:
        """Whether its partitions have manifests."""
        ...

    def directories(self) -> list[str]:
        """Return the names of its sub-directories, sorted.

        Raises:
            StorageError: It cannot be listed.
        """
        ...

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file of the root's own, None if it is not there.

        Raises:
            StorageError: It cannot be read, or is longer than limit_bytes.
        """
        ...

    def locate(self, directory: str) -> str:
        """Return where a sub-directory is, as ``open_store`` takes it."""
        ...


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """A log directory on a local disk."""

    path: Path

    @property
    def location(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def is_managed(self) -> bool:
        """Whether its partitions have manifests: they do not."""
        return False

    def directories(self) -> list[str]:
        """Return the names of its sub-directories, sorted."""
        try:
            return folder_names(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            reason = f"{error.strerror}: expected a log directory"
            raise LogDirectoryNotFoundError(str(self.path), reason) from error
        except OSError as error:
            raise StorageError(str(self.path), error.strerror or str(error)) from error

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file, None if it is not there."""
        store = LocalStore(self.path, may_be_link=True)
        return store.read_file(name, limit_bytes=limit_bytes) if store.has(name) else None

    def locate(self, directory: str) -> str:
        """Return the path of a sub-directory."""
        return str(self.path / directory)


@dataclass(frozen=True, slots=True)
class MirrorRoot:
    """A copy of a log directory on an object store."""

    store: ObjectStore

    @property
    def location(self) -> str:
        """Its URL."""
        return self.store.url

    @property
    def is_managed(self) -> bool:
        """Whether its partitions have manifests: they do not."""
        return False

    def directories(self) -> list[str]:
        """Return the names of its folders, sorted."""
        return sorted(self.store.list_folders())

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small object, None if it is not there."""
        try:
            return self.store.get(name, limit_bytes=limit_bytes)
        except ObjectNotFoundError:
            return None

    def locate(self, directory: str) -> str:
        """Return the URL of a folder."""
        return join_location(self.location, directory)


@dataclass(frozen=True, slots=True)
class ManagedRootFiles:
    """A managed root, on a local disk or an object store."""

    store: ObjectStore

    @property
    def location(self) -> str:
        """Its path or URL."""
        return self.store.url

    @property
    def is_managed(self) -> bool:
        """Whether its partitions have manifests: they do."""
        return True

    def directories(self) -> list[str]:
        """Return the names of its folders that are not its own, sorted."""
        return sorted(name for name in self.store.list_folders() if not name.startswith("."))

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return None: a managed root has no file of a broker."""
        del name, limit_bytes
        return None

    def locate(self, directory: str) -> str:
        """Return the location of a partition."""
        return MANAGED_PREFIX + join_location(self.location, directory)


def open_root(root: str | Path, *, role: Role | None = None) -> RootFiles:
    """Return what is read of a root.

    Args:
        root: A path, a URL, or either behind ``managed+``.
        role: What it is; None to look.

    Raises:
        StorageError: The store cannot be reached.
        MissingDriverError: The package that reaches such a URL is not installed.
    """
    text = str(root)
    place = text.removeprefix(MANAGED_PREFIX)
    if is_managed(text) or (role or guess_role(place)) is Role.MANAGED:
        return ManagedRootFiles(open_object_store(place))
    path = local_path(place)
    return MirrorRoot(open_object_store(place)) if path is None else LocalRoot(path)


def find_root(path: str | Path) -> tuple[RootFiles, list[str]]:
    """Return a root and the names of its directories; for a partition, its root and its own name.

    Args:
        path: Path or URL of either.

    Raises:
        ConfigError: There is nothing there.
        StorageError: It cannot be listed.
    """
    text = str(path)
    local = local_path(text.removeprefix(MANAGED_PREFIX))
    if local is None:
        parent, name = split_location(text)
    elif not local.is_dir():
        reason = "is not a directory" if local.exists() else "no such directory"
        raise ConfigError("ROOT", path, reason)
    else:
        name = local.resolve().name
        is_led = local.is_symlink() or local.name != name
        parent = str(local.resolve().parent if is_led else local.parent)
        parent = parent if not is_managed(text) else MANAGED_PREFIX + parent
    above = open_root(parent) if _find_partition(name) else None
    if above is not None and above.is_managed:
        return above, [name]
    root = open_root(path)
    names = root.directories()
    if above is not None and not names:
        return above, [name]
    if not names and isinstance(root, MirrorRoot) and next(root.store.list(), None) is None:
        raise ConfigError("ROOT", path, "there are no objects below this URL")
    return root, names


def check_log_directory(root: str | Path, path: Path) -> None:
    """Refuse a local directory that is a part of a log directory, or nothing of one.

    A log directory may be named as a partition is (``kafka-1``); it has no segments itself. An
    empty folder is what a disk that was not mounted looks like.

    Args:
        root: As it was given, for the message.
        path: Where it is.

    Raises:
        ConfigError: It is one partition's directory, or nothing of a log directory is in it.
        StorageError: It cannot be listed.
    """
    with storage_errors(path):
        names = {entry.name for entry in scan_folder(path, may_be_link=True)}
        folders = folder_names(path)
    whole = path.resolve()
    partition = _find_partition(whole.name)
    if partition is not None and _holds_a_partition(whole, names):
        place = f"{quote(str(whole.parent))} --topics {quote(partition.topic)}"
        reason = f"is the directory of one partition; expected its log directory: {place}"
        raise ConfigError("ROOT", root, reason)
    if not folders and META_PROPERTIES_FILE not in names:
        reason = "holds neither a partition nor meta.properties; is its disk mounted?"
        raise ConfigError("ROOT", root, reason)


def _holds_a_partition(path: Path, names: Iterable[str]) -> bool:
    if MANIFEST_FILE in names:
        return guess_role(path.parent) is Role.MANAGED
    return any(kind_of(name) is not None for name in names)


def locate_directory(path: str | Path) -> str:
    """Return the location of a partition directory as ``open_store`` takes it.

    Args:
        path: Path or URL of a directory; one inside a managed root need not say so.

    Raises:
        StorageError: The store cannot be reached.
    """
    text = str(path)
    if is_managed(text):
        return text
    local = local_path(text)
    place = text if local is None else str(local.resolve())
    parent, name = split_location(place)
    if _find_partition(unpinned(name)):
        root = open_root(parent)
        if root.is_managed:
            return root.locate(name)
    # The person who names a link means what it leads to.
    return place if local is not None and local.is_symlink() else text


def map_over_root(root: RootFiles, look: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what a look at each of some parts of a root finds, in their order.

    Of an object store several parts are asked for at once: each answer takes its time.
    """
    several = tuple(items)
    # In this thread, where a signal is heard, unless others can ask meanwhile.
    if isinstance(root, LocalRoot) or len(several) == 1:
        return [look(item) for item in several]
    asked: SimpleQueue[tuple[Future[R], T]] = SimpleQueue()
    answers: list[Future[R]] = []
    for item in several:
        answers.append(Future())
        asked.put((answers[-1], item))
    # An executor's threads are waited for, at the latest when the program ends: a look at an object
    # store that does not answer would keep it from ending.
    threads = [
        Thread(target=_answer, args=(look, asked), name="pylog-look", daemon=True)
        for _ in range(min(_LOOKS_AT_ONCE, len(several)))
    ]
    for thread in threads:
        thread.start()
    try:
        return [answer.result() for answer in answers]
    except BaseException as error:
        for answer in answers:
            answer.cancel()
        if isinstance(error, Exception):  # else the program is asked to end
            for thread in threads:
                thread.join()
        raise


def _answer(look: Callable[[T], R], asked: SimpleQueue[tuple[Future[R], T]]) -> None:
    """Look at what nobody else has looked at yet, as long as there is any."""
    while True:
        try:
            answer, item = asked.get_nowait()
        except Empty:
            return
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            answer.set_result(look(item))
        except BaseException as error:  # noqa: BLE001  # raised where the answer is waited for
            answer.set_exception(error)


def _find_partition(name: str) -> TopicPartition | None:
    """Return the partition that a directory is named after, renamed by Kafka or not."""
    try:
        renamed = parse_renamed_directory(name)
        return renamed[0] if renamed is not None else parse_partition_directory(name)
    except InvalidNameError:
        return None
