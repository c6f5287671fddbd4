"""A generation as a plain directory: whole, resumable, and never over somebody's files."""

import pytest

from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition, log_file
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import (
    PIN_FILE,
    materialize_partition,
    read_pin,
    release_partition,
)
from storage_core.store import ManagedStore
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    segment,
    sync,
    target_of,
    write_files,
)

STOPPED = IngestRules(sync_has_stopped=True)
TOPIC_ID = "AbCdEfGhIjKlMnOpQrStUg"
URL = "memory://test-materialize/managed"


@pytest.fixture
def managed(tmp_path):
    """A managed partition, and the directory that it was taken from."""
    mirror = MemoryObjectStore("memory://test-materialize/mirror")
    objects = MemoryObjectStore(URL)
    directory = write_files(tmp_path / "broker", segment(0), segment(6), topic_id=TOPIC_ID)
    sync(directory, mirror)
    ingest(mirror, objects, rules=STOPPED)
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
    store = target_of(objects)
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
    later = target_of(objects)
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
