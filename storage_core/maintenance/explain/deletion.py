"""Why segments are not deleted: retention's three predicates, with their numbers."""

from dataclasses import dataclass

from storage_core.maintenance.explain.answers import (
    About,
    Answer,
    Number,
    PredicateResult,
    Statement,
    tells,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.plan import (
    Block,
    Hold,
    Predicate,
    RetentionPlan,
    RetentionRules,
)
from storage_core.wording import count_text, span_text, time_text

_ABOUT = About.DELETION
_NAMES = {
    Predicate.LOG_START: "below the log start offset",
    Predicate.SIZE: "retention.bytes",
    Predicate.TIME: "retention.ms",
}


def explain_deletion(
    state: PartitionState, plan: RetentionPlan, rules: RetentionRules, *, now_ms: int
) -> tuple[Answer, list[Statement]]:
    """Explain what retention would remove, and what keeps the rest.

    Args:
        state: The partition, as far as retention looked.
    """
    look = _ExplainedPlan(state=state, plan=plan, rules=rules, now_ms=now_ms)
    statements = [look.statement(block) for block in plan.blocks]
    statements += [
        tells(
            _ABOUT,
            "REMOVABLE",
            f"segment {removal.segment.base_offset} of {removal.segment.size_bytes} bytes goes: "
            f"{_NAMES[removal.predicate]}",
            base_offset=removal.segment.base_offset,
            size_bytes=removal.segment.size_bytes,
            predicate=removal.predicate.value,
        )
        for removal in plan.removals
    ]
    if plan.removals:
        text = (
            f"due: {count_text(len(plan.removals), 'segment')} of {plan.removed_bytes} bytes, "
            f"the log start offset rises from {plan.old_log_start_offset} to "
            f"{plan.log_start_offset}"
        )
        return Answer(about=_ABOUT, is_due=True, held_by=None, text=text), statements
    if not rules.deletes:
        text = "cleanup.policy has no delete: only segments below the log start offset go"
        until = "cleanup.policy has delete in it, or the log start offset rises (delete-records)"
        held = Answer(about=_ABOUT, is_due=False, held_by="NOT_DELETED", text=text, condition=until)
        return held, statements
    return _held(plan, statements), statements


def _held(plan: RetentionPlan, statements: list[Statement]) -> Answer:
    """Return the answer without removals: the first predicate to let go."""
    blocked = plan.blocked_by
    place = plan.blocks.index(blocked)
    statement = statements[place]
    waiting = [s for s in statements if s.until_ms is not None]
    from_ms = min((s.until_ms for s in waiting if s.until_ms is not None), default=None)
    conditions = [s.until for s in statements if s.until]
    return Answer(
        about=_ABOUT,
        is_due=False,
        held_by=statement.code,
        text=statement.text,
        from_ms=from_ms,
        condition=statement.until or (conditions[0] if from_ms is None and conditions else ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExplainedPlan:
    """One partition, its plan and its topic's rules."""

    state: PartitionState
    plan: RetentionPlan
    rules: RetentionRules
    now_ms: int

    def statement(self, block: Block) -> Statement:
        """Return where a predicate stopped, with its numbers."""
        text, until = self._describe(block)
        facts: dict[str, Number] = {
            "predicate": block.predicate.value,
            "base_offset": block.base_offset,
            "timestamp": block.timestamp,
            "wait_ms": block.wait_ms,
            "log_start_offset": self.state.log_start_offset,
            "high_watermark": self.state.high_watermark,
            "retention_bytes": self.rules.size_limit,
            "retention_ms": self.rules.age_limit_ms,
            "size_bytes": self.state.size_bytes,
        }
        return Statement(
            about=_ABOUT,
            code=f"{block.predicate.value}_{block.hold.value}",
            verdict=PredicateResult.BLOCKS,
            text=text,
            facts={name: value for name, value in facts.items() if value is not None},
            until=until,
            until_ms=None if block.wait_ms is None else self.now_ms + block.wait_ms,
        )

    def _describe(self, block: Block) -> tuple[str, str]:
        """Return (text, condition)."""
        place = f"segment {block.base_offset}"
        timestamp, name = block.timestamp or 0, _NAMES[block.predicate]
        until = ""
        match block.hold:
            case Hold.NOT_ASKED:
                text, until = self._not_asked(block.predicate)
            case Hold.LAST_SEGMENT:
                text = f"{name}: what is left is the active segment, which stays"
                until = "records are appended and a new segment is rolled"
            case Hold.ABOVE_LOG_START:
                text = f"{place} reaches above the log start offset {self.state.log_start_offset}"
                until = "the log start offset rises (delete-records), or another rule lets it go"
            case Hold.WITHIN_SIZE:
                text, until = self._within_size(block)
            case Hold.HIGH_WATERMARK:
                text = (
                    f"{place} would go by {name}, but it is not wholly below the high watermark "
                    f"{self.state.high_watermark}"
                )
                until = f"the high watermark rises above the end of {place}"
            case Hold.FUTURE_TIMESTAMP:
                text = (
                    f"{place} has a record {span_text(timestamp - self.now_ms)} in the future, of "
                    f"{time_text(timestamp)}: it and every segment after it stay until that is "
                    f"older than retention.ms {self._age_limit()}"
                )
            case _:
                text = (
                    f"the newest record of {place} is {span_text(self.now_ms - timestamp)} old, of "
                    f"{time_text(timestamp)}; retention.ms is {self._age_limit()}"
                )
        return text, until

    def _age_limit(self) -> str:
        limit_ms = self.rules.age_limit_ms
        return str(limit_ms) if limit_ms is None else f"{limit_ms} ({span_text(limit_ms)})"

    def _not_asked(self, predicate: Predicate) -> tuple[str, str]:
        name = _NAMES[predicate]
        if not self.rules.deletes:
            return (
                f"{name} does not count: cleanup.policy has no delete",
                "cleanup.policy has delete in it",
            )
        rules = self.rules
        limit = rules.retention_bytes if predicate is Predicate.SIZE else rules.retention_ms
        return f"{name} is {limit}: no limit", f"{name} is set"

    def _within_size(self, block: Block) -> tuple[str, str]:
        limit = self.rules.size_limit or 0
        sizes = {segment.base_offset: segment.size_bytes for segment in self.state.segments}
        removed = [r.segment for r in self.plan.removals if r.predicate is not Predicate.TIME]
        remaining = self.state.size_bytes - sum(segment.size_bytes for segment in removed)
        own = 0 if block.base_offset is None else sizes.get(block.base_offset, 0)
        percent = remaining * 100 // limit if limit else 0
        text = (
            f"the log has {remaining} bytes, {percent} % of retention.bytes {limit}: without "
            f"segment {block.base_offset} it would have less than that"
        )
        return text, f"the log grows by {limit + own - remaining} bytes"
