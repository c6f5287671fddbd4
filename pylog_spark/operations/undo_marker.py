"""What an undo remembers of the marker of a clean shutdown, in case it is killed.

While logs are half undone nobody may believe the marker: it is away from before the first file
changes until the last one is as it was, and only this file tells whether it was there.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from storage_core.json_values import OMITTED, ONE_LINE, JsonFile, Word
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.killed_runs import changed_partitions, observe_partitions
from storage_core.store import LocalStore
from storage_core.store.local import write_record

# A line for each partition.
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenMarker:
    """The marker of a log directory as an undo saw it first.

    Attributes:
        is_clean: Whether it was there.
        partitions: What ``observe_partitions`` said then; older versions did not say.
    """

    is_clean: bool
    partitions: Annotated[Mapping[str, Word] | None, OMITTED] = None


_SEEN: Final = JsonFile(_SeenMarker, layout=ONE_LINE, is_open=True)


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
        first = _SEEN.parse(content, str(path))
        if not first.is_clean:
            return False
        if not held.was_clean:
            if first.partitions is None:
                return False
            return not changed_partitions(first.partitions, directory, verified=verified)
    seen = _SeenMarker(is_clean=held.was_clean, partitions=observe_partitions(directory))
    write_record(path, _SEEN.encode(seen))
    return held.was_clean
