"""One partition's way into a managed root and out: what is taken, stays, is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import TopicPartition, log_file
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, Codec
from storage_core.maintenance.ingest import partition
from storage_core.maintenance.ingest.plan import LeftReason, group_files, read_edges
from storage_core.maintenance.materialize import materialize_partition, release_partition
from storage_core.store import ManagedStore
from storage_core.store.listing import ListedFile
from storage_core.store.local import LocalStore
from tests.kit.directories import SegmentSpec
from tests.kit.golden_data import Golden
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.storage_core.maintenance.ingest.mirrors import (
    batch,
    ingest,
    mirror_of,
    segment,
    sync,
    target_of,
    write_files,
)

TOPIC_ID = "AbCdEfGhIjKlMnOpQrStUg"
STOPPED = partition.IngestRules(sync_has_stopped=True)
IN_PLACE = partition.IngestRules(sync_has_stopped=True, in_place=True)


@pytest.fixture
def objects():
    yield (
        MemoryObjectStore("memory://test-ingest/mirror"),
        MemoryObjectStore("memory://test-ingest/managed"),
    )
    forget_memory("memory://test-ingest")


def synced(objects, tmp_path, *segments, **more):
    """Sync a partition of these segments to the mirror; return both stores."""
    sync(write_files(tmp_path, *segments, **more), objects[0])
    return objects


def contents(target):
    return {
        file.name: target.read_file(file.name, limit_bytes=1 << 20) for file in target.list_files()
    }


def read_managed(objects, name="orders-0"):
    return contents(target_of(objects, name))


def test_closed_segments_are_taken_and_the_newest_one_stays(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6), segment(12), topic_id=TOPIC_ID)
    sync(directory, mirror)
    planned, _ = ingest(mirror, managed, high_watermark=18, log_start_offset=2)
    assert planned.plan.skip_reasons == {12: LeftReason.OPEN}
    found = read_managed(managed)
    suffixes = (".log", ".index", ".timeindex", ".snapshot")
    expected = {f"{base:020d}{suffix}" for base in (0, 6) for suffix in suffixes}
    # What producers had done by the end of what was taken.
    expected |= {f"{12:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata"}
    assert set(found) == expected
    assert found == {name: (directory / name).read_bytes() for name in expected}
    manifest = target_of(managed).manifest
    assert manifest.topic_id == TOPIC_ID
    assert manifest.checkpoints.recovery_point == 12
    assert manifest.checkpoints.high_watermark == 12
    assert manifest.checkpoints.log_start_offset == 2
    assert target_of(managed).largest_timestamps() == {0: 1_005, 6: 1_011}
    assert manifest.files[log_file(6)].modified_ms == 10_006 or manifest.files[log_file(6)]


def test_companions_of_a_segment_are_one_object(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), segment(12))
    ingest(mirror, managed)
    keys = [info.key for info in managed.list("orders-0/data/")]
    names = sorted(key.rpartition("/")[2] for key in keys)
    assert names == [
        "00000000000000000000.companions",
        "00000000000000000000.log",
        "00000000000000000006.companions",
        "00000000000000000006.log",
        "00000000000000000012.companions",
        "partition.companions",
    ]


def test_a_second_ingest_takes_only_what_is_new(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    ingest(mirror, managed)
    before = {info.key: info.etag for info in managed.list()}
    planned, _ = ingest(mirror, managed)
    assert not planned.has_work
    assert {info.key: info.etag for info in managed.list()} == before

    directory = write_files(tmp_path, segment(0), segment(6), segment(12), segment(18))
    sync(directory, mirror)
    planned, _ = ingest(mirror, managed)
    assert [one.segment.base_offset for one in planned.plan.segments] == [6, 12]
    after = {info.key: info.etag for info in managed.list()}
    untouched = {key for key in before if key.endswith("manifest.json") is False}
    assert all(after[key] == before[key] for key in untouched)
    manifest = target_of(managed).manifest
    assert (manifest.generation, manifest.checkpoints.recovery_point) == (2, 18)
    assert log_file(0) in manifest.files


def listed_size(listed, name):
    (size,) = {file.size_bytes for file in listed if file.name == name}
    return size


def test_nothing_new_is_seen_in_the_first_listing_alone(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    listed = mirror_of(mirror).first
    size = partition.new_bytes(listed, target_of(managed), partition.IngestRules())
    assert size == listed_size(listed, log_file(0))
    ingest(mirror, managed)
    assert partition.new_bytes(listed, target_of(managed), partition.IngestRules()) is None
    assert partition.new_bytes(listed, target_of(managed), STOPPED) == listed_size(
        listed, log_file(6)
    )


def test_a_segment_that_changes_between_two_listings_is_not_taken_nor_what_follows(
    objects, tmp_path
):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6), segment(12), segment(18))
    sync(directory, mirror)
    first = mirror_of(mirror).first
    sync(directory, mirror, only=lambda name: name == log_file(6))  # the same bytes, a new tag
    planned, _ = ingest(mirror, managed, first=first)
    assert [one.segment.base_offset for one in planned.plan.segments] == [0]
    assert planned.plan.skip_reasons == {
        6: LeftReason.NOT_SETTLED,
        12: LeftReason.NOT_SETTLED,
        18: LeftReason.OPEN,
    }


def test_a_segment_that_only_the_second_listing_has_is_not_settled(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    first = mirror_of(mirror).first
    grown = write_files(tmp_path, segment(0), segment(6), segment(12), segment(18))
    sync(
        grown, mirror, only=lambda name: name.startswith(("00000000000000000012", "0" * 18 + "18"))
    )
    planned, _ = ingest(mirror, managed, first=first)
    assert [one.segment.base_offset for one in planned.plan.segments] == [0, 6]
    assert planned.plan.skip_reasons == {12: LeftReason.NOT_SETTLED, 18: LeftReason.OPEN}


def test_an_inventory_without_tags_is_a_first_look_by_sizes(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), segment(12))
    first = [replace(file, etag="") for file in mirror_of(mirror).first]
    planned, _ = ingest(mirror, managed, first=first)
    assert [one.segment.base_offset for one in planned.plan.segments] == [0, 6]
    assert planned.plan.snapshot is not None


def test_a_mirror_that_nobody_writes_any_more_is_taken_whole(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    planned, _ = ingest(mirror, managed, rules=STOPPED)
    assert not planned.plan.skip_reasons
    assert read_managed(managed).keys() >= {log_file(0), log_file(6)}
    assert target_of(managed).manifest.checkpoints.recovery_point == 12
    assert not ingest(mirror, managed, rules=STOPPED)[0].has_work


def test_what_is_not_known_to_be_replicated_stays(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), segment(12))
    planned, _ = ingest(mirror, managed, high_watermark=11)
    assert planned.plan.skip_reasons == {6: LeftReason.ABOVE_HIGH_WATERMARK, 12: LeftReason.OPEN}
    assert target_of(managed).manifest.checkpoints.high_watermark == 6


def test_a_high_watermark_is_never_guessed(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    ingest(mirror, managed)
    assert target_of(managed).manifest.checkpoints.high_watermark is None


def test_segments_that_overlap_are_refused(objects, tmp_path):
    """A sync that does not delete keeps what its broker has compacted into a larger segment."""
    mirror, managed = synced(objects, tmp_path, segment(0, batches=6), segment(6), segment(12))
    with pytest.raises(errors.GuardRefusedError, match="holds offsets up to 11") as caught:
        ingest(mirror, managed)
    assert caught.value.code == "OVERLAPPING_SEGMENTS"
    assert not list(managed.list())


def test_segments_of_two_replicas_are_refused(objects, tmp_path):
    mirror, managed = objects
    older, newer = segment(0, leader_epoch=5), segment(6, leader_epoch=3)
    sync(write_files(tmp_path, older, newer, segment(12, leader_epoch=5)), mirror)
    with pytest.raises(errors.GuardRefusedError, match="begins in leader epoch 3") as caught:
        ingest(mirror, managed)
    assert caught.value.code == "MIXED_REPLICAS"


def test_a_leader_epoch_file_of_another_replica_is_refused(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0, leader_epoch=1), segment(6, leader_epoch=2))
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n3 4\n")
    sync(directory, mirror)
    with pytest.raises(errors.GuardRefusedError, match="leader epoch file of its directory has 3"):
        ingest(mirror, managed)


def test_another_history_than_what_was_taken_before_is_refused(objects, tmp_path):
    mirror, managed = synced(
        objects, tmp_path, segment(0, leader_epoch=1), segment(6, leader_epoch=1)
    )
    ingest(mirror, managed)
    other = [segment(0, leader_epoch=4), segment(6, leader_epoch=4), segment(12, leader_epoch=4)]
    sync(write_files(tmp_path, *other), mirror)
    with pytest.raises(errors.GuardRefusedError, match="what was taken before has 1"):
        ingest(mirror, managed)


def test_another_topic_of_the_same_name_is_refused(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), topic_id=TOPIC_ID)
    ingest(mirror, managed)
    other = write_files(tmp_path, segment(0), segment(6), segment(12), topic_id="Z" * 22)
    sync(other, mirror)
    with pytest.raises(errors.InconsistentTopicIdError):
        ingest(mirror, managed)


def test_a_hole_between_what_was_taken_and_what_is_there_is_refused(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    ingest(mirror, managed)
    later = write_files(tmp_path / "later", segment(20), segment(26))
    sync(later, mirror, delete=True)
    with pytest.raises(errors.GuardRefusedError, match="taken up to offset 6") as caught:
        ingest(mirror, managed)
    assert caught.value.code == "MISSING_SEGMENTS"


def test_a_hole_that_the_brokers_own_retention_made_is_none(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6))
    ingest(mirror, managed)
    sync(write_files(tmp_path / "later", segment(20), segment(26)), mirror, delete=True)
    ingest(mirror, managed, log_start_offset=20)
    manifest = target_of(managed).manifest
    assert manifest.checkpoints.recovery_point == 26
    # What it keeps is the managed root's own business.
    assert manifest.checkpoints.log_start_offset == 0
    assert log_file(0) in manifest.files


def test_an_ingest_goes_on_after_the_managed_root_has_removed_and_rewritten_segments(
    objects, tmp_path
):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), segment(12))
    ingest(mirror, managed)
    store = target_of(managed)
    store.delete(log_file(0))
    store.write_file(log_file(6), b"")
    marks = store.checkpoints
    store.set_checkpoints(replace(marks, log_start_offset=6, cleaner_offset=12))
    store.publish(run_id="nightly")
    sync(write_files(tmp_path, segment(0), segment(6), segment(12), segment(18)), mirror)
    planned, _ = ingest(mirror, managed, log_start_offset=0, cleaner_offset=0)
    assert [one.segment.base_offset for one in planned.plan.segments] == [12]
    after = target_of(managed)
    assert log_file(0) not in after.manifest.files
    assert after.manifest.files[log_file(6)].size_bytes == 0
    assert (after.checkpoints.log_start_offset, after.checkpoints.cleaner_offset) == (6, 12)


@pytest.mark.parametrize("torn_tail", [b"\0" * 7, b"x" * 100], ids=["zeros", "garbage"])
def test_a_closed_segment_that_ends_inside_a_batch_is_refused(objects, tmp_path, torn_tail):
    mirror, managed = synced(objects, tmp_path, segment(0, torn_tail=torn_tail), segment(6))
    with pytest.raises(errors.CorruptRecordError, match="expected the last batch to end at"):
        ingest(mirror, managed)


def test_a_wrong_index_does_not_make_a_segment_wrong(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0, batches=9), segment(18))
    index = directory / "00000000000000000000.index"
    index.write_bytes(b"\0\0\0\5\0\0\1\1")
    sync(directory, mirror)
    assert ingest(mirror, managed)[0].has_work


def test_an_unfinished_swap_is_left_alone(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6))
    (directory / (log_file(0) + ".swap")).touch()
    sync(directory, mirror)
    with pytest.raises(errors.GuardRefusedError) as caught:
        ingest(mirror, managed)
    assert caught.value.code == "UNFINISHED_SWAP"


def test_names_that_are_not_kafkas_never_become_files(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6))
    for name in ("7.log", "notes.txt", "00000000000000000000.log.deleted", "x.snapshot"):
        (directory / name).write_bytes(b"?")
    sync(directory, mirror)
    ingest(mirror, managed)
    assert not {"7.log", "notes.txt", "x.snapshot"} & set(read_managed(managed))


def test_an_empty_closed_segment_is_taken_without_an_object(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, SegmentSpec(base_offset=0), segment(6), segment(12))
    ingest(mirror, managed)
    assert target_of(managed).manifest.files[log_file(0)].key == ""


def test_objects_are_adopted_where_they_are_without_copying_a_byte(objects, tmp_path):
    mirror, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6), topic_id=TOPIC_ID)
    sync(directory, mirror)
    planned, _ = ingest(mirror, managed, rules=IN_PLACE)
    manifest = target_of(managed).manifest
    entry = manifest.files[log_file(0)]
    assert entry.key == f"memory://test-ingest/mirror/orders-0/{log_file(0)}"
    assert (planned.cost.copied_bytes, planned.cost.moved_bytes) == (0, 0)
    keys = {info.key.rpartition("/")[2] for info in managed.list()}
    assert keys == {"manifest.json", "partition.companions"}
    found = read_managed(managed)
    assert found == {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_root_may_be_adopted_as_its_own_mirror(tmp_path):
    objects = MemoryObjectStore("memory://test-own/root")
    try:
        sync(write_files(tmp_path, segment(0), segment(6)), objects)
        ingest(objects, objects, rules=IN_PLACE)
        assert not ingest(objects, objects, rules=IN_PLACE)[0].has_work
        assert log_file(6) in target_of(objects).manifest.files
    finally:
        forget_memory("memory://test-own")


def test_nothing_is_adopted_before_the_owner_says_that_the_sync_has_stopped():
    with pytest.raises(errors.GuardRefusedError, match="--sync-stopped") as caught:
        partition.IngestRules(in_place=True)
    assert caught.value.code == "SYNC_MAY_WRITE"


def test_a_mirror_that_changes_while_it_is_copied_commits_nothing(objects, tmp_path):
    mirror_objects, managed = objects
    directory = write_files(tmp_path, segment(0), segment(6))
    sync(directory, mirror_objects)
    mirror, target = mirror_of(mirror_objects), target_of(managed)
    planned = partition.observe_and_plan(
        mirror, target, partition.IngestRules(), PartitionCheckpoints()
    )
    sync(directory, mirror_objects, only=lambda name: name == log_file(0))
    with pytest.raises(errors.ChangedWhileReadError):
        partition.commit_ingest(
            planned,
            mirror,
            target,
            partition.IngestRules(),
            commitment=partition.Commitment(run_id="run", result={}),
            threads=4,
        )
    assert not [info.key for info in managed.list() if info.key.endswith("manifest.json")]


def test_a_plan_says_what_it_costs(objects, tmp_path):
    mirror, managed = synced(objects, tmp_path, segment(0), segment(6), segment(12))
    planned, _ = ingest(mirror, managed)
    cost, plan = planned.cost, planned.plan
    assert cost.moved_bytes == plan.record_bytes + plan.companion_bytes
    assert cost.copied_bytes == cost.copy_requests == 0  # no copies by the store itself here
    assert cost.list_requests == 1
    # Two segments: a log, a pack; the last snapshot, the epochs; the manifest and its history.
    assert cost.put_requests == 2 + 2 + 2 + 2


def test_epochs_of_what_was_not_taken_are_left_out(objects, tmp_path):
    mirror, managed = objects
    late = SegmentSpec(base_offset=6, batches=[batch(6, leader_epoch=4)])
    sync(write_files(tmp_path, segment(0, leader_epoch=2), late), mirror)
    planned, _ = ingest(mirror, managed)
    assert [(e.epoch, e.start_offset) for e in planned.plan.after.epochs] == [(2, 0)]
    sync(
        write_files(tmp_path, segment(0, leader_epoch=2), late, segment(8, leader_epoch=4)), mirror
    )
    planned, _ = ingest(mirror, managed)
    assert [(e.epoch, e.start_offset) for e in planned.plan.after.epochs] == [(2, 0), (4, 6)]


@pytest.mark.parametrize("base", [3, 5])
def test_a_compressed_set_of_an_old_format_begins_at_its_segment(base: int, tmp_path: Path):
    """Its header has the offset of its last message alone."""
    messages = tuple(LegacyMessage(offset=offset) for offset in range(base, 6))
    content = encode_entry(LegacySet(messages=messages, codec=Codec.GZIP))
    (tmp_path / log_file(base)).write_bytes(content)
    file = ListedFile(name=log_file(base), size_bytes=len(content), modified_ms=0, etag="")
    (segment,) = group_files([file]).segments
    edges = read_edges(LocalStore(tmp_path), segment, lambda _: b"")
    assert (edges.first_offset, edges.next_offset) == (base, 6)
    assert (edges.first_epoch, edges.last_epoch) == (NO_LEADER_EPOCH, NO_LEADER_EPOCH)


PARTITIONS = ["compacted-0", "compacted-delete-0", "events-1", "payments.txn-0", "recompressed-0"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "adopted"])
@pytest.mark.parametrize("name", PARTITIONS)
def test_a_brokers_partition_comes_out_of_a_managed_root_as_it_went_in(tmp_path, name, in_place):
    broker = Golden("broker-dir").unpack(tmp_path)
    mirror = MemoryObjectStore("memory://test-golden/mirror")
    managed = MemoryObjectStore("memory://test-golden/managed")
    try:
        sync(broker / name, mirror)
        rules = partition.IngestRules(sync_has_stopped=True, in_place=in_place)
        ingest(mirror, managed, name=name, rules=rules)
        topic, _, number = name.rpartition("-")
        out = tmp_path / "out" / name
        materialize_partition(ManagedStore(managed, TopicPartition(topic, int(number))), out)
        release_partition(out)
    finally:
        forget_memory("memory://test-golden")
    found = {path.name: path.read_bytes() for path in out.iterdir()}
    assert found == {path.name: path.read_bytes() for path in (broker / name).iterdir()}
