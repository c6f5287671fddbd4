"""Records to write, as columns over Arrow or NumPy memory, without copies.

A column of byte strings is one buffer and, for every row, where its string begins and how long it
is. Arrow's binary and string arrays are that already; so is any uint8 array with offsets.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.errors import InvalidColumnError
from storage_core.kernels.record_rows import RecordRows

NULL_LENGTH: Final = -1
_NO_BYTES: Final = np.empty(0, np.uint8)


def as_bytes(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a read-only view: kernels compile for that kind alone."""
    view = np.ascontiguousarray(array, np.uint8).view()
    view.flags.writeable = False
    return view


def as_numbers(array: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return numbers in the one kind of array that kernels compile for."""
    view = np.ascontiguousarray(array, np.int64).view()
    view.flags.writeable = False
    return view


def _one_array(array: pa.Array | pa.ChunkedArray, column: str) -> pa.Array:
    """Return an array in one piece; several chunks are copied together."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    try:
        return array.combine_chunks()
    except pa.ArrowInvalid as error:
        raise InvalidColumnError(
            column, f"its chunks do not fit one array, append them one by one: {error}"
        ) from error


_NO_OFFSETS: Final = as_numbers(np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteColumn:
    """Byte strings, some of them null."""

    data: NDArray[np.uint8]  # uint8[], contiguous and read only
    start: NDArray[np.int64]  # int64[n], where each string begins in data
    length: NDArray[np.int64]  # int64[n], its bytes, NULL_LENGTH for null

    def __len__(self) -> int:
        return int(self.length.size)

    @classmethod
    def of_spans(
        cls, data: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64]
    ) -> "ByteColumn":
        """Return a column of strings at any places in data. They may be in any order."""
        if start.shape != length.shape or start.ndim != 1:
            raise InvalidColumnError(
                "start, length",
                f"expected two arrays of one length, found {start.shape}, {length.shape}",
            )
        start = np.ascontiguousarray(start, np.int64)
        length = np.ascontiguousarray(length, np.int64)
        inside = (length == NULL_LENGTH) | (
            (length >= 0) & (start >= 0) & (length <= data.size) & (start <= data.size - length)
        )
        if not inside.all():
            row = int(np.flatnonzero(~inside)[0])
            raise InvalidColumnError(
                "start, length",
                f"row {row}: bytes {start[row]} + {length[row]} are not inside of {data.size}",
            )
        return cls(data=as_bytes(data), start=as_numbers(start), length=as_numbers(length))

    @classmethod
    def of_offsets(
        cls,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64] | NDArray[np.int32],
        is_null: NDArray[np.bool_] | None = None,
    ) -> "ByteColumn":
        """Return a column of strings that lie end to end.

        Args:
            data: uint8[].
            offsets: n + 1 positions in data, not falling.
            is_null: bool[n], which are null; None for none.
        """
        if offsets.size == 0:
            raise InvalidColumnError("offsets", "expected one more than there are strings, found 0")
        wide = np.ascontiguousarray(offsets, np.int64)
        length = np.diff(wide)
        if wide[0] < 0 or wide[-1] > data.size or (length < 0).any():
            raise InvalidColumnError(
                "offsets", f"expected rising positions between 0 and {data.size}"
            )
        if is_null is not None:
            length[is_null] = NULL_LENGTH
        return cls(data=as_bytes(data), start=as_numbers(wide[:-1]), length=as_numbers(length))

    @classmethod
    def nulls(cls, count: int) -> "ByteColumn":
        """Return a column of nulls."""
        return cls(
            data=as_bytes(_NO_BYTES),
            start=as_numbers(np.zeros(count, np.int64)),
            length=as_numbers(np.full(count, NULL_LENGTH, np.int64)),
        )

    @classmethod
    def from_arrow(
        cls, array: pa.Array | pa.ChunkedArray, *, column: str = "array"
    ) -> "ByteColumn":
        """Return an Arrow binary or string array as a column, without copying."""
        array = _one_array(array, column)
        kind = array.type
        if pa.types.is_null(kind):
            return cls.nulls(len(array))
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            is_large = False
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            is_large = True
        else:
            raise InvalidColumnError(column, f"expected binary or string, found {kind}")
        if len(array) == 0:
            return cls.nulls(0)
        _, offset_buffer, data_buffer = array.buffers()
        wanted = slice(array.offset, array.offset + len(array) + 1)
        offsets = (
            as_numbers(np.frombuffer(offset_buffer, np.int64)[wanted])
            if is_large
            else as_numbers(np.frombuffer(offset_buffer, np.int32)[wanted])
        )
        data = _NO_BYTES if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
        is_null = None
        if array.null_count:
            is_null = array.is_null().to_numpy(zero_copy_only=False)
        return cls.of_offsets(data, offsets, is_null)

    def rows(self, first: int, end: int) -> "ByteColumn":
        """Return the rows [first, end), without copying."""
        return ByteColumn(
            data=self.data, start=self.start[first:end], length=self.length[first:end]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """The headers of records; record i has rows [first[i], first[i + 1])."""

    first: NDArray[np.int64]  # int64[n + 1], not falling
    keys: ByteColumn  # UTF-8, never null
    values: ByteColumn

    @classmethod
    def of(cls, first: NDArray[np.int64], keys: ByteColumn, values: ByteColumn) -> "HeaderColumn":
        """Return the column."""
        first = as_numbers(first)
        if len(keys) != len(values) or first.size == 0 or first[0] < 0 or first[-1] > len(keys):
            raise InvalidColumnError("headers", "keys, values and row limits contradict each other")
        if (np.diff(first) < 0).any():
            raise InvalidColumnError("headers", "the row limits fall")
        if (keys.length < 0).any():
            raise InvalidColumnError("headers", "a header's key is null")
        return cls(first=first, keys=keys, values=values)

    @classmethod
    def none(cls, count: int) -> "HeaderColumn":
        """Return the column of records without headers."""
        empty = ByteColumn.nulls(0)
        return cls(first=as_numbers(np.zeros(count + 1, np.int64)), keys=empty, values=empty)

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> "HeaderColumn":
        """Return a list<struct<key, value>> array, as Spark's Kafka source has headers."""
        array = _one_array(array, "headers")
        if pa.types.is_null(array.type):
            return cls.none(len(array))
        is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
        if not is_list or not pa.types.is_struct(array.type.value_type):
            raise InvalidColumnError("headers", f"expected a list of structs, found {array.type}")
        counts = np.diff(array.offsets.to_numpy().astype(np.int64))
        if array.null_count:
            counts[array.is_null().to_numpy(zero_copy_only=False)] = 0
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        keys, values = array.flatten().flatten()
        return cls.of(
            first,
            ByteColumn.from_arrow(keys, column="headers.key"),
            ByteColumn.from_arrow(values, column="headers.value"),
        )

    def rows(self, first: int, end: int) -> "HeaderColumn":
        """Return the headers of the records [first, end), without copying."""
        return HeaderColumn(first=self.first[first : end + 1], keys=self.keys, values=self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecords:
    """Records to be written, one row a record."""

    keys: ByteColumn  # null for a record without a key
    values: ByteColumn  # null for a tombstone
    timestamps: NDArray[np.int64]  # int64[n], epoch milliseconds, or -1 for none
    headers: HeaderColumn

    def __len__(self) -> int:
        return int(self.timestamps.size)

    @classmethod
    def of(
        cls,
        *,
        keys: ByteColumn,
        values: ByteColumn,
        timestamps: NDArray[np.int64],
        headers: HeaderColumn | None = None,
    ) -> "NewRecords":
        """Return the records of these columns."""
        timestamps = as_numbers(timestamps)
        if headers is None:
            headers = HeaderColumn.none(timestamps.size)
        lengths = (len(keys), len(values), timestamps.size, headers.first.size - 1)
        if len(set(lengths)) != 1:
            raise InvalidColumnError(
                "keys, values, timestamps, headers",
                f"expected as many rows in each, found {lengths}",
            )
        return cls(keys=keys, values=values, timestamps=timestamps, headers=headers)

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> "NewRecords":
        """Return a table's records: columns key, value, timestamp and headers.

        Only ``value`` has to be there: no ``key`` is none in any record, no ``headers`` likewise,
        no ``timestamp`` (int64 milliseconds, or an Arrow timestamp) is -1.
        """
        names = set(table.schema.names)
        if "value" not in names:
            raise InvalidColumnError("value", "the table has no such column")
        count = table.num_rows
        return cls.of(
            keys=(
                ByteColumn.from_arrow(table.column("key"), column="key")
                if "key" in names
                else ByteColumn.nulls(count)
            ),
            values=ByteColumn.from_arrow(table.column("value"), column="value"),
            timestamps=(
                _milliseconds(table.column("timestamp"))
                if "timestamp" in names
                else np.full(count, -1, np.int64)
            ),
            headers=(
                HeaderColumn.from_arrow(table.column("headers")) if "headers" in names else None
            ),
        )

    def rows(self, first: int, end: int) -> "NewRecords":
        """Return the rows [first, end), without copying."""
        return NewRecords(
            keys=self.keys.rows(first, end),
            values=self.values.rows(first, end),
            timestamps=self.timestamps[first:end],
            headers=self.headers.rows(first, end),
        )

    def for_kernels(self, offsets: NDArray[np.int64] | None = None) -> RecordRows:
        """Return the records as kernels take them.

        Args:
            offsets: int64[n], rising; None for one after the other.
        """
        headers = self.headers
        return RecordRows(
            self.keys.data,
            self.keys.start,
            self.keys.length,
            self.values.data,
            self.values.start,
            self.values.length,
            self.timestamps,
            _NO_OFFSETS if offsets is None else as_numbers(offsets),
            headers.first,
            headers.keys.data,
            headers.keys.start,
            headers.keys.length,
            headers.values.data,
            headers.values.start,
            headers.values.length,
            np.zeros(len(self), np.int64),
        )


def _milliseconds(array: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    array = _one_array(array, "timestamp")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    if not pa.types.is_int64(array.type):
        raise InvalidColumnError("timestamp", f"expected int64 or timestamp, found {array.type}")
    numbers: NDArray[np.int64] = array.fill_null(-1).to_numpy()
    return numbers
