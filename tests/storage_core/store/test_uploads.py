"""Uploads: what an object is called, where a task says that it put one, what a time index tells."""

import numpy as np
import pytest

from storage_core.errors import InvalidNameError
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.store.generations import FileEntry
from storage_core.store.managed_store import (
    encode_location,
    is_log,
    last_timestamp,
    object_name,
    object_stem,
    parse_location,
)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("00000000000000000042.log", "00000000000000000042.log"),
        ("00000000000000000042.log.cleaned", "00000000000000000042.log"),
        ("00000000000000000042.log.swap", "00000000000000000042.log"),
        ("00000000000000000042.index", "00000000000000000042"),
        ("00000000000000000042.timeindex.swap", "00000000000000000042"),
        ("00000000000000000042.snapshot", "00000000000000000042"),
        ("leader-epoch-checkpoint", "partition"),
        ("partition.metadata", "partition"),
        ("99999999999999999999.log", "partition"),
    ],
)
def test_a_log_has_its_own_object_and_companions_share_one(name: str, stem: str):
    assert object_stem(name) == stem
    assert is_log(name) is stem.endswith(".log")


def test_names_of_one_attempt_never_repeat():
    assert [object_name("00000000000000000042.log", number) for number in (0, 1)] == [
        "00000000000000000042.log",
        "00000000000000000042-1.log",
    ]
    assert [object_name("partition", number) for number in (0, 1)] == [
        "partition.companions",
        "partition-1.companions",
    ]


def test_a_location_says_all_of_an_entry():
    entry = FileEntry(
        key="t-0/data/a/x", start=5, size_bytes=7, etag="e", modified_ms=9, largest_timestamp=11
    )
    assert parse_location(encode_location(entry)) == entry
    for broken in ("pylog-object:", "pylog-object:[]", 'pylog-object:{"key":"x"}', "/a/path"):
        with pytest.raises(InvalidNameError):
            parse_location(broken)


def time_index(*entries: tuple[int, int]) -> bytes:
    return np.array(list(entries), TIME_INDEX_ENTRY).tobytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(time_index((1000, 4), (2000, 9)), 2000, id="the last entry"),
        pytest.param(b"", -1, id="no record has a timestamp"),
        pytest.param(time_index((1000, 4), (0, 0)), None, id="preallocated"),
        pytest.param(time_index((0, 0)), None, id="nothing but zeros"),
        pytest.param(time_index((2000, 4), (1000, 9)), None, id="falling"),
        pytest.param(time_index((-5, 4)), None, id="negative"),
        pytest.param(time_index((1000, 4))[:-1], None, id="torn"),
    ],
)
def test_a_time_index_tells_the_largest_timestamp_or_nothing(content: bytes, expected: int | None):
    assert last_timestamp(content) == expected
