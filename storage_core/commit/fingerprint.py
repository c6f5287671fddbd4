"""What tells whether the files of a partition directory are still what they were.

Names, sizes and modification times of all files, and a checksum of the small ones: epochs,
snapshots and indexes may be rewritten in place with the same length.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from storage_core.filenames import SCRATCH_PREFIX, TEMPORARY_SUFFIX
from storage_core.store.base import LogStore
from storage_core.store.json_fields import MAX_INTEGER, JsonFields, parse_json_objects

SMALL_FILE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileFingerprint:
    """One file, as far as it can be told from another version of itself without reading much.

    Attributes:
        name: Plain file name.
        size_bytes: Its length.
        modified_ms: Its modification time, epoch milliseconds; None where any will do.
        crc32: CRC-32 of a file of at most ``SMALL_FILE_BYTES``; None for a larger one.
    """

    name: str
    size_bytes: int
    modified_ms: int | None
    crc32: int | None

    def matches(self, other: "FileFingerprint | None") -> bool:
        """Whether the other is the same version of the same content; None is no file."""
        if other is None or self.size_bytes != other.size_bytes or self.crc32 != other.crc32:
            return False
        return None in {self.modified_ms, other.modified_ms} or (
            self.modified_ms == other.modified_ms
        )

    def __str__(self) -> str:
        time = "" if self.modified_ms is None else f" of {self.modified_ms} ms"
        crc = "" if self.crc32 is None else f", CRC {self.crc32:08x}"
        return f"{self.size_bytes} bytes{time}{crc}"


def fingerprint_files(store: LogStore) -> tuple[FileFingerprint, ...]:
    """Return the fingerprints of a directory's files, sorted by name; scratch files left out.

    Raises:
        StorageError: The store failed, or a file vanished meanwhile.
    """
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
    """Whether a file of this name is only there while a job works, or was left by a killed one."""
    return name.startswith(SCRATCH_PREFIX) or name.endswith(TEMPORARY_SUFFIX)


def checksum(content: bytes) -> int:
    """Return the CRC-32 of a small file."""
    return zlib.crc32(content)


def encode_fingerprints(files: Iterable[FileFingerprint]) -> bytes:
    """Return fingerprints as a JSON list."""
    return json.dumps([asdict(file) for file in files]).encode()


def decode_fingerprints(content: bytes, *, file: str) -> tuple[FileFingerprint, ...]:
    """Return the fingerprints that ``encode_fingerprints`` wrote.

    Args:
        content: What was read.
        file: Where from, for messages.

    Raises:
        ManifestError: It is not that; a name that leads elsewhere is none.
    """
    return tuple(parse_fingerprint(fields) for fields in parse_json_objects(content, file))


def parse_fingerprint(fields: JsonFields) -> FileFingerprint:
    """Return the fingerprint that a JSON object holds; errors as of ``decode_fingerprints``."""
    fields.require_names(("name", "size_bytes", "modified_ms", "crc32"))
    return FileFingerprint(
        name=fields.file_name("name"),
        size_bytes=fields.integer("size_bytes"),
        # A file may be older than the epoch.
        modified_ms=fields.optional_integer("modified_ms", least=-MAX_INTEGER),
        crc32=fields.optional_integer("crc32"),
    )
