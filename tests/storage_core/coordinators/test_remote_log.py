"""The topic of the tier's segments: what real brokers wrote, and what nobody would write."""

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_core.coordinators.coordinator_log import ReplayedRecord, replay_partition
from storage_core.coordinators.remote_log import (
    PartitionDeleteState,
    RemoteLog,
    RemoteSegment,
    SegmentState,
    metadata_partition,
)
from storage_core.filenames import REMOTE_LOG_TOPIC, TopicPartition, parse_partition_directory
from storage_core.messages.internal_records import (
    Problem,
    decode_internal_record,
    encode_metadata_record,
)
from storage_core.messages.remote_log_records import (
    PARTITION_DELETE,
    SEGMENT,
    SEGMENT_SNAPSHOT,
    SEGMENT_UPDATE,
)
from storage_core.store.local import LocalStore
from tests.kit.tier_archives import CASES, TierCase, unpack_tier

ID = "oQ-_Byz0SxiFgq7qKrX0Rw"
SEGMENT_ID = "1rNpIxLbTvazERpTnXR9Cw"
PARTITION = {"name": "orders", "id": ID, "partition": 2}
UPDATE: dict[str, Any] = {
    "remote_log_segment_id": {"topic_id_partition": PARTITION, "id": SEGMENT_ID},
    "broker_id": 4,
    "event_timestamp_ms": 1_000,
    "custom_metadata": None,
    "remote_log_segment_state": 0,
}
STARTED = UPDATE | {
    "start_offset": 10,
    "end_offset": 19,
    "max_timestamp_ms": 900,
    "segment_leader_epochs": ({"leader_epoch": 3, "offset": 10},),
    "segment_size_in_bytes": 512,
    "txn_index_empty": True,
}


def replayed(type_id: int, fields: dict[str, Any], *, offset: int = 0) -> ReplayedRecord:
    value = encode_metadata_record(type_id, 0, fields, topic=REMOTE_LOG_TOPIC)
    return of_bytes(value, offset=offset)


def of_bytes(value: bytes | None, *, offset: int = 0) -> ReplayedRecord:
    decoded = decode_internal_record(REMOTE_LOG_TOPIC, None, value)
    return ReplayedRecord(offset=offset, timestamp_ms=0, producer_id=-1, decoded=decoded)


def update(state: int, **fields: Any) -> ReplayedRecord:
    return replayed(SEGMENT_UPDATE, UPDATE | {"remote_log_segment_state": state, **fields})


def records_of(case: TierCase) -> Iterator[tuple[Path, ReplayedRecord]]:
    """The records of all brokers, with the folder of each."""
    for folder in sorted(case.folder.glob(f"local/*/{REMOTE_LOG_TOPIC}-*")):
        for event in replay_partition(LocalStore(folder), REMOTE_LOG_TOPIC):
            assert isinstance(event, ReplayedRecord)
            yield folder, event


def of_truth(case: TierCase) -> dict[str, dict[str, Any]]:
    owners = case.truth["partitions"] + case.truth["topics_gone"]
    return {
        segment["segment_id"]: segment
        | {"of": (owner["topic_id"], TopicPartition(owner["topic"], owner["partition"]))}
        for owner in owners
        for segment in owner["segments"]
    }


def shown(segment: RemoteSegment) -> dict[str, Any]:
    custom = segment.custom
    return {
        "of": (segment.identity.topic_id, segment.identity.partition),
        "segment_id": segment.identity.segment_id,
        "start": segment.base_offset,
        "end": segment.end_offset,
        "epochs": [[entry.epoch, entry.start_offset] for entry in segment.epochs],
        "state": segment.state.name,
        "size": segment.size_bytes,
        "max_timestamp": segment.max_timestamp_ms,
        "txn_index_empty": segment.is_txn_index_empty,
        "custom": None if custom is None else base64.b64encode(custom).decode(),
        "broker": segment.broker_id,
    }


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_what_brokers_wrote_is_read_folded_and_written_again(name: str, tmp_path: Path):
    case = unpack_tier(name, tmp_path)
    records = list(records_of(case))
    for folder, record in records:
        assert record.decoded.problem is None
        assert record.decoded.type_id is not None
        fields = record.decoded.value or {}
        again = encode_metadata_record(record.decoded.type_id, 0, fields, topic=REMOTE_LOG_TOPIC)
        assert again in next(folder.glob("*.log")).read_bytes()
        of = fields["remote_log_segment_id"]["topic_id_partition"]
        number = parse_partition_directory(folder.name).partition
        assert metadata_partition(of["id"], of["partition"], 3) == number

    log = RemoteLog()
    log.replay(record for _, record in records)
    truth = of_truth(case)
    assert {segment.identity.segment_id for segment in log.segments()} == truth.keys()
    for segment in log.segments():
        expected = truth[segment.identity.segment_id]
        found = shown(segment)
        assert {key: found[key] for key in expected} == expected
    assert log.undecoded == ()

    # Copies of the partitions, from any broker in any order, say the same.
    shuffled = records * 2
    random.Random(name).shuffle(shuffled)
    other = RemoteLog()
    other.replay(record for _, record in shuffled)
    assert other.segments() == log.segments()


def test_the_records_of_a_segment_lead_to_its_state():
    for state in SegmentState:
        log = RemoteLog()
        log.replay([replayed(SEGMENT, STARTED)])
        if state:
            log.replay([update(state, custom_metadata=b"x")])
        (segment,) = log.segments()
        assert segment.state is state
        again = RemoteLog()
        again.replay(of_bytes(value) for value in segment.records())
        assert again.segments() == [segment]
        assert len(segment.records()) == (2 if state else 1)


def test_a_state_never_goes_back():
    log = RemoteLog()
    log.replay(
        [
            update(SegmentState.DELETE_SEGMENT_STARTED, broker_id=7),
            update(SegmentState.COPY_SEGMENT_FINISHED, broker_id=6),
            replayed(SEGMENT, STARTED),
            replayed(SEGMENT, STARTED),
        ]
    )
    (segment,) = log.segments()
    assert (segment.state, segment.broker_id) == (SegmentState.DELETE_SEGMENT_STARTED, 7)


def test_an_update_without_its_segment_is_no_segment():
    log = RemoteLog()
    log.replay([update(SegmentState.DELETE_SEGMENT_STARTED)])
    assert (log.segments(), log.undecoded) == ([], ())


def test_a_partitions_deletion_goes_forward_too():
    def marked(state: int) -> ReplayedRecord:
        return replayed(
            PARTITION_DELETE,
            {
                "topic_id_partition": PARTITION,
                "broker_id": 1,
                "event_timestamp_ms": 5,
                "remote_partition_delete_state": state,
            },
        )

    log = RemoteLog()
    log.replay([replayed(SEGMENT, STARTED), marked(PartitionDeleteState.DELETE_PARTITION_STARTED)])
    assert log.segments_of(ID, 2) == log.segments()
    log.replay([marked(PartitionDeleteState.DELETE_PARTITION_FINISHED)])
    log.replay([marked(PartitionDeleteState.DELETE_PARTITION_MARKED)])
    assert log.segments_of(ID, 2) == []


WHOLE = encode_metadata_record(SEGMENT, 0, STARTED, topic=REMOTE_LOG_TOPIC)


@pytest.mark.parametrize(
    ("record", "problem", "reason"),
    [
        (of_bytes(None), Problem.MALFORMED, "expected a value, found null"),
        (
            of_bytes(WHOLE[:40]),
            Problem.MALFORMED,
            "value: byte 31: expected 16 bytes, found 9",
        ),
        (of_bytes(b"\x02" + WHOLE[1:]), Problem.MALFORMED, "value: byte 1: expected frame version"),
        (of_bytes(b"\x01\x09\x00"), Problem.UNKNOWN_TYPE, "type 9 is none"),
        (of_bytes(b"\x01\x00\x01"), Problem.UNKNOWN_VERSION, "from 0 to 0, found 1"),
        (update(4), Problem.MALFORMED, "4 is not a valid SegmentState"),
        (
            replayed(
                SEGMENT,
                STARTED
                | {
                    "remote_log_segment_id": {
                        "topic_id_partition": PARTITION | {"name": "../orders"},
                        "id": SEGMENT_ID,
                    }
                },
            ),
            Problem.MALFORMED,
            "a topic name has only letters",
        ),
        (
            replayed(
                SEGMENT_UPDATE,
                UPDATE
                | {
                    "remote_log_segment_id": {
                        "topic_id_partition": PARTITION | {"partition": -1},
                        "id": SEGMENT_ID,
                    }
                },
            ),
            Problem.MALFORMED,
            "expected a partition from 0, found -1",
        ),
        (
            replayed(SEGMENT_SNAPSHOT, STARTED | {"segment_id": SEGMENT_ID}),
            Problem.MALFORMED,
            "Kafka writes no such record",
        ),
    ],
)
def test_a_record_that_no_broker_writes_is_counted_and_hides_no_other(
    record: ReplayedRecord, problem: Problem, reason: str
):
    log = RemoteLog()
    log.replay([record, replayed(SEGMENT, STARTED), record])
    assert len(log.segments()) == 1
    (found,) = log.undecoded
    assert (found.problem, found.count) == (problem, 2)
    assert reason in found.reason
