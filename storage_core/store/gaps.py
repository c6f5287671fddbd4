"""Ranges left out of a cleaned log, for the store to copy.

Whoever knows without reading that a long stretch of a log stays leaves it out of the scratch file:
there is a gap, which takes no room on the disk. What uploads the file has the store fill the gaps.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from storage_core.store.copying import is_server_side
from storage_core.store.generations import FileEntry
from storage_core.store.object_store import ObjectStore

# Copy an object to another key, by the store itself if possible. It is possible if both keys are
# on the same store.
#
# A copy is of the version that was planned, or it is refused: S3 is told to compare the tag as it
# copies. Not every server obeys; where the copy's own tag does not show that it has the same
# bytes, and on other stores, the original is asked once more.


# A gap saves at least one read and one write request: it costs no more than no gap.
LEAST_GAP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRange:
    """A range left out of a file; it reads as zeros."""

    position: int
    source: FileEntry  # the stretch of an object whose bytes belong there

    @property
    def end_position(self) -> int:
        """Just past it in the file."""
        return self.position + self.source.size_bytes


@runtime_checkable
class CopiesStretches(Protocol):
    """A partition on an object store with possible server-side range copies."""

    def stretch_to_copy(self, name: str, start: int, size_bytes: int) -> FileEntry | None:
        """Return the location of a range; None if it cannot be copied.

        Args:
            size_bytes: Its length; the file is no shorter.
        """
        ...


def may_be_gap(objects: ObjectStore, size_bytes: int) -> bool:
    """Tell whether a range is worth a copy by the store itself. Some stores copy no parts of
    objects."""
    return size_bytes >= LEAST_GAP_BYTES and is_server_side(objects, objects)


# Upload files with gaps to S3; S3 copies the missing ranges. The upload names the object and bytes
# for each gap.
#
# The object is put together of parts, of which some are sent and some copied. A part has at least
# 5 MiB, but for the last one: where fewer bytes lie before a gap, some of it are fetched and sent.
# A store that refuses to copy parts is sent every byte, fetched from it before.
