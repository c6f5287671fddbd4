"""Replicas of real clusters, brought in line with a leader, and back."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cluster.audit.driver import audit
from pylog_spark.cluster.truncate import plan_followers, truncate
from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.salvage import look_at_salvage
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import EngineChoice
from pylog_spark.run.guards import check_truncation
from pylog_spark.run.run_report import RunReport
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint, read_checkpoints
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.roots import broker_undo
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import LocalStore
from tests.kit.cluster_truth import Cluster
from tests.kit.compare import read_tree
from tests.kit.tasks_here import tasks_done_here

NOW_MS = 1_800_000_000_000
HERE = Local.of_master(None)


class Lab:
    """A cluster whose replicas are to follow one broker."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.cluster = Cluster(name, folder / "brokers")
        self.plan = folder / "plan.json"
        self.trash = folder / "trash"
        self.state = folder / "state.json"
        self.state.write_text(json.dumps({"partitions": self.cluster.states}))
        self.options = JobOptions(
            now_ms=NOW_MS, now_is_said=True, role=Role.BROKER, plan_out=str(self.plan), **options
        )

    def plan_for(self, leader: int) -> RunReport:
        return plan_followers(
            HERE, self.cluster.roots, self.options, leader=leader, state=self.state
        )

    def apply(self) -> RunReport:
        return apply_plan(HERE, self.plan, ApplyOptions(trash=str(self.trash)))

    def undo(self, run: RunReport) -> RunReport:
        options = replace(self.options, plan_out=None, trash=str(self.trash))
        return undo(run.run_id, options)

    def markers(self) -> dict[Path, str]:
        paths = [root / CLEAN_SHUTDOWN_FILE for root in self.cluster.roots]
        return {path.parent: path.read_text() for path in paths if path.exists()}

    def candidate(self, answer: Any, leader: int) -> Any:
        return next((c for c in answer["candidates"] if c["broker"] == leader), None)

    def answers(self) -> list[Any]:
        options = replace(self.options, plan_out=None)
        return list(audit(HERE, self.cluster.roots, options, state=self.state).answers())

    def cuts(self, leader: int) -> Iterator[tuple[Path, list[int], Any]]:
        """Yield the directory and the rounds of each follower that is cut."""
        for answer in self.answers():
            candidate = self.candidate(answer, leader)
            for cut in candidate["truncations"] if candidate else ():
                if cut["rounds"]:
                    name = f"{answer['topic']}-{answer['partition']}"
                    yield Path(cut["root"], name), cut["rounds"], cut

    def trees(self) -> dict[Path, dict[str, bytes]]:
        return {
            place: read_tree(place)
            for root in self.cluster.roots
            for place in sorted(root.iterdir())
            if place.is_dir()
        }

    def checkpoints(self) -> dict[Path, Any]:
        return {root: read_checkpoints(BrokerRoot(root)).entries for root in self.cluster.roots}


def active_of(tree: dict[str, bytes]) -> int:
    return max(int(Path(name).stem) for name in tree if name.endswith(".log"))


def _partition(place: Path) -> TopicPartition:
    topic, _, number = place.name.rpartition("-")
    return TopicPartition(topic, int(number))


def expected_trees(lab: Lab, leader: int, *, folder: Path) -> dict[Path, dict[str, bytes]]:
    """Return the files of each follower once it is cut, by a twin of the cluster."""
    configs = {row["topic"]: row["config"] for row in lab.cluster.states}
    trees = {}
    for place, rounds, _ in lab.cuts(leader):
        twin = folder / place.parent.name / place.name
        shutil.copytree(place, twin)
        entries = read_checkpoints(BrokerRoot(place.parent)).of(_partition(place))
        store = LocalStore(twin)
        log = plan_recovery(
            store,
            config=LogConfig.from_topic_overrides(configs[_partition(place).topic]),
            cleaner=CleanerConfig(),
            now_ms=NOW_MS,
            recovery_point=entries.recovery_point or 0,
            log_start_offset=entries.log_start_offset or 0,
            clean_shutdown=(place.parent / CLEAN_SHUTDOWN_FILE).exists(),
            truncations=rounds,
        )
        commit(log.plan, store)
        trees[place] = read_tree(twin)
    return trees


@pytest.mark.thorough
@pytest.mark.item("REP-11", "CMP-44")
@pytest.mark.parametrize(
    ("name", "leader"), [("diverged", 2), ("killed", 2), ("log-start", 1), ("compacted", 3)]
)
def test_followers_are_cut_and_come_back(name: str, leader: int, tmp_path: Path):
    lab = Lab(name, tmp_path, allow_truncate=True, salvage=str(tmp_path / "salvage"))
    before, points = lab.trees(), lab.checkpoints()
    expected = expected_trees(lab, leader, folder=tmp_path / "twins")
    cuts = {place: rounds[-1] for place, rounds, _ in lab.cuts(leader)}
    markers = lab.markers()
    unfit = {
        Path(cut["root"])
        for answer in lab.answers()
        if (chosen := lab.candidate(answer, leader)) is not None
        for cut in chosen["truncations"]
        if cut["rounds"] and not cut["stays_eligible"]
    }
    assert expected
    planned = lab.plan_for(leader)
    assert (planned.exit_code, planned.summary.planned) == (0, len(expected))
    assert lab.trees() == before
    run = lab.apply()
    assert (run.exit_code, run.summary.done) == (0, len(expected))
    assert lab.trees() == before | expected
    assert list(lab.cuts(leader)) == []
    for place, offset in cuts.items():
        now = read_checkpoints(BrokerRoot(place.parent)).of(_partition(place))
        assert max(now.recovery_point or 0, now.high_watermark or 0) <= offset
        was = points[place.parent].get(CLEANER_FILE, {}).get(_partition(place))
        # As Kafka: a cut in the active segment leaves it, a deeper one begins at the new one.
        is_deeper = offset < active_of(before[place])
        if was is not None and is_deeper:
            was = min(was, active_of(expected[place]))
        assert now.cleaner_offset == was
    # The controller counts on a marker's broker for what it takes for in sync, and no more.
    assert lab.markers() == {
        root: '{"version":0,"brokerEpoch":-1}' if root in unfit else text
        for root, text in markers.items()
    }
    undone = lab.undo(run)
    assert (undone.exit_code, undone.summary.done) == (0, len(expected))
    assert lab.trees() == before
    assert lab.checkpoints() == points


@pytest.mark.thorough
def test_an_undo_that_is_killed_raises_no_checkpoint_above_the_end_of_a_cut_log(
    tmp_path: Path, monkeypatch
):
    lab = Lab("compacted", tmp_path, allow_truncate=True, salvage=str(tmp_path / "salvage"))
    before = lab.checkpoints()
    lab.plan_for(3)
    run = lab.apply()
    points, cut = lab.checkpoints(), lab.trees()

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker_undo, "undo_partition", kill)
    with tasks_done_here(), pytest.raises(KeyboardInterrupt):
        lab.undo(run)
    monkeypatch.undo()
    assert lab.trees() == cut
    now = lab.checkpoints()
    for file in (RECOVERY_POINT_FILE, REPLICATION_FILE, CLEANER_FILE):
        assert [now[root].get(file) for root in now] == [points[root].get(file) for root in now]
        assert any(points[root].get(file) != before[root].get(file) for root in now)
    assert lab.undo(run).exit_code == 0
    assert lab.checkpoints() == before


@pytest.mark.thorough
@pytest.mark.item("REP-11")
def test_committed_records_are_cut_only_where_that_is_allowed_and_they_are_kept(tmp_path: Path):
    lab = Lab("diverged", tmp_path)
    before, points = lab.trees(), lab.checkpoints()
    lost = sum(cut["committed"] for _, _, cut in lab.cuts(2))
    for options in (
        lab.options,
        replace(lab.options, allow_truncate=True),
        replace(lab.options, salvage=str(tmp_path / "salvage")),
    ):
        lab.options = options
        for report in (lab.plan_for(2), lab.apply()):
            assert report.exit_code == 3
            reasons = {row["reason"] for row in report.results.to_pylist()}
            assert reasons == {"CUTS_COMMITTED_RECORDS"}
    assert (lab.trees(), lab.checkpoints()) == (before, points)
    assert not (tmp_path / "salvage").exists()
    lab.options = replace(lab.options, allow_truncate=True)
    lab.plan_for(2)
    assert lab.apply().exit_code == 0
    kept = look_at_salvage(tmp_path / "salvage", [], TopicFilter())
    assert sum(row.contents.records for row in kept) == lost


@pytest.mark.thorough
def test_cuts_that_take_nothing_committed_need_no_leave(tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    assert [cut["committed"] for _, _, cut in lab.cuts(1)] == [0]
    lab.plan_for(1)
    assert lab.apply().exit_code == 0


@pytest.mark.thorough
def test_a_follower_that_changed_since_is_left_alone(tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    (place,) = [place for place, _, _ in lab.cuts(1)]
    lab.plan_for(1)
    with next(iter(sorted(place.glob("*.log")))).open("ab") as file:
        file.write(bytes(7))
    before = lab.trees()
    run = lab.apply()
    assert run.exit_code == 3
    assert [row["reason"] for row in run.results.to_pylist()] == ["INPUTS_CHANGED"]
    assert lab.trees() == before


@pytest.mark.thorough
def test_a_plan_of_other_cuts_than_its_operations_is_refused(tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    lab.plan_for(1)
    plan = json.loads(lab.plan.read_text())
    (partition,) = plan["partitions"]
    partition["plan"]["truncations"] = [5]
    lab.plan.write_text(json.dumps(plan))
    before = lab.trees()
    run = lab.apply()
    assert (run.exit_code, run.summary.done) == (3, 0)
    assert lab.trees() == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("value", ["x", [None], {}, [], 3])
def test_a_plan_with_other_offsets_than_numbers_is_none(value: object, tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    lab.plan_for(1)
    plan = json.loads(lab.plan.read_text())
    plan["partitions"][0]["plan"]["truncations"] = value
    lab.plan.write_text(json.dumps(plan))
    before = lab.trees()
    with pytest.raises(ConfigError, match="is no saved plan"):
        lab.apply()
    assert lab.trees() == before


@pytest.mark.thorough
def test_where_nothing_is_cut_the_answer_says_so(tmp_path: Path):
    lab = Lab("clean", tmp_path)
    planned = lab.plan_for(1)
    assert "no other replica has to be cut to follow broker 1" in planned.notes
    assert lab.apply().exit_code == 0


@pytest.mark.thorough
def test_a_replica_that_cannot_be_opened_is_named_and_stays(tmp_path: Path):
    lab = Lab("epoch-file-corrupt", tmp_path, allow_truncate=True, salvage=str(tmp_path / "s"))
    (bad,) = [
        Path(replica["root"], replica["dir"])
        for answer in lab.answers()
        for replica in answer["replicas"]
        if replica.get("error")
    ]
    before = read_tree(bad)
    leader = next(n for n in (1, 2, 3) if not bad.is_relative_to(lab.cluster.roots[n - 1]))
    planned = lab.plan_for(leader)
    assert any(f"{bad.name} stays as it is" in note for note in planned.notes)
    assert lab.apply().exit_code == 0
    assert read_tree(bad) == before


@pytest.mark.thorough
@pytest.mark.parametrize("is_allowed", [False, True])
def test_what_opening_would_lose_is_refused_as_a_recovery_is(is_allowed: bool, tmp_path: Path):
    allowed = {"allow_truncate": True, "salvage": str(tmp_path / "salvage")} if is_allowed else {}
    lab = Lab("killed", tmp_path, **allowed)
    # Of the log that is longest, the last batch is torn: opening ends it below its high watermark.
    place, _, _ = max(lab.cuts(2), key=lambda cut: cut[1][-1])
    log = max(place.glob("*.log"))
    marks = read_checkpoints(BrokerRoot(place.parent)).entries[REPLICATION_FILE]
    end = log.stat().st_size - 40
    log.write_bytes(log.read_bytes()[:end])
    marks = {**marks, _partition(place): 10_000}
    (place.parent / REPLICATION_FILE).write_bytes(encode_offset_checkpoint(marks))
    before = read_tree(place)
    lab.plan_for(2)
    rows = {row["directory"]: row for row in lab.apply().results.to_pylist()}
    if is_allowed:
        assert rows[str(place)]["status"] == "done"
    else:
        assert rows[str(place)]["reason"] == "RECOVERY_REQUIRED"
        assert "below its checkpointed high watermark 10000" in rows[str(place)]["error"]
        assert read_tree(place) == before


@pytest.mark.thorough
def test_a_directory_that_a_broker_holds_is_refused(tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    ((place, _, _),) = lab.cuts(1)
    lab.plan_for(1)
    before = lab.trees()
    with LogDirectoryLock(place.parent), pytest.raises(GuardRefusedError):
        lab.apply()
    assert lab.trees() == before


def test_only_replicas_of_brokers_are_cut(tmp_path: Path):
    for role in (Role.MANAGED, Role.MIRROR):
        root = LogRoot(location=str(tmp_path), role=role, is_said=True)
        with pytest.raises(ConfigError, match="broker's directory"):
            check_truncation([root], JobOptions(now_ms=NOW_MS))


@pytest.mark.thorough
def test_who_has_no_replica_cannot_lead(tmp_path: Path):
    lab = Lab("clean", tmp_path)
    with pytest.raises(ConfigError, match=r"brokers that have one: 1, 2, 3"):
        lab.plan_for(4)


@pytest.mark.thorough
def test_a_plan_in_python_is_applied(tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    first, *others = lab.cluster.roots
    options = replace(lab.options, plan_out=None)
    directory = LogDirectory.for_path(HERE, first, options=options)
    plan = directory.plan_followers(*others, leader=1, state=lab.state)
    assert plan.summary().planned == 1
    assert plan.apply(trash=str(lab.trash)).exit_code == 0
    assert list(lab.cuts(1)) == []


def test_cuts_are_planned_by_an_audit_alone(tmp_path: Path):
    lab = Lab("clean", tmp_path)
    with pytest.raises(ConfigError, match="planned by an audit"):
        truncate(HERE, lab.cluster.roots, lab.options)


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_plans_what_this_machine_plans(spark: Any, tmp_path: Path):
    lab = Lab("log-start", tmp_path)
    plans = []
    for place in (HERE, spark):
        plan_followers(place, lab.cluster.roots, lab.options, leader=1, state=lab.state)
        plans.append(json.loads(lab.plan.read_text())["partitions"])
    assert plans[0] == plans[1]
    run = apply_plan(spark, lab.plan, ApplyOptions(trash=str(lab.trash), engine=EngineChoice.SPARK))
    assert (run.exit_code, run.summary.done, run.engine) == (0, 1, "spark")
    assert list(lab.cuts(1)) == []


@pytest.mark.thorough
def test_a_broker_stays_eligible_for_partitions_that_are_not_cut(tmp_path: Path):
    """Else the controller drops it from all ISRs and ELRs, and a worse leader follows."""
    lab = Lab(
        "wiped-disk",
        tmp_path,
        allow_truncate=True,
        salvage=str(tmp_path / "salvage"),
        include=("ledger",),
    )
    options = replace(lab.options, plan_out=None, include=())

    def loss() -> tuple[int, ...]:
        starts = audit(HERE, lab.cluster.roots, options, up=(1, 2, 3)).starts
        assert starts is not None
        return starts.asked.loss

    before, markers = loss(), lab.markers()
    lab.plan_for(1)
    assert lab.apply().summary.done
    assert lab.markers() == markers
    assert loss() <= before
