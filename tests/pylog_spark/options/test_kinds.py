"""Amounts of bytes, durations and ratios as people write them."""

import pytest

from pylog_spark.options.option import parse_bytes, parse_duration_ms, parse_ratio
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
