"""Kafka's log cleaner and its deletion over every partition of a log directory, as in a broker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.oracle.cleaner import (
    CLEANER_CHECKPOINT,
    clean_as_manager_chooses,
    read_cleaner_checkpoint,
    read_offset_checkpoint,
)
from tests.oracle.kafka import Kafka
from tests.oracle.log_directory import CLUSTER_METADATA

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"


def clean_log_directory(
    directory: Path, *, now_ms: int, topics: Mapping[str, Mapping[str, object]]
) -> dict[tuple[str, int], int]:
    """Have Kafka clean what is due, then delete what has expired, and close each log.

    Kafka's manager drops the entries of logs that it does not hold from the cleaner checkpoint.
    It is given one log at a time, so the checkpoint is put together here; the file goes.

    Args:
        directory: A log directory that was cleanly shut down; it is changed.

    Returns:
        The cleaner checkpoint of the directory afterwards.
    """
    kafka = Kafka(now_ms=now_ms)
    high_watermarks = read_offset_checkpoint(directory / HIGH_WATERMARKS)
    log_starts = read_offset_checkpoint(directory / LOG_STARTS)
    recovery_points = read_offset_checkpoint(directory / RECOVERY_POINTS)
    known = read_cleaner_checkpoint(directory)
    points: dict[tuple[str, int], int] = {}
    for path in sorted(p for p in directory.iterdir() if p.is_dir()):
        topic, _, number = path.name.rpartition("-")
        if topic == CLUSTER_METADATA:
            continue
        key = (topic, int(number))
        with kafka.open_partition(
            path,
            config=topics[topic],
            log_start_offset=log_starts.get(key, 0),
            recovery_point=recovery_points[key],
        ) as partition:
            partition.set_high_watermark(high_watermarks[key])
            clean_as_manager_chooses(kafka, partition)
            partition.delete_old_segments()
        points |= read_cleaner_checkpoint(directory)
    (directory / CLEANER_CHECKPOINT).unlink(missing_ok=True)
    return known | points
