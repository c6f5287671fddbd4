"""Directories that came out of a managed root, opened by Apache Kafka's own loader."""

import shutil

import pytest

from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import materialize_partition, release_partition
from storage_core.store import ManagedStore
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.oracle.loading import LoadTask, load_by_kafka
from tests.storage_core.maintenance.ingest.mirrors import ingest, sync

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

NOW_MS = 1_800_000_000_000
PARTITIONS = ["compacted-1", "compacted-delete-0", "events-0", "payments.txn-1"]


@pytest.fixture(params=[True, False], ids=["whole log", "closed segments"])
def written(request, tmp_path):
    """A broker's directory, and what came out of the managed root that took its partitions."""
    broker = Golden("broker-dir").unpack(tmp_path)
    mirror = MemoryObjectStore("memory://test-oracle/mirror")
    managed = MemoryObjectStore("memory://test-oracle/managed")
    rules = IngestRules(sync_has_stopped=request.param)
    checkpoints = {}
    for name in PARTITIONS:
        sync(broker / name, mirror)
        ingest(mirror, managed, name=name, rules=rules)
        topic, _, number = name.rpartition("-")
        store = ManagedStore(managed, TopicPartition(topic, int(number)))
        materialize_partition(store, tmp_path / "out" / name)
        release_partition(tmp_path / "out" / name)
        checkpoints[name] = store.checkpoints
    yield request.param, broker, tmp_path / "out", checkpoints
    forget_memory("memory://test-oracle")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean end"])
def test_kafka_opens_what_came_out_of_a_managed_root(written, tmp_path, clean):
    is_whole, broker, out, checkpoints = written
    for name in PARTITIONS:
        marks = checkpoints[name]
        task = LoadTask(
            config={},
            now_ms=NOW_MS,
            recovery_point=marks.recovery_point,
            log_start_offset=marks.log_start_offset or 0,
            clean_shutdown=clean,
        )
        before = read_tree(out / name)
        answer = load_by_kafka(out / name, task)
        assert answer.log_end_offset == marks.recovery_point
        assert answer.log_start_offset == marks.log_start_offset
        logs = {file: data for file, data in read_tree(out / name).items() if ".log" in file}
        assert logs == {file: data for file, data in before.items() if ".log" in file}
        if is_whole:
            original = tmp_path / "original" / name
            shutil.copytree(broker / name, original)
            assert load_by_kafka(original, task) == answer
            assert read_tree(original) == read_tree(out / name)
