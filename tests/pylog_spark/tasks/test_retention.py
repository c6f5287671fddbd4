"""What the tasks of a sweep do, one after the other in this process."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
    commit_sweeps,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import row_writer
from pylog_spark.run.plan_table import read_planned
from pylog_spark.schemas import RETENTION_PLAN
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.tasks.message import PartitionCommit
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import WriteContext
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.commit.claim import create_claim, revoke_claim
from storage_core.commit.scratch import claim_path
from storage_core.config import CleanerConfig
from storage_core.roots.broker import BrokerAccess
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import (
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
)
from tests.pylog_spark.tasks.observed import observed, run_context
from tests.pylog_spark.tasks.pipeline import proof_of

TOPIC = "retain-size-s501"
NOW_MS = 1_700_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS)
HEX = "0123456789abcdef0123456789abcdef"


class Sweeper:
    """The two stages over one log directory."""

    def __init__(
        self, root: BrokerDirectory, options: JobOptions = OPTIONS, **changes: Any
    ) -> None:
        self.root = root
        location = str(root.path)
        run = run_context(location, root.configs, options)
        self.context = RetentionContext(
            run=run,
            **{"step": Step.RETAIN} | changes,
        )
        self.scratch = root.path.parent / "scratch"
        self.scratch.mkdir(exist_ok=True)

    @cached_property
    def write(self) -> WriteContext:
        """What commits are told; the lock is taken by who asks for it first."""
        path = self.root.path
        access = BrokerAccess(run_id="run", lock=proof_of(path), shared=str(self.scratch))
        return WriteContext(run=self.context.run, roots={str(path): access})

    def observe(self) -> dict[str, dict[str, Any]]:
        """Return the rows by the names of their directories."""
        listed = list_partitions(str(self.root.path), "broker", TopicFilter())
        rows = [{"error_class": None, "error": None} | row for row in listed]
        context = self.context
        seen = observed(rows, context.run, context.step, excluded=context.excluded).to_pylist()
        assert all(set(row) == set(RETENTION_PLAN.names) for row in seen)
        return {Path(row["directory"]).name: row for row in seen}

    def claim(self) -> Path:
        directory = self.root.path / f"{TOPIC}-0"
        return claim_path(str(self.scratch), directory, "run")

    def commit(self, row: dict[str, Any]) -> dict[str, Any]:
        planned = pa.Table.from_pylist([row], schema=RETENTION_PLAN)
        works = list(read_planned(SweepWork, planned))
        (commit,) = commit_sweeps(works, self.context, self.write)
        return row_writer(PartitionCommit)(commit)


@pytest.fixture
def root(tmp_path: Path) -> BrokerDirectory:
    return broker_directory(tmp_path / "log", [TOPIC])


@pytest.mark.item("FLT-14")
def test_a_task_that_runs_twice_does_it_once(root, tmp_path):
    sweeper = Sweeper(root)
    row = sweeper.observe()[f"{TOPIC}-0"]
    create_claim(sweeper.claim())
    first = sweeper.commit(row)
    assert (first["error"], first["touched"]) == (None, False)
    tree = read_tree(root.path / f"{TOPIC}-0")
    again = sweeper.commit(row)
    assert {**again, "duration_ms": 0} == {**first, "duration_ms": 0}
    assert read_tree(root.path / f"{TOPIC}-0") == tree
    assert differences_from_kafka(root.path, [TOPIC], tmp_path) == []


@pytest.mark.item("FLT-14", "FLT-10")
def test_an_attempt_that_comes_when_the_run_is_over_changes_nothing(root):
    sweeper = Sweeper(root)
    row = sweeper.observe()[f"{TOPIC}-0"]
    create_claim(sweeper.claim())
    revoke_claim(sweeper.claim())
    before = read_tree(root.path / f"{TOPIC}-0")
    late = sweeper.commit(row)
    assert (late["error_class"], late["touched"]) == ("GuardRefusedError", False)
    assert "RUN_IS_OVER" in late["error"]
    assert read_tree(root.path / f"{TOPIC}-0") == before


@pytest.mark.item("FLT-10", "FLT-14")
def test_an_attempt_that_cannot_read_its_claim_does_not_say_that_nothing_was_touched(root):
    sweeper = Sweeper(root)
    row = sweeper.observe()[f"{TOPIC}-0"]
    create_claim(sweeper.claim())
    # What an attempt before it wrote down, on a disk that fails.
    sweeper.claim().write_bytes(b"\xff\n")
    found = sweeper.commit(row)
    assert (found["error_class"], found["touched"]) == ("ManifestError", True)


@pytest.mark.item("FLT-10", "FLT-15")
def test_a_partition_that_changed_since_it_was_planned_is_left_alone(root):
    sweeper = Sweeper(root)
    row = sweeper.observe()[f"{TOPIC}-0"]
    create_claim(sweeper.claim())
    active = max((root.path / f"{TOPIC}-0").glob("*.log"))
    os.truncate(active, 0)
    before = read_tree(root.path / f"{TOPIC}-0")
    found = sweeper.commit(row)
    assert (found["error_class"], found["touched"]) == ("ChangedWhileReadError", False)
    assert read_tree(root.path / f"{TOPIC}-0") == before


@pytest.mark.item("FLT-10")
def test_a_log_start_that_is_not_the_one_of_the_plan_is_not_written(root):
    sweeper = Sweeper(root)
    row = sweeper.observe()[f"{TOPIC}-0"]
    create_claim(sweeper.claim())
    assert sweeper.write.roots  # it takes the lock, whose file is there from then on
    before = read_tree(root.path)
    swept = sweeper.commit({**row, "log_start_offset": row["log_start_offset"] + 1})
    assert (swept["error_class"], swept["touched"]) == ("ChangedWhileReadError", False)
    assert read_tree(root.path) == before


@pytest.mark.item("RET-13", "RET-15", "DIR-06", "DIR-08")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: rename(root, f"{TOPIC}-0.{HEX}-delete"), "DELETE_DIRECTORY"),
        (lambda root: rename(root, f"{TOPIC}-0.{HEX}-stray"), "STRAY_DIRECTORY"),
        (lambda root: rename(root, "__cluster_metadata-0"), "INTERNAL_METADATA"),
        (lambda root: rename(root, "lost+found"), "INVALID_DIRECTORY_NAME"),
        (lambda root: rename(root, "unheard-of-0"), "CONFIG_UNKNOWN"),
        (lambda root: configure(root, "cleanup.policy", "compact"), "COMPACTED"),
        (lambda root: configure(root, "cleanup.policy", "compact,delete"), "COMPACTED"),
        (lambda root: configure(root, "remote.storage.enable", "true"), "TIERED"),
        (lambda root: configure(root, "retention.bytes", "-1"), "NOTHING_TO_RETAIN"),
        (lambda root: configure(root, "cleanup.policy", ""), "NOTHING_TO_RETAIN"),
    ],
)
def test_what_is_not_swept_says_why(root, change: Callable[[BrokerDirectory], None], reason):
    change(root)
    (row,) = Sweeper(root).observe().values()
    assert (row["status"], row["reason"]) == ("skipped", reason)


def rename(root: BrokerDirectory, name: str) -> None:
    (root.path / f"{TOPIC}-0").rename(root.path / name)


def configure(root: BrokerDirectory, key: str, value: str) -> None:
    root.configs[TOPIC][key] = value


@pytest.mark.item("RET-13")
def test_a_compacted_partition_is_swept_by_the_other_step_and_never_by_both(root, tmp_path):
    configure(root, "cleanup.policy", "compact,delete")
    name = f"{TOPIC}-0"
    assert Sweeper(root).observe()[name]["reason"] == "COMPACTED"
    compaction = Sweeper(root, step=Step.SWEEP)
    row = compaction.observe()[name]
    assert row["status"] == "planned"
    failed = Sweeper(root, step=Step.SWEEP, excluded=frozenset({str(root.path / name)}))
    assert failed.observe()[name]["status"] == "skipped"
    create_claim(compaction.claim())
    assert compaction.commit(row)["error"] is None
    assert differences_from_kafka(root.path, [TOPIC], tmp_path) == []
    configure(root, "cleanup.policy", "delete")
    assert Sweeper(root, step=Step.SWEEP).observe()[name]["reason"] == "NOT_COMPACTED"


@pytest.mark.item("RET-13")
def test_without_a_cleaner_compacted_partitions_are_swept_by_nobody(root):
    configure(root, "cleanup.policy", "compact,delete")
    options = replace(OPTIONS, cleaner=CleanerConfig(enabled=False))
    row = Sweeper(root, options, step=Step.SWEEP).observe()[f"{TOPIC}-0"]
    assert row["reason"] == "CLEANER_DISABLED"


@pytest.mark.item("RET-08")
def test_a_future_timestamp_is_reported_with_its_wait(tmp_path):
    name = "retain-future-s501"
    root = broker_directory(tmp_path / "log", [name])
    now_ms = Golden(name).case["clock_ms"]
    row = Sweeper(root, JobOptions(now_ms=now_ms)).observe()[f"{name}-0"]
    assert row["blocked_by"] == "FUTURE_TIMESTAMP"
    assert row["blocked_timestamp"] > now_ms
    limit = int(root.configs[name]["retention.ms"])
    assert row["wait_ms"] == row["blocked_timestamp"] - now_ms + limit + 1


def test_nothing_to_do_costs_a_listing_and_no_data(root, monkeypatch):
    configure(root, "retention.bytes", "-1")
    configure(root, "retention.ms", "-1")
    read = []
    monkeypatch.setattr(LocalStore, "open_file", lambda _, name: read.append(name))
    row = Sweeper(root).observe()[f"{TOPIC}-0"]
    assert (row["reason"], row["error"], read) == ("NOTHING_TO_RETAIN", None, [])


@pytest.mark.item("FLT-04")
@pytest.mark.parametrize("limit", [1000, 1 << 40], ids=["due", "not due"])
@pytest.mark.parametrize("zeros", [5000, 1 << 30], ids=["appended", "preallocated"])
def test_nothing_goes_from_a_log_that_a_broker_does_not_load(root, limit, zeros):
    configure(root, "retention.bytes", str(limit))
    log = max((root.path / f"{TOPIC}-0").glob("*.log"))
    os.truncate(log, log.stat().st_size + zeros)
    row = Sweeper(root).observe()[f"{TOPIC}-0"]
    assert (row["status"], row["error_class"]) == ("failed", "CorruptRecordError")
    assert log.name in row["error"]
    assert row["bytes"] is None


@pytest.mark.item("FLT-13")
@pytest.mark.parametrize("years", [-50, 50])
def test_the_clock_of_an_executor_does_not_count(tmp_path, monkeypatch, years):
    name = "retain-time-s501"
    root = broker_directory(tmp_path / "log", [name])
    sweeper = Sweeper(root, JobOptions(now_ms=Golden(name).case["clock_ms"]))
    expected = {**sweeper.observe()[f"{name}-0"], "duration_ms": 0}
    seconds = NOW_MS / 1000 + years * 31_536_000
    monkeypatch.setattr(time, "time", lambda: seconds)
    monkeypatch.setattr(time, "time_ns", lambda: int(seconds * 1e9))
    assert {**sweeper.observe()[f"{name}-0"], "duration_ms": 0} == expected
    assert expected["by_time_segments"] == Golden(name).case["expected"]["deleted"] > 0
