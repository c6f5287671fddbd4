"""Kafka's own controller in this process: its managers of replicas, brokers, configs and features.

They make records of events, and replay records; nothing else of a controller runs. Many of their
methods are for their package only: these are called by reflection.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import jpype

from storage_core.catalog.metadata_image import RegisterBrokerRecord
from storage_core.cluster.elections import ELR_FEATURE, StartingBroker
from storage_core.cluster.places import PartitionRegistration
from tests.oracle.jvm import java

_CONTROLLER: Final = "org.apache.kafka.controller."
_RECORD: Final = "org.apache.kafka.common.metadata."
_MESSAGE: Final = "org.apache.kafka.common.message."
_CLUSTER_ID: Final = "cHlsb2ctc3BhcmstMDEwMQ"
_SESSION_NS: Final = 1_000
# Behind every record and broker epoch.
_OFFSET: Final = 1 << 40
# What a timeline calls its newest state.
_NEWEST: Final = (1 << 63) - 1
_METADATA_VERSION: Final = "metadata.version"


@dataclass(frozen=True, slots=True)
class Change:
    """The partition after a record of the controller, without the order inside of sets."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    elr: frozenset[int]
    last_known_elr: tuple[int, ...]


class KafkaController:
    """A controller that has one partition and its brokers, and sees these come back.

    Args:
        is_elr_enabled: Whether the cluster has eligible leader replicas.
    """

    def __init__(
        self,
        state: PartitionRegistration,
        brokers: Iterable[RegisterBrokerRecord],
        *,
        is_elr_enabled: bool,
    ) -> None:
        self.changes: list[Change] = []
        self._topic_id = _uuid(state.topic_id)
        self._offset = _OFFSET
        self._now_ns = 1
        registry = java("org.apache.kafka.timeline.SnapshotRegistry")(
            java("org.apache.kafka.common.utils.internals.LogContext")()
        )
        self._newest = java("org.apache.kafka.server.common.MetadataVersion").latestProduction()
        features = java(f"{_CONTROLLER}QuorumFeatures")
        supported = features.defaultSupportedFeatureMap(False)
        self._features = _build(
            "FeatureControlManager",
            {
                "SnapshotRegistry": registry,
                "QuorumFeatures": features(0, supported, _integers([0])),
            },
        )
        levels = {_METADATA_VERSION: int(self._newest.featureLevel())}
        levels |= {ELR_FEATURE: 1} if is_elr_enabled else {}
        for name, level in levels.items():
            self._features.replay(_record("FeatureLevelRecord", Name=name, FeatureLevel=level))
        self._configs = _build(
            "ConfigurationControlManager",
            {
                "SnapshotRegistry": registry,
                "FeatureControl": self._features,
                "KafkaConfigSchema": java("kafka.server.KafkaRaftServer").configSchema(),
            },
        )
        self._brokers = _build(
            "ClusterControlManager",
            {
                "ClusterId": _CLUSTER_ID,
                "SnapshotRegistry": registry,
                "FeatureControlManager": self._features,
                "SessionTimeoutNs": java("java.lang.Long")(_SESSION_NS),
                "Time": jpype.JProxy(
                    "org.apache.kafka.common.utils.Time",
                    dict={"nanoseconds": lambda: self._now_ns, "milliseconds": lambda: 0},
                ),
                "BrokerShutdownHandler": self._shutdown_handler(),
            },
        )
        self._replicas = _build(
            "ReplicationControlManager",
            {
                "SnapshotRegistry": registry,
                "FeatureControl": self._features,
                "ConfigurationControl": self._configs,
                "ClusterControl": self._brokers,
            },
        )
        self._load(state, brokers)

    def end_sessions(self) -> None:
        """Have the controller begin, and give up all brokers."""
        self._brokers.activate()
        self._now_ns += 10 * _SESSION_NS
        while True:
            result = _call(self._replicas, "maybeFenceOneStaleBroker")
            self._replay(result.records())
            if not bool(result.response()):
                return

    def start(
        self, starting: StartingBroker, previous_epoch: int, *, is_assigned_late: bool = False
    ) -> None:
        """Have a broker register, say where the partition's log now is, and be unfenced."""
        epoch = self._register(starting, previous_epoch)
        steps = [self._name_directory, self._unfence]
        for step in reversed(steps) if is_assigned_late else steps:
            step(starting, epoch)

    def _name_directory(self, starting: StartingBroker, epoch: int) -> None:
        partition = self._partition()
        if starting.broker in list(partition.replicas):
            own = list(map(_uuid, starting.directories))
            if partition.directory(starting.broker) not in own:
                self._assign(starting.broker, epoch, own[0])

    def _unfence(self, starting: StartingBroker, epoch: int) -> None:
        beat = java(f"{_MESSAGE}BrokerHeartbeatRequestData")()
        beat.setBrokerId(starting.broker).setBrokerEpoch(epoch).setWantFence(False)
        beat.setCurrentMetadataOffset(self._offset)
        # What the broker registered with has been committed long since.
        registered_at = java("java.lang.Long")(0)
        result = _call(self._replicas, "processBrokerHeartbeat", beat, registered_at)
        assert not bool(result.response().isFenced())
        self._replay(result.records())

    def check(self) -> None:
        """Have it look for partitions without a leader, as it does every five minutes."""
        self._replay(_call(self._replicas, "maybeElectUncleanLeaders").records())

    def _load(self, state: PartitionRegistration, brokers: Iterable[RegisterBrokerRecord]) -> None:
        for broker in brokers:
            record = _record(
                "RegisterBrokerRecord",
                BrokerId=broker.broker_id,
                BrokerEpoch=broker.broker_epoch,
                IncarnationId=java("org.apache.kafka.common.Uuid").randomUuid(),
                Fenced=broker.fenced,
                InControlledShutdown=broker.in_controlled_shutdown,
                LogDirs=_list(map(_uuid, broker.log_directories)),
            )
            self._brokers.replay(record, 0)
        self._replicas.replay(_record("TopicRecord", Name=state.topic, TopicId=self._topic_id))
        for key, value in (
            ("min.insync.replicas", str(state.min_insync_replicas)),
            ("unclean.leader.election.enable", str(state.is_unclean_election_enabled).lower()),
        ):
            record = _record(
                "ConfigRecord", ResourceType=2, ResourceName=state.topic, Name=key, Value=value
            )
            self._configs.replay(record)
        record = _record(
            "PartitionRecord",
            TopicId=self._topic_id,
            PartitionId=0,
            Replicas=_integers(state.replicas),
            Isr=_integers(state.isr),
            Leader=state.leader,
            LeaderEpoch=state.leader_epoch,
            PartitionEpoch=1,
            Directories=_list(map(_uuid, state.directories)),
            EligibleLeaderReplicas=_integers(state.elr),
            LastKnownElr=_integers(state.last_known_elr),
        )
        self._replicas.replay(record)

    def _register(self, starting: StartingBroker, previous_epoch: int) -> int:
        request = java(f"{_MESSAGE}BrokerRegistrationRequestData")()
        request.setBrokerId(starting.broker).setClusterId(_CLUSTER_ID)
        request.setIncarnationId(java("org.apache.kafka.common.Uuid").randomUuid())
        request.setLogDirs(_list(map(_uuid, starting.directories)))
        request.setPreviousBrokerEpoch(previous_epoch)
        level = self._newest.featureLevel()
        kind = f"{_MESSAGE}BrokerRegistrationRequestData$Feature"
        names = [_METADATA_VERSION, ELR_FEATURE]
        for name, newest in zip(names, (level, 1), strict=True):
            feature = java(kind)().setName(name)
            request.features().add(feature.setMinSupportedVersion(0).setMaxSupportedVersion(newest))
        finalized = _call(self._features, "finalizedFeatures", java("java.lang.Long")(_NEWEST))
        self._offset += 1
        result = self._brokers.registerBroker(request, self._offset, finalized, True)
        self._replay(result.records())
        return int(result.response().epoch())

    def _assign(self, broker: int, epoch: int, directory: Any) -> None:
        kind = f"{_MESSAGE}AssignReplicasToDirsRequestData"
        partition = java(f"{kind}$PartitionData")().setPartitionIndex(0)
        topic = java(f"{kind}$TopicData")().setTopicId(self._topic_id)
        topic.partitions().add(partition)
        place = java(f"{kind}$DirectoryData")().setId(directory)
        place.topics().add(topic)
        request = java(kind)().setBrokerId(broker).setBrokerEpoch(epoch)
        request.directories().add(place)
        self._replay(_call(self._replicas, "handleAssignReplicasToDirs", request).records())

    def _replay(self, records: Any) -> None:
        for each in list(records):
            message = each.message()
            kind = str(message.getClass().getSimpleName())
            if kind == "PartitionChangeRecord":
                before = self.now()
                self._replicas.replay(message)
                if (now := self.now()) != before:
                    # Else only its log directory has changed.
                    self.changes.append(now)
            elif kind == "RegisterBrokerRecord":
                self._brokers.replay(message, 0)
            else:
                self._brokers.replay(message)

    def now(self) -> Change:
        """Return the partition as it is."""
        now = self._partition()
        return Change(
            int(now.leader),
            int(now.leaderEpoch),
            frozenset(map(int, now.isr)),
            frozenset(map(int, now.elr)),
            tuple(map(int, now.lastKnownElr)),
        )

    def _partition(self) -> Any:
        return _call(self._replicas, "getPartition", self._topic_id, java("java.lang.Integer")(0))

    def _shutdown_handler(self) -> Any:
        """Return what the brokers' manager asks when a broker registers, as the controller does."""
        kind = java("java.lang.Class").forName(
            f"{_CONTROLLER}ClusterControlManager$BrokerShutdownHandler"
        )

        def invoke(proxy: Any, method: Any, arguments: Any) -> None:
            broker, is_clean, records = arguments
            _call(self._replicas, "handleBrokerShutdown", broker, is_clean, records)

        handler = jpype.JProxy("java.lang.reflect.InvocationHandler", dict={"invoke": invoke})
        kinds = jpype.JArray(java("java.lang.Class"))([kind])
        return java("java.lang.reflect.Proxy").newProxyInstance(
            kind.getClassLoader(), kinds, handler
        )


def _build(name: str, values: dict[str, Any]) -> Any:
    kind = java("java.lang.Class").forName(f"{_CONTROLLER}{name}$Builder")
    constructor = kind.getDeclaredConstructor()
    constructor.setAccessible(True)
    builder = constructor.newInstance()
    for field, value in values.items():
        _call(builder, f"set{field}", value)
    return _call(builder, "build")


def _call(target: Any, name: str, *arguments: Any) -> Any:
    """Call a method whatever its visibility; no name is there twice with as many parameters."""
    methods = [
        method
        for method in target.getClass().getDeclaredMethods()
        if str(method.getName()) == name and method.getParameterCount() == len(arguments)
    ]
    (method,) = methods
    method.setAccessible(True)
    return method.invoke(target, jpype.JArray(java("java.lang.Object"))(list(arguments)))


def _record(name: str, **fields: Any) -> Any:
    record = java(f"{_RECORD}{name}")()
    for field, value in fields.items():
        getattr(record, f"set{field}")(value)
    return record


def _uuid(text: str) -> Any:
    high, low = (base64.urlsafe_b64decode(text + "==")[at : at + 8] for at in (0, 8))
    return java("org.apache.kafka.common.Uuid")(
        int.from_bytes(high, signed=True), int.from_bytes(low, signed=True)
    )


def _list(values: Iterable[Any]) -> Any:
    result = java("java.util.ArrayList")()
    for value in values:
        result.add(value)
    return result


def _integers(values: Iterable[int]) -> Any:
    return _list(java("java.lang.Integer")(value) for value in values)
