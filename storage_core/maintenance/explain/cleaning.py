"""Why a log is not cleaned: LogCleanerManager's predicates with their numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storage_core.config import LogConfig
from storage_core.log.open_transactions import OpenTransaction, list_open_transactions
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.maintenance.compaction.plan import CleanableRange, CleanRequest
from storage_core.maintenance.explain.answers import (
    About,
    Answer,
    Number,
    PredicateResult,
    Statement,
    blocks,
    held_back,
    passes,
    tells,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.wording import span_text

_ABOUT = About.CLEANING


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
        statement = blocks(_ABOUT, "NOT_COMPACTED", text, until=until, policy=policy)
        return held_back(statement), [statement]
    transactions = list_open_transactions(producers, now_ms=request.now_ms)
    bounds = [_stable_bound(state, transactions), _active_bound(state, config, request.now_ms)]
    if cleanable.first_young_offset is not None:
        bounds.append(_young_bound(state, config, request, cleanable.first_young_offset))
    bounds.sort(key=lambda bound: bound.offset)
    statements = [
        passes(_ABOUT, "POLICY", f"cleanup.policy is {','.join(sorted(config.cleanup_policy))}"),
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
        return Answer(about=_ABOUT, is_due=True, held_by=None, text=text), statements
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
    return tells(_ABOUT, "FIRST_DIRTY_OFFSET", text, first_dirty_offset=first)


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
                about=_ABOUT,
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
        return tells(_ABOUT, "MAX_COMPACTION_LAG", "max.compaction.lag.ms sets no limit")
    oldest_ms = cleanable.oldest_dirty_timestamp
    if oldest_ms is None:
        return tells(_ABOUT, "MAX_COMPACTION_LAG", "no closed segment is dirty", limit_ms=limit_ms)
    age_ms = request.now_ms - oldest_ms
    text = (
        f"what is dirty began {span_text(age_ms)} ago, max.compaction.lag.ms is {limit_ms} "
        f"({span_text(limit_ms)})"
    )
    if age_ms > limit_ms:
        return passes(_ABOUT, "MAX_COMPACTION_LAG", text, age_ms=age_ms, limit_ms=limit_ms)
    return blocks(
        _ABOUT,
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
        return replace(passes(_ABOUT, "DIRTY_RATIO", text), facts=facts)
    # No number of dirty bytes brings the ratio above a limit of 1.
    missing = None if limit >= 1 else max(1, math.floor(limit * clean / (1 - limit)) + 1 - dirty)
    until = (
        "the ratio is lowered: no log is dirtier than wholly"
        if missing is None
        else f"{missing} more bytes are dirty and cleanable, or the ratio is lowered"
    )
    facts["missing_bytes"] = missing
    return replace(blocks(_ABOUT, "DIRTY_RATIO", text, until=until), facts=facts)


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
            about=_ABOUT,
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
            about=_ABOUT,
            is_due=False,
            held_by=bound.code,
            text=share + bound.text,
            from_ms=bound.until_ms,
            condition=bound.until,
        )
    # Whichever is first: enough dirty bytes, or the maximum lag.
    from_ms = lag.until_ms if cleanable.cleanable_bytes else None
    return Answer(
        about=_ABOUT,
        is_due=False,
        held_by=ratio.code,
        text=ratio.text,
        from_ms=from_ms,
        condition=ratio.until,
    )
