"""How every command runs: what is refused early, when a session is started, what is the answer."""

from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cli import doctor, explain, jobs, transfer, upkeep, verify
from pylog_spark.cli.runner import Call, Work
from pylog_spark.options import JobOptions
from pylog_spark.options.option import CommandLine
from storage_core.errors import ConfigError

# By when a session is started, and when it can read and write Delta tables.
ASKS_LEDGER = [jobs.RUN, jobs.RECOVER, jobs.RETAIN, jobs.COMPACT, jobs.APPLY, verify.VERIFY]
WRITES_LEDGER = [transfer.INGEST, transfer.MATERIALIZE, transfer.SURVEY]
STARTS_FOR_LEDGER = [upkeep.UNDO, upkeep.PURGE]
STARTS_NONE = [explain.EXPLAIN, doctor.DOCTOR]


def started(
    monkeypatch: pytest.MonkeyPatch, work: Work, *, ledger: str | None, dry_run: bool
) -> list[tuple]:
    """Return name and ``delta`` of each session that a command starts."""
    sessions: list[tuple] = []

    def build(_master: object, _conf: object, *, app_name: str, delta: bool) -> str:
        sessions.append((app_name, delta))
        return "session"

    def prepare(line: CommandLine) -> Call:
        options = JobOptions(now_ms=1, ledger=ledger, dry_run=dry_run)
        return Call(line=line, options=options, subject=None)

    def operate(_call: Call, session: object) -> object:
        return session

    def show(_call: Call, report: object) -> int:
        assert report == ("session" if sessions else None)
        return 7

    monkeypatch.setattr("pylog_spark.session.build_session", build)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert replace(work, prepare=prepare, operate=operate, show=show)(CommandLine({})) == 7
    return sessions


@pytest.mark.parametrize("dry_run", [False, True], ids=["for good", "dry run"])
@pytest.mark.parametrize("ledger", [None, "/ledger"])
@pytest.mark.parametrize(
    "work",
    [*ASKS_LEDGER, *WRITES_LEDGER, *STARTS_FOR_LEDGER, *STARTS_NONE],
    ids=lambda work: work.name,
)
def test_a_session_is_started_where_one_is_needed(monkeypatch, work, ledger, dry_run):
    sessions = started(monkeypatch, work, ledger=ledger, dry_run=dry_run)
    writes = ledger is not None and not dry_run
    if work in ASKS_LEDGER:
        assert sessions == [(f"pylog {work.name}", ledger is not None)]
    elif work in WRITES_LEDGER:
        assert sessions == [(f"pylog {work.name}", writes)]
    elif work in STARTS_FOR_LEDGER and writes:
        assert sessions == [(f"pylog {work.name}", True)]
    else:
        assert sessions == []


@pytest.mark.parametrize("option", ["report", "plan_out"])
def test_a_file_that_cannot_be_written_is_refused_before_all_else(tmp_path: Path, option: str):
    def prepare(_line: CommandLine) -> Call:
        raise AssertionError

    work = replace(jobs.RUN, prepare=prepare)
    with pytest.raises(ConfigError, match=rf"--{option.replace('_', '-')}=.*is a directory"):
        work(CommandLine({option: tmp_path}))
    with pytest.raises(ConfigError, match="there is no folder"):
        work(CommandLine({option: tmp_path / "none" / "file"}))


def test_a_survey_never_writes(tmp_path: Path):
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert transfer.SURVEY.prepare(CommandLine({"roots": [str(tmp_path)]})).options.dry_run
