"""Topics of a broker and its registry: in every way to read them as columns, each key and value is
what the official deserializers give by the newest schema."""

import csv
import json
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pylog_spark.source import register
from storage_core import kafka_log
from tests.kit.registered_broker import decoded_records, unpack_registered

TOPICS = ("customers", "orders", "payments", "page-views", "refunds")
PLACE = ("partition", "offset")
TYPED = {"value_format": "registry", "columns": [*PLACE, "value"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_registered(tmp_path_factory.mktemp("registered") / "broker")


@pytest.fixture(scope="module")
def logs(root: Path) -> kafka_log.Logs:
    return kafka_log.open_logs(str(root))


def official(value: Any, kind: pa.DataType) -> Any:
    """Return what a deserializer gave as Arrow has it in a column of a type."""
    if value is None:
        return None
    text = next(iter(value.values()), None) if isinstance(value, dict) else value
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        if fields.keys() == {"string", "Damage"}:  # a union, of which the other side has the value
            value = {"string": value} if isinstance(value, str) else {"Damage": value}
        assert value.keys() <= fields.keys()
        value = {name: official(value.get(name), type_) for name, type_ in fields.items()}
    elif pa.types.is_list(kind):
        value = [official(each, kind.value_type) for each in value]
    elif pa.types.is_map(kind):
        value = {name: official(each, kind.item_type) for name, each in value.items()}
    elif pa.types.is_timestamp(kind):
        value = datetime.fromisoformat(text)
    elif pa.types.is_date(kind):
        value = date.fromisoformat(text)
    elif pa.types.is_decimal(kind):
        value = Decimal(text)
    elif pa.types.is_binary(kind):
        value = b64decode(text)
    elif pa.types.is_integer(kind):  # of 64 bits, Protobuf's JSON makes texts
        value = int(value)
    return value


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a library as Arrow has it in a column of a type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        assert list(value) == [field.name for field in kind]
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        pairs = [pair.values() if isinstance(pair, dict) else pair for pair in pairs]
        return {name: plain(each, kind.item_type) for name, each in pairs}
    if pa.types.is_timestamp(kind):
        assert value.tzinfo is not None
        return value.astimezone(UTC)
    return value


def by_arrow(logs: kafka_log.Logs, topic: str, _: Path) -> pa.Table:
    return logs.read(topic, **TYPED).to_table()


def by_pandas(logs: kafka_log.Logs, topic: str, _: Path) -> Any:
    return logs.read(topic, **TYPED).to_pandas()


def by_polars(logs: kafka_log.Logs, topic: str, _: Path) -> pl.DataFrame:
    return logs.scan(topic, value_format="registry").select(*PLACE, "value").collect()


def by_duckdb(logs: kafka_log.Logs, topic: str, _: Path) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("records", logs.dataset(topic, value_format="registry"))
        return connection.sql('SELECT partition, "offset", value FROM records').to_arrow_table()


def rows_of(table: Any) -> list[tuple[int, int, Any]]:
    """Return places and values of a table of any library."""
    match table:
        case pa.Table():
            columns = [table[name].to_pylist() for name in (*PLACE, "value")]
        case pl.DataFrame():
            columns = [table[name].to_list() for name in (*PLACE, "value")]
        case _:
            columns = [list(table[name]) for name in (*PLACE, "value")]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


def expected(topic: str, kind: pa.DataType) -> list[tuple[int, int, Any]]:
    return [
        (row["partition"], row["offset"], official(row["value"], kind))
        for row in decoded_records(topic)
    ]


def check(logs: kafka_log.Logs, topic: str, table: Any) -> None:
    kind = logs.read(topic, **TYPED).schema.field("value").type
    found = [(*place, plain(value, kind)) for *place, value in rows_of(table)]
    assert found == expected(topic, kind)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("read", [by_arrow, by_pandas, by_polars, by_duckdb])
def test_values_are_those_of_the_official_deserializer(
    logs, tmp_path, topic, read: Callable[..., Any]
):
    check(logs, topic, read(logs, topic, tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("topic", TOPICS)
def test_a_file_has_them_too(pylog, logs, root, tmp_path, topic):
    words = ("--topic", topic, "--value-format", "registry", "--engine", "local")
    pylog.done("export", root, *words, "--to", "parquet", "--out", tmp_path / "out")
    check(logs, topic, pq.read_table(tmp_path / "out"))


def check_export_of_all(
    pylog: Any, logs: kafka_log.Logs, root: Path, out: Path, *, to: str, engine: str
) -> None:
    words = ("--topic", "[!_]*", "--value-format", "registry", "--engine", engine)
    row = pylog.row("export", root, *words, "--to", to, "--out", out)
    assert [each["topic"] for each in row["topics"]] == sorted(TOPICS)
    for topic in TOPICS:
        folder = out / topic
        is_table = to == "delta"
        table = DeltaTable(folder).to_pyarrow_table() if is_table else pq.read_table(folder)
        check(logs, topic, table)


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["parquet", "delta"])
def test_an_export_of_all_topics_has_the_columns_of_each(pylog, logs, root, tmp_path, to):
    check_export_of_all(pylog, logs, root, tmp_path / "out", to=to, engine="local")


@pytest.mark.spark
@pytest.mark.thorough
def test_spark_exports_all_topics_likewise(spark, pylog, logs, root, tmp_path):
    del spark
    check_export_of_all(pylog, logs, root, tmp_path / "out", to="parquet", engine="spark")


def test_keys_are_columns_as_well(logs):
    records = logs.read("customers", columns=[*PLACE, "key"], key_format="registry")
    assert records.schema.field("key").type == pa.int64()
    assert records.to_table()["key"].to_pylist() == [
        row["key"] for row in decoded_records("customers")
    ]


def by_cat(pylog: Any, root: Path, _: Path) -> list[Any]:
    words = ("--topic", "refunds", "--value-format", "registry")
    rows = pylog.rows("cat", root, *words)
    formatted = pylog.done("cat", root, *words, "--format", "%s\\n").stdout.splitlines()
    assert list(map(json.loads, formatted)) == [row["value"] for row in rows]
    return [row["value"] for row in rows]


def by_dump(pylog: Any, root: Path, _: Path) -> list[Any]:
    words = ("dump", root, "--topic", "refunds", "--value-format", "registry")
    values = [row["value"] for row in pylog.rows(*words) if row["type"] == "record"]
    assert f" = {json.dumps(values[0], separators=(',', ':'))}  [" in pylog.done(*words).stdout
    return values


def by_find(pylog: Any, root: Path, _: Path) -> list[Any]:
    keys = [word for row in decoded_records("refunds") for word in ("--key", row["key"])]
    words = ("find", root, "--topic", "refunds", "--value-format", "registry", *keys)
    rows = [row for row in pylog.rows(*words) if row["type"] == "version"]
    assert not any("headers" in row for row in rows)
    return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]


def by_export(to: str) -> Callable[..., list[Any]]:
    def read(pylog: Any, root: Path, out: Path) -> list[Any]:
        words = ("--topic", "refunds", "--value-format", "registry", "--engine", "local")
        column = ("--column", "value") if to == "csv" else ()
        pylog.done("export", root, *words, "--to", to, "--out", out / "out", *column)
        (file,) = (out / "out").glob(f"*.{to}")
        with file.open(newline="") as opened:
            if to == "csv":
                return [json.loads(row["value"]) for row in csv.DictReader(opened)]
            return [json.loads(each)["value"] for each in opened]

    return read


def as_avro_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return a refund as its text form has it: of the decimal and of bytes the bytes."""
    cents = int(Decimal(value["amount"]["decimal"]).scaleb(2))
    reason = value["reason"]
    if isinstance(reason, dict):
        reason = {"photo": b64decode(reason["photo"]["bytes"]).decode("latin-1")}
    size = (cents.bit_length() + 8) // 8  # with a sign
    amount = cents.to_bytes(size, "big", signed=True).decode("latin-1")
    return {"order": value["order"], "amount": amount, "reason": reason}


@pytest.mark.thorough
@pytest.mark.parametrize("read", [by_cat, by_dump, by_find, by_export("csv"), by_export("jsonl")])
def test_texts_are_read_by_the_schema_that_a_header_names(pylog, root, tmp_path, read):
    expected = [as_avro_json(row["value"]) for row in decoded_records("refunds")]
    assert len({str(each["reason"])[:4] for each in expected}) == 3
    assert read(pylog, root, tmp_path) == expected


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("topic", TOPICS)
def test_spark_has_them_too(spark, logs, root, topic):
    register(spark)
    options = {"subscribe": topic, "valueFormat": "registry"}
    frame = spark.read.format("kafka-log").options(**options).load(str(root))
    check(logs, topic, frame.select(*PLACE, "value").toArrow())
