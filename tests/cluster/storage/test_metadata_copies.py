"""Copies of the cluster's metadata beside each other: how far they go, who can lead."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, Voter
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.cluster.metadata_copies import (
    ComparedCopies,
    DivergingCopies,
    MetadataCopy,
    VotersSource,
    compare_copies,
    read_copy,
)
from storage_core.errors import CorruptClusterMetadataError
from storage_core.formats.control import ControlType
from tests.kit.builders import BatchSpec, RecordSpec
from tests.storage_core.catalog import metadata_bytes as md

NOW = 1_800_000_000_000
DIRECTORIES = {
    1: "AAAAAAAAAAAAAAAAAAABAQ",
    2: "AAAAAAAAAAAAAAAAAAABAg",
    3: "AAAAAAAAAAAAAAAAAAABAw",
    7: "AAAAAAAAAAAAAAAAAAABBw",
}


def voter(node: int, *, version: int = 0) -> bytes:
    return md.int32(node) + (md.uuid(DIRECTORIES[node]) if version else b"") + md.NO_TAGS


def elected(epoch: int, leader: int, voters: Sequence[int] = (1, 2, 3)) -> BatchSpec:
    """The record of an election, which all voters granted."""
    named = md.array([voter(node) for node in voters])
    value = struct.pack(">hi", 0, leader) + named + named + md.NO_TAGS
    return control(ControlType.LEADER_CHANGE, value, epoch)


def control(control_type: ControlType, value: bytes, epoch: int = 1) -> BatchSpec:
    key = struct.pack(">hh", 0, control_type)
    record = RecordSpec(key=key, value=value)
    return BatchSpec(records=(record,), is_control=True, leader_epoch=epoch)


def led(count: int, epoch: int) -> BatchSpec:
    """A batch of a leader, of so many records."""
    values = [RecordSpec(value=md.frame(md.NO_OP, md.NO_TAGS)) for _ in range(count)]
    return BatchSpec(records=tuple(values), leader_epoch=epoch)


def copy_of(
    folder: Path, node: int, batches: Sequence[BatchSpec], *, cluster: str = "one"
) -> MetadataCopy:
    root = folder / f"{cluster}-{node}"
    root.mkdir(exist_ok=True)
    md.write_segment(root / CLUSTER_METADATA_DIRECTORY, batches)
    return read(root, node, cluster)


def read(root: Path, node: int, cluster: str = "one") -> MetadataCopy:
    properties = MetaProperties(
        version=1, cluster_id=cluster, node_id=node, directory_id=DIRECTORIES[node]
    )
    return read_copy(str(root), properties, now_ms=NOW)


def compared(copies: Sequence[MetadataCopy]) -> ComparedCopies:
    (cluster,) = compare_copies(copies)
    return cluster


def test_a_majority_of_the_voters_says_what_is_committed(tmp_path: Path):
    begin = [elected(1, leader=1), led(4, 1)]
    ends = {1: [*begin, led(6, 1)], 2: [*begin, led(1, 1)], 3: begin}
    cluster = compared([copy_of(tmp_path, node, batches) for node, batches in ends.items()])
    assert [copy.log_end_offset for copy in cluster.copies] == [11, 6, 5]
    assert cluster.voters == (Voter(node_id=1), Voter(node_id=2), Voter(node_id=3))
    assert (cluster.voters_source, cluster.majority) == (VotersSource.ELECTION, 2)
    assert (cluster.majority_offset, cluster.committed_offset) == (6, 6)
    assert [cluster.may_lead(copy) for copy in cluster.copies] == [True, True, False]
    assert cluster.differences == ()


def test_without_a_majority_it_is_not_known(tmp_path: Path):
    cluster = compared([copy_of(tmp_path, 2, [elected(1, leader=1), led(4, 1)])])
    assert (cluster.majority_offset, cluster.committed_offset) == (None, 0)
    assert cluster.may_lead(cluster.copies[0]) is None
    md.write_snapshot(
        tmp_path / "one-2" / CLUSTER_METADATA_DIRECTORY, [md.topic("a")], end_offset=3
    )
    assert compared([read(tmp_path / "one-2", 2)]).committed_offset == 3


def test_what_another_leader_wrote_is_named_and_no_part_of_a_majority(tmp_path: Path):
    """Node 1 led alone in epoch 2, the others elected node 3 in epoch 3."""
    begin = [elected(1, leader=1), led(4, 1)]
    alone = [*begin, elected(2, leader=1), led(20, 2)]
    later = [*begin, elected(3, leader=3), led(2, 3)]
    cluster = compared([copy_of(tmp_path, 1, alone), copy_of(tmp_path, 3, later)])
    first, other = cluster.copies
    assert (first.node_id, first.position, other.position) == (3, (3, 8), (2, 26))
    assert cluster.differences == (DivergingCopies(roots=(first.root, other.root), offset=5),)
    assert cluster.majority_offset == 5
    assert cluster.may_lead(first) is True
    assert cluster.may_lead(other) is None  # with node 2, if that has no more


def test_voters_of_the_log_are_known_by_their_directories(tmp_path: Path):
    endpoint = md.string("CONTROLLER") + md.string("localhost") + b"\x23\x84" + md.NO_TAGS
    row = voter(2, version=1)[:-1] + md.array([endpoint]) + b"\0\0\0\1" + md.NO_TAGS + md.NO_TAGS
    log = [
        elected(1, leader=1),
        control(ControlType.KRAFT_VERSION, b"\0\0\0\1" + md.NO_TAGS),
        control(ControlType.KRAFT_VOTERS, b"\0\0" + md.array([row]) + md.NO_TAGS),
    ]
    cluster = compared([copy_of(tmp_path, 2, log)])
    assert cluster.voters == (
        Voter(node_id=2, directory_id=DIRECTORIES[2], endpoints=("CONTROLLER://localhost:9092",)),
    )
    (own,) = cluster.copies
    assert own.quorum.kraft_version == 1
    assert (cluster.voters_source, cluster.may_lead(own)) == (VotersSource.RECORD, True)
    other = read_copy(
        own.root,
        MetaProperties(version=1, cluster_id="one", node_id=2, directory_id=DIRECTORIES[3]),
        now_ms=NOW,
    )
    assert compared([other]).copy_of(cluster.voters[0]) is None


def test_a_log_that_ends_below_the_snapshot_is_none(tmp_path: Path):
    copy_of(tmp_path, 1, [elected(1, leader=1)])
    directory = tmp_path / "one-1" / CLUSTER_METADATA_DIRECTORY
    md.write_snapshot(directory, [md.topic("a")], end_offset=9, epoch=4)
    own = read(tmp_path / "one-1", 1)
    assert (own.log, own.log_start_offset, own.position) == (None, 9, (4, 9))
    assert own.metadata is not None
    assert len(own.metadata.topics) == 1


@pytest.mark.parametrize(
    ("state", "nodes"),
    [
        ('{"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}', [1, 2]),
        ('{"currentVoters":null,"data_version":0}', []),
        ('{"leaderId":1,"data_version":1}', []),
    ],
)
def test_the_state_of_a_node_names_voters_where_the_log_does_not(
    tmp_path: Path, state: str, nodes: list[int]
):
    copy_of(tmp_path, 1, [led(1, 1)])
    (tmp_path / "one-1" / CLUSTER_METADATA_DIRECTORY / "quorum-state").write_text(state)
    cluster = compared([read(tmp_path / "one-1", 1)])
    assert [each.node_id for each in cluster.voters] == nodes
    assert cluster.voters_source == (VotersSource.STATE if nodes else None)
    assert cluster.copies[0].election["data_version"] == json.loads(state)["data_version"]


def test_clusters_are_apart_and_what_cannot_be_read_is_last(tmp_path: Path):
    good = copy_of(tmp_path, 1, [elected(1, leader=1), led(2, 1)])
    foreign = copy_of(tmp_path, 2, [elected(1, leader=2)], cluster="two")
    broken = tmp_path / "one-3"
    (broken / CLUSTER_METADATA_DIRECTORY).mkdir(parents=True)
    value = struct.pack(">hi", 0, 1) + b"\xff"
    md.write_segment(
        broken / CLUSTER_METADATA_DIRECTORY, [control(ControlType.LEADER_CHANGE, value)]
    )
    unread = read(broken, 3)
    assert CorruptClusterMetadataError.__name__ not in unread.error
    assert "byte" in unread.error
    one, two = compare_copies([unread, good, foreign])
    assert [copy.node_id for copy in one.copies] == [1, 3]
    assert one.copy_of(Voter(node_id=3)) is None
    assert [copy.node_id for copy in two.copies] == [2]
