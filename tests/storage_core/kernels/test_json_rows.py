"""JSON values, whatever they are: those are taken that Python's parser takes, as it takes them."""

import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.json_values import parse_json
from storage_core.kernels import json_rows
from storage_core.kernels.json_rows import JsonParts, write_json_rows
from storage_core.values.json_columns import JsonDecoder, json_decoder

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "more": {},
        "\u00e9": {"type": "string"},
        'a"b': {"type": "integer"},
        "lines": {
            "type": "array",
            "items": {"properties": {"sku": {"type": "string"}, "extra": {"type": "object"}}},
        },
    },
}
NAMES = [*ORDER["properties"], "sku", "extra", "i\\d", "other"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner),
    max_leaves=12,
)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "name": st.text() | st.none(),
        "total": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "paid": st.booleans(),
        "more": ANY,
        "\u00e9": st.text(),
        'a"b': st.integers(0, 9),
        "lines": st.lists(st.none() | st.fixed_dictionaries({"sku": st.text(), "extra": ANY})),
        "other": ANY,
    },
)


def alone(decoder: JsonDecoder, value: bytes) -> Any:
    """Return what Python makes of a value; an error for one that does not fit."""
    try:
        parsed = parse_json(value, limit_bytes=1 << 20)
        taken = None if parsed is None else decoder._kind.take(parsed, "$")
    except (ValueError, RecursionError) as error:
        return error
    return pa.array([taken], decoder.type).to_pylist()[0]


def plain(row: Any) -> str:
    """Return a row with text that is JSON parsed: space and escapes in it may differ."""
    if row is not None:
        inner = [row, *filter(None, row["lines"] or ())]
        for part, name in ((each, name) for each in inner for name in ("more", "extra")):
            if part.get(name) is not None:
                part[name] = json.loads(part[name])
    return str(row)


def check(values: list[bytes]) -> None:
    decoder = json_decoder(json.dumps(ORDER))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    expected = [alone(decoder, each) for each in values]
    failed = [row for row, each in enumerate(expected) if isinstance(each, Exception)]
    assert decoded.failed.tolist() == failed
    for row, found in enumerate(decoded.column.to_pylist()):
        assert plain(found) == plain(None if row in failed else expected[row]), values[row]


@given(st.lists(ORDERS, max_size=5), st.booleans(), st.sampled_from([None, 1]))
@settings(deadline=None)
def test_values_of_the_schema_are_taken(orders: list[Any], is_ascii: bool, indent: int | None):
    check([json.dumps(each, ensure_ascii=is_ascii, indent=indent).encode() for each in orders])


@given(st.lists(ANY, min_size=1, max_size=5))
@settings(deadline=None)
def test_values_of_no_schema_are_taken_where_python_takes_them(values: list[Any]):
    check([json.dumps(each).encode() for each in values])


@given(st.lists(ORDERS, min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_damaged_values_are_taken_where_python_takes_them(orders: list[Any], random: Random):
    values = []
    for order in orders:
        value = bytearray(json.dumps(order, ensure_ascii=random.random() < 0.5).encode())
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(value) + 1)
            new = random.choice(
                [b'"', b"\\", b"{", b"}", b"[", b",", b"1", b"e9", b"\xc3", b" ", b""]
            )
            value[at : at + random.randint(0, 2)] = new
        values.append(bytes(value))
    check(values)


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b" ", b"{", b"}", b"[]", b"{,}", b'{"id"}', b'{"id":}', b'{"id":1,}', b'{"id":1 2}'),
        *(b'{"id":-}', b'{"id":01}', b'{"id":-0}', b'{"id":1.}', b'{"id":1e}', b'{"id":1e+2}'),
        *(b'{"total":1e308}', b'{"total":1e309}', b'{"total":-1E-999}', b'{"total":.5}'),
        *(b'{"id":999999999999999999999}', b'{"id":1,"id":2}', b'{"i\\u0064":1}', b'{"a\\"b":7}'),
        *(
            b'{"name":"\\ud83d\\ude00"}',
            b'{"name":"\\ud83d"}',
            b'{"name":"\x01"}',
            b'{"name":"\\x"}',
        ),
        *(b'{"more":"\\\\\\"\\/"}', b'{"more":{"a":[1,{"b":"\\n"}]}}', b'{"more":NaN}', b"nul"),
        *(b'{"more":' + b"[" * 62 + b"]" * 62 + b"}", b'{"more":' + b"[" * 64 + b"]" * 64 + b"}"),
        *(b'{"more":' + b"1" * 401 + b"}", b'{"x":' + b"1" * 401 + b',"id":1,"id":2}'),
        *(b'{"more":[1,]}', b'{"more":{"a":1,}}', b'{"more":[}', b'{"more":{"a"]}', b'{"more":1 }'),
        *(b'{"lines":[{"extra":{}},{"extra":null},null]}', b'{"lines":[[]]}', b'{"\xc3\xa9":"x"}'),
    ],
)
def test_a_value_at_an_edge_is_taken_where_python_takes_it(value: bytes):
    check([value, b'{"id":1}'])


def test_text_keeps_digits_and_loses_space():
    decoder = json_decoder("{}")
    text = b'{ "a" : 1.10 ,\n "b" : [ 12345678901234567890123, "x\\u00e9 y" ] }'
    assert decoder.decode(pa.array([text])).column.to_pylist() == [
        '{"a":1.10,"b":[12345678901234567890123,"x\\u00e9 y"]}'
    ]


@given(
    st.lists(st.binary(max_size=8) | st.sampled_from([b'""', b"0", b"[0]", b"true"]), max_size=6)
)
@settings(deadline=None)
def test_lines_have_the_room_that_is_promised(values: list[bytes]):
    offsets = np.cumsum([0, *map(len, values)])
    parts = JsonParts(
        np.array([[json_rows.ANY, 0, 0, 0, 0], [json_rows.TEXT, 0, 0, 0, 0]], np.int64),
        np.zeros(0, np.uint8),
    )
    size = json_rows.BYTES_OF_ONE * int(offsets[-1]) + json_rows.LINE_BYTES * len(values)
    out, fence = np.full(size + 16, 0x7F, np.uint8), [0x7F] * 16
    ends, others = np.zeros(len(values) + 1, np.int64), np.zeros(len(values), np.uint8)
    data = np.frombuffer(b"".join(values), np.uint8)
    stack = np.zeros(json_rows.STACK_SHAPE, np.int64)
    write_json_rows(data, offsets, parts, out, ends, others, stack)
    assert out[size:].tolist() == fence
    lines = out[: ends[-1]].tobytes().splitlines()
    assert [json.loads(each)["value"] is None for each in lines] == [
        bool(other) or values[row].strip() == b"null" for row, other in enumerate(others)
    ]
