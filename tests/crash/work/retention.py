"""A deletion pass: made again it ends as the one that was not interrupted did.

What was left is loaded, by this project and by Kafka: nothing above the log start is missing.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.commit.trash import commit_folders
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.log.log_loader import LogLoader, load_log
from storage_core.log.settled_store import plan_settling
from storage_core.maintenance.retention.partition import Sweep, plan_retain
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, WorkOnDirectory, power_of
from tests.crash.interruptions import ALL, KILLS, KILLS_OF_CHANGES, POWER, Interruption, is_end
from tests.crash.rounds import keep, restore, without_temporary
from tests.kit.compare import read_tree
from tests.kit.faulty_store import Moment
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.golden_retention import offsets_of, sweep_golden
from tests.kit.partition_views import data_records

SOME = ["retain-both-s501", "retain-time-all-s501", "retain-size-zero-s501"]
CASES = [
    golden
    for golden in goldens("retain-*")
    if golden.case["expected"]["deleted"]
    and not golden.case["params"].get("keep")
    and (ALL or golden.name in SOME)
]
SWEPT = [golden for golden in CASES if ALL or golden.name != "retain-size-zero-s501"]


def overrides_of(golden: Golden) -> dict[str, str]:
    """Return the topic's settings as a log of Kafka's takes them."""
    settings = {key: str(value) for key, value in golden.case["config"].items()}
    if "segment.bytes" in settings:  # smaller than a topic may say
        settings["internal.segment.bytes"] = settings.pop("segment.bytes")
    return settings


class Deletion(WorkOfKafka):
    """A sweep whose log start has risen before."""

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden, self._way = golden, way
        self.original = golden.unpack(folder / "before")
        self.directory = folder / "now" / self.original.name
        self.reset()
        whole = self._sweep(LocalStore(self.directory))
        self._removals = len(whole.decision.removals)
        self._start = whole.decision.log_start_offset
        self._survivors = [r for r in data_records(self.directory) if r.offset >= self._start]
        commit(whole.steps, LocalStore(self.directory))
        self._expected = self._tree()
        self._tried = 0
        self.now_ms = golden.case["clock_ms"]
        self.overrides: Mapping[str, Any] = overrides_of(golden)
        self.checkpoints = {"log_start_offset": self._start}

    def do(self, store: LogStore) -> None:
        commit(self._sweep(store).steps, store)

    def check(self, where: str) -> None:
        self._check_loads(where)
        logs = {name for name in self._expected if name.endswith(".log")}
        if is_end(where):
            assert {path.name for path in self.directory.glob("*.log")} == logs
        # By the checkpoint that was written first, and, as if that were lost, by the old one.
        crashed = self.directory.with_name("crashed")
        shutil.copytree(self.directory, crashed, dirs_exist_ok=True)
        for checkpoint in (self._start, None):
            shutil.rmtree(self.directory)
            shutil.copytree(crashed, self.directory)
            store = LocalStore(self.directory)
            commit(self._sweep(store, checkpoint).steps, store)
            assert self._tree() == self._expected, where
            assert self._sweep(store, self._start).steps.is_empty, where
        shutil.rmtree(crashed)
        self._tried += 1

    def check_all(self) -> None:
        assert self._tried > self._removals or self._way not in KILLS[:1]

    def _sweep(self, store: LogStore, checkpoint: int | None = None) -> Sweep:
        """Plan the pass, by an entry of the checkpoint; by the one that it has at first if None."""
        entry = offsets_of(self._golden)["log_start_offset"] or 0
        start = entry if checkpoint is None else checkpoint
        return sweep_golden(self._golden, store, log_start_checkpoint=start)

    def _tree(self) -> dict[str, bytes]:
        return without_temporary(self.directory)

    def _load(self, store: LogStore, *, clean_shutdown: bool) -> Any:
        loader = LogLoader(
            store,
            **settings_of(self._golden),
            log_start_checkpoint=self._start,
            clean_shutdown=clean_shutdown,
        )
        return loader.load().close()

    def _check_loads(self, where: str) -> None:
        """Load what a crash left: every record that may be read is there, and none below."""
        loaded = self.directory.with_name("loaded-0")
        shutil.copytree(self.directory, loaded, dirs_exist_ok=True)
        for clean_shutdown in (True, False):
            store = LocalStore(loaded)
            log = self._load(store, clean_shutdown=clean_shutdown)
            assert log.log_start_offset == self._start, where
            assert log.log_end_offset == self._golden.case["expected"]["leo"], where
        commit(log.plan, store)
        there = [record for record in data_records(loaded) if record.offset >= self._start]
        assert there == self._survivors, where
        shutil.rmtree(loaded)

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        assert answer.log_start_offset == self._start, where
        assert answer.log_end_offset == self._golden.case["expected"]["leo"], where
        if clean_shutdown:
            store = LocalStore(self.directory)
            log = self._load(store, clean_shutdown=True)
            commit(log.plan, store)
            assert read_tree(theirs) == read_tree(self.directory), where


class PassOverOpenLog(WorkOnDirectory):
    """What ``pylog partition retain`` does: no checkpoint is there, the log is closed."""

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden = golden
        self.original = golden.unpack(folder / "before")
        self.directory = folder / "now" / self.original.name
        self.reset()
        self.run()
        self._once = self._tree()
        # Opening a log drops, in Kafka too, the snapshot at its start and an epoch at its end.
        self.run()
        self._twice = self._tree()

    def do(self, store: LogStore) -> None:
        _, log = plan_retain(store, **settings_of(self._golden), **offsets_of(self._golden))
        commit(log.plan, store)

    def check(self, where: str) -> None:
        self.run()
        there, once, twice = self._tree(), self._once, self._twice
        missing = once.keys() - there.keys()
        assert not missing or missing == once.keys() - twice.keys(), where
        for name, data in there.items():
            assert data in (once[name], twice.get(name)), where

    def _tree(self) -> dict[str, bytes]:
        return without_temporary(self.directory)


def logs_of(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Return the segments with bytes: an empty one at the end is no difference to anybody."""
    return {name: data for name, data in tree.items() if name.endswith(".log") and data}


class UndoneDeletion(WorkOfKafka):
    """Before or after the pass is the log that is found, whenever the undo stops."""

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden, self._way = golden, way
        self.disk = folder / "disk"
        self.directory = golden.unpack(self.disk / "log")
        self._before = read_tree(self.directory)
        store = LocalStore(self.directory)
        entry = offsets_of(golden)["log_start_offset"] or 0
        steps = sweep_golden(golden, store, log_start_checkpoint=entry).steps
        self._place = self.disk / "trash" / "run"
        commit(with_trash(steps, store, self._place, action="retain"), store)
        self.original = shutil.copytree(self.disk, folder / "swept")
        self._after = read_tree(self.directory)
        assert self._after != self._before
        self._seen: set[bool] = set()
        self._end = load_log(store, **settings_of(golden)).log_end_offset
        self.now_ms = golden.case["clock_ms"]
        self.overrides: Mapping[str, Any] = overrides_of(golden)
        self.checkpoints: Mapping[str, int] = {}

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
    *(
        Cell(
            operation="pass over an open log",
            case=golden.name,
            make=partial(PassOverOpenLog, golden),
            ways=KILLS[:2],
        )
        for golden in CASES
    ),
    *(
        Cell(
            operation="deletion",
            case=golden.name,
            make=partial(Deletion, golden),
            ways=[*KILLS_OF_CHANGES, *POWER],
            kafka_ways=[*KILLS[:1], *power_of(number)],
            power_stride=1 if ALL else 7,
            kafka_stride=1 if ALL else 6,
            kafka_power_stride=1 if ALL else 17,
        )
        for number, golden in enumerate(CASES)
    ),
    *(
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
    ),
]
