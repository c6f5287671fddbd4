"""What a killed run left of its commits, finished by the next one."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint.broker_files import (
    CleanShutdown,
    encode_clean_shutdown,
    read_clean_shutdown,
)
from storage_core.commit import CommitPlan, PromoteFile, RenameFile, WriteFile
from storage_core.commit import claim as commit_claim
from storage_core.commit.claim import create_claim, hold_claim
from storage_core.commit.plan import digest_files
from storage_core.commit.scratch import claim_path
from storage_core.errors import GuardRefusedError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, TopicPartition
from storage_core.roots import killed_runs
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.faulty_store import NEVER, FaultyStore, Moment, SimulatedCrash
from tests.pylog_spark.broker_roots import broker_directory, read_points

ORDERS = TopicPartition("orders", 0)
KAFKA_USER = 1234
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def directory(tmp_path) -> Path:
    root = broker_directory(tmp_path / "log", [])
    (root.path / "orders-0").mkdir()
    (root.path / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(11))
    return root.path


def started(directory: Path, *, allowed: bool = False) -> HeldBrokerRoot:
    """Begin a run that is going to be killed; it may have been allowed a commit."""
    root = HeldBrokerRoot(str(directory), run_id="killed", mark_clean=True)
    root.__enter__()
    root.begin_writing()
    if allowed:
        root.allow_commits([directory / "orders-0"])
    return root


def next_run(directory: Path) -> HeldBrokerRoot:
    return HeldBrokerRoot(str(directory), run_id="next", mark_clean=True)


def begun(directory: Path, *, steps_done: int, next_offset: int = 7) -> HeldBrokerRoot:
    """Leave what a run leaves that is killed amid a commit; return its root.

    Args:
        directory: Of the broker.
        steps_done: How many steps it has done before the last one, which it has not noted; of all
            there are, it ends.
        next_offset: The result of the commit.
    """
    root, partition = started(directory, allowed=True), directory / "orders-0"
    scratch = Path(root.scratch or partition)
    made = scratch / "pylog-scratch-killed-made"
    made.write_bytes(b"new segment")
    plan = CommitPlan(
        location=str(partition),
        operations=(
            WriteFile(name="a", content=b"1", reason="first"),
            PromoteFile(scratch_path=str(made), name="b.cleaned", size_bytes=11, reason="put"),
            RenameFile(source="b.cleaned", target="b", reason="name it"),
        ),
    )
    with hold_claim(claim_path(root.scratch, partition, "killed")) as claim:
        claim.begin(plan, {"next_offset": next_offset})
        stop_at = steps_done if steps_done < len(plan.operations) else NEVER
        with suppress(SimulatedCrash):
            store = FaultyStore(LocalStore(partition), stop_at=stop_at, moment=Moment.AFTER)
            claim.finish(store)
    # The kernel gives back what a killed process held.
    root._lock.release()
    return root


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_marker_comes_back_where_partitions_are_as_the_run_saw_them(directory, is_changed):
    partition = directory / "orders-0"
    (partition / "a").touch()
    root = HeldBrokerRoot(str(directory), run_id="killed", mark_clean=True)
    root.__enter__()
    digest = digest_files(LocalStore(partition))
    assert digest is not None
    if is_changed:
        (partition / "b").touch()
    root.begin_writing({"orders-0": digest})
    root._lock.release()
    with next_run(directory) as following:
        assert following.was_clean != is_changed


@pytest.mark.item("FLT-14", "FLT-08")
@pytest.mark.parametrize("steps_done", range(4))
def test_a_commit_that_had_begun_is_finished_and_counts(directory, steps_done):
    begun(directory, steps_done=steps_done)
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists()
    with next_run(directory) as root:
        assert read_tree(directory / "orders-0") == {"a": b"1", "b": b"new segment"}
        assert read_points(directory) == {ORDERS: 7}
        assert root.was_clean
    assert read_clean_shutdown(BrokerRoot(directory)) == CleanShutdown(broker_epoch=11)
    assert not list(directory.parent.glob("pylog-scratch-*"))


@pytest.mark.item("FLT-14")
@pytest.mark.parametrize("steps_done", range(4))
def test_an_interrupted_run_finishes_the_commit_that_had_begun_itself(directory, steps_done):
    root = begun(directory, steps_done=steps_done)
    root._lock.acquire()
    root.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert read_tree(directory / "orders-0") == {"a": b"1", "b": b"new segment"}
    assert read_points(directory) == {ORDERS: 7}
    assert read_clean_shutdown(BrokerRoot(directory)) == CleanShutdown(broker_epoch=11)
    assert not list(directory.parent.glob("pylog-scratch-*"))


def test_a_commit_that_had_not_begun_leaves_the_partition_as_it_was(directory):
    root = started(directory, allowed=True)
    root._lock.release()
    with next_run(directory) as again:
        assert again.was_clean
        assert read_points(directory) == {}


def test_after_a_crash_of_the_machine_nothing_is_believed(directory, monkeypatch):
    begun(directory, steps_done=1)
    for module in (commit_claim, killed_runs):
        monkeypatch.setattr(module, "current_boot", lambda: "another")
    with next_run(directory) as root:
        assert not root.was_clean
        assert read_points(directory) == {}
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists()


def test_a_marker_from_before_a_crash_of_the_machine_is_not_put_back(directory, monkeypatch):
    root = started(directory)
    root._lock.release()
    assert killed_runs.resume_killed_runs(directory).marker is not None
    monkeypatch.setattr(killed_runs, "current_boot", lambda: "another")
    assert killed_runs.resume_killed_runs(directory).marker is None


def test_where_nobody_can_tell_a_crash_of_the_machine_nothing_is_believed(directory, monkeypatch):
    for module in (commit_claim, killed_runs):
        monkeypatch.setattr(module, "current_boot", lambda: None)
    begun(directory, steps_done=1)
    expect_nothing_resumed(directory)


def test_a_run_that_left_a_partition_half_done_left_no_marker_to_put_back(directory):
    root = started(directory, allowed=True)
    root.settle_commits({}, is_whole=False)
    root._lock.release()
    assert killed_runs.resume_killed_runs(directory).marker is None
    with next_run(directory) as again:
        assert not again.was_clean


def test_the_marker_that_goes_back_is_the_one_that_the_run_had_come_to(directory):
    root = started(directory)
    root.disown_marker()
    root._lock.release()
    assert killed_runs.resume_killed_runs(directory).marker == CleanShutdown(broker_epoch=-1)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"boot": null, "broker_epoch": 1}', b'{"boot": 1}', b"\xff"]
)
def test_a_marker_that_was_written_down_badly_is_none(directory, content):
    begun(directory, steps_done=3)
    (written,) = directory.parent.glob("pylog-scratch-*/*/clean-shutdown-marker")
    written.write_bytes(content)
    resumed = killed_runs.resume_killed_runs(directory)
    assert resumed.marker is None
    assert resumed.points == {ORDERS: 7}


@pytest.mark.parametrize("line", [b"nonsense\n", json.dumps({"operations": 1}).encode() + b"\n"])
def test_a_claim_that_cannot_be_read_is_left_to_recovery(directory, line):
    root = started(directory)
    path = claim_path(root.scratch, directory / "orders-0", "killed")
    create_claim(path)
    path.write_bytes(line)
    root._lock.release()
    expect_nothing_resumed(directory)


def expect_nothing_resumed(directory: Path) -> None:
    resumed = killed_runs.resume_killed_runs(directory)
    assert (resumed.points, resumed.marker) == ({}, None)


def begun_claim(directory: Path) -> Path:
    begun(directory, steps_done=0)
    (path,) = directory.parent.glob("pylog-scratch-*/*/*.claim")
    return path


def change_claim(path: Path, **changes) -> None:
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record | changes) + "\n")


def said(operation: Any, **fields: Any) -> dict[str, Any]:
    """Return a step as a claim spells it."""
    return {"operation": operation, **fields, "reason": ""}


HOSTILE = [
    said("WriteFile", name="../../out", content="MQ==", modified_ms=1),
    said("DeleteFile", name="../../out"),
    said("DeleteFiles", names=["mine", "../../out"]),
    said("DeleteFiles", names=["mine", "link"]),
    said("DeleteFiles", names="mine"),
    said("RenameFile", source="{out}", target="a"),
    said("PromoteFile", scratch_path="{out}", name="a", size_bytes=1),
    said("WriteRecord", path="{out}", content="MQ=="),
    said("RecordLeft", path="{out}"),
    said("KeepFile", name="mine", path="{out}/kept/mine", size_bytes=1, is_copy=True),
    said("CreateDirectory"),
    said("RetireDirectory"),
    said("RemoveDirectory"),
    {"operation": "commit"},
    {"operation": ["WriteFile"]},
    said("TruncateFile", name="mine", size_bytes=2**70),
    said("TruncateFile", name="mine", size_bytes=0.0),
    said("DeleteFile", name="mine", more=1),
    said("DeleteFile", name="\ud800"),
    said("TruncateFile", name="link", size_bytes=0),
    said("CreateEmptyFile", name="dangling"),
    said("RenameFile", source="link", target="a"),
    said("SyncFile", name="folder"),
    said("KeepFile", name="link", path="{trash}/0000/kept/link", size_bytes=9, is_copy=True),
    said("PromoteFile", scratch_path="{scratch}/pylog-scratch-link", name="a", size_bytes=9),
    said("PromoteFile", scratch_path="{scratch}/pylog-scratch-second-name", name="a", size_bytes=9),
    said("WriteRecord", path="{trash}/0001/kept/new", content="MQ=="),
    said("RecordLeft", path="{trash}/0002/left.json"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("step", HOSTILE, ids=lambda step: f"{step['operation']}")
def test_a_claim_that_somebody_else_wrote_changes_nothing(directory, step):
    out = directory.parent / "out"
    out.write_bytes(b"not yours")
    (directory / "orders-0" / "mine").write_bytes(b"records")
    path = begun_claim(directory)
    places = {"out": out, "scratch": path.parent, "trash": lay_links(directory, path, out)}
    values = {n: v.format(**places) if isinstance(v, str) else v for n, v in step.items()}
    change_claim(path, operations=[values])
    before, around = read_tree(directory / "orders-0"), names_in(directory.parent)
    owner = out.stat().st_uid
    expect_nothing_resumed(directory)
    assert read_tree(directory / "orders-0") == before
    assert (out.read_bytes(), out.stat().st_uid) == (b"not yours", owner)
    left = names_in(directory.parent)
    assert left == around - {str(path), str(path.with_name("clean-shutdown-marker"))}


def lay_links(directory: Path, claim: Path, out: Path) -> Path:
    """Make links to what is not the broker's; return where a trash of the partition is one."""
    partition, etc = directory / "orders-0", directory.parent / "etc"
    (partition / "folder").mkdir()
    (partition / "link").symlink_to(out)
    (partition / "dangling").symlink_to(directory.parent / "none")
    claim.with_name("pylog-scratch-link").symlink_to(out)
    os.link(out, claim.with_name("pylog-scratch-second-name"))
    if os.geteuid() == 0:
        os.chown(partition, KAFKA_USER, KAFKA_USER)
    trash = directory.parent.joinpath("trash", "run", *partition.parts[1:])
    etc.mkdir()
    for folder in (trash / "0000", trash / "0001"):
        folder.mkdir(parents=True)
    (trash / "0001" / "kept").symlink_to(etc)
    (trash / "0002").symlink_to(etc)
    return trash


def names_in(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@as_root
def test_what_another_user_wrote_is_not_done_with_the_rights_of_root(directory):
    path = begun_claim(directory)
    os.chown(path, KAFKA_USER, KAFKA_USER)
    before = read_tree(directory / "orders-0")
    expect_nothing_resumed(directory)
    assert read_tree(directory / "orders-0") == before
    assert not path.exists()


@as_root
@pytest.mark.parametrize("owner", [KAFKA_USER, 12345], ids=["the broker's user", "another user"])
def test_a_remembered_marker_counts_if_the_directorys_owner_or_we_wrote_it(directory, owner):
    os.chown(directory, KAFKA_USER, KAFKA_USER)
    path = begun_claim(directory)
    os.chown(path.with_name("clean-shutdown-marker"), owner, -1)
    assert (killed_runs.resume_killed_runs(directory).marker is not None) == (owner == KAFKA_USER)


def test_a_claim_with_another_name_changes_nothing(directory):
    path = begun_claim(directory)
    os.link(path, directory.parent / "out")
    content = path.read_bytes()
    before = read_tree(directory / "orders-0")
    expect_nothing_resumed(directory)
    assert read_tree(directory / "orders-0") == before
    assert (directory.parent / "out").read_bytes() == content


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "location",
    [
        "{parent}/other",
        "{root}",
        "{root}/orders-0/..",
        "{root}/none/../..",
        "{root}/linked-0",
        "{root}/file-0",
        "{root}/none-0",
        "{root}/\ud800-0",
        "",
        7,
        None,
    ],
)
def test_a_claim_of_another_directory_changes_nothing(directory, location):
    (directory.parent / "other").mkdir()
    (directory / "linked-0").symlink_to(directory.parent / "other")
    (directory / "file-0").touch()
    path = begun_claim(directory)
    if isinstance(location, str):
        location = location.format(parent=directory.parent, root=directory)
    change_claim(path, location=location)
    expect_nothing_resumed(directory)
    assert not list((directory.parent / "other").iterdir())
    assert read_tree(directory / "orders-0") == {"a": b"1"}


@pytest.mark.parametrize("content", [b"[" * 100_000 + b"\n", b'{"done": 99}\n', b"\xff\n", b"1\n"])
def test_a_claim_of_any_bytes_is_left_to_recovery(directory, content):
    begun_claim(directory).write_bytes(content)
    assert killed_runs.resume_killed_runs(directory).marker is None


def test_a_claim_that_is_a_link_is_not_followed(directory):
    out = directory.parent / "out"
    out.write_bytes(b"a line\nand one without an end")
    path = begun_claim(directory)
    path.unlink()
    path.symlink_to(out)
    assert killed_runs.resume_killed_runs(directory).marker is None
    assert out.read_bytes() == b"a line\nand one without an end"


@pytest.mark.parametrize("point", [-1, 2**63, True, "7", 1.5])
def test_a_cleaner_point_that_cannot_be_is_not_written(directory, point):
    change_claim(begun_claim(directory), result={"next_offset": point})
    assert killed_runs.resume_killed_runs(directory).points == {}


@pytest.mark.item("CMP-40")
def test_a_task_that_outlived_its_driver_commits_nothing_any_more(directory):
    root = started(directory, allowed=True)
    path = claim_path(root.scratch, directory / "orders-0", "killed")
    root._lock.release()
    # Before the next run has swept the scratch files, a slow task gets as far as its commit.
    killed_runs.resume_killed_runs(directory)
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(path):
        pass


def test_a_run_that_is_killed_while_it_takes_up_another_does_not_make_it_clean(directory):
    begun_claim(directory).write_bytes(b"nonsense\n")
    assert killed_runs.resume_killed_runs(directory).marker is None
    # Killed here; the next one finds what it has left.
    assert killed_runs.resume_killed_runs(directory).marker is None
    with next_run(directory) as root:
        assert not root.was_clean


@pytest.mark.item("FLT-14")
def test_a_commit_is_finished_by_whatever_name_the_directory_has_now(directory):
    begun(directory, steps_done=0)
    other = directory.parent / "other-name"
    other.symlink_to(directory)
    assert killed_runs.resume_killed_runs(other).points == {ORDERS: 7}
    assert read_tree(directory / "orders-0") == {"a": b"1", "b": b"new segment"}


def test_what_a_partition_looks_like_is_said_in_the_form_of_earlier_versions(directory):
    partition = directory / "orders-0"
    for name in ("b", "a", "a.deleted", "a.tmp", "pylog-scratch-x"):
        (partition / name).write_bytes(name.encode())
    (partition / "folder").mkdir()
    facts = [(name, (partition / name).lstat()) for name in ("a", "b")]
    listed = [(name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in facts]
    digest = hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()
    assert killed_runs.observe_partitions(directory) == {"orders-0": digest}


@pytest.mark.parametrize("steps_done", range(4))
def test_a_look_says_what_the_next_run_will_find(directory, steps_done):
    begun(directory, steps_done=steps_done)
    before = read_tree(directory)
    assert killed_runs.foresee_marker(directory)
    assert killed_runs.find_unfinished_commits(directory) == {"orders-0"}
    assert read_tree(directory) == before
    with next_run(directory) as root:
        assert root.was_clean
    assert killed_runs.find_unfinished_commits(directory) == set()


def test_a_look_says_so_too_where_the_next_run_finds_no_marker(directory):
    begun(directory, steps_done=1)
    (directory / "other-0").mkdir()
    assert not killed_runs.foresee_marker(directory)
    with next_run(directory) as root:
        assert not root.was_clean


def test_a_run_removes_what_killed_calls_have_left(directory):
    for name in ("pylog-transplant-0", "__cluster_metadata-0"):
        (directory / f"{name}.{'0' * 32}-delete" / "orders-0").mkdir(parents=True)
    kept = directory / f"orders-1.{'0' * 32}-delete"
    kept.mkdir()
    (directory / "recovery-point-offset-checkpoint.tmp").write_text("0")
    (directory / "unknown.tmp").write_text("0")
    before = {path.name for path in directory.iterdir()}
    with next_run(directory):
        left = {path.name for path in directory.iterdir()} - {".lock"}
    gone = {name for name in before if name.startswith(("pylog-", "__cluster", "recovery-point"))}
    assert gone - {"recovery-point-offset-checkpoint"} == before - left
    assert {kept.name, "unknown.tmp"} <= left
