"""``meta.properties``, of one directory and of all of a broker's."""

import dataclasses
from pathlib import Path

import pytest

from storage_core.checkpoint import MetaProperties, parse_meta_properties, validate_one_broker
from storage_core.errors import (
    CheckpointError,
    InconsistentClusterIdError,
    InconsistentDirectoriesError,
)
from storage_core.filenames import META_PROPERTIES_FILE
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
    with pytest.raises(CheckpointError, match=reason) as raised:
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
    with pytest.raises(InconsistentClusterIdError) as raised:
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
    with pytest.raises(InconsistentDirectoriesError, match=reason) as raised:
        validate_one_broker({"/a": META, "/b": dataclasses.replace(META, **other)})
    assert raised.value.path == "/b"
