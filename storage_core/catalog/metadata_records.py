"""The records of the cluster's metadata log that say something about logs on disk, as values.

Kafka's names; its bytes are read in ``metadata_decoder``.
"""

import enum
from dataclasses import dataclass
from typing import Final

NO_LEADER_CHANGE: Final = -2


class ResourceType(enum.IntEnum):
    """What a ConfigRecord configures, as far as it concerns us."""

    TOPIC = 2
    BROKER = 4


class TransactionMark(enum.Enum):
    """A step of a metadata transaction: what lies between BEGIN and END counts as one record."""

    BEGIN = "begin"
    END = "end"
    ABORT = "abort"


class Fencing(enum.IntEnum):
    """What a BrokerRegistrationChangeRecord does to a broker's fence."""

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
    """A partition as it is now.

    Attributes:
        topic_id: The topic.
        partition: The partition's number.
        replicas: Node ids, the preferred leader first.
        isr: Node ids of the in-sync replicas.
        removing_replicas: Node ids that leave.
        adding_replicas: Node ids that come.
        leader: Node id, -1 for none.
        leader_epoch: Number of the leader's reign.
        partition_epoch: Number of changes of the partition so far.
        directories: Directory id of each replica; empty where none is known.
        eligible_leader_replicas: Node ids; empty where none is known.
        last_known_eligible_leader_replicas: Node ids; empty where none is known.
    """

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[str, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_eligible_leader_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """What changed of a partition; None where nothing did, NO_LEADER_CHANGE for the leader."""

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
    """The eligible leader replicas of a topic, or (empty name) of all topics, were forgotten."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic or broker; its value is None where the setting was removed.

    The value may be a secret: it is left out of the text of this object.
    """

    resource_type: int
    resource_name: str
    key: str
    value: str | None

    def __repr__(self) -> str:
        return f"ConfigRecord({self.resource_type}, {self.resource_name!r}, {self.key!r}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """A feature, such as ``metadata.version``, has this level; 0 removes it."""

    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker joined.

    Attributes:
        broker_id: Its node id.
        broker_epoch: Number of its reign.
        fenced: Whether it is kept from leading.
        log_directories: Ids of its directories; empty where none is known.
        cordoned_log_directories: Ids of those that take no new partitions; None: not known.
    """

    broker_id: int
    broker_epoch: int
    fenced: bool
    log_directories: tuple[str, ...] = ()
    cordoned_log_directories: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """What changed of a broker; empty or None where nothing did."""

    broker_id: int
    broker_epoch: int
    fencing: int
    log_directories: tuple[str, ...] = ()
    cordoned_log_directories: tuple[str, ...] | None = None


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
    """A record of a type that concerns no log, or that is not known.

    Attributes:
        api_key: Number of its type.
        is_known: Whether Kafka 4.4 knows the type.
    """

    api_key: int
    is_known: bool


MetadataRecord = (
    TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ClearElrRecord
    | ConfigRecord
    | FeatureLevelRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TransactionRecord
    | SkippedRecord
)
