"""Rounds of compaction that Kafka made, read into the naive model's terms."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.decode import DecodedBatch, decode_segment
from tests.reference.compaction import AbortedTxn, LastRecord, Round, Segment

PRODUCER_ID_EXPIRATION_MS = 86_400_000
DEFAULT_MAP_BYTES, DEFAULT_LOAD_FACTOR, SLOT_BYTES = 134_217_728, 0.9, 24

INDEX_ENTRY = struct.Struct(">ii")
TXN_ENTRY = struct.Struct(">hqqqq")
SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRound:
    """What goes into the model, and what Kafka answered."""

    segments: tuple[Segment, ...]
    job: Round
    expected: dict[str, Any]


def read_segments(directory: Path) -> tuple[Segment, ...]:
    """Decode every segment of a partition."""
    return tuple(
        _read_segment(path, int(path.name.partition(".")[0]))
        for path in sorted(directory.glob("*.log"))
    )


def _read_segment(log: Path, base_offset: int) -> Segment:
    index, aborted = log.with_suffix(".index"), log.with_suffix(".txnindex")
    return Segment(
        base_offset=base_offset,
        batches=tuple(decode_segment(log.read_bytes())[0]),
        modified_ms=log.stat().st_mtime_ns // 1_000_000,
        offset_index=tuple(
            (base_offset + relative, position)
            for relative, position in INDEX_ENTRY.iter_unpack(index.read_bytes())
        ),
        aborted=tuple(
            AbortedTxn(
                producer_id=producer_id,
                first_offset=first,
                last_offset=last,
                last_stable_offset=last_stable,
            )
            for _, producer_id, first, last, last_stable in TXN_ENTRY.iter_unpack(
                aborted.read_bytes() if aborted.exists() else b""
            )
        ),
    )


def read_producers(directory: Path, *, now_ms: int) -> dict[int, LastRecord]:
    """Read the producers of the newest snapshot that have not expired."""
    newest = max(directory.glob("*.snapshot"), default=None)
    data = b"" if newest is None else newest.read_bytes()
    producers = {}
    for entry in SNAPSHOT_ENTRY.iter_unpack(data[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, _, last_offset, _, timestamp, _, open_txn = entry
        if open_txn >= 0 or now_ms - timestamp < PRODUCER_ID_EXPIRATION_MS:
            producers[producer_id] = LastRecord(
                last_data_offset=last_offset if last_offset >= 0 else None, producer_epoch=epoch
            )
    return producers


def read_round(directory: Path, case: dict[str, Any]) -> GoldenRound:
    """Read the partition of a case and what Kafka was asked to do to it."""
    params, expected = case["params"], case["expected"]
    segments = read_segments(directory)
    now_ms = case["clock_ms"]
    slots = params.get("map.bytes", DEFAULT_MAP_BYTES) // SLOT_BYTES
    return GoldenRound(
        segments=segments,
        job=Round(
            first_dirty_offset=expected.get("first_dirty", params.get("first.dirty", 0)),
            first_uncleanable_offset=expected.get(
                "first_uncleanable", params.get("first.uncleanable", segments[-1].base_offset)
            ),
            now_ms=now_ms,
            delete_retention_ms=case["config"]["delete.retention.ms"],
            high_watermark=params.get("hw", expected["leo"]),
            log_start_offset=expected["log_start"],
            producers=read_producers(directory, now_ms=now_ms),
            map_capacity=int(slots * params.get("load", DEFAULT_LOAD_FACTOR)),
        ),
        expected=expected,
    )


def batches_of(segments: tuple[Segment, ...]) -> list[DecodedBatch]:
    """Return the batches of all segments, in order."""
    return [batch for segment in segments for batch in segment.batches]


def aborted_of(segments: tuple[Segment, ...]) -> list[AbortedTxn]:
    """Return the transaction index entries of all segments, in order."""
    return [entry for segment in segments for entry in segment.aborted]
