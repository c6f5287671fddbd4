"""A ledger of which files were removed behind its back: the way out, in our words."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.kit.report_situations import NOW_MS, unpack


@pytest.fixture
def night(pylog, tmp_path: Path):
    """One night with a ledger."""
    [root] = unpack("drained_nofile", tmp_path)
    ledger = ("--ledger", tmp_path / "ledger")
    words = (root, "--role", "broker", "--topics", "full", "--engine", "local")
    return lambda: pylog("retain", *words, "--now-ms", NOW_MS, *ledger)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("table", ["runs", "results"])
def test_a_lost_commit_is_told_before_the_work_with_what_mends_it(night, tmp_path: Path, table):
    assert night().exit_code == 0
    commits = sorted((tmp_path / "ledger" / table / "_delta_log").glob("*.json"))
    commits[0].unlink()
    result = night()
    text = " ".join(result.stderr.split())
    assert (result.exit_code, result.stdout) == (5, "")
    assert "files of this table are gone" in text
    assert "The rows of former runs are lost, their work is not" in text
    assert "\x1b" not in result.stderr
    command = text[text.index("mv ") : text.index(", or another --ledger")]
    subprocess.run(shlex.split(command), check=True)
    assert night().exit_code == 0


@pytest.mark.thorough
def test_lost_rows_stop_no_night_and_are_told_by_what_reads_them(night, pylog, tmp_path: Path):
    assert night().exit_code == 0
    next((tmp_path / "ledger" / "runs").glob("*.parquet")).unlink()
    assert night().exit_code == 0
    result = pylog("runs", "--ledger", tmp_path / "ledger")
    assert result.exit_code == 5
    assert "files of this table are gone" in " ".join(result.stderr.split())
    assert "\x1b" not in result.stderr
