"""A mirror that is not there: so many partitions of so many segments, listed or in an inventory.

Names, sizes and times follow from numbers alone, so that executors and tests agree about them
without any data. Two topics in three expire, the others are compacted.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from storage_core.checkpoint.checkpoints import Checkpoints
from storage_core.store.listing import ListedFile

ROOT = "s3://synthetic/kafka"
NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
PARTITIONS_A_TOPIC = 100
OFFSETS_A_SEGMENT = 1_000_000
PAGE_KEYS = 1000
SUFFIXES = (".log", ".index", ".timeindex")
# Partitions in one row group of an inventory.
GROUP_PARTITIONS = 1000
TOPIC_CONFIGS = {
    "topic-*": {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)},
    "keyed-*": {"cleanup.policy": "compact"},
}


def directory(partition: int) -> str:
    topic = partition // PARTITIONS_A_TOPIC
    kind = "keyed" if topic % 3 == 2 else "topic"
    return f"{kind}-{topic:05d}-{partition % PARTITIONS_A_TOPIC}"


def size_of(partition: int, segment: int) -> int:
    return 1_000_000 + (partition * 7_919 + segment * 104_729) % 1_000_000


def time_of(segment: int, segments: int) -> int:
    """A segment is half a day younger than the one before it."""
    return NOW_MS - (segments - segment) * DAY_MS // 2


@dataclass(frozen=True)
class SyntheticListing:
    """Answers as a bucket does: a thousand keys a request, each after some time."""

    partitions: int
    segments: int
    latency_seconds: float

    def __call__(self, root):
        assert root == ROOT
        return self

    def directories(self):
        for number in range(self.partitions):
            if number % PAGE_KEYS == 0:
                time.sleep(self.latency_seconds)
            yield directory(number)

    def files(self, directories):
        keys = PAGE_KEYS
        for name in directories:
            topic, _, number = name.rpartition("-")
            partition = int(topic.rpartition("-")[2]) * PARTITIONS_A_TOPIC + int(number)
            found = list(self._files(partition))
            keys += len(found)
            while keys >= PAGE_KEYS:
                time.sleep(self.latency_seconds)
                keys -= PAGE_KEYS
            yield name, found

    def _files(self, partition):
        for segment in range(self.segments):
            size, modified_ms = size_of(partition, segment), time_of(segment, self.segments)
            stem = f"{segment * OFFSETS_A_SEGMENT:020d}"
            for suffix, size_bytes in zip(SUFFIXES, (size, size // 512, size // 340), strict=True):
                yield ListedFile(stem + suffix, size_bytes, modified_ms, f"{size:032x}")


@dataclass(frozen=True)
class NoCheckpoints:
    """The root's checkpoint files: there are none."""

    def __call__(self, root):
        return Checkpoints()


def write_inventory(path: Path, partitions: int, segments: int) -> Path:
    """Write the same files as a Parquet inventory, its rows in no useful order."""
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("size", pa.int64()),
            ("last_modified_date", pa.timestamp("ms", tz="UTC")),
            ("e_tag", pa.string()),
        ]
    )
    shuffled = np.random.default_rng(1)
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, partitions, GROUP_PARTITIONS):
            numbers = np.arange(first, min(first + GROUP_PARTITIONS, partitions))
            table = _rows(numbers, segments, schema)
            writer.write_table(table.take(shuffled.permutation(table.num_rows)))
    return path


def _rows(numbers, segments: int, schema: pa.Schema) -> pa.Table:
    names = pa.array([directory(int(number)) for number in numbers])
    rows = len(numbers) * segments
    partition, segment = np.repeat(numbers, segments), np.tile(np.arange(segments), len(numbers))
    size = 1_000_000 + (partition * 7_919 + segment * 104_729) % 1_000_000
    modified = NOW_MS - (segments - segment) * DAY_MS // 2
    stems = [f"{number * OFFSETS_A_SEGMENT:020d}" for number in range(segments)]
    folder = names.take(pa.array(np.repeat(np.arange(len(numbers)), segments)))
    stem = pa.array(stems).take(pa.array(segment))
    parts = []
    for suffix, share in zip(SUFFIXES, (1, 512, 340), strict=True):
        key = pc.binary_join_element_wise(
            "kafka", folder, pc.binary_join_element_wise(stem, pa.repeat(suffix, rows), ""), "/"
        )
        tag = pc.utf8_lpad(pa.array(size).cast(pa.string()), 32, "0")
        columns = [key, pa.array(size // share), pa.array(modified).cast(schema.field(2).type), tag]
        parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts)
