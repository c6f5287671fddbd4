"""The commit of a round that keeps what it takes away, and its undo; on one filesystem and on two.

What a stopped commit leaves is what it leaves without a trash, and nothing is gone that the trash
does not have. What a stopped undo leaves is loaded, by us and by Kafka, as the state before the run
or the one after it, and the undo, made again, ends with the bytes from before the run.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from storage_core.commit import CommitPlan, KeepFile, PromoteFile, RenameFile, commit
from storage_core.commit.trash import commit_folder, commit_folders
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.filenames import SCRATCH_PREFIX, TEMPORARY_SUFFIX, log_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.segment_recovery import split_segment
from storage_core.log.settled_store import plan_settling
from storage_core.records.payload import Limits
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, WorkOnDirectory, power_of
from tests.crash.interruptions import (
    ALL,
    KILLS,
    KILLS_OF_CHANGES,
    POWER,
    UNORDERED,
    Interruption,
    is_end,
)
from tests.crash.rounds import CASES, Case, Tree, keep, restore, settle
from tests.kit.compare import read_tree
from tests.kit.faulty_store import Moment
from tests.kit.golden_cleaning import Cleaning, prepare
from tests.kit.partition_views import committed_values, data_records
from tests.pylog_spark.overflowing_roots import FAR, overflowing_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A partition that was cleaned with a trash beside it."""

    disk: Path  # what both lie on
    directory: Path
    round_: Cleaning  # the round that cleaned it
    place: Path  # the run's trash
    plan: CommitPlan
    prepared: Tree  # the directory and the trash before the commit: scratch files lie there
    before: dict[str, bytes]  # the directory as a load leaves it
    after: dict[str, bytes]  # the directory as the commit leaves it
    cleaned: Path  # the same with times, and the trash

    @property
    def folders(self) -> list[Path]:
        """The trash of the commits on the partition."""
        return commit_folders(self.place, self.directory)

    def reset(self) -> None:
        """Bring back the directory and the trash as the commit left them."""
        shutil.rmtree(self.directory)
        shutil.rmtree(self.place)
        shutil.copytree(self.cleaned / "log", self.directory)
        shutil.copytree(self.cleaned / "trash", self.place)

    def tree(self) -> dict[str, bytes]:
        """Return the directory's files, scratch files left out."""
        return {
            name: data
            for name, data in read_tree(self.directory).items()
            if not name.startswith(SCRATCH_PREFIX) and not name.endswith(TEMPORARY_SUFFIX)
        }

    def undo(self, store: LogStore | None = None) -> Any:
        """Undo the run; through a store of the directory, or a new one."""
        return undo_partition(
            store or LocalStore(self.directory), self.folders, settling=plan_settling
        )


def clean(case: Case, tmp_path: Path) -> Cleaned:
    directory, round_ = case.make(tmp_path / "disk" / "log")
    settle(directory, round_)
    before = read_tree(directory)
    prepared_round = prepare(directory, round_)
    place = tmp_path / "disk" / "trash" / "run"
    plan = with_trash(prepared_round.commit_of(), LocalStore(directory), place, action="compact")
    prepared = keep(directory)
    commit(plan, LocalStore(directory))
    after = read_tree(directory)
    if after == before:
        pytest.skip("the round leaves every byte as it was")
    copy = tmp_path / "cleaned"
    shutil.copytree(directory, copy / "log")
    shutil.copytree(place, copy / "trash")
    return Cleaned(
        disk=tmp_path / "disk",
        directory=directory,
        round_=round_,
        place=place,
        plan=plan,
        prepared=prepared,
        before=before,
        after=after,
        cleaned=copy,
    )


@contextmanager
def trash_on_another_filesystem() -> Iterator[None]:
    """Let what is kept be copied, as where no name of a file can be given to it over there."""
    with patch("storage_core.commit.undo.is_same_filesystem", lambda *_: False):
        yield


class OnCleaned(WorkOnDirectory):
    """What is done to a cleaned partition; ``is_elsewhere``: its trash is on another filesystem."""

    def __init__(
        self, case: Case, folder: Path, way: Interruption, *, is_elsewhere: bool = False
    ) -> None:
        self._way, self._folder, self._is_elsewhere = way, folder, is_elsewhere
        with self.context():
            self._cleaned = clean(case, folder)
        self.directory, self.disk = self._cleaned.directory, self._cleaned.disk

    @contextmanager
    def context(self) -> Iterator[None]:
        with trash_on_another_filesystem() if self._is_elsewhere else ExitStack():
            yield


class KeepingCommit(OnCleaned):
    """The commit: what it took is in the trash when the power is back."""

    def __init__(
        self, case: Case, folder: Path, way: Interruption, *, is_elsewhere: bool = False
    ) -> None:
        super().__init__(case, folder, way, is_elsewhere=is_elsewhere)
        self._ends: set[int] = set()

    def reset(self) -> None:
        shutil.rmtree(self._cleaned.place, ignore_errors=True)
        restore(self.directory, self._cleaned.prepared)

    def do(self, store: LogStore) -> None:
        commit(self._cleaned.plan, store)

    def check(self, where: str) -> None:
        cleaned = self._cleaned
        there = cleaned.tree()
        kept = [read_tree(path) for path in cleaned.place.rglob("kept")]
        for name, data in cleaned.before.items():
            assert there.get(name) == data or any(data == tree.get(name) for tree in kept), where
        log = settle(self.directory, cleaned.round_)
        if cleaned.folders and (cleaned.folders[0] / "left.json").exists():
            cleaned.undo()
            assert cleaned.tree() == cleaned.before, where
        self._ends.add(log.log_end_offset)

    def check_all(self) -> None:
        assert len(self._ends) == 1


class ResumedCommit(OnCleaned):
    """The commit, finished by another attempt, as its claim does it: from the step it was at."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        super().__init__(case, folder, way)
        self._done = 0

    def reset(self) -> None:
        shutil.rmtree(self._cleaned.place, ignore_errors=True)
        restore(self.directory, self._cleaned.prepared)

    def do(self, store: LogStore) -> None:
        plan = self._cleaned.plan
        for number, step in enumerate(plan.operations):
            self._done = number
            commit(CommitPlan(location=plan.location, operations=(step,)), store)

    def check(self, where: str) -> None:
        cleaned = self._cleaned
        left = cleaned.plan.operations[self._done :]
        # Whether a file that was moved has got there its claim finds out.
        if self._way.way is not Moment.AFTER or not isinstance(left[0], RenameFile | PromoteFile):
            store = LocalStore(self.directory)
            commit(CommitPlan(location=cleaned.plan.location, operations=left), store)
            assert cleaned.tree() == cleaned.after, where
            cleaned.undo()
            assert cleaned.tree() == cleaned.before, where


class UnorderedUndoOfSplit(WorkOnDirectory):
    """The undo of a split where of some files the newest names are kept, in no order."""

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self.disk, self.original = folder / "disk", folder / "split"
        self.disk.mkdir()
        self.directory = overflowing_root(self.disk / "log").path / "t-0"
        self._before = read_tree(self.directory)
        store, place = LocalStore(self.directory), self.disk / "trash" / "run"
        view = DirectoryView(store)
        limits = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
        split_segment(view, 0, index_interval_bytes=4096, max_index_bytes=1 << 20, limits=limits)
        plan = CommitPlan(location=store.location, operations=tuple(view.operations))
        commit(with_trash(plan, store, place, action="compact"), store)
        self._folders = [commit_folder(place, self.directory, 0)]
        shutil.copytree(self.disk, self.original)
        self._states: set[tuple[bool, bool]] = set()
        self._there: dict[str, bytes] = {}

    def do(self, store: LogStore) -> None:
        undo_partition(store, self._folders, settling=plan_settling)

    def check(self, where: str) -> None:
        whole, part = log_file(0), log_file(FAR)
        self._there = read_tree(self.directory)
        state = (self._there.get(whole) == self._before[whole], part in self._there)
        assert state != (True, True), where
        self._states.add(state)

    def check_all(self) -> None:
        assert self._states == {(False, True), (False, False), (True, False)}
        assert self._there == self._before


class Undo(OnCleaned, WorkOfKafka):
    """The undo, made again at once, and after a load."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        super().__init__(case, folder, way)
        log = settle(self.directory, self._cleaned.round_)
        self._log, self._end = log, log.last_stable_offset
        self._values = committed_values(self.directory, self._end)
        self._records = set(data_records(self.directory))
        self._seen: set[int] = set()
        request = self._cleaned.round_.request
        self.now_ms = request.now_ms
        self.overrides: Mapping[str, Any] = case.overrides
        self.checkpoints = {"log_start_offset": request.checkpoints.log_start_offset or 0}

    def reset(self) -> None:
        self._cleaned.reset()

    def do(self, store: LogStore) -> None:
        self._cleaned.undo(store)

    def check(self, where: str) -> None:
        cleaned, directory = self._cleaned, self.directory
        assert cleaned.tree() == cleaned.before or not is_end(where), where
        left, trash = keep(directory), self._folder / "trash-left"
        shutil.copytree(cleaned.place, trash)
        # Made again at once.
        cleaned.undo()
        assert cleaned.tree() == cleaned.before, where
        # Loaded first: one state or the other, and then made again.
        restore(directory, left)
        shutil.rmtree(cleaned.place)
        trash.rename(cleaned.place)
        log = settle(directory, cleaned.round_)
        assert log.last_stable_offset == self._end
        assert committed_values(directory, self._end) == self._values, where
        assert self._records <= set(data_records(directory)), where
        logs = {name: data for name, data in cleaned.tree().items() if name.endswith(".log")}
        sides = [
            {name: data for name, data in side.items() if name.endswith(".log")}
            for side in (cleaned.before, cleaned.after)
        ]
        assert logs in sides, where
        self._seen.add(sides.index(logs))
        cleaned.undo()
        assert cleaned.tree() == cleaned.before, where

    def check_all(self) -> None:
        assert self._seen == {0, 1} or self._way.way is Moment.TORN

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        assert answer.log_end_offset == self._log.log_end_offset, where
        assert committed_values(theirs, self._end) == self._values, where


class UndoFromElsewhere(OnCleaned):
    """The undo of what was copied to another filesystem, made again at once."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        super().__init__(case, folder, way, is_elsewhere=True)
        cleaned = self._cleaned
        (links,) = {path.stat().st_nlink for path in cleaned.cleaned.rglob("kept/*.log")}
        assert links == 1
        copies = [step for step in cleaned.plan.operations if isinstance(step, KeepFile)]
        assert sum(step.size_bytes for step in copies if step.is_copy) > 1000
        self._tried = 0

    def reset(self) -> None:
        self._cleaned.reset()

    def do(self, store: LogStore) -> None:
        self._cleaned.undo(store)

    def check(self, where: str) -> None:
        self._cleaned.undo()
        assert self._cleaned.tree() == self._cleaned.before, where
        self._tried += 1

    def check_all(self) -> None:
        assert self._tried > len(self._cleaned.before) or self._way not in KILLS[:1]


def power_stride_of(case: Case) -> int:
    return (5 if case.golden else 1) if ALL else 17


CELLS = [
    *(
        Cell(
            operation="commit that keeps",
            case=case.name,
            make=partial(KeepingCommit, case),
            ways=power_of(number),
            power_stride=power_stride_of(case),
        )
        for number, case in enumerate(CASES)
    ),
    *(
        Cell(
            operation="commit that keeps, resumed",
            case=case.name,
            make=partial(ResumedCommit, case),
            ways=KILLS,
            stride=1 if ALL else 5,
        )
        for case in CASES
    ),
    Cell(
        operation="commit that keeps",
        store="log directory, trash elsewhere",
        case=CASES[0].name,
        make=partial(KeepingCommit, CASES[0], is_elsewhere=True),
        ways=POWER,
        power_stride=power_stride_of(CASES[0]),
    ),
    *(
        Cell(
            operation="undo",
            case=case.name,
            make=partial(Undo, case),
            ways=[*KILLS_OF_CHANGES, *power_of(number)],
            kafka_ways=[*KILLS[:1], *power_of(number)],
            # Of how many changes one is tried; every one of the case by hand.
            stride=5 if case.golden and not ALL else 1,
            power_stride=power_stride_of(case),
            kafka_stride=1 if ALL else 5,
            kafka_power_stride=5 if ALL else 23,
        )
        for number, case in enumerate(CASES)
    ),
    Cell(
        operation="undo of a split",
        case="by hand",
        make=UnorderedUndoOfSplit,
        ways=UNORDERED,
        seeds=16 if ALL else 4,
    ),
    Cell(
        operation="undo",
        store="log directory, trash elsewhere",
        case=CASES[0].name,
        make=partial(UndoFromElsewhere, CASES[0]),
        ways=[*KILLS_OF_CHANGES, *POWER],
        power_stride=power_stride_of(CASES[0]),
    ),
]
