"""A node of three is killed under load and recovered: it rejoins, and all replicas are equal."""

import threading

import pytest

from tests.oracle.broker import UNTOUCHED, Broker
from tests.oracle.broker_clients import Message, Producer, Topic, consume_topics, create_topics
from tests.oracle.cluster import Cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(900, method="thread"),
]
TOPIC, PARTITIONS = "orders", 2
METADATA = "__cluster_metadata-0"
VICTIM = 2
ROUNDS, SIZE = 60, 20
KILL_DELAY_S = 0.03
# What a starting broker says of logs that it repairs instead of only loading them.
REPAIRS = ("Recovering unflushed segment", "Corruption found in segment", "Deleting segments as")
# A killed leader may have a tail that no other replica got, so nobody acknowledged it: it cuts that
# off when it comes back ("Truncating partition"), recovered or not. Anything else would be ours.
UNEQUAL = ("diverg",)


def write(servers: str, victim: Broker) -> set[bytes]:
    """Send batches in transactions, every third of them aborted; return what was acknowledged.

    Half-way the victim is killed while batches are on their way. The two that are left go on: the
    victim is behind when it comes back.
    """
    acknowledged: set[bytes] = set()
    killer = threading.Timer(KILL_DELAY_S, victim.kill)
    with Producer(servers, {"transactional.id": "writer"}) as producer:
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                killer.start()
            values = [b"%d-%d" % (number, row) for row in range(SIZE)]
            producer.begin()
            for value in values:
                producer.send(Message(topic=TOPIC, key=value, value=value))
            if number % 3 == 0:
                producer.abort()
            else:
                producer.commit()
                acknowledged |= set(values)
    killer.join()
    return acknowledged


@pytest.mark.long
def test_a_node_that_was_killed_and_recovered_rejoins_with_equal_replicas(spark, pylog, tmp_path):
    with Cluster(tmp_path, settings=UNTOUCHED) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        config = {"internal.segment.bytes": "4000"}
        create_topics(servers, {TOPIC: Topic(partitions=PARTITIONS, config=config, replicas=3)})
        victim = cluster.node(VICTIM)
        acknowledged = write(servers, victim)
        recovered = pylog("recover", victim.log_directory, "--role", "broker")
        assert recovered.exit_code == 0, recovered.stdout + recovered.stderr
        before = len(victim.log_lines())
        victim.start()
        cluster.wait_until_in_sync([TOPIC, "__transaction_state"])
        said = victim.log_lines()[before:]
        # KRaft loads the log of its metadata as if it had been killed, whatever the marker says.
        said = [line for line in said if METADATA not in line]
        assert not [line for line in said if any(text in line for text in REPAIRS)]
        assert not [line for line in said if any(text in line for text in UNEQUAL)]
        records = consume_topics(servers, {TOPIC: PARTITIONS})
        values = [record.value for partition in records.values() for record in partition]
        assert len(values) == len(set(values))
        assert set(values) == acknowledged
        for partition in range(PARTITIONS):
            cluster.wait_until_equal(TOPIC, partition)
