"""States of partitions by hand, for the decisions over them."""

from collections.abc import Sequence
from typing import Any

from storage_core.filenames import LEADER_EPOCH_FILE
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState
from storage_core.maintenance.retention.plan import RetentionPlan, RetentionRules, plan_retention

NOW = 1_700_000_000_000
NO_LIMIT = -1


def segment(
    base_offset: int, size_bytes: int = 100, *, age_ms: int | None = 0, file_age_ms: int = 0
) -> ObservedSegment:
    """A segment; age_ms None for one without timestamps."""
    return ObservedSegment(
        base_offset=base_offset,
        size_bytes=size_bytes,
        modified_ms=NOW - file_age_ms,
        max_timestamp=-1 if age_ms is None else NOW - age_ms,
    )


def log_of(*segments: ObservedSegment, **changes: Any) -> PartitionState:
    """A log of these segments; by default it ends ten offsets behind the last one's base."""
    values: dict[str, Any] = {
        "location": "t-0",
        "segments": segments,
        "log_start_offset": segments[0].base_offset,
        "log_end": segments[-1].base_offset + 10,
        "file_names": frozenset(
            [LEADER_EPOCH_FILE, *(f"{segment.base_offset:020d}.log" for segment in segments)]
        ),
    }
    return PartitionState(**values | changes)


def rules(
    *, deletes: bool = True, retention_bytes: int = NO_LIMIT, retention_ms: int = NO_LIMIT
) -> RetentionRules:
    """Rules of a topic; no limits by default."""
    return RetentionRules(
        deletes=deletes, retention_bytes=retention_bytes, retention_ms=retention_ms
    )


def decide(state: PartitionState, now_ms: int = NOW, **limits: Any) -> RetentionPlan:
    """Decide at a clock."""
    return plan_retention(state, rules(**limits), now_ms=now_ms)


def removed(plan: RetentionPlan) -> Sequence[tuple[int, str]]:
    """Return base offset and predicate of what goes."""
    return [(r.segment.base_offset, r.predicate.value) for r in plan.removals]
