"""Elections of audited partitions, and the order of starts that loses least."""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.cluster.elections import (
    ELR_FEATURE,
    NO_LEADER,
    Controller,
    Election,
    StartingBroker,
    order_of_sessions,
    predict_election,
)
from storage_core.cluster.places import PartitionRegistration, TopicIdPartition
from storage_core.cluster.replica import HindranceKind
from storage_core.errors import ConfigError
from storage_core.formats.error_codes import KafkaErrorCode
from storage_core.log.leader_epoch_cache import find_doubtful_entries
from storage_core.maintenance.verification.observed_root import ObservedRoot, broker_epoch_of
from storage_core.wording import count_text

# Remarks of an audit on replication, epochs and ids of partitions. An answer has them beside the
# losses.

_NO_LEADER: Final = -1
# Marks of copies that are no replica of their broker.
_BESIDE: Final = ("future", "stray", "delete")


class Remark(enum.StrEnum):
    """Stable codes of remarks."""

    UNDER_REPLICATED = "UNDER_REPLICATED"
    UNDER_MIN_ISR = "UNDER_MIN_ISR"
    OFFLINE = "OFFLINE"
    REPLICA_OFFLINE = "REPLICA_OFFLINE"
    HIGH_WATERMARK_STALE = "HIGH_WATERMARK_STALE"
    BROKER_UNCLEAN = "BROKER_UNCLEAN"
    LEADER_EPOCH_UNKNOWN = "LEADER_EPOCH_UNKNOWN"
    LEADER_EPOCH_FENCED = "LEADER_EPOCH_FENCED"
    EPOCH_DOUBTFUL = "EPOCH_DOUBTFUL"
    TOPIC_ID_INCONSISTENT = "TOPIC_ID_INCONSISTENT"
    TOPIC_ID_UNKNOWN = "TOPIC_ID_UNKNOWN"
    ROOT_UNREADABLE = "ROOT_UNREADABLE"
    ROOT_IN_USE = "ROOT_IN_USE"


_KAFKA_ERRORS: Final = {
    Remark.OFFLINE: KafkaErrorCode.LEADER_NOT_AVAILABLE,
    Remark.REPLICA_OFFLINE: KafkaErrorCode.KAFKA_STORAGE_ERROR,
    Remark.HIGH_WATERMARK_STALE: KafkaErrorCode.OFFSET_NOT_AVAILABLE,
    Remark.LEADER_EPOCH_UNKNOWN: KafkaErrorCode.UNKNOWN_LEADER_EPOCH,
    Remark.LEADER_EPOCH_FENCED: KafkaErrorCode.FENCED_LEADER_EPOCH,
    Remark.TOPIC_ID_INCONSISTENT: KafkaErrorCode.INCONSISTENT_TOPIC_ID,
    Remark.TOPIC_ID_UNKNOWN: KafkaErrorCode.UNKNOWN_TOPIC_ID,
    Remark.ROOT_UNREADABLE: KafkaErrorCode.KAFKA_STORAGE_ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside one partition."""

    states: dict[TopicIdPartition, PartitionRegistration]
    topic_ids: frozenset[str]  # ids of all topics that somebody knows
    # Ids under each topic's name and number, in directories and in what is known.
    ids_of: dict[tuple[str, int], set[str]]
    unclean: frozenset[int]  # node ids of brokers whose markers lack their last broker epoch
    leader_epoch: int | None  # epoch that the next leader is to have; None where nobody says one
    unread: Mapping[str, str]
    in_use: frozenset[str]  # log directories whose lock somebody holds


def find_remarks(answer: dict[str, Any], surroundings: Surroundings) -> list[dict[str, Any]]:
    """Return what has to be said about a partition."""
    key = answer["topic"], answer["partition"], answer["topic_id"]
    replicas = own_replicas(answer)
    state = surroundings.states.get(key)
    messages = [
        *_of_ids(key, surroundings, replicas),
        *_of_epochs(replicas, state, surroundings.leader_epoch),
        *_of_doubtful_epochs(replicas, answer.get("candidates") or ()),
    ]
    messages += [*_of_replicas(replicas)]
    if state is None or answer["unseen"]:
        for reason in surroundings.unread.values():
            text = f"{reason}: a replica may lie there, which was not compared"
            messages.append((Remark.ROOT_UNREADABLE, None, text))
    for each in replicas:
        if each["root"] in surroundings.in_use:
            text = f"{each['root']} is in use: what is written meanwhile may be missing"
            messages.append((Remark.ROOT_IN_USE, each["broker"], text))
    if state is not None:
        messages += _of_state(state, surroundings.unclean)
    remarks = []
    for remark, broker, message in messages:
        error = _KAFKA_ERRORS.get(remark)
        remarks.append(
            {
                "code": str(remark),
                "broker": broker,
                "message": message,
                "kafka_code": None if error is None else int(error),
                "kafka_error": None if error is None else error.name,
            }
        )
    return remarks


def own_replicas(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an answer's replicas without copies left by moves and deletions."""
    return [each for each in answer["replicas"] or () if not any(map(each.get, _BESIDE))]


# By whether it is the log's last batch: nothing behind that says that it is wrong.
_WAYS: Final = {
    False: "`pylog heal` takes the batch from another replica",
    True: "move that directory away, and its broker fetches the partition anew",
}
_Found = tuple[Remark, int | None, str]


def _of_ids(
    key: TopicIdPartition, surroundings: Surroundings, replicas: Sequence[dict[str, Any]]
) -> Iterator[_Found]:
    topic, partition, topic_id = key
    ids = surroundings.ids_of.get((topic, partition), set())
    if len(ids) > 1:
        text = f"{topic}-{partition} is the name of {len(ids)} topic ids: {', '.join(sorted(ids))}"
        yield Remark.TOPIC_ID_INCONSISTENT, None, text
    if (
        surroundings.topic_ids
        and topic_id is not None
        and topic_id not in surroundings.topic_ids
        and replicas
    ):
        text = f"the cluster's metadata lack topic id {topic_id}: a start makes it a stray"
        yield Remark.TOPIC_ID_UNKNOWN, None, text


def _of_epochs(
    replicas: Sequence[dict[str, Any]],
    state: PartitionRegistration | None,
    leader_epoch: int | None,
) -> Iterator[_Found]:
    newest = -1 if state is None else state.leader_epoch
    for each in replicas:
        epochs = each.get("epochs") or []
        others = [
            (_entries(other), other.get("log_end", 0)) for other in replicas if other is not each
        ]
        doubtful = (
            find_doubtful_entries(_entries(each), others, leader_epoch=state.leader_epoch)
            if state
            else []
        )
        above = [(epoch, start) for epoch, start in epochs if state and epoch > state.leader_epoch]
        if state is not None and doubtful:
            epoch, start = doubtful[0].epoch, doubtful[0].start_offset
            text = (
                f"broker {each['broker']} has epoch {epoch} from offset {start} on, above leader "
                f"epoch {state.leader_epoch} of the metadata, and another one than other replicas "
                "have there: these are older than the log, or a bit of the epoch flipped, which no "
                "checksum covers; as a follower it then never catches up. `pylog verify` names the "
                "batch, and `pylog explain EPOCH_DOUBTFUL` says what to do"
            )
            yield Remark.LEADER_EPOCH_UNKNOWN, each["broker"], text
        elif state is not None and above:
            epoch, start = above[0]
            text = (
                f"broker {each['broker']} has epoch {epoch} from offset {start} on, above leader "
                f"epoch {state.leader_epoch} of the metadata: these are older than the log"
            )
            yield Remark.LEADER_EPOCH_UNKNOWN, each["broker"], text
        newest = max([newest, *(epoch for epoch, _ in epochs)])
    if leader_epoch is not None and leader_epoch <= newest:
        text = f"leader epoch {leader_epoch} is not above epoch {newest}, which is known: fenced"
        yield Remark.LEADER_EPOCH_FENCED, None, text


def _of_doubtful_epochs(
    replicas: Sequence[dict[str, Any]], candidates: Sequence[dict[str, Any]]
) -> Iterator[_Found]:
    for each in replicas:
        doubtful = each.get("doubtful_epochs") or []
        if not doubtful:
            continue
        first = doubtful[0]
        wanted = f"{first['least']} to {first['most']}"
        if first["least"] == first["most"]:
            wanted = str(first["least"])
        text = (
            f"broker {each['broker']} has leader epoch {first['epoch']} at offset "
            f"{first['offset']} ({first['file']} at {first['position']}), expected {wanted}: "
            "perhaps a flipped bit, which no checksum covers"
        )
        if len(doubtful) > 1:
            text += f", and {count_text(len(doubtful) - 1, 'more such epoch')}"
        wrong = {(one["epoch"], one["offset"]) for one in doubtful}
        is_last = first["last_offset"] + 1 == each["log_end"]
        has_other = any(
            other.get("log_end", 0) > first["last_offset"]
            for other in replicas
            if other is not each
        )
        way = _WAYS[is_last] if has_other else "no other replica has that batch"
        text += f"; {_misled(each['broker'], wrong, candidates)}: {way}"
        yield Remark.EPOCH_DOUBTFUL, each["broker"], text


def _misled(
    broker: int | None, wrong: set[tuple[int, int]], candidates: Sequence[dict[str, Any]]
) -> str:
    """Return what brokers make of the doubtful epochs of one of them."""
    stuck: dict[int | None, list[str]] = {}
    for candidate in candidates:
        for cut in candidate["truncations"]:
            hindrance = cut.get("never_in_sync")
            owner = candidate["broker"]
            if hindrance is not None and hindrance["why"] == HindranceKind.EPOCH_UNKNOWN:
                owner = cut["broker"]
            if (
                hindrance is not None
                and owner == broker
                and (hindrance["epoch"], hindrance["offset"]) in wrong
            ):
                stuck.setdefault(cut["broker"], []).append(str(candidate["broker"]))
    if not stuck:
        return "no start goes by it, and no follower has to take it"
    parts = [
        f"broker {follower} never is in sync while broker {' or '.join(leaders)} leads"
        for follower, leaders in stuck.items()
    ]
    return ", ".join(parts)


def _entries(replica: Mapping[str, Any]) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in replica.get("epochs") or []]


def _of_replicas(replicas: Sequence[dict[str, Any]]) -> Iterator[_Found]:
    longest = max((each["log_end"] for each in replicas if "log_end" in each), default=0)
    for each in replicas:
        broker = each["broker"]
        if "log_end" not in each:
            text = f"broker {broker} cannot open its replica: {each['error']}"
            yield Remark.REPLICA_OFFLINE, broker, text
            continue
        behind = longest - each["log_end"]
        if behind:
            text = f"broker {broker} ends {count_text(behind, 'offset')} before the longest log"
            yield Remark.UNDER_REPLICATED, broker, text
        high_watermark, epochs = each["high_watermark"] or 0, each["epochs"]
        if epochs and high_watermark < epochs[-1][1]:
            epoch, start = epochs[-1]
            text = (
                f"broker {broker} has high watermark {high_watermark}, below the start of its "
                f"epoch {epoch} at {start}: as a leader it answers no offset until it rises"
            )
            yield Remark.HIGH_WATERMARK_STALE, broker, text


def _of_state(state: PartitionRegistration, unclean: frozenset[int]) -> Iterator[_Found]:
    if state.leader == _NO_LEADER:
        yield Remark.OFFLINE, None, "it has no leader"
    if len(state.isr) < state.min_insync_replicas:
        text = f"{count_text(len(state.isr), 'replica')} in sync, min.insync.replicas is "
        yield Remark.UNDER_MIN_ISR, None, f"{text}{state.min_insync_replicas}"
    for broker in (*state.isr, *state.elr):
        if broker in unclean:
            text = (
                f"broker {broker} leaves ISR and ELR when it registers: it counts as killed. "
                "Where all replicas have the same, `pylog audit ROOT... --role broker --attest` "
                "lets it keep its place"
            )
            yield Remark.BROKER_UNCLEAN, broker, text


# Five brokers have 120 orders, of which each partition has at most 60 of its own.
_MOST_COMPARED: Final = 5
# Of a directory that gets its id at the start.
_NEW_DIRECTORY_ID: Final = "new"

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """What all partitions together lose if brokers start in an order."""

    brokers: tuple[int, ...]  # node ids, the first to start first
    lost_committed: int = 0
    lost_records: int = 0
    lost_unknown: int = 0  # records lost of which nobody knows whether they were committed
    unknown: int = 0  # partitions whose leader's loss is not known
    offline: int = 0
    # Partitions that get another leader, or none, if a broker is unfenced before it names their new
    # log directory; of both leaders the larger loss counts.
    unsure: int = 0

    @property
    def loss(self) -> tuple[int, int, int, int]:
        """What orders are compared by, the best one first."""
        return self.lost_committed, self.lost_records, self.unknown, self.offline


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualElection:
    """A start with elections by hand before the last brokers start."""

    # The brokers that start before the elections, and what is lost with the leaders that are
    # elected then.
    start: StartOrder
    later: tuple[int, ...]  # node ids of those that start afterwards
    partitions: int  # how many get a leader that way

    def loses_less_than(self, order: StartOrder) -> bool:
        """Return whether it loses less than a start order without it. A partition that waits for
        a leader loses nothing."""
        return self.start.loss[:-1] < order.loss[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """The requested start order and the best order of the same brokers."""

    asked: StartOrder  # in the order that was asked about
    least: StartOrder  # the order that loses least; the one asked about where no other is better
    notes: tuple[str, ...]  # what a person should know about the brokers
    # What loses less, or leads more partitions, if leaders are elected by hand; None where that
    # helps nothing.
    manual: ManualElection | None = None


def controller_of(
    metadata: ClusterMetadata | None,
    states: Sequence[PartitionRegistration],
    *,
    is_by_file: bool,
) -> Controller:
    """Return the controller's view of brokers.

    Args:
        metadata: The newest metadata that were found.
        is_by_file: Whether these are not the metadata's, but a file's: then exactly the brokers
            that are in sync of a partition with a leader are not fenced.
    """
    brokers = {} if metadata is None else metadata.brokers
    unfenced = order_of_sessions(list(brokers.values()))
    if is_by_file or metadata is None:
        alive = {broker for state in states if state.leader != NO_LEADER for broker in state.isr}
        registrations = [
            replace(each, fenced=each.broker_id not in alive) for each in brokers.values()
        ]
        unfenced = (*order_of_sessions(registrations), *sorted(alive - brokers.keys()))
    # Every 4.x cluster that was formatted as such has an ELR.
    level = 1 if metadata is None else metadata.feature_levels.get(ELR_FEATURE, 0)
    return Controller(
        is_elr_enabled=level >= 1,
        unfenced=unfenced,
        stopping=frozenset(
            broker.broker_id for broker in brokers.values() if broker.in_controlled_shutdown
        ),
        directories={broker.broker_id: broker.log_directories for broker in brokers.values()},
    )


def find_starting(
    up: Sequence[int], roots: Sequence[ObservedRoot], metadata: ClusterMetadata | None
) -> tuple[list[StartingBroker], list[str]]:
    """Return the starting brokers as the controller sees them, with notes."""
    starting, notes = [], []
    for broker in up:
        registered = None if metadata is None else metadata.brokers.get(broker)
        own = [
            root
            for root in roots
            if root.meta_properties is not None and root.meta_properties.node_id == broker
        ]
        if not own and registered is None and metadata is not None:
            names = ", ".join(map(str, sorted(metadata.brokers))) or "none"
            raise ConfigError("--up", broker, f"is no broker of the cluster; these are: {names}")
        epochs = {None if root.marker is None else root.marker.broker_epoch for root in own}
        if not own:
            is_clean = True
            notes.append(
                f"broker {broker}: no directory was read; taken as one that stopped cleanly"
            )
        elif registered is None:
            is_clean = None not in epochs
            notes.append(
                f"broker {broker}: its last broker epoch is not known; its markers are believed"
            )
        else:
            # Rebuilt metadata name no epoch for a broker that was killed: it keeps its place.
            is_clean = broker_epoch_of(own) == registered.broker_epoch
            if not is_clean:
                marker_epochs = ", ".join("none" if each is None else str(each) for each in epochs)
                notes.append(
                    f"broker {broker} counts as killed: it leaves ISR and ELR when it registers "
                    f"(marker of a clean shutdown: {marker_epochs}, expected broker epoch "
                    f"{registered.broker_epoch})"
                )
        expected = () if registered is None else registered.log_directories
        ids = [root.directory_id for root in own]
        directories = tuple(each or _NEW_DIRECTORY_ID for each in ids)
        if len(ids) < len(expected):
            # The others are taken as being there as well.
            directories += tuple(each for each in expected if each not in directories)
            if own:
                notes.append(
                    f"broker {broker}: {len(own)} of its {len(expected)} log directories were given"
                )
        elif None in ids and not expected:
            directories = ()
        new = [root.location for root in own if root.directory_id not in expected]
        if expected and new:
            places = ", ".join(new)
            notes.append(
                f"broker {broker} never registered {places}: formatted anew, or not its disk"
            )
        starting.append(StartingBroker(broker=broker, is_clean=is_clean, directories=directories))
    return starting, notes


def add_elections(
    answers: Sequence[_Row],
    states: Sequence[PartitionRegistration],
    controller: Controller,
    starting: Sequence[StartingBroker],
    notes: Sequence[str],
) -> Starts:
    """Write elections into the answers about partitions, and return what starts lose.

    Args:
        controller: What it knows of brokers.
        starting: The brokers that start, in order.
    """
    failed = _failed_roots(answers)
    stopped = [each.broker for each in starting if failed.get(each.broker, False)]
    starting = [each for each in starting if each.broker not in stopped]
    all_notes = [*notes, *(f"broker {broker} cannot open its logs: it ends" for broker in stopped)]
    state_by_key: dict[TopicIdPartition, PartitionRegistration] = {
        state.key: state for state in states
    }
    partitions = []
    for answer in answers:
        state = state_by_key.get((answer["topic"], answer["partition"], answer["topic_id"]))
        if state is not None:
            partitions.append((answer, _Partition(answer, state, controller, starting)))
    all_notes += _missing_replicas(answers, starting)
    order = tuple(each.broker for each in starting)
    alone = [partition for _, partition in partitions]
    asked = least = _sum(order, alone)
    firsts = [order]
    if len(order) <= _MOST_COMPARED:
        for other in permutations(order):
            least = min(least, _sum(other, alone), key=lambda each: each.loss)
        sizes = range(len(order), 0, -1)
        firsts += [first for size in sizes for first in permutations(order, size)]
    else:
        all_notes.append(f"orders of more than {_MOST_COMPARED} brokers are not compared")
    # Of those that lose as little: most brokers at once, and fewest elections.
    best = min(
        (_elect_by_hand(first, order, alone) for first in firsts),
        key=lambda each: (each.start.loss, len(each.later), each.partitions),
    )
    is_better = best.loses_less_than(least) or best.start.offline < least.offline
    manual = best if best.partitions and is_better else None
    for answer, partition in partitions:
        answer["elections"] = {
            "up": list(order),
            **partition.describe(order),
            "steps": _steps(partition.election(order)),
            "least": {"up": list(least.brokers), **partition.describe(least.brokers)},
            "manual": None if manual is None else partition.choose(manual.start.brokers),
        }
    return Starts(asked=asked, least=least, notes=tuple(all_notes), manual=manual)


class _Partition:
    """One partition under every order of starts."""

    def __init__(
        self,
        answer: _Row,
        state: PartitionRegistration,
        controller: Controller,
        starting: Sequence[StartingBroker],
    ) -> None:
        unreadable = {each["broker"] for each in own_replicas(answer) if each.get("error")}
        self._state = state
        self._controller = controller
        self._starting = {
            each.broker: replace(each, is_readable=each.broker not in unreadable)
            for each in starting
            if each.broker in state.replicas
        }
        self._candidates = answer["candidates"]
        self._losses = {each["broker"]: each["lost"] for each in self._candidates}
        self._elections: dict[tuple[bool, tuple[int, ...]], Election] = {}

    def election(self, order: Sequence[int], *, is_late: bool = False) -> Election:
        """Return the election if brokers start in an order. Brokers without a replica change
        nothing.

        Args:
            is_late: Whether they are unfenced before they name new log directories.
        """
        own = tuple(broker for broker in order if broker in self._starting)
        if (is_late, own) not in self._elections:
            start = [self._starting[broker] for broker in own]
            self._elections[is_late, own] = predict_election(
                self._state, self._controller, start, is_assigned_late=is_late
            )
        return self._elections[is_late, own]

    def late_election(self, order: Sequence[int]) -> Election | None:
        """Return the election of late directories, None for the same leader."""
        late = self.election(order, is_late=True)
        return None if late.leader == self.election(order).leader else late

    def lost(self, order: Sequence[int], leader: int | None = None) -> Mapping[str, int] | None:
        """Return what the leader loses, None where that is not known. Of two possible leaders the
        one that loses more counts.

        Args:
            leader: The leader that is chosen; None for the elected one.
        """
        if leader is not None:
            return self._losses.get(leader)
        elections = [self.election(order), self.late_election(order)]
        leaders = [each.leader for each in elections if each and each.leader != NO_LEADER]
        if any(each not in self._losses for each in leaders):
            return None
        losses = [self._losses[each] for each in leaders]
        return max(losses, key=lambda each: (each["committed"], each["records"]), default=None)

    def choose(self, order: Sequence[int]) -> int | None:
        """Return the best candidate of some brokers without an elected leader. None where they
        elect one themselves."""
        if self.election(order).leader != NO_LEADER:
            return None
        able = [each for each in self._candidates if each["broker"] in order]
        best = min(able, key=rank_of, default=None)
        return None if best is None else int(best["broker"])

    def describe(self, order: Sequence[int]) -> _Row:
        late = self.late_election(order)
        return {
            **self._describe(self.election(order)),
            "late": None if late is None else self._describe(late),
        }

    def _describe(self, election: Election) -> _Row:
        lost = self._losses.get(election.leader)
        return {
            "leader": None if election.leader == NO_LEADER else election.leader,
            "by": str(election.way),
            "waits_for": list(election.missing),
            "lost": None
            if lost is None
            else {name: lost[name] for name in ("records", "committed", "unknown")},
        }


def rank_of(candidate: _Row) -> tuple[bool, int, int]:
    """Return the sort key of a candidate, the best one first. The candidates are those of an
    answer."""
    lost = candidate["lost"]
    return not candidate["safe"], lost["committed"], lost["records"]


def _elect_by_hand(
    first: tuple[int, ...], order: tuple[int, ...], partitions: Sequence[_Partition]
) -> ManualElection:
    """Return the start with the best of the first brokers elected. The other brokers start
    afterwards."""
    later = tuple(broker for broker in order if broker not in first)
    leaders = [partition.choose(first) for partition in partitions]
    return ManualElection(
        start=replace(_sum((*first, *later), partitions, leaders), brokers=first),
        later=later,
        partitions=len(leaders) - leaders.count(None),
    )


def _sum(
    order: tuple[int, ...],
    partitions: Sequence[_Partition],
    leaders: Sequence[int | None] | None = None,
) -> StartOrder:
    """Return the losses of all partitions in a start order. A partition's leader may be chosen
    instead of elected."""
    committed = records = perhaps = unknown = offline = unsure = 0
    for partition, leader in zip(partitions, leaders or [None] * len(partitions), strict=True):
        lost = partition.lost(order, leader)
        if leader is None and partition.election(order).leader == NO_LEADER:
            offline += 1
        elif lost is None:
            unknown += 1
        else:
            committed += lost["committed"]
            records += lost["records"]
            perhaps += lost["unknown"]
        if leader is None and partition.late_election(order) is not None:
            unsure += 1
    return StartOrder(
        brokers=order,
        lost_committed=committed,
        lost_records=records,
        lost_unknown=perhaps,
        unknown=unknown,
        offline=offline,
        unsure=unsure,
    )


def _missing_replicas(answers: Sequence[_Row], starting: Sequence[StartingBroker]) -> Iterator[str]:
    """Yield notes on brokers without some of their replicas. They begin these empty."""
    replicas = [each for answer in answers for each in own_replicas(answer)]
    missing = Counter(each["broker"] for each in replicas if each.get("missing"))
    own = Counter(each["broker"] for each in replicas)
    for broker in (each.broker for each in starting):
        if missing[broker]:
            yield (
                f"broker {broker} lacks {missing[broker]:,} of its "
                f"{count_text(own[broker], 'replica')}: it begins them empty"
            )


def _failed_roots(answers: Sequence[_Row]) -> dict[int, bool]:
    """Return, by broker, whether all its log directories have failed. A log directory has failed
    if it has a log that the broker cannot open."""
    roots: dict[int, dict[str, bool]] = {}
    for answer in answers:
        for replica in answer["replicas"]:
            places = roots.setdefault(replica["broker"], {})
            places[replica["root"]] = places.get(replica["root"], False) or "error" in replica
    return {broker: all(places.values()) for broker, places in roots.items()}


def _steps(election: Election) -> list[_Row]:
    return [
        {
            "event": str(step.event),
            "broker": step.broker,
            "leader": step.state.leader,
            "leader_epoch": step.state.leader_epoch,
            "isr": list(step.state.isr),
            "elr": list(step.state.elr),
            "last_known_elr": list(step.state.last_known_elr),
        }
        for step in election.steps
    ]


def describe_loss(records: int, committed: int, unknown: int) -> str:
    """Return the loss of some records, and whether they had been promised.

    Args:
        unknown: Those of which nobody knows it.
    """
    be = "is" if records == 1 else "are"
    lost = f"{count_text(records, 'record')} {be} lost"
    if not committed and not unknown:
        return f"{lost} that nobody was promised"
    if not committed:
        return f"{lost}, {unknown:,} of them perhaps committed"
    if committed == records:
        return f"{lost}, committed"
    return f"{lost}, {committed:,} of them committed"


def describe_start(order: StartOrder, manual: ManualElection | None = None) -> str:
    """Return an order and its loss as a person reads them.

    Args:
        manual: Elections that are held by hand after them, and who starts then; None for none.
    """
    first, *others = order.brokers or (None,)
    text = "nobody starts" if first is None else f"start {first}"
    text += "".join(f", then {broker}" for broker in others)
    if manual is not None:
        text += f", elect leaders of {count_text(manual.partitions, 'partition')} by hand"
        text += "".join(f", then start {broker}" for broker in manual.later)
    lost = "nothing is lost"
    if order.lost_records:
        lost = describe_loss(order.lost_records, order.lost_committed, order.lost_unknown)
    if order.offline:
        be = "stays" if order.offline == 1 else "stay"
        lost = f"{count_text(order.offline, 'partition')} {be} without a leader, {lost}"
    if order.unknown:
        lost += f"; the loss of {count_text(order.unknown, 'partition')} is not known"
    if order.unsure:
        lost += f"; {count_text(order.unsure, 'partition')} may get another leader, or none"
    return f"{text}: {lost}"
