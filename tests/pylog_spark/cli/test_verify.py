"""``pylog verify``: findings out, and an exit status that a scheduler understands."""

from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from tests.storage_core.maintenance.verification.log_root import NOW_MS, LogRoot, log_root

pytestmark = pytest.mark.spark
CLOCK = ("--now-ms", NOW_MS)


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


def test_a_log_directory_that_is_whole_is_done(spark, pylog, root):
    result = pylog.done("verify", root.path, *CLOCK, "--deep")
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
