"""Directories that Apache Kafka wrote, unpacked for a test (``golden/ORIGIN.toml`` says how)."""

import enum
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
    """Unpack an archive of the tests into a directory, as whoever runs them."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(directory, filter="data")
        else:  # Python 3.11.2, as of Debian 12
            members = packed.getmembers()
            for member in members:
                member.uid, member.gid, member.uname, member.gname = (
                    os.getuid(),
                    os.getgid(),
                    "",
                    "",
                )
            packed.extractall(directory, members)  # noqa: S202 - archives of our own
    return directory


def goldens(pattern: str = "*") -> list[Golden]:
    """Return the cases whose name matches a glob, sorted by name."""
    return [Golden(path.parent.name) for path in sorted(GOLDEN.glob(f"{pattern}/case.json"))]
