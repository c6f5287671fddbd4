"""Protobuf values as columns.

A message is a struct with the fields of its schema, by their names there. A field that a message
need not have is null where it lacks it; any other has its default, as the library gives it. A
repeated field is a list, a map a map, an enum a dictionary of names, in which an unknown number is
its digits. A timestamp or duration has microseconds, and what is below is cut off; a wrapper is
what it wraps, or null. What has no columns of its own is JSON text as Protobuf writes it: ``Any``,
``Struct``, ``Value``, ``ListValue``, a message inside of itself, and one without fields.

A kernel reads the values. The few that it finds unusual, which are valid but say a thing twice, are
first brought into their normal form by the library ``protobuf``.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.kernels import protobuf_wire as wire
from storage_core.kernels.gather import gather_values
from storage_core.values.decoder import MAX_REASONS, Decoded
from storage_core.values.protobuf_fields import Field, Shape

if TYPE_CHECKING:
    from storage_core.values.protobuf_schema import Messages

_MAX_BYTES: Final = 2**31 - 1  # Arrow's texts and lists count so far
_SECOND: Final = 1_000_000
_NANOSECONDS: Final = 1_000_000_000
# The years 1 to 9999; durations of 10,000 years.
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
_MAX_DURATION: Final = 315_576_000_000
_CACHED: Final = 64
_MAX_INDEXES: Final = 16  # of a value of another message: so many are told
_MAX_INDEXES_BYTES: Final = 10 * (_MAX_INDEXES + 1)


def protobuf_decoder(
    texts: Mapping[str, str],
    name: str,
    message: str | None = None,
    *,
    writer: Mapping[str, str] | None = None,
) -> "ProtobufDecoder":
    """Return the decoder of a Protobuf message; the same one for the same schema.

    Args:
        texts: The schema and all that it refers to, by the names by which they are imported: text
            of a ``.proto`` file, or a ``FileDescriptorProto`` in Base64. Google's well-known types
            and those of a registry itself need not be there.
        name: Which of them is the schema.
        message: The full name of the message; its first one without.
        writer: Likewise the schema that values were written by, where it is another version: it
            says which indexes the message has, if one of its messages has the name, and ``texts``
            what its fields are.

    Raises:
        ValueError: They are no schema, lack an import or the message, or have too many fields; or
            the extra ``protobuf`` is not installed.
    """
    written = None if writer is None else tuple(sorted(writer.items()))
    return _decoder(tuple(sorted(texts.items())), name, message, written)


@lru_cache(_CACHED)
def _decoder(
    texts: tuple[tuple[str, str], ...],
    name: str,
    message: str | None,
    writer: tuple[tuple[str, str], ...] | None,
) -> "ProtobufDecoder":
    try:
        from storage_core.values.protobuf_schema import Messages  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: pip install 'pylog-spark[protobuf]'"
        raise ValueError(reason) from error
    messages = Messages(dict(texts), name, message)
    written = messages if writer is None else Messages(dict(writer), name, None)
    return ProtobufDecoder(messages, written, (texts, name, message, writer))


def protobuf_to_json(texts: Mapping[str, str], name: str, value: bytes) -> str:
    """Return a value as JSON: the message of the schema that its indexes name.

    Args:
        texts: As ``protobuf_decoder`` has them, and ``name``.
        value: Without the registry's header.

    Raises:
        ValueError: The texts are no schema, or the value does not fit.
    """
    decoder = protobuf_decoder(texts, name)
    indexes = _read_indexes(value[:_MAX_INDEXES_BYTES])
    message = None if indexes is None else decoder.messages.name_of(indexes)
    if message is not None:
        decoder = protobuf_decoder(texts, name, message)
    return decoder.to_json(value)


class ProtobufDecoder:
    """Decodes values of one message, each behind the indexes of the message in its file."""

    def __init__(self, messages: "Messages", writer: "Messages", source: tuple[Any, ...]) -> None:
        self.messages = messages
        self._source = source
        # Who renames a message leaves it in its place.
        own = writer.indexes_of(messages.name) or messages.indexes_of(messages.name) or [[0]]
        self._columns = MessageColumns(messages.root, own, messages, writer)

    def __reduce__(self) -> tuple[Callable[..., "ProtobufDecoder"], tuple[Any, ...]]:
        return _decoder, self._source

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        return self._columns.type

    def decode(self, values: pa.Array) -> Decoded:
        """Return values as a column.

        Args:
            values: Binary or large binary, at most 2 GiB, the registry's header taken off.

        Raises:
            ValueError: There are more bytes. Those of a bad value are told in the result.
        """
        return self._columns.decode(values)

    def to_json(self, value: bytes) -> str:
        """Return one value as JSON, as Protobuf writes it, with the schema's names.

        Raises:
            ValueError: It does not fit.
        """
        ((start, reason),) = self._columns.begins(pa.array([value], pa.large_binary()))
        if reason:
            raise ValueError(reason)
        return self.messages.whole_to_json(value[start:])


@dataclass(eq=False, slots=True, kw_only=True)
class _Node:
    """A field at its row of the kernel's table."""

    field: Field
    row: int
    level: int  # which counter counts its rows, -1 for those of values
    around: int  # the same of its message
    oneofs: int = 0  # row of the first oneof of its message
    nodes: list["_Node"] = dataclasses.field(default_factory=list)


class MessageColumns:
    """Reads values of a message into columns.

    Args:
        indexes: Which of its file the message is; several if serializers count differently.
        messages: The library's messages; None for fields that never need it.
        writer: Likewise of the writer's schema, which names messages.
    """

    def __init__(
        self,
        root: Field,
        indexes: list[list[int]],
        messages: "Messages | None" = None,
        writer: "Messages | None" = None,
    ) -> None:
        self.type = root.type
        self._messages, self.writer = messages, writer
        self.indexes = np.array(indexes, np.int64)
        self.root = _Node(field=root, row=-1, level=-1, around=-1)
        self.nodes: list[_Node] = []
        self.counters: list[_Node] = []  # repeated fields, in the order of their counters
        waiting = [self.root]
        numbers: list[int] = []
        rows: list[list[int]] = []
        for each in waiting:
            children = sorted(each.field.fields, key=lambda child: child.number)
            if each.row >= 0 and children:
                rows[each.row][wire.FIRST] = len(self.nodes)
                rows[each.row][wire.LAST] = len(self.nodes) + len(children)
            for child in children:
                node = _Node(field=child, row=len(rows), level=each.level, around=each.level)
                row = [-1] * wire.FIELD_COLUMNS
                row[wire.NUMBER], row[wire.KIND] = child.number, child.kind
                row[wire.WIRE] = child.wire
                row[wire.FIRST] = row[wire.LAST] = 0
                row[wire.IN_MAP] = int(each.field.shape == Shape.MAP)
                if child.is_repeated:
                    row[wire.LIST] = node.level = len(self.counters)
                    self.counters.append(node)
                if child.kind == wire.CLOSED_ENUM:
                    row[wire.FIRST] = len(numbers)
                    numbers += sorted(child.enum_names)
                    row[wire.LAST] = len(numbers)
                rows.append(row)
                self.nodes.append(node)
                each.nodes.append(node)
                waiting.append(node)
        self.table = np.array(rows, np.int64).reshape(len(rows), wire.FIELD_COLUMNS)
        self.numbers = np.array(numbers, np.int64)
        self.item_cells = np.zeros(len(self.counters), np.int64)
        for node in self.nodes:
            if node.level >= 0:
                self.item_cells[node.level] += 1

    @property
    def library(self) -> "Messages":
        """The library's messages."""
        assert self._messages is not None, "expected a schema that the library knows"  # noqa: S101
        return self._messages

    def decode(self, values: pa.Array) -> Decoded:
        """Return values as a column; see ``ProtobufDecoder``."""
        reading = _Reading(self, values)
        while True:
            column = reading.column()
            unusual = reading.unusual
            if not unusual.size:
                break
            reading = reading.with_normal(unusual)
        failed = np.flatnonzero(reading.has_failed)
        return Decoded(column, failed, tuple(map(reading.reason, failed[:MAX_REASONS].tolist())))

    def begins(self, values: pa.Array) -> list[tuple[int, str]]:
        """Return where the message of each value begins, and why it does not fit, or nothing."""
        reading = _Reading(self, values)
        reading.count()
        return [
            (int(row[wire.POSITION]), reading.reason(number) if reading.has_failed[number] else "")
            for number, row in enumerate(reading.status)
        ]


class _Reading:
    """One reading of some values."""

    def __init__(self, columns: MessageColumns, values: pa.Array) -> None:
        values = values.cast(pa.large_binary())
        self._columns = columns
        _, offsets, data = values.buffers()
        count = len(values)
        places = np.zeros(1, np.int64)
        if offsets is not None and count:
            places = np.frombuffer(offsets, np.int64, count + 1, values.offset * 8)
        self._start, self._end = places[:-1].copy(), places[1:].copy()
        if count and places[-1] - places[0] > _MAX_BYTES:
            raise ValueError(f"expected at most {_MAX_BYTES} bytes of values")
        self._data = np.frombuffer(data or b"", np.uint8)
        self._data.setflags(write=False)
        self.status = np.zeros((count, wire.STATUS_COLUMNS), np.int64)
        self.status[:, wire.STATUS] = np.where(
            values.is_null().to_numpy(zero_copy_only=False), wire.ABSENT, wire.FITS
        )
        self._table = columns.table.copy()
        self._items = np.zeros(len(columns.counters), np.int64)
        self._offsets: dict[int, NDArray[np.int32]] = {}  # of each counter, in its message's rows
        self._other: dict[int, str] = {}  # reasons that the kernel does not know
        self._unusual: list[NDArray[np.int64]] = []
        self._normal: dict[int, str] = {}  # rows in their normal form, or why they have none

    @property
    def has_failed(self) -> NDArray[np.bool_]:
        """Whether each value does not fit."""
        failed: NDArray[np.bool_] = self.status[:, wire.STATUS] > wire.ABSENT
        failed[list(self._other)] = True
        return failed

    @property
    def unusual(self) -> NDArray[np.int64]:
        """Rows of values that the library has to put together."""
        found = np.flatnonzero(self.status[:, wire.STATUS] == wire.UNUSUAL)
        return np.unique(np.concatenate([found, *self._unusual]))

    def count(self) -> None:
        """Check all values, and count their items."""
        self._items[:] = 0
        self._run(
            wire.Columns(self._items, np.zeros(1, np.int64), np.zeros(1, np.uint8)), fill=False
        )

    def column(self) -> pa.Array:
        """Return the column; None where the library first has to put values together."""
        self.count()
        if (self.status[:, wire.STATUS] == wire.UNUSUAL).any():
            return None
        self._lay_out()
        self._items[:] = 0
        self._run(wire.Columns(self._items, self._cells, self._present), fill=True)
        root = self._columns.root
        valid = self.status[:, wire.STATUS] == wire.FITS
        column = self._column(root, valid)
        if not self._other:
            return column
        # What Arrow cannot hold is known only now: those values are null as others that do not fit.
        valid &= ~self.has_failed
        return self._column(root, valid)

    def with_normal(self, rows: NDArray[np.int64]) -> "_Reading":
        """Return a new reading in which the values of some rows are in their normal form."""
        messages = self._columns.library
        values: list[bytes] = []
        reading = object.__new__(_Reading)
        reading.__dict__.update(self.__dict__)
        reading._normal = self._normal | dict.fromkeys(rows.tolist(), "")
        for row in rows.tolist():
            start = int(self._start[row])
            begin = start + int(self.status[row, wire.POSITION])
            normal = b""
            if row in self._normal:
                reading._normal[row] = "expected a message in its normal form"
            else:
                try:
                    normal = messages.normal(self._data[begin : self._end[row]].tobytes())
                except ValueError as error:
                    reading._normal[row] = str(error)
            values.append(self._data[start:begin].tobytes() + normal)
        sizes = np.array(list(map(len, values)), np.int64)
        reading._start, reading._end = self._start.copy(), self._end.copy()
        reading._end[rows] = self._data.size + np.cumsum(sizes)
        reading._start[rows] = reading._end[rows] - sizes
        reading._data = np.concatenate([self._data, np.frombuffer(b"".join(values), np.uint8)])
        reading._data.setflags(write=False)
        reading.status = self.status.copy()
        reading.status[rows, wire.STATUS] = wire.FITS
        reading._table = self._columns.table.copy()
        reading._offsets, reading._unusual = {}, []
        reading._other = {row: reason for row, reason in reading._normal.items() if reason}
        return reading

    def reason(self, row: int) -> str:  # noqa: PLR0911  # a status each
        """Return why a value does not fit."""
        status, position, found = self.status[row].tolist()
        if row in self._other:
            return self._other[row]
        where = f"position {position}: expected "
        match status:
            case wire.BAD_INDEXES:
                return self._other_message(row)
            case wire.BAD_TAG:
                return f"{where}a field's number and type"
            case wire.BAD_NUMBER:
                return f"{where}a varint or a number of its size"
            case wire.BAD_LENGTH:
                return f"{where}as many bytes as are said there, found {found}"
            case wire.BAD_TEXT:
                return f"{where}UTF-8, found {found:#04x}"
            case wire.BAD_GROUP:
                return f"{where}the end of the group that was begun last"
            case wire.BAD_WIRE:
                return f"{where}a wire type of 0 to 5, found {found}"
            case wire.TOO_DEEP:
                return f"{where}at most {wire.MAX_DEPTH} messages inside of each other"
            case wire.TOO_LARGE:
                return f"{where}at most {wire.CELLS_PER_BYTE} cells of items for each byte"
        return f"{where}a message in its normal form"

    def _other_message(self, row: int) -> str:
        """Return that a value is of another message."""
        data = self._data[self._start[row] : self._end[row]][:_MAX_INDEXES_BYTES].tobytes()
        indexes = _read_indexes(data)
        expected = (
            f"position 0: expected the indexes of a message, {self._columns.indexes[0].tolist()}"
        )
        writer = self._columns.writer
        if indexes is None or writer is None:
            return expected
        name = writer.name_of(indexes)
        named = f", those of {name}" if name else ""
        own = writer.name_of(self._columns.indexes[0].tolist())
        return f"{expected}, those of {own}, found {indexes}{named}"

    def _run(self, columns: wire.Columns, *, fill: bool) -> None:
        schema = wire.Schema(
            self._table,
            len(self._columns.root.nodes),
            self._columns.numbers,
            self._columns.item_cells,
        )
        stack = np.zeros((wire.MAX_DEPTH + self._items.size, wire.STACK_COLUMNS), np.int64)
        wire.read_values(
            self._data,
            self._start,
            self._end,
            self._columns.indexes,
            schema,
            columns,
            self.status,
            stack,
            fill,
        )

    def _rows(self, level: int) -> int:
        return len(self.status) if level < 0 else int(self._counted[level])

    def _lay_out(self) -> None:
        """Give all fields their places."""
        self._counted = self._items.copy()
        cells = present = 0
        for node in [self._columns.root, *self._columns.nodes]:
            rows = self._rows(node.level)
            row = self._table[node.row] if node.row >= 0 else None
            # Its message's oneofs have been laid out with the message.
            if row is not None:
                if node.field.is_repeated:
                    row[wire.COUNT] = cells
                    cells += self._rows(node.around)
                elif node.field.has_presence or node.field.kind == wire.RAW:
                    row[wire.PRESENT] = present
                    present += rows
                if not node.field.fields:
                    row[wire.PLACE] = cells
                    cells += rows
                    if node.field.wire == wire.WIRE_BYTES:
                        row[wire.LENGTH] = cells
                        cells += rows
            oneofs = sorted({each.field.oneof for each in node.nodes} - {-1})
            places = {oneof: cells + index * rows for index, oneof in enumerate(oneofs)}
            cells += len(oneofs) * rows
            for each in node.nodes:
                self._table[each.row, wire.ONEOF] = places.get(each.field.oneof, -1)
        self._cells = np.zeros(cells, np.int64)
        self._present = np.zeros(present, np.uint8)

    def _column(self, node: _Node, valid: NDArray[np.bool_] | None = None) -> pa.Array:
        """Return the column of a field.

        Args:
            valid: bool[rows], for the values themselves: which of them fit.
        """
        rows = self._rows(node.level)
        if node.row >= 0 and node.field.has_presence and not node.field.is_repeated:
            place = self._table[node.row, wire.PRESENT]
            valid = self._present[place : place + rows].astype(np.bool_)
        match node.field.shape:
            case Shape.PLAIN:
                column = self._plain(node, valid)
            case Shape.ENUM:
                column = self._enum(node, valid)
            case Shape.WRAPPER:
                column = self._plain(node.nodes[0], valid)
            case Shape.TIMESTAMP | Shape.DURATION:
                column = self._time(node, valid)
            case Shape.TEXT:
                column = self._text(node, valid)
            case Shape.MAP:
                return self._map(node)
            case Shape.STRUCT:
                by_name = {each.field.name: self._column(each) for each in node.nodes}
                fields = [by_name[each.name] for each in node.field.fields]
                mask = None if valid is None else pa.array(~valid)
                column = pa.StructArray.from_arrays(
                    fields, fields=list(node.field.item_type), mask=mask
                )
        if not node.field.is_repeated:
            return column
        return pa.ListArray.from_arrays(pa.array(self._item_offsets(node)), column)

    def _item_offsets(self, node: _Node) -> NDArray[np.int32]:
        offsets = self._offsets.get(node.level)
        if offsets is None:
            place, rows = self._table[node.row, wire.COUNT], self._rows(node.around)
            offsets = np.zeros(rows + 1, np.int32)
            np.cumsum(self._cells[place : place + rows], out=offsets[1:])
            self._offsets[node.level] = offsets
        return offsets

    def _words(self, node: _Node, column: int = wire.PLACE) -> NDArray[np.int64]:
        place = self._table[node.row, column]
        return self._cells[place : place + self._rows(node.level)]

    def _plain(self, node: _Node, valid: NDArray[np.bool_] | None) -> pa.Array:
        rows, kind = self._rows(node.level), node.field.item_type
        words = self._words(node)
        nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if node.field.wire == wire.WIRE_BYTES:
            length = self._words(node, wire.LENGTH)
            offsets = np.zeros(rows + 1, np.int32)
            np.cumsum(length, out=offsets[1:])
            text = np.empty(int(offsets[-1]), np.uint8)
            gather_values(self._data, words, length, offsets, text)
            buffers = [nulls, pa.py_buffer(offsets), pa.py_buffer(text)]
            return pa.Array.from_buffers(kind, rows, buffers)
        if pa.types.is_boolean(kind):
            content: NDArray[Any] = np.packbits(words.astype(np.bool_), bitorder="little")
        else:
            content = words.astype(np.uint32) if kind.bit_width == 32 else words  # noqa: PLR2004
        return pa.Array.from_buffers(kind, rows, [nulls, pa.py_buffer(content)])

    def _enum(self, node: _Node, valid: NDArray[np.bool_] | None) -> pa.Array:
        names = node.field.enum_names
        words = self._words(node).astype(np.int32)
        known = np.array(sorted(names), np.int32)
        at = np.searchsorted(known, words).astype(np.int32)
        is_known = known[np.minimum(at, known.size - 1)] == words
        texts = [names[number] for number in known.tolist()]
        if not is_known.all():
            unknown, places = np.unique(words[~is_known], return_inverse=True)
            at[~is_known] = len(texts) + places
            texts += map(str, unknown.tolist())
        mask = None if valid is None else ~valid
        return pa.DictionaryArray.from_arrays(pa.array(at, mask=mask), pa.array(texts))

    def _time(self, node: _Node, valid: NDArray[np.bool_] | None) -> pa.Array:
        seconds = self._words(node.nodes[0])
        nanos = self._words(node.nodes[1]).astype(np.int32).astype(np.int64)
        if node.field.shape == Shape.TIMESTAMP:
            fits = (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
            fits &= (nanos >= 0) & (nanos < _NANOSECONDS)
        else:
            fits = (np.abs(seconds) <= _MAX_DURATION) & (seconds != np.iinfo(np.int64).min)
            fits &= (np.abs(nanos) < _NANOSECONDS) & (np.sign(seconds) * np.sign(nanos) >= 0)
        if not fits.all():
            bad = np.flatnonzero(~fits)
            for row, at in zip(
                self._values_of(node.level, bad).tolist(), bad.tolist(), strict=True
            ):
                what = f"{seconds[at]} s and {nanos[at]} ns"
                self._refuse(row, f"expected a {node.field.message}, found {what}")
        # Toward zero, as the library converts durations; timestamps count nanoseconds upward.
        micros = np.sign(nanos) * (np.abs(nanos) // 1000)
        total = np.where(fits, seconds, 0) * _SECOND + micros
        nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(node.field.item_type, len(total), [nulls, pa.py_buffer(total)])

    def _text(self, node: _Node, valid: NDArray[np.bool_] | None) -> pa.Array:
        """Return messages as JSON, one by one: these have no columns."""
        if node.row < 0:
            starts = self._start + self.status[:, wire.POSITION]
            lengths = self._end - starts
        else:
            starts, lengths = self._words(node), self._words(node, wire.LENGTH)
        rows = self._rows(node.level)
        texts: list[str | None] = [None] * rows
        messages = self._columns.library
        for row in range(rows) if valid is None else np.flatnonzero(valid).tolist():
            start = int(starts[row])
            data = self._data[start : start + int(lengths[row])].tobytes()
            try:
                texts[row] = messages.to_json(node.field.message, data)
            except ValueError as error:
                (value,) = self._values_of(node.level, np.array([row])).tolist()
                self._refuse(value, str(error))
                texts[row] = None if valid is not None else ""
        return pa.array(texts, pa.string())

    def _map(self, node: _Node) -> pa.Array:
        keys, items = map(self._column, node.nodes)
        offsets = self._item_offsets(node)
        codes = keys.dictionary_encode().indices.to_numpy()
        owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        order = np.sort(owner * (len(keys) + 1) + codes)
        again = order[1:][order[1:] == order[:-1]] // (len(keys) + 1)
        if again.size:
            self._unusual.append(self._values_of(node.around, again))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items)

    def _values_of(self, level: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values that rows of a level belong to."""
        while level >= 0:
            counter = self._columns.counters[level]
            offsets = self._item_offsets(counter)
            rows = np.searchsorted(offsets, rows, side="right") - 1
            level = counter.around
        return rows

    def _refuse(self, row: int, reason: str) -> None:
        self._other.setdefault(row, reason)


def _read_indexes(data: bytes) -> list[int] | None:
    """Return the first of the indexes that stand before a message; None for none."""
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte >= 0x80:  # noqa: PLR2004  # the bit that says that another byte follows
            continue
        numbers.append((number >> 1) ^ -(number & 1))
        if numbers[0] == 0:
            return [0]
        if len(numbers) == min(numbers[0], _MAX_INDEXES) + 1:
            return numbers[1:]
        number = shift = 0
    return None
