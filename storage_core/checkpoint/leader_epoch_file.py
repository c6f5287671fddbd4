"""``leader-epoch-checkpoint``: at which offset each leader's reign over a partition began.

Entries of ``epoch start_offset`` in the form of ``checkpoint_text``, inside the partition's
directory. Kafka feeds them one by one into its cache, where an entry that is out of order removes
those that contradict it; so order matters, and nothing but the form is judged here. Source:
``org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.checkpoint.checkpoint_text import (
    INT_MAX,
    LONG_MAX,
    encode_entries,
    parse_entries,
    parse_number,
)

# Some million entries; a log has few.
MAX_LEADER_EPOCH_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def parse_leader_epochs(data: bytes, *, file: str) -> list[EpochEntry]:
    """Parse a leader epoch checkpoint.

    Args:
        data: The whole file; empty is valid.
        file: Its name, for errors.

    Returns:
        The entries in file order, whatever their numbers.

    Raises:
        CheckpointError: The file breaks its form.
    """
    return [
        EpochEntry(
            parse_number(epoch, INT_MAX, file=file, line=line),
            parse_number(start_offset, LONG_MAX, file=file, line=line),
        )
        for line, (epoch, start_offset) in parse_entries(data, file=file, field_count=2)
    ]


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Return the bytes of a leader epoch checkpoint with these entries, in this order."""
    return encode_entries(f"{entry.epoch} {entry.start_offset}" for entry in entries)
