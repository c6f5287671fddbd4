"""Log directories of several brokers, told from those of one."""

from collections.abc import Sequence
from pathlib import Path

from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.errors import PylogError
from storage_core.filenames import TopicPartition
from storage_core.roots.open_root import LogRoot, open_root


def split_by_broker(roots: Sequence[LogRoot]) -> dict[int, list[LogRoot]]:
    """Return the log directories by node id where they are of several brokers; else nothing.

    They are if each says whose it is, all of one cluster, and two nodes have a replica of the same
    partition: one broker has one in a single directory. Otherwise one broker has a directory that
    is not its own, which is a finding.

    Args:
        roots: Local log directories.
    """
    by_broker: dict[int, list[LogRoot]] = {}
    clusters = set()
    for root in roots:
        meta = owner_of(root)
        if meta is None or meta.node_id is None:
            return {}
        clusters.add(meta.cluster_id)
        by_broker.setdefault(meta.node_id, []).append(root)
    if len(clusters) > 1:
        return {}
    seen: set[TopicPartition] = set()
    for own in by_broker.values():
        replicas = {each for root in own for each in _replicas(root)}
        if seen & replicas:
            return dict(sorted(by_broker.items()))
        seen |= replicas
    return {}


def owner_of(root: LogRoot) -> MetaProperties | None:
    """Return whose a log directory is, None where no file says it."""
    try:
        return read_meta_properties(root.location)
    except PylogError:
        return None  # which is a finding


def _replicas(root: LogRoot) -> set[TopicPartition]:
    path = local_path(root.location)
    if path is None:
        return set()
    found = map(classify_directory, open_root(Path(path), role=root.role).directories())
    return {
        partition
        for kind, partition in found
        if kind is DirectoryKind.PARTITION and partition is not None
    }
