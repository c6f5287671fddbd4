"""The state that a run of metadata records adds up to.

Later records of a thing replace or change earlier ones. What lies between the begin and the end of
a metadata transaction takes effect at its end, or never.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from storage_core.catalog.metadata_records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Fencing,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    SkippedRecord,
    TopicRecord,
    TransactionMark,
    TransactionRecord,
    UnregisterBrokerRecord,
)
from storage_core.config.broker_config import BROKER_KEYS
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY, TOPIC_KEYS
from storage_core.errors import CorruptClusterMetadataError, InvalidNameError
from storage_core.filenames import validate_topic

# Only these settings are kept: any other one may be a secret, and none of them concerns us.
_KEPT_BROKER_KEYS: Final = TOPIC_KEY_OF_BROKER_KEY.keys() | CLEANER_KEYS.keys() | BROKER_KEYS.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic.

    Attributes:
        name: Its name.
        topic_id: Its id, as Kafka spells it.
        partitions: Its partitions, by number.
    """

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionRecord]


@dataclass(slots=True)
class _Topic:
    name: str
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)


@dataclass(slots=True)
class MetadataImage:
    """What the records so far add up to; `apply` takes the next one.

    Attributes:
        topic_configs: Settings of topics that Kafka 4.4 knows, by topic name.
        ignored_topic_keys: Names of the other settings of topics, by topic name.
        broker_configs: Broker-wide settings that concern us, by node id as text; the empty text
            holds those of all nodes.
        brokers: Registered brokers, by node id.
        feature_levels: Levels of features, by name.
        skipped: Numbers of records of types that are not decoded, by type; of unknown types
            under the negative number.
    """

    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    ignored_topic_keys: dict[str, set[str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers: dict[int, RegisterBrokerRecord] = field(default_factory=dict)
    feature_levels: dict[str, int] = field(default_factory=dict)
    skipped: Counter[int] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    _topics: dict[str, _Topic] = field(default_factory=dict)
    _transaction: list[tuple[MetadataRecord, str, int]] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun that no record so far has ended."""
        return self._transaction is not None

    def topics(self) -> dict[str, TopicMetadata]:
        """Return the topics by id."""
        return {
            topic_id: TopicMetadata(
                name=topic.name, topic_id=topic_id, partitions=dict(topic.partitions)
            )
            for topic_id, topic in self._topics.items()
        }

    def apply(self, record: MetadataRecord, *, file: str, offset: int) -> None:
        """Take the next record.

        Args:
            record: The record.
            file: Name of the file it comes from, for errors.
            offset: Its offset, for errors.

        Raises:
            CorruptClusterMetadataError: It contradicts what was before: a topic or partition that
                does not exist, a transaction that did not begin or did not end.
        """
        if isinstance(record, TransactionRecord):
            self._mark_transaction(record.mark, file, offset)
        elif self._transaction is not None:
            self._transaction.append((record, file, offset))
        else:
            self._replay(record, file, offset)

    def _mark_transaction(self, mark: TransactionMark, file: str, offset: int) -> None:
        pending, begins = self._transaction, mark is TransactionMark.BEGIN
        if begins != (pending is None):
            found = "a second begin" if begins else f"the {mark.value} without the begin"
            raise CorruptClusterMetadataError(file, offset, f"{found} of a transaction")
        self._transaction = [] if begins else None
        if mark is TransactionMark.END:
            for record, record_file, record_offset in pending or ():
                self._replay(record, record_file, record_offset)

    def _replay(self, record: MetadataRecord, file: str, offset: int) -> None:  # noqa: C901, PLR0912 - one branch a record type, each one line
        try:
            match record:
                case TopicRecord():
                    self._topics[record.topic_id] = _Topic(validate_topic(record.name))
                case RemoveTopicRecord():
                    self._remove_topic(record)
                case PartitionRecord():
                    self._topics[record.topic_id].partitions[record.partition] = record
                case PartitionChangeRecord():
                    self._change_partition(record)
                case ClearElrRecord():
                    self._clear_eligible_leader_replicas(record)
                case ConfigRecord(resource_type=ResourceType.TOPIC):
                    self._configure_topic(record)
                case ConfigRecord(resource_type=ResourceType.BROKER):
                    self._configure_broker(record)
                case FeatureLevelRecord():
                    self._set_feature_level(record)
                case RegisterBrokerRecord():
                    self.brokers[record.broker_id] = record
                case UnregisterBrokerRecord():
                    del self.brokers[record.broker_id]
                case BrokerRegistrationChangeRecord():
                    self._change_broker(record)
                case SkippedRecord():
                    counter = self.skipped if record.is_known else self.unknown
                    counter[record.api_key] += 1
        except KeyError as error:
            reason = f"a {type(record).__name__} of something that does not exist: {error}"
            raise CorruptClusterMetadataError(file, offset, reason) from error
        except InvalidNameError as error:
            raise CorruptClusterMetadataError(file, offset, str(error)) from error

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.pop(record.topic_id)
        self.topic_configs.pop(topic.name, None)
        self.ignored_topic_keys.pop(topic.name, None)

    def _change_partition(self, change: PartitionChangeRecord) -> None:
        partitions = self._topics[change.topic_id].partitions
        before = partitions[change.partition]
        changed: dict[str, Any] = {
            name: value for name in _CHANGEABLE if (value := getattr(change, name)) is not None
        }
        changed["partition_epoch"] = before.partition_epoch + 1
        if change.leader != NO_LEADER_CHANGE:
            changed["leader"] = change.leader
            changed["leader_epoch"] = before.leader_epoch + 1
        partitions[change.partition] = dataclasses.replace(before, **changed)

    def _clear_eligible_leader_replicas(self, record: ClearElrRecord) -> None:
        for topic in self._topics.values():
            if record.topic in {"", topic.name}:
                for number, partition in topic.partitions.items():
                    topic.partitions[number] = _without_eligible_leader_replicas(partition)

    def _configure_topic(self, record: ConfigRecord) -> None:
        topic = record.resource_name
        if record.key in TOPIC_KEYS:
            _configure(self.topic_configs, topic, record)
        elif record.value is None:
            self.ignored_topic_keys.get(topic, set()).discard(record.key)
        else:
            self.ignored_topic_keys.setdefault(topic, set()).add(record.key)

    def _configure_broker(self, record: ConfigRecord) -> None:
        if record.key in _KEPT_BROKER_KEYS:
            _configure(self.broker_configs, record.resource_name, record)

    def _set_feature_level(self, record: FeatureLevelRecord) -> None:
        if record.level == 0:
            self.feature_levels.pop(record.name, None)
        else:
            self.feature_levels[record.name] = record.level

    def _change_broker(self, change: BrokerRegistrationChangeRecord) -> None:
        before = self.brokers[change.broker_id]
        changed: dict[str, Any] = {}
        if change.fencing != Fencing.NONE:
            changed["fenced"] = change.fencing == Fencing.FENCE
        if change.log_directories:
            changed["log_directories"] = change.log_directories
        if change.cordoned_log_directories is not None:
            changed["cordoned_log_directories"] = change.cordoned_log_directories
        self.brokers[change.broker_id] = dataclasses.replace(before, **changed)


_CHANGEABLE: Final = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "eligible_leader_replicas",
    "last_known_eligible_leader_replicas",
    "directories",
)


def _configure(configs: dict[str, dict[str, str]], name: str, record: ConfigRecord) -> None:
    """Set or remove one setting; a resource without any is not in the map."""
    if record.value is not None:
        configs.setdefault(name, {})[record.key] = record.value
        return
    settings = configs.get(name, {})
    settings.pop(record.key, None)
    if not settings:
        configs.pop(name, None)


def _without_eligible_leader_replicas(partition: PartitionRecord) -> PartitionRecord:
    if not partition.eligible_leader_replicas and not partition.last_known_eligible_leader_replicas:
        return partition
    return dataclasses.replace(
        partition,
        eligible_leader_replicas=(),
        last_known_eligible_leader_replicas=(),
        partition_epoch=partition.partition_epoch + 1,
    )
