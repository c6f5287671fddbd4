"""Nightlies on a cluster whose driver, executors and workers are killed: the bytes do not differ.

A copy of a directory is worked on by one nightly after the other, each of which loses a process at
a moment that chance chooses; then by one that is left alone. ``PYLOG_KILL_ROUNDS=30``
(``make kills``) says how many are killed; with all tests it is none, for ``test_stopped_nights.py``
stops nightlies there, at moments that are always the same.
"""

import json
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from storage_core.filenames import CLEAN_SHUTDOWN_FILE, TopicPartition
from tests.crash.killed_programs import kill_driver, kill_executor, kill_worker, run_nightly
from tests.jobs.spark_programs import executor_settings, standalone_cluster
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    CLEANED_ALONE,
    BrokerDirectory,
    broker_directory,
    expected_points,
    read_points,
)

ROUNDS = int(os.environ.get("PYLOG_KILL_ROUNDS", "0"))
SEED = int(os.environ.get("PYLOG_KILL_SEED", "1"))
# Nightlies that are killed on one copy before the one that is not.
KILLED_IN_A_ROW = 3
KILLS = (kill_driver, kill_executor, kill_worker)
NOW_MS = 1_700_000_000_000
RETAINED = [f"retain-{kind}-s501" for kind in ("size", "time", "both", "compact-delete")]
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
SPARK = {
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.task.maxFailures": "8",
    "spark.ui.enabled": "false",
}

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.timeout(600 + 240 * ROUNDS, method="thread"),
    pytest.mark.skipif(not ROUNDS, reason="nightlies on a cluster that lose a process: make kills"),
]


@dataclass(frozen=True, slots=True)
class Night:
    """What all nightlies of the test share."""

    made: BrokerDirectory  # the directory that each copy is made of
    arguments: tuple[str, ...]  # of ``pylog``, but for the directory
    seconds: float  # how long an undisturbed one changes the directory
    expected: dict[str, object]  # what it leaves


def state_of(directory: Path) -> dict[str, object]:
    """Return the bytes of all partitions, the lines of the checkpoints, and the marker."""
    state: dict[str, object] = {
        path.name: read_tree(path) for path in sorted(directory.iterdir()) if path.is_dir()
    }
    for name in CHECKPOINTS:
        state[name] = sorted((directory / name).read_text().splitlines())
    marker = directory / CLEAN_SHUTDOWN_FILE
    state["marker"] = marker.read_text() if marker.exists() else None
    return state


def differences(state: dict[str, object], expected: dict[str, object]) -> list[str]:
    """Return what of a directory is not as expected, by name."""
    found = []
    for name in sorted(state.keys() | expected.keys()):
        one, other = state.get(name), expected.get(name)
        if isinstance(one, list) and isinstance(other, list):
            found += [f"{name}: {line!r}" for line in sorted(set(one) ^ set(other))]
        elif one != other:
            found.append(name)
    return found


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    made = broker_directory(folder / "made", [*CLEANED_ALONE, *RETAINED])
    config = folder / "config.yaml"
    config.write_text(
        yaml.safe_dump({"topics": made.configs, "spark": SPARK | executor_settings()})
    )
    with standalone_cluster(folder) as master:
        arguments = ("--role", "broker", "--now-ms", str(NOW_MS), "--master", master)
        arguments += ("--config", str(config), "--max-delete-ratio", "1")
        arguments += ("--override", "CLOCK_PAST_RETENTION", "--set", "unit.max.bytes=1")
        arguments += ("--set", "unit.min.bytes=1", "--output", "json")
        quiet = folder / "quiet"
        shutil.copytree(made.path, quiet)
        ended = run_nightly(["run", quiet, *arguments], quiet, folder)
        assert ended.status == 0, ended.errors
        yield Night(made, arguments, ended.seconds, state_of(quiet))


@pytest.mark.item("FLT-14", "FLT-08")
def test_whatever_is_killed_the_last_run_ends_with_the_same_bytes(night, tmp_path):
    chance = random.Random(SEED)
    killed = 0
    number = 0
    while number < ROUNDS:
        directory = tmp_path / f"log-{number}"
        shutil.copytree(night.made.path, directory)
        story = []
        for _ in range(min(KILLED_IN_A_ROW, ROUNDS - number)):
            kill = KILLS[number % len(KILLS)]
            after = chance.random() * night.seconds
            ended = run_nightly(
                ["run", directory, *night.arguments],
                directory,
                tmp_path,
                kill=kill,
                after_seconds=after,
            )
            story.append((kill.__name__, round(after, 2), ended.was_killed, ended.status))
            killed += ended.was_killed
            if kill is not kill_driver:
                assert ended.status == 0, (story, ended.errors)
            number += 1
        last = run_nightly(["run", directory, *night.arguments], directory, tmp_path)
        assert last.status == 0, (story, last.errors)
        assert differences(state_of(directory), night.expected) == [], story
        assert not list(tmp_path.glob("pylog-scratch-*")), story
        shutil.rmtree(directory)
    assert killed
    sys.stdout.write(f"{killed} of {ROUNDS} nightlies lost a process\n")


@pytest.mark.item("FLT-14")
def test_a_kill_on_the_way_keeps_what_finished_waves_committed(night, tmp_path):
    directory = tmp_path / "log"
    shutil.copytree(night.made.path, directory)
    cleaned = expected_points(CLEANED_ALONE)
    before = read_points(directory)

    def done() -> set[TopicPartition]:
        points = read_points(directory)
        return {
            name for name, point in cleaned.items() if points.get(name) == point != before.get(name)
        }

    most = {name for name, point in cleaned.items() if before.get(name) != point}
    arguments = [*night.arguments, "--set", "wave.max.tasks=2"]
    ended = run_nightly(
        ["run", directory, *arguments],
        directory,
        tmp_path,
        kill=kill_driver,
        until=lambda: len(done()) >= 0.6 * len(most),
    )
    assert ended.status == -signal.SIGKILL, ended.errors
    kept = done()
    assert 0.6 * len(most) <= len(kept) < len(most)
    for name in kept:
        assert read_tree(directory / str(name)) == night.expected[str(name)], name
    last = run_nightly(["run", directory, *arguments], directory, tmp_path)
    assert last.status == 0, last.errors
    rows = [json.loads(line) for line in last.output.splitlines()]
    again = {
        TopicPartition(row["topic"], row["partition"])
        for row in rows
        if row["type"] == "result" and row["action"] == "compact" and row["status"] == "done"
    }
    assert not again & kept
    assert differences(state_of(directory), night.expected) == []
