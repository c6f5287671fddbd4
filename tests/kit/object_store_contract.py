"""What every ObjectStore has to do, as tests: a store's own test class inherits them.

::

    class TestMemoryObjects(ObjectStoreContract):
        @pytest.fixture
        def objects(self): ...
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    InvalidNameError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.store.object_store import (
    ListsStretches,
    ObjectStore,
    require_conditional_writes,
)

KEY = "topic-0/data/a1/00000000000000000000.log"


class ObjectStoreContract(ABC):
    """The tests; a subclass says where its store lives."""

    @pytest.fixture
    @abstractmethod
    def objects(self) -> ObjectStore | Iterable[ObjectStore]:
        """A new, empty store for every test."""

    def test_what_was_put_is_read(self, objects: ObjectStore) -> None:
        etag = objects.put(KEY, b"0123456789")
        assert objects.get(KEY) == b"0123456789"
        assert objects.get_with_etag(KEY) == (b"0123456789", etag)
        info = objects.head(KEY)
        assert (info.key, info.size_bytes, info.etag) == (KEY, 10, etag)
        assert info.modified_ms > 1_600_000_000_000

    def test_an_object_may_be_empty(self, objects: ObjectStore) -> None:
        objects.put(KEY, b"")
        assert objects.get(KEY) == b""
        assert objects.get_range(KEY, 0, 10) == b""

    def test_every_version_has_its_own_tag(self, objects: ObjectStore) -> None:
        contents = [b"one", b"two", b"six", b"ten"]
        etags = [objects.put(KEY, content) for content in contents]
        assert len(set(etags)) == len(contents)
        assert objects.head(KEY).etag == etags[-1]

    def test_an_object_that_is_longer_than_allowed_is_refused(self, objects: ObjectStore) -> None:
        objects.put(KEY, b"12345")
        assert objects.get(KEY, limit_bytes=5) == b"12345"
        with pytest.raises(StorageError, match="longer than the 4 bytes"):
            objects.get(KEY, limit_bytes=4)

    @pytest.mark.parametrize(
        ("start", "size", "expected"),
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
        self, objects: ObjectStore, start: int, size: int, expected: bytes
    ) -> None:
        etag = objects.put(KEY, b"0123456789")
        assert objects.get_range(KEY, start, size) == expected
        target = np.full(size, 0xEE, np.uint8)
        assert objects.read_into(KEY, start, target, etag=etag) == len(expected)
        assert target[: len(expected)].tobytes() == expected
        assert (target[len(expected) :] == 0xEE).all()

    def test_another_version_than_the_one_asked_for_is_told(self, objects: ObjectStore) -> None:
        etag = objects.put(KEY, b"first")
        objects.put(KEY, b"other")
        with pytest.raises(ChangedWhileReadError, match=KEY):
            objects.get_range(KEY, 0, 5, etag=etag)
        assert objects.get_range(KEY, 0, 5) == b"other"

    def test_an_object_that_is_missing_is_told_with_its_key(self, objects: ObjectStore) -> None:
        reads: list[Callable[[], object]] = [
            lambda: objects.get(KEY),
            lambda: objects.get_with_etag(KEY),
            lambda: objects.get_range(KEY, 0, 1),
            lambda: objects.head(KEY),
        ]
        for read in reads:
            with pytest.raises(ObjectNotFoundError, match=KEY):
                read()

    def test_a_folder_is_no_object(self, objects: ObjectStore) -> None:
        objects.put(KEY, b"content")
        with pytest.raises(ObjectNotFoundError):
            objects.head("topic-0/data")
        with pytest.raises(ObjectNotFoundError):
            objects.get("topic-0/data")

    def test_a_file_is_uploaded(self, objects: ObjectStore, tmp_path: Path) -> None:
        path = tmp_path / "scratch"
        path.write_bytes(b"content")
        etag = objects.put_file(KEY, str(path))
        assert objects.get_with_etag(KEY) == (b"content", etag)
        assert path.read_bytes() == b"content"
        with pytest.raises(StorageError, match="missing"):
            objects.put_file(KEY, str(tmp_path / "missing"))

    def test_a_large_file_is_uploaded_whole(self, objects: ObjectStore, tmp_path: Path) -> None:
        path = tmp_path / "scratch"
        content = np.arange((36 << 20) // 4, dtype=np.uint32)
        content.tofile(path)
        etag = objects.put_file(KEY, str(path))
        assert (objects.head(KEY).size_bytes, objects.head(KEY).etag) == (content.nbytes, etag)
        target = np.empty(content.nbytes, np.uint8)
        assert objects.read_into(KEY, 0, target, etag=etag) == content.nbytes
        assert (target.view(np.uint32) == content).all()

    def test_creation_happens_once(self, objects: ObjectStore) -> None:
        etag = objects.put_if_absent(KEY, b"mine")
        with pytest.raises(ConditionFailedError, match=KEY):
            objects.put_if_absent(KEY, b"theirs")
        assert objects.get_with_etag(KEY) == (b"mine", etag)

    def test_replacement_wants_the_version_that_is_there(self, objects: ObjectStore) -> None:
        first = objects.put_if_absent(KEY, b"first")
        second = objects.put_if_match(KEY, b"second", first)
        with pytest.raises(ConditionFailedError, match=KEY):
            objects.put_if_match(KEY, b"third", first)
        assert objects.get_with_etag(KEY) == (b"second", second)

    def test_what_is_gone_is_not_replaced(self, objects: ObjectStore) -> None:
        etag = objects.put(KEY, b"first")
        objects.delete([KEY])
        with pytest.raises(ConditionFailedError, match=KEY):
            objects.put_if_match(KEY, b"second", etag)
        with pytest.raises(ObjectNotFoundError):
            objects.head(KEY)

    def test_a_write_that_was_obeyed_already_is_no_conflict(self, objects: ObjectStore) -> None:
        first = objects.put_if_absent(KEY, b"first, of attempt a1")
        assert objects.put_if_absent(KEY, b"first, of attempt a1") == first
        second = objects.put_if_match(KEY, b"second, of attempt a1", first)
        assert objects.put_if_match(KEY, b"second, of attempt a1", first) == second

    def test_of_many_writers_one_wins(self, objects: ObjectStore) -> None:
        start = objects.put_if_absent(KEY, b"start")
        winners: list[int] = []

        def write(number: int) -> None:
            try:
                objects.put_if_match(KEY, b"writer %d" % number, start)
            except ConditionFailedError:
                return
            winners.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = winners
        assert objects.get(KEY) == b"writer %d" % winner

    def test_a_store_that_keeps_its_word_passes_the_probe(self, objects: ObjectStore) -> None:
        require_conditional_writes(objects)
        assert list(objects.list()) == []

    def test_listings_are_in_order_and_below_the_prefix(self, objects: ObjectStore) -> None:
        keys = ["a-1/m", "a-10/m", "a-1/data/x/1.log", "a/m", "root.json", "a-1/data/2.log"]
        for number, key in enumerate(keys):
            objects.put(key, bytes(number))
        assert [info.key for info in objects.list()] == sorted(keys)
        assert [(info.key, info.size_bytes) for info in objects.list("a-1/")] == [
            ("a-1/data/2.log", 5),
            ("a-1/data/x/1.log", 2),
            ("a-1/m", 0),
        ]
        assert [info.key for info in objects.list("a-1")] == sorted(
            key for key in keys if key.startswith("a-1")
        )
        assert list(objects.list("b/")) == []
        (info,) = objects.list("a-10/")
        assert info == objects.head("a-10/m")

    def test_a_stretch_of_a_listing_has_neighbours_and_no_others(
        self, objects: ObjectStore
    ) -> None:
        if not isinstance(objects, ListsStretches):
            pytest.skip("its listing cannot begin in the middle")
        for name in ("a", "t-0", "t-1", "t-10", "t-1x", "t-2", "u"):
            objects.put(f"{name}/x/1", b"")
            objects.put(f"{name}/y", b"")
        objects.put("t-1-", b"")
        # As object stores sort: "t-0/", "t-1-", "t-1/", "t-10/", "t-1x/", "t-2/".
        assert [info.key for info in objects.list_stretch("t-1/", "t-10/")] == [
            *("t-1/x/1", "t-1/y", "t-10/x/1", "t-10/y")
        ]
        one = [info.key for info in objects.list_stretch("t-2/", "t-2/")]
        assert one == [info.key for info in objects.list("t-2/")]

    def test_one_level_is_listed(self, objects: ObjectStore) -> None:
        for key in ("a-1/m", "a-10/m", "a-1/data/x/1.log", "root.json", "a-1/k"):
            objects.put(key, b"")
        assert sorted(objects.list_folders()) == ["a-1", "a-10"]
        assert list(objects.list_folders("a-1/")) == ["data"]
        assert [info.key for info in objects.list_folder()] == ["root.json"]
        assert [info.key for info in objects.list_folder("a-1/")] == ["a-1/k", "a-1/m"]
        assert list(objects.list_folders("none/")) == []
        assert list(objects.list_folder("none/")) == []

    def test_objects_are_deleted_however_often(self, objects: ObjectStore) -> None:
        for key in ("t-0/a", "t-0/b", "t-0/c"):
            objects.put(key, b"")
        objects.delete(["t-0/a", "t-0/c", "t-0/none"])
        objects.delete(["t-0/a"])
        objects.delete([])
        assert [info.key for info in objects.list()] == ["t-0/b"]

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a\\b", "a\0b", "x" * 1025]
    )
    def test_what_is_no_key_is_refused(self, objects: ObjectStore, key: str) -> None:
        actions: list[Callable[[], object]] = [
            lambda: objects.get(key),
            lambda: objects.put(key, b""),
            lambda: objects.put_if_absent(key, b""),
            lambda: objects.head(key),
            lambda: objects.delete([key]),
        ]
        for action in actions:
            with pytest.raises(InvalidNameError):
                action()

    def test_a_key_may_have_any_sign_that_a_folder_may(self, objects: ObjectStore) -> None:
        keys = ["a b/c+d", "a#b?c", "a%20b", "ä/ö", "t=1/x&y"]
        for key in keys:
            objects.put(key, key.encode())
        assert [info.key for info in objects.list()] == sorted(keys)
        assert all(objects.get(key) == key.encode() for key in keys)
