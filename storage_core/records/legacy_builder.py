"""Build entries of message formats v0 and v1 out of columns. The bytes are those of Kafka's
builder.

An uncompressed record is an entry of its own. Compressed ones share a wrapper: its value is the
set of them, its offset that of the last. Inside a v1 wrapper offsets count from the set's base.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidColumnError, UnsupportedForMessageFormatError
from storage_core.formats.batch_v2 import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, Codec
from storage_core.formats.legacy import KEY_AT_V0, KEY_AT_V1, LENGTH_BYTES, MAGIC_V0
from storage_core.formats.record_v2 import NULL_LENGTH
from storage_core.kernels import batch_scan
from storage_core.kernels.legacy_build import seal_entry, write_entries, write_entry_head
from storage_core.kernels.varint import write_i32
from storage_core.records.codecs import compress
from storage_core.records.new_records import NewRecords

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
