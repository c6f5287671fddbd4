"""Partition directories from plain values, as a broker leaves them after a clean close.

Indexes and the epoch file are made in the plainest way from the batches: an entry of the offset
and time index once more than ``index_interval_bytes`` went by since the last one, one more time
entry for the largest timestamp at the close, nothing preallocated.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import crc32c
import numpy as np

from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
)
from storage_core.formats.producer_snapshot import (
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from tests.kit.builders import some_batches
from tests.kit.legacy import AnyBatch, encode_any

DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
_NANOSECONDS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTxnSpec:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSpec:
    """An entry of a producer snapshot; the defaults say: no batch, no transaction."""

    producer_id: int
    producer_epoch: int = 0
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpec:
    """A segment."""

    base_offset: int  # names its files; no batch begins below it
    batches: Sequence[AnyBatch] = ()  # in offset order
    # Entries of its transaction index, which does not exist without any
    aborted: Sequence[AbortedTxnSpec] = ()
    torn_tail: bytes = b""  # bytes after the last batch
    modified_ms: int | None = None  # modification time of its files; None leaves it to the clock
    # Entries of the producer snapshot at its base offset; None for no snapshot
    producers: Sequence[ProducerSpec] | None = None


def plain_segment(base_offset: int, count: int, **fields: Any) -> SegmentSpec:
    """Return a segment of so many plain batches with a record each."""
    batches = some_batches(count=count, base_offset=base_offset)
    return SegmentSpec(base_offset=base_offset, batches=batches, **fields)


def write_partition(
    directory: Path,
    segments: Iterable[SegmentSpec],
    *,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> Path:
    """Write the files of a partition.

    Args:
        directory: Named ``<topic>-<partition>``; made if it is not there.
        segments: In offset order, the active one last.
        index_interval_bytes: How many bytes may go by without an index entry.

    Returns:
        The directory.
    """
    segments = list(segments)
    directory.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        files = _segment_files(segment, index_interval_bytes)
        for suffix, data in files.items():
            path = directory / segment_file(segment.base_offset, suffix)
            path.write_bytes(data)
            if segment.modified_ms is not None:
                modified_ns = segment.modified_ms * _NANOSECONDS_PER_MS
                os.utime(path, ns=(modified_ns, modified_ns))
        if segment.producers is not None:
            snapshot = directory / snapshot_file(segment.base_offset)
            snapshot.write_bytes(encode_producer_snapshot(segment.producers))
    epochs = leader_epochs([batch for segment in segments for batch in segment.batches])
    (directory / LEADER_EPOCH_FILE).write_text(encode_leader_epochs(epochs))
    return directory


def sync_partition(directory: Path, segments: Iterable[SegmentSpec]) -> Path:
    """Put files in the place of others as a sync does, each at once: somebody may be reading."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent.parent) as folder:
        for file in write_partition(Path(folder), segments).iterdir():
            file.replace(directory / file.name)
    return directory


def _segment_files(segment: SegmentSpec, index_interval_bytes: int) -> dict[str, bytes]:
    encoded = [encode_any(batch) for batch in segment.batches]
    offset_index, time_index = index_files(
        segment.base_offset,
        [
            (batch.last_offset, batch.largest_timestamp, len(data))
            for batch, data in zip(segment.batches, encoded, strict=True)
        ],
        index_interval_bytes=index_interval_bytes,
    )
    files = {
        LOG_SUFFIX: b"".join(encoded) + segment.torn_tail,
        OFFSET_INDEX_SUFFIX: offset_index,
        TIME_INDEX_SUFFIX: time_index,
    }
    if segment.aborted:
        files[TXN_INDEX_SUFFIX] = encode_txn_index(segment.aborted)
    return files


def index_files(
    base_offset: int,
    batches: Iterable[tuple[int, int, int]],
    *,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> tuple[bytes, bytes]:
    """Return offset and time index of a closed segment.

    Args:
        batches: (last offset, largest timestamp, bytes) of each batch.
        index_interval_bytes: How many bytes may go by without an entry.
    """
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    position = since_last_entry = 0
    largest_timestamp, its_offset = -1, -1

    def offer_time() -> None:
        if largest_timestamp > (times[-1][0] if times else -1):
            times.append((largest_timestamp, its_offset - base_offset))

    for last_offset, timestamp, size in batches:
        if timestamp > largest_timestamp:
            largest_timestamp, its_offset = timestamp, last_offset
        if since_last_entry > index_interval_bytes:
            offsets.append((last_offset - base_offset, position))
            offer_time()
            since_last_entry = 0
        position += size
        since_last_entry += size
    offer_time()
    return np.array(offsets, OFFSET_INDEX_ENTRY).tobytes(), np.array(
        times, TIME_INDEX_ENTRY
    ).tobytes()


def encode_txn_index(entries: Iterable[AbortedTxnSpec]) -> bytes:
    """Encode a transaction index."""
    rows = [
        (
            TXN_INDEX_VERSION,
            entry.producer_id,
            entry.first_offset,
            entry.last_offset,
            entry.last_stable_offset,
        )
        for entry in entries
    ]
    return np.array(rows, TXN_INDEX_ENTRY).tobytes()


def leader_epochs(batches: Iterable[AnyBatch]) -> list[tuple[int, int]]:
    """Return (epoch, start offset) wherever the leader epoch rises."""
    epochs: list[tuple[int, int]] = []
    for batch in batches:
        epoch = batch.leader_epoch
        if epoch != NO_LEADER_EPOCH and (not epochs or epoch > epochs[-1][0]):
            epochs.append((epoch, batch.base_offset))
    return epochs


def encode_leader_epochs(epochs: Sequence[tuple[int, int]]) -> str:
    """Encode a leader-epoch-checkpoint."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return "".join(f"{line}\n" for line in lines)


def encode_producer_snapshot(producers: Sequence[ProducerSpec]) -> bytes:
    """Encode a producer snapshot, its entries in the order given."""
    entries = np.zeros(len(producers), SNAPSHOT_ENTRY)
    for row, producer in enumerate(producers):
        for name in SNAPSHOT_ENTRY.names or ():
            entries[name][row] = getattr(producer, name)
    checked = struct.pack(">i", len(producers)) + entries.tobytes()
    header = np.zeros(1, SNAPSHOT_HEADER)
    header["version"] = SNAPSHOT_VERSION
    header["crc"] = crc32c.crc32c(checked)
    return header.tobytes()[: SNAPSHOT_HEADER.itemsize - 4] + checked
