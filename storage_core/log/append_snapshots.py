"""The producer snapshots of a log that is open for appends."""

from collections.abc import Iterable

from storage_core.commit import DeleteFile, Plan, WriteFile, commit
from storage_core.filenames import snapshot_file
from storage_core.log.producer_snapshot import ProducerEntry, encode_producer_snapshot
from storage_core.store.base import LogStore


class AppendSnapshots:
    """Which snapshots there are, and up to where producers are known.

    Args:
        store: The partition directory.
        offsets: Of the snapshots that are there.
        map_end: Up to where producers are known.
        log_start_offset: What counts as the last snapshot where there is none.
    """

    def __init__(
        self, store: LogStore, offsets: Iterable[int], *, map_end: int, log_start_offset: int
    ) -> None:
        self._store = store
        self._offsets = set(offsets)
        self._last = max(self._offsets, default=log_start_offset)
        self.map_end = map_end

    def take(self, entries: Iterable[ProducerEntry]) -> None:
        """Write the producers down, unless a snapshot reaches as far already."""
        if self.map_end <= self._last:
            return
        operation = WriteFile(
            name=snapshot_file(self.map_end),
            content=encode_producer_snapshot(entries),
            reason="producers as of this offset",
        )
        commit(Plan(location=self._store.location, operations=(operation,)), self._store)
        self._offsets.add(self.map_end)
        self._last = self.map_end

    def raise_log_start(self, offset: int) -> None:
        """Take note of another log start offset."""
        self.map_end = max(self.map_end, offset)
        self._last = max(self._offsets, default=offset)

    def start_over(self, offset: int) -> None:
        """Delete every snapshot; the log begins at an offset."""
        operations = tuple(
            DeleteFile(name=snapshot_file(known), reason=f"the log starts over at {offset}")
            for known in sorted(self._offsets)
        )
        commit(Plan(location=self._store.location, operations=operations), self._store)
        self._offsets.clear()
        self.map_end = self._last = offset
