"""Metadata records about logs on disk, and the state after them.

Later records of a thing replace or change earlier ones. What lies between the begin and the end of
a metadata transaction takes effect at its end, or never.
"""

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from storage_core.config.broker_config import BROKER_KEYS
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY, TOPIC_KEYS
from storage_core.config.settings import CLEANER_KEYS
from storage_core.errors import CorruptClusterMetadataError, InvalidNameError, MalformedMessageError
from storage_core.filenames import validate_topic
from storage_core.messages.fields import FieldReader
from storage_core.messages.internal_records import encode_metadata_record, read_metadata_frame
from storage_core.messages.metadata_records import METADATA_RECORDS

NO_LEADER_CHANGE: Final = -2
# Only these settings are kept: any other one may be a secret, and none of them concerns us.
_KEPT_BROKER_KEYS: Final = TOPIC_KEY_OF_BROKER_KEY.keys() | CLEANER_KEYS.keys() | BROKER_KEYS.keys()
_CHANGEABLE: Final = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "eligible_leader_replicas",
    "last_known_eligible_leader_replicas",
    "directories",
)


class ResourceType(enum.IntEnum):
    """The kinds of resource in a ConfigRecord, without unneeded ones."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class TransactionMark(enum.Enum):
    """A step of a metadata transaction: its begin, end or abort. Records between BEGIN and END
    count as one record."""

    BEGIN = "begin"
    END = "end"
    ABORT = "abort"


class Fencing(enum.IntEnum):
    """The change of a broker's fence by a BrokerRegistrationChangeRecord."""

    UNFENCE = -1
    NONE = 0
    FENCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic was deleted, with its config."""

    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition as it is now."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]  # node ids, the preferred leader first
    isr: tuple[int, ...]  # node ids of the in-sync replicas
    removing_replicas: tuple[int, ...]  # node ids that leave
    adding_replicas: tuple[int, ...]  # node ids that come
    leader: int  # node id, -1 for none
    leader_epoch: int  # number of the leader's reign
    partition_epoch: int  # number of changes of the partition so far
    directories: tuple[str, ...] = ()  # directory id of each replica; empty where none is known
    eligible_leader_replicas: tuple[int, ...] = ()  # node ids; empty where none is known
    last_known_eligible_leader_replicas: tuple[int, ...] = ()  # node ids; empty where none is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """Changes of a partition; None or NO_LEADER_CHANGE means no change. NO_LEADER_CHANGE is the
    leader's value."""

    topic_id: str
    partition: int
    isr: tuple[int, ...] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_eligible_leader_replicas: tuple[int, ...] | None = None
    directories: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord:
    """Removal of a topic's eligible leader replicas; all topics' without a name."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic or broker, or its removal (None). The value may be a secret: ``repr``
    leaves it out."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None = None

    def __repr__(self) -> str:
        return f"ConfigRecord({self.resource_type}, {self.resource_name!r}, {self.key!r}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """A feature, such as ``metadata.version``, has this level; 0 removes it."""

    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A broker got a block of producer ids."""

    next_producer_id: int  # the first id that no broker has got


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker joined."""

    broker_id: int
    broker_epoch: int
    fenced: bool  # whether it is kept from leading
    log_directories: tuple[str, ...] = ()  # ids of its directories; empty where none is known
    # Ids of those that take no new partitions; None: not known.
    cordoned_log_directories: tuple[str, ...] | None = None
    in_controlled_shutdown: bool = False  # whether it has begun to stop, and leads nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """What changed of a broker; empty, 0 or None where nothing did."""

    broker_id: int
    broker_epoch: int
    fencing: int
    log_directories: tuple[str, ...] = ()
    cordoned_log_directories: tuple[str, ...] | None = None
    in_controlled_shutdown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker left for good."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """The begin, end or abort of a metadata transaction."""

    mark: TransactionMark


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecord:
    """A record of an unknown type, or of one without logs."""

    api_key: int
    is_known: bool  # whether Kafka 4.4 knows the type


MetadataRecord = (
    TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ClearElrRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TransactionRecord
    | SkippedRecord
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionRecord]


@dataclass(slots=True)
class _TopicImage:
    name: str
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)


@dataclass(slots=True)
class MetadataImage:
    """The state after the records so far; `apply` takes the next one."""

    # Settings of topics that Kafka 4.4 knows, by topic name.
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    ignored_topic_keys: dict[str, set[str]] = field(default_factory=dict)
    # Broker-wide settings that concern us, by node id as text; the empty text holds those of all
    # nodes.
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    client_metrics_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    # Registered brokers, by node id.
    brokers: dict[int, RegisterBrokerRecord] = field(default_factory=dict)
    feature_levels: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0  # the first producer id that no broker has got
    # Numbers of records of types that are not decoded, by type; of unknown types under the negative
    # number.
    skipped: Counter[int] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    _topics: dict[str, _TopicImage] = field(default_factory=dict)
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

    def partition(self, topic_id: str, number: int) -> tuple[str, PartitionRecord] | None:
        """Return a topic's name and one of its partitions, else None."""
        topic = self._topics.get(topic_id)
        record = None if topic is None else topic.partitions.get(number)
        return None if topic is None or record is None else (topic.name, record)

    def apply(self, record: MetadataRecord, *, file: str, offset: int) -> None:
        """Take the next record."""
        if isinstance(record, TransactionRecord):
            self._mark_transaction(record.mark, file, offset)
        elif self._transaction is not None:
            self._transaction.append((record, file, offset))
        else:
            self._replay(record, file, offset)

    def _mark_transaction(self, mark: TransactionMark, file: str, offset: int) -> None:
        pending, begins = self._transaction, mark is TransactionMark.BEGIN
        if begins != (pending is None):
            what = "a second begin" if begins else f"the {mark.value} without the begin"
            raise CorruptClusterMetadataError(file, offset, f"{what} of a transaction")
        self._transaction = [] if begins else None
        if mark is TransactionMark.END:
            for record, record_file, record_offset in pending or ():
                self._replay(record, record_file, record_offset)

    def _replay(self, record: MetadataRecord, file: str, offset: int) -> None:  # noqa: C901, PLR0912 - one branch a record type, each one line
        try:
            match record:
                case TopicRecord():
                    self._topics[record.topic_id] = _TopicImage(validate_topic(record.name))
                case RemoveTopicRecord():
                    topic = self._topics.pop(record.topic_id)
                    self.topic_configs.pop(topic.name, None)
                    self.ignored_topic_keys.pop(topic.name, None)
                case PartitionRecord():
                    self._topics[record.topic_id].partitions[record.partition] = record
                case PartitionChangeRecord():
                    self._change_partition(record)
                case ClearElrRecord():
                    for topic in self._topics.values():
                        if record.topic in {"", topic.name}:
                            for number, partition in topic.partitions.items():
                                topic.partitions[number] = _without_eligible_leader_replicas(
                                    partition
                                )
                case ConfigRecord(resource_type=ResourceType.TOPIC):
                    self._configure_topic(record)
                case ConfigRecord(resource_type=ResourceType.BROKER):
                    if record.key in _KEPT_BROKER_KEYS:
                        _configure(self.broker_configs, record.resource_name, record)
                case ConfigRecord(resource_type=ResourceType.GROUP):
                    _configure(self.group_configs, record.resource_name, record)
                case ConfigRecord(resource_type=ResourceType.CLIENT_METRICS):
                    _configure(self.client_metrics_configs, record.resource_name, record)
                case FeatureLevelRecord(level=0):
                    self.feature_levels.pop(record.name, None)
                case FeatureLevelRecord():
                    self.feature_levels[record.name] = record.level
                case ProducerIdsRecord():
                    self.next_producer_id = record.next_producer_id
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

    def _configure_topic(self, record: ConfigRecord) -> None:
        topic = record.resource_name
        if record.key in TOPIC_KEYS:
            _configure(self.topic_configs, topic, record)
        elif record.value is None:
            self.ignored_topic_keys.get(topic, set()).discard(record.key)
        else:
            self.ignored_topic_keys.setdefault(topic, set()).add(record.key)

    def _change_broker(self, change: BrokerRegistrationChangeRecord) -> None:
        before = self.brokers[change.broker_id]
        changed: dict[str, Any] = {}
        if change.fencing != Fencing.NONE:
            changed["fenced"] = change.fencing == Fencing.FENCE
        if change.log_directories:
            changed["log_directories"] = change.log_directories
        if change.cordoned_log_directories is not None:
            changed["cordoned_log_directories"] = change.cordoned_log_directories
        if change.in_controlled_shutdown:
            changed["in_controlled_shutdown"] = True
        self.brokers[change.broker_id] = dataclasses.replace(before, **changed)


def _configure(configs: dict[str, dict[str, str]], name: str, record: ConfigRecord) -> None:
    """Set or remove one setting; drop a resource without any."""
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


# Decode and encode the metadata log's records about logs.
#
# The messages themselves, field by field, are declared in ``messages.metadata_records``; here
# stands which of them concern logs, and which of their fields. Every version that Kafka 4.4 reads
# is read. Types that concern no log (quotas, credentials, access rights and so on) are not
# decoded.


class _Meaning(NamedTuple):
    """What one type of record says of logs."""

    record: Callable[..., MetadataRecord]
    # Attribute of the record and Kafka's name of the field; where the field is null or of a later
    # version, the attribute has its default.
    fields: tuple[tuple[str, str], ...] = ()
    preset: Mapping[str, Any] = MappingProxyType({})  # attributes that stand in no field


# Records by their values, in a block of ``decoded_once``.
_decoded: Final[ContextVar[dict[bytes, MetadataRecord] | None]] = ContextVar(
    "pylog_decoded_records", default=None
)


@contextmanager
def decoded_once() -> Iterator[None]:
    """Decode each record once within a block, also a decorator: of a look that reads the same log
    several times, each time with another question."""
    token = _decoded.set({} if _decoded.get() is None else _decoded.get())
    try:
        yield
    finally:
        _decoded.reset(token)


def decode_metadata_record(value: bytes, *, file: str, offset: int) -> MetadataRecord:
    """Decode the value of one record of the metadata log."""
    known = _decoded.get()
    if known is not None and value in known:
        return known[value]
    try:
        record = _decode(FieldReader(value))
    except MalformedMessageError as error:
        raise CorruptClusterMetadataError(file, offset, str(error)) from error
    if known is not None:
        known[value] = record
    return record


def encode_record(record: MetadataRecord, version: int) -> bytes:
    """Return the value of a record of the metadata log. Fields that concern no log are empty.

    Args:
        record: A record whose type alone says what it means.
    """
    api_key, meaning = _MEANINGS_BY_RECORD[type(record)]
    values = METADATA_RECORDS[api_key].value.blank()
    for ours, name in meaning.fields:
        value = getattr(record, ours)
        # No element where null is the default says as much as null.
        values[name] = values[name] if value == () else value
    return encode_metadata_record(api_key, version, values)


def _decode(reader: FieldReader) -> MetadataRecord:
    api_key, version = read_metadata_frame(reader)
    meaning = _MEANINGS.get(api_key)
    if meaning is None:
        return SkippedRecord(api_key=api_key, is_known=api_key in METADATA_RECORDS)
    message = METADATA_RECORDS[api_key].value
    if version > message.newest:
        raise reader.error(
            f"type {api_key} has version {version}; this reader knows versions up to "
            f"{message.newest}"
        )
    values = message.read(reader, version)
    reader.require_end()
    fields = {
        ours: value for ours, name in meaning.fields if (value := values.get(name)) is not None
    }
    return meaning.record(**fields, **meaning.preset)


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_PARTITION: Final = (("partition", "partition_id"), ("topic_id", "topic_id"))
_REPLICAS: Final = (
    *_same("replicas", "isr", "removing_replicas", "adding_replicas", "leader", "directories"),
    *_same("eligible_leader_replicas"),
    ("last_known_eligible_leader_replicas", "last_known_elr"),
)
_DIRECTORIES: Final = (
    ("log_directories", "log_dirs"),
    ("cordoned_log_directories", "cordoned_log_dirs"),
)
_BROKER: Final = (("broker_id", "id"), ("broker_epoch", "epoch"))

# By type; MetadataRecordType has the numbers.
_MEANINGS: Final[Mapping[int, _Meaning]] = {
    0: _Meaning(
        RegisterBrokerRecord,
        (
            *_same("broker_id", "broker_epoch", "fenced", "in_controlled_shutdown"),
            *_DIRECTORIES,
        ),
    ),
    1: _Meaning(UnregisterBrokerRecord, _same("broker_id")),
    2: _Meaning(TopicRecord, _same("name", "topic_id")),
    3: _Meaning(
        PartitionRecord, (*_PARTITION, *_REPLICAS, *_same("leader_epoch", "partition_epoch"))
    ),
    4: _Meaning(ConfigRecord, (*_same("resource_type", "resource_name", "value"), ("key", "name"))),
    5: _Meaning(PartitionChangeRecord, (*_PARTITION, *_REPLICAS)),
    7: _Meaning(BrokerRegistrationChangeRecord, _BROKER, {"fencing": Fencing.FENCE}),
    8: _Meaning(BrokerRegistrationChangeRecord, _BROKER, {"fencing": Fencing.UNFENCE}),
    9: _Meaning(RemoveTopicRecord, _same("topic_id")),
    12: _Meaning(FeatureLevelRecord, (("name", "name"), ("level", "feature_level"))),
    15: _Meaning(ProducerIdsRecord, _same("next_producer_id")),
    17: _Meaning(
        BrokerRegistrationChangeRecord,
        (
            *_same("broker_id", "broker_epoch", "in_controlled_shutdown"),
            ("fencing", "fenced"),
            *_DIRECTORIES,
        ),
    ),
    23: _Meaning(TransactionRecord, preset={"mark": TransactionMark.BEGIN}),
    24: _Meaning(TransactionRecord, preset={"mark": TransactionMark.END}),
    25: _Meaning(TransactionRecord, preset={"mark": TransactionMark.ABORT}),
    28: _Meaning(ClearElrRecord, (("topic", "topic_name"),)),
}
_MEANINGS_BY_RECORD: Final = {
    meaning.record: (api_key, meaning)
    for api_key, meaning in _MEANINGS.items()
    if not meaning.preset
}
