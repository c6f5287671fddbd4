"""A plan as data, how it is carried out, and what killed runs left of theirs."""

import json
from pathlib import Path

import pytest

from storage_core.checkpoint.broker_files import encode_clean_shutdown
from storage_core.commit import (
    CommitPlan,
    CopyRange,
    CreateDirectory,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    KeepFile,
    Operation,
    PromoteFile,
    RecordLeft,
    RemoveDirectory,
    RenameFile,
    RestoreFile,
    RetireDirectory,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
    commit,
    scratch,
)
from storage_core.commit.plan import independent_groups
from storage_core.commit.scratch import find_claims, sweep_scratch
from storage_core.errors import StorageError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, SCRATCH_PREFIX
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.kit.faulty_store import FaultyStore


def described(operation: Operation, **said: str | int) -> tuple[Operation, dict[str, str | int]]:
    """Return an operation, and the row that describes it: by what it says, and its reason."""
    return operation, {"operation": type(operation).__name__, **said, "reason": operation.reason}


# Every kind of operation, and how it is described.
DESCRIBED = [
    described(WriteFile(name="a", content=b"12345", reason="small"), name="a", size_bytes=5),
    described(CreateEmptyFile(name="b", reason="missing"), name="b"),
    described(
        PromoteFile(scratch_path="/s/1", name="c", size_bytes=7, reason="cleaned"),
        scratch_path="/s/1",
        name="c",
        size_bytes=7,
    ),
    described(RenameFile(source="c", target="d", reason="swap"), source="c", target="d"),
    described(DeleteFile(name="e", reason="replaced"), name="e"),
    described(TruncateFile(name="f", size_bytes=3, reason="torn"), name="f", size_bytes=3),
    described(
        CopyRange(source="g", start=2, size_bytes=9, target="h", modified_ms=11, reason="split"),
        source="g",
        start=2,
        size_bytes=9,
        target="h",
        modified_ms=11,
    ),
    described(SyncFile(name="h", reason="verified"), name="h"),
    described(SyncDirectory(reason="durable")),
    described(
        KeepFile(name="i", path="/trash/i", size_bytes=21, is_copy=True, reason="undo"),
        name="i",
        path="/trash/i",
        size_bytes=21,
        is_copy=True,
    ),
    described(
        WriteRecord(path="/trash/record", content=b"123", reason="undo"),
        path="/trash/record",
        size_bytes=3,
    ),
    described(RecordLeft(path="/trash/left", reason="undo"), path="/trash/left"),
    described(
        RestoreFile(path="/trash/i", name="i", size_bytes=21, is_copy=True, reason="undone"),
        path="/trash/i",
        name="i",
        size_bytes=21,
        is_copy=True,
    ),
    described(CreateDirectory(reason="back")),
    described(RetireDirectory(reason="new")),
    described(RemoveDirectory(reason="empty")),
]
PLAN = CommitPlan(location="/logs/t-0", operations=tuple(operation for operation, _ in DESCRIBED))


def test_every_kind_of_operation_is_described_in_order():
    kinds = {type(operation) for operation, _ in DESCRIBED} | {DeleteFiles}
    assert kinds == set(Operation.__args__)
    assert list(PLAN.describe()) == [row for _, row in DESCRIBED]


def test_deletions_for_one_reason_are_described_as_many():
    files = DeleteFiles(names=("a", "b"), reason="replaced")
    each = tuple(DeleteFile(name=name, reason="replaced") for name in files.names)
    plans = [CommitPlan(location="/logs/t-0", operations=steps) for steps in ((files,), each)]
    together, alone = (list(plan.describe()) for plan in plans)
    assert together == alone


def test_a_description_fits_a_row_of_a_table():
    for row in PLAN.describe():
        assert json.loads(json.dumps(row)) == row
        assert row["reason"]


def test_new_files_are_what_takes_space():
    assert PLAN.peak_extra_bytes == 5 + 7 + 9 + 21
    assert CommitPlan(location="/logs/t-0", operations=()).peak_extra_bytes == 0


@pytest.mark.parametrize(("operations", "is_empty"), [((), True), (PLAN.operations, False)])
def test_a_plan_without_operations_is_empty(operations, is_empty):
    assert CommitPlan(location="/logs/t-0", operations=operations).is_empty is is_empty


def test_no_two_steps_of_a_group_are_about_one_file():
    def moved(source: str, target: str) -> RenameFile:
        return RenameFile(source=source, target=target, reason="r")

    kept = [
        KeepFile(name=name, path=f"/trash/{name}", size_bytes=1, is_copy=False, reason="r")
        for name in ("a", "b")
    ]
    sync = SyncDirectory(reason="r")
    moves = [moved("a", "a.deleted"), moved("b", "b.deleted")]
    gone = [DeleteFiles(names=("a.deleted", "b.deleted"), reason="r")]
    copy = CopyRange(source="c", start=0, size_bytes=1, target="d", modified_ms=1, reason="r")
    again = CopyRange(source="d", start=0, size_bytes=1, target="e", modified_ms=1, reason="r")
    steps = [*kept, *moves, sync, *gone, copy, again, SyncFile(name="d", reason="r")]
    groups = [
        tuple(kept),
        (*moves, sync),
        (*gone, copy),
        (again,),
        (SyncFile(name="d", reason="r"),),
    ]
    assert list(independent_groups(steps)) == groups
    assert list(independent_groups([])) == []


NAME, OTHER = "name", "other"
WHY = "a test"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    (directory / NAME).write_bytes(b"0123456789")
    (tmp_path / "scratch").write_bytes(b"cleaned")
    return directory


def applied(directory: Path, *operations: Operation) -> dict[str, bytes]:
    commit(CommitPlan(location=str(directory), operations=operations), LocalStore(directory))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_empty_plan_does_nothing(directory):
    assert applied(directory) == {NAME: b"0123456789"}


def test_operations_are_applied_in_their_order(directory):
    store = FaultyStore(LocalStore(directory))
    scratch = str(directory.with_name("scratch"))
    operations = (
        RenameFile(source=NAME, target=OTHER, reason=WHY),
        WriteFile(name=NAME, content=b"new", reason=WHY),
        SyncDirectory(reason=WHY),
        TruncateFile(name=NAME, size_bytes=1, reason=WHY),
        DeleteFiles(names=(OTHER, "none"), reason=WHY),
        PromoteFile(scratch_path=scratch, name=OTHER, size_bytes=7, reason=WHY),
        CreateEmptyFile(name="empty", reason=WHY),
        SyncFile(name="empty", reason=WHY),
    )
    commit(CommitPlan(location=store.location, operations=operations), store)
    assert store.changes == [
        "rename",
        "write_file",
        "sync_directory",
        "truncate",
        "delete",
        "delete",
        "promote",
        "create_empty",
        "sync_file",
    ]
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert left == {NAME: b"n", OTHER: b"cleaned", "empty": b""}


def test_the_first_failure_ends_the_commit(directory):
    operations = (
        WriteFile(name=OTHER, content=b"done", reason=WHY),
        RenameFile(source="missing", target=NAME, reason=WHY),
        DeleteFile(name=NAME, reason=WHY),
    )
    with pytest.raises(StorageError, match="missing"):
        applied(directory, *operations)
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert left == {NAME: b"0123456789", OTHER: b"done"}


def test_scratch_files_are_found_by_their_names_alone(tmp_path, monkeypatch):
    root = tmp_path / "log"
    for name in ("t-0", "t-1"):
        (root / name).mkdir(parents=True)
        for number in range(5):
            (root / name / f"{number:020d}.log").touch()
    claim = root / "t-1" / f"{SCRATCH_PREFIX}run-t-1.claim"
    left = root / "t-1" / f"{SCRATCH_PREFIX}run-b.log"
    claim.touch()
    left.touch()
    (root / "t-0" / "link").symlink_to(claim)
    scan, scanned = scratch.scan_folder, []

    def noted(folder, **more):
        scanned.append(folder)
        return scan(folder, **more)

    monkeypatch.setattr(scratch, "scan_folder", noted)
    assert find_claims(root) == [claim]
    assert sweep_scratch(root) == 2
    assert sorted(path.name for path in (root / "t-1").iterdir()) == [
        f"{number:020d}.log" for number in range(5)
    ]
    assert (root / "t-0" / "link").is_symlink()
    # The facts of files are asked of none of a partition.
    assert set(scanned) == {root}


def test_on_a_disk_without_room_a_runs_notes_lie_on_another_disk(tmp_path, monkeypatch):
    root = tmp_path / "log"
    (root / "t-0").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (root / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(7))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    homes = [elsewhere / "pylog-claims-of-log"]
    monkeypatch.setattr(scratch, "_has_room", lambda folder, _: folder == elsewhere)
    monkeypatch.setattr(scratch, "_elsewhere", lambda _: iter(homes))
    held = HeldBrokerRoot(str(root), run_id="run", mark_clean=True)
    with held:
        held.begin_writing()
        held.allow_commits([root / "t-0"])
        assert held.scratch == str(homes[0] / "run")
        # What is promoted lies where a rename can move it.
        assert scratch.scratch_folder(held.scratch, root / "t-0") == root / "t-0"
        [claim] = find_claims(root)
        assert claim.parent == homes[0] / "run"
        assert [path.parent for path in scratch.find_remembered_markers(root)] == [claim.parent]
        assert {path.name for path in root.iterdir()} <= {"t-0", "meta.properties", ".lock"}
        # Of another user, or open to all: it says nothing of this directory.
        homes[0].chmod(0o777)
        assert find_claims(root) == []
        homes[0].chmod(0o700)
    assert list(elsewhere.iterdir()) == []
    assert (root / CLEAN_SHUTDOWN_FILE).read_bytes() == encode_clean_shutdown(7)


def test_what_a_killed_run_left_on_another_disk_is_found_by_the_next_run(tmp_path, monkeypatch):
    root = tmp_path / "log"
    (root / "t-0").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (root / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(7))
    home = tmp_path / "elsewhere" / "pylog-claims-of-log"
    home.parent.mkdir()
    monkeypatch.setattr(scratch, "_has_room", lambda folder, _: folder == home.parent)
    monkeypatch.setattr(scratch, "_elsewhere", lambda _: iter([home]))
    killed = HeldBrokerRoot(str(root), run_id="killed", mark_clean=True)
    killed.__enter__()
    killed.begin_writing()
    killed._lock.release()
    assert not (root / CLEAN_SHUTDOWN_FILE).exists()
    with HeldBrokerRoot(str(root), run_id="next", mark_clean=True) as held:
        assert held.was_clean
    assert not home.exists()
    assert (root / CLEAN_SHUTDOWN_FILE).read_bytes() == encode_clean_shutdown(7)


def test_a_run_lists_each_partition_once_and_what_is_beside_them_at_its_end(tmp_path, monkeypatch):
    root = tmp_path / "log"
    for name in ("t-0", "t-1"):
        (root / name).mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    left = root / "t-1" / f"{SCRATCH_PREFIX}run-b.log"
    left.touch()
    names, listed = scratch.entry_names, []

    def noted(folder):
        listed.append(Path(folder).name)
        return names(folder)

    monkeypatch.setattr(scratch, "entry_names", noted)
    with HeldBrokerRoot(str(root), run_id="run", mark_clean=True) as held:
        held.begin_writing()
        assert held.scratch is not None
    assert not left.exists()
    assert not (tmp_path / "pylog-scratch-log").exists()
    assert [name for name in listed if name != "run"] == ["t-0", "t-1"]
