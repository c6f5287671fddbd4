"""``partition.metadata``."""

from pathlib import Path

import pytest

from storage_core.checkpoint import (
    PartitionMetadata,
    encode_partition_metadata,
    parse_partition_metadata,
)
from storage_core.errors import CheckpointError
from tests.kit.golden_data import Golden

FILE = "partition.metadata"
TOPIC_ID = "6OhPo7FvRwiN63dAgYqoUA"


@pytest.mark.item("CKP-15")
def test_the_file_is_two_lines_without_a_last_newline():
    data = b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA"
    metadata = PartitionMetadata(topic_id=TOPIC_ID)
    assert encode_partition_metadata(metadata) == data
    assert parse_partition_metadata(data, file=FILE) == metadata


@pytest.mark.item("CKP-15")
@pytest.mark.parametrize(
    ("data", "version"),
    [
        pytest.param(b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA\n", 0, id="last newline"),
        pytest.param(
            b"version:\t 0\r\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA", 0, id="other white space"
        ),
        pytest.param(b"version: 7\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA", 7, id="later version"),
        pytest.param(b"v: 0\nt: 6OhPo7FvRwiN63dAgYqoUA==\nmore", 0, id="only the values count"),
    ],
)
def test_what_kafka_reads_is_read(data: bytes, version: int):
    found = parse_partition_metadata(data, file=FILE)
    assert found == PartitionMetadata(version=version, topic_id=TOPIC_ID)


@pytest.mark.item("CKP-15")
@pytest.mark.parametrize(
    ("data", "line"),
    [
        pytest.param(b"", 1, id="empty file"),
        pytest.param(b"version: 0\n", 2, id="no topic id"),
        pytest.param(b"version:0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA", 1, id="no white space"),
        pytest.param(b"version: -1\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA", 1, id="negative version"),
        pytest.param(b"version: x\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA", 1, id="version no number"),
        pytest.param(b"version: 0\ntopic_id: ", 2, id="empty id"),
        pytest.param(b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoU", 2, id="short id"),
        pytest.param(b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA=", 2, id="half the padding"),
        pytest.param(b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqo+A", 2, id="other base64"),
        pytest.param(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2, id="zero id"),
        pytest.param(b"version: 0\ntopic_id: a: b", 2, id="two colons"),
        pytest.param(b"version: 0\n\xff", 2, id="no UTF-8"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(data: bytes, line: int):
    with pytest.raises(CheckpointError) as raised:
        parse_partition_metadata(data, file=FILE)
    assert (raised.value.file, raised.value.line) == (FILE, line)


@pytest.mark.item("CKP-15")
def test_a_brokers_own_files_are_written_back_byte_for_byte(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path)
    files = sorted(directory.glob(f"*/{FILE}"))
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        assert encode_partition_metadata(parse_partition_metadata(data, file=str(file))) == data
