"""Logs of one real cluster in another: three real brokers serve them as their own."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, read_cluster_metadata
from storage_core.log.producer_snapshot import parse_producer_snapshot
from tests.kit.compare import read_tree
from tests.oracle.broker import Broker, new_broker
from tests.oracle.broker_clients import (
    GroupMember,
    Message,
    Producer,
    Topic,
    ask_coordinators,
    consume_topics,
    create_topics,
)
from tests.oracle.cluster import NODE_IDS, Cluster
from tests.oracle.records import ReadRecord
from tests.oracle.test_audit_against_brokers import run_tool

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
OLD_CLUSTER = "OldClusterOldClusterOw"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Partitions by topic.
TOPICS = {"codecs": 2, "payments": 1, "compacted": 1}
CONFIGS = {
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "internal.segment.bytes": "3000",
    }
}
READ_BY_GROUP = 40
# Names in the target, and partitions there.
NAMES = {"payments": "paid"}
TARGETS = {NAMES.get(name, name): count for name, count in TOPICS.items()}
# What consumers got, by isolation level and partition.
Consumed = dict[bool, dict[tuple[str, int], list[ReadRecord]]]


def fill(servers: str) -> Iterator[Producer]:
    """Write into all topics; yield a producer whose transaction is open."""
    for codec in CODECS:
        with Producer(servers, {"compression.type": codec}) as producer:
            for number in range(20):
                key = b"%s-%d" % (codec.encode(), number)
                producer.send(Message(topic="codecs", key=key, value=b"v" * 50))
            producer.flush()
    with Producer(servers) as producer:
        for number in range(200):
            key = b"k-%d" % (number % 9)
            producer.send(Message(topic="compacted", key=key, value=b"%d" % number * 20))
            producer.flush()
    with Producer(servers, {"transactional.id": "done"}) as producer:
        for number in range(6):
            producer.begin()
            producer.send(Message(topic="payments", key=b"k", value=b"%d" % number))
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    producer = Producer(servers, {"transactional.id": "open", "transaction.timeout.ms": "900000"})
    producer.begin()
    producer.send(Message(topic="payments", key=b"k", value=b"never"))
    producer.flush()
    yield producer
    producer.vanish()


def read_by_group(servers: str, group: str) -> int:
    """Let a group read some records of a topic and commit; return how many it read."""
    with GroupMember(servers, group, ["codecs"], {"max.poll.records": "10"}) as member:
        count = sum(member.poll() for _ in range(READ_BY_GROUP // 10))
        member.commit()
    return count


@pytest.fixture(scope="module")
def old_disk(kafka_jvm, tmp_path_factory, pylog) -> tuple[Path, Consumed]:
    """The disk of a broker that was stopped, and what its consumers got."""
    del kafka_jvm
    folder = tmp_path_factory.mktemp("old")
    (folder / "scratch").mkdir()
    with Broker(folder / "data", scratch=folder / "scratch") as broker:
        broker.format(cluster_id=OLD_CLUSTER)
        broker.start()
        create_topics(
            broker.bootstrap_servers,
            {
                name: Topic(partitions=count, config=CONFIGS.get(name, {}))
                for name, count in TOPICS.items()
            },
        )
        # Each start of a broker is a leader epoch.
        for _ in range(2):
            broker.stop()
            broker.start()
        for producer in fill(broker.bootstrap_servers):
            assert read_by_group(broker.bootstrap_servers, "readers") > 0
            del producer
            broker.stop()
    compact = pylog(
        *("compact", str(broker.log_directory), "--role", "broker", "--topics", "compacted")
    )
    assert compact.exit_code == 0, compact.stderr
    with broker:
        broker.start()
        # The open transaction would keep a committed consumer of payments waiting.
        consumed = {
            committed: consume_topics(
                broker.bootstrap_servers, {**TOPICS, "payments": 0}, read_committed=committed
            )
            for committed in (True, False)
        }
        broker.kill()
    return broker.log_directory, consumed


def values_of(records: list[ReadRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(each.offset, each.key, each.value) for each in records]


def make_topics(cluster: Cluster, *, has_given_ids: bool) -> None:
    """Make the topics of the target, and stop it."""
    cluster.format()
    cluster.start()
    servers = cluster.bootstrap_servers
    # No broker's own cleaner changes a replica while another one is away.
    late = {"min.compaction.lag.ms": str(10**12)}
    wanted = {
        NAMES.get(name, name): Topic(
            partitions=count, config={**CONFIGS.get(name, {}), **late}, replicas=3
        )
        for name, count in TOPICS.items()
    }
    create_topics(servers, {**wanted, "other": Topic(partitions=1, config={}, replicas=3)})
    if has_given_ids:
        # A broker has got a block of producer ids, in which those of the source lie.
        with Producer(servers) as producer:
            producer.send(Message(topic="other", key=b"k", value=b"v"))
            producer.flush()
    for node in NODE_IDS:
        cluster.node(node).kill()


def leader_epoch(root: Path, topic: str) -> int:
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY, is_recovered=True)
    return metadata.topics_by_name()[topic].partitions[0].leader_epoch


def check_records(servers: str, before: Consumed) -> None:
    """Consumers of both kinds get what those of the source got, and nothing that was open."""
    for committed in (True, False):
        after = consume_topics(servers, TARGETS, read_committed=committed)
        for place, records in before[committed].items():
            assert values_of(after[place]) == values_of(records), place
        values = [b"%d" % number for number in range(6) if not committed or not number % 2]
        assert [record.value for record in after["paid", 0]] == (
            values if committed else [*values, b"never"]
        )


def check_group(servers: str, before: Consumed, offsets: Path) -> None:
    """The group goes on behind the last record that it had committed."""
    run_tool(
        "consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", servers, "--group", "readers"),
        *("--reset-offsets", "--execute", "--from-file", str(offsets)),
    )
    all_records = sum(len(records) for (t, _), records in before[True].items() if t == "codecs")
    read = 0
    with GroupMember(servers, "readers", ["codecs"]) as member:
        while count := member.poll():
            read += count
    assert read == all_records - READ_BY_GROUP


def check_producers(servers: str, end: int) -> None:
    """Idempotent and transactional producers go on behind the last record."""
    assert ask_coordinators(servers).open_transactions == {}
    with Producer(servers, {"enable.idempotence": "true"}) as producer:
        deliveries = [
            producer.send(Message(topic="compacted", key=b"new", value=b"%d" % number))
            for number in range(3)
        ]
        producer.flush()
        assert [delivery.acknowledged() for delivery in deliveries] == [
            (("compacted", 0), end + number) for number in range(3)
        ]
    with Producer(servers, {"transactional.id": "open"}) as producer:
        producer.begin()
        producer.send(Message(topic="paid", key=b"k", value=b"new"))
        producer.commit()
    assert consume_topics(servers, {"paid": 1})["paid", 0][-1].value == b"new"


def producers_of(directory: Path) -> set[int]:
    """Return the ids of the producers that a broker knew when it closed a log."""
    newest = max(directory.glob("*.snapshot"))
    entries = parse_producer_snapshot(newest.name, newest.read_bytes())
    return {entry.producer_id for entry in entries}


def check_fetched(cluster: Cluster, directories: Iterable[str]) -> None:
    """A replica that is fetched anew has the same bytes."""
    for directory in directories:
        shutil.rmtree(cluster.node(3).log_directory / directory)
    cluster.node(3).start()
    cluster.wait_until_in_sync(list(TARGETS))
    for topic, count in TARGETS.items():
        for number in range(count):
            cluster.wait_until_equal(topic, number)


def list_logs(disk: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of each log of a disk."""
    return {path.name: read_tree(path) for path in disk.iterdir() if path.is_dir()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "keeps_producers",
    [pytest.param(False, marks=pytest.mark.long, id="dropped"), pytest.param(True, id="kept")],
)
def test_another_cluster_serves_the_logs_of_a_disk_as_its_own(
    tmp_path: Path, old_disk: tuple[Path, Consumed], pylog, keeps_producers: bool
):
    source, before = old_disk
    with Cluster(tmp_path / "new") as cluster:
        make_topics(cluster, has_given_ids=keeps_producers)
        disks = [cluster.node(node).log_directory for node in NODE_IDS]
        assert leader_epoch(source, "codecs") > leader_epoch(disks[0], "codecs")
        offsets = tmp_path / "offsets.csv"
        words = ["transplant", str(source), "--role", "broker", "--topics", "*"]
        words += [word for disk in disks for word in ("--to", str(disk))]
        words += ["--map", "payments=paid", "--offsets-out", str(offsets), "--output", "json"]
        words += ["--keep-producers"] if keeps_producers else []
        trash = str(tmp_path / "trash")
        logs = [list_logs(disk) for disk in disks]
        rows = [json.loads(line) for line in pylog(*words, "--trash", trash).stdout.splitlines()]
        assert [list_logs(disk) for disk in disks] != logs
        undone = pylog("undo", rows[-1]["run_id"], "--trash", trash)
        assert undone.exit_code == 0, undone.stdout + undone.stderr
        assert [list_logs(disk) for disk in disks] == logs
        done = pylog(*words)
        assert done.exit_code == 0, done.stdout + done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        written = {row["target"]: row for row in rows if row["type"] == "transplant"}
        assert {row["status"] for row in written.values()} == {"done"}
        assert written["paid-0"]["aborted_transactions"] == 1

        cluster.start()
        servers = cluster.bootstrap_servers
        cluster.wait_until_in_sync(list(TARGETS))
        check_records(servers, before)
        check_group(servers, before, offsets)
        check_producers(servers, written["compacted-0"]["log_end_offset"])
        cluster.node(3).stop()
        old = producers_of(source / "payments-0")
        new = producers_of(disks[2] / "paid-0")
        assert len(old) == 2
        assert (old < new, len(new)) == ((True, 3) if keeps_producers else (False, 1))
        check_fetched(cluster, written)
    # Of "other" a killed broker may have an empty log without its topic's id.
    strays = [path.name for path in (tmp_path / "new").rglob("*-stray")]
    assert [name for name in strays if not name.startswith("other-")] == []


@pytest.mark.thorough
def test_a_broker_removes_what_a_kill_has_left(tmp_path: Path, pylog):
    """A folder of an unfinished transplant is to it what is left of a deleted partition."""
    with new_broker(tmp_path, {}) as broker:
        create_topics(broker.bootstrap_servers, {"orders": Topic(partitions=1, config={})})
        broker.stop()
        left = broker.log_directory / f"pylog-transplant-0.{'0' * 32}-delete"
        shutil.copytree(broker.log_directory / "orders-0", left / "orders-0")
        broker.start()
        assert consume_topics(broker.bootstrap_servers, {"orders": 1}) == {("orders", 0): []}
        broker.stop()
