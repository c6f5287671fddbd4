"""A mirror's partition on an object store: read by one listing, never written."""

import numpy as np
import pytest

from storage_core.errors import (
    ChangedWhileReadError,
    PartitionNotFoundError,
    ReadOnlyStoreError,
    StorageError,
)
from storage_core.store import ObjectDirectory, open_store
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.wrapped_objects import CountingObjects

LOG = "00000000000000000000.log"


@pytest.fixture
def objects():
    store = MemoryObjectStore("memory://mirror/kafka")
    store.put(f"topic-0/{LOG}", b"0123456789")
    store.put("topic-0/leader-epoch-checkpoint", b"0\n0\n")
    store.put("topic-0/folder/inside.log", b"not a file of the partition")
    store.put("topic-01/other.log", b"not of this one")
    yield CountingObjects(store)
    forget_memory("memory://mirror")


def test_files_are_those_directly_in_the_folder(objects):
    found = open_store("memory://mirror/kafka/topic-0").list_files()
    assert [(info.name, info.size_bytes) for info in found] == [
        (LOG, 10),
        ("leader-epoch-checkpoint", 4),
    ]


def test_one_listing_serves_all(objects):
    directory = ObjectDirectory(objects, "topic-0")
    for _ in range(3):
        directory.list_files()
    file = directory.open_file(LOG)
    target = np.empty(4, np.uint8)
    assert file.read_into(8, target) == 2
    assert directory.read_file("leader-epoch-checkpoint", limit_bytes=9) == b"0\n0\n"
    assert objects.count("list") == 1
    assert objects.count("head") == 0
    assert objects.count("get") == 2


def test_a_listing_of_many_folders_saves_even_that(objects):
    listing = list(objects.list_folder("topic-0/"))
    directory = ObjectDirectory(objects, "topic-0", listing)
    assert len(directory.list_files()) == 2
    assert objects.count("list") == 1


def test_a_file_that_changed_since_the_listing_is_not_mixed(objects):
    directory = ObjectDirectory(objects, "topic-0")
    directory.list_files()
    file = directory.open_file(LOG)
    objects.put(f"topic-0/{LOG}", b"a newer content")
    with pytest.raises(ChangedWhileReadError, match=LOG):
        file.read_into(0, np.empty(4, np.uint8))
    fresh = ObjectDirectory(objects, "topic-0").open_file(LOG)
    assert fresh.size_bytes == 15


def test_a_file_is_opened_in_one_version_or_not_at_all(objects):
    directory = ObjectDirectory(objects, "topic-0")
    (old,) = (file.identity for file in directory.list_files() if file.name == LOG)
    assert directory.open_identified(LOG, old).size_bytes == 10
    new = objects.put(f"topic-0/{LOG}", b"a newer content")
    assert directory.open_identified(LOG, new).size_bytes == 15
    assert ObjectDirectory(objects, "topic-0").open_identified(LOG, old) is None
    assert directory.open_identified("none.log", old) is None


def test_what_is_missing_is_told(objects):
    with pytest.raises(PartitionNotFoundError, match="topic-9"):
        ObjectDirectory(objects, "topic-9").list_files()
    with pytest.raises(StorageError, match=r"none\.log"):
        ObjectDirectory(objects, "topic-0").open_file("none.log")
    with pytest.raises(StorageError, match="longer than the 3 bytes"):
        ObjectDirectory(objects, "topic-0").read_file("leader-epoch-checkpoint", limit_bytes=3)


@pytest.mark.item("DIR-15")
def test_a_mirror_is_never_written(objects):
    directory = ObjectDirectory(objects, "topic-0")
    before = [(info.key, info.etag) for info in objects.list()]
    for change in (
        lambda: directory.write_file(LOG, b""),
        lambda: directory.copy_range(LOG, 0, 1, "x", modified_ms=0),
        lambda: directory.create_empty("x"),
        lambda: directory.promote("/scratch", LOG),
        lambda: directory.rename(LOG, "x"),
        lambda: directory.delete(LOG),
        lambda: directory.truncate(LOG, 0),
        lambda: directory.sync_file(LOG),
        directory.sync_directory,
    ):
        with pytest.raises(ReadOnlyStoreError, match="only read"):
            change()
    assert [(info.key, info.etag) for info in objects.list()] == before
