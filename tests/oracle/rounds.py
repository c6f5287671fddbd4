"""A plan played by Kafka: it writes the log and cleans it; what it was given is kept for us."""

import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.oracle.cleaner import (
    CLEANER_CHECKPOINT,
    CleanerSettings,
    CleanOutcome,
    clean_as_manager_chooses,
    clean_range,
    read_cleaner_checkpoint,
    write_cleaner_checkpoint,
)
from tests.oracle.jvm import KafkaFailure, answer_or_failure
from tests.oracle.kafka import Kafka
from tests.oracle.log_writer import LogWriter
from tests.oracle.partition import OpenPartition
from tests.oracle.random_logs import DAY_MS, START_MS, LogPlan, RoundPlan

TOPIC: Final = "t"
DIRECTORY: Final = f"{TOPIC}-0"
# What the answers of both sides are compared by.
NUMBERS: Final = (
    "next_offset",
    "messages_read",
    "messages_written",
    "bytes_read",
    "bytes_written",
    "map_messages_read",
    "invalid_messages_read",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanTask:
    """One round of cleaning, for either side.

    window_bytes concerns only this project, which reads a segment by so many bytes at a time.
    first_dirty_offset None: the range is chosen as Kafka's LogCleanerManager does, from
    cleaner_checkpoint, which is None for a partition that was never cleaned. then_retains: the
    deletion pass of a cleaner thread follows. keeps_negative_timestamps is an option of ours.
    """

    config: Mapping[str, object]
    now_ms: int
    high_watermark: int
    log_start_offset: int
    first_dirty_offset: int | None
    first_uncleanable_offset: int | None
    cleaner_checkpoint: int | None
    cleaner: CleanerSettings
    window_bytes: int
    then_retains: bool = False
    keeps_negative_timestamps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanAnswer:
    """What a round said; next_offset and the other numbers are absent if nothing was cleaned.

    cleaner_checkpoint: the partition's entry from now on; None for no entry, and where the range
    was given, which says nothing about it. deleted_segments: by the pass after the round; None
    where none was asked for.
    """

    numbers: Mapping[str, int]
    segments: int
    cleaner_checkpoint: int | None
    nothing_to_clean: bool
    deleted_segments: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRound:
    """One round as Kafka played it.

    before: a copy of the partition directory as the cleaner found it; the caller may change it.
    after: the directory as Kafka left it; answer or failure: what Kafka said.
    """

    task: CleanTask
    before: Path
    after: Path
    answer: CleanAnswer | None
    failure: KafkaFailure | None


def play(plan: LogPlan, scratch: Path) -> Iterator[PlayedRound]:
    """Let Kafka write and clean a log, round by round; stop after a round that it fails."""
    kafka = Kafka(now_ms=START_MS)
    writer = LogWriter(kafka)
    directory = scratch / "kafka" / DIRECTORY
    directory.parent.mkdir()
    log_start_offset, checkpoint = 0, None
    for number, round_plan in enumerate(plan.rounds):
        with kafka.open_partition(
            directory, config=plan.config, log_start_offset=log_start_offset
        ) as partition:
            for step in round_plan.steps:
                writer.write(partition, step)
            if round_plan.rolls_before:
                partition.roll()
            kafka.now_ms += round_plan.wait_ms
            task = _task(plan, round_plan, partition, now_ms=kafka.now_ms, checkpoint=checkpoint)
        if round_plan.clean.file_ages is not None:
            set_file_times(directory, kafka.now_ms, round_plan.clean.file_ages)
        log_start_offset = task.log_start_offset
        played = play_task(kafka, directory, task, before=scratch / f"round-{number}" / DIRECTORY)
        yield played
        if played.answer is None:
            return
        if task.first_dirty_offset is None:
            checkpoint = played.answer.cleaner_checkpoint


def set_file_times(directory: Path, now_ms: int, seed: int) -> None:
    """Give the segments times of their own: of some, nothing else tells the age."""
    dice = random.Random(seed)
    for path in sorted(directory.glob("*.log")):
        at = now_ms - dice.choice((0, 1, dice.randrange(DAY_MS), now_ms - START_MS + 1))
        os.utime(path, ns=(at * 1_000_000, at * 1_000_000))


def play_task(kafka: Kafka, directory: Path, task: CleanTask, *, before: Path) -> PlayedRound:
    """Keep a copy of a partition directory as before, then let Kafka clean it."""
    shutil.copytree(directory, before)
    answer, failure = answer_or_failure(lambda: clean_by_kafka(kafka, directory, task))
    return PlayedRound(task=task, before=before, after=directory, answer=answer, failure=failure)


def clean_by_kafka(kafka: Kafka, directory: Path, task: CleanTask) -> CleanAnswer:
    """Clean a partition directory by Kafka; it is closed cleanly at the end.

    The parent directory's cleaner checkpoint is overwritten.
    """
    kafka.now_ms = task.now_ms
    with kafka.open_partition(
        directory, config=task.config, log_start_offset=task.log_start_offset
    ) as partition:
        partition.set_high_watermark(task.high_watermark)
        outcome: CleanOutcome | None
        if task.first_dirty_offset is None:
            lines = {} if task.cleaner_checkpoint is None else {_KEY: task.cleaner_checkpoint}
            write_cleaner_checkpoint(directory.parent, lines)
            outcome = clean_as_manager_chooses(kafka, partition, settings=task.cleaner)
            checkpoint = read_cleaner_checkpoint(directory.parent).get(_KEY)
            (directory.parent / CLEANER_CHECKPOINT).unlink()
        else:
            outcome = clean_range(
                kafka,
                partition,
                first_dirty_offset=task.first_dirty_offset,
                first_uncleanable_offset=task.first_uncleanable_offset,
                settings=task.cleaner,
            )
            checkpoint = None
        deleted = partition.delete_old_segments() if task.then_retains else None
        return CleanAnswer(
            numbers={name: getattr(outcome, name) for name in NUMBERS} if outcome else {},
            segments=len(partition.answer().segments),
            cleaner_checkpoint=checkpoint,
            nothing_to_clean=outcome is None,
            deleted_segments=deleted,
        )


_KEY: Final = (TOPIC, 0)


def _task(
    plan: LogPlan,
    round_plan: RoundPlan,
    partition: OpenPartition,
    *,
    now_ms: int,
    checkpoint: int | None,
) -> CleanTask:
    """Turn a round's proportions into offsets."""
    clean = round_plan.clean
    partition.set_high_watermark(int(partition.log_end_offset * clean.high_watermark))
    now = partition.answer()
    first_dirty = first_uncleanable = None
    if clean.checkpoint is not None:
        checkpoint = int(partition.log_end_offset * clean.checkpoint)
    if not clean.by_manager:
        end = min(now.last_stable_offset, now.segments[-1][0])
        first = now.segments[0][0]
        first_uncleanable = max(first, int(end * clean.clean_to))
        # Kafka rounds the end down to a segment, and refuses a range that then runs backwards.
        rounded = max(base for base, _ in now.segments if base <= first_uncleanable)
        # Below the first segment Kafka finds no aborted transactions (docs/differences.md).
        first_dirty = max(first, int(rounded * clean.dirty_from))
    return CleanTask(
        config={**plan.config, **clean.changed_settings},
        now_ms=now_ms,
        high_watermark=now.high_watermark,
        log_start_offset=max(now.log_start_offset, int(now.high_watermark * clean.log_start)),
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        cleaner_checkpoint=checkpoint,
        cleaner=CleanerSettings(
            map_bytes=clean.map_bytes,
            load_factor=clean.load_factor,
            io_buffer_bytes=clean.io_buffer_bytes,
            max_io_buffer_bytes=clean.max_io_buffer_bytes,
        ),
        window_bytes=clean.window_bytes,
        then_retains=clean.then_retains,
    )
