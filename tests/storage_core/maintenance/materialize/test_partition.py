"""A generation as a plain directory: whole, resumable, never over files of others."""

import errno
from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import parse_offset_checkpoint
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition, log_file
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import (
    PIN_FILE,
    STATE_FILE,
    MaterializedTarget,
    hold_target,
    materialize_partition,
    read_pin,
    read_target,
    release_partition,
    write_target,
)
from storage_core.roots.broker import write_checkpoints
from storage_core.store import ManagedStore
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.storage_core.maintenance.ingest import mirrors

STOPPED = IngestRules(sync_has_stopped=True)
TOPIC_ID = "AbCdEfGhIjKlMnOpQrStUg"
URL = "memory://test-materialize/managed"


@pytest.fixture
def managed(tmp_path):
    """A managed partition, and the directory that it was taken from."""
    mirror = MemoryObjectStore("memory://test-materialize/mirror")
    objects = MemoryObjectStore(URL)
    directory = mirrors.write_files(
        tmp_path / "broker", mirrors.segment(0), mirrors.segment(6), topic_id=TOPIC_ID
    )
    mirrors.sync(directory, mirror)
    mirrors.ingest(mirror, objects, rules=STOPPED)
    yield objects, directory
    forget_memory("memory://test-materialize")


def opened(objects, directory):
    return ManagedStore(objects, TopicPartition("orders", 0), generation=read_pin(directory))


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_partition_comes_out_as_it_went_in(managed, tmp_path):
    objects, source = managed
    directory = tmp_path / "out" / "orders-0"
    done = materialize_partition(opened(objects, directory), directory)
    assert (done.generation, done.segments, done.written_files) == (1, 2, done.files)
    assert read_pin(directory) == 1
    release_partition(directory)
    assert contents(directory) == contents(source)
    times = {info.name: info.modified_ms for info in opened(objects, directory).list_files()}
    assert (directory / log_file(6)).stat().st_mtime_ns == times[log_file(6)] * 1_000_000


def test_the_topics_id_is_written_where_no_file_has_it(managed, tmp_path):
    objects, _ = managed
    store = mirrors.target_of(objects)
    store.delete("partition.metadata")
    store.publish(run_id="run")
    directory = tmp_path / "out" / "orders-0"
    materialize_partition(opened(objects, directory), directory)
    assert (directory / "partition.metadata").read_text().endswith(f"topic_id: {TOPIC_ID}")


def test_a_killed_call_is_finished_by_the_next_with_the_same_generation(managed, tmp_path):
    objects, source = managed
    directory = tmp_path / "out" / "orders-0"
    materialize_partition(opened(objects, directory), directory)
    (directory / log_file(6)).unlink()
    (directory / "pylog-scratch-part-x").write_bytes(b"half")
    (directory / log_file(0)).write_bytes(b"torn")
    later = mirrors.target_of(objects)
    later.delete(log_file(0))
    later.publish(run_id="other")

    done = materialize_partition(opened(objects, directory), directory)
    assert (done.generation, done.written_files) == (1, 2)
    release_partition(directory)
    assert contents(directory) == contents(source)


def test_a_second_call_writes_nothing(managed, tmp_path):
    objects, _ = managed
    directory = tmp_path / "out" / "orders-0"
    materialize_partition(opened(objects, directory), directory)
    assert materialize_partition(opened(objects, directory), directory).written_files == 0


@pytest.mark.parametrize("name", ["00000000000000000099.log", "notes.txt", log_file(0)])
def test_a_directory_with_somebodys_files_is_refused_and_left_alone(managed, tmp_path, name):
    objects, _ = managed
    directory = tmp_path / "out" / "orders-0"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(b"mine")
    with pytest.raises(GuardRefusedError) as caught:
        materialize_partition(opened(objects, directory), directory)
    assert caught.value.code == "TARGET_NOT_EMPTY"
    assert contents(directory) == {name: b"mine"}


@pytest.mark.parametrize(
    "content",
    ["{}", '{"generation": 1e999}', '{"generation": "1"}', '{"generation": 0}', "[" * 4000],
)
def test_a_damaged_pin_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / PIN_FILE).write_text(content)
    with pytest.raises(StorageError, match="says no generation"):
        read_pin(tmp_path)


def test_a_pin_that_others_may_write_is_not_believed(tmp_path):
    (tmp_path / PIN_FILE).write_text('{"generation": 1}')
    (tmp_path / PIN_FILE).chmod(0o666)
    with pytest.raises(StorageError, match=rf"{PIN_FILE}.*may be written by others"):
        read_pin(tmp_path)


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
