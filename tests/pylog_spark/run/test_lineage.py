"""What OpenLineage is told: events about runs, where its own environment says where they go."""

import json
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.exit_code import TerminatedError
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.materialize import materialize
from pylog_spark.operations.retain.driver import retain
from pylog_spark.operations.verify.driver import verify
from pylog_spark.options import JobOptions
from pylog_spark.run.lineage import event_of, lineage_id
from pylog_spark.run.recording import open_listeners
from pylog_spark.run.run_report import RunState
from storage_core.errors import GuardRefusedError
from storage_core.maintenance.ingest.partition import IngestRules
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.run.test_metrics import ANYTHING, SWEPT, damage, held

HERE = Local(1)
STOPPED = IngestRules(settle_ms=0, sync_has_stopped=True)
NOW = datetime(2026, 11, 23, 2, 15, tzinfo=UTC)


@pytest.fixture
def events(tmp_path, monkeypatch) -> Callable[[], list[dict[str, Any]]]:
    """The events that were emitted, in their order; they go to a file."""
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]


def places(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in datasets]


def test_a_run_begins_and_completes_on_its_roots(tmp_path, events, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightlies")
    root = broker_directory(tmp_path / "log", SWEPT)
    report = retain(HERE, [root.path], root.options(FIRST_ROUNDS_MS, limits=ANYTHING))
    start, end = events()
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["eventTime"] <= end["eventTime"]
    for event in (start, end):
        assert uuid.UUID(event["run"]["runId"]).version == 5
        assert event["run"]["runId"] == lineage_id(report.run_id)
        assert (event["job"]["namespace"], event["job"]["name"]) == ("nightlies", "pylog.retain")
        tags = event["run"]["facets"]["tags"]["tags"]
        assert ("run_id", report.run_id) in [(tag["key"], tag["value"]) for tag in tags]
        assert places(event["inputs"]) == places(event["outputs"]) == [("file", str(root.path))]
    (output,) = end["outputs"]
    assert output["outputFacets"]["outputStatistics"]["size"] == report.summary.bytes_after > 0


@pytest.mark.thorough
def test_a_run_that_a_guard_refuses_fails_with_the_reason(tmp_path, events):
    root = broker_directory(tmp_path / "log", SWEPT)
    lock = held(root.path)
    with lock, pytest.raises(GuardRefusedError):
        retain(HERE, [root.path], root.options(FIRST_ROUNDS_MS))
    start, end = events()
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert start["run"]["runId"] == end["run"]["runId"]
    facet = end["run"]["facets"]["errorMessage"]
    assert facet["programmingLanguage"] == "Python"
    assert facet["message"].startswith("GuardRefusedError: ")
    assert "stackTrace" not in facet


@pytest.mark.thorough
def test_a_verification_reads_and_completes_whatever_it_finds(tmp_path, events):
    root = broker_directory(tmp_path / "log", SWEPT)
    damage(root.path, SWEPT[0])
    assert verify(HERE, [root.path], root.options(FIRST_ROUNDS_MS)).exit_code == 1
    _, end = events()
    # Findings are an answer.
    assert end["eventType"] == "COMPLETE"
    assert (places(end["inputs"]), end["outputs"]) == ([("file", str(root.path))], [])


@pytest.mark.thorough
def test_what_comes_in_and_goes_out_is_read_here_and_written_there(tmp_path, events):
    root = broker_directory(tmp_path / "log", SWEPT)
    mirror, managed, out = str(root.path), str(tmp_path / "managed"), str(tmp_path / "out")
    ingest(HERE, mirror, managed, JobOptions(now_ms=FIRST_ROUNDS_MS), rules=STOPPED)
    materialize(HERE, managed, out, JobOptions(now_ms=FIRST_ROUNDS_MS))
    ends = [event for event in events() if event["eventType"] == "COMPLETE"]
    assert [event["job"]["name"] for event in ends] == ["pylog.ingest", "pylog.materialize"]
    assert [(places(event["inputs"]), places(event["outputs"])) for event in ends] == [
        ([("file", mirror)], [("file", managed)]),
        ([("file", managed)], [("file", out)]),
    ]


def state(**changes: Any) -> RunState:
    row = {"run_id": "r", "action": "run", "roots": [], "event": "END", "at": NOW}
    row |= {"error_class": None, "error": None, **changes.pop("row", {})}
    return RunState(row=row, started=NOW, **changes)


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("/srv/kafka", ("file", "/srv/kafka")),
        ("file:///srv/a%20b", ("file", "/srv/a b")),
        ("s3://archive/kafka/eu/", ("s3://archive", "kafka/eu")),
        ("s3a://archive", ("s3://archive", "/")),
        ("gs://archive/kafka", ("gs://archive", "kafka")),
        ("memory://m/kafka", ("memory://m", "/kafka")),
        ("sftp://me:hunter2@host/kafka", ("sftp://me:***@host", "/kafka")),
    ],
)
def test_a_place_is_named_as_openlineage_names_it(root, place):
    event = event_of(state(row={"roots": [root]}, outputs=(root,)))
    assert [(each.namespace, each.name) for each in event.inputs] == [place]
    assert [(each.namespace, each.name) for each in event.outputs] == [place]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TerminatedError()], ids=repr)
def test_a_run_that_was_interrupted_is_aborted(error):
    row = {"error_class": type(error).__name__, "error": ""}
    assert event_of(state(row=row, error=error, exit_code=130)).eventType.value == "ABORT"


def test_an_error_shows_no_password():
    row = {"error_class": "StorageError", "error": "https://me:hunter2@host/x is gone"}
    event = event_of(state(row=row, error=OSError(), exit_code=5))
    assert event.eventType.value == "FAIL"
    assert event.run.facets["errorMessage"].message == (
        "StorageError: https://me:***@host/x is gone"
    )


def test_nobody_is_told_where_nothing_says_so_nor_of_a_dry_run():
    options = JobOptions(now_ms=1)
    assert open_listeners(options, {"OPENLINEAGE_NAMESPACE": "x", "PATH": "/bin"}) == ()
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE"):
        (one,) = open_listeners(options, {name: "x"})
        assert type(one).__name__ == "Lineage"
        assert open_listeners(replace(options, dry_run=True), {name: "x"}) == ()


def test_a_package_that_is_not_there_is_a_warning(monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith("openlineage")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pylog_spark.run.lineage")
    monkeypatch.setitem(sys.modules, "openlineage", None)
    assert open_listeners(JobOptions(now_ms=1), {"OPENLINEAGE_URL": "x"}) == ()
    (record,) = caplog.records
    assert "pip install 'pylog-spark[openlineage]'" in record.getMessage()


@pytest.mark.thorough
def test_a_server_that_is_not_there_is_a_warning_and_the_run_what_it_was(
    tmp_path, monkeypatch, caplog
):
    config = tmp_path / "openlineage.yml"
    config.write_text(
        "transport: {type: http, url: 'http://127.0.0.1:1', retry: {total: 0, connect: 0}}\n"
    )
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    root = broker_directory(tmp_path / "log", SWEPT)
    report = retain(HERE, [root.path], root.options(FIRST_ROUNDS_MS, limits=ANYTHING))
    assert (report.exit_code, report.summary.failed) == (0, 0)
    said = [r.getMessage() for r in caplog.records if r.name == "pylog_spark.run.recording"]
    assert len(said) == 2
    assert all(text.startswith("OpenLineage was not told") for text in said)


@pytest.mark.thorough
@pytest.mark.usefixtures("events")
def test_a_look_that_leaves_no_record_tells_nobody(pylog, tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT)
    pylog("doctor", root.path, "--engine", "local")
    pylog("survey", root.path, "--engine", "local")
    pylog("retain", root.path, "--role", "broker", "--engine", "local", "--dry-run")
    assert not (tmp_path / "events.jsonl").exists()
