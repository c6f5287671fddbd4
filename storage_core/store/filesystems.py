"""The filesystem of a path, and whether it can be trusted with a log directory.

That is: a rename that is atomic, a sync that reaches the disk, locks that another process sees.
Source: ``/proc/self/mountinfo``, proc(5).
"""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")

# Local, and with the promises above. overlay and tmpfs keep them for as long as they live.
_SAFE: Final = frozenset({"ext3", "ext4", "xfs", "overlay", "tmpfs"})
# Another machine's disk, or a program's idea of one.
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
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class FilesystemKind(enum.StrEnum):
    """How far a filesystem can be trusted with a log directory."""

    SAFE = "safe"
    UNKNOWN = "unknown"
    UNSAFE = "unsafe"


def filesystem_of(path: Path, mount_table: str) -> str | None:
    """Return the type of the filesystem that a path lies on, None if the table does not say.

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
    """Whether something is mounted at a path; a folder of the same filesystem, too (``--bind``).

    Args:
        path: Absolute, without symbolic links.
        mount_table: Content of the mount table.
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
