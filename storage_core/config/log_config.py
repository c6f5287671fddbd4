"""One topic's configuration: Kafka's topic keys, their defaults and precedence.

A topic's own value wins over the broker-wide key, which wins over the default. Several broker-wide
keys may stand behind one topic key; the finer unit wins (``log.retention.ms`` over ``.minutes``
over ``.hours``), wherever it stands in the file.
Source: ``org.apache.kafka.storage.internals.log.LogConfig`` of Kafka 4.4, and ``KafkaConfig``,
``extractLogConfigMap`` and ``validateValues``.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Self, cast

from storage_core.config.values import (
    INT_MAX,
    LONG_MAX,
    NEWEST_RELEASE,
    BrokerName,
    ConfigKey,
    ResolvedValue,
    Scope,
    ValueType,
    boolean,
    choice,
    choice_set,
    double,
    gzip_level,
    int32,
    int64,
    keys_of,
    keys_of_release,
    resolve,
    retention_time,
    setting,
    throttled_replicas,
    trim,
)
from storage_core.errors import ConfigError

# Codecs by their setting, and compaction's choice of batches to recompress.


class BrokerCompressionType(enum.StrEnum):
    """How a broker stores batches; PRODUCER keeps what the producer chose."""

    UNCOMPRESSED = "uncompressed"
    ZSTD = "zstd"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    GZIP = "gzip"
    PRODUCER = "producer"


# Those of Kafka's compression.*.level; the other codecs have none.
LEVELS: Final = {
    BrokerCompressionType.ZSTD: int32(at_least=-131_072, at_most=22),
    BrokerCompressionType.LZ4: int32(at_least=1, at_most=17),
    BrokerCompressionType.GZIP: int32(at_least=1, at_most=9),
}
# Keys and their values.
_Settings = tuple[tuple[str, str], ...]
_CODECS: Final = frozenset(BrokerCompressionType) - {BrokerCompressionType.PRODUCER}
_NAMES: Final = {
    "kafka": (BrokerCompressionType.PRODUCER, None),
    "fast": (BrokerCompressionType.LZ4, None),
    "dense": (BrokerCompressionType.ZSTD, 19),
}
_VALID: Final = "kafka, fast, dense or CODEC[:LEVEL]: uncompressed, gzip, snappy, lz4, zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompression:
    """The codec of the batches that compaction rebuilds."""

    # PRODUCER for each batch's own, as Kafka's cleaner.
    codec: BrokerCompressionType = BrokerCompressionType.PRODUCER
    # The level, as in Kafka's ``compression.*.level``; None for the codec's default.
    level: int | None = None

    def __str__(self) -> str:
        for name, meant in _NAMES.items():
            if meant == (self.codec, self.level):
                return name
        return self.codec if self.level is None else f"{self.codec}:{self.level}"


AS_KAFKA: Final = Recompression()


def recompression() -> ValueType:
    """A type for ``kafka``, ``fast``, ``dense``, or a codec with optional level."""
    return ValueType(kind="string", valid=_VALID, parse=_parse)


def _parse(key: str, text: str) -> Recompression:
    word = trim(text)
    if word in _NAMES:
        codec, level = _NAMES[word]
        return Recompression(codec=codec, level=level)
    name, colon, digits = word.partition(":")
    if name not in _CODECS:
        raise ConfigError(key, text, f"expected {_VALID}")
    codec = BrokerCompressionType(name)
    if not colon:
        return Recompression(codec=codec)
    if codec not in LEVELS:
        raise ConfigError(key, text, f"{codec} has no levels")
    try:
        number = LEVELS[codec].parse(key, digits)
    except ConfigError as error:
        raise ConfigError(key, text, f"level: {error.reason}") from None
    return Recompression(codec=codec, level=cast("int", number))


_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_WEEK_MS: Final = 7 * 24 * _HOUR_MS
# Arrays of the JVM end a little below 2^31 bytes; Kafka takes that for the largest record.
_LARGEST_ARRAY_BYTES: Final = INT_MAX - 8
# Kafka accepts an index size from 4 on, but cannot open an offset index of less than one entry of
# 8 bytes, nor a time index of less than one of 12.
_SMALLEST_INDEX_BYTES: Final = 12
UNLIMITED: Final = -1
_INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"
USE_TOTAL_RETENTION: Final = -2


class CleanupPolicy(enum.StrEnum):
    """The fate of old data: deletion, or compaction by key. Compaction retains the latest value
    of each key."""

    DELETE = "delete"
    COMPACT = "compact"


class MessageTimestampType(enum.StrEnum):
    """Whose clock a record's timestamp shows: the producer's or the broker's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


def _topic(
    name: str,
    value_type: ValueType,
    doc: str,
    *,
    default: object,
    unit: str = "",
    broker: str | tuple[BrokerName, ...] = (),
) -> Any:
    names = (BrokerName(name=broker, type=value_type),) if isinstance(broker, str) else broker
    return setting(
        name,
        value_type,
        default,
        doc=doc,
        scope=Scope.TOPIC,
        unit=unit,
        broker_names=names,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic keys of Kafka 4.4, by their names in snake case. ``segment_bytes`` is the size in
    force: ``internal.segment.bytes`` where it is set."""

    cleanup_policy: frozenset[CleanupPolicy] = _topic(
        "cleanup.policy",
        choice_set(CleanupPolicy),
        "delete old segments, compact keys, both, or (empty) keep everything",
        default=frozenset({CleanupPolicy.DELETE}),
        broker="log.cleanup.policy",
    )
    segment_bytes: int = _topic(
        "segment.bytes",
        int32(at_least=1_048_576),
        "largest segment",
        default=1_073_741_824,
        unit="bytes",
        broker="log.segment.bytes",
    )
    internal_segment_bytes: int | None = _topic(
        "internal.segment.bytes",
        int32(),
        "overrides segment.bytes without its lower limit; for tests",
        default=None,
        unit="bytes",
    )
    segment_ms: int = _topic(
        "segment.ms",
        int64(at_least=1),
        "a segment is closed at this age",
        default=_WEEK_MS,
        unit="ms",
        broker=(
            BrokerName(name="log.roll.ms", type=int64(at_least=1)),
            BrokerName(name="log.roll.hours", type=int32(at_least=1), factor=_HOUR_MS),
        ),
    )
    segment_jitter_ms: int = _topic(
        "segment.jitter.ms",
        int64(at_least=0),
        "largest random cut from segment.ms",
        default=0,
        unit="ms",
        broker=(
            BrokerName(name="log.roll.jitter.ms", type=int64(at_least=0)),
            BrokerName(name="log.roll.jitter.hours", type=int32(at_least=0), factor=_HOUR_MS),
        ),
    )
    segment_index_bytes: int = _topic(
        "segment.index.bytes",
        int32(at_least=_SMALLEST_INDEX_BYTES),
        "largest offset or time index of a segment",
        default=10_485_760,
        unit="bytes",
        broker="log.index.size.max.bytes",
    )
    index_interval_bytes: int = _topic(
        "index.interval.bytes",
        int32(at_least=0),
        "an index entry follows about every so many bytes",
        default=4_096,
        unit="bytes",
        broker="log.index.interval.bytes",
    )
    flush_messages: int = _topic(
        "flush.messages",
        int64(at_least=1),
        "records between two syncs",
        default=LONG_MAX,
        unit="records",
        broker="log.flush.interval.messages",
    )
    flush_ms: int = _topic(
        "flush.ms",
        int64(at_least=0),
        "time between two syncs",
        default=LONG_MAX,
        unit="ms",
        broker=(
            BrokerName(name="log.flush.interval.ms", type=int64(at_least=0)),
            BrokerName(name="log.flush.scheduler.interval.ms", type=int64(at_least=0)),
        ),
    )
    preallocate: bool = _topic(
        "preallocate",
        boolean(),
        "create segment files at full length",
        default=False,
        broker="log.preallocate",
    )
    retention_ms: int = _topic(
        "retention.ms",
        int64(at_least=UNLIMITED),
        "segments older than this are deleted; -1: no limit",
        default=_WEEK_MS,
        unit="ms",
        broker=(
            BrokerName(name="log.retention.ms", type=retention_time(int64())),
            BrokerName(
                name="log.retention.minutes", type=retention_time(int32()), factor=_MINUTE_MS
            ),
            BrokerName(name="log.retention.hours", type=retention_time(int32()), factor=_HOUR_MS),
        ),
    )
    retention_bytes: int = _topic(
        "retention.bytes",
        int64(),
        "oldest segments beyond this size are deleted; negative: no limit, 0: keep nothing",
        default=UNLIMITED,
        unit="bytes",
        broker="log.retention.bytes",
    )
    file_delete_delay_ms: int = _topic(
        "file.delete.delay.ms",
        int64(at_least=0),
        "a file renamed to .deleted lives so much longer",
        default=60_000,
        unit="ms",
        broker="log.segment.delete.delay.ms",
    )
    delete_retention_ms: int = _topic(
        "delete.retention.ms",
        int64(at_least=0),
        "tombstones and markers stay so long after their first cleaning",
        default=86_400_000,
        unit="ms",
        broker="log.cleaner.delete.retention.ms",
    )
    min_cleanable_dirty_ratio: float = _topic(
        "min.cleanable.dirty.ratio",
        double(at_least=0, at_most=1),
        "a log is cleaned when this share of its bytes is not compacted yet",
        default=0.5,
        unit="ratio",
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = _topic(
        "min.compaction.lag.ms",
        int64(at_least=0),
        "records younger than this are not compacted",
        default=0,
        unit="ms",
        broker="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = _topic(
        "max.compaction.lag.ms",
        int64(at_least=1),
        "a log with older dirty records is cleaned whatever its ratio",
        default=LONG_MAX,
        unit="ms",
        broker="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = _topic(
        "max.message.bytes",
        int32(at_least=0),
        "largest batch that the topic takes",
        default=1_048_588,
        unit="bytes",
        broker="message.max.bytes",
    )
    max_decompressed_message_bytes: int = _topic(
        "max.decompressed.message.bytes",
        int32(at_least=1, at_most=_LARGEST_ARRAY_BYTES),
        "largest record after decompression",
        default=_LARGEST_ARRAY_BYTES,
        unit="bytes",
        broker="max.decompressed.message.bytes",
    )
    compression_type: BrokerCompressionType = _topic(  # noqa: RUF009 - makes a dataclass field
        "compression.type",
        choice(BrokerCompressionType),
        "codec of stored batches; producer: as they came",
        default=BrokerCompressionType.PRODUCER,
        broker="compression.type",
    )
    compression_gzip_level: int = _topic(
        "compression.gzip.level",
        gzip_level(),
        "level of gzip; -1: the library's own",
        default=-1,
        broker="compression.gzip.level",
    )
    compression_lz4_level: int = _topic(
        "compression.lz4.level",
        LEVELS[BrokerCompressionType.LZ4],
        "level of lz4",
        default=9,
        broker="compression.lz4.level",
    )
    compression_zstd_level: int = _topic(
        "compression.zstd.level",
        LEVELS[BrokerCompressionType.ZSTD],
        "level of zstd",
        default=3,
        broker="compression.zstd.level",
    )
    message_timestamp_type: MessageTimestampType = _topic(  # noqa: RUF009 - makes a dataclass field
        "message.timestamp.type",
        choice(MessageTimestampType),
        "whose clock a record's timestamp shows",
        default=MessageTimestampType.CREATE_TIME,
        broker="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = _topic(
        "message.timestamp.before.max.ms",
        int64(at_least=0),
        "how far behind the broker's clock a record may be",
        default=LONG_MAX,
        unit="ms",
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = _topic(
        "message.timestamp.after.max.ms",
        int64(at_least=0),
        "how far ahead of the broker's clock a record may be",
        default=_HOUR_MS,
        unit="ms",
        broker="log.message.timestamp.after.max.ms",
    )
    min_insync_replicas: int = _topic(
        "min.insync.replicas",
        int32(at_least=1),
        "replicas that must have a record before acks=all answers",
        default=1,
        unit="replicas",
        broker="min.insync.replicas",
    )
    unclean_leader_election_enable: bool = _topic(
        "unclean.leader.election.enable",
        boolean(),
        "a replica outside the in-sync set may become leader",
        default=False,
        broker="unclean.leader.election.enable",
    )
    remote_storage_enable: bool = _topic(
        "remote.storage.enable",
        boolean(),
        "tiered storage; such a topic is refused here",
        default=False,
    )
    local_retention_ms: int = _topic(
        "local.retention.ms",
        int64(at_least=USE_TOTAL_RETENTION),
        "age limit of local segments of a tiered topic; -2: retention.ms",
        default=USE_TOTAL_RETENTION,
        unit="ms",
        broker="log.local.retention.ms",
    )
    local_retention_bytes: int = _topic(
        "local.retention.bytes",
        int64(at_least=USE_TOTAL_RETENTION),
        "size limit of local segments of a tiered topic; -2: retention.bytes",
        default=USE_TOTAL_RETENTION,
        unit="bytes",
        broker="log.local.retention.bytes",
    )
    remote_log_copy_disable: bool = _topic(
        "remote.log.copy.disable", boolean(), "tiered data of the topic is read only", default=False
    )
    remote_log_delete_on_disable: bool = _topic(
        "remote.log.delete.on.disable",
        boolean(),
        "tiered data goes when tiered storage is switched off",
        default=False,
    )
    remote_copy_lag_ms: int = _topic(
        "remote.copy.lag.ms",
        int64(at_least=-1),
        "age at which a segment may go to remote storage; -1: local retention",
        default=0,
        unit="ms",
        broker="log.remote.copy.lag.ms",
    )
    remote_copy_lag_bytes: int = _topic(
        "remote.copy.lag.bytes",
        int64(at_least=-1),
        "newer bytes after which a segment may go to remote storage; -1: local retention",
        default=-1,
        unit="bytes",
        broker="log.remote.copy.lag.bytes",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _topic(
        "leader.replication.throttled.replicas",
        throttled_replicas(),
        "replicas whose leader side is throttled; no effect on files",
        default=(),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _topic(
        "follower.replication.throttled.replicas",
        throttled_replicas(),
        "replicas whose follower side is throttled; no effect on files",
        default=(),
    )
    errors_deadletterqueue_group_enable: bool = _topic(
        "errors.deadletterqueue.group.enable",
        boolean(),
        "share groups may write dead letters to the topic; no effect on files",
        default=False,
    )

    @property
    def is_compacted(self) -> bool:
        """Whether old values of a key go."""
        return CleanupPolicy.COMPACT in self.cleanup_policy

    @property
    def limits_compaction_lag(self) -> bool:
        """Whether the age of records alone makes a compacted log due. The dirty ratio does not
        matter then."""
        return self.max_compaction_lag_ms < LONG_MAX

    @property
    def max_segment_ms(self) -> int:
        """Age at which a segment is closed, at most the compaction lag."""
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @classmethod
    def from_topic_overrides(
        cls,
        overrides: Mapping[str, str],
        *,
        broker: Mapping[str, str] | None = None,
        release: str = NEWEST_RELEASE,
    ) -> Self:
        """Build the config in force for a topic.

        Args:
            overrides: The topic's own settings, by topic key.
            broker: Broker-wide settings, by broker key; keys that mean nothing to a topic are
                passed over, so that a broker's whole file may be given.
            release: The release of Kafka whose limits count, one of ``OTHER_TYPES``.
        """
        # Tasks ask for each partition of a topic, and to resolve takes longer than to open a file.
        return cls._resolve(tuple(overrides.items()), tuple((broker or {}).items()), release)

    @classmethod
    @lru_cache(maxsize=64)
    def _resolve(cls, overrides: _Settings, broker: _Settings, release: str) -> Self:
        resolved = resolve_topic_settings(dict(overrides), dict(broker), release)
        values: dict[str, Any] = {
            TOPIC_KEYS[name].attribute: resolution.value for name, resolution in resolved.items()
        }
        config = cls(**values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms",
                config.min_compaction_lag_ms,
                f"must not exceed max.compaction.lag.ms, {config.max_compaction_lag_ms}",
            )
        return config


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = keys_of(LogConfig)
TOPIC_KEY_OF_BROKER_KEY: Final[Mapping[str, str]] = {
    broker_name.name: key.name for key in TOPIC_KEYS.values() for broker_name in key.broker_names
}


@cache
def topic_keys(release: str) -> Mapping[str, ConfigKey]:
    """Return the topic keys with a release's own limits."""
    return keys_of_release(TOPIC_KEYS, release)


def resolve_topic_settings(
    overrides: Mapping[str, str], broker: Mapping[str, str], release: str = NEWEST_RELEASE
) -> dict[str, ResolvedValue]:
    """Return the values that are set, by topic key; see ``keys.resolve``. ``segment.bytes`` is what
    ``internal.segment.bytes`` says, if that is set."""
    resolved = resolve(topic_keys(release), overrides, broker)
    if _INTERNAL_SEGMENT_BYTES in resolved:
        resolved[_SEGMENT_BYTES] = resolved[_INTERNAL_SEGMENT_BYTES]
    return resolved
