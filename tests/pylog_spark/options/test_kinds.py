"""Amounts of bytes, durations, ratios and places as people write them."""

from datetime import UTC, datetime

import pytest

from pylog_spark.options.option import (
    parse_bytes,
    parse_duration_ms,
    parse_position,
    parse_ratio,
)
from storage_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        ("64GiB", 64 * 2**30),
        ("64 gib", 64 * 2**30),
        ("1.5MB", 1_500_000),
        ("8EiB", None),
        ("-1", None),
        ("1e9", None),
        ("", None),
        ("999999999999999TiB", None),
    ],
)
def test_bytes_have_decimal_and_binary_units(text, amount):
    if amount is None:
        with pytest.raises(ConfigError, match=r"--max-bytes.*64GiB"):
            parse_bytes("--max-bytes", text)
    else:
        assert parse_bytes("--max-bytes", text) == amount


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("45s", 45_000),
        ("90m", 5_400_000),
        ("1.5h", 5_400_000),
        ("72h", 259_200_000),
        ("3d", 259_200_000),
        ("10ms", 10),
        ("10", None),
        ("10 minutes", None),
    ],
)
def test_a_duration_says_its_unit(text, milliseconds):
    if milliseconds is None:
        with pytest.raises(ConfigError, match="such as 45s"):
            parse_duration_ms("--max-duration", text)
    else:
        assert parse_duration_ms("--max-duration", text) == milliseconds


@pytest.mark.parametrize("text", ["-0.1", "1.01", "nan", "half"])
def test_a_ratio_lies_between_nothing_and_everything(text):
    assert parse_ratio("--max-delete-ratio", "0.25") == 0.25
    with pytest.raises(ConfigError, match="between 0 and 1"):
        parse_ratio("--max-delete-ratio", text)


# Half past midnight in Berlin, where it is already the 22nd.
_NOW_MS = int(datetime(2026, 11, 21, 23, 30, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("4711", 4711),
        ("-10", -10),
        ("2026-11-21", "2026-11-21T00:00Z"),
        ("2026-11-21T07:56+01:00", "2026-11-21T06:56Z"),
        ("2026-11-21 07:56 Europe/Berlin", "2026-11-21T06:56Z"),
        ("2026-07-21 Europe/Berlin", "2026-07-20T22:00Z"),
        ("now", "2026-11-21T23:30Z"),
        ("today", "2026-11-21T00:00Z"),
        ("Yesterday", "2026-11-20T00:00Z"),
        ("today Europe/Berlin", "2026-11-21T23:00Z"),
        ("yesterday 08:00", "2026-11-20T08:00Z"),
        ("today 08:00 Europe/Berlin", "2026-11-22T07:00Z"),
        ("-1d", "2026-11-20T23:30Z"),
        ("-90m", "2026-11-21T22:00Z"),
        ("2h ago", "2026-11-21T21:30Z"),
        ("1.5 hours ago", "2026-11-21T22:00Z"),
        ("2 Weeks ago", "2026-11-07T23:30Z"),
        ("2 weeks", None),
        ("-2 weeks ago", None),
        ("-5 moons", None),
        ("999999999 weeks ago", None),
        ("99999999999999 weeks ago", None),
        ("tomorrow", None),
        ("today 25:00", None),
        ("now 08:00", None),
        ("-99999999999999999999", None),
        ("2026-13-01", None),
    ],
)
def test_a_place_is_an_offset_or_a_time(text, place):
    if place is None:
        with pytest.raises(ConfigError, match="yesterday"):
            parse_position("--from", text, _NOW_MS)
        return
    expected = place if isinstance(place, int) else datetime.fromisoformat(place)
    found = parse_position("--from", text, _NOW_MS)
    assert found == expected
    assert isinstance(found, int) or found.tzinfo is not None


def test_a_zone_that_nobody_knows_is_named():
    with pytest.raises(ConfigError, match="no time zone 'Mars/Olympus'"):
        parse_position("--from", "today Mars/Olympus")
