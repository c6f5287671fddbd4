"""Look at roots: what lies in each of them, and whose they are; nothing is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.catalog.log_directories import (
    DirectoryKind,
    LogDirectoryState,
    SubDirectory,
    classify_directory,
    read_topic_id,
)
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    parse_meta_properties,
    read_clean_shutdown,
    validate_one_broker,
)
from storage_core.errors import (
    CheckpointError,
    InconsistentDirectoriesError,
    PylogError,
    StorageError,
)
from storage_core.filenames import META_PROPERTIES_FILE
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import map_over_root
from storage_core.roots.root import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectories:
    """What lies in several log directories.

    Attributes:
        states: Those that could be read, in the order given.
        failed: Why the others could not, by path.
    """

    states: tuple[LogDirectoryState, ...]
    failed: Mapping[str, str]


def observe_log_directories(paths: Sequence[Path]) -> LogDirectories:
    """Read what lies in the log directories of one broker.

    Args:
        paths: At least one.

    Returns:
        Every directory; one that cannot be read is set aside with its reason.

    Raises:
        InconsistentDirectoriesError: Two paths lead to the same directory, or the directories
            are not one broker's.
        InconsistentClusterIdError: The directories belong to different clusters.
        StorageError: None of them can be read.
    """
    states: list[LogDirectoryState] = []
    failed: dict[str, str] = {}
    seen: dict[Path, Path] = {}
    for path in paths:
        real = path.resolve()
        if real in seen:
            reason = f"is the same directory as {seen[real]}"
            raise InconsistentDirectoriesError(str(path), reason)
        seen[real] = path
        try:
            states.append(observe_log_directory(path))
        except (StorageError, CheckpointError) as error:
            failed[str(path)] = str(error)
    if not states:
        reasons = "; ".join(failed.values())
        raise StorageError(", ".join(map(str, paths)), f"no log directory can be read: {reasons}")
    validate_one_broker(
        {state.path: state.meta_properties for state in states if state.meta_properties is not None}
    )
    return LogDirectories(states=tuple(states), failed=failed)


def observe_log_directory(path: Path) -> LogDirectoryState:
    """Read what lies in one log directory.

    Raises:
        StorageError: It is no directory that can be read.
        CheckpointError: Its ``meta.properties`` is malformed.
    """
    root = BrokerRoot(path)
    return observe_root(root, root.directories())


def observe_root(root: Root, names: Sequence[str]) -> LogDirectoryState:
    """Read what lies in a root, wherever it is.

    Args:
        root: The root.
        names: Its sub-directories.

    Raises:
        StorageError: A file of it cannot be read.
        CheckpointError: Its ``meta.properties`` is malformed.
    """
    meta = root.read(META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES)
    file = f"{root.location}/{META_PROPERTIES_FILE}"
    return LogDirectoryState(
        path=root.location,
        meta_properties=None if meta is None else parse_meta_properties(meta, file=file),
        clean_shutdown=read_marker(root),
        entries=tuple(
            map_over_root(root, lambda name: _observe_entry(root.locate(name), name), names)
        ),
    )


def agreed_broker_epoch(directories: LogDirectories) -> int:
    """Return the epoch of the broker that shut all the directories down, if they agree on one.

    Returns:
        UNKNOWN_BROKER_EPOCH if a directory failed, has no marker, or says another epoch.
    """
    epochs = {
        UNKNOWN_BROKER_EPOCH if state.clean_shutdown is None else state.clean_shutdown.broker_epoch
        for state in directories.states
    }
    return epochs.pop() if len(epochs) == 1 and not directories.failed else UNKNOWN_BROKER_EPOCH


def _observe_entry(location: str, name: str) -> SubDirectory:
    kind, partition = classify_directory(name)
    if kind is DirectoryKind.FOREIGN:
        reason = "expected <topic>-<partition>, perhaps with Kafka's mark of a renamed directory"
        return SubDirectory(path=location, kind=kind, problem=reason)
    topic_id, problem = None, ""
    if kind is not DirectoryKind.CACHE:
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
