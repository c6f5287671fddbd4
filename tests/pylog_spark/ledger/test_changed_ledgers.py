"""A ledger whose owner turned features of Delta on: it goes on, or names the way out."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.exit_code import ExitCode
from pylog_spark.ledger import LedgerTable, last_limits, open_ledger
from pylog_spark.ledger.local_ledger import read_runs
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import RESULT
from storage_core.errors import StorageError
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.cli.test_jobs import lines_of, options_of

TOPIC = "orders"
NAME = "clean-headers-none-s101"
HERE = Local.of_master(None)


def run_row(run_id: str) -> dict[str, Any]:
    at = datetime.fromtimestamp(1_700_000_000, tz=UTC)
    return {"run_id": run_id, "event": "START", "at": at, "action": "retain", "roots": ["/logs"]}


def limit_rows(run_id: str) -> pa.Table:
    row = {"run_id": run_id, "root": "/logs", "topic": TOPIC, "partition": 0, "action": "retain"}
    row |= {"retention_ms": 5, "retention_bytes": -1}
    return pa.Table.from_batches([rows_to_batch(RESULT, [row])])


def write(location: Path, run_id: str) -> None:
    ledger = open_ledger(HERE, str(location), run_id=run_id)
    ledger.append_row(LedgerTable.RUNS, run_row(run_id), number=0)
    ledger.append(LedgerTable.RESULTS, limit_rows(run_id), number=0)


def limits(location: Path) -> list[dict[str, Any]]:
    return last_limits(HERE, str(location), [TOPIC], run_id="now", may_be_missing=False)


def alter(
    table: Path,
    *,
    protocol: Mapping[str, Any],
    configuration: Mapping[str, str] | None = None,
    mapped: str | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Commit what ``ALTER TABLE`` of Spark commits.

    Args:
        table: Folder of the table.
        protocol: The new one.
        configuration: New properties.
        mapped: Prefix of the columns' physical names; empty for those that they have.
        more: Other actions.
    """
    log = table / "_delta_log"
    before = sorted(log.glob("*.json"))
    actions = [json.loads(line) for file in before for line in file.read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    metadata["configuration"] |= configuration or {}
    if mapped is not None:
        schema = json.loads(metadata["schemaString"])
        for number, field in enumerate(schema["fields"], 1):
            field["metadata"] |= {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"{mapped}{field['name']}",
            }
        metadata["schemaString"] = json.dumps(schema)
        metadata["configuration"] |= {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(len(schema["fields"])),
        }
    commit = [{"protocol": dict(protocol)}, {"metaData": metadata}, *more]
    text = "".join(f"{json.dumps(action)}\n" for action in commit)
    (log / f"{len(before):020d}.json").write_text(text)


def features(*names: str, read: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(read),
        "writerFeatures": ["appendOnly", "invariants", *names],
    }


def turn_on_deletion_vectors(table: Path) -> None:
    alter(
        table,
        protocol=features("deletionVectors", read=["deletionVectors"]),
        configuration={"delta.enableDeletionVectors": "true"},
    )


def turn_on_v2_checkpoints(table: Path) -> None:
    alter(
        table,
        protocol=features("v2Checkpoint", read=["v2Checkpoint"]),
        configuration={"delta.checkpointPolicy": "v2"},
    )


def map_columns(table: Path) -> None:
    alter(table, protocol={"minReaderVersion": 2, "minWriterVersion": 5}, mapped="")


def map_columns_of_new_names(table: Path) -> None:
    """As of a table that was made with the mapping: its files have other names of columns."""
    alter(table, protocol={"minReaderVersion": 2, "minWriterVersion": 5}, mapped="col-")


def cluster(table: Path) -> None:
    domain = {
        "domain": "delta.clustering",
        "configuration": '{"clusteringColumns":[["run_id"]],"domainName":"delta.clustering"}',
        "removed": False,
    }
    alter(
        table,
        protocol=features("clustering", "domainMetadata"),
        more=[{"domainMetadata": domain}],
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", [turn_on_deletion_vectors, turn_on_v2_checkpoints, map_columns])
def test_a_ledger_that_its_owner_changed_is_written_on_and_read(tmp_path: Path, change):
    write(tmp_path, "before")
    for table in (LedgerTable.RUNS, LedgerTable.RESULTS):
        change(tmp_path / table)
    assert [run["run_id"] for run in read_runs(str(tmp_path))] == ["before"]
    assert [row["run_id"] for row in limits(tmp_path)] == ["before"]
    write(tmp_path, "later")
    runs = read_runs(str(tmp_path))
    assert sorted(run["run_id"] for run in runs) == ["before", "later"]
    assert {tuple(run["roots"]) for run in runs} == {("/logs",)}
    assert [(row["run_id"], row["retention_ms"]) for row in limits(tmp_path)] == [("later", 5)]


def test_columns_are_written_under_the_names_that_the_files_have(tmp_path: Path):
    open_ledger(HERE, str(tmp_path), run_id="first")
    map_columns_of_new_names(tmp_path / LedgerTable.RUNS)
    ledger = open_ledger(HERE, str(tmp_path), run_id="r")
    ledger.append_row(LedgerTable.RUNS, run_row("r"), number=0)
    [run] = read_runs(str(tmp_path))
    assert (run["run_id"], run["action"]) == ("r", "retain")
    [file] = (tmp_path / LedgerTable.RUNS).rglob("*.parquet")
    assert {name[:4] for name in pq.read_schema(file).names} == {"col-"}


def test_what_only_spark_writes_is_refused_with_the_way_out(tmp_path: Path):
    write(tmp_path, "before")
    cluster(tmp_path / LedgerTable.RUNS)
    assert [run["run_id"] for run in read_runs(str(tmp_path))] == ["before"]
    ledger = open_ledger(HERE, str(tmp_path), run_id="later")
    with pytest.raises(StorageError, match=r"its owner gave this table .*--engine spark"):
        ledger.append_row(LedgerTable.RUNS, run_row("later"), number=0)


@pytest.mark.thorough
@pytest.mark.spark
def test_where_the_driver_cannot_write_spark_does(spark, tmp_path: Path, caplog):
    write(tmp_path, "before")
    cluster(tmp_path / LedgerTable.RUNS)
    ledger = open_ledger(spark, str(tmp_path), run_id="later")
    for number in range(2):
        ledger.append_row(LedgerTable.RUNS, run_row("later"), number=number)
    # The same append again adds nothing.
    ledger.append_row(LedgerTable.RUNS, run_row("later"), number=1)
    assert sorted(run["run_id"] for run in read_runs(str(tmp_path))) == ["before", "later", "later"]
    assert "Spark writes this table" in caplog.text


@pytest.mark.thorough
def test_a_ledger_that_fails_amid_a_run_hides_no_work(pylog, tmp_path: Path):
    root = broker_directory(tmp_path / "log", [NAME])
    ledger = tmp_path / "ledger"
    open_ledger(HERE, str(ledger), run_id="first")
    cluster(ledger / LedgerTable.RESULTS)
    said = [*options_of(root, tmp_path), "--ledger", ledger, "--engine", "local"]
    before = {path.name: path.read_bytes() for path in (root.path / f"{NAME}-0").iterdir()}
    result = pylog("compact", *said, "--output", "json")
    assert result.exit_code == ExitCode.FAILED
    row, run = lines_of(result)
    assert (row["topic"], row["status"]) == (NAME, "done")
    assert {path.name: path.read_bytes() for path in (root.path / f"{NAME}-0").iterdir()} != before
    assert (run["done"], run["exit_code"]) == (1, ExitCode.FAILED)
    [note] = [note for note in run["notes"] if "the ledger lacks" in note]
    assert "table results" in note
    assert "--engine spark" in note
    # The record is closed all the same.
    start, end = sorted(read_runs(str(ledger)), key=lambda each: each["event"], reverse=True)
    assert (start["event"], end["event"], end["run_id"]) == ("START", "END", run["run_id"])
    assert (end["exit_code"], end["partitions_done"]) == (ExitCode.FAILED, 1)
    assert "table results" in end["error"]
    # As a table for a person: the row first, then the remark.
    again = pylog("compact", *said)
    assert again.exit_code == ExitCode.FAILED
    shown = " ".join(again.stdout.split())
    assert shown.index(f"{NAME}-0") < shown.index("the ledger lacks")


@pytest.mark.thorough
def test_a_ledger_without_room_for_the_end_row_hides_no_work(pylog, tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", [NAME])
    ledger = tmp_path / "ledger"
    writes: list[dict[str, Any]] = []

    def fail_at_the_end(self, table, row, *, number):
        writes.append(row)
        if row["event"] == "END":
            raise StorageError(f"{ledger}/runs", "No space left on device")

    monkeypatch.setattr("pylog_spark.ledger.local_ledger.LocalLedger.append_row", fail_at_the_end)
    said = [*options_of(root, tmp_path), "--ledger", ledger, "--engine", "local"]
    result = pylog("compact", *said, "--output", "json")
    assert result.exit_code == ExitCode.FAILED
    row, run = lines_of(result)
    assert (row["status"], run["done"]) == ("done", 1)
    assert "the ledger lacks the run's END row: " in run["notes"][-1]
    assert "No space left on device" in run["notes"][-1]
    assert [each["event"] for each in writes] == ["START", "END"]


@pytest.mark.thorough
def test_a_ledger_that_fails_before_the_work_stops_it(pylog, tmp_path: Path):
    root = broker_directory(tmp_path / "log", [NAME])
    ledger = tmp_path / "ledger"
    open_ledger(HERE, str(ledger), run_id="first")
    cluster(ledger / LedgerTable.RUNS)
    before = {path.name: path.read_bytes() for path in (root.path / f"{NAME}-0").iterdir()}
    said = [*options_of(root, tmp_path), "--ledger", ledger, "--engine", "local"]
    result = pylog("compact", *said)
    assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")
    assert "take Spark (--engine spark), or name another ledger" in result.stderr
    assert {path.name: path.read_bytes() for path in (root.path / f"{NAME}-0").iterdir()} == before
