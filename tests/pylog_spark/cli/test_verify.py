"""``pylog verify``: findings out, and an exit status that a scheduler understands."""

import json
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.schemas import RECORDED_FINDING, RESULT
from tests.storage_core.maintenance.verification.log_root import NOW_MS, LogRoot, log_root

pytestmark = pytest.mark.spark
CLOCK = ("--now-ms", NOW_MS)


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


def lines_of(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_log_directory_that_is_whole_is_done(spark, pylog, root):
    result = pylog("verify", root.path, *CLOCK, "--deep")
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert "1 partition, " in result.stdout
    assert "nothing found" in result.stdout


def test_the_worst_is_listed_and_what_is_harmless_counted(spark, pylog, root):
    root.change(root.file(20), -1, b"\x55")
    (root.partition / "foo.txt").touch()
    result = pylog("verify", root.path, *CLOCK)
    assert result.exit_code == ExitCode.FINDINGS
    listed, counted = result.stdout.split("what to do", 1)
    assert "BATCH_CRC_WRONG" in listed
    assert "00000000000000000020.log" in listed
    assert "FILE_UNKNOWN" not in listed.rsplit("severity", 1)[0]
    assert "FILE_UNKNOWN" in counted
    assert "pylog recover" in counted


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [("fatal", ExitCode.DONE), ("never", ExitCode.DONE), ("warn", ExitCode.FINDINGS)],
)
def test_fail_on_says_what_counts(spark, pylog, root, fail_on, status):
    root.change(root.file(20), -1, b"\x55")
    assert pylog("verify", root.path, *CLOCK, "--fail-on", fail_on).exit_code == status


def test_json_has_a_line_a_finding_a_partition_and_the_run(spark, pylog, root, tmp_path):
    root.file(10, ".txnindex").unlink()
    page = tmp_path / "report.html"
    result = pylog("verify", root.path, *CLOCK, "--output", "json", "--report", page)
    finding, partition, run = lines_of(result)
    assert list(finding) == ["type", *RECORDED_FINDING.names]
    assert (finding["type"], finding["code"], finding["offset"]) == (
        "finding",
        "TXN_INDEX_MISSING",
        15,
    )
    assert list(partition) == ["type", *RESULT.names]
    assert (run["type"], run["exit_code"]) == ("run", 1)
    assert run["findings"] == [{"severity": "error", "code": "TXN_INDEX_MISSING", "count": 1}]
    text = page.read_text()
    assert "TXN_INDEX_MISSING" in text
    assert text.startswith("<!doctype html>")


def test_a_page_cannot_be_made_to_say_more_than_text(spark, pylog, root, tmp_path):
    (root.partition / "<script>alert(1)<").touch()
    page = tmp_path / "report.html"
    pylog("verify", root.path, *CLOCK, "--report", page)
    assert page.read_text().count("<script") == 1
    assert "&lt;script&gt;" in page.read_text()


def test_what_is_no_directory_is_wrong_usage_and_starts_no_session(pylog, tmp_path):
    result = pylog("verify", tmp_path / "no-such")
    assert result.exit_code == ExitCode.USAGE
    assert "no such directory" in result.stderr
