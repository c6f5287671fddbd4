"""A log held open: opened or begun, rolled, flushed and closed."""

import random
from pathlib import Path
from typing import Self

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.clock import Clock, SystemClock
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
)
from storage_core.filenames import LOG_SUFFIX, kind_of, parse_partition_directory
from storage_core.log.append.local_log import (
    AppendEpochs,
    AppendSnapshots,
    LocalLog,
    plan_first_segment,
)
from storage_core.log.append.segment import AppendFiles, LocalAppendFiles
from storage_core.log.batch_search import find_batch_base_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.log.producer_state import REMEMBERED_BATCHES, ProducerState
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder


class OpenLog:
    """Everything of a UnifiedLog but its appends; made by `open`.

    Args:
        loaded: The log as it was loaded; its operations have been committed.
        clock: Where the time comes from.
    """

    def __init__(
        self,
        partition: str,
        store: LocalStore,
        loaded: LoadedLog,
        local: LocalLog,
        *,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.config = config
        self._clock = clock
        self._store = store
        self._local = local
        self._epochs = AppendEpochs(partition, store, loaded.epochs)
        self._producers = ProducerState(loaded.producers, remembered_batches=REMEMBERED_BATCHES)
        self._snapshots = AppendSnapshots(
            store,
            loaded.snapshot_offsets,
            map_end=loaded.log_end_offset,
            log_start_offset=loaded.log_start_offset,
        )
        # First offsets of transactions that were open when the log was loaded.
        self._loaded_txns = frozenset(
            entry.current_txn_first_offset
            for entry in loaded.producers
            if entry.current_txn_first_offset >= 0
        )
        self._log_start_offset = loaded.log_start_offset
        self._high_watermark = loaded.log_start_offset
        self._is_closed = False

    @classmethod
    def open(  # noqa: PLR0913 - a broker says as much
        cls,
        directory: Path,
        *,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        cleaner: CleanerConfig | None = None,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean_shutdown: bool = True,
        files: AppendFiles | None = None,
        dice: random.Random | None = None,
    ) -> Self:
        """Open the log of a directory, or begin one.

        Args:
            directory: ``<topic>-<partition>``; created if it is not there.
            config: The topic's configuration; Kafka's defaults without one.
            clock: Where the time comes from; the machine's clock without one.
            cleaner: For the expiry of producers.
            log_start_offset: The partition's entry in the log-start checkpoint.
            recovery_point: The partition's entry in the recovery-point checkpoint; of a log that
                was closed cleanly it does not count, for all of that is durable.
            clean_shutdown: Whether the log was closed cleanly. If not it is recovered from the
                recovery point on, as a broker does after a crash: what is damaged is cut off.
        """
        partition = str(parse_partition_directory(directory.name))
        config = LogConfig() if config is None else config
        clock = SystemClock() if clock is None else clock
        try:
            make_folder(directory, mode=PUBLIC_MODE)
        except OSError as error:
            raise StorageError(str(directory), error.strerror or str(error)) from error
        store = LocalStore(directory)
        is_new = not any(kind_of(file.name) == LOG_SUFFIX for file in store.list_files())
        if is_new:
            commit(plan_first_segment(store.location, log_start_offset), store)
        now_ms = clock.now_ms()
        loader = LogLoader(
            store,
            config=config,
            cleaner=CleanerConfig() if cleaner is None else cleaner,
            now_ms=now_ms,
            log_start_checkpoint=log_start_offset,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
            may_repair=not clean_shutdown,
        )
        loaded = loader.load().close(high_watermark=0)
        commit(loaded.plan, store)
        local = LocalLog(
            partition,
            store,
            LocalAppendFiles(store) if files is None else files,
            config,
            loaded,
            is_new=is_new,
            now_ms=now_ms,
            dice=random.SystemRandom() if dice is None else dice,
        )
        return cls(partition, store, loaded, local, config=config, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StorageError):
            self.abandon()
        elif not self._is_closed:
            self.close()

    # Offsets.

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """First offset not known to be on all in-sync replicas. A new log's is its log start."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """First offset that is not known to be durable."""
        return self._local.recovery_point

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Base offset and bytes of every segment, in order."""
        return self._local.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return self._local.size_bytes

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs, and where they began."""
        return self._epochs.entries

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers that are alive, by id."""
        return dict(self._producers.producers)

    @property
    def first_unstable_offset(self) -> int | None:
        """Start of the oldest transaction open or not replicated; None without one."""
        first = self._producers.transactions.first_unstable_offset
        if first is None:
            return None
        if first >= self._log_start_offset and first not in self._loaded_txns:
            return first
        # Kafka then looks for the batch, which may begin elsewhere.
        bases = [base for base, _ in self.segments]
        base_offset = find_batch_base_offset(
            DirectoryView(self._store), bases, max(first, self._log_start_offset)
        )
        return self.log_end_offset if base_offset is None else base_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset that a committed read does not reach."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(self.partition)

    def roll(self, wanted_offset: int = 0) -> int:
        """Begin an active segment at the log's end or later offset. The former segment and its
        producer snapshot are durable on return.

        Returns:
            Its base offset.
        """
        self._check_open()
        now_ms = self._clock.now_ms()
        old = self._local.roll(wanted_offset, now_ms)
        base_offset = self._local.active.base_offset
        self._snapshots.map_end = base_offset
        self._snapshots.take(self._producers.producers.values())
        self._local.flush(base_offset, recovery_point=base_offset, now_ms=now_ms)
        old.close()
        return base_offset

    def flush(self) -> None:
        """Sync all appends and move the recovery point to the log's end."""
        self._check_open()
        end = self.log_end_offset
        self._local.flush(end, recovery_point=end, now_ms=self._clock.now_ms())

    # Boundaries.

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to the log, and return it."""
        self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
        self._producers.transactions.advance_high_watermark(self._high_watermark)
        return self._high_watermark

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset as DeleteRecords; return whether it changed. Segments below
        it stay: retention removes them."""
        self._check_open()
        if offset > self._high_watermark:
            raise OffsetOutOfRangeError(
                self.partition, offset, self._log_start_offset, self._high_watermark + 1
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._local.recovery_point = max(self._local.recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._producers.transactions.advance_high_watermark(offset)
        self._snapshots.raise_log_start(offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin at an offset: segments, producers, epochs."""
        self._check_open()
        now_ms = self._clock.now_ms()
        self._local.truncate_fully_and_start_at(offset, now_ms)
        self._epochs.clear()
        self._producers.clear()
        self._snapshots.start_over(offset)
        self._log_start_offset = offset
        self._high_watermark = offset

    # The end.

    def close(self) -> None:
        """Close the log cleanly: indexes complete, everything durable, producers written down."""
        self._check_open()
        self._local.active.become_inactive()
        end = self.log_end_offset
        self._local.flush(end + 1, recovery_point=end, now_ms=self._clock.now_ms())
        self._snapshots.take(self._producers.producers.values())
        self.abandon()

    def abandon(self) -> None:
        """Release the files as after a crash: the log needs recovery then."""
        if not self._is_closed:
            self._is_closed = True
            self._local.active.close()
