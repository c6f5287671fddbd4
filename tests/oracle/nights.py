"""Nights of a cluster: producers go on while brokers are killed, silenced, started again.

    with Cluster(folder, settings=SETTINGS, has_own_controller=True) as cluster:
        cluster.format()
        cluster.start()
        book = run_night(cluster, random.Random(seed), steps=6)
        ...  # no broker runs: their log directories are what is left of the night

What brokers promised to producers is in the book; a record's value says what it was sent with.
"""

import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from storage_core.cluster.elections import NO_LEADER
from tests.oracle.broker import UNTOUCHED, BrokerFailure
from tests.oracle.broker_clients import (
    Delivery,
    Message,
    Partition,
    Producer,
    Topic,
    create_topics,
    elect_uncleanly,
)
from tests.oracle.cluster import NODE_IDS, Cluster
from tests.oracle.jvm import java, java_file

JAVA_OPTIONS: Final = ("-Xmx256m",)
SETTINGS: Final[Mapping[str, str]] = {
    **UNTOUCHED,
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    # An unclean election that a broker's new log directory was too late for comes soon after.
    "unclean.leader.election.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "100",
}
UNCLEAN: Final = "unclean.leader.election.enable"
# Of each partition, the preferred leader first.
ASSIGNMENT: Final = ((1, 2, 3), (3, 1, 2))
PARTITIONS: Final = len(ASSIGNMENT)
# By name: what makes a difference for elections.
TOPICS: Final[Mapping[str, Topic]] = {
    f"{name}-{least}": Topic(
        partitions=PARTITIONS,
        replicas=len(NODE_IDS),
        assignment=ASSIGNMENT,
        config={
            "min.insync.replicas": str(least),
            UNCLEAN: str(name == "unclean").lower(),
        },
    )
    for name in ("strict", "unclean")
    for least in (1, 2)
}
ACKS: Final = ("1", "all")
_BURST: Final = 5
_BURST_S: Final = 0.3
# Between two steps: until so much was promised, or so long, where nobody promises anything.
_PROMISES: Final = 150
_LONGEST_STEP_S: Final = 4.0
_NOTICED_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A record that a broker acknowledged."""

    partition: Partition
    offset: int
    acks: str


class Load:
    """Producers that send to all topics until they are told to stop; a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producers = {
            acks: Producer(
                bootstrap_servers,
                {
                    "acks": acks,
                    "enable.idempotence": "false",
                    # A record that is sent twice could be promised twice.
                    "retries": "0",
                    "linger.ms": "0",
                    "request.timeout.ms": "1500",
                    "delivery.timeout.ms": "2000",
                    "max.block.ms": "2000",
                    "metadata.max.age.ms": "1000",
                    "reconnect.backoff.max.ms": "200",
                },
            )
            for acks in ACKS
        }
        self._sent: list[tuple[str, bytes, Delivery]] = []
        self._promised = 0
        self._is_over = False
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        for producer in self._producers.values():
            producer.vanish()

    def wait(self) -> None:
        """Wait until brokers have promised some more, or nobody will."""
        with self._progress:
            aim = self._promised + _PROMISES
            self._progress.wait_for(lambda: self._promised >= aim, _LONGEST_STEP_S)

    def book(self) -> dict[bytes, Promise]:
        """Stop, and return what brokers have promised, by the records' values."""
        self._stop()
        promises = {}
        for acks, value, delivery in self._sent:
            answer = delivery.acknowledged()
            if answer is not None:
                partition, offset = answer
                promises[value] = Promise(partition=partition, offset=offset, acks=acks)
        return promises

    def _stop(self) -> None:
        self._is_over = True
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._is_over:
            burst = []
            for topic in TOPICS:
                for acks, producer in self._producers.items():
                    for _ in range(_BURST):
                        number += 1
                        value = b"%s/%d" % (acks.encode(), number)
                        key = b"%d" % number
                        delivery = producer.send(Message(topic=topic, key=key, value=value))
                        burst.append((acks, value, delivery))
            deadline = time.monotonic() + _BURST_S
            for _, _, delivery in burst:
                delivery.wait(deadline - time.monotonic())
            self._sent += burst
            with self._progress:
                self._promised += sum(each.acknowledged() is not None for _, _, each in burst)
                self._progress.notify_all()


class Night:
    """A cluster under load, while things happen to its brokers; a context manager.

    Args:
        cluster: It runs, and has a controller of its own.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        create_topics(cluster.bootstrap_servers, TOPICS)
        self._load = Load(cluster.bootstrap_servers)
        self.running, self.silent, self.dead = set(NODE_IDS), set[int](), set[int]()

    def __enter__(self) -> Self:
        self._load.__enter__()
        self._load.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._load.__exit__()

    def silence(self, broker: int) -> None:
        """Stop a broker's process, and wait for what that does."""
        self._cluster.node(broker).silence()
        self._move(broker, self.silent)

    def wait_until_gone(self, broker: int) -> None:
        """Wait until the controller misses a broker, and others have gone on without it."""
        deadline = time.monotonic() + _NOTICED_S
        while not self._cluster.metadata().brokers[broker].fenced:
            if time.monotonic() > deadline:
                raise BrokerFailure(f"broker {broker} was not missed in {_NOTICED_S} s", "")
            self._load.wait()
        self._load.wait()

    def kill(self, broker: int) -> None:
        """End a broker at once, and wait for what that does."""
        self._cluster.node(broker).kill()
        self._move(broker, self.dead)

    def bring_back(self, broker: int) -> None:
        """Let a broker go on, or start it, and wait for what that does."""
        if broker in self.silent:
            self._cluster.node(broker).resume()
        else:
            self._cluster.node(broker).start()
        self._move(broker, self.running)

    def swap(self, broker: int) -> None:
        """Kill all that run; then bring one back that they had left behind."""
        for other in sorted(self.running):
            self._cluster.node(other).kill()
        self.dead |= self.running
        self.running = set()
        self.bring_back(broker)

    def force_elections(self, chance: random.Random) -> None:
        """Elect leaders uncleanly where there is none, in some partitions."""
        some = [
            (topic.name, number)
            for topic in self._cluster.metadata().topics.values()
            for number, partition in topic.partitions.items()
            if partition.leader == NO_LEADER and chance.random() < 1 / 2
        ]
        if some:
            running = [self._cluster.node(each).bootstrap_servers for each in self.running]
            elect_uncleanly(",".join(running), some)
            self._load.wait()

    def end(self, stopped: Collection[int] = ()) -> dict[bytes, Promise]:
        """End all nodes, some brokers in order (SIGTERM), and return the producers' book."""
        for broker in NODE_IDS:
            if broker in stopped and broker in self.running:
                self._cluster.node(broker).stop()
            else:
                self._cluster.node(broker).kill()
        self._cluster.controller.kill()
        return self._load.book()

    def _move(self, broker: int, to: set[int]) -> None:
        for some in (self.running, self.silent, self.dead):
            some.discard(broker)
        to.add(broker)
        self._load.wait()


def run_night(cluster: Cluster, chance: random.Random, *, steps: int) -> dict[bytes, Promise]:
    """Load a cluster while anything happens to its brokers; return its producers' book.

    Args:
        cluster: It runs, and has a controller of its own; none of its nodes runs afterwards.
    """
    with Night(cluster) as night:
        for _ in range(steps):
            kinds = ["kill", "silence"] * 2 if len(night.running) > 1 else []
            kinds += ["bring_back", "swap"] * 3 if night.silent | night.dead else []
            kind = chance.choice(kinds)
            away = sorted(night.silent | night.dead)
            broker = chance.choice(
                away if kind in {"bring_back", "swap"} else sorted(night.running)
            )
            getattr(night, kind)(broker)
            if chance.random() < 1 / 3:
                night.force_elections(chance)
        return night.end({broker for broker in NODE_IDS if chance.random() < 1 / 3})


def read_log(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, leader epoch and value of a log's records, as Kafka reads its files."""
    kind = java("org.apache.kafka.common.record.internal.FileRecords")
    for path in sorted(directory.glob("*.log")):
        records = kind.open(java_file(path), False)
        try:
            for batch in records.batches():
                if batch.isControlBatch():
                    continue
                epoch = int(batch.partitionLeaderEpoch())
                for record in batch:
                    buffer = record.value()
                    value = java("org.apache.kafka.common.utils.Utils").toArray(buffer)
                    yield int(record.offset()), epoch, bytes(value)
        finally:
            records.close()
