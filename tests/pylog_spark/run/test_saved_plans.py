"""The one plan of a run: read once, by whoever makes the run, and held against what is there."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.cli import jobs
from pylog_spark.operations import apply, nightly
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.compact import driver as compact
from pylog_spark.operations.recover import driver as recover
from pylog_spark.operations.retain import driver as retain
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import EngineChoice
from pylog_spark.options.option import CommandLine
from pylog_spark.run.job import Job, run_context
from pylog_spark.run.plan_file import PlanBook, PlannedPartition, SavedPlan, write_plan_file
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.schemas import RECOVERY_WORK
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.errors import ConfigError
from storage_core.roots.open_root import LogRoot

NOW_MS = 1_700_000_000_000
# By the action of a plan, what applies it.
OPERATIONS: dict[str, tuple[ModuleType, Any]] = {
    "compact": (compact, compact.compact),
    "recover": (recover, recover.recover),
    "retain": (retain, retain.retain),
    "run": (nightly, nightly.run_nightly),
}


class RunBeganError(Exception):
    """Carries the job of a run that would begin now."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job


def begin(_spark: object, job: Job) -> None:
    raise RunBeganError(job)


def planned(root: Path, number: int) -> PlannedPartition:
    return PlannedPartition(
        action="recover",
        root=str(root),
        topic="orders",
        partition=number,
        directory=f"{root}/orders-{number}",
        status="planned",
        reason=None,
        figures={},
        plan={"is_clean": False},
        files=(),
    )


def plan_of(root: Path, count: int, *, action: str = "recover") -> SavedPlan:
    """Return a plan for the first so many partitions of a topic."""
    return SavedPlan(
        run_id="20260102T030405Z-0a1b2c3d",
        action=action,
        now_ms=NOW_MS,
        roots=(LogRoot(location=str(root), role=Role.BROKER, is_said=True),),
        options=JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER),
        catalogs={str(root): TopicCatalog(topics={}, broker={"log.retention.ms": str(count)})},
        partitions=tuple(planned(root, number) for number in range(count)),
    )


def job_of(saved: SavedPlan) -> Job:
    return Job(
        run_id="r", action=saved.action, roots=saved.roots, options=saved.options, saved=saved
    )


def settled(saved: SavedPlan, numbers: range, **columns: object) -> pa.Table:
    """Return what is left of partitions none of which is planned now.

    Args:
        columns: What their rows have instead.
    """
    location = saved.roots[0].location
    rows = [
        {
            "root": location,
            "topic": "orders",
            "partition": number,
            "directory": f"{location}/orders-{number}",
            "status": "skipped",
            "reason": "NOTHING_TO_RECOVER",
            **columns,
        }
        for number in numbers
    ]
    run = SimpleNamespace(job=job_of(saved), engine=None, disks=None, plans=PlanBook())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pylog_spark.run.saved_plans._look", lambda *_: {})  # nothing lies there
        return settle_plans(
            run,
            SimpleNamespace(catalogs={}),
            pa.Table.from_pylist(rows, schema=RECOVERY_WORK),
            action="recover",
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.mkdir()
    (path / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
    )
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')
    return path


def test_a_partition_that_is_gone_has_a_row_and_one_that_nobody_planned_has_none(root):
    rows = settled(plan_of(root, 3), range(1, 5))
    assert [(row["partition"], row["reason"]) for row in rows.to_pylist()] == [
        (1, "INPUTS_CHANGED"),
        (2, "INPUTS_CHANGED"),
        (0, "INPUTS_CHANGED"),
    ]
    assert "expected the directory of the plan, found none" in rows["error"][2].as_py()


def test_a_partition_that_cannot_be_observed_keeps_its_own_error(root):
    error = "cannot read 00000000000000000000.log: Input/output error"
    failed = {"status": "failed", "reason": None, "error_class": "StorageError", "error": error}
    [row] = settled(plan_of(root, 1), range(1), **failed).to_pylist()
    assert {name: row[name] for name in failed} == failed


def test_words_of_a_partition_that_is_skipped_now_are_told(root):
    skipped = {"reason": "CONFIG_INVALID", "error": "retention.ms=soon: expected a number"}
    [row] = settled(plan_of(root, 1), range(1), **skipped).to_pylist()
    assert row["reason"] == "INPUTS_CHANGED"
    assert row["error"] == (
        "it was planned, and now is skipped: CONFIG_INVALID: retention.ms=soon: expected a number"
    )


def test_a_plan_of_many_partitions_is_held_against_them_one_by_one(root, monkeypatch):
    """Not each against each: a hundred thousand took the driver twenty minutes, under the locks."""
    asked = 0
    key_of = PlannedPartition.key.fget

    def count(noted: PlannedPartition) -> object:
        nonlocal asked
        asked += 1
        return key_of(noted)

    saved = plan_of(root, 60)
    monkeypatch.setattr(PlannedPartition, "key", property(count))
    assert settled(saved, range(60)).num_rows == 60
    assert asked <= 5 * 60


def test_the_configs_that_tasks_are_told_are_those_of_the_plan(root):
    saved = plan_of(root, 2)
    assert run_context(job_of(saved), frozenset()).catalogs == saved.catalogs


@pytest.mark.parametrize("action", OPERATIONS)
def test_a_plan_that_is_saved_anew_is_the_one_that_is_applied(tmp_path, root, monkeypatch, action):
    """A notebook plans, applies and plans again, all of it in one process and into one file."""
    module, operation = OPERATIONS[action]
    monkeypatch.setattr(module, "open_upkeep", begin)
    path = tmp_path / "plan.json"
    for count in (1, 2):
        saved = plan_of(root, count, action=action)
        write_plan_file(path, saved)
        with pytest.raises(RunBeganError) as begun:
            apply_plan(None, path, ApplyOptions())
        assert begun.value.job.saved == saved
        options = replace(saved.options, plan_in=str(path))
        with pytest.raises(RunBeganError) as begun:
            operation(None, [root], options)
        assert begun.value.job.saved == saved
    with pytest.raises(ConfigError, match="No such file"):
        operation(None, [root], replace(options, plan_in=str(tmp_path / "none.json")))


@pytest.mark.parametrize("action", OPERATIONS)
def test_the_program_reads_a_plan_once(tmp_path, root, monkeypatch, action):
    module, _ = OPERATIONS[action]
    monkeypatch.setattr(module, "open_upkeep", begin)
    path = tmp_path / "plan.json"
    saved = plan_of(root, 2, action=action)
    write_plan_file(path, saved)

    def start_session(*_said: object, **_settings: object) -> None:
        # Whoever asked for the file after this would have to read gigabytes again.
        path.unlink()

    monkeypatch.setattr("pylog_spark.session.build_session", start_session)
    line = CommandLine({"plan": path, "overrides": ["NOT_THE_OWNER"], "engine": EngineChoice.SPARK})
    with pytest.raises(RunBeganError) as begun:
        jobs.APPLY(line)
    assert begun.value.job.saved == saved
    assert begun.value.job.options.limits.overrides == {"NOT_THE_OWNER"}


def test_a_guard_that_there_is_not_is_not_switched_off_by_an_apply_either(tmp_path, root):
    path = tmp_path / "plan.json"
    write_plan_file(path, plan_of(root, 1, action="compact"))
    with pytest.raises(ConfigError, match=r"^--override=X: expected CLOCK_PAST_RETENTION, "):
        jobs.APPLY(CommandLine({"plan": path, "overrides": ["NOT_THE_OWNER", "X"]}))


def test_an_action_that_is_none_is_said_with_the_file(root):
    saved = plan_of(root, 1, action="purge")
    options = apply.options_of(saved, Path("/plans/plan.json"), ApplyOptions())
    with pytest.raises(ConfigError, match=r"/plans/plan\.json.* has an unknown action: purge"):
        apply.apply_saved(None, saved, options)
