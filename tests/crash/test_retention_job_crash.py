"""A whole sweep of a log directory, driver and tasks, killed at every change of a file.

Checkpoints, marker and partitions are changed by different hands; what a kill leaves between any
two of these changes, or a loss of power, opens at the log start that is checkpointed, and a run
that is made again ends as one that was not killed. The stages run in this process; ``make kills``
kills real ones.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.operations.retention_waves import (
    SweepStages,
    drop_stale_log_starts,
)
from pylog_spark.run.disks import Disks
from pylog_spark.run.plan_table import read_planned
from pylog_spark.run.waves import run_waves
from pylog_spark.schemas import RETENTION_PLAN
from pylog_spark.tasks.retention import SweepWork
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    DELETED_SUFFIX,
    LOG_START_FILE,
    SCRATCH_PREFIX,
    TEMPORARY_SUFFIX,
    TopicPartition,
)
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, POWER, is_end, power_losses, restarted
from tests.kit.compare import read_tree
from tests.kit.faulty_store import SimulatedCrash
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
CHANGES = ("write_file", "create_empty", "rename", "delete", "truncate", "sync_directory")
# Of how many changes one is tried.
STRIDE = 1 if ALL else 7
POWER_STRIDE = 1 if ALL else 47
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800 if ALL else 300)]


class InProcess:
    """What an engine does, in this process."""

    slots = 2

    def spread(
        self, units: list[Any], work: Callable[[Any], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> pa.Table:
        return pa.Table.from_batches([b for unit in units for b in work(unit)], schema)

    def collect(self, frame: pa.Table, _schema: pa.Schema, _title: str) -> pa.Table:
        return frame

    def release(self) -> None:
        """Nothing was published."""


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """Let the process die before its change of that number; it changes nothing any more then."""
    changes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(
                LocalStore, name, _counted(name, getattr(LocalStore, name), changes, number)
            )
        yield changes


def _counted(name: str, change: Callable[..., Any], changes: list[str], number: int) -> Any:
    def counted(store: LocalStore, *args: Any, **options: Any) -> Any:
        if len(changes) > number >= 0:
            raise SimulatedCrash("dead")
        changes.append(name)
        if len(changes) - 1 == number:
            raise SimulatedCrash(name)
        return change(store, *args, **options)

    return counted


def sweep(root: BrokerDirectory, *, trash: Path | None = None) -> list[dict[str, Any]]:
    """Sweep a directory as ``pylog retain`` does; return what became of each partition."""
    sweeper = Sweeper(root)
    location = str(root.path)
    run_id, kept = ("run", None) if trash is None else (trash.name, str(trash.parent))
    options = root.options(sweeper.context.run.now_ms, trash=kept)
    with HeldBrokerRoot(location, run_id="run", mark_clean=True, trash=trash) as held:

        def write_context(context: RunContext) -> WriteContext:
            return WriteContext(run=context, roots={location: held.access})

        run: Any = SimpleNamespace(
            job=SimpleNamespace(title="retain", run_id=run_id, options=options),
            budget=SimpleNamespace(refusal=lambda: None),
            engine=InProcess(),
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


@pytest.mark.item("FLT-08", "RET-10", "RET-11", "CKP-04", "DIR-03")
def test_a_sweep_that_is_killed_at_any_change_opens_and_is_finished_by_the_next(tmp_path):
    made = broker_directory(tmp_path / "made", NAMES)
    marker = (made.path / CLEAN_SHUTDOWN_FILE).read_text()
    whole = made.copy(tmp_path / "whole")
    with killed_at(-1) as changes:
        assert {row["status"] for row in sweep(whole)} == {"done"}
    expected = state_of(whole)
    assert expected["marker"] == marker
    for number in range(0, len(changes), STRIDE):
        root = made.copy(tmp_path / f"killed-{number}")
        with killed_at(number), pytest.raises(SimulatedCrash):
            sweep(root)
        where = f"change {number} of {len(changes)}: {changes[number]}"
        check_opens(root, made, where)
        is_marked = (root.path / CLEAN_SHUTDOWN_FILE).exists()
        trees = [read_tree(root.path / f"{name}-0") for name in NAMES]
        is_known = trees in (
            [read_tree(made.path / f"{name}-0") for name in NAMES],
            [expected[f"{name}-0"] for name in NAMES],
        )
        # Once a partition has changed, and until all are done, it looks unclean.
        assert is_known or not is_marked, where
        # A recovery of logs that were closed finds nothing to cut, and marks the directory.
        (root.path / CLEAN_SHUTDOWN_FILE).write_text(marker)
        sweep(root)
        assert state_of(root) == expected, where
        shutil.rmtree(root.path)


@pytest.mark.item("FLT-08", "CKP-04", "DIR-03")
@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_a_sweep_that_loses_its_power_opens_and_is_finished_by_the_next(way, tmp_path):
    made = broker_directory(tmp_path / "made", NAMES)
    marker = (made.path / CLEAN_SHUTDOWN_FILE).read_text()
    whole = made.copy(tmp_path / "whole")
    sweep(whole)
    expected = state_of(whole)
    disk = tmp_path / "disk"
    root = replace(made, path=disk / "log")

    def reset() -> None:
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir()
        made.copy(root.path)

    for where in power_losses(lambda: sweep(root), disk, way.way, reset=reset, stride=POWER_STRIDE):
        check_opens(root, made, where)
        state = without_deleted(state_of(root))
        is_known = all(
            state[f"{name}-0"] in (read_tree(made.path / f"{name}-0"), expected[f"{name}-0"])
            for name in NAMES
        )
        assert is_known or state["marker"] is None, where
        assert not is_end(where) or state == expected, where
        with restarted(), HeldBrokerRoot(str(root.path), run_id="resumed", mark_clean=True) as held:
            assert held.was_clean == (state["marker"] is not None), where
        (root.path / CLEAN_SHUTDOWN_FILE).write_text(marker)
        with restarted():
            sweep(root)
        assert state_of(root) == expected, where


def without_deleted(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without files that any start of a broker unlinks."""
    return {
        name: {file: data for file, data in tree.items() if not file.endswith(DELETED_SUFFIX)}
        if isinstance(tree, dict) and name.endswith("-0")
        else tree
        for name, tree in state.items()
    }


def check_opens(root: BrokerDirectory, made: BrokerDirectory, where: str) -> None:
    """Load every log by the checkpoint that is there: it never starts lower than before."""
    starts = read_points(root.path, LOG_START_FILE)
    for name in NAMES:
        golden = Golden(name)
        store = LocalStore(root.path / f"{name}-0")
        for clean_shutdown in (True, False):
            log = LogLoader(
                store,
                **settings_of(golden),
                log_start_checkpoint=starts.get(TopicPartition(name, 0), 0),
                clean_shutdown=clean_shutdown,
            ).load()
            assert log.log_end_offset == golden.case["expected"]["leo"], where
            before = made.log_starts.get(TopicPartition(name, 0), 0)
            assert before <= log.log_start_offset <= golden.case["expected"]["leo"], where
