"""A plan as a file: what goes in comes out, in both forms."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.cli import jobs
from pylog_spark.operations import apply, nightly
from pylog_spark.operations.apply import ApplyOptions, apply_plan, options_of
from pylog_spark.operations.compact import driver as compact
from pylog_spark.operations.recover import driver as recover
from pylog_spark.operations.retain import driver as retain
from pylog_spark.options import HighWatermarkSource, JobOptions, Order, RunLimits, Tuning
from pylog_spark.options.choices import EngineChoice
from pylog_spark.options.option import CommandLine
from pylog_spark.run.job import Job, run_context
from pylog_spark.run.plan_file import (
    PlanBook,
    PlannedPartition,
    SavedPlan,
    decode_options,
    encode_options,
    expected_operations,
    planned_topics,
    read_plan_file,
    restrict_catalog,
    write_plan_file,
)
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.schemas import RECOVERY_WORK
from pylog_spark.tasks.message import decode_files, digest_operations, encode_files
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource, TopicEntry
from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.roots.open_root import LogRoot

OPTIONS = JobOptions(
    now_ms=1_700_000_000_000,
    now_is_said=True,
    role=Role.BROKER,
    include=("orders-*",),
    topic_configs={"orders": {"cleanup.policy": "compact"}},
    broker_settings={"log.segment.bytes": "16384"},
    cleaner=CleanerConfig(offset_map_hash=OffsetMapHash.MD5, dedupe_buffer_bytes=4096),
    high_watermark=HighWatermarkSource.LOG_END,
    tuning=Tuning(unit_min_bytes=7),
    limits=RunLimits(order=Order.LARGEST),
)
ENTRY = TopicEntry(
    topic="orders",
    topic_id="rxVH_70DS8OS9FeZmp5wKQ",
    config_overrides={"cleanup.policy": "compact"},
    source=TopicConfigSource.CLUSTER_METADATA,
    ignored_keys=("x",),
)
CATALOG = TopicCatalog(
    topics={"orders": ENTRY, "others": replace(ENTRY, topic="others")},
    explicit={"o*": {"retention.ms": "1"}},
    assume_defaults=("a*",),
    broker={"log.retention.ms": "5"},
    settings={"segment.bytes": "9"},
)
PLANNED = PlannedPartition(
    action="recover",
    root="/logs",
    topic="orders",
    partition=3,
    directory="/logs/orders-3",
    status="planned",
    reason=None,
    figures={"bytes_before": 5},
    plan={"operations": [{"operation": "DeleteFile", "name": "5.log", "reason": "cut"}]},
    files=(("0.log", 12, 1_700_000_000_123), ("é.log", 0, 0)),
)
SKIPPED = replace(
    PLANNED, topic=None, partition=None, status="skipped", reason="X", figures={}, plan={}, files=()
)
PLAN = SavedPlan(
    run_id="20260102T030405Z-0a1b2c3d",
    action="recover",
    now_ms=OPTIONS.now_ms,
    roots=(LogRoot(location="/logs", role=Role.BROKER, is_said=True),),
    options=OPTIONS,
    catalogs={"/logs": restrict_catalog(CATALOG, {"orders"})},
    partitions=(PLANNED, SKIPPED),
)


@pytest.mark.parametrize("name", ["plan.json", "plan.parquet", "plan"])
def test_what_goes_into_a_plan_comes_out_of_it(tmp_path: Path, name: str):
    path = tmp_path / name
    write_plan_file(path, PLAN)
    assert read_plan_file(path) == PLAN
    assert path.read_bytes()[:4] == (b"PAR1" if name.endswith("parquet") else b'{"ac')
    assert list(tmp_path.iterdir()) == [path]


def test_options_survive_and_secrets_of_a_session_are_left_out():
    said = replace(
        OPTIONS, spark_conf={"spark.password": "x"}, master="yarn", plan_out="p", dry_run=True
    )
    encoded = encode_options(said)
    assert not {"spark_conf", "master", "plan_out", "plan_in", "dry_run"} & set(encoded)
    assert decode_options(encoded) == OPTIONS
    assert decode_options(encode_options(JobOptions(now_ms=1))).role is None


def test_no_plan_switches_a_guard_off(tmp_path):
    said = replace(OPTIONS, limits=replace(OPTIONS.limits, overrides=frozenset({"FOREIGN_FORMAT"})))
    path = tmp_path / "plan.json"
    write_plan_file(path, replace(PLAN, options=said))
    assert read_plan_file(path) == PLAN
    content = json.loads(path.read_text())
    assert content["options"]["limits"]["overrides"] == []
    content["options"]["limits"]["overrides"] = ["NOT_THE_OWNER", "FOREIGN_FORMAT"]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"\(FOREIGN_FORMAT, NOT_THE_OWNER\); say it with --over"):
        read_plan_file(path)
    again = options_of(PLAN, path, ApplyOptions(overrides=frozenset({"NOT_THE_OWNER"})))
    assert again.limits.overrides == {"NOT_THE_OWNER"}


def test_only_the_configs_of_what_is_planned_are_kept():
    assert planned_topics(PLAN.partitions, "/logs") == {"orders"}
    assert planned_topics(PLAN.partitions, "/other") == set()
    known = PLAN.catalogs["/logs"]
    assert (set(known.topics), known.explicit, known.broker) == (
        {"orders"},
        CATALOG.explicit,
        CATALOG.broker,
    )


def test_operations_are_told_apart_by_what_they_say_not_by_how_it_is_spaced():
    (digest,) = expected_operations(PLAN, "recover").values()
    spaced = '[ {"reason": "cut", "operation" : "DeleteFile", "name":"5.log"} ]'
    assert digest_operations(spaced) == digest
    assert digest_operations(spaced.replace("5", "6")) != digest
    assert expected_operations(PLAN, "compact") == {}


def test_a_managed_partition_is_the_same_whatever_its_generation():
    place = "managed+s3://b/m/orders-3"
    one = replace(PLANNED, directory=f"{place}#generation=4")
    assert one.key == replace(PLANNED, directory=f"{place}#generation=5").key
    assert one.key != PLANNED.key


def test_listings_are_packed():
    assert decode_files(encode_files(PLANNED.files)) == PLANNED.files
    assert decode_files(None) == ()


def test_a_newer_version_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "plan.json"
    write_plan_file(path, PLAN)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match="expected pylog-plan 1, found pylog-plan 2"):
        read_plan_file(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{}", "expected pylog-plan 1, found None None"),
        ("[]", "expected an object, found list"),
        ('{"format": "pylog-plan", "version": 1}', "it has no 'partitions'"),
    ],
)
def test_what_is_no_plan_is_said_in_words(tmp_path: Path, content: str, what: str):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=what):
        read_plan_file(path)


DEEP: Any = 1
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("action",), ["compact"]),
        (("run_id",), 7),
        (("now_ms",), "7"),
        (("now_ms",), True),
        (("now_ms",), 2**80),
        (("roots",), "/logs"),
        (("roots", 0, "role"), "owner"),
        (("roots", 0, "location"), None),
        (("roots", 0, "more"), 1),
        (("options",), []),
        (("options", "now_ms"), -1),
        (("options", "trash"), 5),
        (("options", "strategy"), "magic"),
        (("options", "limits", "max_delete_ratio"), 1.5),
        (("options", "limits", "max_delete_ratio"), float("nan")),
        (("options", "limits", "max_bytes"), -1),
        (("options", "limits", "order"), ["name"]),
        (("options", "tuning", "unit_min_bytes"), 0),
        (("options", "tuning", "wave_max_tasks"), 2**64),
        (("options", "cleaner", "threads"), -1),
        (("options", "include"), "orders-*"),
        (("options", "spark_conf"), {"spark.jars": "any.jar"}),
        (("options", "master"), "spark://elsewhere"),
        (("options", "dry_run"), False),
        (("configs", "/logs", "topics", "orders", "source"), "hearsay"),
        (("configs", "/logs", "topics"), []),
        (("configs", "/logs", "broker", "log.retention.ms"), 5),
        (("partitions",), {"orders": 1}),
        (("partitions", 0, "directory"), ["/logs/orders-3"]),
        (("partitions", 0, "directory"), "/logs/\udcff-3"),
        (("partitions", 0, "partition"), 1.0),
        (("partitions", 0, "status"), None),
        (("partitions", 0, "plan"), [1]),
        (("partitions", 0, "plan", "operations"), DEEP),
        (("partitions", 0, "files", 0), ["0.log", 12]),
        (("partitions", 0, "files", 0), ["0.log", "12", 1]),
        (("partitions", 0, "more"), 1),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else repr(part)[:20],
)
def test_a_plan_that_somebody_else_wrote_is_checked_value_by_value(tmp_path, place, value):
    path = tmp_path / "plan.json"
    write_plan_file(path, PLAN)
    content = json.loads(path.read_bytes())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError):
        read_plan_file(path)


@pytest.mark.parametrize("content", [b"", b"7", b'"plan"', b"[]", b"{}", b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize("name", ["plan.json", "plan.parquet"])
def test_any_other_file_is_no_plan(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError):
        read_plan_file(tmp_path / name)


NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root")


@pytest.mark.parametrize("name", ["plan.json", "plan.parquet"])
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        pytest.param(
            lambda plan: os.chown(plan, NOBODY, -1), "user 65534 .mode 0600", marks=AS_ROOT
        ),
        (lambda plan: plan.chmod(0o666), "mode 0666, expected 0644"),
        (lambda plan: plan.chmod(0o620), "mode 0620, expected 0600"),
        (lambda plan: plan.parent.chmod(0o777), "folder .* mode 0777, expected 0755"),
        pytest.param(
            lambda plan: os.chown(plan.parent, NOBODY, -1), "folder .* user 65534", marks=AS_ROOT
        ),
    ],
)
def test_a_plan_that_somebody_else_may_have_written_is_refused_by_name(
    tmp_path, name, spoil, found
):
    path = tmp_path / "plans" / name
    write_plan_file(path, PLAN)
    link = tmp_path / f"link-{name}"
    link.symlink_to(path)
    assert read_plan_file(link) == read_plan_file(path) == PLAN
    spoil(path)
    for place in (path, link):
        with pytest.raises(GuardRefusedError, match=f"PLAN_OF_ANOTHER_USER.*{place}.*{found}"):
            read_plan_file(place)


@AS_ROOT
def test_a_plan_may_lie_where_only_its_owner_can_replace_it(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    write_plan_file(folder / "plan.json", PLAN)
    assert read_plan_file(folder / "plan.json") == PLAN


# The one plan of a run: read once, by whoever makes the run, and held against what is there.


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
