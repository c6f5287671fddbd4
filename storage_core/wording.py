"""Counts, points in time and spans as a person reads them."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Times within years 1 to 9999 of a calendar: 1 January of year 1 to the end of 9999.
_FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
# For a span of at least this length, the smallest unit in its text.
_SMALLEST_UNITS: Final = (
    (timedelta(days=1), "hours"),
    (timedelta(hours=1), "minutes"),
    (timedelta(minutes=1), "seconds"),
    (timedelta(0), "milliseconds"),
)


def time_text(epoch_ms: int) -> str:
    """Return a point in time in UTC, for people. -1 and times beyond the calendar are returned
    as numbers."""
    if epoch_ms == -1 or not _FIRST_MS <= epoch_ms <= LAST_MS:
        return str(epoch_ms)
    whole, milliseconds = divmod(epoch_ms, 1000)
    at = _EPOCH + timedelta(seconds=whole)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def span_text(span_ms: int) -> str:
    """Return a span of time in words: "6 days and 3 hours". A very long span is in milliseconds."""
    from humanize import precisedelta  # noqa: PLC0415  # who prints no span does not wait for it

    try:
        span = timedelta(milliseconds=abs(span_ms))
    except OverflowError:
        return f"{span_ms} ms"
    unit = next(unit for least, unit in _SMALLEST_UNITS if span >= least)
    return precisedelta(span, minimum_unit=unit, format="%d")


def count_text(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, in the singular for one.

    Args:
        plural: The plural, where it is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
