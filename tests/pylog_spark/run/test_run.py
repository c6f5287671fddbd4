"""One run: what it holds is given back whatever ends it, then its record is closed."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pylog_spark.discovery import LogRoot
from pylog_spark.engines.choice import Local
from pylog_spark.ledger import LedgerTable
from pylog_spark.options import JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.recording import Recorder
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import RESULT
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import CleanShutdown
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.clock import ManualClock
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from storage_core.roots.broker import HeldBrokerRoot
from tests.pylog_spark.run.test_recording import KeptRows

NOW_MS = 1_700_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER)


class Watched(KeptRows):
    """A ledger that notes which directories are locked when the END row is written."""

    def __init__(self, roots: list[Path]) -> None:
        super().__init__()
        self.roots = roots
        self.locked: list[bool] = []

    def append_row(self, table: LedgerTable, row: dict, *, number: int) -> None:
        if row["event"] == "END":
            self.locked = [(root / LOCK_FILE).exists() for root in self.roots]
        super().append_row(table, row, number=number)

    def runs(self) -> list[dict]:
        return [rows[0] for rows in self.appends[LedgerTable.RUNS]]


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Two log directories that were cleanly shut down."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
        (path / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":11}')
    return paths


def run_over(
    roots: list[Path], ledger: KeptRows | None = None, options: JobOptions = OPTIONS
) -> Run:
    log_roots = [LogRoot(location=str(path), role=Role.BROKER, is_said=True) for path in roots]
    run = Run(Local(), new_job("purge", log_roots, options, clock=ManualClock(NOW_MS)))
    run.recorder = Recorder(ledger=ledger, clock=ManualClock(NOW_MS), facts={"run_id": "r"})
    return run


def results_of(*statuses: str) -> pa.Table:
    rows = [{"root": "/logs", "topic": "t", "status": status} for status in statuses]
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)


def test_tasks_get_the_options_without_the_settings_of_the_session(roots):
    options = replace(OPTIONS, from_start=True, spark_conf={"spark.hadoop.fs.s3a.secret.key": "x"})
    context = run_context(run_over(roots, options=options).job, frozenset())
    assert context.options == replace(options, spark_conf={})


@pytest.mark.thorough
def test_an_error_gives_everything_back_and_then_closes_the_record(roots):
    def fail(run: Run) -> None:
        run.hold_roots()
        assert all((root / LOCK_FILE).exists() for root in roots)
        raise StorageError("x", "no such disk")

    ledger = Watched(roots)
    with pytest.raises(StorageError, match="no such disk"), run_over(roots, ledger) as run:
        fail(run)
    assert [row["event"] for row in ledger.runs()] == ["START", "END"]
    assert ledger.runs()[1]["error_class"] == "StorageError"
    assert ledger.locked == [False, False]


@pytest.mark.thorough
def test_whoever_is_refused_one_directory_gives_back_the_others(roots):
    ledger = Watched(roots[:1])
    with (
        LogDirectoryLock(roots[1]),
        pytest.raises(GuardRefusedError, match="LOG_DIRECTORY_IN_USE"),
        run_over(roots, ledger) as run,
    ):
        run.hold_roots()
    assert ledger.locked == [False]
    assert ledger.runs()[1]["error_class"] == "GuardRefusedError"
    with LogDirectoryLock(roots[0]):
        pass


def test_a_dry_run_holds_nothing(roots):
    with run_over(roots, options=replace(OPTIONS, dry_run=True)) as run:
        run.hold_roots()
        assert run.roots == {}
        assert not (roots[0] / LOCK_FILE).exists()


def test_where_the_start_row_cannot_be_written_nothing_begins(roots):
    ledger = Watched(roots)
    ledger.fails = True
    with pytest.raises(OSError, match="the answer was lost"), run_over(roots, ledger):
        raise AssertionError("the run has begun")
    assert [row["event"] for row in ledger.runs()] == ["START", "END"]


def test_a_report_has_the_numbers_that_the_record_has_and_each_note_once(roots):
    ledger = Watched(roots)
    with run_over(roots, ledger) as run:
        run.notes += ("of the run", "of both")
    report = run.report(RunReport, results_of("done", "failed"), notes=["of both", "of a step"])
    assert report.notes == ("of the run", "of both", "of a step")
    assert (report.action, report.dry_run, report.run_id) == ("purge", False, run.job.run_id)
    assert (report.summary.done, report.summary.failed, report.exit_code) == (1, 1, 4)
    end = ledger.runs()[1]
    assert (end["partitions_done"], end["partitions_failed"], end["exit_code"]) == (1, 1, 4)
    told = report.run_row()
    assert told["notes"] == list(report.notes)
    assert (told["done"], told["exit_code"]) == (1, 4)


@pytest.mark.thorough
def test_a_directory_whose_disk_failed_makes_the_exit_status(roots):
    with run_over(roots) as run:
        run.hold_roots()
        run.roots[str(roots[0])].give_up(StorageError("x", "Input/output error"))
    assert run.report(RunReport, results_of("done")).exit_code == 4
    assert list(run.failures) == [str(roots[0])]


def test_a_disk_that_fails_when_the_only_root_is_given_back_hides_no_work(roots, monkeypatch):
    def fail(self: HeldBrokerRoot, marker: CleanShutdown) -> None:
        raise StorageError(self.location, f"Input/output error at {marker}")

    ledger = Watched(roots[:1])
    with run_over(roots[:1], ledger) as run:
        run.hold_roots()
        run.roots[str(roots[0])].begin_writing()
        monkeypatch.setattr(HeldBrokerRoot, "_write_marker", fail)
    report = run.report(RunReport, results_of("done"))
    assert (report.summary.done, report.exit_code) == (1, 4)
    assert "Input/output error" in str(run.failures[str(roots[0])])
    assert (ledger.runs()[1]["event"], ledger.runs()[1]["exit_code"]) == ("END", 4)
    assert ledger.locked == [False]
    assert not (roots[0] / CLEAN_SHUTDOWN_FILE).exists()


def test_an_empty_root_is_named_and_one_with_rows_is_not(roots):
    report = run_over(roots).report(RunReport, results_of("done"))
    noted = report.with_empty_roots(["/logs", "/empty"], are_topics_chosen=False)
    assert noted.notes == ("/empty: there is no partition in it",)
