"""The fields of a Protobuf message, and the types of their columns."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import pyarrow as pa

from storage_core.kernels import protobuf_wire as wire

_ENUM: Final = pa.dictionary(pa.int32(), pa.string())
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_DURATION: Final = pa.duration("us")


class Shape(Enum):
    """What becomes of a field."""

    PLAIN = auto()  # a number, a text or bytes
    ENUM = auto()
    STRUCT = auto()
    MAP = auto()
    WRAPPER = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    TEXT = auto()  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message; a message itself is one with number 0."""

    name: str = ""
    number: int = 0
    kind: int = wire.MESSAGE  # as the kernel has it
    wire: int = wire.WIRE_BYTES
    shape: Shape = Shape.STRUCT
    plain_type: str = ""  # what Arrow calls the type of a plain one
    is_repeated: bool = False
    has_presence: bool = True  # of one that is not repeated: null where it is missing
    oneof: int = -1  # which oneof of its message it is a member of
    fields: tuple["Field", ...] = ()  # of a message
    enum_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    message: str = ""  # full name of the type

    @property
    def item_type(self) -> pa.DataType:  # noqa: PLR0911  # a shape each
        """The type of one item of its column."""
        match self.shape:
            case Shape.PLAIN:
                return pa.type_for_alias(self.plain_type)
            case Shape.ENUM:
                return _ENUM
            case Shape.STRUCT:
                return pa.struct([(each.name, each.type) for each in self.fields])
            case Shape.WRAPPER:
                return self.fields[0].type
            case Shape.TIMESTAMP:
                return _TIMESTAMP
            case Shape.DURATION:
                return _DURATION
            case Shape.MAP | Shape.TEXT:
                return pa.string()

    @property
    def type(self) -> pa.DataType:
        """The type of its column."""
        if self.shape == Shape.MAP:
            key, value = self.fields
            return pa.map_(key.type, value.type)
        return pa.list_(self.item_type) if self.is_repeated else self.item_type
