"""The kinds of roots keep the contract of all roots."""

from functools import partial
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError
from storage_core.filenames import DELETED_SUFFIX, TopicPartition, log_file
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.managed import ManagedRoot
from storage_core.roots.open_root import MirrorRoot
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.generations import create_root
from tests.kit import root_contract


class TestBrokerRoot(root_contract.HeldRootContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> root_contract.RootHome:
        log = tmp_path / "log"
        for name in (root_contract.NAME, root_contract.OTHER):
            (log / name).mkdir(parents=True)
            for file, content in root_contract.FILES.items():
                (log / name / file).write_bytes(content)
        deleted = log / root_contract.NAME / (log_file(99) + DELETED_SUFFIX)
        return root_contract.RootHome(
            root=BrokerRoot(log),
            role=Role.BROKER,
            trash=tmp_path / "trash",
            set_aside=partial(deleted.write_bytes, b"123"),
        )

    def test_an_undo_of_a_run_that_kept_nothing_of_it_is_refused(self, home) -> None:
        assert home.trash is not None
        home.hold()
        other = BrokerRoot(Path(home.root.location).parent)
        with pytest.raises(ConfigError, match=f"kept nothing of {other.location}"):
            other.hold(run_id=root_contract.LATER, mark_clean=True).undo_of(
                root_contract.RUN, home.trash / root_contract.RUN
            )


def managed_root(objects: ObjectStore) -> root_contract.RootHome:
    create_root(objects, now_ms=5)
    for number in (0, 1):
        store = ManagedStore(objects, TopicPartition("orders", number), is_new=True)
        for file, content in root_contract.FILES.items():
            store.write_file(file, content)
        store.publish(run_id="ingest")
    return root_contract.RootHome(root=ManagedRoot(objects), role=Role.MANAGED)


class TestManagedRootOnADisk(root_contract.HeldRootContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> root_contract.RootHome:
        return managed_root(open_object_store(str(tmp_path / "managed")))


class TestManagedRootOnAnObjectStore(root_contract.HeldRootContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> root_contract.RootHome:
        return managed_root(open_object_store(f"memory://contract-{tmp_path.name}/managed"))


class TestMirrorRoot(root_contract.ReadOnlyRootContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> root_contract.RootHome:
        objects = open_object_store(f"memory://contract-{tmp_path.name}/mirror")
        for name in (root_contract.NAME, root_contract.OTHER):
            for file, content in root_contract.FILES.items():
                objects.put(f"{name}/{file}", content)
        return root_contract.RootHome(root=MirrorRoot(objects), role=Role.MIRROR)
