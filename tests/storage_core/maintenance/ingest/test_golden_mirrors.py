"""What Kafka wrote goes into a managed root and comes out again, byte for byte."""

import pytest

from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import materialize_partition, release_partition
from storage_core.store import ManagedStore
from tests.kit.golden_data import Golden
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.storage_core.maintenance.ingest.mirrors import ingest, sync

PARTITIONS = ["compacted-0", "compacted-delete-0", "events-1", "payments.txn-0", "recompressed-0"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "adopted"])
@pytest.mark.parametrize("name", PARTITIONS)
def test_a_brokers_partition_comes_out_of_a_managed_root_as_it_went_in(tmp_path, name, in_place):
    broker = Golden("broker-dir").unpack(tmp_path)
    mirror = MemoryObjectStore("memory://test-golden/mirror")
    managed = MemoryObjectStore("memory://test-golden/managed")
    try:
        sync(broker / name, mirror)
        rules = IngestRules(sync_has_stopped=True, in_place=in_place)
        ingest(mirror, managed, name=name, rules=rules)
        topic, _, number = name.rpartition("-")
        out = tmp_path / "out" / name
        materialize_partition(ManagedStore(managed, TopicPartition(topic, int(number))), out)
        release_partition(out)
    finally:
        forget_memory("memory://test-golden")
    found = {path.name: path.read_bytes() for path in out.iterdir()}
    assert found == {path.name: path.read_bytes() for path in (broker / name).iterdir()}
