"""What the commands print of names that are not UTF-8 or would steer a terminal."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.catalog.roles import Role
from tests.kit.golden_data import Golden
from tests.kit.hostile_names import SPELLED_OUT, add_hostile_names

PARTITION = "compacted-0"
NOW_MS: int = Golden("broker-dir").case["clock_ms"]
ENDS = {ExitCode.DONE, ExitCode.FINDINGS, ExitCode.PARTLY_FAILED}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = Golden("broker-dir").unpack(tmp_path)
    add_hostile_names(path, PARTITION)
    return path


def lines(text: str) -> list[dict[str, Any]]:
    """Return JSON lines; each is text as RFC 8259 wants it, without halves of characters."""
    parsed = [json.loads(line) for line in text.splitlines()]
    for line in parsed:
        json.dumps(line, ensure_ascii=False).encode("utf-8")
    return parsed


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("doctor",),
        ("explain", "--role", "mirror"),
        ("purge", "--role", Role.BROKER.value),
        ("purge", "--role", Role.BROKER.value, "--dry-run"),
    ],
    ids=["inspect", "doctor", "explain", "purge", "purge dry run"],
)
def test_a_hostile_name_ends_no_command_and_steers_no_terminal(pylog, root, arguments):
    for output in ("table", "json"):
        result = pylog(arguments[0], root, *arguments[1:], "--output", output)
        assert result.exit_code in ENDS, result.stderr
        assert "Traceback" not in result.stderr
        text = result.stdout_bytes + result.stderr_bytes
        assert b"\x1b" not in text
        assert text.decode("utf-8")
        if output == "json":
            lines(result.stdout)


def test_inspect_shows_names_that_a_broker_does_not_see(pylog, root):
    shown = pylog("inspect", root).stdout
    assert SPELLED_OUT in shown
    assert "[red]-0" in shown  # no markup to rich
    rows = {
        row.get("directory"): row
        for row in lines(pylog("inspect", root, "--output", "json").stdout)
    }
    assert rows[SPELLED_OUT]["kind"] == "foreign"
    assert r"\xff.log" in rows[PARTITION]["unknown_files"]
    assert rows[PARTITION]["error"] is None
    assert rows[PARTITION]["log_end_offset"] > 0


@pytest.mark.thorough
def test_doctor_lets_a_broker_start_beside_names_that_it_does_not_see(pylog, root):
    for path in list(root.iterdir()):
        if path.is_dir() and path.name[0] in "\x1b<[":
            path.rmdir()
    result = pylog("doctor", root, "--output", "json")
    (answer,) = lines(result.stdout)
    assert (result.exit_code, answer["advice"]) == (ExitCode.DONE, "start-broker")


@pytest.mark.thorough
def test_a_partition_below_a_folder_that_is_not_utf8_is_worked_on(pylog, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff\x1b[31m")
    root = Golden("broker-dir").unpack(folder)
    directory = root / PARTITION
    for options in (("--dry-run",), ()):
        result = pylog.done("partition", "recover", directory, "--now-ms", NOW_MS, *options)
        lines(result.stdout)
    log = min(directory.glob("*.log"))
    for output in ("table", "json"):
        result = pylog.done("dump", log, "--output", output)
        assert b"\x1b" not in result.stdout_bytes
        result.stdout_bytes.decode("utf-8")
    shutil.rmtree(directory)
    result = pylog("partition", "recover", directory, "--now-ms", NOW_MS)
    assert result.exit_code == ExitCode.USAGE
    assert b"\x1b" not in result.stderr_bytes
    assert rb"\xff\x1b[31m" in result.stderr_bytes
