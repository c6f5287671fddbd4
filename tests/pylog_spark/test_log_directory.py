import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError, GuardRefusedError
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
)

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]


@pytest.mark.spark
def test_a_directory_is_inspected_planned_and_compacted_by_dataframes(spark, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    options = root.options(FIRST_ROUNDS_MS, role=None)
    directory = LogDirectory.for_path(spark, root.path, role=Role.BROKER, options=options)
    seen = directory.inspect()
    assert seen.partitions.count() == 2
    assert seen.segments.where("topic = 'clean-hw-none-s161'").count() == 7

    planned = directory.compact(dry_run=True)
    assert {row.status for row in planned.collect()} == {"planned"}
    done = directory.compact()
    assert {(row.topic, row.status) for row in done.collect()} == {(name, "done") for name in NAMES}
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []


@pytest.mark.spark
def test_nothing_is_written_where_nobody_said_the_role(spark, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[:1])
    directory = LogDirectory.for_path(spark, root.path).with_topics(root.configs)
    assert directory.compact(dry_run=True).count() == 1
    with pytest.raises(GuardRefusedError, match="ROLE_NOT_SAID"):
        directory.compact()


def test_a_directory_that_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        LogDirectory.for_path(Local(), tmp_path / "absent")


def test_on_this_machine_there_are_reports_and_dataframes_are_refused_before_all_else(tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[:1])
    options = root.options(FIRST_ROUNDS_MS)
    directory = LogDirectory.for_path(Local(1), root.path, options=options)
    before = read_tree(root.path / f"{NAMES[0]}-0")
    for operation in ("verify", "compact", "recover", "retain", "inspect"):
        with pytest.raises(ConfigError, match="makes no DataFrames"):
            getattr(directory, operation)()
    assert read_tree(root.path / f"{NAMES[0]}-0") == before
    report = directory.verify_with_report(deep=True)
    assert (report.engine, report.exit_code, report.summary.done) == ("local", 0, 1)
    assert [count.code for count in report.counts] == [row["code"] for row in report.findings]
    with pytest.raises(ConfigError, match="keeps no findings beyond the run"):
        report.findings_frame()
    report.release()
    assert directory.compact_with_report(dry_run=True).summary.planned == 1
