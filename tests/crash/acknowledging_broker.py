"""A broker that comes at once: takes the lock, loads every log, appends and acknowledges.

    python -m tests.crash.acknowledging_broker LOG_DIRECTORY ROUND

It loads and appends as Kafka does, by the part of this project that is held against Kafka for that.
A line of input has it try to take the lock until it has it. Then it says as JSON what it has
acknowledged: offset and key of records that are durable. The next line has it say which files
somebody else has changed since, and end: in odd rounds by a clean shutdown, else by a crash.
"""

import json
import sys
import time
from pathlib import Path

from storage_core.checkpoint.broker_files import encode_clean_shutdown
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.config import LogConfig
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.log.unified_log import UnifiedLog
from tests.crash.lock_taker import state_of, take
from tests.kit.builders import BatchSpec, RecordSpec, segment_bytes

TOPIC = "acknowledged"
PARTITIONS = 3
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "min.compaction.lag.ms": "0",
}
BATCHES = 8
RETRY_SECONDS = 0.001


def key_of(round_number: int, partition: int, number: int) -> bytes:
    """Return the key of a record: no other has it, so that no compaction removes it."""
    return b"%d-%d-%d" % (round_number, partition, number)


def append(directory: Path, round_number: int) -> list[tuple[int, int, str]]:
    """Load every log, append to it, and return what is acknowledged."""
    marker = directory / CLEAN_SHUTDOWN_FILE
    is_clean = marker.exists() or round_number == 0
    marker.unlink(missing_ok=True)
    acknowledged = []
    ends = {}
    for partition in range(PARTITIONS):
        log = UnifiedLog.open(
            directory / f"{TOPIC}-{partition}",
            config=LogConfig.from_topic_overrides(CONFIG),
            clean_shutdown=is_clean,
        )
        for number in range(BATCHES):
            key = key_of(round_number, partition, number)
            records = (RecordSpec(key=b"same", value=b"v" * 200), RecordSpec(key=key, value=b"v"))
            info = log.append_as_leader(segment_bytes([BatchSpec(records=records)]), leader_epoch=0)
            acknowledged.append((partition, info.last_offset, key.decode()))
        log.roll()
        log.flush()
        ends[TopicPartition(TOPIC, partition)] = log.log_end_offset
        if round_number % 2:
            log.close()
        else:
            log.abandon()
    for name in (REPLICATION_FILE, RECOVERY_POINT_FILE):
        (directory / name).write_bytes(encode_offset_checkpoint(ends))
    return acknowledged


def main(directory: Path, round_number: int) -> None:
    """Do as it is told."""
    sys.stdin.readline()
    while take(directory) is None:
        time.sleep(RETRY_SECONDS)
    acknowledged = append(directory, round_number)
    before = state_of(directory)
    sys.stdout.write(json.dumps(acknowledged) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    now = state_of(directory)
    changed = [
        path for path in sorted(before.keys() | now.keys()) if before.get(path) != now.get(path)
    ]
    if round_number % 2:
        (directory / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(1))
    sys.stdout.write(json.dumps(changed) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
