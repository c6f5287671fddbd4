"""Keys and values by the schemas of a registry, whose topic lies beside them."""

import base64
import csv
import io
import json
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pylog_spark.exit_code import ExitCode
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import GOLDEN

# Written by the official serializers, with what the official deserializers give.
WRITTEN: Final = json.loads((GOLDEN / "registry" / "records.json").read_text())
BOTH: Final = ("--key-format", "registry", "--value-format", "registry")
VALUES: Final = ("--value-format", "registry")


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def write_topic(root: Path, topic: str, *records: tuple[Any, ...]) -> None:
    names = ("key", "value", "headers")
    specs = tuple(RecordSpec(**dict(zip(names, record, strict=False))) for record in records)
    batch = BatchSpec(base_offset=0, records=specs)
    write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])])


def write_schemas(root: Path, *records: tuple[Any, Any]) -> None:
    encoded = [
        (json.dumps(key).encode(), None if value is None else json.dumps(value).encode())
        for key, value in records
    ]
    write_topic(root, "_schemas", *encoded)


def schema(number: int, text: Any, **more: Any) -> tuple[Any, Any]:
    """Return a record of the registry's topic: the first version of a subject of its own."""
    key = {"keytype": "SCHEMA", "subject": f"s{number}", "version": 1, "magic": 1}
    value = {"subject": f"s{number}", "version": 1, "id": number, "schema": json.dumps(text)}
    return key | {"subject": (value | more)["subject"]}, value | more


def value_of(number: int, data: bytes) -> tuple[None, bytes]:
    return None, b"\0" + number.to_bytes(4, "big") + data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("registry")
    write_schemas(made, *WRITTEN["schemas"])
    rows = WRITTEN["orders"]
    write_topic(made, "orders", *((bytes_of(row["key"]), bytes_of(row["value"])) for row in rows))
    write_topic(made, "clicks", *((None, bytes_of(row["value"])) for row in WRITTEN["clicks"]))
    return made


def test_each_value_is_what_the_official_deserializer_gives(pylog, root):
    rows = pylog.rows("cat", root, "--topic", "orders", *BOTH)
    expected = [(row["key_is"], row["value_is"]) for row in WRITTEN["orders"]]
    assert [(row["key"], row["value"]) for row in rows] == expected
    rows = pylog.rows("cat", root, "--topic", "clicks", *VALUES)
    assert [row["value"] for row in rows] == [row["value_is"] for row in WRITTEN["clicks"]]


def test_a_topic_whose_schema_changed_becomes_a_file(pylog, root, tmp_path):
    words = ("export", root, "--topic", "orders", "--out", tmp_path / "out", "--to", "csv", *BOTH)
    pylog.done(*words, "--engine", "local")
    (file,) = (tmp_path / "out").glob("*.csv")
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    values = [json.loads(row["value"]) if row["value"] else None for row in rows]
    assert values == [row["value_is"] for row in WRITTEN["orders"]]


def test_dump_and_find_take_the_topic_too(pylog, root):
    rows = pylog.rows("dump", root, "--topic", "clicks", *VALUES)
    assert {"page": "/buy"} in [row.get("value") for row in rows]
    key = WRITTEN["orders"][0]["key"]
    words = ("find", root, "--topic", "orders", "--key", key, "--key-format", "base64", *VALUES)
    assert '"customer":"Ada"' in pylog(*words).stdout


def test_schemas_may_be_files_that_are_named_by_their_numbers(pylog, root, tmp_path):
    (tmp_path / "7.json").write_text("{}")
    (tmp_path / "README").write_text("of the registry")
    words = ("cat", root, "--topic", "clicks", *VALUES, "--schemas", tmp_path)
    assert pylog.rows(*words)[1]["value"] == {"page": "/buy"}
    (tmp_path / "7.json").rename(tmp_path / "8.avsc")
    assert "schema 7 is not in" in pylog(*words).stderr
    partition = ("dump", root / "clicks-0", *VALUES)
    assert "--schemas DIR" in pylog(*partition).stderr


RECORD: Final = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
REFERS: Final = {"type": "record", "name": "Q", "fields": [{"name": "r", "type": "R"}]}


@pytest.mark.parametrize(
    ("schemas", "value", "reason"),
    [
        ([], value_of(1, b"\x02"), "schema 1 is not in _schemas"),
        ([schema(1, "int")], (None, b"\x07\0\0\0\1\x02"), "expected 0, as a registry has it"),
        ([schema(1, "int")], (None, b"\0\0"), "expected 5 bytes, 2 are left"),
        ([schema(1, "int")], value_of(1, b"\x02\x02"), "by schema 1: position 6: expected the end"),
        ([schema(1, "interval")], value_of(1, b""), "expected an Avro schema"),
        ([schema(1, "x", schemaType="PROTOBUF")], value_of(1, b""), "expected a Protobuf schema"),
        ([schema(1, "x", schemaType="XML")], value_of(1, b""), "kind XML"),
        (
            [schema(1, REFERS, references=[{"name": "R", "subject": "r", "version": 3}])],
            value_of(1, b"\x02"),
            "refers to version 3 of r, which is not there",
        ),
        (
            [schema(1, REFERS, references=[{"name": "Q", "subject": "s1", "version": 1}])],
            value_of(1, b"\x02"),
            "refers back to it",
        ),
        (
            [schema(1, "int", subject=":.a:s"), schema(1, "long", subject=":.b:s")],
            value_of(1, b"\x02"),
            "several contexts have one: :.a:, :.b:",
        ),
        (
            [schema(1, "int"), ({"keytype": "SCHEMA"}, {"id": 2})],
            value_of(2, b"\x02"),
            r"schema 2 is not in .* \(1 record of it malformed\)",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_schema(
    pylog, tmp_path, schemas, value, reason
):
    write_schemas(tmp_path, ({"keytype": "NOOP", "magic": 0}, None), *schemas)
    write_topic(tmp_path, "t", value)
    result = pylog("cat", tmp_path, "--topic", "t", *VALUES)
    assert result.exit_code == ExitCode.USAGE
    assert "offset 0 of t-0" in result.stderr
    assert result.stderr.count("\n") == 1
    assert re.search(reason, result.stderr), result.stderr


GUID: Final = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
BY_GUID: Final = b"\1" + GUID.bytes


def test_a_header_may_name_a_schema_in_place_of_the_prefix(pylog, tmp_path):
    write_schemas(tmp_path, schema(1, "int", guid=str(GUID)), schema(2, "string"))
    both = (("other", b"\7"), ("__value_schema_id", BY_GUID), ("__key_schema_id", b"\0\0\0\0\2"))
    twice = (("__value_schema_id", b"\0\0\0\0\2"), ("__value_schema_id", BY_GUID))
    write_topic(
        tmp_path,
        "t",
        (b"\4ab", b"\2", both),
        (None, None, both),
        (None, b"\4cd", twice),
        (None, b"\0\0\0\0\1\4"),
    )
    rows = pylog.rows("cat", tmp_path, "--topic", "t", *BOTH)
    expected = [("ab", 1), (None, None), (None, "cd"), (None, 2)]
    assert [(row["key"], row["value"]) for row in rows] == expected
    # A name is of its own side alone: a value that only its key's header names has a prefix.
    write_topic(tmp_path, "u", (b"\4ab", b"\0\0\0\0\1\4", both[2:]))
    (row,) = pylog.rows("cat", tmp_path, "--topic", "u", *BOTH)
    assert (row["key"], row["value"]) == ("ab", 2)


@pytest.mark.parametrize(
    ("written", "value", "reason"),
    [
        (b"\1" + bytes(16), b"\2", "the schema with the GUID 00000000-0000-0000-0000-000000000000"),
        (b"\1" + GUID.bytes[:15], b"\2", "header __value_schema_id: expected a zero and a number"),
        (b"\0\0\0\1", b"\2", "or a one and a GUID, found 00000001"),
        (b"\7", b"\2", "found 07"),
        (b"", b"\0\0\0\0\1\2", "found nothing"),
        (None, b"\0\0\0\0\1\2", "found nothing"),
        (b"\0\0\0\0\x09", b"\2", "schema 9 is not in"),
        (BY_GUID, b"\0\0\0\0\1\2", "by schema 1: position 1: expected the end"),
    ],
)
def test_a_header_that_names_no_schema_is_an_error(pylog, tmp_path, written, value, reason):
    write_schemas(tmp_path, schema(1, "int", guid=str(GUID)))
    write_topic(tmp_path, "t", (b"k", value, (("__value_schema_id", written),)))
    for words in (("cat", "--max", 1), ("dump",), ("find", "--key", "k")):
        result = pylog(words[0], tmp_path, "--topic", "t", *words[1:], *VALUES)
        assert result.exit_code == ExitCode.USAGE, result.stdout
        assert "record at offset 0" in result.stderr
        assert reason in result.stderr, result.stderr


def test_the_default_context_counts_first_and_one_alone_counts_too(pylog, tmp_path):
    of_context = schema(2, RECORD, subject=":.dev:r")
    refers = schema(3, REFERS, subject=":.dev:q")
    refers[1]["references"] = [{"name": "R", "subject": "r", "version": 1}]
    write_schemas(
        tmp_path, schema(1, "int"), schema(1, "string", subject=":.dev:s"), of_context, refers
    )
    write_topic(tmp_path, "t", value_of(1, b"\x02"), value_of(2, b"\x04"), value_of(3, b"\x06"))
    rows = pylog.rows("cat", tmp_path, "--topic", "t", *VALUES)
    assert [row["value"] for row in rows] == [1, {"n": 2}, {"r": {"n": 3}}]


def test_without_the_topic_there_is_one_sentence(pylog, tmp_path):
    write_topic(tmp_path, "t", value_of(1, b"\x02"))
    result = pylog("cat", tmp_path, "--topic", "t", *VALUES)
    assert (result.exit_code, result.stderr.count("\n")) == (ExitCode.USAGE, 1)
    assert "no topic _schemas in" in result.stderr
    assert "--schemas DIR" in result.stderr


def test_parquet_has_typed_columns(pylog, root, tmp_path):
    words = ("export", root, "--topic", "clicks", "--engine", "local", "--to", "parquet", *VALUES)
    pylog.done(*words, "--out", tmp_path / "out", "--column", "value", "--column", "offset")
    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["value", "offset"]
    assert table["value"].to_pylist() == [
        {"page": None, "ms": None} | row["value_is"] for row in WRITTEN["clicks"]
    ]
    pylog.done(*words, "--out", tmp_path / "by", "--reader-schema", "7")
    assert pq.read_table(tmp_path / "by")["value"] == table["value"]


@pytest.fixture
def misfit(tmp_path):
    number = {"type": "object", "properties": {"n": {"type": "integer"}}}
    found = tmp_path / "root"
    write_schemas(found, schema(1, number, subject="t-value", schemaType="JSON"))
    write_topic(found, "t", value_of(1, b'{"n": 1}'), value_of(1, b'{"n": "x"}'), value_of(9, b"1"))
    return found


@pytest.mark.thorough
def test_a_value_that_does_not_fit_ends_an_export_or_is_counted(pylog, misfit, tmp_path):
    words = ("export", misfit, "--topic", "t", "--engine", "local", "--to", "delta", *VALUES)
    result = pylog(*words, "--out", tmp_path / "a")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "the value at offset 1 of t-0: by schema 1: $.n: expected integer" in result.stderr
    assert "--on-error null or raw reads on" in result.stderr
    done = pylog.done(*words, "--out", tmp_path / "a", "--on-error", "null")
    assert "2 values do not fit their schema: the value at offset 1 of t-0" in done.stdout
    (row,) = pylog.rows(*words, "--out", tmp_path / "b", "--on-error", "raw")
    assert row["misfits"] == 2
    assert "schema 9 is not in" in row["first_misfits"][1]
    table = DeltaTable(tmp_path / "b").to_pyarrow_table()
    assert table["value"].to_pylist() == [{"n": 1}, None, None]
    assert table["value_raw"].to_pylist()[2] == value_of(9, b"1")[1]


def typed(topic: str, number: int, names: str) -> tuple[Any, Any]:
    """Return the schema of a topic's values: objects with some texts."""
    text = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return schema(number, text, subject=f"{topic}-value", schemaType="JSON")


@pytest.mark.thorough
def test_each_topic_of_an_export_has_its_own_columns(pylog, tmp_path):
    root = tmp_path / "root"
    write_schemas(root, typed("a", 1, "x"), typed("b", 2, "yz"), typed("empty", 3, "q"))
    write_topic(root, "a", value_of(1, b'{"x": "1"}'))
    write_topic(root, "b", value_of(2, b'{"y": "2"}'), value_of(9, b"{}"))
    write_partition(root / "empty-0", [SegmentSpec(base_offset=0, batches=[])])
    write_topic(root, "other", (None, b"plain"))
    export = ("export", root, *VALUES, "--on-error", "raw", "--column", "value")
    for to, read in (("parquet", pq.read_table), ("delta", read_delta)):
        out = tmp_path / to
        pylog.done(*export, "--topic", "[ab]", "--topic", "empty", "--to", to, "--out", out)
        tables = {path.name: read(path) for path in out.iterdir()}
        assert sorted(tables) == ["a", "b", "empty"]
        for table in tables.values():
            assert table.column_names == ["value", "value_raw"]
        assert tables["a"]["value"].to_pylist() == [{"x": "1"}]
        assert tables["b"]["value"].to_pylist() == [{"y": "2", "z": None}, None]
        assert tables["b"]["value_raw"].to_pylist() == [None, value_of(9, b"{}")[1]]
        assert [each.name for each in tables["empty"].schema.field("value").type] == ["q"]
    refused = pylog(*export, "--topic", "[!_]*", "--to", "parquet", "--out", tmp_path / "out")
    assert refused.exit_code == ExitCode.USAGE
    assert "the value of other: no subject other-value in _schemas in" in refused.stderr
    assert "leave it out" in refused.stderr
    plan = pylog.row(
        *(*export, "--topic", "[ab]", "--to", "delta", "--out", tmp_path / "out", "--dry-run")
    )
    assert [each["most_records"] for each in plan["topics"]] == [1, 2]


def read_delta(folder: Path) -> Any:
    return DeltaTable(folder).to_pyarrow_table()


def test_one_schema_reads_several_topics_if_it_fits_all(pylog, tmp_path):
    root = tmp_path / "root"
    write_schemas(
        root, typed("a", 1, "x"), typed("b", 2, "xy"), schema(3, "int", subject="c-value")
    )
    for number, topic in enumerate("ab", 1):
        write_topic(root, topic, value_of(number, b'{"x": "1"}'))
    write_topic(root, "c", value_of(3, b"\x02"))
    words = ("--reader-schema", "1", "--to", "parquet", "--out", tmp_path / "out", *VALUES)
    refused = pylog("export", root, "--topic", "[a-c]", *words)
    assert refused.exit_code == ExitCode.PARTLY_FAILED
    assert "offset 0 of c-0: by schema 3: is of the kind AVRO, where JSON is read" in refused.stderr
    assert not (tmp_path / "out").exists()
    pylog.done("export", root, "--topic", "[ab]", *words)
    for topic in "ab":
        assert pq.read_table(tmp_path / "out" / topic)["value"].to_pylist() == [{"x": "1"}]


@pytest.mark.thorough
def test_only_a_schema_of_avro_needs_the_package_for_it(pylog, misfit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro.schema", None)
    reads_null = (*VALUES, "--on-error", "null")
    (row,) = pylog.rows("sql", misfit, "SELECT sum(value.n) AS n FROM t", *reads_null)
    assert row["n"] == 1
    (row,) = pylog.rows("cat", misfit, "--topic", "t", "--max", 1, *VALUES)
    assert row["value"] == {"n": 1}
    root = tmp_path / "avro"
    write_schemas(
        root, schema(77, {"type": "fixed", "name": "seven", "size": 7}, subject="t-value")
    )
    write_topic(root, "t", value_of(77, b"7654321"))
    for words in (("cat", root, "--topic", "t"), ("sql", root, "SELECT value FROM t")):
        refused = pylog(*words, *VALUES)
        assert refused.exit_code == ExitCode.USAGE
        assert "fastavro is not installed: pip install 'pylog-spark[avro]'" in refused.stderr


@pytest.mark.thorough
def test_logical_types_are_text_if_that_is_asked_for(pylog, tmp_path):
    types = {
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
    }
    fields = [{"name": name, "type": ["null", each]} for name, each in types.items()]
    kind = {"type": "record", "name": "R", "fields": fields}
    written = io.BytesIO()
    at = datetime(2026, 11, 30, 10, tzinfo=UTC)
    fastavro.schemaless_writer(written, kind, {"price": Decimal("12.30"), "at": at})
    root = tmp_path / "root"
    write_schemas(root, schema(1, kind))
    value = value_of(1, written.getvalue())[1]
    write_topic(root, "t", (value, value))
    words = ("cat", root, "--topic", "t", "--output", "json")
    plain = pylog.row(*words, *VALUES)["value"]
    assert plain == {"price": "\u0004\u00ce", "at": at.timestamp() * 1000}
    row = pylog.row(*words, *BOTH, "--logical-types")
    assert row["key"] == row["value"] == {"price": "12.30", "at": "2026-11-30T10:00:00.000Z"}
    out = tmp_path / "out"
    export = ("export", root, "--topic", "t", "--to", "jsonl", "--out", out, *VALUES)
    pylog.done(*export, "--logical-types", "--engine", "local")
    (file,) = out.glob("*.jsonl")
    assert json.loads(file.read_text())["value"]["price"] == "12.30"
    refused = pylog(*words, "--value-format", "json", "--logical-types")
    assert refused.exit_code == ExitCode.USAGE
    assert "--logical-types" in refused.stderr


NODE: Final = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}


def test_a_schema_that_is_refused_is_named_with_what_reads_the_topic(pylog, tmp_path):
    write_schemas(tmp_path, schema(5, NODE, subject="t-value"))
    write_topic(tmp_path, "t", value_of(5, b"\x02\x02\x04\x00"))
    refused = pylog("sql", tmp_path, "SELECT value FROM t", *VALUES)
    assert refused.exit_code == ExitCode.USAGE
    assert (
        "the value of t: schema 5, version 1 of t-value: record Node has itself" in refused.stderr
    )
    assert "another --value-format than registry leaves it as it is" in refused.stderr
    assert pylog.row("cat", tmp_path, "--topic", "t", *VALUES)["value"] == {
        "n": 1,
        "next": {"n": 2, "next": None},
    }


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (value_of(2, b"[" * 100 + b"]" * 100), "by schema 2: is nested more than 64 levels deep"),
        (value_of(9, b"\x02"), "schema 9 is not in _schemas"),
    ],
)
def test_cat_has_printed_the_records_before_one_that_does_not_fit(pylog, tmp_path, bad, reason):
    json_schema = schema(2, {}, subject="json", schemaType="JSON")
    write_schemas(tmp_path, schema(1, RECORD, subject="t-value"), json_schema)
    write_topic(tmp_path, "t", value_of(1, b"\x02"), bad, value_of(1, b"\x04"))
    for form in (("-f", "%o %s\n"), ("--output", "json")):
        done = pylog("cat", tmp_path, "--topic", "t", *form, *VALUES)
        assert done.exit_code == ExitCode.USAGE
        assert f"offset 1 of t-0 is not: {reason}" in done.stderr
        (line,) = done.stdout.splitlines()
        assert line == '0 {"n":1}' if form[0] == "-f" else json.loads(line)["value"] == {"n": 1}


def test_cat_has_printed_the_records_before_the_first_of_several_that_do_not_fit(pylog, tmp_path):
    write_schemas(tmp_path, schema(1, RECORD))
    good = value_of(1, b"\x02")[1]
    write_topic(tmp_path, "t", (good, good), (good, b"x"), (b"x", good))
    done = pylog("cat", tmp_path, "--topic", "t", "-f", "%o %k %s\n", *BOTH)
    assert done.stdout == '0 {"n":1} {"n":1}\n'
    assert "offset 1 of t-0" in done.stderr


@pytest.mark.thorough
def test_sql_reaches_into_typed_columns(pylog, root, misfit, caplog):
    query = 'SELECT value.page, "offset" FROM clicks WHERE value.ms IS NULL'
    (row,) = pylog.rows("sql", root, query, *VALUES)
    assert (row["page"], row["offset"]) == ("/buy", 1)
    result = pylog("sql", misfit, "SELECT value.n FROM t", *VALUES)
    assert result.exit_code == ExitCode.USAGE
    assert "--value-format=registry: the value at offset 1 of t-0" in result.stderr
    pylog.done("sql", misfit, "SELECT sum(value.n) FROM t", *VALUES, "--on-error", "null")
    assert caplog.messages[0].startswith("2 values do not fit their schema: the value at offset 1")


@pytest.mark.thorough
def test_columns_are_those_of_the_message_that_is_named(pylog, tmp_path):
    text = 'syntax = "proto3"; message A { int32 n = 1; } message B { string s = 1; }'
    record = schema(1, "", subject="t-value", schemaType="PROTOBUF")
    record[1]["schema"] = text
    write_schemas(tmp_path / "root", record)
    write_topic(tmp_path / "root", "t", value_of(1, b"\2\2\x0a\1x"))
    words = (*VALUES, "--reader-message", "B")
    assert pylog.rows("sql", tmp_path / "root", "SELECT value.s FROM t", *words)[0]["s"] == "x"
    out = ("--to", "parquet", "--out", tmp_path / "out", "--engine", "local")
    pylog.done("export", tmp_path / "root", "--topic", "t", *out, *words)
    assert pq.read_table(tmp_path / "out")["value"].to_pylist() == [{"s": "x"}]
    result = pylog(
        "sql", tmp_path / "root", "SELECT value FROM t", *VALUES, "--reader-message", "C"
    )
    assert result.exit_code == ExitCode.USAGE
    assert "--reader-message=C: the value of t: " in result.stderr
    result = pylog("sql", tmp_path / "root", "SELECT 1 FROM t", "--reader-message", "B")
    assert "--reader-message=B: is for --value-format registry" in result.stderr


@pytest.mark.thorough
def test_options_of_columns_are_for_columns(pylog, misfit, tmp_path):
    result = pylog("sql", misfit, "SELECT 1 FROM t", "--reader-schema", "1")
    assert "--reader-schema=1: is for --value-format registry" in result.stderr
    words = ("export", misfit, "--topic", "t", "--out", tmp_path / "out", *VALUES)
    result = pylog(*words, "--to", "csv", "--on-error", "null")
    assert "--on-error=null: is for columns, which --to parquet and" in result.stderr
    result = pylog(*words, "--to", "parquet", "--reader-schema", "none.avsc")
    assert "--reader-schema=none.avsc: " in result.stderr
    (tmp_path / "torn.avsc").write_text("{")
    result = pylog(*words, "--to", "parquet", "--reader-schema", tmp_path / "torn.avsc")
    assert "the value of t: the schema in that file: expected an Avro schema" in result.stderr


PROTOBUF: Final = json.loads((GOLDEN / "registry" / "protobuf.json").read_text())


def test_protobuf_is_shown_as_its_official_json(pylog, tmp_path):
    schemas = [
        (
            {"keytype": "SCHEMA", "subject": each["subject"], "version": each["version"]},
            {name: value for name, value in each.items() if value},
        )
        for each in PROTOBUF["registered"]
    ]
    write_schemas(tmp_path, *schemas)
    values = [(None, bytes_of(row["value"])) for row in PROTOBUF["orders"]]
    write_topic(tmp_path, "orders", *values, value_of(4, b"\2\2\x08"))
    rows = pylog.rows("cat", tmp_path, "--topic", "orders", "--max", len(values), *VALUES)
    assert [row["value"] for row in rows] == [row["json"] for row in PROTOBUF["orders"]]
    said = pylog("cat", tmp_path, "--topic", "orders", *VALUES).stderr
    assert re.search(r"by schema 4 of _schemas in .*: position 3: expected a varint", said), said
