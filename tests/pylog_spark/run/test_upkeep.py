"""What a run says of itself in its trash before it touches anything."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.options import JobOptions
from pylog_spark.run.job import Job, run_trash
from pylog_spark.run.upkeep import begin_trash, trash_notes
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.clock import ManualClock
from storage_core.commit.trash import hold_run, read_run
from storage_core.errors import GuardRefusedError
from storage_core.filenames import CLEANER_FILE, LOG_START_FILE, TopicPartition
from storage_core.roots.open_root import LogRoot

RUN = "20260102T030405Z-0a1b2c3d"
ENTRIES = {TopicPartition("t", 0): -1, TopicPartition("t", 1): -(2**63), TopicPartition("t", 2): 7}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A run on a log directory with checkpoints that hold offsets below zero."""
    root = tmp_path / "log"
    root.mkdir()
    for name in (CLEANER_FILE, LOG_START_FILE):
        (root / name).write_bytes(encode_offset_checkpoint(ENTRIES))
    return Job(
        run_id=RUN,
        action="retain",
        roots=(LogRoot(location=str(root), role=Role.BROKER, is_said=True),),
        options=JobOptions(now_ms=1, now_is_said=True, trash="x/../trash"),
    )


def test_what_a_run_found_is_read_back_whatever_its_checkpoints_hold(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ExitStack() as held:
        locations = [root.location for root in job.roots]
        begin_trash(replace(job, clock=ManualClock(5)), locations, held)
        (root,) = read_run(tmp_path / "trash" / RUN).roots
        for name in (CLEANER_FILE, LOG_START_FILE):
            assert root.checkpoints[name] == {str(name): ENTRIES[name] for name in ENTRIES}
        with (
            pytest.raises(GuardRefusedError, match="TRASH_IN_USE"),
            hold_run(tmp_path / "trash" / RUN),
        ):
            pass
    with hold_run(tmp_path / "trash" / RUN):
        pass


def test_tasks_are_told_a_trash_that_is_the_same_wherever_they_work(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_trash(job) == tmp_path / "trash" / RUN


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_trash_on_the_same_disk_is_said_to_free_nothing_yet(job, tmp_path, dry_run):
    trash = tmp_path / "the trash"
    options = replace(job.options, trash=str(trash), dry_run=dry_run)
    [note] = trash_notes(replace(job, options=options))
    assert note.startswith(f"the trash {trash} is on the same disk: space is freed only by")
    assert f"`pylog purge --trash '{trash}' --older-than 0s`" in note
    assert not list(trash_notes(replace(job, options=replace(options, trash=None))))


def test_a_trash_on_another_disk_is_said_to_copy(job, tmp_path, other_disk):
    beside = LogRoot(location=str(other_disk), role=Role.BROKER, is_said=True)
    options = replace(job.options, trash=str(other_disk / "trash"))
    [fills, copies] = trash_notes(replace(job, roots=(*job.roots, beside), options=options))
    assert f"is on the disk of {other_disk}: space is freed only by" in fills
    assert copies.startswith(f"{tmp_path / 'log'}: the trash {other_disk / 'trash'} is on another")
