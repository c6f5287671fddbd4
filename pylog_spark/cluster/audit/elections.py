"""Elections of audited partitions, and the order of starts that loses least."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

from pylog_spark.cluster.audit.remarks import own_replicas
from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.cluster.elections import (
    ELR_FEATURE,
    NO_LEADER,
    Controller,
    Election,
    StartingBroker,
    order_of_sessions,
    predict_election,
)
from storage_core.cluster.partition_registration import (
    PartitionRegistration,
    TopicIdPartition,
)
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.observed_root import ObservedRoot, broker_epoch_of
from storage_core.wording import count_text

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
