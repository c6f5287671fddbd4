"""Three Apache Kafka nodes on loopback, with three replicas of all.

Each is broker and controller, or a broker beside a controller that is a node of its own: any of
these brokers can then be killed, and all of them.

    with Cluster(tmp_path) as cluster:
        cluster.format()
        cluster.start()
        cluster.node(2).kill()
        ...  # its log directory is cluster.node(2).log_directory
        cluster.node(2).start()
        cluster.wait_until_in_sync(["topic"])
        cluster.wait_until_equal("topic", 0)

All processes have been killed when the block is left: the last node of a quorum cannot shut down in
order, since it has to ask a controller.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final, Self

from pylog_spark.java import options_to_make, options_to_use
from storage_core.catalog.cluster_metadata import ClusterMetadata, read_cluster_metadata
from storage_core.filenames import LOG_SUFFIX
from storage_core.temporary_folder import temporary_folder
from tests.kit.ports import free_ports
from tests.kit.spark_classes import kept_archive
from tests.oracle.broker import BROKER, CONTROLLER, Broker, BrokerFailure, Place
from tests.oracle.broker_clients import in_sync_replicas
from tests.oracle.jars import kafka_jars

NODE_IDS: Final = (1, 2, 3)
# Of a controller that is no broker.
CONTROLLER_ID: Final = 4
METADATA_DIRECTORY: Final = "__cluster_metadata-0"
SYNC_TIMEOUT_S: Final = 120
EQUAL_TIMEOUT_S: Final = 30
_POLL_S: Final = 0.5

# What one node alone has once, three have three times; two of them have to answer.
REPLICATED: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "5000",
    "broker.session.timeout.ms": "6000",
    "unclean.leader.election.enable": "false",
}


class Cluster:
    """Three nodes; a context manager that leaves no process behind.

    Args:
        folder: Log directories, settings and logs of all nodes go below it.
        settings: Broker settings that override the harness's own.
        has_own_controller: Whether the controller is a node beside the three.
        directory_ids: Of the voters, by node id, where the quorum's log has them; else the settings
            of each node name the voters.
        made_by: What the nodes are: of which release.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        has_own_controller: bool = False,
        directory_ids: Mapping[int, str] | None = None,
        java_options: Sequence[str] = (),
        made_by: type[Broker] = Broker,
    ) -> None:
        ids = (*NODE_IDS, CONTROLLER_ID) if has_own_controller else NODE_IDS
        ports = free_ports(2 * len(ids))
        pairs = dict(zip(ids, zip(ports[::2], ports[1::2], strict=True), strict=True))
        quorum = (CONTROLLER_ID,) if has_own_controller else ids
        voters = ",".join(f"{node}@127.0.0.1:{pairs[node][1]}" for node in quorum)
        initial = ",".join(
            f"{node}@127.0.0.1:{pairs[node][1]}:{directory_id}"
            for node, directory_id in (directory_ids or {}).items()
        )
        self._nodes: dict[int, Broker] = {}
        self._stack = ExitStack()
        for node_id, (port, controller_port) in pairs.items():
            scratch = folder / f"node-{node_id}"
            scratch.mkdir(parents=True)
            self._nodes[node_id] = made_by(
                scratch / "data",
                scratch=scratch,
                settings={**REPLICATED, **(settings or {})},
                place=Place(
                    node_id=node_id,
                    port=port,
                    controller_port=controller_port,
                    voters=voters,
                    roles=_roles(node_id, has_own_controller=has_own_controller),
                    initial_controllers=initial,
                ),
                # The archive has the classes of the release of the tests.
                java_options=[*java_options, *(quick_start() if made_by is Broker else ())],
            )
        self._bootstrap = ",".join(f"127.0.0.1:{pairs[node][0]}" for node in NODE_IDS)

    def __enter__(self) -> Self:
        for node in self._nodes.values():
            self._stack.enter_context(node)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find all nodes."""
        return self._bootstrap

    def node(self, node_id: int) -> Broker:
        """Return one node, to kill, stop or start it; one at a time while others run."""
        return self._nodes[node_id]

    @property
    def controller(self) -> Broker:
        """The controller that is a node of its own."""
        return self._nodes[CONTROLLER_ID]

    def metadata(self) -> ClusterMetadata:
        """Return what the controller has written down; it may go on meanwhile."""
        return read_cluster_metadata(
            self.controller.log_directory / METADATA_DIRECTORY, is_recovered=True
        )

    def format(self, *, levels: Mapping[str, int] | None = None) -> None:
        """Make the empty log directories of all nodes.

        Args:
            levels: Levels of features that are not to be the newest.
        """
        for node in self._nodes.values():
            node.format(levels=levels)

    def start(self) -> None:
        """Start all nodes, and wait until they answer."""
        for node in self._nodes.values():
            node.launch()
        for node in self._nodes.values():
            node.wait_until_ready()

    def wait_until_in_sync(self, topics: Sequence[str]) -> None:
        """Wait until every node is in sync in every partition of topics."""
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        wanted = set(NODE_IDS)
        while True:
            in_sync = in_sync_replicas(self._bootstrap, topics)
            behind = {place: nodes for place, nodes in in_sync.items() if nodes != wanted}
            if in_sync and not behind:
                return
            if time.monotonic() > deadline:
                raise BrokerFailure(f"not in sync after {SYNC_TIMEOUT_S} s: {behind}", "")
            time.sleep(_POLL_S)

    def wait_until_equal(self, topic: str, partition: int) -> None:
        """Wait until all replicas of a partition have the same bytes; nobody may write."""
        deadline = time.monotonic() + EQUAL_TIMEOUT_S
        while len(set((digests := self.digests(topic, partition)).values())) > 1:
            if time.monotonic() > deadline:
                raise BrokerFailure(f"replicas of {topic}-{partition} differ: {digests}", "")
            time.sleep(_POLL_S)

    def digests(self, topic: str, partition: int) -> dict[int, str]:
        """Return a digest of each replica's bytes: its batches, wherever its segments end."""
        return {
            node_id: _digest(self.node(node_id).log_directory / f"{topic}-{partition}")
            for node_id in NODE_IDS
        }


@cache
def quick_start() -> tuple[str, ...]:
    """Return the options of a Java that begins with a node's classes: it starts in half the time.

    The first time a node makes the archive of them, which takes as long as two starts.
    """

    def record(archive: Path) -> None:
        with temporary_folder("pylog-classes-") as scratch:
            options = options_to_make(archive)
            with Broker(scratch / "data", scratch=scratch, java_options=options) as broker:
                broker.format()
                broker.start()
                broker.stop()

    archive = kept_archive("kafka", kafka_jars(), record)
    return () if archive is None else options_to_use(archive)


def _roles(node_id: int, *, has_own_controller: bool) -> str:
    if not has_own_controller:
        return f"{BROKER},{CONTROLLER}"
    return CONTROLLER if node_id == CONTROLLER_ID else BROKER


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
