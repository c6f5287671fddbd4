"""Tasks of both compaction passes, where these are spread. They write only scratch files.

Pass one reads segments, pass two rewrites groups of segments; each segment or group makes a
message. An error in any of its messages ends a partition. Keys have two ways from pass one to pass
two:

* One task merges the keys of a partition. Pass two gets the merged index.
* Tasks exchange the keys by hash, where they are too many for one. Pass two gets the survivors.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pylog_spark.rows import Binary, Int32, Text, column
from pylog_spark.schemas import Failure
from pylog_spark.tasks.message import TaskMessage, attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import WriteContext
from storage_core.json_values import to_json
from storage_core.log.open_transactions import TransactionTracker
from storage_core.maintenance.compaction.index import CompactionIndex
from storage_core.maintenance.compaction.key_exchange import (
    FOLD,
    KeyBucket,
    MessageKind,
    send_segment,
)
from storage_core.maintenance.compaction.merged import (
    ExchangedGroup,
    GroupStart,
    MergedIndex,
    decode_start,
    encode_start,
    facts_for_pass_two,
    fold_facts,
    group_of_segment,
    merge_indexes,
)
from storage_core.maintenance.compaction.partial import PartialIndex, index_segment
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import CleanedGroup, clean_groups
from storage_core.roots.root import RootAccess, root_of
from storage_core.store import LogStore

if TYPE_CHECKING:
    from pylog_spark.engines.engine import Published

T = TypeVar("T")
# (ordinal of the partition, number of the segment or group in it)
Item = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """What each task of both passes is told."""

    plans: "Published[Mapping[int, bytes]]"  # by ordinal, as ``encode_plan`` wrote them
    context: WriteContext

    def plan(self, ordinal: int) -> CompactionPlan:
        """Return the plan of a partition. Only the last one is kept."""
        return decode_plan(self.plans.value[ordinal])

    def access(self, plan: CompactionPlan) -> RootAccess:
        """Return how to read and change the root of a plan."""
        return self.context.roots[root_of(plan.location)]

    def open(self, plan: CompactionPlan) -> LogStore:
        """Open the partition of a plan."""
        return self.access(plan).open(plan.location)


# One task merges the keys of a partition.


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKeyIndex(TaskMessage):
    """Pass one: the keys of one segment with their last offsets."""

    unit: Int32 = column("number of the task that merges")
    segment: int = column("number of the segment in the plan")
    index: Binary = column("the partial index, null with an error")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeyIndex(TaskMessage):
    """The merge: all keys of one partition. The duration is that of the merge and of the partial
    indexes before it."""

    index: Binary = column("the merged index; null if too large, or an error")
    numbers: str = column("what pass one read and found, as JSON")
    group_bytes: tuple[int, ...] = column("source bytes of each group, in group order")
    end_offset: int = column("the cleaner point after the round")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenGroup(TaskMessage):
    """Pass two: the attempt-private files that one group became."""

    group: int = column("number of the group in the merged index")
    manifest: str = column("the group's scratch files, sizes and counts, as JSON")
    numbers: Text = column("what pass one read and found; on one row of an exchange")


def index_segments(
    work: PassWork, units: Mapping[int, int], items: Iterable[Item]
) -> Iterator[SegmentKeyIndex]:
    """Run pass one over segments.

    Args:
        units: The task that merges, by ordinal.
    """
    for ordinal, number in sorted(items):  # by partition: each plan is decoded once
        head = SegmentKeyIndex(ordinal=ordinal, unit=units[ordinal], segment=number)
        yield attempt(head, partial(_index, work))


def _index(work: PassWork, head: SegmentKeyIndex) -> SegmentKeyIndex:
    plan = work.plan(head.ordinal)
    index = index_segment(
        work.open(plan),
        plan,
        plan.round_segments[head.segment],
        throttler=work.context.throttler(),
        threads=work.context.threads,
    )
    return replace(head, index=index.to_bytes())


def merge_partitions(
    work: PassWork, limits: Mapping[int, int], indexes: Iterable[SegmentKeyIndex]
) -> Iterator[PartitionKeyIndex]:
    """Merge the partial indexes of each partition, or hand on the error of its first bad segment.

    Args:
        limits: Bytes that a merged index may have, by ordinal; a larger one is left out.
        indexes: Ordered by partition and segment; all of a partition are there.
    """
    for ordinal, of_partition in groupby(indexes, key=attrgetter("ordinal")):
        segments = list(of_partition)
        head = PartitionKeyIndex(ordinal=ordinal, failure=_first_failure(segments))
        merged = attempt(head, partial(_merge, work, segments, limits[ordinal]))
        spent_ms = sum(each.duration_ms for each in segments)
        yield replace(merged, duration_ms=merged.duration_ms + spent_ms)


def _merge(
    work: PassWork, segments: Sequence[SegmentKeyIndex], limit: int, head: PartitionKeyIndex
) -> PartitionKeyIndex:
    if head.failure:
        return head
    plan = work.plan(head.ordinal)
    partials = [PartialIndex.from_bytes(_require(each.index)) for each in segments]
    merged = merge_indexes(plan, partials)
    content = merged.to_bytes()
    sizes = {segment.base_offset: segment.size_bytes for segment in plan.segments}
    return replace(
        head,
        index=content if len(content) <= limit else None,
        group_bytes=tuple(sum(sizes[base] for base in g.base_offsets) for g in merged.groups),
        end_offset=merged.index.end_offset,
        numbers=to_json(merged.index.stats),
    )


def rewrite_groups(
    work: PassWork, merged: "Mapping[int, Published[bytes]]", items: Iterable[Item]
) -> Iterator[RewrittenGroup]:
    """Run pass two over groups of segments.

    Args:
        merged: The merged indexes, by ordinal.
    """

    @lru_cache(maxsize=1)
    def index_of(ordinal: int) -> MergedIndex:
        return MergedIndex.from_bytes(merged[ordinal].value)

    for ordinal, number in sorted(items):
        head = RewrittenGroup(ordinal=ordinal, group=number)
        yield attempt(head, partial(_rewrite_merged, work, index_of))


def _rewrite_merged(
    work: PassWork, index_of: Callable[[int], MergedIndex], head: RewrittenGroup
) -> RewrittenGroup:
    merged = index_of(head.ordinal)
    plan = work.plan(head.ordinal)
    return _rewrite(work, plan, merged.index, merged.groups[head.group], head)


def _rewrite(
    work: PassWork,
    plan: CompactionPlan,
    index: CompactionIndex,
    start: GroupStart,
    head: RewrittenGroup,
) -> RewrittenGroup:
    """Clean one group. Its files lie outside of the log directory, under names of this attempt."""
    access = work.access(plan)
    access.validate()
    name = f"{work.context.run.run_id}-{uuid.uuid4().hex}"
    cleaning = clean_groups(
        access.open(plan.location),
        plan,
        index,
        [[plan.by_base_offset[base_offset] for base_offset in start.base_offsets]],
        TransactionTracker.from_state(json.loads(start.tracker)),
        scratch=partial(access.scratch, plan.location),
        attempt=name,
        throttler=work.context.throttler(),
        threads=work.context.threads,
    )
    with closing(cleaning):
        cleaned = keep_group(access, plan.location, name, next(cleaning))
    return replace(head, manifest=to_json(cleaned))


def keep_group(access: RootAccess, location: str, name: str, cleaned: CleanedGroup) -> CleanedGroup:
    """Give a group's files to the root to keep, for its commit."""
    first = cleaned.base_offsets[0]
    return cleaned.moved(access.keep(location, name, first, cleaned.places, cleaned.gaps))


# Tasks exchange the keys of a partition by hash, in three stages of one job.
#
# *Send*: each segment deals out its keys to buckets, and tells the fold its other facts. *Answer*:
# one task per bucket finds the records that survive; one task per partition, the fold, looks at
# its transactions. *Rewrite*: each group of segments gets its survivors, and is cleaned. Messages
# travel by the engine's shuffle, which spills to disk.

# What a group of pass two hears, in this order.
_START: Final = 0
_FACTS: Final = 1
_SURVIVORS: Final = 2
_NUMBERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeMessage(TaskMessage):
    """Keys for a bucket or the fold, or answers for a group. The duration is the time that went
    into it."""

    unit: Int32 = column("number of the task that gets it")
    group: int = column("group of pass two; 0 before that is known")
    kind: int = column("what it says, in the order in which it has to be heard")
    segment: int = column("number of the segment that it is from or about, 0 for none")
    content: Binary = column("packed arrays; null with an error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The tasks that work for one partition."""

    first_unit: int  # task of its first bucket; the other buckets follow, then the fold
    buckets: int
    group_units: tuple[int, ...]  # task of each group

    @property
    def units(self) -> range:
        """The tasks of its buckets and of its fold."""
        return range(self.first_unit, self.first_unit + self.buckets + 1)

    def unit_of(self, bucket: int) -> int:
        """Return the task of a bucket, or of the fold."""
        return self.first_unit + (self.buckets if bucket == FOLD else bucket)


def send_keys(
    work: PassWork, routes: "Published[Mapping[int, Route]]", items: Iterable[Item]
) -> Iterator[ExchangeMessage]:
    """Read segments; yield their keys to buckets, and their other facts to the fold."""
    for ordinal, number in sorted(items):  # by partition: each plan is decoded once
        route = routes.value[ordinal]
        to_fold = ExchangeMessage(
            ordinal=ordinal,
            unit=route.unit_of(FOLD),
            group=0,
            kind=MessageKind.FACTS.value,
            segment=number,
        )
        yield from _or_failure(_send(work, route, to_fold), to_fold)


def _send(work: PassWork, route: Route, to_fold: ExchangeMessage) -> Iterator[ExchangeMessage]:
    started = time.perf_counter()
    plan = work.plan(to_fold.ordinal)
    messages = send_segment(
        work.open(plan),
        plan,
        to_fold.segment,
        buckets=route.buckets,
        throttler=work.context.throttler(),
        threads=work.context.threads,
    )
    for each in messages:
        yield replace(
            to_fold,
            unit=route.unit_of(each.bucket),
            kind=each.kind.value,
            content=each.content,
            duration_ms=_milliseconds(started) if each.bucket == FOLD else 0,
        )


def answer_keys(
    work: PassWork,
    routes: "Published[Mapping[int, Route]]",
    messages: Iterable[ExchangeMessage],
) -> Iterator[ExchangeMessage]:
    """Yield to groups what buckets and folds find. An error goes to the first group.

    Args:
        messages: Those of ``send_keys``, ordered by unit, kind and segment; all of a unit are
            there.
    """
    owners = {unit: ordinal for ordinal, route in routes.value.items() for unit in route.units}
    for unit, of_unit in groupby(messages, key=attrgetter("unit")):
        ordinal = owners[unit]
        route = routes.value[ordinal]
        find = _fold if unit == route.unit_of(FOLD) else _find_survivors
        # Of no segment: it must not come between the pieces of what the fold says of the group.
        failed = ExchangeMessage(group=0, kind=_START, segment=-1)
        for each in _or_failure(find(work.plan(ordinal), of_unit), failed):
            yield replace(each, ordinal=ordinal, unit=route.group_units[each.group])


def _find_survivors(
    plan: CompactionPlan, messages: Iterable[ExchangeMessage]
) -> Iterator[ExchangeMessage]:
    """Yield the survivors of one bucket."""
    started = time.perf_counter()
    bucket = KeyBucket(plan)
    for each in messages:
        bucket.hear(MessageKind(each.kind), each.segment, _require(each.content))
    group_of = group_of_segment(plan)
    for number, ordinals in bucket.survivors():
        yield ExchangeMessage(
            group=group_of[number], kind=_SURVIVORS, segment=number, content=ordinals.tobytes()
        )
    yield _numbers({"keys": bucket.key_count}, _milliseconds(started))


def _fold(plan: CompactionPlan, messages: Iterable[ExchangeMessage]) -> Iterator[ExchangeMessage]:
    """Yield each group's start and the facts about its segments, or the partition's error."""
    started = time.perf_counter()
    segments = sorted(messages, key=attrgetter("segment"))
    spent_ms = sum(each.duration_ms or 0 for each in segments)
    group_of = group_of_segment(plan)
    failure = _first_failure(segments)
    if failure:
        for group in sorted(set(group_of)):
            yield ExchangeMessage(
                group=group,
                kind=_START,
                segment=0,
                failure=failure,
                duration_ms=0 if group else spent_ms,
            )
        return
    facts = {each.segment: bytes(_require(each.content)) for each in segments}
    folded = fold_facts(plan, facts)
    for group, start in enumerate(folded.groups):
        yield ExchangeMessage(group=group, kind=_START, segment=0, content=encode_start(start))
    for number, content in facts.items():
        yield ExchangeMessage(
            group=group_of[number],
            kind=_FACTS,
            segment=number,
            content=facts_for_pass_two(content),
        )
    numbers = {"bytes_read": folded.bytes_read, "messages_read": folded.messages_read}
    yield _numbers(numbers, spent_ms + _milliseconds(started))


def _numbers(numbers: Mapping[str, int], duration_ms: int) -> ExchangeMessage:
    content = json.dumps(numbers).encode()
    return ExchangeMessage(
        group=0, kind=_NUMBERS, segment=0, content=content, duration_ms=duration_ms
    )


def rewrite_exchanged(
    work: PassWork, messages: Iterable[ExchangeMessage]
) -> Iterator[RewrittenGroup]:
    """Run pass two over groups of segments.

    Args:
        messages: Those of ``answer_keys``, ordered by partition, group, kind and segment; all of a
            group are there.
    """
    for (ordinal, group), of_group in groupby(messages, key=attrgetter("ordinal", "group")):
        head, heard = RewrittenGroup(ordinal=ordinal, group=group), _Heard()
        rewritten = attempt(head, partial(_rewrite_exchanged, work, of_group, heard))
        yield replace(
            rewritten,
            numbers=json.dumps(heard.numbers) if heard.numbers else None,
            duration_ms=rewritten.duration_ms + heard.duration_ms,
        )


@dataclass(slots=True)
class _Heard:
    """What the messages to a group say of its partition."""

    duration_ms: int = 0  # time that former stages spent on it
    numbers: Counter[str] = field(default_factory=Counter)  # what pass one read and found


def _rewrite_exchanged(
    work: PassWork, messages: Iterable[ExchangeMessage], heard: _Heard, head: RewrittenGroup
) -> RewrittenGroup:
    plan = work.plan(head.ordinal)
    gathered, failure = ExchangedGroup(plan=plan), Failure()
    for each in messages:
        heard.duration_ms += each.duration_ms or 0
        if each.failure:
            failure = failure or each.failure
            continue
        content = bytes(_require(each.content))
        if each.kind == _START:
            gathered.start = decode_start(content)
        elif each.kind == _FACTS:
            gathered.put_facts(each.segment, content)
        elif each.kind == _SURVIVORS:
            gathered.put_survivors(each.segment, np.frombuffer(content, np.uint32))
        else:
            heard.numbers.update(json.loads(content))
    if failure:
        return replace(head, failure=failure)
    index = gathered.index()
    return _rewrite(work, plan, index, _require(gathered.start), head)


def _or_failure(
    messages: Iterable[ExchangeMessage], failed: ExchangeMessage
) -> Iterator[ExchangeMessage]:
    """Yield messages. Where making them fails, ``failed`` has the error and the time."""
    started = time.perf_counter()
    try:
        yield from messages
    except Exception as error:  # noqa: BLE001  # the message carries it; other partitions go on
        yield replace(failed, failure=Failure.of(error), duration_ms=_milliseconds(started))


def _first_failure(messages: Iterable[TaskMessage]) -> Failure:
    return next((each.failure for each in messages if each.failure), Failure())


def _require(value: T | None) -> T:
    if value is None:
        raise ValueError("the message has no keys")
    return value


def _milliseconds(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
