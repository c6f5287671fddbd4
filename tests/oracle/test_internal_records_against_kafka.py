"""Records of internal topics: declarations against Kafka's schemas, values against its own."""

import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jpype
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from storage_core.catalog.release_features import FEATURE_LEVELS
from storage_core.checkpoint.checkpoints import encode_uuid
from storage_core.config import NEWEST_RELEASE
from storage_core.errors import MalformedMessageError
from storage_core.formats.control import ControlType
from storage_core.messages.fields import FieldReader, FieldWriter
from storage_core.messages.group_records import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    LEGACY_OFFSET_COMMIT,
)
from storage_core.messages.internal_records import (
    CONTROL_RECORDS,
    INTERNAL_RECORDS,
    Problem,
    decode_assignment,
    decode_internal_record,
    decode_subscription,
)
from storage_core.messages.schema import ArrayOf, Field, Fields, Message, Struct, Type
from tests.kit.coordinator_records import STRANGE_RECORDS, StrangeRecord
from tests.kit.golden_broker import unpack_broker
from tests.kit.golden_data import Golden
from tests.oracle.jvm import KafkaFailure, java, java_bytes, kafka_failures, python_bytes

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

COORDINATOR = "org.apache.kafka.coordinator."
GENERATED = {
    "__consumer_offsets": COORDINATOR + "group.generated.",
    "__transaction_state": COORDINATOR + "transaction.generated.",
    "__share_group_state": COORDINATOR + "share.generated.",
    "__cluster_metadata": "org.apache.kafka.common.metadata.",
    "__remote_log_metadata": "org.apache.kafka.server.log.remote.metadata.storage.generated.",
}
# Their records have a frame, and no key.
FRAMED = ("__cluster_metadata", "__remote_log_metadata")
PROTOCOL = "org.apache.kafka.common.message."
CONTROL_CLASSES = {
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}


def camel_case(name: str) -> str:
    """The name of a field in Kafka's JSON."""
    spelled = name.replace("kraft_", "k_raft_")
    return re.sub(r"_(\w)", lambda found: found[1].upper(), spelled)


def class_name(record_type: str) -> str:
    return "".join(part.capitalize() for part in record_type.split("_"))


def messages() -> Iterator[tuple[str, Message, int]]:
    """Kafka's class, our declaration, and its newest version in Kafka."""
    for topic, types in INTERNAL_RECORDS.items():
        for type_id, record_type in types.items():
            name, newest = GENERATED[topic] + class_name(record_type.name), record_type.value.newest
            if record_type.key is None:
                yield name, record_type.value, newest
                continue
            # We read what old brokers wrote; Kafka 4.4 knows the oldest version alone.
            is_legacy = (topic, type_id) == ("__consumer_offsets", LEGACY_OFFSET_COMMIT)
            yield name + "Value", record_type.value, 0 if is_legacy else newest
            yield name + "Key", record_type.key, 0
    for type_id, name in CONTROL_CLASSES.items():
        message = CONTROL_RECORDS[type_id].value
        yield PROTOCOL + name, message, message.newest
    yield PROTOCOL + "ConsumerProtocolSubscription", CONSUMER_SUBSCRIPTION, 3
    yield PROTOCOL + "ConsumerProtocolAssignment", CONSUMER_ASSIGNMENT, 3


MESSAGES = {name: (message, newest) for name, message, newest in messages()}
VERSIONS = [
    (name, version) for name, (_, newest) in MESSAGES.items() for version in range(newest + 1)
]


# --- Declarations ---------------------------------------------------------------------------------

Shape = Any


def shape_of(struct: Struct, version: int, *, is_flexible: bool) -> Shape:
    """Our declaration of a version: plain fields in order, tagged ones by tag."""
    present = [field for field in struct if field.since <= version <= field.until]
    plain = [(f.name, _shape(f, version, is_flexible)) for f in present if f.tag is None]
    tagged = {
        f.tag: (f.name, _shape(f, version, is_flexible)) for f in present if f.tag is not None
    }
    return {"plain": plain, "tagged": tagged if is_flexible else None}


def _shape(field: Field, version: int, is_flexible: bool) -> Shape:
    return (_type_shape(field.type, version, is_flexible), field.is_nullable)


def _type_shape(type_: Any, version: int, is_flexible: bool) -> Shape:
    if isinstance(type_, Struct):
        return shape_of(type_, version, is_flexible=is_flexible)
    if isinstance(type_, ArrayOf):
        return [
            "compact" if is_flexible else "plain",
            _type_shape(type_.element, version, is_flexible),
        ]
    is_sized = type_ in {Type.STRING, Type.BYTES}
    return ("COMPACT_" if is_sized and is_flexible else "") + type_.name


def shape_of_kafka(schema: Any) -> Shape:
    """Kafka's schema of the same."""
    plain: list[Any] = []
    tagged = None
    for index in range(schema.numFields()):
        field = schema.get(index).def_
        if str(field.type.getClass().getSimpleName()) == "TaggedFields":
            tagged = {
                int(entry.getKey()): (
                    str(entry.getValue().name),
                    _kafka_shape(entry.getValue().type),
                )
                for entry in field.type.fields().entrySet()
            }
        else:
            plain.append((str(field.name), _kafka_shape(field.type)))
    return {"plain": plain, "tagged": tagged}


def _kafka_shape(type_: Any) -> Shape:
    return (_kafka_type(type_), bool(type_.isNullable()))


def _kafka_type(type_: Any) -> Shape:
    if isinstance(type_, java("org.apache.kafka.common.protocol.types.Schema")):
        return shape_of_kafka(type_)
    element = type_.arrayElementType()
    if element.isPresent():
        is_compact = "Compact" in str(type_.getClass().getSimpleName())
        return ["compact" if is_compact else "plain", _kafka_type(element.get())]
    return str(type_.typeName()).replace("NULLABLE_", "")


@pytest.mark.item("REP-16", "REP-18")
def test_every_type_of_kafkas_is_declared_with_its_newest_version():
    for topic, package in GENERATED.items():
        kind = "MetadataRecordType" if topic in FRAMED else "CoordinatorRecordType"
        types = {int(kind.id()): kind for kind in java(package + kind).values()}
        ours = INTERNAL_RECORDS[topic]
        assert {number: str(kind.toString()) for number, kind in types.items()} == {
            number: record_type.name for number, record_type in ours.items()
        }
        for number, kind in types.items():
            if (topic, number) != ("__consumer_offsets", LEGACY_OFFSET_COMMIT):
                assert int(kind.highestSupportedVersion()) == ours[number].value.newest


@pytest.mark.item("REP-16", "REP-18")
@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
def test_the_declaration_of_a_version_is_kafkas_schema(name: str, version: int):
    message, newest = MESSAGES[name]
    kafka = java(name)
    assert (int(kafka.LOWEST_SUPPORTED_VERSION), int(kafka.HIGHEST_SUPPORTED_VERSION)) == (
        0,
        newest,
    )
    schema = getattr(kafka, f"SCHEMA_{version}")
    is_flexible = message.is_flexible(version)
    assert shape_of(message.fields, version, is_flexible=is_flexible) == shape_of_kafka(schema)


# --- Values ---------------------------------------------------------------------------------------

# A failing example is not made smaller: each step of that asks Kafka several times.
KAFKA_SETTINGS = settings(deadline=None, max_examples=10, phases=(Phase.explicit, Phase.generate))
NUMBERS = {Type.INT8: 7, Type.INT16: 15, Type.INT32: 31, Type.INT64: 63}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def values_of(type_: Any, version: int) -> st.SearchStrategy[Any]:
    """Values of a type, as our reader returns them."""
    if isinstance(type_, Struct):
        return st.fixed_dictionaries(
            {
                field.name: _nullable(field, version)
                for field in type_
                if field.since <= version <= field.until
            }
        )
    if isinstance(type_, ArrayOf):
        return st.lists(values_of(type_.element, version), max_size=3).map(tuple)
    if type_ in NUMBERS:
        bits = NUMBERS[type_]
        return st.integers(-(2**bits), 2**bits - 1)
    return {
        Type.BOOLEAN: st.booleans(),
        Type.UINT16: st.integers(0, 65_535),
        Type.FLOAT64: st.floats(allow_nan=False),
        Type.UUID: st.binary(min_size=16, max_size=16).map(encode_uuid),
        Type.STRING: TEXTS,
        Type.BYTES: st.binary(max_size=20),
    }[type_]


def _nullable(field: Field, version: int) -> st.SearchStrategy[Any]:
    values = values_of(field.type, version)
    if field.tag is not None:
        values = st.just(field.default) | values
    return st.none() | values if field.is_nullable else values


def to_kafka_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {camel_case(name): to_kafka_json(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [to_kafka_json(inner) for inner in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@cache
def mapper() -> Any:
    return java("com.fasterxml.jackson.databind.ObjectMapper")()


def serialized(name: str, version: int, values: Fields) -> bytes:
    """The bytes that Kafka writes for a message of these values, without any version in front."""
    short = jpype.JShort(version)
    with kafka_failures():
        node = mapper().readTree(json.dumps(to_kafka_json(values)))
        message = java(name + "JsonConverter").read(node, short)
        return (
            python_bytes(
                java("org.apache.kafka.common.protocol.MessageUtil")
                .toByteBufferAccessor(message, short)
                .buffer()
            )
            or b""
        )


def read_by_kafka(name: str, version: int, data: bytes) -> Any:
    """The JSON of Kafka's own reading; tagged fields at their default are left out of it."""
    short = jpype.JShort(version)
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    with kafka_failures():
        accessor = java("org.apache.kafka.common.protocol.ByteBufferAccessor")(buffer)
        message = java(name)(accessor, short)
        return json.loads(str(java(name + "JsonConverter").write(message, short).toString()))


def without_defaults(struct: Struct, values: Fields) -> Any:
    """Our values as Kafka's JSON has them."""
    shown = {}
    for field in struct:
        if field.name in values:
            value = values[field.name]
            if field.tag is not None and value == field.default:
                continue
            shown[camel_case(field.name)] = _shown(field.type, value)
    return shown


def _shown(type_: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_, Struct):
        return without_defaults(type_, value)
    if isinstance(type_, ArrayOf):
        return [_shown(type_.element, inner) for inner in value]
    return to_kafka_json(value)


@pytest.mark.sampled(7)
@pytest.mark.item("REP-16", "REP-18")
@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
@KAFKA_SETTINGS
@given(data=st.data())
def test_what_kafka_writes_is_read_and_what_is_cut_or_changed_is_an_error_as_for_kafka(
    name: str, version: int, data: st.DataObject
):
    message, _ = MESSAGES[name]
    values = data.draw(values_of(message.fields, version))
    encoded = serialized(name, version, values)
    reader = FieldReader(encoded)
    assert message.read(reader, version) == values
    reader.require_end()
    assert read_by_kafka(name, version, encoded) == without_defaults(message.fields, values)
    if not encoded:
        return
    at = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(KafkaFailure):
        read_by_kafka(name, version, encoded[:at])
    with pytest.raises(MalformedMessageError):
        message.read(FieldReader(encoded[:at]), version)
    changed = encoded[:at] + bytes([data.draw(st.integers(0, 255))]) + encoded[at + 1 :]
    try:
        found = message.read(FieldReader(changed), version)
    except MalformedMessageError:
        return  # more is checked here: the size of a tagged field
    shown = without_defaults(message.fields, found)
    kafkas = read_by_kafka(name, version, changed)
    # Java and Python put different numbers of replacement characters for bytes that are no text.
    if "\ufffd" not in json.dumps([shown, kafkas], ensure_ascii=False):
        assert kafkas == shown


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
@KAFKA_SETTINGS
@given(data=st.data())
def test_what_is_written_has_the_bytes_that_kafka_writes(
    name: str, version: int, data: st.DataObject
):
    message, _ = MESSAGES[name]
    values = data.draw(values_of(message.fields, version))
    writer = FieldWriter()
    message.write(writer, version, values)
    assert writer.data == serialized(name, version, values)


def test_tagged_fields_that_are_not_there_have_kafkas_defaults():
    compared = 0
    for name, (message, newest) in MESSAGES.items():
        for field in message.fields:
            if field.tag is None or field.since > newest:
                continue
            value = getattr(java(name)(), camel_case(field.name))()
            compared += 1
            if isinstance(field.type, Struct):
                assert int(value.sessionTimeoutMs()) == field.default["session_timeout_ms"]
                assert value.supportedProtocols().isEmpty()
            elif isinstance(field.type, ArrayOf):
                assert (None if value is None else tuple(value)) == field.default
            elif field.type in {Type.STRING, Type.UUID}:
                assert (None if value is None else str(value.toString())) == field.default
            else:
                assert int(value) == field.default
    assert compared > 30


# --- Whole records --------------------------------------------------------------------------------


def deserialize(key: bytes, value: bytes) -> None:
    """Have Kafka's group coordinator read a record."""
    wrap = java("java.nio.ByteBuffer").wrap
    with kafka_failures():
        serde = java(COORDINATOR + "group.GroupCoordinatorRecordSerde")()
        serde.deserialize(wrap(java_bytes(key)), wrap(java_bytes(value)))


def records_of(log: Path) -> list[tuple[bytes | None, bytes | None]]:
    """The data records of a segment, as Kafka reads them."""
    records = java("org.apache.kafka.common.record.internal.FileRecords").open(
        java("java.io.File")(str(log))
    )
    found = [
        (python_bytes(record.key()), python_bytes(record.value()))
        for batch in records.batches()
        if not batch.isControlBatch()
        for record in batch
    ]
    records.close()
    return found


def internal_records(root: Path, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    logs = sorted(root.glob(f"{topic}-*/*.log"))
    return [record for log in logs for record in records_of(log)]


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Log directories that brokers left."""
    unpack_broker(tmp_path / "uncleaned")
    return [tmp_path / "uncleaned", Golden("broker-dir").unpack(tmp_path)]


@pytest.mark.thorough
@pytest.mark.item("REP-16", "REP-18")
def test_every_record_of_a_broker_is_what_kafka_reads(roots: list[Path]):
    counts = dict.fromkeys(GENERATED, 0)
    for root in roots:
        for topic, package in GENERATED.items():
            for key, value in internal_records(root, topic):
                counts[topic] += 1
                ours = decode_internal_record(topic, key, value)
                assert ours.problem is None, (ours, key, value)
                assert ours.type_id is not None
                types = INTERNAL_RECORDS[topic][ours.type_id]
                name = package + class_name(types.name)
                if types.key is not None:
                    assert key is not None
                    kafkas = read_by_kafka(name + "Key", 0, key[2:])
                    assert kafkas == without_defaults(types.key.fields, ours.key or {})
                    assert ours.is_tombstone == (value is None)
                    name += "Value"
                if value is None:
                    continue
                assert ours.version is not None
                body = value[2:] if types.key is not None else value[3:]
                kafkas = read_by_kafka(name, ours.version, body)
                assert kafkas == without_defaults(types.value.fields, ours.value or {})
    assert min(counts["__consumer_offsets"], counts["__transaction_state"]) > 50
    assert counts["__cluster_metadata"] > 100


def with_version(version: int, body: bytes) -> bytes:
    return version.to_bytes(2, "big", signed=True) + body


@pytest.mark.item("REP-16")
def test_a_type_that_kafka_does_not_have_is_unknown_to_both():
    for number in (9, 18, 24, -1, 300):
        key = with_version(number, b"\x00\x01g")
        ours = decode_internal_record("__consumer_offsets", key, with_version(0, b""))
        assert (ours.type_id, ours.problem) == (number, Problem.UNKNOWN_TYPE)
        with pytest.raises(KafkaFailure) as raised:
            deserialize(key, with_version(0, b""))
        assert "UnknownRecordType" in raised.value.java_class


@pytest.mark.item("REP-16")
def test_a_version_that_kafka_does_not_have_is_unknown_to_both():
    key = with_version(1, b"\x00\x01g\x00\x01t\x00\x00\x00\x00")
    for version in (5, -1, 100):
        value = with_version(version, bytes(40))
        ours = decode_internal_record("__consumer_offsets", key, value)
        assert (ours.version, ours.problem) == (version, Problem.UNKNOWN_VERSION)
        assert ours.key == {"group": "g", "topic": "t", "partition": 0}
        with pytest.raises(KafkaFailure) as raised:
            deserialize(key, value)
        assert "UnknownRecordVersion" in raised.value.java_class


@pytest.mark.parametrize("record", STRANGE_RECORDS, ids=lambda one: one.name)
def test_coordinators_ignore_what_we_say_that_they_ignore(record: StrangeRecord):
    """Their loaders go on after an unknown type, of transactions after an unknown version too."""
    wrap = java("java.nio.ByteBuffer").wrap
    key, value = wrap(java_bytes(record.key)), wrap(java_bytes(record.value))
    if record.topic == "__transaction_state":
        read = java(COORDINATOR + "transaction.TransactionLog").read
    elif record.topic == "__share_group_state":
        read = java(COORDINATOR + "share.ShareCoordinatorRecordSerde")().deserialize
    else:
        read = java(COORDINATOR + "group.GroupCoordinatorRecordSerde")().deserialize
    try:
        with kafka_failures():
            answer = str(read(key, value))
    except KafkaFailure as failure:
        answer = failure.java_class
    is_ignored = any(word in answer for word in ("UnknownRecordType", "UnknownKey", "UnknownValue"))
    assert is_ignored == (not record.stops_load)
    ours = decode_internal_record(record.topic, record.key, record.value)
    assert ours.problem is not None


def partitions_of(topics: tuple[Fields, ...]) -> dict[str, tuple[int, ...]]:
    return {topic["topic"]: topic["partitions"] for topic in topics}


@pytest.mark.item("REP-16")
@KAFKA_SETTINGS
@given(
    topics=st.lists(TEXTS, max_size=3),
    data=st.none() | st.binary(max_size=9),
    version=st.integers(0, 3),
)
def test_subscriptions_and_assignments_of_consumers_are_read(
    topics: list[str], data: bytes | None, version: int
):
    protocol = java("org.apache.kafka.clients.consumer.internals.ConsumerProtocol")
    plugin = "org.apache.kafka.clients.consumer.ConsumerPartitionAssignor$"
    names = java("java.util.ArrayList")(topics)
    partition = java("org.apache.kafka.common.TopicPartition")
    owned = java("java.util.ArrayList")([partition(name, 3) for name in sorted(set(topics))])
    buffer = None if data is None else java("java.nio.ByteBuffer").wrap(java_bytes(data))
    subscription = java(plugin + "Subscription")(names, buffer, owned)
    written = protocol.serializeSubscription(subscription, jpype.JShort(version))
    encoded = python_bytes(written)
    assert encoded is not None
    ours = decode_subscription(encoded)
    assert ours["topics"] == tuple(sorted(topics))
    assert ours["user_data"] == data
    if version >= 1:
        assert {t["topic"]: t["partitions"] for t in ours["owned_partitions"]} == dict.fromkeys(
            topics, (3,)
        )
    # A version of later, which only adds fields, is read as the newest.
    later = (9).to_bytes(2, "big") + encoded[2:] + b"more"
    if version == 3:
        assert decode_subscription(later) == ours
    assignment = java(plugin + "Assignment")(owned, buffer)
    written = python_bytes(protocol.serializeAssignment(assignment, jpype.JShort(version)))
    assert written is not None
    found = decode_assignment(written)
    assert {t["topic"]: t["partitions"] for t in found["assigned_partitions"]} == dict.fromkeys(
        topics, (3,)
    )
    assert found["user_data"] == data


def test_levels_of_features_are_those_that_kafka_starts_with():
    common = "org.apache.kafka.server.common."
    versions = java(common + "MetadataVersion")
    newest = int(versions.latestProduction().featureLevel())
    levels = {"metadata.version": range(int(versions.VERSIONS[0].featureLevel()), newest + 1)}
    for feature in java(common + "Feature").PRODUCTION_FEATURES:
        levels[str(feature.featureName())] = range(int(feature.latestProduction()) + 1)
    assert levels == FEATURE_LEVELS[NEWEST_RELEASE]
