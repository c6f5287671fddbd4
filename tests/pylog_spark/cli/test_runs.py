"""``pylog runs``: what was done before, from a ledger, a trash or both."""

import datetime
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.ledger.local_ledger import LocalLedger
from pylog_spark.ledger.tables import LedgerTable
from pylog_spark.schemas import RUN
from storage_core.clock import SystemClock
from storage_core.commit.trash import encode_undo
from tests.kit.compare import read_tree
from tests.kit.golden_broker import broker_origin, unpack_broker

CLOCK_MS = int(broker_origin()["clock_ms"]) + 3_600_000


def runs(pylog, *words: object) -> list[dict[str, Any]]:
    return pylog.rows("runs", *words)


@pytest.fixture(scope="module")
def done(pylog, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a log directory, ledger and trash after a retention; and the run's name."""
    folder = tmp_path_factory.mktemp("done")
    unpack_broker(folder / "log")
    result = pylog.done(
        *("retain", folder / "log", "--role", "broker", "--topics", "clickstream"),
        *("--now-ms", CLOCK_MS, "--engine", "local", "--output", "json"),
        *("--trash", folder / "trash", "--ledger", folder / "ledger"),
    )
    return folder, json.loads(result.stdout.splitlines()[-1])["run_id"]


@pytest.mark.thorough
def test_a_run_is_listed_with_what_it_did_and_that_it_can_be_undone(pylog, done):
    folder, run_id = done
    (run,) = runs(pylog, "--ledger", folder / "ledger", "--trash", folder / "trash")
    assert (run["run_id"], run["action"], run["exit_code"]) == (run_id, "retain", 0)
    assert (run["has_ended"], run["partitions_done"], run["undo"]) == (True, 2, "possible")
    assert run["roots"] == [str(folder / "log")]
    kept = [path for path in (folder / "trash").rglob("*.log") if "kept" in path.parts]
    assert run["kept_partitions"] == 2
    assert run["kept_bytes"] >= sum(path.stat().st_size for path in kept) > 0
    text = pylog("runs", "--trash", folder / "trash").stdout
    assert f"`pylog undo {run_id} --trash {folder / 'trash'} --dry-run`" in text


def test_a_ledger_alone_says_nothing_of_undoing_and_a_trash_nothing_of_the_end(pylog, done):
    folder, run_id = done
    (run,) = runs(pylog, "--ledger", folder / "ledger")
    assert (run["run_id"], run["undo"], run["kept_bytes"]) == (run_id, None, None)
    assert "--trash FOLDER" in pylog("runs", "--ledger", folder / "ledger").stdout
    (run,) = runs(pylog, "--trash", folder / "trash")
    assert (run["action"], run["has_ended"], run["undo"]) == ("retain", None, "possible")
    assert abs(run["started_ms"] - SystemClock().now_ms()) < 86_400_000


@pytest.mark.thorough
def test_a_run_that_was_undone_is_said_so(pylog, done, tmp_path):
    folder, run_id = done
    shutil.copytree(folder / "trash", tmp_path / "trash")
    states = list((tmp_path / "trash").rglob("record.json"))
    assert len(states) == 2

    def undone(*states_of: str) -> str:
        for record, state in zip(states, states_of, strict=False):
            (record.parent / "undo.json").write_bytes(encode_undo(state))
        return runs(pylog, "--trash", tmp_path / "trash")[0]["undo"]

    assert undone("done") == "begun"
    assert undone("done", "done") == "done"
    assert "can be undone" in pylog("runs", "--trash", tmp_path / "trash").stdout
    shutil.rmtree(tmp_path / "trash" / run_id / str(folder).strip("/"))
    assert runs(pylog, "--trash", tmp_path / "trash")[0]["undo"] == "nothing"
    (tmp_path / "trash" / run_id / "run.json").write_text("{")
    (broken,) = runs(pylog, "--trash", tmp_path / "trash")
    assert broken["undo"] == "unreadable"
    assert "run.json" in broken["error"]


@pytest.mark.thorough
def test_the_latest_run_that_kept_something_is_undone_and_no_older_one_after_it(
    pylog, done, tmp_path
):
    folder, run_id = done
    before = read_tree(folder / "log")
    shutil.copytree(folder / "trash", tmp_path / "trash")
    # A later run that took nothing away.
    (tmp_path / "trash" / "99990102T030405Z-0a1b2c3d").mkdir()
    shutil.copy(
        folder / "trash" / run_id / "run.json", tmp_path / "trash/99990102T030405Z-0a1b2c3d"
    )
    for name in ("latest", run_id[:-3]):
        words = ("undo", name, "--trash", tmp_path / "trash", "--engine", "local")
        result = pylog.done(*words, "--dry-run")
        assert f"{name} is {run_id}" in result.output
    assert read_tree(folder / "log") == before
    for record in (tmp_path / "trash").rglob("record.json"):
        (record.parent / "undo.json").write_bytes(encode_undo("done"))
    assert "ALREADY_UNDONE" in pylog(*words[:1], "latest", *words[2:]).output
    assert read_tree(folder / "log") == before


@pytest.mark.thorough
def test_runs_without_an_end_are_shown_and_the_newest_come_first(pylog, tmp_path):
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    for hour, events in ((1, ["START", "END"]), (2, ["START"]), (3, ["START", "END"])):
        run_id = f"20260102T0{hour}0405Z-0a1b2c3d"
        ledger = LocalLedger.open(str(tmp_path), run_id=run_id)
        for number, event in enumerate(events):
            row = dict.fromkeys(RUN.names) | {
                "run_id": run_id,
                "event": event,
                "at": at,
                "action": "run",
                "roots": ["/data/kafka"],
                "exit_code": 0 if event == "END" else None,
                "duration_ms": 5000 if event == "END" else 0,
            }
            ledger.append_row(LedgerTable.RUNS, row, number=number)
    listed = runs(pylog, "--ledger", tmp_path)
    assert [run["run_id"][9:11] for run in listed] == ["03", "02", "01"]
    for only, hour in (("latest", "03"), ("20260102T02", "02"), (listed[2]["run_id"], "01")):
        (run,) = runs(pylog, only, "--ledger", tmp_path)
        assert run["run_id"][9:11] == hour
    for only, said in (("20260102", "3 runs begin so: 20260102T01"), ("2025", "no such run")):
        result = pylog("runs", only, "--ledger", tmp_path)
        assert (result.exit_code, said in result.stderr) == (ExitCode.USAGE, True), result.stderr
    assert [run["has_ended"] for run in listed] == [True, False, True]
    assert len(runs(pylog, "--ledger", tmp_path, "--last", "2")) == 2
    text = pylog("runs", "--ledger", tmp_path).stdout
    assert "it died, or is still running" in text


def test_the_table_has_the_bytes_before_a_run_and_after_it(pylog, tmp_path):
    row = dict.fromkeys(RUN.names) | {
        "run_id": "20260102T030405Z-0a1b2c3d",
        "event": "END",
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "action": "compact",
        "roots": ["/data/kafka"],
        "exit_code": 0,
        "bytes_before": 3 << 20,
        "bytes_after": 1 << 20,
    }
    ledger = LocalLedger.open(str(tmp_path), run_id=row["run_id"])
    ledger.append_row(LedgerTable.RUNS, row, number=0)
    heading, cells = pylog("runs", "--ledger", tmp_path, "--wide").stdout.splitlines()[:2]
    assert re.search(r"bytes +after", heading)
    assert re.search(r" 3\.0 MiB +1\.0 MiB ", cells)


def test_a_place_without_a_ledger_or_a_trash_is_said(pylog, tmp_path):
    for words in ([], ["--ledger", tmp_path / "no"], ["--trash", tmp_path / "no"]):
        result = pylog("runs", *words)
        assert result.exit_code == ExitCode.USAGE
        assert result.stderr.count("\n") == 1
    (tmp_path / "trash").mkdir()
    assert "no run" in pylog("runs", "--trash", tmp_path / "trash").stdout
