"""Batches out of columns, with the bytes that Kafka's MemoryRecordsBuilder gives them.

::

    records = NewRecords.of(keys=ByteColumn.from_arrow(keys), values=..., timestamps=...)
    for built in build_batches(records, BatchSettings(codec=Codec.ZSTD)):
        file.write(built.data)

Batches are cut as a producer cuts them: each takes records until the next would exceed the limit of
bytes, counted before compression, or of records. They come in blocks, so that memory stays bounded
however many records there are; the bytes of a block are valid until the next one is asked for.
Compressed batches have the same records, but the compressor's own bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidColumnError, UnsupportedForMessageFormatError
from storage_core.formats.batch_v2 import (
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    TimestampType,
)
from storage_core.formats.control import CONTROL_KEY, END_TXN_VALUE, ControlType
from storage_core.formats.legacy import KEY_AT_V0, KEY_AT_V1, LENGTH_BYTES, MAGIC_V0
from storage_core.formats.record_v2 import NULL_LENGTH
from storage_core.kernels import batch_build, batch_scan
from storage_core.kernels.legacy_build import seal_entry, write_entries, write_entry_head
from storage_core.kernels.varint import write_i32
from storage_core.records.batch_table import BatchTable
from storage_core.records.codecs import compress
from storage_core.records.new_records import ByteColumn, NewRecords

# Build entries of message formats v0 and v1 out of columns. The bytes are those of Kafka's
# builder.
#
# An uncompressed record is an entry of its own. Compressed ones share a wrapper: its value is the
# set of them, its offset that of the last. Inside a v1 wrapper offsets count from the set's base.

_LARGEST_SET_BYTES: Final = 2**31 - 1


def build_entries(  # noqa: PLR0913 - what a set of entries has
    records: NewRecords,
    *,
    magic: int,
    codec: Codec,
    level: int | None,
    append_time_ms: int,
    is_append_time: bool,
    first_offset: int,
    offsets: NDArray[np.int64] | None,
    max_batch_bytes: int,
    max_batch_records: int,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return records as legacy entries, and their batch table's columns. The entries lie end to
    end.

    Args:
        records: Without headers.
        magic: 0 or 1.
        codec: NONE, GZIP, SNAPPY or LZ4.
        level: Of the codec; None for Kafka's default.
        append_time_ms: Timestamp of every entry, NO_TIMESTAMP for the records' own.
        is_append_time: Whether that is the broker's time.
        first_offset: Offset of record 0, where offsets is None.
        offsets: int64[n], None for one after the other.
        max_batch_bytes: Limit of the set inside a wrapper.
    """
    _check(records, offsets)
    attributes = TIMESTAMP_TYPE_BIT if is_append_time and magic > MAGIC_V0 else 0
    absolute = first_offset + np.arange(len(records)) if offsets is None else offsets
    rows = records.for_kernels(absolute)
    timestamps = records.timestamps
    if append_time_ms != NO_TIMESTAMP:
        timestamps = np.full(len(records), append_time_ms, np.int64)
    head = (KEY_AT_V0 if magic == MAGIC_V0 else KEY_AT_V1) + 2 * LENGTH_BYTES
    sizes = head + np.maximum(records.keys.length, 0) + np.maximum(records.values.length, 0)
    if codec is Codec.NONE:
        out = np.empty(int(sizes.sum()), np.uint8)
        write_entries(out, 0, len(records), magic, attributes, append_time_ms, 0, rows)
        return out, _table(magic, attributes, sizes, absolute, timestamps)
    pieces = []
    last_rows = []
    ends = np.cumsum(sizes)
    first = 0
    while first < len(records):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + max_batch_bytes, "right")))
        end = min(end, first + max_batch_records)
        origin = 0 if magic == MAGIC_V0 else int(absolute[first])
        inner = np.empty(int(ends[end - 1]) - before, np.uint8)
        write_entries(inner, first, end, magic, attributes, append_time_ms, origin, rows)
        newest = int(timestamps[first:end].max())
        pieces.append(
            _wrap(
                compress(codec, inner.data, level=level, magic=magic),
                magic,
                attributes | int(codec),
                int(absolute[end - 1]),
                newest,
            )
        )
        last_rows.append((end - 1, newest))
        first = end
    last = np.array([row for row, _ in last_rows])
    newest_of = np.array([newest for _, newest in last_rows])
    lengths = np.array([piece.size for piece in pieces])
    table = _table(magic, attributes | int(codec), lengths, absolute[last], newest_of)
    return np.concatenate(pieces), table


def _check(records: NewRecords, offsets: NDArray[np.int64] | None) -> None:
    if records.headers.first[-1] > records.headers.first[0]:
        raise UnsupportedForMessageFormatError(
            "builder", 0, "records have no headers before message format v2"
        )
    if (records.timestamps < NO_TIMESTAMP).any():
        row = int(np.flatnonzero(records.timestamps < NO_TIMESTAMP)[0])
        raise InvalidColumnError("timestamps", f"row {row}: expected -1 or an epoch millisecond")
    if offsets is not None and (np.diff(offsets) <= 0).any():
        raise InvalidColumnError("offsets", "expected offsets that rise")


def _wrap(
    payload: bytes, magic: int, attributes: int, offset: int, timestamp: int
) -> NDArray[np.uint8]:
    """Return the entry whose value is a compressed set."""
    head = KEY_AT_V0 if magic == MAGIC_V0 else KEY_AT_V1
    size = head + 2 * LENGTH_BYTES + len(payload)
    if size > _LARGEST_SET_BYTES:
        raise InvalidColumnError("values", f"a set of {size} bytes is too large")
    out = np.empty(size, np.uint8)
    position = write_entry_head(out, 0, offset, size, magic, attributes, timestamp)
    write_i32(out, position, NULL_LENGTH)
    write_i32(out, position + LENGTH_BYTES, len(payload))
    out[position + 2 * LENGTH_BYTES :] = np.frombuffer(payload, np.uint8)
    seal_entry(out, 0, size)
    return out


def _table(
    magic: int,
    attributes: int,
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    timestamps: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the columns that a scan of these entries would give."""
    table = np.full((batch_scan.COLUMN_COUNT, sizes.size), -1, np.int64)
    ends = np.cumsum(sizes)
    table[batch_scan.POSITION] = ends - sizes
    table[batch_scan.SIZE] = sizes
    table[batch_scan.MAGIC] = magic
    table[batch_scan.ATTRIBUTES] = attributes
    table[batch_scan.BASE_OFFSET] = offsets
    table[batch_scan.LAST_OFFSET] = offsets
    stored = timestamps if magic > MAGIC_V0 else np.int64(NO_TIMESTAMP)
    table[batch_scan.BASE_TIMESTAMP] = stored
    table[batch_scan.MAX_TIMESTAMP] = stored
    table[batch_scan.CRC_OK] = 1
    table[batch_scan.CONTROL_TYPE] = batch_scan.NOT_CONTROL
    return table


# What a block of batches holds at most, unless one batch is larger.
BLOCK_BYTES: Final = 8 * 1024 * 1024
DEFAULT_BATCH_BYTES: Final = 1_048_588
_WHY: Final = {
    batch_build.BAD_TIMESTAMP: ("timestamps", "expected -1 or an epoch millisecond"),
    batch_build.BAD_ORDER: ("offsets", "expected offsets that rise"),
    batch_build.TOO_LARGE: ("values", "the record fits no batch, which has at most 2^31 - 1 bytes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Settings that all batches of a builder share."""

    # Message format, 0 to 2; formats before 2 have no headers, producers or epochs.
    magic: int = MAGIC_V2
    codec: Codec = Codec.NONE  # how records are compressed; formats before 2 have no zstd
    level: int | None = None  # of the codec; None for Kafka's default
    # With log append time, max_timestamp is the append time.
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    append_time_ms: int = NO_TIMESTAMP  # the broker's clock, for log append time
    base_offset: int = 0  # offset of the first record; the others follow without gaps
    # int64[n], the offsets themselves, rising, in place of base_offset; None for none.
    offsets: NDArray[np.int64] | None = field(default=None, compare=False)
    leader_epoch: int = NO_LEADER_EPOCH  # -1 for unknown
    producer_id: int = NO_PRODUCER_ID  # -1 for none, as for the two below
    producer_epoch: int = NO_PRODUCER_EPOCH  # see above
    base_sequence: int = NO_SEQUENCE  # of the first record; the batches count on
    is_transactional: bool = False  # belongs to a transaction
    is_control: bool = False
    # Limit of a batch before compression; a larger record stands alone.
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    max_batch_records: int = 2**31 - 1

    @property
    def attributes(self) -> int:
        """Attributes of a v2 header."""
        bits = int(self.codec)
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            bits |= TIMESTAMP_TYPE_BIT
        if self.is_transactional:
            bits |= TRANSACTIONAL_BIT
        if self.is_control:
            bits |= CONTROL_BIT
        return bits

    @property
    def fixed_timestamp(self) -> int:
        """The append time where it counts, else NO_TIMESTAMP."""
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return self.append_time_ms
        return NO_TIMESTAMP

    def limited(self, *, max_bytes: int | None, max_records: int) -> "BatchSettings":
        """Return the settings with other batch limits; max_bytes None changes none."""
        return replace(
            self,
            max_batch_bytes=self.max_batch_bytes if max_bytes is None else max_bytes,
            max_batch_records=max_records,
        )

    def validate(self) -> None:
        """Raise what Kafka's builder raises for settings that contradict each other."""
        if self.is_transactional and self.producer_id == NO_PRODUCER_ID:
            raise InvalidColumnError("producer_id", "a transactional batch needs a producer id")
        if self.producer_id != NO_PRODUCER_ID:
            if self.producer_epoch == NO_PRODUCER_EPOCH:
                raise InvalidColumnError("producer_epoch", "expected at least 0, found -1")
            if self.base_sequence < 0 and not self.is_control:
                raise InvalidColumnError(
                    "base_sequence", f"expected at least 0, found {self.base_sequence}"
                )
        if self.magic < MAGIC_V2 and (
            self.is_transactional
            or self.is_control
            or self.codec is Codec.ZSTD
            or self.producer_id != NO_PRODUCER_ID
        ):
            raise UnsupportedForMessageFormatError(
                "builder",
                0,
                f"message format v{self.magic} has no transactions, producers, control records "
                "and no zstd",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatches:
    """Whole batches, end to end."""

    data: NDArray[np.uint8]  # uint8[]
    batches: BatchTable  # one row a batch; positions count from data[0]


def build_batches(records: NewRecords, settings: BatchSettings) -> Iterator[BuiltBatches]:
    """Yield the batches of records, in blocks of about BLOCK_BYTES."""
    settings.validate()
    if settings.offsets is not None and settings.offsets.size != len(records):
        raise InvalidColumnError(
            "offsets", f"expected {len(records)} rows, found {settings.offsets.size}"
        )
    if not len(records):
        return
    if settings.magic < MAGIC_V2:
        data, columns = build_entries(
            records,
            magic=settings.magic,
            codec=settings.codec,
            level=settings.level,
            append_time_ms=settings.fixed_timestamp,
            is_append_time=settings.timestamp_type is TimestampType.LOG_APPEND_TIME,
            first_offset=settings.base_offset,
            offsets=settings.offsets,
            max_batch_bytes=settings.max_batch_bytes,
            max_batch_records=settings.max_batch_records,
        )
        yield BuiltBatches(data=data, batches=BatchTable(columns))
        return
    yield from _Builder(records, settings).blocks()


def build_all(records: NewRecords, settings: BatchSettings) -> BuiltBatches:
    """Return the batches of records in one block; see build_batches."""
    blocks = [
        (block.data.copy(), block.batches.columns.copy())
        for block in build_batches(records, settings)
    ]
    if not blocks:
        empty = np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)
        return BuiltBatches(data=np.empty(0, np.uint8), batches=BatchTable(empty))
    at = 0
    for data, columns in blocks:
        columns[batch_scan.POSITION] += at
        at += data.size
    return BuiltBatches(
        data=np.concatenate([data for data, _ in blocks]),
        batches=BatchTable(np.concatenate([columns for _, columns in blocks], axis=1)),
    )


class _Builder:
    """Builds v2 batches, block by block, into one buffer."""

    def __init__(self, records: NewRecords, settings: BatchSettings) -> None:
        self._settings = settings
        self._rows = rows = records.for_kernels(settings.offsets)
        if len(records.headers.keys):
            batch_build.size_headers(
                rows.header_first, rows.header_key_length, rows.header_value_length, rows.body_bytes
            )
        batch_end = np.empty(rows.timestamps.size, np.int64)
        batch_bytes = np.empty(rows.timestamps.size, np.int64)
        batch_count, row, status = batch_build.cut_batches(
            rows.key_length,
            rows.value_length,
            rows.timestamps,
            rows.offsets,
            rows.header_first,
            rows.body_bytes,
            settings.max_batch_bytes,
            settings.max_batch_records,
            batch_end,
            batch_bytes,
        )
        if status != batch_build.DONE:
            column, reason = _WHY[status]
            raise InvalidColumnError(column, f"row {row}: {reason}")
        self._batch_end, self._batch_bytes = batch_end[:batch_count], batch_bytes[:batch_count]
        self._header = batch_build.HeaderFields(
            settings.base_offset,
            settings.leader_epoch,
            settings.attributes,
            settings.fixed_timestamp,
            settings.producer_id,
            settings.producer_epoch,
            settings.base_sequence,
        )

    def blocks(self) -> Iterator[BuiltBatches]:
        """Yield the blocks."""
        ends = self._batch_bytes.cumsum()  # NumPy's functions take twice as long for few numbers
        out = np.empty(0, np.uint8)
        first = 0
        while first < ends.size:
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(ends.searchsorted(before + BLOCK_BYTES, "right")))
            size = int(ends[end - 1]) - before
            if size > out.size:
                out = np.empty(size, np.uint8)
            yield self._block(first, end, out)
            first = end

    def _block(self, first: int, end: int, out: NDArray[np.uint8]) -> BuiltBatches:
        settings = self._settings
        first_record = int(self._batch_end[first - 1]) if first else 0
        batch_end = self._batch_end[first:end]
        table = np.empty((batch_scan.COLUMN_COUNT, end - first), np.int64)
        batch_build.describe_batches(
            batch_end,
            self._rows.timestamps,
            self._rows.offsets,
            first_record,
            self._header,
            table,
        )
        if settings.codec is Codec.NONE:
            used = batch_build.write_batches(out, batch_end, first_record, table, self._rows)
            return BuiltBatches(data=out[:used], batches=BatchTable(table))
        pieces = self._compress(batch_end, first_record, out)
        sizes = [HEADER_BYTES + len(piece) for piece in pieces]
        packed = np.empty(sum(sizes), np.uint8)
        at = 0
        for row, piece in enumerate(pieces):
            packed[at + HEADER_BYTES : at + sizes[row]] = np.frombuffer(piece, np.uint8)
            batch_build.seal_batch(packed, at, sizes[row], table, row)
            at += sizes[row]
        return BuiltBatches(data=packed, batches=BatchTable(table))

    def _compress(
        self, batch_end: NDArray[np.int64], first_record: int, scratch: NDArray[np.uint8]
    ) -> list[bytes]:
        pieces = []
        first = first_record
        for end in batch_end.tolist():
            used = batch_build.write_records(scratch, 0, first, end, self._rows)
            pieces.append(
                compress(self._settings.codec, scratch.data[:used], level=self._settings.level)
            )
            first = end
        return pieces


def end_txn_marker(
    *,
    producer_id: int,
    producer_epoch: int,
    is_abort: bool,
    timestamp: int,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> NDArray[np.uint8]:
    """Return the batch with the marker that ends a transaction.

    Args:
        producer_epoch: Its epoch; with transaction version 2 one more than its last batch had.
        is_abort: Whether it aborts; else it commits.
        base_offset: Its offset; a leader gives it another.
        leader_epoch: Of the partition; a leader writes its own.
    """
    key = np.zeros(1, CONTROL_KEY)
    key["type"] = ControlType.ABORT if is_abort else ControlType.COMMIT
    value = np.zeros(1, END_TXN_VALUE)
    value["coordinator_epoch"] = coordinator_epoch
    records = NewRecords.of(
        keys=_column(key.tobytes()),
        values=_column(value.tobytes()),
        timestamps=np.array([timestamp], np.int64),
    )
    settings = BatchSettings(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    return build_all(records, settings).data


def _column(content: bytes) -> ByteColumn:
    data = np.frombuffer(content, np.uint8)
    return ByteColumn.of_offsets(data, np.array([0, data.size]))
