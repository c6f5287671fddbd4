"""Which directories are written, and which are refused by name."""

from pathlib import Path

import pytest

from storage_core.catalog.off_switch import OFF_SWITCH_FILE
from storage_core.checkpoint.checkpoints import parse_partition_metadata
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.writing import publication
from storage_core.writing.publication import commit_write, hold_directory, read_target
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.storage_core.writing.writes import begin, records_of, request_of, stage, write


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def refusal(directory: Path) -> str:
    before = read_tree(directory)
    with pytest.raises(GuardRefusedError) as caught:
        begin(request_of(directory))
    assert str(directory) in str(caught.value)
    assert read_tree(directory) == before
    return caught.value.code


def test_an_absent_an_empty_and_a_written_directory_are_written(directory):
    for records in (range(3), range(3, 5)):
        write(request_of(directory), records_of(records))
    empty = directory.parent / "empty"
    empty.mkdir()
    (empty / "pylog-write.json.tmp").write_bytes(b"{")  # somebody was killed in the first step
    write(request_of(empty), records_of(range(3)))
    assert read_target(empty).run_id


@pytest.mark.thorough
def test_a_brokers_directory_is_refused_whoever_wrote_it(directory, tmp_path):
    assert refusal(Golden("broker-dir").unpack(tmp_path)) == "TARGET_IS_A_BROKERS"
    write(request_of(directory), records_of(range(3)))
    (directory / "meta.properties").write_text("version=1\n")
    assert refusal(directory) == "TARGET_IS_A_BROKERS"


def test_a_directory_with_somebody_elses_files_is_refused(directory):
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    assert refusal(directory) == "TARGET_NOT_EMPTY"
    (directory / "notes.txt").unlink()
    write(request_of(directory), records_of(range(3)))
    (directory / "photographs").mkdir()
    assert refusal(directory) == "TARGET_NOT_EMPTY"


@pytest.mark.thorough
def test_nobody_else_uses_a_directory_while_a_write_begins_or_commits(directory):
    write(request_of(directory), records_of(range(3)))
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(3, 5))])
    with LogDirectoryLock(directory):  # as a broker does, or pylog run
        assert refusal(directory) == "LOG_DIRECTORY_IN_USE"
        with pytest.raises(GuardRefusedError, match="is locked by process"):
            commit_write(run, staged)
    commit_write(run, staged)
    with hold_directory(directory), pytest.raises(GuardRefusedError):
        LogDirectoryLock(directory).acquire()
    assert not (directory / ".lock").exists()


def test_the_off_switch_holds(directory):
    write(request_of(directory), records_of(range(3)))
    (directory / OFF_SWITCH_FILE).write_text("not now")
    assert refusal(directory) == "SWITCHED_OFF"


def test_a_place_beside_which_nothing_can_wait_is_refused(directory, monkeypatch):
    monkeypatch.setattr(publication, "scratch_home", lambda *_: None)
    directory.mkdir()
    with pytest.raises(GuardRefusedError, match="mount point") as caught:
        begin(request_of(directory))
    assert caught.value.code == "NO_STAGING"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"run_id": 1}', '{"format": "other"}', '{"version": 2}']
)
def test_a_state_file_that_is_damaged_is_named(directory, content):
    directory.mkdir()
    (directory / "pylog-write.json").write_text(content)
    with pytest.raises(StorageError, match=r"pylog-write\.json"):
        begin(request_of(directory))


def test_new_partitions_have_the_topics_id(directory):
    ids = {"t": "z7Bq0v9lTLWsqe1eqY2Bhg"}
    write(request_of(directory, topic_ids=ids), records_of(range(3)))
    for number in range(2):
        content = (directory / f"t-{number}" / "partition.metadata").read_bytes()
        assert parse_partition_metadata(content, file="x").topic_id == ids["t"]
