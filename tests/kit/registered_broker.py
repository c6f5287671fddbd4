"""A log directory as a real broker left it, with values of a schema registry's serializers and the
registry's topic (``golden/registry-broker``)."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

from tests.kit.golden_data import GOLDEN, unpack_archive

REGISTERED: Final = GOLDEN / "registry-broker"
ARCHIVE: Final = REGISTERED / "broker.tar.gz"
DECODED: Final = REGISTERED / "decoded.jsonl.gz"


def unpack_registered(directory: Path) -> Path:
    """Unpack the log directory into a new directory, file times included."""
    directory.mkdir(parents=True)
    return unpack_archive(ARCHIVE, directory)


def decoded_records(topic: str) -> list[dict[str, Any]]:
    """Return what the official deserializers give by the newest schema: partition, offset, key and
    value of each record of a topic, in the order of partitions and offsets.

    What JSON has not is an object with one field: decimal, time, date, bytes.
    """
    with gzip.open(DECODED, "rt") as lines:
        return [each for each in map(json.loads, lines) if each["topic"] == topic]
