"""Decode records in bulk into columns for Arrow, without Python objects."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import MAX_SEQUENCE, NO_SEQUENCE
from storage_core.kernels import record_scan
from storage_core.kernels.gather import add_lengths, add_to_batch, gather_bytes, list_headers
from storage_core.records.payload import Limits, Payload, open_batches
from storage_core.records.reader import Window

_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_NEVER_UTF_8: Final = b"\xff"


@dataclass(frozen=True, kw_only=True)  # no slots: a column that is asked for again is kept
class RecordColumns:
    """Records of a window's batches as columns, in file order. There is one row a record.

    Valid as long as the window is.
    """

    payload: Payload
    table: NDArray[np.int64]  # int64[record_scan.RECORD_COLUMN_COUNT, n]

    def __len__(self) -> int:
        return int(self.table.shape[1])

    @property
    def batch(self) -> NDArray[np.int64]:
        """Row of each record's batch in the window."""
        return self._column(record_scan.RECORD_BATCH)

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """Offsets."""
        return self._beside_batch(self.payload.batches.base_offset, record_scan.RECORD_OFFSET_DELTA)

    @property
    def timestamp(self) -> NDArray[np.int64]:
        """Timestamps, epoch milliseconds: the broker's where the batch says so."""
        batches = self.payload.batches
        created = self._beside_batch(batches.base_timestamp, record_scan.RECORD_TIMESTAMP_DELTA)
        # Records made from a legacy entry have their timestamps already.
        is_append = batches.is_log_append_time & ~batches.is_legacy
        if not is_append.any():
            return created
        return np.where(is_append[self.batch], batches.max_timestamp[self.batch], created)

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Sequences of idempotent producers, NO_SEQUENCE elsewhere."""
        base = self.payload.batches.base_sequence[self.batch]
        sequence = (base + self.table[record_scan.RECORD_OFFSET_DELTA]) & MAX_SEQUENCE
        return np.where(base < 0, NO_SEQUENCE, sequence)

    @property
    def key_length(self) -> NDArray[np.int64]:
        """Bytes of the keys, -1 for null."""
        return self._column(record_scan.RECORD_KEY_LENGTH)

    @property
    def value_length(self) -> NDArray[np.int64]:
        """Bytes of the values, -1 for null."""
        return self._column(record_scan.RECORD_VALUE_LENGTH)

    @property
    def header_count(self) -> NDArray[np.int64]:
        """How many headers each has."""
        return np.ascontiguousarray(self._column(record_scan.RECORD_HEADER_COUNT))

    def keys(self) -> pa.BinaryArray:
        """Return the keys."""
        return self._binary(self.batch, self.table[record_scan.RECORD_KEY_START], self.key_length)

    def values(self) -> pa.BinaryArray:
        """Return the values."""
        return self._binary(
            self.batch, self.table[record_scan.RECORD_VALUE_START], self.value_length
        )

    def headers(self) -> pa.ListArray:
        """Return headers as lists of structs: string ``key`` and binary ``value``."""
        counts = self.header_count
        spans = np.empty((5, int(counts.sum())), np.int64)
        list_headers(
            self.payload.window.data,
            self.payload.arena,
            self.payload.in_arena[self.batch],
            np.ascontiguousarray(self.table[record_scan.RECORD_HEADER_START]),
            counts,
            *spans,
        )
        owner, key_start, key_length, value_start, value_length = spans
        batch = self.batch[owner]
        names = _as_text(self._binary(batch, key_start, key_length))
        values = self._binary(batch, value_start, value_length)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        entries = pa.StructArray.from_arrays([names, values], names=["key", "value"])
        return pa.ListArray.from_arrays(pa.array(offsets), entries)

    def part(self, first: int, end: int) -> "RecordColumns":
        """Return the records [first, end), without copying."""
        if first == 0 and end >= len(self):
            return self
        return RecordColumns(payload=self.payload, table=self.table[:, first:end])

    def select(self, mask: NDArray[np.bool_]) -> "RecordColumns":
        """Return the chosen records; all of them without a copy."""
        if mask.all():
            return self
        return RecordColumns(payload=self.payload, table=np.ascontiguousarray(self.table[:, mask]))

    def _column(self, number: int) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.table[number]
        return column

    def _beside_batch(self, base: NDArray[np.int64], delta: int) -> NDArray[np.int64]:
        """Return each batch's value plus its records' column of deltas."""
        out = np.empty(len(self), np.int64)
        add_to_batch(
            np.ascontiguousarray(base),
            np.ascontiguousarray(self.batch),
            np.ascontiguousarray(self.table[delta]),
            out,
        )
        return out

    def _binary(
        self, batch: NDArray[np.int64], start: NDArray[np.int64], length: NDArray[np.int64]
    ) -> pa.BinaryArray:
        length = np.ascontiguousarray(length)
        offsets = np.empty(len(start) + 1, np.int32)
        size_bytes, null_count = add_lengths(length, offsets)
        out = np.empty(size_bytes, np.uint8)
        gather_bytes(
            self.payload.window.data,
            self.payload.arena,
            self.payload.in_arena,
            np.ascontiguousarray(batch),
            np.ascontiguousarray(start),
            length,
            offsets,
            out,
        )
        validity = None
        if null_count:
            validity = pa.py_buffer(np.packbits(length >= 0, bitorder="little").tobytes())
        return pa.BinaryArray.from_buffers(
            pa.binary(),
            len(start),
            [validity, pa.py_buffer(offsets), pa.py_buffer(out)],
            null_count=null_count,
        )


def _as_text(names: pa.BinaryArray) -> pa.StringArray:
    """Return header keys as text."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_header_key(name.as_py()) for name in names], pa.string())


def decode_header_key(key: bytes) -> str:
    """Return a header's key as text; bad UTF-8 becomes U+FFFD. Java decodes it so.

    Java takes an encoded surrogate for one error, Python for one error a byte.
    """
    return _ENCODED_SURROGATE.sub(_NEVER_UTF_8, key).decode("utf-8", "replace")


def decode_records(
    window: Window, wanted: NDArray[np.bool_], limits: Limits
) -> Iterator[RecordColumns]:
    """Decode the wanted batches of a window, piece by piece within memory.

    Args:
        wanted: bool[batches].
        limits: What a batch may expand to.
    """
    row = 0
    while row < len(window.batches):
        payload = open_batches(window, wanted, row, limits)
        rows = np.flatnonzero(wanted[row : payload.end_row]) + row
        counts = payload.batches.record_count[rows]
        table = np.empty((record_scan.RECORD_COLUMN_COUNT, int(counts.sum())), np.int64)
        count, status, bad, position = record_scan.decode_records(
            window.data,
            payload.arena,
            payload.batches.record_count,
            payload.notes.columns,
            rows,
            limits.max_record_bytes,
            table,
        )
        if status != record_scan.DONE:
            raise payload.error(status, bad, position)
        yield RecordColumns(payload=payload, table=table[:, :count])
        row = payload.end_row
