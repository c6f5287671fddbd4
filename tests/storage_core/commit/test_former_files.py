"""What a run of an earlier version left in the trash, and in a claim, is taken up by this one.

The contents are as they were written by the first version of each format. What is written today
has the same bytes, so that an earlier version can undo it, too.
"""

import base64
import json
import os
from pathlib import Path

import pytest

from storage_core.commit import CommitPlan, DeleteFile, SyncDirectory, WriteFile, commit, trash
from storage_core.commit.claim import create_claim, current_boot, hold_claim, resume_claim
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.log.settled_store import plan_settling
from storage_core.store import LocalStore
from tests.kit.compare import read_tree

RUN = "20260102T030405Z-0a1b2c3d"
LOG, NEXT = "00000000000000000000.log", "00000000000000000005.log"
EPOCHS = "leader-epoch-checkpoint"
BEFORE = {LOG: b"old", NEXT: b"five", EPOCHS: b"0\n0\n"}
AFTER = {NEXT: b"five", EPOCHS: b"0\n1\n0 5\n"}
WRITTEN_NS, WRITTEN_MS = 10**18, 10**12

RECORD = (
    '{"format": "pylog-trash", "version": 1, "run_id": "20260102T030405Z-0a1b2c3d", '
    '"action": "retain", "directory": "DIRECTORY", "kept": '
    '[{"name": "00000000000000000000.log", "size_bytes": 3, "modified_ms": 1000000000000, '
    '"crc32": 1063113957}, {"name": "leader-epoch-checkpoint", "size_bytes": 4, '
    '"modified_ms": 1000000000000, "crc32": 3815472518}], "before": ["00000000000000000000.log", '
    '"00000000000000000005.log", "leader-epoch-checkpoint"]}'
)
LEFT = (
    '[{"name": "00000000000000000005.log", "size_bytes": 4, "modified_ms": 1000000000000, '
    '"crc32": 1018350795}, {"name": "leader-epoch-checkpoint", "size_bytes": 8, '
    '"modified_ms": 1000000000000, "crc32": 1267436058}]'
)
RUN_JSON = (
    '{"format": "pylog-trash-run", "version": 1, "run_id": "20260102T030405Z-0a1b2c3d", '
    '"action": "run", "started_ms": 1, "roots": [{"location": "ROOT", "was_clean": true, '
    '"checkpoints": {"log-start-offset-checkpoint": {"t-0": 3}}}]}'
)
RAISED = (
    '{"format": "pylog-trash-log-starts", "version": 1, "roots": '
    '[{"location": "ROOT", "log_starts": {"t-0": 5}}]}'
)
# The line with which a claim begins; the versions of the files are of the disk.
CLAIM = (
    '{"operations":['
    '{"operation":"KeepFile","name":"00000000000000000000.log",'
    '"path":"COMMIT/kept/00000000000000000000.log","size_bytes":3,"is_copy":false,'
    '"reason":"run 20260102T030405Z-0a1b2c3d may be undone"},'
    '{"operation":"KeepFile","name":"leader-epoch-checkpoint",'
    '"path":"COMMIT/kept/leader-epoch-checkpoint","size_bytes":4,"is_copy":false,'
    '"reason":"run 20260102T030405Z-0a1b2c3d may be undone"},'
    '{"operation":"WriteRecord","path":"COMMIT/kept/.synced","content":"",'
    '"reason":"what was kept is durable"},'
    '{"operation":"WriteRecord","path":"COMMIT/record.json","content":"RECORD",'
    '"reason":"what was kept, before any of it goes"},'
    '{"operation":"DeleteFile","name":"00000000000000000000.log","reason":"r"},'
    '{"operation":"WriteFile","name":"leader-epoch-checkpoint","content":"MAoxCjAgNQo=",'
    '"reason":"r","modified_ms":1000000000000},'
    '{"operation":"SyncDirectory","reason":"r"},'
    '{"operation":"RecordLeft","path":"COMMIT/left.json","reason":"what an undo will look for"}],'
    '"result":{"next_offset":7},"location":"DIRECTORY","boot":"BOOT","files":FILES,"scratch":{}}\n'
)
UNDO = '{"state": "begun"}'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def folder(tmp_path: Path, directory: Path) -> Path:
    """Return the folder of the run's one commit, which need not be there."""
    return Path(tmp_path, "trash", RUN, *directory.parts[1:], "0000")


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, ns=(WRITTEN_NS, WRITTEN_NS))


def plan(directory: Path, folder: Path) -> CommitPlan:
    steps = (
        DeleteFile(name=LOG, reason="r"),
        WriteFile(name=EPOCHS, content=AFTER[EPOCHS], reason="r", modified_ms=WRITTEN_MS),
        SyncDirectory(reason="r"),
    )
    return with_trash(
        CommitPlan(location=str(directory), operations=steps),
        LocalStore(directory),
        folder.parents[len(directory.parts) - 1],
        action="retain",
    )


def claim_line(directory: Path, folder: Path) -> str:
    record = base64.b64encode(RECORD.replace("DIRECTORY", str(directory)).encode()).decode()
    files = {
        name: {"size": len(content), "time": WRITTEN_NS, "inode": (directory / name).stat().st_ino}
        for name, content in BEFORE.items()
    }
    line = CLAIM.replace("COMMIT", str(folder)).replace("RECORD", record)
    line = line.replace("DIRECTORY", str(directory)).replace("BOOT", current_boot() or "")
    return line.replace("FILES", json.dumps(files, separators=(",", ":")))


@pytest.mark.parametrize("undo", [None, UNDO], ids=["not undone", "begun to be undone"])
def test_a_commit_that_an_earlier_version_kept_is_undone(directory, folder, undo):
    write(directory, AFTER)
    write(folder / "kept", {name: BEFORE[name] for name in (LOG, EPOCHS)} | {".synced": b""})
    (folder / "record.json").write_text(RECORD.replace("DIRECTORY", str(directory)))
    (folder / "left.json").write_text(LEFT)
    if undo is not None:
        (folder / "undo.json").write_text(undo)
    run = folder.parents[len(directory.parts) - 1]
    assert list(trash.list_commits(run)) == trash.commit_folders(run, directory) == [folder]
    undo_partition(LocalStore(directory), [folder], settling=plan_settling)
    assert read_tree(directory) == BEFORE
    assert (folder / "undo.json").read_text() == '{"state": "done"}'


def test_a_commit_is_kept_in_the_form_of_earlier_versions(directory, folder):
    write(directory, BEFORE)
    commit(plan(directory, folder), LocalStore(directory))
    assert read_tree(directory) == AFTER
    assert (folder / "record.json").read_text() == RECORD.replace("DIRECTORY", str(directory))
    assert (folder / "left.json").read_text() == LEFT
    assert sorted(path.name for path in (folder / "kept").iterdir()) == [".synced", LOG, EPOCHS]
    assert trash.encode_undo("begun").decode() == UNDO


def test_what_a_run_says_of_itself_has_the_form_of_earlier_versions(tmp_path):
    folder, root = tmp_path / RUN, "/var/lib/kafka"
    folder.mkdir()
    said = RUN_JSON.replace("ROOT", root)
    (folder / "run.json").write_text(said)
    run = trash.TrashedRun(
        run_id=RUN,
        action="run",
        started_ms=1,
        roots=(
            trash.TrashedRoot(
                location=root,
                was_clean=True,
                checkpoints={"log-start-offset-checkpoint": {"t-0": 3}},
            ),
        ),
    )
    assert (trash.read_run(folder), run.encode().decode()) == (run, said)
    raised = RAISED.replace("ROOT", root)
    (folder / "raised-log-starts.json").write_text(raised)
    assert trash.read_raised(folder, root) == {"t-0": 5}
    trash.write_raised(folder, {root: {"t-0": 5}})
    assert (folder / "raised-log-starts.json").read_text() == raised


def test_a_claim_of_an_earlier_version_is_finished(tmp_path, directory, folder):
    write(directory, BEFORE)
    claim = tmp_path / "claim"
    create_claim(claim)
    claim.write_text(claim_line(directory, folder))
    folder.parents[len(directory.parts) - 1].mkdir(parents=True)
    finished = resume_claim(claim, log_directory=directory.parent)
    assert finished == (str(directory), {"next_offset": 7})
    assert read_tree(directory) == AFTER


def test_a_claim_is_begun_in_the_form_of_earlier_versions(tmp_path, directory, folder):
    write(directory, BEFORE)
    create_claim(tmp_path / "claim")
    with hold_claim(tmp_path / "claim") as claim:
        claim.begin(plan(directory, folder), {"next_offset": 7})
    assert (tmp_path / "claim").read_text() == claim_line(directory, folder)
