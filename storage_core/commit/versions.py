"""Which version of each of its files a directory has, without a look into any of them.

``fingerprint`` knows a file again after days, and in a copy. This is about one directory on one
disk, from one process to the next: a file that has the same name, size, modification time and
inode is the one that was left there, and nobody has written into it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.commit.fingerprint import is_scratch
from storage_core.local_files import scan_folder
from storage_core.store.json_fields import MAX_INTEGER, JsonFields
from storage_core.store.local import storage_errors

_DIGEST_BYTES: Final = 16
_SIZE, _TIME, _INODE = "size", "time", "inode"
_MOST_INODE: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One version of one file of a local disk.

    Attributes:
        size_bytes: Its length.
        modified_ns: Its modification time, epoch nanoseconds.
        inode: Its number in its filesystem.
    """

    size_bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> "FileVersion":
        """Return the version that the operating system tells of."""
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ino)

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.modified_ns} ns, inode {self.inode}"


Versions = Mapping[str, FileVersion]


def observe_versions(directory: Path) -> dict[str, FileVersion]:
    """Return the version of each file of a directory, by name; scratch files are left out.

    Raises:
        StorageError: The directory cannot be listed.
    """
    with storage_errors(directory):
        entries = scan_folder(directory)
    return {
        entry.name: FileVersion.of(entry.facts)
        for entry in entries
        if not entry.is_folder and not is_scratch(entry.name)
    }


def version_of(path: Path) -> FileVersion | None:
    """Return the version of a file, None where there is none.

    Raises:
        StorageError: It cannot be looked at.
    """
    with storage_errors(path):
        try:
            return FileVersion.of(path.lstat())
        except FileNotFoundError:
            return None


def digest_versions(versions: Versions) -> str:
    """Return what another version of any of the files, or another name, would change."""
    listed = [(name, v.size_bytes, v.modified_ns, v.inode) for name, v in sorted(versions.items())]
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def encode_versions(versions: Versions) -> dict[str, dict[str, int]]:
    """Return versions as plain values."""
    return {
        name: {_SIZE: version.size_bytes, _TIME: version.modified_ns, _INODE: version.inode}
        for name, version in versions.items()
    }


def decode_versions(fields: JsonFields) -> dict[str, FileVersion]:
    """Return the versions that ``encode_versions`` encoded.

    Raises:
        ManifestError: They are none.
    """
    return {name: _decode(fields.fields(name)) for name in fields.names()}


def _decode(fields: JsonFields) -> FileVersion:
    fields.require_names((_SIZE, _TIME, _INODE))
    return FileVersion(
        size_bytes=fields.integer(_SIZE),
        # A file may be older than the epoch.
        modified_ns=fields.integer(_TIME, least=-MAX_INTEGER),
        inode=fields.integer(_INODE, most=_MOST_INODE),
    )
