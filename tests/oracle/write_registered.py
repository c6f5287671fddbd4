"""Write a shop's topics by the official clients and serializers of a schema registry.

Runs in an environment of its own, where ``make_golden_registry`` has installed them::

    python write_registered.py BOOTSTRAP_SERVERS DECODED

writes to the broker, and to the file DECODED what the official deserializers give for each record
by the newest schema: a line of JSON each. Schemas change three times; the registry is the one in
memory of the clients, and its topic ``_schemas`` is written as Confluent's registry writes it.
"""

import json
import random
import sys
import tempfile
import uuid
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

FIRST = datetime(2026, 11, 2, 6, tzinfo=UTC)
STEP = timedelta(seconds=97)
MICROSECOND = timedelta(microseconds=1)
CUSTOMERS = 120
ORDERS = 1500  # of each version
PAYMENTS = 600
VIEWS = 500
REFUNDS = 200
NAMES = ("Amara", "Bilal", "Chloe", "Elif", "Hugo", "Kenji", "Lena", "Mateo", "Rosa", "Zoë")
CITIES = (("Lisbon", "PT"), ("Kraków", "PL"), ("Lyon", "FR"), ("Osaka", "JP"), ("Malmö", "SE"))
PRODUCTS = (("kettle-12", 3490), ("lamp-oak", 5900), ("mug-blue", 1250), ("desk-140", 24900))
PAGES = ("/", "/search", "/cart", "/checkout")


def record(name, *fields, **more):
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields), **more}


def field(name, kind, *default):
    return {"name": name, "type": kind, **({"default": default[0]} if default else {})}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


MONEY = logical("bytes", "decimal", precision=12, scale=2)
ADDRESS = record("Address", field("city", "string"), field("country", "string"))
CUSTOMER = record(
    "Customer",
    field("id", "long"),
    field("name", "string"),
    field("since", logical("int", "date")),
    field("account", logical("string", "uuid")),
    field("credit", ["null", MONEY], None),
    field("address", "shop.Address"),
)
ITEM = record("Item", field("product", "string"), field("count", "int"))
STATES = ["PLACED", "PAID", "SENT"]
STATE = {"type": "enum", "name": "State", "namespace": "shop", "symbols": STATES}
ORDER_1 = (
    field("id", "string"),
    field("customer", "int"),
    field("at", logical("long", "timestamp-millis")),
    field("state", STATE),
    field("total", MONEY),
)
# A wider number; the items; how it came in.
ORDER_2 = (
    ORDER_1[0],
    field("customer", "long"),
    *ORDER_1[2:],
    field("items", {"type": "array", "items": ITEM}, []),
    field("channel", ["null", "string"], None),
)
# Where it goes, by a schema of another subject; what people noted; when it was paid.
ORDER_3 = (
    *ORDER_2,
    field("ship_to", ["null", "shop.Address"], None),
    field("notes", {"type": "map", "values": "string"}, {}),
    field("paid_at", ["null", logical("long", "timestamp-micros")], None),
)
# A field that nobody used is gone; a name changed.
ORDER_4 = tuple(
    {**each, "name": "origin", "aliases": ["channel"]} if each["name"] == "channel" else each
    for each in ORDER_3
    if each["name"] != "notes"
)
REFUND = record(
    "Refund",
    field("order", "string"),
    field("amount", MONEY),
    field("reason", ["null", "string", record("Damage", field("photo", "bytes"))], None),
)

MONEY_PROTO = """\
syntax = "proto3";
package shop;
message Money {
  string currency = 1;
  int64 cents = 2;
}
"""
PAYMENT_1 = """\
syntax = "proto3";
package shop;
import "shop_money.proto";
import "google/protobuf/timestamp.proto";
enum Outcome {
  UNKNOWN = 0;
  AUTHORIZED = 1;
  DECLINED = 2;
}
message Payment {
  string order = 1;
  Money amount = 2;
  google.protobuf.Timestamp at = 3;
  Outcome outcome = 4;
  repeated int32 attempts_ms = 5;
%s}
"""
PAYMENT_2 = """\
  oneof method {
    Card card = 6;
    string voucher = 7;
  }
  message Card {
    string brand = 1;
    bytes last4 = 2;
  }
"""
PAYMENT_3 = """\
  map<string, string> labels = 8;
  optional double risk = 9;
"""
PAYMENTS_BY_VERSION = ("", PAYMENT_2, PAYMENT_2 + PAYMENT_3)

VIEW_1 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "PageView",
    "type": "object",
    "properties": {
        "session": {"type": "string"},
        "page": {"type": "string"},
        "ms": {"type": "integer"},
    },
    "required": ["session", "page"],
}
VIEW_2 = {
    **VIEW_1,
    "properties": {
        **VIEW_1["properties"],
        "scrolled": {"type": "number"},
        "mobile": {"type": "boolean"},
        "cart": {"type": "array", "items": {"type": "string"}},
    },
}


class Shop:
    """Writes records, and keeps what the deserializers give."""

    def __init__(self, bootstrap_servers):
        config = {"bootstrap.servers": bootstrap_servers, "compression.type": "zstd"}
        self.producer = Producer({**config, "linger.ms": 50, "partitioner": "murmur2_random"})
        self.registry = SchemaRegistryClient.new_client({"url": "mock://shop"})
        self.random = random.Random(4403)
        self.at = FIRST
        self.written = []
        self.topic_of_schemas = []

    def send(self, topic, key, value, headers=(), *, key_is, value_is):
        """Write a record; remember what it is as soon as its offset is known."""
        self.at += STEP * self.random.random()
        timestamp = int(self.at.timestamp() * 1000)

        def delivered(error, message):
            if error is not None:
                raise SystemExit(str(error))
            line = {"topic": topic, "partition": message.partition(), "offset": message.offset()}
            self.written.append({**line, "key": key_is, "value": value_is})

        headers = list(headers)
        self.producer.produce(
            topic, value, key, headers=headers, timestamp=timestamp, on_delivery=delivered
        )
        self.producer.poll(0)

    def register(self, subject, text, kind, references=()):
        """Register a version of a subject's schema; return it."""
        schema = Schema(text, kind, [SchemaReference(*each) for each in references])
        registered = self.registry.register_schema_full_response(subject, schema)
        self.note(subject, text, kind, references, registered)
        return schema

    def note(self, subject, text, kind, references, registered):
        """Make a record of the registry's topic about what it has registered."""
        version = 1 + sum(each[0]["subject"] == subject for each in self.topic_of_schemas)
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        value = {
            "subject": subject,
            "version": version,
            "id": registered.schema_id,
            "guid": registered.guid,
            **({} if kind == "AVRO" else {"schemaType": kind}),
            **(
                {"references": [{"name": n, "subject": s, "version": v} for n, s, v in references]}
                if references
                else {}
            ),
            "schema": text,
            "deleted": False,
        }
        self.topic_of_schemas.append((key, value))

    def write_schemas(self):
        """Write the registry's topic, with what else it holds."""
        lines = [
            ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "NONE"}),
            *self.topic_of_schemas,
            ({"keytype": "NOOP", "magic": 0}, None),
        ]
        for key, value in lines:
            data = None if value is None else json.dumps(value)
            self.producer.produce("_schemas", data, json.dumps(key))
        self.producer.flush()


def plain(value):
    """Return a value as JSON has it; what JSON has not says what it is."""
    match value:
        case Decimal():
            value = {"decimal": str(value)}
        case datetime():
            value = {"time": value.isoformat()}
        case date():
            value = {"date": value.isoformat()}
        case uuid.UUID():
            value = str(value)
        case bytes():
            value = {"bytes": b64encode(value).decode()}
        case tuple() | list():
            value = [plain(each) for each in value]
        case dict():
            value = {name: plain(each) for name, each in value.items()}
    return value


def write_customers(shop):
    """Write customers: keys that are a number, values with a referenced schema, some deleted."""
    topic, rng = "customers", shop.random
    shop.register("shop.Address", json.dumps(ADDRESS), "AVRO")
    key_schema = shop.register("customers-key", '{"type": "long"}', "AVRO")
    references = [("shop.Address", "shop.Address", 1)]
    schema = shop.register("customers-value", json.dumps(CUSTOMER), "AVRO", references)
    keys, values = AvroSerializer(shop.registry, key_schema), AvroSerializer(shop.registry, schema)
    read = AvroDeserializer(shop.registry)
    for number in range(CUSTOMERS):
        city, country = rng.choice(CITIES)
        value = {
            "id": number,
            "name": f"{rng.choice(NAMES)} {chr(65 + number % 26)}.",
            "since": date(2020, 1, 1) + timedelta(days=rng.randrange(2000)),
            "account": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            "credit": rng.choice([None, Decimal(rng.randrange(-9999, 99999)) / 100]),
            "address": {"city": city, "country": country},
        }
        key_data = keys(number, SerializationContext(topic, MessageField.KEY))
        place = SerializationContext(topic, MessageField.VALUE)
        data = values(value, place)
        shop.send(topic, key_data, data, key_is=number, value_is=plain(read(data, place)))
        if number % 29 == 28:
            shop.send(topic, key_data, None, key_is=number, value_is=None)


def write_orders(shop):
    """Write orders whose schema changes three times."""
    topic, rng = "orders", shop.random
    place, number = SerializationContext(topic, MessageField.VALUE), 0
    references = [("shop.Address", "shop.Address", 1)]
    versions = [ORDER_1, ORDER_2, ORDER_3, ORDER_4]
    schemas = [
        shop.register(
            "orders-value",
            json.dumps(record("Order", *fields)),
            "AVRO",
            references if "shop.Address" in json.dumps(fields) else (),
        )
        for fields in versions
    ]
    read = AvroDeserializer(shop.registry, schemas[-1])
    for fields, schema in zip(versions, schemas, strict=True):
        write = AvroSerializer(shop.registry, schema, conf={"auto.register.schemas": False})
        names = {each["name"] for each in fields}
        for _ in range(ORDERS):
            number += 1
            items = [(rng.choice(PRODUCTS), rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
            city, country = rng.choice(CITIES)
            origin = rng.choice([None, "web", "app", "phone"])
            value = {
                "id": f"o-{number:06}",
                "customer": rng.randrange(CUSTOMERS),
                "at": shop.at,
                "state": rng.choice(STATES),
                "total": Decimal(sum(cents * count for (_, cents), count in items)) / 100,
                "items": [{"product": name, "count": count} for (name, _), count in items],
                "channel": origin,
                "origin": origin,
                "ship_to": rng.choice([None, {"city": city, "country": country}]),
                "notes": {"gift": "yes", "ring": "twice"} if rng.random() < 0.2 else {},
                "paid_at": rng.choice([None, shop.at + rng.randrange(9**9) * MICROSECOND]),
            }
            data = write({name: value[name] for name in names}, place)
            key = value["id"]
            shop.send(topic, key.encode(), data, key_is=key, value_is=plain(read(data, place)))
            if number % 97 == 0:
                shop.send(topic, key.encode(), None, key_is=key, value_is=None)


def write_refunds(shop):
    """Write values whose schema is named in a header."""
    topic, rng = "refunds", shop.random
    schema = shop.register("refunds-value", json.dumps(REFUND), "AVRO")
    conf = {"schema.id.serializer": header_schema_id_serializer, "auto.register.schemas": False}
    write, read = AvroSerializer(shop.registry, schema, conf=conf), AvroDeserializer(shop.registry)
    for _ in range(REFUNDS):
        order = f"o-{rng.randrange(1, 4 * ORDERS):06}"
        reasons = (None, "late", {"photo": rng.randbytes(6)})
        value = {"order": order, "amount": Decimal(rng.randrange(9999)) / 100}
        place = SerializationContext(topic, MessageField.VALUE, [])
        data = write({**value, "reason": rng.choice(reasons)}, place)
        is_ = plain(read(data, place))
        shop.send(topic, order.encode(), data, place.headers, key_is=order, value_is=is_)


def write_payments(shop, folder):
    """Write Protobuf whose schema changes twice, with an import."""
    topic, rng = "payments", shop.random
    place = SerializationContext(topic, MessageField.VALUE)
    written = []
    for version, more in enumerate(PAYMENTS_BY_VERSION, start=1):
        text = PAYMENT_1 % more
        payment_class = compile_proto(folder, f"payment_{version}", text)
        write = ProtobufSerializer(payment_class, shop.registry)
        # The serializer registers schemas as descriptors, of which the registry makes texts.
        write(payment_class(), place)
        for subject, its, references in (
            ("shop_money.proto", MONEY_PROTO, ()),
            ("payments-value", text, [("shop_money.proto", "shop_money.proto", 1)]),
        ):
            if version == 1 or references:
                registered = shop.registry.get_latest_version(subject)
                shop.note(subject, its, "PROTOBUF", references, registered)
        for _ in range(PAYMENTS):
            at = shop.at + timedelta(microseconds=rng.randrange(10**6))
            payment = payment_class(
                order=f"o-{rng.randrange(1, 4 * ORDERS):06}",
                outcome=rng.randrange(3),
                attempts_ms=[rng.randrange(3000) for _ in range(rng.randrange(3))],
            )
            payment.at.FromDatetime(at)
            if rng.random() < 0.9:
                payment.amount.currency, payment.amount.cents = "EUR", rng.randrange(-500, 99999)
            if version > 1 and rng.random() < 0.7:
                payment.card.brand, payment.card.last4 = "Nova", rng.randbytes(4)
            elif version > 1:
                payment.voucher = f"V{rng.randrange(1000)}"
            if version > 2:
                payment.labels.update({"shop": "north"} if rng.random() < 0.5 else {})
                if rng.random() < 0.5:
                    payment.risk = rng.random()
            written.append((payment.order, write(payment, place)))
    read = ProtobufDeserializer(payment_class, {})
    for order, data in written:
        value = json_format.MessageToDict(
            read(data, place),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        shop.send(topic, order.encode(), data, key_is=order, value_is=value)


def compile_proto(folder, name, text):
    """Return the class of payments, in a pool of its own: all versions have the same names."""
    place = folder / name
    place.mkdir()
    (place / "shop_money.proto").write_text(MONEY_PROTO)
    (place / f"{name}.proto").write_text(text)
    files = ["shop_money.proto", f"{name}.proto"]
    words = ["protoc", f"-I{place}", f"--descriptor_set_out={place / 'set'}", "--include_imports"]
    include = Path(protoc.__file__).parent / "_proto"
    if protoc.main([*words, f"-I{include}", *files]):
        raise SystemExit(f"{name}: protoc refuses it")
    descriptors = descriptor_pb2.FileDescriptorSet.FromString((place / "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))


def write_views(shop):
    """Write JSON whose schema changes once."""
    topic, rng = "page-views", shop.random
    place = SerializationContext(topic, MessageField.VALUE)
    for schema in (VIEW_1, VIEW_2):
        shop.register("page-views-value", json.dumps(schema), "JSON")
        conf = {"auto.register.schemas": False}
        write = JSONSerializer(json.dumps(schema), shop.registry, conf=conf)
        read = JSONDeserializer(json.dumps(schema))
        for _ in range(VIEWS):
            session = f"s-{rng.randrange(300)}"
            value = {"session": session, "page": rng.choice(PAGES)}
            if rng.random() < 0.8:
                value["ms"] = rng.randrange(60_000)
            if schema is VIEW_2:
                value["scrolled"] = rng.choice([0, 1, rng.random()])
                value["mobile"] = rng.random() < 0.4
                value["cart"] = [rng.choice(PRODUCTS)[0] for _ in range(rng.randrange(3))]
            data = write(value, place)
            shop.send(
                topic, session.encode(), data, key_is=session, value_is=plain(read(data, place))
            )


def main():
    bootstrap_servers, decoded = sys.argv[1:]
    shop = Shop(bootstrap_servers)
    write_customers(shop)
    write_orders(shop)
    write_refunds(shop)
    with tempfile.TemporaryDirectory() as folder:
        write_payments(shop, Path(folder))
    write_views(shop)
    shop.producer.flush()
    shop.write_schemas()
    shop.written.sort(key=itemgetter("topic", "partition", "offset"))
    lines = [json.dumps(line, ensure_ascii=False) for line in shop.written]
    Path(decoded).write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
