"""Leader epoch checkpoints: the form; what the entries do to each other is the cache's business."""

from pathlib import Path

import pytest

from storage_core.checkpoint import EpochEntry, encode_leader_epochs, parse_leader_epochs
from storage_core.errors import CheckpointError
from tests.kit.golden_data import Golden

FILE = "leader-epoch-checkpoint"


@pytest.mark.item("CKP-01")
@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n"], ids=["empty", "version", "no entries"])
def test_a_file_without_entries_has_none(data: bytes):
    assert parse_leader_epochs(data, file=FILE) == []


@pytest.mark.item("CKP-01", "CKP-03")
def test_entries_come_in_file_order_whatever_their_numbers():
    data = b"0\n4\n5 100\n3 50\n4 200\n-1 -7\n"
    entries = [EpochEntry(5, 100), EpochEntry(3, 50), EpochEntry(4, 200), EpochEntry(-1, -7)]
    assert parse_leader_epochs(data, file=FILE) == entries
    assert encode_leader_epochs(entries) == data


@pytest.mark.item("CKP-03")
@pytest.mark.parametrize(
    ("data", "line"),
    [
        pytest.param(b"0\n1\n5\n", 3, id="one field"),
        pytest.param(b"0\n1\n5 100 7\n", 3, id="three fields"),
        pytest.param(b"0\n2\n5 100\nfive 7\n", 4, id="epoch that is no number"),
        pytest.param(b"0\n1\n2147483648 7\n", 3, id="epoch of 33 bits"),
        pytest.param(b"0\n1\n 5\n", 3, id="leading blank that makes two fields"),
        pytest.param(b"0\n2\n5 100\n", 2, id="fewer entries than announced"),
        pytest.param(b"2\n0\n", 1, id="another version"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(data: bytes, line: int):
    with pytest.raises(CheckpointError) as raised:
        parse_leader_epochs(data, file=FILE)
    assert (raised.value.file, raised.value.line) == (FILE, line)


@pytest.mark.item("CKP-01")
def test_a_brokers_own_files_are_written_back_byte_for_byte(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path)
    files = sorted(directory.glob(f"*/{FILE}"))
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        assert encode_leader_epochs(parse_leader_epochs(data, file=str(file))) == data
