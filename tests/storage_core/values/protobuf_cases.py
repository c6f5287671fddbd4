"""Schemas of Protobuf with every kind of field, messages of them, and what the library reads."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf import descriptor_pb2, json_format, message_factory
from hypothesis import strategies as st

SCALARS: Final = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
WRAPPERS: Final = {f"google.protobuf.{kind}Value" for kind in ("Int64", "Bool", "Bytes", "String")}
_NAME: Final = "kinds.proto"


def _fields(before: str, first: int, suffix: str = "") -> str:
    return "\n".join(
        f"{before} {kind} {kind}_{suffix or before or 'plain'} = {number};"
        for number, kind in enumerate(SCALARS, first)
    )


NEW: Final = {
    "other/part.proto": """
        syntax = "proto3";
        package other;
        message Part { string name = 1; repeated sint64 sizes = 2; }
        """,
    _NAME: f"""
        // Every kind of field.
        syntax = "proto3";
        package kinds;
        import "google/protobuf/any.proto";
        import "google/protobuf/duration.proto";
        import "google/protobuf/empty.proto";
        import "google/protobuf/struct.proto";
        import "google/protobuf/timestamp.proto";
        import "google/protobuf/wrappers.proto";
        import "other/part.proto";
        option java_package = "com.example";

        message All {{
          enum Colour {{ option allow_alias = true; RED = 0; GREEN = 1; GRUEN = 1; DARK = -5; }}
          message Inner {{
            int32 number = 1;
            optional string text = 2;
            repeated Deep deep = 3;
            map<int32, Deep> by_number = 4;
            oneof choice {{ string left = 5; Deep right = 6; Colour colour = 7; }}
          }}
          message Deep {{ repeated bool flags = 1; google.protobuf.StringValue note = 2; }}
          {_fields("", 1)}
          {_fields("optional", 21)}
          {_fields("repeated", 41)}
          repeated int64 unpacked = 60 [packed = false];
          Colour colour = 61;
          optional Colour other_colour = 62;
          repeated Colour colours = 63;
          Inner inner = 64;
          repeated Inner inners = 65;
          map<string, Inner> by_name = 66;
          map<bool, double> by_truth = 67;
          map<sint64, Colour> by_size = 68;
          google.protobuf.Timestamp at = 69;
          repeated google.protobuf.Timestamp times = 70;
          google.protobuf.Duration took = 71;
          google.protobuf.Int64Value wrapped = 72;
          repeated google.protobuf.BoolValue all_wrapped = 73;
          google.protobuf.BytesValue wrapped_bytes = 74;
          google.protobuf.Struct object = 75;
          repeated google.protobuf.Value any_values = 76;
          other.Part part = 77;
          google.protobuf.Empty empty = 78;
          Tree tree = 79;
          oneof one {{
            int32 one_number = 80;
            string one_text = 81;
            Inner one_inner = 82;
            Tree one_tree = 83;
          }}
          reserved 90 to 95, 99;
          reserved "gone";
        }}
        message Tree {{ string name = 1; repeated Tree children = 2; Tree only = 3; }}
        service Unused {{ rpc Ask (All) returns (stream Tree); }}
        """,
}
OLD: Final = {
    "old.proto": f"""
        syntax = "proto2";
        package old;
        message All {{
          enum Size {{ SMALL = 3; LARGE = 7; }}
          enum Zero {{ NONE = 0; ONE = 1; }}
          required int32 must = 1;
          {_fields("optional", 21)}
          {_fields("repeated", 41)}
          optional int32 with_default = 60 [default = 7];
          optional Size size = 61 [default = LARGE];
          repeated Size sizes = 62;
          repeated Size packed_sizes = 63 [packed = true];
          map<string, Zero> by_name = 64;
          optional group Pair = 65 {{ optional string left = 1; optional Size right = 2; }}
          repeated group Item = 66 {{ repeated int32 numbers = 1; }}
          oneof one {{ Size one_size = 67; string one_text = 68; }}
          extensions 100 to 199;
        }}
        extend All {{ optional string more = 100; }}
        """,
}


def messages(kind: type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Return messages of a class, with any of their fields."""
    descriptor = kind.DESCRIPTOR

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        message = kind()
        if descriptor.fields:
            fields = st.sampled_from(list(descriptor.fields))
            for field in draw(st.lists(fields, max_size=8, unique=True)):
                _set(draw, message, field, depth)
        return message

    return build()


def _set(draw: st.DrawFn, message: Any, field: Any, depth: int) -> None:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for each in draw(st.lists(_scalars(key), max_size=3)):
            if value.message_type is not None:
                getattr(message, name)[each].MergeFrom(_message(draw, value, depth))
            else:
                getattr(message, name)[each] = draw(_scalars(value))
    elif field.message_type is not None:
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                getattr(message, name).append(_message(draw, field, depth))
        else:
            getattr(message, name).CopyFrom(_message(draw, field, depth))
    elif field.is_repeated:
        getattr(message, name).extend(draw(st.lists(_scalars(field), max_size=4)))
    else:
        setattr(message, name, draw(_scalars(field)))


def _message(draw: st.DrawFn, field: Any, depth: int) -> Any:
    kind = message_factory.GetMessageClass(field.message_type)
    name = field.message_type.full_name
    if name == "google.protobuf.Timestamp":
        seconds = st.integers(-62_135_596_800, 253_402_300_799)
        return kind(seconds=draw(seconds), nanos=draw(st.integers(0, 999_999_999)))
    if name == "google.protobuf.Duration":
        seconds, nanos = draw(st.integers(0, 315_576_000_000)), draw(st.integers(0, 999_999_999))
        sign = draw(st.sampled_from([-1, 1]))
        return kind(seconds=sign * seconds, nanos=sign * nanos)
    if name in {"google.protobuf.Struct", "google.protobuf.Value"}:
        inner = st.none() | st.booleans() | st.floats(-9, 9) | st.text(max_size=3)
        value = st.dictionaries(st.text(max_size=3), inner, max_size=3)
        return json_format.ParseDict(draw(value if name.endswith("Struct") else inner), kind())
    return kind() if depth > 2 else draw(messages(kind, depth + 1))


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        numbers = st.sampled_from([value.number for value in field.enum_type.values])
        return numbers if field.enum_type.is_closed else numbers | st.integers(-(2**31), 2**31 - 1)
    name = _Proto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if name in _PLAIN:
        return _PLAIN[name]
    bits = 32 if name.endswith("32") else 64
    low, high = (0, 2**bits) if name[0] in "uf" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return st.integers(low, high - 1)


_Proto = descriptor_pb2.FieldDescriptorProto
_PLAIN: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "bool": st.booleans(),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
}


def expected(message: Any, around: tuple[str, ...] = ()) -> Any:
    """Return what a column has to have for a message, by the library's attributes."""
    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return epoch + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if name == "google.protobuf.Duration":
        micros = math.trunc(message.nanos / 1000)
        return timedelta(seconds=message.seconds, microseconds=micros)
    if name in WRAPPERS:
        return message.value
    if (
        name in {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.Any"}
        or name in around
        or not descriptor.fields
    ):
        return Text(json_format.MessageToDict(message, preserving_proto_field_name=True))
    around = (*around, name)
    return {field.name: _of_field(message, field, around) for field in descriptor.fields}


class Text:
    """JSON text, equal to any text of the same JSON."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self.content

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Text({self.content!r})"


def _of_field(message: Any, field: Any, around: tuple[str, ...]) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {key: _item(value[key], kind, around) for key in value}
    if field.is_repeated:
        return [_item(each, field, around) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _item(value, field, around)


def _item(value: Any, field: Any, around: tuple[str, ...]) -> Any:
    if field.message_type is not None:
        return expected(value, around)
    if field.enum_type is not None:
        known = next((each for each in field.enum_type.values if each.number == value), None)
        return str(value) if known is None else known.name
    return value


def found(value: Any, kind: Any) -> Any:
    """Return a value of a column as ``expected`` has it: maps as dictionaries, in any order."""
    if value is None:
        return None
    if str(kind).startswith("struct"):
        return {field.name: found(value[field.name], field.type) for field in kind}
    if str(kind).startswith("map"):
        return {key: found(each, kind.item_type) for key, each in value}
    if str(kind).startswith("list"):
        return [found(each, kind.value_type) for each in value]
    return value
