"""``--set KEY=VALUE``."""

from collections.abc import Iterable

from storage_core.config import CleanerConfig, LogConfig, split_settings
from storage_core.errors import ConfigError


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts; a key that is given twice has its last value.

    Raises:
        ConfigError: A text has no ``=``, or nothing before it.
    """
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("--set", text, "expected KEY=VALUE")
        settings[key.strip()] = value
    return settings


def whole_config(texts: Iterable[str]) -> tuple[LogConfig, CleanerConfig]:
    """Return the config of one partition directory, of which these texts are all there is.

    Raises:
        ConfigError: A key is unknown, or a value is malformed or out of range.
    """
    topic, cleaner = split_settings(parse_assignments(texts))
    return LogConfig.from_topic_overrides(topic), CleanerConfig.from_settings(cleaner)
