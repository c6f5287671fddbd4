import pyarrow as pa
import pytest

from pylog_spark import schemas

TABLES = {name: table for name, table in vars(schemas).items() if isinstance(table, pa.Schema)}

# The contract of the design: these names and their order are stable.
RESULT_COLUMNS = (
    "run_id, root, topic, partition, action, status, reason, bytes_before, bytes_after, "
    "records_before, records_after, segments_before, segments_after, duration_ms, "
    "error_class, error"
)
# What came later, behind them: a reader by position finds what it knows.
MORE_RESULT_COLUMNS = "directory, retention_ms, retention_bytes"
FINDING_COLUMNS = "severity, code, topic, partition, file, position, offset, message, fix"


def test_result_and_finding_rows_have_the_columns_of_the_contract():
    assert ", ".join(schemas.RESULT.names) == f"{RESULT_COLUMNS}, {MORE_RESULT_COLUMNS}"
    assert ", ".join(schemas.FINDING.names) == FINDING_COLUMNS


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_column_says_what_it_means_and_has_a_spark_type(name):
    table = TABLES[name]
    assert len(set(table.names)) == len(table.names)
    assert all(field.metadata[b"comment"] for field in table)
    assert schemas.spark_ddl(table).count("`") == 2 * len(table.names)


def test_ddl_names_types_and_quotes_comments():
    table = pa.schema(
        [
            pa.field("a", pa.list_(pa.int64()), metadata={"comment": "it's"}),
            pa.field("b", pa.timestamp("us", tz="UTC")),
        ]
    )
    assert schemas.spark_ddl(table) == "`a` ARRAY<BIGINT>, `b` TIMESTAMP"
    assert "COMMENT 'it\\'s'" in schemas.spark_ddl(table, comments=True)


def test_a_type_that_spark_is_not_told_of_is_refused():
    with pytest.raises(TypeError, match="decimal"):
        schemas.spark_ddl(pa.schema([("a", pa.decimal128(3))]))


def test_rows_leave_unnamed_columns_null():
    batch = schemas.rows_to_batch(schemas.RESULT, [{"topic": "a", "partition": 3}])
    assert batch.schema == schemas.RESULT
    assert batch.to_pylist()[0]["partition"] == 3
    assert batch.to_pylist()[0]["error"] is None


def test_a_column_that_does_not_exist_is_an_error_and_not_lost():
    with pytest.raises(KeyError, match="bytes_befor"):
        schemas.rows_to_batch(schemas.RESULT, [{"bytes_befor": 1}])
