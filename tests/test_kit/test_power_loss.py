"""The simulated disk: what is left of files and names after a loss of power."""

import os
from pathlib import Path

import pytest

from tests.kit.faulty_store import SimulatedCrash
from tests.kit.power_loss import Disk, Loss

OLD, NEW = b"old", b"newer and longer"


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes, *, is_synced: bool) -> None:
    path.write_bytes(content)
    if is_synced:
        sync(path)


def left_by(disk: Disk, root: Path, loss: Loss, *, seed: int = 0) -> dict[str, bytes]:
    disk.leave(loss, seed=seed)
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "disk"
    (root / "folder").mkdir(parents=True)
    (root / "kept").write_bytes(OLD)
    return root


def test_everything_that_was_there_before_is_durable(root):
    disk = Disk(root)
    assert not disk.run(lambda: None)
    assert left_by(disk, root, Loss.EVERYTHING) == {"kept": OLD}
    assert (root / "folder").is_dir()


def test_a_name_is_durable_when_its_folder_is_synced_and_a_content_when_its_file_is(root):
    def work():
        write(root / "synced", NEW, is_synced=True)
        write(root / "not", NEW, is_synced=False)
        sync(root)
        write(root / "nameless", NEW, is_synced=True)
        (root / "kept").unlink()

    disk = Disk(root)
    disk.run(work)
    assert left_by(disk, root, Loss.EVERYTHING) == {"kept": OLD, "synced": NEW, "not": b""}
    names = left_by(disk, root, Loss.CONTENTS)
    assert names.keys() == {"synced", "not", "nameless"}
    assert names["synced"] == names["nameless"] == NEW
    torn = {left_by(disk, root, Loss.CONTENTS, seed=seed)["not"] for seed in range(20)}
    half = NEW[: len(NEW) // 2]
    assert torn == {b"", bytes(len(NEW)), half, half + bytes(len(half))}


def test_a_content_is_lost_that_was_changed_after_its_sync_and_so_are_its_time_and_mode(root):
    def work():
        write(root / "kept", NEW, is_synced=True)
        os.utime(root / "kept", ns=(7, 7))
        (root / "kept").chmod(0o600)
        with (root / "kept").open("rb+") as file:
            file.truncate(1)

    disk = Disk(root)
    disk.run(work)
    assert left_by(disk, root, Loss.EVERYTHING) == {"kept": NEW}
    assert (root / "kept").stat().st_mtime_ns != 7
    assert (root / "kept").stat().st_mode & 0o777 != 0o600
    assert left_by(disk, root, Loss.CONTENTS) == {"kept": NEW}
    assert (root / "kept").stat().st_mode & 0o777 == 0o600


def test_a_rename_between_folders_is_lost_or_whole(root):
    def work():
        (root / "kept").replace(root / "folder" / "moved")

    disk = Disk(root)
    disk.run(work)
    assert left_by(disk, root, Loss.EVERYTHING) == {"kept": OLD}
    assert left_by(disk, root, Loss.CONTENTS) == {"folder/moved": OLD}
    either = [left_by(disk, root, Loss.SOME_NAMES, seed=seed) for seed in range(20)]
    assert all(files in ({"kept": OLD}, {"folder/moved": OLD}) for files in either)
    assert either[0] != either[1] or len({str(files) for files in either}) == 2


def test_a_file_that_is_replaced_is_there_until_the_other_one_is(root):
    def work():
        write(root / "kept.tmp", NEW, is_synced=True)
        (root / "kept.tmp").replace(root / "kept")

    disk = Disk(root)
    disk.run(work)
    for seed in range(20):
        assert left_by(disk, root, Loss.SOME_NAMES, seed=seed) in ({"kept": OLD}, {"kept": NEW})


def test_the_power_fails_before_a_change_and_nothing_changes_any_more(root):
    def work():
        try:
            write(root / "one", NEW, is_synced=True)
            (root / "one").rename(root / "two")
        finally:
            (root / "kept").unlink()

    whole = Disk(root)
    whole.run(lambda: write(root / "one", NEW, is_synced=True))
    assert whole.changes == ["fsync"]
    (root / "one").unlink()
    disk = Disk(root)
    assert disk.run(work, stop_at=1)
    assert disk.changes == ["fsync"]
    assert left_by(disk, root, Loss.CONTENTS) == {"one": NEW, "kept": OLD}
    assert not disk.run(lambda: None, stop_at=0)


def test_two_names_of_a_file_stay_two_names(root):
    def work():
        (root / "second").hardlink_to(root / "kept")
        sync(root)

    disk = Disk(root)
    disk.run(work)
    assert left_by(disk, root, Loss.EVERYTHING) == {"kept": OLD, "second": OLD}
    assert (root / "kept").samefile(root / "second")


def test_a_crash_of_something_else_is_handed_on_and_other_folders_are_left_alone(root, tmp_path):
    def crash():
        (tmp_path / "elsewhere").mkdir()
        raise SimulatedCrash("not by this disk")

    disk = Disk(root)
    with pytest.raises(SimulatedCrash, match="not by this disk"):
        disk.run(crash, stop_at=0)
    assert disk.changes == []
    (tmp_path / "elsewhere").rmdir()
