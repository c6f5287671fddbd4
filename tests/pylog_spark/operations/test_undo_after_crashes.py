"""An undo of what runs left that did not end as they should, and beside others: of local roots."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations.undo import undo
from pylog_spark.run.upkeep import observe_root
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit.claim import hold_claim
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
from storage_core.commit.undo import with_trash
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    TopicPartition,
)
from storage_core.roots import broker_undo
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore, write_record
from tests.crash.work.run_of_undo import (
    NAMES,
    RUN,
    SWEPT,
    Compacted,
    compaction_in,
    partitions,
    round_of,
)
from tests.kit.golden_cleaning import prepare
from tests.pylog_spark.broker_roots import broker_directory, read_points


@pytest.fixture
def compaction(tmp_path: Path) -> Compacted:
    return compaction_in(tmp_path)


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
    with HeldBrokerRoot(str(root.path), run_id=RUN, mark_clean=True, is_alone=False) as held:
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_commit_that_was_killed_before_it_began_does_not_stop_an_undo(compaction):
    # It had begun to keep files: the machine went down, and a loader finished nothing of it.
    place, directory = Path(compaction.options.trash, RUN), compaction.root.path / f"{NAMES[0]}-0"
    (commit_folder(place, directory, 1) / KEPT_FOLDER).mkdir(parents=True)
    assert compaction.undo() == len(NAMES)
    compaction.check_undone("with a commit that did not begin")


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_an_undo_is_refused_while_somebody_works_with_the_same_trash(compaction):
    with (
        hold_run(Path(compaction.options.trash, RUN)),
        pytest.raises(GuardRefusedError, match="TRASH_IN_USE"),
    ):
        compaction.undo()
    assert partitions(compaction.root.path) == compaction.after
    assert not (compaction.root.path / LOCK_FILE).exists()


@pytest.mark.thorough
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
