"""``pylog audit --leader``: the cuts that bring followers in line, as they are asked for."""

import json
from pathlib import Path

import pytest

from tests.kit.cluster_truth import Cluster

OPTIONS = ("--role", "broker", "--now-ms", "1800000000000", "--engine", "local")


@pytest.mark.thorough
@pytest.mark.item("REP-11")
def test_cuts_are_shown_saved_applied_and_undone(pylog, tmp_path: Path):
    roots = Cluster("log-start", tmp_path).roots
    plan, trash = tmp_path / "cuts.json", tmp_path / "trash"
    shown = pylog("audit", *roots, *OPTIONS, "--leader", "1", "--plan-out", plan)
    assert shown.exit_code == 0
    assert "start broker 1 first, then the others" in shown.output
    applied = pylog("apply", plan, "--trash", trash, "--engine", "local", "--output", "json")
    assert applied.exit_code == 0
    rows = [json.loads(line) for line in applied.stdout.splitlines()]
    (result,) = (row for row in rows if row["type"] == "result")
    assert (result["action"], result["status"]) == ("truncate", "done")
    assert all(row["records"] for row in rows if row["type"] == "cut")
    again = pylog("audit", *roots, *OPTIONS, "--leader", "1", "--output", "json")
    assert [json.loads(line)["type"] for line in again.stdout.splitlines()] == ["run"]
    (run,) = (path.name for path in trash.iterdir())
    assert pylog("undo", run, "--trash", trash, "--engine", "local").exit_code == 0


@pytest.mark.thorough
def test_committed_records_are_refused_by_exit_status_and_way_out(pylog, tmp_path: Path):
    roots = Cluster("diverged", tmp_path).roots
    result = pylog("audit", *roots, *OPTIONS, "--leader", "2")
    assert result.exit_code == 3
    assert "--allow-committed-loss --salvage DIR" in result.output
    assert "--allow-truncate" not in result.output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words", [("--plan-out", "{}/p.json"), ("--salvage", "{}/s"), ("--allow-committed-loss",)]
)
def test_what_belongs_to_a_leader_needs_one(pylog, words: tuple[str, ...], tmp_path: Path):
    roots = Cluster("clean", tmp_path).roots
    result = pylog("audit", *roots, *OPTIONS, *(word.format(tmp_path) for word in words))
    assert result.exit_code == 2
    assert "--leader: is needed beside" in result.output
    assert words[0] in result.output
