"""Read the topics from a log directory's own cluster metadata log."""

from pathlib import Path

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    read_cluster_metadata,
)
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_catalog import TopicCatalog, build_topic_catalog
from storage_core.roots.root import Root


def read_own_catalog(root: Root, *, node_id: int | None = None) -> TopicCatalog:
    """Return the topics of a root's own metadata; none without a copy.

    Args:
        root: The log directory.
        node_id: Whose settings count beside those of all nodes; None for nobody's.

    Raises:
        PylogError: The metadata cannot be read.
    """
    metadata = metadata_of(root)
    if metadata is None:
        return TopicCatalog()
    return build_topic_catalog(metadata=read_cluster_metadata(metadata), node_id=node_id)


def metadata_of(root: Root) -> Path | None:
    """Return a root's own metadata directory, None without one."""
    folder = None if root.has_manifests else local_path(root.location)
    metadata = None if folder is None else folder / CLUSTER_METADATA_DIRECTORY
    return metadata if metadata is not None and metadata.is_dir() else None
