"""What an undo remembers of the marker of a clean shutdown, in case it is killed.

While logs are half undone nobody may believe the marker: it is away from before the first file
changes until the last one is as it was, and only this file tells whether it was there.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from storage_core.json_text import parse_json_object
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.killed_runs import (
    PARTITIONS,
    changed_partitions,
    decode_partitions,
    observe_partitions,
)
from storage_core.store import LocalStore
from storage_core.store.local import write_record

_IS_CLEAN: Final = "is_clean"
# A line for each partition.
_MOST_BYTES: Final = 64 << 20


def remember_marker(path: Path, held: HeldBrokerRoot, *, verified: Collection[str]) -> bool:
    """Return whether the directory had its marker when its undo began; a killed one removed it.

    Not if somebody else has changed a partition since: a broker that left no marker, above all.

    Args:
        path: Where that is written down.
        held: The log directory.
        verified: The partitions that are, file by file, what the run or its undo left.
    """
    directory = Path(held.location)
    if path.is_file():
        content = LocalStore(path.parent).read_file(path.name, limit_bytes=_MOST_BYTES)
        said = parse_json_object(content, str(path))
        if not said.boolean(_IS_CLEAN):
            return False
        if not held.was_clean:
            if PARTITIONS not in said.names():
                return False  # written by a version that did not say
            known = decode_partitions(said)
            return not changed_partitions(known, directory, verified=verified)
    seen = {_IS_CLEAN: held.was_clean, PARTITIONS: observe_partitions(directory)}
    write_record(path, json.dumps(seen).encode())
    return held.was_clean
