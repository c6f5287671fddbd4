"""Runs over several log directories of a broker, of which the disk of one fails on the way."""

from pathlib import Path

import pytest

from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.recover.driver import recover
from storage_core.errors import StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from storage_core.store.local import LocalStore
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.crashed_roots import MARKER_OF_OURS, crashed_directory

pytestmark = pytest.mark.spark

GOOD, BAD = "clean-headers-none-s101", "clean-hw-none-s161"


@pytest.fixture
def fail(monkeypatch):
    """Let the driver's writes below a folder fail from the first change of a file on."""

    def begin(folder: Path, first: str) -> None:
        has_failed = []

        def failing(original):
            def change(self, name, *args, **kwargs):
                is_there = self.directory.is_relative_to(folder)
                if is_there and (has_failed or name == first):
                    has_failed.append(name)
                    raise StorageError(str(self.directory / name), "Input/output error")
                return original(self, name, *args, **kwargs)

            return change

        for method in ("write_file", "delete", "sync_file"):
            monkeypatch.setattr(LocalStore, method, failing(getattr(LocalStore, method)))

    return begin


def two_directories(make, tmp_path):
    (tmp_path / "bad disk").mkdir()
    good = make(tmp_path / "good", [GOOD])
    bad = make(tmp_path / "bad disk" / "log", [BAD])
    return good, bad


@pytest.mark.sampled(1)
@pytest.mark.item("DIR-12", "CMP-43")
@pytest.mark.parametrize("operation", [compact, run_nightly])
@pytest.mark.parametrize("first", [CLEAN_SHUTDOWN_FILE, CLEANER_FILE])
def test_a_disk_that_fails_takes_its_log_directory_out_and_no_other(
    spark, tmp_path, fail, operation, first
):
    good, bad = two_directories(broker_directory, tmp_path)
    (bad.path / CLEANER_FILE).unlink()
    marker = (good.path / CLEAN_SHUTDOWN_FILE).read_bytes()
    before = read_tree(bad.path / f"{BAD}-0")
    options = good.options(FIRST_ROUNDS_MS, topic_configs=good.configs | bad.configs)
    fail(tmp_path / "bad disk", first)
    report = operation(spark, [good.path, bad.path], options)

    assert report.exit_code == 4
    assert any("Input/output error" in note and str(bad.path) in note for note in report.notes)
    assert differences_from_kafka(good.path, [GOOD], tmp_path) == []
    assert read_points(good.path) == expected_points([GOOD])
    assert (good.path / CLEAN_SHUTDOWN_FILE).read_bytes() == marker
    assert not (bad.path / CLEANER_FILE).exists()
    [row] = [row for row in report.results.to_pylist() if row["topic"] == BAD]
    if first == CLEAN_SHUTDOWN_FILE:
        # The marker could not be taken away, so nothing may be done there.
        assert (row["status"], read_tree(bad.path / f"{BAD}-0")) == ("failed", before)
        assert "Input/output error" in row["error"]
    else:
        assert not (bad.path / CLEAN_SHUTDOWN_FILE).exists()
    assert not list(tmp_path.rglob(".lock"))


@pytest.mark.thorough
@pytest.mark.item("DIR-12")
@pytest.mark.parametrize("first", [RECOVERY_POINT_FILE, CLEAN_SHUTDOWN_FILE, LOG_START_FILE])
def test_a_recovery_marks_the_directories_whose_disks_hold(spark, tmp_path, fail, first):
    good, bad = two_directories(crashed_directory, tmp_path)
    options = good.with_options(
        topic_configs=good.options.topic_configs | bad.options.topic_configs
    )
    before = (bad.path / RECOVERY_POINT_FILE).read_bytes()
    fail(tmp_path / "bad disk", first)
    report = recover(spark, [good.path, bad.path], options)
    has_failed = first != LOG_START_FILE  # nothing has to be written of a log start
    assert report.exit_code == (4 if has_failed else 0)
    assert (good.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    assert (bad.path / CLEAN_SHUTDOWN_FILE).exists() != has_failed
    assert ((bad.path / RECOVERY_POINT_FILE).read_bytes() == before) == has_failed
    if first == CLEAN_SHUTDOWN_FILE:
        [row] = [row for row in report.results.to_pylist() if row["topic"] == BAD]
        assert (row["status"], "Input/output error" in row["error"]) == ("failed", True)


@pytest.mark.item("DIR-12")
def test_where_the_only_disk_fails_the_run_does(spark, tmp_path, fail):
    root = broker_directory(tmp_path / "log", [GOOD])
    fail(tmp_path / "log", CLEANER_FILE)
    with pytest.raises(StorageError, match="Input/output error"):
        compact(spark, [root.path], root.options(FIRST_ROUNDS_MS))
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
