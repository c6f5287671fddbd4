"""``pylog doctor``: a verdict, its reasons, the next command."""

import html
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, REPLICATION_FILE
from tests.kit.builders import encode_batch
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of
from tests.storage_core.maintenance.verification.log_root import (
    NOW_MS,
    ONLY_BROKER,
    LogRoot,
    batch,
    log_root,
)

CLOCK = ("--now-ms", NOW_MS, *ONLY_BROKER)


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


def ask(pylog, *arguments) -> tuple[int, dict[str, Any]]:
    """Return exit status and diagnosis, on this machine though another test has a session."""
    place = () if "--master" in arguments else ("--engine", "local")
    result = pylog("doctor", *arguments, *place, "--output", "json")
    return result.exit_code, json.loads(result.stdout)


def crash(root: LogRoot) -> None:
    """Let the broker have died: no marker, the last segment not flushed since offset 30."""
    (root.path / CLEAN_SHUTDOWN_FILE).unlink()
    root.write_checkpoint("recovery-point-offset-checkpoint", 30)


def test_a_sound_closed_log_is_opened_once(pylog, broker_dir, monkeypatch):
    foretold = []

    def forecast(targets, **_: Any):
        foretold.extend(target.partition.topic for target in targets)
        return iter(())

    monkeypatch.setattr("pylog_spark.operations.doctor.driver.forecast_partitions", forecast)
    _, answer = ask(pylog, broker_dir)
    rows = {row["topic"]: row for row in answer["partitions"]}
    # What its verification has read says what a start does; others are loaded once more.
    assert "events" in rows
    assert "events" not in foretold
    assert rows["events"]["start"] == "opened"


@pytest.mark.thorough
def test_after_a_kill_it_foretells_what_a_start_would_do(pylog, unclean_broker_dir):
    case = Golden("broker-dir-unclean").case
    status, answer = ask(pylog, unclean_broker_dir, "--now-ms", case["clock_ms"])
    assert (status, answer["advice"]) == (ExitCode.DONE, "start-broker")
    assert answer["start"]["recovered_partitions"] == 13
    assert answer["start"]["cut_bytes"] == 0
    ends = {f"{row['topic']}-{row['partition']}": row for row in answer["partitions"]}
    for name, of in case["expected"].items():
        if "expected" in of:
            assert ends[name]["log_end_offset"] == of["expected"]["leo"]


def test_a_torn_tail_is_cut_by_the_broker_itself(pylog, root):
    crash(root)
    with root.file(30).open("ab") as file:
        file.write(encode_batch(batch(40))[:-1])
    status, answer = ask(pylog, root.path, *CLOCK)
    assert (status, answer["advice"]) == (ExitCode.DONE, "start-broker")
    assert answer["start"]["cut_bytes"] == len(encode_batch(batch(40))) - 1
    assert answer["start"]["cut_records"] == 0
    assert answer["partitions"][0]["log_end_offset"] == 40


def test_who_would_lose_readable_records_is_told_to_look_first(pylog, root):
    crash(root)
    root.change(root.file(30), len(encode_batch(batch(30))) - 1, b"\x55")
    root.write_checkpoint(REPLICATION_FILE, 40)
    status, answer = ask(pylog, root.path, *CLOCK)
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "look-before-start")
    [partition] = answer["partitions"]
    assert (partition["cut_records"], partition["log_end_offset"]) == (5, 30)
    assert partition["lost_below_high_watermark"] == 10
    assert any("--salvage" in command for command in answer["commands"])


def test_what_stops_a_broker_is_named(pylog, root):
    root.change(root.file(10, ".txnindex"), 1, b"\x09")
    status, answer = ask(pylog, root.path, *CLOCK)
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "do-not-start")
    assert answer["start"]["refused"] == 1
    assert "txnindex" in answer["reasons"][0]


def test_a_log_that_a_start_would_delete_is_fatal(pylog, root):
    root.write_checkpoint("log-start-offset-checkpoint", 1000)
    status, answer = ask(pylog, root.path, *CLOCK)
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "do-not-start")
    assert {count["code"] for count in answer["counts"]} >= {"LOG_START_BEYOND_END"}


@pytest.mark.thorough
def test_a_directory_in_use_is_told_apart_and_its_lock_stays(pylog, root):
    with LogDirectoryLock(root.path) as lock:
        _, answer = ask(pylog, root.path, *CLOCK)
        assert answer["advice"] == "in-use"
        assert f"process {lock.proof.holder_pid}" in answer["headline"]
        lock.validate_held()


def test_a_person_reads_the_verdict_first(pylog, root):
    root.file(20, ".index").unlink()
    result = pylog.done("doctor", root.path, *CLOCK, "--engine", "local")
    assert result.stdout.splitlines()[0].startswith("Just start the broker: it repairs this")
    text = " ".join(result.stdout.split())
    assert "A broker's start would recover 1 partition: read" in text
    assert "Looked at with engine local." in text
    assert "records cut" not in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Just start the broker: it repairs this")
    assert "OFFSET_INDEX_MISSING" in result.stdout
    assert "nobody holds its lock" in result.stdout


@pytest.mark.thorough
def test_a_copy_is_never_started(pylog, root):
    with root.file(30).open("ab") as file:
        file.write(b"\0\0\0")
    status, answer = ask(pylog, root.path, *CLOCK, "--role", "mirror")
    assert (status, answer["advice"]) == (ExitCode.DONE, "copy-whole")
    root.change(root.file(20), -1, b"\x55")
    status, answer = ask(pylog, root.path, *CLOCK, "--role", "mirror")
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "copy-damaged")


@pytest.mark.thorough
def test_recovery_threads_come_from_the_brokers_own_file(pylog, root, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.recovery.threads.per.data.dir=7\n")
    _, answer = ask(pylog, root.path, *CLOCK, "--server-properties", file)
    assert answer["pace"]["broker_threads"] == 7
    _, answer = ask(pylog, root.path, *CLOCK, "--set", "num.recovery.threads.per.data.dir=3")
    assert answer["pace"]["broker_threads"] == 3


@pytest.mark.thorough
def test_another_release_than_4_4_is_named(pylog, broker_dir):
    status, answer = ask(pylog, broker_dir, "--release-version", "3.9")
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "do-not-start")
    [level] = [f for f in answer["findings"] if "metadata.version" in f["message"]]
    assert (level["code"], level["severity"]) == ("FEATURE_LEVEL_UNKNOWN", "fatal")
    assert "Kafka 3.9 knows 1 to 21" in level["message"]


@pytest.mark.thorough
def test_a_brokers_own_file_is_judged_by_the_release_that_is_to_start(pylog, root, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("log.segment.bytes=1024\nprocess.roles=broker\n")
    words = ("doctor", root.path, *CLOCK, "--server-properties", file)
    refused = pylog(*words)
    assert refused.exit_code == ExitCode.USAGE
    said = " ".join(refused.stderr.split())
    assert (
        "log.segment.bytes=1024: must be at least 1048576 in Kafka 4.4; --release-version" in said
    )
    taken = pylog(*words, "--release-version", "3.9")
    assert (taken.exit_code, taken.stderr) == (ExitCode.DONE, "")


def test_other_commands_take_the_file_of_an_older_broker(pylog, root, tmp_path, caplog):
    file = tmp_path / "server.properties"
    file.write_text("log.segment.bytes=1024\n")
    words = (root.path, *CLOCK, "--role", "broker", "--assume-defaults", "*", "--dry-run")
    pylog.done("retain", *words, "--server-properties", file)
    assert "Kafka 4.4 refuses log.segment.bytes=1024" in caplog.text


def test_a_release_whose_rules_are_not_known_is_refused(pylog, broker_dir):
    refused = pylog("doctor", broker_dir, "--release-version", "3.8")
    assert refused.exit_code == ExitCode.USAGE
    said = " ".join(refused.stderr.split())
    assert "--release-version=3.8-IV0: expected a release from 3.9 to 4.4" in said


@pytest.mark.thorough
def test_who_keeps_no_metadata_says_what_the_node_is(pylog, root, tmp_path):
    words = (root.path, "--now-ms", NOW_MS)
    file = tmp_path / "server.properties"
    # Nothing is found; the exit status keeps a script from starting the broker all the same.
    for roles, advice, expected in (
        ("", "look-before-start", ExitCode.FINDINGS),
        ("broker,controller", "look-before-start", ExitCode.FINDINGS),
        ("broker", "start-broker", ExitCode.DONE),
    ):
        file.write_text(f"process.roles={roles}\n")
        status, answer = ask(pylog, *words, "--server-properties", file)
        assert (status, answer["advice"]) == (expected, advice)
        assert answer["start"]["lacks_metadata"]
    for fail_on, expected in (("fatal", ExitCode.DONE), ("never", ExitCode.DONE)):
        file.write_text("process.roles=\n")
        status, _ = ask(pylog, *words, "--server-properties", file, "--fail-on", fail_on)
        assert status == expected


@pytest.mark.parametrize("twice", [False, True], ids=["missing", "twice"])
def test_wrong_roots_are_wrong_usage(pylog, root, twice):
    places = [root.path, root.path] if twice else [root.path / "no-such"]
    assert pylog("doctor", *places).exit_code == ExitCode.USAGE


@pytest.mark.thorough
@pytest.mark.spark
def test_a_master_asks_for_spark(spark, pylog, root):
    status, answer = ask(pylog, root.path, *CLOCK, "--master", "local[2]")
    assert (status, answer["advice"]) == (ExitCode.DONE, "start-broker")
    assert answer["engine"] == "spark"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("absent", "no such directory"),
        ("empty", "is its disk mounted?"),
        ("log/t-0", "is the directory of one partition; expected its log directory"),
        ("log/meta.properties", "is not a directory"),
        ("s3://bucket/kafka", "no broker starts on it; `pylog verify` looks at URLs"),
    ],
)
def test_what_is_no_log_directory_gets_no_verdict(pylog, root, place: str, said: str):
    (root.path.parent / "empty").mkdir()
    result = pylog("doctor", place if "://" in place else root.path.parent / place)
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr
    assert result.stdout == ""


def test_files_that_this_process_may_not_read_are_not_held_against_the_broker(
    pylog, root, monkeypatch
):
    monkeypatch.setattr("os.access", lambda path, _, **__: Path(path) != root.file(30))
    result = pylog("doctor", root.path, *CLOCK, "--engine", "local")
    assert result.exit_code == ExitCode.FAILED
    assert f"{root.file(30)}: this process may not read it" in result.stderr
    assert result.stdout == ""


@pytest.mark.thorough
def test_the_last_lines_are_the_verdict_and_the_next_command(pylog, root):
    crash(root)
    root.change(root.file(30), len(encode_batch(batch(30))) - 1, b"\x55")
    _, answer = ask(pylog, root.path, *CLOCK)
    assert answer["headline"].startswith(
        "The broker would start and lose 5 readable records of t-0"
    )
    result = pylog("doctor", root.path, *CLOCK, "--engine", "local")
    *_, headline, following = result.stdout.splitlines()
    assert (headline, following) == (answer["headline"], f"next: {answer['commands'][0]}")


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_records_that_the_plan_cuts_are_those_that_it_then_cuts(pylog, root, is_clean):
    if not is_clean:
        crash(root)
    root.change(root.file(10), 30, b"\x55")
    status, answer = ask(pylog, root.path, *CLOCK)
    assert (status, answer["advice"]) == (ExitCode.FINDINGS, "look-before-start")
    assert answer["cut_records"] > 20
    assert f"{answer['cut_records']} readable records of t-0" in answer["headline"]
    assert all("--from-start" in command for command in answer["commands"])
    result = pylog("doctor", root.path, *CLOCK, "--engine", "local", "--wide")
    assert f"delete records: {answer['cut_records']} readable ones in all" in result.output
    _, *words = shlex.split(answer["commands"][-1])
    done = pylog(*words, "--engine", "local", "--output", "json")
    cuts = lines_of(done)
    counted = sum(row["records"] for row in cuts if row["type"] == "cut")
    assert counted == answer["cut_records"]


@pytest.mark.thorough
def test_all_commands_are_shown_to_who_asks_for_them(pylog, root, tmp_path):
    root.change(root.file(20, ".timeindex"), 7, b"\xff")
    for number in range(1, 12):
        shutil.copytree(root.partition, root.path / f"t-{number}")
    _, answer = ask(pylog, root.path, *CLOCK)
    assert len(answer["commands"]) == 12
    page = tmp_path / "page.html"
    few = pylog("doctor", root.path, *CLOCK, "--engine", "local", "--report", page).stdout
    assert "    and 2 more; --all-commands shows them" in few.splitlines()
    assert answer["commands"][-1] not in few
    assert f"    and {12 - 1} more; --all-commands shows them" in few
    assert all(html.escape(command) in page.read_text() for command in answer["commands"])
    every = pylog("doctor", root.path, *CLOCK, "--engine", "local", "--all-commands").stdout
    assert "--all-commands" not in every
    assert all(every.count(command) >= 2 for command in answer["commands"])


@pytest.mark.thorough
def test_the_page_has_every_warning_that_the_terminal_has(pylog, root, tmp_path):
    crash(root)
    root.change(root.file(30), len(encode_batch(batch(30))) - 1, b"\x55")
    page = tmp_path / "page.html"
    result = pylog("doctor", root.path, *CLOCK, "--engine", "local", "--report", page)
    _, answer = ask(pylog, root.path, *CLOCK)
    text = html.unescape(page.read_text())
    said = " ".join(result.stdout.split())
    warning = "Commands with --allow-truncate delete records"
    way_back = "goes back by `pylog salvage replay` before the broker is started"
    assert way_back in text
    assert way_back in said
    for each in (answer["headline"], warning, *answer["reasons"], *answer["commands"]):
        assert each in text
        assert each in said
