"""What ``pylog partition clean`` does once its arguments are read."""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pylog_spark.config.assignments import whole_config
from pylog_spark.text import to_json
from storage_core.commit import Plan
from storage_core.config import (
    KAFKA_DEDUPE_BUFFER_BYTES,
    CleanerConfig,
    LogConfig,
)
from storage_core.maintenance.compaction.candidates import choose_range
from storage_core.maintenance.compaction.partition import clean_and_load
from storage_core.maintenance.compaction.plan import group_segments, plan_compaction
from storage_core.maintenance.compaction.request import CleanRequest, load_for_round
from storage_core.maintenance.retention.partition import retain_loaded
from storage_core.store import LocalStore

# A dry run groups segments and reads no record, so no key is ever hashed with this.
_UNUSED_HASH_KEY = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanArguments:
    """What the command line says; None where it says nothing.

    Attributes:
        directory: The partition directory.
        now_ms: The clock, epoch milliseconds.
        settings: ``--set``, each ``KEY=VALUE``: the whole config.
        first_dirty_offset: Start of a range of the caller's choice.
        first_uncleanable_offset: End of that range.
        cleaner_checkpoint: The partition's entry in the cleaner checkpoint.
        high_watermark: None for the log end offset.
        log_start_offset: The partition's entry in the log-start checkpoint.
        cleaner: Fields of CleanerConfig that have options of their own.
        then_retain: Whether the deletion pass follows, as in a cleaner thread.
        dry_run: Whether to say only what would be done.
    """

    directory: Path
    now_ms: int
    settings: tuple[str, ...]
    first_dirty_offset: int | None
    first_uncleanable_offset: int | None
    cleaner_checkpoint: int | None
    high_watermark: int | None
    log_start_offset: int | None
    cleaner: Mapping[str, Any]
    then_retain: bool
    dry_run: bool


def run_clean(arguments: CleanArguments) -> str:
    """Clean the partition, or say what would be done; return the answer as one JSON object.

    Raises:
        PylogError: As ``clean_partition``.
    """
    config, cleaner = whole_config(arguments.settings)
    sizes = dict(arguments.cleaner)
    if cleaner.dedupe_buffer_bytes is None:
        # As Kafka: the map has a size here, unlike in the jobs.
        sizes.setdefault("dedupe_buffer_bytes", KAFKA_DEDUPE_BUFFER_BYTES)
    cleaner = dataclasses.replace(cleaner, **sizes)
    request = CleanRequest(
        now_ms=arguments.now_ms,
        high_watermark=arguments.high_watermark,
        log_start_offset=arguments.log_start_offset,
        cleaner_checkpoint=arguments.cleaner_checkpoint,
        first_dirty_offset=arguments.first_dirty_offset,
        first_uncleanable_offset=arguments.first_uncleanable_offset,
    )
    if arguments.dry_run:
        return to_json(_describe(arguments.directory, config, cleaner, request))
    directory = arguments.directory
    result, log = clean_and_load(directory, config=config, cleaner=cleaner, request=request)
    if not arguments.then_retain:
        return result.to_json()
    swept = retain_loaded(directory, log, config=config, cleaner=cleaner, now_ms=request.now_ms)
    return to_json(asdict(result) | asdict(swept))


def _describe(
    directory: Path, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> dict[str, Any]:
    """Return what a round would do, as far as that is known without reading records."""
    store = LocalStore(directory)
    log = load_for_round(store, config, cleaner, request)
    cleanable = choose_range(log, config, request)
    answer = {
        "dry_run": True,
        "nothing_to_clean": not cleanable.is_due,
        "reason": cleanable.not_due,
        "first_dirty_offset": cleanable.first_dirty_offset,
        "first_uncleanable_offset": cleanable.first_uncleanable_offset,
        "clean_bytes": cleanable.clean_bytes,
        "cleanable_bytes": cleanable.cleanable_bytes,
        "cleanable_ratio": cleanable.cleanable_ratio,
        "segments": len(log.segments),
        "size": log.size_bytes,
    }
    groups = []
    if cleanable.is_due:
        plan = plan_compaction(
            log, config, cleaner, cleanable, now_ms=request.now_ms, hash_key=_UNUSED_HASH_KEY
        )
        groups = group_segments(plan, plan.first_uncleanable_offset)
    load = Plan(location=store.location, operations=log.operations)
    return answer | {
        "groups": [[segment.base_offset for segment in group] for group in groups],
        "peak_extra_bytes": sum(segment.size_bytes for group in groups for segment in group),
        "load_operations": list(load.describe()),
    }
