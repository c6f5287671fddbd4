"""Whether anybody misses what a broker has set aside: the metadata's word on that partition."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations import purge as set_aside
from pylog_spark.operations.purge import describe_set_aside
from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.reading.inspection import inspect_root
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import DELETE, STRAY, Disks


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """Two disks of node 1, which has all of orders; of partition 1 only what was set aside."""
    disks = Disks(unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path))
    shutil.copytree(disks["orders-0"], disks.first / f"orders-0{STRAY}")
    shutil.copytree(disks["orders-0"], disks.first / f"orders-7{STRAY}")
    disks["orders-1"].rename(disks.last / f"orders-1{STRAY}")
    return disks


def lines(disks: Disks, *roots: Path, **choice: Any) -> list[str]:
    told = describe_set_aside([inspect_root(root) for root in roots], TopicFilter(**choice))
    return [line.replace(str(disks.base), "") for line in told]


def test_each_partition_is_asked_for_and_not_its_topic(disks, monkeypatch):
    own, second = lines(disks, *disks.roots)[0], lines(disks, *disks.roots)[2]
    assert "(partition 0)" in own
    assert own.endswith(
        "assigned to this node (1), and /d1/orders-0 has its place: compare the two"
    )
    assert "(partition 1)" in second
    assert second.endswith("assigned to this node (1), and no log here has its place: keep it")
    assert lines(disks, *disks.roots)[1].endswith("the topic lives, and has no such partition")
    read = set_aside.read_cluster_metadata

    def moved(path: Path) -> ClusterMetadata:
        metadata = read(path)
        (orders,) = [topic for topic in metadata.topics.values() if topic.name == "orders"]
        partitions = dict(orders.partitions)
        partitions[0] = replace(partitions[0], replicas=(2, 3))
        changed = {orders.topic_id: replace(orders, partitions=partitions)}
        return replace(metadata, topics={**metadata.topics, **changed})

    monkeypatch.setattr(set_aside, "read_cluster_metadata", moved)
    told = lines(disks, *disks.roots)
    assert told[0].endswith("it lives on node 2, 3: look there before this is removed")
    assert told[2] == second


def test_a_disk_without_the_metadata_says_what_tells(disks):
    (told,) = lines(disks, disks.last)
    assert told.endswith(
        "only the cluster's metadata can tell; name its directory with __cluster_metadata-0, too, "
        "or ask a running cluster: kafka-topics.sh --describe --topic orders"
    )
    assert lines(disks, *disks.roots, topics=("events",)) == []


def test_purge_says_so_of_what_it_leaves_and_of_what_it_removes(disks, pylog):
    deleted = disks.first / f"orders-0{DELETE}"
    (disks.first / f"orders-0{STRAY}").rename(deleted)
    words = ("--role", "broker", "--now-ms", 4 * 10**12, "--output", "json")
    for dry in (("--dry-run",), ()):
        assert deleted.is_dir()
        result = pylog("purge", *disks.roots, *words, *dry)
        assert result.exit_code == 0, result.stderr
        (run,) = [
            row for row in map(json.loads, result.stdout.splitlines()) if row["type"] == "run"
        ]
        assert [
            note for note in run["notes"] if "-delete" in note and "orders-0 has its place" in note
        ]
        assert [note for note in run["notes"] if "-stray" in note and "keep it" in note]
    assert not deleted.exists()
    assert (disks.last / f"orders-1{STRAY}").is_dir()
