"""Random logs and limits: Kafka's deletion pass beside ours, over an open log and one at rest.

Over each log a few passes are made.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from storage_core.commit import commit
from storage_core.config import LogConfig
from storage_core.errors import ContradictedAgeError, PylogError
from storage_core.store.local import LocalStore
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.one_partition import retain_partition, sweep_at_rest
from tests.kit.report_situations import NOW_MS, unpack
from tests.oracle.jvm import KafkaFailure
from tests.oracle.kafka import Kafka
from tests.oracle.known_differences import has_bad_legacy_set, is_loaded_otherwise
from tests.oracle.loading import CLEANER
from tests.oracle.random_logs import EXAMPLES, against_kafka, scratch_folder
from tests.oracle.retention import (
    PlayedPass,
    RetentionAnswer,
    RetentionPlan,
    RetentionTask,
    play_passes,
    retain_by_kafka,
    retention_plans,
)

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def passes_of(plan: RetentionPlan) -> Iterator[PlayedPass]:
    with scratch_folder() as scratch:
        for played in play_passes(plan, scratch):
            bad_set = played.answer is None and has_bad_legacy_set(played.before)
            if not is_loaded_otherwise(played.before) and not bad_set:
                yield played


def config_of(played: PlayedPass) -> LogConfig:
    return LogConfig.from_topic_overrides(
        {key: str(value) for key, value in played.task.config.items()}
    )


def differences(one: Path, other: Path) -> list[str]:
    found = compare_partitions(read_tree(one), read_tree(other), Exactness.BYTES)
    return [str(difference) for difference in found]


@pytest.mark.thorough
@settings(against_kafka, max_examples=min(EXAMPLES, 10))
@given(plan=retention_plans())
def test_kafka_itself_sweeps_equal_copies_alike(plan: RetentionPlan) -> None:
    """What else is compared here would mean nothing."""
    for played in passes_of(plan):
        if played.failure:
            with pytest.raises(KafkaFailure):
                retain_by_kafka(played.before, played.task)
        else:
            assert retain_by_kafka(played.before, played.task) == played.answer
            assert not differences(played.after, played.before)


@pytest.mark.item("RET-01", "RET-02", "RET-03", "RET-04", "RET-05", "RET-06", "RET-07", "RET-08")
@pytest.mark.item("RET-09", "RET-10", "RET-12", "ERR-01", "PRD-16", "CKP-13")
@against_kafka
@given(plan=retention_plans())
def test_a_pass_over_an_open_log_ends_byte_for_byte_as_kafkas(plan: RetentionPlan) -> None:
    for played in passes_of(plan):
        what = f"{played.case}\n{played.task}"
        before = read_tree(played.before)
        if played.answer is None:
            with pytest.raises(PylogError):
                retain_by_us(played)
            assert read_tree(played.before) == before, f"a refusal left changes: {what}"
            continue
        try:
            answer = retain_by_us(played)
        except ContradictedAgeError as error:
            assert read_tree(played.before) == before, f"a refusal left changes: {what}"
            assert_refusal(played, error)
            continue
        assert not differences(played.after, played.before), what
        assert answer == played.answer, what


def retain_by_us(played: PlayedPass) -> RetentionAnswer:
    task = played.task
    result = retain_partition(
        played.before,
        config=config_of(played),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        log_start_checkpoint=task.log_start_checkpoint,
        high_watermark=task.high_watermark,
        log_start_offset=task.log_start_offset,
    )
    return RetentionAnswer(
        deleted_segments=result.deleted_segments,
        log_start_offset=result.log_start_offset,
        log_end_offset=result.log_end_offset,
    )


@pytest.mark.thorough
@pytest.mark.item("RET-10", "RET-11", "RET-02", "RET-09")
@against_kafka
@given(plan=retention_plans())
def test_kafka_opens_a_log_swept_at_rest_as_the_one_that_it_swept_itself(
    plan: RetentionPlan,
) -> None:
    for played in passes_of(plan):
        # DeleteRecords needs a broker; its effect on a log at rest is the checkpoint.
        if played.answer is None or played.task.log_start_offset is not None:
            continue
        what = f"{played.case}\n{played.task}"
        # The broker closes it, with the log start that it has, before it is at rest.
        reopen(played.before, played, played.task.log_start_checkpoint)
        store = LocalStore(played.before)
        try:
            sweep = sweep_at_rest(
                store,
                config=config_of(played),
                cleaner=CLEANER,
                now_ms=played.task.now_ms,
                log_start_checkpoint=played.task.log_start_checkpoint,
                high_watermark=played.task.high_watermark,
            )
        except ContradictedAgeError as error:
            assert_refusal(played, error)
            continue
        commit(sweep.steps, store)
        assert len(sweep.decision.removals) == played.answer.deleted_segments, what
        assert sweep.decision.log_start_offset == played.answer.log_start_offset, what
        reopen(played.before, played, sweep.decision.log_start_offset)
        reopen(played.after, played, played.answer.log_start_offset)
        assert not differences(played.after, played.before), what


def assert_refusal(played: PlayedPass, error: ContradictedAgeError) -> None:
    """Of a log that nobody damaged, only the time of a file is no reason to delete."""
    assert played.answer is not None
    assert played.answer.deleted_segments
    assert played.case.damages or "no entry" in str(error), (played.case, error)


def test_kafka_deletes_for_zeros_in_time_indexes_what_we_keep(tmp_path: Path) -> None:
    """The log has records of two days, its topic keeps them for 400."""
    day_ms = 86_400_000
    roots = unpack("time_index_padded", tmp_path)
    [directory] = [path for root in roots for path in root.glob("timed-0")]
    task = RetentionTask(
        config={"cleanup.policy": "delete", "retention.ms": 400 * day_ms},
        now_ms=NOW_MS,
        high_watermark=400,
        log_start_checkpoint=0,
        log_start_offset=None,
    )
    config = LogConfig.from_topic_overrides({k: str(v) for k, v in task.config.items()})
    with pytest.raises(ContradictedAgeError):
        sweep_at_rest(LocalStore(directory), config=config, cleaner=CLEANER, now_ms=NOW_MS)
    answer = retain_by_kafka(directory, task)
    assert (answer.deleted_segments, answer.log_start_offset) == (2, 270)


def reopen(directory: Path, played: PlayedPass, log_start_offset: int) -> None:
    """Let Kafka open a log after a clean shutdown, and close it."""
    kafka = Kafka(now_ms=played.task.now_ms)
    with kafka.open_partition(
        directory, config=played.task.config, log_start_offset=log_start_offset
    ):
        pass


@pytest.mark.thorough
@pytest.mark.item("RET-12")
@against_kafka
@given(plan=retention_plans())
def test_below_a_raised_log_start_nothing_is_shown_again(plan: RetentionPlan) -> None:
    """Delete-records, a sweep, a restart: the log begins where it was raised to."""
    for played in passes_of(plan):
        if played.answer is None or not played.answer.deleted_segments:
            continue
        copy = played.before.with_name("copy-0")
        shutil.copytree(played.after, copy)
        kafka = Kafka(now_ms=played.task.now_ms)
        with kafka.open_partition(
            copy, config=played.task.config, log_start_offset=played.answer.log_start_offset
        ) as partition:
            answer = partition.answer()
        assert answer.log_start_offset == played.answer.log_start_offset
        assert answer.segments[0][0] <= answer.log_start_offset
        shutil.rmtree(copy)
