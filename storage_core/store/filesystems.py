"""Which filesystem a path lies on, and whether it keeps what this program relies on.

That is: a rename that is atomic, a sync that reaches the disk, locks that another process sees.
Source: ``/proc/self/mountinfo``, proc(5).
"""

import enum
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
    for line in mount_table.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, kinds = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 5:  # noqa: PLR2004  # up to the mount point
            continue
        place = Path(_unescape(fields[4]))
        if path.is_relative_to(place) and (best is None or len(place.parts) >= best[0]):
            best = (len(place.parts), kinds[0])
    return None if best is None else best[1]


def classify_filesystem(name: str | None) -> FilesystemKind:
    """Return how far a type of filesystem can be trusted."""
    if name in _SAFE:
        return FilesystemKind.SAFE
    if name is not None and (name in _UNSAFE or name.startswith(_FUSE_PREFIX)):
        return FilesystemKind.UNSAFE
    return FilesystemKind.UNKNOWN


def _unescape(text: str) -> str:
    for escaped, character in _ESCAPES.items():
        text = text.replace(escaped, character)
    return text
