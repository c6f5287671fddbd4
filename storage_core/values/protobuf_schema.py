"""Protobuf schemas from their text, as the fields that ``protobuf_columns`` reads.

A registry has the text of ``.proto`` files, or descriptors in Base64. Text is parsed without
``protoc``: proto-schema-parser makes a tree of it, here that becomes a descriptor, and the library
``protobuf`` checks descriptors and resolves names. Of options only those are taken that change how
bytes are read. Extensions are unknown fields.

Before a value stand the indexes of its message: places among the messages of the file, then of each
message. A map field implies a message for its entries. Java's serializers count the messages of the
registry's text, which has such a message or, with ``map<>``, has not; those of Python and Go always
count it (``ProtobufSchema.toMessageIndexes``, ``_create_index_array``). So with ``map<>`` Java's
count goes first, the other one is for indexes that name no message by it.
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from antlr4.error.ErrorListener import ErrorListener
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

from storage_core.kernels import protobuf_wire as wire
from storage_core.values.protobuf_fields import Field, Shape

MAX_SCHEMA_BYTES: Final = 1 << 20  # of all texts; the parser takes half a minute for so many
_MAX_FIELDS: Final = 10_000  # a schema of a few lines can have any number of them
_MAX_NESTING: Final = 64

_KNOWN: Final = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
)
# What Confluent's registry knows beside these.
_CONFLUENT: Final = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
        }
        """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal {
          bytes value = 1;
          uint32 precision = 2;
          int32 scale = 3;
        }
        """,
}

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    _Proto.Type.Name(number).removeprefix("TYPE_").lower(): number
    for number in _Proto.Type.values()
    if number not in {_Proto.TYPE_GROUP, _Proto.TYPE_MESSAGE, _Proto.TYPE_ENUM}
}
_LABELS: Final = {
    None: _Proto.LABEL_OPTIONAL,
    ast.FieldCardinality.OPTIONAL: _Proto.LABEL_OPTIONAL,
    ast.FieldCardinality.REQUIRED: _Proto.LABEL_REQUIRED,
    ast.FieldCardinality.REPEATED: _Proto.LABEL_REPEATED,
}
_PROTO3: Final = "proto3"
# For each type its kind and wire type.
_KINDS: Final = {
    _Proto.TYPE_DOUBLE: (wire.FIXED64, wire.WIRE_FIXED64),
    _Proto.TYPE_FLOAT: (wire.FIXED32, wire.WIRE_FIXED32),
    _Proto.TYPE_INT64: (wire.VARINT, wire.WIRE_VARINT),
    _Proto.TYPE_UINT64: (wire.VARINT, wire.WIRE_VARINT),
    _Proto.TYPE_INT32: (wire.VARINT, wire.WIRE_VARINT),
    _Proto.TYPE_FIXED64: (wire.FIXED64, wire.WIRE_FIXED64),
    _Proto.TYPE_FIXED32: (wire.FIXED32, wire.WIRE_FIXED32),
    _Proto.TYPE_BOOL: (wire.BOOL, wire.WIRE_VARINT),
    _Proto.TYPE_STRING: (wire.STRING, wire.WIRE_BYTES),
    _Proto.TYPE_GROUP: (wire.GROUP, wire.WIRE_GROUP),
    _Proto.TYPE_MESSAGE: (wire.MESSAGE, wire.WIRE_BYTES),
    _Proto.TYPE_BYTES: (wire.BYTES, wire.WIRE_BYTES),
    _Proto.TYPE_UINT32: (wire.VARINT, wire.WIRE_VARINT),
    _Proto.TYPE_ENUM: (wire.VARINT, wire.WIRE_VARINT),
    _Proto.TYPE_SFIXED32: (wire.FIXED32, wire.WIRE_FIXED32),
    _Proto.TYPE_SFIXED64: (wire.FIXED64, wire.WIRE_FIXED64),
    _Proto.TYPE_SINT32: (wire.ZIGZAG32, wire.WIRE_VARINT),
    _Proto.TYPE_SINT64: (wire.ZIGZAG64, wire.WIRE_VARINT),
}
_ARROW: Final = {
    _Proto.TYPE_DOUBLE: "float64",
    _Proto.TYPE_FLOAT: "float32",
    _Proto.TYPE_INT64: "int64",
    _Proto.TYPE_UINT64: "uint64",
    _Proto.TYPE_INT32: "int32",
    _Proto.TYPE_FIXED64: "uint64",
    _Proto.TYPE_FIXED32: "uint32",
    _Proto.TYPE_BOOL: "bool",
    _Proto.TYPE_STRING: "string",
    _Proto.TYPE_BYTES: "binary",
    _Proto.TYPE_UINT32: "uint32",
    _Proto.TYPE_SFIXED32: "int32",
    _Proto.TYPE_SFIXED64: "int64",
    _Proto.TYPE_SINT32: "int32",
    _Proto.TYPE_SINT64: "int64",
}
_SHAPES: Final = {
    "google.protobuf.Timestamp": Shape.TIMESTAMP,
    "google.protobuf.Duration": Shape.DURATION,
    "google.protobuf.Any": Shape.TEXT,
    "google.protobuf.Struct": Shape.TEXT,
    "google.protobuf.Value": Shape.TEXT,
    "google.protobuf.ListValue": Shape.TEXT,
} | {
    f"google.protobuf.{name}Value": Shape.WRAPPER
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
    )
}


class Messages:
    """The messages of a schema, by the library."""

    def __init__(self, texts: Mapping[str, str], name: str, message: str | None) -> None:
        """Read the schema; ``protobuf_columns.protobuf_decoder`` says of what."""
        if sum(map(len, texts.values())) > MAX_SCHEMA_BYTES:
            raise ValueError(f"has more than {MAX_SCHEMA_BYTES} characters, references included")
        self._pool = descriptor_pool.DescriptorPool()
        self._implied: set[str] = set()  # full names of the messages that ``map<>`` stands for
        self._add(texts, name)
        file = self._pool.FindFileByName(name)
        self.descriptor = self._find(file, message)
        self.root = _Fields().root(self.descriptor)

    @property
    def name(self) -> str:
        """The full name of the message that is decoded."""
        return str(self.descriptor.full_name)

    def indexes_of(self, name: str) -> list[list[int]]:
        """Return the indexes by which serializers name a message of the file.

        Args:
            name: Its full name; of one that the file has not there are none.
        """
        try:
            message = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return []
        if message.file.name != self.descriptor.file.name or message.GetOptions().map_entry:
            return []
        ways = {tuple(self._count(message, implied=implied)): None for implied in (False, True)}
        return [list(indexes) for indexes in ways if self.name_of(indexes) == name]

    def name_of(self, indexes: Sequence[int]) -> str | None:
        """Return the name of the message of the file with some indexes; None for no message."""
        return self._named(indexes, implied=False) or self._named(indexes, implied=True)

    def _count(self, message: Any, *, implied: bool) -> list[int]:
        indexes = []
        while message is not None:
            around = message.containing_type
            place = message.file if around is None else around
            inside = self._messages_in(place, implied=implied)
            indexes.append([each.full_name for each in inside].index(message.full_name))
            message = around
        return indexes[::-1]

    def _named(self, indexes: Iterable[int], *, implied: bool) -> str | None:
        each = self.descriptor.file
        for index in indexes:
            inside = self._messages_in(each, implied=implied)
            if not 0 <= index < len(inside):
                return None
            each = inside[index]
        return str(each.full_name)

    def _messages_in(self, place: Any, *, implied: bool) -> list[Any]:
        """Return the messages that a file or a message has, in their order.

        Args:
            implied: Whether messages that ``map<>`` stands for count.
        """
        is_file = hasattr(place, "message_types_by_name")
        inside = place.message_types_by_name.values() if is_file else place.nested_types
        return [each for each in inside if implied or each.full_name not in self._implied]

    def normal(self, data: bytes) -> bytes:
        """Return a message in its normal form: each field once, without unknown ones."""
        message = self._parse(self.descriptor.full_name, data)
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())

    def to_json(self, name: str, data: bytes) -> str:
        """Return a message as JSON, as Protobuf writes it, with names as in the schema."""
        return _json_text(self._to_dict(self._parse(name, data), is_bare=False))

    def whole_to_json(self, data: bytes) -> str:
        """Return the message that is decoded as JSON, with the defaults of what is not there."""
        return _json_text(self._to_dict(self._parse(self.name, data), is_bare=True))

    def _parse(self, name: str, data: bytes) -> Any:
        found = self._pool.FindMessageTypeByName(name)
        try:
            return message_factory.GetMessageClass(found).FromString(data)
        except DecodeError as error:
            raise ValueError(f"expected the message {name}: {error}") from error

    def _to_dict(self, message: Any, *, is_bare: bool) -> Any:
        try:
            return json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=is_bare,
                descriptor_pool=self._pool,
            )
        # TypeError: an Any of a type that the schema has not.
        except (json_format.Error, ValueError, TypeError, RecursionError) as error:
            name = message.DESCRIPTOR.full_name
            raise ValueError(f"expected what JSON has in {name}: {error}") from error

    def _add(self, texts: Mapping[str, str], name: str) -> None:
        """Add a file to the pool, behind all that it imports."""
        added: set[str] = set()
        files: dict[str, Any] = {}
        waiting = [name]
        while waiting:
            each = waiting[-1]
            if each in added:
                waiting.pop()
                continue
            is_new = each not in files
            if is_new:
                files[each] = _file(each, texts, self._implied)
            missing = [other for other in files[each].dependency if other not in added]
            if not missing:
                self._add_file(files[each])
                added.add(each)
                waiting.pop()
            elif not is_new and any(other in files for other in missing):
                raise ValueError(f"{each} imports a file that imports it: {', '.join(missing)}")
            else:
                waiting.append(missing[0])

    def _add_file(self, file: Any) -> None:
        try:
            self._pool.AddSerializedFile(file.SerializeToString())
            self._pool.FindFileByName(file.name)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{file.name}: expected a Protobuf schema: {error}") from error

    def _find(self, file: Any, message: str | None) -> Any:
        if message is not None:
            try:
                found = self._pool.FindMessageTypeByName(message)
            except KeyError as error:
                raise ValueError(f"has no message {message}") from error
            if found.file.name != file.name:
                raise ValueError(f"the message {message} is of {found.file.name}")
            if found.GetOptions().map_entry:
                raise ValueError(f"{message} is an entry of a map")
            return found
        if not file.message_types_by_name:
            raise ValueError(f"{file.name} has no message")
        return next(iter(file.message_types_by_name.values()))


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _file(name: str, texts: Mapping[str, str], implied: set[str]) -> Any:
    """Return the descriptor of a file that a schema consists of or imports."""
    if name in texts:
        return _from_text(texts[name], name, implied)
    if name in _CONFLUENT:
        return _from_text(_CONFLUENT[name], name, implied)
    known = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if name == f"google/protobuf/{known}.proto" and known in _KNOWN:
        found = import_module(f"google.protobuf.{known}_pb2").DESCRIPTOR
        return descriptor_pb2.FileDescriptorProto.FromString(found.serialized_pb)
    raise ValueError(f"imports {name}, which is not among its references")


def _from_text(text: str, name: str, implied: set[str]) -> Any:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (Base64Error, DecodeError, ValueError):
        file = _parse(text, name, implied)
    file.name = name
    return file


class _Refusal(ErrorListener):  # type: ignore[misc]  # the library has no types
    """Ends the parser at its first error."""

    def syntaxError(self, *found: Any) -> None:  # noqa: N802  # the library's name
        _, _, line, column, message, _ = found
        raise ValueError(f"line {line}, column {column}: {message[:200]}")


def _listen(recognizer: Any) -> None:
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_Refusal())


def _parse(text: str, name: str, implied: set[str]) -> Any:
    try:
        tree = Parser(setup_lexer=_listen, setup_parser=_listen).parse(text)
        return _Writer(tree, implied).file
    except RecursionError as error:
        raise ValueError(f"{name}: expected a Protobuf schema: is nested too deeply") from error
    # The parser's tree may lack what it is asked for; a number may be none.
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"{name}: expected a Protobuf schema: {error}") from error


class _Writer:
    """Makes a descriptor of a file's tree.

    Args:
        implied: Takes the full names of the messages that ``map<>`` stands for.
    """

    def __init__(self, tree: ast.File, implied: set[str]) -> None:
        self.file = descriptor_pb2.FileDescriptorProto()
        self._implied = implied
        if tree.edition:
            self.file.syntax = "editions"
            self.file.edition = descriptor_pb2.Edition.Value(f"EDITION_{tree.edition}")
        elif tree.syntax and tree.syntax != "proto2":
            self.file.syntax = tree.syntax
        self._is_proto3 = self.file.syntax == _PROTO3
        packages = [each.name for each in tree.file_elements if isinstance(each, ast.Package)]
        self.file.package = packages[-1] if packages else ""
        for element in tree.file_elements:
            match element:
                case ast.Import():
                    if element.public:
                        self.file.public_dependency.append(len(self.file.dependency))
                    self.file.dependency.append(element.name)
                case ast.Option():
                    _set_feature(self.file.options, element)
                case ast.Message():
                    self._write_message(element, self.file.message_type.add(), self.file.package)
                case ast.Enum():
                    _write_enum(element, self.file.enum_type.add())

    def _write_message(self, message: ast.Message | ast.Group, out: Any, around: str) -> None:
        out.name = message.name
        name = f"{around}.{message.name}".removeprefix(".")
        optional = []
        for element in message.elements:
            match element:
                case ast.Message():
                    self._write_message(element, out.nested_type.add(), name)
                case ast.Enum():
                    _write_enum(element, out.enum_type.add())
                case ast.Option() if element.name == "map_entry":
                    out.options.map_entry = element.value is True
                case ast.Option():
                    _set_feature(out.options, element)
                case ast.OneOf():
                    for member in element.elements:
                        if isinstance(member, ast.Field | ast.Group):
                            field = self._write_field(member, out, name)
                            field.oneof_index = len(out.oneof_decl)
                    out.oneof_decl.add().name = element.name
                case ast.Field() | ast.Group() | ast.MapField():
                    field = self._write_field(element, out, name)
                    cardinality = getattr(element, "cardinality", None)
                    if self._is_proto3 and cardinality is ast.FieldCardinality.OPTIONAL:
                        optional.append(field)
        # The one member of an oneof of its own, behind all others.
        for field in optional:
            field.proto3_optional = True
            field.oneof_index = len(out.oneof_decl)
            out.oneof_decl.add().name = f"_{field.name}"

    def _write_field(
        self, field: ast.Field | ast.Group | ast.MapField, message: Any, around: str
    ) -> Any:
        out = message.field.add()
        out.name, out.number = field.name, field.number
        if isinstance(field, ast.MapField):
            entry = message.nested_type.add()
            entry.name = (
                f"{''.join(part[:1].upper() + part[1:] for part in field.name.split('_'))}Entry"
            )
            entry.options.map_entry = True
            self._implied.add(f"{around}.{entry.name}")
            for number, (name, kind) in enumerate(
                [("key", field.key_type), ("value", field.value_type)], 1
            ):
                part = entry.field.add()
                part.name, part.number, part.label = name, number, _Proto.LABEL_OPTIONAL
                _set_type(part, kind)
            out.label, out.type, out.type_name = (
                _Proto.LABEL_REPEATED,
                _Proto.TYPE_MESSAGE,
                entry.name,
            )
            return out
        out.label = _LABELS[field.cardinality]
        if isinstance(field, ast.Group):
            self._write_message(field, message.nested_type.add(), around)
            out.name, out.type, out.type_name = field.name.lower(), _Proto.TYPE_GROUP, field.name
            return out
        _set_type(out, field.type)
        for option in field.options:
            if option.name == "packed":
                out.options.packed = option.value is True
            elif option.name == "json_name":
                out.json_name = str(option.value)
            else:
                _set_feature(out.options, option)
        return out


def _set_type(out: Any, kind: str) -> None:
    if kind in _SCALARS:
        out.type = _SCALARS[kind]
    else:
        out.type_name = kind  # the library finds out whether it is a message or an enum


def _set_feature(options: Any, option: ast.Option) -> None:
    """Take an option of editions, ``features.field_presence = IMPLICIT``."""
    prefix, _, name = option.name.partition(".")
    if prefix == "features" and isinstance(option.value, ast.Identifier):
        kind = options.features.DESCRIPTOR.fields_by_name[name].enum_type
        setattr(options.features, name, kind.values_by_name[option.value.name].number)


def _write_enum(enum: ast.Enum, out: Any) -> None:
    out.name = enum.name
    for element in enum.elements:
        match element:
            case ast.EnumValue():
                value = out.value.add()
                value.name, value.number = element.name, element.number
            case ast.Option() if element.name == "allow_alias":
                out.options.allow_alias = element.value is True
            case ast.Option():
                _set_feature(out.options, element)


class _Fields:
    """Makes the fields of a message, and of those in it."""

    def __init__(self) -> None:
        self._count = 0

    def root(self, message: Any) -> Field:
        """Return a message as the field that nothing is around."""
        return self._message("", 0, message, wire.MESSAGE, (), is_root=True)

    def _all(self, message: Any, around: tuple[str, ...]) -> tuple[Field, ...]:
        if len(around) > _MAX_NESTING:
            raise ValueError(f"{around[0]} is nested more than {_MAX_NESTING} levels deep")
        self._count += len(message.fields)
        if self._count > _MAX_FIELDS:
            raise ValueError(f"has more than {_MAX_FIELDS} fields with those of its messages")
        oneofs = [each.full_name for each in message.oneofs if len(each.fields) > 1]
        return tuple(self._field(each, around, oneofs) for each in message.fields)

    def _field(self, field: Any, around: tuple[str, ...], oneofs: list[str]) -> Field:
        kind, wire_type = _KINDS[field.type]
        oneof = field.containing_oneof
        is_in_map = field.containing_type.GetOptions().map_entry
        common: dict[str, Any] = {
            "wire": wire_type,
            "is_repeated": field.is_repeated,
            # An entry of a map always has both of its parts.
            "has_presence": field.has_presence and not is_in_map,
            "oneof": oneofs.index(oneof.full_name)
            if oneof is not None and oneof.full_name in oneofs
            else -1,
        }
        if field.message_type is not None:
            return self._message(
                field.name, field.number, field.message_type, kind, around, **common
            )
        if field.enum_type is None:
            return Field(
                name=field.name,
                number=field.number,
                kind=kind,
                shape=Shape.PLAIN,
                plain_type=_ARROW[field.type],
                **common,
            )
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        is_closed = field.enum_type.is_closed
        kind = wire.CLOSED_ENUM if is_closed else kind
        return Field(
            name=field.name,
            number=field.number,
            kind=kind,
            shape=Shape.ENUM,
            enum_names=names,
            **common,
        )

    def _message(
        self,
        name: str,
        number: int,
        message: Any,
        kind: int,
        around: tuple[str, ...],
        *,
        is_root: bool = False,
        **common: Any,
    ) -> Field:
        full_name = message.full_name
        shape = _SHAPES.get(full_name, Shape.STRUCT)
        # A column for a message inside of itself would have no end; one without fields no file.
        if full_name in around or not message.fields:
            shape = Shape.TEXT
        if shape == Shape.TEXT:
            if kind == wire.GROUP:
                raise ValueError(f"{full_name} is a group inside of itself or without fields")
            kind = wire.MESSAGE if is_root else wire.RAW
            return Field(
                name=name, number=number, kind=kind, shape=shape, message=full_name, **common
            )
        if message.GetOptions().map_entry:
            if kind != wire.MESSAGE or not common.get("is_repeated"):
                raise ValueError(f"{full_name} is an entry of a map, and no map is of it")
            shape = Shape.MAP
        fields = self._all(message, (*around, full_name))
        return Field(
            name=name,
            number=number,
            kind=kind,
            shape=shape,
            fields=fields,
            message=full_name,
            **common,
        )
