"""Look at roots without writing: their contents and their owners."""

from collections.abc import Sequence

from storage_core.catalog.log_directories import (
    DirectoryKind,
    LogDirectoryState,
    SubDirectory,
    classify_directory,
    read_topic_id,
)
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    CleanShutdown,
    parse_meta_properties,
    read_clean_shutdown,
)
from storage_core.errors import (
    PylogError,
    StorageError,
)
from storage_core.filenames import META_PROPERTIES_FILE
from storage_core.roots.open_root import map_over_root
from storage_core.roots.root import Root


def observe_root(root: Root, names: Sequence[str]) -> LogDirectoryState:
    """Read what lies in a root, wherever it is."""
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
