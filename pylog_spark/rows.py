"""Dataclasses as rows of tables: Arrow schemas, objects and rows. The dataclass defines all three.

A field is a column: its annotation says the type, ``column`` what it means. A field whose type is a
dataclass itself stands for the columns of that one, in its place; its comment is that of each of
them. All columns may be null to Arrow.
To Python those may be ``None`` that are null in a row without an error, too: whoever reads a row
asks for its error first.

Objects are made of rows that somebody works through one by one. Whole columns, of which no object
is ever made, stay in Arrow.
"""

import enum
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from datetime import datetime
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pyarrow as pa

from pylog_spark.text import valid_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

# Of a table that becomes objects: Python holds a row twice while it does.
_ROWS_AT_ONCE: Final = 1000

Text = str | None
Number = int | None
Int32 = Annotated[int, pa.int32()] | None
Real = float | None
Truth = bool | None
Binary = bytes | None
Time = datetime | None
Texts = tuple[str, ...] | None
Numbers = tuple[int, ...] | None

_ARROW_TYPES: Final[Mapping[type, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}
_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.float32(): "FLOAT",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
}
_ROWS_IN_A_BATCH: Final = 256
# Fewer rows, where their bytes are as many: a task holds no more of what it hands on.
_BATCH_BYTES: Final = 4 * 1024 * 1024


def column(comment: str, default: Any = None) -> Any:
    """Return a row's nullable field, by default null, with its comment."""
    return field(default=default, metadata={"comment": comment})


def schema_of(kind: Any) -> pa.Schema:
    """Return a dataclass's columns, each with its meaning as comment."""
    return pa.schema(list(_columns(kind)))


def table_of(kind: type[T], values: Iterable[T]) -> pa.Table:
    """Return objects of a dataclass as a table."""
    return pa.Table.from_batches(batches_of(kind, values), schema=schema_of(kind))


def batches_of(kind: type[T], values: Iterable[T]) -> Iterator[pa.RecordBatch]:
    """Yield objects of a dataclass as batches of rows."""
    return rows_to_batches(schema_of(kind), map(row_writer(kind), values))


def read_rows(kind: type[T], table: pa.Table) -> Iterator[T]:
    """Yield the rows of a table as objects of a dataclass.

    Args:
        kind: The dataclass; it need not have all columns of the table.
    """
    reader = row_reader(kind)
    for batch in table.select(schema_of(kind).names).to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from map(reader, batch.to_pylist())


def row_writer(kind: type[T]) -> Callable[[T], dict[str, Any]]:
    """Return the function to make rows of objects, a dictionary each."""
    return _writer(kind)


def row_reader(kind: type[T]) -> Callable[[Mapping[str, Any]], T]:
    """Return the function to read rows as objects; extra columns are allowed."""
    return _reader(kind)


def _make_writer(kind: Any) -> Callable[[Any], dict[str, Any]]:
    paths = _paths(kind)
    names = [path.rpartition(".")[2] for path in paths]
    if len(paths) == 1:
        (name,), value_of = names, attrgetter(*paths)
        return lambda value: {name: value_of(value)}
    values_of = attrgetter(*paths)
    return lambda value: dict(zip(names, values_of(value), strict=True))


def _make_reader(kind: Any) -> Callable[[Mapping[str, Any]], Any]:
    makers: list[tuple[str, Callable[[Any], Any]]] = []
    plain, nested = [], []
    for name, hint in get_type_hints(kind).items():
        inner = _without_none(hint)
        if isinstance(inner, type) and is_dataclass(inner):
            nested.append((name, _reader(inner)))
            continue
        plain.append(name)
        if get_origin(inner) is tuple:
            makers.append((name, tuple))
        elif issubclass(inner, enum.Enum):
            makers.append((name, inner))

    def read(row: Mapping[str, Any]) -> Any:
        values = {name: row[name] for name in plain}
        for name, make in makers:
            if values[name] is not None:
                values[name] = make(values[name])
        values |= {name: read_inner(row) for name, read_inner in nested}
        return kind(**values)

    return read


# A task asks for the same one with each of its messages.
_writer: Final[Callable[[Any], Callable[[Any], dict[str, Any]]]] = functools.cache(_make_writer)
_reader: Final[Callable[[Any], Callable[[Mapping[str, Any]], Any]]] = functools.cache(_make_reader)


def _columns(kind: Any) -> Iterator[pa.Field]:
    """Yield the columns of a dataclass, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        plain = _without_none(hints[each.name])
        comment = {"comment": each.metadata.get("comment", "")}
        if not is_dataclass(plain):
            yield pa.field(each.name, _arrow_type(plain), metadata=comment)
        elif each.metadata:
            yield from (inner.with_metadata(comment) for inner in schema_of(plain))
        else:
            yield from schema_of(plain)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in {types.UnionType, Union}:
        return hint
    (plain,) = (each for each in get_args(hint) if each is not types.NoneType)
    return plain


def _arrow_type(kind: Any) -> pa.DataType:
    if get_origin(kind) is Annotated:
        base, note = get_args(kind)
        return note if isinstance(note, pa.DataType) else _arrow_type(base)
    if get_origin(kind) is tuple:
        return pa.list_(_arrow_type(_without_none(get_args(kind)[0])))
    base = str if isinstance(kind, type) and issubclass(kind, enum.StrEnum) else kind
    if base not in _ARROW_TYPES:
        raise TypeError(f"no Arrow type for {kind}")
    return _ARROW_TYPES[base]


def _paths(kind: Any) -> tuple[str, ...]:
    """Return the attribute path to each column's value."""
    hints = get_type_hints(kind)
    paths: list[str] = []
    for each in fields(kind):
        inner = hints[each.name]
        nested = _paths(inner) if is_dataclass(inner) else ()
        paths += [f"{each.name}.{path}" for path in nested] or [each.name]
    return tuple(paths)


def rows_to_batch(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as one record batch; missing columns are null. Texts that are no UTF-8, such
    as foreign file names, are escaped."""
    listed = list(rows)
    unknown = set().union(*listed) - set(schema.names)
    if unknown:
        raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
    try:
        return pa.RecordBatch.from_pylist(listed, schema=schema)
    except UnicodeEncodeError:
        return pa.RecordBatch.from_pylist([valid_texts(row) for row in listed], schema=schema)


def rows_to_batches(
    schema: pa.Schema, rows: Iterable[Mapping[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of a few hundred, or a few megabytes. A batch for each row would
    cost Spark more than the row."""
    chunk: list[Mapping[str, Any]] = []
    size = 0
    large = [field.name for field in schema if pa.types.is_binary(field.type)]
    for row in rows:
        chunk.append(row)
        for name in large:
            size += len(row.get(name) or b"")
        if len(chunk) == _ROWS_IN_A_BATCH or size >= _BATCH_BYTES:
            yield rows_to_batch(schema, chunk)
            chunk, size = [], 0
    if chunk:
        yield rows_to_batch(schema, chunk)


def spark_frame(spark: "SparkSession", table: pa.Table) -> "DataFrame":
    """Return one of our tables as a DataFrame."""
    return spark.createDataFrame(table.replace_schema_metadata(), spark_ddl(table.schema))


def spark_ddl(schema: pa.Schema, *, comments: bool = False) -> str:
    """Return a table's columns as Spark's DDL text, all of them nullable.

    Args:
        schema: Of one of our tables.
        comments: Whether each column carries its comment, as a table that people open should.
    """
    return ", ".join(_ddl_column(field, comments=comments) for field in schema)


def _ddl_column(field: pa.Field, *, comments: bool) -> str:
    comment = (field.metadata or {}).get(b"comment", b"").decode()
    tail = f" COMMENT '{comment.replace(chr(39), chr(92) + chr(39))}'" if comments else ""
    return f"{_quoted(field.name)} {_spark_type(field.type)}{tail}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _spark_type(arrow_type: pa.DataType) -> str:
    if pa.types.is_list(arrow_type):
        return f"ARRAY<{_spark_type(arrow_type.value_type)}>"
    if pa.types.is_struct(arrow_type):
        inside = ", ".join(f"{_quoted(each.name)}: {_spark_type(each.type)}" for each in arrow_type)
        return f"STRUCT<{inside}>"
    if pa.types.is_map(arrow_type):
        return f"MAP<{_spark_type(arrow_type.key_type)}, {_spark_type(arrow_type.item_type)}>"
    if pa.types.is_decimal128(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    if arrow_type not in _SPARK_TYPES:
        raise TypeError(f"no Spark type for {arrow_type}")
    return _SPARK_TYPES[arrow_type]
