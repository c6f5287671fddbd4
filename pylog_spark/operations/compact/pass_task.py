"""The two passes of a compaction and the merge between them. They read, and write only scratch
files.

An item of pass one is a segment, an item of pass two a group of segments. Each yields one row;
what is wrong with a partition becomes an error in the rows of its items, and the partition goes no
further. Keys travel in the rows, or in scratch files that all tasks of the host see; a key set
that is too large for both goes another way (``exchange.py``).
"""

import itertools
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from pylog_spark.rows import Binary, Int32, Text, column
from pylog_spark.schemas import Failure
from pylog_spark.tasks.message import TaskMessage, attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import WriteContext
from storage_core.filenames import SCRATCH_PREFIX
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
    merge_files,
    merge_indexes,
)
from storage_core.maintenance.compaction.partial import PartialIndex, index_segment
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import CleanedGroup, clean_groups
from storage_core.roots.root import RootAccess, root_of

# Share scratch files of keys and merged maps among tasks. The tasks are those of one wave, on one
# host.
#
# Not every root has a place that all tasks of a run see. Names carry the run and the wave, so that
# a wave's files can go when it has ended, those of killed attempts too.


def new_prefix(access: RootAccess, location: str, context: WriteContext) -> Path:
    """Return a path, but for its ending, that no other attempt has."""
    folder = access.shared_folder(location)
    if folder is None:
        raise TypeError(f"{location}: tasks share no folder there")
    return folder / f"{_wave_prefix(context)}{uuid.uuid4().hex}"


def remove_files(prefix: Path) -> None:
    """Remove the files of one attempt."""
    for path in prefix.parent.glob(f"{prefix.name}*"):
        path.unlink(missing_ok=True)


def remove_wave(access: RootAccess, location: str, context: WriteContext) -> None:
    """Remove a wave's scratch files for a partition. Files of the wave that lie where the
    partition's files do go, too."""
    folder = access.shared_folder(location)
    if folder is not None:
        for path in folder.glob(f"{_wave_prefix(context)}*"):
            path.unlink(missing_ok=True)


def _wave_prefix(context: WriteContext) -> str:
    return f"{SCRATCH_PREFIX}{context.run.run_id}-{context.wave}-"


T = TypeVar("T")
# (ordinal of the partition, number of the segment or group in it)
Item = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKeyIndex(TaskMessage):
    """Pass one: the keys of one segment with their last offsets."""

    unit: Int32 = column("number of the task that merges")
    segment: int = column("number of the segment in the plan")
    index: Binary = column("the partial index, null with an error or where it is filed")
    path: Text = column("its scratch files but for their endings, null where it is not")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeyIndex(TaskMessage):
    """The merge: all keys of one partition. The duration is that of the merge and of the partial
    indexes before it."""

    index: Binary = column("the merged index; null if too large, filed, or an error")
    path: Text = column("its scratch file, null where it is in no file")
    table_path: Text = column("that of its offset map, null where pass two needs none")
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
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    units: Mapping[int, int],
    context: WriteContext,
    *,
    filed: Collection[int] = (),
) -> Iterator[SegmentKeyIndex]:
    """Run pass one over segments of rounds.

    Args:
        plans: The plans, as ``encode_plan`` wrote them.
        filed: Partitions whose keys are put into scratch files.
    """
    # By partition: its plan is decoded once.
    for ordinal, number in sorted(items):
        head = SegmentKeyIndex(ordinal=ordinal, unit=units[ordinal], segment=number)
        index = partial(_index, plans[ordinal], context, ordinal in filed)
        yield attempt(head, index)


def _index(
    encoded: bytes,
    context: WriteContext,
    is_filed: bool,  # noqa: FBT001  # ``partial`` gives it
    head: SegmentKeyIndex,
) -> SegmentKeyIndex:
    """Index a segment, into its message or into files."""
    plan = decode_plan(encoded)
    access = context.roots[root_of(plan.location)]
    if is_filed:
        access.validate()
    read = partial(
        index_segment,
        access.open(plan.location),
        plan,
        plan.round_segments[head.segment],
        throttler=context.throttler(),
        threads=context.threads,
    )
    if not is_filed:
        return replace(head, index=read().to_bytes())
    prefix = new_prefix(access, plan.location, context)
    try:
        read(prefix=prefix)
    except BaseException:
        remove_files(prefix)
        raise
    return replace(head, path=str(prefix))


def merge_partitions(
    indexes: Iterable[SegmentKeyIndex],
    plans: Mapping[int, bytes],
    limits: Mapping[int, int | None],
    context: WriteContext,
) -> Iterator[PartitionKeyIndex]:
    """Merge the partial indexes of each partition. An error in any of them is the partition's; that
    of the first segment counts.

    Args:
        indexes: Ordered by partition and segment; all of a partition are there.
        limits: Bytes that the merged index of a partition may have; a larger one is left out. None
            where partial indexes and merged ones lie in scratch files.
    """
    for ordinal, some in groupby(indexes, key=attrgetter("ordinal")):
        segments = list(some)
        failure = next((each.failure for each in segments if each.failure), None)
        merged = PartitionKeyIndex(ordinal=ordinal, duration_ms=0)
        if failure is not None:
            merged = replace(merged, failure=failure)
        else:
            merge = partial(_merge, plans[ordinal], segments, limits[ordinal], context)
            merged = attempt(merged, merge)
        spent_ms = sum(each.duration_ms for each in segments)
        yield replace(merged, duration_ms=merged.duration_ms + spent_ms)


def _merge(
    encoded: bytes,
    segments: Sequence[SegmentKeyIndex],
    limit: int | None,
    context: WriteContext,
    head: PartitionKeyIndex,
) -> PartitionKeyIndex:
    """Merge the indexes of messages, or of files where no limit is."""
    plan = decode_plan(encoded)
    if limit is None:
        access = context.roots[root_of(plan.location)]
        access.validate()
        target = new_prefix(access, plan.location, context)
        try:
            paths = [Path(require(each.path)) for each in segments]
            file, table = merge_files(plan, paths, target)
        except BaseException:
            remove_files(target)
            raise
        merged = MergedIndex.from_file(file, table)
        head = replace(head, path=str(file), table_path=None if table is None else str(table))
    else:
        merged = merge_indexes(
            plan, [PartialIndex.from_bytes(require(each.index)) for each in segments]
        )
        content = merged.to_bytes()
        head = replace(head, index=content if len(content) <= limit else None)
    sizes = {segment.base_offset: segment.size_bytes for segment in plan.segments}
    return replace(
        head,
        group_bytes=tuple(sum(sizes[base] for base in g.base_offsets) for g in merged.groups),
        end_offset=merged.index.end_offset,
        numbers=to_json(merged.index.stats),
    )


def require(keys: T | None) -> T:
    """Return the keys of a message, or the path to them."""
    if keys is None:
        raise ValueError("the keys are not where the strategy of the round has them")
    return keys


def rewrite_groups(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    index_of: Callable[[int], MergedIndex],
    context: WriteContext,
) -> Iterator[RewrittenGroup]:
    """Pass two: rewrite groups of segments. What it writes lies outside of the log directory, under
    names that no other attempt has.

    Args:
        items: Partitions and numbers of groups in their merged indexes.
    """

    @lru_cache(maxsize=1)
    def opened(ordinal: int) -> tuple[CompactionPlan, MergedIndex]:
        return decode_plan(plans[ordinal]), index_of(ordinal)

    def rewrite(head: RewrittenGroup) -> RewrittenGroup:
        plan, merged = opened(head.ordinal)
        return rewrite_group(plan, merged.index, merged.groups[head.group], context, head)

    for ordinal, number in sorted(items):
        yield attempt(RewrittenGroup(ordinal=ordinal, group=number), rewrite)


def rewrite_group(
    plan: CompactionPlan,
    index: CompactionIndex,
    start: GroupStart,
    context: WriteContext,
    head: RewrittenGroup,
) -> RewrittenGroup:
    """Clean one group of segments. The new files are this attempt's own."""
    access = context.roots[root_of(plan.location)]
    access.validate()
    group = [plan.by_base_offset[base_offset] for base_offset in start.base_offsets]
    store = access.open(plan.location)
    name = f"{context.run.run_id}-{uuid.uuid4().hex}"
    cleaning = clean_groups(
        store,
        plan,
        index,
        [group],
        TransactionTracker.from_state(json.loads(start.tracker)),
        scratch=partial(access.scratch, plan.location),
        attempt=name,
        throttler=context.throttler(),
        threads=context.threads,
    )
    with closing(cleaning):
        cleaned = keep_group(access, plan.location, name, next(cleaning))
    return replace(head, manifest=to_json(cleaned))


def keep_group(access: RootAccess, location: str, name: str, cleaned: CleanedGroup) -> CleanedGroup:
    """Give a group's files to the root to keep, for its commit."""
    first = cleaned.base_offsets[0]
    return cleaned.moved(access.keep(location, name, first, cleaned.places, cleaned.gaps))


# Compact a partition with too many keys for a single task. It takes three stages of one Spark job.
#
# *Send*: each segment says which keys it has, dealt out by hash. *Answer*: one task a bucket finds
# out which records survive; one task a partition, the fold, looks at its transactions. *Rewrite*:
# each group of segments gets the ordinals of its survivors, and is cleaned. Between them messages
# travel by Spark's own shuffle, which spills to disk.

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
