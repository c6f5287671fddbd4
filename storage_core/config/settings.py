"""All keys together: sorts settings by owner, and reads a broker's ``server.properties``.

One ``--set`` may name a topic key, a broker's default for one, a cleaner key, a broker key or a
key of ours. Here each finds its place.
"""

import enum
import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from storage_core.config.broker_config import BROKER_KEYS, BrokerConfig
from storage_core.config.log_config import (
    AS_KAFKA,
    TOPIC_KEY_OF_BROKER_KEY,
    TOPIC_KEYS,
    Recompression,
    recompression,
    resolve_topic_settings,
    topic_keys,
)
from storage_core.config.values import (
    CORDONED_KEY,
    DOUBLE_MAX,
    INT_MAX,
    NEWEST_RELEASE,
    OTHER_TYPES,
    ConfigKey,
    Origin,
    Scope,
    ValueType,
    boolean,
    choice,
    double,
    find_broker_default,
    folder,
    int32,
    int64,
    keys_of,
    parse_settings,
    render,
    setting,
    unknown_key,
)
from storage_core.errors import CheckpointError, ConfigError

# Settings of compaction: Kafka's cleaner keys and this project's own.

# The default size of the offset map of Kafka's cleaner.
KAFKA_DEDUPE_BUFFER_BYTES: Final = 134_217_728
DEDUPE_BUFFER_KEY: Final = "log.cleaner.dedupe.buffer.size"
# One slot of Kafka's offset map: a hash of 16 bytes and an offset of 8.
OFFSET_MAP_SLOT_BYTES: Final = 24
# A broker does not start unless each thread's share of the map is larger.
_SMALLEST_SHARE_BYTES: Final = 1_048_576


class OffsetMapHash(enum.StrEnum):
    """The hash by which the offset map knows a key. SIPHASH is keyed, so nobody can make two
    keys collide; MD5 is Kafka's, to the letter."""

    SIPHASH = "siphash"
    MD5 = "md5"


def _cleaner(
    name: str,
    value_type: ValueType,
    doc: str,
    *,
    default: object,
    unit: str = "",
    scope: Scope = Scope.CLEANER,
) -> Any:
    return setting(name, value_type, default, doc=doc, scope=scope, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Settings of compaction that do not belong to a topic.

    ``dedupe_buffer_bytes`` is None where nothing bounds the offset map: unlike in Kafka, no
    number of keys then makes a log uncleanable or needs several rounds.
    """

    threads: int = _cleaner(
        "log.cleaner.threads",
        int32(at_least=0),
        "cleaner threads that share the buffers; Spark decides what runs in parallel",
        default=1,
        unit="threads",
    )
    dedupe_buffer_bytes: int | None = _cleaner(
        DEDUPE_BUFFER_KEY,
        int64(),
        "memory of the offset map, all threads together; not set: no limit (Kafka: 134217728)",
        default=None,
        unit="bytes",
    )
    load_factor: float = _cleaner(
        "log.cleaner.io.buffer.load.factor",
        double(),
        "share of the offset map's slots that may be used",
        default=0.9,
        unit="ratio",
    )
    io_buffer_bytes: int = _cleaner(
        "log.cleaner.io.buffer.size",
        int32(at_least=0),
        "Kafka's read and write buffers; only decides which batch is too large",
        default=524_288,
        unit="bytes",
    )
    max_io_buffer_bytes: int = _cleaner(
        "io.buffer.max.bytes",
        int32(at_least=0),
        "a buffer may grow to this, or to max.message.bytes if that is more",
        default=67_108_864,
        unit="bytes",
        scope=Scope.PYLOG,
    )
    io_max_bytes_per_second: float = _cleaner(
        "log.cleaner.io.max.bytes.per.second",
        double(),
        "reads and writes of compaction together stay below this",
        default=DOUBLE_MAX,
        unit="bytes/s",
    )
    enabled: bool = _cleaner(
        "log.cleaner.enable",
        boolean(),
        "false: nothing is compacted, with a warning; deprecated in Kafka",
        default=True,
    )
    offset_map_hash: OffsetMapHash = _cleaner(  # noqa: RUF009 - makes a dataclass field
        "offset-map.hash",
        choice(OffsetMapHash),
        "siphash: keyed, safe against made-up collisions; md5: as Kafka",
        default=OffsetMapHash.SIPHASH,
        scope=Scope.PYLOG,
    )
    producer_id_expiration_ms: int = _cleaner(
        "producer.id.expiration.ms",
        int32(at_least=1),
        "a producer without an open transaction is forgotten after this",
        default=86_400_000,
        unit="ms",
    )
    verify_crc: bool = _cleaner(
        "verify.crc",
        boolean(),
        "check every batch before it is compacted; false: as Kafka, which does not",
        default=True,
        scope=Scope.PYLOG,
    )
    recompression: Recompression = _cleaner(  # noqa: RUF009 - makes a dataclass field
        "recompress",
        recompression(),
        "codec of the batches that compaction rebuilds; kafka: each its own, as Kafka",
        default=AS_KAFKA,
        scope=Scope.PYLOG,
    )
    recompresses_all: bool = _cleaner(
        "recompress.all",
        boolean(),
        "rebuild every batch with records of what is compacted, those that lose none too",
        default=False,
        scope=Scope.PYLOG,
    )
    keeps_negative_timestamps: bool = _cleaner(
        "keep.negative.timestamps",
        boolean(),
        "rebuild batches with timestamps below -1, too; false: as Kafka, which gives up such a log",
        default=False,
        scope=Scope.PYLOG,
    )
    key_sidecars: str = _cleaner(
        "key.sidecars",
        folder(),
        "folder for key sidecars: what cleaned segments hold, so that a round reads what changed",
        default="",
        scope=Scope.PYLOG,
    )
    max_decompressed_batch_bytes: int = _cleaner(
        "max.decompressed.batch.bytes",
        int32(at_least=1),
        "a batch that expands beyond this is refused",
        default=536_870_912,
        unit="bytes",
        scope=Scope.PYLOG,
    )
    window_bytes: int = _cleaner(
        "window.bytes",
        int32(at_least=1),
        "bytes of a segment in memory at a time; a larger batch gets a larger window",
        default=8_388_608,
        unit="bytes",
        scope=Scope.PYLOG,
    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build the config from texts by key."""
        values: dict[str, Any] = parse_settings(settings, CLEANER_KEYS)
        config = cls(**values)
        config._validate_offset_map()
        return config

    def _validate_offset_map(self) -> None:
        if self.threads == 0:
            # Kafka's own validator lets 0 pass; then the broker divides by it and does not start.
            raise ConfigError("log.cleaner.threads", 0, "a broker does not start with 0")
        size = self.dedupe_buffer_bytes
        share = (KAFKA_DEDUPE_BUFFER_BYTES if size is None else size) // self.threads
        if size is not None and share <= _SMALLEST_SHARE_BYTES:
            raise ConfigError(
                DEDUPE_BUFFER_KEY,
                size,
                f"must give each thread more than {_SMALLEST_SHARE_BYTES} bytes",
            )
        key = "log.cleaner.io.buffer.load.factor"
        if self.load_factor > 1:
            raise ConfigError(key, self.load_factor, "an offset map has no more places than slots")
        slots = min(share, INT_MAX) // OFFSET_MAP_SLOT_BYTES
        if not slots * self.load_factor > 1:
            reason = f"the offset map of {slots} slots would hold no key"
            raise ConfigError(key, self.load_factor, reason)


CLEANER_KEYS: Final[Mapping[str, ConfigKey]] = keys_of(CleanerConfig)


_ALL_KEYS: Final[Mapping[str, ConfigKey]] = {**TOPIC_KEYS, **CLEANER_KEYS, **BROKER_KEYS}
# Each group is one setting in several units: a layer that sets one of them hides all of them
# in the layers below.
_SYNONYM_GROUPS: Final = tuple(
    frozenset(broker_name.name for broker_name in key.broker_names)
    for key in TOPIC_KEYS.values()
    if len(key.broker_names) > 1
)

# A broker parses these as plain numbers, and checks their range only with all others together.
_CHECKED_TOGETHER: Final[Mapping[str, ValueType]] = {
    "log.flush.interval.ms": int64(),
    "log.flush.scheduler.interval.ms": int64(),
    "log.retention.hours": int32(),
    "log.retention.minutes": int32(),
    "log.retention.ms": int64(),
    "log.roll.jitter.ms": int64(),
    "log.roll.ms": int64(),
}
_TYPES: Final[Mapping[str, ValueType]] = {
    **{name: key.type for name, key in {**CLEANER_KEYS, **BROKER_KEYS}.items()},
    **{name.name: name.type for key in TOPIC_KEYS.values() for name in key.broker_names},
    **_CHECKED_TOGETHER,
}
_OF_ONE_NODE: Final = frozenset({CORDONED_KEY})
_OF_RELEASES: Final = frozenset(name for types in OTHER_TYPES.values() for name in types)


def parse_java_properties(data: bytes, *, file: str) -> dict[str, str]:
    """Parse a properties file as ``java.util.Properties`` does.

    Args:
        data: The whole file, ISO 8859-1 with escapes.

    Returns:
        Values by key, the last one of a key; an entry without a separator has an empty value.
    """
    # This import takes a third of a command's start, and few commands read such a file.
    import javaproperties  # noqa: PLC0415

    try:
        return dict(javaproperties.load(io.BytesIO(data)))
    except javaproperties.InvalidUEscapeError as error:
        raise CheckpointError(file, 0, f"expected \\uXXXX, found {error.escape}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingGroups:
    """Settings by owner; texts by key, not parsed yet."""

    topic: dict[str, str]
    topic_defaults: dict[str, str]  # broker-wide keys that give topic keys their defaults
    cleaner: dict[str, str]  # keys of CleanerConfig
    broker: dict[str, str]  # keys of BrokerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProperties:
    """A broker's configuration file, as far as it concerns us."""

    settings: Mapping[str, str]  # texts by key, for known keys only: others may be secrets
    unknown_keys: tuple[str, ...]  # names of the other keys, sorted; to be shown as a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One topic key with the value in force."""

    key: str
    value: str
    origin: Origin
    source_key: str  # the key that gave it: a broker's, or the topic key itself


def known_keys() -> Mapping[str, ConfigKey]:
    """Return all keys by name: topic, then cleaner, then broker keys."""
    return _ALL_KEYS


def classify_settings(settings: Mapping[str, str]) -> SettingGroups:
    """Sort settings by owner.

    A name that is a topic key and a broker key at once (``compression.type``) counts as a topic
    key.
    """
    groups = SettingGroups(topic={}, topic_defaults={}, cleaner={}, broker={})
    for name, text in settings.items():
        if name in TOPIC_KEYS:
            groups.topic[name] = text
        elif name in TOPIC_KEY_OF_BROKER_KEY:
            groups.topic_defaults[name] = text
        elif name in CLEANER_KEYS:
            groups.cleaner[name] = text
        elif name in BROKER_KEYS:
            groups.broker[name] = text
        else:
            raise unknown_key(name, text, [*_ALL_KEYS, *TOPIC_KEY_OF_BROKER_KEY])
    return groups


def split_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the whole config into topic keys and cleaner keys.

    A broker-wide default becomes the topic key that it stands for, unless that is set itself;
    broker keys that concern no single partition are checked for their names and left out.
    """
    groups = classify_settings(settings)
    topic = dict(groups.topic)
    for name, key in TOPIC_KEYS.items():
        default = find_broker_default(key, groups.topic_defaults)
        if default is not None and name not in topic:
            topic[name] = render(default.value)
    return topic, groups.cleaner


def parse_server_properties(data: bytes, *, file: str) -> ServerProperties:
    """Read a broker's ``server.properties``."""
    settings, unknown_keys = {}, []
    for name, text in parse_java_properties(data, file=file).items():
        if name in TOPIC_KEY_OF_BROKER_KEY or name in CLEANER_KEYS or name in BROKER_KEYS:
            settings[name] = text
        else:
            unknown_keys.append(name)
    return ServerProperties(settings=settings, unknown_keys=tuple(sorted(unknown_keys)))


def merge_broker_layers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge broker-wide settings, the weakest layer first.

    Setting ``log.retention.ms`` in a layer also hides ``log.retention.hours`` of the layers
    below, although it is another name.
    """
    merged: dict[str, str] = {}
    for layer in layers:
        for group in _SYNONYM_GROUPS:
            if group & layer.keys():
                for name in group:
                    merged.pop(name, None)
        merged.update(layer)
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSettings:
    """Broker-wide settings in force, and the dynamic configs that Kafka ignores."""

    settings: Mapping[str, str]  # the broker's file, with the dynamic configs that count over it
    ignored: tuple[ConfigError, ...] = ()
    # Why Kafka drops dynamic configs together; None if it drops none.
    refusal: ConfigError | None = None
    is_all_dropped: bool = False  # whether those of the node itself are dropped, too


def merge_dynamic_configs(
    file: Mapping[str, str],
    of_all: Mapping[str, str],
    of_node: Mapping[str, str],
    *,
    directories: Collection[str] | None,
    release: str = NEWEST_RELEASE,
) -> DynamicSettings:
    """Merge dynamic configs over a broker's file as its start does.

    A value that is malformed or out of its own range is ignored alone. Values that contradict each
    other, or the file, drop the dynamic configs that were about to be applied: those of the node
    come first, and those of all nodes are applied together with them. Source:
    ``DynamicBrokerConfig`` of Kafka 4.4.

    Args:
        file: Settings of the broker's file.
        directories: log.dirs; None leaves ``cordoned.log.dirs`` unchecked.
    """
    ignored: list[ConfigError] = []
    of_all = _valid_alone(
        {name: text for name, text in of_all.items() if name not in _OF_ONE_NODE}, ignored, release
    )
    of_node = _valid_alone(of_node, ignored, release)
    own = merge_broker_layers(file, of_node)
    if of_node and (refusal := _refusal(own, directories, release)):
        return DynamicSettings(
            settings=dict(file), ignored=tuple(ignored), refusal=refusal, is_all_dropped=True
        )
    merged = merge_broker_layers(file, of_all, of_node)
    refusal = _refusal(merged, directories, release) if of_all else None
    return DynamicSettings(
        settings=merged if refusal is None else own,
        ignored=tuple(ignored),
        refusal=refusal,
        is_all_dropped=refusal is not None and not of_node,
    )


def newest_release_of(file: Mapping[str, str]) -> str:
    """Return the newest release of Kafka that takes a broker's file. It is the newest one at all if
    none does."""
    newest_first = [*OTHER_TYPES][::-1]
    takes = (each for each in newest_first if not any(refused_file_settings(file, each)))
    return next(takes, NEWEST_RELEASE)


def refused_file_settings(file: Mapping[str, str], release: str) -> Iterator[ConfigError]:
    """Yield an error for each setting that a release of Kafka refuses. Only keys whose values not
    every release takes are looked at.

    Args:
        file: Settings of the broker's file.
    """
    types: Mapping[str, ValueType | None] = {**_TYPES, **OTHER_TYPES[release]}
    yield from _refused(types, {name: file[name] for name in _OF_RELEASES & file.keys()})


def without_unknown_keys(file: Mapping[str, str], release: str) -> dict[str, str]:
    """Return a broker's file without the keys that a release ignores."""
    types = OTHER_TYPES[release]
    unknown = {name for name, value_type in types.items() if value_type is None}
    return {name: text for name, text in file.items() if name not in unknown}


def refused_topic_settings(
    overrides: Mapping[str, str], release: str = NEWEST_RELEASE
) -> Iterator[ConfigError]:
    """Yield an error for each topic setting that stops a broker.

    A broker ignores keys that it does not know, and compares no two of them with each other.
    """
    types = {**{key.name: key.type for key in TOPIC_KEYS.values()}, **OTHER_TYPES[release]}
    yield from _refused(types, overrides)


def _refused(
    types: Mapping[str, ValueType | None], settings: Mapping[str, str]
) -> Iterator[ConfigError]:
    for name, text in sorted(settings.items()):
        if (value_type := types.get(name)) is not None:
            try:
                value_type.parse(name, text)
            except ConfigError as error:
                yield error


def _valid_alone(
    settings: Mapping[str, str], ignored: list[ConfigError], release: str
) -> dict[str, str]:
    """Return the settings that are valid alone; note the others."""
    valid = {}
    types: Mapping[str, ValueType | None] = {**_TYPES, **OTHER_TYPES[release]}
    for name, text in settings.items():
        value_type = types.get(name)
        if name in types and value_type is None:
            ignored.append(ConfigError(name, text, f"Kafka {release} does not know this key"))
            continue
        try:
            if value_type is not None:
                value_type.parse(name, text)
        except ConfigError as error:
            ignored.append(error)
        else:
            valid[name] = text
    return valid


def _refusal(
    settings: Mapping[str, str], directories: Collection[str] | None, release: str
) -> ConfigError | None:
    """Return why a broker refuses settings together, None if it takes them."""
    cleaner = {
        name: text
        for name, text in settings.items()
        if name in CLEANER_KEYS and CLEANER_KEYS[name].scope is not Scope.PYLOG
    }
    try:
        for key in topic_keys(release).values():
            find_broker_default(key, settings)
        CleanerConfig.from_settings(cleaner)
        if directories is not None and CORDONED_KEY in settings:
            key_type = BROKER_KEYS[CORDONED_KEY].type
            cordoned: Any = key_type.parse(CORDONED_KEY, settings[CORDONED_KEY])
            BrokerConfig(
                log_dirs=tuple(directories), cordoned_log_dirs=cordoned
            ).validate_cordoned()
    except ConfigError as error:
        return error
    return None


def effective_settings(
    overrides: Mapping[str, str],
    *,
    broker: Mapping[str, str] | None = None,
    release: str = NEWEST_RELEASE,
) -> list[EffectiveSetting]:
    """Return each topic key's effective value and its origin, by key."""
    resolved = resolve_topic_settings(overrides, broker or {}, release)
    settings = []
    for name in sorted(TOPIC_KEYS):
        resolution = resolved.get(name)
        settings.append(
            EffectiveSetting(
                key=name,
                value=TOPIC_KEYS[name].default if resolution is None else render(resolution.value),
                origin=Origin.DEFAULT if resolution is None else resolution.origin,
                source_key=name if resolution is None else resolution.source_key,
            )
        )
    return settings
