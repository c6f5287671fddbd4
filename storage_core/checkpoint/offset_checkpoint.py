"""Offset checkpoints: one offset a partition, one file of each kind a log directory.

``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint``,
``cleaner-offset-checkpoint`` and ``replication-offset-checkpoint`` have this form: entries of
``topic partition offset`` (see ``checkpoint_text``). Source:
``org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile``.
"""

from collections.abc import Mapping
from typing import Final

from storage_core.checkpoint.checkpoint_text import (
    INT_MAX,
    LONG_MAX,
    encode_entries,
    parse_entries,
    parse_number,
)
from storage_core.errors import CheckpointError, InvalidNameError
from storage_core.filenames import TopicPartition, validate_topic

# A million entries with the longest topic names; what is larger is no checkpoint.
MAX_OFFSET_CHECKPOINT_BYTES: Final = 1 << 28


def parse_offset_checkpoint(data: bytes, *, file: str) -> dict[TopicPartition, int]:
    """Parse an offset checkpoint.

    Args:
        data: The whole file; empty is valid.
        file: Its name, for errors.

    Returns:
        Offsets by partition, in file order; of a partition that is there twice, the last one.
        An offset may be negative.

    Raises:
        CheckpointError: The file breaks its form, or names what Kafka would not take for a
            partition.
    """
    offsets = {}
    for line, (topic, partition, offset) in parse_entries(data, file=file, field_count=3):
        try:
            validate_topic(topic)
        except InvalidNameError as error:
            raise CheckpointError(file, line, str(error)) from error
        number = parse_number(partition, INT_MAX, file=file, line=line)
        if number < 0:
            raise CheckpointError(file, line, f"expected a partition, found {number}")
        offset_number = parse_number(offset, LONG_MAX, file=file, line=line)
        offsets[TopicPartition(topic, number)] = offset_number
    return offsets


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the bytes of an offset checkpoint, sorted by partition (Kafka's order is any)."""
    return encode_entries(
        f"{partition.topic} {partition.partition} {offsets[partition]}"
        for partition in sorted(offsets)
    )
