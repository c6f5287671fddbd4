"""Schemas of Avro, later versions of them and their values, all by a random number generator."""

import datetime
import io
import json
import string
import uuid
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL: Final = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 7},
)
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}
_DEFAULTS: Final = (
    ("long", -7),
    ("string", "gr\u00fcn"),
    (["null", "double"], None),
    ({"type": "array", "items": "int"}, [1, 2, 300]),
    ({"type": "map", "values": ["boolean", "null"]}, {"a": True, "b": False}),
)


def written(schema: Any, value: Any) -> bytes:
    """Return a value as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def read(data: bytes, writer: Any, reader: Any = None) -> Any:
    """Return what fastavro reads, with UUIDs as text."""
    schemas = [fastavro.parse_schema(each) for each in (writer, reader) if each is not None]
    return _without_uuids(fastavro.schemaless_reader(io.BytesIO(data), *schemas))


def _without_uuids(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case list():
            return [_without_uuids(each) for each in value]
        case dict():
            return {name: _without_uuids(each) for name, each in value.items()}
        case _:
            return value


class Schemas:
    """Makes schemas; each named type in them has a name of its own."""

    def __init__(self, random: Random, *, logical: bool = True) -> None:
        self._random, self._logical, self._numbers = random, logical, count(1)

    def make(self, depth: int = 3) -> Any:  # noqa: PLR0911  # a kind each
        """Return a schema nested so deep at most."""
        kinds = ["primitive", "primitive", "enum", "fixed", *(["logical"] * self._logical)]
        kinds += ["record", "record", "array", "map", "optional", "union"] if depth else []
        kind = self._random.choice(kinds)
        match kind:
            case "primitive":
                return self._random.choice(_PRIMITIVES)
            case "logical":
                return dict(self._random.choice(_LOGICAL))
            case "optional":
                branch = self._some(depth - 1)
                return self._random.choice([["null", branch], [branch, "null"]])
            case "union":
                return self._union(depth - 1)
            case "array":
                return {"type": "array", "items": self.make(depth - 1)}
            case "map":
                return {"type": "map", "values": self.make(depth - 1)}
        named = {"type": kind, "name": f"n{next(self._numbers)}", "namespace": "org.example"}
        if kind == "enum":
            symbols = [f"S{number}" for number in range(self._random.randint(1, 4))]
            return named | {"symbols": symbols}
        if kind == "fixed":
            return named | {"size": self._random.randint(1, 20)}
        types = [self.make(depth - 1) for _ in range(self._random.randint(0, 4))]
        return named | {"fields": [{"name": f"f{i}", "type": each} for i, each in enumerate(types)]}

    def _some(self, depth: int) -> Any:
        made = self.make(depth)
        return "long" if isinstance(made, list) or made == "null" else made

    def _union(self, depth: int) -> Any:
        """Return a union whose branches a value alone tells apart."""
        return self._random.choice(
            [
                ["null", "long", "string"],
                ["boolean", "double", {"type": "array", "items": self.make(depth)}],
                ["bytes", "null", {"type": "map", "values": self.make(depth)}],
                ["string", "boolean"],
                ["null"],
                [self._some(depth)],
            ]
        )

    def later(self, schema: Any) -> Any:  # noqa: PLR0911  # a kind each
        """Return a version of a schema that comes after it."""
        if isinstance(schema, list):
            made = [self.later(each) for each in schema]
            return schema if any(isinstance(each, list) for each in made) else made
        if isinstance(schema, str):
            if self._random.random() < 0.3 and schema in _PROMOTED:
                return self._random.choice(_PROMOTED[schema])
            if self._random.random() < 0.1 and schema != "null":
                return ["null", schema]
            return schema
        match schema["type"]:
            case "array":
                return schema | {"items": self.later(schema["items"])}
            case "map":
                return schema | {"values": self.later(schema["values"])}
            case "enum" if self._random.random() < 0.5:
                symbols = [*schema["symbols"][1:], "NEW"]
                return schema | {"symbols": self._random.sample(symbols, len(symbols))}
            case "enum":
                return schema | {"symbols": ["NEW", "S0"], "default": "NEW"}
            case "record":
                return schema | {"fields": self._later_fields(schema["fields"])}
        return schema

    def _later_fields(self, fields: list[Any]) -> list[Any]:
        kept = [each for each in fields if self._random.random() < 0.8]
        made = [each | {"type": self.later(each["type"])} for each in kept]
        for each in made:
            if self._random.random() < 0.2:
                each |= {"name": f"{each['name']}_new", "aliases": [each["name"]]}
        for number in range(self._random.randint(0, 2)):
            kind, default = self._random.choice(_DEFAULTS)
            made.append({"name": f"new{number}", "type": kind, "default": default})
        self._random.shuffle(made)
        return made

    def value(self, schema: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  # a kind each
        """Return a value of a schema, as Python has it."""
        random = self._random
        if isinstance(schema, list):
            return self.value(random.choice(schema))
        if isinstance(schema, dict) and "logicalType" in schema:
            return self._logical_value(schema)
        match schema if isinstance(schema, str) else schema["type"]:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int":
                return random.choice([0, -1, 63, 64, 2**31 - 1, -(2**31), random.getrandbits(20)])
            case "long":
                most = [2**63 - 1, -(2**63), random.getrandbits(62), -random.getrandbits(40)]
                return random.choice([0, 1, -64, *most])
            case "float":
                return random.choice([0.0, -1.5, 2.0**100, float("inf")])
            case "double":
                return random.choice([0.0, -1.5e300, random.random(), float("-inf")])
            case "bytes":
                return random.randbytes(random.choice([0, 1, 7, 30]))
            case "string":
                letters = [*string.ascii_letters, "\u00e4", "\u20ac", "\U0001f600", "\0"]
                return "".join(random.choices(letters, k=random.choice([0, 1, 8, 9, 40])))
            case "enum":
                return random.choice(schema["symbols"])
            case "fixed":
                return random.randbytes(schema["size"])
            case "array":
                return [self.value(schema["items"]) for _ in range(random.randint(0, 3))]
            case "map":
                names = random.sample(["", "a", "long name", "\u20ac"], random.randint(0, 3))
                return {name: self.value(schema["values"]) for name in names}
            case "record":
                return {each["name"]: self.value(each["type"]) for each in schema["fields"]}
        raise AssertionError(schema)

    def _logical_value(self, schema: Any) -> Any:
        random = self._random
        moment = _EPOCH + datetime.timedelta(milliseconds=random.randint(-(10**12), 10**13))
        match schema["logicalType"]:
            case "date":
                return moment.date()
            case "time-millis" | "time-micros":
                return moment.time()
            case "timestamp-millis" | "timestamp-micros":
                return moment
            case "uuid":
                return str(uuid.UUID(int=random.getrandbits(128)))
            case "decimal":
                digits = random.randint(0, 10 ** schema["precision"] - 1)
                return Decimal(random.choice([digits, -digits, 0])).scaleb(-schema["scale"])
        return moment.replace(tzinfo=None)


def collapsed(kind: pa.DataType, value: Any, schema: Any) -> Any:  # noqa: PLR0911  # a kind each
    """Return a value of a column as fastavro has it: of a union the one branch that is there."""
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        if value is None or not branches:
            assert value is None
            return None
        if len(branches) == 1:
            return collapsed(kind, value, branches[0])
        [(number, found)] = [
            (number, each) for number, each in enumerate(value.values()) if each is not None
        ]
        return collapsed(kind.field(number).type, found, branches[number])
    match schema["type"] if isinstance(schema, dict) else schema:
        case "array":
            return [collapsed(kind.value_type, each, schema["items"]) for each in value]
        case "map":
            inner = schema["values"]
            return {name: collapsed(kind.item_type, each, inner) for name, each in value}
        case "record":
            return {
                each["name"]: collapsed(
                    kind.field(each["name"]).type, value[each["name"]], each["type"]
                )
                for each in schema["fields"]
            }
        case _:
            return value


def is_same(found: Any, expected: Any) -> bool:
    """Whether two values are one, but for the digits that fastavro leaves a float."""
    match found, expected:
        case list(), list():
            return len(found) == len(expected) and all(map(is_same, found, expected))
        case dict(), dict():
            return found.keys() == expected.keys() and all(
                is_same(each, expected[name]) for name, each in found.items()
            )
        case float(), float() | int():
            return found == expected or found == float(np.float32(expected))
        case _:
            return bool(found == expected)


def text(schema: Any) -> str:
    """Return a schema as a registry has it."""
    return json.dumps(schema)
