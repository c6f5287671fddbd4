"""The directory that partitions are written into: whose it is, and one run at a time."""

import errno
from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import parse_offset_checkpoint
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.materialize import (
    STATE_FILE,
    MaterializedTarget,
    hold_target,
    read_target,
    write_target,
)
from storage_core.roots.broker import write_checkpoints

OURS = {"root": "s3://b/managed", "root_id": "a" * 32}
STATE = MaterializedTarget(**OURS, generations={"t-0": 3})


@pytest.mark.parametrize("exists", [False, True], ids=["absent", "empty"])
def test_a_directory_that_is_absent_or_empty_becomes_ours(tmp_path, exists):
    directory = tmp_path / "out"
    if exists:
        directory.mkdir()
    with hold_target(directory, **OURS) as state:
        assert state.generations == {}
        assert (directory / STATE_FILE).exists()
    assert read_target(directory, **OURS) == state


def test_a_filesystem_without_locks_is_a_storage_error_with_the_path(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.raises(StorageError, match=f"{tmp_path}: No locks available"),
        hold_target(tmp_path, **OURS),
    ):
        pass


def test_what_a_run_left_is_read_by_the_next(tmp_path):
    write_target(tmp_path, STATE)
    with hold_target(tmp_path, **OURS) as state:
        assert state == STATE


def test_a_run_that_was_killed_in_its_first_write_is_no_stranger(tmp_path):
    (tmp_path / f"{STATE_FILE}.tmp").write_text("{")
    with hold_target(tmp_path, **OURS) as state:
        assert state.generations == {}


def test_somebodys_directory_is_refused_and_left_alone(tmp_path):
    (tmp_path / "orders-0").mkdir()
    with (
        pytest.raises(GuardRefusedError, match="has orders-0") as caught,
        hold_target(tmp_path, **OURS),
    ):
        pass
    assert caught.value.code == "TARGET_NOT_EMPTY"
    assert [path.name for path in tmp_path.iterdir()] == ["orders-0"]


def test_a_directory_from_another_root_is_refused(tmp_path):
    write_target(tmp_path, STATE)
    with pytest.raises(GuardRefusedError, match="s3://b/managed, which is another"):
        read_target(tmp_path, root="s3://b/other", root_id="b" * 32)


def test_two_runs_at_once_do_not_write_one_directory(tmp_path):
    with (
        hold_target(tmp_path, **OURS),
        pytest.raises(GuardRefusedError) as caught,
        hold_target(tmp_path, **OURS),
    ):
        pass
    assert caught.value.code == "TARGET_IN_USE"


@pytest.mark.parametrize("content", ["", "[]", '{"format": "x"}'])
def test_a_damaged_state_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(StorageError, match=STATE_FILE):
        read_target(tmp_path, **OURS)


@pytest.mark.parametrize(
    "generations",
    ['{"../x-0": 1}', '{"t-0": 1e999}', '{"t-0": "1"}', '{"t-0": true}', "[]", "[" * 100_000],
    ids=["elsewhere", "endless", "a text", "a truth", "a list", "deep"],
)
def test_generations_that_nobody_wrote_are_an_error(tmp_path, generations):
    write_target(tmp_path, replace(STATE, generations={}))
    path = tmp_path / STATE_FILE
    path.write_text(path.read_text().replace("{}", generations))
    with pytest.raises(StorageError, match=STATE_FILE):
        read_target(tmp_path, **OURS)


def test_a_state_of_a_later_version_is_refused(tmp_path):
    write_target(tmp_path, STATE)
    path = tmp_path / STATE_FILE
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(StorageError, match="of version 1, found"):
        read_target(tmp_path, **OURS)


def test_checkpoint_lines_of_other_partitions_stay(tmp_path):
    one, other = TopicPartition("t", 0), TopicPartition("t", 1)
    write_checkpoints(tmp_path, {"recovery-point-offset-checkpoint": {one: 5}})
    write_checkpoints(tmp_path, {"recovery-point-offset-checkpoint": {other: 7}})
    content = (tmp_path / "recovery-point-offset-checkpoint").read_bytes()
    assert parse_offset_checkpoint(content, file="x") == {one: 5, other: 7}


def test_a_malformed_checkpoint_is_not_written_over(tmp_path):
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("what?")
    with pytest.raises(CheckpointError):
        write_checkpoints(tmp_path, {path.name: {TopicPartition("t", 0): 5}})
    assert path.read_text() == "what?"


@pytest.mark.parametrize(("of_file", "of_folder"), [(0o666, 0o755), (0o664, 0o755), (0o666, 0o775)])
def test_a_state_that_more_may_write_than_its_directory_is_refused(tmp_path, of_file, of_folder):
    write_target(tmp_path, STATE)
    (tmp_path / STATE_FILE).chmod(of_file)
    tmp_path.chmod(of_folder)
    with pytest.raises(StorageError, match=rf"{STATE_FILE}.*may be written by others"):
        read_target(tmp_path, **OURS)


def test_the_group_of_a_directory_may_write_its_state(tmp_path):
    write_target(tmp_path, STATE)
    (tmp_path / STATE_FILE).chmod(0o664)
    tmp_path.chmod(0o775)
    assert read_target(tmp_path, **OURS) == STATE
