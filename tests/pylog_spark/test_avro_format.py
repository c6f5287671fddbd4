"""Avro as JSON: what fastavro wrote comes out, whatever else is there ends in one error."""

import io
import json
import pickle
import random
import sys
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import fastavro
import pytest
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog_spark.record_text import AvroFormat, read_schema
from storage_core.errors import ConfigError
from storage_core.values.avro_values import AvroBytes, reader_of, whole_value

NODE: Final = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
EVERYTHING: Final = {
    "type": "record",
    "name": "Everything",
    "namespace": "org.example",
    "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "truth", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "real", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "again", "type": {"type": "array", "items": "Colour"}},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "long", "Four"]}},
        {"name": "choice", "type": ["string", {"type": "array", "items": "null"}, "boolean"]},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "Inner",
                "fields": [{"name": "colour", "type": "org.example.Colour"}],
            },
        },
    ],
}


def format_of(tmp_path: Path, schema: Any, *, has_registry_header: bool = False) -> AvroFormat:
    file = tmp_path / "schema.avsc"
    file.write_text(json.dumps(schema))
    text = read_schema("--value-schema", file)
    return AvroFormat(schema=text, has_registry_header=has_registry_header)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def number(value: int) -> bytes:
    """Return an integer as the specification says: zigzag, seven bits a byte."""
    return encoded("long", value)


def plain(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case list():
            return [plain(inner) for inner in value]
        case _:
            return value


def without_logical_types(schema: Any) -> Any:
    return json.loads(json.dumps(schema).replace("logicalType", "other"))


@pytest.mark.parametrize("index", range(20))
@pytest.mark.parametrize("schema", [EVERYTHING, NODE], ids=["everything", "recursive"])
def test_what_fastavro_writes_is_what_it_reads(tmp_path, schema, index: int):
    random.seed(index)
    value = {"n": index, "next": {"n": -index, "next": None}}
    if schema is EVERYTHING:
        value = generate_one(without_logical_types(schema))
    data = encoded(without_logical_types(schema), value)
    expected = fastavro.schemaless_reader(io.BytesIO(data), without_logical_types(schema))
    text = format_of(tmp_path, schema).to_json(data)
    assert json.loads(text) == plain(expected)
    assert text.isprintable()


def test_the_end_of_a_value_is_the_end_of_its_bytes(tmp_path):
    value = {
        "nothing": None,
        "truth": True,
        "small": 1,
        "large": 2,
        "real": 1.0,
        "double": 2.0,
        "raw": b"\xff",
        "text": "h\u00e9",
        "four": b"abcd",
        "colour": "RED",
        "again": ["BLUE"],
        "by_name": {"a": 7},
        "choice": "x",
        "inner": {"colour": "BLUE"},
    }
    data = encoded(without_logical_types(EVERYTHING), value)
    how = format_of(tmp_path, EVERYTHING)
    assert json.loads(how.to_json(data)) == plain(value)
    for size in range(len(data)):
        with pytest.raises(ValueError, match="position "):
            how.to_json(data[:size])
    with pytest.raises(ValueError, match=f"position {len(data)}: expected the end, found 1 more"):
        how.to_json(data + b"\0")


def test_blocks_that_say_their_size_are_arrays_too(tmp_path):
    how = format_of(tmp_path, {"type": "array", "items": "int"})
    blocks = number(-2) + number(2) + number(7) + number(8) + number(1) + number(9) + b"\0"
    assert how.to_json(blocks) == "[7,8,9]"


def test_numbers_that_json_has_not_are_names(tmp_path):
    how = format_of(tmp_path, {"type": "array", "items": "double"})
    values = [1.5, float("nan"), float("inf"), float("-inf")]
    data = encoded({"type": "array", "items": "double"}, values)
    assert how.to_json(data) == '[1.5,"NaN","Infinity","-Infinity"]'


def test_a_text_steers_no_terminal(tmp_path):
    text = format_of(tmp_path, "string").to_json(encoded("string", "\x1b[31m\u009b2J\u00e9"))
    assert text == '"\\u001b[31m\\u009b2J\\u00e9"'
    readable = encoded("string", "M\u00fcller")
    assert format_of(tmp_path, "string").to_json(readable) == '"M\u00fcller"'


HOSTILE: Final = {
    "a billion nulls": ({"type": "array", "items": "null"}, number(10**9) + b"\0", "too many"),
    "nulls in many blocks": (
        {"type": "array", "items": "null"},
        number(1000) * 3 + b"\0",
        "position 2: 1000 items are too many for 7 bytes",
    ),
    "items that are not there": (
        {"type": "array", "items": "long"},
        number(2**62),
        "items are too many",
    ),
    "the smallest number of items": (
        {"type": "array", "items": "long"},
        number(-(2**63)) + number(0),
        "items are too many",
    ),
    "a map of empty records": (
        {"type": "map", "values": {"type": "record", "name": "E", "fields": []}},
        number(2**40),
        "items are too many",
    ),
    "as deep as bytes go": (NODE, b"\0\x02" * 100_000, "nested more than 64 levels deep"),
    "in itself without end": (
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": "N"}]},
        b"",
        "nested more than 64 levels deep",
    ),
    "an index above a union": (["null", "string"], number(2), "expected 0 to 1 of a union"),
    "an index below a union": (["null", "string"], number(-1), "found -1"),
    "an index below an enum": (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        number(-1),
        "expected 0 to 1 of an enum, found -1",
    ),
    "an enum without symbols": ({"type": "enum", "name": "E", "symbols": []}, b"\0", "enum"),
    "bytes of a negative size": ("bytes", number(-5) + b"abcdefgh", "expected -5 bytes"),
    "a size beyond the end": ("string", number(2**62) + b"abc", "3 are left"),
    "a number without end": ("long", b"\xff" * 30 + b"\x01", "expected a number of 64 bits"),
    "a number of 65 bits": ("long", b"\xff" * 9 + b"\x02", "expected a number of 64 bits"),
    "an int of 33 bits": ("int", number(2**32), "expected a number of 32 bits"),
    "a boolean that is neither": ("boolean", b"\x02", "expected 0 or 1, found 2"),
    "no utf-8": ("string", number(2) + b"\xff\xfe", "position 0: expected UTF-8"),
    "bytes behind the end": ("int", b"\x02zzz", "position 1: expected the end, found 3 more"),
    "nothing": ("int", b"", "position 0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_are_no_value_end_in_one_error(tmp_path, name: str):
    schema, data, text = HOSTILE[name]
    with pytest.raises(ValueError, match="position ") as refused:
        format_of(tmp_path, schema).to_json(data)
    assert text in str(refused.value)


def test_few_items_without_bytes_are_fine(tmp_path):
    how = format_of(tmp_path, {"type": "array", "items": "null"})
    assert json.loads(how.to_json(number(1000) + b"\0")) == [None] * 1000


SCHEMAS: Final = [EVERYTHING, NODE, {"type": "array", "items": {"type": "map", "values": NODE}}]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), which=st.sampled_from(range(len(SCHEMAS))))
def test_any_bytes_are_json_or_a_value_error(data: bytes, which: int):
    how = AvroFormat(schema=json.dumps(fastavro.parse_schema(SCHEMAS[which])))
    try:
        text = how.to_json(data)
    except ValueError:
        return
    json.loads(text)


def test_a_value_behind_a_registrys_header_names_the_other_format(tmp_path):
    how = format_of(tmp_path, "string")
    with pytest.raises(ValueError, match="avro-registry reads it"):
        how.to_json(b"\x00\x00\x00\x00\x07\x04ab")
    with pytest.raises(ValueError, match="expected the end") as other:
        how.to_json(b"\x04ab\x00\x00\x00\x00\x00")
    assert "registry" not in str(other.value)


def test_the_header_of_a_registry_is_passed_over(tmp_path):
    how = format_of(tmp_path, "string", has_registry_header=True)
    value = encoded("string", "x")
    assert how.to_json(b"\0\0\0\0\x2a" + value) == '"x"'
    with pytest.raises(ValueError, match="expected 0, as a registry has it, found 1"):
        how.to_json(b"\1\0\0\0\x2a" + value)
    with pytest.raises(ValueError, match="position 0: expected 5 bytes, 2 are left"):
        how.to_json(value)
    assert (str(how), str(format_of(tmp_path, "string"))) == ("avro-registry", "avro")


def test_a_format_travels_to_tasks(tmp_path):
    how = pickle.loads(pickle.dumps(format_of(tmp_path, NODE)))
    data = encoded(NODE, {"n": 1, "next": None})
    assert how.to_json(data) == '{"n":1,"next":null}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "[]",
        "null",
        '"nothing"',
        '{"type":"record"}',
        '{"type":"array"}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":"fixed","name":"F","size":"1"}',
        '{"type":"enum","name":"E","symbols":"AB"}',
        '{"type":"record","name":"r","fields":7}',
        "[" * 100_000,
        '{"type":"array","items":' * 100 + '"int"' + "}" * 100,
    ],
    ids=lambda text: text[:40] or "nothing",
)
def test_what_is_no_schema_is_named(tmp_path, text: str):
    file = tmp_path / "schema.avsc"
    file.write_text(text)
    with pytest.raises(ConfigError, match="expected an Avro schema") as refused:
        read_schema("--key-schema", file)
    assert (refused.value.key, refused.value.value) == ("--key-schema", file)


def test_a_schema_that_is_not_there_and_a_package_that_is_not(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="No such file"):
        read_schema("--key-schema", tmp_path / "nowhere.avsc")
    monkeypatch.setitem(sys.modules, "fastavro.schema", None)
    file = tmp_path / "schema.avsc"
    file.write_text('"int"')
    with pytest.raises(ConfigError, match=r"pip install 'pylog-spark\[avro\]'"):
        read_schema("--key-schema", file)


def logical(kind: Any, data: bytes) -> Any:
    schema = json.dumps(fastavro.parse_schema(kind))
    return whole_value(reader_of(schema, has_logical=True), AvroBytes(data))


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
FIXED = {"type": "fixed", "name": "f"}


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (DECIMAL, Decimal("12.30"), "12.30"),
        (DECIMAL, Decimal("-0.05"), "-0.05"),
        (DECIMAL, Decimal("9999.99"), "9999.99"),
        ({**DECIMAL, "scale": 0}, Decimal(-7), "-7"),
        ({**DECIMAL, **FIXED, "size": 3}, Decimal("1.00"), "1.00"),
        ({**DECIMAL, "precision": 77}, Decimal("0.65"), "A"),
        ({"type": "int", "logicalType": "date"}, date(1, 1, 1), "0001-01-01"),
        ({"type": "int", "logicalType": "time-millis"}, time(23, 59, 59, 7000), "23:59:59.007"),
        ({"type": "long", "logicalType": "time-micros"}, time(0, 0, 1), "00:00:01.000000"),
        ({"type": "long", "logicalType": "timestamp-millis"}, -1, "1969-12-31T23:59:59.999Z"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 0, "1970-01-01T00:00:00.000000Z"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1, "1970-01-01T00:00:00.000000001Z"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1, "1970-01-01T00:00:00.001"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**62, 2**62),
        ({"type": "int", "logicalType": "date"}, -(2**31), -(2**31)),
        ({"type": "int", "logicalType": "timestamp-millis"}, 5, 5),
        ({"type": "string", "logicalType": "uuid"}, str(UUID(int=1)), str(UUID(int=1))),
        ({**FIXED, "size": 16, "logicalType": "uuid"}, UUID(int=7).bytes, str(UUID(int=7))),
    ],
)
def test_logical_types_become_text(schema, value, text):
    out = io.BytesIO()
    plain = isinstance(value, int | bytes)
    written = {key: each for key, each in schema.items() if key != "logicalType" or not plain}
    fastavro.schemaless_writer(out, fastavro.parse_schema(written), value)
    assert logical(schema, out.getvalue()) == text


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        (DECIMAL, b"\x06\x0f\x42\x40", "position 0: expected a decimal of the schema's precision"),
        (DECIMAL, b"\xa0\x8d\x06" + b"\x7f" * 50_000, "found more digits"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "expected a time of day"),
    ],
)
def test_what_no_logical_type_can_be_is_refused(schema, data, reason):
    with pytest.raises(ValueError, match=reason):
        logical(schema, data)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "record", "name": "R", "fields": [{"name": "n" * 1_000_000, "type": "null"}]},
        {"type": "enum", "name": "E", "symbols": ["s" * 1_000_000]},
    ],
    ids=["field", "symbol"],
)
def test_long_names_of_a_schema_multiply_only_so_far(item):
    count, size = (1000, 0) if item["type"] == "record" else (100, 100)
    many = b"\xd0\x0f" if count == 1000 else b"\xc8\x01"
    schema = json.dumps(fastavro.parse_schema({"type": "array", "items": item}))
    with pytest.raises(ValueError, match="names of the schema are too long for so many items"):
        whole_value(reader_of(schema), AvroBytes(many + bytes(size) + b"\0"))
    few = whole_value(reader_of(schema), AvroBytes(b"\x0a" + bytes(5 if size else 0) + b"\0"))
    assert len(few) == 5
