"""What a filesystem promises that is trusted with a log directory, each mounted from a file.

Mounting needs root, and making one its tools (Debian: btrfs-progs, xfsprogs, f2fs-tools); what is
missing is skipped, and says so.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from os import fsync  # the real one: elsewhere tests wait for no disk
from pathlib import Path

import pytest

from storage_core.roots.guards import check_local_directory
from storage_core.store import filesystems
from storage_core.store.filesystems import FilesystemKind, classify_filesystem, find_filesystem
from tests.crash.disk_images import can_mount
from tests.kit.mounted_disk import MAKERS, MountedDisk

TAKES_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(1)
"""
CREATES = "import sys; open(sys.argv[1], 'xb')"

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting images of a disk needs root")


@pytest.fixture(scope="module", params=MAKERS)
def disk(request, tmp_path_factory) -> Iterator[MountedDisk]:
    made = MountedDisk(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.unmount()


def is_done(program: str, file: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", program, file], check=False, capture_output=True)
    return done.returncode == 0


def write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        fsync(file.fileno())


def sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        fsync(folder)
    finally:
        os.close(folder)


def test_a_rename_lasts_when_its_folder_is_synced(disk):
    folder = disk.path / "renamed"
    folder.mkdir()
    write(folder / "checkpoint", b"old")
    sync_folder(folder)
    sync_folder(disk.path)
    write(folder / "checkpoint.tmp", b"new")
    disk.lose_power()
    assert (folder / "checkpoint").read_bytes() == b"old"
    write(folder / "checkpoint.tmp", b"new")
    (folder / "checkpoint.tmp").replace(folder / "checkpoint")
    sync_folder(folder)
    disk.lose_power()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"checkpoint": b"new"}


def test_a_folder_that_is_renamed_and_one_that_is_removed_stay_so(disk):
    for name in ("from", "gone"):
        (disk.path / name).mkdir()
        write(disk.path / name / "00.log", name.encode())
        sync_folder(disk.path / name)
    sync_folder(disk.path)
    (disk.path / "from").rename(disk.path / "to")
    shutil.rmtree(disk.path / "gone")
    sync_folder(disk.path)
    disk.lose_power()
    assert (disk.path / "to" / "00.log").read_bytes() == b"from"
    assert not (disk.path / "from").exists()
    assert not (disk.path / "gone").exists()


def test_another_process_sees_a_lock_and_a_file_that_is_there(disk):
    file = disk.path / ".lock"
    assert is_done(CREATES, file)
    assert not is_done(CREATES, file)
    with file.open("r+b") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not is_done(TAKES_LOCK, file)
    assert is_done(TAKES_LOCK, file)


def test_it_is_trusted_by_its_name_and_by_its_number(disk, monkeypatch):
    name = find_filesystem(disk.path)
    assert classify_filesystem(name) is FilesystemKind.SAFE
    check_local_directory(str(disk.path), frozenset())
    # A folder of a chroot has no mount of its own.
    monkeypatch.setattr(filesystems, "read_mount_table", lambda: "")
    assert find_filesystem(disk.path) == name
    check_local_directory(str(disk.path), frozenset())
