"""What a topic's configuration means for an append."""

from dataclasses import replace
from typing import Final

import numpy as np

from storage_core.config import LogConfig
from storage_core.config.log_config import BrokerCompressionType, MessageTimestampType
from storage_core.errors import (
    InvalidTimestampError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP, Codec, TimestampType
from storage_core.log.append_results import ProducerSettings
from storage_core.log.log_validator import ValidatorSettings
from storage_core.log.producer_append import AppendOrigin
from storage_core.records.batch_builder import BatchSettings
from storage_core.records.batch_table import BatchTable
from storage_core.records.new_records import NewRecords

_CODEC_OF: Final = {
    BrokerCompressionType.UNCOMPRESSED: Codec.NONE,
    BrokerCompressionType.GZIP: Codec.GZIP,
    BrokerCompressionType.SNAPPY: Codec.SNAPPY,
    BrokerCompressionType.LZ4: Codec.LZ4,
    BrokerCompressionType.ZSTD: Codec.ZSTD,
}


def is_append_time(config: LogConfig) -> bool:
    """Whether records get the broker's time."""
    return config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME


def target_codec(config: LogConfig, source: Codec) -> tuple[Codec, int | None]:
    """Return codec and level in which batches are stored that came in a codec."""
    if config.compression_type is BrokerCompressionType.PRODUCER:
        return source, None
    codec = _CODEC_OF[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return codec, levels.get(codec)


def validator_settings(  # noqa: PLR0913 - what an append says
    partition: str,
    config: LogConfig,
    *,
    source: Codec,
    leader_epoch: int,
    origin: AppendOrigin,
    to_magic: int,
    now_ms: int,
) -> ValidatorSettings:
    """Return the rules for batches that get their offsets here."""
    codec, level = target_codec(config, source)
    return ValidatorSettings(
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


def batch_settings(  # noqa: PLR0913 - what an append says
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
    """Check batches whose sizes are those in which they will be stored.

    Raises:
        RecordTooLargeError: A batch exceeds max.message.bytes.
    """
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
    """Check what is written at once.

    Raises:
        RecordBatchTooLargeError: It exceeds a segment.
    """
    if size_bytes > config.segment_bytes:
        raise RecordBatchTooLargeError(partition, size_bytes, config.segment_bytes)


def check_columns(partition: str, config: LogConfig, records: NewRecords, now_ms: int) -> None:
    """Check records as the validator checks those of a batch.

    Raises:
        RecordValidationError: A record of a compacted topic has no key.
        InvalidTimestampError: A timestamp is out of range.
    """
    if config.is_compacted:
        missing = (records.keys.length < 0).nonzero()[0]
        if missing.size:
            raise RecordValidationError(
                partition,
                0,
                f"{missing.size} records have no key, which a compacted topic needs",
                tuple(missing.tolist()),
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
            tuple(refused.tolist()),
        )
