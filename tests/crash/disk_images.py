"""A disk that is kept at one moment after the other, to find it again as it was then.

A copy of a folder is not what a machine that stopped finds there: its files are new ones, and a
claim knows its files by their inodes and times. A copy of the file system is.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SIZE_BYTES: Final = 64 << 20
# ioctls of linux/fs.h: nothing is written until the second, and what was lies in the image.
_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878
_CURRENT: Final = "current"


@dataclass(frozen=True, slots=True)
class ImagedDisk:
    """A small ext4 in a file, mounted. Mounting needs root and loop devices."""

    images: Path  # the folder of its file, and of the copies of that
    path: Path  # where it is mounted

    @classmethod
    @contextmanager
    def made(cls, images: Path, path: Path) -> Iterator["ImagedDisk"]:
        """Make an empty one, in folders that are made for it."""
        disk = cls(images, path)
        images.mkdir()
        path.mkdir()
        current = images / _CURRENT
        with current.open("wb") as file:
            file.truncate(_SIZE_BYTES)
        # 256 bytes for an inode: times in nanoseconds. Without a journal a copy needs no replay.
        _run("mkfs.ext4", "-q", "-I", "256", "-m", "0", "-O", "^has_journal", current)
        disk._mount()
        (path / "lost+found").rmdir()
        try:
            yield disk
        finally:
            disk._unmount()

    def keep(self) -> str:
        """Keep the disk as it is now, while other processes wait; return the name of the image.

        A state that was there before has the image that it has.
        """
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, _FIFREEZE, 0)
            try:
                state = self._fingerprint()
                if not (self.images / state).exists():
                    self._copy(_CURRENT, state)
            finally:
                fcntl.ioctl(folder, _FITHAW, 0)
        finally:
            os.close(folder)
        return state

    def restore(self, state: str) -> None:
        """Make the disk what it was when an image was kept."""
        self._unmount()
        # Not overwritten: whoever still has a file of it open has the old one.
        (self.images / _CURRENT).unlink()
        self._copy(state, _CURRENT)
        self._mount()

    def _fingerprint(self) -> str:
        """Return a digest of all that a process could see; of folders no times."""
        digest = hashlib.sha256()
        for folder, folders, files in os.walk(self.path):
            folders.sort()
            for name in sorted([*folders, *files]):
                path = Path(folder, name)
                status = path.lstat()
                digest.update(f"{path}\0{status.st_ino} {status.st_mode}".encode())
                if stat.S_ISREG(status.st_mode):
                    digest.update(f" {status.st_mtime_ns} {status.st_size}\0".encode())
                    digest.update(path.read_bytes())
        return digest.hexdigest()

    def _copy(self, source: str, target: str) -> None:
        _run("cp", "--sparse=always", self.images / source, self.images / target)

    def _mount(self) -> None:
        _run("mount", "-o", "loop,noatime", self.images / _CURRENT, self.path)

    def _unmount(self) -> None:
        # Lazily: a process may still have a file open, or in its memory.
        _run("umount", "--lazy", self.path)


def can_mount() -> bool:
    """Whether this process may mount images."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and bool(shutil.which("mount"))


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)
