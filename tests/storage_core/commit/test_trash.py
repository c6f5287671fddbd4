"""What the trash says of itself is only believed as far as it can be true."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint import checkpoints
from storage_core.commit.plan import FileFingerprint
from storage_core.commit.trash import (
    KEPT_FOLDER,
    LEFT_FILE,
    RECORD_FILE,
    RUN_FILE,
    UNDO_FILE,
    TrashedCommit,
    TrashedRoot,
    TrashedRun,
    commit_folder,
    drop_raised,
    find_run_folder,
    hold_run,
    hold_run_again,
    list_commits,
    read_commit,
    read_raised,
    read_run,
    read_subject,
    require_own_kept,
    write_raised,
)
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import parse_partition_directory

RUN = "20260102T030405Z-0a1b2c3d"
KEPT = FileFingerprint(name="0.log", size_bytes=5, modified_ms=-1, crc32=None)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root")
spoiled_by_others = pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.chmod(0o777), id="anybody may write"),
        pytest.param(lambda path: os.chown(path, 12345, -1), id="another user's", marks=as_root),
    ],
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def commit(tmp_path: Path, directory: Path) -> Path:
    """The trash of one commit that kept one file and left nothing."""
    folder = commit_folder(tmp_path / "trash" / RUN, directory, 0)
    folder.mkdir(parents=True)
    record = TrashedCommit(
        folder=folder,
        run_id=RUN,
        action="retain",
        directory=directory,
        former_files=(KEPT,),
        before=("0.log",),
    )
    (folder / RECORD_FILE).write_bytes(record.encode_record())
    (folder / LEFT_FILE).write_bytes(b"[]")
    return folder


def change(path: Path, *place: Any, to: Any) -> None:
    content = json.loads(path.read_bytes())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = to
    path.write_text(json.dumps(content))


def test_a_record_is_read_as_it_was_written(commit, directory):
    found = read_commit(commit)
    assert found.former_files == (KEPT,)
    assert (found.directory, found.files_after, found.undo) == (directory, (), None)


@pytest.mark.parametrize("name", ["../x", "/none/such", "a/b", "", ".", "..", "a\0b", 7, None])
def test_a_name_that_leads_elsewhere_is_none(commit, name):
    for place in (("kept", 0, "name"), ("before", 0)):
        content = (commit / RECORD_FILE).read_bytes()
        change(commit / RECORD_FILE, *place, to=name)
        with pytest.raises(CheckpointError, match=place[0]):
            read_commit(commit)
        (commit / RECORD_FILE).write_bytes(content)
    (commit / LEFT_FILE).write_text(
        json.dumps([{"name": name, "size_bytes": 1, "modified_ms": 1, "crc32": None}])
    )
    with pytest.raises(CheckpointError, match="name"):
        read_commit(commit)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(("kept", 0, "size_bytes"), -1, id="a size below nothing"),
        pytest.param(("kept", 0, "size_bytes"), 2**80, id="a size above all"),
        pytest.param(("kept", 0, "size_bytes"), True, id="a size that is a truth"),
        pytest.param(("kept", 0, "crc32"), "x", id="a sum that is a text"),
        pytest.param(("kept",), {"name": "0.log"}, id="an object in place of a list"),
        pytest.param(("kept",), ["0.log"], id="texts in place of objects"),
        pytest.param(("before",), "0.log", id="a text in place of a list"),
        pytest.param(("directory",), None, id="no directory"),
        pytest.param(("directory",), "/none", id="another directory"),
        pytest.param(("directory",), "t-0", id="a directory somewhere"),
        pytest.param(("run_id",), "../other", id="a run that leads elsewhere"),
        pytest.param(("version",), 1.0, id="a version that is no whole number"),
    ],
)
def test_a_record_with_a_field_that_cannot_be_is_refused(commit, place, value):
    change(commit / RECORD_FILE, *place, to=value)
    with pytest.raises(CheckpointError):
        read_commit(commit)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b"[" * 100_000, b'{"state": NaN}', b'{"state": "other"}', b'{"s": 1}'],
    ids=["empty", "a list", "no text", "deep", "no number", "a strange state", "no state"],
)
def test_a_state_of_an_undo_that_nobody_wrote_is_refused(commit, content):
    (commit / UNDO_FILE).write_bytes(content)
    with pytest.raises(CheckpointError):
        read_commit(commit)


def test_entries_of_checkpoints_are_offsets(tmp_path):
    folder = tmp_path / RUN
    folder.mkdir()
    # What a checkpoint file may hold, an offset below zero among it, is read back.
    offsets = {"t-0": 3, "t-1": -1, "t-2": -(2**63), "t-3": 2**63 - 1}
    content = checkpoints.encode_offset_checkpoint(
        {parse_partition_directory(name): offset for name, offset in offsets.items()}
    )
    found = checkpoints.parse_offset_checkpoint(content, file="cleaner-offset-checkpoint")
    root = TrashedRoot(
        location="/log",
        was_clean=True,
        checkpoints={"cleaner-offset-checkpoint": {str(name): found[name] for name in found}},
    )
    run = TrashedRun(run_id=RUN, action="run", started_ms=1, roots=(root,))
    (folder / RUN_FILE).write_bytes(run.encode())
    assert read_run(folder) == run
    assert root.checkpoints["cleaner-offset-checkpoint"] == offsets
    for value in (-(2**63) - 1, 2**63, "3", None, 1.5, []):
        place = ("roots", 0, "checkpoints", "cleaner-offset-checkpoint", "t-0")
        change(folder / RUN_FILE, *place, to=value)
        with pytest.raises(CheckpointError, match="t-0"):
            read_run(folder)


def test_places_of_a_commit_are_those_below_the_name_of_its_partition(tmp_path, directory):
    for trash in (tmp_path / "trash", tmp_path / "log" / ".." / "trash"):
        folder = commit_folder(trash / RUN, directory, 0)
        for path in (folder / RECORD_FILE, folder / LEFT_FILE, folder / KEPT_FOLDER / "0.log"):
            assert find_run_folder(path, directory) == trash / RUN
            assert find_run_folder(path, tmp_path / "log" / ".." / "log" / "t-0") == trash / RUN
            assert find_run_folder(path, tmp_path / "log" / "t-1") is None
        others = [
            folder / KEPT_FOLDER / "..",
            folder / ".." / "0001" / "0.log",
            folder / ".." / ".." / "t-1" / "0000" / RECORD_FILE,
            folder.with_name("9") / RECORD_FILE,
            folder / RUN_FILE,
        ]
        assert [find_run_folder(path, directory) for path in others] == [None] * len(others)
    relative = Path("trash", RUN, *directory.parts[1:], "0000", RECORD_FILE)
    assert find_run_folder(relative, directory) is None


def test_a_run_is_that_of_its_folder(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    run = TrashedRun(run_id=RUN, action="run", started_ms=1, roots=())
    (folder / RUN_FILE).write_bytes(run.encode())
    with pytest.raises(CheckpointError, match=RUN):
        read_run(folder)


def test_a_folder_that_cannot_be_listed_is_not_left_out(commit, tmp_path, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("t-0"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        list(list_commits(tmp_path / "trash" / RUN))


@pytest.mark.parametrize("name", [RECORD_FILE, LEFT_FILE, UNDO_FILE, "."])
@spoiled_by_others
def test_the_word_of_another_user_puts_nothing_back(commit, name, spoil):
    (commit / UNDO_FILE).write_bytes(b'{"state": "begun"}')
    spoil(commit / name)
    with pytest.raises(GuardRefusedError, match="TRASH_OF_ANOTHER_USER"):
        read_commit(commit)
    if name in {RECORD_FILE, "."}:
        with pytest.raises(GuardRefusedError, match="TRASH_OF_ANOTHER_USER"):
            read_subject(commit)


@as_root
def test_who_owns_the_partition_may_say_what_goes_back_into_it(commit, directory):
    for path in (directory, commit, *commit.iterdir()):
        os.chown(path, 12345, -1)
    assert read_commit(commit).directory == directory


@as_root
@pytest.mark.parametrize("owners", [(12345, 12345), (12345, 0)], ids=["theirs", "one is not"])
def test_a_run_is_believed_of_whose_log_directories_it_is(tmp_path, owners):
    folder = tmp_path / RUN
    folder.mkdir()
    roots = []
    for number, owner in enumerate(owners):
        place = tmp_path / f"log{number}"
        place.mkdir()
        os.chown(place, owner, -1)
        roots.append(TrashedRoot(location=str(place), was_clean=True, checkpoints={}))
    run = TrashedRun(run_id=RUN, action="retain", started_ms=1, roots=tuple(roots))
    (folder / RUN_FILE).write_bytes(run.encode())
    assert read_run(folder) == run
    os.chown(folder / RUN_FILE, 12345, -1)
    if owners == (12345, 12345):
        assert read_run(folder) == run
    else:
        with pytest.raises(GuardRefusedError, match="TRASH_OF_ANOTHER_USER"):
            read_run(folder)


def test_the_trash_of_a_run_is_held_by_one(tmp_path):
    with (
        hold_run(tmp_path),
        pytest.raises(GuardRefusedError, match="TRASH_IN_USE"),
        hold_run(tmp_path),
    ):
        pass
    with hold_run(tmp_path):
        pass


def test_who_holds_the_trash_of_a_run_may_finish_its_commits_and_nobody_else(tmp_path):
    with hold_run(tmp_path):
        with hold_run_again(tmp_path / ".." / tmp_path.name):
            pass
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: hold_run_again(tmp_path).__enter__())
            with pytest.raises(GuardRefusedError, match="TRASH_IN_USE"):
                other.result()
        with pytest.raises(GuardRefusedError), hold_run(tmp_path):
            pass
    with (
        hold_run_again(tmp_path),
        pytest.raises(GuardRefusedError, match="TRASH_IN_USE"),
        hold_run(tmp_path),
    ):
        pass
    with hold_run(tmp_path):
        pass
    with pytest.raises(StorageError, match="No such file"), hold_run_again(tmp_path / "gone"):
        pass


def test_a_filesystem_without_locks_is_a_storage_error_with_the_path(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StorageError, match=f"{tmp_path}: No locks available"), hold_run(tmp_path):
        pass


def test_log_starts_raised_where_the_disk_failed_are_known_after_later_waves_elsewhere(tmp_path):
    failed, sound = "/failed", "/sound"
    write_raised(tmp_path, {failed: {"t-0": 7}, sound: {"t-1": 8}})
    drop_raised(tmp_path, [sound])
    write_raised(tmp_path, {sound: {"t-2": 9}})
    assert read_raised(tmp_path, failed) == {"t-0": 7}
    assert read_raised(tmp_path, sound) == {"t-2": 9}
    drop_raised(tmp_path, [sound])
    assert read_raised(tmp_path, failed) == {"t-0": 7}
    drop_raised(tmp_path, [failed])
    assert list(tmp_path.iterdir()) == []


@spoiled_by_others
def test_files_that_another_user_may_have_kept_are_not_put_back(commit, directory, spoil):
    kept = commit / "kept"
    kept.mkdir(exist_ok=True)
    require_own_kept(kept, directory)
    spoil(kept)
    with pytest.raises(GuardRefusedError, match=r"TRASH_OF_ANOTHER_USER.*kept"):
        require_own_kept(kept, directory)
