"""A whole ``pylog apply`` of a plan that cuts followers.

Wherever it stops, the next run finds each follower as it was or cut, never a recovery point above
what is left, and a marker only where that is known of all of them. What was begun can be undone;
the plan, applied once more, then ends as one that was not stopped.
"""

import shutil
from pathlib import Path
from typing import Any

from pylog_spark.cluster.truncate import plan_followers
from pylog_spark.engines.choice import Local
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import Checkpoints, read_checkpoints
from storage_core.commit.trash import RUN_FILE
from storage_core.filenames import (
    CLEANER_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    parse_partition_directory,
)
from storage_core.roots import broker
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.crash.cells import Call, Cell, WorkOfRun, calls_of
from tests.crash.interruptions import ALL, KILLS, Interruption
from tests.kit.cluster_truth import Cluster
from tests.kit.compare import read_tree
from tests.kit.tasks_here import tasks_done_here

NOW_MS = 1_800_000_000_000
HERE = Local.of_master("local[1]")
# Cluster, leader, and the broker whose followers are cut.
CASES = [("diverged", 2, 1), ("compacted", 3, 1)] if ALL else [("compacted", 3, 1)]
CALLS = (
    *calls_of(LocalStore, "write_file", "create_empty", "rename", "delete", "truncate"),
    *calls_of(LocalStore, "sync_directory", "keep", "write_record"),
    Call(broker, "sweep_scratch"),
)


class RunOfTruncation(WorkOfRun):
    """The followers in one broker's directory are cut."""

    calls = CALLS

    def __init__(self, case: tuple[str, int, int], folder: Path, _way: Interruption) -> None:
        name, leader, follower = case
        self.disk = folder / "disk"
        self._root = Cluster(name, self.disk).roots[follower - 1]
        self._trash, self._plan = self.disk / "trash", folder / "plan.json"
        self._options = JobOptions(
            now_ms=NOW_MS,
            now_is_said=True,
            role=Role.BROKER,
            plan_out=str(self._plan),
            allow_truncate=True,
            salvage=str(folder / "salvage"),
        )
        roots = [path for path in sorted(self.disk.iterdir()) if path.is_dir()]
        plan_followers(HERE, roots, self._options, leader=leader)
        self.original = shutil.copytree(self.disk, folder / "copy")
        self._before, self._points = self._trees(), self._checkpoints()
        self.run()
        self._after, self._last = self._trees(), self._checkpoints()
        assert self._after != self._before
        self._undone = 0

    def run(self) -> None:
        self._apply()

    def _apply(self) -> Any:
        with tasks_done_here():
            return apply_plan(HERE, self._plan, ApplyOptions(trash=str(self._trash)))

    def _trees(self) -> dict[str, dict[str, bytes]]:
        places = [path for path in sorted(self._root.iterdir()) if path.is_dir()]
        return {path.name: read_tree(path) for path in places if path.name[0] != "."}

    def _checkpoints(self) -> Checkpoints:
        return read_checkpoints(BrokerRoot(self._root))

    def check(self, where: str) -> None:
        with HeldBrokerRoot(str(self._root), run_id="next", mark_clean=True) as held:
            trees = self._trees()
            is_known = all(trees[n] in (self._before[n], self._after[n]) for n in self._before)
            assert is_known or not held.was_clean, where
            self._check_points(trees, where)
        assert is_known, where
        for run in sorted(self._trash.glob(f"*/{RUN_FILE}")):
            with tasks_done_here():
                options = JobOptions(now_ms=NOW_MS, now_is_said=True, trash=str(self._trash))
                self._undone += undo(run.parent.name, options).summary.done
        assert self._trees() == self._before, where
        points = self._checkpoints()
        assert points.entries.keys() == self._points.entries.keys(), where
        for file in (REPLICATION_FILE, CLEANER_FILE):
            assert points.entries.get(file) == self._points.entries.get(file), where
        assert self._apply().exit_code == 0, where
        assert self._trees() == self._after, where
        assert self._checkpoints() == self._last, where

    def _check_points(self, trees: dict[str, dict[str, bytes]], where: str) -> None:
        now = self._checkpoints()
        for name in self._before:
            if trees[name] == self._after[name] != self._before[name]:
                partition = parse_partition_directory(name)
                for file in (RECOVERY_POINT_FILE, CLEANER_FILE):
                    most = self._last.entries.get(file, {}).get(partition)
                    found = now.entries.get(file, {}).get(partition)
                    assert found is None or most is None or found <= most, (where, name, file)

    def check_all(self) -> None:
        assert self._undone


CELLS = [
    Cell(
        operation="run of truncation",
        case=f"{case[0]}, broker {case[1]} leads",
        make=lambda folder, way, case=case: RunOfTruncation(case, folder, way),
        ways=KILLS if ALL else KILLS[:1],
        stride=1 if ALL else 7,
    )
    for case in CASES
]
