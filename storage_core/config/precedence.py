"""Which of several settings of one thing is in force."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.config.keys import ConfigKey, unknown_key


class Origin(enum.StrEnum):
    """Where an effective value comes from."""

    TOPIC = "topic"
    BROKER = "broker"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValue:
    """A value that somebody set.

    Attributes:
        value: The parsed value, of the key's own type.
        origin: TOPIC or BROKER.
        source_key: The key that gave it.
    """

    value: Any
    origin: Origin
    source_key: str


def resolve(
    keys: Mapping[str, ConfigKey], overrides: Mapping[str, str], broker: Mapping[str, str]
) -> dict[str, ResolvedValue]:
    """Return the values that somebody set, by key; a topic's own wins over the broker's.

    Args:
        keys: The topic keys.
        overrides: The topic's own settings, by topic key.
        broker: Broker-wide settings, by broker key; other keys in it do not matter.

    Raises:
        ConfigError: An override is unknown, or a value is malformed or out of range.
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
    """Find the value that a broker's settings give to a topic key: the finest unit that is set.

    Raises:
        ConfigError: The value is malformed or out of range.
    """
    for broker_name in key.broker_names:
        text = broker.get(broker_name.name)
        if text is not None:
            value = broker_name.type.parse(broker_name.name, text)
            if isinstance(value, int) and broker_name.factor > 1 and value > 0:
                value *= broker_name.factor
            return ResolvedValue(value=value, origin=Origin.BROKER, source_key=broker_name.name)
    return None
