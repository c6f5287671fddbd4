"""``pylog retain``: options in, rows and an exit status out."""

import json
from pathlib import Path
from typing import Any

import deltalake
import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from pylog_spark.schemas import RESULT, RETENTION
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
)

NAMES = ["retain-size-s501", "retain-logstart-mid-s501"]
NOW_MS = 1_700_000_000_000

pytestmark = pytest.mark.spark


def options_of(root: BrokerDirectory, folder: Path) -> list[object]:
    """Return the command line that describes a directory without metadata of its own."""
    file = folder / "topics.yaml"
    file.write_text(yaml.safe_dump({"topics": root.configs}))
    said = ["--config", file, "--now-ms", NOW_MS, "--max-delete-ratio", "1"]
    return [root.path, *said, "--role", "broker"]


def lines_of(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def tree_of(root: Path) -> dict[str, dict[str, bytes]]:
    folders = [path for path in root.iterdir() if path.is_dir()]
    return {path.name: read_tree(path) for path in [root, *folders]}


@pytest.mark.item("RET-14")
def test_a_dry_run_then_a_run_print_rows_and_what_keeps_the_rest(spark, pylog, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    before = tree_of(root.path)
    arguments = options_of(root, tmp_path)
    # A role that was only guessed is enough to look.
    dry = pylog("retain", *arguments[:-2], "--dry-run", "--output", "json")
    assert dry.exit_code == ExitCode.DONE, dry.stderr
    assert tree_of(root.path) == before
    planned = [line for line in lines_of(dry) if line["type"] == "retention"]
    assert {line["status"] for line in planned} == {"planned"}
    assert all(line["operations"] for line in planned)

    result = pylog("retain", *arguments, "--output", "json")
    assert result.exit_code == ExitCode.DONE, result.stderr
    *rows, run = lines_of(result)
    assert (run["type"], run["action"], run["done"]) == ("run", "retain", 2)
    kinds = {kind: [row for row in rows if row["type"] == kind] for kind in ("result", "retention")}
    assert [list(row) for row in kinds["result"]] == [["type", *RESULT.names]] * 2
    assert [list(row) for row in kinds["retention"]] == [["type", *RETENTION.names]] * 2
    assert {row["status"] for row in rows} == {"done"}
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []


@pytest.mark.thorough
def test_a_person_gets_a_table_and_the_ledger_its_rows(pylog, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    ledger = tmp_path / "ledger"
    arguments = [*options_of(root, tmp_path), "--engine", "local"]
    result = pylog("retain", *arguments, "--ledger", ledger)
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert "retain-size-s501-0" in result.stdout
    assert "kept by" in result.stdout
    found = deltalake.DeltaTable(str(ledger / "results")).to_pyarrow_table().to_pylist()
    assert {(row["topic"], row["action"], row["status"]) for row in found} == {
        (name, "retain", "done") for name in NAMES
    }
    steps = deltalake.DeltaTable(str(ledger / "operations")).to_pyarrow_table().to_pylist()
    assert {step["operation"] for step in steps} >= {"RenameFile", "DeleteFile"}
    again = pylog("retain", *arguments)
    assert again.exit_code == ExitCode.DONE
    assert "NOTHING_TO_RETAIN" in again.stdout
    assert "kept by" not in again.stdout


def test_what_a_guard_refused_to_delete_is_counted_in_the_last_line(spark, pylog, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    arguments = [*options_of(root, tmp_path), "--dry-run", "--max-delete-ratio", "0.1"]
    told = pylog("retain", *arguments)
    assert told.exit_code == ExitCode.DONE, told.stderr
    last = "1 refused to delete: DELETES_TOO_MUCH, --max-delete-ratio 1 allows it"
    assert told.stdout.splitlines()[-1].endswith(last)
    *_, run = lines_of(pylog("retain", *arguments, "--output", "json"))
    assert run["refused_deletions"] == [
        {"reason": "DELETES_TOO_MUCH", "partitions": 1, "allowed_by": "--max-delete-ratio 1"}
    ]


def test_a_role_that_was_not_said_is_refused(spark, pylog, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    before = tree_of(root.path)
    result = pylog("retain", *options_of(root, tmp_path)[:-2])
    assert result.exit_code == ExitCode.REFUSED
    assert tree_of(root.path) == before
