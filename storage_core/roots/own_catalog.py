"""Read the topics that a log directory knows of itself.

A broker's directory, or a copy of one, may have its cluster's metadata log; a managed root carries
configs.
"""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_catalog import TopicCatalog, build_topic_catalog
from storage_core.errors import (
    CorruptClusterMetadataError,
    PartitionNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.filenames import log_file, offset_of, parse_cluster_snapshot
from storage_core.roots.carried_configs import read_carried_configs
from storage_core.roots.root import Root
from storage_core.store import LogStore, open_store
from storage_core.temporary_folder import temporary_folder

_CHUNK_BYTES: Final = 8 << 20


def read_own_catalog(root: Root, *, node_id: int | None = None) -> TopicCatalog:
    """Return the topics that a root itself knows.

    Args:
        node_id: Whose settings count beside those of all nodes; None for nobody's.
    """
    if root.has_manifests:
        carried = read_carried_configs(root.location)
        return build_topic_catalog(dumps=() if carried is None else (carried,))
    metadata = read_own_metadata(root)
    if metadata is None:
        return TopicCatalog()
    return build_topic_catalog(metadata=metadata, node_id=node_id)


def read_own_metadata(root: Root) -> ClusterMetadata | None:
    """Return a root's own copy of the cluster's metadata, else None. Of a copy at a URL the
    files that count are fetched first."""
    metadata = metadata_of(root)
    if metadata is not None:
        return read_cluster_metadata(metadata)
    if root.has_manifests or local_path(root.location) is not None:
        return None
    return _read_remote(root.locate(CLUSTER_METADATA_DIRECTORY))


def metadata_of(root: Root) -> Path | None:
    """Return a root's own metadata directory, None without a local one."""
    folder = None if root.has_manifests else local_path(root.location)
    metadata = None if folder is None else folder / CLUSTER_METADATA_DIRECTORY
    return metadata if metadata is not None and metadata.is_dir() else None


def _read_remote(location: str) -> ClusterMetadata | None:
    try:
        store = open_store(location)
        names = list(_names_that_count(file.name for file in store.list_files()))
    except PartitionNotFoundError:
        return None
    if not names:
        return None
    try:
        with temporary_folder("pylog-metadata-") as folder:
            for name in names:
                _fetch(store, name, folder)
            try:
                return read_cluster_metadata(folder)
            except PylogError as error:
                reason = str(error).replace(str(folder), location)
                raise CorruptClusterMetadataError(location, None, reason) from error
    except OSError as error:
        raise StorageError(location, str(error)) from error


def _names_that_count(names: Iterable[str]) -> Iterable[str]:
    """Yield the newest snapshot, and the segments behind it."""
    snapshots: dict[str, tuple[int, int]] = {}
    bases: list[int] = []
    for name in names:
        parsed, base = parse_cluster_snapshot(name), offset_of(name)
        if parsed is not None:
            snapshots[name] = parsed
        elif base is not None and name == log_file(base):
            bases.append(base)
    end = 0
    if snapshots:
        newest = max(snapshots, key=lambda name: snapshots[name])
        end = snapshots[newest][0]
        yield newest
    floor = max((base for base in bases if base <= end), default=0)
    yield from (log_file(base) for base in sorted(bases) if base >= floor)


def _fetch(store: LogStore, name: str, folder: Path) -> None:
    buffer = np.empty(_CHUNK_BYTES, np.uint8)
    with closing(store.open_file(name)) as reader, (folder / name).open("wb") as file:
        position = 0
        while count := reader.read_into(position, buffer):
            file.write(buffer[:count].tobytes())
            position += count
