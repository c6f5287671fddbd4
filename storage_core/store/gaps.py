"""Stretches that a cleaned log leaves out, since its object store can copy them by itself.

Whoever knows without reading that a long stretch of a log stays leaves it out of the scratch file:
there is a gap, which takes no room on the disk. What uploads the file has the store fill the gaps.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from storage_core.store.copying import is_server_side
from storage_core.store.manifest import FileEntry
from storage_core.store.object_store import ObjectStore

# A gap saves at least one request that reads and one that writes: no more are made than without.
LEAST_GAP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRange:
    """A stretch that a file leaves out; who reads it there gets zeros.

    Attributes:
        position: Where in the file it begins.
        source: The stretch of an object whose bytes belong there.
    """

    position: int
    source: FileEntry

    @property
    def end_position(self) -> int:
        """Just past it in the file."""
        return self.position + self.source.size_bytes


@runtime_checkable
class CopiesStretches(Protocol):
    """A partition whose object store may be able to copy a stretch of a file by itself."""

    def stretch_to_copy(self, name: str, start: int, size_bytes: int) -> FileEntry | None:
        """Return where a stretch of a file lies; None if it is not left to the store.

        Args:
            name: Of the file.
            start: Where in the file the stretch begins.
            size_bytes: Its length; the file is no shorter.
        """
        ...


def may_be_gap(objects: ObjectStore, size_bytes: int) -> bool:
    """Whether a store copies parts of objects by itself, and so many bytes are worth a request."""
    return size_bytes >= LEAST_GAP_BYTES and is_server_side(objects, objects)
