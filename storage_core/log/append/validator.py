"""Check batches as a leader does, and assign their offsets.

Batches that may stay as they came are stamped in place; others are opened and built anew: because
the topic asks for another codec, the message format differs, or the offsets inside are not 0, 1, 2.
Everything is decided over arrays; a batch of a million records takes no longer in Python than one
of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import BrokerCompressionType, LogConfig, MessageTimestampType
from storage_core.errors import (
    BadBytesError,
    CorruptRecordError,
    DecompressionError,
    InvalidAppendError,
    InvalidColumnError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetsOutOfOrderError,
    PylogError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    UnsupportedCompressionError,
    UnsupportedForMessageFormatError,
)
from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_BATCH_BYTES,
    MIN_ENTRY_LENGTH,
    NO_LEADER_EPOCH,
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
from storage_core.log.producer_state import AppendOrigin
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import CODEC_OF, decompress
from storage_core.records.new_records import ByteColumn, HeaderColumn, NewRecords
from storage_core.records.payload import Limits, RecordColumns, decode_records
from storage_core.records.reader import Window

# Parse bytes to append into batches, and check the topic's rules.
#
# Bytes in memory are read more strictly than a file: an impossible length or an unknown magic is
# an error. An incomplete batch at the end is not: it is left out.

_ERRORS: Final[Mapping[int, tuple[type[BadBytesError], str]]] = {
    append_check.OTHER_EPOCH: (
        InvalidRecordError,
        "expected leader epoch {epoch}, found {leader_epoch}",
    ),
    append_check.MOVED: (InvalidRecordError, "expected base offset 0, found {base_offset}"),
    append_check.TOO_LARGE: (RecordTooLargeError, "{size} bytes exceed max.message.bytes, {limit}"),
    append_check.WRONG_CRC: (CorruptRecordError, "the stored CRC is wrong"),
    append_check.UNKNOWN_CODEC: (UnsupportedCompressionError, "there is no codec {codec}"),
    append_check.OUT_OF_ORDER: (
        OffsetsOutOfOrderError,
        "the last offset, {last_offset}, does not rise above that of the batch before",
    ),
}
# The smallest entry bounds the number of batches in some bytes.
_MIN_BATCH_BYTES: Final = LENGTH_OVERHEAD + MIN_ENTRY_LENGTH
_FEW_BATCHES: Final = 64
# Origins whose batches have offsets of another log.
KEEPING_OFFSETS: Final = frozenset({AppendOrigin.REPLICATION, AppendOrigin.RAFT_LEADER})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppendInfo:
    """What became of an append."""

    # Offset of its first record; None for legacy entries with offsets. -1 if nothing was appended.
    first_offset: int | None
    last_offset: int  # offset of its last record, -1 if nothing was appended
    max_timestamp: int  # largest timestamp, NO_TIMESTAMP for none
    append_time_ms: int  # the broker's time where records get it, else NO_TIMESTAMP
    valid_bytes: int  # bytes of the whole batches that were found
    is_duplicate: bool = False  # whether it had been written before: then nothing was


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Who writes columns, if it is a producer with an id."""

    producer_id: int
    producer_epoch: int
    # Sequence of the first record; None for the one that the log expects.
    base_sequence: int | None = None
    is_transactional: bool = False  # whether the records belong to a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedAppend:
    """What bytes hold."""

    batches: BatchTable
    valid_bytes: int
    source_codec: Codec  # codec of the last compressed batch, NONE without one

    @property
    def first_offset(self) -> int | None:
        """Base offset of the first batch; None if only opening it tells."""
        return None if self.batches.is_legacy[0] else int(self.batches.base_offset[0])

    @property
    def first_or_last_offset_of_first_batch(self) -> int:
        """The first offset, else the last offset of the first batch."""
        first = self.first_offset
        return int(self.batches.last_offset[0]) if first is None else first

    @property
    def last_offset(self) -> int:
        """Last offset of the last batch."""
        return int(self.batches.last_offset[-1])

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp, NO_TIMESTAMP for none."""
        return int(self.batches.max_timestamp.max(initial=NO_TIMESTAMP))


def analyze_append(
    data: NDArray[np.uint8],
    *,
    partition: str,
    origin: AppendOrigin,
    leader_epoch: int,
    max_message_bytes: int,
) -> AnalyzedAppend:
    """Find and check the batches of an append.

    Args:
        data: uint8[], the bytes.
        max_message_bytes: Largest batch of anybody but a follower, who takes what its leader has.
    """
    batches, end, stopped = _scan(data, partition)
    count = len(batches)
    if origin is AppendOrigin.REPLICATION:
        epoch = batches.leader_epoch
        above = ((epoch != NO_LEADER_EPOCH) & (epoch > leader_epoch)).nonzero()[0]
        if above.size:
            count = int(above[0])
            end = int(batches.position[count])
    limit = MAX_BATCH_BYTES if origin is AppendOrigin.REPLICATION else max_message_bytes
    row, status = append_check.check_batches(
        data,
        batches.columns,
        count,
        leader_epoch if origin is AppendOrigin.RAFT_LEADER else append_check.ANY_EPOCH,
        origin is AppendOrigin.CLIENT,
        limit,
        origin in KEEPING_OFFSETS,
    )
    if status != append_check.DONE:
        kind, reason = _ERRORS[status]
        facts = {
            "leader_epoch": batches.leader_epoch[row],
            "base_offset": batches.base_offset[row],
            "last_offset": batches.last_offset[row],
            "size": batches.size[row],
            "codec": batches.codec[row],
            "epoch": leader_epoch,
            "limit": limit,
        }
        raise kind(partition, int(batches.position[row]), reason.format(**facts))
    if stopped is not None:
        raise stopped
    valid = batches
    if count < len(batches):
        valid = BatchTable(np.ascontiguousarray(batches.columns[:, :count]))
    batch_scan.read_control_types(data, valid.columns, count)
    codecs = valid.codec
    codecs = codecs[codecs != Codec.NONE]
    return AnalyzedAppend(
        batches=valid,
        valid_bytes=end,
        source_codec=Codec(int(codecs[-1])) if codecs.size else Codec.NONE,
    )


def _scan(
    data: NDArray[np.uint8], partition: str
) -> tuple[BatchTable, int, CorruptRecordError | None]:
    """Return the whole batches, their end, and the error behind them."""
    table = np.empty((batch_scan.COLUMN_COUNT, _FEW_BATCHES), np.int64)
    count, end, status = batch_scan.scan_batches(data, 0, data.size, table)
    if status == batch_scan.NO_ROOM:
        capacity = data.size // _MIN_BATCH_BYTES + 1
        table = np.empty((batch_scan.COLUMN_COUNT, capacity), np.int64)
        count, end, status = batch_scan.scan_batches(data, 0, data.size, table)
    stopped = _what_follows(data, end, partition)
    unknown = (
        (table[batch_scan.MAGIC, :count] < 0) | (table[batch_scan.MAGIC, :count] > MAGIC_V2)
    ).nonzero()[0]
    if unknown.size:
        count = int(unknown[0])
        end = int(table[batch_scan.POSITION, count])
        magic = int(table[batch_scan.MAGIC, count])
        stopped = CorruptRecordError(partition, end, f"expected magic 0 to 2, found {magic}")
    return BatchTable(np.ascontiguousarray(table[:, :count])), end, stopped


def _what_follows(
    data: NDArray[np.uint8], position: int, partition: str
) -> CorruptRecordError | None:
    """Return the error behind the last whole batch; None for a cut."""
    remaining = data.size - position
    if remaining < LENGTH_OVERHEAD:
        return None
    field = data[position + BATCH_LENGTH_AT : position + LENGTH_OVERHEAD].tobytes()
    length = int.from_bytes(field, "big", signed=True)
    if length < MIN_ENTRY_LENGTH:
        return CorruptRecordError(
            partition, position, f"expected a length of at least {MIN_ENTRY_LENGTH}, found {length}"
        )
    if remaining <= MAGIC_AT:
        return None
    magic = int(data[position + MAGIC_AT].view(np.int8))
    if not 0 <= magic <= MAGIC_V2:
        return CorruptRecordError(partition, position, f"expected magic 0 to 2, found {magic}")
    return None


def is_append_time(config: LogConfig) -> bool:
    """Whether records get the broker's time."""
    return config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME


def target_codec(config: LogConfig, source: Codec) -> tuple[Codec, int | None]:
    """Return the stored codec and level for batches of a source codec."""
    if config.compression_type is BrokerCompressionType.PRODUCER:
        return source, None
    codec = CODEC_OF[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return codec, levels.get(codec)


def batch_settings(
    config: LogConfig,
    *,
    source: Codec,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    producer: ProducerSettings | None,
    next_sequence: int,
) -> BatchSettings:
    """Return how columns become batches of this topic."""
    codec, level = target_codec(config, source)
    settings = BatchSettings(
        codec=codec,
        level=level,
        timestamp_type=TimestampType(config.message_timestamp_type.value),
        append_time_ms=now_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        max_batch_bytes=min(config.max_message_bytes, config.segment_bytes),
    )
    if producer is None:
        return settings
    sequence = next_sequence if producer.base_sequence is None else producer.base_sequence
    return replace(
        settings,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        is_transactional=producer.is_transactional,
    )


def check_sizes(partition: str, config: LogConfig, batches: BatchTable) -> None:
    """Check batches whose sizes are those in which they will be stored."""
    limit = config.max_message_bytes
    too_large = (batches.size > limit).nonzero()[0]
    if too_large.size:
        row = int(too_large[0])
        raise RecordTooLargeError(
            partition,
            int(batches.position[row]),
            f"{batches.size[row]} bytes exceed max.message.bytes, {limit}",
        )


def check_append_size(partition: str, config: LogConfig, size_bytes: int) -> None:
    """Check what is written at once."""
    if size_bytes > config.segment_bytes:
        raise RecordBatchTooLargeError(partition, size_bytes, config.segment_bytes)


def check_columns(partition: str, config: LogConfig, records: NewRecords, now_ms: int) -> None:
    """Check records as the validator checks those of a batch."""
    if config.is_compacted:
        missing = (records.keys.length < 0).nonzero()[0]
        if missing.size:
            raise RecordValidationError(
                partition,
                0,
                f"{missing.size} records have no key, which a compacted topic needs",
                record_indexes=tuple(missing.tolist()),
            )
    if is_append_time(config):
        return
    behind_ms = np.int64(now_ms) - records.timestamps
    is_bad = (behind_ms > config.message_timestamp_before_max_ms) | (
        -behind_ms > config.message_timestamp_after_max_ms
    )
    refused = (is_bad & (records.timestamps != NO_TIMESTAMP)).nonzero()[0]
    if refused.size:
        raise InvalidTimestampError(
            partition,
            0,
            f"{refused.size} timestamps are too far from the clock, {now_ms}: the first is "
            f"{records.timestamps[refused[0]]}",
            record_indexes=tuple(refused.tolist()),
        )


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
