"""Columns of Avro values: what fastavro reads, row by row, by one schema or from one to another."""

import base64
import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.values.avro_columns import avro_decoder
from storage_core.values.decoder import MAX_REASONS
from tests.kit.golden_data import GOLDEN
from tests.storage_core.values.avro_schemas import Schemas, collapsed, is_same, read, text, written

# Written by the official serializers, with what the official deserializers give.
WRITTEN: Final = json.loads((GOLDEN / "registry" / "records.json").read_text())
UNITS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
TIMES: Final = [("int", "time-millis", 86_400_000), ("long", "time-micros", 86_400_000_000)]


def decoded(data: list[bytes | None], writer: Any, reader: Any = None) -> Any:
    texts = [[text(each)] for each in (writer, reader) if each is not None]
    decoder = avro_decoder(*texts)
    found = decoder.decode(pa.array(data, pa.large_binary()))
    found.column.validate(full=True)
    assert found.column.type == decoder.type
    assert len(found.column) == len(data)
    return found


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_values_are_those_that_fastavro_reads(random: Random):
    schemas = Schemas(random)
    schema = schemas.make()
    data = [written(schema, schemas.value(schema)) for _ in range(5)]
    found = decoded([*data, None], schema)
    assert not found.failed.size
    rows = [collapsed(found.column.type, each, schema) for each in found.column.to_pylist()[:-1]]
    assert rows == [read(each, schema) for each in data]
    assert found.column[5].as_py() is None


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_values_become_what_a_later_schema_says_as_fastavro_has_it(random: Random):
    schemas = Schemas(random)
    schema = schemas.make()
    later = schemas.later(schema)
    data = [written(schema, schemas.value(schema)) for _ in range(5)]
    expected = []
    for each in data:
        try:
            expected.append(read(each, schema, later))
        except SchemaResolutionError:
            expected.append(SchemaResolutionError)
    try:
        found = decoded(data, schema, later)
    except ValueError:
        assert SchemaResolutionError in expected
        return
    for number, each in enumerate(found.column.to_pylist()):
        if expected[number] is SchemaResolutionError:
            assert number in found.failed
        else:
            assert number not in found.failed, found.reasons
            assert is_same(collapsed(found.column.type, each, later), expected[number])
    assert len(found.reasons) == found.failed.size


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1]} | dict(each[2:]) for each in fields]
    return {"type": "record", "name": name, "fields": made} | more


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name} | more


FOUR = {"type": "fixed", "name": "Four", "size": 4}
COLOUR = {"type": "enum", "name": "a.Colour", "symbols": ["RED", "BLUE"]}
OTHER_COLOUR = {"type": "enum", "name": "b.Colour", "symbols": ["GREEN"]}
SYMBOLS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("null", pa.null()),
        (["null"], pa.null()),
        (["int"], pa.int32()),
        (["null", "long"], pa.int64()),
        (["double", "null"], pa.float64()),
        (FOUR, pa.binary(4)),
        (FOUR | {"size": 0}, pa.binary()),
        (FOUR | {"size": 1025}, pa.binary()),
        (COLOUR, SYMBOLS),
        (COLOUR | {"symbols": []}, SYMBOLS),
        (record(), pa.struct([])),
        ({"type": "map", "values": ["null", "float"]}, pa.map_(pa.string(), pa.float32())),
        (
            ["int", "null", {"type": "array", "items": "string"}, record(("x", "bytes"))],
            pa.struct(
                [
                    ("int", pa.int32()),
                    ("array", pa.list_(pa.string())),
                    ("R", pa.struct([("x", pa.binary())])),
                ]
            ),
        ),
        (
            [COLOUR, OTHER_COLOUR],
            pa.struct([("a.Colour", SYMBOLS), ("b.Colour", SYMBOLS)]),
        ),
        (logical("bytes", "decimal", precision=38, scale=2), pa.decimal128(38, 2)),
        (logical("bytes", "decimal", precision=39), pa.decimal256(39, 0)),
        (FOUR | logical("fixed", "decimal", precision=9, scale=9), pa.decimal128(9, 9)),
        (logical("int", "date"), pa.date32()),
        (logical("int", "time-millis"), pa.time32("ms")),
        (logical("long", "time-micros"), pa.time64("us")),
        (logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC")),
        (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC")),
        (logical("long", "timestamp-nanos"), pa.timestamp("ns", "UTC")),
        (logical("long", "local-timestamp-millis"), pa.timestamp("ms")),
        (logical("long", "local-timestamp-micros"), pa.timestamp("us")),
        (logical("long", "local-timestamp-nanos"), pa.timestamp("ns")),
        (logical("string", "uuid"), pa.string()),
        (FOUR | logical("fixed", "uuid", size=16), pa.string()),
        (FOUR | logical("fixed", "duration", size=12), pa.binary(12)),
        # Logical types that do not suit what they are made of, or that nobody knows.
        (logical("long", "date"), pa.int64()),
        (logical("int", "timestamp-millis"), pa.int32()),
        (logical("string", "colour"), pa.string()),
        (FOUR | logical("fixed", "uuid"), pa.binary(4)),
        (FOUR | logical("fixed", "decimal", precision=10), pa.binary(4)),
        (logical("bytes", "decimal", precision=77), pa.binary()),
        (logical("bytes", "decimal", precision=0), pa.binary()),
        (logical("bytes", "decimal", precision=4, scale=5), pa.binary()),
        (logical("bytes", "decimal"), pa.binary()),
        (logical("bytes", "decimal", precision="4"), pa.binary()),
        (FOUR | logical("fixed", "decimal", precision=10**30), pa.binary(4)),
        (logical("string", "decimal", precision=4), pa.string()),
    ],
    ids=str,
)
def test_each_type_of_avro_is_one_of_arrow(schema, expected):
    decoder = avro_decoder([json.dumps(schema)])
    assert decoder.type == expected
    assert decoder.decode(pa.array([None], pa.binary())).column.type == expected


def test_values_by_registered_schemas_are_what_the_official_deserializer_gives():
    schemas = {
        value["id"]: value for key, value in WRITTEN["schemas"] if key["keytype"] == "SCHEMA"
    }
    money, address = schemas[1]["schema"], schemas[2]["schema"]
    for row in WRITTEN["orders"]:
        if row["value"] is None:
            continue
        value = base64.b64decode(row["value"])
        schema = schemas[int.from_bytes(value[1:5], "big")]["schema"]
        found = avro_decoder([money, address, schema]).decode(pa.array([value[5:]]))
        (order,) = found.column.to_pylist()
        for name, value in order.pop("extra", []):
            (order.setdefault("extra", {})[name],) = filter(None, value.values())
        assert {"extra": {}} | order == {"extra": {}} | row["value_is"]


def test_of_a_union_one_branch_is_there():
    schema = ["int", "null", "string", FOUR]
    data = [b"\0\x0e", b"\2", b"\4\2x", b"\6abcd", b"\x08"]
    found = decoded(data, schema)
    nothing = {"int": None, "string": None, "Four": None}
    assert found.column.to_pylist() == [
        nothing | {"int": 7},
        None,
        nothing | {"string": "x"},
        nothing | {"Four": b"abcd"},
        None,
    ]
    assert found.failed.tolist() == [4]
    assert found.reasons == ("position 0: expected 0 to 3 of a union, found 4",)


DECIMALS = [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63), -(2**64), 10**38 - 1, 1 - 10**38]


@pytest.mark.parametrize("number", DECIMALS)
@pytest.mark.parametrize("precision", [20, 38, 39, 76])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_a_decimal_is_whatever_bytes_it_has_and_no_more_digits(number, precision, padding):
    size = number.bit_length() // 8 + 1 + padding
    data = number.to_bytes(size, "big", signed=True)
    schema = logical("bytes", "decimal", precision=precision, scale=3)
    found = decoded([written("bytes", data), written("bytes", b"")], schema)
    fixed = FOUR | {"size": size} | schema | {"type": "fixed"}
    is_small = abs(number) < 10**precision
    for each in [found, *([decoded([data], fixed)] if size >= 32 else [])]:
        assert each.failed.tolist() == ([] if is_small else [0])
        expected = Decimal(number).scaleb(-3, Context(prec=80)) if is_small else None
        assert each.column[0].as_py() == expected
    assert found.column[1].as_py() == 0


def test_one_digit_too_many_of_a_decimal():
    for precision in (5, 38, 60, 76):
        schema = logical("bytes", "decimal", precision=precision)
        numbers = [sign * (10**precision - less) for sign in (1, -1) for less in (0, 1)]
        data = [written("bytes", each.to_bytes(40, "big", signed=True)) for each in numbers]
        found = decoded(data, schema)
        assert found.failed.tolist() == [0, 2]
        reason = "position 0: expected a decimal of the schema's precision, found more digits"
        assert found.reasons == (reason, reason)


def test_sixteen_bytes_are_a_uuid_and_twelve_a_duration():
    schema = record(
        ("id", FOUR | logical("fixed", "uuid", size=16)),
        ("for", {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}),
    )
    data = bytes(range(0xF0, 0x100)) + b"twelve bytes"
    found = decoded([data, b"", data], schema)
    expected = {"id": "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff", "for": b"twelve bytes"}
    assert found.column.to_pylist() == [expected, None, expected]


@pytest.mark.parametrize(("kind", "name", "day"), TIMES)
def test_a_time_of_day_ends_before_midnight(kind, name, day):
    found = decoded([written(kind, each) for each in (-1, 0, day - 1, day)], logical(kind, name))
    assert found.failed.tolist() == [0, 3]
    assert found.column.is_valid().to_pylist() == [False, True, True, False]
    assert "expected a time of day" in found.reasons[0]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "double", 7, 7.0),
        ("long", "float", 2**40 + 1, float(2**40)),
        ("float", "double", 0.5, 0.5),
        ("int", ["null", "string", "long"], 7, {"string": None, "long": 7}),
        ("string", "bytes", "\u00e9", "\u00e9".encode()),
        ("bytes", "string", b"ab", "ab"),
        (["int", "double"], "double", 7, 7.0),
        (["null", "int"], "int", 7, 7),
        ("int", ["float", "int"], 7, {"float": None, "int": 7}),
        ("int", logical("int", "date"), 1, date(1970, 1, 2)),
        (logical("int", "date"), "long", 1, 1),
        ("int", logical("long", "timestamp-millis"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (COLOUR, COLOUR | {"symbols": ["BLUE", "RED"]}, "RED", "RED"),
        (COLOUR, COLOUR | {"name": "b.Colour"}, "RED", "RED"),
        (COLOUR, COLOUR | {"name": "b.C", "aliases": ["a.Colour"]}, "RED", "RED"),
        (COLOUR, COLOUR | {"symbols": ["NO", "X"], "default": "X"}, "RED", "X"),
        (FOUR, FOUR | {"name": "x.Four"}, b"abcd", b"abcd"),
        (
            record(("a", "int"), ("b", {"type": "array", "items": COLOUR}), ("c", "string")),
            record(("c", "string"), ("a", "long")),
            {"a": 1, "b": ["RED", "BLUE"], "c": "x"},
            {"c": "x", "a": 1},
        ),
        (
            record(("a", "int"), ("b", ["null", FOUR]), ("m", {"type": "map", "values": "bytes"})),
            record(("z", "int", ("aliases", ["a"])), name="Q", aliases=["R"]),
            {"a": 1, "b": b"1234", "m": {"x": b"y"}},
            {"z": 1},
        ),
        (
            record(("a", ["int", "string", "null"]), ("d", "boolean")),
            record(
                ("d", "boolean"), ("e", record(("x", FOUR), name="I"), ("default", {"x": "abcd"}))
            ),
            {"a": "dropped", "d": True},
            {"d": True, "e": {"x": b"abcd"}},
        ),
        (
            record(),
            record(
                ("u", ["null", "string"], ("default", "later branch")),
                ("b", "bytes", ("default", "\u00ff")),
                ("d", logical("int", "date"), ("default", 1)),
                ("f", "float", ("default", 1)),
                ("c", COLOUR, ("default", "BLUE")),
                ("i", record(("n", "long", ("default", -3)), name="I"), ("default", {})),
            ),
            {},
            {
                "u": "later branch",
                "b": b"\xff",
                "d": date(1970, 1, 2),
                "f": 1.0,
                "c": "BLUE",
                "i": {"n": -3},
            },
        ),
    ],
)
def test_values_of_one_schema_become_those_of_another(writer, reader, value, expected):
    found = decoded([written(writer, value), b"\x80"], writer, reader)
    assert found.column.to_pylist() == [expected, None]
    assert found.failed.tolist() == [1]


def test_a_default_takes_nothing_of_the_value_around_it():
    writer = record(
        ("a", "int"), ("list", {"type": "array", "items": record(("x", "int"), name="I")})
    )
    item = record(
        ("y", {"type": "map", "values": "string"}, ("default", {"k": "v"})), ("x", "int"), name="I"
    )
    reader = record(("list", {"type": "array", "items": item}), ("a", "int"))
    value = {"a": 1, "list": [{"x": 2}, {"x": 3}]}
    found = decoded([written(writer, value)] * 2, writer, reader)
    items = [{"y": [("k", "v")], "x": x} for x in (2, 3)]
    assert found.column.to_pylist() == [{"list": items, "a": 1}] * 2
    # Bytes that lack are not taken of the default.
    assert decoded([written(writer, value)[:-2]], writer, reader).failed.size


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("string", "int", "the writer's string is no int"),
        ("long", "int", "the writer's long is no int"),
        ("null", ["int", "string"], "has no null"),
        ("int", ["null", "string"], "the writer's int is in no branch of null, string"),
        (["int", "string"], "boolean", "the writer's int is no boolean"),
        (FOUR, FOUR | {"size": 5}, "has 4 bytes, not 5"),
        (COLOUR, COLOUR | {"name": "Other"}, "nor one of its aliases"),
        (record(("a", "int")), record(("b", "int")), "b of record R has no default"),
        (record(("a", "int")), record(("a", "string")), "field a of record R: the writer's int"),
        (
            logical("long", "timestamp-millis"),
            logical("long", "local-timestamp-millis"),
            "the writer's timestamp-millis is no local-timestamp-millis",
        ),
        (
            logical("long", "time-micros"),
            logical("long", "timestamp-micros"),
            "the writer's time-micros is no timestamp-micros",
        ),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            logical("bytes", "decimal", precision=4, scale=1),
            r"decimal\(2\) is no decimal\(1\)",
        ),
        ("string", logical("bytes", "decimal", precision=4), "string is no decimal"),
        (record(), record(("a", "int", ("default", 2**40))), "the default of field a"),
        (record(), record(("a", COLOUR, ("default", "PINK"))), "the default of field a"),
        (record(), record(("a", "string", ("default", "x" * 5000))), "more than 4096 bytes"),
    ],
)
def test_schemas_that_do_not_go_together_are_an_error(writer, reader, reason):
    with pytest.raises(ValueError, match=reason):
        avro_decoder([json.dumps(writer)], [json.dumps(reader)])


@pytest.mark.parametrize("written_by", UNITS)
@pytest.mark.parametrize("read_by", UNITS)
@pytest.mark.parametrize("seconds", [0, 1_796_032_800, -1])
def test_a_time_of_another_unit_stays_the_same_moment(written_by, read_by, seconds):
    kinds = [logical("long", f"timestamp-{name}") for name in (written_by, read_by)]
    unit, wanted = UNITS[written_by], UNITS[read_by]
    number = seconds * unit + unit // 4
    found = decoded([written("long", number)], *kinds).column.cast("int64").to_pylist()
    assert found == [number * wanted // unit]


def test_a_time_that_the_readers_unit_cannot_say_fails_alone():
    millis, nanos = (logical("long", f"timestamp-{name}") for name in ("millis", "nanos"))
    most = (2**63 - 1) // 10**6
    found = decoded([written("long", each) for each in (most, most + 1, -most)], millis, nanos)
    assert found.failed.tolist() == [1]
    expected = "position 0: expected a time of 64 bits in the reader's unit, found a larger one"
    assert found.reasons == (expected,)
    kept = found.column.cast("int64").to_pylist()
    assert kept == [most * 10**6, None, -most * 10**6]


def test_a_time_of_day_of_another_unit_ends_before_midnight_too():
    kinds = logical("int", "time-millis"), logical("long", "time-micros")
    found = decoded([written("int", each) for each in (86_399_999, 86_400_000)], *kinds)
    assert found.column.to_pylist() == [time(23, 59, 59, 999_000), None]


def test_a_value_whose_branch_or_symbol_the_reader_lacks_fails_alone():
    writer = record(("u", ["int", "string"]), ("c", COLOUR))
    reader = record(("c", COLOUR | {"symbols": ["BLUE"]}), ("u", "string"))
    values = [
        {"u": "good", "c": "BLUE"},
        {"u": 7, "c": "BLUE"},
        {"u": "ab", "c": "RED"},
        {"u": "also", "c": "BLUE"},
    ]
    found = decoded([written(writer, each) for each in values], writer, reader)
    assert found.column.to_pylist() == [values[0], None, None, values[3]]
    assert found.failed.tolist() == [1, 2]
    assert found.reasons == (
        "position 1: expected a branch that the reader's union has, found another one",
        "position 4: expected a symbol that the reader's enum has, found another one",
    )


def test_only_the_first_failures_have_a_reason():
    found = decoded([b"\x80"] * 30, "long")
    assert found.failed.tolist() == list(range(30))
    assert found.reasons == ("position 0: expected a number of 64 bits",) * MAX_REASONS


NESTED = record(
    ("text", ["null", "string"]),
    ("list", ["null", {"type": "array", "items": ["null", "string"]}]),
    ("inner", ["null", record(("raw", "bytes"), ("n", ["null", "int"]), name="I")]),
)


def test_nulls_and_failures_leave_their_neighbours_in_place():
    values = [
        {"text": "a", "list": ["x", None, "yz"], "inner": {"raw": b"1", "n": 1}},
        {"text": None, "list": None, "inner": None},
        {"text": "bcd", "list": [], "inner": {"raw": b"23", "n": None}},
        {"text": "", "list": [None], "inner": {"raw": b"", "n": -1}},
    ]
    data = [written(NESTED, each) for each in values]
    torn = [data[0][:-1], *data, None, data[2] + b"x", *data]
    found = decoded(torn, NESTED)
    assert found.column.to_pylist() == [None, *values, None, None, *values]
    assert found.failed.tolist() == [0, 6]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_part_of_an_array_is_decoded_alone(kind):
    values = pa.array([b"\x80", b"\2", None, b"\4", b"\x80"], kind)
    decoder = avro_decoder(['"int"'])
    found = decoder.decode(values[1:4])
    assert found.column.to_pylist() == [1, None, 2]
    assert not found.failed.size
    assert decoder.decode(values[3:3]).column.to_pylist() == []
    assert decoder.decode(values[4:]).failed.tolist() == [0]


def test_a_decoder_is_made_once_and_pickles():
    texts = [json.dumps(COLOUR), json.dumps(record(("c", "a.Colour")))]
    decoder = avro_decoder(texts, texts)
    assert avro_decoder(tuple(texts), tuple(texts)) is decoder
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy.type == decoder.type
    assert copy.decode(pa.array([b"\2"])).column.to_pylist() == [{"c": "BLUE"}]


TREE = record(("n", "int"), ("children", {"type": "array", "items": "Tree"}), name="Tree")


def doubled(levels: int) -> list[str]:
    """Return schemas of a record with two of another one, and so on."""
    texts = [record(("n", "int"), name="L0")]
    for level in range(1, levels):
        below = f"L{level - 1}"
        texts.append(record(("a", below), ("b", below), name=f"L{level}"))
    return [json.dumps(each) for each in texts]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([json.dumps(TREE)], "record Tree has itself inside"),
        ([json.dumps(TREE), json.dumps(record(("t", "Tree")))], "record Tree has itself inside"),
        (doubled(40), "more than 10000 columns"),
        ([json.dumps(FOUR | {"size": 2**31})], "fixed Four has 2147483648 bytes"),
        (['"interval"'], "expected an Avro schema"),
        (["{"], "expected an Avro schema"),
        ([json.dumps(record(("a", "int"), ("a", "int")))], "R"),
    ],
)
def test_a_schema_without_columns_is_an_error(texts, reason):
    with pytest.raises(ValueError, match=reason):
        avro_decoder(texts)


ODD: Final = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "a.b.",
    "null",
    "array",
    [],
    {},
    ["a", 1],
    {"a": 1},
]


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_odd_schemas_are_an_error_or_are_read(random: Random):
    schemas = Schemas(random)
    writer = schemas.make()
    odd = json.loads(json.dumps({"": schemas.later(writer)}))
    places = []
    waiting = [odd]
    while waiting:
        each = waiting.pop()
        inner = each.items() if isinstance(each, dict) else enumerate(each)
        places += [(each, name) for name, _ in inner]
        waiting += [found for _, found in inner if isinstance(found, dict | list)]
    where, name = random.choice(places)
    where[name] = random.choice(ODD)
    if isinstance(where, dict):
        extra = random.choice(["aliases", "default", "logicalType", "size", "namespace", "scale"])
        where[extra] = random.choice(ODD)
    for texts in ([text(odd[""])], None), ([text(writer)], [text(odd[""])]):
        try:
            decoder = avro_decoder(*texts)
        except ValueError:
            continue
        decoder.decode(pa.array([b"\2\2\2\2", b""])).column.validate(full=True)


@pytest.mark.thorough
def test_what_a_reader_drops_may_not_be_endless_either():
    writer = [json.dumps(TREE), json.dumps(record(("t", "Tree"), ("n", "int")))]
    with pytest.raises(ValueError, match="record Tree has itself inside"):
        avro_decoder(writer, [json.dumps(record(("n", "int")))])
    writer = [*doubled(18), json.dumps(record(("t", "L17"), ("n", "int")))]
    with pytest.raises(ValueError, match="more than 100000 operations"):
        avro_decoder(writer, [json.dumps(record(("n", "int")))])


def test_a_schema_as_deep_as_values_may_be():
    texts = [json.dumps(record(("n", "int"), name="L0"))]
    texts += [json.dumps(record(("x", f"L{n - 1}"), name=f"L{n}")) for n in range(1, 65)]
    assert avro_decoder(texts[:64]).decode(pa.array([b"\2"])).column.is_valid().to_pylist() == [
        True
    ]
    with pytest.raises(ValueError, match="more than 64 levels deep"):
        avro_decoder(texts)


def test_a_null_takes_no_more_bytes_than_its_type_has():
    huge = ["null", FOUR | {"size": 2**31 - 1}]
    found = decoded([b"\0"] * 1000 + [b"\2abc"], huge)
    assert found.failed.tolist() == [1000]
    assert found.column.nbytes < 8 * 1001
