"""Compact a partition with too many keys for a single task. It takes three stages of one Spark job.

*Send*: each segment says which keys it has, dealt out by hash. *Answer*: one task a bucket finds
out which records survive; one task a partition, the fold, looks at its transactions. *Rewrite*:
each group of segments gets the ordinals of its survivors, and is cleaned. Between them messages
travel by Spark's own shuffle, which spills to disk.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Final

import numpy as np

from pylog_spark.operations.compact.pass_task import (
    Item,
    RewrittenGroup,
    require,
    rewrite_group,
)
from pylog_spark.rows import Binary, Int32, column
from pylog_spark.schemas import Failure
from pylog_spark.tasks.message import TaskMessage, attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import WriteContext
from storage_core.maintenance.compaction.exchanged_index import (
    ExchangedGroup,
    decode_start,
    encode_start,
    facts_for_pass_two,
    fold_facts,
    group_of_segment,
)
from storage_core.maintenance.compaction.key_exchange import (
    FOLD,
    KeyBucket,
    MessageKind,
    send_segment,
)
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.roots.root import root_of

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
    """Which tasks work for one partition."""

    # Number of the task of its first bucket; those of the others follow, and that of the fold.
    first_unit: int
    buckets: int
    group_units: tuple[int, ...]

    def unit_of(self, bucket: int) -> int:
        """Return the task of a bucket, or of the fold."""
        return self.first_unit + (self.buckets if bucket == FOLD else bucket)


def send_keys(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    routes: Mapping[int, Route],
    context: WriteContext,
) -> Iterator[ExchangeMessage]:
    """Read segments and yield what they have to say.

    Args:
        plans: The plans, as ``encode_plan`` wrote them.
    """
    # By partition: its plan is decoded once.
    for ordinal, number in sorted(items):
        yield from _send(ordinal, number, plans[ordinal], routes[ordinal], context)


def _send(
    ordinal: int, number: int, encoded: bytes, route: Route, context: WriteContext
) -> Iterator[ExchangeMessage]:
    started = time.perf_counter()
    to_fold = ExchangeMessage(
        ordinal=ordinal,
        unit=route.unit_of(FOLD),
        group=0,
        kind=MessageKind.FACTS.value,
        segment=number,
    )
    try:
        plan = decode_plan(encoded)
        messages = send_segment(
            context.roots[root_of(plan.location)].open(plan.location),
            plan,
            number,
            buckets=route.buckets,
            throttler=context.throttler(),
            threads=context.threads,
        )
        for message in messages:
            yield replace(
                to_fold,
                unit=route.unit_of(message.bucket),
                kind=message.kind.value,
                content=message.content,
                duration_ms=_milliseconds(started) if message.bucket == FOLD else 0,
            )
    except Exception as error:  # noqa: BLE001  # the message carries it; other partitions go on
        yield replace(to_fold, failure=Failure.of(error), duration_ms=_milliseconds(started))


def answer_keys(
    messages: Iterable[ExchangeMessage], plans: Mapping[int, bytes], routes: Mapping[int, Route]
) -> Iterator[ExchangeMessage]:
    """Yield messages to groups in answer to the segments' messages. They say what groups have to
    know.

    Args:
        messages: Those that ``send_keys`` made, ordered by unit, kind and segment; all of a unit
            are there.
    """
    owners = {
        unit: ordinal
        for ordinal, route in routes.items()
        for unit in range(route.first_unit, route.first_unit + route.buckets + 1)
    }
    for unit, of_unit in itertools.groupby(messages, key=attrgetter("unit")):
        ordinal = owners[unit]
        route, plan = routes[ordinal], decode_plan(plans[ordinal])
        work = _fold if unit == route.unit_of(FOLD) else _answer
        yield from _addressed(ordinal, route, partial(work, plan, of_unit))


def _addressed(
    ordinal: int, route: Route, work: Callable[[], Iterator[ExchangeMessage]]
) -> Iterator[ExchangeMessage]:
    """Add the receiving tasks to messages for groups. An error goes to the first group's task."""
    started = time.perf_counter()
    try:
        for each in work():
            yield replace(each, ordinal=ordinal, unit=route.group_units[each.group])
    except Exception as error:  # noqa: BLE001  # the message carries it; other partitions go on
        yield ExchangeMessage(
            ordinal=ordinal,
            unit=route.group_units[0],
            group=0,
            kind=_START,
            # Of no segment: it must not come between the pieces of what the fold says of the group.
            segment=-1,
            failure=Failure.of(error),
            duration_ms=_milliseconds(started),
        )


def _answer(plan: CompactionPlan, messages: Iterable[ExchangeMessage]) -> Iterator[ExchangeMessage]:
    """Yield the survivors of one bucket."""
    started = time.perf_counter()
    bucket = KeyBucket(plan)
    for each in messages:
        bucket.hear(MessageKind(each.kind), each.segment, require(each.content))
    group_of = group_of_segment(plan)
    for number, ordinals in bucket.survivors():
        yield ExchangeMessage(
            group=group_of[number], kind=_SURVIVORS, segment=number, content=ordinals.tobytes()
        )
    numbers = {"keys": bucket.key_count}
    yield _numbers(numbers, _milliseconds(started))


def _fold(plan: CompactionPlan, messages: Iterable[ExchangeMessage]) -> Iterator[ExchangeMessage]:
    """Yield each group's facts about its segments, or the partition's error."""
    started = time.perf_counter()
    listed = sorted(messages, key=lambda each: each.segment)
    spent_ms = sum(each.duration_ms or 0 for each in listed)
    failure = next((each.failure for each in listed if each.failure), None)
    group_of = group_of_segment(plan)
    if failure is not None:
        for group in sorted(set(group_of)):
            spent = 0 if group else spent_ms
            yield ExchangeMessage(
                group=group, kind=_START, segment=0, failure=failure, duration_ms=spent
            )
        return
    facts = {each.segment: bytes(require(each.content)) for each in listed}
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
    messages: Iterable[ExchangeMessage], plans: Mapping[int, bytes], context: WriteContext
) -> Iterator[RewrittenGroup]:
    """Pass two: rewrite groups of segments. What it writes lies outside of the log directory, under
    names that no other attempt has.

    Args:
        messages: Those that ``answer_keys`` made, ordered by partition, group, kind and segment;
            all of a group are there.
        plans: As for ``send_keys``.
    """
    groups = itertools.groupby(messages, key=attrgetter("ordinal", "group"))
    for (ordinal, group), of_group in groups:
        plan, heard = decode_plan(plans[ordinal]), _Heard()
        head = RewrittenGroup(ordinal=ordinal, group=group)
        rewritten = attempt(head, partial(_rewrite, plan, of_group, heard, context))
        yield replace(
            rewritten,
            numbers=heard.numbers_text,
            duration_ms=rewritten.duration_ms + heard.duration_ms,
        )


@dataclass(slots=True)
class _Heard:
    """What the messages for one group say beside what it needs."""

    duration_ms: int = 0  # time that former stages spent on the partition
    # What pass one read and found, summed; empty where the group is not told.
    numbers: dict[str, int] | None = None

    def add(self, each: ExchangeMessage) -> None:
        """Take note of a message."""
        self.duration_ms += each.duration_ms or 0
        if each.kind == _NUMBERS:
            self.numbers = self.numbers or {}
            for name, value in json.loads(bytes(require(each.content))).items():
                self.numbers[name] = self.numbers.get(name, 0) + value

    @property
    def numbers_text(self) -> str | None:
        """The numbers as JSON, None without any."""
        return None if self.numbers is None else json.dumps(self.numbers)


def _rewrite(
    plan: CompactionPlan,
    messages: Iterable[ExchangeMessage],
    heard: _Heard,
    context: WriteContext,
    head: RewrittenGroup,
) -> RewrittenGroup:
    gathered = ExchangedGroup(plan=plan)
    failure = Failure()
    for each in messages:
        heard.add(each)
        if each.failure:
            failure = failure or each.failure
            continue
        content = bytes(require(each.content))
        if each.kind == _START:
            gathered.start = decode_start(content)
        elif each.kind == _FACTS:
            gathered.put_facts(each.segment, content)
        elif each.kind == _SURVIVORS:
            gathered.put_survivors(each.segment, np.frombuffer(content, np.uint32))
    if not failure and gathered.start is None:
        failure = Failure(error_class="ValueError", error="nothing is known of the group")
    if failure or gathered.start is None:
        return replace(head, failure=failure)
    return rewrite_group(plan, gathered.index(), gathered.start, context, head)


def _milliseconds(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
