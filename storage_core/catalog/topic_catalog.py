"""The config and id of each topic, and the source of each.

Sources, the weakest first: Kafka's defaults where the owner allows to assume them, configs that a
managed root carries since its ingest, configs that were exported from the cluster, the cluster's
own metadata, configs that were said explicitly (by name or glob), settings that override all.
Behind all of them stand the broker-wide settings. A topic that no source knows has no config, and
without a config nothing of it is modified.
Kafka's internal topics have Kafka's internal configs where the cluster itself does not say theirs:
what is said of many topics at once does not make their records go.
"""

import codecs
import enum
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Final

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.config import (
    NEWEST_RELEASE,
    LogConfig,
    merge_broker_layers,
    merge_dynamic_configs,
)
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.values import CORDONED_KEY, render
from storage_core.errors import CheckpointError, ConfigError, InvalidNameError, ManifestError
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    validate_topic,
)
from storage_core.json_values import OMITTED, JsonFile, MismatchError, whole

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

# All settings of 20,000 topics as the tool prints them.
MAX_DUMP_BYTES: Final = 256 * 1024 * 1024
_LATEST_MS: Final = 253_402_300_799_999
_SHOWN: Final = 80

_JSON: Final = re.compile(rb"\s*\{")
_HEADING: Final = re.compile(r"(?:All|Dynamic) configs for topic (?P<topic>\S+) are:")
_KEY: Final = re.compile(r"  (?P<key>[^\s=]+)=")
# After the value anything may follow, up to the brace at the line's end.
_SYNONYMS: Final = re.compile(r" sensitive=(?:true|false) synonyms=\{")
# Java prints this for no value: it is unset, or secret.
_NO_VALUE: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDump:
    """The exported configs of a cluster's topics."""

    file: str
    # When it was exported, epoch milliseconds: as it says itself, else when the file was written.
    taken_ms: int
    # Settings of each topic that Kafka 4.4 knows; equal ones are one object.
    topics: Mapping[str, Mapping[str, str]]
    # Names of other settings, by topic, sorted.
    ignored_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Topics whose settings are not all the cluster's own: a person said some.
    second_hand: frozenset[str] = frozenset()


def parse_topic_dump(content: bytes, *, file: str, modified_ms: int) -> TopicDump:
    """Read exported configs of topics, JSON or the tool's text."""
    if len(content) > MAX_DUMP_BYTES:
        raise CheckpointError(file, 0, f"is larger than {MAX_DUMP_BYTES} bytes")
    content = content.removeprefix(codecs.BOM_UTF8)
    topics: Mapping[str, Mapping[str, str]]
    second_hand: tuple[str, ...] = ()
    if _JSON.match(content):
        with _malformed():
            document = _DUMP.parse(content, file)
        taken_ms, topics = document.taken_ms, document.topics
        second_hand = document.second_hand
        for topic in topics:
            _check_topic(topic, (), file, 0)
    else:
        taken_ms, topics = modified_ms, _parse_text(content, file)
    return replace(_dump(topics, file=file, taken_ms=taken_ms), second_hand=frozenset(second_hand))


def encode_topic_dump(
    topics: Mapping[str, Mapping[str, str]], *, taken_ms: int, second_hand: Collection[str]
) -> bytes:
    """Return configs of topics as JSON that ``parse_topic_dump`` reads."""
    in_order = {name: dict(sorted(topics[name].items())) for name in sorted(topics)}
    names = tuple(sorted(second_hand))
    return _DUMP.encode(_Document(taken_ms=taken_ms, topics=in_order, second_hand=names))


def _parse_text(content: bytes, file: str) -> dict[str, dict[str, str]]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(file, _line_of(error), f"is no UTF-8: {error.reason}") from error
    topics: dict[str, dict[str, str]] = {}
    settings: dict[str, str] | None = None
    # Not splitlines: a value may contain characters that end a line only for Python.
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        heading = _HEADING.fullmatch(line)
        setting = None if heading else _find_setting(line)
        if heading is not None:
            topic = heading["topic"]
            _check_topic(topic, topics, file, number)
            settings = topics[topic] = {}
        elif setting is None or settings is None:
            raise CheckpointError(
                file,
                number,
                'expected "All configs for topic NAME are:", or below it "  KEY=VALUE '
                f'sensitive=... synonyms={{...}}", found {line[:_SHOWN]!r}',
            )
        elif setting[0] in settings:
            raise CheckpointError(file, number, f"the key {setting[0][:_SHOWN]!r} stands twice")
        elif setting[1] != _NO_VALUE:
            settings[setting[0]] = setting[1]
    if not topics:
        raise CheckpointError(file, 0, "names no topic: expected what kafka-configs.sh prints")
    return topics


def _find_setting(line: str) -> tuple[str, str] | None:
    """Return a line's key and value, else None, in linear time."""
    key = _KEY.match(line)
    if key is None or not line.endswith("}"):
        return None
    synonyms = _SYNONYMS.search(line, key.end())
    return (key["key"], line[key.end() : synonyms.start()]) if synonyms else None


def _read_setting(value: object) -> str:
    if not isinstance(value, str | int):
        raise MismatchError("expected a text, a whole number or a truth")
    return render(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """Topic configs in JSON of our own, with their export time."""

    taken_ms: Annotated[int, whole(most=_LATEST_MS)]
    topics: Mapping[str, Mapping[str, Annotated[str, _read_setting]]]
    second_hand: Annotated[tuple[str, ...], OMITTED] = ()


_DUMP: Final = JsonFile(_Document, "pylog-topics")


@contextmanager
def _malformed() -> Iterator[None]:
    """Turn an error about JSON into the error of a small file."""
    try:
        yield
    except ManifestError as error:
        where = f"{error.field}: " if error.field else ""
        line = _line_of(error.__cause__)
        raise CheckpointError(error.file, line, f"{where}{error.reason}") from error


def _line_of(error: BaseException | None) -> int:
    """Return the 1-based line of a read error, 0 without one."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.count(b"\n", 0, error.start) + 1
    return error.lineno if isinstance(error, json.JSONDecodeError) else 0


def _check_topic(topic: str, topics: Collection[str], file: str, line: int) -> None:
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise CheckpointError(file, line, f"{topic[:_SHOWN]!r}: {error.reason}") from error
    if topic in topics:
        raise CheckpointError(file, line, f"the topic {topic} stands twice")


def _dump(topics: Mapping[str, Mapping[str, str]], *, file: str, taken_ms: int) -> TopicDump:
    """Keep the keys of Kafka 4.4, equal settings only once."""
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    configs: dict[str, Mapping[str, str]] = {}
    ignored: dict[str, tuple[str, ...]] = {}
    for topic, settings in topics.items():
        entries = tuple(sorted(item for item in settings.items() if item[0] in TOPIC_KEYS))
        configs[topic] = shared.setdefault(entries, dict(entries))
        others = tuple(sorted(settings.keys() - TOPIC_KEYS.keys()))
        if others:
            ignored[topic] = others
    return TopicDump(file=file, taken_ms=taken_ms, topics=configs, ignored_keys=ignored)


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
