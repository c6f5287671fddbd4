"""The copies that three real controllers leave, beside what Kafka itself said of the quorum."""

from pathlib import Path

import jpype
import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.broker_files import parse_meta_properties
from storage_core.maintenance.replication.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    VotersSource,
    compare_copies,
    read_copy,
)
from tests.oracle.broker import CLUSTER_ID, CONTROLLER_LISTENER
from tests.oracle.broker_clients import Topic, create_topics, describe_quorum
from tests.oracle.cluster import NODE_IDS, Cluster
from tests.oracle.jvm import java, kafka_failures

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
NOW_MS = 1_800_000_000_000


def read(root: Path) -> MetadataCopy:
    content = (root / "meta.properties").read_bytes()
    properties = parse_meta_properties(content, file="meta.properties")
    return read_copy(str(root), properties, now_ms=NOW_MS)


def compared(roots: list[Path]) -> ComparedCopies:
    (cluster,) = compare_copies(map(read, roots))
    return cluster


def test_copies_of_a_quorum_are_as_it_said_itself(tmp_path: Path):
    with Cluster(tmp_path) as cluster:
        cluster.format()
        cluster.start()
        create_topics(
            cluster.bootstrap_servers, {"before": Topic(partitions=1, config={}, replicas=3)}
        )
        leader, *_ = describe_quorum(cluster.bootstrap_servers)
        behind = next(node for node in NODE_IDS if node != leader)
        cluster.node(behind).kill()
        create_topics(
            cluster.bootstrap_servers, {"after": Topic(partitions=1, config={}, replicas=2)}
        )
        leader, epoch, committed, ends = describe_quorum(cluster.bootstrap_servers)
        for node in NODE_IDS:
            cluster.node(node).kill()
        answer = compared([cluster.node(node).log_directory for node in NODE_IDS])
    copies = {copy.node_id: copy for copy in answer.copies}
    assert {voter.node_id for voter in answer.voters} == set(ends) == set(NODE_IDS)
    assert answer.voters_source is VotersSource.ELECTION
    assert answer.differences == ()
    assert answer.majority_offset is not None
    assert answer.majority_offset >= committed > copies[behind].log_end_offset
    assert copies[leader].last_epoch == epoch
    assert copies[leader].election["leader_id"] == leader
    assert all(copies[node].log_end_offset >= end for node, end in ends.items() if node != behind)
    assert copies[behind].log_end_offset <= ends[behind] or ends[behind] < 0
    assert answer.may_lead(copies[behind]) is False
    assert answer.may_lead(answer.copies[0]) is True
    metadata = answer.copies[0].metadata
    assert metadata is not None
    assert {"before", "after"} <= metadata.topics_by_name().keys()


def test_voters_of_a_formatted_node_are_those_it_was_given(tmp_path: Path):
    """A quorum whose log has its voters, as ``kafka-storage format --initial-controllers`` does."""
    own, other = "3Db5QLSqSZieL3rJBUUegA", "L3rJBUUegA3Db5QLSqSZiQ"
    text = f"1@localhost:9093:{own},2@localhost:9094:{other}"
    with kafka_failures():
        formatter = java("org.apache.kafka.metadata.storage.Formatter")()
        formatter.setPrintStream(
            java("java.io.PrintStream")(java("java.io.OutputStream").nullOutputStream())
        )
        formatter.setNodeId(1)
        formatter.setClusterId(CLUSTER_ID)
        formatter.addDirectory(str(tmp_path))
        formatter.setMetadataLogDirectory(str(tmp_path))
        formatter.setControllerListenerName(CONTROLLER_LISTENER)
        formatter.setSupportedFeatures(
            java("org.apache.kafka.server.common.Feature").PRODUCTION_FEATURES
        )
        formatter.setHasDynamicQuorum(jpype.JBoolean(True))
        formatter.setInitialControllers(java("org.apache.kafka.raft.DynamicVoters").parse(text))
        formatter.run()
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
