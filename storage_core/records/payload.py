"""The records of batches, decompressed where needed, within a budget of memory. Entries of
formats before v2 become v2 records (``kernels.legacy_scan``)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    CorruptRecordError,
    DecompressionError,
    InvalidRecordError,
    NegativeTimestampError,
    UnsupportedCompressionError,
)
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2, MAX_SEQUENCE, NO_SEQUENCE, Codec
from storage_core.kernels import batch_filter, record_scan
from storage_core.kernels.batch_scan import HAS_LEGACY
from storage_core.kernels.gather import add_lengths, add_to_batch, gather_bytes, list_headers
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
from storage_core.kernels.record_scan import EXPANDED, IN_WINDOW, TRANSCODED, check_counts
from storage_core.records.batch_table import BatchNotes, BatchTable
from storage_core.records.codecs import Arena, Blocks, decompress, decompress_blocks
from storage_core.records.reader import Window

if TYPE_CHECKING:
    import pyarrow as pa

_EMPTY = np.empty(0, np.uint8)
_CODECS = frozenset(map(int, Codec))
_LEGACY = -1  # in place of a codec: a set of legacy messages, which has one of its own
# How much larger than its batches an arena is at first; it grows.
_USUAL_RATIO = 4
_LEGACY_REASONS = {
    record_scan.TOO_LARGE: "a message larger than max.decompressed.message.bytes",
    BAD_MESSAGE: "a message whose lengths of key and value do not fit its size",
    BAD_MESSAGE_SIZE: f"a message of fewer than the {MIN_ENTRY_BYTES} bytes of the smallest",
    NO_MESSAGE: "a compressed message without a message inside",
    NESTED: "a compressed message inside a compressed message",
    BAD_WRAPPER_OFFSET: "a compressed message whose offset lies below the last one inside",
    BAD_OFFSET_SPAN: "messages inside a compressed one whose offsets lie 2^31 or more apart",
}
# How many decompressed bytes one block may gather before it is handed over.
ARENA_BUDGET_BYTES = 64 * 1024 * 1024
_REASONS = {
    record_scan.BAD_RECORD: "a record whose lengths contradict each other or its batch's end",
    record_scan.LEFTOVER: "bytes after the last record that the header counts",
    record_scan.TOO_LARGE: "a record larger than max.decompressed.message.bytes",
    record_scan.WRONG_CRC: "of which the checksum is wrong",
    batch_filter.BAD_ORDER: "a record whose offset does not rise",
    batch_filter.BAD_TIMESTAMP: "a record with a negative timestamp",
}


class LegacySets:
    """Expand compressed legacy entries, then transcode all to v2 records."""

    def __init__(self, window: Window, *, max_message_bytes: int, max_set_bytes: int) -> None:
        self._window = window
        self._max_message_bytes = max_message_bytes
        self._max_set_bytes = max_set_bytes
        self._sets: dict[int, bytes | bytearray] = {}

    def expand(self, row: int) -> int:
        """Expand a compressed entry's message set and keep it; return its bytes. It returns how
        many there are."""
        window, batches = self._window, self._window.batches
        number = int(batches.codec[row])
        if number not in _CODECS:
            raise UnsupportedCompressionError(
                *window.place_of(row),
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
            raise self._error(row, _LEGACY_REASONS[status])
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

    def transcode(self, rows: NDArray[np.int64], notes: BatchNotes, arena: Arena) -> BatchTable:
        """Add the records of legacy entries to an arena as v2 records. The compressed ones of them
        have been expanded.

        Args:
            arena: Where the messages of all entries go as v2 records, end to end.

        Returns:
            The window's table, with what a v2 header would say of these entries.
        """
        batches = BatchTable(self._window.batches.columns.copy())
        wrappers = rows[batches.codec[rows] != Codec.NONE]
        pieces = [self._sets[row] for row in wrappers.tolist()]
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        ends = np.cumsum(sizes)
        notes.records_start[rows] = batches.position[rows]
        notes.records_start[wrappers], notes.records_end[wrappers] = ends - sizes, ends
        sets = np.frombuffer(bytearray().join(pieces), np.uint8) if pieces else _EMPTY
        start = notes.records_start[rows]
        source_bytes = int((notes.records_end[rows] - start).sum())
        growth = MAX_RECORD_OVERHEAD_BYTES - MIN_ENTRY_BYTES
        out = np.empty(source_bytes + source_bytes // MIN_ENTRY_BYTES * growth, np.uint8)
        used, status, row, position = transcode_entries(
            self._window.data,
            sets,
            batches.columns,
            notes.columns,
            rows,
            self._max_message_bytes,
            out,
            arena.used,
        )
        if status != record_scan.DONE:
            inside = position - int(notes.records_start[row])
            raise self._error(row, f"{_LEGACY_REASONS[status]}, {inside} bytes into its set")
        notes.place[rows] = TRANSCODED
        arena.add(out[:used])
        return batches

    def _error(self, row: int, reason: str) -> InvalidRecordError:
        window = self._window
        return InvalidRecordError(
            *window.place_of(row),
            f"message of format v{window.batches.magic[row]} at offset "
            f"{window.batches.last_offset[row]}: {reason}",
            offset=int(window.batches.last_offset[row]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for the size of decompressed batches and records."""

    # Largest body of a record of a compressed batch (``max.decompressed.message.bytes``).
    max_record_bytes: int
    max_batch_bytes: int  # largest decompressed batch (``max.decompressed.batch.bytes``)


# Where nobody has a config: the largest record that Kafka can hold, and the cleaner's limit.
DEFAULT_LIMITS: Final = Limits(
    max_record_bytes=LogConfig().max_decompressed_message_bytes,
    max_batch_bytes=CleanerConfig().max_decompressed_batch_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Where the records of batches [first_row, end_row) of a window lie.

    Tables have one row a batch of the whole window; those outside of the range, and those that
    were not opened, mean nothing.
    """

    window: Window
    # The window's batches. Of opened legacy ones base offset, base timestamp and record count are
    # what a v2 header would have; the window's own table does not know them.
    batches: BatchTable
    first_row: int
    end_row: int
    arena: NDArray[np.uint8]  # uint8[n], records that are not in the window as they are, end to end
    notes: BatchNotes

    @property
    def in_arena(self) -> NDArray[np.uint8]:
        """Place of each batch's records (record_scan.IN_WINDOW ...), for kernels."""
        return self.notes.place.astype(np.uint8)

    def check_counts(self, wanted: NDArray[np.bool_]) -> None:
        """Refuse record counts of wanted batches that cannot be true."""
        first, end = self.first_row, self.end_row
        batches, notes = self.batches.rows(first, end), self.notes.rows(first, end)
        _, row = check_counts(batches.record_count, notes.columns, wanted[first:end].view(np.uint8))
        if row >= 0:
            raise InvalidRecordError(
                *self.window.place_of(first + row),
                f"batch at offset {batches.base_offset[row]}: its header counts "
                f"{int(batches.record_count[row])} records, which do not fit its "
                f"{int(notes.records_end[row] - notes.records_start[row])} bytes of records",
                offset=int(batches.base_offset[row]),
            )

    def error(self, status: int, row: int, position: int) -> InvalidRecordError:
        """Return the error for a record kernel's status, with file and position."""
        start, end = int(self.notes.records_start[row]), int(self.notes.records_end[row])
        is_negative = status == batch_filter.BAD_TIMESTAMP
        kind = NegativeTimestampError if is_negative else InvalidRecordError
        return kind(
            self.window.file,
            self.window.position_of(row),
            f"batch at offset {self.batches.base_offset[row]}, {_REASONS[status]}, "
            f"{position - start} bytes into its {end - start} bytes of records",
            offset=int(self.batches.base_offset[row]),
        )


def open_batches(
    window: Window,
    wanted: NDArray[np.bool_],
    first_row: int,
    limits: Limits,
    arena: Arena | None = None,
    notes: BatchNotes | None = None,
) -> Payload:
    """Make the records of the wanted batches readable, from first_row on.

    Stops after the batch with which the decompressed bytes exceed ARENA_BUDGET_BYTES: call again
    with the returned end_row until that is the number of batches.

    Args:
        wanted: bool[batches].
        limits: What a batch may expand to.
        arena: Room to use again, and then the payload is valid until that is used the next time;
            None for new room.
        notes: Those of the window, to which the places of the records are added; None for new ones.
    """
    batches = window.batches
    if notes is None:
        notes = BatchNotes.empty(len(batches))
    notes.place[:] = IN_WINDOW
    np.add(batches.position, HEADER_BYTES, out=notes.records_start)
    np.add(batches.position, batches.size, out=notes.records_end)
    if batches.are_plain:
        payload = Payload(
            window=window,
            batches=batches,
            first_row=first_row,
            end_row=len(batches),
            arena=_EMPTY,
            notes=notes,
        )
        payload.check_counts(wanted)
        return payload
    _refuse_unknown(window, wanted, first_row)
    is_legacy = batches.is_legacy
    sets = LegacySets(
        window, max_message_bytes=limits.max_record_bytes, max_set_bytes=limits.max_batch_bytes
    )
    arena = Arena() if arena is None else arena
    expansion = _Expansion(window, sets, limits, arena, notes)
    # Kafka does not look at what lies in a batch that counts no records.
    is_compressed = wanted & (batches.codec != Codec.NONE) & (batches.record_count != 0)
    end_row = expansion.expand(np.flatnonzero(is_compressed[first_row:]) + first_row)
    legacy = np.flatnonzero(wanted[first_row:end_row] & is_legacy[first_row:end_row]) + first_row
    if legacy.size:
        batches = sets.transcode(legacy, notes, arena)
    payload = Payload(
        window=window,
        batches=batches,
        first_row=first_row,
        end_row=end_row,
        arena=arena.content,
        notes=notes,
    )
    payload.check_counts(wanted)
    return payload


class _Expansion:
    """Decompress a window's batches into an arena, by runs of one codec."""

    def __init__(
        self, window: Window, sets: LegacySets, limits: Limits, arena: Arena, notes: BatchNotes
    ) -> None:
        self._window = window
        self._sets = sets
        self._limits = limits
        self._legacy_bytes = 0
        arena.clear()
        self._arena = arena
        self._notes = notes

    def expand(self, rows: NDArray[np.int64]) -> int:
        """Expand compressed batches within the budget; return the end row. All rows before it
        are held by the budget."""
        batches = self._window.batches
        kinds = np.where(batches.is_legacy[rows], _LEGACY, batches.codec[rows])
        ends = [*(np.flatnonzero(np.diff(kinds)) + 1).tolist(), rows.size]
        guess = int(batches.size[rows].sum()) * _USUAL_RATIO
        self._arena.reserve(min(guess, ARENA_BUDGET_BYTES))
        first = 0
        for end in ends if rows.size else ():
            run = rows[first:end]
            done = self._expand_sets(run) if kinds[first] == _LEGACY else self._expand_run(run)
            if self._is_full:
                return int(run[done - 1]) + 1
            first = end
        return len(batches)

    @property
    def _is_full(self) -> bool:
        return self._arena.used + self._legacy_bytes > ARENA_BUDGET_BYTES

    def _expand_sets(self, rows: NDArray[np.int64]) -> int:
        """Expand sets of legacy messages; return how many are."""
        for done, row in enumerate(rows.tolist()):
            self._legacy_bytes += self._sets.expand(row)
            if self._is_full:
                return done + 1
        return len(rows)

    def _expand_run(self, rows: NDArray[np.int64]) -> int:
        """Expand batches of one codec; return how many are."""
        arena, notes = self._arena, self._notes
        number = int(self._window.batches.codec[rows[0]])
        blocks = Blocks(self._window.data, notes.records_start[rows], notes.records_end[rows])
        ends = np.empty(rows.size, np.int64)
        begin = arena.used
        done = 0
        while done < rows.size and not self._is_full:
            if number in _CODECS:
                done = decompress_blocks(
                    Codec(number),
                    blocks,
                    done,
                    arena,
                    ends,
                    limit_bytes=self._limits.max_batch_bytes,
                    budget_bytes=ARENA_BUDGET_BYTES - self._legacy_bytes,
                )
            if done < rows.size and not self._is_full:
                arena.add(self._expand_one(int(rows[done]), blocks.view(done)))
                ends[done] = arena.used
                done += 1
        opened = rows[:done]
        notes.place[opened] = EXPANDED
        notes.records_end[opened] = ends[:done]
        notes.records_start[opened] = np.concatenate([[begin], ends[: done - 1]])
        return done

    def _expand_one(self, row: int, data: memoryview) -> bytes | bytearray:
        """Decompress the records of a batch, or raise why not."""
        window = self._window
        number = int(window.batches.codec[row])
        file, where = window.place_of(row)
        offset = int(window.batches.base_offset[row])
        if number not in _CODECS:
            raise UnsupportedCompressionError(
                file, where, f"expected codec 0 to 4, found {number}", offset=offset
            )
        try:
            return decompress(Codec(number), data, limit_bytes=self._limits.max_batch_bytes)
        except DecompressionError as error:
            raise InvalidRecordError(
                file,
                where,
                f"batch at offset {offset}: {error}; the batch has "
                f"{window.batches.size[row]} bytes",
                offset=offset,
            ) from error


def _refuse_unknown(window: Window, wanted: NDArray[np.bool_], first_row: int) -> None:
    """Refuse to open batches of an unknown format."""
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
    raise CorruptRecordError(*window.place_of(row), reason, offset=int(batches.base_offset[row]))


def count_records_in(window: Window) -> int:
    """Return the number of records in a window's batches, control records included.

    Headers tell it; but before message format v2 a compressed message does not say how many it
    holds, and is opened.
    """
    batches = window.batches
    if not batches.kinds & HAS_LEGACY:
        return int(batches.record_count.sum())
    is_legacy = batches.is_legacy
    is_set = batches.is_message_set
    count = int(batches.record_count[~is_legacy].sum()) + int((is_legacy & ~is_set).sum())
    row = 0
    while is_set[row:].any():
        payload = open_batches(window, is_set, row, DEFAULT_LIMITS)
        here = slice(row, payload.end_row)
        count += int(payload.batches.record_count[here][is_set[here]].sum())
        row = payload.end_row
    return count


# Decode records in bulk into columns for Arrow, without Python objects.

_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_NEVER_UTF_8: Final = b"\xff"


@dataclass(frozen=True, kw_only=True)  # no slots: a column that is asked for again is kept
class RecordColumns:
    """Records of a window's batches as columns, in file order. There is one row a record. Valid as
    long as the window is."""

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

    def keys(self) -> "pa.BinaryArray":
        """Return the keys."""
        return self._binary(self.batch, self.table[record_scan.RECORD_KEY_START], self.key_length)

    def values(self) -> "pa.BinaryArray":
        """Return the values."""
        return self._binary(
            self.batch, self.table[record_scan.RECORD_VALUE_START], self.value_length
        )

    def pairs(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the key and the value of each, without Arrow."""
        window, arena = self.payload.window.data.data, self.payload.arena.data
        rows = zip(
            self.payload.in_arena[self.batch].tolist(),
            self.table[record_scan.RECORD_KEY_START].tolist(),
            self.key_length.tolist(),
            self.table[record_scan.RECORD_VALUE_START].tolist(),
            self.value_length.tolist(),
            strict=True,
        )
        for is_expanded, key, key_size, value, value_size in rows:
            data = arena if is_expanded else window
            yield (
                data[key : key + key_size].tobytes() if key_size >= 0 else None,
                data[value : value + value_size].tobytes() if value_size >= 0 else None,
            )

    def headers(self) -> "pa.ListArray":
        """Return headers as lists of structs: string ``key`` and binary ``value``."""
        import pyarrow as pa  # noqa: PLC0415  # not for a look at headers

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
    ) -> "pa.BinaryArray":
        import pyarrow as pa  # noqa: PLC0415  # as above

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


def _as_text(names: "pa.BinaryArray") -> "pa.StringArray":
    """Return header keys as text."""
    import pyarrow as pa  # noqa: PLC0415  # as above

    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_header_key(name.as_py()) for name in names], pa.string())


def decode_header_key(key: bytes) -> str:
    """Return a header's key as text; bad UTF-8 becomes U+FFFD. Java decodes it so. Java takes an
    encoded surrogate for one error, Python for one error a byte."""
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
