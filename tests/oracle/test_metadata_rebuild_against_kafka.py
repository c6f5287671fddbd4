"""Metadata that were made anew of three real brokers' logs, and what the brokers make of them."""

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, read_cluster_metadata
from storage_core.catalog.metadata_image import TopicMetadata
from storage_core.catalog.release_features import find_release
from storage_core.records.reader import scan_headers
from storage_core.store.local import LocalStore
from tests.kit.flipped_epochs import FLIPPED, flip_epoch
from tests.oracle.broker import Broker, EarlierBroker, OldBroker
from tests.oracle.broker_clients import (
    GroupMember,
    Message,
    Producer,
    Topic,
    ask_coordinators,
    consume_topics,
    create_topics,
    describe_quorum,
    feature_levels,
    in_sync_replicas,
    read_topics,
)
from tests.oracle.cluster import CONTROLLER_ID, NODE_IDS, Cluster
from tests.oracle.returns import wait_for

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
VOTER = "3Db5QLSqSZieL3rJBUUegA"
IN_SYNC = ("kept", "__consumer_offsets", "__transaction_state")
DYNAMIC_OF_4_3 = ((CONTROLLER_ID,), {CONTROLLER_ID: VOTER}, EarlierBroker, "4.3")
VALUES = [b"%d" % number for number in range(60)]
CONFIG = {"cleanup.policy": "compact", "max.message.bytes": "7777", "segment.bytes": "8388608"}


def producer_ids(roots: Iterable[Path], topic: str) -> set[int]:
    found: set[int] = set()
    for log in (path for root in roots for path in root.glob(f"{topic}-*/*.log")):
        with closing(LocalStore(log.parent).open_file(log.name)) as reader:
            for window in scan_headers(reader):
                found |= set(window.batches.producer_id.tolist())
    return found


def send(servers: str, values: Iterable[bytes], config: dict[str, str] | None = None) -> None:
    with Producer(servers, {"enable.idempotence": "true", **(config or {})}) as producer:
        if config:
            producer.begin()
        for value in values:
            producer.send(Message(topic="kept", key=value, value=value))
        producer.flush()
        if config:
            producer.commit()


@dataclass(frozen=True)
class Before:
    """What a cluster had before all of its metadata was lost."""

    topics: dict[str, Topic]
    metadata: dict[str, TopicMetadata]
    offsets: dict[Any, int]


def offsets_of(servers: str) -> dict[Any, int]:
    return {place: offset for place, (offset, *_) in ask_coordinators(servers).offsets.items()}


def fill(cluster: Cluster, controller: int) -> Before:
    """Create topics, write to them, and read them in a group."""
    servers = cluster.bootstrap_servers
    create_topics(
        servers,
        {
            "kept": Topic(partitions=3, config=CONFIG, replicas=3),
            "lean": Topic(partitions=1, config={}, assignment=[[3, 1]]),
        },
    )
    for value in VALUES[:3]:  # a producer each
        send(servers, [value])
    send(servers, VALUES[3:], {"transactional.id": "t"})
    with Producer(servers) as producer:
        producer.send(Message(topic="lean", key=b"k", value=b"v"))
        producer.flush()
    with GroupMember(servers, "readers", ["kept"]) as member:
        while member.poll():
            pass
        member.commit()
    cluster.wait_until_in_sync(IN_SYNC)
    for number in range(3):
        cluster.wait_until_equal("kept", number)
    return Before(
        topics=read_topics(servers),
        metadata=read_cluster_metadata(
            cluster.node(controller).log_directory / CLUSTER_METADATA_DIRECTORY, is_recovered=True
        ).topics_by_name(),
        offsets=offsets_of(servers),
    )


def lose_metadata(cluster: Cluster, controllers: Sequence[int]) -> list[Path]:
    """Stop one broker, kill the other nodes; return the log directories of brokers."""
    cluster.node(2).stop()
    for node in {1, 3, *controllers} - {2}:
        cluster.node(node).kill()
    roots = [cluster.node(node).log_directory for node in NODE_IDS]
    for root in roots:
        shutil.rmtree(root / CLUSTER_METADATA_DIRECTORY)
    for node in {*controllers} - {*NODE_IDS}:
        shutil.rmtree(cluster.node(node).log_directory)
        cluster.node(node).log_directory.mkdir()
    return roots


def compare(partitions: list[dict[str, Any]], before: Before) -> None:
    """Hold what was rebuilt against what the controller had."""
    assert {(row["topic"], row["topic_id"]) for row in partitions} == {
        (name, topic.topic_id) for name, topic in before.metadata.items()
    }
    for row in partitions:
        was = before.metadata[row["topic"]].partitions[row["partition"]]
        assert dict(zip(row["replicas"], row["directories"], strict=True)) == dict(
            zip(was.replicas, was.directories, strict=True)
        )
        assert row["isr"]
        assert set(row["isr"]) <= set(was.isr)
        assert row["leader_epoch"] > was.leader_epoch
    assert all(set(row["isr"]) == {*NODE_IDS} for row in partitions if row["topic"] == "kept")


def compare_copies(roots: Iterable[Path], partitions: list[dict[str, Any]]) -> None:
    """Hold what the nodes have written down against what was rebuilt."""
    for root in roots:
        metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY, is_recovered=True)
        topics = metadata.topics_by_name()
        for row in partitions:
            own = topics[row["topic"]]
            partition = own.partitions[row["partition"]]
            assert own.topic_id == row["topic_id"]
            assert [*partition.replicas] == row["replicas"]
            assert [*partition.directories] == row["directories"]
            assert partition.leader_epoch > row["leader_epoch"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("controllers", "directory_ids", "node", "release"),
    [
        pytest.param((CONTROLLER_ID,), {}, Broker, "4.4", marks=pytest.mark.long, id="fixed"),
        pytest.param((CONTROLLER_ID,), {CONTROLLER_ID: VOTER}, Broker, "4.4", id="in the log"),
        pytest.param(NODE_IDS, {}, Broker, "4.4", marks=pytest.mark.long, id="brokers"),
        *(
            pytest.param(*case, marks=pytest.mark.long, id=name)
            for name, case in {
                "fixed of 4.3": ((CONTROLLER_ID,), {}, EarlierBroker, "4.3"),
                "in the log of 4.3": DYNAMIC_OF_4_3,
                "brokers of 4.3": (NODE_IDS, {}, EarlierBroker, "4.3"),
                "fixed of 4.1": ((CONTROLLER_ID,), {}, OldBroker, "4.1"),
                # Of a release at which the log's snapshot has the voters alone.
                "in the log of 4.3 at 4.1": (*DYNAMIC_OF_4_3[:3], "4.1"),
                "in the log of 4.4 at 4.1": (*DYNAMIC_OF_4_3[:2], Broker, "4.1"),
            }.items()
        ),
    ],
)
def test_a_cluster_without_any_metadata_comes_up_as_it_was(
    tmp_path: Path, controllers, directory_ids, node, release, pylog
):
    has_own_controller = CONTROLLER_ID in controllers
    with Cluster(
        tmp_path,
        has_own_controller=has_own_controller,
        directory_ids=directory_ids,
        made_by=node,
    ) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        before = fill(cluster, controllers[0])
        roots = lose_metadata(cluster, controllers)

        targets = {node: cluster.node(node).log_directory for node in controllers}
        config = tmp_path / "topics.yaml"
        config.write_text(json.dumps({"topics": {"kept": CONFIG}}))
        words = [f"--into={node}={target}" for node, target in targets.items()]
        words += [f"--release-version={release}", f"--config={config}", "--assume-defaults=lean"]
        if directory_ids:
            place = f"127.0.0.1:{cluster.controller.controller_port}"
            words += ["--initial-controllers", f"{CONTROLLER_ID}@{place}:{VOTER}"]
        result = pylog("metadata", "rebuild", *roots, *words, "--output=json")
        assert result.exit_code == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        (done, *_) = (row for row in rows if row["type"] == "metadata_rebuild")
        assert (done["topics"], done["brokers"]) == (len(before.topics), [*NODE_IDS])
        assert {row["part"] for row in rows if row["type"] == "unknown_fact"} == {
            *("ACCESS_CONTROL", "CREDENTIALS", "QUOTAS", "BROKER_CONFIG", "TOPIC_CONFIG"),
            *("REPLICA", "REPLICA_ORDER", "TOPIC", "GROUP_CONFIG", "CLIENT_METRICS"),
        }
        partitions = [row for row in rows if row["type"] == "metadata_partition"]
        compare(partitions, before)

        cluster.start()
        cluster.wait_until_in_sync(IN_SYNC)
        leader, *_ = describe_quorum(servers)
        assert leader in controllers
        levels = feature_levels(servers)
        assert levels.pop("kraft.version", 0) == len(directory_ids)
        assert levels == find_release(release).feature_levels
        after = read_topics(servers)
        assert after.keys() == before.topics.keys()
        assert {name: after[name] for name in ("kept", "lean")} == {
            name: before.topics[name] for name in ("kept", "lean")
        }
        records = consume_topics(servers, {"kept": 3})
        assert {record.value for each in records.values() for record in each} == {*VALUES}
        assert offsets_of(servers) == before.offsets

        earlier = producer_ids(roots, "*")
        send(servers, [b"new"])
        (new,) = producer_ids(roots, "*") - earlier
        assert new >= done["next_producer_id"] > max(earlier)
        send(servers, [b"again"], {"transactional.id": "t"})
        compare_copies({*targets.values(), *roots}, partitions)
        create_topics(servers, {"new": Topic(partitions=1, config={}, replicas=3)})
    assert not list(tmp_path.rglob("*-stray"))


def send_one(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        producer.send(Message(topic=topic, key=b"k", value=b"v"))


@pytest.mark.long
def test_a_flipped_epoch_keeps_no_other_replica_from_following(tmp_path: Path, pylog):
    """Of one topic another broker has the batch as it was; of the other one nobody has."""
    topics = ("twin", "only")
    settings = {"min.insync.replicas": "1"}
    with Cluster(tmp_path, settings=settings, has_own_controller=True) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        places = Topic(partitions=1, config={}, assignment=[[1, 2, 3]])
        create_topics(servers, dict.fromkeys(topics, places))
        for stopped, topic in ((3, "twin"), (2, "only")):
            for name in topics:
                send_one(servers, name)
            cluster.node(stopped).stop()
            send_one(servers, topic)
        cluster.controller.kill()
        cluster.node(1).kill()
        roots = [cluster.node(node).log_directory for node in NODE_IDS]
        for root in roots:
            shutil.rmtree(root / CLUSTER_METADATA_DIRECTORY)
        target = cluster.controller.log_directory
        shutil.rmtree(target)
        target.mkdir()
        for name in topics:
            flip_epoch(roots[0] / f"{name}-0" / "00000000000000000000.log", -1)
        words = [f"--into={CONTROLLER_ID}={target}", "--release-version=4.4", "--output=json"]
        words += ["--assume-defaults=*"]
        result = pylog("metadata", "rebuild", *roots, *words)
        assert result.exit_code == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        rebuilt = {row["topic"]: row for row in rows if row["type"] == "metadata_partition"}
        # A hundred above what is believed; above the flipped one where it has to be fetched.
        epochs = {name: rebuilt[name]["leader_epoch"] for name in topics}
        assert epochs["twin"] < 200
        assert epochs["only"] == FLIPPED + 100
        assert {name: rebuilt[name]["isr"] for name in topics} == {"twin": [2], "only": [1]}
        facts = {row["subject"] for row in rows if row.get("part") == "EPOCH"}
        assert facts == {"twin-0", "only-0"}

        def in_sync() -> dict[str, set[int]]:
            return {name: each for (name, _), each in in_sync_replicas(servers, topics).items()}

        cluster.start()
        wait_for("others follow", lambda: in_sync() == {"twin": {2, 3}, "only": {*NODE_IDS}})
        time.sleep(10)
        assert in_sync() == {"twin": {2, 3}, "only": {*NODE_IDS}}
        cluster.node(1).stop()
        shutil.rmtree(roots[0] / "twin-0")
        cluster.node(1).start()
        cluster.wait_until_in_sync(topics)
        records = consume_topics(servers, dict.fromkeys(topics, 1))
        assert {name: len(records[name, 0]) for name in topics} == {"twin": 3, "only": 3}
