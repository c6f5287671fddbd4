"""Columns of JSON schemas: types, values, and those that do not fit."""

import json
from typing import Any

import pyarrow as pa
import pytest

from storage_core.values.decoder import MAX_REASONS
from storage_core.values.json_columns import json_decoder

STRING = {"type": "string"}
WHOLE = {"type": "integer"}
ORDER = {
    "type": "object",
    "properties": {
        "id": WHOLE,
        "customer": {"type": ["null", "string"]},
        "total": {"type": "number"},
        "paid": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": STRING, "count": WHOLE}}},
}
LINE = pa.struct([("sku", pa.string()), ("count", pa.int64())])


def column_of(schema: Any, *values: bytes | None, **references: Any) -> tuple[list[Any], list[int]]:
    texts = {name: json.dumps(text) for name, text in references.items()}
    decoded = json_decoder(json.dumps(schema), texts).decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    assert len(decoded.reasons) == min(len(decoded.failed), MAX_REASONS)
    return decoded.column.to_pylist(), decoded.failed.tolist()


def test_a_schema_becomes_a_struct_of_its_properties():
    assert json_decoder(json.dumps(ORDER)).type == pa.struct(
        [
            ("id", pa.int64()),
            ("customer", pa.string()),
            ("total", pa.float64()),
            ("paid", pa.bool_()),
            ("lines", pa.list_(LINE)),
        ]
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (True, pa.string()),
        ({}, pa.string()),
        ({"type": ["string", "integer"]}, pa.string()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 7}, pa.int64()),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": [STRING]}, pa.string()),
        ({"type": "object", "additionalProperties": STRING}, pa.string()),
        ({"type": "object", "properties": {}}, pa.string()),
        ({"properties": {"a": WHOLE}}, pa.struct([("a", pa.int64())])),
        ({"oneOf": [STRING, WHOLE]}, pa.string()),
        ({"allOf": [WHOLE]}, pa.int64()),
        ({"$ref": "#/nowhere"}, pa.string()),
        ({"$ref": "#anchor"}, pa.string()),
        ({"$ref": 7}, pa.string()),
        ({"$ref": "#"}, pa.string()),
        ({"$ref": "other#/$defs/a~1b/0", "x": 1}, pa.int64()),
        ({"type": 7}, pa.string()),
        ({"type": "string", "format": "date-time"}, pa.string()),
    ],
)
def test_what_arrow_has_no_exact_type_for_is_text(schema, kind):
    other = json.dumps({"$id": "other", "$defs": {"a/b": [WHOLE]}})
    assert json_decoder(json.dumps(schema), {"https://registry/1": other}).type == kind


def test_a_schema_within_itself_is_text_from_there_on():
    tree = {"type": "object", "properties": {"n": WHOLE, "left": {"$ref": "#"}}}
    assert json_decoder(json.dumps(tree)).type == pa.struct(
        [("n", pa.int64()), ("left", pa.string())]
    )
    values, failed = column_of(tree, b'{"n": 1, "left": {"n": 2,  "left": null}}', b'{"n": 2}')
    assert values == [{"n": 1, "left": '{"n":2,"left":null}'}, {"n": 2, "left": None}]
    assert not failed


def test_references_that_multiply_are_refused():
    defs = {
        f"d{n}": {"properties": {each: {"$ref": f"#/$defs/d{n + 1}"} for each in "abcd"}}
        for n in range(40)
    }
    with pytest.raises(ValueError, match="more than 10000 fields"):
        json_decoder(json.dumps({"$ref": "#/$defs/d0", "$defs": defs}))
    with pytest.raises(ValueError, match="nested more than 64"):
        json_decoder('{"items":' * 70 + "{}" + "}" * 70)
    with pytest.raises(ValueError, match="expected a JSON schema, found array"):
        json_decoder("[]")


@pytest.mark.parametrize("with_text", [False, True], ids=["by Arrow", "in Python"])
def test_values_become_columns(with_text):
    schema = json.loads(json.dumps(ORDER))
    if with_text:
        schema["properties"]["more"] = {}
    full = {"id": -(2**63), "customer": "Ada \u00e9", "total": 1.5, "paid": True}
    full |= {"lines": [{"sku": "a\n", "count": 1}, None]}
    part = {"id": 7, "unknown": [1, {"a": 2}], "total": 3}
    values, failed = column_of(
        schema,
        json.dumps(full, indent=2).encode(),
        None,
        b"null",
        json.dumps(part).encode(),
        b"{}",
    )
    nothing = dict.fromkeys(ORDER["properties"])
    expected = [full, None, None, nothing | {"id": 7, "total": 3.0}, nothing]
    if with_text:
        expected = [each and each | {"more": None} for each in expected]
    assert values == expected
    assert not failed


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"id": 1}{"id": 2}', "Extra data"),
        (b'1}\n{"row":6,"value":2', "Extra data"),
        (b'{"id": 1}}\n{"row": 6, "value": {"id": 2}', "Extra data"),
        (b'"Ada"', '$: expected object, found string "Ada"'),
        (b'{"id": "1"}', '$.id: expected integer, found string "1"'),
        (b'{"id": 1.5}', "$.id: expected integer, found number 1.5"),
        (b'{"id": 9223372036854775808}', "$.id: expected integer of 64 bits"),
        (b'{"id": true}', "$.id: expected integer, found boolean"),
        (b'{"paid": 1}', "$.paid: expected boolean, found integer 1"),
        (b'{"total": "1"}', '$.total: expected number, found string "1"'),
        (b'{"lines": {}}', "$.lines: expected array, found object"),
        (b'{"lines": [{"sku": "a"}, {"sku": 2}]}', "$.lines[1].sku: expected string, found"),
        (b'{"customer": "\\ud800"}', "$.customer: expected text of Unicode"),
        (b'{"customer": "\xff"}', "can't decode byte 0xff"),
        (b'{"x": ' + b"[" * 100_000, "nested more than 64"),
        (b'{"id": 1' + b"0" * 500 + b"}", "digits"),
    ],
)
@pytest.mark.parametrize("count", [7, 1000])
def test_a_value_that_does_not_fit_fails_alone(value, reason, count):
    good = [b'{"id": %d}' % number for number in range(count)]
    values = [*good[:5], value, *good[6:]]
    decoded = json_decoder(json.dumps(ORDER)).decode(pa.array(values, pa.large_binary()))
    assert decoded.failed.tolist() == [5]
    assert reason in decoded.reasons[0]
    assert decoded.column[5].as_py() is None
    assert [row and row["id"] for row in decoded.column.to_pylist()] == [
        None if row == 5 else row for row in range(count)
    ]


def test_what_arrow_refuses_but_json_schema_takes_is_read_alone():
    values, failed = column_of(ORDER, b'{"id": 1.0}', b'{"id": 1e3, "id": 2}', b'{"id": -0}')
    assert [row["id"] for row in values] == [1, 2, 0]
    assert not failed


@pytest.mark.parametrize("beside", [b"1", b"x"], ids=["by Arrow", "in Python"])
def test_a_number_beyond_a_double_is_infinite(beside):
    values, _ = column_of({"type": "number"}, b"-1" + b"0" * 350, beside)
    assert values[0] == float("-inf")


def test_a_slice_and_no_values():
    decoder = json_decoder(json.dumps(WHOLE))
    sliced = pa.array([b"1", b"2", b"3", None]).slice(1)
    assert decoder.decode(sliced).column.to_pylist() == [2, 3, None]
    assert decoder.decode(pa.array([], pa.binary())).column == pa.array([], pa.int64())


def test_reasons_are_bounded():
    _, failed = column_of(WHOLE, *[b"x"] * 600)
    assert failed == list(range(600))
