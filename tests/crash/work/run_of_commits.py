"""What a run says of its work in a log directory's files is true, also after a loss of power.

The marker of a clean shutdown, cleaner points and recovery points are claims that the next start
believes: it does not clean again below the one, and does not look at bytes below the other. So
none of them may be on the disk before what it claims is. The stages of the run are made in this
process.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from storage_core.commit import CommitPlan, commit
from storage_core.commit.claim import hold_claim
from storage_core.commit.scratch import claim_path
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    TopicPartition,
)
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfRun
from tests.crash.interruptions import ALL, POWER, Interruption, is_end, restarted
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import Cleaning, cleaning_of, prepare
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import loading_of, plan_golden
from tests.kit.partition_views import committed_values, data_records
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory, read_points

CLEANED = ["clean-headers-none-s101", "clean-hw-none-s161"]
RECOVERED = ["recover-earlier-above-length-none-s400", "recover-torn061-none-s400"]

Tree = dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A log directory on a disk that loses its power."""

    disk: Path  # what it lies on, with the scratch files beside it
    root: BrokerDirectory
    made: BrokerDirectory  # the same as it is before the run

    def reset(self) -> None:
        """Make the directory as it was before the run."""
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        self.made.copy(self.root.path)

    def directory(self, name: str) -> Path:
        """Return a partition's directory."""
        return self.root.path / f"{name}-0"

    def tree(self, name: str) -> Tree:
        """Return the files of a partition that count."""
        return {
            file: data
            for file, data in read_tree(self.directory(name)).items()
            if not file.endswith(DELETED_SUFFIX)
        }

    def points(self, file: str) -> dict[TopicPartition, int]:
        """Return the entries of a checkpoint, none where there is no file."""
        return read_points(self.root.path, file) if (self.root.path / file).exists() else {}

    @property
    def is_marked(self) -> bool:
        """Whether the directory says that its broker closed every log."""
        return (self.root.path / CLEAN_SHUTDOWN_FILE).exists()


def lab_of(tmp_path: Path, names: list[str]) -> Lab:
    made = broker_directory(tmp_path / "made", names)
    lab = Lab(disk=tmp_path / "disk", root=replace(made, path=tmp_path / "disk" / "log"), made=made)
    lab.reset()
    return lab


def run(
    lab: Lab,
    names: list[str],
    work: Callable[[str, Path], tuple[CommitPlan, int]],
    settle: Callable[[HeldBrokerRoot, dict[TopicPartition, int]], None],
) -> None:
    """Do what a run does, driver and tasks: claims, commits, checkpoints, marker."""
    with HeldBrokerRoot(str(lab.root.path), run_id="run", mark_clean=True) as held:
        held.begin_writing()
        assert held.scratch is not None
        held.allow_commits(lab.directory(name) for name in names)
        points = {}
        for name in names:
            plan, point = work(name, Path(held.scratch))
            with hold_claim(claim_path(held.scratch, lab.directory(name), "run")) as claim:
                claim.begin(plan, {"next_offset": point})
                claim.finish(LocalStore(lab.directory(name)))
            points[TopicPartition(name, 0)] = point
        settle(held, points)


def round_of(lab: Lab, name: str) -> Cleaning:
    return replace(cleaning_of(Golden(name)), config=lab.root.config(name))


def compact(lab: Lab) -> None:
    """Clean every partition, and say how far."""

    def work(name: str, scratch: Path) -> tuple[CommitPlan, int]:
        round_ = round_of(lab, name)
        made = prepare(lab.directory(name), round_, attempt=name, scratch=scratch)
        return made.commit_of(), made.plan.first_uncleanable_offset

    run(lab, CLEANED, work, lambda held, points: held.settle_commits(points, is_whole=True))


def load(directory: Path, round_: Cleaning) -> LoadedLog:
    """Start a log as a broker does after a loss of power, and put it in order."""
    store = LocalStore(directory)
    loader = LogLoader(
        store,
        config=round_.config,
        cleaner=round_.cleaner,
        now_ms=round_.request.now_ms,
        clean_shutdown=False,
    )
    log = loader.load().close()
    commit(log.plan, store)
    return log


def recover(lab: Lab) -> None:
    """Recover every partition, and mark the directory."""

    def work(name: str, _scratch: Path) -> tuple[CommitPlan, int]:
        log = plan_golden(Golden(name), LocalStore(lab.directory(name)))
        return log.plan, log.log_end_offset

    def settle(held: HeldBrokerRoot, points: dict[TopicPartition, int]) -> None:
        held.write_checkpoints({RECOVERY_POINT_FILE: points})
        held.claim_clean()
        held.settle_commits({}, is_whole=True)

    run(lab, RECOVERED, work, settle)


def recovered(tree: Tree) -> Tree:
    """Return what a start that finds nothing to recover leaves as it is."""
    return {
        name: data
        for name, data in tree.items()
        if name != LEADER_EPOCH_FILE and not name.endswith(SNAPSHOT_SUFFIX)
    }


class RunOfCommits(WorkOfRun):
    """A run over some partitions of a directory."""

    calls = ()  # what a kill leaves of it, nightlies show that are stopped whole

    def __init__(self, names: list[str], folder: Path) -> None:
        self._lab = lab_of(folder, names)
        self.disk = self._lab.disk

    def reset(self) -> None:
        self._lab.reset()


class RunOfCompaction(RunOfCommits):
    """A cleaner point and the marker are there only with what was cleaned."""

    def __init__(self, folder: Path, _way: Interruption) -> None:
        super().__init__(CLEANED, folder)
        lab = self._lab
        self._before = {name: lab.tree(name) for name in CLEANED}
        compact(lab)
        self._after = {name: lab.tree(name) for name in CLEANED}
        self._points = lab.points(CLEANER_FILE)
        self._records = {name: data_records(lab.directory(name)) for name in CLEANED}
        self._values = {name: committed_values(lab.directory(name), 2**62) for name in CLEANED}
        self._marked: set[bool] = set()

    def run(self) -> None:
        compact(self._lab)

    def check(self, where: str) -> None:
        lab, before, after = self._lab, self._before, self._after
        trees = {name: lab.tree(name) for name in CLEANED}
        if lab.is_marked:
            assert all(trees[name] in (before[name], after[name]) for name in CLEANED), where
        for name in CLEANED:
            partition = TopicPartition(name, 0)
            point = lab.points(CLEANER_FILE).get(partition)
            if point == self._points[partition] != lab.made.cleaner_points.get(partition):
                assert trees[name] == after[name], where
        if is_end(where):
            assert lab.is_marked
            assert trees == after
            assert lab.points(CLEANER_FILE) == self._points
        self._marked.add(lab.is_marked)
        # Nothing of what a run before the loss of power remembered is believed.
        was_marked = lab.is_marked
        with (
            restarted(),
            HeldBrokerRoot(str(lab.root.path), run_id="next", mark_clean=True) as held,
        ):
            assert held.was_clean == was_marked, where
        for name in CLEANED:
            load(lab.directory(name), round_of(lab, name))
            assert committed_values(lab.directory(name), 2**62) == self._values[name], where
        with restarted():
            compact(lab)
        for name in CLEANED:
            assert data_records(lab.directory(name)) == self._records[name], where
        assert lab.points(CLEANER_FILE) == self._points, where

    def check_all(self) -> None:
        assert self._marked == {False, True}


class RunOfRecovery(RunOfCommits):
    """A recovery point and the marker are there only with what was recovered."""

    def __init__(self, folder: Path, _way: Interruption) -> None:
        super().__init__(RECOVERED, folder)
        lab = self._lab
        for path in (lab.made.path, lab.root.path):
            (path / CLEAN_SHUTDOWN_FILE).unlink()
            (path / RECOVERY_POINT_FILE).unlink(missing_ok=True)
        recover(lab)
        self._after = {name: lab.tree(name) for name in RECOVERED}
        self._points = lab.points(RECOVERY_POINT_FILE)
        first = self._points[TopicPartition(RECOVERED[0], 0)]
        assert loading_of(Golden(RECOVERED[0]))["recovery_point"] < first

    def run(self) -> None:
        recover(self._lab)

    def check(self, where: str) -> None:
        lab = self._lab
        claimed = lab.points(RECOVERY_POINT_FILE)
        for name in RECOVERED:
            if lab.is_marked or TopicPartition(name, 0) in claimed:
                assert lab.tree(name) == self._after[name], where
        assert lab.is_marked or not is_end(where), where
        with restarted():
            recover(lab)
        for name in RECOVERED:
            assert recovered(lab.tree(name)) == recovered(self._after[name]), where
        assert lab.points(RECOVERY_POINT_FILE) == self._points, where
        assert lab.is_marked, where


CELLS = [
    Cell(
        operation=operation,
        case="some partitions",
        make=make,
        ways=POWER,
        power_stride=1 if ALL else 67,
    )
    for operation, make in (
        ("run of compaction", RunOfCompaction),
        ("run of recovery", RunOfRecovery),
    )
]
