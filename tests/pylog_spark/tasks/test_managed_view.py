"""What holds for a partition by its manifest, or by the files of its root."""

from pylog_spark.tasks.managed_view import partition_checkpoints, recovery_checkpoints
from pylog_spark.tasks.run_context import RecoveryCheckpoints, RootCheckpoints
from storage_core.filenames import TopicPartition
from storage_core.store import LocalStore, ManagedStore
from storage_core.store.manifest import Checkpoints
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import managed_twin

NAME = "clean-hw-none-s161"
PARTITION = TopicPartition(NAME, 0)
SAID = Checkpoints(log_start_offset=1, recovery_point=2, high_watermark=3, cleaner_offset=4)


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
    assert partition_checkpoints(store, PARTITION, never) == SAID
    expected = Checkpoints(log_start_offset=1, high_watermark=3, cleaner_offset=4)
    assert recovery_checkpoints(store, PARTITION, never) == expected


def test_the_files_of_a_root_say_it_of_each_partition(tmp_path):
    store, other = LocalStore(tmp_path), TopicPartition("other", 0)
    files = RootCheckpoints(
        high_watermarks={PARTITION: 3}, log_starts={PARTITION: 1}, cleaner_points={PARTITION: 4}
    )
    found = partition_checkpoints(store, PARTITION, lambda: files)
    assert found == Checkpoints(log_start_offset=1, high_watermark=3, cleaner_offset=4)
    assert partition_checkpoints(store, other, lambda: files) == Checkpoints()
    recovery = RecoveryCheckpoints(
        recovery_points={PARTITION: 2}, log_starts={PARTITION: 1}, high_watermarks={PARTITION: 3}
    )
    found = recovery_checkpoints(store, PARTITION, lambda: recovery)
    assert found == Checkpoints(log_start_offset=1, recovery_point=2, high_watermark=3)
