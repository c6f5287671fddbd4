"""Waves: what finished ones have committed stays, whatever becomes of later ones."""

import pytest

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import RunLimits, Strategy, Tuning
from pylog_spark.run import waves
from storage_core.roots.broker import HeldBrokerRoot
from tests.kit.compare import read_tree
from tests.kit.partition_views import data_records
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.overflowing_roots import FAR, overflowing_root

pytestmark = pytest.mark.spark

NAMES = [
    "clean-headers-none-s101",
    "clean-hw-none-s161",
    "clean-group-all-s211",
    "clean-nullkeys-none-s101",
]


class StoppedError(Exception):
    """The run is stopped between two waves."""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [Strategy.WHOLE, Strategy.BROADCAST])
def test_a_run_that_is_stopped_keeps_what_finished_waves_committed(
    spark, tmp_path, monkeypatch, strategy
):
    root = broker_directory(tmp_path / "log", NAMES)
    before = {name: read_tree(root.path / f"{name}-0") for name in NAMES}
    done: list[str] = []
    run_wave = waves.run_wave

    def stop_at_the_third(run, stages, due, title):
        if len(done) == 2:
            raise StoppedError
        done.extend(each.ref.partition.topic for each in due)
        return run_wave(run, stages, due, title)

    monkeypatch.setattr(waves, "run_wave", stop_at_the_third)
    # A wave a partition.
    options = root.options(FIRST_ROUNDS_MS, tuning=Tuning(wave_max_bytes=1))
    with pytest.raises(StoppedError):
        compact(spark, [root.path], options, strategy=strategy)
    assert len(done) == 2
    assert differences_from_kafka(root.path, done, tmp_path) == []
    assert read_points(root.path) == expected_points(done)
    for name in set(NAMES) - set(done):
        assert read_tree(root.path / f"{name}-0") == before[name]
    # Between two waves every partition is whole: the directory is as clean as it was.
    assert (root.path / ".kafka_cleanshutdown").exists()
    assert list(tmp_path.glob("pylog-scratch-*")) == []

    monkeypatch.undo()
    (tmp_path / "second").mkdir()
    report = compact(spark, [root.path], options, strategy=strategy)
    assert report.summary.done == 2
    assert differences_from_kafka(root.path, NAMES, tmp_path / "second") == []


def test_waves_end_where_a_disk_has_less_than_min_free(spark, tmp_path, monkeypatch):
    """Looked at before each wave: another writer, or the trash, takes of it meanwhile."""
    root = broker_directory(tmp_path / "log", NAMES)
    before = {name: read_tree(root.path / f"{name}-0") for name in NAMES}
    done: list[str] = []
    run_wave = waves.run_wave

    def note(run, stages, due, title):
        done.extend(each.ref.partition.topic for each in due)
        return run_wave(run, stages, due, title)

    monkeypatch.setattr(waves, "run_wave", note)
    monkeypatch.setattr(HeldBrokerRoot, "free_bytes", lambda _: 10**9 if len(done) < 2 else 10**6)
    options = root.options(
        FIRST_ROUNDS_MS,
        tuning=Tuning(wave_max_bytes=1),
        limits=RunLimits(min_free_bytes=10**6),
    )
    report = compact(spark, [root.path], options)
    assert (len(done), report.summary.done, report.exit_code) == (2, 2, 0)
    left = [row for row in report.results.to_pylist() if row["topic"] not in done]
    assert {(row["status"], row["reason"]) for row in left} == {("skipped", "NO_SPACE")}
    assert all("0 may be used" in row["error"] for row in left)
    assert differences_from_kafka(root.path, done, tmp_path) == []
    for name in set(NAMES) - set(done):
        assert read_tree(root.path / f"{name}-0") == before[name]
    assert (root.path / ".kafka_cleanshutdown").exists()


@pytest.mark.thorough
def test_partitions_that_are_spread_and_whole_ones_share_a_wave(spark, tmp_path, monkeypatch):
    titles = []
    collect = SparkEngine.collect

    def note(self, rows, schema, description, **how):
        titles.append(description.rpartition(": ")[2])
        return collect(self, rows, schema, description, **how)

    monkeypatch.setattr(SparkEngine, "collect", note)
    root = broker_directory(tmp_path / "log", NAMES)
    sizes = {
        name: sum(log.stat().st_size for log in (root.path / f"{name}-0").glob("*.log"))
        for name in NAMES
    }
    # Smaller ones fit in a unit.
    unit = max(sizes.values()) // 2
    options = root.options(FIRST_ROUNDS_MS, tuning=Tuning(unit_min_bytes=unit, unit_max_bytes=unit))
    report = compact(spark, [root.path], options)
    assert report.exit_code == 0
    assert {"pass one and merge", "pass two", "commit", "clean"} <= set(titles)
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []
    rows = report.cleanings.to_pylist()
    assert sorted(row["topic"] for row in rows) == sorted(NAMES)
    assert report.cleaner["cleanable-partitions"] == len(NAMES)


@pytest.mark.thorough
@pytest.mark.item("CMP-42")
@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.SHUFFLE])
def test_a_segment_that_has_to_be_split_is_cleaned_by_the_same_run(spark, tmp_path, strategy):
    root = overflowing_root(tmp_path / "log")
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS), strategy=strategy)
    (row,) = report.results.to_pylist()
    assert (row["status"], row["reason"], row["error"]) == ("done", None, None)
    records = data_records(root.path / "t-0")
    assert [record.offset for record in records] == [1, FAR, FAR + 7]
