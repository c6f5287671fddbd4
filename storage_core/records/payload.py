"""The records of batches, decompressed where needed, within a budget of memory."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    CorruptRecordError,
    DecompressionError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2, Codec
from storage_core.kernels import batch_filter, record_scan
from storage_core.kernels.record_scan import EXPANDED, TRANSCODED, check_counts
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import decompress
from storage_core.records.legacy_sets import LegacySets
from storage_core.records.reader import Window

# How many decompressed bytes one block may gather before it is handed over.
ARENA_BUDGET_BYTES = 64 * 1024 * 1024
_EMPTY = np.empty(0, np.uint8)
_CODECS = {int(codec) for codec in Codec}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may expand to.

    Attributes:
        max_record_bytes: Largest body of a record of a compressed batch
            (``max.decompressed.message.bytes``).
        max_batch_bytes: Largest decompressed batch (``max.decompressed.batch.bytes``).
    """

    max_record_bytes: int
    max_batch_bytes: int


# Where nobody has a config: the largest record that Kafka can hold, and the cleaner's limit.
DEFAULT_LIMITS: Final = Limits(
    max_record_bytes=LogConfig().max_decompressed_message_bytes,
    max_batch_bytes=CleanerConfig().max_decompressed_batch_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Where the records of batches [first_row, end_row) of a window lie.

    Arrays have one element a batch of the whole window; those outside of the range, and those
    that were not opened, mean nothing.

    Attributes:
        window: The window.
        batches: The window's batches. Of opened legacy ones base offset, base timestamp and record
            count are what a v2 header would have; the window's own table does not know them.
        first_row: First batch.
        end_row: Just past the last batch.
        arena: uint8[n], records that are not in the window as they are, end to end.
        in_arena: uint8[batches], record_scan.IN_WINDOW where a batch's records lie in the window;
            EXPANDED or TRANSCODED where they lie in the arena.
        start: int64[batches], where they begin, in the arena or the window.
        end: int64[batches], where they end.
    """

    window: Window
    batches: BatchTable
    first_row: int
    end_row: int
    arena: NDArray[np.uint8]
    in_arena: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def error(self, status: int, row: int, position: int) -> InvalidRecordError:
        """Return the error for a status of a record kernel, with file and position."""
        inside = position - int(self.start[row])
        return InvalidRecordError(
            self.window.file,
            self.window.position_of(row),
            f"batch at offset {self.batches.base_offset[row]}, {_REASONS[status]}, "
            f"{inside} bytes into its {int(self.end[row] - self.start[row])} bytes of records",
            offset=int(self.batches.base_offset[row]),
        )


_REASONS = {
    record_scan.BAD_RECORD: "a record whose lengths contradict each other or its batch's end",
    record_scan.LEFTOVER: "bytes after the last record that the header counts",
    record_scan.TOO_LARGE: "a record larger than max.decompressed.message.bytes",
    batch_filter.BAD_ORDER: "a record whose offset does not rise",
    batch_filter.BAD_TIMESTAMP: "a record with a negative timestamp",
}


def open_batches(
    window: Window, wanted: NDArray[np.bool_], first_row: int, limits: Limits
) -> Payload:
    """Make the records of the wanted batches readable, from first_row on.

    Stops after the batch with which the decompressed bytes exceed ARENA_BUDGET_BYTES: call again
    with the returned end_row until that is the number of batches.

    Raises:
        CorruptRecordError: A wanted batch has a magic that does not exist.
        UnsupportedCompressionError: A wanted batch names a codec that does not exist.
        InvalidRecordError: A batch cannot be decompressed, or not within the limits, or its
            record count cannot be true.
    """
    batches = window.batches
    _refuse_unknown(window, wanted, first_row)
    start = batches.position + HEADER_BYTES
    end = batches.position + batches.size
    in_arena = np.zeros(len(batches), np.uint8)
    end_row = len(batches)
    is_legacy = batches.is_legacy
    sets = LegacySets(
        window, max_message_bytes=limits.max_record_bytes, max_set_bytes=limits.max_batch_bytes
    )
    pieces: list[bytes | bytearray] = []
    used = legacy_used = 0
    # Kafka does not look at what lies in a batch that counts no records.
    is_compressed = wanted & (batches.codec != Codec.NONE) & (batches.record_count != 0)
    compressed = np.flatnonzero(is_compressed[first_row:])
    for row in (compressed + first_row).tolist():
        if is_legacy[row]:
            legacy_used += sets.expand(row)
        else:
            piece = _decompress(window, row, int(start[row]), int(end[row]), limits)
            pieces.append(piece)
            in_arena[row] = EXPANDED
            start[row], end[row] = used, used + len(piece)
            used += len(piece)
        if used + legacy_used > ARENA_BUDGET_BYTES:
            end_row = row + 1
            break
    arena = np.frombuffer(bytearray().join(pieces), np.uint8) if pieces else _EMPTY
    legacy = np.flatnonzero(wanted[first_row:end_row] & is_legacy[first_row:end_row]) + first_row
    if legacy.size:
        opened = sets.transcode(legacy)
        in_arena[legacy] = TRANSCODED
        start[legacy], end[legacy] = opened.start + used, opened.end + used
        arena = np.concatenate([arena, opened.records]) if pieces else opened.records
        batches = opened.batches
    payload = Payload(
        window=window,
        batches=batches,
        first_row=first_row,
        end_row=end_row,
        arena=arena,
        in_arena=in_arena,
        start=start,
        end=end,
    )
    _check_counts(payload, wanted)
    return payload


def _refuse_unknown(window: Window, wanted: NDArray[np.bool_], first_row: int) -> None:
    """Refuse to open batches of which nobody knows how their records lie."""
    batches = window.batches
    is_v2 = batches.magic == MAGIC_V2
    is_known = (batches.magic >= 0) & (batches.magic <= MAGIC_V2)
    is_bad = ~is_known | (is_v2 & (batches.size < HEADER_BYTES))
    bad = np.flatnonzero(wanted[first_row:] & is_bad[first_row:])
    if not bad.size:
        return
    row = first_row + int(bad[0])
    magic = int(batches.magic[row])
    reason = f"expected magic 0, 1 or 2, found {magic}"
    if magic == MAGIC_V2:
        reason = f"the batch has {batches.size[row]} bytes, fewer than a header's {HEADER_BYTES}"
    raise CorruptRecordError(
        window.file, window.position_of(row), reason, offset=int(batches.base_offset[row])
    )


def _check_counts(payload: Payload, wanted: NDArray[np.bool_]) -> None:
    batches = payload.batches
    first_row = payload.first_row
    rows = np.flatnonzero(wanted[first_row : payload.end_row]) + first_row
    counts = batches.record_count[rows]
    _, bad = check_counts(payload.start[rows], payload.end[rows], counts)
    if bad >= 0:
        row = int(rows[bad])
        raise InvalidRecordError(
            payload.window.file,
            payload.window.position_of(row),
            f"batch at offset {batches.base_offset[row]}: its header counts "
            f"{int(counts[bad])} records, which do not fit its "
            f"{int(payload.end[row] - payload.start[row])} bytes of records",
            offset=int(batches.base_offset[row]),
        )


def _decompress(
    window: Window, row: int, start: int, end: int, limits: Limits
) -> bytes | bytearray:
    number = int(window.batches.codec[row])
    where = window.position_of(row)
    offset = int(window.batches.base_offset[row])
    if number not in _CODECS:
        raise UnsupportedCompressionError(
            window.file, where, f"expected codec 0 to 4, found {number}", offset=offset
        )
    try:
        return decompress(
            Codec(number), window.data.data[start:end], limit_bytes=limits.max_batch_bytes
        )
    except DecompressionError as error:
        raise InvalidRecordError(
            window.file,
            where,
            f"batch at offset {offset}: {error}; the batch has {window.batches.size[row]} bytes",
            offset=offset,
        ) from error
