"""The copies that three real controllers leave, beside what Kafka itself said of the quorum."""

import json
import shutil
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, read_cluster_metadata
from storage_core.checkpoint.broker_files import parse_meta_properties
from storage_core.cluster.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    VotersSource,
    compare_copies,
    read_copy,
)
from tests.oracle.broker import CONTROLLER_LISTENER, Broker, Place, new_broker
from tests.oracle.broker_clients import (
    Message,
    Producer,
    Topic,
    consume_topics,
    create_topics,
    describe_quorum,
)
from tests.oracle.cluster import CONTROLLER_ID, NODE_IDS, Cluster

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
NOW_MS = 1_800_000_000_000
VOTER = "3Db5QLSqSZieL3rJBUUegA"


def read(root: Path) -> MetadataCopy:
    content = (root / "meta.properties").read_bytes()
    properties = parse_meta_properties(content, file="meta.properties")
    return read_copy(str(root), properties, now_ms=NOW_MS)


def topic_ids(root: Path) -> dict[str, str]:
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY, is_recovered=True)
    return {topic.name: topic.topic_id for topic in metadata.topics.values()}


def compared(roots: list[Path]) -> ComparedCopies:
    (cluster,) = compare_copies(map(read, roots))
    return cluster


@pytest.mark.thorough
def test_copies_of_a_quorum_are_as_it_said_itself_and_one_of_three_is_enough(tmp_path: Path, pylog):
    """The leader and the node that was behind lose their copies; the third node's serves all."""
    with Cluster(tmp_path) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        create_topics(servers, {"before": Topic(partitions=1, config={}, replicas=3)})
        with Producer(servers) as producer:
            delivery = producer.send(Message(topic="before", key=b"k", value=b"v"))
            producer.flush()
            assert delivery.acknowledged()
        leader, *_ = describe_quorum(servers)
        behind, survivor = (node for node in NODE_IDS if node != leader)
        cluster.node(behind).kill()
        create_topics(servers, {"after": Topic(partitions=1, config={}, replicas=2)})
        leader, epoch, committed, ends = describe_quorum(servers)
        for node in NODE_IDS:
            cluster.node(node).kill()
        roots = {node: cluster.node(node).log_directory for node in NODE_IDS}
        answer = compared(list(roots.values()))
        copies = {copy.node_id: copy for copy in answer.copies}
        assert {voter.node_id for voter in answer.voters} == set(ends) == set(NODE_IDS)
        assert answer.voters_source is VotersSource.ELECTION
        assert answer.differences == ()
        assert answer.majority_offset is not None
        assert answer.majority_offset >= committed > copies[behind].log_end_offset
        assert copies[leader].last_epoch == epoch
        assert copies[leader].election["leader_id"] == leader
        # A node that is killed behind its last append has told the leader of none of it.
        assert all(copies[node].log_end_offset >= end for node, end in ends.items())
        assert answer.may_lead(copies[behind]) is False
        assert answer.may_lead(answer.copies[0]) is True
        ids = topic_ids(roots[survivor])
        assert {"before", "after"} <= ids.keys()

        words = []
        for node in {*NODE_IDS} - {survivor}:
            shutil.rmtree(roots[node] / CLUSTER_METADATA_DIRECTORY)
            words += ["--into", f"{node}={roots[node]}"]
        result = pylog("metadata", "promote", str(roots[survivor]), *words)
        assert result.exit_code == 0, result.stderr
        cluster.start()
        cluster.wait_until_in_sync(["before"])
        assert all(topic_ids(root) == ids for root in roots.values())
    # Kafka writes the topic's id beside a log at its first append: "after" has none, and no id.
    assert not list(tmp_path.rglob("before-*-stray"))


def test_voters_of_a_formatted_node_are_those_it_was_given(tmp_path: Path):
    """A quorum whose log has its voters, as ``kafka-storage format --initial-controllers`` does."""
    own, other = "3Db5QLSqSZieL3rJBUUegA", "L3rJBUUegA3Db5QLSqSZiQ"
    text = f"1@localhost:9093:{own},2@localhost:9094:{other}"
    place = Place(
        node_id=1,
        port=9092,
        controller_port=9093,
        voters="1@localhost:9093,2@localhost:9094",
        initial_controllers=text,
    )
    Broker(tmp_path, scratch=tmp_path, place=place).format()
    assert (tmp_path / CLUSTER_METADATA_DIRECTORY).is_dir()
    answer = compared([tmp_path])
    assert [(v.node_id, v.directory_id, v.endpoints) for v in answer.voters] == [
        (1, own, (f"{CONTROLLER_LISTENER}://localhost:9093",)),
        (2, other, (f"{CONTROLLER_LISTENER}://localhost:9094",)),
    ]
    (copy,) = answer.copies
    assert (answer.voters_source, copy.quorum.kraft_version) == (VotersSource.RECORD, 1)
    assert answer.copy_of(answer.voters[0]) is copy
    assert answer.may_lead(copy) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("directory_ids", "is_formatted"),
    [
        pytest.param({}, False, marks=pytest.mark.long, id="fixed"),
        pytest.param({}, True, marks=pytest.mark.long, id="fixed, formatted"),
        pytest.param({CONTROLLER_ID: VOTER}, False, id="in the log"),
    ],
)
def test_a_lost_controller_comes_back_from_a_brokers_copy(
    tmp_path: Path, directory_ids, is_formatted, pylog
):
    """Its disk is new: ids, topics and records are as before, and nothing is stray."""
    with Cluster(tmp_path, has_own_controller=True, directory_ids=directory_ids) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        create_topics(servers, {"kept": Topic(partitions=3, config={}, replicas=3)})
        values = {b"%d" % number for number in range(60)}
        with Producer(servers) as producer:
            for value in values:
                producer.send(Message(topic="kept", key=value, value=value))
            producer.flush()
        _, epoch, committed, _ = describe_quorum(servers)
        ids = {t.name: t.topic_id for t in cluster.metadata().topics.values()}
        for node in (*NODE_IDS, CONTROLLER_ID):
            cluster.node(node).kill()
        shutil.rmtree(cluster.controller.log_directory)
        cluster.controller.log_directory.mkdir()
        if is_formatted:
            cluster.controller.format()
        roots = [str(cluster.node(node).log_directory) for node in NODE_IDS]
        into = f"{CONTROLLER_ID}={cluster.controller.log_directory}"
        result = pylog("metadata", "promote", *roots, "--into", into, "--output", "json")
        assert result.exit_code == 0, result.stderr
        row = json.loads(result.stdout)
        assert row["log_end_offset"] >= committed
        assert row["directory_id"] == directory_ids.get(CONTROLLER_ID)
        cluster.start()
        cluster.wait_until_in_sync(["kept"])
        leader, later, *_ = describe_quorum(servers)
        assert (leader, later > epoch) == (CONTROLLER_ID, True)
        assert {t.name: t.topic_id for t in cluster.metadata().topics.values()} == ids
        records = consume_topics(servers, {"kept": 3})
        assert {record.value for each in records.values() for record in each} == values
        create_topics(servers, {"new": Topic(partitions=1, config={}, replicas=3)})
    assert not list(tmp_path.rglob("*-stray"))


@pytest.mark.thorough
def test_logs_that_a_broker_set_aside_are_its_own_again(tmp_path: Path, pylog):
    """It started with empty metadata; then its own came back."""
    with new_broker(tmp_path, {}) as broker:
        servers = broker.bootstrap_servers
        create_topics(servers, {"kept": Topic(partitions=2, config={}, replicas=1)})
        values = {b"%d" % number for number in range(40)}
        with Producer(servers) as producer:
            for value in values:
                producer.send(Message(topic="kept", key=value, value=value))
            producer.flush()
        broker.kill()
        metadata = broker.log_directory / CLUSTER_METADATA_DIRECTORY
        metadata.rename(tmp_path / "saved")
        broker.start()
        broker.stop()
        assert len(list(broker.log_directory.glob("kept-*-stray"))) == 2
        adopt = ("metadata", "adopt", str(broker.log_directory), "--role", "broker")
        result = pylog(*adopt, "--output", "json")
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert {row["reason"] for row in rows} == {"TOPIC_UNKNOWN"}
        shutil.rmtree(metadata)
        (tmp_path / "saved").rename(metadata)
        result = pylog(*adopt, "--output", "json")
        assert result.exit_code == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert {(row["topic"], row["partition"], row["status"]) for row in rows} >= {
            ("kept", 0, "done"),
            ("kept", 1, "done"),
        }
        broker.start()
        records = consume_topics(broker.bootstrap_servers, {"kept": 2})
        assert {record.value for each in records.values() for record in each} == values
        assert not list(broker.log_directory.glob("*-stray"))
