"""Plans that are saved and applied: exactly they, or the name of the file that changed since."""

import json
import os
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.undo import undo
from pylog_spark.run.plan_file import read_plan_file
from storage_core.config import CleanerConfig
from storage_core.errors import ConfigError
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
    rows_of,
)
from tests.pylog_spark.crashed_roots import (
    crashed_directory,
    forget_high_watermarks,
    logs_of,
    tear,
)

pytestmark = pytest.mark.spark

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]
NOT_DUE = "clean-ratio-none-s191-2"


@pytest.fixture(params=["plan.json", "plan.parquet"])
def planned(spark, tmp_path, request):
    """A directory, and the plan that a dry run saved of it."""
    root = broker_directory(tmp_path / "log", [*NAMES, NOT_DUE])
    path = tmp_path / request.param
    options = root.options(FIRST_ROUNDS_MS, dry_run=True, plan_out=str(path))
    compact(spark, [root.path], options)
    return root, path


@pytest.mark.sampled(1)
def test_a_saved_plan_says_what_was_decided_and_holds_no_secret(planned):
    root, path = planned
    plan = read_plan_file(path)
    assert (plan.action, plan.now_ms) == ("compact", FIRST_ROUNDS_MS)
    assert [place.location for place in plan.roots] == [str(root.path)]
    by_topic = {noted.topic: noted for noted in plan.partitions}
    assert by_topic[NOT_DUE].reason == "RATIO_BELOW_MINIMUM"
    noted = by_topic["clean-hw-none-s161"]
    assert (noted.plan["first_dirty_offset"], noted.plan["first_uncleanable_offset"]) == (0, 57)
    assert noted.figures["bytes_after_at_most"] >= noted.figures["bytes_before"]
    assert {name for name, _, _ in noted.files} == {
        entry.name for entry in (root.path / "clean-hw-none-s161-0").iterdir()
    }
    if path.suffix == ".parquet":
        assert pq.read_table(path).num_rows == len(plan.partitions)
        assert b"hash_key" not in path.read_bytes()
    else:
        text = path.read_text()
        assert "hash_key" not in text
        assert len(json.loads(text)["partitions"]) == len(plan.partitions)


@pytest.mark.thorough
def test_an_applied_plan_does_what_the_run_would_have_done(spark, planned, tmp_path):
    root, path = planned
    report = apply_plan(spark, path, ApplyOptions())
    assert report.exit_code == 0
    assert set(rows_of(report)) == set(NAMES)
    assert {row["status"] for row in rows_of(report).values()} == {"done"}
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []
    points = read_points(root.path)
    assert {points[name] for name in expected_points(NAMES)} == set(expected_points(NAMES).values())


@pytest.mark.thorough
def test_an_applied_plan_makes_no_round_that_does_not_stand_in_it(tmp_path):
    name, path = "clean-group-all-s211", tmp_path / "plan.json"
    root = broker_directory(tmp_path / "log", [name])
    bounded = CleanerConfig(dedupe_buffer_bytes=24 * 40)
    options = root.options(FIRST_ROUNDS_MS, cleaner=bounded, until_clean=True)
    compact(Local(), [root.path], replace(options, dry_run=True, plan_out=str(path)))
    report = apply_plan(Local(), path, ApplyOptions())
    assert rows_of(report)[name]["status"] == "done"
    assert report.cleanings.num_rows == 1
    # What is left is for another run.
    again = compact(Local(), [root.path], options)
    assert again.cleanings.num_rows > 1


@pytest.mark.thorough
def test_a_partition_that_changed_is_refused_by_file_and_the_others_are_done(
    spark, planned, tmp_path
):
    root, path = planned
    changed, gone = NAMES[0], NAMES[1]
    log = min((root.path / f"{changed}-0").glob("*.log"))
    size = log.stat().st_size
    log.write_bytes(log.read_bytes())
    os.utime(log, ns=(10**18, 10**18))
    before = read_tree(root.path / f"{changed}-0")
    shutil.rmtree(root.path / f"{gone}-0")
    report = apply_plan(spark, path, ApplyOptions())

    rows = rows_of(report)
    assert report.exit_code == 3
    assert (rows[changed]["status"], rows[changed]["reason"]) == ("skipped", "INPUTS_CHANGED")
    assert (
        f"{log.name}: changed since the plan was made: expected {size} bytes of"
        in (rows[changed]["error"])
    )
    assert f"found {size} bytes of 1000000000000 ms" in rows[changed]["error"]
    assert read_tree(root.path / f"{changed}-0") == before
    assert rows[gone]["reason"] == "INPUTS_CHANGED"
    assert rows[NAMES[2]]["status"] == "done"
    assert differences_from_kafka(root.path, NAMES[2:], tmp_path) == []


@pytest.mark.thorough
def test_a_plan_that_was_applied_is_refused_by_what_stands_there_now(tmp_path):
    name, path = NAMES[0], tmp_path / "plan.json"
    root = broker_directory(tmp_path / "log", [name])
    directory = root.path / f"{name}-0"
    metadata = directory / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: aaaaaaaaaaaaaaaaaaaaaQ\n")
    compact(Local(), [root.path], root.options(FIRST_ROUNDS_MS, dry_run=True, plan_out=str(path)))
    assert apply_plan(Local(), path, ApplyOptions()).summary.done == 1
    after = read_tree(directory)

    again = apply_plan(Local(), path, ApplyOptions())
    row = rows_of(again)[name]
    assert (again.exit_code, row["status"], row["reason"]) == (3, "skipped", "INPUTS_CHANGED")
    file, said = row["error"].split(": changed since the plan was made: expected ")
    found = said.rpartition("found ")[2]
    there = directory / file
    assert found.startswith(f"{there.stat().st_size} bytes" if there.exists() else "no such file")
    # A topic that was made again is named by its id, though there is nothing to clean either.
    metadata.write_text("version: 0\ntopic_id: aaaaaaaaaaaaaaaaaaaaag\n")
    row = rows_of(apply_plan(Local(), path, ApplyOptions()))[name]
    assert row["reason"] == "INPUTS_CHANGED"
    assert row["error"].startswith("the plan is of another log: ")
    metadata.write_text("version: 0\ntopic_id: aaaaaaaaaaaaaaaaaaaaaQ\n")
    assert read_tree(directory) == after


@pytest.mark.thorough
def test_a_checkpoint_that_moved_since_is_an_input_that_changed(spark, planned):
    root, path = planned
    lines = (root.path / "replication-offset-checkpoint").read_text()
    moved = lines.replace("clean-hw-none-s161 0 ", "clean-hw-none-s161 0 1")
    (root.path / "replication-offset-checkpoint").write_text(moved)
    report = apply_plan(spark, path, ApplyOptions(dry_run=True))
    row = rows_of(report)["clean-hw-none-s161"]
    assert (report.exit_code, row["reason"]) == (3, "INPUTS_CHANGED")
    assert "of the plan: expected" in row["error"]
    assert rows_of(report)[NAMES[0]]["status"] == "planned"


@pytest.mark.thorough
def test_the_configs_of_the_plan_count_not_those_of_today(spark, planned, tmp_path):
    """Nothing says the topics' configs but the plan: they were said on the command line then."""
    _, path = planned
    assert apply_plan(spark, path, ApplyOptions(dry_run=True)).summary.planned == len(NAMES)


def test_a_file_that_is_no_plan_is_a_wrong_argument(spark, tmp_path):
    for content in (b"", b"{}", b'{"format": "pylog-plan", "version": 2, "partitions": []}'):
        path = tmp_path / "plan.json"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="plan"):
            apply_plan(spark, path, ApplyOptions())
    with pytest.raises(ConfigError, match="No such file"):
        apply_plan(spark, tmp_path / "none.json", ApplyOptions())


@pytest.mark.thorough
def test_a_recovery_is_applied_as_it_was_planned_and_undone(spark, tmp_path):
    root = crashed_directory(tmp_path / "log", NAMES)
    forget_high_watermarks(root.path)
    for directory in root.partitions():
        tear(directory)
    before = root.trees()
    points = read_points(root.path, "recovery-point-offset-checkpoint")
    twin = root.copy(tmp_path / "twin")
    recover(spark, [twin.path], twin.options)
    path = tmp_path / "plan.json"
    recover(spark, [root.path], root.with_options(dry_run=True, plan_out=str(path)))
    assert root.trees() == before
    assert all(noted.plan["operations"] for noted in read_plan_file(path).partitions)
    changed = root.partitions()[0]
    log = logs_of(changed)[-1]
    log.write_bytes(log.read_bytes()[:-1])
    said = ApplyOptions(trash=str(tmp_path / "trash"))
    report = apply_plan(spark, path, said)

    rows = rows_of(report)
    refused = rows.pop(changed.name.rpartition("-")[0])
    assert (report.exit_code, refused["reason"]) == (3, "INPUTS_CHANGED")
    assert log.name in refused["error"]
    assert {row["status"] for row in rows.values()} == {"done"}
    trees, expected = root.trees(), twin.trees()
    assert {name: trees[f"{name}-0"] for name in rows} == {
        name: expected[f"{name}-0"] for name in rows
    }
    undone = undo(report.run_id, root.with_options(trash=said.trash))
    assert (undone.exit_code, undone.summary.done) == (0, len(rows))
    trees = root.trees()
    assert {name: trees[f"{name}-0"] for name in rows} == {
        name: before[f"{name}-0"] for name in rows
    }
    assert read_points(root.path, "recovery-point-offset-checkpoint") == points
    # The broker, or another recovery, has to look at it again.
    assert not (root.path / ".kafka_cleanshutdown").exists()


@pytest.mark.thorough
def test_an_exact_dry_run_says_to_the_byte_what_a_run_makes_and_writes_nothing(spark, tmp_path):
    names = [*NAMES, "clean-everything-none-s101-1"]
    root = broker_directory(tmp_path / "log", names)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    options = root.options(FIRST_ROUNDS_MS, dry_run=True, exact=True)
    exact = compact(spark, [root.path], options)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert any("exact" in note for note in exact.notes)
    done = rows_of(compact(spark, [root.path], root.options(FIRST_ROUNDS_MS)))
    planned = rows_of(exact)
    assert {row["status"] for row in planned.values()} == {"planned"}
    for topic, row in done.items():
        for column in ("bytes_after", "segments_after", "records_before", "records_after"):
            assert planned[topic][column] == row[column], (topic, column)


def test_a_batch_that_would_stop_a_run_stops_an_exact_dry_run(spark, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    log = min((root.path / f"{NAMES[0]}-0").glob("*.log"))
    flip(log)
    options = root.options(FIRST_ROUNDS_MS, dry_run=True, exact=True)
    report = compact(spark, [root.path], options)
    row = rows_of(report)[NAMES[0]]
    assert (report.exit_code, row["error_class"]) == (4, "CorruptRecordError")
