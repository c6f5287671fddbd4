"""Keys and values as columns, each by the schema whose number stands before it.

One schema reads all of a topic and says its columns before anything is read: the newest one of the
topic's subject, or one that the reader names. Clients of a registry write the number of the
writer's schema before the value, behind a zero, or its GUID into a header of the record, behind a
one (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.errors import ConfigError
from storage_core.values.decoder import MAX_REASONS, Decoder
from storage_core.values.json_columns import json_decoder
from storage_core.values.registry import (
    AVRO,
    GUID_BYTES,
    JSON,
    OWN_FILE,
    PREFIX_BYTES,
    PROTOBUF,
    RegisteredSchema,
    SchemaRegistry,
    id_header,
)

OnError = Literal["fail", "null", "raw"]
ON_ERROR: Final[tuple[OnError, ...]] = ("fail", "null", "raw")
REGISTRY: Final = "registry"  # the form of keys or values that this is
RAW_SUFFIX: Final = "_raw"
_MAX_VALUE_BYTES: Final = 2**31 - 1  # of Kafka; Arrow fails without an end
_BYTES: Final = pa.large_binary()
# In place of a schema's number.
_NULL: Final = -1
_UNREADABLE: Final = -2
# Columns that say which record it is, and perhaps its schema.
_BESIDE: Final = ("topic", "partition", "offset", "headers")


class OptionNames(NamedTuple):
    """What whoever reads calls the options, for messages."""

    key: str = "key_format"
    value: str = "value_format"
    reader_schema: str = "reader_schema"
    reader_message: str = "reader_message"
    on_error: str = "on_error"
    schemas: str = "schemas"


DEFAULT_NAMES: Final = OptionNames()


@dataclass(slots=True)
class Misfits:
    """Values that do not fit their schemas, as a reading counts them."""

    count: int = 0
    first: list[str] = field(default_factory=list)  # of at most MAX_REASONS, for a person

    def add(self, count: int, first: Iterable[str]) -> None:
        """Count some more."""
        self.count += count
        self.first = [*self.first, *first][:MAX_REASONS]

    def __str__(self) -> str:
        """Say how many they are, and which are the first."""
        more = "; ..." if self.count > len(self.first) else ""
        are = "value does not fit its" if self.count == 1 else "values do not fit their"
        return f"{self.count:,} {are} schema: {'; '.join(self.first)}{more}"


class _Typed(NamedTuple):
    column: pa.Array
    failed: NDArray[np.int64]  # rows that do not fit, ascending
    reasons: dict[int, str]  # by row, at least of the first MAX_REASONS


class _Split(NamedTuple):
    """Values without what names their schemas."""

    numbers: NDArray[np.int64]  # of the schemas; _NULL for null, _UNREADABLE for none
    bodies: pa.Array
    reasons: dict[int, str]  # by row: why the first ones have none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegistryColumn:
    """Makes a column of keys or values; a value that pickles."""

    name: str  # key or value
    registry: SchemaRegistry
    schemas: Mapping[str, RegisteredSchema]  # by topic, all of one type: what reads its values

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        schema = next(iter(self.schemas.values()))
        return plain_names(_decoder(schema, schema).type)

    def decode(self, batch: pa.RecordBatch) -> _Typed:
        """Return the column of some records of one topic."""
        values = batch.column(self.name).cast(_BYTES)
        topic = batch.column("topic")[0].as_py()
        if topic not in self.schemas:
            reasons = dict.fromkeys(range(MAX_REASONS), f"no schema was chosen for {topic}")
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            return _Typed(pa.nulls(len(values), self.type), rows, reasons)
        reader = self.schemas[topic]
        kind = _decoder(reader, reader).type
        split = self._split(values, batch.column("headers"))
        parts: list[pa.Array] = []
        places: list[NDArray[np.int64]] = []
        failed = [np.flatnonzero(split.numbers == _UNREADABLE)]
        reasons = dict(split.reasons)
        for number in np.unique(split.numbers).tolist():
            rows = np.flatnonzero(split.numbers == number)
            places.append(rows)
            try:
                decoder = None if number < 0 else self._decoder(number, reader)
            except ValueError as error:
                decoder = None
                failed.append(rows)
                reasons |= dict.fromkeys(rows[:MAX_REASONS].tolist(), str(error))
            if decoder is None:
                parts.append(pa.nulls(len(rows), kind))
                continue
            some = split.bodies
            decoded = decoder.decode(some if len(rows) == len(some) else some.take(pa.array(rows)))
            parts.append(decoded.column)
            failed.append(rows[decoded.failed])
            told = zip(failed[-1].tolist(), decoded.reasons, strict=False)
            reasons |= {row: f"by schema {number}: {reason}" for row, reason in told}
        column = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate(places), kind="stable")
            column = pa.concat_arrays(parts).take(pa.array(order))
        return _Typed(_renamed(column, self.type), np.sort(np.concatenate(failed)), reasons)

    def _decoder(self, number: int, reader: RegisteredSchema) -> Decoder:
        writer = self.registry.schema(number)
        try:
            return _decoder(writer, reader)
        except ValueError as error:
            raise ValueError(f"by schema {number}: {error}") from error

    def _split(self, values: pa.Array, headers: pa.Array) -> _Split:
        numbers = _numbers(values)
        bodies = pc.binary_slice(values, PREFIX_BYTES, _MAX_VALUE_BYTES)
        rows, ids = _ids_of_headers(headers, id_header(self.name))
        reasons: dict[int, str] = {}
        if len(rows):
            codes = ids.indices.to_numpy()
            found = [self._read_id(each) for each in ids.dictionary.to_pylist()]
            is_null = numbers[rows] == _NULL
            numbers[rows] = np.array([number for number, _, _ in found])[codes]
            numbers[rows[is_null]] = _NULL
            before = pa.array([each for _, each, _ in found], _BYTES).take(ids.indices)
            whole = pc.binary_join_element_wise(before, values.take(pa.array(rows)), _EMPTY)
            mask = np.zeros(len(values), np.bool_)
            mask[rows] = True
            bodies = pc.replace_with_mask(bodies, pa.array(mask), whole)
            unread = numbers[rows] == _UNREADABLE
            for row, code in list(zip(rows[unread], codes[unread], strict=True))[:MAX_REASONS]:
                reasons[int(row)] = found[code][2]
        for row in np.flatnonzero(numbers == _UNREADABLE)[:MAX_REASONS].tolist():
            reasons.setdefault(row, _why_unreadable(values[row].as_py(), headers[row].as_py()))
        return _Split(numbers, bodies, reasons)

    def _read_id(self, written: bytes | None) -> tuple[int, bytes, str]:
        """Return the schema's number that a header names, what belongs before the value, and what
        is wrong."""
        try:
            number, before = self.registry.read_id(id_header(self.name), written or b"")
        except ValueError as error:
            return _UNREADABLE, b"", str(error)
        return number, before, ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegistryColumns:
    """Keys, values or both as columns by their schemas; a value that pickles."""

    columns: Mapping[str, RegistryColumn]  # by name: key, value
    on_error: OnError = "fail"
    options: OptionNames = DEFAULT_NAMES

    def schema(self, records: pa.Schema) -> pa.Schema:
        """Return the columns that become of records' columns."""
        fields: list[pa.Field] = []
        for each in records:
            column = self.columns.get(each.name)
            fields.append(each if column is None else pa.field(each.name, column.type))
            if column is not None and self.on_error == "raw":
                fields.append(pa.field(each.name + RAW_SUFFIX, each.type))
        return pa.schema(fields)

    def sources(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of records that some columns are made of."""
        made = {f"{name}{RAW_SUFFIX}": name for name in self.columns}
        return tuple(dict.fromkeys(made.get(name, name) for name in names))

    def needed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those, and the columns that say which records they are of."""
        sources = self.sources(names)
        beside = () if self.columns.keys().isdisjoint(sources) else _BESIDE
        return tuple(dict.fromkeys([*sources, *beside]))

    def decode(self, batch: pa.RecordBatch, schema: pa.Schema, misfits: Misfits) -> pa.RecordBatch:
        """Return a batch with typed columns.

        Args:
            batch: Records of one topic, with the columns ``needed``.
            schema: The columns that are wanted, as ``schema`` has them.
            misfits: Counts values that do not fit, where these are no error.

        Raises:
            ConfigError: A value does not fit, and that is an error.
        """
        made: dict[str, pa.Array] = {}
        names = {name.removesuffix(RAW_SUFFIX) for name in schema.names}
        for name, column in self.columns.items():
            if name not in names:
                continue
            typed = column.decode(batch)
            made[name] = typed.column
            first = [
                _record_text(batch, name, row, typed.reasons[row])
                for row in typed.failed[:MAX_REASONS].tolist()
            ]
            if first and self.on_error == "fail":
                reason = f"{first[0]}; {self.options.on_error} null or raw reads on"
                raise ConfigError(getattr(self.options, name), REGISTRY, reason)
            misfits.add(len(typed.failed), first)
            if self.on_error == "raw":
                fits = np.ones(batch.num_rows, np.bool_)
                fits[typed.failed] = False
                values = batch.column(name)
                nothing = pa.scalar(None, values.type)
                made[name + RAW_SUFFIX] = pc.if_else(pa.array(fits), nothing, values)
        arrays = [
            made[each.name] if each.name in made else batch.column(each.name) for each in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


_EMPTY: Final = pa.scalar(b"", _BYTES)


def choose_columns(
    names: Iterable[str],
    topics: Iterable[str],
    registry: SchemaRegistry,
    *,
    reader: RegisteredSchema | int | None = None,
    message: str | None = None,
    on_error: OnError = "fail",
    options: OptionNames = DEFAULT_NAMES,
) -> RegistryColumns:
    """Return what makes columns of some topics' keys and values.

    Args:
        names: ``key``, ``value`` or both.
        topics: At least one.
        reader: The schema that reads values, or its number; that of keys if only these are read.
            None for the newest one of each topic's subject.
        message: Which message of that schema; the first one of a Protobuf schema without.

    Raises:
        ConfigError: A topic has no subject, a schema or message is none or not there, or topics
            differ.
    """
    names, topics = list(names), list(topics)
    columns = {}
    for name in names:
        is_read_so = name == "value" or len(names) == 1
        own = reader if is_read_so else None
        schemas = {}
        for topic in topics:
            try:
                schemas[topic], place = _reader_of(f"{topic}-{name}", registry, own)
                if is_read_so and message is not None:
                    schemas[topic] = _with_message(schemas[topic], message)
                kind = _type_of(schemas[topic], place, getattr(options, name))
            except ValueError as error:
                number = own if isinstance(own, int) else None
                reason = f"the {name} of {topic}: {error}"
                if is_read_so and message is not None:
                    raise ConfigError(options.reader_message, message, reason) from error
                raise ConfigError(options.reader_schema, number, reason) from error
            first = schemas[topics[0]]
            if _decoder(first, first).type != kind:
                reason = f"{topics[0]} and {topic} have other columns: read one at a time"
                raise ConfigError(getattr(options, name), REGISTRY, reason)
        columns[name] = RegistryColumn(name=name, registry=registry, schemas=schemas)
    return RegistryColumns(columns=columns, on_error=on_error, options=options)


def _reader_of(
    subject: str, registry: SchemaRegistry, reader: RegisteredSchema | int | None
) -> tuple[RegisteredSchema, str]:
    """Return the schema that reads the values of a subject, and what to call it."""
    if isinstance(reader, RegisteredSchema):
        return reader, "the schema in that file: "
    if reader is not None:
        return registry.schema(reader), f"schema {reader}: "
    version = registry.newest(subject)
    if version is None and len(registry.versions) == 1 and not registry.subjects:
        (version,) = registry.versions
    if version is None:
        there = registry.subjects_text()
        subjects = f"there are {there}" if there else "there are none"
        raise ValueError(
            f"no subject {subject} in {registry.place} ({subjects}): read the topic alone, with a "
            "schema that you choose by its number, or leave it out"
        )
    where = f"schema {version.number}, version {version.version} of {subject}: "
    return registry.with_references(version), where if version.subject else ""


def _type_of(schema: RegisteredSchema, place: str, option: str) -> pa.DataType:
    """Return the type of the columns that a schema makes."""
    try:
        return _decoder(schema, schema).type
    except ValueError as error:
        raise ValueError(
            f"{place}{error}; another {option} than {REGISTRY} leaves it as it is, and "
            "`pylog cat` may have it as JSON"
        ) from error


def _with_message(schema: RegisteredSchema, message: str) -> RegisteredSchema:
    if schema.kind != PROTOBUF:
        raise ValueError(f"its schema is of the kind {schema.kind}: {PROTOBUF} alone has messages")
    return replace(schema, message=message)


@lru_cache(maxsize=256)
def _decoder(writer: RegisteredSchema, reader: RegisteredSchema) -> Decoder:
    """Return what decodes values of one schema as another says.

    Raises:
        ValueError: They are of two kinds, or one is no schema, or they contradict each other.
    """
    if writer.kind != reader.kind:
        raise ValueError(f"is of the kind {writer.kind}, where {reader.kind} is read")
    if reader.kind == JSON:
        return json_decoder(reader.text, dict(reader.references))
    if reader.kind == AVRO:
        return _avro_decoder(writer.texts, reader.texts)
    if reader.kind == PROTOBUF:
        return _protobuf_decoder(writer, reader)
    raise ValueError(f"is of the kind {reader.kind}, which is not decoded")


def _avro_decoder(writer: tuple[str, ...], reader: tuple[str, ...]) -> Decoder:
    from storage_core.values.avro_columns import avro_decoder  # noqa: PLC0415  # kernels

    return avro_decoder(writer, reader)


def _protobuf_decoder(writer: RegisteredSchema, reader: RegisteredSchema) -> Decoder:
    from storage_core.values.protobuf_columns import protobuf_decoder  # noqa: PLC0415  # kernels

    other = None if writer.files == reader.files else writer.files
    return protobuf_decoder(reader.files, OWN_FILE, reader.message, writer=other)


def _numbers(values: pa.Array) -> NDArray[np.int64]:
    """Return the schemas' numbers that stand before values."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64, len(values) + 1, values.offset * 8)
    numbers = np.full(len(values), _UNREADABLE)
    if data is not None:
        octets = np.frombuffer(data, np.uint8)
        (rows,) = np.nonzero(np.diff(ends) >= PREFIX_BYTES)
        starts = ends[rows]
        number = np.zeros(len(rows), np.int64)
        for place in range(1, PREFIX_BYTES):
            number = (number << 8) | octets[starts + place]
        numbers[rows] = np.where(octets[starts] == 0, number, _UNREADABLE)
    numbers[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return numbers


def _ids_of_headers(headers: pa.Array, name: str) -> tuple[NDArray[np.int64], Any]:
    """Return the rows that have a header of a name, and the first value of each, as a
    dictionary."""
    nothing = np.zeros(0, np.int64), None
    if headers.null_count == len(headers):
        return nothing
    entries = headers.flatten()
    found = pc.fill_null(pc.equal(entries.field("key"), name), False)  # noqa: FBT003
    (places,) = np.nonzero(found.to_numpy(zero_copy_only=False))
    if not len(places):
        return nothing
    parents = pc.list_parent_indices(headers).to_numpy()[places]
    rows, first = np.unique(parents, return_index=True)
    ids = entries.field("value").take(pa.array(places[first]))
    return rows.astype(np.int64), ids.dictionary_encode(null_encoding="encode")


def _why_unreadable(value: bytes, headers: Sequence[Mapping[str, Any]] | None) -> str:
    """Return why no schema is known of a value."""
    if any(str(each["key"]).startswith("apicurio.") for each in headers or ()):
        return "Apicurio's headers name its schema, which are not read"
    if len(value) < PREFIX_BYTES:
        return f"position 0: expected {PREFIX_BYTES} bytes, {len(value)} are left"
    reason = f"position 0: expected 0, as a registry has it, found {value[0]}"
    if value[0] == _GLUE and value[1] in {0, 5} and len(value) > GUID_BYTES:
        reason += "; it looks as AWS Glue's serializers write it, which is not read"
    return reason


_GLUE: Final = 3


def _record_text(batch: pa.RecordBatch, name: str, row: int, reason: str) -> str:
    topic, partition, offset = (batch.column(each)[row] for each in _BESIDE[:3])
    return f"the {name} at offset {offset} of {topic}-{partition}: {reason}"


def plain_names(kind: pa.DataType) -> pa.DataType:
    """Return a type whose fields have names that databases tell apart: none is empty, and none
    differs from one before it in the case of letters alone. Such a one gets a number."""
    if pa.types.is_struct(kind):
        taken: set[str] = set()
        fields = []
        for each in kind:
            number, name = 1, each.name or "_"
            while name.lower() in taken:
                number += 1
                name = f"{each.name or '_'}_{number}"
            taken.add(name.lower())
            fields.append(each.with_name(name).with_type(plain_names(each.type)))
        return pa.struct(fields)
    if pa.types.is_map(kind):
        items = kind.item_field.with_type(plain_names(kind.item_type))
        return pa.map_(kind.key_field, items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(plain_names(kind.value_type)))
    return kind


def _renamed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with other names of its fields."""
    return column if column.type == kind else pa.array(_Renamed(column, kind))


@dataclass(slots=True)
class _Renamed:
    """A column as Arrow's C interface hands it on, with another type."""

    column: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self.column.__arrow_c_array__(requested_schema)
        return self.kind.__arrow_c_schema__(), array
