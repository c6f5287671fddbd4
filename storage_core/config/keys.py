"""Configuration keys, declared as fields of a config class, and their precedence.

A config class lists each setting once: a dataclass field whose value comes from ``setting``,
which keeps Kafka's key, its type, default, unit and meaning in the field's metadata. Everything
else (parsing, ``known_keys``, the nearest name to a misspelled one) is read from there.
"""

import dataclasses
import difflib
import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from storage_core.config.values import ValueType, render
from storage_core.errors import ConfigError

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
