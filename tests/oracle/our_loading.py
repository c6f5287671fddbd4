"""The same load by this project, in process."""

from pathlib import Path

from storage_core.config import CleanerConfig, LogConfig
from tests.kit.one_partition import recover_partition, truncate_partition
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS
from tests.oracle.loading import LoadAnswer, LoadTask, TruncateAnswer

CLEANER = CleanerConfig(producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS)


def load_by_us(directory: Path, task: LoadTask) -> LoadAnswer:
    """Load a partition directory as Kafka would, and write what loading and closing change."""
    result = recover_partition(
        directory,
        config=_config(task),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        recovery_point=task.recovery_point,
        log_start_offset=task.log_start_offset,
        clean_shutdown=task.clean_shutdown,
    )
    return LoadAnswer(
        log_end_offset=result.log_end_offset,
        log_start_offset=result.log_start_offset,
        recovery_point=result.recovery_point,
        segments=result.segments,
    )


def truncate_by_us(directory: Path, task: LoadTask, to: int) -> TruncateAnswer:
    """Load a partition directory, truncate it as a follower does, and close it."""
    result = truncate_partition(
        directory,
        config=_config(task),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        to=to,
        log_start_offset=task.log_start_offset,
    )
    return TruncateAnswer(truncated=result.truncated, log_end_offset=result.log_end_offset)


def _config(task: LoadTask) -> LogConfig:
    return LogConfig.from_topic_overrides({key: str(value) for key, value in task.config.items()})
