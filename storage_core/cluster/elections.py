"""Predict the leader elected by Kafka 4.4's controller as brokers start.

Nothing is read or asked here: the controller's last words about the partition and its brokers go
in, and what it then does comes out, step by step. Source: ``PartitionChangeBuilder``, and the
events of ``ReplicationControlManager`` and ``ClusterControlManager`` in
``org.apache.kafka.controller``:

1. A broker that does not run loses its session: it is fenced, and leaves the ISR. A controller
   that starts gives all unfenced brokers the same time, and then fences them in the order of a
   ``ConcurrentHashMap``.
2. A broker registers. Where eligible leader replicas (ELR) are enabled, one whose markers of a
   clean shutdown lack its last broker epoch leaves ISR and ELR.
3. It makes a new replica where the partition's log directory is gone, and says so: before it is
   unfenced, or after that. No replica leads before the controller knows its log directory.
4. It is unfenced: partitions without a leader get one, if the rules allow.
5. Every five minutes the controller looks for partitions without a leader once more.

Followers that catch up join the ISR after an election; that changes no leader, and is left out.
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage_core.catalog.metadata_image import RegisterBrokerRecord
from storage_core.checkpoint.checkpoints import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from storage_core.cluster.places import PartitionRegistration

NO_LEADER: Final = -1
ELR_FEATURE: Final = "eligible.leader.replicas.version"
# Of Java's ConcurrentHashMap, and of Kafka's TimelineHashMap: both double as they fill.
_LEAST_BINS: Final = 16
_LEAST_SLOTS: Final = 2
_FIBONACCI: Final = -7046029254386353131
_INT_MASK: Final = (1 << 32) - 1
_LONG_MASK: Final = (1 << 64) - 1


class Way(enum.StrEnum):
    """How a leader came to lead."""

    ISR = "isr"
    ELR = "elr"
    LAST_KNOWN_LEADER = "last_known_leader"
    UNCLEAN = "unclean"
    NONE = "none"


class Event(enum.StrEnum):
    """What made the controller look at a partition."""

    SESSION_ENDED = "session_ended"
    REGISTERED = "registered"
    UNFENCED = "unfenced"
    DIRECTORY_ASSIGNED = "directory_assigned"
    PERIODIC_CHECK = "periodic_check"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingBroker:
    """A broker that comes up."""

    broker: int  # node id
    is_clean: bool  # whether the markers of all its log directories have its last broker epoch
    directories: tuple[str, ...] = ()  # ids of its log directories; empty where nothing says them
    is_readable: bool = True  # whether it can open the partition's log directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """The controller's view of the cluster when the first broker comes up."""

    is_elr_enabled: bool  # whether the cluster has eligible leader replicas
    # Node ids that are not fenced, in the order in which their sessions end.
    unfenced: tuple[int, ...] = ()
    stopping: frozenset[int] = frozenset()  # brokers in a controlled shutdown: they lead nothing
    # Ids of the log directories of each registered broker.
    directories: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStep:
    """A change of the partition."""

    event: Event
    broker: int | None  # node id of the broker that it is about; None for the periodic check
    state: PartitionRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """The leader that brokers get when they come up in an order."""

    leader: int  # node id, ``NO_LEADER`` for none
    way: Way
    steps: tuple[ElectionStep, ...]  # all changes of the partition, in order
    missing: tuple[int, ...]  # node ids of which one has to come up; none where there is a leader


def order_of_sessions(brokers: Sequence[RegisterBrokerRecord]) -> tuple[int, ...]:
    """Return the unfenced brokers in the order a new controller fences them.

    It puts them into a hash map, by node id and broker epoch, in the order of its own table of
    brokers; then it asks that map for one that is overdue, again and again.

    Args:
        brokers: In the order in which they registered first.
    """
    slots = _LEAST_SLOTS
    while len(brokers) * 3 > slots * 4:
        slots *= 2
    shift = 65 - slots.bit_length()
    table = sorted(
        enumerate(brokers),
        key=lambda each: ((each[1].broker_id * _FIBONACCI & _LONG_MASK) >> shift, -each[0]),
    )
    unfenced = [broker for _, broker in table if not broker.fenced]
    bins = _LEAST_BINS
    while len(unfenced) * 4 >= bins * 3:
        bins *= 2

    def bin_of(broker: RegisterBrokerRecord) -> int:
        epoch = broker.broker_epoch
        code = (31 * broker.broker_id + (epoch ^ (epoch >> 32))) & _INT_MASK
        return (code ^ (code >> 16)) % bins

    return tuple(broker.broker_id for broker in sorted(unfenced, key=bin_of))


def predict_election(
    state: PartitionRegistration,
    controller: Controller,
    start: Sequence[StartingBroker],
    *,
    is_assigned_late: bool = False,
) -> Election:
    """Return whom the controller elects when brokers come up, one after another.

    Args:
        state: The partition as the controller has it; no broker runs.
        controller: The controller's other state.
        start: The brokers that come up, in order; others stay away.
        is_assigned_late: Whether a broker is unfenced before it names a new log directory. Both
            happen: its heartbeat and that request run beside each other.
    """
    prediction = Prediction(state, controller)
    for starting in start:
        prediction.register(starting)
        if is_assigned_late:
            prediction.unfence(starting)
            prediction.assign(starting)
        else:
            prediction.assign(starting)
            prediction.unfence(starting)
    return prediction.result()


class Prediction:
    """One partition, while events change it.

    Args:
        state: The partition as the controller has it; no broker runs.
        controller: The controller's other state; the sessions of all its brokers end at once.
    """

    def __init__(self, state: PartitionRegistration, controller: Controller) -> None:
        self._state = state
        self._way = Way.NONE
        self._is_elr_enabled = controller.is_elr_enabled
        self._directories = dict(controller.directories)
        self._active = set(controller.unfenced) - controller.stopping
        self._unreadable: set[int] = set()
        self._steps: list[ElectionStep] = []
        for broker in controller.unfenced:
            if broker in self._state.isr:
                isr = self._isr_without(broker)
                self._change(Event.SESSION_ENDED, broker, isr=isr, away=broker)
            self._active.discard(broker)

    def register(self, starting: StartingBroker) -> None:
        """Register a starting broker: it is fenced."""
        broker, state = starting.broker, self._state
        is_unclean = self._is_elr_enabled and not starting.is_clean
        if broker in state.isr or (is_unclean and broker in state.elr):
            self._change(
                Event.REGISTERED,
                broker,
                isr=self._isr_without(broker),
                away=broker,
                unclean=broker if is_unclean else None,
            )
        self._directories[broker] = starting.directories
        if not starting.is_readable:
            self._unreadable.add(broker)

    def assign(self, starting: StartingBroker) -> None:
        """Name the log directory of a replica that its broker made anew."""
        broker, own = starting.broker, starting.directories
        if starting.is_readable and own and self._directory(broker) not in {None, *own}:
            state = self._state
            self._change(Event.DIRECTORY_ASSIGNED, broker, isr=state.isr, may_be_unclean=False)
            places = zip(state.replicas, state.directories, strict=True)
            directories = tuple(own[0] if member == broker else old for member, old in places)
            self._state = replace(self._state, directories=directories)

    def unfence(self, starting: StartingBroker) -> None:
        """Let a registered broker lead."""
        self._active.add(starting.broker)
        if self._state.leader == NO_LEADER:
            self._change(Event.UNFENCED, starting.broker, isr=self._state.isr)

    def result(self) -> Election:
        """Return what has become of the partition."""
        if self._state.leader == NO_LEADER and self._state.is_unclean_election_enabled:
            self._change(Event.PERIODIC_CHECK, None, isr=self._state.isr)
        state = self._state
        missing: tuple[int, ...] = ()
        if state.leader == NO_LEADER:
            missing = state.isr or state.elr or state.last_known_elr or state.replicas
        return Election(
            leader=state.leader, way=self._way, steps=tuple(self._steps), missing=missing
        )

    def _isr_without(self, broker: int) -> tuple[int, ...]:
        return tuple(member for member in self._state.isr if member != broker)

    def _directory(self, broker: int) -> str | None:
        """Return the log directory of a replica, None where nothing says it."""
        state = self._state
        if broker not in state.replicas or not state.directories:
            return None
        return state.directories[state.replicas.index(broker)]

    def _has_directory(self, broker: int) -> bool:
        """Whether its broker may have the log directory of a replica."""
        directory = self._directory(broker)
        if directory in {None, UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY}:
            return True
        own = self._directories.get(broker, ())
        return directory != LOST_DIRECTORY and (not own or directory in own)

    def _change(
        self,
        event: Event,
        broker: int | None,
        *,
        isr: tuple[int, ...],
        away: int | None = None,
        unclean: int | None = None,
        may_be_unclean: bool = True,
    ) -> None:
        """Set the partition's ISR, adjust its ELR, and elect a leader.

        Args:
            isr: Its ISR from now on, but for an election.
            away: A broker that may not be elected.
            unclean: A broker that leaves the ELR.
            may_be_unclean: Whether the event is one that allows an unclean election.
        """
        state = self._state

        def is_eligible(member: int) -> bool:
            return (
                member in self._active
                and member != away
                and member not in self._unreadable
                and self._has_directory(member)
            )

        elr = state.elr
        if self._is_elr_enabled:
            elr = ()
            if len(isr) < state.min_insync_replicas:
                members = dict.fromkeys((*state.elr, *state.isr))
                elr = tuple(each for each in members if each not in isr and each != unclean)
        leader, way = self._elect(
            isr=isr, elr=elr, is_eligible=is_eligible, may_be_unclean=may_be_unclean
        )
        is_changed = leader != state.leader
        if is_changed and leader in elr:
            isr, elr = (leader,), tuple(each for each in elr if each != leader)
        if is_changed and way in {Way.LAST_KNOWN_LEADER, Way.UNCLEAN}:
            isr, elr = (leader,), ()
        if not self._is_elr_enabled:
            # Without an ELR the last member stays in the ISR.
            isr, elr = isr or state.isr, ()
        last_known = state.last_known_elr
        if self._is_elr_enabled and is_changed:
            if leader != NO_LEADER:
                last_known = ()
            elif not last_known:
                last_known = (state.leader,)
        if is_changed:
            self._way = way
        self._state = replace(
            state,
            isr=isr,
            elr=elr,
            last_known_elr=last_known,
            leader=leader,
            leader_epoch=state.leader_epoch + (1 if is_changed else 0),
        )
        if self._state != state:
            self._steps.append(ElectionStep(event=event, broker=broker, state=self._state))

    def _elect(
        self,
        *,
        isr: Collection[int],
        elr: Collection[int],
        is_eligible: Callable[[int], bool],
        may_be_unclean: bool,
    ) -> tuple[int, Way]:
        """Return the next leader and how it is elected. The old leader stays if it may still
        lead."""
        state = self._state
        heirs, way = (isr, Way.ISR) if isr else (elr, Way.ELR)
        for broker in (state.leader, *state.replicas):
            if broker in heirs and is_eligible(broker):
                return broker, way
        last_known = state.last_known_elr
        if self._is_elr_enabled and not isr and not elr and len(last_known) == 1:
            # Even the last leader as a last resort: its log may be torn, or empty.
            broker = last_known[0]
            if is_eligible(broker):
                return broker, Way.LAST_KNOWN_LEADER
        if may_be_unclean and state.is_unclean_election_enabled:
            for broker in state.replicas:
                if is_eligible(broker):
                    return broker, Way.UNCLEAN
        return NO_LEADER, Way.NONE
