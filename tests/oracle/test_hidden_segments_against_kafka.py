"""Which segments of a tier no broker lists any more: for us, and for Kafka's cache of metadata."""

import random
from typing import Any

import pytest

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.coordinators.remote_log import RemoteSegment, SegmentState
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.tier import find_hidden
from storage_core.store.tier_manifest import TierSegmentId
from tests.oracle.jvm import java, java_map, kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

EPOCHS = range(3)
_METADATA = "org.apache.kafka.server.log.remote.storage"


def uploads(seed: int) -> list[RemoteSegment]:
    """Uploads of some leaders: most go on where one ended, some begin at an earlier offset."""
    chosen = random.Random(seed)
    borders = [0, *sorted(chosen.sample(range(1, 40), len(EPOCHS) - 1))]
    starts, segments = [0], []
    for number in range(chosen.randint(3, 12)):
        start = chosen.choice([starts[-1], starts[-1], chosen.choice(starts)])
        end = start + chosen.randint(1, 15)
        entries = [EpochEntry(epoch, max(borders[epoch], start)) for epoch in EPOCHS]
        within = [
            entry
            for entry, behind in zip(entries, [*borders[1:], end], strict=True)
            if entry.start_offset < min(behind, end)
        ]
        segments.append(uploaded(number, start, end - 1, tuple(within)))
        starts.append(end)
    return segments


def uploaded(number: int, start: int, end: int, epochs: tuple[EpochEntry, ...]) -> RemoteSegment:
    segment_id = str(java("org.apache.kafka.common.Uuid")(1, number + 1))
    identity = TierSegmentId(
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partition=TopicPartition("t", 0), segment_id=segment_id
    )
    return RemoteSegment(
        identity=identity,
        base_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        epochs=epochs,
        size_bytes=1,
        is_txn_index_empty=True,
        broker_id=1,
        event_ms=number,
        custom=None,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


class Cache:
    """What a broker knows of the segments of a partition; its methods are for its own package."""

    def __init__(self) -> None:
        kind = java("org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache")
        self._cache = kind()
        self._methods = {str(each.getName()): each for each in kind.class_.getDeclaredMethods()}

    def call(self, name: str, argument: Any) -> Any:
        method = self._methods[name]
        method.setAccessible(True)
        return method.invoke(self._cache, argument)


def hidden_from_kafka(segments: list[RemoteSegment]) -> set[str]:
    uuid = java("org.apache.kafka.common.Uuid")
    partition = java("org.apache.kafka.common.TopicPartition")("t", 0)
    owner = java("org.apache.kafka.common.TopicIdPartition")(uuid(0, 1), partition)
    states = java(f"{_METADATA}.RemoteLogSegmentState")
    box = java("java.lang.Integer").valueOf, java("java.lang.Long").valueOf
    cache = Cache()
    for segment in segments:
        segment_id = java(f"{_METADATA}.RemoteLogSegmentId")(
            owner, uuid.fromString(segment.identity.segment_id)
        )
        epochs = [(box[0](entry.epoch), box[1](entry.start_offset)) for entry in segment.epochs]
        started = java(f"{_METADATA}.RemoteLogSegmentMetadata")(
            *(segment_id, segment.base_offset, segment.end_offset, 0, 1, 0, 1, java_map(epochs))
        )
        ended = java(f"{_METADATA}.RemoteLogSegmentMetadataUpdate")(
            *(segment_id, segment.event_ms, java("java.util.Optional").empty()),
            *(states.COPY_SEGMENT_FINISHED, 1),
        )
        with kafka_failures():
            cache.call("addCopyInProgressSegment", started)
            cache.call("updateRemoteLogSegmentMetadata", ended)
    listed = {
        str(each.remoteLogSegmentId().id())
        for epoch in EPOCHS
        for each in cache.call("listRemoteLogSegments", box[0](epoch))
    }
    return {segment.identity.segment_id for segment in segments} - listed


def test_a_segment_is_hidden_from_us_if_it_is_hidden_from_kafka():
    counts = []
    for seed in range(300):
        segments = uploads(seed)
        expected = hidden_from_kafka(segments)
        assert find_hidden(segments) == expected, seed
        counts.append(len(expected))
    assert sum(counts) > 20  # else the loads would say nothing
