"""A recovered broker before Kafka's own controller: its marker's epoch decides about its place."""

import json
from pathlib import Path

import pytest

from pylog_spark.cluster.attest import attest
from pylog_spark.engines.choice import Local
from pylog_spark.operations.recover.driver import recover
from pylog_spark.options import JobOptions
from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.roles import Role
from storage_core.cluster.elections import NO_LEADER, StartingBroker
from storage_core.cluster.places import states_of
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.cluster_truth import Cluster
from tests.oracle.controller import Change, KafkaController
from tests.oracle.jvm import java, kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

OPTIONS = JobOptions(now_ms=1_800_000_000_000, now_is_said=True, role=Role.BROKER)
HANDLER = "org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler"
# The last one to stop.
BROKER = 3


def kafkas_epoch(root: Path) -> int:
    """Return what the broker says of its last reign when it registers, by Kafka's own reader."""
    return int(java(HANDLER)(str(root)).read().orElse(-1))


def after_its_start(root: Path) -> Change:
    """Return the first partition of a topic after the broker alone has come up.

    With ``min.insync.replicas`` of 2 another one is left in the ELR, and the last known leader is
    not elected as such.
    """
    metadata = read_cluster_metadata(root / "__cluster_metadata-0", is_recovered=True)
    (state,) = (
        s for s in states_of(metadata, {}, {}) if (s.topic, s.partition) == ("stock_levels", 0)
    )
    starting = StartingBroker(
        broker=BROKER, is_clean=True, directories=metadata.brokers[BROKER].log_directories
    )
    with kafka_failures():
        controller = KafkaController(state, metadata.brokers.values(), is_elr_enabled=True)
        controller.end_sessions()
        controller.start(starting, kafkas_epoch(root))
        return controller.now()


@pytest.mark.thorough
@pytest.mark.item("REP-15", "CKP-16")
def test_an_attested_broker_keeps_its_place_and_another_one_loses_it(tmp_path: Path):
    roots = Cluster("clean", tmp_path).roots
    root = roots[BROKER - 1]
    marker = root / CLEAN_SHUTDOWN_FILE
    epoch, exact = kafkas_epoch(root), marker.read_bytes()
    before = after_its_start(root)
    assert (before.leader, before.isr) == (BROKER, {BROKER})
    marker.unlink()
    place = Local.of_master(None)
    recover(place, [root], OPTIONS)
    assert kafkas_epoch(root) == json.loads(marker.read_bytes())["brokerEpoch"] == -1
    lost = after_its_start(root)
    assert (lost.leader, lost.isr, lost.elr) == (NO_LEADER, set(), {2})
    attest(place, roots, OPTIONS)
    assert (kafkas_epoch(root), marker.read_bytes()) == (epoch, exact)
    assert after_its_start(root) == before
