"""The object stores that need no server: memory, a local folder, any filesystem of fsspec."""

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from storage_core.errors import (
    ConditionFailedError,
    ConfigError,
    MissingDriverError,
    StorageError,
    UnsafeStoreError,
)
from storage_core.store import object_store, open_object_store, open_objects
from storage_core.store.fsspec_objects import FsspecObjectStore
from storage_core.store.local_objects import TEMPORARY_FOLDER, LocalObjectStore
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.object_store_contract import KEY, ObjectStoreContract


class TestMemoryObjects(ObjectStoreContract):
    @pytest.fixture
    def objects(self):
        yield MemoryObjectStore("memory://contract/root")
        forget_memory("memory://contract")


class TestLocalObjects(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> object_store.ObjectStore:
        return LocalObjectStore(tmp_path / "root")


def test_a_url_says_which_store_it_is(tmp_path: Path):
    assert isinstance(open_object_store(str(tmp_path)), LocalObjectStore)
    assert isinstance(open_object_store(f"file://{tmp_path}"), LocalObjectStore)
    assert isinstance(open_object_store("memory://a/b"), MemoryObjectStore)
    assert isinstance(open_object_store("http://127.0.0.1:1/mirror"), FsspecObjectStore)
    assert open_object_store(f"file://{tmp_path}").url == str(tmp_path)
    assert open_object_store(f"managed+{tmp_path}").url == str(tmp_path)


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    monkeypatch.delitem(__import__("sys").modules, "storage_core.store.s3_objects", raising=False)
    monkeypatch.delitem(__import__("sys").modules, "storage_core.store.s3_objects", raising=False)
    with pytest.raises(MissingDriverError, match=r"pylog-spark\[s3\]"):
        open_objects.open_object_store("s3://bucket/root")


@pytest.mark.parametrize(
    ("url", "said"),
    [("foo://bucket/root", "expected a URL that fsspec knows"), ("gs://bucket/root", "gcsfs")],
)
def test_a_url_that_nothing_reaches_is_wrong_usage(url: str, said: str):
    with pytest.raises(ConfigError, match=said) as refused:
        open_object_store(url)
    assert url in str(refused.value)


@pytest.fixture
def of_fsspec() -> Iterator[FsspecObjectStore]:
    """Objects in a filesystem of fsspec's own."""
    yield FsspecObjectStore("memory://of-fsspec/root")
    fsspec.filesystem("memory").rm("/of-fsspec", recursive=True)


def test_any_filesystem_of_fsspec_can_be_read(of_fsspec: FsspecObjectStore):
    of_fsspec.put("t-0/b.log", b"0123456789")
    of_fsspec.put("t-0/a.log", b"")
    assert list(of_fsspec.list_folders()) == ["t-0"]
    assert [info.key for info in of_fsspec.list_folder("t-0/")] == ["t-0/a.log", "t-0/b.log"]
    assert [(info.key, info.size_bytes) for info in of_fsspec.list()] == [
        ("t-0/a.log", 0),
        ("t-0/b.log", 10),
    ]
    assert of_fsspec.get_range("t-0/b.log", 8, 4) == b"89"
    assert of_fsspec.head("t-0/b.log").modified_ms > 1_600_000_000_000


def test_a_filesystem_without_conditional_writes_holds_no_managed_root(of_fsspec):
    of_fsspec.put("something", b"")
    with pytest.raises(UnsafeStoreError, match="no conditional"):
        object_store.require_conditional_writes(of_fsspec)


class _Careless(MemoryObjectStore):
    """A server that takes conditions and ignores them."""

    ignores_match = False

    def put_if_absent(self, key: str, content: bytes) -> str:
        return super().put_if_absent(key, content) if self.ignores_match else self.put(key, content)

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        return self.put(key, content)


class _CarelessMatch(_Careless):
    ignores_match = True


class _SameTag(MemoryObjectStore):
    def _store(self, path: str, content: bytes) -> str:
        super()._store(path, content)
        return "same"


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        pytest.param(_Careless, "ignores If-None-Match", id="creation overwrites"),
        pytest.param(_CarelessMatch, "ignores If-Match", id="replacement overwrites"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(store: type[MemoryObjectStore], reason: str):
    objects = store("memory://careless")
    with pytest.raises(UnsafeStoreError, match=reason):
        object_store.require_conditional_writes(objects)
    assert list(objects.list()) == []


class _Racing(MemoryObjectStore):
    """A server that looks first and writes then: S3Proxy over a folder, for one.

    Attributes:
        races: For each number of a race, whether two of its writers meet; the last one holds on.
    """

    condition = "put_if_absent"
    races: tuple[bool, ...] = (True,)

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._meet = threading.Condition()
        self._waiting: dict[str, int] = {}
        self._raced: list[str] = []

    def put_if_absent(self, key: str, content: bytes) -> str:
        return self._write("put_if_absent", key, content)

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        return self._write("put_if_match", key, content, etag)

    def _write(self, condition: str, key: str, content: bytes, etag: str = "") -> str:
        if condition != self.condition or not self._does_race(key):
            return super()._put_if(key, content, etag)
        with self._meet:
            if self._waiting.get(key, 0) >= 2:  # the others come after these two
                return self._put_if(key, content, etag)
            current = self._find(key)[1] if etag else ""
            if current != etag:
                raise ConditionFailedError(key, etag, current)
            self._waiting[key] = self._waiting.get(key, 0) + 1
            self._meet.notify_all()
            assert self._meet.wait_for(lambda: self._waiting[key] >= 2, timeout=10)
            return self.put(key, content)

    def _does_race(self, key: str) -> bool:
        if "-" not in key.rpartition("/")[2]:
            return False  # one after the other, it keeps its word
        with self._meet:
            if key not in self._raced:
                self._raced.append(key)
            return self.races[min(self._raced.index(key), len(self.races) - 1)]


class _RacingMatch(_Racing):
    condition = "put_if_match"


class _RacingAtLast(_Racing):
    races = (*(False,) * (object_store.RACES - 1), True)


class _RacingMatchAtLast(_RacingMatch, _RacingAtLast):
    pass


@pytest.mark.parametrize(
    ("store", "condition"),
    [
        (_Racing, "If-None-Match"),
        (_RacingAtLast, "If-None-Match"),
        (_RacingMatch, "If-Match"),
        (_RacingMatchAtLast, "If-Match"),
    ],
)
def test_a_store_that_lets_two_writers_win_is_refused(store: type[_Racing], condition: str):
    objects = store("memory://racing")
    # One after the other its conditions hold.
    etag = objects.put_if_absent("t/1", b"one")
    with pytest.raises(ConditionFailedError):
        objects.put_if_absent("t/1", b"two")
    with pytest.raises(ConditionFailedError):
        objects.put_if_match("t/1", b"two", "another")
    assert objects.put_if_match("t/1", b"two", etag) != etag
    objects.delete(["t/1"])
    with pytest.raises(
        UnsafeStoreError, match=f"2 of {object_store.WRITERS} writers .* {condition}.* at once"
    ):
        object_store.require_conditional_writes(objects)
    assert list(objects.list()) == []


class _Shy(MemoryObjectStore):
    """A server that refuses all writers that meet."""

    def _put_if(self, key: str, content: bytes, etag: str) -> str:
        if b"writer" in content:
            raise ConditionFailedError(key, etag, "")
        return super()._put_if(key, content, etag)


class _Down(_Shy):
    """A server that fails when writers meet."""

    def _put_if(self, key: str, content: bytes, etag: str) -> str:
        try:
            return super()._put_if(key, content, etag)
        except ConditionFailedError as error:
            if b"writer" in content:
                raise StorageError(key, "503: SlowDown") from error
            raise


class _OneIsBusy(MemoryObjectStore):
    """A server that asks some of the writers that met to come again, once too often."""

    def _put_if(self, key: str, content: bytes, etag: str) -> str:
        try:
            return super()._put_if(key, content, etag)
        except ConditionFailedError as error:
            if b"writer" in content:
                raise StorageError(key, "409: ConditionalRequestConflict") from error
            raise


class _LastWriteStays(MemoryObjectStore):
    """A server that refuses by its answer, and writes all the same."""

    def _put_if(self, key: str, content: bytes, etag: str) -> str:
        try:
            return super()._put_if(key, content, etag)
        except ConditionFailedError:
            if b"writer" in content:
                self.put(key, content)
            raise


def test_a_race_needs_a_winner_whose_bytes_stay():
    with pytest.raises(
        UnsafeStoreError, match=f"all of {object_store.WRITERS} writers .* were refused"
    ):
        object_store.require_conditional_writes(_Shy("memory://shy"))
    with pytest.raises(UnsafeStoreError, match="after a race"):
        object_store.require_conditional_writes(_LastWriteStays("memory://last"))
    # A store that fails is not thereby unsafe.
    with pytest.raises(StorageError, match="SlowDown"):
        object_store.require_conditional_writes(_Down("memory://down"))
    object_store.require_conditional_writes(_OneIsBusy("memory://busy"))


class _TwoTags(MemoryObjectStore):
    """A server whose HEAD names a version by another tag than the answer to its PUT."""

    def head(self, key: str) -> object_store.ObjectInfo:
        return replace(super().head(key), etag="of-a-head")


class _TwoTagsOfGet(MemoryObjectStore):
    def get_with_etag(
        self, key: str, *, limit_bytes: int = object_store.DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        return super().get_with_etag(key, limit_bytes=limit_bytes)[0], "of-a-get"


@pytest.mark.parametrize(("store", "request_"), [(_TwoTags, "HEAD"), (_TwoTagsOfGet, "GET")])
def test_a_store_with_two_tags_for_one_version_is_refused(store, request_):
    with pytest.raises(UnsafeStoreError, match=f"a {request_} names an object 'of-a-.*'"):
        object_store.require_conditional_writes(store("memory://tags"))
    forget_memory("memory://tags")


def test_a_local_write_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps: list[str] = []
    sync, replace, link = os.fsync, os.replace, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a, **k: (steps.append("name"), replace(*a, **k)))
    monkeypatch.setattr(os, "link", lambda *a, **k: (steps.append("name"), link(*a, **k)))
    objects = LocalObjectStore(tmp_path)
    objects.put(KEY, b"")
    steps.clear()
    objects.put(KEY, b"content")
    etag = objects.put_if_absent(f"{KEY}2", b"content")
    assert objects.put_if_match(f"{KEY}2", b"other", etag) != etag
    named = [number for number, step in enumerate(steps) if step == "name"]
    assert len(named) == 3
    assert all(steps[number - 1] == steps[number + 1] == "sync" for number in named)


def test_deleting_leaves_no_empty_folders(tmp_path: Path):
    objects = LocalObjectStore(tmp_path / "root")
    objects.put("t-0/data/a/1", b"")
    objects.put("t-0/manifest.json", b"")
    objects.delete(["t-0/data/a/1"])
    assert not (tmp_path / "root" / "t-0" / "data").exists()
    objects.delete(["t-0/manifest.json"])
    assert list((tmp_path / "root").iterdir()) == []


def test_a_write_goes_on_where_its_folder_vanishes_while_it_is_made(tmp_path, monkeypatch):
    """Another writer's last temporary file goes, and the folder of them with it."""
    make = Path.mkdir
    errors = [FileExistsError(errno.EEXIST, "made by another writer, and gone again")]

    def make_once_more(path: Path, *args, **options) -> None:
        if path.name == TEMPORARY_FOLDER and errors:
            raise errors.pop()
        make(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", make_once_more)
    objects = LocalObjectStore(tmp_path / "root")
    objects.put("a", b"1")
    assert objects.get("a") == b"1"
    assert not errors


@pytest.mark.thorough
def test_a_large_write_whose_answer_was_lost_is_known_by_its_content(tmp_path):
    store = LocalObjectStore(tmp_path)
    content = bytes(object_store.DEFAULT_LIMIT_BYTES + 1)
    etag = store.put("a/manifest.json", content)
    assert store.put_if_absent("a/manifest.json", content) == etag
