"""Columns of Avro values, decoded by a kernel: no Python runs for each value."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage_core.kernels import avro_columns as op
from storage_core.kernels.avro_columns import Room, run_program
from storage_core.values.avro_program import (
    ALL,
    OF_ROWS,
    Column,
    Program,
    compile_program,
    read_types,
)
from storage_core.values.avro_values import AvroBytes, registered_reader, whole_value
from storage_core.values.decoder import MAX_REASONS, Decoded

_ALIGNMENT: Final = 64  # of buffers, in bytes, as Arrow has it
_CACHED: Final = 4096
_REASONS: Final = {
    op.LACKS_BRANCH: "expected a branch that the reader's union has, found another one",
    op.LACKS_SYMBOL: "expected a symbol that the reader's enum has, found another one",
    op.TOO_MANY_DIGITS: "expected a decimal of the schema's precision, found more digits",
    op.NO_TIME_OF_DAY: "expected a time of day, found a number that is none",
    op.TOO_LATE: "expected a time of 64 bits in the reader's unit, found a larger one",
    op.TOO_LONG: "expected at most 2 GiB in a column of a batch, found more",
    op.TOO_MANY_ITEMS: "expected fewer items that take no bytes in a batch, found more",
}


class AvroDecoder:
    """Makes columns of Avro values; a value that pickles."""

    def __init__(self, writer: tuple[str, ...], reader: tuple[str, ...] | None) -> None:
        self._writer, self._reader = writer, reader
        kind = read_types(writer)
        self._program = compile_program(kind, kind if reader is None else read_types(reader))
        self.type: pa.DataType = self._program.column.type

    def __reduce__(self) -> Any:
        return avro_decoder, (self._writer, self._reader)

    def decode(self, values: pa.Array) -> Decoded:
        """Return the column of some values.

        Args:
            values: Binary or large binary, without the five bytes of a registry.
        """
        column, verdicts = run(self._program, values)
        failed = np.flatnonzero(verdicts > op.FITS)
        reasons = tuple(
            self._reason(values[row].as_py(), int(verdicts[row]))
            for row in failed[:MAX_REASONS].tolist()
        )
        return Decoded(column, failed, reasons)

    def _reason(self, value: bytes, verdict: int) -> str:
        """Return why a value does not fit: the reader of single values says what is malformed."""
        try:
            whole_value(registered_reader(self._writer), AvroBytes(value))
        except ValueError as error:
            return str(error)
        return f"position {verdict >> op.VERDICT_BITS}: {_REASONS[verdict & op.VERDICT_MASK]}"


def avro_decoder(writer: Sequence[str], reader: Sequence[str] | None = None) -> AvroDecoder:
    """Return the decoder of what was written by a schema.

    Args:
        writer: The text of the schema, behind those of the schemas that it refers to.
        reader: Likewise, of the schema that says which columns there are; None for the writer's.

    Raises:
        ValueError: A text is no schema, the reader's schema cannot read the writer's values, or it
            is recursive, or too large for columns.
    """
    return _cached_decoder(tuple(writer), None if reader is None else tuple(reader))


_cached_decoder = lru_cache(_CACHED)(AvroDecoder)


def _bytes_of(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return what the kernel reads: the bytes, and where each value begins and ends."""
    _, places, content = values.buffers()
    offsets = np.zeros(1, np.int64)
    if places is not None and len(values):
        offsets = np.frombuffer(places, np.int64, len(values) + 1, values.offset * 8)
    data = np.frombuffer(content or b"", np.uint8)
    # Whoever has made them: so that one entry of the kernel takes all.
    for array in (data, offsets):
        array.flags.writeable = False
    return data, offsets


def run(program: Program, values: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column of the values that fit, and the verdicts on all of them (``op``)."""
    values = values.cast(pa.large_binary())
    data, offsets = _bytes_of(values)
    verdicts = np.zeros(len(values), np.int64)
    if values.null_count:
        verdicts[values.is_null().to_numpy(zero_copy_only=False)] = op.IS_NULL
    counters = np.zeros(program.counters, np.int64)
    operations = program.operations.copy()
    operations[:, op.VALUES] = -1
    words = operations.reshape(-1), program.tables, counters, np.zeros_like(counters)
    state = *words, np.zeros(program.levels + 1, np.int64), verdicts
    run_program(data, offsets, program.constants, *state, _room(np.zeros(_ALIGNMENT, np.uint8)))
    counters[0] = len(verdicts)
    counts = counters.copy()
    sizes = [each.size(int(counts[each.counter])) for each in program.buffers]
    starts = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
    octets = _zeros(starts.pop())
    units = [8 * start // each.unit for start, each in zip(starts, program.buffers, strict=True)]
    places = np.array([*units, -1], np.int64)  # the last one of -1, too
    for word in (op.VALUES, op.BYTES):
        operations[:, word] = places[program.operations[:, word]]
    counters[:] = 0
    run_program(data, offsets, program.constants, *state, _room(octets))
    fits = verdicts == op.FITS
    filled = _Filled(
        counts=counts,
        parts=[octets[start : start + size] for start, size in zip(starts, sizes, strict=True)],
        rows=None if fits.all() else np.packbits(fits, bitorder="little"),
    )
    return filled.array(program.column), verdicts


def _room(octets: np.ndarray) -> Room:
    return Room(octets, octets.view(np.int32), octets.view(np.int64))


def _zeros(size: int) -> np.ndarray:
    """Return so many zero bytes, and some more, aligned."""
    made = np.zeros(size + 2 * _ALIGNMENT, np.uint8)
    start = -made.ctypes.data % _ALIGNMENT
    return made[start : start + size + _ALIGNMENT]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Filled:
    """The buffers of all columns."""

    counts: np.ndarray  # int64: what each counter has counted
    parts: list[np.ndarray]  # uint8[] each
    rows: np.ndarray | None  # bits: which values fit; None for all

    def array(self, column: Column) -> pa.Array:
        """Return a column, with all below it."""
        count = int(self.counts[column.rows])
        valid = None
        if column.valid != ALL:
            bits = self.rows if column.valid == OF_ROWS else self.parts[column.valid]
            valid = None if bits is None else pa.py_buffer(bits)
        if pa.types.is_null(column.type):
            return pa.nulls(count)
        buffers = [valid]
        if column.values >= 0:
            part = self.parts[column.values]
            if column.is_sized and valid is not None:
                ends = part.view(np.int32)
                np.maximum.accumulate(ends, out=ends)  # where a null is, too
            buffers.append(pa.py_buffer(part))
        if column.content >= 0:
            buffers.append(pa.py_buffer(self.parts[column.content]))
        if pa.types.is_dictionary(column.type):
            symbols = pa.array(column.symbols, pa.string())
            return pa.DictionaryArray.from_buffers(column.type, count, buffers, symbols)
        children = [self.array(each) for each in column.children]
        return pa.Array.from_buffers(column.type, count, buffers, children=children)
