"""Three Apache Kafka nodes on loopback, each broker and controller, with three replicas of all.

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
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from storage_core.filenames import LOG_SUFFIX
from tests.kit.ports import free_ports
from tests.oracle.broker import Broker, BrokerFailure, Place
from tests.oracle.broker_clients import in_sync_replicas

NODE_IDS: Final = (1, 2, 3)
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
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        ports = free_ports(2 * len(NODE_IDS))
        pairs = dict(zip(NODE_IDS, zip(ports[::2], ports[1::2], strict=True), strict=True))
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, (_, port) in pairs.items())
        self._nodes: dict[int, Broker] = {}
        self._stack = ExitStack()
        for node_id, (port, controller_port) in pairs.items():
            scratch = folder / f"node-{node_id}"
            scratch.mkdir(parents=True)
            self._nodes[node_id] = Broker(
                scratch / "data",
                scratch=scratch,
                settings={**REPLICATED, **(settings or {})},
                place=Place(
                    node_id=node_id, port=port, controller_port=controller_port, voters=voters
                ),
            )
        self._bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in pairs.values())

    def __enter__(self) -> Self:
        for node in self._nodes.values():
            self._stack.enter_context(node)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find all nodes."""
        return self._bootstrap

    def node(self, node_id: int) -> Broker:
        """Return one node, to kill, stop or start it; one at a time while others run."""
        return self._nodes[node_id]

    def format(self) -> None:
        """Make the empty log directories of all nodes."""
        for node in self._nodes.values():
            node.format()

    def start(self) -> None:
        """Start all nodes, and wait until they answer.

        Raises:
            BrokerFailure: One ended, or gave no answer in time.
        """
        for node in self._nodes.values():
            node.launch()
        for node in self._nodes.values():
            node.wait_until_ready()

    def wait_until_in_sync(self, topics: Sequence[str]) -> None:
        """Wait until every node is in sync in every partition of topics.

        Raises:
            BrokerFailure: That did not happen in time.
        """
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
        """Wait until all replicas of a partition have the same bytes; nobody may write.

        Raises:
            BrokerFailure: They have not after a while.
        """
        deadline = time.monotonic() + EQUAL_TIMEOUT_S
        while len(set((digests := self.digests(topic, partition)).values())) > 1:
            if time.monotonic() > deadline:
                raise BrokerFailure(f"replicas of {topic}-{partition} differ: {digests}", "")
            time.sleep(_POLL_S)

    def digests(self, topic: str, partition: int) -> dict[int, str]:
        """Return a digest of each replica's bytes: its batches, wherever its segments end."""
        return {
            node_id: _digest(node.log_directory / f"{topic}-{partition}")
            for node_id, node in self._nodes.items()
        }


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
