"""A log directory with a partition whose keys make cells of tens of megabytes; quick to write."""

from dataclasses import dataclass
from pathlib import Path

from storage_core.filenames import TopicPartition
from tests.bench.generated_columns import NOW_MS, Topic, write_partition
from tests.pylog_spark.broker_roots import BrokerDirectory

MIB = 1024 * 1024


@dataclass(frozen=True)
class Large:
    """What is in the directory."""

    topic: str
    keys: int
    segment_bytes: int
    now_ms: int


# Two closed segments of half a million keys each: 12 MB of entries a segment, 24 in all.
MANY_KEYS = Large(topic="large", keys=1_050_000, segment_bytes=12 * MIB, now_ms=NOW_MS)


def large_root(path: Path, *, large: Large = MANY_KEYS) -> BrokerDirectory:
    """Return a new log directory with the partition; every record has a key of its own."""
    path.mkdir()
    topic = Topic(
        name=large.topic,
        partitions=1,
        records=large.keys,
        keys=1 << 62,
        value_bytes=8,
        segment_bytes=large.segment_bytes,
    )
    root = BrokerDirectory(path, configs={large.topic: topic.config})
    end = write_partition(path / f"{large.topic}-0", topic)
    root.high_watermarks[TopicPartition(large.topic, 0)] = end
    root.write_files()
    return root
