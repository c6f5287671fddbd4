"""Copies between stores: the version that was planned, window by window, or a refusal."""

import pytest

from storage_core.errors import ChangedWhileReadError, InvalidNameError, StorageError
from storage_core.store import copying
from storage_core.store.copying import copy_object, is_server_side
from storage_core.store.local_objects import LocalObjectStore
from tests.kit.memory_objects import MemoryObjectStore, forget_memory

CONTENT = bytes(range(256)) * 20


@pytest.fixture(params=["memory to memory", "local to local", "memory to local", "local to memory"])
def stores(request, tmp_path):
    def store(kind, name):
        if kind == "memory":
            return MemoryObjectStore(f"memory://test-copying/{name}")
        return LocalObjectStore(tmp_path / name)

    source, _, target = request.param.partition(" to ")
    yield store(source, "source"), store(target, "target")
    forget_memory("memory://test-copying")


def test_a_copy_has_the_bytes_and_a_tag_of_its_own(stores, monkeypatch):
    monkeypatch.setattr(copying, "WINDOW_BYTES", 1000)
    source, target = stores
    etag = source.put("t-0/a", CONTENT)
    copied = copy_object(source, "t-0/a", etag, target, "t-0/data/x/a")
    assert target.get("t-0/data/x/a") == CONTENT
    assert target.head("t-0/data/x/a").etag == copied
    assert not is_server_side(source, target)


def test_an_object_that_was_replaced_is_not_taken_for_the_planned_one(stores):
    source, target = stores
    etag = source.put("t-0/a", CONTENT)
    source.put("t-0/a", CONTENT[::-1])
    with pytest.raises(ChangedWhileReadError):
        copy_object(source, "t-0/a", etag, target, "t-0/data/x/a")


def test_a_source_without_tags_is_copied_as_it_is(stores):
    source, target = stores
    source.put("t-0/a", CONTENT)
    copy_object(source, "t-0/a", "", target, "b")
    assert target.get("b") == CONTENT


def test_an_object_that_is_gone_is_an_error(stores):
    source, target = stores
    with pytest.raises(StorageError):
        copy_object(source, "t-0/a", "tag", target, "b")


@pytest.mark.parametrize("key", ["../outside", "t-0/../../outside", "/etc", ""])
def test_a_key_that_leads_elsewhere_is_none(stores, tmp_path, key):
    source, target = stores
    (tmp_path / "outside").write_bytes(b"not yours")
    source.put("t-0/a", CONTENT)
    with pytest.raises(InvalidNameError):
        copy_object(source, key, "", target, "b")
    assert not [info.key for info in target.list()]
