"""Small files of a broker and of a partition, and the ids in them."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import errors
from storage_core.checkpoint import (
    CleanShutdown,
    MetaProperties,
    PartitionMetadata,
    encode_clean_shutdown,
    encode_partition_metadata,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_partition_metadata,
    validate_one_broker,
)
from storage_core.checkpoint.broker_files import encode_quorum_state, parse_quorum_state
from storage_core.checkpoint.checkpoints import (
    ZERO_UUID,
    encode_uuid,
    is_reserved_directory_id,
    parse_uuid,
)
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE
from tests.kit.golden_data import Golden

FILE = "/data/meta.properties"
DIRECTORY_ID = "ohZNig90xgRlmLmr-NUttg"
META = MetaProperties(version=1, cluster_id="c", node_id=1, directory_id=DIRECTORY_ID)


@pytest.mark.item("CKP-17")
def test_a_brokers_own_file_is_read(tmp_path: Path):
    data = (Golden("broker-dir").unpack(tmp_path) / META_PROPERTIES_FILE).read_bytes()
    assert parse_meta_properties(data, file=FILE) == MetaProperties(
        version=1,
        cluster_id="V3CHegy_ZdcmiWckVUA0FQ",
        node_id=1,
        directory_id="ohZNig90xgRlmLmr-NUttg",
    )


@pytest.mark.item("CKP-17")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", (0, None, None, None), id="empty is version 0"),
        pytest.param(b"version=0\nbroker.id=3\n", (0, None, 3, None), id="version 0"),
        pytest.param(
            b"broker.id=3\nnode.id=4\ncluster.id=c\n", (0, "c", 3, None), id="version 0 by default"
        ),
        pytest.param(b"version: 1 \nnode.id:4\ncluster.id c", (1, "c", 4, None), id="version 1"),
        pytest.param(
            b"version=1\nnode.id=4\ncluster.id=c\nbroker.id=9\n", (1, "c", 4, None), id="old key"
        ),
    ],
)
def test_each_version_has_its_own_keys(data: bytes, expected: tuple[object, ...]):
    assert dataclasses.astuple(parse_meta_properties(data, file=FILE)) == expected


@pytest.mark.item("CKP-17")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"version=2\n", "expected 0 or 1, found 2", id="later version"),
        pytest.param(b"version=one\n", "version: expected a number", id="version no number"),
        pytest.param(b"version=1\ncluster.id=c\n", r"node\.id is missing", id="no node"),
        pytest.param(b"version=1\nnode.id=1\n", r"cluster\.id is missing", id="no cluster"),
        pytest.param(b"broker.id=x\n", r"broker\.id: expected a number", id="node no number"),
        pytest.param(b"directory.id=x\n", r"directory\.id: expected an id", id="directory no id"),
        pytest.param(b"key=\\u12\n", "uXXXX", id="malformed escape"),
    ],
)
def test_a_file_that_says_too_little_or_nonsense_is_refused(data: bytes, reason: str):
    with pytest.raises(errors.CheckpointError, match=reason) as raised:
        parse_meta_properties(data, file=FILE)
    assert raised.value.file == FILE


@pytest.mark.item("DIR-11")
def test_directories_of_one_broker_agree():
    other = dataclasses.replace(META, directory_id="Y0x2kbxs_vG_YmsMBH-UEg")
    nameless = MetaProperties(version=0, cluster_id=None, node_id=None, directory_id=None)
    validate_one_broker({})
    validate_one_broker({"/a": META, "/b": other, "/c": nameless, "/d": nameless})


@pytest.mark.item("DIR-11")
def test_directories_of_two_clusters_are_refused():
    other = dataclasses.replace(META, cluster_id="d", directory_id=None)
    with pytest.raises(errors.InconsistentClusterIdError) as raised:
        validate_one_broker({"/b": other, "/a": META})
    error = raised.value
    assert (error.path, error.expected, error.actual) == ("/b", "c", "d")
    assert error.kafka_code == 104


@pytest.mark.item("DIR-11")
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        pytest.param({"node_id": 2, "directory_id": None}, "node 2, but /a to node 1", id="node"),
        pytest.param({}, f"{DIRECTORY_ID} is that of /a too", id="same directory id"),
        pytest.param({"directory_id": "AAAAAAAAAAAAAAAAAAAAAg"}, "is reserved", id="reserved id"),
    ],
)
def test_directories_of_two_nodes_or_of_one_id_are_refused(other: dict[str, object], reason: str):
    with pytest.raises(errors.InconsistentDirectoriesError, match=reason) as raised:
        validate_one_broker({"/a": META, "/b": dataclasses.replace(META, **other)})
    assert raised.value.path == "/b"


METADATA = "partition.metadata"
TOPIC_ID = "6OhPo7FvRwiN63dAgYqoUA"


@pytest.mark.item("CKP-15")
def test_the_file_is_two_lines_without_a_last_newline():
    data = b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA"
    metadata = PartitionMetadata(topic_id=TOPIC_ID)
    assert encode_partition_metadata(metadata) == data
    assert parse_partition_metadata(data, file=METADATA) == metadata


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
    found = parse_partition_metadata(data, file=METADATA)
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
    with pytest.raises(errors.CheckpointError) as raised:
        parse_partition_metadata(data, file=METADATA)
    assert (raised.value.file, raised.value.line) == (METADATA, line)


@pytest.mark.thorough
@pytest.mark.item("CKP-15")
def test_a_brokers_own_files_are_written_back_byte_for_byte(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path)
    files = sorted(directory.glob(f"*/{METADATA}"))
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        assert encode_partition_metadata(parse_partition_metadata(data, file=str(file))) == data


@given(st.binary(min_size=16, max_size=16))
def test_the_text_of_an_id_parses_to_itself(value: bytes):
    text = encode_uuid(value)
    assert len(text) == 22
    assert parse_uuid(text) == text
    assert parse_uuid(f"{text}==") == text


def test_bits_beyond_the_id_are_dropped():
    assert parse_uuid("AAAAAAAAAAAAAAAAAAAAAP") == ZERO_UUID


def test_an_id_has_sixteen_bytes():
    with pytest.raises(ValueError, match="16 bytes"):
        encode_uuid(b"short")


@pytest.mark.parametrize(
    ("number", "reserved"),
    [(0, True), (1, True), (2, True), (99, True), (100, False), (2**63 - 1, False), (2**63, True)],
)
def test_the_first_hundred_directory_ids_are_reserved(number: int, reserved: bool):
    assert is_reserved_directory_id(encode_uuid(number.to_bytes(16))) is reserved
    assert is_reserved_directory_id(encode_uuid(b"\x01" + number.to_bytes(15))) is False


@pytest.mark.item("CKP-16")
def test_the_bytes_are_kafkas():
    assert encode_clean_shutdown(11) == b'{"version":0,"brokerEpoch":11}'
    assert encode_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'


@pytest.mark.item("CKP-16")
def test_a_brokers_own_marker_is_written_back_byte_for_byte(tmp_path: Path):
    data = (Golden("broker-dir").unpack(tmp_path) / CLEAN_SHUTDOWN_FILE).read_bytes()
    marker = parse_clean_shutdown(data)
    assert marker == CleanShutdown(broker_epoch=11)
    assert encode_clean_shutdown(marker.broker_epoch) == data


@pytest.mark.item("CKP-16")
def test_keys_that_are_not_known_do_not_matter():
    data = b'{"brokerEpoch": 7, "version": 3, "more": [1]}'
    assert parse_clean_shutdown(data) == CleanShutdown(broker_epoch=7)


@pytest.mark.item("CKP-16")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"version":0}', id="no epoch"),
        pytest.param(b'{"version":0,"brokerEpoch":null}', id="null"),
        pytest.param(b'{"version":0,"brokerEpoch":true}', id="a boolean"),
        pytest.param(b'{"version":0,"brokerEpoch":9223372036854775808}', id="65 bits"),
        pytest.param(b'{"brokerEpoch":' + b"9" * 5_000 + b"}", id="endless number"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 60_000, id="deep nesting"),
        pytest.param(b" " * 100_000 + b'{"brokerEpoch":7}', id="far too long"),
    ],
)
def test_what_cannot_be_read_means_that_no_epoch_is_known(data: bytes):
    assert parse_clean_shutdown(data) == CleanShutdown(broker_epoch=-1)


@given(st.binary(max_size=100))
def test_no_bytes_raise(data: bytes):
    assert isinstance(parse_clean_shutdown(data), CleanShutdown)


@pytest.mark.parametrize("voters", [None, (1, 2)])
def test_what_is_written_reads_back(voters):
    state = parse_quorum_state(encode_quorum_state(epoch=7, voters=voters), file="quorum-state")
    assert (state["leader_id"], state["leader_epoch"], state["voted_id"]) == (-1, 7, -1)
    assert state["data_version"] == (1 if voters is None else 0)
    assert state.get("current_voters") == (voters and [{"voterId": node} for node in voters])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"leaderEpoch":2147483648}', "leaderEpoch: expected a number up to 2147483647"),
        ('{"leaderEpoch":"7"}', 'leaderEpoch: expected a number up to 2147483647: "7"'),
        ('{"leaderId":1e400}', "leaderId: expected a number up to 2147483647: Infinity"),
        ('{"votedId":true}', "votedId: expected a number up to 2147483647: true"),
        ('{"data_version":2}', "data_version: expected a number up to 1: 2"),
        ('{"currentVoters":{"1":2}}', "currentVoters: expected objects with voterId"),
        ('{"currentVoters":[{"voterId":"x"}]}', "currentVoters: expected objects with voterId"),
        ('{"other":1}', "expected the fields of versions 0 and 1, found other"),
    ],
)
def test_a_value_that_no_field_can_have_is_named(text: str, reason: str):
    with pytest.raises(errors.CheckpointError, match=re.escape(reason)):
        parse_quorum_state(text.encode(), file="quorum-state")
