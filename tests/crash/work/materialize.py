"""Writing a plain directory out of a managed root; another run finishes it.

The directory becomes what it was begun with, whatever is committed meanwhile; and once a run has
ended, nothing of what it wrote is lost any more.
"""

import os
import shutil
from itertools import count
from pathlib import Path

from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import (
    materialize_partition,
    read_pin,
    release_partition,
)
from storage_core.store import LocalStore, ManagedStore
from tests.crash.cells import Call, Cell, WorkOfRun, calls_of, creates
from tests.crash.interruptions import KILLS, POWER, Interruption, is_end
from tests.kit.compare import read_tree
from tests.kit.memory_objects import MemoryObjectStore
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    segment,
    sync,
    target_of,
    write_files,
)


class Materialize(WorkOfRun):
    """A partition's files are written, and its pin is taken away."""

    # The moments at which files appear or take their names.
    calls = (Call(os, "open", creates), *calls_of(os, "replace", "mkdir", "unlink"))

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self.disk = folder / "disk"
        mirror = MemoryObjectStore(f"memory://crash/{folder.name}/mirror")
        self._objects = MemoryObjectStore(f"memory://crash/{folder.name}/managed")
        source = write_files(folder / "broker", segment(0), segment(6))
        sync(source, mirror)
        ingest(mirror, self._objects, rules=IngestRules(sync_has_stopped=True))
        self._expected = read_tree(source)
        self._times = {
            file.name: file.modified_ms for file in target_of(self._objects).list_files()
        }
        self._numbers = count()

    @property
    def directory(self) -> Path:
        return self.disk / "new" / "orders-0"

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()

    def run(self) -> None:
        partition = TopicPartition("orders", 0)
        store = ManagedStore(self._objects, partition, generation=read_pin(self.directory))
        materialize_partition(store, self.directory)
        release_partition(self.directory)

    def check(self, where: str) -> None:
        # Without a pin, and with files, it is finished: the job has written that down before.
        is_finished = self.directory.exists() and any(self.directory.glob("*.log"))
        is_finished = is_finished and read_pin(self.directory) is None
        assert is_finished or not is_end(where), where
        if read_pin(self.directory) is not None:
            # Another run's commit: the directory still becomes what it was begun with.
            other = target_of(self._objects)
            other.write_file("note", b"%d" % next(self._numbers))
            other.publish(run_id="other")
        if not is_finished:
            self.run()
        tree = read_tree(self.directory)
        tree.pop("note", None)
        assert tree == self._expected, where
        there = {file.name: file.modified_ms for file in LocalStore(self.directory).list_files()}
        assert {name: there[name] for name in self._times} == self._times, where


CELLS = [
    Cell(
        operation="materialize",
        store="plain directory",
        case="by hand",
        make=Materialize,
        ways=[KILLS[0], KILLS[2], *POWER],
    )
]
