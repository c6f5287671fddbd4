"""Managed roots made from brokers' directories: the same partitions, the same checkpoints."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import LOG_SUFFIX, TopicPartition
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.generations import create_root
from storage_core.store.managed_store import upload_file
from storage_core.store.open_objects import MANAGED_PREFIX
from tests.pylog_spark.broker_roots import BrokerDirectory

CREATED_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class ManagedTwin:
    """A managed root with the partitions that a broker's directory had.

    Attributes:
        location: Path or URL of the root.
        origin: The directory.
    """

    location: str
    origin: BrokerDirectory

    @property
    def objects(self) -> ObjectStore:
        return open_object_store(self.location)

    def store(self, topic: str, generation: int | None = None) -> ManagedStore:
        return ManagedStore(self.objects, TopicPartition(topic, 0), generation=generation)

    def directory(self, topic: str) -> str:
        return f"{MANAGED_PREFIX}{self.location}/{topic}-0"

    def tree(self, topic: str, generation: int | None = None) -> dict[str, bytes]:
        """Return the files of a partition as ``read_tree`` does those of a directory."""
        return read_store(self.store(topic, generation))

    def options(self, now_ms: int, **changes: Any) -> JobOptions:
        return replace(self.origin.options(now_ms), **{"role": Role.MANAGED, **changes})


def read_store(store: ManagedStore) -> dict[str, bytes]:
    return {
        file.name: store.read_file(file.name, limit_bytes=file.size_bytes)
        for file in store.list_files()
    }


def managed_twin(origin: BrokerDirectory, location: str | Path) -> ManagedTwin:
    """Make a managed root with the partitions and checkpoints of a broker's directory."""
    twin = ManagedTwin(str(location), origin)
    create_root(twin.objects, now_ms=CREATED_MS)
    for directory in sorted(origin.path.glob("*-0")):
        add_partition(twin, directory)
    return twin


def add_partition(twin: ManagedTwin, directory: Path) -> ManagedStore:
    origin = twin.origin
    partition = TopicPartition(directory.name.removesuffix("-0"), 0)
    store = ManagedStore(twin.objects, partition, is_new=True)
    for path in sorted(directory.iterdir()):
        if path.name.endswith(LOG_SUFFIX):
            place = upload_file(twin.objects, partition, store.attempt_id, path, path.name)
            store.promote(place, path.name)
        else:
            modified_ms = path.stat().st_mtime_ns // 1_000_000
            store.write_file(path.name, path.read_bytes(), modified_ms=modified_ms)
    store.set_checkpoints(
        PartitionCheckpoints(
            log_start_offset=origin.log_starts.get(partition),
            high_watermark=origin.high_watermarks.get(partition),
            cleaner_offset=origin.cleaner_points.get(partition),
        )
    )
    store.publish(run_id="made-for-a-test")
    return store
