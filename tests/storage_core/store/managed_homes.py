"""Managed roots for tests: empty ones, and a partition with two segments."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.filenames import TopicPartition
from storage_core.store import ManagedStore, ObjectStore
from storage_core.store.generations import Manifest
from tests.kit.store_contract import StoreHome

PARTITION = TopicPartition("topic", 0)
NOW_MS = 1_800_000_000_000
FILES = {
    "00000000000000000000.log": b"first segment" * 10,
    "00000000000000000000.index": b"",
    "00000000000000000000.timeindex": (1_700_000_000_000).to_bytes(8, "big") + bytes(4),
    "00000000000000000042.log": b"second segment" * 10,
    "00000000000000000042.index": b"12345678",
    "00000000000000000042.snapshot": b"snapshot",
    "leader-epoch-checkpoint": b"0\n1\n0 0\n",
}


@dataclass(frozen=True)
class ManagedHome(StoreHome):
    """An empty partition of a managed root; the store under test is one attempt's."""

    objects: ObjectStore
    attempt: ManagedStore
    folder: Path

    @property
    def store(self) -> ManagedStore:
        return self.attempt

    @property
    def missing(self) -> ManagedStore:
        return ManagedStore(self.objects, TopicPartition("missing", 0))

    def scratch(self, content: bytes) -> str:
        path = self.folder / secrets.token_hex(8)
        path.write_bytes(content)
        return str(path)

    def leave_temporary(self, name: str) -> None:
        self.objects.put(f"{PARTITION}/data/of-a-crash/{name}", b"half of a longer content")


def open_partition(
    objects: ObjectStore, *, attempt: str | None = None, is_new: bool = False
) -> ManagedStore:
    return ManagedStore(
        objects, PARTITION, attempt_id=attempt, is_new=is_new, clock=ManualClock(NOW_MS)
    )


def create_partition(objects: ObjectStore) -> Manifest:
    """Commit generation 1: two segments with their companions."""
    store = open_partition(objects, attempt="a1", is_new=True)
    for name, content in FILES.items():
        store.write_file(name, content, modified_ms=1_700_000_000_000)
    store.set_checkpoints(PartitionCheckpoints(log_start_offset=0, recovery_point=50))
    return store.publish(run_id="run-1", fencing_token=1)


def contents(store: ManagedStore) -> dict[str, bytes]:
    return {
        info.name: store.read_file(info.name, limit_bytes=1 << 20) for info in store.list_files()
    }
