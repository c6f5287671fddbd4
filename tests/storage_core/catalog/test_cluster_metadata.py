"""The files of ``__cluster_metadata-0``: which of them count, and what damage means."""

from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    CutRecords,
    MetadataCut,
    read_broker_metadata,
    read_cluster_metadata,
    read_cut_records,
)
from storage_core.errors import (
    CorruptClusterMetadataError,
    CorruptRecordError,
    PartitionNotFoundError,
)
from storage_core.formats.batch_v2 import Codec
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.golden_data import Golden
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.catalog.metadata_bytes import ID_A, ID_B

BROKERS = ["broker-dir", "broker-dir-unclean"]
INTERNAL = {"__consumer_offsets": 3, "__transaction_state": 2}


def names(metadata: ClusterMetadata) -> set[str]:
    return set(metadata.topics_by_name())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BROKERS)
def test_a_brokers_topics_partitions_ids_and_configs_are_what_its_admin_said(name, tmp_path):
    golden = Golden(name)
    root = golden.unpack(tmp_path)
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY)
    topics = metadata.topics_by_name()
    said = golden.case["topics"]
    assert {topic: len(topics[topic].partitions) for topic in topics} == INTERNAL | {
        topic: facts["partitions"] for topic, facts in said.items()
    }
    for topic, facts in said.items():
        assert metadata.topic_configs[topic] == facts["config"]
    for topic in topics.values():
        for number in topic.partitions:
            file = root / f"{topic.name}-{number}" / "partition.metadata"
            assert file.read_text() == f"version: 0\ntopic_id: {topic.topic_id}"
    assert metadata.topic_configs["__consumer_offsets"] == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    assert metadata.broker_configs == {"": {"min.insync.replicas": "1"}}
    assert metadata.feature_levels["metadata.version"] == 33
    assert (metadata.unknown, metadata.notes) == ({}, ())


@pytest.mark.thorough
@pytest.mark.parametrize("name", BROKERS)
def test_a_brokers_partitions_are_assigned_to_its_one_directory(name: str, tmp_path: Path):
    root = Golden(name).unpack(tmp_path)
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY)
    properties = (root / "meta.properties").read_text()
    assert f"directory.id={metadata.brokers[1].log_directories[0]}\n" in properties
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            assert partition.replicas == (1,)
            assert partition.directories == metadata.brokers[1].log_directories


def test_a_clean_stop_leaves_the_broker_fenced_and_its_partitions_without_a_leader(tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY)
    assert metadata.end_offset == 116
    assert metadata.last_timestamp_ms == 1_795_247_773_083
    assert metadata.brokers[1].fenced is True
    partition = metadata.topics_by_name()["events"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 1, ())
    assert partition.eligible_leader_replicas == (1,)


def test_the_log_alone_is_read_from_its_start(tmp_path: Path):
    directory = tmp_path / "log"
    end = md.write_segment(directory, [md.batch(md.topic("a")), md.batch(md.topic("b", ID_B))])
    metadata = read_cluster_metadata(directory)
    assert (names(metadata), metadata.snapshot) == ({"a", "b"}, None)
    assert metadata.end_offset == end == 2


def test_the_newest_snapshot_counts_and_the_log_behind_it(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_snapshot(directory, [md.topic("old", ID_B)], end_offset=1)
    md.write_snapshot(directory, [md.topic("a"), md.partition(0)], end_offset=4, epoch=2)
    newer = directory / "00000000000000000009-0000000001.checkpoint"
    newer.with_name(f"{newer.name}.deleted").write_bytes(b"")
    newer.with_name(f"{newer.name}.part").write_bytes(b"")
    # Offsets 0 to 3 are what the snapshot already has; the removal in them is older than it.
    base = md.write_segment(
        directory, [md.batch(md.topic("a"), md.remove_topic()), md.batch(md.mark(md.NO_OP))]
    )
    assert base == 3
    md.write_segment(
        directory, [md.batch(md.topic("gone", ID_B), md.topic("b", ID_B))], base_offset=base
    )
    metadata = read_cluster_metadata(directory)
    assert (names(metadata), metadata.end_offset) == ({"a", "b"}, 5)
    assert metadata.snapshot == "00000000000000000004-0000000002.checkpoint"
    assert list(metadata.topics[ID_A].partitions) == [0]


def test_a_batch_that_straddles_the_snapshots_end_counts_from_there(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_snapshot(directory, [md.topic("a")], end_offset=1)
    md.write_segment(directory, [md.batch(md.topic("wrong"), md.topic("b", ID_B))])
    assert names(read_cluster_metadata(directory)) == {"a", "b"}


def test_a_log_that_ends_below_the_snapshot_adds_nothing(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_snapshot(directory, [md.topic("a")], end_offset=9)
    md.write_segment(directory, [md.batch(md.topic("b", ID_B))])
    metadata = read_cluster_metadata(directory)
    assert (names(metadata), metadata.end_offset) == ({"a"}, 9)


def test_a_snapshot_counts_where_the_log_is_gone(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_snapshot(directory, [md.topic("a")], end_offset=9)
    metadata = read_cluster_metadata(directory)
    assert (names(metadata), metadata.end_offset) == ({"a"}, 9)


def test_missing_records_between_snapshot_and_log_are_refused(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_snapshot(directory, [md.topic("a")], end_offset=4)
    md.write_segment(directory, [md.batch(md.topic("b", ID_B))], base_offset=6)
    with pytest.raises(CorruptClusterMetadataError, match="records 4 to 5 are missing"):
        read_cluster_metadata(directory)


def test_a_log_without_its_beginning_is_refused(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_segment(directory, [md.batch(md.topic("b"))], base_offset=6)
    with pytest.raises(CorruptClusterMetadataError, match="records 0 to 5 are missing"):
        read_cluster_metadata(directory)


def test_a_snapshot_without_a_footer_is_refused(tmp_path: Path):
    path = md.write_snapshot(tmp_path / "log", [md.topic("a")], end_offset=4, footer=False)
    with pytest.raises(CorruptClusterMetadataError, match="no footer") as raised:
        read_cluster_metadata(path.parent)
    assert raised.value.file == str(path)


def test_a_cut_snapshot_is_refused(tmp_path: Path):
    path = md.write_snapshot(tmp_path / "log", [md.topic("a")], end_offset=4)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptRecordError):
        read_cluster_metadata(path.parent)


def test_an_empty_directory_and_a_missing_one_are_errors(tmp_path: Path):
    with pytest.raises(CorruptClusterMetadataError, match="expected a snapshot or a log"):
        read_cluster_metadata(tmp_path)
    with pytest.raises(PartitionNotFoundError):
        read_cluster_metadata(tmp_path / "none")


def damaged_tails() -> dict[str, bytes]:
    """Return what may follow whole batches at the end of a log."""
    whole = encode_batch(BatchSpec(records=(RecordSpec(value=md.topic("b", ID_B)),), base_offset=1))
    flipped = bytearray(whole)
    flipped[-4] ^= 0xFF
    return {
        "half a batch": whole[: len(whole) // 2],
        "a few bytes": whole[:10],
        "zeros": bytes(500),
        "half a batch unwritten": whole[: len(whole) // 2] + bytes(500),
        "garbage": b"\xff" * 500,
        "wrong CRC": bytes(flipped),
        "wrong CRC before a whole batch": bytes(flipped) + whole,
        "unknown magic": whole[:16] + b"\x07" + whole[17:],
    }


TORN = ("half a batch", "a few bytes", "zeros", "half a batch unwritten")


def with_tail(directory: Path, tail: str) -> int:
    """Write a log of one batch and that tail; return where the tail begins."""
    md.write_segment(directory, [md.batch(md.topic("a"))])
    (path,) = directory.iterdir()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + damaged_tails()[tail])
    return size


@pytest.mark.parametrize("tail", TORN)
def test_a_torn_tail_does_not_count_and_is_noted(tail: str, tmp_path: Path):
    size = with_tail(tmp_path / "log", tail)
    metadata = read_cluster_metadata(tmp_path / "log")
    assert (names(metadata), metadata.end_offset) == ({"a"}, 1)
    assert f"bytes {size} to" in metadata.notes[0]


@pytest.mark.parametrize("tail", sorted({*TORN} - {"zeros"}))
def test_no_crash_tears_a_log_that_was_closed(tail: str, tmp_path: Path):
    size = with_tail(tmp_path / "log", tail)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"{}")
    with pytest.raises(CorruptRecordError, match=f"position {size}: .* a start cuts the log here"):
        read_cluster_metadata(tmp_path / "log")


def test_zeros_alone_are_the_space_of_a_preallocated_segment(tmp_path: Path):
    size = with_tail(tmp_path / "log", "zeros")
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"{}")
    (tmp_path / "log" / f"{1:020d}.snapshot").write_bytes(b"")
    metadata = read_cluster_metadata(tmp_path / "log")
    assert (names(metadata), metadata.end_offset) == ({"a"}, 1)
    assert f"bytes {size} to" in metadata.notes[0]


def test_zeros_in_place_of_batches_of_a_closed_log_are_refused(tmp_path: Path):
    """The snapshot that was written at its end says so."""
    with_tail(tmp_path / "log", "zeros")
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"{}")
    (tmp_path / "log" / f"{2:020d}.snapshot").write_bytes(b"")
    with pytest.raises(CorruptClusterMetadataError, match="records 1 to 1 are missing"):
        read_cluster_metadata(tmp_path / "log")


@pytest.mark.parametrize("tail", ["zeros", "half a batch unwritten"])
def test_zeros_in_a_segment_that_is_not_the_last_are_refused(tail: str, tmp_path: Path):
    with_tail(tmp_path / "log", tail)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"{}")
    md.write_segment(tmp_path / "log", [md.batch(md.topic("b", ID_B))], base_offset=2)
    with pytest.raises((CorruptRecordError, CorruptClusterMetadataError)):
        read_cluster_metadata(tmp_path / "log")


@pytest.mark.parametrize("tail", ["garbage", "wrong CRC", "unknown magic"])
def test_damage_at_the_end_of_the_log_is_refused(tail: str, tmp_path: Path):
    """No crash leaves it: a record that was committed may lie there."""
    with_tail(tmp_path / "log", tail)
    with pytest.raises((CorruptRecordError, CorruptClusterMetadataError)):
        read_cluster_metadata(tmp_path / "log")


def test_damage_before_a_batch_that_has_the_same_offsets_hides_nothing(tmp_path: Path):
    with_tail(tmp_path / "log", "wrong CRC before a whole batch")
    assert names(read_cluster_metadata(tmp_path / "log")) == {"a", "b"}


@pytest.mark.parametrize("tail", damaged_tails())
def test_a_start_cuts_whatever_follows_the_last_whole_batch(tail: str, tmp_path: Path):
    size = with_tail(tmp_path / "log", tail)
    metadata = read_cluster_metadata(tmp_path / "log", is_recovered=True)
    assert (names(metadata), metadata.end_offset) == ({"a"}, 1)
    assert f"bytes {size} to" in metadata.notes[0]
    cut = None if tail in TORN else MetadataCut(segment=0, position=size, offset=1)
    assert metadata.cut == cut


def test_damage_in_a_segment_that_is_not_the_last_is_refused(tmp_path: Path):
    directory = tmp_path / "log"
    base = md.write_segment(directory, [md.batch(md.topic("a"))])
    (path,) = directory.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    md.write_segment(directory, [md.batch(md.topic("b", ID_B))], base_offset=base)
    with pytest.raises(CorruptRecordError):
        read_cluster_metadata(directory)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def write_changed_log(directory: Path) -> list[int]:
    """Write topics a and b, then what changes them; return where each batch begins."""
    batches = [
        md.batch(md.topic("a"), md.partition(0)),
        md.batch(md.topic("b", ID_B)),
        md.batch(md.config("a", "retention.ms", None)),
        md.batch(md.remove_topic(ID_B), md.config("", "log.retention.ms", "5", resource_type=4)),
    ]
    md.write_segment(directory, batches)
    sizes = [len(encode_batch(spec)) for spec in batches]
    return [sum(sizes[:number]) for number in range(4)]


def test_what_a_start_cuts_is_told_by_name(tmp_path: Path):
    directory = tmp_path / "log"
    second = write_changed_log(directory)[1]
    flip(directory / f"{0:020d}.log", second + 70)
    with pytest.raises(CorruptClusterMetadataError, match="records 2 to 2 are damaged"):
        read_cluster_metadata(directory)
    metadata = read_cluster_metadata(directory, is_recovered=True)
    assert (names(metadata), metadata.end_offset) == ({"a"}, 2)
    records = read_cut_records(directory, metadata)
    assert records == CutRecords(
        records=3,
        end_offset=6,
        topics=(f"of an unknown name (deleted, {ID_B})",),
        configs=("topic a: retention.ms", "broker (all): log.retention.ms"),
        producer_ids=None,
    )
    assert records.describe() == (
        f"topics of an unknown name (deleted, {ID_B}); configs of topic a: retention.ms, "
        "broker (all): log.retention.ms"
    )


def test_later_segments_are_cut_as_well(tmp_path: Path):
    directory = tmp_path / "log"
    base = md.write_segment(directory, [md.batch(md.topic("a"))])
    flip(directory / f"{0:020d}.log", 70)
    md.write_segment(directory, [md.batch(md.topic("b", ID_B))], base_offset=base)
    metadata = read_cluster_metadata(directory, is_recovered=True)
    assert (names(metadata), metadata.cut) == (
        set(),
        MetadataCut(segment=0, position=0, offset=0),
    )
    assert read_cut_records(directory, metadata).topics == (f"b (made, {ID_B})",)


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_damage_below_a_snapshot_changes_nothing_that_counts(batch: int, tmp_path: Path):
    """A start takes the snapshot, and cuts all of the log: what is behind it is lost."""
    directory = tmp_path / "log"
    flipped = write_changed_log(directory)[batch]
    end = 6
    flip(directory / f"{0:020d}.log", flipped + 70)
    md.write_snapshot(directory, [md.topic("a")], end_offset=end)
    metadata = read_cluster_metadata(directory)
    assert (names(metadata), metadata.end_offset) == ({"a"}, end)
    md.write_segment(directory, [md.batch(md.topic("c", ID_B))], base_offset=end)
    assert names(read_cluster_metadata(directory)) == {"a", "c"}
    left = read_cluster_metadata(directory, is_recovered=True)
    assert (names(left), left.end_offset) == ({"a"}, end)
    assert read_cut_records(directory, left).topics == (f"c (made, {ID_B})",)


def test_damage_behind_a_snapshot_is_refused(tmp_path: Path):
    directory = tmp_path / "log"
    third = write_changed_log(directory)[2]
    flip(directory / f"{0:020d}.log", third + 70)
    md.write_snapshot(directory, [md.topic("a")], end_offset=3)
    with pytest.raises(CorruptClusterMetadataError, match="records 3 to 3 are damaged"):
        read_cluster_metadata(directory)


def test_a_log_that_lacks_its_end_is_refused(tmp_path: Path):
    """A close writes the producers' snapshot at the end of the log: this one was longer."""
    directory = tmp_path / "log"
    md.write_segment(directory, [md.batch(md.topic("a"))])
    (directory / f"{4:020d}.snapshot").write_bytes(b"")
    with pytest.raises(CorruptClusterMetadataError, match="records 1 to 3 are missing"):
        read_cluster_metadata(directory)


def test_a_segment_that_is_gone_is_refused(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_segment(directory, [md.batch(md.topic("a"))])
    md.write_segment(directory, [md.batch(md.topic("b", ID_B))], base_offset=3)
    with pytest.raises(CorruptClusterMetadataError, match="records 1 to 2 are missing"):
        read_cluster_metadata(directory)


def test_two_copies_count_where_they_say_the_same(tmp_path: Path):
    first, second, old = (tmp_path / name for name in "abc")
    md.write_segment(first, [md.batch(md.topic("a"), md.config("a", "retention.ms", "1"))])
    md.write_snapshot(second, [md.topic("a"), md.config("a", "retention.ms", "1")], end_offset=2)
    md.write_segment(old, [md.batch(md.topic("a"))])
    assert names(read_broker_metadata([first, second])) == {"a"}
    with pytest.raises(CorruptClusterMetadataError, match="only one of them counts"):
        read_broker_metadata([first, old])


def test_an_unfinished_transaction_does_not_count_and_is_noted(tmp_path: Path):
    directory = tmp_path / "log"
    md.write_segment(
        directory, [md.batch(md.topic("a")), md.batch(md.mark(md.BEGIN), md.topic("b", ID_B))]
    )
    metadata = read_cluster_metadata(directory)
    assert names(metadata) == {"a"}
    assert "transaction" in metadata.notes[0]


def test_compressed_batches_are_read(tmp_path: Path):
    directory = tmp_path / "log"
    records = tuple(RecordSpec(value=value) for value in (md.topic("a"), md.partition(0)))
    md.write_segment(directory, [BatchSpec(records=records, codec=Codec.LZ4)])
    assert names(read_cluster_metadata(directory)) == {"a"}


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(RecordSpec(key=b"k", value=md.topic("a")), id="with a key"),
        pytest.param(RecordSpec(value=None), id="without a value"),
    ],
)
def test_a_record_of_another_shape_is_refused_with_its_offset(record: RecordSpec, tmp_path: Path):
    directory = tmp_path / "log"
    md.write_segment(directory, [md.batch(md.topic("a")), BatchSpec(records=(record,))])
    with pytest.raises(CorruptClusterMetadataError) as raised:
        read_cluster_metadata(directory)
    assert raised.value.offset == 1
