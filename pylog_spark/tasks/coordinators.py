"""Read groups and transactions of a log directory into rows. They come from its coordinators'
partitions.

Nothing is written. A coordinator's partition is read record by record, in memory that grows with
the groups and transactional ids that it holds, not with the log. A partition that cannot be read
is a row with its error, beside what could be read before the damage.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.config import BrokerConfig
from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    Undecoded,
    replay_partition,
)
from storage_core.coordinators.groups import (
    CommittedOffset,
    Group,
    GroupImage,
    GroupType,
    ShareImage,
    ShareKey,
    ShareOffset,
)
from storage_core.coordinators.offsets_audit import (
    NO_OFFSET,
    AuditedCommit,
    AuditSettings,
    CommitFinding,
    ObservedLog,
    TierBounds,
    audit_commits,
    find_outside,
    observe_log,
)
from storage_core.coordinators.transactions import (
    HoldingTransaction,
    TransactionCoordinators,
    TransactionEntry,
    TransactionImage,
    judge_open_transactions,
    name_absent_coordinators,
)
from storage_core.errors import PylogError, describe_failure
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from storage_core.log.settled_store import settle
from storage_core.reading.inspection import RootView
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.store import open_store

# A row and its kind.
CoordinatorRow = tuple[str, dict[str, Any]]
_MS_OF_MINUTE: Final = 60_000

# The rows as tables; a row with an error has nothing else but its root.
_TEXTS: Final = pa.list_(pa.string())
_MEMBER: Final = pa.struct(
    [
        ("member_id", pa.string()),
        ("instance_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("topics", _TEXTS),
        ("assigned", _TEXTS),
    ]
)
GROUP_SCHEMA: Final = pa.schema(
    [
        ("root", pa.string()),
        ("group", pa.string()),
        ("group_type", pa.string()),
        ("state", pa.string()),
        ("protocol_type", pa.string()),
        ("protocol", pa.string()),
        ("epoch", pa.int32()),
        ("state_ms", pa.int64()),
        ("members", pa.list_(_MEMBER)),
        ("offsets_partition", pa.int32()),
        ("commits", pa.int64()),
        ("pending_commits", pa.int64()),
        ("lag", pa.int64()),
        ("error", pa.string()),
        ("commits_without_log", pa.int64()),
        ("not_loaded", pa.string()),
    ]
)
COMMIT_SCHEMA: Final = pa.schema(
    [
        ("root", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("metadata", pa.string()),
        ("leader_epoch", pa.int32()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("high_watermark", pa.int64()),
        ("lag", pa.int64()),
        ("high_watermark_lag", pa.int64()),
        ("commit_ms", pa.int64()),
        ("expires_ms", pa.int64()),
        ("topic_id", pa.string()),
        ("offsets_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("findings", _TEXTS),
        ("error", pa.string()),
        ("local_log_start_offset", pa.int64()),
        ("delivery_complete_count", pa.int64()),
    ]
)
HOLDING_SCHEMA: Final = pa.schema(
    [
        ("root", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("verdict", pa.string()),
        ("holds_stable_offset", pa.bool_()),
        ("first_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("last_timestamp", pa.int64()),
        ("age_ms", pa.int64()),
        ("is_late", pa.bool_()),
        ("transactional_id", pa.string()),
        ("state", pa.string()),
        ("start_ms", pa.int64()),
        ("timeout_ms", pa.int64()),
        ("command", pa.string()),
        ("error", pa.string()),
        ("outcome", pa.string()),
    ]
)
TRANSACTION_SCHEMA: Final = pa.schema(
    [
        ("root", pa.string()),
        ("transactional_id", pa.string()),
        ("state", pa.string()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("partitions", _TEXTS),
        ("start_ms", pa.int64()),
        ("update_ms", pa.int64()),
        ("timeout_ms", pa.int64()),
        ("is_in_flight", pa.bool_()),
        ("is_overdue", pa.bool_()),
        ("state_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What a look at coordinators' partitions needs to know."""

    now_ms: int
    broker: BrokerConfig
    # Of those that somebody has said; the others are Kafka's defaults.
    explicit_names: frozenset[str] = frozenset()


def observe_groups(
    views: Sequence[RootView],
    settings: CoordinatorSettings,
    *,
    is_asked_for: Callable[[str], bool],
    beside: Sequence[RootView] = (),
) -> Iterator[CoordinatorRow]:
    """Yield a broker's groups, their places in logs, and read errors.

    Args:
        is_asked_for: Of a topic's name; of other topics no places are wanted.
        beside: Roots of other brokers: their coordinators decide on transactions too.
    """
    logs = _ObservedLogs(views, settings)
    shared: dict[str, list[dict[str, Any]]] = {}
    yield from _collect_shared(views, logs, is_asked_for, shared)
    count = _partition_count(views, settings, CONSUMER_OFFSETS_TOPIC)
    for view, entry in _partitions(views, CONSUMER_OFFSETS_TOPIC):
        image = GroupImage()
        error = _replay(view, entry, image.apply)
        if error is not None:
            yield error
        groups = image.groups()
        topics = {key.topic for key in image.offsets}
        topics.update(*(group.subscribed_topics or () for group in groups))
        audited = audit_commits(
            [group for group in groups if group.type is not GroupType.SHARE],
            image.offsets,
            logs.bounds_of({topic for topic in topics if is_asked_for(topic)}),
            AuditSettings(
                now_ms=settings.now_ms,
                retention_ms=settings.broker.offsets_retention_minutes * _MS_OF_MINUTE,
                max_metadata_bytes=settings.broker.offset_metadata_max_bytes,
                partition_count=count,
            ),
            partition=_number(entry),
        )
        not_loaded = _not_loaded(image.undecoded)
        places: dict[str, list[AuditedCommit]] = {}
        for place in audited:
            if is_asked_for(place.key.topic):
                places.setdefault(place.key.group, []).append(place)
        for group in groups:
            rows = [_commit_row(view, entry, place) for place in places.get(group.group, [])]
            rows += shared.pop(group.group, [])
            for row in rows if not_loaded is not None else []:
                row["findings"].append(CommitFinding.NOT_LOADED)
            group_row = _group_row(view, entry, group, rows, image.pending)
            yield "group", {**group_row, "not_loaded": not_loaded}
            yield from (("commit", row) for row in rows)
        pending = [commit for commit in image.pending if is_asked_for(commit.key.topic)]
        coordinators = _join([*views, *beside], settings) if pending else TransactionCoordinators()
        for commit in pending:
            yield "pending_commit", _pending_row(view, entry, commit, coordinators)
        yield from _undecoded_rows(view, entry, image.undecoded)
    # Of those whose group coordinator is elsewhere.
    yield from (("commit", row) for rows in shared.values() for row in rows)
    yield from logs.errors


def _collect_shared(
    views: Sequence[RootView],
    logs: "_ObservedLogs",
    is_asked_for: Callable[[str], bool],
    shared: dict[str, list[dict[str, Any]]],
) -> Iterator[CoordinatorRow]:
    """Add the places of share groups, by group; yield read errors."""
    names: dict[str, str] | None = None
    for view, entry in _partitions(views, SHARE_STATE_TOPIC):
        image = ShareImage()
        error = _replay(view, entry, image.apply)
        if error is not None:
            yield error
        if image.offsets and names is None:
            names = _topic_names(views)
        for key, offset in sorted(image.offsets.items()):
            topic = (names or {}).get(key.topic_id, key.topic_id)
            if is_asked_for(topic):
                place = TopicPartition(topic, key.partition)
                bounds = logs.bounds_of({topic}).get(place)
                row = _share_row(view, entry, key, place, offset, bounds)
                shared.setdefault(key.group, []).append(row)
        yield from _undecoded_rows(view, entry, image.undecoded)


def _topic_names(views: Sequence[RootView]) -> dict[str, str]:
    """Return the names of topics by id."""
    names = {
        entry.topic_id: entry.topic_partition.topic
        for view in views
        for entry in view.entries
        if entry.topic_id is not None and entry.topic_partition is not None
    }
    metadata = next((view.metadata for view in views if view.metadata is not None), None)
    if metadata is not None:
        with suppress(PylogError):  # the view has the error
            topics = read_cluster_metadata(metadata).topics
            names |= {topic_id: topic.name for topic_id, topic in topics.items()}
    return names


def observe_transactions(
    views: Sequence[RootView],
    settings: CoordinatorSettings,
    *,
    is_asked_for: Callable[[str], bool],
    beside: Sequence[RootView] = (),
) -> Iterator[CoordinatorRow]:
    """Yield open transactions of a broker's logs, then its coordinators' transactions.

    Args:
        is_asked_for: Of a topic's name; of other topics' logs nothing is wanted.
        beside: Roots of other brokers: their coordinators decide on transactions too.
    """
    of_coordinators: list[CoordinatorRow] = []
    own = list(_coordinators(views))
    for each in own:
        if each.error is not None:
            yield each.error
        of_coordinators += [
            ("transaction", _entry_row(each.view, each.entry, transaction, settings.now_ms))
            for transaction in each.image.entries
        ]
        of_coordinators += _undecoded_rows(each.view, each.entry, each.image.undecoded)
    logs = _ObservedLogs(views, settings)
    observed = logs.observe_all(is_asked_for)
    judged = judge_open_transactions(
        {place: log.open_transactions for place, log in observed.items() if log.open_transactions},
        _join([*views, *beside], settings, own),
        now_ms=settings.now_ms,
    )
    for holding in judged:
        bounds = observed[holding.partition].bounds
        view = logs.holders[holding.partition]
        yield "open_transaction", _holding_row(view, holding, bounds.log_end_offset)
    yield from of_coordinators
    yield from logs.errors


def views_beside(
    of_broker: Sequence[RootView], brokers: Sequence[Sequence[RootView]]
) -> list[RootView]:
    """Return the roots of the other brokers of one broker's cluster."""
    clusters = {view.properties.cluster_id for view in of_broker if view.properties is not None}
    return [
        view
        for other in brokers
        if other is not of_broker
        for view in other
        if view.properties is not None and view.properties.cluster_id in clusters
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coordinator:
    """A replica of a partition of ``__transaction_state``, replayed."""

    view: RootView
    entry: SubDirectory
    image: TransactionImage
    error: CoordinatorRow | None  # the row of what stopped the reading, None where nothing did


def _coordinators(views: Sequence[RootView]) -> Iterator[_Coordinator]:
    """Yield the replicas of ``__transaction_state`` in some roots."""
    for view, entry in _partitions(views, TRANSACTION_STATE_TOPIC):
        image = TransactionImage()
        error = _replay(view, entry, image.apply)
        yield _Coordinator(view=view, entry=entry, image=image, error=error)


def _join(
    views: Sequence[RootView], settings: CoordinatorSettings, own: Sequence[_Coordinator] = ()
) -> TransactionCoordinators:
    """Return what the coordinators in some roots know together.

    Of several replicas of a partition the one with the newest record counts. One that is damaged
    decides nothing: the record that decides may lie behind the damage.

    Args:
        settings: What the broker's settings say.
        own: Those that were replayed already, of the first of these roots.
    """
    there = {each.view.row["root"] for each in own}
    others = [view for view in views if view.row["root"] not in there]
    newest: dict[int, _Coordinator] = {}
    for each in [*own, *_coordinators(others)]:
        former = newest.setdefault(_number(each.entry), each)
        if each.image.last_offset > former.image.last_offset:
            newest[_number(each.entry)] = each
    whole = {
        number: each
        for number, each in newest.items()
        if each.error is None and not each.image.undecoded
    }
    absent = name_absent_coordinators(
        whole, _partition_count(views, settings, TRANSACTION_STATE_TOPIC)
    )
    entries = [entry for each in whole.values() for entry in each.image.entries]
    return TransactionCoordinators.of(entries, absent=absent)


class _ObservedLogs:
    """The logs of a broker's roots, each observed once on demand."""

    def __init__(self, views: Sequence[RootView], settings: CoordinatorSettings) -> None:
        self._views = views
        self._settings = settings
        self._observed: dict[TopicPartition, ObservedLog] = {}
        self._tried: set[TopicPartition] = set()
        self.holders: dict[TopicPartition, RootView] = {}
        self.errors: list[CoordinatorRow] = []

    def bounds_of(self, topics: set[str]) -> dict[TopicPartition, Any]:
        """Return where the logs of some topics begin and end."""
        observed = self.observe_all(lambda topic: topic in topics)
        return {place: log.bounds for place, log in observed.items()}

    def observe_all(
        self, is_asked_for: Callable[[str], bool]
    ) -> Mapping[TopicPartition, ObservedLog]:
        """Return the logs of the wanted topics; note unreadable ones as errors."""
        logs = {}
        for view in self._views:
            for entry in view.entries:
                place = entry.topic_partition
                if place is None or entry.kind is not DirectoryKind.PARTITION:
                    continue
                if not is_asked_for(place.topic):
                    continue
                if place not in self._tried:
                    self._tried.add(place)
                    self._observe(view, entry, place)
                if place in self._observed:
                    logs[place] = self._observed[place]
        return logs

    def _observe(self, view: RootView, entry: SubDirectory, place: TopicPartition) -> None:
        try:
            store = open_store(entry.path)
            checkpoints = partition_checkpoints(store, place, lambda: view.checkpoints)
            self._observed[place] = observe_log(
                settle(store),
                now_ms=self._settings.now_ms,
                max_transaction_timeout_ms=self._settings.broker.transaction_max_timeout_ms,
                checkpoints=checkpoints,
                tier_start=lambda local: view.remote.tier_start(
                    store,
                    place,
                    checkpoints,
                    local,
                    is_tiered=lambda: view.is_tiered(place.topic),
                ),
            )
            self.holders[place] = view
        except PylogError as error:
            self.errors.append(_error_row(view, entry, error))


def _partitions(views: Sequence[RootView], topic: str) -> list[tuple[RootView, SubDirectory]]:
    partitions = [
        (view, entry)
        for view in views
        for entry in view.entries
        if entry.kind is DirectoryKind.PARTITION
        and entry.topic_partition is not None
        and entry.topic_partition.topic == topic
    ]
    return sorted(partitions, key=lambda one: _number(one[1]))


def _number(entry: SubDirectory) -> int:
    return -1 if entry.topic_partition is None else entry.topic_partition.partition


def _replay(
    view: RootView, entry: SubDirectory, apply: Callable[[ReplayedRecord | TransactionEnd], None]
) -> CoordinatorRow | None:
    """Feed a coordinator's partition to its image; return an error row. It is the row of what
    stopped the reading, None where nothing did."""
    place = entry.topic_partition
    if place is None:
        return None
    try:
        store = open_store(entry.path)
        checkpoints = partition_checkpoints(store, place, lambda: view.checkpoints)
        start = checkpoints.log_start_offset or 0
        for event in replay_partition(settle(store), place.topic, start_offset=start):
            apply(event)
    except PylogError as error:
        return _error_row(view, entry, error)
    return None


def _partition_count(
    views: Sequence[RootView], settings: CoordinatorSettings, topic: str
) -> int | None:
    """Return an internal topic's number of partitions, or None if unknown."""
    metadata = next((view.metadata for view in views if view.metadata is not None), None)
    if metadata is not None:
        try:
            topics = read_cluster_metadata(metadata, is_recovered=True).topics_by_name()
            topic_metadata = topics.get(topic)
        except PylogError:
            topic_metadata = None  # the view has the error
        if topic_metadata is not None:
            return len(topic_metadata.partitions)
    key = {
        CONSUMER_OFFSETS_TOPIC: "offsets.topic.num.partitions",
        TRANSACTION_STATE_TOPIC: "transaction.state.log.num.partitions",
    }[topic]
    count: int = getattr(settings.broker, key.replace(".", "_"))
    return count if key in settings.explicit_names else None


def _group_row(
    view: RootView,
    entry: SubDirectory,
    group: Group,
    places: list[dict[str, Any]],
    pending: tuple[CommittedOffset, ...],
) -> dict[str, Any]:
    lags = [place["lag"] for place in places if place["lag"] is not None]
    committed = [place for place in places if place["commit_ms"] is not None]
    return {
        "root": view.row["root"],
        "group": group.group,
        "group_type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "epoch": group.epoch,
        "state_ms": group.state_ms,
        "members": [_member_row(member) for member in group.members],
        "offsets_partition": _number(entry),
        "commits": len(committed),
        "pending_commits": sum(commit.key.group == group.group for commit in pending),
        "lag": sum(lags) if lags else None,
        "commits_without_log": sum(place["log_end_offset"] is None for place in committed),
    }


def _member_row(member: Any) -> dict[str, Any]:
    row = asdict(member)
    if member.assigned is not None:
        row["assigned"] = list(map(str, member.assigned))
    return row


def _commit_row(view: RootView, entry: SubDirectory, place: AuditedCommit) -> dict[str, Any]:
    commit, bounds = place.commit, place.bounds
    return {
        "root": view.row["root"],
        **place.key._asdict(),
        # What a coordinator answers for a partition without a commit.
        "offset": NO_OFFSET if commit is None else commit.offset,
        "metadata": "" if commit is None else commit.metadata,
        "leader_epoch": None if commit is None else commit.leader_epoch,
        "log_start_offset": None if bounds is None else bounds.log_start_offset,
        "log_end_offset": None if bounds is None else bounds.log_end_offset,
        "high_watermark": None if bounds is None else bounds.high_watermark,
        "lag": place.lag,
        "high_watermark_lag": place.high_watermark_lag,
        "commit_ms": None if commit is None else commit.commit_ms,
        "expires_ms": place.expires_ms,
        "topic_id": None if commit is None else commit.topic_id,
        "offsets_partition": _number(entry),
        "record_offset": None if commit is None else commit.record_offset,
        "findings": list(place.findings),
        "local_log_start_offset": None if bounds is None else bounds.local_start,
        "delivery_complete_count": None,
    }


def _share_row(
    view: RootView,
    entry: SubDirectory,
    key: ShareKey,
    place: TopicPartition,
    offset: ShareOffset,
    bounds: TierBounds | None,
) -> dict[str, Any]:
    high_watermark = None if bounds is None else bounds.high_watermark
    has_read = offset.start_offset >= 0
    return {
        "root": view.row["root"],
        "group": key.group,
        "topic": place.topic,
        "partition": place.partition,
        "offset": offset.start_offset,
        "metadata": "",
        "leader_epoch": offset.leader_epoch,
        "log_start_offset": None if bounds is None else bounds.log_start_offset,
        "log_end_offset": None if bounds is None else bounds.log_end_offset,
        "high_watermark": high_watermark,
        "lag": None if bounds is None else offset.lag(bounds.log_end_offset),
        "high_watermark_lag": None if high_watermark is None else offset.lag(high_watermark),
        "commit_ms": offset.write_ms if has_read else None,
        "expires_ms": None,
        "topic_id": key.topic_id,
        "offsets_partition": _number(entry),
        "record_offset": offset.record_offset,
        "findings": list(find_outside(offset.start_offset, bounds)) if has_read else [],
        "local_log_start_offset": None if bounds is None else bounds.local_start,
        "delivery_complete_count": offset.complete_count,
    }


def _pending_row(
    view: RootView,
    entry: SubDirectory,
    commit: CommittedOffset,
    coordinators: TransactionCoordinators,
) -> dict[str, Any]:
    place = TopicPartition(CONSUMER_OFFSETS_TOPIC, _number(entry))
    return {
        "root": view.row["root"],
        **commit.key._asdict(),
        "offset": commit.offset,
        "metadata": commit.metadata,
        "commit_ms": commit.commit_ms,
        "producer_id": commit.producer_id,
        "offsets_partition": _number(entry),
        "record_offset": commit.record_offset,
        "producer_epoch": commit.producer_epoch,
        "outcome": coordinators.decide(place, commit.producer_id, commit.producer_epoch).outcome,
    }


def _holding_row(view: RootView, holding: HoldingTransaction, log_end: int) -> dict[str, Any]:
    entry = holding.entry
    return {
        "root": view.row["root"],
        "topic": holding.partition.topic,
        "partition": holding.partition.partition,
        "verdict": holding.verdict,
        "holds_stable_offset": holding.holds_stable_offset,
        "first_offset": holding.open.first_offset,
        "log_end_offset": log_end,
        "producer_id": holding.open.producer_id,
        "producer_epoch": holding.open.producer_epoch,
        "last_timestamp": holding.open.last_timestamp,
        "age_ms": holding.open.age_ms,
        "is_late": holding.open.is_late,
        "transactional_id": None if entry is None else entry.transactional_id,
        "state": None if entry is None else entry.state.label,
        "start_ms": None if entry is None else entry.start_ms,
        "timeout_ms": None if entry is None else entry.timeout_ms,
        "command": holding.command or None,
        "outcome": holding.outcome,
    }


def _entry_row(
    view: RootView, entry: SubDirectory, transaction: TransactionEntry, now_ms: int
) -> dict[str, Any]:
    return {
        "root": view.row["root"],
        "transactional_id": transaction.transactional_id,
        "state": transaction.state.label,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "partitions": list(map(str, transaction.partitions)),
        "start_ms": transaction.start_ms,
        "update_ms": transaction.update_ms,
        "timeout_ms": transaction.timeout_ms,
        "is_in_flight": transaction.is_in_flight,
        "is_overdue": transaction.is_overdue(now_ms),
        "state_partition": _number(entry),
        "record_offset": transaction.record_offset,
    }


def _not_loaded(undecoded: tuple[Undecoded, ...]) -> str | None:
    """Return why a group coordinator does not load its partition, or None."""
    first = next((kind for kind in undecoded if kind.stops_load(CONSUMER_OFFSETS_TOPIC)), None)
    return None if first is None else f"record at offset {first.first_offset}: {first.reason}"


def _undecoded_rows(
    view: RootView, entry: SubDirectory, undecoded: tuple[Undecoded, ...]
) -> list[CoordinatorRow]:
    place = {"root": view.row["root"], "directory": entry.name}
    topic = "" if entry.topic_partition is None else entry.topic_partition.topic
    return [
        (
            "undecoded",
            {
                **place,
                "problem": kind.problem,
                "record_type": kind.type,
                "type_id": kind.type_id,
                "version": kind.version,
                "first_offset": kind.first_offset,
                "count": kind.count,
                "reason": kind.reason,
                "stops_load": kind.stops_load(topic),
            },
        )
        for kind in undecoded
    ]


def _error_row(view: RootView, entry: SubDirectory, error: PylogError) -> CoordinatorRow:
    place = entry.topic_partition
    return "partition", {
        "root": view.row["root"],
        "topic": None if place is None else place.topic,
        "partition": None if place is None else place.partition,
        "directory": entry.name,
        **describe_failure(error),
    }
