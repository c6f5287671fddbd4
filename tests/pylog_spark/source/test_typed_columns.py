"""Keys and values as columns of Spark, by the schemas of a registry."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from pylog_spark.rows import spark_ddl
from pylog_spark.source import create_views, register
from pylog_spark.source.options import parse_options
from pylog_spark.source.typed_columns import spark_schema
from storage_core.errors import ConfigError
from tests.storage_core.test_typed_columns import (
    OF_REFUND,
    TOPICS,
    expected,
    plain,
    value_of,
    write_bad,
    write_golden,
    write_messages,
)

TYPED = {"valueFormat": "registry"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden(tmp_path_factory.mktemp("typed"))


def as_rows(rows: list[Any]) -> list[Any]:
    return plain([row.value.asDict(recursive=True) if row.value else None for row in rows])


def of_spark(topic: str) -> list[Any]:
    """Return what the official deserializer gives; Spark's times are those of its session."""
    rows = expected(topic)
    for row in filter(None, rows):
        row.pop("at", None)
    return rows


@pytest.mark.thorough
@pytest.mark.spark
def test_batch_and_stream_give_what_the_official_deserializer_gives(spark, root, tmp_path):
    register(spark)
    for topic in TOPICS:
        options = {"subscribe": topic, **TYPED}
        frame = spark.read.format("kafka-log").options(**options).load(str(root))
        name = frame.schema["value"].dataType.fieldNames()[0]
        assert frame.columns[:2] == ["key", "value"]
        rows = as_rows(frame.orderBy("offset").select("value").collect())
        assert [row and {k: v for k, v in row.items() if k != "at"} for row in rows] == of_spark(
            topic
        )
        assert frame.where(f"value.{name} IS NOT NULL").count() == sum(map(bool, rows))
    stream = (
        spark.readStream.format("kafka-log")
        .options(subscribe="orders", startingOffsets="earliest", columns="value,offset", **TYPED)
        .load(str(root))
    )
    query = (
        stream.select("value.buyer", "value.vat", "offset")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "rows")).orderBy("offset").collect()
    assert [row.buyer for row in found] == [row and row["buyer"] for row in expected("orders")]
    assert str(found[4].vat) == "12.30"


@pytest.mark.thorough
@pytest.mark.spark
def test_topics_are_views_of_sql_with_their_columns(spark, tmp_path, caplog):
    root = write_golden(tmp_path / "it's")
    names = create_views(spark, str(root), **TYPED)
    tables = ["pylog_partitions", "pylog_segments", "pylog_groups", "pylog_consumer_offsets"]
    tables += ["pylog_transactions", "pylog_open_transactions"]
    assert sorted(names) == sorted([*TOPICS, *tables])
    for topic in TOPICS:
        found = spark.sql(f"FROM `{topic}` ORDER BY `offset`").collect()
        rows = [row and {k: v for k, v in row.items() if k != "at"} for row in as_rows(found)]
        assert rows == of_spark(topic)
    segments = spark.sql("SELECT topic, segments FROM pylog_partitions ORDER BY topic").collect()
    assert [row.topic for row in segments] == ["_schemas", *sorted(TOPICS)]
    assert "no view _schemas: readerSchema: the value of _schemas: no subject" in caplog.text
    assert "orders" in create_views(spark, [str(root)], pattern="orders")
    assert spark.table("orders").schema["value"].dataType.typeName() == "binary"
    with pytest.raises(AnalysisException, match="no subject _schemas-value"):
        create_views(spark, str(root), pattern="_schemas", **TYPED)
    for name in names:
        spark.catalog.dropTempView(name)


@pytest.mark.spark
def test_a_value_that_does_not_fit_ends_the_query_or_is_kept_raw(spark, tmp_path):
    register(spark)
    bad = value_of(1, {"n": "x"})
    write_bad(tmp_path, value_of(1, {"n": 1}), bad)
    reader = spark.read.format("kafka-log").options(subscribe="t", **TYPED)
    with pytest.raises(Exception, match=r"the value at offset 1 of t-0: by schema 1.*onError"):
        reader.load(str(tmp_path)).select("value").collect()
    rows = reader.option("onError", "raw").load(str(tmp_path)).orderBy("offset").collect()
    assert [(row.value and row.value.n, row.value_raw) for row in rows] == [
        (1, None),
        (None, bytearray(bad.value or b"")),
    ]


def test_the_schema_is_known_before_the_query_and_options_are_checked(root):
    options = {"path": str(root), "subscribe": "clicks", "valueFormat": "registry"}
    asked = parse_options(options | {"columns": "value,offset"})
    assert spark_ddl(asked.schema) == (
        "`value` STRUCT<`id`: BIGINT, `page`: STRING, `ms`: DOUBLE, "
        "`from`: STRUCT<`url`: STRING, `title`: STRING>, `tags`: ARRAY<STRING>, `more`: STRING>, "
        "`offset` BIGINT"
    )
    assert set(asked.request.columns) == {"value", "offset", "topic", "partition", "headers"}
    assert parse_options(options | {"readerSchema": "7"}).schema.field("value").type != (
        asked.schema.field("value").type
    )
    for wrong, reason in (
        ({"valueFormat": "json"}, "valueFormat=json: expected registry"),
        ({"onError": "skip"}, "onError=skip: expected one of"),
        (
            {"readerMessage": "shop.Order"},
            "readerMessage=shop.Order: the value of clicks: its schema is of the kind JSON",
        ),
        ({"readerSchema": "999"}, "readerSchema=999: the value of clicks: schema 999 is not in"),
        ({"view": "batches"}, "means nothing in the view batches"),
    ):
        with pytest.raises(ConfigError, match=reason):
            parse_options(options | wrong)


def test_a_message_is_chosen_by_its_name(tmp_path):
    write_messages(tmp_path, OF_REFUND)
    options = {"path": str(tmp_path), "subscribe": "t", "columns": "value", **TYPED}
    asked = parse_options(options | {"readerMessage": "shop.Refund"})
    assert spark_ddl(asked.schema) == "`value` STRUCT<`n`: INT, `why`: STRING>"


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        (pa.dictionary(pa.int32(), pa.string()), "STRING"),
        (pa.uint32(), "BIGINT"),
        (pa.uint64(), "DECIMAL(20, 0)"),
        (pa.decimal128(9, 2), "DECIMAL(9, 2)"),
        (pa.decimal256(50, 2), "STRING"),
        (pa.time64("us"), "STRING"),
        (pa.timestamp("ms"), "TIMESTAMP_NTZ"),
        (pa.timestamp("ns", tz="UTC"), "TIMESTAMP"),
        (pa.duration("us"), "INTERVAL DAY TO SECOND"),
        (pa.binary(16), "BINARY"),
        (pa.map_(pa.string(), pa.list_(pa.uint8())), "MAP<STRING, ARRAY<SMALLINT>>"),
        (pa.struct([("a`b", pa.float32())]), "STRUCT<`a``b`: FLOAT>"),
    ],
)
def test_each_type_of_arrow_has_one_of_spark(kind, ddl):
    assert spark_ddl(spark_schema(pa.schema([("x", kind)]))) == f"`x` {ddl}"
