"""A damaged disk, healed from the other replicas: real brokers start on it and cut nothing."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core.filenames import LEADER_EPOCH_FILE, LOG_SUFFIX
from tests.kit.flipped_epochs import FLIPPED, flip_epoch
from tests.oracle.broker_clients import (
    Message,
    Producer,
    Topic,
    consume_topics,
    create_topics,
    in_sync_replicas,
)
from tests.oracle.cluster import NODE_IDS, Cluster

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
PARTITIONS = 6
# A lost end comes back up to the high watermark, as far as a killed broker wrote that down.
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": "100"}
CONFIG = {"segment.bytes": "1048576", "min.insync.replicas": "1"}


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{LOG_SUFFIX}"))


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in segments(directory))


def bad_checksum(directory: Path) -> None:
    content = bytearray(segments(directory)[0].read_bytes())
    content[len(content) // 2] ^= 1
    segments(directory)[0].write_bytes(content)


def zeros(directory: Path) -> None:
    content = bytearray(segments(directory)[1].read_bytes())
    content[300_000:700_000] = bytes(400_000)
    segments(directory)[1].write_bytes(content)


def torn_middle(directory: Path) -> None:
    content = segments(directory)[0].read_bytes()
    segments(directory)[0].write_bytes(content[:400_000] + content[600_000:])


def missing_segment(directory: Path) -> None:
    for path in directory.glob(f"{segments(directory)[1].stem}.*"):
        path.unlink()


def swapped_segments(directory: Path) -> None:
    one, two = segments(directory)[:2]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def noise_at_the_end(directory: Path) -> None:
    last = [path for path in segments(directory) if path.stat().st_size][-1]
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2] + b"\x5a" * 5000)


ACCIDENTS: list[Callable[[Path], None]] = [
    *(bad_checksum, zeros, torn_middle, missing_segment, swapped_segments, noise_at_the_end),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(False, marks=pytest.mark.long, id="stopped"), pytest.param(True, id="killed")],
)
def test_brokers_start_on_a_healed_disk_and_serve_all_that_was_acknowledged(
    tmp_path: Path, pylog, is_killed: bool
):
    plan, trash = tmp_path / "plan.json", tmp_path / "trash"
    with Cluster(tmp_path, settings=SETTINGS, has_own_controller=True) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        topics = {
            "plain": Topic(partitions=PARTITIONS, config=CONFIG, replicas=3),
            "bought": Topic(partitions=1, config=CONFIG, replicas=3),
        }
        create_topics(servers, topics)
        sent = set()
        with Producer(servers, {"batch.size": "65536"}) as producer:
            for number in range(PARTITIONS * 30):
                key = b"%d" % number
                producer.send(Message(topic="plain", key=key, value=key * 40_000))
                sent.add(key)
                if number % 12 == 11:
                    producer.flush()
        bought = []
        with Producer(servers, {"transactional.id": "shop", "batch.size": "65536"}) as producer:
            for number in range(12):
                producer.begin()
                for _ in range(4):
                    producer.send(Message(topic="bought", key=b"%d" % number, value=b"x" * 70_000))
                if number % 3:
                    producer.commit()
                    bought += [b"%d" % number] * 4
                else:
                    producer.abort()
        names = [f"plain-{number}" for number in range(PARTITIONS)] + ["bought-0"]
        cluster.wait_until_in_sync(["plain", "bought"])
        for name in names:
            topic, _, number = name.rpartition("-")
            while len({cluster.digests(topic, int(number))[node] for node in NODE_IDS}) > 1:
                time.sleep(0.1)
        time.sleep(2)  # followers learn the last high watermark by their next fetch
        for node in NODE_IDS:
            (cluster.node(node).kill if is_killed else cluster.node(node).stop)()
        cluster.controller.kill()
        damaged, *donors = (cluster.node(node).log_directory for node in NODE_IDS)
        whole = {name: log_bytes(damaged / name) for name in names}
        for accident, name in zip(ACCIDENTS, names, strict=False):
            assert len(segments(damaged / name)) > 1, name
            accident(damaged / name)
        bad_checksum(damaged / "bought-0")
        words = [word for root in donors for word in ("--donor", str(root))]
        heal = ("heal", str(damaged), *words, "--role", "broker", "--plan-out", str(plan))
        result = pylog(*heal)
        assert result.exit_code == 0, result.stdout + result.stderr
        applied = pylog("apply", str(plan), "--trash", str(trash))
        assert applied.exit_code == 0, applied.stdout + applied.stderr
        assert {name: log_bytes(damaged / name) for name in names} == whole

        cluster.start()
        cluster.wait_until_in_sync(["plain", "bought"])
        records = consume_topics(servers, {"plain": PARTITIONS, "bought": 1})
        of_plain = [
            record for place, rows in records.items() if place[0] == "plain" for record in rows
        ]
        assert sorted(record.key for record in of_plain) == sorted(sent)
        assert [record.key for record in records["bought", 0]] == bought
        for name in names:
            assert log_bytes(damaged / name).startswith(whole[name]), name


@pytest.mark.long
def test_a_flipped_epoch_keeps_a_replica_out_of_sync_until_it_is_healed(tmp_path: Path, pylog):
    """Kafka's recovery believes the epoch, and no leader knows it when the replica fetches."""
    with Cluster(tmp_path, settings=SETTINGS, has_own_controller=True) as cluster:
        cluster.format()
        cluster.start()
        servers = cluster.bootstrap_servers
        create_topics(servers, {"plain": Topic(partitions=1, config=CONFIG, replicas=3)})
        with Producer(servers, {"batch.size": "65536"}) as producer:
            for number in range(40):
                producer.send(Message(topic="plain", key=b"%d" % number, value=b"x" * 40_000))
        cluster.wait_until_in_sync(["plain"])
        cluster.wait_until_equal("plain", 0)
        (topic,) = [each for each in cluster.metadata().topics.values() if each.name == "plain"]
        follower, *others = sorted(NODE_IDS, key=lambda each: each == topic.partitions[0].leader)
        node = cluster.node(follower)
        node.kill()
        directory = node.log_directory / "plain-0"
        whole = log_bytes(directory)
        flip_epoch(segments(directory)[0], 3)
        node.start()
        time.sleep(20)
        assert in_sync_replicas(servers, ["plain"])["plain", 0] == set(others)
        # The fourth batch has one record, as each of them.
        assert (directory / LEADER_EPOCH_FILE).read_text() == f"0\n2\n0 0\n{FLIPPED} 3\n"
        for each in NODE_IDS:
            cluster.node(each).stop()
        cluster.controller.kill()
        donors = [str(cluster.node(each).log_directory) for each in others]
        words = [word for root in donors for word in ("--donor", root)]
        plan = tmp_path / "plan.json"
        result = pylog("heal", node.log_directory, *words, "--role", "broker", "--plan-out", plan)
        assert result.exit_code == 0, result.stdout + result.stderr
        applied = pylog("apply", plan)
        assert applied.exit_code == 0, applied.stdout + applied.stderr
        assert log_bytes(directory) == whole
        assert str(FLIPPED) not in (directory / LEADER_EPOCH_FILE).read_text()
        cluster.start()
        cluster.wait_until_in_sync(["plain"])
