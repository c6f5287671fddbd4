"""How every command runs: what is refused early, where its tasks are done, what is the answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli import doctor, explain, jobs, transfer, verify
from pylog_spark.cli import jobs as upkeep
from pylog_spark.cli.runner import Call, Work, engine_text
from pylog_spark.discovery import LogRoot
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import EngineChoice
from pylog_spark.options.option import CommandLine
from pylog_spark.view import View
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError
from storage_core.filenames import log_file

UPKEEP = [jobs.RUN, jobs.RECOVER, jobs.RETAIN, jobs.COMPACT]
JOBS = [*UPKEEP, transfer.INGEST, transfer.MATERIALIZE]
LOOKS = [verify.VERIFY, transfer.SURVEY, doctor.DOCTOR]
# By whether a dry run asks the ledger, too.
ASKS_LEDGER = [*UPKEEP, jobs.APPLY, verify.VERIFY]
WRITES_LEDGER = [transfer.INGEST, transfer.MATERIALIZE, transfer.SURVEY, doctor.DOCTOR]
HERE = [upkeep.UNDO, upkeep.PURGE]
NO_TASKS = [explain._PARTITIONS]
WITH_TASKS = [*JOBS, jobs.APPLY, *LOOKS]
ALL = [*WITH_TASKS, *HERE, *NO_TASKS]


@pytest.fixture
def few(tmp_path: Path) -> LogRoot:
    """A log directory of two partitions."""
    for name in ("t-0", "t-1"):
        (tmp_path / "log" / name).mkdir(parents=True)
    return LogRoot(location=str(tmp_path / "log"), role=Role.BROKER, is_said=True)


def place_of(
    monkeypatch: pytest.MonkeyPatch,
    work: Work,
    roots: list[LogRoot],
    *,
    has_session: bool = False,
    **said: Any,
) -> Any:
    """Return where a command has its tasks done: name and ``delta`` of a session, this machine."""

    def build(
        _master: object, _conf: object, *, app_name: str, delta: bool, is_of_job: bool
    ) -> tuple:
        assert is_of_job
        return app_name.removeprefix("pylog "), delta

    places: list[Any] = []
    options = JobOptions(now_ms=1, **said)
    monkeypatch.setattr("pylog_spark.session.build_session", build)
    monkeypatch.setattr("pylog_spark.session.has_session", lambda: has_session)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    call: Call = Call(line=CommandLine({}), options=options, roots=roots)
    whole = replace(
        work,
        prepare=lambda _: call,
        operate=lambda _, place: places.append(place),
        view=lambda *_: View(lines=(), blocks=(), status=7),
    )
    assert whole(CommandLine({})) == 7
    return places[0]


def names(works: list[Work]) -> Any:
    return pytest.mark.parametrize("work", works, ids=lambda work: work.name)


@pytest.mark.parametrize("dry_run", [False, True], ids=["for good", "dry run"])
@pytest.mark.parametrize("has_ledger", [False, True], ids=["", "ledger"])
@names(ALL)
def test_where_somebody_has_a_session_it_is_taken(
    monkeypatch, few, tmp_path, work, has_ledger, dry_run
):
    said = {"dry_run": dry_run, "ledger": str(tmp_path / "ledger") if has_ledger else None}
    place = place_of(monkeypatch, work, [few], has_session=True, **said)
    writes = has_ledger and not dry_run
    if work in ASKS_LEDGER:
        assert place == (work.name, has_ledger)
    elif work in WRITES_LEDGER:
        assert place == (work.name, writes)
    elif work in HERE and writes:
        assert place == (work.name, True)
    else:
        assert place is None


@names(ALL)
def test_without_one_what_is_no_job_needs_no_spark(monkeypatch, few, tmp_path, work):
    ledger = str(tmp_path / "ledger")
    for_good = place_of(monkeypatch, work, [few], ledger=ledger)
    dry = place_of(monkeypatch, work, [few], ledger=ledger, dry_run=True)
    if work in WITH_TASKS:
        assert (for_good, dry) == (Local(), Local())
    elif work in HERE:
        assert (for_good, dry) == (Local(), None)
    else:
        assert (for_good, dry) == (None, None)


@names([*WITH_TASKS, *HERE])
def test_where_there_is_no_pyspark_this_machine_does_it_but_for_a_master(
    monkeypatch, few, tmp_path, work
):
    monkeypatch.setattr("pylog_spark.session.is_spark_installed", lambda: False)
    monkeypatch.setattr("pylog_spark.cli.runner.MOST_PARTITIONS_HERE", 1)
    ledger = str(tmp_path / "ledger")
    assert place_of(monkeypatch, work, [few], ledger=ledger) == Local()
    on_spark = (work.name, True)
    assert place_of(monkeypatch, work, [few], ledger=ledger, master="local[2]") == on_spark


@names(WITH_TASKS)
def test_spark_looks_at_what_is_much_or_elsewhere(monkeypatch, few, tmp_path, work):
    remote = LogRoot(location="s3://bucket/log", role=Role.MIRROR, is_said=True)
    on_spark = (work.name, False)
    assert place_of(monkeypatch, work, [few, remote], dry_run=True) == on_spark
    assert place_of(monkeypatch, work, [few], dry_run=True, master="local[2]") == on_spark
    managed = LogRoot(location=few.location, role=Role.MANAGED, is_said=True)
    to_be_made = replace(managed, location=f"{few.location}-new")
    assert place_of(monkeypatch, work, [few, managed, to_be_made], dry_run=True) == Local()


@names(WITH_TASKS)
def test_spark_takes_what_is_much_and_this_machine_what_is_not_there_yet(monkeypatch, few, work):
    to_be_made = LogRoot(location=f"{few.location}-new", role=Role.MANAGED, is_said=True)
    assert place_of(monkeypatch, work, [few, to_be_made]) == Local()
    monkeypatch.setattr("pylog_spark.cli.runner.MOST_PARTITIONS_HERE", 1)
    assert place_of(monkeypatch, work, [few]) == (work.name, False)


@names(WITH_TASKS)
def test_partitions_of_chosen_topics_bound_what_is_done_here(monkeypatch, few, work):
    monkeypatch.setattr("pylog_spark.cli.runner.MOST_PARTITIONS_HERE", 2)
    (Path(few.location) / "__cluster_metadata-0").mkdir()
    assert place_of(monkeypatch, work, [few]) == Local()
    (Path(few.location) / "u-0").mkdir()
    assert place_of(monkeypatch, work, [few]) == (work.name, False)
    assert place_of(monkeypatch, work, [few], exclude=("u",)) == Local()


@names(WITH_TASKS)
@pytest.mark.parametrize("dry_run", [False, True], ids=["for good", "dry run"])
def test_bytes_of_chosen_topics_bound_what_is_done_here(monkeypatch, few, work, dry_run):
    monkeypatch.setattr("pylog_spark.cli.runner.MOST_BYTES_HERE", 10)
    (Path(few.location) / "t-0" / "00000000000000000000.log").write_bytes(bytes(11))
    (Path(few.location) / "t-1" / "00000000000000000000.index").write_bytes(bytes(99))
    said = {"dry_run": dry_run}
    assert place_of(monkeypatch, work, [few], **said) == (work.name, False)
    assert place_of(monkeypatch, work, [few], **said, exclude=("t",)) == Local()
    (Path(few.location) / "t-0" / "00000000000000000000.log").write_bytes(bytes(10))
    assert place_of(monkeypatch, work, [few], **said) == Local()


def test_this_machine_keeps_what_was_listed_to_choose_it(monkeypatch, few):
    logs = {"t-0": {0: 3, 12: 4}, "t-1": {5: 1}}
    for name, sizes in logs.items():
        for base, size in sizes.items():
            (Path(few.location) / name / log_file(base)).write_bytes(bytes(size))
    (Path(few.location) / "t-1" / "folder").mkdir()
    listed = {f"{few.location}/t-0": ((0, 12), (3, 4))}
    assert place_of(monkeypatch, WITH_TASKS[0], [few]).listed == listed
    monkeypatch.setattr("pylog_spark.discovery._MOST_KEPT_LOGS", 0)
    assert place_of(monkeypatch, WITH_TASKS[0], [few]).listed == {}


def test_the_closing_line_says_why_an_engine_was_taken(pylog, few):
    (Path(few.location) / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    words = ("retain", few.location, "--role", "broker", "--dry-run")
    told = " ".join(pylog(*words, "--engine", "local").stdout.split())
    assert "engine local" in told
    assert "takes Spark" not in told


@pytest.mark.parametrize(
    ("most", "engine", "why"),
    [
        (2, "local", "up to 2 partitions and 100 GiB of logs here; --engine spark takes Spark"),
        (1, "spark", "beyond 1 partitions and 100 GiB of logs"),
    ],
)
def test_the_closing_line_names_the_other_engine_whichever_auto_takes(
    monkeypatch, few, most, engine, why
):
    monkeypatch.setattr("pylog_spark.session.has_session", lambda: False)
    monkeypatch.setattr("pylog_spark.cli.runner.MOST_PARTITIONS_HERE", most)
    bound = f"{most} partitions and 100 GiB of logs"
    monkeypatch.setattr("pylog_spark.cli.runner._BOUND", bound)
    options = JobOptions(now_ms=1)
    call: Call = Call(line=CommandLine({}), options=options, roots=[few])
    place, note = WITH_TASKS[0]._choose(call)
    assert (place is not None) is (engine == "local")
    line = engine_text(engine, replace(call, engine_note=note))
    assert line.startswith(f"engine {engine} ({why}")
    other = "--engine spark takes Spark" if engine == "local" else "takes this machine"
    assert line.endswith(f"{other})")


@names([*WITH_TASKS, *HERE])
def test_a_ledger_that_only_spark_opens_takes_spark(monkeypatch, few, tmp_path, work):
    (tmp_path / "old" / "runs").mkdir(parents=True)
    (tmp_path / "old" / "runs" / "part-0.parquet").touch()
    for ledger in ("s3a://bucket/ledger", str(tmp_path / "[1]"), str(tmp_path / "old")):
        assert place_of(monkeypatch, work, [few], ledger=ledger) == (work.name, True)


@names([*WITH_TASKS, *HERE])
def test_an_engine_that_is_said_wins(monkeypatch, few, tmp_path, work):
    ledger = str(tmp_path / "ledger")
    local = {"ledger": ledger, "engine": EngineChoice.LOCAL, "has_session": True}
    assert place_of(monkeypatch, work, [few], **local) == Local()
    assert place_of(monkeypatch, work, [few], **local, master="local[3]") == Local(3)
    with pytest.raises(ConfigError, match="--master=yarn"):
        place_of(monkeypatch, work, [few], **local, master="yarn")
    spark = {"ledger": ledger, "engine": EngineChoice.SPARK}
    assert place_of(monkeypatch, work, [few], **spark) == (work.name, True)


@names(HERE)
def test_it_wins_where_there_is_no_ledger_to_write_either(monkeypatch, few, work):
    def place(**said: Any) -> Any:
        return place_of(monkeypatch, work, [few], **said)

    assert place(engine=EngineChoice.SPARK) == place(master="local[2]") == (work.name, False)
    assert place(engine=EngineChoice.LOCAL, master="local[3]") == Local(3)


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
