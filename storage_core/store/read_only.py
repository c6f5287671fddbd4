"""Refusals of a place that is only read: whatever would change it."""

from abc import ABC, abstractmethod

from storage_core.errors import ReadOnlyStoreError


class ReadOnlyStore(ABC):
    """The changing half of a ``LogStore`` that nobody may change."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Path or URL of the directory."""

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Refuse."""
        del content, modified_ms
        raise self._refusal(f"writing {name}")

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Refuse."""
        del source, start, size_bytes, modified_ms
        raise self._refusal(f"writing {target}")

    def create_empty(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(f"creating {name}")

    def promote(self, scratch_path: str, name: str) -> None:
        """Refuse."""
        del scratch_path
        raise self._refusal(f"writing {name}")

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        raise self._refusal(f"renaming {source} to {target}")

    def delete(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(f"deleting {name}")

    def truncate(self, name: str, size_bytes: int) -> None:
        """Refuse."""
        raise self._refusal(f"cutting {name} to {size_bytes} bytes")

    def sync_file(self, name: str) -> None:
        """Refuse: whoever syncs has written."""
        raise self._refusal(f"syncing {name}")

    def sync_directory(self) -> None:
        """Refuse: whoever syncs has written."""
        raise self._refusal("syncing the directory")

    def _refusal(self, operation: str) -> ReadOnlyStoreError:
        return ReadOnlyStoreError(self.location, operation)
