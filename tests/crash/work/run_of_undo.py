"""A whole ``pylog undo`` of a log directory.

Marker, checkpoints and partitions are changed one after the other. What is left between any two of
these changes opens as the state before the run or the one after it, and the same command, given
again, ends with the bytes, the checkpoints and the marker of one that was not stopped. And a run
that was stopped itself is undone, with the log starts that it had raised.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from pylog_spark.run.upkeep import observe_root
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.commit import commit
from storage_core.commit.trash import RUN_FILE, TrashedRun, list_commits
from storage_core.commit.undo import with_trash
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOG_START_FILE,
    TopicPartition,
)
from storage_core.roots import broker
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore, write_record
from tests.crash.cells import Call, Cell, WorkOfRun, calls_of
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end, restarted
from tests.crash.work.run_of_retention import sweep
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import Cleaning, cleaning_of, prepare
from tests.kit.golden_data import Golden
from tests.kit.tasks_here import tasks_done_here
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory, read_points

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]
SWEPT = ["retain-logstart-mid-s501", "retain-size-zero-s501"]
RUN = "20260102T030405Z-0a1b2c3d"
CALLS = (
    *calls_of(LocalStore, "write_file", "rename", "delete", "sync_directory", "keep"),
    *calls_of(LocalStore, "restore", "write_record"),
    Call(broker, "sweep_scratch"),
)


def round_of(root: BrokerDirectory, name: str) -> Cleaning:
    cleaning = cleaning_of(Golden(name))
    return replace(cleaning, config=root.config(name))


def partitions(path: Path) -> dict[str, dict[str, bytes]]:
    return {place.name: read_tree(place) for place in sorted(path.iterdir()) if place.is_dir()}


def compacted(tmp_path: Path) -> tuple[BrokerDirectory, JobOptions, dict[str, Any]]:
    """Compact the partitions of a directory with a trash, as a run does."""
    root = broker_directory(tmp_path / "log", NAMES)
    trash = tmp_path / "trash"
    place = trash / RUN
    before = partitions(root.path)
    run = TrashedRun(
        run_id=RUN, action="compact", started_ms=0, roots=(observe_root(str(root.path)),)
    )
    write_record(Path(place, RUN_FILE), run.encode())
    points = {}
    for name in NAMES:
        directory = root.path / f"{name}-0"
        prepared = prepare(directory, round_of(root, name))
        store = LocalStore(directory)
        steps = with_trash(prepared.commit_of(), store, place, action="compact")
        commit(steps, store)
        points[TopicPartition(name, 0)] = prepared.plan.first_uncleanable_offset
    (root.path / CLEANER_FILE).write_bytes(encode_offset_checkpoint(points))
    options = root.options(0, trash=str(trash))
    return root, options, before


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A directory that was compacted, and what has to become of it."""

    disk: Path  # what it lies on, with the trash
    root: BrokerDirectory
    options: JobOptions  # of the undo
    before: dict[str, Any]  # its partitions before the compaction
    after: dict[str, Any]  # the same after it
    copy: Path  # the disk as the compaction left it

    def reset(self) -> None:
        """Make the disk as the compaction left it."""
        shutil.rmtree(self.disk)
        shutil.copytree(self.copy, self.disk)

    def undo(self) -> int:
        """Undo the compaction; return in how many partitions."""
        with tasks_done_here():
            return undo(RUN, self.options).summary.done

    def check_undone(self, where: str) -> None:
        """Check what an undo that was made to its end leaves."""
        assert partitions(self.root.path) == self.before, where
        assert read_points(self.root.path) == {}, where
        marker = (self.root.path / CLEAN_SHUTDOWN_FILE).read_text()
        assert marker == '{"version":0,"brokerEpoch":-1}', where

    def check_opens(self, where: str) -> None:
        """Check that every log opens as it was before the compaction or after it."""
        # Before the first file of a partition is touched, the directory is unclean.
        if partitions(self.root.path) not in (self.before, self.after):
            assert not (self.root.path / CLEAN_SHUTDOWN_FILE).exists(), where
        for name in NAMES:
            round_ = round_of(self.root, name)
            loaded = round_.load(LocalStore(self.root.path / f"{name}-0"))
            sizes = sorted(segment.size_bytes for segment in loaded.segments)
            logs = [
                sorted(
                    len(data) for file, data in tree[f"{name}-0"].items() if file.endswith(".log")
                )
                for tree in (self.before, self.after)
            ]
            assert sizes in logs, where
            if sizes == logs[0] != logs[1]:
                # The former segments never stand beside the new cleaner point.
                assert TopicPartition(name, 0) not in read_points(self.root.path), where


def compaction_in(folder: Path) -> Compacted:
    """Compact a directory below a folder, with a trash."""
    disk = folder / "disk"
    disk.mkdir()
    root, options, before = compacted(disk)
    after = partitions(root.path)
    assert after != before
    copy = shutil.copytree(disk, folder / "copy")
    return Compacted(disk=disk, root=root, options=options, before=before, after=after, copy=copy)


class UndoOfDirectory(WorkOfRun):
    """The undo of a compaction."""

    calls = CALLS

    def __init__(self, folder: Path, way: Interruption) -> None:
        self._way, self._compaction = way, compaction_in(folder)
        self.disk = self._compaction.disk
        assert self._compaction.undo() == len(NAMES)
        self._compaction.check_undone("not stopped")
        self._tried = 0

    def reset(self) -> None:
        self._compaction.reset()

    def run(self) -> None:
        self._compaction.undo()

    def check(self, where: str) -> None:
        compaction = self._compaction
        compaction.check_opens(where)
        if self._way.is_of_power:
            if not is_end(where):
                with restarted():
                    compaction.undo()
        else:
            root = compaction.root.path
            is_whole = partitions(root) in (compaction.before, compaction.after)
            # Another run than the undo that is made again: it does not take half of it for clean.
            with HeldBrokerRoot(str(root), run_id="next", mark_clean=True) as held:
                assert is_whole or not held.was_clean, where
            compaction.undo()
        compaction.check_undone(where)
        self._tried += 1

    def check_all(self) -> None:
        assert self._way.is_of_power or self._tried > 40 // STRIDE


def sweep_state(root: BrokerDirectory) -> dict[str, Any]:
    """Return partitions and log starts, and whether the directory is marked."""
    return {
        "partitions": partitions(root.path),
        "starts": read_points(root.path, LOG_START_FILE),
        "is_marked": (root.path / CLEAN_SHUTDOWN_FILE).exists(),
    }


class UndoneSweep(WorkOfRun):
    """A sweep that keeps what it takes away: wherever it stopped, it is undone."""

    calls = CALLS

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self._made = broker_directory(folder / "made", SWEPT)
        self._before = sweep_state(self._made)
        self.disk = folder / "disk"
        self._root = replace(self._made, path=self.disk / "log")
        self._trash = self.disk / "trash"
        self._raised = 0

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        self._made.copy(self._root.path)
        root = observe_root(str(self._root.path))
        run = TrashedRun(run_id=RUN, action="retain", started_ms=0, roots=(root,))
        write_record(self._trash / RUN / RUN_FILE, run.encode())

    def run(self) -> None:
        sweep(self._root, trash=self._trash / RUN)

    def check(self, where: str) -> None:
        starts = read_points(self._root.path, LOG_START_FILE)
        options = self._root.options(0, trash=str(self._trash))
        has_commits = bool(list(list_commits(self._trash / RUN)))
        had_raised = starts != self._made.log_starts and not has_commits
        dry = undo(RUN, replace(options, dry_run=True))
        assert not had_raised or dry.summary.planned, where
        undone = undo(RUN, options)
        assert undone.exit_code == 0, where
        assert sweep_state(self._root) == self._before, where
        assert not had_raised or undone.summary.done, where
        again = undo(RUN, options)
        assert (again.exit_code, again.summary.done) == (0, 0), where
        self._raised += had_raised

    def check_all(self) -> None:
        assert self._raised
        # The whole sweep, too.
        self.reset()
        self.run()
        self.check("not stopped")


STRIDE = 1 if ALL else 9
CELLS = [
    Cell(
        operation="run of undo",
        case="of a compaction",
        make=UndoOfDirectory,
        ways=[KILLS[0], *POWER],
        stride=STRIDE,
        power_stride=1 if ALL else 61,
    ),
    Cell(
        operation="run of retention, undone",
        case="some partitions",
        make=UndoneSweep,
        ways=KILLS[:1],
        stride=1 if ALL else 13,
    ),
]
