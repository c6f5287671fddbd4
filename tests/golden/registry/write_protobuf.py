"""Write ``protobuf.json`` beside this file: values by the official Protobuf serializer of Python.

In an environment of its own, whose versions the file names::

    pip install 'confluent-kafka[protobuf,schemaregistry]' grpcio-tools
    python tests/golden/registry/write_protobuf.py

A schema that changed twice, with references, nulls, a second and an inner message. The serializer
registers descriptors in Base64; a registry keeps them, or the text that is here as well.
"""

import base64
import json
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry._sync.mock_schema_registry_client import (
    MockSchemaRegistryClient,
)
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

MONEY = """syntax = "proto3";
package shop;
message Money { int64 cents = 1; Currency currency = 2; }
enum Currency { EUR = 0; USD = 1; }
"""
FIRST = """syntax = "proto3";
package shop;
message Order { int64 id = 1; string customer = 2; }
"""
SECOND = """syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  string customer = 2;
  Money total = 3;
  google.protobuf.Timestamp placed = 4;
}
message Refund { int64 order = 1; optional string reason = 2; }
"""
THIRD = """syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  message Line { string sku = 1; sint32 quantity = 2; repeated Line parts = 3; }
  enum State { NEW = 0; PAID = 1; LOST = -1; }
  int64 id = 1;
  string customer = 2;
  Money total = 3;
  google.protobuf.Timestamp placed = 4;
  repeated Line lines = 5;
  map<string, double> rates = 6;
  map<int32, Money> fees = 7;
  State state = 8;
  repeated State history = 9;
  optional string note = 10;
  oneof payment { string card = 11; Money voucher = 12; }
  google.protobuf.Duration took = 13;
  google.protobuf.StringValue comment = 14;
  google.protobuf.Struct extra = 15;
  bytes signature = 16;
  fixed64 hash = 17;
  float weight = 18;
  repeated uint32 codes = 19;
}
message Refund { int64 order = 1; optional string reason = 2; }
"""
ORDERS: list[tuple[int, str, dict[str, Any] | None]] = [
    (1, "shop.Order", {"id": 1, "customer": "Ada"}),
    (1, "shop.Order", {}),
    (2, "shop.Order", {"id": 3, "customer": "Grüße", "total": {"cents": 4450}}),
    (2, "shop.Order", {"id": -4, "placed": "2026-03-29T01:59:59.123456789Z"}),
    (2, "shop.Refund", {"order": 3}),
    (3, "shop.Order", None),
    (
        3,
        "shop.Order",
        {
            "id": "9007199254740993",
            "total": {"cents": -1, "currency": "USD"},
            "placed": "0001-01-01T00:00:00Z",
            "lines": [
                {"sku": "a", "quantity": -2},
                {"sku": "b", "parts": [{"sku": "c", "parts": [{"sku": "d"}]}]},
                {},
            ],
            "rates": {"": 0.5, "x": -0.25},
            "fees": {"7": {"cents": 250}, "-7": {}},
            "state": "LOST",
            "history": ["NEW", "PAID", 77, "LOST"],
            "note": "",
            "voucher": {"cents": 5},
            "took": "-1.000001500s",
            "comment": "",
            "extra": {"a": [1, None, {"b": True}]},
            "signature": "AP8=",
            "hash": "18446744073709551615",
            "weight": 0.5,
            "codes": [0, 4294967295],
        },
    ),
    (3, "shop.Order", {"card": "visa", "extra": {}, "placed": "9999-12-31T23:59:59.999999999Z"}),
    (3, "shop.Refund", {"order": 1, "reason": "late"}),
    (3, "shop.Order.Line", {"sku": "z", "quantity": 1}),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    """Write the file."""
    client = MockSchemaRegistryClient({"url": "mock://"})
    texts = {1: FIRST, 2: SECOND, 3: THIRD}
    pools = {number: pool_of(text) for number, text in texts.items()}
    serializers = {}
    rows = []
    context = SerializationContext("orders", MessageField.VALUE)
    for number, name, content in ORDERS:
        kind = message_factory.GetMessageClass(pools[number].FindMessageTypeByName(name))
        if (number, name) not in serializers:
            serializers[number, name] = ProtobufSerializer(kind, client)
        if content is None:
            rows.append(
                {"value": None, "version": number, "message": name, "is": None, "json": None}
            )
            continue
        message = json_format.ParseDict(content, kind())
        data = serializers[number, name](message, context)
        back = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)(data, context)
        assert back == message
        as_json = json_format.MessageToDict(
            back,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pools[number],
        )
        rows.append(
            {
                "value": base64.b64encode(data).decode(),
                "version": number,
                "message": name,
                "is": attributes(back, ()),
                "json": as_json,
            }
        )
    out = {
        "writer": f"confluent-kafka {version('confluent-kafka')}, protobuf {version('protobuf')}",
        "texts": {str(number): text for number, text in texts.items()},
        "references": {"shop/money.proto": MONEY},
        "registered": registered(client),
        "orders": rows,
    }
    file = Path(__file__).parent / "protobuf.json"
    file.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


def pool_of(text: str) -> descriptor_pool.DescriptorPool:
    """Return a pool with a schema, compiled by protoc."""
    pool = descriptor_pool.DescriptorPool()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "shop").mkdir()
        (place / "shop" / "money.proto").write_text(MONEY)
        (place / "shop" / "order.proto").write_text(text)
        out = place / "out"
        known = Path(protoc.__file__).parent / "_proto"
        words = [f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}"]
        assert protoc.main(["protoc", *words, "shop/order.proto"]) == 0
        for each in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
            pool.Add(each)
    return pool


def registered(client: MockSchemaRegistryClient) -> list[dict[str, Any]]:
    """Return what the serializers have registered, as a registry keeps it."""
    found = []
    for subject in sorted(client.get_subjects()):
        for number in client.get_versions(subject):
            each = client.get_version(subject, number)
            references = [
                {"name": one.name, "subject": one.subject, "version": one.version}
                for one in each.schema.references or []
            ]
            found.append(
                {
                    "subject": subject,
                    "version": number,
                    "id": each.schema_id,
                    "schema": each.schema.schema_str,
                    "schemaType": each.schema.schema_type,
                    "references": references,
                }
            )
    return found


def attributes(message: Any, around: tuple[str, ...]) -> Any:
    """Return what a message's attributes say, as JSON: times in microseconds, bytes in Base64."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        moment = message.ToDatetime(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)
    if name == "google.protobuf.Duration":
        return message.ToTimedelta() // timedelta(microseconds=1)
    if name == "google.protobuf.StringValue":
        return message.value
    if name == "google.protobuf.Struct" or name in around:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    around = (*around, name)
    return {field.name: of_field(message, field, around) for field in message.DESCRIPTOR.fields}


def of_field(message: Any, field: Any, around: tuple[str, ...]) -> Any:
    """Return what an attribute says."""
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return sorted([key, item(value[key], kind, around)] for key in value)
    if field.is_repeated:
        return [item(each, field, around) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return item(value, field, around)


def item(value: Any, field: Any, around: tuple[str, ...]) -> Any:
    """Return one value of an attribute."""
    if field.message_type is not None:
        return attributes(value, around)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
