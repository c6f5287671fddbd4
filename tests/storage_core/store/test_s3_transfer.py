"""Copies and uploads: by parts, by name, and of the version that was planned."""

import asyncio
import io
from types import SimpleNamespace

import numpy as np
import pytest

from storage_core.errors import ChangedWhileReadError, InvalidNameError, StorageError
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.store import copying, managed_store
from storage_core.store import s3_objects as s3_transfer
from storage_core.store.copying import copy_object, is_server_side
from storage_core.store.generations import FileEntry
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.s3_objects import cut_into_parts, upload_parts
from tests.kit.memory_objects import MemoryObjectStore, forget_memory


@pytest.mark.parametrize(
    ("size_bytes", "sizes"),
    [
        pytest.param(12, [4, 4, 4], id="parts of the usual size"),
        pytest.param(13, [5, 5, 3], id="larger ones, for there may be no more of them"),
    ],
)
def test_an_object_has_no_more_parts_than_it_may(monkeypatch, size_bytes, sizes):
    monkeypatch.setattr(s3_transfer, "PART_BYTES", 4)
    monkeypatch.setattr(s3_transfer, "MAX_PARTS", 3)
    parts: dict[int, bytes] = {}

    async def call(method, **arguments):
        if method == "upload_part":
            parts[arguments["PartNumber"]] = arguments["Body"]
        return {"UploadId": "1", "ETag": '"tag-3"'}

    content = bytes(range(size_bytes))
    filesystem = SimpleNamespace(_call_s3=call)
    asyncio.run(
        upload_parts(
            filesystem, "bucket", "key", io.BytesIO(content), cut_into_parts(0, size_bytes)
        )
    )
    assert [len(parts[number]) for number in sorted(parts)] == sizes
    assert b"".join(parts[number] for number in sorted(parts)) == content


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("00000000000000000042.log", "00000000000000000042.log"),
        ("00000000000000000042.log.cleaned", "00000000000000000042.log"),
        ("00000000000000000042.log.swap", "00000000000000000042.log"),
        ("00000000000000000042.index", "00000000000000000042"),
        ("00000000000000000042.timeindex.swap", "00000000000000000042"),
        ("00000000000000000042.snapshot", "00000000000000000042"),
        ("leader-epoch-checkpoint", "partition"),
        ("partition.metadata", "partition"),
        ("99999999999999999999.log", "partition"),
    ],
)
def test_a_log_has_its_own_object_and_companions_share_one(name: str, stem: str):
    assert managed_store.object_stem(name) == stem
    assert managed_store.is_log(name) is stem.endswith(".log")


def test_names_of_one_attempt_never_repeat():
    assert [managed_store.object_name("00000000000000000042.log", number) for number in (0, 1)] == [
        "00000000000000000042.log",
        "00000000000000000042-1.log",
    ]
    assert [managed_store.object_name("partition", number) for number in (0, 1)] == [
        "partition.companions",
        "partition-1.companions",
    ]


def test_a_location_says_all_of_an_entry():
    entry = FileEntry(
        key="t-0/data/a/x", start=5, size_bytes=7, etag="e", modified_ms=9, largest_timestamp=11
    )
    assert managed_store.parse_location(managed_store.encode_location(entry)) == entry
    for broken in ("pylog-object:", "pylog-object:[]", 'pylog-object:{"key":"x"}', "/a/path"):
        with pytest.raises(InvalidNameError):
            managed_store.parse_location(broken)


def time_index(*entries: tuple[int, int]) -> bytes:
    return np.array(list(entries), TIME_INDEX_ENTRY).tobytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(time_index((1000, 4), (2000, 9)), 2000, id="the last entry"),
        pytest.param(b"", -1, id="no record has a timestamp"),
        pytest.param(time_index((1000, 4), (0, 0)), None, id="preallocated"),
        pytest.param(time_index((0, 0)), None, id="nothing but zeros"),
        pytest.param(time_index((2000, 4), (1000, 9)), None, id="falling"),
        pytest.param(time_index((-5, 4)), None, id="negative"),
        pytest.param(time_index((1000, 4))[:-1], None, id="torn"),
    ],
)
def test_a_time_index_tells_the_largest_timestamp_or_nothing(content: bytes, expected: int | None):
    assert managed_store.last_timestamp(content) == expected


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
