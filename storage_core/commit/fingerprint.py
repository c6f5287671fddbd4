"""Fingerprints and versions: tell whether a directory's files have changed.

After days, and in a copy: names, sizes and modification times of all files, and a checksum of the
small ones, for epochs, snapshots and indexes may be rewritten in place with the same length. That
is a ``FileFingerprint``.

In one directory on one disk, from one process to the next, without a look into any file: a file
that has the same name, size, modification time and inode is the one that was left there, and nobody
has written into it. That is a ``FileVersion``.
"""

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from storage_core.filenames import SCRATCH_PREFIX, TEMPORARY_SUFFIX
from storage_core.json_values import ONE_LINE, Count, FileName, JsonFile, Key, whole
from storage_core.local_files import scan_folder
from storage_core.store.base import LogStore
from storage_core.store.local import storage_errors

SMALL_FILE_BYTES: Final = 64 * 1024
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileFingerprint:
    """A file's name, size, time and small-file CRC, to notice changes."""

    name: FileName
    size_bytes: Count
    modified_ms: int | None  # its modification time, epoch milliseconds; None where any will do
    crc32: Count | None  # CRC-32 of a file of at most ``SMALL_FILE_BYTES``; None for a larger one

    def matches(self, other: "FileFingerprint | None") -> bool:
        """Tell whether two fingerprints are of one version; None is no file."""
        if other is None or self.size_bytes != other.size_bytes or self.crc32 != other.crc32:
            return False
        return None in {self.modified_ms, other.modified_ms} or (
            self.modified_ms == other.modified_ms
        )

    def __str__(self) -> str:
        time = "" if self.modified_ms is None else f" of {self.modified_ms} ms"
        crc = "" if self.crc32 is None else f", CRC {self.crc32:08x}"
        return f"{self.size_bytes} bytes{time}{crc}"


# The fingerprints of all files of a directory.
FINGERPRINTS: Final[JsonFile[tuple[FileFingerprint, ...]]] = JsonFile(
    tuple[FileFingerprint, ...], layout=ONE_LINE
)


def fingerprint_files(store: LogStore) -> tuple[FileFingerprint, ...]:
    """Return fingerprints of a directory's files but scratch files, sorted by name."""
    return tuple(
        FileFingerprint(
            name=file.name,
            size_bytes=file.size_bytes,
            modified_ms=file.modified_ms,
            crc32=(
                checksum(store.read_file(file.name, limit_bytes=SMALL_FILE_BYTES))
                if file.size_bytes <= SMALL_FILE_BYTES
                else None
            ),
        )
        for file in store.list_files()
        if not is_scratch(file.name)
    )


def is_scratch(name: str) -> bool:
    """Tell by its name whether a file is a scratch file. Scratch files are of a job at work, or
    of a killed one."""
    return name.startswith(SCRATCH_PREFIX) or name.endswith(TEMPORARY_SUFFIX)


def checksum(content: bytes) -> int:
    """Return the CRC-32 of a small file."""
    return zlib.crc32(content)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One version of one file of a local disk."""

    size_bytes: Annotated[Count, Key("size")]
    modified_ns: Annotated[int, Key("time")]  # its modification time, epoch nanoseconds
    inode: Annotated[int, whole(most=2**64 - 1)]

    @classmethod
    def of(cls, facts: os.stat_result) -> "FileVersion":
        """Return the version that the operating system tells of."""
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ino)

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.modified_ns} ns, inode {self.inode}"


Versions = Mapping[str, FileVersion]


def observe_versions(directory: Path) -> dict[str, FileVersion]:
    """Return the versions of a directory's files but scratch files, by name."""
    with storage_errors(directory):
        entries = scan_folder(directory)
    return {
        entry.name: FileVersion.of(entry.facts)
        for entry in entries
        if not entry.is_folder and not is_scratch(entry.name)
    }


def version_of(path: Path) -> FileVersion | None:
    """Return the version of a file, None where there is none."""
    with storage_errors(path):
        try:
            return FileVersion.of(path.lstat())
        except FileNotFoundError:
            return None


def digest_versions(directory: Path, *, left_out: str) -> str:
    """Return a digest of the names and versions of all files.

    Args:
        directory: Scratch files in it are left out.
    """
    with storage_errors(directory):
        entries = scan_folder(directory)
    # A run lists all files of all partitions: do not make an object for each.
    listed = [
        (name, facts.st_size, facts.st_mtime_ns, facts.st_ino)
        for name, facts in entries
        if not (name.endswith(left_out) or is_scratch(name) or stat.S_ISDIR(facts.st_mode))
    ]
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=_DIGEST_BYTES).hexdigest()
