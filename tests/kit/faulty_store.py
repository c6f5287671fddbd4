"""A store that dies in the middle of a commit, as a process does that is killed.

Everything up to a chosen operation happens, that one happens not at all, by half or whole, and
nothing after it does. Then ``SimulatedCrash`` is raised, which no handler of errors catches.
"""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Final

from storage_core.filenames import TEMPORARY_SUFFIX
from storage_core.store.base import FileInfo, FileReader
from storage_core.store.local import LocalStore

NEVER: Final = -1


class SimulatedCrash(BaseException):  # not an error: nobody may handle it
    """The process has ended here."""


class Moment(enum.Enum):
    """When, of the operation in question, the process dies."""

    BEFORE = "before"
    TORN = "in the middle of its write"
    AFTER = "after"


class FaultyStore:
    """A LogStore over a local directory that stops at one of the changes made through it.

    Args:
        stop_at: Number of the change, from 0; NEVER to only count.
        moment: When. A write that is torn leaves half of its temporary file, as LocalStore writes
            files; all other changes are atomic, and torn they did not happen.
    """

    def __init__(
        self, store: LocalStore, *, stop_at: int = NEVER, moment: Moment = Moment.BEFORE
    ) -> None:
        self._store = store
        self._stop_at = stop_at
        self._moment = moment
        # Names of the methods that were called to change something, in order
        self.changes: list[str] = []

    @property
    def location(self) -> str:
        """Path of the directory."""
        return self._store.location

    def list_files(self) -> list[FileInfo]:
        """Return the regular files, sorted by name."""
        return self._store.list_files()

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._store.read_file(name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        return self._store.open_file(name)

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Create or replace a small file, perhaps by half."""

        def tear() -> None:
            temporary = Path(self._store.directory, name + TEMPORARY_SUFFIX)
            temporary.write_bytes(content[: len(content) // 2])

        self._change(
            "write_file",
            lambda: self._store.write_file(name, content, modified_ms=modified_ms),
            tear=tear,
        )

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Copy a stretch of a file to a new one, perhaps by half."""

        def copy(size: int) -> None:
            self._store.copy_range(source, start, size, target, modified_ms=modified_ms)

        self._change("copy_range", lambda: copy(size_bytes), tear=lambda: copy(size_bytes // 2))

    def create_empty(self, name: str) -> None:
        """Create an empty file unless there is one of that name."""
        self._change("create_empty", lambda: self._store.create_empty(name))

    def promote(self, scratch_path: str, name: str) -> None:
        """Move a finished scratch file into the directory."""
        self._change("promote", lambda: self._store.promote(scratch_path, name))

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target if there is one."""
        self._change("rename", lambda: self._store.rename(source, target))

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._change("delete", lambda: self._store.delete(name))

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file to size_bytes."""
        self._change("truncate", lambda: self._store.truncate(name, size_bytes))

    def sync_file(self, name: str) -> None:
        """Make a file's content durable."""
        self._change("sync_file", lambda: self._store.sync_file(name))

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        self._change("sync_directory", self._store.sync_directory)

    def keep(self, name: str, path: str, *, is_copy: bool) -> None:
        """Keep a file outside; torn, half of a copy is there."""

        def tear() -> None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _tear_copy(self._store.directory / name, Path(path), is_copy=is_copy)

        self._change("keep", lambda: self._store.keep(name, path, is_copy=is_copy), tear=tear)

    def restore(self, path: str, name: str, *, is_copy: bool) -> None:
        """Bring a kept file back; torn, half of a copy is there."""

        def tear() -> None:
            _tear_copy(Path(path), self._store.directory / name, is_copy=is_copy)

        self._change("restore", lambda: self._store.restore(path, name, is_copy=is_copy), tear=tear)

    def write_record(self, path: str, content: bytes) -> None:
        """Write a small file outside, perhaps by half."""

        def tear() -> None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path + TEMPORARY_SUFFIX).write_bytes(content[: len(content) // 2])

        self._change("write_record", lambda: self._store.write_record(path, content), tear=tear)

    def create_directory(self) -> None:
        """Create the directory."""
        self._change("create_directory", self._store.create_directory)

    def retire_directory(self) -> None:
        """Take the directory away; torn, it has another name."""
        directory = self._store.directory

        def tear() -> None:
            directory.rename(directory.with_name(f"{directory.name}.{'0' * 32}-delete"))

        self._change("retire_directory", self._store.retire_directory, tear=tear)

    def remove_directory(self) -> None:
        """Remove the directory."""
        self._change("remove_directory", self._store.remove_directory)

    def _change(
        self,
        method: str,
        change: Callable[[], None],
        *,
        tear: Callable[[], None] = lambda: None,
    ) -> None:
        self.changes.append(method)
        number = len(self.changes) - 1
        crash = SimulatedCrash(f"{self._moment.value} change {number}: {method}")
        if number == self._stop_at and self._moment is not Moment.AFTER:
            if self._moment is Moment.TORN:
                tear()
            raise crash
        change()
        if number == self._stop_at:
            raise crash


def _tear_copy(source: Path, target: Path, *, is_copy: bool) -> None:
    """Leave half of a copy under its temporary name; a second name is there or it is not."""
    if is_copy:
        content = source.read_bytes()
        target.with_name(target.name + TEMPORARY_SUFFIX).write_bytes(content[: len(content) // 2])
