import pyarrow as pa
import pytest

from pylog_spark import schemas
from pylog_spark.rows import spark_ddl

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
    assert spark_ddl(table).count("`") == 2 * len(table.names)
