"""Find a path's filesystem; judge whether it suits a log directory.

That is: a rename that is atomic and, once its folder is synced, lasts; a file that only one process
creates (``O_EXCL``); locks that another process sees. Source: ``/proc/self/mountinfo``, proc(5);
statfs(2) where that names no mount, as in a chroot.
"""

import ctypes
import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")

# Local filesystems with the promises above. overlay and tmpfs keep them for their lifetime. Tests
# mount all but zfs, bcachefs and f2fs, whose documents promise the same.
_SAFE: Final = frozenset(
    {"bcachefs", "btrfs", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)
# On another machine's disk, or by a program.
_UNSAFE: Final = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "fuse",
        "fuseblk",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
    }
)
_FUSE_PREFIX: Final = "fuse."
# The numbers of those above in statfs(2); the three ext share one, as do FUSE and virtiofs.
_MAGIC: Final = {
    0x01021994: "tmpfs",
    0x01021997: "9p",
    0x01161970: "gfs2",
    0x0BD00BD0: "lustre",
    0x2FC12FC1: "zfs",
    0x517B: "smbfs",
    0x5346414F: "afs",
    0x564C: "ncpfs",
    0x58465342: "xfs",
    0x65735546: "fuse",
    0x6969: "nfs",
    0x7461636F: "ocfs2",
    0x786F4256: "vboxsf",
    0x794C7630: "overlay",
    0x9123683E: "btrfs",
    0xC36400: "ceph",
    0xCA451A4E: "bcachefs",
    0xEF53: "ext4",
    0xF2F52010: "f2fs",
    0xFE534D42: "smb3",
    0xFF534D42: "cifs",
}
# More than struct statfs has on any 64-bit Linux; its first word is the number.
_STATFS_WORDS: Final = 32
_MAGIC_MASK: Final = 0xFFFFFFFF
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class FilesystemKind(enum.StrEnum):
    """How far a filesystem can be trusted with a log directory."""

    SAFE = "safe"
    UNKNOWN = "unknown"
    UNSAFE = "unsafe"


def find_filesystem(path: Path) -> str | None:
    """Return the filesystem type of a path; None if unknown.

    Args:
        path: Absolute, without symbolic links.
    """
    return filesystem_of(path, read_mount_table()) or filesystem_by_number(path)


def filesystem_by_number(place: Path | int) -> str | None:
    """Return the filesystem type of a path, or of an open file, by statfs(2). An unknown type is
    its number; None where the kernel does not say it."""
    words, libc = (ctypes.c_long * _STATFS_WORDS)(), ctypes.CDLL(None)
    if isinstance(place, int):
        status = libc.fstatfs(place, words)
    else:
        status = libc.statfs(os.fsencode(place), words)
    return name_of_number(words[0] & _MAGIC_MASK) if status == 0 else None


def name_of_number(number: int) -> str:
    """Return the filesystem type of a statfs(2) number, else the number."""
    return _MAGIC.get(number, hex(number))


def filesystem_of(path: Path, mount_table: str) -> str | None:
    """Return a path's filesystem type by the mount table, else None.

    Args:
        path: Absolute, without symbolic links.
        mount_table: Content of the mount table; of two mounts on one place the later one counts.
    """
    best: tuple[int, str] | None = None
    for place, kind in _mounts(mount_table):
        if path.is_relative_to(place) and (best is None or len(place.parts) >= best[0]):
            best = (len(place.parts), kind)
    return None if best is None else best[1]


def is_mount_point(path: Path, mount_table: str) -> bool:
    """Tell whether something is mounted at a path. The mount may be a folder of the same filesystem
    (``--bind``).

    Args:
        path: Absolute, without symbolic links.
    """
    return path in (place for place, _ in _mounts(mount_table))


def read_mount_table() -> str:
    """Return the content of the mount table; nothing where there is none."""
    try:
        return MOUNT_TABLE.read_text(errors="surrogateescape")
    except OSError:
        return ""


def classify_filesystem(name: str | None) -> FilesystemKind:
    """Return how far a type of filesystem can be trusted."""
    if name in _SAFE:
        return FilesystemKind.SAFE
    if name is not None and (name in _UNSAFE or name.startswith(_FUSE_PREFIX)):
        return FilesystemKind.UNSAFE
    return FilesystemKind.UNKNOWN


def _mounts(mount_table: str) -> Iterator[tuple[Path, str]]:
    """Yield the place and the type of each filesystem that is mounted."""
    for line in mount_table.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, kinds = head.split(" "), tail.split(" ")
        if separator and len(fields) >= 5:  # noqa: PLR2004  # up to the mount point
            yield Path(_unescape(fields[4])), kinds[0]


def _unescape(text: str) -> str:
    for escaped, character in _ESCAPES.items():
        text = text.replace(escaped, character)
    return text
