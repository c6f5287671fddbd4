"""Gather evidence of unknown topic configs from the topics' files.

Read only, in this process: listings, small files, and the headers of the first batches of each log.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any, Final

from pylog_spark.exit_code import is_failed_look
from pylog_spark.options.arguments import said_as
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import PylogError
from storage_core.filenames import LOG_SUFFIX, kind_of
from storage_core.log.batch_search import GapWatch
from storage_core.log.settled_store import settle
from storage_core.reading.inspection import (
    RootView,
    group_by_broker,
    inspect_partition,
    inspect_root,
)
from storage_core.records.reader import scan_headers
from storage_core.roots.open_root import map_over_root
from storage_core.store import open_store

# Of the oldest records, which have been through most rounds of a cleaner.
_WINDOW_BYTES: Final = 1 << 20

# Names that programs of Kafka's own and of its surroundings give to topics, and the policy that
# they create them with. Sources: Kafka Streams InternalTopicManager, Connect's DistributedConfig
# and its documentation, Confluent Schema Registry's KafkaStore.
_POLICIES_BY_NAME: Final = (
    ("*-changelog", "compact", "Kafka Streams compacts its changelogs"),
    ("*-repartition", "delete", "Kafka Streams deletes from its repartition topics by itself"),
    ("connect-configs", "compact", "Kafka Connect compacts it"),
    ("connect-offsets", "compact", "Kafka Connect compacts it"),
    ("connect-status", "compact", "Kafka Connect compacts it"),
    ("_schemas", "compact", "a schema registry compacts it"),
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEvidence:
    """What files tell of one topic."""

    topic: str
    rows: Sequence[Row]
    with_gaps: int

    @property
    def with_checkpoint(self) -> int:
        """How many partitions the cleaner checkpoint has."""
        return sum(row["cleaner_checkpoint"] is not None for row in self.rows)

    @property
    def deleted_below(self) -> int:
        """How many partitions begin above offset 0."""
        return sum((row["log_start_offset"] or 0) > 0 for row in self.rows)

    def guess(self) -> tuple[str | None, str]:
        """Guess the cleanup policy from the files; return it with reasons. The policy is None
        where the files speak for neither."""
        if self.topic in INTERNAL_TOPICS:
            policy = INTERNAL_TOPICS[self.topic]["cleanup.policy"]
            return policy, "by its name: Kafka creates it so"
        for glob, policy, why in _POLICIES_BY_NAME:
            if fnmatchcase(self.topic, glob):
                return policy, f"by its name: {why}"
        was_compacted = self.with_checkpoint or self.with_gaps
        if was_compacted and self.deleted_below:
            return "[compact, delete]", "it was compacted, and logs begin above offset 0"
        if was_compacted:
            return "compact", "it was compacted before"
        if self.deleted_below:
            return "delete", "logs begin above offset 0, and none was compacted"
        return None, "nothing was compacted or deleted as far as files tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEvidence:
    """What files tell of the topics of some roots."""

    unknown: Sequence[TopicEvidence]
    metadata_count: int  # how many topics have theirs in the cluster's metadata
    notes: Sequence[str] = field(default_factory=tuple)
    # Where the configs may be, root by root, that no file of these says.
    elsewhere: Sequence[str] = field(default_factory=tuple)


def gather_evidence(roots: Sequence[str], topics: TopicFilter, *, now_ms: int) -> ConfigEvidence:
    """Look at the topics of some roots whose configs nobody says.

    Args:
        roots: Paths and URLs of log directories, copies and managed roots.
    """
    rows: dict[str, list[Row]] = {}
    gaps: dict[str, int] = {}
    metadata_topics: set[str] = set()
    notes: list[str] = []
    elsewhere: list[str] = []
    views = []
    for root in roots:
        with said_as("ROOT", root):
            views.append(inspect_root(root))
    for view in chain.from_iterable(group_by_broker(views)):
        notes += view.row["errors"]
        elsewhere += filter(None, [view.metadata_note])
        if view.catalog.metadata_problem:
            continue  # nothing that is said of its topics counts before that is mended
        partitions = list(_partitions(view, topics))
        metadata_topics |= {
            topic for topic, _ in partitions if view.catalog.find(topic) is not None
        }
        entries = [entry for topic, entry in partitions if topic not in metadata_topics]
        inspect = partial(inspect_partition, view, now_ms=now_ms)
        looked_at = map_over_root(view.files, inspect, entries)
        for row, has_gaps in zip(
            looked_at, map_over_root(view.files, _has_gaps, entries), strict=True
        ):
            rows.setdefault(row["topic"], []).append(row)
            gaps[row["topic"]] = gaps.get(row["topic"], 0) + has_gaps
            if is_failed_look(row["error_class"]):
                notes.append(f"{row['directory']}: {row['error']}")
    unknown = [
        TopicEvidence(topic=topic, rows=own, with_gaps=gaps[topic])
        for topic, own in sorted(rows.items())
        if topic not in metadata_topics
    ]
    return ConfigEvidence(
        unknown=unknown,
        metadata_count=len(metadata_topics),
        notes=list(dict.fromkeys(notes)),
        elsewhere=elsewhere,
    )


def _partitions(view: RootView, topics: TopicFilter) -> Iterator[tuple[str, SubDirectory]]:
    for entry in view.entries:
        partition = entry.topic_partition
        if partition is None or entry.kind is not DirectoryKind.PARTITION:
            continue
        if topics.admits(partition.topic):
            yield partition.topic, entry


def _has_gaps(entry: SubDirectory) -> bool:
    """Return whether a log's oldest records have gaps, as after compaction."""
    watch = GapWatch()
    try:
        store = settle(open_store(entry.path))
        logs = [file for file in store.list_files() if kind_of(file.name) == LOG_SUFFIX]
        first = min((log for log in logs if log.size_bytes), key=lambda log: log.name, default=None)
        if first is None:
            return False
        with closing(store.open_file(first.name)) as reader:
            for window in scan_headers(reader, window_bytes=_WINDOW_BYTES):
                watch.add(window.batches)
                break
    except PylogError:
        return False  # the partition's own row carries the error
    return watch.is_compacted
