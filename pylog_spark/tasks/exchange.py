"""Compact a partition with too many keys for a single task.

It takes three stages of one Spark job.

*Send*: each segment says which keys it has, dealt out by hash. *Answer*: one task a bucket finds
out which records survive; one task a partition, the fold, looks at its transactions. *Rewrite*:
each group of segments gets the ordinals of its survivors, and is cleaned. Between them rows of
``schemas.EXCHANGE`` travel by Spark's own shuffle, which spills to disk.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pylog_spark.rows import rows_to_batch, rows_to_batches
from pylog_spark.schemas import EXCHANGE, GROUP_MANIFEST
from pylog_spark.tasks.cells import join_rows
from pylog_spark.tasks.compaction import Item, rewrite_group
from pylog_spark.tasks.failures import attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import WriteContext
from storage_core.errors import describe_failure
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

# Rows leave a task in batches of about this size.
_BATCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which tasks work for one partition.

    Attributes:
        first_unit: Number of the task of its first bucket; those of the others follow, and that of
            the fold.
        buckets: How many buckets it has.
        group_units: Number of the task of each of its groups.
    """

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
) -> Iterator[pa.RecordBatch]:
    """Read segments and yield what they have to say, rows of ``schemas.EXCHANGE``.

    Args:
        items: Partitions and numbers of segments in their rounds.
        plans: The plans, as ``encode_plan`` wrote them.
        routes: By partition.
        context: How tasks read and write.
    """
    # By partition: its plan is decoded once.
    for ordinal, number in sorted(items):
        yield from _in_batches(_send(ordinal, number, plans[ordinal], routes[ordinal], context))


def _send(
    ordinal: int, number: int, encoded: bytes, route: Route, context: WriteContext
) -> Iterator[dict[str, Any]]:
    started = time.perf_counter()
    head = {"ordinal": ordinal, "group": 0, "segment": number}
    to_fold = head | {"unit": route.unit_of(FOLD), "kind": MessageKind.FACTS.value}
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
            row = {"unit": route.unit_of(message.bucket), "kind": message.kind.value}
            spent = _milliseconds(started) if message.bucket == FOLD else 0
            yield head | row | {"content": message.content, "duration_ms": spent}
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        yield to_fold | describe_failure(error) | {"duration_ms": _milliseconds(started)}


def answer_keys(
    batches: Iterator[pa.RecordBatch], plans: Mapping[int, bytes], routes: Mapping[int, Route]
) -> Iterator[pa.RecordBatch]:
    """Yield messages to groups in answer to the segments' messages.

    They say what groups have to know, in rows of ``schemas.EXCHANGE``.

    Args:
        batches: Pieces of the rows that ``send_keys`` made, ordered by unit, kind and segment; all
            of a unit are there.
        plans: As for ``send_keys``.
        routes: By partition.
    """
    owners = {
        unit: ordinal
        for ordinal, route in routes.items()
        for unit in range(route.first_unit, route.first_unit + route.buckets + 1)
    }
    for unit, rows in itertools.groupby(join_rows(batches), key=lambda row: int(row["unit"])):
        ordinal = owners[unit]
        route, plan = routes[ordinal], decode_plan(plans[ordinal])
        work = _fold if unit == route.unit_of(FOLD) else _answer
        yield from _in_batches(_addressed(ordinal, route, partial(work, plan, rows)))


def _addressed(
    ordinal: int, route: Route, work: Callable[[], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Add the receiving tasks to rows for groups.

    An error goes to the first group's task.
    """
    started = time.perf_counter()
    head = {"ordinal": ordinal, "segment": 0}
    try:
        for row in work():
            yield head | {"unit": route.group_units[row["group"]]} | row
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        # Of no segment: it must not come between the pieces of what the fold says of the group.
        row = {"unit": route.group_units[0], "group": 0, "kind": _START, "segment": -1}
        yield head | row | describe_failure(error) | {"duration_ms": _milliseconds(started)}


def _answer(plan: CompactionPlan, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the survivors of one bucket."""
    started = time.perf_counter()
    bucket = KeyBucket(plan)
    for row in rows:
        bucket.hear(MessageKind(row["kind"]), row["segment"], row["content"])
    group_of = group_of_segment(plan)
    for number, ordinals in bucket.survivors():
        yield {
            "group": group_of[number],
            "kind": _SURVIVORS,
            "segment": number,
            "content": ordinals.tobytes(),
        }
    numbers = {"keys": bucket.key_count}
    yield _numbers(numbers, _milliseconds(started))


def _fold(plan: CompactionPlan, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each group's facts about its segments, or the partition's error."""
    started = time.perf_counter()
    listed = sorted(rows, key=lambda row: row["segment"])
    spent_ms = sum(row["duration_ms"] or 0 for row in listed)
    errors = [row for row in listed if row["error_class"] is not None]
    group_of = group_of_segment(plan)
    if errors:
        error = {name: errors[0][name] for name in ("error_class", "error")}
        for group in sorted(set(group_of)):
            row = {"group": group, "kind": _START, "duration_ms": 0 if group else spent_ms}
            yield row | error
        return
    facts = {row["segment"]: bytes(row["content"]) for row in listed}
    folded = fold_facts(plan, facts)
    for group, start in enumerate(folded.groups):
        yield {"group": group, "kind": _START, "content": encode_start(start)}
    for number, content in facts.items():
        kept = facts_for_pass_two(content)
        yield {"group": group_of[number], "kind": _FACTS, "segment": number, "content": kept}
    numbers = {"bytes_read": folded.bytes_read, "messages_read": folded.messages_read}
    yield _numbers(numbers, spent_ms + _milliseconds(started))


def _numbers(numbers: Mapping[str, int], duration_ms: int) -> dict[str, Any]:
    content = json.dumps(numbers).encode()
    return {"group": 0, "kind": _NUMBERS, "content": content, "duration_ms": duration_ms}


def rewrite_exchanged(
    batches: Iterator[pa.RecordBatch], plans: Mapping[int, bytes], context: WriteContext
) -> Iterator[pa.RecordBatch]:
    """Pass two: yield a row of ``schemas.GROUP_MANIFEST`` for each group of segments.

    What it writes lies outside of the log directory, under names that no other attempt has.

    Args:
        batches: Pieces of the rows that ``answer_keys`` made, ordered by partition, group, kind
            and segment; all of a group are there.
        plans: As for ``send_keys``.
        context: How tasks read and write.
    """

    def rewritten() -> Iterator[dict[str, Any]]:
        grouped = itertools.groupby(
            join_rows(batches), key=lambda row: (row["ordinal"], row["group"])
        )
        for (ordinal, group), rows in grouped:
            plan = decode_plan(plans[ordinal])
            heard = _Heard()
            row = attempt(partial(_rewrite, plan, rows, heard, context))
            row["duration_ms"] += heard.duration_ms
            yield {"ordinal": ordinal, "group": group, "numbers": heard.numbers_text} | row

    yield from rows_to_batches(GROUP_MANIFEST, rewritten())


@dataclass(slots=True)
class _Heard:
    """What the rows for one group say beside what it needs.

    Attributes:
        duration_ms: Time that former stages spent on the partition.
        numbers: What pass one read and found, summed; empty where the group is not told.
    """

    duration_ms: int = 0
    numbers: dict[str, int] | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Take note of a row."""
        self.duration_ms += row["duration_ms"] or 0
        if row["kind"] == _NUMBERS:
            self.numbers = self.numbers or {}
            for name, value in json.loads(bytes(row["content"])).items():
                self.numbers[name] = self.numbers.get(name, 0) + value

    @property
    def numbers_text(self) -> str | None:
        """The numbers as JSON, None without any."""
        return None if self.numbers is None else json.dumps(self.numbers)


def _rewrite(
    plan: CompactionPlan, rows: Iterable[dict[str, Any]], heard: _Heard, context: WriteContext
) -> dict[str, Any]:
    gathered = ExchangedGroup(plan=plan)
    error: dict[str, Any] | None = None
    for row in rows:
        heard.add(row)
        content, number = row["content"], row["segment"]
        if row["error_class"] is not None:
            error = error or {name: row[name] for name in ("error_class", "error")}
        elif row["kind"] == _START:
            gathered.start = decode_start(bytes(content))
        elif row["kind"] == _FACTS:
            gathered.put_facts(number, bytes(content))
        elif row["kind"] == _SURVIVORS:
            gathered.put_survivors(number, np.frombuffer(bytes(content), np.uint32))
    if error is not None or gathered.start is None:
        return error or {"error_class": "ValueError", "error": "nothing is known of the group"}
    return rewrite_group(plan, gathered.index(), gathered.start, context)


def _in_batches(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    gathered: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += len(row.get("content") or b"")
        if size >= _BATCH_BYTES:
            yield rows_to_batch(EXCHANGE, gathered)
            gathered, size = [], 0
    if gathered:
        yield rows_to_batch(EXCHANGE, gathered)


def _milliseconds(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
