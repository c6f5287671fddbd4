"""``spark.readStream.format("kafka-log")``: a directory that grows, in triggers.

Spark's checkpoint has the offsets of each trigger before its tasks begin, and gives them again to
a query that was killed: a trigger is planned from offsets alone, whatever files have them by then.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pylog_spark.source.options import SourceOptions, warn_of_meaningless
from pylog_spark.source.reader import decoded
from pylog_spark.source.task_planning import plan_tasks
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError, OffsetOutOfRangeError, PartitionNotFoundError
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.reading.planning import (
    LogOffsets,
    find_offsets,
    follow_range,
)
from storage_core.reading.ranges import ReadRange
from storage_core.reading.request import Bound, ReadRequest, TopicChoice
from storage_core.store.requests import logged_requests

# A stream's offsets: in its checkpoint, and for a trigger.
#
# In JSON they are as Spark's Kafka source writes them, ``{"orders": {"0": 23, "1": 7}}``: of each
# partition the offset up to which it was read, which is that of the next record.

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


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # pyspark 4.0 and 4.1: a trigger reads all available data
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

Offsets = dict[str, dict[str, int]]


class StreamPartition(InputPartition):
    """One task's ranges and their request, in Spark's envelope."""

    def __init__(self, request: ReadRequest, ranges: Sequence[ReadRange]) -> None:
        super().__init__((request, ranges))
        self.request = request
        self.ranges = ranges


class KafkaLogStreamReader(DataSourceStreamReader):
    """Plans the triggers of a stream and does their tasks. Spark defines the methods and the
    order of its calls."""

    def __init__(self, options: SourceOptions) -> None:
        if options.max_offsets_per_trigger is not None and not HAS_LIMITS:
            most = options.max_offsets_per_trigger
            raise ConfigError("maxOffsetsPerTrigger", most, "needs pyspark 4.2")
        self._options = options
        self._reached: dict[TopicPartition, int] = {}
        self._latest: dict[TopicPartition, int] = {}
        self._target: dict[TopicPartition, int] | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return a new stream's first offsets. Spark does not ask for them if the stream has a
        checkpoint."""
        warn_of_meaningless(self._options.without_meaning)
        logs = find_offsets(self._options.request, {}, now_ms=SystemClock().now_ms())
        self._reached = {partition: log.start for partition, log in logs.items()}
        return offsets_to_json(self._reached)

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802
        """Return how much a trigger reads."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(  # noqa: N802
        self, start: Offsets | None = None, limit: "ReadLimit | None" = None
    ) -> Offsets:
        """Return up to where the next trigger reads.

        Args:
            start: Where it begins; pyspark before 4.2 does not say it.
            limit: How much it may read; likewise.

        Raises:
            PartitionNotFoundError: A partition that was read is gone, and that is to be an error.
            OffsetOutOfRangeError: A log ends below what was read of it, likewise.
            PylogError: A log cannot be read.
        """
        reached = self._reached if start is None else offsets_from_json(start)
        logs = self._look(reached)
        if self._target is not None:
            logs = {
                partition: replace(log, end=min(log.end, self._target.get(partition, 0)))
                for partition, log in logs.items()
                if partition in self._target or partition in reached
            }
        ends = next_ends(reached, logs, fail_on_data_loss=self._options.request.fail_on_data_loss)
        self._latest = ends
        if HAS_LIMITS and isinstance(limit, ReadMaxRows):
            ends = limit_ends(reached, logs, ends, limit.max_rows)
        return offsets_to_json(ends)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present end; the stream stops there."""
        self._target = {partition: log.end for partition, log in self._look({}).items()}

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Return the last look's ends, for the progress."""
        return offsets_to_json(self._latest) if self._latest else None

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the tasks of a trigger.

        Raises:
            OffsetOutOfRangeError: An offset is not in the log (any more), and that is to be an
                error; or the end is below the start.
            PylogError: A log cannot be read.
        """
        reached, ends = offsets_from_json(start), offsets_from_json(end)
        self._reached = ends
        for partition, offset in reached.items():
            if ends.get(partition, -1) < offset:
                raise OffsetOutOfRangeError(str(partition), offset, 0, ends.get(partition, 0))
        # A partition that is new to the stream begins at offset 0: its removed records are lost,
        # too.
        starts = {p: reached.get(p, 0) for p, offset in ends.items() if reached.get(p, 0) < offset}
        if not starts:
            return []
        asked = self._options.request
        request = replace(
            asked,
            choice=TopicChoice(
                assigned=frozenset(starts),
                option="checkpoint",
                may_be_missing=not asked.fail_on_data_loss,
            ),
            starting=Bound(offsets=starts, option="checkpoint"),
            ending=Bound(offsets={p: ends[p] for p in starts}, option="checkpoint"),
        )
        tasks = plan_tasks(replace(self._options, request=request), now_ms=SystemClock().now_ms())
        return [StreamPartition(request, ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches."""
        freeze_modules()
        if isinstance(partition, StreamPartition):
            now_ms = SystemClock().now_ms()
            batches = chain.from_iterable(
                follow_range(wanted, partition.request, now_ms=now_ms)
                for wanted in partition.ranges
            )
            with logged_requests("a task of kafka-log"):
                yield from decoded(batches, self._options)

    def _look(self, reached: dict[TopicPartition, int]) -> dict[TopicPartition, LogOffsets]:
        """Return the log offsets of each existing partition."""
        request = self._options.request
        there = replace(
            request, choice=replace(request.choice, may_be_missing=True), starting=Bound()
        )
        return find_offsets(there, reached, now_ms=SystemClock().now_ms())


if HAS_LIMITS:
    SupportsTriggerAvailableNow.register(KafkaLogStreamReader)
