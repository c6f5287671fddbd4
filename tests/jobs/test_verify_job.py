"""``pylog verify`` with a task for every segment, as ``jobs/verify.py`` runs it."""

import pytest

from tests.kit.program import lines_of
from tests.storage_core.maintenance.verification.log_root import NOW_MS, log_root

pytestmark = pytest.mark.spark


def test_findings_end_it_with_one_however_the_segments_are_spread(spark, pylog, tmp_path):
    root = log_root(tmp_path / "log")
    root.change(root.file(20), -1, b"\x55")
    # One byte a task: every segment is a task of its own.
    tuning = ["--set", "unit.min.bytes=1", "--set", "unit.max.bytes=1"]
    arguments = [root.path, "--now-ms", str(NOW_MS), *tuning, "--output", "json"]
    ended = pylog("verify", *arguments)
    assert ended.exit_code == 1, ended.stdout + ended.stderr
    lines = lines_of(ended)
    found = [(line["code"], line["offset"]) for line in lines if line["type"] == "finding"]
    assert found == [("BATCH_CRC_WRONG", 25)]
