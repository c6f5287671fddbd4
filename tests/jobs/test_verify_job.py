"""``jobs/verify.py`` under spark-submit."""

import json

import pytest

from tests.jobs.spark_programs import REPOSITORY, submit
from tests.storage_core.maintenance.verification.log_root import NOW_MS, log_root

pytestmark = pytest.mark.spark

VERIFY = REPOSITORY / "jobs" / "verify.py"


def test_its_help_needs_no_cluster_and_it_is_thin():
    ended = submit([VERIFY, "--help"])
    assert ended.status == 0
    assert "--fail-on" in ended.output
    assert len(VERIFY.read_text().splitlines()) < 40


def test_findings_end_it_with_one_however_the_segments_are_spread(tmp_path):
    root = log_root(tmp_path / "log")
    root.change(root.file(20), -1, b"\x55")
    # One byte a task: every segment is a task of its own.
    tuning = ["--set", "unit.min.bytes=1", "--set", "unit.max.bytes=1"]
    arguments = [root.path, "--now-ms", str(NOW_MS), *tuning, "--output", "json"]
    ended = submit(["--master", "local[2]", VERIFY, *arguments])
    assert ended.status == 1, ended.output + ended.errors
    lines = [json.loads(line) for line in ended.output.splitlines()]
    found = [(line["code"], line["offset"]) for line in lines if line["type"] == "finding"]
    assert found == [("BATCH_CRC_WRONG", 25)]
