"""Plan to free space: steps in order, with their losses. It says what could go from log directories
and who would miss it; nothing is done.

First what nobody misses: what brokers have renamed to delete it, then what only an undo needs. Then
what has expired by the topics' own rules, first where no consumer group would lose its place. At
last compaction, which frees what it frees only when it is done, and needs room meanwhile.
"""

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.compact.driver import EXACT_NOTE
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.purge import describe_set_aside
from pylog_spark.operations.survey import survey
from pylog_spark.options import JobOptions
from pylog_spark.options.load import broker_config
from pylog_spark.outcomes import ALLOWED_BY, Action, Reason, Status
from pylog_spark.report import size_text
from pylog_spark.run.job import unclean_roots
from pylog_spark.run.progress import OnProgress
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.upkeep import roots_beside_trash
from pylog_spark.tasks.coordinators import CoordinatorSettings, observe_groups
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import PylogError, describe_failure
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    offset_of,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.reading.inspection import RootView, group_by_broker, inspect_root
from storage_core.roots.open_root import LogRoot
from storage_core.store.base import FileInfo, LogStore
from storage_core.store.open_store import open_store
from storage_core.wording import count_text

Row = Mapping[str, Any]
# How many of the largest topics are named.
_MOST_TOPICS: Final = 5
_ENTRY_BYTES: Final = {
    OFFSET_INDEX_SUFFIX: OFFSET_INDEX_ENTRY.itemsize,
    TIME_INDEX_SUFFIX: TIME_INDEX_ENTRY.itemsize,
}
_TRIMMED_BY: Final = {
    DirectoryKind.PARTITION: "`pylog recover`, or a broker's start and stop, trims that",
    # Even after a clean stop they may be there.
    DirectoryKind.METADATA: "that log is its broker's alone, and pylog trims nothing of it",
}
# What ``stat`` counts in, whatever the block size of the filesystem is.
_BLOCK_BYTES: Final = 512


class Source(enum.StrEnum):
    """A source of free space, in the order to use them."""

    RECOVERY = "recovery"  # frees nothing itself; what follows is of the logs that it leaves
    LEFTOVERS = "leftovers"  # files and directories that a broker would remove itself
    TRASH = "trash"  # what a run kept, to be undone
    GENERATIONS = "generations"  # of managed roots, those that were superseded
    EXPIRED = "expired"  # segments that retention takes, by the topic's own rules
    COMPACTION = "compaction"  # superseded records


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoss:
    """A consumer group about to lose its place. The records that it reads next would be gone."""

    group: str
    partition: TopicPartition
    committed_offset: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeStep:
    """One thing that could be done."""

    source: Source
    root: str  # the log directory; the run's folder of a trash
    topic: str | None  # the topic; None for what is of no single one
    partitions: int
    frees_bytes: int
    frees_at_most_bytes: int  # at most so many; more than the former where only doing it tells
    needs_bytes: int = 0  # disk space that is needed meanwhile, for the partition that needs most
    refused_by: str | None = None  # the guard that would refuse it; None for none
    losses: tuple[GroupLoss, ...] = ()  # consumer groups that would lose their place
    # Whether a recovery has to come first; groups and guards are asked then.
    is_after_recovery: bool = False
    # Whether the topic is compacted, too: compaction takes what has expired.
    is_compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePlan:
    """What could go."""

    steps: tuple[FreeStep, ...]  # in the order in which it should
    notes: tuple[str, ...]  # what a reader should know of it, line by line
    # The largest topics that retention takes from, with the bytes that it leaves: where all of that
    # is not enough, a shorter retention of them frees more.
    largest: tuple[tuple[str, int], ...]
    offsets_partitions: int  # how many partitions of ``__consumer_offsets`` told of groups
    # The roots on whose filesystem the trash lies: what it keeps frees nothing.
    beside_trash: frozenset[str]
    engine: str  # what did the looks: ``spark`` or ``local``, which is this machine
    failures: tuple[Row, ...] = field(default=())

    @property
    def frees_bytes(self) -> int:
        """At least so many bytes go with all steps."""
        return sum(step.frees_bytes for step in self.steps)

    @property
    def frees_at_most_bytes(self) -> int:
        """At most so many go with all steps."""
        return sum(step.frees_at_most_bytes for step in self.steps)


def plan_free_space(
    place: Place,
    roots: Sequence[str],
    options: JobOptions,
    *,
    on_progress: OnProgress | None = None,
) -> FreePlan:
    """Plan the steps to free space; write nothing, take no lock.

    Args:
        place: Where the looks run: this machine (``Local``), or a Spark session.
        roots: Paths or URLs of log directories and managed roots.
        options: Clock, configs, trash; ``exact`` also reads what compaction would clean.
        on_progress: Told how far the reading of what was not closed has come.
    """
    log_roots = resolve_roots(roots, role=options.role)
    # Whatever is in the trash could go, however young it is.
    look = replace(options, dry_run=True, purge_after_ms=0, ledger=None, salvage=None)
    report = run_nightly(place, roots, look, on_progress=on_progress)
    views: list[RootView] = []
    of_brokers: list[RootView] = []
    unseen: list[Row] = []
    for root, log_root in zip(roots, log_roots, strict=True):
        try:
            views.append(inspect_root(root))
        except PylogError as error:
            unseen.append({"root": root, **describe_failure(error)})
        else:
            of_brokers += views[-1:] if log_root.role.facts.is_owned_by_broker else []
    losses, offsets_partitions, failures = _losses(views, options, report)
    purges = list(_purges(report, log_roots))
    trash_notes: tuple[str, ...] = ()
    beside_trash: frozenset[str] = frozenset()
    if options.trash is not None:
        beside_trash = roots_beside_trash(log_roots, Path(options.trash))
    if not beside_trash and any(step.source is Source.TRASH for step in purges):
        purges = [step for step in purges if step.source is not Source.TRASH]
        trash_notes = (
            f"the trash {options.trash} is on another filesystem: emptying it frees nothing here",
        )
    steps = [
        *purges,
        *_expired(report, losses),
        *_compactions(report),
    ]
    unclean = unclean_roots(tuple(log_roots))
    crashed = [
        root.location
        for root in log_roots
        if root.role.facts.is_owned_by_broker and root.location in unclean
    ]
    if crashed:
        surveyed = survey(place, crashed, look)
        steps += _after_recovery(crashed, surveyed.details.to_pylist())
    order = list(Source)
    steps.sort(
        key=lambda step: (order.index(step.source), bool(step.losses), -step.frees_at_most_bytes)
    )
    failed = [row for row in report.results.to_pylist() if row["status"] == Status.FAILED.value]
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    return FreePlan(
        steps=tuple(steps),
        notes=(
            *report.notes,
            *trash_notes,
            *describe_preallocated(of_brokers),
            *describe_set_aside(views, topics),
        ),
        largest=_largest(report),
        offsets_partitions=offsets_partitions,
        beside_trash=beside_trash,
        engine=report.engine,
        failures=(*failed, *(unseen if any(_going(report)) else ()), *failures),
    )


def _purges(report: RunReport, roots: Iterable[LogRoot]) -> Iterator[FreeStep]:
    """Yield the steps of a purge, by log directory and run's trash."""
    managed = {root.location for root in roots if root.role.facts.keeps_generations}
    locations = {root.location for root in roots}
    purged: dict[str, list[int]] = defaultdict(list)
    for row in report.results.to_pylist():
        if row["action"] == Action.PURGE.value and row["status"] == Status.PLANNED.value:
            purged[row["root"]].append(row["bytes_before"] or 0)
    for root, sizes in purged.items():
        source = Source.GENERATIONS if root in managed else Source.LEFTOVERS
        yield FreeStep(
            source=source if root in locations else Source.TRASH,
            root=root,
            topic=None,
            partitions=len(sizes),
            frees_bytes=sum(sizes),
            frees_at_most_bytes=sum(sizes),
        )


def _expired(
    report: RunReport, losses: Mapping[TopicPartition, Sequence[GroupLoss]]
) -> Iterator[FreeStep]:
    """Yield what retention would take, topic by topic."""
    refused = {
        (row["root"], row["directory"]): row["reason"]
        for row in report.results.to_pylist()
        if row["action"] == Action.RETAIN.value and row["reason"] in ALLOWED_BY
    }
    plans = report.plans.select(["root", "topic", "reason"]).to_pylist()
    compacted = {
        (row["root"], row["topic"]) for row in plans if row["reason"] != Reason.NOT_COMPACTED.value
    }
    by_topic: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in _going(report):
        by_topic[row["root"], row["topic"]].append(row)
    for (root, topic), rows in by_topic.items():
        size = sum(row["deleted_bytes"] for row in rows)
        reasons = [refused.get((root, row["directory"])) for row in rows]
        yield FreeStep(
            source=Source.EXPIRED,
            root=root,
            topic=topic,
            partitions=len(rows),
            frees_bytes=size,
            frees_at_most_bytes=size,
            refused_by=next((reason for reason in reasons if reason is not None), None),
            is_compacted=(root, topic) in compacted,
            losses=tuple(
                loss
                for row in rows
                for loss in losses.get(TopicPartition(topic, row["partition"]), ())
            ),
        )


def _compactions(report: RunReport) -> Iterator[FreeStep]:
    """Yield what compaction would give of what retention leaves, topic by topic."""
    names = ["root", "topic", "directory", "status", "bytes", "bytes_after", "cleanable_bytes"]
    rows = report.plans.select([*names, "peak_extra_bytes", "segment_bytes"]).to_pylist()
    going = {(row["root"], row["directory"]): row["deleted_segments"] for row in _going(report)}
    is_exact = EXACT_NOTE in report.notes
    refused = {
        (row["root"], row["topic"]): row["reason"]
        for row in report.results.to_pylist()
        if row["reason"] == Reason.RECORDS_WITHOUT_KEY
    }
    by_topic: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        if row["status"] != Status.PLANNED.value:
            continue
        # Both take the oldest segments: what has expired is a step before this one.
        expired = going.get((row["root"], row["directory"]), 0)
        expired_bytes = sum(row["segment_bytes"][:expired])
        remaining_bytes = sum(row["segment_bytes"][expired:])
        saved = max((row["bytes"] or 0) - (row["bytes_after"] or 0), 0)
        limit = saved if is_exact else max(saved, row["cleanable_bytes"] or 0)
        if remaining_bytes:
            sizes = (
                max(saved - expired_bytes, 0),
                min(limit, remaining_bytes),
                row["peak_extra_bytes"] or 0,
            )
            by_topic[row["root"], row["topic"]].append(sizes)
    for (root, topic), planned in by_topic.items():
        sure, most, needs = zip(*planned, strict=True)
        yield FreeStep(
            source=Source.COMPACTION,
            root=root,
            topic=topic,
            partitions=len(planned),
            frees_bytes=sum(sure),
            frees_at_most_bytes=sum(most),
            needs_bytes=max(needs),
            refused_by=refused.get((root, topic)),
        )


def _after_recovery(roots: Sequence[str], rows: Sequence[Row]) -> Iterator[FreeStep]:
    """Yield the recovery of unclosed roots and the steps after it. They say what could go from
    the roots then."""
    named = [row for row in rows if row["topic"] is not None]
    # One for all: a directory is marked as closed only beside the others of its broker.
    yield FreeStep(
        source=Source.RECOVERY,
        root=roots[0],
        topic=None,
        partitions=len(named),
        frees_bytes=0,
        frees_at_most_bytes=0,
    )
    for root in roots:
        own = [row for row in named if row["root"] == root]
        by_topic: dict[str, list[Row]] = defaultdict(list)
        for row in own:
            by_topic[row["topic"]].append(row)
        for topic, of_topic in by_topic.items():
            removable = [row["removable_bytes"] or 0 for row in of_topic]
            # What is due and not removed is read to be cleaned.
            dirty = [(row["due_bytes"] or 0) - (row["removable_bytes"] or 0) for row in of_topic]
            for source, sizes, sure in (
                (Source.EXPIRED, removable, sum(removable)),
                (Source.COMPACTION, dirty, 0),
            ):
                if any(sizes):
                    yield FreeStep(
                        source=source,
                        root=root,
                        topic=topic,
                        partitions=sum(size > 0 for size in sizes),
                        frees_bytes=sure,
                        frees_at_most_bytes=sum(sizes),
                        is_after_recovery=True,
                        is_compacted="compact" in (of_topic[0]["policy"] or ""),
                    )


def _going(report: RunReport) -> Iterator[Row]:
    """Yield the rows of partitions about to lose segments. Refused rows are among them."""
    for row in report.retentions.to_pylist():
        if row["deleted_segments"] and row["status"] != Status.FAILED.value:
            yield row


def _losses(
    views: Sequence[RootView], options: JobOptions, report: RunReport
) -> tuple[dict[TopicPartition, list[GroupLoss]], int, list[Row]]:
    """Return the groups' losses, the partitions read, and the failures. The partitions are those of
    commits. The commits of all roots count for each of them: a broker's directories are several
    disks."""
    going = {TopicPartition(row["topic"], row["partition"]): row for row in _going(report)}
    losses: dict[TopicPartition, list[GroupLoss]] = defaultdict(list)
    settings = CoordinatorSettings(now_ms=options.now_ms, broker=broker_config(options))
    topics = {partition.topic for partition in going}
    partitions = 0
    failures: list[Row] = []
    for of_broker in group_by_broker(views) if going else ():
        partitions += sum(
            entry.topic_partition is not None
            and entry.topic_partition.topic == CONSUMER_OFFSETS_TOPIC
            for view in of_broker
            for entry in view.entries
        )
        for kind, row in observe_groups(of_broker, settings, is_asked_for=topics.__contains__):
            if kind == "partition":
                failures.append(row)
            if kind != "commit" or row["commit_ms"] is None:
                continue
            partition = TopicPartition(row["topic"], row["partition"])
            loss = _loss(row, partition, going.get(partition))
            if loss is not None:
                losses[partition].append(loss)
    return losses, partitions, failures


def _loss(commit: Row, partition: TopicPartition, going: Row | None) -> GroupLoss | None:
    """Return a group's loss, or None for nothing. What is gone already is not lost again."""
    if going is None:
        return None
    if not going["old_log_start_offset"] <= commit["offset"] < going["log_start_offset"]:
        return None
    return GroupLoss(
        group=commit["group"],
        partition=partition,
        committed_offset=commit["offset"],
        log_start_offset=going["log_start_offset"],
    )


def _largest(report: RunReport) -> tuple[tuple[str, int], ...]:
    """Return the largest topics under retention, over all roots. Each comes with what retention
    leaves of it."""
    sizes: dict[str, int] = defaultdict(int)
    for row in report.retentions.to_pylist():
        sizes[row["topic"]] += (row["bytes"] or 0) - (row["deleted_bytes"] or 0)
    totals = sorted(sizes.items(), key=lambda total: (-total[1], total[0]))
    return tuple((topic, size) for topic, size in totals[:_MOST_TOPICS] if size > 0)


def describe_preallocated(views: Iterable[RootView]) -> Iterator[str]:
    """Yield a line about preallocated indexes of partitions and of metadata. There is one line for
    each of the two.

    A broker makes the indexes of a segment it appends to as long as they may become, and cuts those
    of partitions to their entries when it closes them. After a crash they stay as they are, sparse
    or not.
    """
    count = dict.fromkeys(_TRIMMED_BY, 0)
    held = dict.fromkeys(_TRIMMED_BY, 0)
    for view in views:
        for entry in view.entries:
            if entry.kind in _TRIMMED_BY:
                for size in _held_bytes(entry.path):
                    count[entry.kind] += 1
                    held[entry.kind] += size
    for kind, trimmed in _TRIMMED_BY.items():
        if count[kind]:
            whose = "the cluster's metadata" if kind is DirectoryKind.METADATA else "partitions"
            files = count_text(count[kind], "preallocated index", "preallocated indexes")
            yield f"{size_text(held[kind])} of the disk are held by {files} of {whose}: {trimmed}"


def _held_bytes(directory: str) -> Iterator[int]:
    """Yield the disk bytes of each preallocated index. Only the newest segment has any."""
    with suppress(PylogError, OSError):
        store = open_store(directory)
        indexes = [file for file in store.list_files() if kind_of(file.name) in _ENTRY_BYTES]
        newest = max((offset_of(file.name) or 0 for file in indexes), default=0)
        for file in indexes:
            if offset_of(file.name) == newest and _ends_in_zeros(store, file):
                yield (Path(directory) / file.name).lstat().st_blocks * _BLOCK_BYTES


def _ends_in_zeros(store: LogStore, file: FileInfo) -> bool:
    last = np.ones(_ENTRY_BYTES[kind_of(file.name) or ""], np.uint8)
    at = file.size_bytes - last.size
    if at < 0:
        return False
    with closing(store.open_file(file.name)) as reader:
        return reader.read_into(at, last) == last.size and not last.any()
