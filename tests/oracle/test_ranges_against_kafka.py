"""Ranges that random logs rarely have: empty, backwards, or bounded from below the log start."""

import pytest

from tests.kit.compare import Exactness
from tests.oracle.cleaner import CleanerSettings
from tests.oracle.kafka import Kafka
from tests.oracle.ours import compare_round
from tests.oracle.random_logs import START_MS
from tests.oracle.records import NewBatch, NewRecord
from tests.oracle.rounds import DIRECTORY, CleanTask, play_task

CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0}

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def ten_records(**batch_fields):
    keys = (b"%d" % (n % 3) for n in range(10))
    records = tuple(NewRecord(key=key, value=b"v", timestamp=START_MS) for key in keys)
    return NewBatch(records=records, **batch_fields)


def task_with(**fields):
    defaults = {
        "config": CONFIG,
        "now_ms": START_MS,
        "log_start_offset": 0,
        "first_dirty_offset": None,
        "first_uncleanable_offset": None,
        "cleaner_checkpoint": None,
        "cleaner": CleanerSettings(map_bytes=1_000_000),
        "window_bytes": 33_554_432,
    }
    return CleanTask(**(defaults | fields))


@pytest.mark.sampled(2)
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
    kafka = Kafka(now_ms=START_MS)
    with kafka.open_partition(directory, config=CONFIG) as partition:
        for _ in range(2):
            partition.append_as_leader(ten_records())
            partition.roll()
    task = task_with(
        high_watermark=20,
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
    )
    played = play_task(kafka, directory, task, before=tmp_path / "ours" / DIRECTORY)
    compare_round(played, Exactness.BYTES)


# Segments: [0, 10) with a transaction that stays open, [10, 20), [500, 510), [510, 520).
@pytest.mark.sampled(2)
@pytest.mark.item("CMP-03")
@pytest.mark.parametrize(
    "log_start_offset",
    [
        pytest.param(0, id="no log start"),
        pytest.param(5, id="inside the transaction's first batch"),
        pytest.param(10, id="at a batch"),
        pytest.param(15, id="inside a later batch"),
        pytest.param(300, id="in a gap between segments"),
        pytest.param(505, id="inside a batch after the gap"),
        pytest.param(520, id="at the log end"),
    ],
)
def test_an_open_transaction_from_below_the_log_start_bounds_the_round_as_in_kafka(
    tmp_path, log_start_offset
):
    directory = tmp_path / "kafka" / DIRECTORY
    kafka = Kafka(now_ms=START_MS)
    with kafka.open_partition(directory, config=CONFIG) as partition:
        partition.append_as_leader(
            ten_records(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        )
        partition.roll()
        partition.append_as_leader(ten_records())
        partition.roll(base_offset=500)
        partition.append_as_follower(ten_records(), base_offset=500)
        partition.roll()
        partition.append_as_leader(ten_records())
        partition.roll()
    task = task_with(high_watermark=520, log_start_offset=log_start_offset)
    played = play_task(kafka, directory, task, before=tmp_path / "ours" / DIRECTORY)
    compare_round(played, Exactness.BYTES)
