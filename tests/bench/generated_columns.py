"""Log directories of a stopped broker made by our own appends from columns, about a second a GB.

Keys are numbers scattered by an odd multiplier, so that different numbers are different keys and
no two neighbours are alike; values are random bytes, or texts with random digits.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.filenames import (
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.log.unified_log import UnifiedLog
from storage_core.records.new_records import ByteColumn, NewRecords

NOW_MS: Final = 1_700_000_000_000
KEY_BYTES: Final = 8
DESCRIPTION: Final = "generated.json"
_SCATTER: Final = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_RECORDS: Final = 1 << 20
_BATCH_BYTES: Final = 16_384
# What a text is, a digit for each "#".
_TEXT: Final = np.frombuffer(
    b'{"order":"########","customer":"######","status":"shipped","cents":######,'
    b'"currency":"EUR","items":#}',
    np.uint8,
)
TEXT_BYTES: Final = _TEXT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Partitions that are all alike."""

    name: str  # of the topic
    partitions: int  # how many; the first is written, the others are copies of it
    records: int
    keys: int  # how many different ones; as many as records: each its own
    value_bytes: int  # of each record
    segment_bytes: int
    seed: int = 1  # of the values
    compression: str = "producer"
    # Whether values are texts of TEXT_BYTES, which compress to a fourth, in place of random bytes,
    # which do not
    has_texts: bool = False

    @property
    def config(self) -> dict[str, str]:
        """Its settings."""
        return {
            "cleanup.policy": "compact",
            "internal.segment.bytes": str(self.segment_bytes),
            "min.cleanable.dirty.ratio": "0",
            "compression.type": self.compression,
        }


def generated_root(
    cache: Path,
    topics: Sequence[Topic],
    *,
    copy: Callable[[str, str], object] = shutil.copy2,
) -> Path:
    """Return a log directory under cache, making it only if it is not there.

    Args:
        cache: Folder that holds it, under a name of its own.
        copy: Makes the files of all partitions but the first; ``os.link`` where nobody writes.
    """
    wanted = json.dumps([asdict(topic) for topic in topics])
    root = cache / f"spread-{'-'.join(topic.name for topic in topics)}"
    description = cache / f"{root.name}-{DESCRIPTION}"
    known = description.read_text() if description.exists() else None
    if known != wanted or not root.is_dir():
        shutil.rmtree(root, ignore_errors=True)
        description.unlink(missing_ok=True)
        root.mkdir(parents=True)
        ends = {}
        for topic in topics:
            first = root / f"{topic.name}-0"
            end = write_partition(first, topic)
            for number in range(topic.partitions):
                if number:
                    shutil.copytree(first, root / f"{topic.name}-{number}", copy_function=copy)
                ends[TopicPartition(topic.name, number)] = end
        for name in (RECOVERY_POINT_FILE, REPLICATION_FILE):
            (root / name).write_bytes(encode_offset_checkpoint(ends))
        (root / "meta.properties").write_text(
            "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
        )
        (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')
        description.write_text(wanted)
    return root


def copy_root(root: Path, target: Path) -> Path:
    """Return a fresh copy; its .log files are written back, so that nobody pays for it later."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target)
    return target


def write_partition(directory: Path, topic: Topic) -> int:
    """Write one partition and return its log end offset."""
    config = LogConfig.from_topic_overrides(topic.config)
    dice = np.random.default_rng(topic.seed)
    with UnifiedLog.open(directory, config=config, clock=ManualClock(NOW_MS)) as log:
        for first in range(0, topic.records, _BLOCK_RECORDS):
            count = min(_BLOCK_RECORDS, topic.records - first)
            log.append_columns(_columns(dice, topic, first, count), batch_bytes=_BATCH_BYTES)
        end: int = log.log_end_offset
    return end


def _columns(dice: np.random.Generator, topic: Topic, first: int, count: int) -> NewRecords:
    numbers = np.arange(first, first + count, dtype=np.uint64)
    if topic.keys < topic.records:
        numbers = dice.integers(0, topic.keys, count, np.uint64)
    if topic.has_texts:
        values = np.tile(_TEXT, count)
        is_digit = values == ord("#")
        values[is_digit] = dice.integers(ord("0"), ord("9"), is_digit.sum(), np.uint8, True)
    else:
        values = dice.integers(0, 256, count * topic.value_bytes, np.uint8)
    return NewRecords.of(
        keys=_column((numbers * _SCATTER).view(np.uint8), KEY_BYTES, count),
        values=_column(values, topic.value_bytes, count),
        timestamps=np.full(count, NOW_MS - 10**8 + first),
    )


def _column(data: NDArray[np.uint8], width: int, count: int) -> ByteColumn:
    return ByteColumn.of_offsets(data, np.arange(count + 1, dtype=np.int64) * width)
