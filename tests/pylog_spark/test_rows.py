import enum
from dataclasses import dataclass

import pyarrow as pa
import pytest

from pylog_spark.rows import (
    Binary,
    Int32,
    Number,
    Numbers,
    Text,
    batches_of,
    column,
    read_rows,
    row_reader,
    rows_to_batch,
    rows_to_batches,
    schema_of,
    spark_ddl,
    table_of,
)
from pylog_spark.schemas import RESULT


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Name:
    topic: Text = column("the topic")
    partition: Int32 = column("its number")


@dataclass(frozen=True, kw_only=True)
class Sample:
    ordinal: int = column("its row")
    name: Name = Name()
    sizes: Numbers = column("sizes")
    colour: Colour | None = column("colour")
    size: Number = column("size")


WHOLE = Sample(
    ordinal=1, name=Name(topic="a", partition=3), sizes=(1, 2), colour=Colour.RED, size=2**40
)
EMPTY = Sample(ordinal=2)


def test_a_schema_has_the_columns_of_its_dataclass_in_their_order():
    expected = [
        ("ordinal", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("sizes", pa.list_(pa.int64())),
        ("colour", pa.string()),
        ("size", pa.int64()),
    ]
    schema = schema_of(Sample)
    assert [(field.name, field.type) for field in schema] == expected
    assert all(field.nullable for field in schema)
    assert schema.field("partition").metadata == {b"comment": b"its number"}


def test_objects_come_back_from_the_table_that_they_became():
    table = table_of(Sample, [WHOLE, EMPTY])
    assert table.schema.equals(schema_of(Sample), check_metadata=True)
    assert table["topic"].to_pylist() == ["a", None]
    assert list(read_rows(Sample, table)) == [WHOLE, EMPTY]


def test_a_dataclass_reads_its_own_columns_of_a_wider_table():
    assert list(read_rows(Name, table_of(Sample, [WHOLE]))) == [WHOLE.name]
    assert row_reader(Name)({"topic": "b", "partition": 0, "more": 1}) == Name(
        topic="b", partition=0
    )


def test_a_row_without_a_column_of_the_dataclass_is_an_error():
    with pytest.raises(KeyError, match="partition"):
        row_reader(Name)({"topic": "b"})


def test_a_type_that_no_column_may_have_is_refused():
    @dataclass
    class Odd:
        value: complex

    with pytest.raises(TypeError, match="complex"):
        schema_of(Odd)


def test_ddl_names_types_and_quotes_comments():
    table = pa.schema(
        [
            pa.field("a", pa.list_(pa.int64()), metadata={"comment": "it's"}),
            pa.field("b", pa.timestamp("us", tz="UTC")),
        ]
    )
    assert spark_ddl(table) == "`a` ARRAY<BIGINT>, `b` TIMESTAMP"
    assert "COMMENT 'it\\'s'" in spark_ddl(table, comments=True)


def test_a_type_that_spark_is_not_told_of_is_refused():
    with pytest.raises(TypeError, match="uint8"):
        spark_ddl(pa.schema([("a", pa.uint8())]))


def test_rows_leave_unnamed_columns_null():
    batch = rows_to_batch(RESULT, [{"topic": "a", "partition": 3}])
    assert batch.schema == RESULT
    assert batch.to_pylist()[0]["partition"] == 3
    assert batch.to_pylist()[0]["error"] is None


def test_a_column_that_does_not_exist_is_an_error_and_not_lost():
    with pytest.raises(KeyError, match="bytes_befor"):
        rows_to_batch(RESULT, [{"bytes_befor": 1}])


@dataclass(frozen=True, kw_only=True)
class Bytes:
    content: Binary = column("bytes")


BYTES = schema_of(Bytes)


def test_a_batch_has_a_few_hundred_objects_or_a_few_megabytes():
    small = [batch.num_rows for batch in batches_of(Bytes, [Bytes(content=b"x")] * 600)]
    assert small == [256, 256, 88]
    # Those of messages that a task hands on are views of the batches that it got.
    for content in (bytes(3 << 20), memoryview(bytes(3 << 20))):
        large = [batch.num_rows for batch in batches_of(Bytes, [Bytes(content=content)] * 5)]
        rows = [batch.num_rows for batch in rows_to_batches(BYTES, [{"content": content}] * 5)]
        assert large == rows == [2, 2, 1]
    assert list(batches_of(Bytes, [])) == []
