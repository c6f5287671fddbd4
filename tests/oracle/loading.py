"""A plan of loads: Kafka writes the log, it is damaged, Kafka and we load copies of it."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import jpype

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import LOG_SUFFIX, SCRATCH_PREFIX
from storage_core.store.local import LocalStore
from tests.kit.faulty_store import NEVER, FaultyStore, Moment, SimulatedCrash
from tests.kit.file_damage import Accident, damage
from tests.kit.one_partition import recover_partition, truncate_partition
from tests.oracle.cleaner import CleanerSettings
from tests.oracle.jvm import KafkaFailure, answer_or_failure, kafka_failures
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS, Kafka
from tests.oracle.log_writer import LogWriter
from tests.oracle.ours import clean_by_us
from tests.oracle.partition import OpenPartition
from tests.oracle.random_loads import LoadCase, LoadPlan
from tests.oracle.random_logs import START_MS
from tests.oracle.rounds import DIRECTORY, CleanTask

OFFSET_MAP_BYTES: Final = 1_000_000
IO_BUFFER_BYTES: Final = 524_288
WINDOW_BYTES: Final = 33_554_432
# A log that is cut was open before, so that only what loading overlooks can be wrong with it.
SIDE_FILE_ACCIDENTS: Final = frozenset(
    {
        Accident.SIDE_FILE_GONE,
        Accident.SIDE_FILE_STALE,
        Accident.SIDE_FILE_PADDED,
        Accident.ALL_OF_A_KIND_GONE,
        Accident.SNAPSHOT_STRAY,
        Accident.EPOCHS_CHANGED,
    }
)
CLEANER: Final = CleanerConfig(producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS)
_STORE_OF_CLEANING: Final = "storage_core.maintenance.compaction.partition.LocalStore"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One load, for either side: settings, clock, checkpoints, marker."""

    config: Mapping[str, object]
    now_ms: int
    recovery_point: int
    log_start_offset: int
    clean_shutdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """Where a log stands once it is loaded; segments is how many it has."""

    log_end_offset: int
    log_start_offset: int
    recovery_point: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateAnswer:
    """Whether a log was cut, and where it ends."""

    truncated: bool
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedLoad:
    """One load as Kafka played it.

    before: the directory as it was, for the other side, which may change it.
    after: the directory as Kafka left it; answer or failure: what Kafka said.
    truncate_to: None, or where it was cut after the load, which then was one after a clean end.
    """

    case: LoadCase
    task: LoadTask
    before: Path
    after: Path
    answer: LoadAnswer | TruncateAnswer | None
    failure: KafkaFailure | None
    truncate_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLog:
    """A log before any accident, and the clock when it was left."""

    directory: Path
    log_end_offset: int
    now_ms: int


def write_log(plan: LoadPlan, directory: Path) -> WrittenLog:
    """Let Kafka write the log of a plan, and leave it as the plan says.

    An append that Kafka fails (many legacy messages at once fill a tiny index) ends the log there,
    as a broker does that takes its directory offline.
    """
    kafka = Kafka(now_ms=START_MS)
    writer = LogWriter(kafka)
    end_offset, has_failed = 0, False
    for number, steps in enumerate(plan.rounds):
        partition = kafka.open_partition(directory, config=plan.config)
        is_last = number == len(plan.rounds) - 1
        try:
            for step in steps:
                writer.write(partition, step)
        except KafkaFailure:
            is_last = has_failed = True
        end_offset = partition.log_end_offset
        _leave(partition, cleanly=not has_failed and (plan.ends_cleanly or not is_last))
        if is_last:
            break
    return WrittenLog(directory=directory, log_end_offset=end_offset, now_ms=kafka.now_ms)


def play_loads(plan: LoadPlan, scratch: Path, *, name: str = DIRECTORY) -> Iterator[PlayedLoad]:
    """Let Kafka write a log, and load a damaged copy of it for each case.

    Args:
        name: Of the copies' directories: it says what state the partition is in.
    """
    (scratch / "written").mkdir()
    log = write_log(plan, scratch / "written" / DIRECTORY)
    for number, case in enumerate(plan.cases):
        before = scratch / f"case-{number}" / "before" / name
        shutil.copytree(log.directory, before)
        spoil(before, plan, case, log)
        yield play_load(case, load_task(plan, case, log), before)


def play_truncations(plan: LoadPlan, scratch: Path) -> Iterator[PlayedLoad]:
    """Let Kafka write a log, and truncate a copy of it for each case.

    A case's recovery point says where; of its damage only what concerns side files happens.
    """
    (scratch / "written").mkdir()
    log = write_log(plan, scratch / "written" / DIRECTORY)
    for number, case in enumerate(plan.cases):
        before = scratch / f"case-{number}" / "before" / DIRECTORY
        shutil.copytree(log.directory, before)
        for accident in case.damages:
            if accident.accident in SIDE_FILE_ACCIDENTS:
                damage(before, accident)
        task = load_task(plan, case, log)
        to = task.recovery_point
        task = replace(task, clean_shutdown=True, recovery_point=log.log_end_offset)
        yield play_load(case, task, before, truncate_to=to)


def spoil(directory: Path, plan: LoadPlan, case: LoadCase, log: WrittenLog) -> None:
    """Do to a copy of a log what happens to it before a case's load."""
    if case.interrupted_clean is not None:
        _interrupt_a_round(directory, plan, log, case.interrupted_clean)
    for accident in case.damages:
        damage(directory, accident)


def load_task(plan: LoadPlan, case: LoadCase, log: WrittenLog) -> LoadTask:
    """Turn a case's proportions into offsets."""
    shift = case.offset_shift
    return LoadTask(
        config=plan.config,
        now_ms=log.now_ms + case.wait_ms,
        recovery_point=max(0, int(log.log_end_offset * case.recovery_point) + shift),
        log_start_offset=max(0, int(log.log_end_offset * case.log_start) + shift)
        if case.log_start
        else 0,
        clean_shutdown=case.clean_shutdown,
    )


def play_load(
    case: LoadCase, task: LoadTask, before: Path, *, truncate_to: int | None = None
) -> PlayedLoad:
    """Let Kafka load, perhaps truncate, and cleanly close a copy of a directory."""
    after = before.parents[1] / "after" / before.name
    shutil.copytree(before, after)

    def ask() -> LoadAnswer | TruncateAnswer:
        if truncate_to is None:
            return load_by_kafka(after, task)
        return truncate_by_kafka(after, task, truncate_to)

    answer, failure = answer_or_failure(ask)
    return PlayedLoad(
        case=case,
        task=task,
        before=before,
        after=after,
        answer=answer,
        failure=failure,
        truncate_to=truncate_to,
    )


def load_by_kafka(directory: Path, task: LoadTask) -> LoadAnswer:
    """Load a partition directory by Kafka, and close it cleanly."""
    with _opened(directory, task) as partition:
        log = partition.log
        return LoadAnswer(
            log_end_offset=int(log.logEndOffset()),
            log_start_offset=int(log.logStartOffset()),
            recovery_point=int(log.recoveryPoint()),
            segments=int(log.numberOfSegments()),
        )


def truncate_by_kafka(directory: Path, task: LoadTask, to: int) -> TruncateAnswer:
    """Load a partition directory by Kafka, truncate it as a follower does, and close it cleanly."""
    with _opened(directory, task) as partition, kafka_failures():
        truncated = bool(partition.log.truncateTo(jpype.JLong(to)))
        return TruncateAnswer(truncated=truncated, log_end_offset=int(partition.log.logEndOffset()))


def load_by_us(directory: Path, task: LoadTask) -> LoadAnswer:
    """Load a partition directory as Kafka would, and write what loading and closing change."""
    result = recover_partition(
        directory,
        config=_config(task),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        recovery_point=task.recovery_point,
        log_start_offset=task.log_start_offset,
        clean_shutdown=task.clean_shutdown,
    )
    return LoadAnswer(
        log_end_offset=result.log_end_offset,
        log_start_offset=result.log_start_offset,
        recovery_point=result.recovery_point,
        segments=result.segments,
    )


def truncate_by_us(directory: Path, task: LoadTask, to: int) -> TruncateAnswer:
    """Load a partition directory, truncate it as a follower does, and close it."""
    result = truncate_partition(
        directory,
        config=_config(task),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        to=to,
        log_start_offset=task.log_start_offset,
    )
    return TruncateAnswer(truncated=result.truncated, log_end_offset=result.log_end_offset)


def _config(task: LoadTask) -> LogConfig:
    return LogConfig.from_topic_overrides({key: str(value) for key, value in task.config.items()})


def _opened(directory: Path, task: LoadTask) -> OpenPartition:
    return Kafka(now_ms=task.now_ms).open_partition(
        directory,
        config=task.config,
        clean_shutdown=task.clean_shutdown,
        log_start_offset=task.log_start_offset,
        recovery_point=task.recovery_point,
    )


def _leave(partition: OpenPartition, *, cleanly: bool) -> None:
    if cleanly:
        partition.close()
    else:
        partition.abandon()


def _interrupt_a_round(directory: Path, plan: LoadPlan, log: WrittenLog, share: float) -> None:
    """Clean a log by us and die at one of the changes; nothing happens if it cannot be cleaned."""
    twin = directory.with_name("twin") / directory.name
    shutil.copytree(directory, twin)
    changes = _clean_until(twin, plan, log, NEVER)
    shutil.rmtree(twin.parent)
    if changes:
        _clean_until(directory, plan, log, int(share * (changes - 1)))
    for path in directory.glob(f"{SCRATCH_PREFIX}*"):
        path.unlink()


def _clean_until(directory: Path, plan: LoadPlan, log: WrittenLog, stop_at: int) -> int:
    """Clean everything but the active segment; return how many changes that made or had made."""
    stores: list[FaultyStore] = []

    def faulty(path: Path, *, is_ours: bool) -> FaultyStore:
        store = LocalStore(path, is_ours=is_ours)
        stores.append(FaultyStore(store, stop_at=stop_at, moment=Moment.BEFORE))
        return stores[-1]

    bases = sorted(int(p.name.partition(".")[0]) for p in directory.glob(f"*{LOG_SUFFIX}"))
    task = CleanTask(
        config={**plan.config, "cleanup.policy": "compact"},
        now_ms=log.now_ms,
        high_watermark=log.log_end_offset,
        log_start_offset=0,
        first_dirty_offset=0,
        first_uncleanable_offset=bases[-1],
        cleaner_checkpoint=None,
        cleaner=CleanerSettings(map_bytes=OFFSET_MAP_BYTES, io_buffer_bytes=IO_BUFFER_BYTES),
        window_bytes=WINDOW_BYTES,
    )
    with patch(_STORE_OF_CLEANING, faulty), contextlib.suppress(SimulatedCrash, PylogError):
        clean_by_us(directory, task)
    return sum(len(store.changes) for store in stores)
