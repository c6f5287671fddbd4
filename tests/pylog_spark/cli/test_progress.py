"""The progress line: on a terminal's standard error, and nowhere else."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Final

import pytest

from tests.kit.golden_broker import broker_origin

NOW_MS: Final = int(broker_origin()["clock_ms"]) + 3_600_000
COMMANDS: Final = {
    "find": "find {root} --topic events --key key-1",
    "free": f"free {{root}} --now-ms {NOW_MS} --engine local",
    "export": "export events {out} --root {root} --to parquet",
    "verify": f"verify {{root}} --now-ms {NOW_MS} --engine local",
    "ingest": "ingest {root} {out} --settle 0s --engine local",
    "recover": f"recover {{root}} --role broker --now-ms {NOW_MS} --engine local --dry-run",
}


def run(pylog, name: str, root, tmp_path, *words: str):
    command = COMMANDS[name].format(root=root, out=tmp_path / "out")
    result = pylog(*command.split(), *words)
    assert result.exit_code in {0, 1}, result.stderr
    return result


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_is_shown_how_far_a_command_has_come(
    pylog, monkeypatch, unclean_broker_dir, tmp_path, name: str
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error counts as a terminal
    result = run(pylog, name, unclean_broker_dir, tmp_path)
    assert "reading" in result.stderr
    assert "reading" not in result.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_no_progress_is_shown_to_a_program(pylog, unclean_broker_dir, tmp_path, name: str):
    assert run(pylog, name, unclean_broker_dir, tmp_path).stderr == ""


def test_no_progress_stands_beside_rows_for_a_program(
    pylog, monkeypatch, unclean_broker_dir, tmp_path
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(pylog, "find", unclean_broker_dir, tmp_path, "--output", "json")
    assert result.stderr == ""


def test_records_on_a_terminal_are_their_own_progress(pylog, monkeypatch, unclean_broker_dir):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = pylog("cat", "events", "--root", unclean_broker_dir, "-f", "%o\n", "--max", 3)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("out", "err", "is_shown"),
    [
        pytest.param("file", "terminal", True, id="into a file, before a terminal"),
        pytest.param("file", "pipe", False, id="nobody looks"),
        pytest.param("pipe", "terminal", False, id="into a program that may write to it"),
        pytest.param("terminal", "terminal", False, id="records are their own progress"),
    ],
)
def test_records_into_a_file_show_progress_on_a_terminal(
    unclean_broker_dir, tmp_path, out: str, err: str, is_shown: bool
):
    command = [sys.executable, "-m", "pylog_spark", "cat", unclean_broker_dir, "--topic", "events"]
    primary, terminal = pty.openpty()
    places = {"terminal": terminal, "pipe": subprocess.PIPE, "file": subprocess.DEVNULL}
    with (tmp_path / "records").open("wb") as file:
        done = subprocess.run(
            [*map(str, command), "-f", "%o\n"],
            stdout=file if out == "file" else places[out],
            stderr=places[err],
            env={**os.environ, "TERM": "xterm"},
            check=True,
            timeout=240,
        )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while data := os.read(primary, 1 << 16):
            shown += data
    os.close(primary)
    assert (b"reading" in shown + (done.stderr or b"")) is is_shown


def test_a_quiet_job_shows_nothing_where_it_ends_well(
    pylog, monkeypatch, unclean_broker_dir, tmp_path
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(pylog, "recover", unclean_broker_dir, tmp_path, "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.thorough
def test_a_quiet_job_shows_its_answer_where_it_does_not_end_well(
    pylog, unclean_broker_dir, tmp_path
):
    log = max(unclean_broker_dir.glob("events-0/*.log"))
    log.write_bytes(log.read_bytes() + b"torn")
    words = ("--fail-on", "warn")
    loud = run(pylog, "recover", unclean_broker_dir, tmp_path, *words)
    quiet = run(pylog, "recover", unclean_broker_dir, tmp_path, *words, "-q")
    assert loud.exit_code == quiet.exit_code == 1
    assert "planned" in quiet.stdout


@pytest.mark.thorough
def test_a_quiet_look_shows_its_answer_where_it_does_not_end_well(pylog, unclean_broker_dir):
    words = ("verify", unclean_broker_dir, "--engine", "local", "--now-ms", NOW_MS)
    for output in ("table", "json", "csv"):
        loud = pylog(*words, "--output", output, "--fail-on", "info")
        quiet = pylog(*words, "--output", output, "--fail-on", "info", "-q")
        assert (loud.exit_code, quiet.exit_code) == (1, 1)
        assert len(quiet.stdout.splitlines()) == len(loud.stdout.splitlines()) > 3
        well = pylog(*words, "--output", output, "--fail-on", "never", "--quiet")
        assert (well.exit_code, well.stdout) == (0, "")


def test_quiet_runs_say_whether_they_can_be_read(pylog, tmp_path):
    (tmp_path / "trash").mkdir()
    assert pylog("runs", "--trash", tmp_path / "trash").stdout
    quiet = pylog("runs", "--trash", tmp_path / "trash", "-q")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert pylog("runs", "--trash", tmp_path / "absent", "-q").exit_code != 0
