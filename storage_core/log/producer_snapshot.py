"""Producer snapshots: bytes of a ``.snapshot`` file to entries and back."""

from collections.abc import Iterable
from dataclasses import dataclass

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptSnapshotError
from storage_core.formats.batch_v2 import (
    MAX_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from storage_core.formats.producer_snapshot import (
    CRC_START,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
# A snapshot is read whole: 46 bytes a producer, so this bounds it to 20 million of them.
MAX_SNAPSHOT_BYTES = 1 << 30

_LOAD_FACTOR = 0.75
_FIRST_CAPACITY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEntry:
    """What a log knows of one producer."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    # Last sequence of its last batch, NO_SEQUENCE if none is remembered.
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET  # last offset of that batch, NO_OFFSET if none is remembered
    offset_delta: int = 0
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH  # epoch of the last marker's coordinator
    # Where its open transaction began, NO_OFFSET if none is open.
    current_txn_first_offset: int = NO_OFFSET

    @property
    def next_sequence(self) -> int:
        """The sequence that is expected next; after MAX_SEQUENCE comes 0."""
        return (self.last_sequence + 1) & MAX_SEQUENCE


_FIELDS = tuple(SNAPSHOT_ENTRY.names or ())


def parse_producer_snapshot(file: str, data: bytes) -> list[ProducerEntry]:
    """Read a snapshot."""
    entries = parse_snapshot_table(file, data)
    return [ProducerEntry(**dict(zip(_FIELDS, values, strict=True))) for values in entries.tolist()]


def parse_snapshot_table(file: str, data: bytes) -> NDArray[np.void]:
    """Return a snapshot's entries as SNAPSHOT_ENTRY[n], a view of its bytes."""
    if len(data) < SNAPSHOT_HEADER.itemsize:
        raise CorruptSnapshotError(
            file, 0, f"expected at least {SNAPSHOT_HEADER.itemsize} bytes, found {len(data)}"
        )
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(
            file, 0, f"expected version {SNAPSHOT_VERSION}, found {header['version']}"
        )
    count = int(header["entry_count"])
    room = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    if not 0 <= count <= room:
        raise CorruptSnapshotError(
            file, CRC_START, f"expected 0 to {room} entries in {len(data)} bytes, found {count}"
        )
    computed = crc32c.crc32c(memoryview(data)[CRC_START:])
    if computed != header["crc"]:
        raise CorruptSnapshotError(
            file, 2, f"expected CRC {computed:#010x}, found {int(header['crc']):#010x}"
        )
    return np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot, entries in Kafka's order.

    Args:
        entries: In the order in which the log met the producers.
    """
    ordered = java_hash_map_order(list(entries))
    table = np.zeros(len(ordered), SNAPSHOT_ENTRY)
    for name in _FIELDS:
        table[name] = [getattr(entry, name) for entry in ordered]
    header = np.zeros(1, SNAPSHOT_HEADER)
    header["version"] = SNAPSHOT_VERSION
    header["entry_count"] = len(ordered)
    covered = header.tobytes()[CRC_START:] + table.tobytes()
    header["crc"] = crc32c.crc32c(covered)
    return header.tobytes() + table.tobytes()


def java_hash_map_order(entries: list[ProducerEntry]) -> list[ProducerEntry]:
    """Sort entries as a Java HashMap by producer id iterates. The order is by bucket, then by
    insertion."""
    capacity = _FIRST_CAPACITY
    while len(entries) > _LOAD_FACTOR * capacity:
        capacity *= 2

    def bucket(entry: ProducerEntry) -> int:
        unsigned = entry.producer_id & (2**64 - 1)
        hashed = (unsigned ^ (unsigned >> 32)) & 0xFFFFFFFF
        return (hashed ^ (hashed >> 16)) & (capacity - 1)

    return sorted(entries, key=bucket)
