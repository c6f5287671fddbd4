"""Offset maps are read, and what is none is named with its line or record."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.cluster import offset_map
from storage_core.cluster.offset_map import parse_offset_map, read_offset_syncs
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from tests.cluster.storage.test_differences import rest
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

NAMES = "topic,partition,upstream_offset,downstream_offset\n"


def test_lines_may_stand_in_any_order():
    text = f"\ufeff{NAMES}t,0,10,12\r\n\r\nu,1,{2**63 - 1},0\nt,0,5,5\n"
    found = parse_offset_map(text.encode(), "map.csv")
    assert {partition: syncs.tolist() for partition, syncs in found.items()} == {
        TopicPartition("t", 0): [[5, 5], [10, 12]],
        TopicPartition("u", 1): [[2**63 - 1, 0]],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: expected topic,partition,upstream_offset,downstream_offset, found ''"),
        ("topic,partition\n", "found 'topic,partition'"),
        (f"{NAMES}t,0,1\n", "line 2: expected 4 cells, found 3"),
        (f"{NAMES}t,0,1,2\nt,0,x,2\n", "line 3: expected upstream_offset as a whole number"),
        (f"{NAMES}t,0,1,-2\n", "line 2: expected downstream_offset as a whole number"),
        (f"{NAMES}t,0,1,{2**63}\n", f"up to {2**63 - 1}, found '{2**63}'"),
        (f"{NAMES}t,{2**31},1,2\n", "line 2: expected partition as a whole number"),
        (f"{NAMES}t,0,\u0661,2\n", "line 2: expected upstream_offset"),
        (f"{NAMES}t, 0,1,2\n", "line 2: expected partition"),
        (f"{NAMES}../t,0,1,2\n", "line 2: "),
        (f'{NAMES}"t,0,1,2\n', "line 2: "),
        (f"{NAMES}t,0,1,2\nt,0,1,3\n", "offset 1 of t-0 has two lines"),
        (f"{NAMES}t,0,{'9' * 5000},2\n", "line 2: expected upstream_offset"),
    ],
)
def test_a_wrong_line_is_named(text: str, reason: str):
    with pytest.raises(ConfigError) as refused:
        parse_offset_map(text.encode(), "map.csv")
    assert reason in str(refused.value)
    assert "map.csv" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_what_is_no_text_or_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=f"byte {len(NAMES)}: expected UTF-8"):
        parse_offset_map(NAMES.encode() + b"\xff", "map.csv")
    monkeypatch.setattr(offset_map, "_MOST_PAIRS", 1)
    with pytest.raises(ConfigError, match="more than 1 pairs"):
        parse_offset_map(f"{NAMES}t,0,1,2\nt,0,2,3\n".encode(), "map.csv")
    monkeypatch.setattr(offset_map, "MAX_MAP_BYTES", 10)
    with pytest.raises(ConfigError, match="longer than the 10 bytes"):
        parse_offset_map(NAMES.encode(), "map.csv")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_map_or_refused(content: bytes):
    for prefix in (b"", NAMES.encode()):
        with suppress(ConfigError):
            parse_offset_map(prefix + content, "map.csv")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"\0\1t\0\0\0\0", bytes(15), "expected 8 bytes, found 7"),
        (b"\0\1t\0\0\0\0", bytes(17), "found 1 more bytes"),
        (b"\0\1t\0\0\0", bytes(16), "expected 4 bytes"),
        (None, bytes(16), "expected 2 bytes, found 0"),
        (b"\0\0\0\0\0\0", bytes(16), "is not a topic name"),
        (b"\xff\xff\0\0\0\0", bytes(16), ""),
        (b"\0\1/\0\0\0\0", bytes(16), "a topic name has only"),
        (b"\0\1t\xff\0\0\0", bytes(16), "expected a partition and two offsets"),
        (b"\0\1t\0\0\0\0", b"\xff" + bytes(15), "expected a partition and two offsets"),
    ],
)
def test_a_record_that_is_no_offset_sync_is_named(
    tmp_path: Path, key: bytes | None, value: bytes, reason: str
):
    records = (RecordSpec(key=b"\0\1t\0\0\0\0", value=bytes(16)), RecordSpec(key=key, value=value))
    directory = write_partition(
        tmp_path / "mm2-offset-syncs.b.internal-0",
        [SegmentSpec(base_offset=0, batches=[BatchSpec(records=records, base_offset=40)])],
    )
    with pytest.raises(ConfigError) as refused:
        read_offset_syncs(rest(directory, 1))
    text = str(refused.value)
    assert "offset 41: expected" in text
    assert reason in text
    assert str(directory) in text
