"""A plan as data: what it says of itself."""

import json

import pytest

from storage_core.commit import (
    CommitPlan,
    CopyRange,
    CreateDirectory,
    CreateEmptyFile,
    DeleteFile,
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
)
from storage_core.commit.plan import independent_groups

# Every kind of operation, and how it is described.
DESCRIBED: list[tuple[Operation, dict[str, str | int]]] = [
    (
        WriteFile(name="a", content=b"12345", reason="small"),
        {"operation": "WriteFile", "name": "a", "size_bytes": 5, "reason": "small"},
    ),
    (
        CreateEmptyFile(name="b", reason="missing"),
        {"operation": "CreateEmptyFile", "name": "b", "reason": "missing"},
    ),
    (
        PromoteFile(scratch_path="/s/1", name="c", size_bytes=7, reason="cleaned"),
        {
            "operation": "PromoteFile",
            "scratch_path": "/s/1",
            "name": "c",
            "size_bytes": 7,
            "reason": "cleaned",
        },
    ),
    (
        RenameFile(source="c", target="d", reason="swap"),
        {"operation": "RenameFile", "source": "c", "target": "d", "reason": "swap"},
    ),
    (
        DeleteFile(name="e", reason="replaced"),
        {"operation": "DeleteFile", "name": "e", "reason": "replaced"},
    ),
    (
        TruncateFile(name="f", size_bytes=3, reason="torn"),
        {"operation": "TruncateFile", "name": "f", "size_bytes": 3, "reason": "torn"},
    ),
    (
        CopyRange(source="g", start=2, size_bytes=9, target="h", modified_ms=11, reason="split"),
        {
            "operation": "CopyRange",
            "source": "g",
            "start": 2,
            "size_bytes": 9,
            "target": "h",
            "modified_ms": 11,
            "reason": "split",
        },
    ),
    (
        SyncFile(name="h", reason="verified"),
        {"operation": "SyncFile", "name": "h", "reason": "verified"},
    ),
    (SyncDirectory(reason="durable"), {"operation": "SyncDirectory", "reason": "durable"}),
    (
        KeepFile(name="i", path="/trash/i", size_bytes=21, is_copy=True, reason="undo"),
        {
            "operation": "KeepFile",
            "name": "i",
            "path": "/trash/i",
            "size_bytes": 21,
            "is_copy": True,
            "reason": "undo",
        },
    ),
    (
        WriteRecord(path="/trash/record", content=b"123", reason="undo"),
        {"operation": "WriteRecord", "path": "/trash/record", "size_bytes": 3, "reason": "undo"},
    ),
    (
        RecordLeft(path="/trash/left", reason="undo"),
        {"operation": "RecordLeft", "path": "/trash/left", "reason": "undo"},
    ),
    (
        RestoreFile(path="/trash/i", name="i", size_bytes=21, is_copy=True, reason="undone"),
        {
            "operation": "RestoreFile",
            "path": "/trash/i",
            "name": "i",
            "size_bytes": 21,
            "is_copy": True,
            "reason": "undone",
        },
    ),
    (CreateDirectory(reason="back"), {"operation": "CreateDirectory", "reason": "back"}),
    (RetireDirectory(reason="new"), {"operation": "RetireDirectory", "reason": "new"}),
    (RemoveDirectory(reason="empty"), {"operation": "RemoveDirectory", "reason": "empty"}),
]
PLAN = CommitPlan(location="/logs/t-0", operations=tuple(operation for operation, _ in DESCRIBED))


def test_every_kind_of_operation_is_described_in_order():
    assert {type(operation) for operation, _ in DESCRIBED} == set(Operation.__args__)
    assert list(PLAN.describe()) == [row for _, row in DESCRIBED]


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
    gone = [DeleteFile(name=f"{name}.deleted", reason="r") for name in ("a", "b")]
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
