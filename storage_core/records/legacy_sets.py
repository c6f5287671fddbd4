"""Legacy entries of a window opened: their messages as v2 records (``kernels.legacy_scan``)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import DecompressionError, InvalidRecordError, UnsupportedCompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels import batch_scan, record_scan
from storage_core.kernels.legacy_scan import (
    BAD_MESSAGE,
    BAD_MESSAGE_SIZE,
    BAD_OFFSET_SPAN,
    BAD_WRAPPER_OFFSET,
    MAX_RECORD_OVERHEAD_BYTES,
    MIN_ENTRY_BYTES,
    NESTED,
    NO_MESSAGE,
    locate_value,
    transcode_entries,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import decompress
from storage_core.records.reader import Window

_EMPTY = np.empty(0, np.uint8)
_CODECS = frozenset(map(int, Codec))

_REASONS = {
    record_scan.TOO_LARGE: "a message larger than max.decompressed.message.bytes",
    BAD_MESSAGE: "a message whose lengths of key and value do not fit its size",
    BAD_MESSAGE_SIZE: f"a message of fewer than the {MIN_ENTRY_BYTES} bytes of the smallest",
    NO_MESSAGE: "a compressed message without a message inside",
    NESTED: "a compressed message inside a compressed message",
    BAD_WRAPPER_OFFSET: "a compressed message whose offset lies below the last one inside",
    BAD_OFFSET_SPAN: "messages inside a compressed one whose offsets lie 2^31 or more apart",
}


class Transcoded(NamedTuple):
    """The opened entries.

    Attributes:
        records: uint8[n], the messages of all entries as v2 records, end to end.
        start: int64[rows], where in records those of each entry begin.
        end: int64[rows], where they end.
        batches: The window's table, with what a v2 header would say of these entries.
    """

    records: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    batches: BatchTable


class LegacySets:
    """Opens legacy entries: first expand the compressed ones of them, then transcode all."""

    def __init__(self, window: Window, *, max_message_bytes: int, max_set_bytes: int) -> None:
        self._window = window
        self._max_message_bytes = max_message_bytes
        self._max_set_bytes = max_set_bytes
        self._sets: dict[int, bytes | bytearray] = {}

    def expand(self, row: int) -> int:
        """Expand the set of a compressed entry and keep it; return how many bytes it has.

        Raises:
            InvalidRecordError: There is no set, its codec is none of its format, or it cannot be
                expanded within the limits.
            UnsupportedCompressionError: The codec does not exist.
        """
        window, batches = self._window, self._window.batches
        number = int(batches.codec[row])
        if number not in _CODECS:
            raise UnsupportedCompressionError(
                window.file,
                window.position_of(row),
                f"expected codec 0 to 3, found {number}",
                offset=int(batches.last_offset[row]),
            )
        if number == Codec.ZSTD:
            raise self._error(row, "it is compressed with zstd, which its format does not have")
        start = int(batches.position[row])
        magic = int(batches.magic[row])
        status, value_start, length = locate_value(
            window.data, start, start + int(batches.size[row]), magic
        )
        if status != record_scan.DONE:
            raise self._error(row, _REASONS[status])
        if length < 0:
            raise self._error(row, "it is compressed and has no value")
        try:
            self._sets[row] = decompress(
                Codec(number),
                window.data.data[value_start : value_start + length],
                limit_bytes=self._max_set_bytes,
                magic=magic,
            )
        except DecompressionError as error:
            raise self._error(row, str(error)) from error
        return len(self._sets[row])

    def transcode(self, rows: NDArray[np.int64]) -> Transcoded:
        """Return the records of some entries, of which the compressed ones have been expanded.

        Raises:
            InvalidRecordError: A message is malformed.
        """
        batches = self._window.batches
        start = batches.position[rows]
        end = start + batches.size[rows]
        is_wrapper = batches.codec[rows] != Codec.NONE
        pieces = [self._sets[row] for row in rows[is_wrapper].tolist()]
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        ends = np.cumsum(sizes)
        start[is_wrapper], end[is_wrapper] = ends - sizes, ends
        sets = np.frombuffer(bytearray().join(pieces), np.uint8) if pieces else _EMPTY
        source_bytes = int((end - start).sum())
        growth = MAX_RECORD_OVERHEAD_BYTES - MIN_ENTRY_BYTES
        out = np.empty(source_bytes + source_bytes // MIN_ENTRY_BYTES * growth, np.uint8)
        numbers = np.empty((5, len(rows)), np.int64)
        used, status, bad, position = transcode_entries(
            self._window.data,
            sets,
            is_wrapper.astype(np.uint8),
            start,
            end,
            batches.magic[rows],
            batches.last_offset[rows],
            batches.max_timestamp[rows],
            batches.is_log_append_time[rows].astype(np.uint8),
            self._max_message_bytes,
            out,
            0,
            *numbers,
        )
        if status != record_scan.DONE:
            inside = position - int(start[bad])
            raise self._error(int(rows[bad]), f"{_REASONS[status]}, {inside} bytes into its set")
        out_start, out_end, base_offset, base_timestamp, record_count = numbers
        columns = batches.columns.copy()
        columns[batch_scan.BASE_OFFSET, rows] = base_offset
        columns[batch_scan.BASE_TIMESTAMP, rows] = base_timestamp
        columns[batch_scan.RECORD_COUNT, rows] = record_count
        return Transcoded(out[:used], out_start, out_end, BatchTable(columns))

    def _error(self, row: int, reason: str) -> InvalidRecordError:
        window = self._window
        return InvalidRecordError(
            window.file,
            window.position_of(row),
            f"message of format v{window.batches.magic[row]} at offset "
            f"{window.batches.last_offset[row]}: {reason}",
            offset=int(window.batches.last_offset[row]),
        )
