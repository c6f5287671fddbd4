"""A whole sweep of a log directory, driver and tasks.

Checkpoints, marker and partitions are changed by different hands; what is left between any two of
these changes opens at the log start that is checkpointed, and a run that is made again ends as one
that was not stopped. The stages run in this process; ``make kills`` kills real ones.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from pylog_spark.operations.retain.driver import SweepStages, drop_stale_log_starts
from pylog_spark.operations.retain.task import SweepWork
from pylog_spark.run.plan_table import read_planned
from pylog_spark.run.planning import Disks
from pylog_spark.run.waves import run_waves
from pylog_spark.schemas import RETENTION_PLAN
from pylog_spark.tasks.message import PartitionCommit
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    SCRATCH_PREFIX,
    TEMPORARY_SUFFIX,
    TopicPartition,
)
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfRun, calls_of
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end, restarted
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import settings_of
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory, read_points
from tests.pylog_spark.tasks.test_retention import Sweeper

# Of one clock: size, a raised log start inside a segment and at one, and a roll.
NAMES = (
    [
        "retain-logstart-mid-s501",
        "retain-logstart-s501",
        "retain-size-s501",
        "retain-size-zero-s501",
    ]
    if ALL
    else ["retain-logstart-mid-s501", "retain-size-zero-s501"]
)


class InProcess:
    """What an engine does, in this process."""

    slots = 2

    def ask(
        self,
        units: list[Any],
        work: Callable[[Any], Iterator[PartitionCommit]],
        _kind: type[PartitionCommit],
        _title: str,
    ) -> Iterator[PartitionCommit]:
        for unit in units:
            yield from work(unit)

    def release(self) -> None:
        """Nothing was published."""


def sweep(root: BrokerDirectory, *, trash: Path | None = None) -> list[dict[str, Any]]:
    """Sweep a directory as ``pylog retain`` does; return what became of each partition."""
    sweeper = Sweeper(root)
    location = str(root.path)
    run_id, kept = ("run", None) if trash is None else (trash.name, str(trash.parent))
    options = root.options(sweeper.context.run.options.now_ms, trash=kept)
    with HeldBrokerRoot(location, run_id="run", mark_clean=True, trash=trash) as held:

        def write_context(context: RunContext) -> WriteContext:
            return WriteContext(run=context, roots={location: held.access})

        run: Any = SimpleNamespace(
            job=SimpleNamespace(title="retain", run_id=run_id, options=options),
            budget=SimpleNamespace(refusal=lambda: None),
            engine=InProcess(),
            unit_bytes=lambda total_bytes: total_bytes,
            disks=Disks(),
            roots={location: held},
            failures={},
            write_context=write_context,
        )
        rows = list(sweeper.observe().values())
        plans = pa.Table.from_pylist(rows, schema=RETENTION_PLAN)
        waves = run_waves(
            run, SweepStages(run, sweeper.context), list(read_planned(SweepWork, plans))
        )
        columns = [outcome.columns for ended in waves for outcome in ended.values()]
        drop_stale_log_starts(run, plans)
        return columns


def state_of(root: BrokerDirectory) -> dict[str, Any]:
    """Return partitions, checkpoints and marker; half written files are nobody's."""
    state: dict[str, Any] = {
        path.name: {
            name: data
            for name, data in read_tree(path).items()
            if not name.endswith(TEMPORARY_SUFFIX) and not name.startswith(SCRATCH_PREFIX)
        }
        for path in root.path.iterdir()
        if path.is_dir()
    }
    state[LOG_START_FILE] = read_points(root.path, LOG_START_FILE)
    marker = root.path / CLEAN_SHUTDOWN_FILE
    state["marker"] = marker.read_text() if marker.exists() else None
    return state


class SweepOfDirectory(WorkOfRun):
    """Every partition of a directory is swept."""

    calls = calls_of(
        LocalStore, "write_file", "create_empty", "rename", "delete", "truncate", "sync_directory"
    )

    def __init__(self, folder: Path, way: Interruption) -> None:
        self._way, self.disk = way, folder / "disk"
        self._made = broker_directory(folder / "made", NAMES)
        self._marker = (self._made.path / CLEAN_SHUTDOWN_FILE).read_text()
        self._root = replace(self._made, path=self.disk / "log")
        self.reset()
        assert {row["status"] for row in sweep(self._root)} == {"done"}
        self._expected = state_of(self._root)
        assert self._expected["marker"] == self._marker

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        self._made.copy(self._root.path)

    def run(self) -> None:
        sweep(self._root)

    def check(self, where: str) -> None:
        self._check_opens(where)
        state = state_of(self._root)
        before, after = (
            [read_tree(self._made.path / f"{name}-0") for name in NAMES],
            [self._expected[f"{name}-0"] for name in NAMES],
        )
        trees = [state[f"{name}-0"] for name in NAMES]
        is_power = self._way.is_of_power
        if is_power:
            is_whole = all(tree in sides for tree, *sides in zip(trees, before, after, strict=True))
        else:
            is_whole = trees in (before, after)
        # Once a partition has changed, and until all are done, it looks unclean.
        assert is_whole or state["marker"] is None, where
        assert not is_end(where) or state == self._expected, where
        root = self._root.path
        with restarted() if is_power else ExitStack():
            if is_power:
                with HeldBrokerRoot(str(root), run_id="resumed", mark_clean=True) as held:
                    assert held.was_clean == (state["marker"] is not None), where
            # A recovery of logs that were closed finds nothing to cut, and marks the directory.
            (root / CLEAN_SHUTDOWN_FILE).write_text(self._marker)
            self.run()
        assert state_of(self._root) == self._expected, where

    def _check_opens(self, where: str) -> None:
        """Load every log by the checkpoint that is there: it never starts lower than before."""
        starts = read_points(self._root.path, LOG_START_FILE)
        for name in NAMES:
            golden, partition = Golden(name), TopicPartition(name, 0)
            for clean_shutdown in (True, False):
                log = LogLoader(
                    LocalStore(self._root.path / f"{name}-0"),
                    **settings_of(golden),
                    log_start_checkpoint=starts.get(partition, 0),
                    clean_shutdown=clean_shutdown,
                ).load()
                assert log.log_end_offset == golden.case["expected"]["leo"], where
                least = self._made.log_starts.get(partition, 0)
                assert least <= log.log_start_offset <= log.log_end_offset, where


CELLS = [
    Cell(
        operation="run of retention",
        case="some partitions",
        make=SweepOfDirectory,
        ways=[KILLS[0], *POWER],
        stride=1 if ALL else 11,
        power_stride=1 if ALL else 47,
    )
]
