"""A partition of which nine tenths were cleaned before, made fast: what a nightly round meets.

The head has each key once, in an order of its own: a round before has left nothing else. What came
since gives keys new values, by ``Size.hot`` those of the head's last tenth, as keys that change
often do, or any. The head ends with a segment of its own. Kafka appends what numpy lays out, as in
``generated_partition``.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import Codec
from tests.bench.generated_partition import (
    APPEND_BATCHES,
    CONFIG,
    DESCRIPTION,
    NOW_MS,
    RECORDS_PER_BATCH,
    ROOT,
    build_batches,
)
from tests.oracle.jvm import java, java_bytes
from tests.oracle.kafka import Kafka
from tests.oracle.records import INTERNAL

DIRECTORY: Final = "bench-0"
CLEAN_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSize:
    """How big the partition is."""

    records: int = 1_500_000
    hot: bool = True  # whether the new records have keys of the head's last tenth alone
    seed: int = 1  # of what is drawn
    codec: str = "none"  # of all batches

    @property
    def clean_batches(self) -> int:
        """How many batches the clean head has."""
        return int(self.records * CLEAN_SHARE) // RECORDS_PER_BATCH

    @property
    def first_dirty_offset(self) -> int:
        """Where the head ends."""
        return self.clean_batches * RECORDS_PER_BATCH


def incremental_partition(cache: Path, size: IncrementalSize) -> Path:
    """Return the partition's directory under cache, making it only if it is not there."""
    kind = "hot" if size.hot else "any"
    target = cache / f"incremental-{size.records}-{kind}-{size.seed}-{size.codec}"
    description = target / DESCRIPTION
    wanted = json.dumps(asdict(size))
    if not description.exists() or description.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.bench.incremental_partition"]
        subprocess.run([*command, str(target.resolve()), wanted], cwd=ROOT, check=True)
        description.write_text(wanted)
    return target / DIRECTORY


def generate(directory: Path, size: IncrementalSize) -> None:
    """Have Kafka write the partition, in this process."""
    dice = np.random.default_rng(size.seed)
    head = size.first_dirty_offset
    keys = dice.permutation(head)
    changed = keys[-head // 10 :] if size.hot else keys
    tail = size.records // RECORDS_PER_BATCH * RECORDS_PER_BATCH - head
    with Kafka(now_ms=NOW_MS).open_partition(directory, config=CONFIG) as partition:
        _append(partition, dice, 0, keys, size)
        partition.roll()
        _append(partition, dice, size.clean_batches, dice.choice(changed, tail), size)
        partition.set_high_watermark()
        partition.roll()


def _append(
    partition: Any,
    dice: np.random.Generator,
    first_batch: int,
    keys: NDArray[np.int64],
    size: IncrementalSize,
) -> None:
    """Append a record of each key, in batches."""
    names = keys.reshape(-1, RECORDS_PER_BATCH)
    for first in range(0, len(names), APPEND_BATCHES):
        some = names[first : first + APPEND_BATCHES]
        data = build_batches(
            dice,
            first_batch=first_batch + first,
            batches=len(some),
            keys=0,
            codec=Codec[size.codec.upper()],
            names=some,
        )
        buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
        records = java(INTERNAL + "MemoryRecords").readableRecords(buffer)
        partition.append_bytes_as_follower(records, leader_epoch=0)


if __name__ == "__main__":
    written = IncrementalSize(**json.loads(sys.argv[2]))
    generate(Path(sys.argv[1]) / DIRECTORY, written)
