"""Leaders, ISR and ELR over time, as a cluster's metadata log has them."""

from itertools import pairwise
from pathlib import Path

import pytest

from pylog_spark.cluster.audit.driver import read_timeline
from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from pylog_spark.options import JobOptions
from storage_core.errors import ConfigError
from tests.kit.cluster_truth import Cluster

NOW_MS = 1_800_000_000_000


@pytest.mark.item("REP-15")
def test_a_timeline_ends_where_the_controller_was(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    rows = read_timeline(cluster.roots, JobOptions(now_ms=NOW_MS)).rows.to_pylist()
    last = {(row["topic"], row["partition"], row["topic_id"]): row for row in rows}
    for state in cluster.states:
        row = last[state["topic"], state["partition"], state["topic_id"]]
        for name in ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "replicas"):
            assert row[name] == state[name], name
    ledger = [row for row in rows if (row["topic"], row["partition"]) == ("ledger", 0)]
    assert [row["leader"] for row in ledger] == [1, 1, 1, -1, 2, 2, 2, -1]
    assert [row["partition_epoch"] for row in ledger] == list(range(len(ledger)))
    for one, two in pairwise(ledger):
        assert one["offset"] < two["offset"]
        assert one["timestamp_ms"] <= two["timestamp_ms"]


def test_a_timeline_has_the_chosen_topics_alone(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    directory = LogDirectory.for_path(Local(), cluster.roots[0])
    rows = directory.with_options(include=("led*",)).timeline(*cluster.roots[1:]).rows
    assert set(rows["topic"].to_pylist()) == {"ledger"}


@pytest.mark.thorough
def test_the_former_spelling_is_the_same_command(pylog, tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    shown = pylog("timeline", *cluster.roots, "--output", "json")
    assert shown.exit_code == 0
    assert pylog("audit", *cluster.roots, "--timeline", "--output", "json").stdout == shown.stdout
    assert "--timeline" not in pylog("audit", "--help").stdout


def test_without_metadata_there_is_no_timeline(tmp_path: Path):
    cluster = Cluster("clean", tmp_path)
    for root in cluster.roots:
        (root / "__cluster_metadata-0").rename(tmp_path / root.name / "kept")
    with pytest.raises(ConfigError, match="metadata"):
        read_timeline(cluster.roots, JobOptions(now_ms=NOW_MS))
