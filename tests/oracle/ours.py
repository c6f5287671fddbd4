"""A round that Kafka played, played again by us from the same bytes: everything has to agree."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.errors import PylogError
from storage_core.filenames import LOG_SUFFIX
from storage_core.maintenance.compaction.partition import clean_and_load
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.retention.partition import RetainResult, plan_retain_loaded
from storage_core.store.local import LocalStore
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.decode import decode_segment
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS
from tests.oracle.rounds import NUMBERS, CleanAnswer, CleanTask, PlayedRound

# Compressed batches that Kafka wrote anew have other bytes where the compressor's build differs.
NOT_IF_RECOMPRESSED = ("bytes_written",)


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


def compare_round(played: PlayedRound, exactness: Exactness) -> None:
    if played.answer is None:
        fails_too(played)
        return
    before = read_tree(played.before)
    answer = clean_by_us(played.before, played.task)
    kafkas, ours = read_tree(played.after), read_tree(played.before)
    differences = compare_partitions(kafkas, ours, exactness)
    assert not differences, "\n".join([str(played.task), *map(str, differences)])
    copied = batches_of(before) & batches_of(kafkas)
    assert copied <= batches_of(ours), "a batch that Kafka copies as it is was written anew"
    assert comparable(answer, exactness) == comparable(played.answer, exactness), played.task


def batches_of(tree: Mapping[str, bytes]) -> set[bytes]:
    """Return the bytes of every batch of a partition."""
    return {
        data[batch.position : batch.position + batch.size]
        for file, data in tree.items()
        if file.endswith(LOG_SUFFIX)
        for batch in decode_segment(data)[0]
    }


def fails_too(played: PlayedRound) -> None:
    """Where Kafka throws, we refuse with an error of ours and leave the partition alone."""
    before = read_tree(played.before)
    with pytest.raises(PylogError):
        clean_by_us(played.before, played.task)
    assert read_tree(played.before) == before, f"{played.task}: a failed round left changes"


def comparable(answer: CleanAnswer, exactness: Exactness) -> CleanAnswer:
    if exactness is Exactness.BYTES:
        return answer
    numbers = {k: v for k, v in answer.numbers.items() if k not in NOT_IF_RECOMPRESSED}
    return CleanAnswer(
        numbers=numbers,
        segments=answer.segments,
        cleaner_checkpoint=answer.cleaner_checkpoint,
        nothing_to_clean=answer.nothing_to_clean,
        deleted_segments=answer.deleted_segments,
    )
