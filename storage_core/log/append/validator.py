"""Check batches as a leader does, and assign their offsets.

Batches that may stay as they came are stamped in place; others are opened and built anew: because
the topic asks for another codec, the message format differs, or the offsets inside are not 0, 1, 2.
Everything is decided over arrays; a batch of a million records takes no longer in Python than one
of one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import LogConfig
from storage_core.errors import (
    CorruptRecordError,
    DecompressionError,
    InvalidAppendError,
    InvalidColumnError,
    InvalidRecordError,
    InvalidTimestampError,
    PylogError,
    RecordValidationError,
    UnsupportedForMessageFormatError,
)
from storage_core.formats.batch_v2 import (
    HEADER_BYTES,
    MAGIC_V2,
    MAX_BATCH_BYTES,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)
from storage_core.formats.legacy import MAGIC_V0
from storage_core.kernels import append_check, batch_scan
from storage_core.kernels.append_stamp import stamp_batches
from storage_core.kernels.gather import list_headers
from storage_core.kernels.legacy_scan import locate_value
from storage_core.kernels.record_scan import (
    RECORD_HEADER_COUNT,
    RECORD_HEADER_START,
    RECORD_KEY_START,
    RECORD_VALUE_START,
)
from storage_core.log.append.analysis import target_codec
from storage_core.log.producer_state import AppendOrigin
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import decompress
from storage_core.records.columns import RecordColumns, decode_records
from storage_core.records.new_records import ByteColumn, HeaderColumn, NewRecords
from storage_core.records.payload import Limits
from storage_core.records.reader import Window

_SHOWN_ERRORS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSettings:
    """What the topic and the moment say."""

    partition: str
    now_ms: int  # the broker's clock
    target_codec: Codec
    target_level: int | None  # that codec's level, None for Kafka's default
    is_compacted: bool  # whether a record has to have a key
    to_magic: int  # message format in which batches are stored
    timestamp_type: TimestampType  # the clock of timestamps: producer's or broker's
    timestamp_before_max_ms: int  # how far a record may lie behind the clock
    timestamp_after_max_ms: int  # how far a record may lie ahead of the clock
    leader_epoch: int
    origin: AppendOrigin
    max_record_bytes: int  # largest record of a compressed batch

    @classmethod
    def of(
        cls,
        config: LogConfig,
        *,
        partition: str,
        source: Codec,
        leader_epoch: int,
        origin: AppendOrigin,
        to_magic: int,
        now_ms: int,
    ) -> "ValidatorSettings":
        """Return the rules of a topic for batches of a source codec."""
        codec, level = target_codec(config, source)
        return cls(
            partition=partition,
            now_ms=now_ms,
            target_codec=codec,
            target_level=level,
            is_compacted=config.is_compacted,
            to_magic=to_magic,
            timestamp_type=TimestampType(config.message_timestamp_type.value),
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            leader_epoch=leader_epoch,
            origin=origin,
            max_record_bytes=config.max_decompressed_message_bytes,
        )

    @property
    def is_append_time(self) -> bool:
        """Whether records get the broker's time."""
        return self.timestamp_type is TimestampType.LOG_APPEND_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedBatches:
    """Batches as they are to be written."""

    data: NDArray[np.uint8]  # uint8[], end to end
    batches: BatchTable
    next_offset: int
    max_timestamp: int  # largest timestamp, NO_TIMESTAMP for none
    is_rebuilt: bool  # whether their sizes may differ from those that came


def validate_and_assign_offsets(
    data: NDArray[np.uint8],
    batches: BatchTable,
    *,
    source_codec: Codec,
    first_offset: int,
    settings: ValidatorSettings,
) -> ValidatedBatches:
    """Check batches as a leader; number their records from first_offset on.

    Args:
        data: uint8[], writable and the caller's own: it may be changed and returned.
        batches: Its batches, at least one; changed likewise.
        source_codec: That of the last compressed batch, NONE without one.
    """
    return _Validation(data, batches, source_codec, first_offset, settings).run()


class _Validation:
    """One call of validate_and_assign_offsets."""

    def __init__(
        self,
        data: NDArray[np.uint8],
        batches: BatchTable,
        source_codec: Codec,
        first_offset: int,
        settings: ValidatorSettings,
    ) -> None:
        self._data = data
        self._batches = batches
        self._source_codec = source_codec
        self._first_offset = first_offset
        self._settings = settings

    def run(self) -> ValidatedBatches:
        settings, batches = self._settings, self._batches
        first_magic = int(batches.magic[0])
        if len(batches) > 1 and (first_magic >= MAGIC_V2 or self._source_codec is not Codec.NONE):
            raise self._invalid(0, "a v2 or compressed append has one batch, found more")
        self._check_batches()
        if self._source_codec is not Codec.NONE and first_magic < MAGIC_V2:
            self._check_inner_messages()
        stamped = self._stamp_unopened()
        if stamped is not None:
            return stamped
        records = self._open()
        self._check_records(records)
        if self._source_codec is Codec.NONE and settings.target_codec is Codec.NONE:
            if (batches.magic != settings.to_magic).any():
                return self._rebuild(records)
            return self._stamp_uncompressed(records)
        if self._may_stay(records):
            return self._stamp_compressed(records)
        return self._rebuild(records)

    def _check_batches(self) -> None:
        settings, batches = self._settings, self._batches
        if (batches.magic != batches.magic[0]).any():
            row = int((batches.magic != batches.magic[0]).nonzero()[0][0])
            raise self._invalid(
                row,
                f"expected magic {batches.magic[0]}, as the first batch has, "
                f"found {batches.magic[row]}",
            )
        if settings.origin is AppendOrigin.CLIENT and batches.magic[0] >= MAGIC_V2:
            self._check_client_batch()
        if settings.to_magic < MAGIC_V2:
            has_producer = batches.is_transactional | batches.has_producer_id
            if has_producer.any():
                row = int(has_producer.nonzero()[0][0])
                raise UnsupportedForMessageFormatError(
                    settings.partition,
                    int(batches.position[row]),
                    f"message format v{settings.to_magic} has no producers and transactions",
                )

    def _check_client_batch(self) -> None:
        """Check a v2 batch of a client; there is one only."""
        batches = self._batches
        count = int(batches.record_count[0])
        span = int(batches.last_offset[0] - batches.base_offset[0]) + 1
        if span <= 0 or count <= 0 or span != count:
            raise self._invalid(
                0, f"expected as many offsets as records, found {span} offsets, {count} records"
            )
        if batches.is_control[0]:
            raise self._invalid(0, "clients may not write control records")
        if batches.has_producer_id[0] and batches.base_sequence[0] < 0:
            raise self._invalid(
                0, f"expected a sequence of at least 0, found {batches.base_sequence[0]}"
            )

    def _check_inner_messages(self) -> None:
        """Check CRC and format of the messages inside a compressed legacy one."""
        batches = self._batches
        start, magic = int(batches.position[0]), int(batches.magic[0])
        status, value_start, length = locate_value(
            self._data, start, start + int(batches.size[0]), magic
        )
        if status != 0 or length < 0:
            raise self._invalid(0, "a compressed message has no value")
        try:
            content = decompress(
                self._source_codec,
                self._data.data[value_start : value_start + length],
                limit_bytes=MAX_BATCH_BYTES,
                magic=magic,
            )
        except DecompressionError as error:
            raise self._invalid(0, str(error)) from error
        inner = np.frombuffer(bytearray(content), np.uint8)
        table = np.empty((batch_scan.COLUMN_COUNT, inner.size // 26 + 1), np.int64)
        count, _, _ = batch_scan.scan_batches(inner, 0, inner.size, table)
        other = (table[batch_scan.MAGIC, :count] != magic).nonzero()[0]
        bad = batch_scan.check_crcs(inner, table, count)
        if bad >= 0 and not (other.size and other[0] < bad):
            raise CorruptRecordError(
                self._settings.partition, start, f"message {bad} of a compressed set: wrong CRC"
            )
        if other.size:
            raise self._record_error(
                0, other, f"expected messages of format v{magic} in a compressed set"
            )

    def _stamp_unopened(self) -> ValidatedBatches | None:
        """Stamp a valid v2 batch unopened; None if it must be opened."""
        settings, batches = self._settings, self._batches
        may_stay = self._source_codec == settings.target_codec and settings.to_magic == MAGIC_V2
        if len(batches) > 1 or batches.magic[0] != MAGIC_V2 or not may_stay:
            return None
        count = int(batches.record_count[0])
        if count < 1 or batches.is_log_append_time[0]:
            return None
        source = self._data
        start = int(batches.position[0]) + HEADER_BYTES
        end = int(batches.position[0] + batches.size[0])
        max_record_bytes = MAX_BATCH_BYTES
        if self._source_codec is not Codec.NONE:
            try:
                expanded = decompress(
                    self._source_codec, source.data[start:end], limit_bytes=MAX_BATCH_BYTES
                )
            except DecompressionError:
                return None
            source = np.frombuffer(bytearray(expanded), np.uint8)
            start, end = 0, source.size
            max_record_bytes = settings.max_record_bytes
        before_max_ms = after_max_ms = append_check.NO_LIMIT_MS
        if not settings.is_append_time:
            before_max_ms = settings.timestamp_before_max_ms
            after_max_ms = settings.timestamp_after_max_ms
        status, max_timestamp = append_check.check_records(
            source,
            start,
            end,
            batches.columns,
            0,
            settings.is_compacted,
            settings.now_ms,
            before_max_ms,
            after_max_ms,
            max_record_bytes,
        )
        is_plain = self._source_codec is Codec.NONE
        if status != append_check.DONE and not (status == append_check.HAS_GAPS and is_plain):
            return None
        last_offset = np.array([self._first_offset + count - 1], np.int64)
        if settings.is_append_time:
            max_timestamp = settings.now_ms
        newest = np.array([max_timestamp], np.int64)
        return self._stamp(last_offset, newest, int(max_timestamp), count)

    def _open(self) -> RecordColumns:
        window = Window(self._settings.partition, 0, self._data, self._batches)
        wanted = np.ones(len(self._batches), np.bool_)
        limits = Limits(
            max_record_bytes=self._settings.max_record_bytes, max_batch_bytes=MAX_BATCH_BYTES
        )
        # At most one compressed batch, which is decompressed as a whole.
        [records] = decode_records(window, wanted, limits)
        return records

    def _check_records(self, records: RecordColumns) -> None:
        """Find the records of the first batch that break topic rules."""
        settings = self._settings
        no_key = np.zeros(len(records), np.bool_)
        if settings.is_compacted:
            no_key = records.key_length < 0
        bad_time = self._has_bad_timestamp(records) & ~no_key
        refused = (no_key | bad_time).nonzero()[0]
        if not refused.size:
            return
        batch = records.batch
        row = int(batch[refused[0]])
        of_batch = refused[batch[refused] == row]
        indexes = of_batch - int(np.searchsorted(batch, row))
        if bad_time[of_batch].any():
            timed = of_batch[bad_time[of_batch]]
            raise InvalidTimestampError(
                settings.partition,
                int(self._batches.position[row]),
                f"{of_batch.size} records are refused; timestamp "
                f"{records.timestamp[timed[0]]} of record {indexes[bad_time[of_batch]][0]}: "
                f"expected {settings.timestamp_type.value} between "
                f"{settings.now_ms - settings.timestamp_before_max_ms} and "
                f"{settings.now_ms + settings.timestamp_after_max_ms}",
                record_indexes=tuple(indexes.tolist()),
            )
        raise self._record_error(row, indexes, "a record of a compacted topic needs a key")

    def _has_bad_timestamp(self, records: RecordColumns) -> NDArray[np.bool_]:
        settings = self._settings
        timestamps = records.timestamp
        claims_append_time = self._batches.is_log_append_time[records.batch]
        if settings.is_append_time:
            return claims_append_time
        behind_ms = np.int64(settings.now_ms) - timestamps
        out_of_range = (behind_ms > settings.timestamp_before_max_ms) | (
            -behind_ms > settings.timestamp_after_max_ms
        )
        bad: NDArray[np.bool_] = np.where(
            timestamps != NO_TIMESTAMP, out_of_range, claims_append_time
        )
        return bad

    def _stamp_uncompressed(self, records: RecordColumns) -> ValidatedBatches:
        counts = np.bincount(records.batch, minlength=len(self._batches))
        newest = np.full(len(self._batches), NO_TIMESTAMP, np.int64)
        np.maximum.at(newest, records.batch, records.timestamp)
        max_timestamp = NO_TIMESTAMP
        if self._settings.to_magic > MAGIC_V0:
            max_timestamp = int(newest.max())
            if self._settings.is_append_time:
                max_timestamp = self._settings.now_ms
        last_offset = self._first_offset + np.cumsum(counts) - 1
        return self._stamp(last_offset.astype(np.int64), newest, max_timestamp, len(records))

    def _may_stay(self, records: RecordColumns) -> bool:
        settings = self._settings
        magic = int(self._batches.magic[0])
        if self._source_codec is Codec.NONE and bool(self._batches.is_control[0]):
            stays = True
        else:
            stays = (
                self._source_codec == settings.target_codec
                and magic == settings.to_magic
                and magic != MAGIC_V0
            )
        if stays and magic > MAGIC_V0 and settings.to_magic > MAGIC_V0:
            has_gaps = bool((records.offset != np.arange(len(records))).any())
            if has_gaps and self._source_codec is not Codec.NONE and magic >= MAGIC_V2:
                # Kafka has skipped keys and values by then, and cannot rebuild the batch.
                raise InvalidAppendError(
                    settings.partition, "the offsets of a compressed v2 batch have gaps"
                )
            stays = not has_gaps
        return stays

    def _stamp_compressed(self, records: RecordColumns) -> ValidatedBatches:
        max_timestamp = max(NO_TIMESTAMP, int(records.timestamp.max(initial=NO_TIMESTAMP)))
        if self._settings.is_append_time:
            max_timestamp = self._settings.now_ms
        last_offset = np.array([self._first_offset + len(records) - 1], np.int64)
        newest = np.array([max_timestamp], np.int64)
        return self._stamp(last_offset, newest, max_timestamp, len(records))

    def _stamp(
        self,
        last_offset: NDArray[np.int64],
        newest: NDArray[np.int64],
        max_timestamp: int,
        record_count: int,
    ) -> ValidatedBatches:
        settings = self._settings
        if settings.is_append_time:
            newest = np.full(len(self._batches), settings.now_ms, np.int64)
        stamp_batches(
            self._data,
            self._batches.columns,
            last_offset,
            settings.leader_epoch,
            settings.is_append_time,
            newest,
        )
        return ValidatedBatches(
            data=self._data,
            batches=self._batches,
            next_offset=self._first_offset + record_count,
            max_timestamp=max_timestamp,
            is_rebuilt=False,
        )

    def _rebuild(self, records: RecordColumns) -> ValidatedBatches:
        settings, batches = self._settings, self._batches
        try:
            built = build_all(
                new_records(records),
                BatchSettings(
                    magic=settings.to_magic,
                    codec=settings.target_codec,
                    level=settings.target_level,
                    timestamp_type=settings.timestamp_type,
                    append_time_ms=settings.now_ms,
                    base_offset=self._first_offset,
                    leader_epoch=settings.leader_epoch,
                    producer_id=int(batches.producer_id[0]),
                    producer_epoch=int(batches.producer_epoch[0]),
                    base_sequence=int(batches.base_sequence[0]),
                    is_transactional=bool(batches.is_transactional[0]),
                    max_batch_bytes=MAX_BATCH_BYTES,
                ),
            )
        except (InvalidColumnError, UnsupportedForMessageFormatError) as error:
            raise InvalidAppendError(settings.partition, str(error)) from error
        max_timestamp = NO_TIMESTAMP
        if settings.is_append_time:
            max_timestamp = settings.now_ms
        elif settings.to_magic > MAGIC_V0 and len(records):
            max_timestamp = int(records.timestamp.max())
        return ValidatedBatches(
            data=built.data,
            batches=built.batches,
            next_offset=self._first_offset + len(records),
            max_timestamp=max_timestamp,
            is_rebuilt=True,
        )

    def _invalid(self, row: int, reason: str) -> InvalidRecordError:
        return InvalidRecordError(
            self._settings.partition, int(self._batches.position[row]), reason
        )

    def _record_error(self, row: int, indexes: NDArray[np.int64], reason: str) -> PylogError:
        shown = ", ".join(map(str, indexes[:_SHOWN_ERRORS].tolist()))
        return RecordValidationError(
            self._settings.partition,
            int(self._batches.position[row]),
            f"{reason}; {indexes.size} records are refused, at most three are shown: {shown}",
            record_indexes=tuple(indexes.tolist()),
        )


def new_records(records: RecordColumns) -> NewRecords:
    """Return records read from a log as records to write, uncopied. All of them lie in one
    array: the window, or one of decompressed or transcoded batches."""
    payload = records.payload
    in_arena = payload.in_arena[records.batch]
    is_in_arena = bool(in_arena.any())
    source = payload.arena if is_in_arena else payload.window.data
    counts = np.ascontiguousarray(records.table[RECORD_HEADER_COUNT])
    spans = np.empty((5, int(counts.sum())), np.int64)
    list_headers(
        payload.window.data,
        payload.arena,
        in_arena,
        np.ascontiguousarray(records.table[RECORD_HEADER_START]),
        counts,
        *spans,
    )
    _, key_start, key_length, value_start, value_length = spans
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return NewRecords.of(
        keys=ByteColumn.of_spans(source, records.table[RECORD_KEY_START], records.key_length),
        values=ByteColumn.of_spans(source, records.table[RECORD_VALUE_START], records.value_length),
        timestamps=records.timestamp,
        headers=HeaderColumn.of(
            first,
            ByteColumn.of_spans(source, key_start, key_length),
            ByteColumn.of_spans(source, value_start, np.maximum(value_length, -1)),
        ),
    )
