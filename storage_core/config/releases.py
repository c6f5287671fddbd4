"""Releases of Kafka whose configs differ from those of the newest one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from storage_core.config.keys import ConfigKey
from storage_core.config.values import ValueType, int32, string_list

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
    """Return keys with a release's own types.

    A key that the release does not know is as in the newest one.
    """
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
