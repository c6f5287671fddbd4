"""Logs that tests append to: a clock that stands still, files whose syncs are noted."""

import os
from pathlib import Path

from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.errors import StorageError
from storage_core.log.append.segment import LocalAppendFile, LocalAppendFiles
from storage_core.log.unified_log import UnifiedLog
from storage_core.store.local import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch

KEEP_ALL = {"retention.ms": "-1"}


def open_log(directory: Path, *, clock: ManualClock | None = None, **options) -> UnifiedLog:
    """Open the log of ``<directory>/t-0``; settings are options with dots as underscores."""
    files = options.pop("files", None)
    clean_shutdown = options.pop("clean_shutdown", True)
    log_start_offset = options.pop("log_start_offset", 0)
    settings = {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return UnifiedLog.open(
        directory / "t-0",
        config=LogConfig.from_topic_overrides(KEEP_ALL | settings),
        clock=ManualClock(SOME_TIME_MS) if clock is None else clock,
        files=files,
        log_start_offset=log_start_offset,
        clean_shutdown=clean_shutdown,
    )


def batch(count: int = 1, **fields) -> bytes:
    """Return a client's batch of so many small records."""
    timestamp = fields.pop("timestamp", SOME_TIME_MS)
    records = tuple(
        RecordSpec(key=b"key-%d" % i, value=b"v" * 20, timestamp=timestamp) for i in range(count)
    )
    return encode_batch(BatchSpec(**({"records": records, "leader_epoch": -1} | fields)))


class NotedFile(LocalAppendFile):
    """A file that notes what happens to it, and may refuse the next write."""

    def __init__(self, path: Path, size_bytes: int, notes: "NotedFiles") -> None:
        super().__init__(path, os.open(path, os.O_WRONLY), size_bytes=size_bytes)
        self._name, self._notes = path.name, notes

    def append(self, content) -> None:
        self._notes.happens(f"append {self._name}")
        super().append(content)

    def sync(self) -> None:
        self._notes.happens(f"sync {self._name}")
        super().sync()


class NotedFiles(LocalAppendFiles):
    """Opens files that note what happens to them; fails at the step whose number is set."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(LocalStore(directory))
        self._directory = directory
        self.notes: list[str] = []
        self.fails_at: int | None = None

    def happens(self, what: str) -> None:
        if self.fails_at is not None and len(self.notes) >= self.fails_at:
            raise StorageError(str(self._directory), f"the disk is gone: {what}")
        self.notes.append(what)

    def open_file(self, name: str, *, preallocate_bytes: int = 0) -> NotedFile:
        self.happens(f"open {name}")
        file = super().open_file(name, preallocate_bytes=preallocate_bytes)
        size_bytes = file.size_bytes
        file.close()
        return NotedFile(self._directory / name, size_bytes, self)

    def sync_directory(self) -> None:
        self.happens("sync directory")
        super().sync_directory()

    @property
    def synced(self) -> list[str]:
        return [note.removeprefix("sync ") for note in self.notes if note.startswith("sync")]
