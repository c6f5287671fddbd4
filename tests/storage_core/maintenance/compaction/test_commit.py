"""The commit of a round: what it was made from, and the order of its steps."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.commit import (
    DeleteFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.errors import ChangedWhileReadError
from storage_core.filenames import log_file, offset_of, segment_file, snapshot_file
from storage_core.maintenance.compaction import partition
from storage_core.maintenance.compaction.commit import plan_commit, verify_inputs
from storage_core.store.local import LocalStore
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import prepare
from tests.storage_core.maintenance.compaction.hand_made import batch, cleaning, record, write_log

SETTINGS = {"overrides": {"internal.segment.bytes": 200}}
KINDS = ("log", "index", "timeindex")


def two_groups(directory: Path) -> Path:
    """Segments at 0, 2, 4 and 6, two a group, and the active one at 8."""
    write_log(directory, *[[batch(n, record(b"a"), record(b"%d" % n))] for n in (0, 2, 4, 6)])
    empty = (directory / snapshot_file(8)).read_bytes()
    for offset in (2, 4, 6):
        (directory / snapshot_file(offset)).write_bytes(empty)
    return directory


def step(operation: Operation) -> str:
    """An operation in a few words; files of a segment by base offset and suffix."""

    def short(name: str) -> str:
        return name.lstrip("0") if not name.startswith("0" * 20) else "0" + name[20:]

    match operation:
        case PromoteFile(name=name):
            return f"promote {short(name)}"
        case RenameFile(source=source, target=target):
            return f"rename {short(source)} to {short(target)}"
        case DeleteFile(name=name):
            return f"delete {short(name)}"
        case SyncDirectory():
            return "sync"
    raise AssertionError(operation)


@pytest.mark.item("CMP-37")
def test_a_group_counts_when_the_one_before_it_has_its_names(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    assert [step(operation) for operation in prepared.commit_of().operations] == [
        *(f"promote {base}.{kind}.cleaned" for base in (0, 4) for kind in KINDS),
        "sync",
        *(f"rename 0.{kind}.cleaned to 0.{kind}.swap" for kind in KINDS),
        "sync",
        *(f"rename {base}.{kind} to {base}.{kind}.deleted" for base in (0, 2) for kind in KINDS),
        "sync",
        *(f"rename 0.{kind}.swap to 0.{kind}" for kind in KINDS),
        *(f"rename 4.{kind}.cleaned to 4.{kind}.swap" for kind in KINDS),
        "sync",
        *(f"delete {base}.{kind}.deleted" for base in (0, 2) for kind in KINDS),
        "delete 2.snapshot",
        *(f"rename {base}.{kind} to {base}.{kind}.deleted" for base in (4, 6) for kind in KINDS),
        "sync",
        *(f"rename 4.{kind}.swap to 4.{kind}" for kind in KINDS),
        "sync",
        *(f"delete {base}.{kind}.deleted" for base in (4, 6) for kind in KINDS),
        "delete 6.snapshot",
    ]


@pytest.mark.item("CMP-37")
def test_swaps_with_a_segment_between_them_that_stays_are_never_there_together(tmp_path):
    """A loader deletes all that lies between the first and the last of them."""
    directory = write_log(
        tmp_path / "t-0",
        *[[batch(n, record(b"a"), record(b"%d" % n))] for n in range(0, 12, 2)],
    )
    prepared = prepare(directory, cleaning(**SETTINGS))
    groups = list(prepared.groups)
    assert len(groups) == 3
    groups[1] = replace(groups[1], files=())
    plan = plan_commit(prepared.log, prepared.plan, groups)
    swaps, together = set(), []
    for operation in plan.operations:
        match operation:
            case RenameFile(source=source, target=target):
                # A filesystem that keeps names in no order may have it under both.
                swaps |= {offset_of(name) for name in (source, target) if name.endswith(".swap")}
            case SyncDirectory():
                together.append(sorted(swaps))
                swaps = set()
            case _:
                pass
    assert together == [[], [0], [], [0], [8], [], [8]]


def test_every_step_says_why(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    plan = prepared.commit_of()
    assert all(operation.reason for operation in plan.operations)
    assert plan.peak_extra_bytes == sum(
        file.size_bytes for group in prepared.groups for file in group.files
    )
    assert {row["operation"] for row in plan.describe()} == {
        "PromoteFile",
        "RenameFile",
        "DeleteFile",
        "SyncDirectory",
    }


def test_the_loads_own_changes_come_first_and_are_synced(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    (directory / (log_file(0) + ".deleted")).write_bytes(b"")
    operations = prepare(directory, cleaning(**SETTINGS)).commit_of().operations
    assert [step(operation) for operation in operations[:2]] == ["delete 0.log.deleted", "sync"]


def test_a_file_that_the_load_writes_syncs_what_it_did_before(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    (directory / (log_file(0) + ".deleted")).write_bytes(b"")
    (directory / snapshot_file(8)).unlink()
    operations = prepare(directory, cleaning(**SETTINGS)).commit_of().operations
    kinds = [type(operation) for operation in operations]
    assert kinds[kinds.index(WriteFile) + 1] is PromoteFile
    assert SyncDirectory not in kinds[: kinds.index(WriteFile)]


def test_a_round_without_groups_has_no_steps(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    assert plan_commit(prepared.log, prepared.plan, []).is_empty


def test_inputs_that_are_as_they_were_pass(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    verify_inputs(LocalStore(directory), prepare(directory, cleaning(**SETTINGS)).plan)


@pytest.mark.parametrize("base", [0, 6, 8], ids=["oldest", "newest", "active"])
@pytest.mark.parametrize("change", ["appended", "cut", "touched", "gone"])
def test_a_segment_that_changed_meanwhile_is_named(tmp_path, base, change):
    directory = two_groups(tmp_path / "t-0")
    plan = prepare(directory, cleaning(**SETTINGS)).plan
    path = directory / log_file(base)
    if change == "cut" and base == 8:
        pytest.skip("the active segment is empty")
    match change:
        case "appended":
            path.write_bytes(path.read_bytes() + b"x")
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "touched":
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
        case _:
            path.unlink()
    with pytest.raises(ChangedWhileReadError) as caught:
        verify_inputs(LocalStore(directory), plan)
    assert caught.value.file == log_file(base)
    assert ("no such file" in str(caught.value)) == (change == "gone")


def test_a_partition_that_is_written_to_while_it_is_cleaned_is_left_as_it_is(tmp_path, monkeypatch):
    directory = two_groups(tmp_path / "t-0")
    active = directory / log_file(8)
    original = partition.verify_inputs

    def after_an_append(*arguments):
        active.write_bytes(b"appended by somebody else")
        original(*arguments)

    monkeypatch.setattr(partition, "verify_inputs", after_an_append)
    before = read_tree(directory)
    with pytest.raises(ChangedWhileReadError, match=log_file(8)):
        cleaning(**SETTINGS).clean(directory)
    assert read_tree(directory) == before | {log_file(8): b"appended by somebody else"}


def test_snapshots_of_segments_that_stay_are_kept(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    cleaning(**SETTINGS).clean(directory)
    assert sorted(path.name for path in directory.glob("*.snapshot")) == [
        segment_file(4, ".snapshot"),
        segment_file(8, ".snapshot"),
    ]
