"""A log directory as a real broker left it, never cleaned (``golden/broker-uncleaned``)."""

import gzip
import json
import tomllib
from pathlib import Path
from typing import Any, Final

from tests.kit.golden_data import GOLDEN, unpack_archive

UNCLEANED: Final = GOLDEN / "broker-uncleaned"
ARCHIVE: Final = UNCLEANED / "before.tar.gz"
CONSUMED: Final = UNCLEANED / "consumed.jsonl.gz"
ORIGIN: Final = UNCLEANED / "ORIGIN.toml"

# Key, value, timestamp, headers of what a consumer got at an offset of a partition.
Consumed = dict[str, dict[int, tuple[bytes | None, bytes | None, int, tuple[Any, ...]]]]


def unpack_broker(directory: Path) -> Path:
    """Unpack the log directory into a new directory, file times included."""
    directory.mkdir(parents=True)
    return unpack_archive(ARCHIVE, directory)


def broker_origin() -> dict[str, Any]:
    """Return ORIGIN.toml: the broker's settings, its topics and their settings, the clock."""
    return tomllib.loads(ORIGIN.read_text())


def broker_consumed() -> Consumed:
    """Return what a read_committed consumer got while the broker ran, by partition and offset."""
    partitions: Consumed = {}
    with gzip.open(CONSUMED, "rt") as lines:
        for line in lines:
            topic, number, offset, timestamp, key, value, headers = json.loads(line)
            record = (
                _bytes(key),
                _bytes(value),
                timestamp,
                tuple((name, _bytes(text)) for name, text in headers),
            )
            partitions.setdefault(f"{topic}-{number}", {})[offset] = record
    return partitions


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
