"""Amounts as people write them: ``64GiB``, ``90m``, ``0.5``; and places in a log."""

import re
from datetime import UTC, datetime
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
_OFFSET: Final = re.compile(r"-?[0-9]{1,19}")


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


def parse_position(option: str, text: str) -> int | datetime:
    """Read a place in a log: an offset, a number of offsets before its end, or a time.

    Args:
        option: Its name, for the error.
        text: What was written: ``4711``, ``-10``, ``2026-11-21T07:56:03Z``. A time without a zone
            is in UTC, as all times that this program shows.

    Returns:
        An offset; below zero, how many offsets before the log's end; or a time.

    Raises:
        ConfigError: It is neither.
    """
    expected = "expected an offset, -N for N offsets before the end, or a time as 2026-11-21T07:56"
    if _OFFSET.fullmatch(text.strip()):
        offset = int(text)
        if abs(offset) > _LARGEST:
            raise ConfigError(option, text, expected)
        return offset
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(option, text, expected) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _parse(option: str, text: str, units: dict[str, int], expected: str) -> int:
    found = _AMOUNT.fullmatch(text.strip())
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(option, text, f"expected {expected}")
    amount = int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if amount > _LARGEST:
        raise ConfigError(option, text, f"expected {expected}, at most {_LARGEST}")
    return amount
