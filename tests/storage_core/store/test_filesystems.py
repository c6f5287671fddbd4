"""The filesystem of a path, from the kernel's table of mounts."""

from pathlib import Path

import pytest

from storage_core.store import filesystems

TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:30 / /data rw - xfs /dev/vdb rw
41 40 0:31 / /data/logs rw master:2 shared:9 - nfs4 host:/export rw
42 22 0:32 / /with\\040blank rw - fuse.s3fs s3fs rw
43 22 0:33 / /twice rw - ext4 /dev/vdc rw
44 22 0:34 / /twice rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/var/lib", "ext4"),
        ("/data", "xfs"),
        ("/data/log", "xfs"),
        ("/data/logs/orders-0", "nfs4"),
        ("/data/logsomething", "xfs"),
        ("/with blank/a", "fuse.s3fs"),
        ("/twice/b", "tmpfs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(path, name):
    assert filesystems.filesystem_of(Path(path), TABLE) == name


def test_a_table_that_says_nothing_is_no_answer():
    assert filesystems.filesystem_of(Path("/data"), "") is None
    assert filesystems.filesystem_of(Path("/data"), "1 2 3\n4 - \n") is None


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("/data", True), ("/data/logs", True), ("/with blank", True), ("/data/log", False)],
)
def test_a_mount_point_is_told_by_the_table(path, is_one):
    assert filesystems.is_mount_point(Path(path), TABLE) == is_one


def test_the_table_of_this_machine_names_its_root():
    assert filesystems.filesystem_of(Path("/"), filesystems.MOUNT_TABLE.read_text())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ext4", filesystems.FilesystemKind.SAFE),
        ("xfs", filesystems.FilesystemKind.SAFE),
        ("btrfs", filesystems.FilesystemKind.SAFE),
        ("exfat", filesystems.FilesystemKind.UNKNOWN),
        (None, filesystems.FilesystemKind.UNKNOWN),
        ("nfs", filesystems.FilesystemKind.UNSAFE),
        ("cifs", filesystems.FilesystemKind.UNSAFE),
        ("fuse.goofys", filesystems.FilesystemKind.UNSAFE),
    ],
)
def test_other_machines_disks_and_programs_ideas_of_disks_are_unsafe(name, kind):
    assert filesystems.classify_filesystem(name) is kind
