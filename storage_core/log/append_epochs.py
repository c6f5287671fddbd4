"""The leader epochs of a log that is open for appends, and their file."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from storage_core.checkpoint.leader_epoch_file import EpochEntry, encode_leader_epochs
from storage_core.commit import Plan, WriteFile, commit
from storage_core.errors import InvalidAppendError
from storage_core.filenames import LEADER_EPOCH_FILE
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import LogStore

_LEGACY: Final = -2  # no leader epoch


class AppendEpochs:
    """Leader epochs; every change is written down at once.

    Args:
        partition: Its name, for messages.
        store: The partition directory.
        entries: The epochs so far.
    """

    def __init__(self, partition: str, store: LogStore, entries: Iterable[EpochEntry]) -> None:
        self._partition = partition
        self._store = store
        self._cache = LeaderEpochCache(entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The epochs, oldest first."""
        return self._cache.entries

    def note(self, batches: BatchTable) -> None:
        """Take note of the epochs that begin in batches; a legacy batch, without one, ends all.

        Raises:
            InvalidAppendError: A leader epoch or an offset is negative.
        """
        keys = np.where(batches.is_legacy, np.int64(_LEGACY), batches.leader_epoch)
        is_new = np.ones(len(batches), np.bool_)
        is_new[1:] = (keys[1:] != keys[:-1]) | (batches.base_offset[1:] < batches.base_offset[:-1])
        changed = False
        try:
            for row in is_new.nonzero()[0].tolist():
                if batches.magic[row] < MAGIC_V2:
                    changed |= bool(self._cache.entries)
                    self._cache = LeaderEpochCache()
                else:
                    changed |= self._assign(
                        int(batches.leader_epoch[row]), int(batches.base_offset[row])
                    )
        finally:
            if changed:
                self._write()

    def truncate_from_start(self, offset: int) -> None:
        """Let the log begin at an offset."""
        if self._cache.truncate_from_start(offset):
            self._write()

    def clear(self) -> None:
        """Forget all epochs."""
        self._cache = LeaderEpochCache()
        self._write()

    def _assign(self, epoch: int, start_offset: int) -> bool:
        try:
            return self._cache.assign(epoch, start_offset)
        except ValueError as error:
            raise InvalidAppendError(
                self._partition, f"expected a leader epoch of at least 0, found {error}"
            ) from error

    def _write(self) -> None:
        operation = WriteFile(
            name=LEADER_EPOCH_FILE,
            content=encode_leader_epochs(self._cache.entries),
            reason="epochs of the log",
        )
        commit(Plan(location=self._store.location, operations=(operation,)), self._store)
