"""A partition's log, open for appends: Kafka's UnifiedLog over a local directory.

::

    with UnifiedLog.open(directory, config=config) as log:
        log.append_columns(NewRecords.from_arrow(table))

After the same appends with the same configuration and clock the files have the bytes that Kafka's
have (compressed batches: the same headers and records). Who appends is alone in the directory: a
broker that may be running is kept out by ``checkpoint.lock``, not here. What a broker does in the
background, flushing a rolled segment and unlinking a replaced one, is done before a call returns.
"""

import random
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.leader_epoch_file import EpochEntry, encode_leader_epochs
from storage_core.clock import Clock, SystemClock
from storage_core.config import CleanerConfig, LogConfig
from storage_core.config.log_config import BrokerCompressionType, MessageTimestampType
from storage_core.errors import (
    InvalidAppendError,
    InvalidTimestampError,
    LogClosedError,
    OffsetOutOfRangeError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    kind_of,
    log_file,
    parse_partition_directory,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import (
    MAGIC_V2,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)
from storage_core.index.transaction_index import AbortedTxn
from storage_core.log.append_analysis import AnalyzedAppend, AppendSettings, analyze_append
from storage_core.log.append_files import AppendFiles, LocalAppendFiles
from storage_core.log.append_producers import ProducerChanges, analyze_producers, data_batch
from storage_core.log.directory_view import DirectoryView
from storage_core.log.end_offset import find_batch, read_offset_index
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.local_log import LocalLog, plan_first_segment
from storage_core.log.log_loader import load_log
from storage_core.log.log_validator import ValidatorSettings, validate_and_assign_offsets
from storage_core.log.producer_append import (
    UNKNOWN_TRANSACTION_VERSION,
    ActiveProducers,
    AppendOrigin,
    ProducerStateEntry,
)
from storage_core.log.producer_snapshot import encode_producer_snapshot
from storage_core.log.roll import RollParams, choose_roll_offset, should_roll
from storage_core.plan import DeleteFile, Plan, WriteFile, commit
from storage_core.records.batch_builder import BatchSettings, build_batches
from storage_core.records.batch_table import BatchTable
from storage_core.records.control_batches import end_txn_marker
from storage_core.records.new_records import NewRecords
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store.local import LocalStore

class UnifiedLog:
    """A log that takes appends; made by `open`."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a log is made of; open() is for everybody
        self,
        partition: str,
        store: LocalStore,
        local: LocalLog,
        config: LogConfig,
        clock: Clock,
        epochs: LeaderEpochCache,
        producers: ActiveProducers,
        snapshots: _Snapshots,
        log_start_offset: int,
    ) -> None:
        self.partition = partition
        self.config = config
        self._store = store
        self._local = local
        self._clock = clock
        self._epochs = epochs
        self._producers = producers
        self._snapshots = snapshots
        self._log_start_offset = log_start_offset
        self._high_watermark = log_start_offset
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
        recovery_point: int | None = None,
        files: AppendFiles | None = None,
        dice: random.Random | None = None,
    ) -> Self:
        """Open the log of a directory that was closed cleanly, or begin one.

        Args:
            directory: ``<topic>-<partition>``; created if it is not there.
            config: The topic's configuration; Kafka's defaults without one.
            clock: Where the time comes from; the machine's clock without one.
            cleaner: For the expiry of producers.
            log_start_offset: The partition's entry in the log-start checkpoint.
            recovery_point: The partition's entry in the recovery-point checkpoint, of a new log;
                one that was closed cleanly is durable whole.
            files: What writes segment files.
            dice: For the jitter of segments.

        Raises:
            InvalidNameError: The directory's name is no partition's.
            RecoveryRequiredError: The log was not closed cleanly: recover it first.
            PylogError: It cannot be loaded; see load_log.
        """
        partition = str(parse_partition_directory(directory.name))
        config = LogConfig() if config is None else config
        clock = SystemClock() if clock is None else clock
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(str(directory), error.strerror or str(error)) from error
        store = LocalStore(directory)
        is_new = not any(kind_of(file.name) == LOG_SUFFIX for file in store.list_files())
        if is_new:
            commit(plan_first_segment(store.location, log_start_offset), store)
        now_ms = clock.now_ms()
        loaded = load_log(
            store,
            config=config,
            cleaner=CleanerConfig() if cleaner is None else cleaner,
            now_ms=now_ms,
            log_start_checkpoint=log_start_offset,
            high_watermark=0,
        )
        commit(Plan(location=store.location, operations=loaded.operations), store)
        producers = ActiveProducers(loaded.producers)
        local = LocalLog(
            partition,
            store,
            LocalAppendFiles(store) if files is None else files,
            config,
            loaded,
            first_batch_timestamp=_first_batch_timestamp(store, loaded.active_segment.base_offset),
            recovery_point=(
                min(recovery_point or 0, loaded.log_end_offset)
                if is_new
                else loaded.log_end_offset
            ),
            now_ms=now_ms,
            dice=random.SystemRandom() if dice is None else dice,
        )
        snapshots = _Snapshots(
            offsets=set(loaded.snapshot_offsets),
            map_end=loaded.log_end_offset,
            last=max(loaded.snapshot_offsets, default=loaded.log_start_offset),
            loaded_txns=frozenset(
                entry.current_txn_first_offset
                for entry in loaded.producers
                if entry.current_txn_first_offset >= 0
            ),
        )
        epochs = LeaderEpochCache(loaded.epochs)
        return cls(
            partition,
            store,
            local,
            config,
            clock,
            epochs,
            producers,
            snapshots,
            loaded.log_start_offset,
        )

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
        if first < self._log_start_offset or first in self._snapshots.loaded_txns:
            return self._batch_base_offset(max(first, self._log_start_offset))
        return first

    @property
    def last_stable_offset(self) -> int:
        """First offset that a committed read does not reach."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    # Appends.

    def append_as_leader(
        self,
        data: bytes | bytearray | memoryview | NDArray[np.uint8],
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
        to_magic: int = MAGIC_V2,
    ) -> LogAppendInfo:
        """Append a batch as a leader does: checked, with offsets and epoch of this log.

        Args:
            data: One v2 or compressed batch, or any number of uncompressed legacy messages; what
                follows the last whole batch is left out. It is not changed.
            leader_epoch: The leader's epoch.
            origin: Who sends it. A Raft leader's batches keep their offsets.
            transaction_version: Of a marker: 0 to 2.
            to_magic: Message format to store; Kafka 4 stores v2.

        Raises:
            PylogError: What Kafka refuses, by the name that Kafka gives it: CorruptRecordError,
                InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
                RecordBatchTooLargeError, OutOfOrderSequenceError, InvalidProducerEpochError,
                ProducerTxnStateError, TransactionCoordinatorFencedError and others. No batch has
                been written then, but a segment may have been rolled and an epoch noted.
            LogClosedError: The log was closed.
        """
        return self._append(
            data,
            leader_epoch=leader_epoch,
            origin=origin,
            assigns_offsets=origin is not AppendOrigin.RAFT_LEADER,
            transaction_version=transaction_version,
            to_magic=to_magic,
        )

    def append_as_follower(
        self, data: bytes | bytearray | memoryview | NDArray[np.uint8], *, leader_epoch: int
    ) -> LogAppendInfo:
        """Append batches as a follower does: as they are, with the offsets that they have.

        Args:
            data: Whole batches, at most a segment's size; what follows them is left out. The first
                batch of a later epoch is left out too, with all behind it.
            leader_epoch: The epoch in which they were fetched.

        Raises:
            UnexpectedAppendOffsetError: They begin below the log end offset.
            OffsetsOutOfOrderError: Their offsets do not rise.
            PylogError: As for append_as_leader.
        """
        return self._append(
            data,
            leader_epoch=leader_epoch,
            origin=AppendOrigin.REPLICATION,
            assigns_offsets=False,
            transaction_version=UNKNOWN_TRANSACTION_VERSION,
            to_magic=MAGIC_V2,
        )

    def append_records_to_follower(
        self, data: bytes | bytearray | memoryview | NDArray[np.uint8], *, leader_epoch: int
    ) -> LogAppendInfo:
        """Append as a follower; an empty log that the first batch straddles starts over there.

        The log start offset may lie inside of a batch, after records were deleted: a follower that
        begins there gets the whole batch.
        """
        try:
            return self.append_as_follower(data, leader_epoch=leader_epoch)
        except UnexpectedAppendOffsetError as error:
            is_empty = self.log_end_offset == self._log_start_offset
            if not (is_empty and error.first < self.log_end_offset <= error.last):
                raise
            self.truncate_fully_and_start_at(error.first)
            return self.append_as_follower(data, leader_epoch=leader_epoch)

    def end_transaction(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        is_abort: bool,
        leader_epoch: int,
        timestamp: int | None = None,
        coordinator_epoch: int = 0,
        transaction_version: int = 1,
    ) -> LogAppendInfo:
        """Append a commit or abort marker, as the transaction coordinator has it written.

        Args:
            producer_id: Whose transaction ends.
            producer_epoch: Its epoch; with transaction version 2 one more than its last batch had.
            is_abort: Whether it aborts; else it commits.
            leader_epoch: The leader's epoch.
            timestamp: Of the marker; None for now.
            coordinator_epoch: Of the coordinator.
            transaction_version: 0 to 2.

        Raises:
            PylogError: As for append_as_leader.
        """
        marker = end_txn_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_abort=is_abort,
            timestamp=self._clock.now_ms() if timestamp is None else timestamp,
            coordinator_epoch=coordinator_epoch,
        )
        return self.append_as_leader(
            marker,
            leader_epoch=leader_epoch,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )

    def append_columns(
        self,
        records: NewRecords,
        *,
        leader_epoch: int = 0,
        codec: Codec = Codec.NONE,
        batch_bytes: int | None = None,
        batch_records: int = 2**31 - 1,
        producer: ProducerSettings | None = None,
    ) -> LogAppendInfo:
        """Append columns of records, as if a producer had sent them batch by batch.

        Keys and timestamps are checked before anything is written. Batches that were written
        before a later one is refused stay.

        Args:
            records: The records.
            leader_epoch: The leader's epoch.
            codec: What the producer compresses with; the topic's own codec comes first.
            batch_bytes: Size of a batch before compression; None for max.message.bytes.
            batch_records: Records of a batch.
            producer: Who writes, None for a producer without an id.

        Raises:
            InvalidColumnError: The columns contradict themselves.
            RecordValidationError: A record of a compacted topic has no key.
            InvalidTimestampError: A timestamp is out of range.
            RecordTooLargeError: A batch exceeds max.message.bytes.
            RecordBatchTooLargeError: A batch exceeds a segment.
            OutOfOrderSequenceError: The base sequence is not the next one.
            InvalidProducerEpochError: The producer was fenced.
            ProducerTxnStateError: A transaction is open, and the records are not of it.
        """
        self._check_open()
        now_ms = self._clock.now_ms()
        self._check_columns(records, now_ms)
        first_offset = self.log_end_offset
        limit = min(self.config.max_message_bytes, self.config.segment_bytes)
        settings = self._batch_settings(codec, leader_epoch, now_ms, producer)
        settings = replace(
            settings,
            max_batch_bytes=limit if batch_bytes is None else batch_bytes,
            max_batch_records=batch_records,
        )
        max_timestamp, size = NO_TIMESTAMP, 0
        for block in build_batches(records, settings):
            self._append_block(block.data, block.batches, now_ms)
            max_timestamp = max(max_timestamp, int(block.batches.max_timestamp.max()))
            size += block.data.size
        return LogAppendInfo(
            first_offset=first_offset if len(records) else -1,
            last_offset=self.log_end_offset - 1 if len(records) else -1,
            max_timestamp=max_timestamp,
            append_time_ms=settings.fixed_timestamp,
            valid_bytes=size,
        )

    def _append(
        self,
        data: bytes | bytearray | memoryview | NDArray[np.uint8],
        *,
        leader_epoch: int,
        origin: AppendOrigin,
        assigns_offsets: bool,
        transaction_version: int,
        to_magic: int,
    ) -> LogAppendInfo:
        is_replication = origin is AppendOrigin.REPLICATION
        own = np.frombuffer(bytearray(memoryview(data)), np.uint8)
        found = analyze_append(
            own,
            AppendSettings(
                partition=self.partition,
                origin=origin,
                leader_epoch=leader_epoch,
                max_message_bytes=None if is_replication else self.config.max_message_bytes,
                keeps_offsets=not assigns_offsets,
            ),
        )
        if not found.valid_bytes:
            return LogAppendInfo(
                first_offset=-1,
                last_offset=-1,
                max_timestamp=NO_TIMESTAMP,
                append_time_ms=NO_TIMESTAMP,
                valid_bytes=0,
            )
        self._check_open()
        now_ms = self._clock.now_ms()
        own, batches = own[: found.valid_bytes], found.batches
        first_offset, last_offset = found.first_offset, found.last_offset
        max_timestamp, append_time_ms = found.max_timestamp, NO_TIMESTAMP
        if assigns_offsets:
            first_offset = self.log_end_offset
            valid = validate_and_assign_offsets(
                own,
                batches,
                source_codec=found.source_codec,
                first_offset=first_offset,
                settings=self._validator_settings(
                    found.source_codec, leader_epoch, origin, to_magic, now_ms
                ),
            )
            own, batches, max_timestamp = valid.data, valid.batches, valid.max_timestamp
            last_offset = valid.next_offset - 1
            if self._is_append_time:
                append_time_ms = now_ms
            if valid.is_rebuilt:
                self._check_sizes(batches)
        else:
            self._check_offsets(found)
        self._note_epochs(batches)
        if own.size > self.config.segment_bytes:
            raise RecordBatchTooLargeError(self.partition, own.size, self.config.segment_bytes)
        self._maybe_roll(own.size, first_offset, last_offset, max_timestamp, now_ms)
        changes = analyze_producers(
            self.partition, self._producers, batches, origin, transaction_version
        )
        if changes.duplicate is not None:
            return LogAppendInfo(
                first_offset=changes.duplicate.first_offset,
                last_offset=changes.duplicate.last_offset,
                max_timestamp=max_timestamp,
                append_time_ms=changes.duplicate.timestamp,
                valid_bytes=found.valid_bytes,
                is_duplicate=True,
            )
        self._local.active.append(own, batches)
        self._finish_append(changes, last_offset, now_ms)
        return LogAppendInfo(
            first_offset=first_offset,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            append_time_ms=append_time_ms,
            valid_bytes=found.valid_bytes,
        )

    def _append_block(
        self, data: NDArray[np.uint8], batches: BatchTable, now_ms: int
    ) -> None:
        """Append batches of our own making, each as if it were alone."""
        self._check_sizes(batches)
        largest = int(batches.size.max())
        if largest > self.config.segment_bytes:
            raise RecordBatchTooLargeError(self.partition, largest, self.config.segment_bytes)
        has_producer = bool(batches.has_producer_id[0])
        if has_producer:
            # Only the first can contradict the producer's state: the others follow it.
            analyze_producers(
                self.partition,
                self._producers,
                batches.rows(0, 1),
                AppendOrigin.CLIENT,
                UNKNOWN_TRANSACTION_VERSION,
            )
        self._note_epochs(batches.rows(0, 1))
        row, was_rolled = 0, False
        while row < len(batches):
            rest = batches.rows(row, len(batches))
            count = self._local.active.append_each(
                data,
                rest,
                now_ms=now_ms,
                max_segment_ms=self.config.max_segment_ms,
                was_rolled=was_rolled,
            )
            if count:
                written = rest.rows(0, count)
                changes = self._play(written) if has_producer else ProducerChanges()
                self._finish_append(changes, int(written.last_offset[-1]), now_ms)
            row += count
            was_rolled = row < len(batches)
            if was_rolled:
                self.roll(int(batches.base_offset[row]))

    def _play(self, batches: BatchTable) -> ProducerChanges:
        changes = ProducerChanges()
        producer_id = int(batches.producer_id[0])
        info = self._producers.prepare(self.partition, producer_id, AppendOrigin.CLIENT)
        for row in range(len(batches)):
            info.append_data(data_batch(batches, row))
        changes.infos[producer_id] = info
        return changes

    def _finish_append(self, changes: ProducerChanges, last_offset: int, now_ms: int) -> None:
        self._local.advance(last_offset + 1)
        for info in changes.infos.values():
            self._producers.update(info)
        for completed in changes.completed:
            if completed.is_aborted:
                self._local.active.add_aborted(
                    AbortedTxn(
                        producer_id=completed.producer_id,
                        first_offset=completed.first_offset,
                        last_offset=completed.last_offset,
                        last_stable_offset=self._producers.last_stable_offset_after(completed),
                    )
                )
            self._producers.complete(completed)
        self._snapshots.map_end = last_offset + 1
        unflushed = self.log_end_offset - self.recovery_point
        waited_ms = now_ms - self._local.last_flush_ms
        if unflushed >= self.config.flush_messages or waited_ms >= self.config.flush_ms:
            self.flush()

    # Checks.

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(self.partition)

    def _check_offsets(self, found: AnalyzedAppend) -> None:
        first = found.first_or_last_offset_of_first_batch
        if first < self.log_end_offset:
            raise UnexpectedAppendOffsetError(
                self.partition, first, found.last_offset, self.log_end_offset
            )

    # Epochs, rolls, flushes.

    def _maybe_roll(
        self,
        size: int,
        first_offset: int | None,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        params = RollParams(
            max_segment_ms=self.config.max_segment_ms,
            max_segment_bytes=self.config.segment_bytes,
            max_timestamp=max_timestamp,
            last_offset=last_offset,
            append_bytes=size,
            now_ms=now_ms,
        )
        if should_roll(self._local.active.age, params):
            self.roll(choose_roll_offset(first_offset=first_offset, last_offset=last_offset))

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
        self._take_snapshot()
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
        if self._epochs.truncate_from_start(offset):
            self._write_epochs()
        self._producers.forget_completed_below(offset)
        snapshots = self._snapshots
        snapshots.map_end = max(snapshots.map_end, offset)
        snapshots.last = max(snapshots.offsets, default=offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin at an offset: segments, producers, epochs."""
        self._check_open()
        now_ms = self._clock.now_ms()
        self._local.truncate_fully_and_start_at(offset, now_ms)
        self._epochs = LeaderEpochCache()
        self._write_epochs()
        self._producers.clear()
        commit(
            Plan(
                location=self._store.location,
                operations=tuple(
                    DeleteFile(name=snapshot_file(known), reason=f"the log starts at {offset}")
                    for known in sorted(self._snapshots.offsets)
                ),
            ),
            self._store,
        )
        self._snapshots = _Snapshots(offsets=set(), map_end=offset, last=offset)
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
        self._take_snapshot()
        self.abandon()

    def abandon(self) -> None:
        """Release the files as they are, as after a crash: the log has to be recovered then."""
        if not self._is_closed:
            self._is_closed = True
            self._local.active.close()
