"""What holds for a partition by its manifest, or by the files of its root."""

from storage_core import filenames
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.store import LocalStore, ManagedStore
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import managed_twin

NAME = "clean-hw-none-s161"
PARTITION = filenames.TopicPartition(NAME, 0)
SAID = PartitionCheckpoints(
    log_start_offset=1, recovery_point=2, high_watermark=3, cleaner_offset=4
)


def never() -> None:
    raise AssertionError("a managed root has no checkpoint files")


def managed(tmp_path) -> ManagedStore:
    origin = broker_directory(tmp_path / "log", [NAME])
    twin = managed_twin(origin, tmp_path / "managed")
    store = ManagedStore(twin.objects, PARTITION)
    store.set_checkpoints(SAID)
    store.publish(run_id="run", result={})
    return ManagedStore(twin.objects, PARTITION)


def test_a_manifest_says_all_but_what_was_ever_verified(tmp_path):
    store = managed(tmp_path)
    expected = PartitionCheckpoints(log_start_offset=1, high_watermark=3, cleaner_offset=4)
    assert partition_checkpoints(store, PARTITION, never) == expected


def test_the_files_of_a_root_say_it_of_each_partition(tmp_path):
    store, other = LocalStore(tmp_path), filenames.TopicPartition("other", 0)
    files = Checkpoints(
        entries={
            filenames.RECOVERY_POINT_FILE: {PARTITION: 2},
            filenames.LOG_START_FILE: {PARTITION: 1},
            filenames.REPLICATION_FILE: {PARTITION: 3},
            filenames.CLEANER_FILE: {PARTITION: 4},
        }
    )
    assert partition_checkpoints(store, PARTITION, lambda: files) == SAID
    assert partition_checkpoints(store, other, lambda: files) == PartitionCheckpoints()
