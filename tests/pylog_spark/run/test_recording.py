"""What a run writes down as it goes: rows in portions, and what was done when it was stopped."""

import json
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.ledger import LedgerTable
from pylog_spark.operations.verify.driver import VerifyRequest
from pylog_spark.options import JobOptions, RunLimits
from pylog_spark.run import recording
from pylog_spark.run.job import Job, open_recorder
from pylog_spark.run.recording import STEPS, Recorder
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport, RunState
from pylog_spark.schemas import RESULT
from storage_core.catalog.topic_dump import TopicDump
from storage_core.clock import ManualClock


@dataclass
class KeptRows:
    """A ledger in memory: the appends to each table, in order."""

    appends: dict[LedgerTable, list[list[dict]]] = field(default_factory=dict)
    fails: bool = False

    def append(self, table: LedgerTable, rows: pa.Table, *, number: int) -> None:
        known = self.appends.setdefault(table, [])
        assert number == len(known)
        known.append(rows.to_pylist())
        if self.fails:
            raise OSError("the answer was lost")

    def append_row(self, table: LedgerTable, row: dict, *, number: int) -> None:
        self.append(table, pa.Table.from_pylist([row]), number=number)


def recorder_of(ledger: KeptRows | None) -> Recorder:
    return Recorder(ledger=ledger, clock=ManualClock(1), facts={"run_id": "r"})


def run_on(ledger: KeptRows | None) -> Run:
    """Return a run without a session, whose record is kept in memory."""
    run = Run(Local(), Job(run_id="r", action="purge", roots=(), options=JobOptions(now_ms=1)))
    run.recorder = recorder_of(ledger)
    return run


def row(topic: str, steps: int = 0) -> dict:
    done = [{"operation": "DeleteFile", "name": f"{n}.log", "reason": "why"} for n in range(steps)]
    return {"topic": topic, "partition": 0, "status": "done", STEPS: done}


def test_rows_are_written_in_portions_with_the_steps_behind_them(monkeypatch):
    monkeypatch.setattr(recording, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(recording, "_STEPS_AT_ONCE", 3)
    ledger = KeptRows()
    rows = recorder_of(ledger).each_result(
        [row("a"), row("b", 1), row("c", 3), row("d")], action="purge"
    )
    assert rows.schema == RESULT
    assert rows["topic"].to_pylist() == ["a", "b", "c", "d"]
    assert set(rows["run_id"].to_pylist()) == {"r"}
    assert set(rows["action"].to_pylist()) == {"purge"}
    results = [[row["topic"] for row in rows] for rows in ledger.appends[LedgerTable.RESULTS]]
    assert results == [["a", "b"], ["c"], ["d"]]
    steps = [
        [(row["topic"], row["step"], row["file"]) for row in rows]
        for rows in ledger.appends[LedgerTable.OPERATIONS]
    ]
    assert steps == [[("b", 0, "0.log")], [("c", 0, "0.log"), ("c", 1, "1.log"), ("c", 2, "2.log")]]


def test_operations_of_a_wave_are_written_in_portions(monkeypatch):
    monkeypatch.setattr(recording, "_STEPS_AT_ONCE", 2)
    partitions = pa.table({"root": ["/r"] * 4, "topic": list("abcd"), "partition": [0, 1, 2, 3]})
    texts = {number: json.dumps(row("", number)[STEPS]) for number in range(4)}
    ledger = KeptRows()
    recorder_of(ledger).operations(partitions, {**texts, 1: None})
    steps = [
        [(row["topic"], row["partition"], row["step"]) for row in rows]
        for rows in ledger.appends[LedgerTable.OPERATIONS]
    ]
    assert steps == [[("c", 2, 0), ("c", 2, 1)], [("d", 3, 0), ("d", 3, 1), ("d", 3, 2)]]


def test_what_was_done_is_on_record_when_the_rest_is_interrupted():
    def rows():
        yield row("a", 1)
        raise KeyboardInterrupt

    ledger = KeptRows()
    with pytest.raises(KeyboardInterrupt), run_on(ledger) as run:
        run.recorder.each_result(rows(), action="purge")
    assert [row["topic"] for rows in ledger.appends[LedgerTable.RESULTS] for row in rows] == ["a"]
    start, end = (rows[0] for rows in ledger.appends[LedgerTable.RUNS])
    assert (start["event"], end["event"], end["error_class"]) == (
        "START",
        "END",
        "KeyboardInterrupt",
    )


def test_rows_that_could_not_be_written_are_not_written_a_second_time():
    ledger = KeptRows(fails=True)
    recorder = recorder_of(ledger)
    for topic in ("a", "b"):
        # What was done is returned all the same.
        assert recorder.each_result([row(topic, 1)], action="purge")["topic"].to_pylist() == [topic]
    assert len(ledger.appends[LedgerTable.RESULTS]) == 1
    assert str(recorder.problems[LedgerTable.RESULTS]) == "the answer was lost"


def test_without_a_ledger_the_rows_are_returned_and_nothing_is_written():
    with run_on(None) as run:
        assert run.recorder.each_result([row("a", 5)], action="purge").num_rows == 1
        assert run.recorder.each_result([], action="purge").schema == RESULT


def test_what_a_run_was_asked_for_is_recorded_without_secrets_and_without_whole_exports():
    dump = TopicDump(file="/exports/topics.json", taken_ms=7, topics={"orders": {"k": "v"}})
    options = JobOptions(
        now_ms=1,
        topic_dump=dump,
        limits=RunLimits(overrides=frozenset({"B", "A"})),
        spark_conf={"spark.password": "x"},
    )
    job = Job(run_id="r", action="verify", roots=(), options=options)
    asked = replace(job, request=asdict(VerifyRequest(shown=3)))
    said = json.loads(open_recorder(None, asked).facts["options"])
    assert "spark_conf" not in said
    assert said["topic_dump"] == [dump.file, dump.taken_ms]
    assert said["limits"]["overrides"] == ["A", "B"]
    assert (said["shown"], said["fail_on"]) == (3, "error")
    assert "shown" not in json.loads(open_recorder(None, job).facts["options"])


@dataclass
class Told:
    """A listener that keeps what it is told."""

    states: list[RunState] = field(default_factory=list)
    failure: str = "not told"

    def tell(self, state: RunState) -> None:
        self.states.append(state)


def test_listeners_are_told_what_the_two_rows_of_the_ledger_say():
    ledger, told = KeptRows(), Told()
    with run_on(ledger) as run:
        run.recorder.listeners = (told,)
        run.recorder.start()
        assert [state.is_start for state in told.states] == [True]
    report = run.report(RunReport, RESULT.empty_table())
    (end,) = told.states[1:]
    assert (end.exit_code, end.report) == (0, report)
    rows = [row for rows in ledger.appends[LedgerTable.RUNS] for row in rows]
    assert [dict(state.row) for state in told.states] == rows[1:]


def test_a_run_whose_end_cannot_be_written_has_failed_and_that_is_told_once():
    ledger, told = KeptRows(fails=True), Told()
    run = run_on(ledger)
    run.recorder.listeners = (told,)
    report = run.report(RunReport, RESULT.empty_table())
    assert report.exit_code == 5
    assert report.notes == (
        "the work above is done; the ledger lacks the run's END row: the answer was lost",
    )
    run.recorder.fail(KeyboardInterrupt())
    (state,) = told.states
    assert (state.exit_code, state.row["error_class"]) == (5, "OSError")


def test_a_ledger_that_fails_at_the_start_stops_the_run():
    with pytest.raises(OSError, match="the answer was lost"):
        recorder_of(KeptRows(fails=True)).start()


def test_what_a_listener_raises_is_a_warning_and_the_next_one_is_told(caplog):
    class Broken(Told):
        def tell(self, state: RunState) -> None:
            raise ValueError("no room")

    told = Told()
    recorder = recorder_of(None)
    recorder.listeners = (Broken(failure="x: nothing was written"), told)
    recorder.start()
    assert len(told.states) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "x: nothing was written, which changes nothing for the run: no room"
    ]
