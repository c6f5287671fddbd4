"""What every LogStore has to do, as tests: a store's own test class inherits them.

::

    class TestLocalStore(StoreContract):
        @pytest.fixture
        def home(self, tmp_path): ...
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import pytest

from storage_core.errors import PartitionNotFoundError, StorageError
from storage_core.store.base import LogStore

NAME = "00000000000000000000.log"
OTHER = "00000000000000000042.log"


class StoreHome(ABC):
    """Where a store under test keeps a partition, and what a test may do behind its back."""

    @property
    @abstractmethod
    def store(self) -> LogStore:
        """A store of an empty partition directory, the same one at every call."""

    @property
    @abstractmethod
    def missing(self) -> LogStore:
        """A store of a partition directory that does not exist."""

    @abstractmethod
    def scratch(self, content: bytes) -> str:
        """Return the path of a finished scratch file with this content."""

    @abstractmethod
    def leave_temporary(self, name: str) -> None:
        """Leave what a crash in the middle of write_file(name) leaves."""


def contents(store: LogStore) -> dict[str, bytes]:
    """Return every listed file and what is in it."""
    return {
        info.name: store.read_file(info.name, limit_bytes=info.size_bytes)
        for info in store.list_files()
    }


class StoreContract(ABC):
    """The tests; a subclass says where its store lives."""

    @pytest.fixture
    @abstractmethod
    def home(self) -> StoreHome | Iterable[StoreHome]:
        """A new home for every test."""

    @pytest.fixture
    def store(self, home: StoreHome) -> LogStore:
        """The store under test."""
        return home.store

    def test_a_new_directory_is_empty(self, store: LogStore) -> None:
        assert store.list_files() == []

    def test_a_directory_that_is_missing_is_told(self, home: StoreHome) -> None:
        with pytest.raises(PartitionNotFoundError):
            home.missing.list_files()

    def test_files_are_listed_by_name_with_their_sizes(self, store: LogStore) -> None:
        for size, name in enumerate((OTHER, "b.index", NAME, "a")):
            store.write_file(name, bytes(size))
        found = [(info.name, info.size_bytes) for info in store.list_files()]
        assert found == [(NAME, 2), (OTHER, 0), ("a", 3), ("b.index", 1)]
        assert all(info.modified_ms > 0 for info in store.list_files())

    def test_a_small_file_is_read_whole_up_to_a_limit(self, store: LogStore) -> None:
        store.write_file(NAME, b"12345")
        assert store.read_file(NAME, limit_bytes=5) == b"12345"
        assert store.read_file(NAME, limit_bytes=6) == b"12345"
        with pytest.raises(StorageError, match="longer than the 4 bytes"):
            store.read_file(NAME, limit_bytes=4)

    def test_an_empty_file_is_read(self, store: LogStore) -> None:
        store.write_file(NAME, b"")
        assert store.read_file(NAME, limit_bytes=0) == b""

    @pytest.mark.parametrize(
        ("position", "length", "expected"),
        [
            pytest.param(0, 10, b"0123456789", id="all of it"),
            pytest.param(3, 4, b"3456", id="from the middle"),
            pytest.param(8, 4, b"89", id="past the end"),
            pytest.param(10, 4, b"", id="at the end"),
            pytest.param(99, 4, b"", id="behind the end"),
            pytest.param(2, 0, b"", id="nothing"),
        ],
    )
    def test_ranges_are_read(
        self, store: LogStore, position: int, length: int, expected: bytes
    ) -> None:
        store.write_file(NAME, b"0123456789")
        file = store.open_file(NAME)
        try:
            assert (file.name, file.size_bytes) == (NAME, 10)
            target = np.full(length, 0xEE, np.uint8)
            assert file.read_into(position, target) == len(expected)
            assert target[: len(expected)].tobytes() == expected
            assert (target[len(expected) :] == 0xEE).all()
        finally:
            file.close()

    def test_a_part_of_an_array_is_filled_and_nothing_around_it(self, store: LogStore) -> None:
        store.write_file(NAME, b"0123456789")
        file = store.open_file(NAME)
        target = np.zeros(8, np.uint8)
        assert file.read_into(1, target[2:6]) == 4
        file.close()
        assert target.tobytes() == b"\0\0001234\0\0"

    def test_an_open_file_outlives_its_replacement(self, store: LogStore) -> None:
        store.write_file(NAME, b"old")
        file = store.open_file(NAME)
        store.write_file(NAME, b"new content")
        target = np.empty(11, np.uint8)
        assert file.read_into(0, target) == 3
        file.close()
        assert target[:3].tobytes() == b"old"

    def test_a_file_that_is_missing_is_told_with_its_name(self, store: LogStore) -> None:
        with pytest.raises(StorageError, match=NAME):
            store.read_file(NAME, limit_bytes=9)
        with pytest.raises(StorageError, match=NAME):
            store.open_file(NAME)
        with pytest.raises(StorageError, match=NAME):
            store.rename(NAME, OTHER)
        with pytest.raises(StorageError, match=NAME):
            store.truncate(NAME, 0)
        assert store.list_files() == []

    def test_a_write_creates_or_replaces(self, store: LogStore) -> None:
        store.write_file(NAME, b"a long first content")
        store.write_file(NAME, b"second")
        store.write_file(OTHER, b"")
        assert contents(store) == {NAME: b"second", OTHER: b""}

    def test_a_write_that_crashed_before_does_no_harm(
        self, home: StoreHome, store: LogStore
    ) -> None:
        store.write_file(NAME, b"old")
        home.leave_temporary(NAME)
        assert contents(store)[NAME] == b"old"
        store.write_file(NAME, b"new")
        assert contents(store) == {NAME: b"new"}

    def test_an_empty_file_is_created_unless_there_is_one(self, store: LogStore) -> None:
        store.write_file(NAME, b"content")
        store.create_empty(NAME)
        store.create_empty(OTHER)
        store.create_empty(OTHER)
        assert contents(store) == {NAME: b"content", OTHER: b""}

    def test_a_scratch_file_is_moved_in(self, home: StoreHome, store: LogStore) -> None:
        store.write_file(NAME, b"old")
        store.promote(home.scratch(b"cleaned"), NAME)
        store.promote(home.scratch(b"another"), OTHER)
        assert contents(store) == {NAME: b"cleaned", OTHER: b"another"}

    def test_a_scratch_file_is_moved_in_once(self, home: StoreHome, store: LogStore) -> None:
        scratch = home.scratch(b"cleaned")
        store.promote(scratch, NAME)
        with pytest.raises(StorageError):
            store.promote(scratch, OTHER)
        assert contents(store) == {NAME: b"cleaned"}

    def test_a_rename_replaces_its_target(self, store: LogStore) -> None:
        store.write_file(NAME, b"new")
        store.write_file(OTHER, b"old")
        store.rename(NAME, OTHER)
        assert contents(store) == {OTHER: b"new"}

    def test_a_file_is_deleted_however_often(self, store: LogStore) -> None:
        store.write_file(NAME, b"content")
        store.delete(NAME)
        store.delete(NAME)
        assert contents(store) == {}

    def test_a_file_is_cut(self, store: LogStore) -> None:
        store.write_file(NAME, b"0123456789")
        store.truncate(NAME, 4)
        assert contents(store) == {NAME: b"0123"}
        store.truncate(NAME, 0)
        assert contents(store) == {NAME: b""}

    def test_the_directory_is_synced(self, store: LogStore) -> None:
        store.write_file(NAME, b"content")
        store.sync_directory()
        assert contents(store) == {NAME: b"content"}

    def test_the_location_names_the_directory(self, home: StoreHome, store: LogStore) -> None:
        assert store.location
        assert store.location != home.missing.location
