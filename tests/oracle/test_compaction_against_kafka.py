"""Random logs, written and cleaned by Apache Kafka; cleaned by us from the same bytes.

``PYLOG_ORACLE_EXAMPLES`` says how many logs of each kind; the default keeps ``make test`` short.
They are the same in every run; ``PYLOG_ORACLE_RANDOM=1`` has Hypothesis look for new ones, and
``PYLOG_ORACLE_SHRINK=1`` make a failing one small, which takes minutes.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from storage_core.errors import PylogError
from storage_core.testing.compare import Exactness, compare_partitions, read_tree
from tests.oracle.cleaner import CleanerSettings
from tests.oracle.kafka import Kafka
from tests.oracle.ours import clean_by_us
from tests.oracle.random_logs import START_MS, LogPlan, log_plans
from tests.oracle.records import NewBatch, NewRecord
from tests.oracle.rounds import DIRECTORY, CleanAnswer, CleanTask, PlayedRound, play, play_task

EXAMPLES = int(os.environ.get("PYLOG_ORACLE_EXAMPLES", "60"))
FIXED = os.environ.get("PYLOG_ORACLE_RANDOM", "0") != "1"
SHRINK = os.environ.get("PYLOG_ORACLE_SHRINK", "0") == "1"
# Compressed batches that Kafka wrote anew have other bytes where the compressor's build differs.
NOT_IF_RECOMPRESSED = ("bytes_written",)

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]
against_kafka = settings(
    max_examples=EXAMPLES,
    derandomize=FIXED,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
)


@against_kafka
@given(plan=log_plans(compressed=False))
def test_uncompressed_logs_are_cleaned_byte_for_byte_as_kafka_does(plan: LogPlan) -> None:
    compare_every_round(plan, Exactness.BYTES)


@against_kafka
@given(plan=log_plans(compressed=True))
def test_compressed_logs_are_cleaned_record_for_record_as_kafka_does(plan: LogPlan) -> None:
    compare_every_round(plan, Exactness.RECORDS)


@pytest.mark.parametrize(
    ("first_dirty_offset", "first_uncleanable_offset"),
    [
        pytest.param(0, 0, id="empty at the start"),
        pytest.param(10, 10, id="empty between segments"),
        pytest.param(10, 15, id="empty once its end is rounded down"),
        pytest.param(13, 17, id="backwards once its end is rounded down"),
        pytest.param(15, 5, id="backwards"),
        pytest.param(20, 20, id="empty at the log end"),
        pytest.param(3, 10, id="from inside a segment"),
    ],
)
def test_an_odd_range_ends_as_in_kafka(tmp_path, first_dirty_offset, first_uncleanable_offset):
    directory = tmp_path / "kafka" / DIRECTORY
    config = {"cleanup.policy": "compact", "delete.retention.ms": 0}
    records = (NewRecord(key=b"%d" % (n % 3), value=b"v", timestamp=START_MS) for n in range(10))
    ten = NewBatch(records=tuple(records))
    kafka = Kafka(now_ms=START_MS)
    with kafka.open_partition(directory, config=config) as partition:
        for _ in range(2):
            partition.append_as_leader(ten)
            partition.roll()
    task = CleanTask(
        config=config,
        now_ms=START_MS,
        high_watermark=20,
        log_start_offset=0,
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        cleaner_checkpoint=None,
        cleaner=CleanerSettings(map_bytes=1_000_000),
        window_bytes=33_554_432,
    )
    played = play_task(kafka, directory, task, before=tmp_path / "ours" / DIRECTORY)
    compare_round(played, Exactness.BYTES)


def compare_every_round(plan: LogPlan, exactness: Exactness) -> None:
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        for played in play(plan, Path(scratch)):
            compare_round(played, exactness)


def compare_round(played: PlayedRound, exactness: Exactness) -> None:
    if played.answer is None:
        fails_too(played)
        return
    answer = clean_by_us(played.before, played.task)
    differences = compare_partitions(read_tree(played.after), read_tree(played.before), exactness)
    assert not differences, "\n".join([str(played.task), *map(str, differences)])
    assert comparable(answer, exactness) == comparable(played.answer, exactness), played.task


def fails_too(played: PlayedRound) -> None:
    """Where Kafka throws, we refuse with an error of ours and leave the partition alone."""
    before = read_tree(played.before)
    with pytest.raises(PylogError):
        clean_by_us(played.before, played.task)
    assert read_tree(played.before) == before, f"{played.task}: a failed round left changes"


def comparable(answer: CleanAnswer, exactness: Exactness) -> CleanAnswer:
    if exactness is Exactness.BYTES:
        return answer
    numbers = {k: v for k, v in answer.numbers.items() if k not in NOT_IF_RECOMPRESSED}
    return CleanAnswer(
        numbers=numbers,
        segments=answer.segments,
        cleaner_checkpoint=answer.cleaner_checkpoint,
        nothing_to_clean=answer.nothing_to_clean,
    )
