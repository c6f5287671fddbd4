"""A partition's log, open for appends: Kafka's UnifiedLog over a local directory.

::

    with UnifiedLog.open(directory, config=config) as log:
        log.append_columns(NewRecords.from_arrow(table))

After the same appends with the same configuration and clock the files have the bytes that Kafka's
have (compressed batches: the same headers and records). Who appends is alone in the directory: a
broker that may be running is kept out by ``checkpoint.lock``, not here. What a broker does in the
background, flushing a rolled segment and unlinking a replaced one, is done before a call returns.
"""

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    InvalidAppendError,
    UnexpectedAppendOffsetError,
)
from storage_core.formats.batch_v2 import MAGIC_V2, MAX_BATCH_BYTES, NO_TIMESTAMP, Codec
from storage_core.kernels.append_stamp import stamp_batches
from storage_core.log.append.open_log import OpenLog
from storage_core.log.append.segment import RollParams, choose_roll_offset, should_roll
from storage_core.log.append.validator import (
    KEEPING_OFFSETS,
    AnalyzedAppend,
    LogAppendInfo,
    ProducerSettings,
    ValidatedBatches,
    ValidatorSettings,
    analyze_append,
    batch_settings,
    check_append_size,
    check_columns,
    check_sizes,
    is_append_time,
    validate_and_assign_offsets,
)
from storage_core.log.batch_search import first_offset_of
from storage_core.log.producer_state import (
    UNKNOWN_TRANSACTION_VERSION,
    AppendOrigin,
    ProducerChanges,
    batch_events,
    iterate_events,
)
from storage_core.records.batch_builder import build_batches, end_txn_marker
from storage_core.records.batch_table import BatchTable
from storage_core.records.new_records import NewRecords
from storage_core.records.payload import Limits
from storage_core.records.reader import Window

Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]
_NO_LIMIT = 2**31 - 1
_LIMITS = Limits(max_record_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES)
_NOTHING = LogAppendInfo(
    first_offset=-1,
    last_offset=-1,
    max_timestamp=NO_TIMESTAMP,
    append_time_ms=NO_TIMESTAMP,
    valid_bytes=0,
)


class UnifiedLog(OpenLog):
    """A log that takes appends; made by `open`."""

    def append_as_leader(
        self,
        data: Bytes,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
        to_magic: int = MAGIC_V2,
    ) -> LogAppendInfo:
        """Append a batch as a leader: checked, with offsets and epoch.

        Args:
            data: One v2 or compressed batch, or any number of uncompressed legacy messages; what
                follows the last whole batch is left out. It is not changed.
            origin: The origin of the append. A Raft leader's batches keep their offsets.
            transaction_version: Version of a marker's transaction: 0 to 2.
            to_magic: Message format to store; Kafka 4 stores v2.
        """
        return self._append(
            data,
            leader_epoch=leader_epoch,
            origin=origin,
            transaction_version=transaction_version,
            to_magic=to_magic,
        )

    def append_as_follower(self, data: Bytes, *, leader_epoch: int) -> LogAppendInfo:
        """Append batches as a follower: unchanged, with their own offsets.

        Args:
            data: Whole batches, at most a segment's size; what follows them is left out. The first
                batch of a later epoch is left out too, with all behind it.
        """
        return self._append(data, leader_epoch=leader_epoch, origin=AppendOrigin.REPLICATION)

    def append_records_to_follower(self, data: Bytes, *, leader_epoch: int) -> LogAppendInfo:
        """Append as a follower; restart an empty log at the first batch. A log restarts where the
        batch straddles the log's start.

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
        """Append a commit or abort marker for the transaction coordinator.

        Args:
            producer_epoch: Its epoch; with transaction version 2 one more than its last batch had.
            is_abort: Whether it aborts; else it commits.
            timestamp: Timestamp of the marker; None for now.
            transaction_version: 0 to 2.
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
        batch_records: int = _NO_LIMIT,
        producer: ProducerSettings | None = None,
    ) -> LogAppendInfo:
        """Append columns of records as a producer's batches.

        Keys and timestamps are checked before anything is written. If a later batch is refused,
        those before it stay.

        Args:
            codec: The producer's codec; the topic's own codec comes first.
            batch_bytes: Size of a batch before compression; None for max.message.bytes.
            producer: The producer, None for one without an id.
        """
        self._check_open()
        now_ms = self._clock.now_ms()
        check_columns(self.partition, self.config, records, now_ms)
        first_offset = self.log_end_offset
        settings = batch_settings(
            self.config,
            source=codec,
            base_offset=first_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            producer=producer,
            next_sequence=self._next_sequence(producer),
        )
        settings = settings.limited(max_bytes=batch_bytes, max_records=batch_records)
        info = _NOTHING
        for block in build_batches(records, settings):
            self._append_block(block.data, block.batches, now_ms)
            info = LogAppendInfo(
                first_offset=first_offset,
                last_offset=self.log_end_offset - 1,
                max_timestamp=max(info.max_timestamp, int(block.batches.max_timestamp.max())),
                append_time_ms=settings.fixed_timestamp,
                valid_bytes=info.valid_bytes + block.data.size,
            )
        return info

    def append_batches(self, data: NDArray[np.uint8], *, leader_epoch: int = 0) -> LogAppendInfo:
        """Append batches built elsewhere for this topic, one append each.

        They get the next offsets of this log: with ``build_batches`` before, what is written is
        what append_columns writes. Nothing is compressed or checked anew but sizes and checksums.

        Args:
            data: uint8[], whole v2 batches without producers, their offsets rising by one from
                record to record, whatever they begin at. Offsets and epoch are written into it.
        """
        self._check_open()
        incoming = analyze_append(
            data,
            partition=self.partition,
            origin=AppendOrigin.REPLICATION,
            leader_epoch=leader_epoch,
            max_message_bytes=self.config.max_message_bytes,
        )
        batches = incoming.batches
        if incoming.valid_bytes != data.size or not data.size:
            raise InvalidAppendError(
                self.partition,
                f"expected whole batches in {data.size} bytes, found {incoming.valid_bytes}",
            )
        has_append_time = is_append_time(self.config)
        is_other = batches.is_legacy | batches.has_producer_id
        is_other |= batches.is_log_append_time != has_append_time
        is_other[1:] |= batches.base_offset[1:] != batches.last_offset[:-1] + 1
        if is_other.any():
            raise InvalidAppendError(
                self.partition,
                "expected v2 batches without producers, of the topic's timestamp type, one offset "
                f"after the other; that at byte {batches.position[is_other][0]} is not such a one",
            )
        now_ms = self._clock.now_ms()
        first_offset = self.log_end_offset
        moved = batches.last_offset + (first_offset - int(batches.base_offset[0]))
        newest = batches.max_timestamp.copy()
        stamp_batches(data, batches.columns, moved, leader_epoch, has_append_time, newest)
        self._append_block(data, batches, now_ms)
        return LogAppendInfo(
            first_offset=first_offset,
            last_offset=self.log_end_offset - 1,
            max_timestamp=incoming.max_timestamp,
            append_time_ms=NO_TIMESTAMP,
            valid_bytes=data.size,
        )

    def _append(
        self,
        data: Bytes,
        *,
        leader_epoch: int,
        origin: AppendOrigin,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
        to_magic: int = MAGIC_V2,
    ) -> LogAppendInfo:
        own = np.frombuffer(bytearray(data), np.uint8)
        keeps_offsets = origin in KEEPING_OFFSETS
        incoming = analyze_append(
            own,
            partition=self.partition,
            origin=origin,
            leader_epoch=leader_epoch,
            max_message_bytes=self.config.max_message_bytes,
        )
        if not incoming.valid_bytes:
            return _NOTHING
        self._check_open()
        now_ms = self._clock.now_ms()
        own = own[: incoming.valid_bytes]
        if keeps_offsets:
            self._check_offsets(own, incoming)
            first_offset = incoming.first_offset
            valid = ValidatedBatches(
                data=own,
                batches=incoming.batches,
                next_offset=incoming.last_offset + 1,
                max_timestamp=incoming.max_timestamp,
                is_rebuilt=False,
            )
        else:
            first_offset = self.log_end_offset
            valid = validate_and_assign_offsets(
                own,
                incoming.batches,
                source_codec=incoming.source_codec,
                first_offset=first_offset,
                settings=ValidatorSettings.of(
                    self.config,
                    partition=self.partition,
                    source=incoming.source_codec,
                    leader_epoch=leader_epoch,
                    origin=origin,
                    to_magic=to_magic,
                    now_ms=now_ms,
                ),
            )
            if valid.is_rebuilt:
                check_sizes(self.partition, self.config, valid.batches)
        info = LogAppendInfo(
            first_offset=first_offset,
            last_offset=valid.next_offset - 1,
            max_timestamp=valid.max_timestamp,
            append_time_ms=(
                now_ms if is_append_time(self.config) and not keeps_offsets else NO_TIMESTAMP
            ),
            valid_bytes=incoming.valid_bytes,
        )
        return self._write(valid, info, origin, transaction_version, now_ms)

    def _write(
        self,
        valid: ValidatedBatches,
        info: LogAppendInfo,
        origin: AppendOrigin,
        transaction_version: int,
        now_ms: int,
    ) -> LogAppendInfo:
        """Write numbered batches, if their producers may have written them."""
        self._epochs.note(valid.batches)
        check_append_size(self.partition, self.config, valid.data.size)
        self._maybe_roll(valid, info.first_offset, now_ms)
        changes = self._play(valid.batches, origin, transaction_version)
        if changes.duplicate is not None:
            return LogAppendInfo(
                first_offset=changes.duplicate.first_offset,
                last_offset=changes.duplicate.last_offset,
                max_timestamp=info.max_timestamp,
                append_time_ms=changes.duplicate.timestamp,
                valid_bytes=info.valid_bytes,
                is_duplicate=True,
            )
        self._local.active.append(valid.data, valid.batches)
        self._finish_append(changes, info.last_offset, now_ms)
        return info

    def _append_block(self, data: NDArray[np.uint8], batches: BatchTable, now_ms: int) -> None:
        """Append batches of our own making, each as if it were alone."""
        check_sizes(self.partition, self.config, batches)
        check_append_size(self.partition, self.config, int(batches.size.max()))
        # Only the first batch can contradict the producer's state: the others follow it.
        if self._play(batches.rows(0, 1), AppendOrigin.CLIENT).duplicate is not None:
            raise InvalidAppendError(
                self.partition, "a batch with these sequences was written before"
            )
        self._epochs.note(batches.rows(0, 1))
        row, was_rolled = 0, False
        while row < len(batches):
            rest = batches.rows(row, len(batches))
            count = self._local.active.append_each(
                data,
                rest,
                now_ms=now_ms,
                was_rolled=was_rolled,
            )
            if count:
                written = rest.rows(0, count)
                changes = self._play(written, AppendOrigin.CLIENT)
                self._finish_append(changes, int(written.last_offset[-1]), now_ms)
            row += count
            was_rolled = row < len(batches)
            if was_rolled:
                self.roll(int(batches.base_offset[row]))

    def _play(
        self,
        batches: BatchTable,
        origin: AppendOrigin,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
    ) -> ProducerChanges:
        events = iterate_events(batch_events(batches))
        return self._producers.play(self.partition, events, origin, transaction_version)

    def _finish_append(self, changes: ProducerChanges, last_offset: int, now_ms: int) -> None:
        self._local.advance(last_offset + 1)
        for aborted in self._producers.take_indexed(changes):
            self._local.active.add_aborted(aborted)
        self._snapshots.map_end = last_offset + 1
        unflushed = self.log_end_offset - self.recovery_point
        waited_ms = now_ms - self._local.last_flush_ms
        if unflushed >= self.config.flush_messages or waited_ms >= self.config.flush_ms:
            self.flush()

    def _check_offsets(self, data: NDArray[np.uint8], incoming: AnalyzedAppend) -> None:
        first = incoming.first_or_last_offset_of_first_batch
        if first < self.log_end_offset:
            raise UnexpectedAppendOffsetError(
                self.partition,
                first_offset_of(Window(self.partition, 0, data, incoming.batches), 0, _LIMITS),
                incoming.last_offset,
                self.log_end_offset,
            )

    def _next_sequence(self, producer: ProducerSettings | None) -> int:
        """Return the sequence that is expected of a producer."""
        entry = None if producer is None else self._producers.producers.get(producer.producer_id)
        if producer is None or entry is None or entry.producer_epoch != producer.producer_epoch:
            return 0
        return entry.next_sequence

    def _maybe_roll(self, valid: ValidatedBatches, first_offset: int | None, now_ms: int) -> None:
        last_offset = valid.next_offset - 1
        params = RollParams(
            max_segment_ms=self.config.max_segment_ms,
            max_segment_bytes=self.config.segment_bytes,
            max_timestamp=valid.max_timestamp,
            last_offset=last_offset,
            append_bytes=valid.data.size,
            now_ms=now_ms,
        )
        if should_roll(self._local.active.age, params):
            self.roll(choose_roll_offset(first_offset=first_offset, last_offset=last_offset))
