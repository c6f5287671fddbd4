"""Read the topics from a log directory's own cluster metadata log."""

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
    folder = local_path(root.location)
    metadata = None if folder is None else folder / CLUSTER_METADATA_DIRECTORY
    if metadata is None or root.has_manifests or not metadata.is_dir():
        return TopicCatalog()
    return build_topic_catalog(metadata=read_cluster_metadata(metadata), node_id=node_id)
