"""Deletion passes over random logs: what is asked, and Kafka's side of it.

A plan is one log and a few passes, each over its own copy. Limits are drawn around what the log
has: sizes at which one segment more or less goes, ages just at and beside those of segments.
"""

import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from tests.kit.file_damage import Damage, damage
from tests.oracle.jvm import KafkaFailure, answer_or_failure
from tests.oracle.kafka import Kafka
from tests.oracle.loading import SIDE_FILE_ACCIDENTS, WrittenLog, write_log
from tests.oracle.random_loads import LoadPlan, damages, load_plans
from tests.oracle.random_logs import DAY_MS
from tests.oracle.rounds import DIRECTORY, set_file_times

NO_LIMIT: Final = -1
TIME_ENTRY_BYTES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionCase:
    """One pass, in proportions, since sizes, ages and offsets are known only when it comes."""

    policy: str
    # Of how many of the newest segments the log may have the size; None for no limit
    size: int | None
    size_shift: int  # added to that
    age: float | None  # segment whose age is the limit, as a fraction of all; None for no limit
    age_shift: int  # added to that
    high_watermark: float  # this and the next two are fractions of the log's offsets
    log_start: float  # the checkpointed one
    raised_to: float  # where DeleteRecords raises it once the log is open
    offset_shift: int  # added to these three
    wait_ms: int  # how long the log lay there; a clock that is behind sees timestamps in the future
    damages: tuple[Damage, ...]  # what happens to its small files before
    seed: int  # of the files' times


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionTask:
    """One pass, for either side: settings, clock, offsets."""

    config: Mapping[str, object]
    now_ms: int
    high_watermark: int
    log_start_checkpoint: int
    log_start_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionAnswer:
    """How many segments went, and where the log stands."""

    deleted_segments: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPass:
    """One pass as Kafka played it.

    before: the directory as it was, for the other side, which may change it.
    after: the directory as Kafka left it; answer or failure: what Kafka said.
    """

    case: RetentionCase
    task: RetentionTask
    before: Path
    after: Path
    answer: RetentionAnswer | None
    failure: KafkaFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """A log, and the passes over it."""

    log: LoadPlan
    cases: tuple[RetentionCase, ...]


def retention_plans() -> st.SearchStrategy[RetentionPlan]:
    """Return logs of all kinds with a few passes each."""
    return st.builds(
        RetentionPlan,
        log=load_plans().map(lambda plan: replace(plan, ends_cleanly=True, cases=())),
        cases=st.lists(_cases(), min_size=3, max_size=8).map(tuple),
    )


def _cases() -> st.SearchStrategy[RetentionCase]:
    return st.builds(
        RetentionCase,
        policy=st.sampled_from(("delete", "delete", "delete", "compact,delete", "compact", "")),
        size=st.sampled_from((None, None, None, 0, 0, 1, 2, 3, 4, 6)),
        size_shift=st.sampled_from((0, 0, 0, -1, 1, 300)),
        age=st.one_of(st.none(), st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0))),
        age_shift=st.sampled_from((0, -1, 1, -1, DAY_MS)),
        high_watermark=st.sampled_from((1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.5, 0.0)),
        log_start=st.sampled_from((0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0, 1.2)),
        raised_to=st.sampled_from((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.9, 1.0, 1.1)),
        offset_shift=st.sampled_from((0, 0, 0, -1, 1)),
        wait_ms=st.sampled_from((0, 1, DAY_MS, DAY_MS + 1, 30 * DAY_MS, -60_000)),
        damages=st.one_of(st.just(()), st.lists(damages(), max_size=3).map(tuple)),
        seed=st.integers(0, 2**16),
    )


def play_passes(plan: RetentionPlan, scratch: Path) -> Iterator[PlayedPass]:
    """Let Kafka write a log, and make a deletion pass over a copy of it for each case."""
    (scratch / "written").mkdir()
    log = write_log(plan.log, scratch / "written" / DIRECTORY)
    for number, case in enumerate(plan.cases):
        before = scratch / f"case-{number}" / "before" / DIRECTORY
        shutil.copytree(log.directory, before)
        for accident in case.damages:
            if accident.accident in SIDE_FILE_ACCIDENTS:
                damage(before, accident)
        set_file_times(before, log.now_ms, case.seed)
        task = task_of(plan, case, log, before)
        after = before.parents[1] / "after" / before.name
        shutil.copytree(before, after)
        answer, failure = answer_or_failure(partial(retain_by_kafka, after, task))
        yield PlayedPass(
            case=case, task=task, before=before, after=after, answer=answer, failure=failure
        )


def ages_in(directory: Path) -> list[tuple[int, int]]:
    """Return size and largest timestamp of each segment, by its files alone."""
    found = []
    for path in sorted(directory.glob("*.log")):
        index = path.with_suffix(".timeindex")
        data = index.read_bytes() if index.exists() else b""
        entries = len(data) // TIME_ENTRY_BYTES
        timestamp = -1
        if entries:
            (timestamp,) = struct.unpack_from(">q", data, (entries - 1) * TIME_ENTRY_BYTES)
        modified_ms = path.stat().st_mtime_ns // 1_000_000
        found.append((path.stat().st_size, timestamp if timestamp >= 0 else modified_ms))
    return found


def task_of(
    plan: RetentionPlan, case: RetentionCase, log: WrittenLog, directory: Path
) -> RetentionTask:
    """Turn a case's proportions into limits and offsets."""
    segments = ages_in(directory)
    now_ms = log.now_ms + case.wait_ms
    config: dict[str, object] = dict(plan.log.config)
    config |= {
        "cleanup.policy": case.policy,
        "retention.bytes": NO_LIMIT,
        "retention.ms": NO_LIMIT,
        "file.delete.delay.ms": 0,
    }
    if case.size is not None:
        newest = sum(size for size, _ in segments[max(0, len(segments) - case.size) :])
        config["retention.bytes"] = max(NO_LIMIT, newest + case.size_shift)
    if case.age is not None and segments:
        _, timestamp = segments[int(case.age * (len(segments) - 1))]
        config["retention.ms"] = max(NO_LIMIT, now_ms - timestamp + case.age_shift)

    def offset_at(fraction: float) -> int:
        shift = case.offset_shift if fraction else 0
        return max(0, int(log.log_end_offset * fraction) + shift)

    return RetentionTask(
        config=config,
        now_ms=now_ms,
        high_watermark=offset_at(case.high_watermark),
        log_start_checkpoint=offset_at(case.log_start),
        log_start_offset=offset_at(case.raised_to) if case.raised_to else None,
    )


def retain_by_kafka(directory: Path, task: RetentionTask) -> RetentionAnswer:
    """Open a partition by Kafka, make one deletion pass, and close it cleanly."""
    kafka = Kafka(now_ms=task.now_ms)
    with kafka.open_partition(
        directory, config=task.config, log_start_offset=task.log_start_checkpoint
    ) as partition:
        partition.set_high_watermark(task.high_watermark)
        if task.log_start_offset is not None:
            partition.raise_log_start(task.log_start_offset)
        deleted = partition.delete_old_segments()
        answer = partition.answer()
    return RetentionAnswer(
        deleted_segments=deleted,
        log_start_offset=answer.log_start_offset,
        log_end_offset=answer.log_end_offset,
    )
