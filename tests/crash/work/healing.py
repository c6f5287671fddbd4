"""A healing: each segment is the damaged one or the healed one, and a second healing ends it."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from storage_core.cluster.healing import plan_healing
from storage_core.cluster.healing_commit import HealedPartition
from storage_core.commit import CommitPlan, commit
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.cluster.storage.test_differences import write_replica
from tests.cluster.storage.test_healing import (
    END,
    NOW_MS,
    ROLLS,
    bad_checksum,
    batches,
    load,
    log_of,
    rest_of,
    segment_of_zeros,
    several,
    swapped_segments,
    two_segments_missing,
)
from tests.crash.cells import Cell, WorkOfKafka
from tests.crash.interruptions import ALL, KILLS, KILLS_OF_CHANGES, POWER, UNORDERED, Interruption


class Healing(WorkOfKafka):
    """A log of four segments, some of them damaged, and a donor."""

    shutdowns: ClassVar[Sequence[bool]] = (True,)
    now_ms = NOW_MS
    overrides: Mapping[str, Any] = {}
    checkpoints: Mapping[str, int] = {}

    def __init__(self, accident: Callable[[Path], None], folder: Path, _way: Interruption) -> None:
        self._donor = write_replica(folder, 2, batches(), rolls=ROLLS)
        self._before = write_replica(folder / "before", 1, batches(), rolls=ROLLS)
        accident(self._before)
        self.directory = folder / "work" / self._before.name
        self.disk = self.directory.parent
        self._damaged = log_of(self._before)
        self._whole = log_of(self._donor)
        self.reset()

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self._before, self.directory)

    def do(self, store: LogStore) -> None:
        healing = plan_healing(
            rest_of(self.directory), [rest_of(self._donor, 2, high_watermark=END)]
        )
        healed = HealedPartition(store, healing.segments)
        log = load(healed.store, is_clean=True)
        scratch = self.directory.parent / "scratch"
        operations = healed.write(healed.plan(log.operations), scratch)
        commit(CommitPlan(location=store.location, operations=operations), store)

    def check(self, where: str) -> None:
        self.run()
        assert log_of(self.directory) == self._whole, where
        again = load(LocalStore(self.directory), is_clean=False)
        assert (again.log_end_offset, again.repairs.cuts) == (END, ()), where

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        for name, content in log_of(theirs).items():
            assert content in {self._damaged.get(name), self._whole[name]}, (where, name)
        assert not [path for path in theirs.iterdir() if path.name.endswith((".swap", ".cleaned"))]


ACCIDENTS = [bad_checksum, two_segments_missing]
if ALL:
    ACCIDENTS += [segment_of_zeros, several, swapped_segments]
CELLS = [
    Cell(
        operation="healing",
        case=accident.__name__,
        make=partial(Healing, accident),
        ways=[*KILLS_OF_CHANGES, *POWER, *UNORDERED],
        kafka_ways=KILLS[:1] if accident in {bad_checksum, two_segments_missing} else [],
        seeds=20 if ALL else 4,
        power_stride=1 if ALL else 3,
    )
    for accident in ACCIDENTS
]
