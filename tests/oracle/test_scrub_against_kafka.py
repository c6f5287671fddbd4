"""A scrub of a tier that a living broker uploads to and deletes from: nothing is found."""

import json
import time
from pathlib import Path

import pytest

from tests.oracle.broker import Broker
from tests.oracle.broker_clients import Message, Producer, Topic, create_topics
from tests.oracle.tiers import TIER_FOLDER, TieredBroker, tier_settings

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.thorough,
    pytest.mark.usefixtures("kafka_jvm"),
]

TOPIC = "orders"
PARTITIONS = 4
SECONDS = 40
CONFIG = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "1",
    "retention.bytes": "120000",
}


def segments(tier: Path) -> set[str]:
    return {path.name for path in (tier / TIER_FOLDER).rglob("*.log")}


def test_a_tier_in_use_has_no_finding(pylog, tmp_path):
    tier = tmp_path / "tier"
    with TieredBroker(tmp_path / "data", scratch=tmp_path, settings=tier_settings(tier)) as broker:
        broker.format()
        broker.start()
        topic = Topic(partitions=PARTITIONS, config=CONFIG)
        create_topics(broker.bootstrap_servers, {TOPIC: topic})
        seen: set[str] = set()
        looks = 0
        with Producer(broker.bootstrap_servers, {"batch.size": "4000"}) as producer:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                for number in range(400):
                    producer.send(Message(topic=TOPIC, key=b"%d" % number, value=b"v" * 700))
                producer.flush()
                seen |= segments(tier)
                if seen:
                    looks += 1
                    scrub(pylog, tier, broker)
        time.sleep(2)
        assert looks > 5
        # It has deleted meanwhile, and more than it has.
        assert len(seen - segments(tier)) > len(segments(tier)) > 0


def scrub(pylog, tier: Path, broker: Broker) -> None:
    result = pylog(
        *("scrub", tier / TIER_FOLDER, "--root", broker.log_directory, "--deep"),
        *("--grace", "3s", "--recheck", "3s", "--output", "json", "--engine", "local"),
    )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    found = [row for row in rows if row["type"] == "finding"]
    assert [(row["code"], row["message"], row["file"]) for row in found] == []
    assert result.exit_code == 0, result.stderr
    (run,) = (row for row in rows if row["type"] == "run")
    assert run["notes"] == []
