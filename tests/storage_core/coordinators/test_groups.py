"""Groups and committed offsets, record by record, as a group coordinator replays them."""

import struct

import pytest

from storage_core.coordinators import groups
from storage_core.coordinators.coordinator_log import ReplayedRecord, TransactionEnd
from storage_core.filenames import TopicPartition
from storage_core.messages.internal_records import Problem, decode_internal_record
from tests.storage_core.coordinators.coordinator_events import COMMITTED_MS, commit, end, record

KEY = groups.CommitKey("g", "t", 0)
HOUR_MS = 3_600_000


def image_of(*events: ReplayedRecord | TransactionEnd) -> groups.GroupImage:
    image = groups.GroupImage()
    for event in events:
        image.apply(event)
    return image


def offsets_of(*events: ReplayedRecord | TransactionEnd) -> dict[groups.CommitKey, int]:
    return {key: found.offset for key, found in image_of(*events).offsets.items()}


@pytest.mark.item("REP-16", "REP-17")
def test_the_newest_commit_of_a_key_wins():
    assert offsets_of(commit(0, 5), commit(1, 9), commit(2, 3), commit(3, 8, partition=1)) == {
        KEY: 3,
        groups.CommitKey("g", "t", 1): 8,
    }


@pytest.mark.item("REP-16", "REP-17")
def test_a_record_without_a_value_takes_the_commit_away():
    assert offsets_of(commit(0, 5), commit(1, None)) == {}
    assert offsets_of(commit(0, 5), commit(1, None), commit(2, 6)) == {KEY: 6}


@pytest.mark.item("REP-17")
def test_a_commit_in_a_transaction_counts_when_that_is_committed():
    begun = (commit(0, 5), commit(1, 9, producer_id=4))
    image = image_of(*begun)
    assert {key: found.offset for key, found in image.offsets.items()} == {KEY: 5}
    assert [(found.offset, found.producer_id) for found in image.pending] == [(9, 4)]
    assert offsets_of(*begun, end(2, 4, is_commit=True)) == {KEY: 9}
    assert offsets_of(*begun, end(2, 4, is_commit=False)) == {KEY: 5}
    assert offsets_of(*begun, end(2, 5, is_commit=True)) == {KEY: 5}
    assert not image_of(*begun, end(2, 4, is_commit=False)).pending


@pytest.mark.item("REP-17")
def test_a_newer_commit_stands_against_a_transaction_that_ends_later():
    assert offsets_of(commit(0, 9, producer_id=4), commit(1, 5), end(2, 4, is_commit=True)) == {
        KEY: 5
    }


@pytest.mark.item("REP-17")
def test_a_removal_takes_what_transactions_have_of_it_too():
    assert offsets_of(commit(0, 9, producer_id=4), commit(1, None), end(2, 4, is_commit=True)) == {}


def classic(offset: int, *members: dict[str, object], state_ms: int = 5) -> ReplayedRecord:
    value = {
        "protocol_type": "consumer",
        "generation": 3,
        "protocol": "range",
        "leader": None,
        "current_state_timestamp": state_ms,
        "members": members,
    }
    return record(offset, 2, {"group": "g"}, value)


def strings(*texts: str) -> bytes:
    encoded = b"".join(struct.pack(">h", len(text)) + text.encode() for text in texts)
    return struct.pack(">i", len(texts)) + encoded


MEMBER = {
    "member_id": "m-1",
    "group_instance_id": None,
    "client_id": "app",
    "client_host": "/127.0.0.1",
    "session_timeout": 1,
    "subscription": b"\x00\x00" + strings("t", "a") + b"\xff\xff\xff\xff",
    "assignment": b"\x00\x00\x00\x00\x00\x01\x00\x01t"
    + struct.pack(">iii", 2, 0, 3)
    + b"\xff\xff\xff\xff",
}


@pytest.mark.item("REP-16")
def test_a_classic_group_has_its_members_their_topics_and_partitions():
    (group,) = image_of(classic(0, MEMBER)).groups()
    assert (group.type, group.state, group.protocol, group.epoch, group.state_ms) == (
        groups.GroupType.CLASSIC,
        groups.GroupState.STABLE,
        "range",
        3,
        5,
    )
    (member,) = group.members
    assert member.topics == ("a", "t")
    assert member.assigned == (TopicPartition("t", 0), TopicPartition("t", 3))
    broken = image_of(classic(0, MEMBER | {"subscription": b"x", "assignment": b"\x00\x00\x01"}))
    (member,) = broken.groups()[0].members
    assert (member.topics, member.assigned) == (None, None)


def test_a_group_is_gone_with_its_record_but_not_before_its_offsets():
    removed = record(2, 2, {"group": "g"}, None)
    assert image_of(classic(0), removed).groups() == ()
    (group,) = image_of(classic(0), commit(1, 5), removed).groups()
    assert (group.state, group.protocol_type, group.epoch) == (groups.GroupState.EMPTY, "", None)


def consumer(*, epoch: int, target: int, state: int = 0, member_epoch: int = 2) -> groups.Group:
    key, member = {"group_id": "g"}, {"group_id": "g", "member_id": "m"}
    fields = {
        "instance_id": None,
        "client_id": "app",
        "client_host": "/h",
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
    }
    events = [
        record(0, 5, member, fields),
        record(1, 3, key, {"epoch": epoch, "metadata_hash": 0}),
        record(2, 6, key, {"assignment_epoch": target}),
        record(3, 8, member, {"member_epoch": member_epoch, "state": state}),
    ]
    (group,) = image_of(*events).groups()
    return group


@pytest.mark.item("REP-16")
def test_a_consumer_group_is_in_the_state_that_its_epochs_tell():
    assert consumer(epoch=2, target=2).type is groups.GroupType.CONSUMER
    assert consumer(epoch=2, target=2).state is groups.GroupState.STABLE
    assert consumer(epoch=3, target=2).state is groups.GroupState.ASSIGNING
    assert consumer(epoch=2, target=2, state=1).state is groups.GroupState.RECONCILING
    assert consumer(epoch=2, target=2, member_epoch=1).state is groups.GroupState.RECONCILING
    left = [
        record(0, 3, {"group_id": "g"}, {"epoch": 2, "metadata_hash": 0}),
        record(1, 5, {"group_id": "g", "member_id": "m"}, None),
    ]
    assert image_of(*left).groups()[0].state is groups.GroupState.EMPTY


@pytest.mark.item("REP-16")
def test_share_and_streams_groups_are_listed_by_their_type():
    for type_id, group_type in ((11, groups.GroupType.SHARE), (17, groups.GroupType.STREAMS)):
        made = record(0, type_id, {"group_id": "g"}, {"epoch": 1, "metadata_hash": 0})
        (group,) = image_of(made).groups()
        assert (group.type, group.state, group.epoch) == (group_type, groups.GroupState.EMPTY, 1)
        assert image_of(made, record(1, type_id, {"group_id": "g"}, None)).groups() == ()


@pytest.mark.item("REP-16")
def test_what_is_not_understood_is_counted_and_hides_nothing():
    key = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00"
    events = [
        ReplayedRecord(
            offset=offset,
            timestamp_ms=0,
            producer_id=-1,
            decoded=decode_internal_record("__consumer_offsets", key, value),
        )
        for offset, value in enumerate((b"\x00\x09", b"\x00\x09?", b"\x00\x03\x00"))
    ]
    image = image_of(commit(0, 5, partition=1), *events, commit(9, 6))
    assert [(u.problem, u.version, u.count, u.first_offset) for u in image.undecoded] == [
        (Problem.UNKNOWN_VERSION, 9, 2, 0),
        (Problem.MALFORMED, 3, 1, 2),
    ]
    assert {key.partition: found.offset for key, found in image.offsets.items()} == {1: 5, 0: 6}


def expiry_of(*events: ReplayedRecord, retention_ms: int = HOUR_MS) -> int | None:
    image = image_of(*events)
    return groups.expiry_ms(image.offsets[KEY], image.groups()[0], retention_ms=retention_ms)


@pytest.mark.item("REP-17")
def test_a_commit_expires_after_it_was_made_or_after_its_group_became_empty():
    assert expiry_of(commit(0, 5)) == COMMITTED_MS + HOUR_MS
    assert expiry_of(commit(0, 5), classic(1, state_ms=7)) == 7 + HOUR_MS
    assert expiry_of(commit(0, 5), classic(1, state_ms=-1)) == COMMITTED_MS + HOUR_MS


@pytest.mark.item("REP-17")
def test_a_commit_of_version_1_says_itself_when_it_expires():
    assert expiry_of(commit(0, 5, expire_timestamp=99)) == 99
    assert expiry_of(commit(0, 5, expire_timestamp=-1)) == COMMITTED_MS + HOUR_MS
    assert expiry_of(commit(0, 5, expire_timestamp=99), classic(1, MEMBER)) is None


@pytest.mark.item("REP-17")
def test_members_keep_the_commits_of_what_they_read():
    other = MEMBER | {"subscription": b"\x00\x00" + strings("a") + b"\xff\xff\xff\xff"}
    unknown = MEMBER | {"subscription": b"?"}
    assert expiry_of(commit(0, 5), classic(1, MEMBER)) is None
    assert expiry_of(commit(0, 5), classic(1, other)) == COMMITTED_MS + HOUR_MS
    assert expiry_of(commit(0, 5), classic(1, other, unknown)) is None
