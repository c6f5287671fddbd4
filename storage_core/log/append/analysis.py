"""Parse bytes to append into batches, and check the topic's rules.

Bytes in memory are read more strictly than a file: an impossible length or an unknown magic is an
error. An incomplete batch at the end is not: it is left out.
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
    InvalidRecordError,
    InvalidTimestampError,
    OffsetsOutOfOrderError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    UnsupportedCompressionError,
)
from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
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
from storage_core.kernels import append_check, batch_scan
from storage_core.log.producer_state import AppendOrigin
from storage_core.records.batch_builder import BatchSettings
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import CODEC_OF
from storage_core.records.new_records import NewRecords

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
