"""The same round of cleaning by this project, in process."""

from pathlib import Path

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.maintenance.compaction.partition import clean_and_load
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.retention.partition import RetainResult, plan_retain_loaded
from storage_core.store.local import LocalStore
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS
from tests.oracle.rounds import NUMBERS, CleanAnswer, CleanTask


def clean_by_us(directory: Path, task: CleanTask) -> CleanAnswer:
    """Clean a partition directory as Kafka would, MD5 and bounded offset map included."""
    config = LogConfig.from_topic_overrides({k: str(v) for k, v in task.config.items()})
    cleaner = CleanerConfig(
        dedupe_buffer_bytes=task.cleaner.map_bytes,
        load_factor=task.cleaner.load_factor,
        io_buffer_bytes=task.cleaner.io_buffer_bytes,
        max_io_buffer_bytes=task.cleaner.max_io_buffer_bytes,
        offset_map_hash=OffsetMapHash.MD5,
        producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS,
        window_bytes=task.window_bytes,
        keeps_negative_timestamps=task.keeps_negative_timestamps,
    )
    result, log = clean_and_load(
        directory,
        config=config,
        cleaner=cleaner,
        request=CleanRequest(
            now_ms=task.now_ms,
            checkpoints=PartitionCheckpoints(
                high_watermark=task.high_watermark,
                log_start_offset=task.log_start_offset,
                cleaner_offset=task.cleaner_checkpoint,
            ),
            first_dirty_offset=task.first_dirty_offset,
            first_uncleanable_offset=task.first_uncleanable_offset,
        ),
        believes_ages=True,
        drops_keyless=True,
    )
    swept = None
    if task.then_retains:
        store = LocalStore(directory)
        decision, after = plan_retain_loaded(
            store, log, config=config, cleaner=cleaner, now_ms=task.now_ms
        )
        commit(after.plan, store)
        swept = RetainResult.of(decision, after)
    return CleanAnswer(
        numbers={}
        if result.nothing_to_clean
        else {name: getattr(result, name) for name in NUMBERS},
        segments=swept.segments if swept else result.segments,
        cleaner_checkpoint=result.cleaner_checkpoint if task.first_dirty_offset is None else None,
        nothing_to_clean=result.nothing_to_clean,
        deleted_segments=swept.deleted_segments if swept else None,
    )
