"""A partition that Kafka holds open: append to it, roll it, ask it, close it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jpype

from tests.oracle.jvm import java, kafka_failures
from tests.oracle.records import NewBatch, end_transaction_marker, leader_change

LOG: str = "org.apache.kafka.storage.internals.log."
NO_TRANSACTION_VERSION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """What Kafka says of an open partition; names and meaning as in its UnifiedLog.

    segments: (base offset, bytes) in order. producers: id to last sequence. epochs: (epoch, start
    offset) in order.
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    recovery_point: int
    first_unstable_offset: int | None
    latest_epoch: int | None
    segments: tuple[tuple[int, int], ...]
    producers: Mapping[int, int]
    epochs: tuple[tuple[int, int], ...]


class OpenPartition:
    """Kafka's UnifiedLog of one directory.

    As a context manager it closes as a clean shutdown does, or, after an exception, without
    writing anything more.
    """

    def __init__(self, log: Any) -> None:
        self.log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            self.close()
        else:
            self.abandon()

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        return Path(str(self.log.dir().getAbsolutePath()))

    @property
    def log_end_offset(self) -> int:
        """The next offset to be appended."""
        return int(self.log.logEndOffset())

    def append_as_leader(
        self, batch: NewBatch, *, leader_epoch: int = 0, origin: str = "CLIENT"
    ) -> tuple[int, int]:
        """Append a batch as a leader does: Kafka assigns the offsets, gaps are ignored.

        A client's batch is refused by a compacted topic if a record has no key; origin
        COORDINATOR and followers' appends are not.

        Returns:
            Its first and last offset; of the earlier batch, if Kafka took it for a duplicate.
        """
        records = batch.memory_records(base_offset=0, leader_epoch=leader_epoch)
        return self._append_as_leader(records, leader_epoch, origin, NO_TRANSACTION_VERSION)

    def append_as_follower(
        self, batch: NewBatch, *, base_offset: int | None = None, leader_epoch: int = 0
    ) -> tuple[int, int]:
        """Append a batch as replication does: with the offsets that it has.

        Args:
            base_offset: At or above the log end offset, which is the default.

        Returns:
            Its first and last offset.
        """
        base = self.log_end_offset if base_offset is None else base_offset
        records = batch.memory_records(base_offset=base, leader_epoch=leader_epoch)
        return self.append_bytes_as_follower(records, leader_epoch=leader_epoch)

    def append_bytes_as_follower(self, records: Any, *, leader_epoch: int) -> tuple[int, int]:
        """Append MemoryRecords that exist already, offsets included."""
        with kafka_failures():
            return _offsets(self.log.appendAsFollower(records, leader_epoch))

    def end_transaction(
        self,
        *,
        producer_id: int,
        epoch: int,
        commit: bool,
        timestamp: int,
        coordinator_epoch: int = 0,
        leader_epoch: int = 0,
        transaction_version: int = 1,
    ) -> tuple[int, int]:
        """Append a commit or abort marker, as the transaction coordinator has it written.

        Args:
            epoch: Its epoch; with transaction version 2 one more than its last batch had.
            commit: False to abort.
            timestamp: Of the marker, epoch milliseconds.
            coordinator_epoch: Never smaller than in an earlier marker of this producer.
            transaction_version: 2 has Kafka check that the epoch was bumped.

        Returns:
            Its offset, twice.
        """
        records = end_transaction_marker(
            producer_id=producer_id,
            epoch=epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
        )
        return self._append_as_leader(records, leader_epoch, "COORDINATOR", transaction_version)

    def change_leader(self, *, timestamp: int, leader_epoch: int) -> tuple[int, int]:
        """Append the control batch that a KRaft leader starts its epoch with."""
        records = leader_change(
            base_offset=self.log_end_offset, timestamp=timestamp, leader_epoch=leader_epoch
        )
        return self.append_bytes_as_follower(records, leader_epoch=leader_epoch)

    def roll(self, base_offset: int = 0) -> None:
        """Start a new active segment at the log end, or at base_offset if that is beyond."""
        with kafka_failures():
            expected = java("java.lang.Long").valueOf(base_offset)
            self.log.roll(java("java.util.Optional").of(expected))

    def set_high_watermark(self, offset: int | None = None) -> None:
        """Set the high watermark; default: the log end offset."""
        with kafka_failures():
            self.log.updateHighWatermark(
                jpype.JLong(self.log_end_offset if offset is None else offset)
            )

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start offset, as DeleteRecords does; at most to the high watermark."""
        with kafka_failures():
            reason = java(LOG + "LogStartOffsetIncrementReason").ClientRecordDeletion
            self.log.maybeIncrementLogStartOffset(jpype.JLong(offset), reason)

    def delete_old_segments(self) -> int:
        """Run one pass of retention and return how many segments it deleted."""
        with kafka_failures():
            return int(self.log.deleteOldSegments())

    def flush(self) -> None:
        """Sync everything, the active segment included."""
        with kafka_failures():
            self.log.flush(True)

    def answer(self) -> PartitionAnswer:
        """Ask Kafka where the partition stands."""
        with kafka_failures():
            log = self.log
            unstable, epoch = log.firstUnstableOffset(), log.latestEpoch()
            producers = log.activeProducersWithLastSequence()
            return PartitionAnswer(
                log_start_offset=int(log.logStartOffset()),
                log_end_offset=int(log.logEndOffset()),
                high_watermark=int(log.highWatermark()),
                last_stable_offset=int(log.lastStableOffset()),
                recovery_point=int(log.recoveryPoint()),
                first_unstable_offset=int(unstable.get()) if unstable.isPresent() else None,
                latest_epoch=int(epoch.get()) if epoch.isPresent() else None,
                segments=tuple((int(s.baseOffset()), int(s.size())) for s in log.logSegments()),
                producers={int(key): int(producers.get(key)) for key in producers.keySet()},
                epochs=tuple(
                    (int(e.epoch()), int(e.startOffset()))
                    for e in log.leaderEpochCache().epochEntries()
                ),
            )

    def close(self) -> None:
        """Close as Kafka's LogManager does at a clean shutdown."""
        with kafka_failures():
            self.log.prepareActiveSegmentForClose()
            self.log.flush(True)
            self.log.close()
            self.log.removeLogMetrics()

    def abandon(self) -> None:
        """Let go of the files without a snapshot or anything else that a shutdown writes."""
        with kafka_failures():
            self.log.closeQuietly()
            self.log.removeLogMetrics()

    def _append_as_leader(
        self, records: Any, leader_epoch: int, origin: str, transaction_version: int
    ) -> tuple[int, int]:
        with kafka_failures():
            return _offsets(
                self.log.appendAsLeader(
                    records,
                    leader_epoch,
                    java(LOG + "AppendOrigin").valueOf(origin),
                    java("org.apache.kafka.server.common.RequestLocal").noCaching(),
                    java(LOG + "VerificationGuard").SENTINEL,
                    jpype.JShort(transaction_version),
                )
            )


def _offsets(info: Any) -> tuple[int, int]:
    return int(info.firstOffset()), int(info.lastOffset())
