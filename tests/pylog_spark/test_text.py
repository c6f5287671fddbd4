"""What comes out of files, made safe to show."""

import pytest

from pylog_spark.text import printable, readable_bytes
from storage_core.wording import time_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-0", "orders-0"),
        ("Grüße 漢字 😀", "Grüße 漢字 😀"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202etxt", r"\u202etxt"),
        ("\udcff", r"\xff"),
        ("\ud800", r"\ud800"),
        ("\x00\x7f", r"\x00\x7f"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_act_upon_is_escaped(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"key", "key"),
        ("ü".encode(), "ü"),
        (b"\xff\x00", r"\xff\x00"),
        (b"x" * 9, "xxxxxxxx..."),
        (b"x" * 8, "xxxxxxxx"),
    ],
)
def test_bytes_are_shown_as_text_where_they_are_text(data: bytes, shown: str):
    assert readable_bytes(data, limit=8) == shown


@pytest.mark.parametrize(
    ("epoch_ms", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
        (-1, "-1"),
        (-2, "1969-12-31T23:59:59.998Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (-62_135_596_800_001, "-62135596800001"),
        (2**63 - 1, "9223372036854775807"),
    ],
)
def test_times_are_in_utc_to_the_millisecond(epoch_ms: int, shown: str):
    assert time_text(epoch_ms) == shown
