"""Bytes of Avro, whatever they are: those are taken that the reader of single values takes."""

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.kernels import avro_columns as op
from storage_core.kernels.avro_columns import FREE_ITEMS, FREE_ITEMS_OF_ALL
from storage_core.kernels.gather import find_not_utf8
from storage_core.kernels.varint import INVALID
from storage_core.values.avro_columns import avro_decoder
from storage_core.values.avro_values import AvroBytes, registered_reader, whole_value
from storage_core.values.decoder import Decoded
from tests.storage_core.kernels.arguments import fenced
from tests.storage_core.values.avro_schemas import Schemas, text, written


def decoded(data: list[bytes], schema: Any) -> Decoded:
    found = avro_decoder([text(schema)]).decode(pa.array(data, pa.large_binary()))
    found.column.validate(full=True)
    return found


def fits(data: bytes, schema: Any) -> bool:
    try:
        whole_value(registered_reader((text(schema),)), AvroBytes(data))
    except ValueError:
        return False
    return True


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_damaged_bytes_fit_where_the_reader_of_single_values_takes_them(random: Random):
    schemas = Schemas(random, logical=False)
    schema = schemas.make()
    data = []
    for _ in range(8):
        value = bytearray(written(schema, schemas.value(schema)))
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(value) + 1)
            value[at : at + random.randint(0, 1)] = random.randbytes(random.randint(0, 2))
        data.append(bytes(value))
    found = decoded(data, schema)
    good = [row for row, each in enumerate(data) if fits(each, schema)]
    assert sorted({*range(len(data))} - {*found.failed.tolist()}) == good
    if good and random.random() < 0.5:
        apart = decoded([data[row] for row in good], schema)
        assert str(found.column.take(good).to_pylist()) == str(apart.column.to_pylist())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\xff" * 9 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\xfe" + b"\xff" * 8 + b"\x01",
        b"\xff" * 10,
        b"\x80" * 9 + b"\x00",
        b"\xfe\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
        b"\x80\x80\x80\x80\x10",
        b"\x00\x00",
    ],
)
@pytest.mark.parametrize("schema", ["int", "long"])
def test_numbers_at_the_ends_of_their_range(data, schema):
    found = decoded([data, b"\x02"], schema)
    assert found.failed.tolist() == ([] if fits(data, schema) else [0])
    if fits(data, schema):
        value = whole_value(registered_reader((text(schema),)), AvroBytes(data))
        assert found.column.to_pylist() == [value, 1]


def utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=20) | st.text(max_size=12).map(str.encode))
@example(b"\xed\x9f\xbf\xed\xa0\x80")
@example(b"\xf4\x8f\xbf\xbf")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x9f\xbf")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xc1\xbf")
@example(b"\xc2")
@example(b"12345678\xe2\x82")
def test_utf8_is_what_python_takes_for_it(data):
    assert (find_not_utf8(*fenced(data)) == INVALID) == utf8(data)
    assert decoded([written("bytes", data)], "string").failed.size == (not utf8(data))


@pytest.mark.parametrize("first", range(0xC0, 0x100))
def test_each_first_byte_of_a_character_with_each_second_one(first):
    data = [
        bytes([first, second, 0x80, 0x80][:size]) for second in range(256) for size in (2, 3, 4)
    ]
    found = [find_not_utf8(*fenced(each)) == INVALID for each in data]
    assert found == [utf8(each) for each in data]


NULLS = {"type": "array", "items": "null"}


@pytest.mark.parametrize("count", [FREE_ITEMS, FREE_ITEMS + 1, 2**62, -(2**63)])
def test_items_that_take_no_bytes_are_bounded_in_a_value(count):
    data = written("long", count) + b"\0" * (1 + (count < 0))
    found = decoded([data, b"\2\0"], NULLS)
    assert found.failed.tolist() == ([] if fits(data, NULLS) else [0])
    assert found.column[1].as_py() == [None]


def test_items_that_take_no_bytes_are_bounded_in_a_batch():
    bomb = written("long", FREE_ITEMS) + b"\0"
    most = FREE_ITEMS_OF_ALL // (FREE_ITEMS - len(bomb))
    found = decoded([bomb] * (most + 20) + [b"\2\0"], NULLS)
    assert found.failed.tolist() == list(range(most, most + 20))
    assert "items that take no bytes" in found.reasons[0]
    assert found.column[-1].as_py() == [None]


def test_a_batch_without_values():
    assert decoded([], NULLS).column.to_pylist() == []
    assert decoded([], "string").column.to_pylist() == []


@pytest.mark.parametrize(
    ("operations", "value"),
    [
        ([(op.STRING, 1, 0, -1)], written("string", "0123456789")),
        ([(op.UUID, 1, 0, 0)], bytes(16)),
        (
            [(op.BLOCK, 1, 0, 3), (op.INT, 0, 0, 0), (op.NEXT, 1, 0, 0)],
            written({"type": "array", "items": "int"}, [0] * 10),
        ),
    ],
    ids=["text", "uuid", "list"],
)
def test_a_column_ends_before_its_offsets_do(operations, value):
    words = [[code, 0, -1, -1, a, b, c, 0] for code, a, b, c in [*operations, (op.END, 0, 0, 0)]]
    for left, verdict in ((9, op.TOO_LONG), (36, op.FITS)):
        counters = np.array([0, 2**31 - 1 - left, 0])
        verdicts = np.zeros(1, np.int64)
        nothing = np.zeros(8, np.uint8)
        op.run_program(
            *(np.frombuffer(value, np.uint8), np.array([0, len(value)]), nothing),
            *(np.array(words).reshape(-1), np.zeros(1, np.int64)),
            *(counters, np.zeros(3, np.int64), np.zeros(1, np.int64), verdicts),
            op.Room(nothing, nothing.view(np.int32), nothing.view(np.int64)),
        )
        assert verdicts[0] & op.VERDICT_MASK == verdict
        # One that does not fit takes nothing of the room that is left.
        assert (counters[1] == 2**31 - 1 - left) == (verdict == op.TOO_LONG)
