"""A log directory's verbs, as Python and notebooks call them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality

from pylog_spark.engines.choice import Local
from pylog_spark.exit_code import ExitCode
from pylog_spark.log_directory import LogDirectory
from pylog_spark.outcomes import Action
from pylog_spark.run.plan_file import read_plan_file
from storage_core.catalog.roles import Role
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.verification.verdict import Advice
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
)

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]


@pytest.mark.thorough
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
    for operation in (
        "verify",
        "compact",
        "recover",
        "retain",
        "inspect",
        "run",
        "explain",
        "survey",
    ):
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


@pytest.mark.thorough
def test_a_plan_is_looked_at_kept_and_applied_exactly(tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    options = root.options(FIRST_ROUNDS_MS)
    directory = LogDirectory.for_path(Local(1), root.path, options=options)
    before = {name: read_tree(root.path / f"{name}-0") for name in NAMES}
    plan = directory.plan("compact")
    assert plan.summary().planned == 2
    assert {name: read_tree(root.path / f"{name}-0") for name in NAMES} == before
    with pytest.raises(ConfigError, match="makes no DataFrames"):
        _ = plan.df

    plan.save(tmp_path / "plan.json")
    assert read_plan_file(tmp_path / "plan.json") == plan.saved
    changed = root.path / f"{NAMES[0]}-0" / "00000000000000000000.log"
    os.utime(changed, ns=(1, 1))
    report = plan.apply()
    rows = {row["topic"]: (row["status"], row["reason"]) for row in report.results.to_pylist()}
    assert rows == {NAMES[0]: ("skipped", "INPUTS_CHANGED"), NAMES[1]: ("done", None)}
    assert report.exit_code == ExitCode.REFUSED
    assert read_tree(root.path / f"{NAMES[0]}-0").keys() == before[NAMES[0]].keys()
    assert differences_from_kafka(root.path, NAMES[1:], tmp_path) == []


def test_what_cannot_be_planned_is_refused_by_name(tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[:1])
    directory = LogDirectory.for_path(Local(1), root.path, options=root.options(FIRST_ROUNDS_MS))
    with pytest.raises(ConfigError, match="verify: expected one of compact, recover, retain, run"):
        directory.plan("verify")


def test_the_doctor_judges_settings_by_the_release_that_is_to_start(tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[:1])
    options = replace(
        root.options(FIRST_ROUNDS_MS),
        broker_settings={"log.segment.bytes": "1024", "process.roles": "broker"},
    )
    directory = LogDirectory.for_path(Local(1), root.path, options=options)
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes=1024: must be at least 1048576"):
        directory.doctor()
    diagnosis = directory.doctor(release_version="3.9")
    assert diagnosis.verdict.advice is Advice.START_BROKER
    with pytest.raises(ConfigError, match=r"expected a release from 3\.9 to 4\.4"):
        directory.doctor(release_version="2.8")


@pytest.mark.thorough
@pytest.mark.spark
def test_the_other_verbs_of_the_command_line_answer_with_dataframes(spark, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[1:])
    trash = tmp_path / "trash"
    options = replace(root.options(FIRST_ROUNDS_MS), trash=str(trash))
    directory = LogDirectory.for_path(spark, root.path, options=options)
    before = read_tree(root.path / f"{NAMES[1]}-0")

    # Nothing is wrong with it, but no metadata of the cluster lies there.
    assert directory.doctor().verdict.advice is Advice.LOOK_BEFORE_START
    assert_df_equality(
        directory.explain().select("topic", "about", "is_due"),
        spark.createDataFrame(
            [(NAMES[1], "cleaning", True), (NAMES[1], "deletion", False)],
            "topic STRING, about STRING, is_due BOOLEAN",
        ),
        ignore_row_order=True,
    )
    (listed,) = directory.survey().collect()
    assert (listed.topic, listed.bytes) == (NAMES[1], _log_bytes(root.path / f"{NAMES[1]}-0"))

    plan = directory.plan(Action.RUN)
    assert [(row.topic, row.status) for row in plan.df.collect()] == [(NAMES[1], "planned")]
    assert_df_equality(
        plan.df, directory.run(dry_run=True), ignore_columns=["run_id", "duration_ms"]
    )
    run_id = plan.apply().run_id
    assert differences_from_kafka(root.path, NAMES[1:], tmp_path) == []

    (past,) = directory.past_runs().collect()
    assert (past.run_id, past.action, past.undo) == (run_id, "run", "possible")
    assert {row.status for row in directory.undo(run_id, dry_run=True).collect()} == {"planned"}
    assert {row.status for row in directory.undo(run_id).collect()} == {"done"}
    assert read_tree(root.path / f"{NAMES[1]}-0") == before
    later = directory.with_options(purge_after_ms=0, now_ms=SystemClock().now_ms() + 60_000)
    assert {row.status for row in later.purge(dry_run=True).collect()} == {"planned"}


@pytest.mark.thorough
@pytest.mark.spark
def test_a_mirror_goes_into_a_managed_root_and_out_of_it(spark, tmp_path):
    root = broker_directory(tmp_path / "log", NAMES[1:])
    options = root.options(FIRST_ROUNDS_MS, role=None)
    mirror = LogDirectory.for_path(spark, root.path, role=Role.MIRROR, options=options)
    rules = IngestRules(settle_ms=0, sync_has_stopped=True)
    managed = str(tmp_path / "managed")
    (taken,) = mirror.ingest(managed, rules=rules).collect()
    assert (taken.topic, taken.status) == (NAMES[1], "done")
    archive = LogDirectory.for_path(spark, managed, role=Role.MANAGED, options=options)
    (written,) = archive.materialize(tmp_path / "plain").collect()
    assert (written.status, written.bytes) == ("done", taken.taken_bytes)
    assert _log_bytes(tmp_path / "plain" / f"{NAMES[1]}-0") == written.bytes


def _log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))
