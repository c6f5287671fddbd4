"""What brokers are told of a tier: what the brokers that wrote it had been told."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint.checkpoints import parse_leader_epochs, parse_partition_metadata
from storage_core.cluster.attachment import (
    AttachedLog,
    AttachReason,
    AttachRules,
    custom_metadata,
    plan_log,
    plan_metadata_topic,
)
from storage_core.coordinators.coordinator_log import replay_partition
from storage_core.coordinators.remote_log import RemoteLog, metadata_partition
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    REMOTE_LOG_TOPIC,
    TopicPartition,
)
from storage_core.store.local import LocalStore
from storage_core.store.tier_archive import ArchivePlace
from tests.kit.tier_archives import CASES, TierCase, unpack_tier

HOME = Path("/data/b1")
NEWEST = AttachRules(takes_newest=True)
# Ends of segments whose other records are of another history, by case and base offset.
CUT = {("elections_rolls", 635): 967, ("elections_rolls", 842): 989}


def plan(case: TierCase, rules: AttachRules = NEWEST) -> dict[tuple[str, int], AttachedLog]:
    """Return the logs of a tier, by topic id and partition."""
    key = None if case.key is None else str(case.key)
    place = ArchivePlace(place=str(case.archive), decryption_key=key)
    tier = place.open()
    return {
        (folder.topic_id, folder.partition.partition): plan_log(
            tier, folder, rules, home=HOME, node=1
        )
        for folder in tier.listing[0]
    }


def told(case: TierCase) -> dict[str, dict[str, Any]]:
    """Return what the metadata topic had of each segment, by id."""
    return {
        each["segment_id"]: each
        for partition in case.truth["partitions"]
        for each in partition["segments"]
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_every_field_is_as_the_lost_cluster_had_it(name: str, tmp_path: Path):
    case = unpack_tier(name, tmp_path)
    before = told(case)
    for log in plan(case).values():
        assert log.reason is None, log.detail
        for segment in log.segments:
            own = before.get(segment.identity.segment_id)
            if own is None:  # of the topic that was deleted
                assert name == "topic_deleted"
                continue
            custom = segment.custom
            assert (segment.base_offset, segment.size_bytes) == (own["start"], own["size"])
            assert segment.max_timestamp_ms == own["max_timestamp"]
            assert segment.is_txn_index_empty == own["txn_index_empty"]
            assert own["custom"] in {None, custom and base64.b64encode(custom).decode()}
            end = CUT.get((name, segment.base_offset), own["end"])
            assert segment.end_offset == end
            epochs = [[entry.epoch, entry.start_offset] for entry in segment.epochs]
            assert epochs == [each for each in own["epochs"] if each[1] <= end]


def test_a_log_begins_where_its_tier_ends(tmp_path: Path):
    case = unpack_tier("elections", tmp_path)
    for log in plan(case).values():
        place = ArchivePlace(place=str(case.archive))
        directory = log.directory(place.open())
        (truth,) = (
            each for each in case.truth["alone"] if each["partition"] == log.partition.partition
        )
        end = truth["ranges"][-1][1] + 1
        assert (log.log_start_offset, log.log_end_offset) == (truth["ranges"][0][0], end)
        assert directory.path == HOME / str(log.partition)
        names = {f"{end:020d}.{kind}" for kind in ("log", "index", "timeindex", "snapshot")}
        assert directory.files.keys() == names | {LEADER_EPOCH_FILE, PARTITION_METADATA_FILE}
        epochs = parse_leader_epochs(directory.files[LEADER_EPOCH_FILE], file="")
        assert [[entry.epoch, entry.start_offset] for entry in epochs] == truth["lineage"]
        identity = parse_partition_metadata(directory.files[PARTITION_METADATA_FILE], file="")
        assert identity.topic_id == truth["topic_id"]


def test_the_metadata_topic_says_all_of_it(tmp_path: Path):
    case = unpack_tier("plain", tmp_path / "case")
    logs = plan(case)
    segments = [segment for log in logs.values() for segment in log.segments]
    homes = [tmp_path / "b1", tmp_path / "b2"]
    for home in homes:
        home.mkdir()
    directories = list(plan_metadata_topic(segments, homes, count=5, cluster_id="c"))
    assert [each.partition for each in directories] == [
        TopicPartition(REMOTE_LOG_TOPIC, number) for number in range(5)
    ]
    said = RemoteLog()
    for each in directories:
        assert not each.is_written()
        each.build(each.home)
        assert each.is_written()
        events = list(replay_partition(LocalStore(each.path), REMOTE_LOG_TOPIC))
        assert len(events) == each.log_end_offset
        said.replay(events)
    assert said.segments() == sorted(segments, key=lambda each: each.identity.partition)
    assert said.undecoded == ()
    filled = {each.partition.partition for each in directories if each.log_end_offset}
    assert filled == {
        metadata_partition(each.identity.topic_id, each.identity.partition.partition, 5)
        for each in segments
    }
    ids = {each.files[PARTITION_METADATA_FILE] for each in directories}
    again = {
        each.files[PARTITION_METADATA_FILE]
        for each in plan_metadata_topic((), homes, count=1, cluster_id="c")
    }
    assert ids == again
    (directories[0].path / "other").touch()
    assert not directories[0].is_written()


def test_the_plugins_note_has_its_bytes():
    # README of the fixtures: what the plugin wrote for 36,657 bytes.
    assert custom_metadata("kafka/pre", "t-id/0/key", 36_657) == (
        b"\x03\x00\x03\xe2\xbc\x04\x01\x0a\x0akafka/pre\x02\x0b\x0bt-id/0/key"
    )


def refusal(case: TierCase) -> tuple[AttachReason | None, str]:
    (log, *_) = plan(case, AttachRules()).values()
    return log.reason, log.detail


def test_an_incomplete_newest_segment_is_refused(tmp_path: Path):
    case = unpack_tier("upload_killed", tmp_path)
    reason, detail = refusal(case)
    assert reason is AttachReason.TIER_SEGMENT_INCOMPLETE
    assert "offset 820 is not whole: has no object" in detail
    (log,) = plan(case).values()
    assert (log.log_end_offset, log.left_out) == (820, 1)
    assert "offset 820 is not whole" in log.notes[0]


@pytest.mark.thorough
def test_two_histories_are_refused(tmp_path: Path):
    case = unpack_tier("elections_rolls", tmp_path)
    reason, detail = refusal(case)
    assert reason is AttachReason.TIER_HISTORIES_DIFFER
    assert detail == "the segments at offsets 635, 1054 are of another history than the newest"
    log, _ = plan(case).values()
    assert log.notes[1].startswith("brokers may give readers the other history's records at")


@pytest.mark.parametrize(
    ("name", "number", "first", "end"), [("plain", 1, 420, 823), ("aiven_zstd", 0, 404, 829)]
)
def test_a_missing_segment_is_refused(name: str, number: int, first: int, end: int, tmp_path: Path):
    case = unpack_tier(name, tmp_path)
    for path in case.archive.rglob(f"*/{first:020d}-*"):
        path.unlink()

    def planned(rules: AttachRules) -> AttachedLog:
        logs = plan(case, rules).values()
        return next(log for log in logs if log.partition.partition == number)

    log = planned(NEWEST)
    assert log.reason is AttachReason.TIER_SEGMENT_MISSING
    assert log.detail == f"no whole segment has offsets {first} to {end - 1}"
    # With consent a broker passes over them: it finds the segment before.
    log = planned(replace(NEWEST, allows_loss=True))
    assert [(each.base_offset, each.end_offset) for each in log.segments[:2]] == [
        (0, end - 1),
        (end, log.log_end_offset - 1),
    ]


def test_open_transactions_are_named(tmp_path: Path):
    (log,) = plan(unpack_tier("txn", tmp_path)).values()
    assert [each.current_txn_first_offset for each in log.open_transactions] == [2094]
