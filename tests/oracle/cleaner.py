"""One round of Kafka's log cleaner over one open partition."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jpype

from tests.oracle.jvm import java, java_file, java_map, kafka_failures
from tests.oracle.kafka import Kafka
from tests.oracle.partition import LOG, OpenPartition
from tests.oracle.stand_ins import NeverAborted

MAP_BYTES: Final = 134_217_728
OFFSET_CHECKPOINT: Final = "org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
NO_THROTTLING: Final = float(2**60)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """What a cleaner thread has; the map takes 24 bytes a slot."""

    map_bytes: int = MAP_BYTES
    load_factor: float = 0.9
    io_buffer_bytes: int = 524_288
    max_io_buffer_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOutcome:
    """What a round did: the range, the next dirty offset, CleanerStats, the offset map."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    cleanable_ratio: float
    next_offset: int
    messages_read: int
    messages_written: int
    bytes_read: int
    bytes_written: int
    map_messages_read: int
    invalid_messages_read: int
    map_slots: int
    map_entries: int
    map_latest_offset: int


def clean_range(
    kafka: Kafka,
    partition: OpenPartition,
    *,
    first_dirty_offset: int = 0,
    first_uncleanable_offset: int | None = None,
    settings: CleanerSettings | None = None,
) -> CleanOutcome:
    """Clean a given range.

    Args:
        partition: Its high watermark has to be set already.
        first_uncleanable_offset: Where it ends; Kafka rounds it down to a segment's base offset.
            Default: the base offset of the active segment.
    """
    log = partition.log
    with kafka_failures():
        end = first_uncleanable_offset
        to_clean = java(LOG + "LogToClean")(
            log,
            jpype.JLong(first_dirty_offset),
            jpype.JLong(log.activeSegment().baseOffset() if end is None else end),
            True,
        )
        return _clean(kafka, to_clean, settings or CleanerSettings())


def clean_as_manager_chooses(
    kafka: Kafka, partition: OpenPartition, *, settings: CleanerSettings | None = None
) -> CleanOutcome | None:
    """Clean what Kafka's LogCleanerManager chooses, or nothing.

    It goes by the partition's line in cleaner-offset-checkpoint of the parent directory, and
    leaves the round's end there.

    Returns:
        None where the manager takes no log: nothing is dirty enough.
    """
    with kafka_failures(), _manager(kafka, partition) as manager:
        grabbed = manager.grabFilthiestCompactedLog(kafka.time, java(LOG + "PreCleanStats")())
        if not grabbed.isPresent():
            return None
        outcome = _clean(kafka, grabbed.get(), settings or CleanerSettings())
        manager.doneCleaning(
            grabbed.get().topicPartition(),
            partition.log.parentDirFile(),
            jpype.JLong(outcome.next_offset),
        )
        return outcome


def read_cleaner_checkpoint(log_directory: Path) -> dict[tuple[str, int], int]:
    """Return cleaner-offset-checkpoint: (topic, partition) to offset; empty without the file."""
    return read_offset_checkpoint(log_directory / CLEANER_CHECKPOINT)


def read_offset_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Return one of the checkpoint files of a log directory; empty if it does not exist."""
    if not path.exists():  # Kafka would create it
        return {}
    with kafka_failures():
        entries = java(OFFSET_CHECKPOINT)(java_file(path), None).read()
        return {
            (str(key.topic()), int(key.partition())): int(entries.get(key))
            for key in entries.keySet()
        }


def write_cleaner_checkpoint(log_directory: Path, entries: Mapping[tuple[str, int], int]) -> None:
    """Write cleaner-offset-checkpoint with these lines and no others."""
    partition = java("org.apache.kafka.common.TopicPartition")
    lines = java_map(
        (partition(topic, number), java("java.lang.Long").valueOf(offset))
        for (topic, number), offset in entries.items()
    )
    with kafka_failures():
        java(OFFSET_CHECKPOINT)(java_file(log_directory / CLEANER_CHECKPOINT), None).write(lines)


@contextmanager
def _manager(kafka: Kafka, partition: OpenPartition) -> Iterator[Any]:
    logs = java("java.util.concurrent.ConcurrentHashMap")()
    logs.put(partition.log.topicPartition(), partition.log)
    directories = java("java.util.List").of(partition.log.parentDirFile())
    manager = java(LOG + "LogCleanerManager")(directories, logs, kafka.failure_channel)
    try:
        yield manager
    finally:
        manager.removeMetrics()


def _clean(kafka: Kafka, to_clean: Any, settings: CleanerSettings) -> CleanOutcome:
    offsets = java(LOG + "SkimpyOffsetMap")(settings.map_bytes)
    throttler = java("org.apache.kafka.storage.internals.utils.Throttler")(
        NO_THROTTLING, jpype.JLong(300), "cleaner-io", "bytes", kafka.time
    )
    cleaner = java(LOG + "Cleaner")(
        0,
        offsets,
        settings.io_buffer_bytes,
        settings.max_io_buffer_bytes,
        settings.load_factor,
        throttler,
        kafka.time,
        NeverAborted(),
    )
    done = cleaner.doClean(to_clean, jpype.JLong(kafka.now_ms))
    stats = done.getValue()
    return CleanOutcome(
        first_dirty_offset=int(to_clean.firstDirtyOffset()),
        first_uncleanable_offset=int(to_clean.firstUncleanableOffset()),
        cleanable_ratio=float(to_clean.cleanableRatio()),
        next_offset=int(done.getKey()),
        messages_read=int(stats.messagesRead()),
        messages_written=int(stats.messagesWritten()),
        bytes_read=int(stats.bytesRead()),
        bytes_written=int(stats.bytesWritten()),
        map_messages_read=int(stats.mapMessagesRead()),
        invalid_messages_read=int(stats.invalidMessagesRead()),
        map_slots=int(offsets.slots()),
        map_entries=int(offsets.size()),
        map_latest_offset=int(offsets.latestOffset()),
    )
