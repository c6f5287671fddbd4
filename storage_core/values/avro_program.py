"""Schemas of Avro made into a program of ``kernels.avro_columns``, and the columns that it fills.

The reader's schema says which columns there are; the writer's, in which order its bytes fill them.
Where the two differ, Avro's rules of resolution hold
(https://avro.apache.org/docs/1.12.0/specification/#schema-resolution). Of a reader's union the
branch of the very same type goes before one to which the writer's type is promoted. A time of
another unit stays the same moment, in whole units of the reader; Avro's own libraries differ there.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage_core.json_values import MAX_JSON_DEPTH
from storage_core.kernels import avro_columns as op
from storage_core.values.avro_values import (
    MAX_DECIMAL_DIGITS,
    MAX_FIXED_BYTES,
    PER_SECOND,
    parse_avro,
)

# Named types used many times over make a column each time: a short schema could ask for billions.
MAX_COLUMNS: Final = 10_000
_MAX_OPERATIONS: Final = 100_000
# A default is copied for each value.
_MAX_DEFAULT_BYTES: Final = 4096
# A null among fixed values takes as many bytes as they do; larger ones are binary.
_MOST_BYTES_OF_NULL: Final = 1024

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_SYMBOLS: Final = pa.dictionary(pa.int32(), pa.string())
_PROMOTIONS: Final = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
_NUMBER_TARGETS: Final = {
    "int": op.TO_INT32,
    "long": op.TO_INT64,
    "float": op.TO_FLOAT,
    "double": op.TO_DOUBLE,
}
_TIMES: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_DAY: Final = {f"time-{unit}": 86_400 * PER_SECOND[unit] for unit in ("millis", "micros")}
# The sizes are those of a fixed, in bytes.
_OTHERS: Final = {("string", "uuid", 0), ("fixed", "uuid", 16), ("fixed", "duration", 12)}
_NARROW_DIGITS: Final = 38
_LIMIT_WORDS: Final = 4


@dataclass(eq=False, slots=True, kw_only=True)
class AvroType:
    """A type of a schema; a named type is one object wherever it is used, even inside itself."""

    kind: str
    name: str = ""  # whole
    aliases: tuple[str, ...] = ()
    logical: str = ""  # empty also for one that does not suit the type
    precision: int = 0  # of a decimal
    scale: int = 0
    size: int = 0  # of a fixed, in bytes
    symbols: tuple[str, ...] = ()
    default: str = ""  # symbol of an enum
    fields: tuple["AvroField", ...] = ()
    inner: tuple["AvroType", ...] = ()  # items, values, branches

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind

    @property
    def short_name(self) -> str:
        """The name of a branch of this type."""
        return self.name.rpartition(".")[2] or self.kind


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AvroField:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    has_default: bool
    default: Any  # as JSON has it


class MismatchError(ValueError):
    """Values of the writer's type are none of the reader's."""


def read_types(texts: Sequence[str]) -> AvroType:
    """Return the type of the last of some schemas, which may refer to those before it.

    Raises:
        ValueError: One of them is no schema.
    """
    named: dict[str, AvroType] = {}
    return [_type_of(json.loads(text), named) for text in parse_avro(texts)][-1]


def _type_of(schema: Any, named: dict[str, AvroType]) -> AvroType:
    """Return the type of a schema that is one, with all names whole."""
    if isinstance(schema, list):
        return AvroType(kind="union", inner=tuple(_type_of(each, named) for each in schema))
    if isinstance(schema, str):
        return named[schema] if schema in named else AvroType(kind=schema)
    kind = schema["type"]
    if kind in {"array", "map"}:
        inner = _type_of(schema["items" if kind == "array" else "values"], named)
        return AvroType(kind=kind, inner=(inner,))
    made = AvroType(kind="record" if kind == "error" else kind)
    if "name" in schema and kind not in _PRIMITIVES:
        made.name = schema["name"]
        made.aliases = _texts(schema.get("aliases"))
        named[made.name] = made
    if made.kind == "record":
        made.fields = tuple(
            AvroField(
                name=each["name"],
                aliases=_texts(each.get("aliases")),
                type=_type_of(each["type"], named),
                has_default="default" in each,
                default=each.get("default"),
            )
            for each in schema["fields"]
        )
        names = [each.name for each in made.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"expected an Avro schema: {made} has two fields of one name")
    if kind == "enum":
        made.symbols = _texts(schema["symbols"])
        made.default = next(iter(_texts([schema.get("default")])), "")
    made.size = schema["size"] if kind == "fixed" else 0
    if made.size > MAX_FIXED_BYTES:
        raise ValueError(f"{made} has {made.size} bytes, more than {MAX_FIXED_BYTES}")
    _add_logical_type(made, schema)
    return made


def _texts(values: Any) -> tuple[str, ...]:
    """Return those of some JSON values that are strings."""
    return (
        tuple(each for each in values if isinstance(each, str)) if isinstance(values, list) else ()
    )


def _add_logical_type(made: AvroType, schema: Mapping[str, Any]) -> None:
    """Take note of a logical type; one that does not suit the type is ignored, as Avro has it."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return
    if (made.kind, logical) in _TIMES or (made.kind, logical, made.size) in _OTHERS:
        made.logical = logical
    elif logical == "decimal" and schema["precision"] <= MAX_DECIMAL_DIGITS:
        made.logical = logical
        made.precision, made.scale = schema["precision"], schema.get("scale", 0)


# Columns

# Which values of a column are there: those of all rows, those of the values that fit, or those
# whose bit is set in a buffer of this number.
ALL: Final = -2
OF_ROWS: Final = -1


@dataclass(frozen=True, slots=True)
class Buffer:
    """What a buffer has for each row, or byte, that a counter counts."""

    counter: int
    unit: int  # bits of what the kernel stores at once: 1, 8, 32 or 64
    count: int = 1  # of these a row
    is_offsets: bool = False  # which are one more

    def size(self, rows: int) -> int:
        """Return how many bytes it has."""
        return ((rows + self.is_offsets) * self.count * self.unit + 7) // 8


@dataclass(eq=False, slots=True, kw_only=True)
class Column:
    """A column to fill."""

    type: pa.DataType
    rows: int  # the counter of its rows
    valid: int
    values: int = -1  # number of a buffer
    content: int = -1  # number of the buffer of its strings' bytes
    counter: int = 0  # of these bytes, or of items
    children: tuple["Column", ...] = ()
    symbols: tuple[str, ...] = ()

    @property
    def is_sized(self) -> bool:
        """Whether its values are offsets."""
        return self.counter > 0


@dataclass(eq=False, slots=True)
class _Layout:
    """Lays out the columns of a reader's schema."""

    buffers: list[Buffer] = field(default_factory=list)
    counters: int = 1
    columns: int = 0
    open: list[AvroType] = field(default_factory=list)

    def column(self, kind: AvroType, rows: int, valid: int) -> Column:
        """Return the column of a type, with all below it."""
        self.columns += 1
        if self.columns > MAX_COLUMNS:
            raise ValueError(f"the schema has more than {MAX_COLUMNS} columns")
        if kind.kind == "union":
            return self._union(kind, rows, valid)
        with nested(kind, self.open):
            if kind.kind == "record":
                children = [self.column(each.type, rows, valid) for each in kind.fields]
                names = [each.name for each in kind.fields]
                return _struct(names, children, rows, valid)
            if kind.kind in {"array", "map"}:
                return self._list(kind, rows, valid)
            return self._leaf(kind, rows, valid)

    def _union(self, kind: AvroType, rows: int, valid: int) -> Column:
        branches = some_branches(kind)
        if len(branches) < len(kind.inner):
            valid = self._bits(rows)
        if not branches:
            return Column(type=pa.null(), rows=rows, valid=valid)
        if len(branches) == 1:
            return self.column(branches[0], rows, valid)
        children = [self.column(each, rows, self._bits(rows)) for each in branches]
        short = [each.short_name for each in branches]
        names = [
            each.name if each.name and short.count(each.short_name) > 1 else each.short_name
            for each in branches
        ]
        return _struct(names, children, rows, valid)

    def _list(self, kind: AvroType, rows: int, valid: int) -> Column:
        values, counter = self._buffer(rows, 32, is_offsets=True), self._counter()
        item = self.column(kind.inner[0], counter, ALL)
        if kind.kind == "array":
            made, below = pa.list_(item.type), item
        else:
            key = self._texts(pa.string(), counter, ALL)
            entry = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", item.type)])
            made = pa.map_(pa.string(), item.type)
            below = Column(type=entry, rows=counter, valid=ALL, children=(key, item))
        return Column(
            type=made, rows=rows, valid=valid, values=values, counter=counter, children=(below,)
        )

    def _leaf(self, kind: AvroType, rows: int, valid: int) -> Column:
        made = _leaf_type(kind)
        if pa.types.is_null(made):
            return Column(type=made, rows=rows, valid=valid)
        if made in {pa.string(), pa.binary()}:
            return self._texts(made, rows, valid)
        bits = 32 if kind.kind == "enum" else made.bit_width
        unit = 8 if kind.kind == "fixed" and kind.logical != "decimal" else min(bits, 64)
        values = self._buffer(rows, unit, count=bits // unit)
        return Column(type=made, rows=rows, valid=valid, values=values, symbols=kind.symbols)

    def _texts(self, made: pa.DataType, rows: int, valid: int) -> Column:
        counter = self._counter()
        return Column(
            type=made,
            rows=rows,
            valid=valid,
            values=self._buffer(rows, 32, is_offsets=True),
            content=self._buffer(counter, 8),
            counter=counter,
        )

    def _counter(self) -> int:
        self.counters += 1
        return self.counters - 1

    def _bits(self, rows: int) -> int:
        return self._buffer(rows, 1)

    def _buffer(self, counter: int, unit: int, *, count: int = 1, is_offsets: bool = False) -> int:
        self.buffers.append(Buffer(counter, unit, count, is_offsets))
        return len(self.buffers) - 1


def _struct(names: Sequence[str], children: Sequence[Column], rows: int, valid: int) -> Column:
    fields = [(name, child.type) for name, child in zip(names, children, strict=True)]
    return Column(type=pa.struct(fields), rows=rows, valid=valid, children=tuple(children))


def _leaf_type(kind: AvroType) -> pa.DataType:
    if (kind.kind, kind.logical) in _TIMES:
        return _TIMES[kind.kind, kind.logical]
    match kind:
        case AvroType(logical="decimal"):
            is_narrow = kind.precision <= _NARROW_DIGITS
            return (pa.decimal128 if is_narrow else pa.decimal256)(kind.precision, kind.scale)
        case AvroType(logical="uuid"):
            return pa.string()
        case AvroType(kind="enum"):
            return _SYMBOLS
        case AvroType(kind="fixed"):
            # Arrow knows no values of no bytes.
            return pa.binary(kind.size) if 0 < kind.size <= _MOST_BYTES_OF_NULL else pa.binary()
        case _:
            return _PRIMITIVES[kind.kind]


def some_branches(union: AvroType) -> list[AvroType]:
    """Return the branches of a union that are not null."""
    return [each for each in union.inner if each.kind != "null"]


@contextmanager
def nested(kind: AvroType, open_: list[AvroType]) -> Iterator[None]:
    """Enter a type; those entered are in a list.

    Raises:
        ValueError: It is inside itself, or too deep.
    """
    if kind.kind not in {"record", "array", "map"}:
        yield
        return
    if kind in open_:
        raise ValueError(f"{kind} has itself inside: such values are no columns")
    if len(open_) >= MAX_JSON_DEPTH:
        raise ValueError(f"the schema is nested more than {MAX_JSON_DEPTH} levels deep")
    open_.append(kind)
    yield
    open_.pop()


# Programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How values become a column.

    Attributes:
        operations: int64[m, OPERATION_WORDS]; VALUES and BYTES are numbers of buffers.
        tables: int64[].
        constants: uint8[].
    """

    column: Column
    buffers: tuple[Buffer, ...]
    counters: int  # the last one counts what is not kept
    levels: int  # lists inside one another
    operations: np.ndarray
    tables: np.ndarray
    constants: np.ndarray


def compile_program(writer: AvroType, reader: AvroType) -> Program:
    """Return the program that reads what a writer has written.

    Raises:
        MismatchError: Its values are none of the reader.
        ValueError: The schema is recursive, or too large.
    """
    layout = _Layout()
    column = layout.column(reader, 0, OF_ROWS)
    compiler = _Compiler(kept=layout.counters)
    compiler.value(writer, reader, column)
    compiler.emit(op.END, None)
    return Program(
        column=column,
        buffers=tuple(layout.buffers),
        counters=layout.counters + 1,
        levels=compiler.levels,
        operations=np.array(compiler.operations, np.int64),
        tables=np.array([*compiler.tables, 0], np.int64),
        constants=np.frombuffer(bytes(compiler.constants) + b"\0", np.uint8),
    )


@dataclass(eq=False, slots=True)
class _Compiler:
    """Writes a program. A column of None is one that the reader has not: values are passed over."""

    kept: int  # the counter of what is not kept
    operations: list[list[int]] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    constants: bytearray = field(default_factory=bytearray)
    open: list[AvroType] = field(default_factory=list)
    levels: int = 0
    level: int = 0
    written: int = 0  # operations, with those of branches that did not match

    def emit(  # the words of an operation
        self, code: int, column: Column | None, a: int = 0, b: int = 0, c: int = 0, at: int = -1
    ) -> list[int]:
        """Add an operation that stores into the values of a column, or a buffer that is said."""
        self.written += 1
        if self.written > _MAX_OPERATIONS:
            raise ValueError(f"the schema needs more than {_MAX_OPERATIONS} operations")
        words = [code, 0, at, -1, a, b, c, 0]
        if column is not None:
            words[op.ROWS] = column.rows
            words[op.VALUES] = column.values if at < 0 else at
            words[op.BYTES] = column.content
        self.operations.append(words)
        return words

    def value(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        """Read a value of one type as another one."""
        if writer.kind == "union":
            self._writers_union(writer, reader, column)
        elif reader.kind == "union" and column is not None:
            self._into_union(writer, reader, column)
        else:
            self._plain(writer, reader, column)

    def _present(self, column: Column | None) -> None:
        if column is not None and column.valid >= 0:
            self.emit(op.PRESENT, column, at=column.valid)

    def _writers_union(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        kinds = [each.kind for each in writer.inner]
        is_same = column is None or (
            reader.kind == "union" and "null" in {each.kind for each in reader.inner}
        )
        # Both are null or something, most unions: one operation reads the branch and notes it.
        if len(kinds) == 2 and kinds.count("null") == 1 and is_same:  # noqa: PLR2004
            some = writer.inner[1 - kinds.index("null")]
            words = self.emit(op.NULLABLE, column, a=kinds.index("null"))
            words[op.VALUES] = -1 if column is None else column.valid
            if column is None:
                self.value(some, some, None)
            else:
                self._into_union(some, reader, column, is_noted=True)
            words[op.B] = len(self.operations)
            return
        words = self.emit(op.UNION, column, a=len(self.tables), b=len(writer.inner))
        words[op.VALUES] = -1
        table = len(self.tables)
        self.tables += [0] * len(writer.inner)
        ends, problems = [], []
        for number, branch in enumerate(writer.inner):
            self.tables[table + number] = len(self.operations)
            try:
                with self._attempt():
                    self.value(branch, branch if column is None else reader, column)
            except MismatchError as error:
                problems.append(error)
                self.emit(op.NO_PLACE, None)
            ends.append(self.emit(op.JUMP, None))
        if len(problems) == len(writer.inner):
            raise problems[0]
        for jump in ends:
            jump[op.A] = len(self.operations)

    def _into_union(
        self, writer: AvroType, reader: AvroType, column: Column, *, is_noted: bool = False
    ) -> None:
        """Read a value into the branch that it matches.

        Args:
            is_noted: Whether the column's bit is set already.
        """
        branches = some_branches(reader)
        if writer.kind == "null":
            if len(branches) == len(reader.inner):
                raise MismatchError(f"the reader's union of {_names(reader)} has no null")
            return
        same = [each for each in branches if _is_same(writer, each)]
        for branch in [*same, *(each for each in branches if each not in same)]:
            try:
                with self._attempt():
                    if not is_noted:
                        self._present(column)
                    place = column
                    if len(branches) > 1:
                        place = column.children[branches.index(branch)]
                        self._present(place)
                    self._plain(writer, branch, place)
            except MismatchError:
                continue
            return
        raise MismatchError(f"the writer's {writer} is in no branch of {_names(reader)}")

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Take back what was written if it does not match."""
        count, open_, level = len(self.operations), len(self.open), self.level
        try:
            yield
        except MismatchError:
            del self.operations[count:]
            del self.open[open_:]
            self.level = level
            raise

    def _plain(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        """Read a value of a type that is no union as another one that is none."""
        _check_match(writer, reader)
        with nested(writer, self.open):
            match writer.kind:
                case "record":
                    self._record(writer, reader, column)
                case "array" | "map":
                    self._list(writer, reader, column)
                case _:
                    self._leaf(writer, reader, column)

    def _record(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        places = {} if column is None else dict(zip(reader.fields, column.children, strict=True))
        left = dict(places)
        names = {each.name for each in writer.fields}
        found_by = {
            name: each
            for each in places
            for name in ([each.name] if each.name in names else each.aliases)
        }
        for each in writer.fields:
            found = found_by.get(each.name)
            if found is None or found not in left:
                self.value(each.type, each.type, None)
                continue
            del left[found]
            try:
                self.value(each.type, found.type, places[found])
            except MismatchError as error:
                raise MismatchError(f"field {each.name} of {writer}: {error}") from error
        for missing, place in left.items():
            if not missing.has_default:
                reason = f"the reader's field {missing.name} of {reader} has no default"
                raise MismatchError(f"{reason}, and the writer has no such field")
            self._default(reader, missing, place)

    def _default(self, reader: AvroType, missing: AvroField, place: Column) -> None:
        where = f"the default of field {missing.name} of {reader}"
        try:
            content = encode_json(missing.type, missing.default)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"{where} is none of its type: {error}") from error
        if len(content) > _MAX_DEFAULT_BYTES:
            raise ValueError(f"{where} has more than {_MAX_DEFAULT_BYTES} bytes")
        begin = len(self.constants)
        self.constants += content
        self.emit(op.ENTER, None, a=begin, b=len(self.constants))
        self.value(missing.type, missing.type, place)
        self.emit(op.LEAVE, None)

    def _list(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        counter = self.kept if column is None else column.counter
        level = self.level
        self.level += 1
        self.levels = max(self.levels, self.level)
        start = len(self.operations)
        block = self.emit(op.BLOCK, column, a=counter, b=level)
        item = None if column is None else column.children[0]
        if writer.kind == "map":
            key = None
            if item is not None:
                key, item = item.children
            self._text(key, is_checked=True)
        self.value(writer.inner[0], reader.inner[0], item)
        self.emit(op.NEXT, None, a=counter, b=level, c=start)
        block[op.C] = len(self.operations)
        self.level -= 1

    def _text(self, column: Column | None, *, is_checked: bool, size: int = -1) -> None:
        counter = self.kept if column is None else column.counter
        self.emit(op.STRING, column, a=counter, b=int(is_checked), c=size)

    def _leaf(self, writer: AvroType, reader: AvroType, column: Column | None) -> None:
        wire, wanted = writer.kind, reader.kind
        if wire == "null":
            return
        if column is not None and reader.logical == "decimal":
            if wire == "string":
                raise MismatchError("the writer's string is no decimal")
            words = column.type.bit_width // 64
            size = writer.size if wire == "fixed" else -1
            self.emit(op.DECIMAL, column, a=size, b=words, c=self._limit(reader.precision))
        elif wire in {"string", "bytes"}:
            self._text(column, is_checked="string" in {wire, wanted})
        elif wire in {"int", "long"} and (wire != wanted or _is_apart(writer, reader)):
            bound = 0 if column is None else _DAY.get(reader.logical, 0)
            target = _NUMBER_TARGETS[wanted]
            words = self.emit(op.NUMBER, column, a=int(wire == "int"), b=target, c=bound)
            words[op.D] = _factor(writer.logical, reader.logical)
        elif wire == "enum":
            table = len(self.tables)
            self.tables += _symbol_numbers(writer, reader)
            self.emit(op.ENUM, column, a=table, b=len(writer.symbols))
        elif wire == "fixed":
            self._fixed(writer.size, reader, column)
        elif wire == "float":
            self.emit(op.FLOAT, column, a=_NUMBER_TARGETS[wanted])
        else:
            self.emit(_SIMPLE[wire], column)

    def _fixed(self, size: int, reader: AvroType, column: Column | None) -> None:
        if column is not None and reader.logical == "uuid":
            self.emit(op.UUID, column, a=column.counter)
        elif column is not None and column.content >= 0:
            self._text(column, is_checked=False, size=size)
        else:
            self.emit(op.FIXED, column, a=size)

    def _limit(self, precision: int) -> int:
        """Return where the largest number of so many digits stands in the tables."""
        content = (10**precision - 1).to_bytes(8 * _LIMIT_WORDS, "little")
        self.tables += struct.unpack(f"<{_LIMIT_WORDS}q", content)
        return len(self.tables) - _LIMIT_WORDS


_SIMPLE: Final = {"boolean": op.BOOLEAN, "int": op.INT, "long": op.LONG, "double": op.DOUBLE}


def _names(union: AvroType) -> str:
    return ", ".join(map(str, union.inner))


def _is_same(writer: AvroType, reader: AvroType) -> bool:
    return (writer.kind, writer.name) == (reader.kind, reader.name)


def _check_match(writer: AvroType, reader: AvroType) -> None:
    """Raise MismatchError unless values of a type can be read as another one, what is inside
    them aside."""
    if writer is reader:
        return
    if writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS:
        raise MismatchError(f"the writer's {writer} is no {reader}")
    if writer.name and reader.name:
        names = {writer.name, writer.short_name}
        is_known = writer.short_name == reader.short_name or not names.isdisjoint(reader.aliases)
        if not is_known:
            raise MismatchError(f"the writer's {writer} is no {reader}, nor one of its aliases")
    if writer.size != reader.size:
        raise MismatchError(f"the writer's {writer} has {writer.size} bytes, not {reader.size}")
    if writer.logical and reader.logical and not _factor(writer.logical, reader.logical):
        here = (writer.logical, writer.scale), (reader.logical, reader.scale)
        if here[0] != here[1]:
            what = [f"{logical}({scale})" if scale else logical for logical, scale in here]
            raise MismatchError(f"the writer's {what[0]} is no {what[1]}")


def _is_apart(writer: AvroType, reader: AvroType) -> bool:
    """Whether a number is more than stored."""
    return reader.logical in _DAY or (bool(writer.logical) and writer.logical != reader.logical)


def _factor(writer: str, reader: str) -> int:
    """Return by what a time is multiplied to be in the reader's unit; negative for divided, 0 where
    the two are no times of one kind."""
    kind, _, unit = writer.rpartition("-")
    other, _, wanted = reader.rpartition("-")
    if kind != other or not {unit, wanted} <= PER_SECOND.keys():
        return 0
    here, there = PER_SECOND[unit], PER_SECOND[wanted]
    return there // here if there >= here else -(here // there)


def _symbol_numbers(writer: AvroType, reader: AvroType) -> list[int]:
    """Return the reader's number of each of the writer's symbols, -1 for none."""
    numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
    default = numbers.get(reader.default, -1)
    return [numbers.get(symbol, default) for symbol in writer.symbols]


# Defaults


def encode_json(kind: AvroType, value: Any) -> bytes:  # noqa: C901, PLR0911, PLR0912  # a way a type
    """Return a value as a schema has it for a default, JSON, in Avro's binary encoding.

    Raises:
        ValueError: It is none of the type.
    """
    match kind.kind, value:
        case "null", None:
            return b""
        case "boolean", bool():
            return bytes([value])
        case "int" | "long", int() if not isinstance(value, bool):
            return _number(value, 31 if kind.kind == "int" else 63)
        case "float" | "double", int() | float() if not isinstance(value, bool):
            return struct.pack("<f" if kind.kind == "float" else "<d", value)
        case "string", str():
            return _sized(value.encode())
        case "bytes", str():
            return _sized(value.encode("latin-1"))
        case "fixed", str() if len(value) == kind.size:
            return value.encode("latin-1")
        case "enum", str() if value in kind.symbols:
            return _number(kind.symbols.index(value), 31)
        case "array", list():
            return _blocks([encode_json(kind.inner[0], each) for each in value])
        case "map", dict():
            inner = kind.inner[0]
            return _blocks(
                [_sized(name.encode()) + encode_json(inner, each) for name, each in value.items()]
            )
        case "record", dict():
            return b"".join(
                encode_json(each.type, value.get(each.name, each.default)) for each in kind.fields
            )
        case "union", _:
            for number, branch in enumerate(kind.inner):
                try:
                    return _number(number, 31) + encode_json(branch, value)
                except ValueError:
                    continue
    raise ValueError(f"expected {kind}, found {json.dumps(value)[:80]}")


def _number(value: int, bits: int) -> bytes:
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"expected a number of {bits + 1} bits, found {value}")
    rest = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while rest > 0x7F:  # noqa: PLR2004  # seven bits a byte
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _sized(content: bytes) -> bytes:
    return _number(len(content), 63) + content


def _blocks(items: list[bytes]) -> bytes:
    return (_number(len(items), 63) + b"".join(items) if items else b"") + b"\0"
