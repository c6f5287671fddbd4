"""Writing a plain directory, killed at every change of the disk; another run finishes it.

Or stopped by a loss of power; once it has ended nothing of it is lost any more.
"""

import os
import shutil
from contextlib import suppress

import pytest

from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import (
    materialize_partition,
    read_pin,
    release_partition,
)
from storage_core.store import LocalStore, ManagedStore
from storage_core.store.memory_objects import MemoryObjectStore, forget_memory
from tests.crash.interruptions import POWER, is_end, power_losses
from tests.kit.faulty_store import SimulatedCrash
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    segment,
    sync,
    target_of,
    write_files,
)

pytestmark = pytest.mark.crash


@pytest.fixture
def managed(tmp_path):
    mirror = MemoryObjectStore("memory://test-out/mirror")
    objects = MemoryObjectStore("memory://test-out/managed")
    directory = write_files(tmp_path / "broker", segment(0), segment(6))
    sync(directory, mirror)
    ingest(mirror, objects, rules=IngestRules(sync_has_stopped=True))
    yield objects, directory
    forget_memory("memory://test-out")


class Killer:
    """Counts the moments at which files appear or take their names, and stops at one of them."""

    def __init__(self, monkeypatch, stop_at, *, after):
        self.count, self.stop_at, self.after = 0, stop_at, after
        for name in ("open", "replace", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, original):
        def call(path, *args, **kwargs):
            if name == "open" and not args[0] & os.O_CREAT:
                return original(path, *args, **kwargs)
            self.count += 1
            if self.count - 1 == self.stop_at:
                made = None
                with suppress(FileNotFoundError):  # a removal in case something is there
                    made = original(path, *args, **kwargs) if self.after else None
                if name == "open" and made is not None:
                    os.close(made)
                raise SimulatedCrash(f"{name} {path}")
            return original(path, *args, **kwargs)

        return call


def write(objects, directory):
    store = ManagedStore(objects, TopicPartition("orders", 0), generation=read_pin(directory))
    materialize_partition(store, directory)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.item("FLT-08")
def test_a_killed_run_is_finished_by_the_next_whatever_is_committed_meanwhile(
    managed, tmp_path, monkeypatch, after
):
    objects, source = managed
    with monkeypatch.context() as patched:
        counting = Killer(patched, -1, after=after)
        write(objects, tmp_path / "count" / "orders-0")
    assert counting.count > 10
    expected = {path.name: path.read_bytes() for path in source.iterdir()}
    for number in range(counting.count):
        directory = tmp_path / f"out-{number}" / "orders-0"
        with monkeypatch.context() as patched:
            Killer(patched, number, after=after)
            with pytest.raises(SimulatedCrash):
                write(objects, directory)
        if read_pin(directory) is not None:
            # Another run's commit: the directory still becomes what it was begun with.
            other = target_of(objects)
            other.write_file("note", b"%d" % number)
            other.publish(run_id="other")
        write(objects, directory)
        release_partition(directory)
        found = {path.name: path.read_bytes() for path in directory.iterdir()}
        found.pop("note", None)
        assert found == expected, f"stopped at {number}"


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.item("FLT-08")
def test_what_a_loss_of_power_leaves_is_finished_by_the_next_run(managed, tmp_path, way):
    objects, source = managed
    disk = tmp_path / "disk"
    directory = disk / "new" / "orders-0"
    expected = {path.name: path.read_bytes() for path in source.iterdir()}
    times = {file.name: file.modified_ms for file in target_of(objects).list_files()}

    def reset():
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir()

    def work():
        write(objects, directory)
        release_partition(directory)

    for where in power_losses(work, disk, way.way, reset=reset):
        # Without a pin, and with files, it is finished: the job has written that down before.
        is_finished = directory.exists() and any(directory.glob("*.log"))
        is_finished = is_finished and read_pin(directory) is None
        assert is_finished or not is_end(where)
        if not is_finished:
            work()
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == expected, where
        found = {file.name: file.modified_ms for file in LocalStore(directory).list_files()}
        assert {name: found[name] for name in times} == times, where
