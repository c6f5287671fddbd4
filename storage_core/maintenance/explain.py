"""Explain one partition directory: cleaning, deletion and size."""

import enum
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    ContradictedAgeError,
    NegativeTimestampError,
    PylogError,
    RecoveryRequiredError,
    StorageError,
)
from storage_core.filenames import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    kind_of,
    offset_of,
    sorted_logs,
)
from storage_core.log.log_loader import LogLoader
from storage_core.log.open_transactions import OpenTransaction, list_open_transactions
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.log.settled_store import PlannedStore, settle
from storage_core.maintenance.compaction.partition import load_for_round, refuse_negative_timestamps
from storage_core.maintenance.compaction.plan import (
    CleanableRange,
    CleanRequest,
    choose_range,
    plan_compaction,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.partition import SweepRequest, check_ages, observe_retention
from storage_core.maintenance.retention.plan import (
    Block,
    Hold,
    Predicate,
    RetentionPlan,
    RetentionRules,
    plan_retention,
)
from storage_core.roots.remote_logs import Uploads
from storage_core.store.base import FileInfo, LogStore
from storage_core.wording import count_text, span_text, time_text

# The parts of an explanation: predicates with numbers, and answers.

Number = int | float | str | bool | None


class About(enum.StrEnum):
    """The question of a statement: why not cleaned, not deleted, or big."""

    CLEANING = "cleaning"
    DELETION = "deletion"
    SIZE = "size"


class PredicateResult(enum.StrEnum):
    """The outcome of a predicate."""

    PASSES = "passes"  # it passes
    BLOCKS = "blocks"  # it blocks
    TELLS = "tells"  # a fact that decides nothing by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One predicate of a decision, or one part of a size."""

    about: About
    code: str  # stable code of the predicate
    verdict: PredicateResult
    text: str  # the same for a person, with the numbers
    facts: Mapping[str, Number] = field(default_factory=dict)
    # When it changes by itself, epoch milliseconds; None where time does not do it.
    until_ms: int | None = None
    until: str = ""  # the event that changes it; empty if none is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer that follows from the predicates of one decision."""

    about: About
    is_due: bool  # whether something would be done now
    held_by: str | None  # code of the predicate that holds it back; None where it is due
    text: str
    # From when on it will be, if nothing is appended, epoch milliseconds; None where only an event
    # changes it, and where it is due.
    from_ms: int | None = None
    condition: str = ""  # the event; empty where none is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one partition is as it is."""

    # Answers about cleaning and deletion, in this order; the asked one first.
    answers: tuple[Answer, ...]
    statements: tuple[Statement, ...]  # all predicates, in the order in which Kafka asks
    after_recovery: tuple[Answer, ...] = ()


def blocks(
    about: About,
    code: str,
    text: str,
    *,
    until: str = "",
    until_ms: int | None = None,
    **facts: Number,
) -> Statement:
    """Return a predicate that stands in the way."""
    return Statement(
        about=about,
        code=code,
        verdict=PredicateResult.BLOCKS,
        text=text,
        facts=facts,
        until=until,
        until_ms=until_ms,
    )


def passes(about: About, code: str, text: str, **facts: Number) -> Statement:
    """Return a predicate that does not stand in the way."""
    return Statement(about=about, code=code, verdict=PredicateResult.PASSES, text=text, facts=facts)


def tells(about: About, code: str, text: str, **facts: Number) -> Statement:
    """Return a fact."""
    return Statement(about=about, code=code, verdict=PredicateResult.TELLS, text=text, facts=facts)


def held_back(statement: Statement) -> Answer:
    """Return the answer where one predicate alone holds it back."""
    return Answer(
        about=statement.about,
        is_due=False,
        held_by=statement.code,
        text=statement.text,
        from_ms=statement.until_ms,
        condition=statement.until,
    )


def held_until_recovery(after: Explanation, code: str, text: str, until: str) -> Explanation:
    """Return the explanation before a recovery from the one after it.

    Args:
        code: Why there has to be one, as the stable code of a predicate.
        text: The same for a person.
        until: The event that ends the wait.
    """

    def told(answer: Answer) -> str:
        if answer.is_due:
            return f"due: {answer.text}"
        when = f"; will be: when {answer.condition}" if answer.condition else ""
        return f"not due ({answer.held_by}): {answer.text}{when}"

    return Explanation(
        answers=tuple(
            Answer(
                about=answer.about,
                is_due=False,
                held_by=code,
                text=f"{text}; after a recovery it would be {told(answer)}",
                condition=until,
            )
            for answer in after.answers
        ),
        statements=(
            *(blocks(answer.about, code, text, until=until) for answer in after.answers),
            *after.statements,
        ),
        after_recovery=after.answers,
    )


def unknowable(code: str, text: str, until: str) -> Explanation:
    """Return the explanation of a partition without decisions: nothing is done.

    Args:
        code: Why, as a stable code.
        text: The same for a person.
        until: The event that changes it.
    """
    both = (About.CLEANING, About.DELETION)
    return Explanation(
        answers=tuple(
            Answer(about=about, is_due=False, held_by=code, text=text, condition=until)
            for about in both
        ),
        statements=tuple(blocks(about, code, text, until=until) for about in both),
    )


# Why a log is not cleaned: LogCleanerManager's predicates with their numbers.

_ABOUT_CLEANING = About.CLEANING


@dataclass(frozen=True, slots=True, kw_only=True)
class _CleaningLimit:
    """One of the offsets at which cleaning has to stop."""

    code: str
    offset: int
    text: str
    until: str  # the event that moves it
    until_ms: int | None = None  # when it moves by itself, None where it does not


def explain_cleaning(
    state: PartitionState,
    config: LogConfig,
    request: CleanRequest,
    cleanable: CleanableRange,
    *,
    producers: Iterable[ProducerEntry],
) -> tuple[Answer, list[Statement]]:
    """Explain whether a log is due for cleaning, or when next."""
    if not config.is_compacted:
        policy = ",".join(sorted(config.cleanup_policy)) or "nothing"
        text = f"cleanup.policy is {policy}: such a log is never compacted"
        until = "cleanup.policy has compact in it"
        statement = blocks(_ABOUT_CLEANING, "NOT_COMPACTED", text, until=until, policy=policy)
        return held_back(statement), [statement]
    transactions = list_open_transactions(producers, now_ms=request.now_ms)
    bounds = [_stable_bound(state, transactions), _active_bound(state, config, request.now_ms)]
    if cleanable.first_young_offset is not None:
        bounds.append(_young_bound(state, config, request, cleanable.first_young_offset))
    bounds.sort(key=lambda bound: bound.offset)
    statements = [
        passes(
            _ABOUT_CLEANING,
            "POLICY",
            f"cleanup.policy is {','.join(sorted(config.cleanup_policy))}",
        ),
        _start(state, request, cleanable),
        *_bound_statements(bounds, cleanable),
    ]
    lag = _max_lag(config, request, cleanable)
    ratio = _ratio(config, cleanable)
    statements += [lag, ratio]
    if cleanable.is_due:
        text = (
            f"due: {cleanable.cleanable_bytes} dirty bytes from offset "
            f"{cleanable.first_dirty_offset} to {cleanable.first_uncleanable_offset}"
        )
        return Answer(about=_ABOUT_CLEANING, is_due=True, held_by=None, text=text), statements
    return _not_due(config, cleanable, bounds, (lag, ratio)), statements


def _start(state: PartitionState, request: CleanRequest, cleanable: CleanableRange) -> Statement:
    first = cleanable.first_dirty_offset
    if cleanable.checkpoint_is_invalid:
        text = (
            f"the cleaner checkpoint {request.checkpoints.cleaner_offset} lies outside of the log "
            f"[{state.log_start_offset}, {state.log_end_offset}]: cleaning begins anew at {first}"
        )
    elif request.checkpoints.cleaner_offset is None:
        text = f"never cleaned before: all from the log start offset {first} on is dirty"
    else:
        text = f"cleaned up to offset {first}, as the cleaner checkpoint says"
    return tells(_ABOUT_CLEANING, "FIRST_DIRTY_OFFSET", text, first_dirty_offset=first)


def _stable_bound(state: PartitionState, open_ones: Sequence[OpenTransaction]) -> _CleaningLimit:
    """Return the last stable offset as a bound, with its cause. A transaction or the high
    watermark holds it."""
    if open_ones and open_ones[0].first_offset == state.last_stable_offset:
        oldest = open_ones[0]
        late = (
            "; its coordinator should have ended it by now: it may hang for ever, "
            "`kafka-transactions.sh abort` ends it"
            if oldest.is_late
            else ""
        )
        more = f" ({len(open_ones)} are open)" if len(open_ones) > 1 else ""
        return _CleaningLimit(
            code="OPEN_TRANSACTION",
            offset=state.last_stable_offset,
            text=(
                f"the last stable offset is {state.last_stable_offset}: the transaction of "
                f"producer {oldest.producer_id} (epoch {oldest.producer_epoch}) has been open "
                f"since offset {oldest.first_offset}, its last batch is "
                f"{span_text(oldest.age_ms)} old{more}{late}"
            ),
            until=f"the transaction of producer {oldest.producer_id} is committed or aborted",
        )
    return _CleaningLimit(
        code="HIGH_WATERMARK",
        offset=state.last_stable_offset,
        text=(
            f"the last stable offset is {state.last_stable_offset}, held by the high watermark "
            f"{state.high_watermark}; the log ends at {state.log_end_offset}"
        ),
        until=f"the high watermark rises above {state.high_watermark}",
    )


def _active_bound(state: PartitionState, config: LogConfig, now_ms: int) -> _CleaningLimit:
    active = state.active_segment
    rolls_ms = None
    if active.first_batch_timestamp > 0:
        rolls_ms = active.first_batch_timestamp + config.segment_ms
    when = "it is full, or the next append comes after segment.ms"
    age = "" if rolls_ms is None else f", of segment.ms {config.segment_ms} since its first batch"
    passed = "" if rolls_ms is None or rolls_ms > now_ms else " (that time is over)"
    return _CleaningLimit(
        code="ACTIVE_SEGMENT",
        offset=active.base_offset,
        text=(
            f"the active segment begins at {active.base_offset} and is never cleaned: it has "
            f"{active.size_bytes} of segment.bytes {config.segment_bytes}{age}{passed}"
        ),
        until=f"a broker rolls the active segment: {when}",
    )


def _young_bound(
    state: PartitionState, config: LogConfig, request: CleanRequest, base_offset: int
) -> _CleaningLimit:
    lag_ms = config.min_compaction_lag_ms
    (newest_ms,) = (s.largest_timestamp for s in state.segments if s.base_offset == base_offset)
    return _CleaningLimit(
        code="MIN_COMPACTION_LAG",
        offset=base_offset,
        text=(
            f"the newest record of segment {base_offset} is "
            f"{span_text(request.now_ms - newest_ms)} old, "
            f"min.compaction.lag.ms is {lag_ms} ({span_text(lag_ms)})"
        ),
        until="",
        until_ms=newest_ms + lag_ms,
    )


def _bound_statements(
    bounds: Sequence[_CleaningLimit], cleanable: CleanableRange
) -> list[Statement]:
    """Return the bounds in rising order; the lowest ends the range."""
    statements = []
    for number, bound in enumerate(bounds):
        is_end = number == 0
        facts = {"offset": bound.offset, "ends_range": is_end}
        end = f": cleaning stops at {cleanable.first_uncleanable_offset}" if is_end else ""
        statements.append(
            Statement(
                about=_ABOUT_CLEANING,
                code=bound.code,
                verdict=PredicateResult.TELLS,
                text=bound.text + end,
                facts=facts,
                until=bound.until,
                until_ms=bound.until_ms,
            )
        )
    return statements


def _max_lag(config: LogConfig, request: CleanRequest, cleanable: CleanableRange) -> Statement:
    limit_ms = config.max_compaction_lag_ms
    if not config.limits_compaction_lag:
        return tells(_ABOUT_CLEANING, "MAX_COMPACTION_LAG", "max.compaction.lag.ms sets no limit")
    oldest_ms = cleanable.oldest_dirty_timestamp
    if oldest_ms is None:
        return tells(
            _ABOUT_CLEANING, "MAX_COMPACTION_LAG", "no closed segment is dirty", limit_ms=limit_ms
        )
    age_ms = request.now_ms - oldest_ms
    text = (
        f"what is dirty began {span_text(age_ms)} ago, max.compaction.lag.ms is {limit_ms} "
        f"({span_text(limit_ms)})"
    )
    if age_ms > limit_ms:
        return passes(_ABOUT_CLEANING, "MAX_COMPACTION_LAG", text, age_ms=age_ms, limit_ms=limit_ms)
    return blocks(
        _ABOUT_CLEANING,
        "MAX_COMPACTION_LAG",
        text,
        until_ms=oldest_ms + limit_ms + 1,
        age_ms=age_ms,
        limit_ms=limit_ms,
    )


def _ratio(config: LogConfig, cleanable: CleanableRange) -> Statement:
    clean, dirty, limit = (
        cleanable.clean_bytes,
        cleanable.cleanable_bytes,
        config.min_cleanable_dirty_ratio,
    )
    ratio = cleanable.cleanable_ratio
    text = (
        f"{dirty} of {clean + dirty} bytes are dirty: a ratio of {ratio:.3f}, "
        f"min.cleanable.dirty.ratio is {limit:g}"
    )
    facts: dict[str, Number] = {
        "dirty_bytes": dirty,
        "clean_bytes": clean,
        "ratio": round(ratio, 6),
        "limit": limit,
    }
    if ratio > limit:
        return replace(passes(_ABOUT_CLEANING, "DIRTY_RATIO", text), facts=facts)
    # No number of dirty bytes brings the ratio above a limit of 1.
    missing = None if limit >= 1 else max(1, math.floor(limit * clean / (1 - limit)) + 1 - dirty)
    until = (
        "the ratio is lowered: no log is dirtier than wholly"
        if missing is None
        else f"{missing} more bytes are dirty and cleanable, or the ratio is lowered"
    )
    facts["missing_bytes"] = missing
    return replace(blocks(_ABOUT_CLEANING, "DIRTY_RATIO", text, until=until), facts=facts)


def _not_due(
    config: LogConfig,
    cleanable: CleanableRange,
    bounds: Sequence[_CleaningLimit],
    last: tuple[Statement, Statement],
) -> Answer:
    """Say what keeps a log from cleaning: a bound or the ratio. A bound does, if the log would
    be due without it."""
    lag, ratio = last
    dirty = cleanable.dirty_bytes
    total = cleanable.clean_bytes + dirty
    if not dirty:
        text = "nothing was appended since the log was cleaned"
        return Answer(
            about=_ABOUT_CLEANING,
            is_due=False,
            held_by="NOTHING_TO_CLEAN",
            text=text,
            condition="something is appended",
        )
    if dirty / total > config.min_cleanable_dirty_ratio and dirty > cleanable.cleanable_bytes:
        bound = bounds[0]
        share = (
            f"{dirty} bytes are dirty, of these only {cleanable.cleanable_bytes} may be cleaned: "
        )
        return Answer(
            about=_ABOUT_CLEANING,
            is_due=False,
            held_by=bound.code,
            text=share + bound.text,
            from_ms=bound.until_ms,
            condition=bound.until,
        )
    # Whichever is first: enough dirty bytes, or the maximum lag.
    from_ms = lag.until_ms if cleanable.cleanable_bytes else None
    return Answer(
        about=_ABOUT_CLEANING,
        is_due=False,
        held_by=ratio.code,
        text=ratio.text,
        from_ms=from_ms,
        condition=ratio.until,
    )


# Why segments are not deleted: retention's three predicates, with their numbers.

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


def explain_tiered(store: LogStore, uploads: Uploads) -> Explanation:
    """Explain a partition of a tiered topic: a broker alone deletes there.

    Args:
        uploads: What the brokers said of its segments.
    """
    end = uploads.end_offset
    text = "the topic is tiered: its brokers delete segments here once they are in the tier"
    if uploads.gap:
        text += f"; {uploads.gap}"
    elif end is not None:
        bases = [offset_of(name) or 0 for name in sorted_logs(f.name for f in store.list_files())]
        count = sum(behind <= end for behind in bases[1:])
        text += (
            f"; by {uploads.source} it has the offsets below {end}, "
            f"{count} of {count_text(len(bases), 'segment')} here"
        )
    elif uploads.source:
        text += f"; by {uploads.source} it has none"
    return unknowable("TIERED", text, "the topic is not tiered any more")


def explain_partition(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    max_timestamps: Mapping[int, int] | None = None,
    is_closed: bool = True,
) -> Explanation:
    """Explain a partition; nothing is written, no record is read.

    Args:
        config: Of a topic that is not tiered.
        cleaner: Settings of compaction that do not belong to a topic.
        max_timestamps: Largest timestamps, as for `SweepRequest`.
        is_closed: Whether the log is closed, as for `SweepRequest`.
    """
    listing = store.list_files()
    try:
        store = settle(store)
        log = load_for_round(store, config, cleaner, request)
    except RecoveryRequiredError as error:
        return unknowable("RECOVERY_REQUIRED", str(error), "the partition is recovered")
    except PylogError as error:
        text = f"the log cannot be loaded: {error}"
        return unknowable("UNCLEANABLE", text, "what is wrong with its files is mended")
    loaded = PartitionState.of_log(log)
    cleanable = choose_range(loaded, config, request)
    cleaning, statements = explain_cleaning(
        loaded, config, request, cleanable, producers=log.producers
    )
    if cleanable.is_due and cleaner.enabled:
        round_ = plan_compaction(
            log, config, cleaner, cleanable, now_ms=request.now_ms, hash_key=secrets.token_bytes(16)
        )
        try:
            refuse_negative_timestamps(store, round_)
        except NegativeTimestampError as error:
            negative = blocks(
                About.CLEANING,
                "NEGATIVE_TIMESTAMP",
                f"{error}; Kafka's cleaner gives the log up there",
                until="the record is gone, or --set keep.negative.timestamps=true is said",
            )
            cleaning, statements = held_back(negative), [negative, *statements]
    if config.is_compacted and not cleaner.enabled:
        off = blocks(
            About.CLEANING,
            "CLEANER_DISABLED",
            "log.cleaner.enable is false: nothing is compacted",
            until="log.cleaner.enable is true",
        )
        cleaning, statements = held_back(off), [off, *statements]
    rules = RetentionRules.of(config)
    sweep = SweepRequest(
        now_ms=request.now_ms,
        checkpoints=request.checkpoints,
        max_timestamps=max_timestamps,
        is_closed=is_closed,
    )
    state = observe_retention(store, config, cleaner, sweep)
    plan = plan_retention(state, rules, now_ms=request.now_ms)
    deletion, more = explain_deletion(state, plan, rules, now_ms=request.now_ms)
    removable_bytes = plan.removed_bytes
    try:
        check_ages(store, state.names, rules, plan, now_ms=request.now_ms, is_closed=is_closed)
    except ContradictedAgeError as error:
        age = blocks(
            About.DELETION,
            "AGE_CONTRADICTED",
            f"{error}; a broker deletes the segment all the same",
            until="its time index is rebuilt",
        )
        # What would go is no statement then.
        more = [age, *(each for each in more if each.code != "REMOVABLE")]
        deletion, removable_bytes = held_back(age), 0
    sizes = _explain_size(
        listing,
        loaded,
        config,
        first_dirty_offset=cleanable.first_dirty_offset if config.is_compacted else None,
        removable_bytes=removable_bytes,
    )
    return Explanation(answers=(cleaning, deletion), statements=(*statements, *more, *sizes))


def _explain_size(
    files: Iterable[FileInfo],
    state: PartitionState,
    config: LogConfig,
    *,
    first_dirty_offset: int | None,
    removable_bytes: int,
) -> list[Statement]:
    """Return statements about the bytes of a partition directory.

    Args:
        first_dirty_offset: Where its dirty section begins, None for a log that is not compacted.
        removable_bytes: Bytes that retention would remove now.
    """
    listed = list(files)
    records = sum(file.size_bytes for file in listed if kind_of(file.name) == LOG_SUFFIX)
    waiting = sum(file.size_bytes for file in listed if file.name.endswith(DELETED_SUFFIX))
    others = sum(file.size_bytes for file in listed) - records - waiting
    active = state.active_segment
    statements = [
        tells(
            About.SIZE,
            "RECORDS",
            f"{records} bytes of records in {count_text(len(state.segments), 'segment')}, "
            f"{others} bytes of indexes and small files beside them",
            records_bytes=records,
            other_bytes=others,
            segments=len(state.segments),
        ),
        tells(
            About.SIZE,
            "ACTIVE_SEGMENT",
            f"{active.size_bytes} bytes are in the active segment: compaction never takes them, "
            "retention only with all others",
            active_bytes=active.size_bytes,
            segment_bytes=config.segment_bytes,
        ),
    ]
    if first_dirty_offset is not None:
        closed = [s for s in state.segments if s is not active]
        clean = sum(s.size_bytes for s in closed if s.base_offset < first_dirty_offset)
        dirty = sum(s.size_bytes for s in closed) - clean
        text = (
            f"{clean} bytes were cleaned before: one record of each key is left; {dirty} bytes in "
            "closed segments were not"
        )
        statements.append(tells(About.SIZE, "DIRTY", text, clean_bytes=clean, dirty_bytes=dirty))
    if removable_bytes:
        text = f"{removable_bytes} bytes would go by retention now"
        statements.append(tells(About.SIZE, "REMOVABLE", text, removable_bytes=removable_bytes))
    below = [
        s
        for s, following in zip(state.segments, state.segments[1:], strict=False)
        if following.base_offset <= state.log_start_offset
    ]
    if below:
        size = sum(s.size_bytes for s in below)
        text = f"{size} bytes lie below the log start offset {state.log_start_offset}, unreadable"
        statements.append(tells(About.SIZE, "BELOW_LOG_START", text, unreadable_bytes=size))
    if waiting:
        text = (
            f"{waiting} bytes are in .deleted files, which a broker's start or `pylog purge` "
            "removes"
        )
        statements.append(tells(About.SIZE, "WAITING_FOR_PURGE", text, deleted_bytes=waiting))
    return statements


def explain_after_recovery(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    recovery_point: int,
) -> Explanation:
    """Explain an unclean log directory's partition as after the broker's recovery.

    The recovery is planned, as a broker makes it, and nothing of it written: the segments from the
    recovery point on are read.

    Args:
        cleaner: Settings of compaction that do not belong to a topic.
        recovery_point: The partition's entry in the recovery-point checkpoint, 0 without one.
    """
    loader = LogLoader(
        settle(store),
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
        recovery_point=recovery_point,
    )
    try:
        loading = loader.load()
        repairs = loading.close().repairs
    except StorageError:
        raise
    except PylogError as error:
        text = f"a recovery would fail: {error}"
        return unknowable("UNCLEANABLE", text, "what is wrong with its files is mended")
    explanation = explain_partition(
        PlannedStore(loading.view), config=config, cleaner=cleaner, request=request
    )
    text = (
        f"a recovery would read {repairs.scanned_bytes} bytes, rebuild the indexes of "
        f"{count_text(len(repairs.rebuilt), 'segment')} and lose {repairs.lost_bytes} bytes "
        "of records"
    )
    recovery = tells(
        About.SIZE,
        "RECOVERY",
        text,
        scanned_bytes=repairs.scanned_bytes,
        rebuilt_segments=len(repairs.rebuilt),
        lost_bytes=repairs.lost_bytes,
    )
    return replace(explanation, statements=(*explanation.statements, recovery))
