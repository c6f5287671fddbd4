"""The config and id of each topic, and the source of each.

Sources, the weakest first: Kafka's defaults where the owner allows to assume them, configs that a
managed root carries since its ingest, configs that were exported from the cluster, the cluster's
own metadata, configs that were said explicitly (by name or glob), settings that override all.
Behind all of them stand the broker-wide settings. A topic that no source knows has no config, and
without a config nothing of it is modified.
Kafka's internal topics have Kafka's internal configs where the cluster itself does not say theirs:
what is said of many topics at once does not make their records go.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Final

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.topic_dump import TopicDump
from storage_core.config import (
    NEWEST_RELEASE,
    LogConfig,
    merge_broker_layers,
    merge_dynamic_configs,
)
from storage_core.config.values import CORDONED_KEY
from storage_core.errors import ConfigError
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from storage_core.json_values import OMITTED

# Read topic configs from a dump, for directories without cluster metadata.
#
# Either JSON of our own, or what Apache Kafka's own tool prints::
#
#     {"format": "pylog-topics", "version": 1, "taken_ms": 1767355200000,
#      "topics": {"orders": {"cleanup.policy": "compact", "retention.ms": "-1"}}}
#
#     $ kafka-configs.sh --bootstrap-server HOST:9092 --describe --entity-type topics --all
#     All configs for topic orders are:
#       cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:...}
#       ...
#
# With ``--all`` there is a line a key, with the value in force, wherever the cluster has it from;
# without, the heading begins with "Dynamic" and only the topic's own settings follow. What a topic
# has in force is what counts here: nothing else knows the settings of a cluster's brokers. Source
# of the text: ``org.apache.kafka.tools.ConfigCommand`` (Kafka 2.5 to 4.4).


_SEGMENT_BYTES: Final = "104857600"

# The configs of Kafka's own topics, as Kafka 4.4 creates them. A copy does not have them: a glob
# that assumes defaults would give the consumers' offsets, the states of transactions and the share
# groups' progress seven days to live.
# Sources: GroupCoordinatorService.groupMetadataTopicConfigs, TransactionCoordinator,
# ShareCoordinatorService.shareGroupStateTopicConfigs, TopicBasedRemoteLogMetadataManager. Sizes and
# minimums are the defaults of broker keys.
INTERNAL_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    CONSUMER_OFFSETS_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": _SEGMENT_BYTES,
    },
    TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
    # Kafka trims this one itself, by raising its log start.
    SHARE_STATE_TOPIC: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "retention.ms": "-1",
        "segment.bytes": _SEGMENT_BYTES,
    },
    REMOTE_LOG_TOPIC: {
        "cleanup.policy": "delete",
        "remote.storage.enable": "false",
        "retention.ms": "-1",
    },
}

# Settings that decide whether records are deleted; for an internal topic only its own config may
# set them.
_DELETING_KEYS: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
_GLOB_CHARACTERS: Final = frozenset("*?[")
# Under this name a cluster keeps the settings of all its brokers.
_ALL_BROKERS: Final = ""


def without_deleting_keys(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of many topics, without their deletion settings. The remaining
    settings hold for an internal topic, too."""
    return {key: text for key, text in settings.items() if key not in _DELETING_KEYS}


class TopicConfigSource(enum.StrEnum):
    """The source of a topic's config."""

    CLUSTER_METADATA = "cluster-metadata"
    IMPORTED_DUMP = "imported-dump"
    EXPLICIT = "explicit"
    ASSUMED = "assumed-defaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """Id and config of a topic."""

    topic: str
    topic_id: str | None  # its id as Kafka spells it, None if no source says it
    config_overrides: Mapping[str, str]  # its own settings, by topic key
    source: TopicConfigSource  # the origin of the topic; explicit configs may add to the cluster's
    # Settings that the cluster has and Kafka 4.4 does not know, sorted.
    ignored_keys: tuple[str, ...] = ()
    # When that was so, epoch milliseconds, if it was exported; None otherwise.
    taken_ms: int | None = None
    # How many replicas each partition has; empty where no source says it.
    replicas: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCatalog:
    """Ids and configs of a root's topics. A catalog is small and has only values, so Spark can
    send it to tasks."""

    # Configs of the cluster, or of its dump, by topic.
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    # Settings said explicitly, by name or glob; of several that match, globs count before names and
    # earlier ones before later ones, each overriding those before.
    explicit: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Globs of topics that have Kafka's defaults where no source knows them.
    assume_defaults: tuple[str, ...] = ()
    broker: Mapping[str, str] = field(default_factory=dict)  # broker-wide settings, by broker key
    # Topic keys that override what any source says.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Why it is unknown which broker-wide settings count; empty where it is known.
    broker_doubt: Annotated[str, OMITTED] = ""
    # Why the metadata that a broker has do not count: damage, or copies that differ; else empty. No
    # topic has a config then: what else says one may say only a part.
    metadata_problem: Annotated[str, OMITTED] = ""
    # The release of Kafka whose limits count.
    release: Annotated[str, OMITTED] = NEWEST_RELEASE

    def find(self, topic: str) -> TopicEntry | None:
        """Return a topic's id and config, None if no source has it."""
        if self.metadata_problem:
            return None
        entry = self.topics.get(topic)
        explicit = self._settings_by_name_or_glob(topic)
        overrides: Mapping[str, str] = {}
        if entry is not None:
            overrides, source = entry.config_overrides, entry.source
        elif explicit is not None:
            source = TopicConfigSource.EXPLICIT
        elif any(fnmatchcase(topic, glob) for glob in self.assume_defaults):
            source = TopicConfigSource.ASSUMED
        else:
            return None
        if topic in INTERNAL_TOPICS and source is not TopicConfigSource.CLUSTER_METADATA:
            overrides = {**INTERNAL_TOPICS[topic], **overrides}
        return TopicEntry(
            topic=topic,
            topic_id=None if entry is None else entry.topic_id,
            config_overrides={**overrides, **self.explicit_settings(topic)},
            source=source,
            ignored_keys=() if entry is None else entry.ignored_keys,
            taken_ms=None if entry is None else entry.taken_ms,
        )

    def explicit_settings(self, topic: str) -> dict[str, str]:
        """Return a topic's explicit settings, whatever its cluster has."""
        settings = self.settings
        if topic in INTERNAL_TOPICS:
            settings = without_deleting_keys(settings)
        return {**(self._settings_by_name_or_glob(topic) or {}), **settings}

    def topic_id(self, topic: str) -> str | None:
        """Return a topic's id, None if no source has it."""
        entry = self.topics.get(topic)
        return None if entry is None else entry.topic_id

    def has_other_replicas(self, partition: TopicPartition) -> bool | None:
        """Whether other brokers have replicas of a partition; None if unknown."""
        entry = self.topics.get(partition.topic)
        count = None if entry is None else entry.replicas.get(partition.partition)
        return None if count is None else count > 1

    def config_for(self, topic: str) -> LogConfig | None:
        """Return the effective config of a topic, None for an unknown topic."""
        entry = self.find(topic)
        if entry is None:
            return None
        if self.broker_doubt:
            raise ConfigError(CORDONED_KEY, None, self.broker_doubt)
        return LogConfig.from_topic_overrides(
            entry.config_overrides, broker=self.broker, release=self.release
        )

    def config_or_defaults(self, topic: str) -> LogConfig:
        """Return the effective config of a topic, else the broker's defaults. Use it only where
        a wrong guess loses nothing, such as loading a log."""
        return self.config_for(topic) or LogConfig.from_topic_overrides(
            self.settings, broker=self.broker, release=self.release
        )

    def _settings_by_name_or_glob(self, topic: str) -> dict[str, str] | None:
        globs: list[Mapping[str, str]] = [
            settings
            for name, settings in self.explicit.items()
            if _GLOB_CHARACTERS & set(name) and fnmatchcase(topic, name)
        ]
        names = [self.explicit[topic]] if topic in self.explicit else []
        if not globs and not names:
            return None
        if topic in INTERNAL_TOPICS:
            globs = [without_deleting_keys(settings) for settings in globs]
        return {key: text for settings in (*globs, *names) for key, text in settings.items()}


def build_topic_catalog(  # noqa: PLR0913  # one argument a source
    *,
    metadata: ClusterMetadata | None = None,
    dumps: Sequence[TopicDump] = (),
    node_id: int | None = None,
    explicit: Mapping[str, Mapping[str, str]] | None = None,
    assume_defaults: Sequence[str] = (),
    broker: Mapping[str, str] | None = None,
    broker_overrides: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    directories: Collection[str] | None = None,
    are_all_directories: bool = True,
    release: str = NEWEST_RELEASE,
) -> TopicCatalog:
    """Return the catalog of all sources together.

    As in Kafka, a broker's own setting in the cluster's metadata wins over one of all brokers
    there, which wins over the broker's file. What Kafka ignores of them does not count.

    Args:
        metadata: The cluster's metadata, None if there is none.
        dumps: Dumps of topics, for those missing from the metadata; the weakest first.
        node_id: The broker whose own settings count, None for none.
        explicit: Settings of topics said explicitly, by name or glob.
        assume_defaults: Globs of topics that may have Kafka's defaults.
        broker: Broker-wide settings of the broker's file, by broker key.
        broker_overrides: Broker-wide settings that win over all other ones.
        settings: Topic keys that override what any source says.
        directories: The broker's log directories, to which ``cordoned.log.dirs`` has to belong;
            None leaves it unchecked.
        are_all_directories: Whether these are surely all of log.dirs.
        release: The release of Kafka whose limits count, one of ``OTHER_TYPES``.
    """
    dynamic = {} if metadata is None else metadata.broker_configs
    counted = merge_dynamic_configs(
        broker or {},
        dynamic.get(_ALL_BROKERS, {}),
        {} if node_id is None else dynamic.get(str(node_id), {}),
        directories=directories,
        release=release,
    )
    doubt = ""
    if not are_all_directories and (refusal := counted.refusal) and refusal.key == CORDONED_KEY:
        doubt = (
            f"{refusal.value} in the cluster's metadata is {refusal.reason}, as far as these were "
            "named; without it there Kafka ignores the dynamic configs of this broker: name every "
            "log directory of it, or say them with --set log.dirs=DIR,DIR"
        )
    return TopicCatalog(
        topics={
            **{topic: entry for dump in dumps for topic, entry in _dump_entries(dump).items()},
            **({} if metadata is None else _cluster_entries(metadata)),
        },
        explicit=dict(explicit or {}),
        assume_defaults=tuple(assume_defaults),
        broker=merge_broker_layers(counted.settings, broker_overrides or {}),
        settings=dict(settings or {}),
        broker_doubt=doubt,
        release=release,
    )


def _dump_entries(dump: TopicDump) -> dict[str, TopicEntry]:
    return {
        topic: TopicEntry(
            topic=topic,
            topic_id=None,
            config_overrides=settings,
            source=TopicConfigSource.EXPLICIT
            if topic in dump.second_hand
            else TopicConfigSource.IMPORTED_DUMP,
            ignored_keys=dump.ignored_keys.get(topic, ()),
            taken_ms=dump.taken_ms,
        )
        for topic, settings in dump.topics.items()
    }


def _cluster_entries(metadata: ClusterMetadata) -> dict[str, TopicEntry]:
    return {
        topic.name: TopicEntry(
            topic=topic.name,
            topic_id=topic.topic_id,
            config_overrides=metadata.topic_configs.get(topic.name, {}),
            source=TopicConfigSource.CLUSTER_METADATA,
            ignored_keys=metadata.ignored_topic_keys.get(topic.name, ()),
            replicas={
                number: len(partition.replicas) for number, partition in topic.partitions.items()
            },
        )
        for topic in metadata.topics.values()
    }
