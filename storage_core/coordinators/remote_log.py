"""What ``__remote_log_metadata`` says of the segments in a tier.

Brokers write it: before the first byte of a segment goes up, after its last one, before and after
its deletion. A segment's state only goes forward, so the record that is furthest decides, in
whatever order copies of the topic's partitions are read. Sources: ``RemoteLogMetadataCache``,
``RemoteLogSegmentState``, ``RemoteLogMetadataTopicPartitioner``.
"""

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from storage_core.checkpoint.checkpoints import EpochEntry, decode_uuid
from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    Undecoded,
    UndecodedRecords,
)
from storage_core.errors import InvalidNameError
from storage_core.filenames import REMOTE_LOG_TOPIC, TopicPartition, validate_topic
from storage_core.kernels.partitioner import NOT_ASKED, choose_partitions
from storage_core.messages.internal_records import (
    DecodedRecord,
    Problem,
    encode_metadata_record,
)
from storage_core.messages.remote_log_records import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE
from storage_core.messages.schema import Fields
from storage_core.store.tier_manifest import TierSegmentId

_HASH_BITS: Final = 0xFFFFFFFF
_HASH_FACTOR: Final = 31  # of ``java.util.Objects.hash``


class SegmentState(enum.IntEnum):
    """How far a segment is, each state behind the one before. The numbers are Kafka's."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1  # in this state alone a broker reads it
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class PartitionDeleteState(enum.IntEnum):
    """How far the deletion of a partition is. Kafka 4.4 reads it, but only deletes segments."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment, as the topic has it."""

    identity: TierSegmentId
    base_offset: int
    end_offset: int  # the one before the next segment's base; compaction may have removed it
    max_timestamp_ms: int
    epochs: tuple[EpochEntry, ...]  # those inside of the segment
    size_bytes: int
    is_txn_index_empty: bool
    broker_id: int  # the broker that brought it into its state
    event_ms: int  # when, in epoch milliseconds
    custom: bytes | None  # what the plugin noted
    state: SegmentState

    def records(self) -> list[bytes]:
        """Return the values of the records that a broker writes until this state, except those of
        the states between the first and this one. Their keys are null."""
        started = {
            "remote_log_segment_id": _id_fields(self.identity),
            "start_offset": self.base_offset,
            "end_offset": self.end_offset,
            "broker_id": self.broker_id,
            "max_timestamp_ms": self.max_timestamp_ms,
            "event_timestamp_ms": self.event_ms,
            "segment_leader_epochs": tuple(
                {"leader_epoch": entry.epoch, "offset": entry.start_offset} for entry in self.epochs
            ),
            "segment_size_in_bytes": self.size_bytes,
            "custom_metadata": None,
            "remote_log_segment_state": SegmentState.COPY_SEGMENT_STARTED,
            "txn_index_empty": self.is_txn_index_empty,
        }
        values = [encode_metadata_record(SEGMENT, 0, started, topic=REMOTE_LOG_TOPIC)]
        if self.state > SegmentState.COPY_SEGMENT_STARTED:
            update = started | {
                "custom_metadata": self.custom,
                "remote_log_segment_state": self.state,
            }
            values.append(encode_metadata_record(SEGMENT_UPDATE, 0, update, topic=REMOTE_LOG_TOPIC))
        return values


class RemoteLog:
    """The state of all segments, from records of any partitions of the topic in any order."""

    def __init__(self) -> None:
        self._segments: dict[TierSegmentId, RemoteSegment] = {}
        self._of_partition: dict[tuple[str, int], list[TierSegmentId]] = {}
        # Updates of segments whose first record has not come.
        self._updates: dict[TierSegmentId, Fields] = {}
        self._deletions: dict[tuple[str, int], PartitionDeleteState] = {}
        self._undecoded = UndecodedRecords()

    @property
    def undecoded(self) -> tuple[Undecoded, ...]:
        """The kinds of records that are not understood."""
        return tuple(self._undecoded.all())

    def segments(self) -> list[RemoteSegment]:
        """Return all segments, also deleted ones, by partition and base offset."""
        return sorted(self._segments.values(), key=_order)

    def segments_of(self, topic_id: str, partition: int) -> list[RemoteSegment]:
        """Return the segments of one partition, by base offset; none of a deleted one. Its topic's
        name does not count."""
        key = topic_id, partition
        if self._deletions.get(key) is PartitionDeleteState.DELETE_PARTITION_FINISHED:
            return []
        found = self._of_partition.get(key, ())
        return sorted((self._segments[identity] for identity in found), key=_order)

    def replay(self, events: Iterable[ReplayedRecord | TransactionEnd]) -> None:
        """Take what `replay_partition` yields of a partition of the topic."""
        for event in events:
            if isinstance(event, TransactionEnd):
                continue
            record = event
            if record.decoded.problem is None:
                try:
                    self._take(record.decoded)
                except ValueError as error:
                    record = replace(
                        record,
                        decoded=replace(
                            record.decoded, problem=Problem.MALFORMED, reason=f"value: {error}"
                        ),
                    )
            if record.decoded.problem is not None:
                self._undecoded.add(record, record.decoded.problem)

    def _take(self, decoded: DecodedRecord) -> None:
        """Take a record. ValueError refuses values that no broker writes."""
        fields = decoded.value or {}
        if decoded.type_id in {SEGMENT, SEGMENT_UPDATE}:
            SegmentState(fields["remote_log_segment_state"])
            identity = _identity(fields["remote_log_segment_id"])
            if decoded.type_id == SEGMENT and identity not in self._segments:
                self._segments[identity] = _segment(identity, fields)
                key = identity.topic_id, identity.partition.partition
                self._of_partition.setdefault(key, []).append(identity)
                fields = self._updates.pop(identity, fields)
            self._update(identity, fields)
        elif decoded.type_id == PARTITION_DELETE:
            state = PartitionDeleteState(fields["remote_partition_delete_state"])
            topic_id, deleted = _partition(fields["topic_id_partition"])
            key = topic_id, deleted.partition
            self._deletions[key] = max(state, self._deletions.get(key, state))
        else:
            raise ValueError("Kafka writes no such record into the topic")

    def _update(self, identity: TierSegmentId, fields: Fields) -> None:
        segment = self._segments.get(identity)
        if segment is not None and fields["remote_log_segment_state"] >= segment.state:
            self._segments[identity] = replace(segment, **_progress(fields))
        elif segment is None:
            before = self._updates.get(identity, fields)
            is_behind = fields["remote_log_segment_state"] < before["remote_log_segment_state"]
            self._updates[identity] = before if is_behind else fields


def metadata_partition(topic_id: str, partition: int, count: int) -> int:
    """Return the partition of ``__remote_log_metadata`` that has a partition's records.

    Args:
        count: The partitions of that topic, at least 1.
    """
    high, low = struct.unpack(">QQ", decode_uuid(topic_id))
    mixed = 1
    for number in (low ^ (low >> 32), high ^ (high >> 32), partition):
        mixed = (_HASH_FACTOR * mixed + number) & _HASH_BITS
    key = np.frombuffer(struct.pack(">I", mixed), np.uint8)
    chosen, zero = np.empty(1, np.int64), np.zeros(1, np.int64)
    choose_partitions(
        key,
        zero,
        np.array([key.size]),
        zero,
        np.array([count]),
        np.array([NOT_ASKED]),
        True,  # noqa: FBT003 - numba takes no keyword-only arguments
        zero.copy(),
        chosen,
    )
    return int(chosen[0])


def _order(segment: RemoteSegment) -> tuple[str, str, int, int, str]:
    partition = segment.identity.partition
    topic_id, segment_id = segment.identity.topic_id, segment.identity.segment_id
    return partition.topic, topic_id, partition.partition, segment.base_offset, segment_id


def _segment(identity: TierSegmentId, fields: Fields) -> RemoteSegment:
    return RemoteSegment(
        identity=identity,
        base_offset=fields["start_offset"],
        end_offset=fields["end_offset"],
        max_timestamp_ms=fields["max_timestamp_ms"],
        epochs=tuple(
            EpochEntry(entry["leader_epoch"], entry["offset"])
            for entry in fields["segment_leader_epochs"]
        ),
        size_bytes=fields["segment_size_in_bytes"],
        is_txn_index_empty=fields["txn_index_empty"],
        **_progress(fields),
    )


def _progress(fields: Fields) -> dict[str, Any]:
    """Return the fields of a segment that an update replaces."""
    return {
        "broker_id": fields["broker_id"],
        "event_ms": fields["event_timestamp_ms"],
        "custom": fields["custom_metadata"],
        "state": SegmentState(fields["remote_log_segment_state"]),
    }


def _identity(fields: Fields) -> TierSegmentId:
    topic_id, partition = _partition(fields["topic_id_partition"])
    return TierSegmentId(topic_id=topic_id, partition=partition, segment_id=fields["id"])


def _partition(fields: Fields) -> tuple[str, TopicPartition]:
    """Return topic id and partition; names that Kafka would refuse are refused."""
    try:
        validate_topic(fields["name"])
    except InvalidNameError as error:
        raise ValueError(error) from error
    if fields["partition"] < 0:
        raise ValueError(f"expected a partition from 0, found {fields['partition']}")
    return fields["id"], TopicPartition(fields["name"], fields["partition"])


def _id_fields(identity: TierSegmentId) -> Fields:
    return {
        "topic_id_partition": {
            "name": identity.partition.topic,
            "id": identity.topic_id,
            "partition": identity.partition.partition,
        },
        "id": identity.segment_id,
    }
