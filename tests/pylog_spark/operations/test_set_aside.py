"""Whether anybody misses what a broker has set aside: the metadata's word on that partition."""

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
from tests.kit.program import lines_of
from tests.kit.start_accidents import ACCIDENTS, DELETE, STRAY, Disks


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


@pytest.mark.thorough
def test_purge_says_so_of_what_it_leaves_and_of_what_it_removes(disks, pylog):
    deleted = disks.first / f"orders-0{DELETE}"
    (disks.first / f"orders-0{STRAY}").rename(deleted)
    words = ("--role", "broker", "--now-ms", 4 * 10**12, "--output", "json")
    for dry in (("--dry-run",), ()):
        assert deleted.is_dir()
        result = pylog.done("purge", *disks.roots, *words, *dry)
        (run,) = [row for row in lines_of(result) if row["type"] == "run"]
        assert [
            note for note in run["notes"] if "-delete" in note and "orders-0 has its place" in note
        ]
        assert [note for note in run["notes"] if "-stray" in note and "keep it" in note]
    assert not deleted.exists()
    assert (disks.last / f"orders-1{STRAY}").is_dir()


# A partition whose directory is a link: no run goes through it, and no night fails of it.


@pytest.fixture
def linked_disks(tmp_path: Path) -> Disks:
    linked_disks = Disks(unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path))
    ACCIDENTS["linked"](linked_disks)
    return linked_disks


def rows(result) -> list[dict]:
    lines = lines_of(result)
    return [row for row in lines if row["type"] == "result" and row["topic"] == "orders"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["run", "compact", "retain", "recover"])
def test_it_is_skipped_with_the_way_out_and_the_rest_is_done(pylog, linked_disks, command):
    behind = linked_disks.base / "elsewhere" / "orders-0"
    before = {path.name: path.read_bytes() for path in behind.iterdir()}
    options = ("--role", "broker", "--engine", "local", "--output", "json")
    result = pylog.done(command, *linked_disks.roots, *options)
    linked = [row for row in rows(result) if row["partition"] == 0]
    assert linked
    assert {(row["status"], row["reason"]) for row in linked} == {("skipped", "LINKED_DIRECTORY")}
    assert all("mount --bind" in row["error"] for row in linked)
    assert {path.name: path.read_bytes() for path in behind.iterdir()} == before


@pytest.mark.thorough
def test_a_recovery_that_leaves_it_out_does_not_mark_its_directory_clean(pylog, linked_disks):
    for root in linked_disks.roots:
        (root / ".kafka_cleanshutdown").unlink()
    pylog.done("recover", *linked_disks.roots, "--role", "broker", "--engine", "local")
    assert not (linked_disks.first / ".kafka_cleanshutdown").exists()
