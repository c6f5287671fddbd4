from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pylog_spark.ledger import Ledger, LedgerTable, read_table
from pylog_spark.ledger.tables import SCHEMAS, LedgerFormat
from pylog_spark.operations.compact import compact
from pylog_spark.schemas import RESULT, rows_to_batch
from storage_core.clock import ManualClock
from storage_core.errors import GuardRefusedError
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

pytestmark = pytest.mark.spark

NAME = "clean-hw-none-s161"


def delta_rows(location, table: LedgerTable) -> list[dict]:
    """Return the rows as a client without Spark reads them."""
    return deltalake.DeltaTable(f"{location}/{table}").to_pyarrow_table().to_pylist()


def result_rows(*topics: str) -> pa.Table:
    rows = [{"run_id": "r", "topic": topic, "partition": 0} for topic in topics]
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)])


def test_tables_are_there_before_the_first_row_with_their_columns_and_comments(spark, tmp_path):
    ledger = Ledger.open(spark, str(tmp_path / "ledger"), run_id="r")
    assert ledger.format is LedgerFormat.DELTA
    for table in LedgerTable:
        delta = deltalake.DeltaTable(str(tmp_path / "ledger" / table))
        assert [field.name for field in delta.schema().fields] == SCHEMAS[table].names
        assert delta.schema().fields[0].metadata["comment"]
        assert delta.metadata().configuration["delta.appendOnly"] == "true"
        assert delta.to_pyarrow_table().num_rows == 0


def test_an_append_that_is_made_again_adds_nothing(spark, tmp_path):
    location = str(tmp_path / "ledger")
    ledger = Ledger.open(spark, location, run_id="r")
    for _ in range(2):
        ledger.append(LedgerTable.RESULTS, result_rows("a", "b"), number=0)
    ledger.append(LedgerTable.RESULTS, result_rows("c"), number=1)
    other = Ledger.open(spark, location, run_id="another")
    other.append(LedgerTable.RESULTS, result_rows("d"), number=0)
    topics = sorted(row["topic"] for row in delta_rows(location, LedgerTable.RESULTS))
    assert topics == ["a", "b", "c", "d"]


def test_the_ledgers_settings_do_not_reach_the_session(spark, tmp_path):
    ledger = Ledger.open(spark, str(tmp_path / "ledger"), run_id="r")
    ledger.append(LedgerTable.RESULTS, result_rows("a"), number=0)
    for session in (spark, SparkSession.active()):
        assert session.conf.get("spark.sql.shuffle.partitions") == "2"


def test_without_delta_the_ledger_is_parquet(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("pylog_spark.ledger.writer.ledger_format", lambda _: LedgerFormat.PARQUET)
    monkeypatch.setattr("pylog_spark.ledger.reader.ledger_format", lambda _: LedgerFormat.PARQUET)
    location = str(tmp_path / "ledger")
    Ledger.open(spark, location, run_id="r").append(LedgerTable.RESULTS, result_rows("a"), number=0)
    assert not list(tmp_path.rglob("_delta_log"))
    rows = read_table(spark, location, LedgerTable.RESULTS).toArrow().to_pylist()
    assert [row["topic"] for row in rows] == ["a"]


def test_a_run_leaves_its_start_its_end_its_results_and_its_operations(spark, tmp_path):
    root = broker_directory(tmp_path / "log", [NAME, "clean-ratio-none-s191-2"])
    location = str(tmp_path / "ledger")
    clock = ManualClock(1_700_000_123_456)
    options = root.options(FIRST_ROUNDS_MS, ledger=location, spark_conf={"secret": "word"})
    report = compact(spark, [root.path], options, clock=clock)

    start, end = sorted(
        delta_rows(location, LedgerTable.RUNS), key=lambda row: row["event"], reverse=True
    )
    at = datetime.fromtimestamp(1_700_000_123.456, tz=UTC)
    assert (start["event"], start["at"], start["exit_code"]) == ("START", at, None)
    assert (end["event"], end["exit_code"], end["partitions_done"]) == ("END", 0, 1)
    assert end["partitions_skipped"] == 1
    assert end["bytes_after"] == report.summary.bytes_after < end["bytes_before"]
    assert start["roots"] == [str(root.path)]
    assert '"now_ms": 1700000000000' in start["options"]
    assert "secret" not in start["options"]
    assert "hash_key" not in str(start)

    results = delta_rows(location, LedgerTable.RESULTS)
    assert {(row["topic"], row["status"], row["reason"]) for row in results} == {
        (NAME, "done", None),
        ("clean-ratio-none-s191-2", "skipped", "RATIO_BELOW_MINIMUM"),
    }
    operations = delta_rows(location, LedgerTable.OPERATIONS)
    assert [row["step"] for row in sorted(operations, key=lambda row: row["step"])] == list(
        range(len(operations))
    )
    assert {"PromoteFile", "RenameFile", "DeleteFile"} <= {row["operation"] for row in operations}
    assert {row["run_id"] for row in [start, end, *results, *operations]} == {report.run_id}
    mine = read_table(spark, location, LedgerTable.RESULTS, run_id=report.run_id)
    assert mine.count() == 2
    assert read_table(spark, location, LedgerTable.RESULTS, run_id="x").count() == 0


def test_a_run_that_an_error_ended_says_so(spark, tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", [NAME])
    location = str(tmp_path / "ledger")

    def refuse(*arguments):
        raise GuardRefusedError("NO", "not today")

    monkeypatch.setattr("pylog_spark.operations.job.build_catalogs", refuse)
    with pytest.raises(GuardRefusedError):
        compact(spark, [root.path], root.options(FIRST_ROUNDS_MS, ledger=location))
    rows = {row["event"]: row for row in delta_rows(location, LedgerTable.RUNS)}
    assert rows["END"]["error_class"] == "GuardRefusedError"
    assert "not today" in rows["END"]["error"]
    assert (root.path / ".kafka_cleanshutdown").exists()
