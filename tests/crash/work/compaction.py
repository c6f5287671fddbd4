"""The commit of a round: groups of segments give way to cleaned ones, one after the other.

What was left is loaded; nothing acknowledged may be missing, nothing that was superseded may be
back, and a new round ends where the one that was not interrupted did. A loss of power may come
while the cleaned segments are written, too, and crashes of the load follow some crashes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.errors import IndexFullError
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, WorkOnDirectory, power_of
from tests.crash.interruptions import ALL, KILLS, UNORDERED, Interruption, is_end
from tests.crash.rounds import (
    CASES,
    Case,
    Tree,
    keep,
    kills_of,
    one_group,
    restore,
    settle,
    three_groups,
    without_temporary,
)
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import Cleaning, PreparedRound, prepare
from tests.kit.partition_views import committed_values, data_records
from tests.storage_core.maintenance.compaction.hand_made import cleaning

# Of how many crashes one is followed by crashes of the loads after it.
LOADS_STRIDE = 1 if ALL else 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the uninterrupted round, and the directory before it, look like."""

    start: Tree  # the directory with the scratch files of both passes, before the commit
    prefixes: list[dict[str, bytes]]  # the directory with the first 0, 1, 2, ... groups swapped.
    times: list[dict[str, int]]  # for each of these the modification times of the segments
    log: LoadedLog  # the log as it was
    values: Any  # the newest committed value of every key
    before: list[Any]  # all data records before the round
    after: list[Any]  # all data records after it


def expect(directory: Path, round_: Cleaning, prepared: PreparedRound) -> Expected:
    start = keep(directory)
    before = data_records(directory)
    prefixes, times = [], []
    for count in range(len(prepared.groups) + 1):
        restore(directory, start)
        commit(prepared.commit_of(count), LocalStore(directory))
        log = settle(directory, round_)
        prefixes.append(read_tree(directory))
        times.append(times_of(directory))
    return Expected(
        start=start,
        prefixes=prefixes,
        times=times,
        log=log,
        values=committed_values(directory, log.last_stable_offset),
        before=before,
        after=data_records(directory),
    )


def times_of(directory: Path) -> dict[str, int]:
    """Return the modification times of the segments, milliseconds."""
    return {path.name: path.stat().st_mtime_ns // 1_000_000 for path in directory.glob("*.log")}


class Round(WorkOfKafka):
    """The commit of a round; where the power is lost, both passes as well."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        self._case, self._way = case, way
        self.directory, self._round = case.make(folder / "ours")
        self._before = keep(self.directory)
        self._prepared = prepare(self.directory, self._round)
        self._expected = expect(self.directory, self._round, self._prepared)
        self._seen: set[int] = set()
        self._tried = 0
        self.now_ms = self._round.request.now_ms
        self.overrides: Mapping[str, Any] = case.overrides
        self.checkpoints = {
            "log_start_offset": self._round.request.checkpoints.log_start_offset or 0
        }

    def reset(self) -> None:
        tree = self._before if self._way.is_of_power else self._expected.start
        restore(self.directory, tree)

    def do(self, store: LogStore) -> None:
        prepares = self._way.is_of_power
        prepared = prepare(self.directory, self._round) if prepares else self._prepared
        commit(prepared.commit_of(), store)

    def check(self, where: str) -> None:
        crashed = keep(self.directory)
        is_small = self._case.golden is None
        is_power = self._way.is_of_power
        if self._tried % LOADS_STRIDE == 0 and (is_small or (ALL and not is_power)):
            load = Load(self.directory, self._round, crashed, self._check_loaded)
            for then in (self._way if is_power else KILLS[0]).strikes(load):
                load.check(f"{where}, then loading: {then}")
            restore(self.directory, crashed)
        self._check_loaded(where)
        tree, prefixes = read_tree(self.directory), self._expected.prefixes
        self._seen |= {i for i, prefix in enumerate(prefixes) if prefix == tree}
        assert tree == prefixes[-1] or not is_end(where), where
        self._check_rerun(where)
        self._tried += 1

    def check_all(self) -> None:
        is_small = self._case.golden is None
        if self._way in KILLS[:1] or (self._way.is_of_power and ALL and is_small):
            assert self._seen == set(range(len(self._expected.prefixes)))

    def _check_loaded(self, where: str) -> None:
        """After a crash and a load: a state on the way, with all that consumers are owed."""
        directory, expected = self.directory, self._expected
        log = settle(directory, self._round)
        again = self._round.load(LocalStore(directory))
        assert again.operations == (), where
        for what in ("log_start_offset", "log_end_offset", "last_stable_offset", "epochs"):
            assert getattr(log, what) == getattr(expected.log, what), f"{where}: {what}"
        assert set(log.producers) == set(expected.log.producers), where
        assert committed_values(directory, log.last_stable_offset) == expected.values, where
        tree = read_tree(directory)
        if tree in expected.prefixes:
            assert times_of(directory) in expected.times, where
        else:
            # A swap whose last batch lies below old segments of its group lets those come back.
            found = set(data_records(directory))
            assert set(expected.after) <= found <= set(expected.before), where
        assert not [name for name in tree if name.startswith(SCRATCH_PREFIX)], where

    def _check_rerun(self, where: str) -> None:
        """The same round, made again: byte for byte, unless some groups were in place already."""
        directory, expected = self.directory, self._expected
        was_untouched = read_tree(directory) == expected.prefixes[0]
        try:
            self._round.clean(directory)
        except IndexFullError:
            # Groups are others now. With indexes of four entries a group may not fit any more;
            # Kafka's cleaner fails at the same place.
            assert self._case.has_tiny_indexes, where
            assert not was_untouched, where
            return
        if was_untouched:
            assert read_tree(directory) == expected.prefixes[-1], where
        elif not self._case.is_bounded:
            assert data_records(directory) == expected.after, where
        log = settle(directory, self._round)
        assert committed_values(directory, log.last_stable_offset) == expected.values, where

    def tidy(self) -> None:
        for path in self.directory.glob(f"{SCRATCH_PREFIX}*"):
            path.unlink()

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        log = self._expected.log
        assert answer.log_end_offset == log.log_end_offset, where
        values = committed_values(theirs, log.last_stable_offset)
        assert values == self._expected.values, where

    def check_beside(self, theirs: Path, where: str) -> None:
        settle(self.directory, self._round)
        assert without_temporary(theirs) == without_temporary(self.directory), where


class Load(WorkOnDirectory):
    """The load of what a stopped round has left."""

    def __init__(
        self, directory: Path, round_: Cleaning, left: Tree, check: Callable[[str], None]
    ) -> None:
        self.directory, self._round, self._left, self._check = directory, round_, left, check

    def reset(self) -> None:
        restore(self.directory, self._left)

    def do(self, store: LogStore) -> None:
        settle(self.directory, self._round, store)

    def check(self, where: str) -> None:
        self._check(where)


class UnorderedRound(WorkOnDirectory):
    """A round on a filesystem that keeps of some files the newest names, of others the former."""

    def __init__(
        self, make: Callable[[Path], tuple[Path, Cleaning]], folder: Path, _way: Interruption
    ) -> None:
        self.directory, self._round = make(folder)
        settle(self.directory, self._round)
        self._before = keep(self.directory)
        prepared = prepare(self.directory, self._round)
        assert len(prepared.groups[0].base_offsets) >= 2
        self._expected = expect(self.directory, self._round, prepared)

    def reset(self) -> None:
        restore(self.directory, self._before)

    def do(self, store: LogStore) -> None:
        commit(prepare(self.directory, self._round).commit_of(), store)

    def check(self, where: str) -> None:
        # Without a marker: such a directory is recovered.
        loader = LogLoader(
            LocalStore(self.directory),
            config=self._round.config,
            cleaner=self._round.cleaner,
            now_ms=self._round.request.now_ms,
            clean_shutdown=False,
        )
        log, expected = loader.load().close(), self._expected
        commit(log.plan, LocalStore(self.directory))
        assert log.log_end_offset == expected.log.log_end_offset, where
        values = committed_values(self.directory, expected.log.last_stable_offset)
        assert values == expected.values, where
        there = set(data_records(self.directory))
        assert set(expected.after) <= there <= set(expected.before), where


def by_hand(make: Callable[[Path], Path], folder: Path) -> tuple[Path, Cleaning]:
    return make(folder / "t-0"), cleaning(overrides=Case(None).overrides)


def ways_of(case: Case, number: int) -> list[Interruption]:
    """Return how a round is stopped; what comes after a change is what comes before the next."""
    return [*(way for way in kills_of(case) if way in KILLS[:2]), *power_of(number)]


CELLS = [
    *(
        Cell(
            operation="round",
            case=case.name,
            make=partial(Round, case),
            ways=ways_of(case, number),
            kafka_ways=[*KILLS[:1], *power_of(number)],
            power_stride=(5 if case.golden else 1) if ALL else 17,
            kafka_stride=1 if ALL else 5,
            kafka_power_stride=5 if ALL else 23,
        )
        for number, case in enumerate(CASES)
    ),
    *(
        Cell(
            operation="round",
            case=make.__name__,
            make=partial(UnorderedRound, partial(by_hand, make)),
            ways=UNORDERED,
            power_stride=1 if ALL else 3,
            seeds=40 if ALL else 12,
        )
        for make in ([one_group, three_groups] if ALL else [one_group])
    ),
]
