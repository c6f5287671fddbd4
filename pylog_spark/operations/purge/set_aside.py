"""Describe ``-stray`` and ``-delete`` directories: bytes and present use. The lines say whether
anybody misses them.

A broker sets a log aside where the cluster's metadata does not give the partition to it. The same
metadata says whether the topic lives, and which brokers have that partition.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.metadata_image import TopicMetadata
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import PylogError
from storage_core.filenames import TopicPartition
from storage_core.reading.inspection import RootView, group_by_broker
from storage_core.store import open_store

_SET_ASIDE: Final = frozenset({DirectoryKind.STRAY, DirectoryKind.DELETE})
# So many partitions of a line are named.
_MOST_NAMED: Final = 5


def describe_set_aside(views: Sequence[RootView], topics: TopicFilter) -> Iterator[str]:
    """Yield one line per group of a topic's directories. The directories of a group share one
    answer.

    Args:
        views: Log directories; those of one broker share what its metadata says.
    """
    for broker in group_by_broker(views):
        logs = {
            (entry.topic_id, entry.topic_partition): entry.path
            for view in broker
            for entry in view.entries
            if entry.kind is DirectoryKind.PARTITION
        }
        for view in broker:
            yield from _describe(view, logs, topics)


def _describe(
    view: RootView,
    logs: Mapping[tuple[str | None, TopicPartition | None], str],
    topics: TopicFilter,
) -> Iterator[str]:
    entries = [
        (entry, entry.topic_partition)
        for entry in view.entries
        if entry.kind in _SET_ASIDE
        and entry.topic_partition is not None
        and topics.admits(entry.topic_partition.topic)
    ]
    metadata_topics = None
    if entries and view.metadata is not None:
        with suppress(PylogError):
            metadata_topics = read_cluster_metadata(view.metadata).topics
    node = None if view.properties is None else view.properties.node_id
    alike: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for entry, name in entries:
        with suppress(PylogError):
            size = sum(file.size_bytes for file in open_store(entry.path).list_files())
            owner = _owner(name, entry.topic_id, metadata_topics, node, logs)
            alike[entry.kind.value, name.topic, owner].append((name.partition, size))
    for (kind, topic, owner), directories in sorted(alike.items()):
        numbers = sorted(number for number, _ in directories)
        names = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = ", ..." if len(numbers) > _MOST_NAMED else ""
        size = sum(size for _, size in directories)
        yield (
            f"{view.row['root']}: {topic}, {len(numbers)} x -{kind} (partition {names}{more}), "
            f"{size:,} bytes: {owner}"
        )


def _owner(
    name: TopicPartition,
    topic_id: str | None,
    metadata_topics: Mapping[str, TopicMetadata] | None,
    node: int | None,
    logs: Mapping[tuple[str | None, TopicPartition | None], str],
) -> str:
    """Return who has the partition of a directory, or what tells."""
    if metadata_topics is None or topic_id is None:
        also = (
            "name its directory with __cluster_metadata-0, too, or "
            if metadata_topics is None
            else ""
        )
        return (
            "whether anybody misses it only the cluster's metadata can tell; "
            f"{also}ask a running cluster: kafka-topics.sh --describe --topic {name.topic}"
        )
    topic = metadata_topics.get(topic_id)
    if topic is None:
        return f"the metadata has no topic {topic_id}: it was deleted"
    record = topic.partitions.get(name.partition)
    if record is None:
        return "the topic lives, and has no such partition"
    if node in record.replicas:
        log = logs.get((topic_id, name))
        if log is None:
            return f"it is assigned to this node ({node}), and no log here has its place: keep it"
        return f"it is assigned to this node ({node}), and {log} has its place: compare the two"
    nodes = ", ".join(map(str, record.replicas))
    return f"it lives on node {nodes}: look there before this is removed"
