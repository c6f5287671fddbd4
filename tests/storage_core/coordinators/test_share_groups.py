"""Share groups, replayed from their records as Kafka's share coordinator does."""

from typing import Any

import pytest

from storage_core.coordinators.coordinator_log import ReplayedRecord, TransactionEnd
from storage_core.coordinators.groups import ShareImage, ShareKey
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.messages.internal_records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    DecodedRecord,
    Problem,
)

KEY = ShareKey("g", "UJ3zExm5R46R5mC63QqEOw", 0)


def record(
    offset: int, type_id: int, value: dict[str, Any] | None, problem: Problem | None = None
) -> ReplayedRecord:
    return ReplayedRecord(
        offset=offset,
        timestamp_ms=1_000 + offset,
        producer_id=NO_PRODUCER_ID,
        decoded=DecodedRecord(
            type_id=type_id,
            type="SHARE",
            version=0,
            key={"group_id": KEY.group, "topic_id": KEY.topic_id, "partition": KEY.partition},
            value=value,
            is_tombstone=value is None,
            problem=problem,
        ),
    )


def values(start: int, complete: int, leader_epoch: int = 0) -> dict[str, Any]:
    return {
        "start_offset": start,
        "leader_epoch": leader_epoch,
        "delivery_complete_count": complete,
        "state_batches": [],
    }


def image(*events: ReplayedRecord | TransactionEnd) -> ShareImage:
    replayed = ShareImage()
    for event in events:
        replayed.apply(event)
    return replayed


def test_an_update_leaves_what_it_does_not_say():
    replayed = image(
        record(0, SHARE_SNAPSHOT, values(10, 3, leader_epoch=5)),
        record(1, SHARE_UPDATE, values(-1, 7, leader_epoch=-1)),
    )
    place = replayed.offsets[KEY]
    assert (place.start_offset, place.leader_epoch, place.complete_count) == (10, 5, 7)
    assert (place.record_offset, place.write_ms) == (1, 1_001)
    assert place.lag(30) == 13


def test_a_snapshot_says_all_of_it_and_a_tombstone_takes_it_away():
    some = [record(0, SHARE_SNAPSHOT, values(10, 3)), record(1, SHARE_SNAPSHOT, values(-1, 0))]
    assert image(*some).offsets[KEY].start_offset == -1
    assert image(*some, record(2, SHARE_SNAPSHOT, None)).offsets == {}
    end = TransactionEnd(offset=3, producer_id=1, is_commit=False)
    assert image(*some, end).offsets == image(*some).offsets


@pytest.mark.parametrize(
    ("start", "complete", "lag"), [(-1, 0, None), (0, -1, None), (0, 0, 30), (28, 2, 0), (40, 0, 0)]
)
def test_a_lag_is_known_where_kafka_computes_one(start, complete, lag):
    assert image(record(0, SHARE_SNAPSHOT, values(start, complete))).offsets[KEY].lag(30) == lag


def test_what_cannot_be_decoded_is_counted():
    problem = next(iter(Problem))
    replayed = image(record(0, SHARE_SNAPSHOT, None, problem))
    assert replayed.offsets == {}
    assert [each.first_offset for each in replayed.undecoded] == [0]
