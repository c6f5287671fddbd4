"""Commits that a coordinator had acknowledged when its broker was killed, before their markers.

A producer has its answer once PrepareCommit is in ``__transaction_state``. Each round kills a
broker at a random moment among such commits. All that was acknowledged is then readable for
``read_committed`` in another cluster, from the disk as the kill left it, after ``recover``, and
after ``heal``. ``PYLOG_PREPARED_ROUNDS`` says how many rounds.

The old broker is not asked again. Kafka 4.4 loses such commits where its start is slow: before it
knows the leader of a partition, its coordinator takes it for deleted ("Couldn't find leader
endpoint"), and writes CompleteCommit without a marker.
"""

import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jpype
import pytest

from storage_core.kafka_log import open_logs
from tests.oracle.broker import CLUSTER_ID, Broker, new_broker
from tests.oracle.broker_clients import (
    Message,
    Producer,
    Topic,
    ask_coordinators,
    consume_topics,
    create_topics,
    set_topic_config,
)
from tests.oracle.jvm import KafkaFailure

ROUNDS: Final = int(os.environ.get("PYLOG_PREPARED_ROUNDS", "2"))
SEED: Final = int(os.environ.get("PYLOG_PREPARED_SEED", "44"))
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(900 + 120 * ROUNDS, method="thread"),
]
OLD_CLUSTER: Final = "OldClusterOldClusterOw"
TOPIC: Final = "orders"
PARTITIONS: Final = 2
PRODUCERS: Final = 3
LIMIT: Final = "max.message.bytes"
# A batch of one record with a value has more bytes, and so has a marker.
NOTHING_BYTES: Final = "70"
# No commit may be without a marker when the broker is killed: then a few rounds more.
MORE_ROUNDS: Final = 5
MARKERS_REFUSED: Final = 2 / 3
LONGEST_S: Final = 1.5
IMPATIENT: Final = {"max.block.ms": "20000"}
# A smaller log has no batch before and behind the damage.
LEAST_DAMAGE_BYTES: Final = 1_000


@dataclass
class Truth:
    """What producers were told of their transactions, by values of records."""

    acknowledged: set[bytes] = field(default_factory=set)  # the commit was answered
    undone: set[bytes] = field(default_factory=set)  # it was aborted, or never to be committed

    def check(self, values: set[bytes]) -> None:
        """Compare with what a committed reader gets."""
        assert self.acknowledged - values == set()
        assert self.undone & values == set()


def write(producer: Producer, name: str, truth: Truth) -> None:
    """Commit transactions, one of five aborts, until the broker is gone."""
    chance = random.Random(name)
    number = 0
    while True:
        values = {f"{name}-{number}-{key}".encode() for key in range(3)}
        is_commit = number % 5 != 3
        number += 1
        try:
            producer.begin()
            if not is_commit:
                truth.undone |= values
            for value in values:
                producer.send(Message(topic=TOPIC, key=value, value=value))
            producer.flush()
            time.sleep(chance.uniform(0, LONGEST_S / 3))
            if is_commit:
                producer.commit()
            else:
                producer.abort()
        except (KafkaFailure, jpype.JException):
            return
        if is_commit:
            truth.acknowledged |= values


def new_producers(servers: str) -> list[Producer]:
    config = {"transaction.timeout.ms": "900000", "max.block.ms": "30000", "linger.ms": "0"}
    return [
        Producer(servers, {**config, "transactional.id": f"tx-{each}"}) for each in range(PRODUCERS)
    ]


@contextmanager
def writers(servers: str, name: str, truth: Truth) -> Iterator[None]:
    """Let producers commit in threads; a killed broker ends them."""
    producers = new_producers(servers)
    threads = [
        threading.Thread(target=write, args=(producer, f"{name}-{each}", truth), daemon=True)
        for each, producer in enumerate(producers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for producer in producers:
            producer.vanish()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def committed_values(root: Path) -> set[bytes]:
    """Return what a committed read of a log directory has."""
    records = open_logs(str(root)).read(TOPIC, isolation="read_committed", columns=["value"])
    return {value for batch in records for value in batch.column("value").to_pylist()}


def check_served(disk: Path, scratch: Path, truth: Truth) -> None:
    """Start the other cluster's broker, and compare what it serves."""
    with Broker(disk, scratch=scratch) as broker:
        broker.start()
        consumed = consume_topics(broker.bootstrap_servers, {TOPIC: PARTITIONS})
        values = {record.value for records in consumed.values() for record in records}
        truth.check({value for value in values if value is not None})
        assert ask_coordinators(broker.bootstrap_servers).open_transactions == {}
        broker.kill()


def check_transplant(pylog: Callable[..., Any], disk: Path, target: Path, truth: Truth) -> int:
    """Give the logs to another cluster; return how many open transactions are committed."""
    words = ["transplant", disk, "--role", "broker", "--to", target, "--topics", TOPIC]
    done = pylog(*map(str, words), "--output", "json")
    assert done.exit_code == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [row for row in rows if row["type"] == "transplant"]
    assert [row["status"] for row in rows] == ["done"] * PARTITIONS
    assert sum(row["undecided_transactions"] for row in rows) == 0
    truth.check(committed_values(target))
    return sum(row["committed_transactions"] for row in rows)


def heal(pylog: Callable[..., Any], disk: Path, folder: Path) -> None:
    """Flip a byte in each log, then heal it from a copy."""
    donor, plan = folder / "donor", folder / "heal.json"
    shutil.rmtree(donor, ignore_errors=True)
    shutil.copytree(disk, donor)
    for log in disk.glob(f"{TOPIC}-*/*.log"):
        content = bytearray(log.read_bytes())
        if len(content) > LEAST_DAMAGE_BYTES:
            content[len(content) // 3] ^= 1
            log.write_bytes(content)
    words = ["heal", disk, "--donor", donor, "--role", "broker", "--plan-out", plan]
    planned = pylog(*map(str, words))
    assert planned.exit_code == 0, planned.stdout + planned.stderr
    plan_done = pylog("apply", str(plan), "--trash", str(folder / "trash"))
    assert plan_done.exit_code == 0, plan_done.stdout + plan_done.stderr


def recover(pylog: Callable[..., Any], disk: Path, _: Path) -> None:
    """Recover what the kill left."""
    done = pylog("recover", str(disk), "--role", "broker")
    assert done.exit_code == 0, done.stdout + done.stderr


def leave(_: Callable[..., Any], disk: Path, folder: Path) -> None:
    """Take the disk as the kill left it."""
    del disk, folder


REPAIRS: Final = {"killed": leave, "recovered": recover, "healed": heal}


def make_cluster(folder: Path, cluster_id: str, version: int) -> Path:
    """Return the disk of a stopped cluster of one broker, with the topic."""
    (folder / "scratch").mkdir(parents=True)
    with Broker(folder / "data", scratch=folder / "scratch") as broker:
        broker.format(cluster_id=cluster_id, levels={"transaction.version": version})
        broker.start()
        create_topics(broker.bootstrap_servers, {TOPIC: Topic(partitions=PARTITIONS, config={})})
        broker.stop()
    return broker.log_directory


def kill_among_commits(disk: Path, scratch: Path, chance: random.Random) -> Truth:
    """Start a broker, and kill it at a random moment."""
    truth = Truth()
    with Broker(disk, scratch=scratch) as broker:
        broker.start()
        servers = broker.bootstrap_servers
        with writers(servers, f"{chance.random()}", truth):
            time.sleep(chance.uniform(LONGEST_S / 2, LONGEST_S))
            # From here on the log takes no marker; in each third round it is only late.
            if chance.random() < MARKERS_REFUSED:
                set_topic_config(servers, TOPIC, {LIMIT: NOTHING_BYTES})
                time.sleep(chance.uniform(0, LONGEST_S))
            broker.kill()
    return truth


@pytest.mark.thorough
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(2, id="epoch-of-its-own"),
        pytest.param(1, id="one-epoch", marks=pytest.mark.long),
    ],
)
def test_what_a_killed_coordinator_had_acknowledged_is_readable(
    tmp_path: Path, pylog, version: int
):
    chance, records, prepared = random.Random(SEED), 0, 0
    old = make_cluster(tmp_path / "old", OLD_CLUSTER, version)
    new = make_cluster(tmp_path / "new", CLUSTER_ID, version)
    for number in range(ROUNDS + MORE_ROUNDS):
        if number >= ROUNDS and prepared:
            break
        folder = tmp_path / f"round-{number}"
        disk = folder / "disk"
        shutil.copytree(old, disk)
        truth = kill_among_commits(disk, tmp_path / "old" / "scratch", chance)
        for name, repair in REPAIRS.items():
            own, target = folder / f"old-{name}", folder / f"new-{name}"
            shutil.copytree(disk, own)
            shutil.copytree(new, target)
            repair(pylog, own, folder)
            count = check_transplant(pylog, own, target, truth)
        prepared += count
        records += len(truth.acknowledged)
        if number == 0:
            check_served(target, tmp_path / "new" / "scratch", truth)
        shutil.rmtree(folder)
        report = f"round {number}: {records} records acknowledged so far"
        sys.stdout.write(f"{report}, {prepared} commits without a marker in a log\n")
        sys.stdout.flush()
    assert records
    assert prepared


@pytest.mark.thorough
def test_a_coordinator_that_aborts_takes_the_next_epoch(tmp_path: Path, pylog):
    """It aborts for its producer, because of the time, and because another one has the same id."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with new_broker(tmp_path, settings) as broker:
        servers, disk = broker.bootstrap_servers, broker.log_directory
        create_topics(servers, {TOPIC: Topic(partitions=1, config={})})
        producers = {
            name: Producer(
                servers, {"transactional.id": name, "transaction.timeout.ms": timeout, **IMPATIENT}
            )
            for name, timeout in (("own", "600000"), ("late", "15000"), ("fenced", "600000"))
        }
        for producer in producers.values():
            producer.begin()
            producer.send(Message(topic=TOPIC, key=b"k", value=b"v"))
            producer.flush()
        set_topic_config(servers, TOPIC, {LIMIT: NOTHING_BYTES})
        with suppress(KafkaFailure):
            producers["own"].abort()
        with suppress(KafkaFailure):
            Producer(servers, {"transactional.id": "fenced", **IMPATIENT})
        rows: dict[str, dict[str, Any]] = {}
        for _ in range(60):
            time.sleep(1)
            answer = pylog("transactions", str(disk), "--output", "json").stdout.splitlines()
            lines = [json.loads(line) for line in answer]
            rows = {each["transactional_id"]: each for each in lines if each.get("outcome")}
            if {each["state"] for each in rows.values()} == {"PrepareAbort"}:
                break
        broker.kill()
        for producer in producers.values():
            producer.vanish()
    assert {name: (row["state"], row["outcome"]) for name, row in rows.items()} == dict.fromkeys(
        producers, ("PrepareAbort", "abort")
    )
    ends = {each["transactional_id"]: each for each in lines if each["type"] == "transaction"}
    later = {
        name: ends[name]["producer_epoch"] - row["producer_epoch"] for name, row in rows.items()
    }
    assert later == dict.fromkeys(producers, 1)
