"""A log that is held open: where it stands, its segments rolled, flushed and closed."""

from types import TracebackType
from typing import Self

from storage_core.checkpoint.leader_epoch_file import EpochEntry
from storage_core.clock import Clock
from storage_core.config import LogConfig
from storage_core.errors import (
    InvalidAppendError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
)
from storage_core.log.append_opening import OpenedLog
from storage_core.log.batch_lookup import find_batch_base_offset
from storage_core.log.producer_append import ProducerStateEntry


class OpenLog:
    """Everything of a UnifiedLog but its appends.

    Args:
        partition: Its name, for messages.
        opened: Its parts.
        config: The topic's configuration.
        clock: Where the time comes from.
    """

    def __init__(
        self, partition: str, opened: OpenedLog, *, config: LogConfig, clock: Clock
    ) -> None:
        self.partition = partition
        self.config = config
        self._clock = clock
        self._store = opened.store
        self._local = opened.local
        self._epochs = opened.epochs
        self._producers = opened.producers
        self._snapshots = opened.snapshots
        self._loaded_txns = opened.loaded_txns
        self._log_start_offset = opened.log_start_offset
        self._high_watermark = opened.log_start_offset
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, StorageError):
            self.abandon()
        elif not self._is_closed:
            self.close()

    # Where the log stands.

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
        """First offset that is not known to be on all in-sync replicas; the log start at first."""
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
    def producers(self) -> dict[int, ProducerStateEntry]:
        """The producers that are alive, by id."""
        return dict(self._producers.producers)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open or not replicated, None without one."""
        first = self._producers.first_unstable_offset
        if first is None:
            return None
        if first >= self._log_start_offset and first not in self._loaded_txns:
            return first
        # Kafka looks for the batch then, which may begin elsewhere.
        bases = [base for base, _ in self.segments]
        found = find_batch_base_offset(self._store, bases, max(first, self._log_start_offset))
        return self.log_end_offset if found is None else found

    @property
    def last_stable_offset(self) -> int:
        """First offset that a committed read does not reach."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(self.partition)

    def roll(self, wanted_offset: int = 0) -> int:
        """Begin a new active segment at the log's end, or at the wanted offset if that is beyond.

        The segment before it and its producer snapshot are durable when this returns.

        Returns:
            Its base offset.

        Raises:
            RollError: A segment with records stands there.
        """
        self._check_open()
        now_ms = self._clock.now_ms()
        old = self._local.roll(wanted_offset, now_ms)
        base_offset = self._local.active.base_offset
        self._snapshots.map_end = base_offset
        self._snapshots.take(self._producers.snapshot())
        self._local.flush(base_offset, recovery_point=base_offset, now_ms=now_ms)
        old.close()
        return base_offset

    def flush(self) -> None:
        """Make durable all that was appended, and move the recovery point to the log's end."""
        self._check_open()
        end = self.log_end_offset
        self._local.flush(end, recovery_point=end, now_ms=self._clock.now_ms())

    # Boundaries.

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to the log; return what it is then."""
        self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
        self._producers.forget_completed_below(self._high_watermark)
        return self._high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark; return whether that changed it.

        Raises:
            InvalidAppendError: It would exceed the log end offset.
        """
        if offset > self.log_end_offset:
            raise InvalidAppendError(
                self.partition,
                f"high watermark {offset} exceeds the log end offset {self.log_end_offset}",
            )
        if offset <= self._high_watermark:
            return False
        self.update_high_watermark(offset)
        return True

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset, as DeleteRecords does; return whether that changed it.

        Segments below it stay: retention removes them.

        Raises:
            OffsetOutOfRangeError: It would exceed the high watermark.
        """
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
        self._producers.forget_completed_below(offset)
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
        """Close the log cleanly: indexes complete, everything durable, producers written down.

        Raises:
            LogClosedError: It was closed before.
        """
        self._check_open()
        self._local.active.become_inactive()
        end = self.log_end_offset
        self._local.flush(end + 1, recovery_point=end, now_ms=self._clock.now_ms())
        self._snapshots.take(self._producers.snapshot())
        self.abandon()

    def abandon(self) -> None:
        """Release the files as they are, as after a crash: the log has to be recovered then."""
        if not self._is_closed:
            self._is_closed = True
            self._local.active.close()
