"""Keys and values as columns by the schemas of a registry, in every way to read them."""

import base64
import copy
import datetime as dt
import decimal
import json
import logging
import pickle
import re
import uuid
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.errors import ConfigError
from storage_core.values.registry_columns import plain_names
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import GOLDEN

# Written by the official serializers, with what the official deserializers give by the newest
# schema of each topic: four versions of Avro and of JSON, two of Protobuf, with references and
# nulls, and schemas that are named in headers.
WRITTEN: Final = json.loads((GOLDEN / "registry" / "typed.json").read_text())
TOPICS: Final = ["orders", "parcels", "clicks", "hops"]
NAMES: Final = {"type": "object", "properties": {"n": {"type": "integer"}}}
TYPED: Final[dict[str, Any]] = {"value_format": "registry"}


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def write_topic(root: Path, topic: str, *records: RecordSpec) -> None:
    batch = BatchSpec(base_offset=0, records=records)
    write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])])


def write_schemas(root: Path, *records: tuple[Any, Any]) -> None:
    encoded = [
        RecordSpec(
            key=json.dumps(key).encode(),
            value=None if value is None else json.dumps(value).encode(),
        )
        for key, value in records
    ]
    write_topic(root, "_schemas", *encoded)


def version(
    subject: str, number: int, text: Any, *, version: int = 1, kind: str = "JSON", **more: Any
) -> tuple[Any, Any]:
    """Return the record of a version."""
    named = {"subject": subject, "version": version}
    schema = text if isinstance(text, str) else json.dumps(text)
    value = named | {"id": number, "schema": schema, "schemaType": kind}
    return {"keytype": "SCHEMA", "magic": 1} | named, value | more


def value_of(number: int, content: Any) -> RecordSpec:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return RecordSpec(key=None, value=b"\0" + number.to_bytes(4, "big") + data)


def plain(value: Any) -> Any:
    """Return a value as the golden file has it; maps as each library has them."""
    match value:
        case {"tags": list(tags), "lines": _} | {"tags": list(tags), "items": _}:
            pairs = [each.values() if isinstance(each, dict) else each for each in tags]
            return plain(value | {"tags": dict(map(tuple, pairs))})
        case decimal.Decimal() | uuid.UUID():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def write_golden(made: Path) -> Path:
    """Write the topics of the golden file."""
    write_schemas(made, *WRITTEN["schemas"])
    for topic in TOPICS:
        records = [
            RecordSpec(
                key=None,
                value=bytes_of(row["value"]),
                headers=tuple((key, bytes_of(text)) for key, text in row.get("headers", ())),
            )
            for row in WRITTEN[topic]
        ]
        write_topic(made, topic, *records)
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden(tmp_path_factory.mktemp("typed"))


def expected(topic: str) -> list[Any]:
    """Return what the official deserializer gives, with all columns and objects of any names as
    text."""
    rows = copy.deepcopy([row["value_is"] for row in WRITTEN[topic]])
    if topic == "clicks":
        for row in filter(None, rows):
            for name in ("id", "page", "ms", "from", "tags", "more"):
                row.setdefault(name, None)
            if row["more"] is not None:
                row["more"] = json.dumps(row["more"], separators=(",", ":"))
    if topic == "hops":
        for row in rows:
            row.setdefault("ms", None)
    return rows


@pytest.mark.parametrize("topic", TOPICS)
def test_each_value_is_what_the_official_deserializer_gives(root, topic):
    records = kafka_log.open_logs(root).read(topic, columns=["value"], **TYPED)
    table = records.to_table()
    assert table.schema == records.schema
    assert pa.types.is_struct(records.schema.field("value").type)
    assert plain(table["value"].to_pylist()) == expected(topic)
    assert pickle.loads(pickle.dumps(records)).to_table() == table
    assert [part.to_table() for part in records.parts(1)] == [table]


@pytest.mark.parametrize("topic", TOPICS)
def test_each_reader_gives_the_same(root, topic):
    logs = kafka_log.open_logs(root)
    rows = expected(topic)
    assert plain(logs.read(topic, **TYPED).to_pandas()["value"].map(tidy).tolist()) == rows
    assert plain(logs.scan(topic, **TYPED).collect()["value"].to_list()) == rows
    answer = query(logs.dataset(topic, **TYPED), 'SELECT value FROM found ORDER BY "offset"')
    assert plain([row[0] for row in answer]) == rows


def query(dataset: Any, text: str) -> list[Any]:
    with duckdb.connect() as connection:
        connection.register("found", dataset)
        rows: list[Any] = connection.execute(text).fetchall()
        return rows


def tidy(value: Any) -> Any:
    """Return what pandas has without NumPy's arrays."""
    if isinstance(value, dict):
        return {name: tidy(each) for name, each in value.items()}
    return [tidy(each) for each in value] if hasattr(value, "tolist") else value


def test_a_query_reaches_into_a_column(root):
    logs = kafka_log.open_logs(root)
    found = logs.dataset("clicks", **TYPED)
    text = 'SELECT value.page, "offset" FROM found WHERE value.ms > 5 AND "offset" < 2'
    assert query(found, text) == [("/buy", 1)]
    lazy = logs.scan("clicks", **TYPED).filter(pl.col("value").struct.field("ms") > 5)
    assert lazy.select(pl.col("offset")).collect()["offset"].to_list() == [1, 2]


def test_keys_and_values_have_subjects_of_their_own(tmp_path):
    write_schemas(
        tmp_path,
        version("t-key", 1, {"type": "string"}),
        version("t-value", 2, {"type": "integer"}),
    )
    record = RecordSpec(key=b'\0\0\0\0\1"a"', value=b"\0\0\0\0\x027")
    write_topic(tmp_path, "t", record)
    logs = kafka_log.open_logs(tmp_path)
    both = {"key_format": "registry", **TYPED}
    assert logs.read("t", columns=["key", "value"], **both).to_table().to_pylist() == [
        {"key": "a", "value": 7}
    ]
    alone = logs.read("t", columns=["key", "value"], key_format="registry", reader_schema=1)
    assert alone.to_table().to_pylist() == [{"key": "a", "value": record.value}]


def test_the_newest_version_reads_that_is_not_deleted(tmp_path):
    texts = [{"properties": {name: {"type": "integer"}}} for name in "abcd"]
    versions = [version("t-value", n, texts[n - 1], version=n) for n in (1, 2, 3, 4)]
    versions[1][1]["deleted"] = True
    gone = {"keytype": "DELETE_SUBJECT", "subject": "t-value", "magic": 0}
    write_topic(tmp_path, "t", value_of(3, {"a": 1, "b": 2, "c": 3, "d": 4}))

    def columns_by(*records: tuple[Any, Any]) -> list[str]:
        write_schemas(tmp_path, *records)
        logs = kafka_log.open_logs(tmp_path)
        ((field),) = logs.read("t", columns=["value"], **TYPED).schema
        return [each.name for each in field.type]

    assert columns_by(*versions) == ["d"]
    assert columns_by(*versions, (versions[3][0], None)) == ["c"]
    deleted = (gone, {"subject": "t-value", "version": 3})
    assert columns_by(*versions[:3], deleted) == ["c"]
    assert columns_by(*versions, deleted) == ["d"]
    assert columns_by(*versions[:2]) == ["a"]


def test_a_reader_chooses_another_schema(tmp_path):
    write_schemas(tmp_path, version("s", 7, NAMES))
    write_topic(tmp_path, "t", value_of(7, {"n": 1, "m": 2}))
    logs = kafka_log.open_logs(tmp_path)
    with pytest.raises(
        ConfigError, match=r"no subject t-value in _schemas .*there are s\): read the topic alone"
    ):
        logs.read("t", **TYPED)
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"properties": {"m": {"type": "number"}}}))
    for reader, value in ((7, {"n": 1}), (file, {"m": 2.0}), (str(file), {"m": 2.0})):
        records = logs.read("t", columns=["value"], reader_schema=reader, **TYPED)
        assert records.to_table()["value"].to_pylist() == [value]
    (tmp_path / "7.json").write_text(json.dumps(NAMES))
    alone = logs.read("t", columns=["value"], schemas=tmp_path, **TYPED)
    assert alone.to_table()["value"].to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"value_format": "avro"}, "expected registry, or nothing"),
        ({"on_error": "skip", **TYPED}, "expected one of: fail, null, raw"),
        ({"reader_schema": 7}, "is for value_format=registry"),
        ({"reader_schema": 8, **TYPED}, "schema 8 is not in"),
        ({"reader_schema": "schema.xsd", **TYPED}, "ends with one of .avsc, .json, .proto"),
        ({"reader_schema": "no.json", **TYPED}, "No such file"),
        ({"reader_schema": 1, **TYPED}, "kind XML, which is not decoded"),
        ({"reader_schema": 2, **TYPED}, "expected a JSON schema"),
        ({"schemas": "/nowhere", **TYPED}, "No such file"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_read(tmp_path, wrong, reason):
    write_schemas(tmp_path, version("s", 1, "x", kind="XML"), version("s", 2, [], version=2))
    write_topic(tmp_path, "t", value_of(7, {}))
    logs = kafka_log.open_logs(tmp_path)
    for read in (logs.read, logs.scan, logs.dataset):
        with pytest.raises(ConfigError, match=reason):
            read("t", **wrong)
    with pytest.raises(ConfigError, match="no topic _schemas in"):
        kafka_log.open_logs(tmp_path / "t-0").read("t", **TYPED)


def test_topics_of_one_reading_have_the_same_columns(tmp_path):
    write_schemas(
        tmp_path,
        version("a-value", 1, NAMES),
        version("b-value", 2, NAMES | {"title": "b"}),
        version("c-value", 3, {"type": "string"}),
    )
    write_topic(tmp_path, "a", value_of(1, {"n": 1}))
    write_topic(tmp_path, "b", value_of(2, {"n": 2}))
    write_topic(tmp_path, "c", value_of(3, "x"))
    logs = kafka_log.open_logs(tmp_path)
    both = logs.read(["a", "b"], columns=["value"], **TYPED)
    assert both.to_table()["value"].to_pylist() == [{"n": 1}, {"n": 2}]
    with pytest.raises(ConfigError, match="a and c have other columns: read one at a time"):
        logs.read(["a", "c"], **TYPED)


CYCLE: Final = [{"name": "x", "subject": "x", "version": 1}]
GUID: Final = uuid.UUID("8d0ed4a8-6e28-4bb4-a2a0-eb0d7ad1a3fd")
BAD: Final[list[tuple[RecordSpec, str]]] = [
    (RecordSpec(key=None, value=b""), "position 0: expected 5 bytes, 0 are left"),
    (RecordSpec(key=None, value=b"\0\0\0\0"), "position 0: expected 5 bytes, 4 are left"),
    (RecordSpec(key=None, value=b'{"n": 1}'), "expected 0, as a registry has it, found 123"),
    (RecordSpec(key=None, value=b"\3\5" + b"u" * 16 + b"x"), "as AWS Glue's serializers write it"),
    (
        RecordSpec(key=None, value=b"\1x", headers=(("apicurio.value.globalId", b"\1"),)),
        "Apicurio's headers name its schema, which are not read",
    ),
    (value_of(1, {"n": "x"}), 'by schema 1: $.n: expected integer, found string "x"'),
    (value_of(2, {"n": 1}), "schema 2 of .*: refers to version 1 of x, which refers back to it"),
    (value_of(3, {"n": 1}), "refers to version 9 of s, which is not there"),
    (value_of(4, {"n": 1}), "is of the kind AVRO, where JSON is read"),
    (value_of(5, {"n": 1}), "several contexts have one: :.a:, :.b:"),
    (value_of(6, {"n": 1}), "schema 6 is not in _schemas in"),
    (value_of(1, b"[" * 100_000), "by schema 1: is nested more than 64 levels deep"),
    (
        RecordSpec(key=None, value=b"{}", headers=(("__value_schema_id", b"\1" + GUID.bytes),)),
        f"the schema with the GUID {GUID} is not in",
    ),
    (
        RecordSpec(key=None, value=b"{}", headers=(("__value_schema_id", b"\7"),)),
        "header __value_schema_id: expected a zero and a number, or a one and a GUID, found 07",
    ),
    (
        RecordSpec(key=None, value=b"{}", headers=(("__value_schema_id", None),)),
        "or a one and a GUID, found nothing",
    ),
]


def write_bad(root: Path, *records: RecordSpec) -> kafka_log.Logs:
    write_schemas(
        root,
        version("t-value", 1, NAMES),
        version("x", 2, NAMES, references=CYCLE),
        version("y", 3, NAMES, references=[{"name": "s", "subject": "s", "version": 9}]),
        version("z", 4, "int", kind="AVRO"),
        version(":.a:s", 5, NAMES),
        version(":.b:s", 5, NAMES),
    )
    write_topic(root, "t", *records)
    return kafka_log.open_logs(root)


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_a_value_that_does_not_fit_is_named_and_nothing_else_is_lost(tmp_path, record, reason):
    good = [value_of(1, {"n": number}) for number in range(4)]
    logs = write_bad(tmp_path, *good, record, RecordSpec(key=None, value=None))
    where = "the value at offset 4 of t-0: "
    with pytest.raises(ConfigError, match=f"{where}.*on_error null or raw reads on") as failure:
        logs.read("t", **TYPED).to_table()
    text = str(failure.value)
    assert re.search(reason.replace("$", r"\$"), text), text
    rows = [{"n": number} for number in range(4)]
    read = logs.read("t", columns=["value", "offset"], on_error="null", **TYPED)
    assert read.to_table()["value"].to_pylist() == [*rows, None, None]
    raw = logs.read("t", columns=["value", "offset"], on_error="raw", **TYPED)
    assert raw.schema.names == ["value", "value_raw", "offset"]
    assert raw.to_table()["value"].to_pylist() == [*rows, None, None]
    assert raw.to_table()["value_raw"].to_pylist() == [None] * 4 + [record.value, None]
    assert raw.to_polars()["value_raw"].to_list() == [None] * 4 + [record.value, None]


def test_misfits_are_counted_and_the_first_are_named(tmp_path, caplog):
    bad = [record for record, _ in BAD]
    logs = write_bad(tmp_path, *bad, value_of(1, {"n": 7}))
    with caplog.at_level(logging.WARNING):
        table = logs.read("t", columns=["value"], on_error="null", **TYPED).to_table()
    assert table["value"].to_pylist() == [None] * len(bad) + [{"n": 7}]
    (warning,) = caplog.messages
    assert warning.startswith(f"{len(bad)} values do not fit their schema: the value at offset 0")
    assert "offset 9 of t-0" in warning
    assert "offset 10 of t-0" not in warning
    assert warning.endswith("; ...")
    frame = logs.scan("t", on_error="raw", **TYPED).select("value_raw", "offset").collect()
    assert frame["value_raw"].to_list() == [*(record.value for record in bad), None]


def test_schemas_are_named_in_headers_beside_others(tmp_path):
    write_schemas(tmp_path, version("t-value", 1, NAMES, guid=str(GUID)))
    header = (
        ("other", None),
        ("__value_schema_id", b"\1" + GUID.bytes),
        ("__value_schema_id", b""),
    )
    by_number = (("__value_schema_id", b"\0\0\0\0\1"),)
    write_topic(
        tmp_path,
        "t",
        value_of(1, {"n": 1}),
        RecordSpec(key=None, value=b'{"n": 2}', headers=header),
        RecordSpec(key=None, value=None, headers=header),
        RecordSpec(key=None, value=b'{"n": 3}', headers=by_number),
        value_of(1, {"n": 4}),
    )
    table = kafka_log.open_logs(tmp_path).read("t", columns=["value"], **TYPED).to_table()
    assert table["value"].to_pylist() == [{"n": 1}, {"n": 2}, None, {"n": 3}, {"n": 4}]


PROTO_1: Final = """
syntax = "proto3";
package shop;
message Order { int32 n = 1; message Line { string sku = 1; } map<string, int32> tags = 2; }
message Refund { string why = 1; }
"""
PROTO_2: Final = PROTO_1.replace(
    "message Refund {", "message Gift {} message Refund { int32 n = 2;"
)
OF_ORDER: Final = value_of(1, b"\0\x08\7")
OF_LINE: Final = value_of(1, b"\4\0\0\x0a\1y")
OF_REFUND: Final = value_of(1, b"\2\2\x0a\1x")
OF_NEW_REFUND: Final = value_of(2, b"\2\4\x0a\1x\x10\5")
GIFT: Final = value_of(2, b"\2\2")
REFUNDS: Final = {"reader_message": "shop.Refund", **TYPED}


def write_messages(root: Path, *records: RecordSpec) -> kafka_log.Logs:
    write_schemas(
        root,
        version("t-value", 1, PROTO_1, kind="PROTOBUF"),
        version("t-value", 2, PROTO_2, kind="PROTOBUF", version=2),
        version("j-value", 3, NAMES),
    )
    write_topic(root, "t", *records)
    write_topic(root, "j", value_of(3, {"n": 1}))
    return kafka_log.open_logs(root)


def test_a_message_of_protobuf_is_chosen_by_its_name(tmp_path):
    logs = write_messages(tmp_path, OF_REFUND, OF_NEW_REFUND, RecordSpec(key=None, value=None))
    rows = [{"why": "x", "n": 0}, {"why": "x", "n": 5}, None]
    assert logs.read("t", columns=["value"], **REFUNDS).to_table()["value"].to_pylist() == rows
    assert logs.scan("t", **REFUNDS).collect()["value"].to_list() == rows
    found = logs.dataset("t", **REFUNDS)
    assert query(found, "SELECT value.n FROM found WHERE value.why = 'x' ORDER BY 1") == [
        (0,),
        (5,),
    ]
    older = logs.read("t", columns=["value"], reader_schema=1, **REFUNDS)
    assert older.to_table()["value"].to_pylist() == [{"why": "x"}, {"why": "x"}, None]
    pickled = pickle.loads(pickle.dumps(older))  # its own
    assert pickled.to_table() == older.to_table()


def test_values_of_other_messages_do_not_fit_the_chosen_one(tmp_path):
    logs = write_messages(tmp_path, OF_ORDER, OF_LINE, OF_REFUND, GIFT)
    lines = TYPED | {"reader_message": "shop.Order.Line", "on_error": "null"}
    read = logs.read("t", columns=["value"], **lines).to_table()
    assert read["value"].to_pylist() == [None, {"sku": "y"}, None, None]
    with pytest.raises(ConfigError, match=r"offset 0 of t-0: .*shop\.Order"):
        logs.read("t", columns=["value"], **REFUNDS).to_table()
    orders = logs.read("t", columns=["value"], on_error="null", **TYPED).to_table()
    assert orders["value"].to_pylist() == [{"n": 7, "tags": []}, None, None, None]


@pytest.mark.parametrize(
    ("topic", "how", "reason"),
    [
        ("t", TYPED | {"reader_message": "Refund"}, "the value of t: .*has no message Refund"),
        ("t", TYPED | {"reader_message": ""}, "the value of t: .*has no message "),
        ("t", TYPED | {"reader_message": "shop.Order.TagsEntry"}, "is an entry of a map"),
        ("t", TYPED | {"reader_message": "google.protobuf.Any"}, "has no message"),
        ("j", REFUNDS, "the value of j: its schema is of the kind JSON"),
        ("t", {"reader_message": "shop.Refund"}, "is for value_format=registry"),
    ],
)
def test_a_message_that_is_none_of_the_schema_is_refused(tmp_path, topic, how, reason):
    logs = write_messages(tmp_path, OF_REFUND)
    with pytest.raises(ConfigError, match=f"reader_message=.*{reason}"):
        logs.read(topic, **how)


def test_names_that_databases_do_not_tell_apart_get_numbers(tmp_path):
    names = ["id", "ID", "id_2", "a.b", "select", "", 'q"uote', "Id"]
    inner = {"type": "array", "items": {"properties": {n: {"type": "integer"} for n in names}}}
    write_schemas(tmp_path, version("t-value", 1, {"properties": {"rows": inner}}))
    row = {name: number for number, name in enumerate(names)}
    write_topic(tmp_path, "t", value_of(1, {"rows": [row]}))
    logs = kafka_log.open_logs(tmp_path)
    shown = ["id", "ID_2", "id_2_2", "a.b", "select", "_", 'q"uote', "Id_3"]
    expected = [{"rows": [dict(zip(shown, range(8), strict=True))]}]
    assert logs.read("t", columns=["value"], **TYPED).to_table()["value"].to_pylist() == expected
    found = logs.dataset("t", **TYPED)
    (answer,) = query(found, 'SELECT value, value.rows[1]."ID_2" FROM found')
    assert answer == (expected[0], 1)


def test_names_within_maps_and_lists_are_told_apart():
    both = pa.struct([("a", pa.int8()), ("A", pa.int8())])
    one = pa.struct([("a", pa.int8()), ("A_2", pa.int8())])
    for kind in (pa.list_, pa.large_list, lambda each: pa.map_(pa.string(), each)):
        assert plain_names(kind(both)) == kind(one)
