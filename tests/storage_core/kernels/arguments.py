"""Bytes as the arrays that kernels take."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import CODEC_MASK, HEADER_BYTES, Codec
from storage_core.kernels import batch_notes, batch_scan
from storage_core.records.codecs import decompress

# A message of format v0 without key and value.
SMALLEST_ENTRY = 26
NO_BYTES = np.empty(0, np.uint8)
# Stands around the bytes that a kernel may read: every position of it would change the answer.
_FENCE = b"\x7f" * 16


def as_array(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as an array that can be written to."""
    return np.frombuffer(bytearray(data), np.uint8)


def fenced(data: bytes) -> tuple[NDArray[np.uint8], int, int]:
    """Return bytes with others around them: (array, start, end)."""
    return as_array(_FENCE + data + _FENCE), len(_FENCE), len(_FENCE) + len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The batches of a window, their records decompressed one after the other into the arena.

    Attributes:
        data: uint8[], the window.
        table: int64[COLUMN_COUNT, n], their headers.
        arena: uint8[].
        notes: int64[NOTE_COUNT, n], where the records lie; the rest is 99.
    """

    data: NDArray[np.uint8]
    table: NDArray[np.int64]
    arena: NDArray[np.uint8]
    notes: NDArray[np.int64]

    @property
    def in_arena(self) -> NDArray[np.uint8]:
        """Whether the records of a batch lie in the arena."""
        return self.notes[batch_notes.PLACE].astype(np.uint8)

    @property
    def start(self) -> NDArray[np.int64]:
        """Where the records of each batch begin."""
        return self.notes[batch_notes.RECORDS_START]

    @property
    def end(self) -> NDArray[np.int64]:
        """Where they end."""
        return self.notes[batch_notes.RECORDS_END]

    @property
    def record_count(self) -> NDArray[np.int64]:
        """Records of each batch, as its header says."""
        return self.table[batch_scan.RECORD_COUNT]

    @property
    def base_offset(self) -> NDArray[np.int64]:
        """Base offset of each batch."""
        return self.table[batch_scan.BASE_OFFSET]

    @property
    def last_offset(self) -> NDArray[np.int64]:
        """Last offset of each batch, as its header says."""
        return self.table[batch_scan.LAST_OFFSET]

    @property
    def first_record(self) -> NDArray[np.int64]:
        """Number of the first record of each batch, counted over the whole window."""
        return np.cumsum(self.record_count) - self.record_count

    @property
    def sources(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """What says where bytes lie: data, arena, in_arena."""
        return self.data, self.arena, self.in_arena

    def __len__(self) -> int:
        return self.table.shape[1]


def scanned(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the headers of a window that holds whole batches and nothing else."""
    table = np.empty((batch_scan.COLUMN_COUNT, len(data) // SMALLEST_ENTRY + 1), np.int64)
    count, end, status = batch_scan.scan_batches(data, 0, len(data), table)
    assert (end, status) == (len(data), batch_scan.DONE)
    return np.ascontiguousarray(table[:, :count])


def noted(count: int, **columns: Any) -> NDArray[np.int64]:
    """Return notes of so many batches: some columns by name, and 99 for the rest."""
    notes = np.full((batch_notes.NOTE_COUNT, count + 1), 99, np.int64)[:, :count]
    for name, values in columns.items():
        notes[getattr(batch_notes, name.upper())] = values
    return notes


def opened(segment: bytes) -> Opened:
    """Make the records of whole batches readable."""
    data = as_array(segment)
    table = scanned(data)
    notes = noted(table.shape[1])
    start, end = notes[batch_notes.RECORDS_START], notes[batch_notes.RECORDS_END]
    start[:] = table[batch_scan.POSITION] + HEADER_BYTES
    end[:] = table[batch_scan.POSITION] + table[batch_scan.SIZE]
    notes[batch_notes.PLACE] = 0
    arena = bytearray()
    for row in range(table.shape[1]):
        codec = Codec(int(table[batch_scan.ATTRIBUTES, row]) & CODEC_MASK)
        if codec is Codec.NONE:
            continue
        records = decompress(codec, segment[start[row] : end[row]], limit_bytes=2**24)
        start[row], end[row] = len(arena), len(arena) + len(records)
        notes[batch_notes.PLACE, row] = 1
        arena += records
    return Opened(data=data, table=table, arena=as_array(arena), notes=notes)
