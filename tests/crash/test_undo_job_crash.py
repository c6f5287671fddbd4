"""A whole ``pylog undo`` of a log directory, killed at every change of a file.

Marker, checkpoints and partitions are changed one after the other. What a kill leaves between any
two of these changes, or a loss of power, opens as the state before the run or the one after it, and
the same command, given again, ends with the bytes, the checkpoints and the marker of one that was
not killed.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations import broker_undo
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from pylog_spark.run.upkeep import observe_root
from storage_core.checkpoint.checkpoint_files import encode_offset_checkpoint
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit import commit
from storage_core.commit.claim import hold_claim
from storage_core.commit.keep import with_trash
from storage_core.commit.scratch import claim_path
from storage_core.commit.trash import (
    KEPT_FOLDER,
    RUN_FILE,
    TrashedRun,
    commit_folder,
    hold_run,
    list_commits,
    read_run,
    write_raised,
)
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    TopicPartition,
)
from storage_core.roots import broker
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore, write_record
from tests.crash.interruptions import ALL, POWER, is_end, power_losses, restarted
from tests.crash.test_retention_job_crash import sweep
from tests.kit.compare import read_tree
from tests.kit.faulty_store import SimulatedCrash
from tests.kit.golden_cleaning import Cleaning, cleaning_of, prepare
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory, read_points

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]
RUN = "20260102T030405Z-0a1b2c3d"
CHANGES = (
    "write_file",
    "rename",
    "delete",
    "sync_directory",
    "keep",
    "restore",
    "write_record",
)
STRIDE = 1 if ALL else 5
SWEEP_STRIDE = 1 if ALL else 13
POWER_STRIDE = 1 if ALL else 61
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800 if ALL else 300)]


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """Let the process die before its change of that number; it changes nothing any more then."""
    changes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(
                LocalStore, name, _counted(name, getattr(LocalStore, name), changes, number)
            )
        sweep = _counted("sweep_scratch", broker.sweep_scratch, changes, number)
        patch.setattr(broker, "sweep_scratch", sweep)
        yield changes


def _counted(name: str, change: Callable[..., Any], changes: list[str], number: int) -> Any:
    def counted(*args: Any, **options: Any) -> Any:
        if len(changes) > number >= 0:
            raise SimulatedCrash("dead")
        changes.append(name)
        if len(changes) - 1 == number:
            raise SimulatedCrash(name)
        return change(*args, **options)

    return counted


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
    """A directory that was compacted, and what has to become of it.

    Attributes:
        disk: What it lies on, with the trash.
        root: The directory.
        options: Of the undo.
        before: Its partitions before the compaction.
        after: The same after it.
        copy: The disk as the compaction left it.
    """

    disk: Path
    root: BrokerDirectory
    options: JobOptions
    before: dict[str, Any]
    after: dict[str, Any]
    copy: Path

    def reset(self) -> None:
        """Make the disk as the compaction left it."""
        shutil.rmtree(self.disk)
        shutil.copytree(self.copy, self.disk)

    def undo(self) -> int:
        """Undo the compaction; return in how many partitions."""
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


@pytest.fixture
def compaction(tmp_path) -> Compacted:
    disk = tmp_path / "disk"
    disk.mkdir()
    root, options, before = compacted(disk)
    after = partitions(root.path)
    assert after != before
    copy = shutil.copytree(disk, tmp_path / "copy")
    return Compacted(disk=disk, root=root, options=options, before=before, after=after, copy=copy)


def test_an_undo_of_a_directory_may_be_killed_anywhere(compaction):
    with killed_at(-1) as changes:
        assert compaction.undo() == len(NAMES)
    compaction.check_undone("not killed")
    count = len(changes)
    assert count > 40
    for number in range(0, count, STRIDE):
        where = f"change {number} of {count}"
        compaction.reset()
        with killed_at(number), pytest.raises(SimulatedCrash):
            compaction.undo()
        compaction.check_opens(where)
        is_whole = partitions(compaction.root.path) in (compaction.before, compaction.after)
        # Another run than the undo that is made again: it does not take half of it for clean.
        with HeldBrokerRoot(str(compaction.root.path), run_id="next", mark_clean=True) as held:
            assert is_whole or not held.was_clean, where
        compaction.undo()
        compaction.check_undone(where)


def test_an_undo_of_a_run_that_was_killed_undoes_what_the_run_had_only_begun(tmp_path):
    """Nothing in the trash tells of that commit yet when the undo begins."""
    name = NAMES[0]
    root = broker_directory(tmp_path / "log", [name])
    directory, before = root.path / f"{name}-0", partitions(root.path)
    place = tmp_path / "trash" / RUN
    run = TrashedRun(
        run_id=RUN, action="compact", started_ms=0, roots=(observe_root(str(root.path)),)
    )
    write_record(Path(place, RUN_FILE), run.encode())
    with HeldBrokerRoot(str(root.path), run_id=RUN, mark_clean=True) as held:
        held.begin_writing()
        held.allow_commits([directory])
        assert held.scratch is not None
        made = prepare(directory, round_of(root, name), attempt="x", scratch=Path(held.scratch))
        store = LocalStore(directory)
        plan = with_trash(made.commit_of(), store, place, action="compact")
        with hold_claim(claim_path(held.scratch, directory, RUN)) as claim:
            claim.begin(plan, {"next_offset": 1})
        # It leaves what had begun to the next run, as a kill does.
        held.give_up(StorageError(str(root.path), "Input/output error"))
    assert not list(list_commits(place))
    assert undo(RUN, root.options(0, trash=str(tmp_path / "trash"))).summary.done == 1
    assert partitions(root.path) == before


SWEPT = ["retain-logstart-mid-s501", "retain-size-zero-s501"]


@pytest.mark.item("DIR-03", "CKP-04", "FLT-08")
def test_a_sweep_that_was_killed_at_any_change_is_undone_with_the_log_starts_it_had_raised(
    tmp_path,
):
    made = broker_directory(tmp_path / "made", SWEPT)
    before = sweep_state(made)
    raised = 0
    for number in range(0, 200, SWEEP_STRIDE):
        root = made.copy(tmp_path / f"killed-{number}" / "log")
        trash = root.path.parent / "trash"
        run = TrashedRun(
            run_id=RUN, action="retain", started_ms=0, roots=(observe_root(str(root.path)),)
        )
        write_record(trash / RUN / RUN_FILE, run.encode())
        with killed_at(number) as changes, suppress(SimulatedCrash):
            sweep(root, trash=trash / RUN)
        where = f"change {number}: {changes[-1]}"
        starts = read_points(root.path, LOG_START_FILE)
        options = root.options(0, trash=str(trash))
        had_raised = starts != made.log_starts and not list(list_commits(trash / RUN))
        dry = undo(RUN, replace(options, dry_run=True))
        assert not had_raised or dry.summary.planned, where
        undone = undo(RUN, options)
        assert undone.exit_code == 0, where
        assert sweep_state(root) == before, where
        assert not had_raised or undone.summary.done, where
        again = undo(RUN, options)
        assert (again.exit_code, again.summary.done) == (0, 0), where
        raised += had_raised
        shutil.rmtree(root.path.parent)
        if len(changes) <= number:
            break
    else:
        raise AssertionError("the sweep has more changes than were tried")
    assert raised


def sweep_state(root: BrokerDirectory) -> dict[str, Any]:
    """Return partitions and log starts, and whether the directory is marked."""
    return {
        "partitions": partitions(root.path),
        "starts": read_points(root.path, LOG_START_FILE),
        "is_marked": (root.path / CLEAN_SHUTDOWN_FILE).exists(),
    }


@pytest.mark.item("CKP-04")
def test_log_starts_that_somebody_else_has_moved_since_are_not_put_back(tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT[:1])
    partition = TopicPartition(SWEPT[0], 0)
    run = TrashedRun(
        run_id=RUN, action="retain", started_ms=0, roots=(observe_root(str(root.path)),)
    )
    trash = tmp_path / "trash"
    write_record(trash / RUN / RUN_FILE, run.encode())
    raised, moved = root.log_starts[partition] + 1, root.log_starts[partition] + 2
    write_raised(trash / RUN, {str(root.path): {str(partition): raised}})
    (root.path / LOG_START_FILE).write_bytes(encode_offset_checkpoint({partition: moved}))
    undone = undo(RUN, root.options(0, trash=str(trash)))
    (row,) = undone.results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "CHANGED_SINCE_RUN")
    assert LOG_START_FILE in row["error"]
    assert str(moved) in row["error"]
    assert undone.exit_code == 3
    assert read_points(root.path, LOG_START_FILE) == {partition: moved}


@pytest.mark.item("CKP-04")
def test_an_undo_touches_no_partition_whose_checkpoint_is_malformed_and_says_so(compaction):
    points = compaction.root.path / CLEANER_FILE
    points.write_bytes(b"0\n1\nnonsense\n")
    marker = (compaction.root.path / CLEAN_SHUTDOWN_FILE).read_bytes()
    for dry_run in (True, False):
        report = undo(RUN, replace(compaction.options, dry_run=dry_run))
        assert report.exit_code == 4
        rows = report.results.to_pylist()
        assert {row["status"] for row in rows} == {"failed"}
        assert all(CLEANER_FILE in row["error"] and "nonsense" in row["error"] for row in rows)
        assert partitions(compaction.root.path) == compaction.after
        assert (compaction.root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == marker
    points.write_bytes(encode_offset_checkpoint({}))
    compaction.undo()
    compaction.check_undone("the file was put in order")


def test_a_partition_that_was_deleted_since_the_run_does_not_stop_the_undo_of_the_others(
    compaction,
):
    gone, other = (f"{name}-0" for name in NAMES)
    shutil.rmtree(compaction.root.path / gone)
    report = undo(RUN, compaction.options)
    rows = {Path(row["directory"]).name: row for row in report.results.to_pylist()}
    assert (rows[gone]["status"], rows[other]["status"]) == ("failed", "done")
    assert report.exit_code == 4
    assert partitions(compaction.root.path) == {other: compaction.before[other]}


def test_a_commit_that_was_killed_before_it_began_does_not_stop_an_undo(compaction):
    # It had begun to keep files: the machine went down, and a loader finished nothing of it.
    place, directory = Path(compaction.options.trash, RUN), compaction.root.path / f"{NAMES[0]}-0"
    (commit_folder(place, directory, 1) / KEPT_FOLDER).mkdir(parents=True)
    assert compaction.undo() == len(NAMES)
    compaction.check_undone("with a commit that did not begin")


def test_what_was_malformed_before_the_run_is_not_put_back_by_its_undo(compaction):
    """Nobody knows what it said of these partitions; a broker has written it anew since."""
    folder = Path(str(compaction.options.trash), RUN)
    run = read_run(folder)
    (root,) = run.roots
    known = {name: entries for name, entries in root.checkpoints.items() if name != CLEANER_FILE}
    unknown = replace(run, roots=(replace(root, checkpoints=known),))
    write_record(folder / RUN_FILE, unknown.encode())
    points = read_points(compaction.root.path)
    assert compaction.undo() == len(NAMES)
    assert partitions(compaction.root.path) == compaction.before
    assert read_points(compaction.root.path) == points


@pytest.mark.item("DIR-02")
def test_an_undo_of_two_directories_of_which_one_is_locked_touches_neither(compaction):
    other = compaction.disk / "other"
    other.mkdir()
    folder = Path(str(compaction.options.trash), RUN)
    run = read_run(folder)
    both = replace(run, roots=(*run.roots, observe_root(str(other))))
    write_record(folder / RUN_FILE, both.encode())
    with (
        LogDirectoryLock(other),
        pytest.raises(GuardRefusedError, match=f"LOG_DIRECTORY_IN_USE.*{other}"),
    ):
        compaction.undo()
    assert partitions(compaction.root.path) == compaction.after
    assert compaction.undo() == len(NAMES)
    compaction.check_undone("the lock was given back")


@pytest.mark.item("DIR-03")
def test_an_undo_that_is_interrupted_leaves_the_directory_unclean(compaction, monkeypatch):
    undo_partition = broker_undo.undo_partition

    def interrupted(store: LocalStore, commits: Any, **rest: Any) -> Any:
        if NAMES[1] in store.location:
            raise KeyboardInterrupt
        return undo_partition(store, commits, **rest)

    monkeypatch.setattr(broker_undo, "undo_partition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compaction.undo()
    monkeypatch.undo()
    assert partitions(compaction.root.path) not in (compaction.before, compaction.after)
    compaction.check_opens("interrupted")
    assert not (compaction.root.path / CLEAN_SHUTDOWN_FILE).exists()
    with HeldBrokerRoot(str(compaction.root.path), run_id="next", mark_clean=True) as held:
        assert not held.was_clean
    compaction.undo()
    compaction.check_undone("interrupted, and made again")


def test_an_undo_is_refused_while_somebody_works_with_the_same_trash(compaction):
    with (
        hold_run(Path(compaction.options.trash, RUN)),
        pytest.raises(GuardRefusedError, match="TRASH_IN_USE"),
    ):
        compaction.undo()
    assert partitions(compaction.root.path) == compaction.after
    assert not (compaction.root.path / LOCK_FILE).exists()


@pytest.mark.item("DIR-03")
def test_an_undo_that_failed_in_a_partition_remembers_the_marker_for_the_next(
    compaction, monkeypatch
):
    undo_partition = broker_undo.undo_partition

    def failing(store: LocalStore, commits: Any, **rest: Any) -> Any:
        if NAMES[1] in store.location:
            raise CheckpointError("undo.json", 0, "malformed")
        return undo_partition(store, commits, **rest)

    monkeypatch.setattr(broker_undo, "undo_partition", failing)
    report = undo(RUN, compaction.options)
    monkeypatch.undo()
    assert (report.summary.failed, report.exit_code) == (1, 4)
    assert not (compaction.root.path / CLEAN_SHUTDOWN_FILE).exists()
    compaction.undo()
    compaction.check_undone("failed, and made again")


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_an_undo_of_a_directory_may_lose_its_power_anywhere(compaction, way):
    for where in power_losses(
        compaction.undo, compaction.disk, way.way, reset=compaction.reset, stride=POWER_STRIDE
    ):
        compaction.check_opens(where)
        if not is_end(where):
            with restarted():
                compaction.undo()
        compaction.check_undone(where)
