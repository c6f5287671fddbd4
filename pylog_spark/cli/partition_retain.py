"""What ``pylog partition retain`` does once its arguments are read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pylog_spark.config.assignments import whole_config
from pylog_spark.text import to_json
from storage_core.commit import Plan
from storage_core.maintenance.retention.partition import plan_retain, retain_partition
from storage_core.maintenance.retention.plan import RetentionPlan
from storage_core.store import LocalStore


def run_retain(
    directory: Path,
    *,
    now_ms: int,
    settings: Sequence[str],
    high_watermark: int | None,
    log_start_offset: int | None,
    dry_run: bool,
) -> str:
    """Make the deletion pass, or say what it would do; return the answer as one JSON object.

    Raises:
        PylogError: As ``retain_partition``.
    """
    config, cleaner = whole_config(settings)
    if not dry_run:
        return retain_partition(
            directory,
            config=config,
            cleaner=cleaner,
            now_ms=now_ms,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        ).to_json()
    store = LocalStore(directory)
    decision, log = plan_retain(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
    )
    plan = Plan(location=store.location, operations=log.operations)
    answer = {
        "dry_run": True,
        "deleted_segments": len(decision.removals),
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "segments": len(log.segments),
        "size": log.size_bytes,
    }
    return to_json(answer | describe_decision(decision) | {"operations": list(plan.describe())})


def describe_decision(decision: RetentionPlan) -> dict[str, Any]:
    """Return what goes and why, and what keeps the rest, as plain values."""
    return {
        "removals": [
            {
                "base_offset": removal.segment.base_offset,
                "size_bytes": removal.segment.size_bytes,
                "reason": removal.predicate.value,
            }
            for removal in decision.removals
        ],
        "blocks": [asdict(block) for block in decision.blocks],
        "percent_of_retention_bytes": decision.percent_of_retention_bytes,
    }
