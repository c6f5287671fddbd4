"""A plan that keeps what it takes away: what is kept, and that the plan's own steps stay."""

import json
import os
from pathlib import Path

import pytest

from storage_core import commit
from storage_core.commit import trash, undo
from storage_core.commit.plan import fingerprint_files
from storage_core.errors import CheckpointError, StorageError
from storage_core.store import LocalStore

WHY = "a test"
FILES = {"0.log": b"zero", "5.log": b"five", "epochs": b"e", "other": b"o"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return directory


def kept_by(directory: Path, *operations: commit.Operation) -> tuple[commit.CommitPlan, list[str]]:
    place = directory.parents[1] / "trash" / "run"
    plan = commit.CommitPlan(location=str(directory), operations=operations)
    plan = undo.with_trash(plan, LocalStore(directory), place, action="compact")
    return plan, [step.name for step in plan.operations if isinstance(step, commit.KeepFile)]


@pytest.mark.parametrize(
    ("operations", "kept"),
    [
        pytest.param([commit.DeleteFile(name="5.log", reason=WHY)], ["5.log"], id="deleted"),
        pytest.param(
            [commit.WriteFile(name="epochs", content=b"x", reason=WHY)], ["epochs"], id="replaced"
        ),
        pytest.param(
            [commit.TruncateFile(name="0.log", size_bytes=1, reason=WHY)], ["0.log"], id="cut"
        ),
        pytest.param(
            [commit.RenameFile(source="0.log", target="0.log.deleted", reason=WHY)],
            ["0.log"],
            id="renamed",
        ),
        pytest.param(
            [commit.RenameFile(source="5.log", target="0.log", reason=WHY)],
            ["0.log", "5.log"],
            id="renamed over another",
        ),
        pytest.param(
            [
                commit.RenameFile(source="0.log", target="x", reason=WHY),
                commit.RenameFile(source="x", target="0.log", reason=WHY),
                commit.CreateEmptyFile(name="epochs", reason=WHY),
                commit.DeleteFile(name="no such file", reason=WHY),
            ],
            [],
            id="there and back, and what changes nothing",
        ),
        pytest.param(
            [commit.PromoteFile(scratch_path="/s", name="0.log", size_bytes=1, reason=WHY)],
            ["0.log"],
            id="promoted over",
        ),
    ],
)
def test_what_a_plan_takes_away_is_kept(directory, operations, kept):
    plan, found = kept_by(directory, *operations)
    assert found == kept
    own = [
        s
        for s in plan.operations
        if not isinstance(s, commit.KeepFile | commit.WriteRecord | commit.RecordLeft)
    ]
    assert own == operations
    if kept:
        kinds = [type(step) for step in plan.operations]
        # Everything is kept, and written down, before the first of the plan's own steps.
        assert kinds[: len(kept) + 2] == [commit.KeepFile] * len(kept) + [commit.WriteRecord] * 2
        assert kinds[-1] is commit.RecordLeft


def test_a_plan_that_changes_nothing_needs_no_trash(directory):
    plan, _ = kept_by(directory, commit.SyncDirectory(reason=WHY))
    assert plan.operations == (commit.SyncDirectory(reason=WHY),)


def test_what_a_crash_left_is_settled_before_anything_is_kept(directory):
    (directory / "5.log.swap").write_bytes(b"new five")
    (directory / "9.log.cleaned").write_bytes(b"unfinished")
    settle = [
        commit.DeleteFile(name="9.log.cleaned", reason=WHY),
        commit.DeleteFile(name="5.log", reason=WHY),
        commit.RenameFile(source="5.log.swap", target="5.log", reason=WHY),
    ]
    plan, kept = kept_by(directory, *settle, commit.DeleteFile(name="5.log", reason=WHY))
    assert list(plan.operations[:3]) == settle
    assert kept == ["5.log"]
    commit.commit(plan, LocalStore(directory))
    kept_file = next((directory.parents[1] / "trash").rglob("kept/5.log"))
    assert kept_file.read_bytes() == b"new five"


def test_files_that_a_loader_drops_with_a_swapped_segment_are_kept_too(directory):
    for name in ("00000000000000000000.log", "00000000000000000004.snapshot"):
        (directory / name).write_bytes(b"x")
    (directory / "00000000000000000009.log").write_bytes(b"y")
    (directory / "00000000000000000009.snapshot").write_bytes(b"y")
    name = "00000000000000000000.log"
    _, kept = kept_by(
        directory, commit.PromoteFile(scratch_path="/s", name=name, size_bytes=1, reason=WHY)
    )
    assert "00000000000000000004.snapshot" in kept
    assert "00000000000000000009.snapshot" not in kept


def test_the_same_filesystem_costs_a_name_and_no_bytes(directory):
    plan, _ = kept_by(directory, commit.DeleteFile(name="0.log", reason=WHY))
    inode = (directory / "0.log").stat().st_ino
    commit.commit(plan, LocalStore(directory))
    (kept,) = (directory.parents[1] / "trash").rglob("kept/0.log")
    assert kept.stat().st_ino == inode
    assert not any(step.is_copy for step in plan.operations if isinstance(step, commit.KeepFile))
    assert not (directory / "0.log").exists()


def test_another_filesystem_is_copied_with_times_and_mode(directory):
    store = LocalStore(directory)
    os.utime(directory / "0.log", ns=(10**18, 10**18))
    (directory / "0.log").chmod(0o640)
    target = directory.parents[1] / "elsewhere" / "0.log"
    store.keep("0.log", str(target), is_copy=True)
    facts = target.stat()
    assert target.read_bytes() == b"zero"
    assert (facts.st_mtime_ns, facts.st_mode & 0o777) == (10**18, 0o640)
    assert facts.st_ino != (directory / "0.log").stat().st_ino
    store.delete("0.log")
    store.keep("0.log", str(target), is_copy=True)  # of an attempt that is made again
    store.restore(str(target), "0.log", is_copy=True)
    assert fingerprint_files(store)[0].modified_ms == 10**12
    with pytest.raises(StorageError):
        store.keep("none", str(directory.parents[1] / "none"), is_copy=False)


def test_several_commits_of_a_run_on_one_partition_have_folders_of_their_own(directory):
    for number in range(3):
        plan, _ = kept_by(directory, commit.WriteFile(name="epochs", content=b"x", reason=WHY))
        commit.commit(plan, LocalStore(directory))
        folder = directory.parents[1] / "trash" / "run"
        place = Path(folder, *directory.absolute().parts[1:])
        assert trash.commit_folder(folder, directory, number) == place / f"000{number}"
        assert trash.read_commit(place / f"000{number}").action == "compact"


def test_a_record_that_is_none_is_refused(tmp_path):
    for content in (b"", b"[]", json.dumps({"format": "pylog-trash", "version": 9}).encode()):
        (tmp_path / trash.RECORD_FILE).write_bytes(content)
        with pytest.raises(CheckpointError):
            trash.read_commit(tmp_path)
    with pytest.raises(StorageError):
        trash.read_run(tmp_path)


def test_a_disk_that_cannot_be_asked_is_an_error_of_storage(tmp_path):
    with pytest.raises(StorageError, match=f"^{tmp_path / 'gone'}: No such file"):
        undo.is_same_filesystem(tmp_path / "gone", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="File name too long"):
        undo.is_same_filesystem(tmp_path, tmp_path / ("x" * 300) / "run")
