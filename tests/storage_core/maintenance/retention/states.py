"""States of partitions by hand, for the decisions over them."""

from collections.abc import Sequence
from typing import Any

from storage_core.maintenance.retention.plan import RetentionPlan, plan_retention
from storage_core.maintenance.retention.state import (
    RetentionRules,
    RetentionSegment,
    RetentionState,
)

NOW = 1_700_000_000_000
NO_LIMIT = -1


def segment(
    base_offset: int, size_bytes: int = 100, *, age_ms: int | None = 0, file_age_ms: int = 0
) -> RetentionSegment:
    """A segment; age_ms None for one without timestamps."""
    return RetentionSegment(
        base_offset=base_offset,
        size_bytes=size_bytes,
        modified_ms=NOW - file_age_ms,
        files=(f"{base_offset:020d}.log",),
        max_timestamp=-1 if age_ms is None else NOW - age_ms,
    )


def log_of(*segments: RetentionSegment, **changes: Any) -> RetentionState:
    """A log of these segments; by default it ends ten offsets behind the last one's base."""
    values: dict[str, Any] = {
        "location": "t-0",
        "segments": segments,
        "log_start_offset": segments[0].base_offset,
        "log_end_offset": segments[-1].base_offset + 10,
        "high_watermark": None,
        "snapshot_offsets": frozenset(),
        "leftovers": (),
        "has_epoch_file": True,
    }
    return RetentionState(**values | changes)


def rules(
    *, deletes: bool = True, retention_bytes: int = NO_LIMIT, retention_ms: int = NO_LIMIT
) -> RetentionRules:
    """Rules of a topic; no limits by default."""
    return RetentionRules(
        deletes=deletes, retention_bytes=retention_bytes, retention_ms=retention_ms
    )


def decide(state: RetentionState, now_ms: int = NOW, **limits: Any) -> RetentionPlan:
    """Decide at a clock."""
    return plan_retention(state, rules(**limits), now_ms=now_ms)


def removed(plan: RetentionPlan) -> Sequence[tuple[int, str]]:
    """Return base offset and predicate of what goes."""
    return [(r.segment.base_offset, r.predicate.value) for r in plan.removals]
