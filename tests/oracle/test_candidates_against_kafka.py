"""Where committed reads stop under each candidate, beside Kafka's own loader."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.cluster.places import ANY_INDEX_BYTES, ReplicaPlace, find_places
from storage_core.cluster.replica import open_replica
from storage_core.maintenance.verification.log_directories import verify_log_directories
from tests.kit.cluster_truth import CLUSTERS, Cluster
from tests.oracle.log_directory import load_log_directory

NOW_MS = 1_800_000_000_000

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def places_in(root: Path) -> Iterator[ReplicaPlace]:
    observed, _ = verify_log_directories([(str(root), Role.BROKER)])
    for places in find_places(observed, ()):
        yield from places.replicas


@pytest.mark.sampled(1)
@pytest.mark.item("REP-06")
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_candidate_has_the_last_stable_offset_of_kafkas_log(name: str, tmp_path: Path):
    compared = held_back = 0
    for root in Cluster(name, tmp_path).roots:
        # Its high watermark is then the log's end, as under a leader that all have caught up with.
        loaded = load_log_directory(root, now_ms=NOW_MS)
        for place in places_in(root):
            log = open_replica(place, NOW_MS, ANY_INDEX_BYTES).log
            kafka = loaded.partitions.get(Path(place.directory).name)
            if log is None or kafka is None:
                continue
            ours = log.last_stable_offset_as_leader
            assert (ours, log.log_end_offset) == (kafka.last_stable_offset, kafka.log_end_offset)
            assert log.log_start_offset <= log.last_stable_offset <= ours <= log.log_end_offset
            compared += 1
            held_back += ours < log.log_end_offset
    assert compared
    assert bool(held_back) == (name == "open-transaction")
