"""What keeps a run from changing a local directory at all."""

import os
import subprocess
import sys

import pytest

from storage_core.catalog.off_switch import OFF_SWITCH_FILE
from storage_core.errors import GuardRefusedError
from storage_core.roots import guards
from storage_core.roots.guards import check_local_directory, check_off_object, has_remote_storage
from storage_core.store import filesystems, open_object_store


def refusal(directory, *overrides):
    with pytest.raises(GuardRefusedError) as caught:
        check_local_directory(str(directory), frozenset(overrides))
    return caught.value


def test_a_directory_of_ones_own_on_a_disk_is_fine(tmp_path):
    (tmp_path / "orders-0").mkdir()
    check_local_directory(str(tmp_path), frozenset())


def test_the_owner_can_switch_everything_off_and_nothing_overrides_that(tmp_path):
    (tmp_path / OFF_SWITCH_FILE).write_text("disks are being moved, ask Ana\n")
    error = refusal(tmp_path, "FOREIGN_FORMAT", "NOT_THE_OWNER")
    assert (error.code, error.override) == ("SWITCHED_OFF", None)
    assert "disks are being moved, ask Ana" in str(error)


def test_another_systems_directory_is_refused_by_its_name(tmp_path):
    (tmp_path / "redpanda").mkdir()
    error = refusal(tmp_path)
    assert error.code == "FOREIGN_FORMAT"
    assert "Redpanda" in str(error)
    check_local_directory(str(tmp_path), frozenset({"FOREIGN_FORMAT"}))


@pytest.mark.parametrize(
    ("filesystem", "code"),
    [
        ("nfs4", "FILESYSTEM_UNSAFE"),
        ("fuse.s3fs", "FILESYSTEM_UNSAFE"),
        ("exfat", "FILESYSTEM_UNKNOWN"),
    ],
)
def test_only_known_filesystems_are_written_to(tmp_path, monkeypatch, filesystem, code):
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 0:1 / / rw - {filesystem} somewhere rw\n")
    monkeypatch.setattr(filesystems, "MOUNT_TABLE", table)
    assert refusal(tmp_path).code == code
    if code == "FILESYSTEM_UNKNOWN":
        check_local_directory(str(tmp_path), frozenset({code}))
    else:
        assert refusal(tmp_path, "FILESYSTEM_UNKNOWN").code == code


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.parametrize("has_table", [True, False])
def test_a_folder_of_a_chroot_lies_on_what_the_kernel_says(tmp_path, has_table):
    (tmp_path / "log").mkdir()
    if has_table:  # with mounts, and none of them is that of the folder
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "mountinfo").write_text("22 1 0:1 / /dev rw - tmpfs dev rw\n")
    program = (
        "import os, sys; from pathlib import Path; from storage_core.roots import guards;"
        "from storage_core.store import filesystems;"
        "os.chroot(sys.argv[1]); os.chdir('/');"
        "assert filesystems.filesystem_of(Path('/log'), filesystems.read_mount_table()) is None;"
        "guards.check_local_directory('/log', frozenset())"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)


def test_a_refusal_says_what_to_do(tmp_path, monkeypatch):
    for number, code in ((0x6969, "FILESYSTEM_UNSAFE"), (0x4D44, "FILESYSTEM_UNKNOWN")):
        name = filesystems.name_of_number(number)
        monkeypatch.setattr(guards, "find_filesystem", lambda _path, name=name: name)
        error = refusal(tmp_path)
        assert error.code == code
        assert f"lies on {name}" in str(error)
        assert f"copy it to ext4, xfs, btrfs or zfs: cp -a {tmp_path} FOLDER" in str(error)


def test_somebody_elses_directory_is_left_to_them_or_to_root(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    error = refusal(tmp_path)
    assert error.code == "NOT_THE_OWNER"
    check_local_directory(str(tmp_path), frozenset({"NOT_THE_OWNER"}))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    check_local_directory(str(tmp_path), frozenset())


def test_a_cache_of_remote_indexes_tells_of_remote_storage(tmp_path):
    assert not has_remote_storage(str(tmp_path))
    (tmp_path / "remote-log-index-cache").mkdir()
    assert has_remote_storage(str(tmp_path))


def test_an_object_of_that_name_switches_a_url_off():
    store = open_object_store("memory://switched/off")
    check_off_object("memory://switched/off")
    store.put("pylog-off", b"migration until Friday\n")
    with pytest.raises(GuardRefusedError, match=r"SWITCHED_OFF: .*migration until Friday"):
        check_off_object("memory://switched/off")
