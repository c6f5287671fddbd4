"""``--set KEY=VALUE``."""

from collections.abc import Iterable

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
