"""Read a log directory's small files from disk or object store."""

from typing import Protocol


class SmallFiles(Protocol):
    """Where the small files of a log directory are read."""

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        ...

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file, None if it is not there."""
        ...
