"""A big partition of small records, made fast: numpy lays out the batches, Kafka appends them, so
that segments, indexes and snapshots are Kafka's own.

Records have 135 or 136 bytes: a key of 16, a value of 110. A batch has 120 records, 16 KB, as a
busy producer sends them, or another number. Values are noise where nothing is compressed, else ten
of 256 words. A process of its own makes the data: who measures has no JVM beside it.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Codec,
)
from storage_core.records.codecs import compress
from tests.bench.shared import ROOT
from tests.oracle.jvm import java, java_bytes
from tests.oracle.kafka import Kafka
from tests.oracle.partition import OpenPartition
from tests.oracle.records import INTERNAL

NOW_MS: Final = 1_700_000_000_000
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 110
WORD_BYTES: Final = 11
WORDS: Final = 256
RECORDS_PER_BATCH: Final = 120
# Up to this offset delta a zigzag varint takes one byte, then two.
ONE_BYTE_DELTAS: Final = 64
APPEND_BATCHES: Final = 64
CONFIG: Final[dict[str, object]] = {
    "cleanup.policy": "compact",
    "segment.bytes": 64 * 1024 * 1024,
    "min.cleanable.dirty.ratio": 0,
}
DIRECTORY: Final = "bench-0"
DESCRIPTION: Final = "generated.json"
CLEAN_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How big the partition is, and how its batches are compressed."""

    records: int = 1_500_000
    keys: int = 200_000
    seed: int = 1
    codec: str = "none"
    segment_bytes: int = 64 * 1024 * 1024
    batch_records: int = RECORDS_PER_BATCH

    @property
    def name(self) -> str:
        """The folder of such a partition."""
        counts = f"{self.records}-{self.batch_records}-{self.keys}-{self.seed}"
        return f"compaction-{counts}-{self.codec}-{self.segment_bytes}"

    @property
    def config(self) -> dict[str, object]:
        """The topic's configuration."""
        return CONFIG | {"segment.bytes": self.segment_bytes}

    def write(self, partition: OpenPartition) -> None:
        """Have Kafka write the partition, in this process."""
        dice = np.random.default_rng(self.seed)
        batches = self.records // self.batch_records
        for first in range(0, batches, APPEND_BATCHES):
            count = min(APPEND_BATCHES, batches - first)
            names = dice.integers(0, self.keys, (count, self.batch_records))
            _append(partition, build_batches(dice, first, names, Codec[self.codec.upper()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSize:
    """How big a partition is of which nine tenths were cleaned before: what a nightly round meets.

    The head has each key once, in an order of its own: a round before has left nothing else. What
    came since gives keys new values. The head ends with a segment of its own.
    """

    records: int = 1_500_000  # in all
    hot: bool = True  # whether the new records have keys of the head's last tenth alone
    seed: int = 1  # of what is drawn
    codec: str = "none"  # of all batches
    config = CONFIG

    @property
    def name(self) -> str:
        """The folder of such a partition."""
        kind = "hot" if self.hot else "any"
        return f"incremental-{self.records}-{kind}-{self.seed}-{self.codec}"

    @property
    def clean_batches(self) -> int:
        """How many batches the clean head has."""
        return int(self.records * CLEAN_SHARE) // RECORDS_PER_BATCH

    @property
    def first_dirty_offset(self) -> int:
        """Where the head ends."""
        return self.clean_batches * RECORDS_PER_BATCH

    def write(self, partition: OpenPartition) -> None:
        """Have Kafka write the partition, in this process."""
        dice = np.random.default_rng(self.seed)
        head = self.first_dirty_offset
        keys = dice.permutation(head)
        changed = keys[-head // 10 :] if self.hot else keys
        tail = self.records // RECORDS_PER_BATCH * RECORDS_PER_BATCH - head
        self._append_keys(partition, dice, 0, keys)
        partition.roll()
        self._append_keys(partition, dice, self.clean_batches, dice.choice(changed, tail))

    def _append_keys(
        self,
        partition: OpenPartition,
        dice: np.random.Generator,
        first_batch: int,
        keys: NDArray[np.int64],
    ) -> None:
        """Append a record of each key, in batches."""
        names = keys.reshape(-1, RECORDS_PER_BATCH)
        for first in range(0, len(names), APPEND_BATCHES):
            some = names[first : first + APPEND_BATCHES]
            _append(
                partition,
                build_batches(dice, first_batch + first, some, Codec[self.codec.upper()]),
            )


SIZES: Final = {size.__name__: size for size in (Size, IncrementalSize)}


def generated_partition(cache: Path, size: Size | IncrementalSize) -> Path:
    """Return the partition's directory under cache, making it only if it is not there.

    Everything in it can be cleaned: the active segment is empty.
    """
    target = cache / size.name
    description = target / DESCRIPTION
    wanted = json.dumps(asdict(size))
    if not description.exists() or description.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.bench.generated_partition", type(size).__name__]
        subprocess.run([*command, str(target.resolve()), wanted], cwd=ROOT, check=True)
        description.write_text(wanted)
    return target / DIRECTORY


def generate(directory: Path, size: Size | IncrementalSize) -> None:
    """Have Kafka write the partition and close it, in this process."""
    with Kafka(now_ms=NOW_MS).open_partition(directory, config=size.config) as partition:
        size.write(partition)
        partition.set_high_watermark()
        partition.roll()


def _append(partition: OpenPartition, data: bytes) -> None:
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    records = java(INTERNAL + "MemoryRecords").readableRecords(buffer)
    partition.append_bytes_as_follower(records, leader_epoch=0)


def build_batches(
    dice: np.random.Generator, first_batch: int, names: NDArray[np.int64], codec: Codec
) -> bytes:
    """Lay out batches end to end.

    Args:
        names: Numbers of the records' keys, int64[batches, records of each].
    """
    words = None
    if codec is not Codec.NONE:
        words = dice.integers(ord("a"), ord("z") + 1, (WORDS, WORD_BYTES), np.uint8)
    batches, batch_records = names.shape
    parts = [
        _records(dice, deltas, names[:, deltas.start : deltas.stop], words)
        for deltas in (
            range(min(ONE_BYTE_DELTAS, batch_records)),
            range(ONE_BYTE_DELTAS, batch_records),
        )
        if deltas
    ]
    bodies = [compress(codec, row.tobytes()) for row in np.concatenate(parts, axis=1)]
    numbers = np.arange(first_batch, first_batch + batches)
    header = np.zeros(batches, BATCH_HEADER)
    header["base_offset"] = numbers * batch_records
    header["batch_length"] = [HEADER_BYTES - LENGTH_OVERHEAD + len(body) for body in bodies]
    header["magic"] = MAGIC_V2
    header["attributes"] = codec
    header["last_offset_delta"] = batch_records - 1
    header["base_timestamp"] = header["max_timestamp"] = NOW_MS - 10**8 + numbers
    header["producer_id"] = NO_PRODUCER_ID
    header["producer_epoch"] = NO_PRODUCER_EPOCH
    header["base_sequence"] = NO_SEQUENCE
    header["record_count"] = batch_records
    for row, body in enumerate(bodies):
        rest = header[row : row + 1].tobytes()[CRC_START:] + body
        header["crc"][row] = crc32c.crc32c(rest)
    return b"".join(header[row : row + 1].tobytes() + body for row, body in enumerate(bodies))


def _records(
    dice: np.random.Generator,
    deltas: range,
    names: NDArray[np.int64],
    words: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """Return uint8[batches, bytes]: one record for each offset delta in each batch.

    Keys are named after int64[batches, deltas]. Values are of words, uint8[WORDS, WORD_BYTES],
    where there are any, else noise.
    """
    delta_bytes = 1 if deltas[-1] < ONE_BYTE_DELTAS else 2
    layout = np.dtype(
        [
            ("length", "u1", 2),  # varints of this many bytes each
            ("attributes", "u1"),
            ("timestamp_delta", "u1"),
            ("offset_delta", "u1", delta_bytes),
            ("key_length", "u1"),
            ("key", f"S{KEY_BYTES}"),
            ("value_length", "u1", 2),
            ("value", "u1", VALUE_BYTES),
            ("header_count", "u1"),
        ]
    )
    batches = len(names)
    rows = np.zeros(names.shape, layout)
    rows["length"] = _varint(layout.itemsize - 2)
    rows["offset_delta"] = np.array([_varint(delta) for delta in deltas])
    rows["key_length"] = _varint(KEY_BYTES)
    rows["key"] = np.char.zfill(names.astype(f"S{KEY_BYTES}"), KEY_BYTES)
    rows["value_length"] = _varint(VALUE_BYTES)
    if words is None:
        rows["value"] = dice.integers(0, 256, (*rows.shape, VALUE_BYTES), np.uint8)
    else:
        chosen = words[dice.integers(0, WORDS, (*rows.shape, VALUE_BYTES // WORD_BYTES))]
        rows["value"] = chosen.reshape(*rows.shape, VALUE_BYTES)
    return rows.view(np.uint8).reshape(batches, len(deltas) * layout.itemsize)


def _varint(number: int) -> list[int]:
    """Return the bytes of a zigzag varint of a number that is not negative."""
    rest, encoded = number << 1, []
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return [*encoded, rest]


if __name__ == "__main__":
    generate(Path(sys.argv[2]) / DIRECTORY, SIZES[sys.argv[1]](**json.loads(sys.argv[3])))
