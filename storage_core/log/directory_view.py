"""A partition directory as it will be once operations that are only planned have been applied."""

from storage_core.plan.operations import (
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    TruncateFile,
    WriteFile,
)
from storage_core.store.base import FileInfo, LogStore


class DirectoryView:
    """The files of a partition, seen through the operations that are planned for it.

    Nothing is written: every change is noted in ``operations``, and reads go to the file that
    holds the bytes now.
    """

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.operations: list[Operation] = []
        # Name that a file will have -> what the listing says of the file that holds it now.
        self._files = {file.name: file for file in store.list_files()}

    @property
    def names(self) -> list[str]:
        """Names that the directory will have, sorted."""
        return sorted(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def source(self, name: str) -> FileInfo:
        """Return the listing of the file that now holds what will have this name."""
        return self._files[name]

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the bytes of a small file."""
        return self.store.read_file(self.source(name).name, limit_bytes=limit_bytes)

    def delete(self, name: str, reason: str) -> None:
        """Plan to delete a file."""
        del self._files[name]
        self.operations.append(DeleteFile(name=name, reason=reason))

    def rename(self, name: str, target: str, reason: str) -> None:
        """Plan to rename a file, over the target if there is one."""
        self._files[target] = self._files.pop(name)
        self.operations.append(RenameFile(source=name, target=target, reason=reason))

    def create_empty(self, name: str, reason: str) -> None:
        """Plan to create an empty file."""
        self._files[name] = FileInfo(name, 0, 0)
        self.operations.append(CreateEmptyFile(name=name, reason=reason))

    def write(self, name: str, content: bytes, reason: str) -> None:
        """Plan to write a small file."""
        self._files[name] = FileInfo(name, len(content), 0)
        self.operations.append(WriteFile(name=name, content=content, reason=reason))

    def truncate(self, name: str, size_bytes: int, reason: str) -> None:
        """Plan to cut a file."""
        self.operations.append(TruncateFile(name=name, size_bytes=size_bytes, reason=reason))
