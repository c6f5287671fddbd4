"""Groups and committed offsets, from the records of ``__consumer_offsets``.

What counts is what a group coordinator has in memory once it has replayed the partition. The newest
commit of a key wins; one that is part of a transaction counts when the transaction is committed,
unless a newer one is there by then. A record without a value takes away what its key names.
Share groups keep their offsets in ``__share_group_state``: a snapshot, and updates of it.
Sources: ``OffsetMetadataManager``, ``GroupMetadataManager``, ``ClassicGroup``, ``ModernGroup``,
``ShareCoordinatorShard``.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    Undecoded,
    UndecodedRecords,
)
from storage_core.errors import MalformedMessageError
from storage_core.filenames import TopicPartition
from storage_core.formats.batch_v2 import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from storage_core.messages import group_records as records
from storage_core.messages.internal_records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    decode_assignment,
    decode_subscription,
)
from storage_core.messages.schema import NO_UUID, Fields

_CONSUMER_PROTOCOL: Final = "consumer"
_STABLE_MEMBER: Final = 0
_NO_TIME: Final = -1


class GroupType(enum.StrEnum):
    """The type of a group, as Kafka's own tools spell it."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


class GroupState(enum.StrEnum):
    """A group's state when a coordinator takes it over."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class CommitKey(NamedTuple):
    """What a committed offset is of."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset."""

    key: CommitKey
    offset: int
    leader_epoch: int  # leader epoch of the record before it, -1 if the commit has none
    metadata: str  # the committer's metadata
    commit_ms: int
    # When it expires, where the commit says so (version 1 alone); None elsewhere.
    expire_ms: int | None
    topic_id: str | None  # id of the topic, None if the commit has none
    record_offset: int
    producer_id: int  # the producer of its transaction, NO_PRODUCER_ID without one
    producer_epoch: int = NO_PRODUCER_EPOCH  # that producer's epoch, NO_PRODUCER_EPOCH without one


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group when its coordinator last wrote it down."""

    member_id: str
    instance_id: str | None  # the id of a static member; None for others
    client_id: str
    client_host: str
    # Names that it subscribes to, sorted; None where they are not known.
    topics: tuple[str, ...] | None
    # Partitions that it was given, sorted; None where names are not known.
    assigned: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group."""

    group: str
    type: GroupType
    # The state of it, None where files do not tell (streams groups with members).
    state: GroupState | None
    # For a classic group: ``consumer`` for consumers, empty for committers that never joined; None
    # for other types.
    protocol_type: str | None
    protocol: str | None  # the assignor of a classic group; None for others
    # Generation of a classic group, epoch of another; None for a group of offsets alone.
    epoch: int | None
    # Since when a classic group is in its state, epoch milliseconds; None where no record says so.
    state_ms: int | None
    members: tuple[GroupMember, ...]  # by their ids, sorted

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of its members' subscriptions; None if they are unknown."""
        topics: set[str] = set()
        for member in self.members:
            if member.topics is None:
                return None
            topics.update(member.topics)
        return frozenset(topics)


class GroupImage:
    """A group coordinator's knowledge after the records so far. ``apply`` takes the next record."""

    def __init__(self) -> None:
        self._offsets: dict[CommitKey, CommittedOffset] = {}
        self._pending: dict[int, dict[CommitKey, CommittedOffset]] = {}
        # For each type of record, by group, the fields of the newest; then by group and member.
        self._groups: dict[str, tuple[GroupType, Fields]] = {}
        self._members: dict[int, dict[str, dict[str, Fields]]] = {}
        self._target_epochs: dict[str, int] = {}
        self._undecoded = UndecodedRecords()
        # Effects of record types; others do not change anything that is shown.
        self._replay: dict[int, Callable[[ReplayedRecord, Fields, Fields | None], None]] = {
            records.LEGACY_OFFSET_COMMIT: self._commit,
            records.OFFSET_COMMIT: self._commit,
            records.GROUP_METADATA: self._group_record,
            records.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: self._target,
            records.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._member_record,
            **dict.fromkeys(_TYPE_OF_RECORD, self._group_record),
            **dict.fromkeys(_MEMBERS_OF.values(), self._member_record),
        }

    @property
    def offsets(self) -> Mapping[CommitKey, CommittedOffset]:
        """The offsets that are committed."""
        return self._offsets

    @property
    def pending(self) -> tuple[CommittedOffset, ...]:
        """Offsets in open transactions; they count once those are committed."""
        return tuple(commit for some in self._pending.values() for commit in some.values())

    @property
    def undecoded(self) -> tuple[Undecoded, ...]:
        """What was not understood, and left out."""
        return tuple(self._undecoded.all())

    def apply(self, event: ReplayedRecord | TransactionEnd) -> None:
        """Take the next record or marker."""
        if isinstance(event, TransactionEnd):
            self._end_transaction(event)
            return
        decoded = event.decoded
        if decoded.problem is not None:
            self._undecoded.add(event, decoded.problem)
            return
        if decoded.type_id is not None and decoded.key is not None:
            replay = self._replay.get(decoded.type_id)
            if replay is not None:
                replay(event, decoded.key, decoded.value)

    def groups(self) -> tuple[Group, ...]:
        """Return the groups by name, also those with offsets only."""
        with_offsets = {key.group for key in self._offsets}
        with_offsets.update(commit.key.group for commit in self.pending)
        names = sorted(self._groups.keys() | with_offsets)
        return tuple(map(self._group, names))

    def _group(self, name: str) -> Group:
        if name not in self._groups:
            # Offsets of consumers that committed without joining.
            return _classic_group(name, {"protocol_type": "", "members": ()}, epoch=None)
        group_type, fields = self._groups[name]
        if group_type is GroupType.CLASSIC:
            return _classic_group(name, fields, epoch=fields["generation"])
        of_members = self._members.get(_MEMBERS_OF[group_type], {}).get(name, {})
        return Group(
            group=name,
            type=group_type,
            state=self._state(group_type, name, fields["epoch"], of_members),
            protocol_type=None,
            protocol=None,
            epoch=fields["epoch"],
            state_ms=None,
            members=tuple(_member(member, of_members[member]) for member in sorted(of_members)),
        )

    def _state(
        self, group_type: GroupType, name: str, epoch: int, members: Mapping[str, Fields]
    ) -> GroupState | None:
        if not members:
            return GroupState.EMPTY
        if group_type is GroupType.STREAMS:
            return None  # these records do not tell whether its internal topics exist
        if group_type is GroupType.SHARE:
            return GroupState.STABLE
        target = self._target_epochs.get(name, 0)
        if epoch > target:
            return GroupState.ASSIGNING
        assigned = self._members.get(records.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, {})
        current = assigned.get(name, {})
        is_stable = all(
            member in current
            and current[member]["state"] == _STABLE_MEMBER
            and current[member]["member_epoch"] == target
            for member in members
        )
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    def _end_transaction(self, end: TransactionEnd) -> None:
        pending = self._pending.pop(end.producer_id, {})
        if not end.is_commit:
            return
        for key, commit in pending.items():
            before = self._offsets.get(key)
            if before is None or commit.record_offset > before.record_offset:
                self._offsets[key] = commit

    def _commit(self, event: ReplayedRecord, key: Fields, value: Fields | None) -> None:
        commit_key = CommitKey(key["group"], key["topic"], key["partition"])
        if value is None:
            self._offsets.pop(commit_key, None)
            for pending in self._pending.values():
                pending.pop(commit_key, None)
            return
        commit = _committed(commit_key, value, event)
        if event.producer_id == NO_PRODUCER_ID:
            self._offsets[commit_key] = commit
        else:
            self._pending.setdefault(event.producer_id, {})[commit_key] = commit

    def _group_record(self, event: ReplayedRecord, key: Fields, value: Fields | None) -> None:
        group_type = _TYPE_OF_RECORD.get(event.decoded.type_id or 0, GroupType.CLASSIC)
        name = key["group"] if group_type is GroupType.CLASSIC else key["group_id"]
        if value is not None:
            self._groups[name] = (group_type, value)
        elif name in self._groups and self._groups[name][0] is group_type:
            del self._groups[name]

    def _member_record(self, event: ReplayedRecord, key: Fields, value: Fields | None) -> None:
        of_type = self._members.setdefault(event.decoded.type_id or 0, {})
        members = of_type.setdefault(key["group_id"], {})
        if value is None:
            members.pop(key["member_id"], None)
        else:
            members[key["member_id"]] = value
        if not members:
            del of_type[key["group_id"]]

    def _target(self, event: ReplayedRecord, key: Fields, value: Fields | None) -> None:
        del event
        if value is None:
            self._target_epochs.pop(key["group_id"], None)
        else:
            self._target_epochs[key["group_id"]] = value["assignment_epoch"]


class ShareKey(NamedTuple):
    """What a share group's start offset is of."""

    group: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOffset:
    """A share group's place in one partition."""

    start_offset: int  # first offset that is not settled, -1 before the group has read
    # Records at or above it that were acknowledged or archived; -1 where no record counts them, and
    # then no lag is known.
    complete_count: int
    leader_epoch: int
    write_ms: int
    record_offset: int

    def lag(self, log_end: int) -> int | None:
        """Return the number of records up to a log end, else None."""
        if min(self.start_offset, self.complete_count) < 0:
            return None
        return max(0, log_end - self.start_offset - self.complete_count)


class ShareImage:
    """A share coordinator's knowledge after the records so far. ``apply`` takes the next record."""

    def __init__(self) -> None:
        self._offsets: dict[ShareKey, ShareOffset] = {}
        self._undecoded = UndecodedRecords()

    @property
    def offsets(self) -> Mapping[ShareKey, ShareOffset]:
        """The start offsets of share groups."""
        return self._offsets

    @property
    def undecoded(self) -> tuple[Undecoded, ...]:
        """Records that were not understood, and left out."""
        return tuple(self._undecoded.all())

    def apply(self, event: ReplayedRecord | TransactionEnd) -> None:
        """Take the next record."""
        if isinstance(event, TransactionEnd):
            return  # no share coordinator writes in transactions
        decoded = event.decoded
        if decoded.problem is not None:
            self._undecoded.add(event, decoded.problem)
        elif decoded.key is not None and decoded.type_id in {SHARE_SNAPSHOT, SHARE_UPDATE}:
            fields, value = decoded.key, decoded.value
            key = ShareKey(fields["group_id"], fields["topic_id"], fields["partition"])
            if value is None:
                self._offsets.pop(key, None)
            else:
                is_update = decoded.type_id == SHARE_UPDATE
                before = self._offsets.get(key) if is_update else None
                self._offsets[key] = _share_offset(event, value, before)


def _share_offset(event: ReplayedRecord, value: Fields, before: ShareOffset | None) -> ShareOffset:
    """Return a place by a record. In an update -1 leaves what was before."""
    start_offset, leader_epoch = value["start_offset"], value["leader_epoch"]
    if before is not None:
        start_offset = before.start_offset if start_offset == -1 else start_offset
        leader_epoch = before.leader_epoch if leader_epoch == -1 else leader_epoch
    return ShareOffset(
        start_offset=start_offset,
        complete_count=value["delivery_complete_count"],
        leader_epoch=leader_epoch,
        write_ms=event.timestamp_ms,
        record_offset=event.offset,
    )


_TYPE_OF_RECORD: Final = {
    records.CONSUMER_GROUP_METADATA: GroupType.CONSUMER,
    records.SHARE_GROUP_METADATA: GroupType.SHARE,
    records.STREAMS_GROUP_METADATA: GroupType.STREAMS,
}
# The record type that lists the members of a group.
_MEMBERS_OF: Final = {
    GroupType.CONSUMER: records.CONSUMER_GROUP_MEMBER_METADATA,
    GroupType.SHARE: records.SHARE_GROUP_MEMBER_METADATA,
    GroupType.STREAMS: records.STREAMS_GROUP_MEMBER_METADATA,
}


def expiry_ms(commit: CommittedOffset, group: Group, *, retention_ms: int) -> int | None:
    """Return from when on a coordinator may remove a commit, epoch milliseconds.

    Args:
        retention_ms: The broker's ``offsets.retention.minutes``, in milliseconds.

    Returns:
        None as long as its group is as it is: members that read the topic keep it, and so do
        members of whom it is not known what they read.
    """
    if commit.expire_ms is not None and not group.members:
        return commit.expire_ms
    if group.type is GroupType.CLASSIC:
        return _classic_expiry(commit, group, retention_ms)
    if group.type is GroupType.SHARE:
        return None
    topics = group.subscribed_topics
    if topics is None or commit.key.topic in topics:
        return None
    return commit.commit_ms + retention_ms


def _classic_expiry(commit: CommittedOffset, group: Group, retention_ms: int) -> int | None:
    base_ms = commit.commit_ms
    if group.members:
        topics = group.subscribed_topics if group.protocol_type == _CONSUMER_PROTOCOL else None
        if topics is None or commit.key.topic in topics:
            return None
    elif group.protocol_type and group.state_ms is not None:
        base_ms = group.state_ms
    return base_ms + retention_ms if commit.expire_ms is None else commit.expire_ms


def _committed(key: CommitKey, value: Fields, event: ReplayedRecord) -> CommittedOffset:
    expire_ms = value.get("expire_timestamp", _NO_TIME)
    topic_id = value.get("topic_id", NO_UUID)
    return CommittedOffset(
        key=key,
        offset=value["offset"],
        leader_epoch=value.get("leader_epoch", -1),
        metadata=value["metadata"],
        commit_ms=value["commit_timestamp"],
        expire_ms=None if expire_ms == _NO_TIME else expire_ms,
        topic_id=None if topic_id == NO_UUID else topic_id,
        record_offset=event.offset,
        producer_id=event.producer_id,
        producer_epoch=event.producer_epoch,
    )


def _classic_group(name: str, fields: Fields, *, epoch: int | None) -> Group:
    is_of_consumers = fields["protocol_type"] == _CONSUMER_PROTOCOL
    members = [_classic_member(member, is_of_consumers) for member in fields["members"]]
    state_ms = fields.get("current_state_timestamp", _NO_TIME)
    return Group(
        group=name,
        type=GroupType.CLASSIC,
        state=GroupState.STABLE if members else GroupState.EMPTY,
        protocol_type=fields["protocol_type"],
        protocol=fields.get("protocol"),
        epoch=epoch,
        state_ms=None if state_ms == _NO_TIME else state_ms,
        members=tuple(sorted(members, key=lambda member: member.member_id)),
    )


def _classic_member(fields: Fields, is_of_consumers: bool) -> GroupMember:  # noqa: FBT001 - a fact of its group
    topics: tuple[str, ...] | None = None
    assigned: tuple[TopicPartition, ...] | None = None
    if is_of_consumers:
        topics = _read(lambda: sorted(decode_subscription(fields["subscription"])["topics"]))
        assigned = _read(lambda: sorted(_assigned(fields["assignment"])))
    return GroupMember(
        member_id=fields["member_id"],
        instance_id=fields.get("group_instance_id"),
        client_id=fields["client_id"],
        client_host=fields["client_host"],
        topics=topics,
        assigned=assigned,
    )


def _assigned(data: bytes) -> list[TopicPartition]:
    if not data:  # the group was written before it had an assignment
        return []
    return [
        TopicPartition(topic["topic"], number)
        for topic in decode_assignment(data)["assigned_partitions"]
        for number in topic["partitions"]
    ]


def _read(read: Callable[[], list[Any]]) -> tuple[Any, ...] | None:
    """Return the content of a client's own bytes; None if malformed."""
    try:
        return tuple(read())
    except MalformedMessageError:
        return None


def _member(member_id: str, fields: Fields) -> GroupMember:
    topics = fields.get("subscribed_topic_names")
    has_pattern = bool(fields.get("subscribed_topic_regex"))
    return GroupMember(
        member_id=member_id,
        instance_id=fields.get("instance_id"),
        client_id=fields["client_id"],
        client_host=fields["client_host"],
        topics=None if topics is None or has_pattern else tuple(sorted(topics)),
    )
