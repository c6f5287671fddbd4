"""Batches with a leader epoch that no leader had: no checksum covers it."""

from pathlib import Path

from storage_core.formats.batch_v2 import LEADER_EPOCH_AT

FLIPPED = 1_000_000


def flip_epoch(log: Path, number: int, epoch: int = FLIPPED) -> int:
    """Give a batch of a segment another leader epoch, and return its first offset.

    Args:
        number: Of the batch in it; negative ones count from the end.
    """
    content, positions, position = bytearray(log.read_bytes()), [], 0
    while position < len(content):
        positions.append(position)
        position += 12 + int.from_bytes(content[position + 8 : position + 12])
    start = positions[number]
    at = start + LEADER_EPOCH_AT
    content[at : at + 4] = epoch.to_bytes(4)
    log.write_bytes(content)
    return int.from_bytes(content[start : start + 8])
