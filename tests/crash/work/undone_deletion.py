"""The undo of a deletion pass that kept what it took away."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.commit.trash import commit_folders
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.log.log_loader import load_log
from storage_core.log.settled_store import plan_settling
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, power_of
from tests.crash.interruptions import ALL, KILLS, KILLS_OF_CHANGES, Interruption
from tests.crash.rounds import keep, restore
from tests.crash.work.retention import CASES, overrides_of
from tests.kit.compare import read_tree
from tests.kit.faulty_store import Moment
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import settings_of
from tests.kit.golden_retention import offsets_of, sweep_golden

SWEPT = [golden for golden in CASES if ALL or golden.name != "retain-size-zero-s501"]


def logs_of(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Return the segments with bytes: an empty one at the end is no difference to anybody."""
    return {name: data for name, data in tree.items() if name.endswith(".log") and data}


class UndoneDeletion(WorkOfKafka):
    """Before or after the pass is the log that is found, whenever the undo stops."""

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden, self._way = golden, way
        self._disk = folder / "disk"
        self.directory = golden.unpack(self._disk / "log")
        self._before = read_tree(self.directory)
        store = LocalStore(self.directory)
        entry = offsets_of(golden)["log_start_offset"] or 0
        steps = sweep_golden(golden, store, log_start_checkpoint=entry).steps
        self._place = self._disk / "trash" / "run"
        commit(with_trash(steps, store, self._place, action="retain"), store)
        self._copy = folder / "swept"
        shutil.copytree(self.directory, self._copy / "log")
        shutil.copytree(self._place, self._copy / "trash")
        self._after = read_tree(self.directory)
        assert self._after != self._before
        self._seen: set[bool] = set()
        self._end = load_log(store, **settings_of(golden)).log_end_offset
        self.now_ms = golden.case["clock_ms"]
        self.overrides: Mapping[str, Any] = overrides_of(golden)
        self.checkpoints: Mapping[str, int] = {}

    @property
    def disk(self) -> Path:
        return self._disk

    def reset(self) -> None:
        shutil.rmtree(self.directory)
        shutil.rmtree(self._place)
        shutil.copytree(self._copy / "log", self.directory)
        shutil.copytree(self._copy / "trash", self._place)

    def do(self, store: LogStore) -> None:
        folders = commit_folders(self._place, self.directory)
        undo_partition(store, folders, settling=plan_settling)

    def check(self, where: str) -> None:
        left = keep(self.directory)
        self.run()
        assert read_tree(self.directory) == self._before, where
        restore(self.directory, left)
        log = load_log(LocalStore(self.directory), **settings_of(self._golden))
        commit(log.plan, LocalStore(self.directory))
        logs = logs_of(read_tree(self.directory))
        assert logs in (logs_of(self._before), logs_of(self._after)), where
        self._seen.add(logs == logs_of(self._before))

    def check_all(self) -> None:
        assert self._seen == {True, False} or self._way.way is Moment.TORN
        self.reset()
        self.run()
        assert read_tree(self.directory) == self._before

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        assert answer.log_end_offset == self._end, where
        logs = logs_of(read_tree(theirs))
        assert logs in (logs_of(self._before), logs_of(self._after)), where


CELLS = [
    Cell(
        operation="undo of deletion",
        case=golden.name,
        make=partial(UndoneDeletion, golden),
        ways=[*KILLS_OF_CHANGES, *power_of(number)],
        kafka_ways=[*KILLS[:1], *power_of(number)],
        stride=1 if ALL else 5,
        power_stride=1 if ALL else 5,
        kafka_stride=1 if ALL else 5,
        kafka_power_stride=5 if ALL else 23,
    )
    for number, golden in enumerate(SWEPT)
]
