"""Replicas of real clusters, healed from each other, and back."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cluster.heal import HealReport, heal, plan_heal
from pylog_spark.engines.choice import Local
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from pylog_spark.run.run_report import RunReport
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import read_checkpoints
from storage_core.errors import ConfigError, InconsistentClusterIdError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
)
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.roots.broker import BrokerRoot
from tests.kit.cluster_truth import Cluster
from tests.kit.compare import read_tree

NOW_MS = 1_800_000_000_000
HERE = Local.of_master(None)


class Lab:
    """A cluster of three brokers, of which the first has a damaged disk."""

    def __init__(self, name: str, folder: Path) -> None:
        self.cluster = Cluster(name, folder / "brokers")
        self.target, *self.donors = self.cluster.roots
        self.plan = folder / "plan.json"
        self.trash = folder / "trash"
        self.options = JobOptions(
            now_ms=NOW_MS, now_is_said=True, role=Role.BROKER, plan_out=str(self.plan)
        )

    def look(self, place: Any = HERE, *, donors: Any = None, quorum: int = 0) -> HealReport:
        donors = self.donors if donors is None else donors
        return plan_heal(place, [self.target], self.options, donors=donors, quorum=quorum)

    def apply(self, place: Any = HERE) -> RunReport:
        return apply_plan(place, self.plan, ApplyOptions(trash=str(self.trash)))

    def logs(self, root: Path | None = None) -> dict[str, bytes]:
        root = root or self.target
        return {
            path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.log")
        }

    def damage(self, name: str, at: float = 0.4) -> Path:
        """Overwrite some bytes in the first segment of a partition that has several."""
        path = min((self.target / name).glob("*.log"))
        content = bytearray(path.read_bytes())
        start = int(at * len(content))
        content[start : start + 40] = b"\x5a" * 40
        path.write_bytes(content)
        return path


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab("clean", tmp_path)


def states(report: HealReport) -> list[str]:
    return report.damage["state"].to_pylist()


@pytest.mark.thorough
def test_a_plan_heals_exactly_what_is_damaged_and_an_undo_brings_the_damage_back(lab):
    whole = lab.logs()
    damaged = [lab.damage("ledger-0"), lab.damage("stock_levels-1", 0.2)]
    before = read_tree(lab.target)
    report = lab.look()
    assert read_tree(lab.target) == before
    assert (states(report), report.exit_code) == (["FILLED"] * 2, 0)
    assert report.damage["donors"].to_pylist() == [
        [str(root / path.parent.name) for root in lab.donors] for path in damaged
    ]
    run = lab.apply()
    assert run.exit_code == 0
    assert set(run.results["status"].to_pylist()) == {"done"}
    assert lab.logs() == whole
    assert (lab.target / CLEAN_SHUTDOWN_FILE).exists()
    assert states(lab.look()) == []
    undone = undo(run.run_id, replace(lab.options, plan_out=None, trash=str(lab.trash)))
    assert undone.exit_code == 0
    after = read_tree(lab.target)
    # An undo may cut: its marker names no epoch of the broker.
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {CLEAN_SHUTDOWN_FILE}


@pytest.mark.thorough
def test_a_segment_that_is_gone_comes_back_with_its_indexes(lab):
    whole = read_tree(lab.target)
    name = max((lab.target / "stock_levels-1").glob("*.log")).stem
    middle = sorted((lab.target / "stock_levels-1").glob("*.log"))[1].stem
    assert middle < name
    for path in (lab.target / "stock_levels-1").glob(f"{middle}.*"):
        path.unlink()
    assert states(lab.look()) == ["FILLED"]
    assert lab.apply().exit_code == 0
    after = read_tree(lab.target)
    gone = {name for name in whole if Path(name).stem == middle and "stock_levels-1" in name}
    assert {name for name in gone if whole[name] != after.get(name)} <= {
        name for name in gone if name.endswith(".snapshot")
    }


@pytest.mark.thorough
def test_of_a_killed_broker_the_recovery_point_stays(tmp_path):
    lab = Lab("killed", tmp_path)
    lab.damage("ledger-0")
    points = read_checkpoints(BrokerRoot(lab.target)).entries[RECOVERY_POINT_FILE]
    assert states(lab.look()) == ["FILLED"]
    assert lab.apply().exit_code == 0
    assert read_checkpoints(BrokerRoot(lab.target)).entries[RECOVERY_POINT_FILE] == points
    assert not (lab.target / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
def test_a_mirror_and_a_managed_root_are_donors(spark, lab, tmp_path):
    whole = lab.logs()
    mirror, managed = tmp_path / "mirror", tmp_path / "managed"
    shutil.copytree(lab.donors[0], mirror)
    (mirror / META_PROPERTIES_FILE).unlink()
    rules = IngestRules(settle_ms=0, sync_has_stopped=True)
    options = JobOptions(now_ms=NOW_MS)
    assert ingest(spark, str(mirror), str(managed), options, rules=rules).exit_code == 0
    for donor in (mirror, managed):
        damaged = lab.damage("ledger-0")
        report = lab.look(donors=[donor])
        assert states(report) == ["FILLED"]
        assert lab.apply().exit_code == 0
        assert damaged.read_bytes() == whole["ledger-0/" + damaged.name]


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_heals_as_this_machine_does(spark, lab):
    whole = lab.logs()
    lab.damage("ledger-0")
    lab.damage("stock_levels-1", 0.2)
    assert states(lab.look(spark)) == ["FILLED"] * 2
    assert lab.apply(spark).exit_code == 0
    assert lab.logs() == whole


def test_without_a_donor_that_counts_nothing_is_changed_and_the_exit_status_says_so(lab):
    damaged = lab.damage("ledger-0")
    for root in lab.donors:
        shutil.copy(damaged, root / "ledger-0")
    report = lab.look()
    assert (states(report), report.exit_code) == (["DONOR_DAMAGED"], 1)
    assert report.results.num_rows == 0
    (reason,) = report.damage["reason"].to_pylist()
    assert all(str(root / "ledger-0") in reason for root in lab.donors)


@pytest.mark.thorough
def test_where_a_donor_changed_since_that_log_is_refused_and_no_other(lab):
    whole = lab.logs()
    damaged = lab.damage("ledger-0")
    lab.damage("stock_levels-1", 0.2)
    before = damaged.read_bytes()
    assert states(lab.look(quorum=1)) == ["FILLED"] * 2
    for root in lab.donors:
        shutil.copy(damaged, root / "ledger-0")
    run = lab.apply()
    rows = {row["topic"]: row for row in run.results.to_pylist()}
    assert (rows["ledger"]["status"], rows["stock_levels"]["status"]) == ("skipped", "done")
    assert rows["ledger"]["reason"] == "INPUTS_CHANGED"
    assert damaged.read_bytes() == before
    assert lab.logs() == whole | {"ledger-0/" + damaged.name: before}


@pytest.mark.thorough
def test_a_log_that_changed_since_is_refused(lab):
    damaged = lab.damage("ledger-0")
    lab.look()
    with damaged.open("ab") as file:
        file.write(b"\0")
    (row,) = lab.apply().results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "INPUTS_CHANGED")


OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def make_again(root: Path, name: str) -> str:
    """Give a partition another topic id at the same file time; return how an error names both."""
    return write_id(root / name / PARTITION_METADATA_FILE, "topic_id: ", "topic id")


def move_to_another_cluster(root: Path, _name: str) -> str:
    return write_id(root / META_PROPERTIES_FILE, "cluster.id=", "cluster id")


def write_id(path: Path, key: str, named: str) -> str:
    time_ns, text = path.stat().st_mtime_ns, path.read_text()
    own = text.partition(key)[2].splitlines()[0]
    path.write_text(text.replace(own, OTHER_ID))
    os.utime(path, ns=(time_ns, time_ns))
    return f"{path}: expected {named} {own}, found {OTHER_ID}"


@pytest.mark.thorough
def test_a_plan_and_an_undo_leave_a_topic_alone_that_was_made_again(lab):
    damaged = lab.damage("ledger-0")
    lab.damage("stock_levels-1", 0.2)
    kept = damaged.read_bytes()
    lab.look()
    named = make_again(lab.target, "ledger-0")
    run = lab.apply()
    rows = {row["topic"]: row for row in run.results.to_pylist()}
    assert (rows["ledger"]["reason"], rows["stock_levels"]["status"]) == ("INPUTS_CHANGED", "done")
    assert named in rows["ledger"]["error"]
    assert damaged.read_bytes() == kept
    named = make_again(lab.target, "stock_levels-1")
    before = read_tree(lab.target)
    undone = undo(run.run_id, replace(lab.options, plan_out=None, trash=str(lab.trash)))
    (row,) = undone.results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "CHANGED_SINCE_RUN")
    assert named in row["error"]
    assert read_tree(lab.target) == before


@pytest.mark.thorough
def test_a_plan_and_an_undo_leave_another_clusters_directory_alone(lab):
    lab.damage("ledger-0")
    lab.look()
    properties = lab.target / META_PROPERTIES_FILE
    own = properties.read_text()
    named = move_to_another_cluster(lab.target, "")
    before = read_tree(lab.target)
    (row,) = lab.apply().results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "INPUTS_CHANGED")
    assert named in row["error"]
    assert read_tree(lab.target) == before
    properties.write_text(own)
    run = lab.apply()
    assert set(run.results["status"].to_pylist()) == {"done"}
    named = move_to_another_cluster(lab.target, "")
    before = lab.logs()
    undone = undo(run.run_id, replace(lab.options, plan_out=None, trash=str(lab.trash)))
    (row,) = undone.results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "CHANGED_SINCE_RUN")
    assert named in row["error"]
    assert lab.logs() == before


@pytest.mark.thorough
def test_a_plan_of_a_former_version_names_no_ids_and_is_applied(lab):
    lab.damage("ledger-0")
    lab.look()
    saved = json.loads(lab.plan.read_text())
    assert all(noted["plan"].pop("identity") for noted in saved["partitions"] if noted["plan"])
    lab.plan.write_text(json.dumps(saved))
    assert set(lab.apply().results["status"].to_pylist()) == {"done"}


def test_another_cluster_heals_nothing(lab, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(lab.donors[0], other)
    text = (other / META_PROPERTIES_FILE).read_text()
    lines = [
        "cluster.id=AAAAAAAAAAAAAAAAAAAAAQ" if line.startswith("cluster.id") else line
        for line in text.splitlines()
    ]
    (other / META_PROPERTIES_FILE).write_text("\n".join(lines) + "\n")
    with pytest.raises(InconsistentClusterIdError):
        lab.look(donors=[other])


def test_a_root_is_not_its_own_donor(lab):
    with pytest.raises(ConfigError, match="is itself to be healed"):
        lab.look(donors=[lab.target])


def test_a_healing_has_to_be_planned(lab):
    with pytest.raises(ConfigError, match="pylog heal"):
        heal(HERE, [lab.target], replace(lab.options, plan_out=None))


@pytest.mark.thorough
def test_the_command_shows_where_and_from_whom(lab, pylog):
    lab.damage("ledger-0")
    words = ["heal", lab.target, "--role", "broker", "--engine", "local"]
    donors = [word for root in lab.donors for word in ("--donor", root)]
    shown = pylog(*words, *donors)
    assert shown.exit_code == 0, shown.stderr
    assert "1 damaged place, of which 1 can be healed" in shown.stdout
    rows = [
        json.loads(line)
        for line in pylog(*words, *donors, "--output", "json").stdout.split("\n")
        if line
    ]
    (damage,) = [row for row in rows if row["type"] == "damage"]
    assert (damage["state"], damage["topic"], damage["partition"]) == ("FILLED", "ledger", 0)
    (result,) = [row for row in rows if row["type"] == "result"]
    assert result["action"] == "heal"


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["elsewhere", "another partition", "no donor of this plan"])
def test_a_piece_outside_of_the_plans_donors_is_refused(lab, tmp_path, where):
    damaged = lab.damage("ledger-0")
    assert states(lab.look()) == ["FILLED"]
    before = lab.logs()
    donor = next(str(root / "ledger-0") for root in lab.donors)
    place = {
        "elsewhere": tmp_path / "ledger-0",
        "another partition": lab.donors[0] / "stock_levels-1",
        "no donor of this plan": lab.target / "ledger-0",
    }[where]
    (tmp_path / "ledger-0").mkdir()
    text = lab.plan.read_text()
    piece = f'\\"directory\\": \\"{donor}\\"'
    assert piece in text
    lab.plan.write_text(text.replace(piece, piece.replace(donor, str(place))))
    with pytest.raises(
        ConfigError, match=f"a piece of ledger-0 is {place}/.*expected a file of its"
    ):
        lab.apply()
    assert lab.logs() == before
    assert damaged.exists()


@pytest.mark.thorough
def test_a_donor_that_became_another_topics_is_refused(lab):
    lab.damage("ledger-0")
    assert states(lab.look()) == ["FILLED"]
    before = lab.logs()
    for donor in lab.donors:
        file = donor / "ledger-0" / "partition.metadata"
        file.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    run = lab.apply()
    (row,) = run.results.to_pylist()
    assert (row["status"], row["error_class"]) == ("failed", "InconsistentTopicIdError")
    assert lab.logs() == before
