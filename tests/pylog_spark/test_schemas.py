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
MORE_RESULT_COLUMNS = "directory, retention_ms, retention_bytes, records_without_key"
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


# A ledger is read by programs that are not ours: columns are only added, behind the others.
LEDGER_COLUMNS = {
    "RUN": (
        "run_id STRING, event STRING, at TIMESTAMP, action STRING, roots ARRAY<STRING>, "
        "version STRING, now_ms BIGINT, options STRING, exit_code INT, partitions_done BIGINT, "
        "partitions_skipped BIGINT, partitions_failed BIGINT, bytes_before BIGINT, "
        "bytes_after BIGINT, duration_ms BIGINT, error_class STRING, error STRING"
    ),
    "RESULT": (
        "run_id STRING, root STRING, topic STRING, partition INT, action STRING, status STRING, "
        "reason STRING, bytes_before BIGINT, bytes_after BIGINT, records_before BIGINT, "
        "records_after BIGINT, segments_before BIGINT, segments_after BIGINT, "
        "duration_ms BIGINT, error_class STRING, error STRING, directory STRING, "
        "retention_ms BIGINT, retention_bytes BIGINT, records_without_key BIGINT"
    ),
    "OPERATION": (
        "run_id STRING, root STRING, topic STRING, partition INT, step BIGINT, "
        "operation STRING, file STRING, target STRING, size_bytes BIGINT, reason STRING"
    ),
    "RECORDED_FINDING": (
        "run_id STRING, root STRING, severity STRING, code STRING, topic STRING, "
        "partition INT, file STRING, position BIGINT, offset BIGINT, message STRING, fix STRING"
    ),
    "CLEANING": (
        "run_id STRING, root STRING, topic STRING, partition INT, round BIGINT, "
        "cleanable_ratio DOUBLE, compaction_delay_ms BIGINT, map_bytes_read BIGINT, "
        "map_messages_read BIGINT, keys BIGINT, buffer_utilization DOUBLE, bytes_read BIGINT, "
        "bytes_written BIGINT, messages_read BIGINT, messages_written BIGINT, "
        "invalid_messages_read BIGINT, size_reduction_percent DOUBLE, "
        "message_reduction_percent DOUBLE, elapsed_secs DOUBLE, elapsed_index_secs DOUBLE"
    ),
}


@pytest.mark.parametrize("name", LEDGER_COLUMNS)
def test_tables_of_the_ledger_have_the_columns_that_they_had(name):
    assert spark_ddl(TABLES[name]).replace("`", "") == LEDGER_COLUMNS[name]
