"""Read the topics that a log directory knows of itself.

A broker's directory, or a copy of one, may have its cluster's metadata log; a managed root carries
configs.
"""

import os
import stat
from collections.abc import Iterable, Mapping
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
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource, build_topic_catalog
from storage_core.catalog.topic_dump import (
    MAX_DUMP_BYTES,
    TopicDump,
    encode_topic_dump,
    parse_topic_dump,
)
from storage_core.config import Origin, effective_settings
from storage_core.errors import (
    CheckpointError,
    ConfigError,
    CorruptClusterMetadataError,
    ObjectNotFoundError,
    PartitionNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.filenames import TOPIC_CONFIGS_FILE, log_file, offset_of, parse_cluster_snapshot
from storage_core.local_files import ROOT_USER, open_folder, open_in
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.root import Root
from storage_core.store import LogStore, ObjectStore, open_object_store, open_store
from storage_core.store.tier_archive import names_archive, parse_archive
from storage_core.temporary_folder import temporary_folder

# Carry the configs of topics in a managed root.
#
# They lie in ``pylog-topics.json``, as the last ingest found them: a dump of topics
# (``catalog/topic_dump.py``) with the values in force.


def read_carried_configs(location: str) -> TopicDump | None:
    """Return the topic configs that a managed root carries; None without.

    Args:
        location: Path or URL of the managed root.
    """
    objects = open_object_store(location)
    return _read(objects)[0]


def carry_configs(
    objects: ObjectStore, catalog: TopicCatalog, topics: Iterable[str], *, now_ms: int
) -> tuple[int, int]:
    """Write the configs of topics into a managed root.

    The caller holds the root's lease. Topics that the catalog does not know keep what the root
    carried of them before; the time of the file is then as old as theirs may be.

    Args:
        catalog: What an ingest knows of the mirror's topics.

    Returns:
        (known, unknown): how many topics the root carries a config of now, and of how many not.
    """
    names = set(topics)
    before, etag = _read(objects)
    fresh = {name: settings for name in names if (settings := _in_force(catalog, name)) is not None}
    former = {} if before is None else before.topics
    carried = {**former, **fresh}
    if fresh:
        is_older = before is not None and bool(former.keys() - fresh.keys())
        taken_ms = before.taken_ms if is_older and before is not None else now_ms
        second_hand = {name for name in fresh if _is_second_hand(catalog, name)}
        second_hand |= set() if before is None else before.second_hand - fresh.keys()
        content = encode_topic_dump(carried, taken_ms=taken_ms, second_hand=second_hand)
        if etag:
            objects.put_if_match(TOPIC_CONFIGS_FILE, content, etag)
        else:
            objects.put_if_absent(TOPIC_CONFIGS_FILE, content)
    return len(carried), len(names - carried.keys())


def _in_force(catalog: TopicCatalog, topic: str) -> Mapping[str, str] | None:
    """Return a topic's settings and its brokers'; None if unknown. A managed root has no broker."""
    entry = catalog.find(topic)
    if entry is None or entry.source is TopicConfigSource.ASSUMED:
        return None
    try:
        settings = effective_settings(entry.config_overrides, broker=catalog.broker)
    except ConfigError:
        return entry.config_overrides  # each run says what is wrong with them
    of_broker = {each.key: each.value for each in settings if each.origin is Origin.BROKER}
    return {**of_broker, **entry.config_overrides}


def _is_second_hand(catalog: TopicCatalog, topic: str) -> bool:
    """Whether a person said some of a topic's settings: retention doubts these."""
    entry = catalog.find(topic)
    is_said = entry is not None and entry.source is TopicConfigSource.EXPLICIT
    return is_said or bool(catalog.explicit_settings(topic))


def _read(objects: ObjectStore) -> tuple[TopicDump | None, str]:
    """Return what a managed root carries, and the tag of that version."""
    file = f"{objects.url}/{TOPIC_CONFIGS_FILE}"
    _require_owner(objects.url)
    try:
        content, etag = objects.get_with_etag(TOPIC_CONFIGS_FILE, limit_bytes=MAX_DUMP_BYTES)
    except ObjectNotFoundError:
        return None, ""
    try:
        # It says its time itself.
        return parse_topic_dump(content, file=file, modified_ms=0), etag
    except CheckpointError as error:
        way_out = "remove it, and the next `pylog ingest` writes it anew"
        raise CheckpointError(error.file, error.line, f"{error.reason}; {way_out}") from error


def _require_owner(location: str) -> None:
    """Refuse a local file that is neither ours nor the root's owner's."""
    folder = local_path(location)
    if folder is None:
        return
    path = folder / TOPIC_CONFIGS_FILE
    try:
        with open_folder(folder, may_be_link=True) as opened:
            around = os.fstat(opened)
            descriptor = open_in(opened, TOPIC_CONFIGS_FILE)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
    facts = os.fstat(descriptor)
    os.close(descriptor)
    if facts.st_uid not in {os.geteuid(), ROOT_USER, around.st_uid}:
        raise StorageError(
            str(path),
            f"belongs to user {facts.st_uid}, expected user {os.geteuid()} or the folder's owner: "
            "configs of somebody else decide nothing here",
        )
    if facts.st_mode & stat.S_IWOTH:
        raise StorageError(
            str(path), "may be written by everybody: `chmod o-w` makes it count again"
        )


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
    files that count are fetched first. With a tier it lies on a broker's disk."""
    if names_archive(root.location):
        disks = (BrokerRoot(Path(disk)) for disk in parse_archive(root.location).with_local)
        return next(filter(None, map(read_own_metadata, disks)), None)
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
