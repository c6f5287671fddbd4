"""A stream's offsets: in its checkpoint, and for a trigger.

In JSON they are as Spark's Kafka source writes them, ``{"orders": {"0": 23, "1": 7}}``: of each
partition the offset up to which it was read, which is that of the next record.
"""

import logging
from collections.abc import Mapping
from typing import Final

from storage_core.errors import ConfigError, OffsetOutOfRangeError, PartitionNotFoundError
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.reading.planning import LogOffsets

_log: Final = logging.getLogger(__name__)


def offsets_from_json(stored: object) -> dict[TopicPartition, int]:
    """Read offsets as a checkpoint has them, already parsed from JSON.

    Raises:
        ConfigError: They are not of that form.
    """
    offsets = {}
    of_topics = stored if isinstance(stored, dict) else {"": stored}
    for topic, of_partitions in of_topics.items():
        if not isinstance(of_partitions, dict):
            raise _malformed(stored)
        for number, offset in of_partitions.items():
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_number or not 0 <= offset <= MAX_OFFSET or not _is_partition(number):
                raise _malformed(stored)
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as JSON for a checkpoint; equal offsets, equal text."""
    by_topic: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return by_topic


def next_ends(
    reached: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogOffsets],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """Return each partition's end, never below the offsets already read.

    Args:
        fail_on_data_loss: Whether it is an error that a log is gone or ends below what was read;
            else it is waited for, with a warning: to go back would repeat records.

    Raises:
        PartitionNotFoundError: A partition is gone.
        OffsetOutOfRangeError: A log ends below what was read of it.
    """
    for partition, offset in reached.items():
        log = logs.get(partition)
        if log is not None and offset <= log.log_end_offset:
            continue
        loss = _loss(partition, offset, log)
        if fail_on_data_loss:
            raise loss
        _log.warning("%s; waiting for offset %d", loss, offset)
    ends = {partition: log.end for partition, log in logs.items()}
    return ends | {
        partition: max(offset, ends.get(partition, offset)) for partition, offset in reached.items()
    }


def limit_ends(
    reached: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogOffsets],
    ends: Mapping[TopicPartition, int],
    most: int,
) -> dict[TopicPartition, int]:
    """Limit ends to a number of offsets, as Spark's Kafka source.

    Each partition has its share by how much of it there is, and at least one offset.

    Args:
        logs: Offsets of the existing logs; a partition that is new to the stream is read from its
            start.
        most: How many offsets, at least 1.
    """
    starts = {
        partition: reached[partition] if partition in reached else logs[partition].log_start_offset
        for partition in ends
    }
    total = sum(max(0, end - starts[partition]) for partition, end in ends.items())
    if total <= most:
        return dict(ends)
    return {
        partition: min(end, starts[partition] + max(1, most * (end - starts[partition]) // total))
        for partition, end in ends.items()
    }


def _is_partition(number: object) -> bool:
    return isinstance(number, str) and number.isascii() and number.isdigit() and len(number) <= 10  # noqa: PLR2004  # digits of 2^31


def _malformed(stored: object) -> ConfigError:
    reason = 'expected offsets like {"orders": {"0": 23}}; is it the checkpoint of another source?'
    return ConfigError("checkpoint", str(stored), reason)


def _loss(
    partition: TopicPartition, offset: int, log: LogOffsets | None
) -> PartitionNotFoundError | OffsetOutOfRangeError:
    if log is None:
        return PartitionNotFoundError(str(partition))
    first, end = log.log_start_offset, log.log_end_offset
    return OffsetOutOfRangeError(str(partition), offset, first, end)
