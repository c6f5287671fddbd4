"""A filesystem in a file, mounted, as somebody's disk may be one.

Mounting needs root, and making one its tools (Debian: btrfs-progs, xfsprogs, f2fs-tools).
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

_IMAGE_BYTES: Final = 512 << 20  # a sparse file; xfs wants 300 MiB
MAKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "btrfs": ("mkfs.btrfs", "--quiet"),
    # Without blocks that are root's alone: tests run as root, and brokers do not.
    "ext4": ("mkfs.ext4", "-q", "-m", "0"),
    "f2fs": ("mkfs.f2fs", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
}


def fill_disk(folder: Path) -> Path:
    """Leave no byte of the disk of a folder free; return the file that takes them."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
        os.fsync(file.fileno())
    return ballast


class SmallDisk:
    """A filesystem in memory of a size, mounted while the context lasts."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path, self._size_bytes = path, size_bytes

    def __enter__(self) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs"]
        done = subprocess.run(
            [*words, str(self._path)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise PermissionError(done.stderr.strip())
        return self._path

    def __exit__(self, *_: object) -> None:
        # A broker that would have ended may still have its files open.
        subprocess.run(["umount", "--lazy", str(self._path)], check=True)


class MountedDisk:
    """A filesystem in a file, mounted at ``path``; what cannot be had here skips the test."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        maker = MAKERS[kind]
        if shutil.which(maker[0]) is None:
            pytest.skip(f"there is no {maker[0]}")
        with self.image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        subprocess.run([*maker, str(self.image)], check=True, capture_output=True)
        self.mount()

    def mount(self) -> None:
        """Mount its file."""
        command = ["mount", "-o", "loop", str(self.image), str(self.path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this kernel mounts no such disk: {done.stderr.strip()}")

    def unmount(self) -> None:
        """Unmount it, if it is mounted."""
        if self.path.is_mount():
            subprocess.run(["umount", self.path], check=True)

    def lose_power(self) -> None:
        """Go on with what has reached the disk by now."""
        # Of another name: the loop device of the former file may not be gone yet.
        after = self.image.with_name(f"{self.image.name}-later")
        subprocess.run(["cp", "--sparse=always", self.image, after], check=True)
        self.unmount()
        self.image.unlink()
        self.image = after
        self.mount()
