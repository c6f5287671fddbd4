"""Directories that Apache Kafka wrote, unpacked for a test (``golden/ORIGIN.toml`` says how)."""

import enum
import functools
import gzip
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GOLDEN: Final = Path(__file__).parents[1] / "golden"


class Side(enum.Enum):
    """Of an operation."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Golden:
    """One case: an operation of Kafka on a directory."""

    name: str

    @property
    def case(self) -> dict[str, Any]:
        """What case.json says."""
        case: dict[str, Any] = json.loads((GOLDEN / self.name / "case.json").read_text())
        return case

    def unpack(self, into: Path, side: Side = Side.BEFORE) -> Path:
        """Unpack a side into a new directory below into, and return that.

        A partition's directory is named by its topic and partition, a log directory by the case.
        File times are those of the archive.
        """
        directory = into / str(self.case.get("topic_partition", self.name))
        directory.mkdir(parents=True)
        return unpack_archive(GOLDEN / self.name / f"{side.value}.tar.gz", directory)

    def dump(self) -> list[dict[str, Any]]:
        """Return the lines of Kafka's own dump."""
        with gzip.open(GOLDEN / self.name / "dump.jsonl.gz", "rt") as lines:
            return [json.loads(line) for line in lines]

    def has_dump(self) -> bool:
        """Whether there is a dump of Kafka's."""
        return (GOLDEN / self.name / "dump.jsonl.gz").exists()


def unpack_archive(archive: Path, directory: Path) -> Path:
    """Unpack an archive of the tests into a directory, as whoever runs them.

    Many tests unpack the same one: ``tarfile`` would take ten times as long to do it again.
    """
    folders = []
    for member, content in _members(archive):
        path = directory / member.name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            folders.append((path, member.mtime))
            continue
        assert member.isreg(), member
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode | 0o200)
        for offset, size in member.sparse or [(0, member.size)]:  # type: ignore[misc]  # pairs
            os.pwrite(descriptor, content[offset : offset + size], offset)
        os.truncate(descriptor, member.size)
        os.close(descriptor)
        os.utime(path, (member.mtime, member.mtime))
    for path, mtime in reversed(folders):
        os.utime(path, (mtime, mtime))
    return directory


@functools.lru_cache(maxsize=32)
def _members(archive: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the directories of an archive, and its files with their bytes."""
    with tarfile.open(archive) as packed:
        return [
            (each, stream.read() if (stream := packed.extractfile(each)) else b"")
            for each in packed
        ]


def goldens(pattern: str = "*") -> list[Golden]:
    """Return the cases whose name matches a glob, sorted by name."""
    return [Golden(path.parent.name) for path in sorted(GOLDEN.glob(f"{pattern}/case.json"))]
