"""What every kind of root promises; each kind subclasses the suite with a home of its own.

A root that is only read subclasses ``RootContract``, one that runs change ``HeldRootContract``.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.commit import CommitPlan, DeleteFile, WriteFile
from storage_core.commit.trash import RUN_FILE, TrashedRoot, TrashedRun
from storage_core.errors import GuardRefusedError
from storage_core.filenames import TopicPartition, log_file
from storage_core.roots.open_root import open_root
from storage_core.roots.root import (
    TOUCHED,
    HeldRoot,
    Prepared,
    PurgeRequest,
    Root,
    RootAccess,
    RootUndo,
    root_of,
)
from storage_core.store import LogStore, open_store
from storage_core.store.local import write_record

NAME, OTHER = "orders-0", "orders-1"
FILES = {log_file(0): b"first records", log_file(10): b"later records"}
RUN, LATER = "20260102T030405Z-0a1b2c3d", "20260103T030405Z-0a1b2c3d"
# Long after whatever a test has written.
LATE_MS = 10_000_000_000_000

Tree = dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootHome:
    """A root of two partitions with the same files."""

    root: Root
    role: Role  # what it is said to be
    # Folder of what runs take out of it; None where the root keeps that itself
    trash: Path | None = None
    # Puts aside a file of a partition that a purge takes; None where a run's change of the
    # partition does so
    set_aside: Callable[[], object] | None = None

    def tree(self, name: str = NAME) -> Tree:
        """Return what a reader sees of a partition."""
        store = open_store(self.root.locate(name))
        return {
            file.name: store.read_file(file.name, limit_bytes=file.size_bytes)
            for file in store.list_files()
        }

    def hold(self, run_id: str = RUN) -> HeldRoot:
        """Return the root as a run holds it that keeps what it takes away."""
        folder = None if self.trash is None else self.trash / run_id
        if folder is not None and not folder.exists():
            location = self.root.location
            before = TrashedRoot(location=location, was_clean=False, checkpoints={})
            run = TrashedRun(run_id=run_id, action="compact", started_ms=0, roots=(before,))
            write_record(folder / RUN_FILE, run.encode())
        return self.root.hold(run_id=run_id, mark_clean=True, trash=folder)

    def commit(self, held: HeldRoot, prepare: Callable[[LogStore], Prepared]) -> dict[str, Any]:
        """Commit a piece of work as a task does, on what it was told."""
        access: RootAccess = as_told(held.access)
        return access.commit(self.root.locate(NAME), "compact", prepare)

    def undo_of(self, held: HeldRoot) -> RootUndo[Any]:
        """Return the undo of the first run."""
        return held.undo_of(RUN, None if self.trash is None else self.trash / RUN)


def replace_first(store: LogStore) -> Prepared:
    """Replace the first segment, and drop the second one."""
    steps = (
        WriteFile(name="leader-epoch-checkpoint", content=b"0\n0\n", reason="test"),
        DeleteFile(name=log_file(10), reason="test"),
    )
    plan = CommitPlan(location=store.location, operations=steps)
    return Prepared(result={"next_offset": 7}, plan=plan)


def change_nothing(_: LogStore) -> Prepared:
    return Prepared(result={"reason": "NOTHING_TO_CLEAN"}, plan=None)


def fail(_: LogStore) -> Prepared:
    raise OSError(5, "Input/output error")


AFTER = {log_file(0): FILES[log_file(0)], "leader-epoch-checkpoint": b"0\n0\n"}


class RootContract(ABC):
    """What holds of every root as anybody reads it."""

    @pytest.fixture
    @abstractmethod
    def home(self, tmp_path: Path) -> RootHome:
        """A new root for every test."""

    def test_its_directories_are_named_in_order_and_open_where_they_are_located(
        self, home: RootHome
    ) -> None:
        names = home.root.directories()
        assert [name for name in names if name in {NAME, OTHER}] == [NAME, OTHER]
        assert home.tree(NAME) == home.tree(OTHER) == FILES
        assert root_of(home.root.locate(NAME)) == home.root.location

    def test_its_location_opens_it_again(self, home: RootHome) -> None:
        again = open_root(home.root.location, role=home.role)
        assert (again.location, again.directories()) == (
            home.root.location,
            home.root.directories(),
        )

    def test_its_role_says_as_the_root_does_whether_manifests_count(self, home: RootHome) -> None:
        assert home.root.has_manifests == home.role.facts.has_manifests
        assert not (home.role.facts.is_owned_by_broker and home.role.facts.is_synced)

    def test_a_file_that_is_not_there_is_none(self, home: RootHome) -> None:
        assert home.root.read("recovery-point-offset-checkpoint", limit_bytes=99) is None

    def test_whoever_has_never_written_is_not_after_any_clock(self, home: RootHome) -> None:
        assert home.root.newest_write_ms() == 0


class ReadOnlyRootContract(RootContract):
    """What holds of a root that no run may change."""

    def test_its_role_says_that_somebody_elses_sync_owns_it(self, home: RootHome) -> None:
        assert home.role.facts.is_synced

    def test_nobody_holds_it(self, home: RootHome) -> None:
        with pytest.raises(GuardRefusedError, match="ROLE_IS_READ_ONLY"):
            home.root.hold(run_id=RUN, mark_clean=True)

    def test_nobody_purges_it(self, home: RootHome) -> None:
        with pytest.raises(GuardRefusedError, match="ROLE_IS_READ_ONLY"):
            home.root.purge_of(request(), None)


class HeldRootContract(RootContract):
    """What holds of a root that runs change."""

    def test_its_role_says_as_the_root_does_who_owns_what_is_put_aside(
        self, home: RootHome
    ) -> None:
        facts = home.role.facts
        assert not facts.is_synced
        assert facts.keeps_generations == (home.trash is None)
        assert home.root.purge_of(request(), None).is_here == facts.is_owned_by_broker
        with home.hold() as held:
            assert home.undo_of(held).moves_files == facts.is_owned_by_broker

    @pytest.mark.item("FLT-10")
    def test_one_run_holds_it_at_a_time(self, home: RootHome) -> None:
        with home.hold(), pytest.raises(GuardRefusedError, match=home.root.location):
            home.hold(LATER).__enter__()
        with home.hold(LATER) as held:
            held.validate()
            assert (held.location, held.failure) == (home.root.location, None)
            assert held.free_bytes() > 0

    def test_what_tasks_are_told_is_proof_until_it_is_given_back(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            told = pickle.dumps(held.access)
            pickle.loads(told).validate()
        with pytest.raises(GuardRefusedError):
            pickle.loads(told).validate()

    def test_an_attempt_has_a_scratch_folder_for_its_partition(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            with held.access.scratch(home.root.locate(NAME)) as folder:
                (folder / "pylog-scratch").write_bytes(b"1")
        assert home.tree() == FILES

    @pytest.mark.item("FLT-14")
    def test_work_is_done_once_however_often_it_is_asked_for(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            held.allow_commits([home.root.locate(NAME)])
            first = home.commit(held, replace_first)
            assert first["next_offset"] == 7
            assert home.commit(held, fail) == first
            held.settle_commits({}, is_whole=True)
        assert (home.tree(), home.tree(OTHER)) == (AFTER, FILES)

    def test_work_that_finds_nothing_to_do_changes_nothing(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            held.allow_commits([home.root.locate(NAME)])
            assert home.commit(held, change_nothing) == {"reason": "NOTHING_TO_CLEAN"}
        assert home.tree() == FILES

    @pytest.mark.item("FLT-10")
    def test_work_that_fails_before_its_commit_has_touched_nothing(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            held.allow_commits([home.root.locate(NAME)])
            row = home.commit(held, fail)
        assert (row["error_class"], row[TOUCHED]) == ("OSError", False)
        assert home.tree() == FILES

    @pytest.mark.item("FLT-10", "CMP-40")
    def test_work_that_comes_when_the_run_is_over_has_touched_nothing(self, home: RootHome) -> None:
        with home.hold() as held:
            held.begin_writing()
            held.allow_commits([home.root.locate(NAME)])
            access = as_told(held.access)
        row = access.commit(home.root.locate(NAME), "compact", replace_first)
        assert row[TOUCHED] is False
        assert row["error"] is not None
        assert home.tree() == FILES

    def test_an_undo_leaves_what_was_there_before_the_run(self, home: RootHome) -> None:
        self._changed(home)
        with home.hold(LATER) as held:
            undo = home.undo_of(held)
            assert undone(held, undo) == [NAME]
            assert home.tree() == FILES
            held.begin_writing()
        with home.hold(LATER) as held:
            assert undone(held, home.undo_of(held)) == []
        assert (home.tree(), home.tree(OTHER)) == (FILES, FILES)

    def test_an_undo_is_foretold_before_anything_changes(self, home: RootHome) -> None:
        self._changed(home)
        with home.hold(LATER) as held:
            undo = home.undo_of(held)
            foretold = [
                (each.partition, told.segments_before, told.segments_after)
                for part in undo.parts(TopicFilter())
                for each in as_told(part)
                if (told := as_told(undo.check)(each)) is not None
            ]
        assert foretold == [(TopicPartition("orders", 0), 1, 2)]
        assert home.tree() == AFTER

    def test_an_undo_is_about_the_topics_that_are_asked_for(self, home: RootHome) -> None:
        self._changed(home)
        with home.hold(LATER) as held:
            others = TopicFilter(exclude=("orders",))
            assert undone(held, home.undo_of(held), others) == []
        assert home.tree() == AFTER

    def test_a_purge_takes_what_was_foretold_once_and_nothing_that_a_reader_sees(
        self, home: RootHome
    ) -> None:
        self._changed(home)
        if home.set_aside is not None:
            home.set_aside()
        foretold = purged(home, None)
        assert foretold > 0
        with home.hold(LATER) as held:
            assert [purged(home, held), purged(home, held)] == [foretold, 0]
        assert (home.tree(), home.tree(OTHER)) == (AFTER, FILES)

    def test_a_look_at_what_a_purge_would_take_leaves_the_way_back(self, home: RootHome) -> None:
        self._changed(home)
        purged(home, None)
        with home.hold(LATER) as held:
            assert undone(held, home.undo_of(held)) == [NAME]
        assert home.tree() == FILES

    def _changed(self, home: RootHome) -> None:
        """Let the first run change one partition."""
        with home.hold() as held:
            held.begin_writing()
            held.allow_commits([home.root.locate(NAME)])
            assert home.commit(held, replace_first)["next_offset"] == 7
            held.settle_commits({}, is_whole=True)
        assert home.tree() == AFTER


def request() -> PurgeRequest:
    return PurgeRequest(topics=TopicFilter(), catalog=TopicCatalog(), now_ms=LATE_MS, grace_ms=0)


def as_told(work: Any) -> Any:
    """Return what a task gets of it in another process."""
    return pickle.loads(pickle.dumps(work))


def purged(home: RootHome, held: HeldRoot | None) -> int:
    """Purge a root as a run does; only look where it is not held; return how many files go."""
    purge = home.root.purge_of(request(), held)
    purge.begin()
    files = 0
    for part in purge.parts():
        told = (part, purge.find_due, purge.apply)
        stretches, find_due, apply = told if purge.is_here else as_told(told)
        files += sum(apply(each).files for stretch in stretches for each in find_due(stretch))
    purge.end(is_whole=True, now_ms=LATE_MS)
    return files


def undone(held: HeldRoot, undo: RootUndo[Any], topics: TopicFilter | None = None) -> Sequence[str]:
    """Undo a run as a run does; return the names of the partitions that were undone."""
    names = []
    for part in undo.parts(topics or TopicFilter()):
        check = as_told(undo.check)
        due = [each for each in as_told(part) if (told := check(each)) and told.is_needed]
        undo.begin(part, due)
        done = [each for each in due if as_told(undo.apply)(each)]
        if done:
            undo.settle(due, done)
        names += [str(each.partition) for each in done]
    return names
