"""What is left of a commit is done only over the files that its own steps have left."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage_core.commit import (
    CommitPlan,
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    KeepFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    commit,
)
from storage_core.commit.plan import FileVersion, observe_versions, version_of
from storage_core.commit.rehearsal import verify_fit
from storage_core.errors import ChangedWhileReadError
from storage_core.store.local import LocalStore

WHY = "a test"
CONTENT = b"0123456789"
STEPS = [
    WriteFile(name="new", content=b"written", reason=WHY),
    WriteFile(name="a", content=b"written", reason=WHY),
    CreateEmptyFile(name="new", reason=WHY),
    CreateEmptyFile(name="a", reason=WHY),
    PromoteFile(scratch_path="{scratch}", name="new", size_bytes=7, reason=WHY),
    CopyRange(source="a", start=2, size_bytes=4, target="new", modified_ms=1, reason=WHY),
    RenameFile(source="a", target="b", reason=WHY),
    RenameFile(source="a", target="new", reason=WHY),
    DeleteFile(name="a", reason=WHY),
    DeleteFiles(names=("a", "none", "b"), reason=WHY),
    TruncateFile(name="a", size_bytes=4, reason=WHY),
    SyncFile(name="a", reason=WHY),
    SyncDirectory(reason=WHY),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    for name in ("a", "b"):
        (directory / name).write_bytes(CONTENT)
    (tmp_path / "scratch").write_bytes(b"cleaned")
    return directory


def named(step: Operation, directory: Path) -> Operation:
    """Return a step with the path of the scratch file."""
    if isinstance(step, PromoteFile):
        path = str(directory.with_name("scratch"))
        return PromoteFile(scratch_path=path, name=step.name, size_bytes=7, reason=WHY)
    return step


def scratch_of(directory: Path) -> dict[str, FileVersion]:
    path = directory.with_name("scratch")
    found = version_of(path)
    return {} if found is None else {str(path): found}


def apply(directory: Path, *steps: Operation) -> None:
    commit(CommitPlan(location=str(directory), operations=steps), LocalStore(directory))


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_step_of_ours_fits_whether_it_was_done_or_not(directory, step, is_done):
    step = named(step, directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    if is_done:
        apply(directory, step)
    verify_fit(directory, [step], expected=known, scratch=scratch)


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("change", ["another file", "same bytes, another time", "one more", "gone"])
def test_nothing_fits_over_what_somebody_else_has_changed(directory, step, is_done, change):
    (directory / "other").write_bytes(CONTENT)
    step = named(step, directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    if is_done:
        apply(directory, step)
    other = directory / "other"
    if change == "another file":
        (directory / "copy").write_bytes(CONTENT)
        os.utime(directory / "copy", ns=(0, known["other"].modified_ns))
        (directory / "copy").replace(other)
    elif change == "same bytes, another time":
        os.utime(other, ns=(0, known["other"].modified_ns + 1))
    elif change == "one more":
        (directory / "more").touch()
    else:
        other.unlink()
    with pytest.raises(ChangedWhileReadError, match="more" if change == "one more" else "other"):
        verify_fit(directory, [step], expected=known, scratch=scratch)


@pytest.mark.parametrize(
    "step",
    [step for step in STEPS if not isinstance(step, SyncFile | SyncDirectory)],
    ids=str,
)
def test_no_step_takes_the_work_of_somebody_else_for_its_own(directory, step):
    step = named(step, directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    for name in {"a", "b", "new"} & set(known) | {"new"}:
        (directory / name).write_bytes(b"longer than all that the steps write")
    with pytest.raises(ChangedWhileReadError):
        verify_fit(directory, [step], expected=known, scratch=scratch)


def group_in(directory: Path) -> list[Operation]:
    """Return steps of which none meets a file of another one, and make the files they need."""
    for name in ("c", "d"):
        (directory / name).write_bytes(CONTENT)
    return [
        named(STEPS[4], directory),
        CreateEmptyFile(name="a", reason="nothing: it is there"),
        RenameFile(source="b", target="b.deleted", reason=WHY),
        SyncDirectory(reason=WHY),
        TruncateFile(name="c", size_bytes=4, reason=WHY),
        DeleteFile(name="none", reason="nothing: it is not there"),
        DeleteFile(name="d", reason=WHY),
        WriteFile(name="e", content=b"written", reason=WHY),
    ]


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize("number", range(9))
def test_a_group_of_which_the_first_steps_were_done_fits(directory, number):
    steps = group_in(directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    apply(directory, *steps[:number])
    verify_fit(
        directory, [*steps, DeleteFile(name="e", reason=WHY)], expected=known, scratch=scratch
    )


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize("number", [2, 4, 6, 7])
def test_a_step_that_was_done_before_an_earlier_one_is_the_work_of_somebody_else(directory, number):
    steps = group_in(directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    apply(directory, *steps[1 : number - 1], steps[number])
    with pytest.raises(ChangedWhileReadError):
        verify_fit(directory, steps, expected=known, scratch=scratch)


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize("is_next_done", [False, True])
@pytest.mark.parametrize("gone", ["", "a", "b", "ab"])
def test_deletions_are_done_in_their_order_and_before_the_next_step(directory, gone, is_next_done):
    steps = [
        DeleteFiles(names=("a", "none", "b"), reason=WHY),
        WriteFile(name="new", content=b"written", reason=WHY),
    ]
    known = observe_versions(directory)
    for name in gone:
        (directory / name).unlink()
    apply(directory, *steps[1:] if is_next_done else ())
    is_ours = gone == "ab" or (gone in {"", "a"} and not is_next_done)
    with nullcontext() if is_ours else pytest.raises(ChangedWhileReadError):
        verify_fit(directory, steps, expected=known, scratch={})


@pytest.mark.item("FLT-08", "FLT-14")
def test_a_file_that_was_changed_is_not_deleted_after_another_one(directory):
    steps = [DeleteFiles(names=("a", "b"), reason=WHY)]
    known = observe_versions(directory)
    (directory / "a").unlink()
    (directory / "b").write_bytes(b"somebody else's")
    with pytest.raises(ChangedWhileReadError, match="b"):
        verify_fit(directory, steps, expected=known, scratch={})


@pytest.mark.item("FLT-08", "FLT-14")
def test_of_the_group_after_the_first_nothing_is_done(directory):
    steps = [DeleteFile(name="b", reason=WHY), WriteFile(name="b", content=b"x", reason=WHY)]
    known = observe_versions(directory)
    apply(directory, *steps)
    with pytest.raises(ChangedWhileReadError, match="b"):
        verify_fit(directory, steps, expected=known, scratch={})


MISSING = [
    RenameFile(source="none", target="b", reason=WHY),
    TruncateFile(name="none", size_bytes=1, reason=WHY),
    SyncFile(name="none", reason=WHY),
    KeepFile(name="none", path="/nowhere", size_bytes=1, is_copy=False, reason=WHY),
    CopyRange(source="a", start=8, size_bytes=3, target="new", modified_ms=1, reason=WHY),
    PromoteFile(scratch_path="/nowhere/scratch", name="new", size_bytes=7, reason=WHY),
]


@pytest.mark.parametrize("step", MISSING, ids=lambda step: type(step).__name__)
def test_a_later_step_that_cannot_be_made_is_found_before_the_first_one_is(directory, step):
    first = DeleteFile(name="b", reason=WHY)
    known, scratch = observe_versions(directory), scratch_of(directory)
    with pytest.raises(ChangedWhileReadError):
        verify_fit(directory, [first, step], expected=known, scratch=scratch)
    assert (directory / "b").exists()


def test_a_scratch_file_that_was_written_anew_is_not_promoted(directory):
    step = named(STEPS[4], directory)
    known, scratch = observe_versions(directory), scratch_of(directory)
    directory.with_name("scratch").unlink()
    directory.with_name("scratch").write_bytes(b"another")
    with pytest.raises(ChangedWhileReadError, match="scratch"):
        verify_fit(directory, [SyncDirectory(reason=WHY), step], expected=known, scratch=scratch)


def test_a_temporary_file_of_a_write_that_was_torn_does_not_count(directory):
    step = WriteFile(name="a", content=b"written", reason=WHY)
    known = observe_versions(directory)
    (directory / "a.tmp").write_bytes(b"wri")
    verify_fit(directory, [step], expected=known, scratch={})


@pytest.mark.parametrize("made", ["promoted", "renamed", "copied", "cut"])
def test_a_step_finds_what_an_earlier_step_makes_and_no_more_of_it(directory, made):
    first = {
        "promoted": named(STEPS[4], directory),
        "renamed": RenameFile(source="a", target="new", reason=WHY),
        "copied": CopyRange(
            source="a", start=0, size_bytes=7, target="new", modified_ms=1, reason=WHY
        ),
        "cut": TruncateFile(name="a", size_bytes=7, reason=WHY),
    }[made]
    name, size = ("a", 7) if made == "cut" else ("new", 10 if made == "renamed" else 7)
    known, scratch = observe_versions(directory), scratch_of(directory)

    def copy(size_bytes: int) -> CopyRange:
        return CopyRange(
            source=name, start=0, size_bytes=size_bytes, target="c", modified_ms=1, reason=WHY
        )

    before = SyncDirectory(reason=WHY)
    verify_fit(directory, [before, first, copy(size)], expected=known, scratch=scratch)
    with pytest.raises(ChangedWhileReadError, match=name):
        verify_fit(directory, [before, first, copy(size + 1)], expected=known, scratch=scratch)
