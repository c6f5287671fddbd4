"""An ingest: the old generation or the new one; then another run ends as one that was not stopped.

Both the first ingest of a partition and a later one, copied and adopted in place.
"""

import shutil
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.maintenance.ingest.partition import (
    Commitment,
    IngestRules,
    commit_ingest,
    observe_and_plan,
)
from storage_core.store import ObjectStore
from storage_core.store.local_objects import LocalObjectStore
from tests.crash.cells import Cell, WorkOnObjects
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end
from tests.kit.memory_objects import MemoryObjectStore
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    mirror_of,
    segment,
    sync,
    target_of,
    write_files,
)

PLAIN = IngestRules()
IN_PLACE = IngestRules(sync_has_stopped=True, in_place=True)


def state_of(objects: ObjectStore) -> Any:
    """What a reader sees of the partition: names, bytes, checkpoints; None where there is none."""
    store = target_of(objects)
    if not store.manifest.generation:
        return None
    files = {
        file.name: store.read_file(file.name, limit_bytes=1 << 20) for file in store.list_files()
    }
    return files, store.checkpoints, store.manifest.topic_id, store.largest_timestamps()


def take(mirror: ObjectStore, objects: ObjectStore, rules: IngestRules) -> None:
    """Do what a run does for the partition, one file after the other."""
    directory, target = mirror_of(mirror), target_of(objects)
    planned = observe_and_plan(directory, target, rules, PartitionCheckpoints())
    if planned.has_work:
        commitment = Commitment(run_id="run", result={})
        commit_ingest(planned, directory, target, rules, commitment=commitment, threads=1)


class Mirrored:
    """A mirror with something new for a managed root.

    Args:
        folder: For the files as their broker left them.
        is_first: Whether the root has nothing of the partition yet.
    """

    def __init__(self, url: str, folder: Path, *, is_first: bool) -> None:
        self._url, self._is_first, self._numbers = url, is_first, count()
        self.mirror = MemoryObjectStore(f"{url}/mirror")
        new = (segment(12, leader_epoch=2), segment(18, leader_epoch=2))
        sync(write_files(folder, segment(0), segment(6), *new), self.mirror)
        self._older = MemoryObjectStore(f"{url}/older")
        sync(write_files(folder / "early", segment(0), segment(6)), self._older)

    def new_root(self) -> ObjectStore:
        """Return a root in memory as it is before the ingest."""
        objects = MemoryObjectStore(f"{self._url}/managed-{next(self._numbers)}")
        self.fill(objects)
        return objects

    def fill(self, objects: ObjectStore) -> None:
        """Put into an empty root what is there before the ingest."""
        if not self._is_first:
            ingest(self._older, objects)


class Ingest(WorkOnObjects):
    """What is new is taken, in memory or to a local disk."""

    def __init__(
        self, rules: IngestRules, folder: Path, way: Interruption, *, is_first: bool
    ) -> None:
        self._rules, self._way, self._folder = rules, way, folder
        self.disk = folder / "disk"
        self._mirrored = Mirrored(f"memory://crash/{folder.name}", folder, is_first=is_first)
        if way.is_of_power:
            self.disk.mkdir()
            self._mirrored.fill(LocalObjectStore(self.disk / "managed"))
            shutil.copytree(self.disk, folder / "saved")
        self.reset()
        self._before = state_of(self.objects)
        self.run()
        self._after = state_of(self.objects)
        assert self._after != self._before

    def reset(self) -> None:
        if self._way.is_of_power:
            shutil.rmtree(self.disk)
            shutil.copytree(self._folder / "saved", self.disk)
            self.objects = LocalObjectStore(self.disk / "managed")
        else:
            self.objects = self._mirrored.new_root()

    def do(self, objects: ObjectStore) -> None:
        take(self._mirrored.mirror, objects, self._rules)

    def check(self, where: str) -> None:
        seen = state_of(self.objects)
        assert seen == self._after or (seen == self._before and not is_end(where)), where
        self.run()
        assert state_of(self.objects) == self._after, where


CELLS = [
    Cell(
        operation=f"{which} ingest",
        store=store,
        case=how,
        make=partial(Ingest, rules, is_first=which == "first"),
        ways=ways,
        power_stride=1 if ALL else 7,
    )
    for which in ("first", "later")
    for store, how, rules, ways in (
        ("managed root", "copied", PLAIN, KILLS),
        ("managed root", "adopted", IN_PLACE, KILLS),
        ("managed root on a disk", "copied", PLAIN, POWER),
    )
]
