"""Protobuf values as columns, beside the library that everybody reads them with."""

import pickle
import random
import sys
from base64 import b64encode
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.kernels.gather import find_not_utf8
from storage_core.values.protobuf_columns import ProtobufDecoder, protobuf_decoder, protobuf_to_json
from tests.storage_core.values.protobuf_cases import NEW, OLD, expected, found, messages

_SLOW: Final = settings(suppress_health_check=[HealthCheck.too_slow])


def class_of(decoder: ProtobufDecoder) -> Any:
    return message_factory.GetMessageClass(decoder.messages.descriptor)


NEW_ALL: Final = protobuf_decoder(NEW, "kinds.proto", "kinds.All")
OLD_ALL: Final = protobuf_decoder(OLD, "old.proto", None)


def column_of(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def check(decoder: ProtobufDecoder, data: list[bytes | None]) -> None:
    """Whatever the library reads is in the column; what it refuses has failed."""
    decoded = decoder.decode(column_of([None if each is None else b"\0" + each for each in data]))
    assert decoded.column.type == decoder.type
    decoded.column.validate(full=True)
    rows = decoded.column.to_pylist()
    kind = class_of(decoder)
    failed = set(decoded.failed.tolist())
    assert len(decoded.reasons) == min(len(failed), 10)
    for number, each in enumerate(data):
        if each is None:
            assert rows[number] is None
            assert number not in failed
            continue
        try:
            wanted = expected(kind.FromString(each))
        except DecodeError:
            wanted = None
        except (OverflowError, UnicodeDecodeError, ValueError, TypeError):
            continue  # a time that there is none of, or text of proto2 that is none
        if wanted is None:
            assert number in failed, each.hex()
            assert rows[number] is None
        elif number in failed:
            # Reasons are given for the first ten alone.
            [reason] = decoder.decode(column_of([b"\0" + each])).reasons
            is_old = decoder is OLD_ALL and "UTF-8" in reason  # the library takes it from proto2
            assert is_old or is_allowed(reason), (reason, each.hex())
        else:
            assert found(rows[number], decoder.type) == wanted


def is_allowed(reason: str) -> bool:
    """Whether a value that the library reads may have failed for a reason."""
    return "google.protobuf" in reason or "expected what JSON" in reason


@_SLOW
@given(st.lists(st.none() | messages(class_of(NEW_ALL)), max_size=5))
def test_any_message_of_proto3_is_what_the_library_reads(values: list[Any]):
    check(NEW_ALL, [None if each is None else each.SerializeToString() for each in values])


@_SLOW
@given(st.lists(st.none() | messages(class_of(OLD_ALL)), max_size=5))
def test_any_message_of_proto2_is_what_the_library_reads(values: list[Any]):
    check(OLD_ALL, [None if each is None else each.SerializePartialToString() for each in values])


@_SLOW
@given(st.lists(messages(class_of(NEW_ALL)), min_size=2, max_size=3))
def test_messages_one_behind_the_other_are_merged(values: list[Any]):
    check(NEW_ALL, [b"".join(each.SerializeToString() for each in values)])


@_SLOW
@given(messages(class_of(NEW_ALL)), st.randoms(use_true_random=False))
def test_changed_bytes_are_refused_where_the_library_refuses_them(message: Any, chance: Any):
    check(NEW_ALL, damaged(message.SerializeToString(), chance))


@_SLOW
@given(messages(class_of(OLD_ALL)), st.randoms(use_true_random=False))
def test_changed_bytes_of_proto2_are_refused_as_well(message: Any, chance: Any):
    check(OLD_ALL, damaged(message.SerializePartialToString(), chance))


@_SLOW
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_bytes_are_refused_where_the_library_refuses_them(values: list[bytes]):
    check(NEW_ALL, list(values))
    check(OLD_ALL, list(values))


def damaged(data: bytes, chance: random.Random) -> list[bytes | None]:
    """Return data, and what is left of it after accidents."""
    results: list[bytes | None] = [data]
    for _ in range(12):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(4):
                case 0 if changed:
                    changed[at % len(changed)] ^= 1 << chance.randrange(8)
                case 1:
                    del changed[at:]
                case 2:
                    changed[at:at] = chance.randbytes(chance.randint(1, 4))
                case _:
                    changed[at : at + chance.randint(1, 3)] = b""
        results.append(bytes(changed))
    return results


ORDER: Final = """
    syntax = "proto3";
    message Line { string sku = 1; int32 quantity = 2; }
    message Order {
      message Note { string text = 1; message Author { string name = 1; } }
      int64 id = 1;
      string customer = 2;
      repeated Line lines = 3;
      map<string, int32> stock = 4;
    }
    """


def order(message: str | None = "Order", text: str = ORDER) -> ProtobufDecoder:
    return protobuf_decoder({"order.proto": text}, "order.proto", message)


def decode(decoder: ProtobufDecoder, *values: bytes | None) -> tuple[list[Any], list[int], Any]:
    decoded = decoder.decode(column_of(list(values)))
    decoded.column.validate(full=True)
    return decoded.column.to_pylist(), decoded.failed.tolist(), decoded.reasons


FIRST: Final = b"\x02\x02\x08\x07\x12\x01a"
FIRST_ROW: Final = {"id": 7, "customer": "a", "lines": [], "stock": []}


def test_a_bad_value_fails_alone():
    rows, failed, reasons = decode(order(), FIRST, b"\x02\x02\x12\x05ab", None, FIRST)
    assert rows == [FIRST_ROW, None, None, FIRST_ROW]
    assert failed == [1]
    assert reasons == ("position 3: expected as many bytes as are said there, found 2",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "position 2: expected a varint or a number of its size"),
        (b"\x08" + b"\xff" * 10, "position 2: expected a varint or a number of its size"),
        (b"\xff" * 6, "position 1: expected a field's number and type"),
        (b"\x0a\x02\xc3\x28", "position 3: expected UTF-8, found 0xc3"),
        (b"\x13", "position 2: expected the end of the group that was begun last"),
        (b"\x14", "position 1: expected the end of the group that was begun last"),
        (b"\x0f", "position 1: expected a wire type of 0 to 5, found 7"),
        (b"\x13" * 101, "position 101: expected at most 100 messages inside of each other"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, reason: str):
    assert decode(order("Line"), b"\0" + data)[1:] == ([0], (reason,))


def test_the_first_ten_reasons_are_told():
    rows, failed, reasons = decode(order(), *[b"\x02\x02\x08"] * 12)
    assert rows == [None] * 12
    assert failed == list(range(12))
    assert len(reasons) == 10


def test_a_value_of_another_message_names_it():
    reasons = decode(order(), b"\0", b"\x04\x02\0", b"\x02\x10", b"", b"\x06\0\0\0")[2]
    expected_indexes = "position 0: expected the indexes of a message, [1], those of Order"
    assert reasons == (
        f"{expected_indexes}, found [0], those of Line",
        f"{expected_indexes}, found [1, 0], those of Order.Note",
        f"{expected_indexes}, found [8]",
        "position 0: expected the indexes of a message, [1]",
        f"{expected_indexes}, found [0, 0, 0]",
    )


def test_the_first_message_of_a_file_has_one_index_or_none():
    value = b"\x0a\x01x"
    rows, failed, _ = decode(order(None), b"\0" + value, b"\x02\0" + value)
    assert rows == [{"sku": "x", "quantity": 0}] * 2
    assert failed == []


def test_a_message_in_messages_is_found_by_all_indexes():
    decoder = order("Order.Note.Author")
    assert decode(decoder, b"\x06\x02\0\0\x0a\x01x")[0] == [{"name": "x"}]


# A map field stands before a message: the one for the map's entries is the first in it.
COUNTED: Final = """
    syntax = "proto3";
    package shop;
    message Order {
      %s
      message Line { string sku = 1; }
      message Note { string text = 1; }
    }
    """
OF_MAP: Final = "map<string, int32> stock = 1;"
# As Java's and Python's clients register it, and as a person writes it.
OF_ENTRIES: Final = """repeated .shop.Order.StockEntry stock = 1;
      message StockEntry { option map_entry = true; string key = 1; int32 value = 2; }"""
LINE: Final = b"\x0a\x01x"


def test_entries_of_a_map_may_be_a_message_of_the_text():
    decoder = order(None, COUNTED % OF_ENTRIES)
    assert decoder.type == order(None, COUNTED % OF_MAP).type
    value = b"\0\x0a\x05\x0a\x01a\x10\x03"
    assert decode(decoder, value)[0] == [{"stock": [("a", 3)]}]
    assert decoder.to_json(value) == '{"stock":{"a":3}}'
    text = COUNTED % OF_ENTRIES
    assert protobuf_to_json({"a": text}, "a", b"\x04\0\2" + LINE) == '{"sku":"x"}'
    assert decode(order("shop.Order.Line", text), b"\x04\0\2" + LINE, b"\x04\0\0")[1] == [1]


def test_java_does_not_count_the_entries_of_a_map_that_the_text_has_as_a_map():
    text = COUNTED % OF_MAP
    line, note = order("shop.Order.Line", text), order("shop.Order.Note", text)
    assert decode(line, b"\x04\0\0" + LINE)[0] == [{"sku": "x"}]
    assert decode(note, b"\x04\0\2" + LINE)[0] == [{"text": "x"}]
    rows, failed, reasons = decode(line, b"\x04\0\2" + LINE)
    assert (rows, failed) == ([None], [0])
    assert reasons[0].endswith(
        "[0, 0], those of shop.Order.Line, found [0, 1], those of shop.Order.Note"
    )
    assert protobuf_to_json({"a": text}, "a", b"\x04\0\0" + LINE) == '{"sku":"x"}'


def test_indexes_that_name_no_message_as_java_counts_are_those_of_python():
    text = COUNTED % OF_MAP
    assert decode(order("shop.Order.Note", text), b"\x04\0\4" + LINE)[0] == [{"text": "x"}]
    assert protobuf_to_json({"a": text}, "a", b"\x04\0\4" + LINE) == '{"text":"x"}'


@pytest.mark.parametrize("use", ["StockEntry stock = 1;", "optional StockEntry stock = 1;"])
def test_an_entry_of_a_map_is_in_a_map(use: str):
    text = COUNTED % OF_ENTRIES.replace("repeated .shop.Order.StockEntry stock = 1;", use)
    with pytest.raises(
        ValueError, match=r"shop\.Order\.StockEntry is an entry of a map, and no map"
    ):
        order(None, text)


def test_parts_of_an_array_are_decoded_as_the_whole():
    values = column_of([FIRST, None, b"\x02\x02", FIRST])
    whole = order().decode(values).column
    for start, length in ((0, 0), (1, 2), (3, 1), (4, 0)):
        part = values.slice(start, length)
        for each in (part, part.cast(pa.binary())):
            decoded = order().decode(each)
            assert decoded.column.equals(whole.slice(start, length))
            assert decoded.column.type == order().type


def test_a_decoder_is_kept_and_pickles():
    decoder = order()
    assert order() is decoder
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy.type == decoder.type
    assert decode(copy, FIRST)[0] == [FIRST_ROW]


def test_a_newer_schema_reads_what_an_older_one_has_written():
    newer = """
        syntax = "proto3";
        message Order { int64 id = 1; string customer = 2; optional bool paid = 9; }
        """
    decoder = protobuf_decoder({"a": newer}, "a", writer={"a": ORDER})
    line = b"\x02\x02\x1a\x03\x0a\x01x"
    rows, failed, reasons = decode(decoder, FIRST, line, b"\0\x0a\x01x")
    none = {"id": 0, "customer": "", "paid": None}
    assert rows == [{**none, "id": 7, "customer": "a"}, none, None]
    assert failed == [2]
    assert reasons[0].endswith("[1], those of Order, found [0], those of Line")
    assert pickle.loads(pickle.dumps(decoder)).type == decoder.type
    renamed = protobuf_decoder({"a": newer}, "a", writer={"a": ORDER.replace(" Order", " Sale")})
    assert decode(renamed, b"\0\x08\x07")[0] == [{**none, "id": 7}]


def test_a_schema_may_be_a_descriptor():
    file = descriptor_pb2.FileDescriptorProto()
    class_of(order()).DESCRIPTOR.file.CopyToProto(file)
    encoded = b64encode(file.SerializeToString()).decode()
    assert order(text=encoded).type == order().type


def test_a_value_said_twice_is_put_together():
    twice = b"\x02\x02\x22\x05\x0a\x01a\x10\x01\x22\x05\x0a\x01a\x10\x02"
    rows, failed, _ = decode(order(), FIRST, twice, FIRST)
    assert rows == [
        FIRST_ROW,
        {**FIRST_ROW, "id": 0, "customer": "", "stock": [("a", 2)]},
        FIRST_ROW,
    ]
    assert failed == []


@pytest.mark.thorough
def test_a_few_bytes_do_not_become_very_many_cells():
    fields = "\n".join(f"string f{number} = {number};" for number in range(1, 2001))
    text = (
        f'syntax = "proto3"; message Wide {{ {fields} }} message All {{ repeated Wide all = 1; }}'
    )
    decoder = order("All", text)
    bomb = b"\x02\x02" + b"\x0a\0" * 20_000
    rows, failed, reasons = decode(decoder, bomb, b"\x02\x02\x0a\0")
    assert failed == [0]
    assert reasons == ("position 2: expected at most 16 cells of items for each byte",)
    assert len(rows[1]["all"]) == 1


def test_times_that_there_are_none_of_fail():
    text = """
        syntax = "proto3";
        import "google/protobuf/timestamp.proto";
        import "google/protobuf/duration.proto";
        message All {
          repeated google.protobuf.Timestamp at = 1;
          google.protobuf.Duration took = 2;
        }
        """
    rows, failed, reasons = decode(
        order(None, text),
        b"\0\x0a\x00\x0a\x08\x08\x01\x10\xff\xff\xff\xff\x03",
        b"\0\x0a\x00",
        b"\0\x12\x0d\x08\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    )
    assert failed == [0, 2]
    assert reasons == (
        "expected a google.protobuf.Timestamp, found 1 s and 1073741823 ns",
        "expected a google.protobuf.Duration, found 1 s and -1 ns",
    )
    assert rows[1]["took"] is None


@pytest.mark.parametrize(
    ("texts", "message", "reason"),
    [
        ({"a": "message A {"}, None, "a: expected a Protobuf schema: line 1, column 11"),
        ({"a": "x"}, None, "a: expected a Protobuf schema: line 1, column 0"),
        (
            {"a": "message A { B b = 1; }"},
            None,
            "a: expected a Protobuf schema: .*couldn't resolve",
        ),
        ({"a": 'import "b";'}, None, "imports b, which is not among its references"),
        (
            {"a": 'import "b"; message A {}', "b": 'import "a";'},
            None,
            "imports a file that imports it",
        ),
        ({"a": ""}, None, "a has no message"),
        ({"a": "message A { optional int32 x = 1; }"}, "B", "has no message B"),
        ({"a": "message M {" * 400 + "}" * 400}, None, "is nested too deeply"),
        ({"a": "/" * (1 << 21)}, None, "has more than 1048576 characters"),
        (
            {
                "a": "message A0 { optional int32 x = 1; optional int32 y = 2; }"
                + "".join(
                    f"message A{n} {{ optional A{n - 1} f = 1; optional A{n - 1} g = 2; }}"
                    for n in range(1, 15)
                )
            },
            "A14",
            "has more than 10000 fields",
        ),
        (
            {
                "a": "message A0 { optional int32 x = 1; }"
                + "".join(f"message A{n} {{ optional A{n - 1} f = 1; }}" for n in range(1, 80))
            },
            "A79",
            "A79 is nested more than 64 levels deep",
        ),
    ],
)
def test_a_bad_schema_is_refused(texts: dict[str, str], message: str | None, reason: str):
    with pytest.raises(ValueError, match=reason):
        protobuf_decoder(texts, "a", message)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "proto_schema_parser", None)
    monkeypatch.delitem(sys.modules, "storage_core.values.protobuf_schema")
    with pytest.raises(ValueError, match=r"pip install 'pylog-spark\[protobuf\]'"):
        order(None, 'syntax = "proto3"; message Other { bool it = 1; }')


@pytest.mark.thorough
def test_text_is_utf8_where_python_says_so():
    samples = [bytes([first, second]) for first in range(256) for second in range(0, 256, 3)]
    chance = random.Random(1)
    samples += [chance.randbytes(chance.randint(1, 24)) for _ in range(2000)]
    samples += [
        "".join(map(chr, chance.choices([65, 0xE9, 0x20AC, 0x1F600], k=12))).encode()[:cut]
        for cut in range(1, 40)
        for _ in range(20)
    ]
    for sample in samples:
        bad = find_not_utf8(np.frombuffer(sample, np.uint8), 0, len(sample))
        assert bad == first_not_utf8(sample), sample


def first_not_utf8(sample: bytes) -> int:
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1
