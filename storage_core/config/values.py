"""Kafka's setting types: parse a text and check the value.

Kafka trims a value, then parses it with Java's own parsers; what these refuse is refused here:
no ``yes`` for a boolean, no ``10k`` for a number, no underscores, no empty items in a list.
Source: ``org.apache.kafka.common.config.ConfigDef``, ``parseType`` and its validators.
"""

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from storage_core.errors import ConfigError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308

# Java's String.trim removes every character up to and including the blank.
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
_INTEGER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
# Java takes any number of leading zeros; int() refuses texts beyond a limit of its own.
_MAX_INTEGER_LENGTH: Final = 1100
_DOUBLE: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?)[fFdD]?")
# Longer than any distinct double; it bounds the work on a hostile value.
_MAX_DOUBLE_LENGTH: Final = 1100
_COMMA: Final = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")
_THROTTLED_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """A type of setting."""

    kind: str  # Kafka's word for the type, in lower case
    valid: str  # the allowed values, as a person reads them
    # From the key (for the error) and the text to the value; raises ConfigError.
    parse: Callable[[str, str], object]


def trim(text: str) -> str:
    """Remove blanks and control characters from both ends, as Java's trim does."""
    return text.strip(_TRIMMED)


def boolean() -> ValueType:
    """A type that takes true and false, in any case."""
    return ValueType(kind="boolean", valid="true, false", parse=_parse_boolean)


def int32(*, at_least: int | None = None, at_most: int | None = None) -> ValueType:
    """A type that takes 32-bit integers within the bounds."""
    return _integer("int", INT_MAX, at_least, at_most)


def int64(*, at_least: int | None = None, at_most: int | None = None) -> ValueType:
    """A type that takes 64-bit integers within the bounds."""
    return _integer("long", LONG_MAX, at_least, at_most)


def double(*, at_least: float | None = None, at_most: float | None = None) -> ValueType:
    """A type for numbers within bounds; NaN is refused. No bound would stop NaN."""

    def parse(key: str, text: str) -> float:
        number = _parse_double(key, trim(text))
        if at_least is not None and number < at_least:
            raise ConfigError(key, text, f"must be at least {at_least:g}")
        if at_most is not None and number > at_most:
            raise ConfigError(key, text, f"must be at most {at_most:g}")
        return number

    return ValueType(kind="double", valid=_range_text(at_least, at_most), parse=parse)


def choice(options: type[enum.StrEnum]) -> ValueType:
    """A type that takes one member's value, spelled exactly so."""
    valid = ", ".join(options)

    def parse(key: str, text: str) -> enum.StrEnum:
        return _member(options, key, trim(text))

    return ValueType(kind="string", valid=valid, parse=parse)


def choice_set(options: type[enum.StrEnum]) -> ValueType:
    """A type for a comma-separated list of distinct members, possibly empty. A repeated member
    counts once."""
    valid = "list of " + ", ".join(options)

    def parse(key: str, text: str) -> frozenset[enum.StrEnum]:
        return frozenset(_member(options, key, item) for item in _split(key, text))

    return ValueType(kind="list", valid=valid, parse=parse)


def string_list(*, may_be_empty: bool = True, has_gaps: bool = False) -> ValueType:
    """A type for a comma-separated list of distinct texts, in their order.

    Args:
        has_gaps: Whether an empty item is passed over, and not refused.
    """

    def parse(key: str, text: str) -> tuple[str, ...]:
        split = [*filter(None, _COMMA.split(trim(text)))] if has_gaps else _split(key, text)
        items = tuple(dict.fromkeys(split))
        if not items and not may_be_empty:
            raise ConfigError(key, text, "must not be empty")
        return items

    return ValueType(kind="list", valid="any" if may_be_empty else "not empty", parse=parse)


def throttled_replicas() -> ValueType:
    """A type that takes ``partition:broker`` pairs, one ``*``, or nothing."""

    def parse(key: str, text: str) -> tuple[str, ...]:
        items = tuple(item for item in _COMMA.split(trim(text)) if item)
        if items == ("*",) or all(_THROTTLED_REPLICA.fullmatch(item) for item in items):
            return items
        raise ConfigError(key, text, "expected partition:broker, partition:broker, ... or *")

    return ValueType(kind="list", valid="* or list of partition:broker", parse=parse)


def folder() -> ValueType:
    """A type for a local folder's absolute path; empty for none."""

    def parse(key: str, text: str) -> str:
        path = trim(text)
        if path and (not path.startswith("/") or "\0" in path or ".." in path.split("/")):
            raise ConfigError(key, text, "expected an absolute path without .., or nothing")
        return path

    return ValueType(kind="string", valid="an absolute path, or nothing", parse=parse)


def gzip_level() -> ValueType:
    """A type for gzip's levels: 1 to 9; -1 is the default."""

    def parse(key: str, text: str) -> int:
        level = _parse_integer(key, text, INT_MAX)
        if level != -1 and not 1 <= level <= 9:  # noqa: PLR2004 - gzip's own scale
            raise ConfigError(key, text, "must lie between 1 and 9 or be -1")
        return level

    return ValueType(kind="int", valid="1 .. 9 or -1", parse=parse)


def retention_time(inner: ValueType) -> ValueType:
    """A type for a broker's retention time: not zero; negative is unlimited."""

    def parse(key: str, text: str) -> int:
        number = inner.parse(key, text)
        if not isinstance(number, int) or number == 0:
            raise ConfigError(key, text, "must be unlimited (-1) or at least 1")
        return max(number, -1)

    return ValueType(kind=inner.kind, valid="-1 or >= 1", parse=parse)


def render(value: object) -> str:
    """Return a value's setting text, for parsing back; unset is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value)))
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _parse_boolean(key: str, text: str) -> bool:
    lowered = trim(text).lower()
    if lowered not in {"true", "false"}:
        raise ConfigError(key, text, "expected true or false")
    return lowered == "true"


def _integer(kind: str, largest: int, at_least: int | None, at_most: int | None) -> ValueType:
    def parse(key: str, text: str) -> int:
        number = _parse_integer(key, text, largest)
        if at_least is not None and number < at_least:
            raise ConfigError(key, text, f"must be at least {at_least}")
        if at_most is not None and number > at_most:
            raise ConfigError(key, text, f"must be at most {at_most}")
        return number

    return ValueType(kind=kind, valid=_range_text(at_least, at_most), parse=parse)


def _parse_integer(key: str, text: str, largest: int) -> int:
    trimmed = trim(text)
    is_number = len(trimmed) <= _MAX_INTEGER_LENGTH and _INTEGER.fullmatch(trimmed)
    number = int(trimmed) if is_number else None
    if number is None or not -largest - 1 <= number <= largest:
        bits = largest.bit_length() + 1
        raise ConfigError(key, text, f"expected a whole number of {bits} bits")
    return number


def _parse_double(key: str, text: str) -> float:
    match = _DOUBLE.fullmatch(text) if len(text) <= _MAX_DOUBLE_LENGTH else None
    if match is not None:
        return float(match[1])
    if text in {"Infinity", "+Infinity", "-Infinity"}:
        return -math.inf if text.startswith("-") else math.inf
    raise ConfigError(key, text, "expected a number")


def _member(options: type[enum.StrEnum], key: str, text: str) -> enum.StrEnum:
    for member in options:
        if member.value == text:
            return member
    raise ConfigError(key, text, "expected one of " + ", ".join(options))


def _split(key: str, text: str) -> list[str]:
    trimmed = trim(text)
    if not trimmed:
        return []
    items = _COMMA.split(trimmed)
    if "" in items:
        raise ConfigError(key, text, "has an empty item")
    return items


def _range_text(at_least: float | None, at_most: float | None) -> str:
    if at_least is None and at_most is None:
        return "any"
    if at_most is None:
        return f">= {at_least}"
    if at_least is None:
        return f"<= {at_most}"
    return f"{at_least} .. {at_most}"


# Configuration keys, declared as fields of a config class, and their precedence.
#
# A config class lists each setting once: a dataclass field whose value comes from ``setting``,
# which keeps Kafka's key, its type, default, unit and meaning in the field's metadata. Everything
# else (parsing, ``known_keys``, the nearest name to a misspelled one) is read from there.

_METADATA_KEY: Final = "storage_core.config"


class Scope(enum.StrEnum):
    """The owner of a key: topic, broker, cleaner or this program."""

    TOPIC = "topic"
    CLEANER = "cleaner"
    BROKER = "broker"
    PYLOG = "pylog"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerName:
    """A broker-wide key that gives a topic key its default."""

    name: str
    type: ValueType  # its own type, which may differ from the topic key's
    # One of its units in the topic key's unit; a negative value, which means no limit, is not
    # multiplied.
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key, as ``pylog config show`` prints it."""

    name: str  # Kafka's own name, or ours
    attribute: str  # the field of the config class
    scope: Scope  # the key's owner; PYLOG for a key that Kafka does not have
    # Broker-wide keys behind a topic key, the one that wins first.
    broker_names: tuple[BrokerName, ...]
    default: str  # the default as text that parses to it; empty where nothing is set
    type: ValueType
    unit: str  # unit of the value; empty where it has none
    doc: str  # one line for a person

    @property
    def valid(self) -> str:
        """The allowed values, as a person reads them."""
        return self.type.valid


def setting(
    name: str,
    value_type: ValueType,
    default: object,
    *,
    doc: str,
    scope: Scope,
    unit: str = "",
    broker_names: tuple[BrokerName, ...] = (),
) -> Any:
    """Declare a field of a config class with its key table row."""
    key = ConfigKey(
        name=name,
        attribute="",  # the class sets it
        scope=scope,
        broker_names=broker_names,
        default=render(default),
        type=value_type,
        unit=unit,
        doc=doc,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: key})


def keys_of(config_class: type[Any]) -> dict[str, ConfigKey]:
    """Return the keys of a config class by name, in order."""
    keys = {}
    for field in dataclasses.fields(config_class):
        key: ConfigKey = field.metadata[_METADATA_KEY]
        keys[key.name] = dataclasses.replace(key, attribute=field.name)
    return keys


def parse_settings(
    settings: Mapping[str, str], keys: Mapping[str, ConfigKey], *, names: Collection[str] = ()
) -> dict[str, object]:
    """Parse texts into the values of a config class's fields.

    Args:
        names: More names to suggest for a misspelled key.

    Returns:
        Values by field name, for the keys in settings only.
    """
    values = {}
    for name, text in settings.items():
        key = keys.get(name)
        if key is None:
            raise unknown_key(name, text, [*keys, *names])
        values[key.attribute] = key.type.parse(name, text)
    return values


def unknown_key(name: str, value: object, names: Collection[str]) -> ConfigError:
    """Return the error for an unknown key; it names the nearest key."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(name, value, f"unknown key{hint}")


class Origin(enum.StrEnum):
    """Where an effective value comes from."""

    TOPIC = "topic"
    BROKER = "broker"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValue:
    """A value that somebody set."""

    value: Any  # the parsed value, of the key's own type
    origin: Origin
    source_key: str


def resolve(
    keys: Mapping[str, ConfigKey], overrides: Mapping[str, str], broker: Mapping[str, str]
) -> dict[str, ResolvedValue]:
    """Return the values by key; a topic's own wins over the broker's.

    Args:
        overrides: The topic's own settings, by topic key.
        broker: Broker-wide settings, by broker key; other keys in it do not matter.
    """
    for name, text in overrides.items():
        if name not in keys:
            raise unknown_key(name, text, keys)
    resolved = {}
    for name, key in keys.items():
        if name in overrides:
            value = key.type.parse(name, overrides[name])
            resolved[name] = ResolvedValue(value=value, origin=Origin.TOPIC, source_key=name)
        elif (default := find_broker_default(key, broker)) is not None:
            resolved[name] = default
    return resolved


def find_broker_default(key: ConfigKey, broker: Mapping[str, str]) -> ResolvedValue | None:
    """Return a topic key's value from the broker's settings, else None. Of several units the
    finest wins, and the value is in it."""
    for broker_name in key.broker_names:
        text = broker.get(broker_name.name)
        if text is not None:
            value = broker_name.type.parse(broker_name.name, text)
            if isinstance(value, int) and broker_name.factor > 1 and value > 0:
                value *= broker_name.factor
            return ResolvedValue(value=value, origin=Origin.BROKER, source_key=broker_name.name)
    return None


# Releases of Kafka whose configs differ from those of the newest one.

CORDONED_KEY: Final = "cordoned.log.dirs"
# The release whose keys and types the config classes have.
NEWEST_RELEASE: Final = "4.4"
_NEW_IN_4_4: Final[Mapping[str, ValueType | None]] = dict.fromkeys(
    (
        *("errors.deadletterqueue.group.enable", "max.decompressed.message.bytes"),
        *("remote.copy.lag.ms", "log.remote.copy.lag.ms"),
        *("remote.copy.lag.bytes", "log.remote.copy.lag.bytes"),
    )
)
_NEW_SINCE_4_3: Final[Mapping[str, ValueType | None]] = {**_NEW_IN_4_4, CORDONED_KEY: None}
_OF_4_1: Final[Mapping[str, ValueType | None]] = {
    **_NEW_SINCE_4_3,
    **dict.fromkeys(("log.dirs", "log.dir"), string_list(has_gaps=True)),
}
_OF_4_0: Final[Mapping[str, ValueType | None]] = {
    **_OF_4_1,
    "internal.segment.bytes": None,
    "segment.bytes": int32(at_least=14),
}
# By release, the types of keys that it has otherwise; None where it does not know a key and ignores
# it. Keys that 4.0 removed are not among them: 3.9 checked their values when they were set.
# Sources: ``LogConfig`` and ``KafkaConfig`` of 3.9.1 to 4.4.0.
OTHER_TYPES: Final[Mapping[str, Mapping[str, ValueType | None]]] = {
    "3.9": {**_OF_4_0, "log.segment.bytes": int32(at_least=14), "node.id": int32()},
    "4.0": _OF_4_0,
    "4.1": _OF_4_1,
    "4.2": _NEW_SINCE_4_3,
    "4.3": _NEW_IN_4_4,
    NEWEST_RELEASE: {},
}


def keys_of_release(keys: Mapping[str, ConfigKey], release: str) -> Mapping[str, ConfigKey]:
    """Return keys with a release's own types. A key that the release does not know is as in the
    newest one."""
    types = OTHER_TYPES[release]
    return {
        key.name: replace(
            key,
            type=types.get(key.name) or key.type,
            broker_names=tuple(
                replace(name, type=types.get(name.name) or name.type) for name in key.broker_names
            ),
        )
        for key in keys.values()
    }
