"""Amounts as people write them: ``64GiB``, ``90m``, ``0.5``."""

import re
from typing import Final

from storage_core.errors import ConfigError

_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]*)")
_LARGEST: Final = 2**63 - 1


def parse_bytes(option: str, text: str) -> int:
    """Read an amount of bytes: a number, or one with a unit such as ``GiB``.

    Args:
        option: Its name, for the error.
        text: What was written.

    Raises:
        ConfigError: It is no such amount.
    """
    return _parse(option, text, _BYTES, "a number of bytes such as 1073741824 or 64GiB")


def parse_duration_ms(option: str, text: str) -> int:
    """Read a duration with its unit, such as ``90m``, and return milliseconds.

    Args:
        option: Its name, for the error.
        text: What was written.

    Raises:
        ConfigError: It is no duration.
    """
    return _parse(option, text, _MILLISECONDS, "a duration such as 45s, 90m, 72h or 3d")


def parse_ratio(option: str, text: str) -> float:
    """Read a number between 0 and 1.

    Args:
        option: Its name, for the error.
        text: What was written.

    Raises:
        ConfigError: It is no such number.
    """
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(option, text, "expected a number between 0 and 1")
    return ratio


def _parse(option: str, text: str, units: dict[str, int], expected: str) -> int:
    found = _AMOUNT.fullmatch(text.strip())
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(option, text, f"expected {expected}")
    amount = int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if amount > _LARGEST:
        raise ConfigError(option, text, f"expected {expected}, at most {_LARGEST}")
    return amount
