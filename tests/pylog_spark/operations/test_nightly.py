"""Whole nights on Spark: each step's own referee, and what only all of them together show."""

from dataclasses import replace

import pytest

from pylog_spark.operations import nightly
from pylog_spark.operations.nightly import run_nightly
from storage_core.errors import GuardRefusedError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.maintenance.verification.findings import Severity
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    read_points,
)
from tests.pylog_spark.crashed_roots import (
    MARKER_OF_OURS,
    crashed_directory,
    forget_high_watermarks,
    tear,
)

pytestmark = pytest.mark.spark

SMALL = ["clean-headers-none-s101", "clean-hw-none-s161"]


def steps_of(report) -> list[tuple]:
    names = ("topic", "action", "status", "reason")
    return sorted(tuple(row[name] for name in names) for row in report.results.to_pylist())


def test_a_closed_directory_is_compacted_without_being_recovered(spark, tmp_path):
    root = broker_directory(tmp_path / "log", SMALL)
    marker = (root.path / CLEAN_SHUTDOWN_FILE).read_bytes()
    report = run_nightly(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    assert steps_of(report) == [(name, "compact", "done", None) for name in SMALL]
    assert report.exit_code == 0
    assert differences_from_kafka(root.path, SMALL, tmp_path) == []
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == marker


@pytest.mark.thorough
@pytest.mark.item("DIR-03")
def test_a_directory_that_was_not_closed_is_recovered_first(spark, tmp_path):
    crashed = crashed_directory(tmp_path / "log", SMALL)
    options = replace(crashed.options, now_ms=FIRST_ROUNDS_MS)
    report = run_nightly(spark, [crashed.path], options)
    assert steps_of(report) == sorted(
        (name, step, "done", None) for name in SMALL for step in ("compact", "recover")
    )
    assert (crashed.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    assert {p.topic for p in read_points(crashed.path)} == set(SMALL)
    again = run_nightly(spark, [crashed.path], options)
    assert {step for _, step, status, _ in steps_of(again) if status != "skipped"} == set()


@pytest.mark.thorough
@pytest.mark.item("DIR-03")
def test_a_log_that_cannot_be_recovered_is_compacted_by_nobody(spark, tmp_path):
    crashed = crashed_directory(tmp_path / "log", SMALL)
    tear(crashed.path / f"{SMALL[0]}-0", segment=0)
    before = read_tree(crashed.path / f"{SMALL[0]}-0")
    options = replace(crashed.options, now_ms=FIRST_ROUNDS_MS, max_truncate_bytes=1)
    report = run_nightly(spark, [crashed.path], options)
    rows = steps_of(report)
    assert [row for row in rows if row[0] == SMALL[0]] == [
        (SMALL[0], "recover", "skipped", rows[0][3]),
        (SMALL[0], "retain", "skipped", "UNCLEAN_SHUTDOWN"),
    ]
    assert rows[0][3] in {"CUTS_TOO_MUCH", "CUTS_BELOW_HIGH_WATERMARK"}
    assert report.exit_code == 3
    assert read_tree(crashed.path / f"{SMALL[0]}-0") == before
    assert [row[1:3] for row in rows if row[0] == SMALL[1]] == [
        ("compact", "done"),
        ("recover", "done"),
    ]
    assert not (crashed.path / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fail_on", "exit_code"), [(None, 0), (Severity.WARN, 1), (Severity.FATAL, 0)]
)
def test_what_a_night_cuts_is_a_finding_like_any_other(spark, tmp_path, fail_on, exit_code):
    crashed = crashed_directory(tmp_path / "log", SMALL[:1])
    forget_high_watermarks(crashed.path)
    tear(crashed.path / f"{SMALL[0]}-0")
    options = replace(crashed.options, now_ms=FIRST_ROUNDS_MS)
    report = run_nightly(spark, [crashed.path], options, fail_on=fail_on)
    assert len(report.cuts) == 1
    assert ("recover", "done") in {row[1:3] for row in steps_of(report)}
    assert report.exit_code == exit_code


@pytest.mark.thorough
def test_a_dry_run_of_a_night_writes_nothing(spark, tmp_path):
    crashed = crashed_directory(tmp_path / "log", SMALL)
    before = read_tree(crashed.path)
    report = run_nightly(spark, [crashed.path], crashed.with_options(dry_run=True))
    assert {row[2] for row in steps_of(report) if row[1] == "recover"} == {"planned"}
    assert {row[3] for row in steps_of(report) if row[1] != "recover"} == {"UNCLEAN_SHUTDOWN"}
    assert read_tree(crashed.path) == before


@pytest.mark.thorough
def test_two_nights_at_once_are_one(spark, tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", SMALL)
    options = root.options(FIRST_ROUNDS_MS)
    refusals = []
    compact_step = nightly.compact_step

    def with_a_second_night(run, context):
        with pytest.raises(GuardRefusedError) as caught:
            run_nightly(spark, [root.path], options)
        refusals.append(caught.value)
        return compact_step(run, context)

    monkeypatch.setattr(nightly, "compact_step", with_a_second_night)
    assert run_nightly(spark, [root.path], options).summary.done == len(SMALL)
    (refusal,) = refusals
    assert refusal.code == "LOG_DIRECTORY_IN_USE"
    assert "process " in str(refusal)
    assert differences_from_kafka(root.path, SMALL, tmp_path) == []
