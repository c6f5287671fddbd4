"""Open the root of a path or URL, or of a partition's. A person names it."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote
from threading import Thread
from typing import Final, TypeVar

from storage_core.catalog.log_directories import (
    DirectoryKind,
    LogDirectoryState,
    SubDirectory,
    classify_directory,
    read_topic_id,
    read_topic_ids,
)
from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    CleanShutdown,
    parse_meta_properties,
    read_clean_shutdown,
)
from storage_core.checkpoint.checkpoints import UPKEEP_FILES, Checkpoints, read_checkpoints
from storage_core.commit.trash import read_run
from storage_core.errors import (
    ConfigError,
    InvalidNameError,
    ObjectNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    MANAGED_ROOT_FILE,
    MANIFEST_FILE,
    META_PROPERTIES_FILE,
    TopicPartition,
    kind_of,
    parse_partition_directory,
    parse_renamed_directory,
)
from storage_core.local_files import entry_names, folder_names
from storage_core.roots.archive import ArchiveRoot
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.managed import ManagedRoot
from storage_core.roots.root import ReadOnlyRoot, Root
from storage_core.store import ObjectStore, open_object_store
from storage_core.store.generations import unpinned
from storage_core.store.local import storage_errors
from storage_core.store.open_objects import MANAGED_PREFIX, is_url, names_manifest
from storage_core.store.open_store import join_location, split_location
from storage_core.store.tier_archive import (
    ArchivePlace,
    is_tier_key,
    names_archive,
    parse_archive,
)
from storage_core.store.tier_layouts import find_layout

# A read-only copy of a log directory on an object store.


@dataclass(frozen=True, slots=True)
class MirrorRoot(ReadOnlyRoot):
    """A copy of a log directory on an object store."""

    store: ObjectStore

    @property
    def location(self) -> str:
        """Its URL."""
        return self.store.url

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

    @property
    def refusal(self) -> str:
        """Its sync writes it."""
        return f"{self.location} is a mirror, which is only read: its sync owns the files"


_LOOKS_AT_ONCE: Final = 16
# A page of a listing: among so many objects of a tier one is a segment's.
_FIRST_OBJECTS: Final = 1000
# So many log directories are named where the folder above them was given.
_NAMED_DIRECTORIES: Final = 4

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRoot:
    """A root that a run is given."""

    location: str  # its path, absolute and without ``..``, or its URL
    role: Role  # what may be done to it
    is_said: bool  # whether the role was said; a guessed one serves reading only

    def open(self) -> Root:
        """Return what is there, as anybody reads it."""
        return open_root(self.location, role=self.role)


def kept_roots(folder: Path) -> list[LogRoot]:
    """Return the log directories of a run by its trash. Only what runs take out of a broker's
    directory is kept there."""
    return [
        LogRoot(location=root.location, role=Role.BROKER, is_said=True)
        for root in read_run(folder).roots
    ]


def open_root(root: str | Path, *, role: Role | None = None) -> Root:
    """Return what is read of a root.

    Args:
        root: A path, a URL, or either behind ``managed+`` or ``archive+``.
        role: What it is; None to look.
    """
    text = str(root)
    if names_archive(text):
        return ArchiveRoot(parse_archive(text))
    place = text.removeprefix(MANAGED_PREFIX)
    if names_manifest(text) or (role or guess_role(place)) is Role.MANAGED:
        return ManagedRoot(open_object_store(place))
    path = local_path(place)
    return MirrorRoot(open_object_store(place)) if path is None else BrokerRoot(path)


def root_checkpoints(
    location: str, files: Iterable[str] = UPKEEP_FILES, *, strict: bool = True
) -> Checkpoints:
    """Return what the checkpoint files of a root say; as ``read_checkpoints``.

    Args:
        strict: Whether a malformed file is an error.
    """
    return read_checkpoints(open_root(location), files, strict=strict)


def find_root(path: str | Path) -> tuple[Root, list[str]]:
    """Return a root and its directory names; for a partition, only its. The root is the partition's
    own then, and the name the partition's.

    Args:
        path: Path or URL of either.
    """
    text = str(path)
    if names_archive(text):
        return _find_archive(text)
    local = local_path(text.removeprefix(MANAGED_PREFIX))
    if local is None:
        parent, name = split_location(text)
    elif not local.is_dir():
        reason = "is not a directory" if local.exists() else "no such directory"
        raise ConfigError("ROOT", path, reason)
    else:
        check_not_above(path, local)
        name = local.resolve().name
        is_led = local.is_symlink() or local.name != name
        parent = str(local.resolve().parent if is_led else local.parent)
        parent = parent if not names_manifest(text) else MANAGED_PREFIX + parent
    above = open_root(parent) if _find_partition(name) else None
    if above is not None and above.has_manifests:
        return above, [name]
    root = open_root(path)
    names = root.directories()
    if above is not None and not names:
        return above, [name]
    if not root.has_manifests and not any(map(_find_partition, names)):
        tier = find_tier(text)
        if tier is not None:
            return _find_archive(str(tier))
    if not names and isinstance(root, MirrorRoot) and next(root.store.list(), None) is None:
        raise ConfigError("ROOT", path, "there are no objects below this URL")
    return root, names


def _find_archive(location: str) -> tuple[Root, list[str]]:
    """Return a tier and its partitions' names; for the location of a partition, only its."""
    root = ArchiveRoot(parse_archive(location))
    names = root.directories()
    if not names:
        parent, name = split_location(location)
        above = ArchiveRoot(parse_archive(parent)) if _find_partition(name) else None
        if above is not None and name in above.directories():
            return above, [name]
        find_tier(root.place.place)  # names the layout of another product
        reason = "holds no segment of a tier, as LocalTieredStorage or Aiven's plugin writes it"
        raise ConfigError("ROOT", root.place.place, reason)
    return root, names


def tiers_with(
    roots: Iterable[str],
    *,
    with_local: Sequence[str] = (),
    decryption_key: str | None = None,
    topic_ids: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return roots that say what they are read with, if they are to be read with anything.

    Args:
        with_local: A broker's log directories, in which the logs of a tier go on.
        decryption_key: Path of the private key of an encrypted tier.
        topic_ids: Which of several topics of one name.

    Raises:
        ConfigError: A root is no tier, or with_local is a URL.
    """
    for disk in filter(is_url, with_local):
        raise ConfigError("with_local", disk, "expected a log directory on this machine")
    said = {"with_local": with_local, "decryption_key": decryption_key, "topic_id": topic_ids}
    names = [name for name, value in said.items() if value]
    if not names:
        return tuple(roots)
    located = []
    for root in roots:
        place = find_tier(root)
        if place is None:
            reason = f"is no tier (remote storage); {' and '.join(names)} are for reading one"
            raise ConfigError("ROOT", root, reason)
        located.append(
            str(
                replace(
                    place,
                    with_local=tuple(str(Path(disk).absolute()) for disk in with_local),
                    decryption_key=decryption_key,
                    topic_ids=tuple(topic_ids),
                )
            )
        )
    return tuple(located)


def find_tier(root: str | Path) -> ArchivePlace | None:
    """Return the tier that a root says it is, or that lies there by its first objects; None for
    another root.

    Raises:
        ConfigError: It is a tier in a layout that is not read.
    """
    if names_archive(str(root)):
        return parse_archive(str(root))
    objects = open_object_store(str(root))
    keys = [info.key for info in islice(objects.list(), _FIRST_OBJECTS)]
    if any(map(is_tier_key, keys)):
        return ArchivePlace(place=str(root))
    _check_layout(root, keys)
    return None


def _check_layout(root: str | Path, keys: Iterable[str]) -> None:
    """Refuse a tier in a layout that is known and not read."""
    found = find_layout(keys)
    if found is not None:
        reason = (
            f"is remote storage in the layout of {found[0]}, as {found[1]} shows; pylog reads "
            "LocalTieredStorage and Aiven's plugin with the manifest version 1"
        )
        raise ConfigError("ROOT", root, reason)


def check_not_above(root: str | Path, path: Path) -> None:
    """Refuse the folder above log directories: it holds no partitions."""
    if os.path.lexists(path / META_PROPERTIES_FILE) or os.path.lexists(path / MANAGED_ROOT_FILE):
        return
    with storage_errors(path):
        names = folder_names(path)
    below = [name for name in names if os.path.lexists(path / name / META_PROPERTIES_FILE)]
    if below:
        meant = " ".join(quote(str(path / name)) for name in below[:_NAMED_DIRECTORIES])
        reason = f"did you mean {meant}? {META_PROPERTIES_FILE} lies there"
        raise ConfigError("ROOT", root, reason)


def check_log_directory(root: str | Path, path: Path) -> None:
    """Refuse a local directory other than a whole log directory. It may be a part of one, or
    nothing of one.

    A log directory may be named as a partition is (``kafka-1``); it has no segments itself. An
    empty folder is what a disk that was not mounted looks like.
    """
    check_not_above(root, path)
    with storage_errors(path):
        names = frozenset(entry_names(path, may_be_link=True))
        is_said = META_PROPERTIES_FILE in names
        folders = [] if is_said else folder_names(path)
    if not is_said and not any(map(_find_partition, folders)):
        check_no_tier(root)
    whole = path.resolve()
    partition = _find_partition(whole.name)
    if partition is not None and _holds_a_partition(whole, names):
        place = f"{quote(str(whole.parent))} --topics {quote(partition.topic)}"
        reason = f"is the directory of one partition; expected its log directory: {place}"
        raise ConfigError("ROOT", root, reason)
    if not is_said and not folders:
        reason = (
            "holds neither a partition nor meta.properties; is its disk mounted? If it is a new "
            "one, leave it out (`pylog metadata promote --into NODE=DIR` makes it a controller's)"
        )
        raise ConfigError("ROOT", root, reason)


def check_no_tier(root: str | Path) -> None:
    """Refuse a tier, which is no log directory."""
    if find_tier(root) is not None:
        reason = "is a tier (remote storage), which this command does not read; see docs/tiers.md"
        raise ConfigError("ROOT", root, reason)


def _holds_a_partition(path: Path, names: Iterable[str]) -> bool:
    if MANIFEST_FILE in names:
        return guess_role(path.parent) is Role.MANAGED
    return any(kind_of(name) is not None for name in names)


def locate_directory(path: str | Path) -> str:
    """Return the location of a partition directory as ``open_store`` takes it.

    Args:
        path: Path or URL of a directory; one inside a managed root need not say so.
    """
    text = str(path)
    if names_manifest(text):
        return text
    local = local_path(text)
    place = text if local is None else str(local.resolve())
    parent, name = split_location(place)
    if _find_partition(unpinned(name)):
        root = open_root(parent)
        if root.has_manifests:
            return root.locate(name)
    # The person who names a link means what it leads to.
    return place if local is not None and local.is_symlink() else text


def map_over_root(root: Root, look: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply a function to parts of a root; return results in order. Of an object store several
    parts are asked for at once: each answer takes its time."""
    several = tuple(items)
    # In this thread, where a signal is heard, unless others can ask meanwhile.
    if not root.has_requests or len(several) == 1:
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
    """Answer queued items until none is left. Several threads do so; each item is looked at
    once."""
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
    """Return a directory's partition by its name, renamed by Kafka or not. None if the name is
    no partition's."""
    try:
        renamed = parse_renamed_directory(name)
        return renamed[0] if renamed is not None else parse_partition_directory(name)
    except InvalidNameError:
        return None


# Look at roots without writing: their contents and their owners.


def observe_root(root: Root, names: Sequence[str]) -> LogDirectoryState:
    """Read what lies in a root, wherever it is."""
    meta = root.read(META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES)
    file = f"{root.location}/{META_PROPERTIES_FILE}"
    ids = read_topic_ids(map(root.locate, names))
    return LogDirectoryState(
        path=root.location,
        meta_properties=None if meta is None else parse_meta_properties(meta, file=file),
        clean_shutdown=read_marker(root),
        entries=tuple(
            map_over_root(root, lambda name: _observe_entry(root.locate(name), name, ids), names)
        ),
    )


def _observe_entry(location: str, name: str, ids: Mapping[str, str]) -> SubDirectory:
    kind, partition = classify_directory(name)
    if kind is DirectoryKind.FOREIGN:
        reason = "expected <topic>-<partition>, perhaps with Kafka's mark of a renamed directory"
        return SubDirectory(path=location, kind=kind, problem=reason)
    topic_id, problem = None, ""
    if kind is not DirectoryKind.CACHE and (topic_id := ids.get(location)) is None:
        try:
            topic_id = read_topic_id(location)
        except (PylogError, OSError) as error:
            problem = str(error)
    return SubDirectory(
        path=location, kind=kind, topic_partition=partition, topic_id=topic_id, problem=problem
    )


def read_marker(root: Root) -> CleanShutdown | None:
    """Return what the marker of a clean shutdown says, None without one.

    One that cannot be read is a marker all the same: Kafka asks only whether the file is there.
    """
    try:
        return read_clean_shutdown(root)
    except StorageError:
        return CleanShutdown()
