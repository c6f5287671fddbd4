"""Listings of roots: pages of a bucket, folders of any other store, names that are not believed."""

from datetime import UTC, datetime

import pytest

from storage_core.errors import StorageError
from storage_core.store.listing import (
    FolderListing,
    ListedFile,
    S3Listing,
    is_plain_name,
    key_order,
)
from tests.kit.memory_objects import MemoryObjectStore, forget_memory

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Bucket:
    """Answers ListObjectsV2 as S3 does, a few keys a page, and counts the requests."""

    def __init__(self, keys, prefix="", page_keys=3):
        self.keys = sorted(prefix + key for key in keys)
        self.url = f"s3://bucket/{prefix}".rstrip("/")
        self.page_keys = page_keys
        self.requests = []

    def call(self, method, *, Prefix, Delimiter=None, StartAfter="", ContinuationToken=None):  # noqa: N803
        assert method == "list_objects_v2"
        self.requests.append(ContinuationToken or StartAfter)
        after = ContinuationToken or StartAfter
        seen = []
        for key in self.keys:
            if key <= after or not key.startswith(Prefix):
                continue
            head, slash, _ = key[len(Prefix) :].partition("/")
            entry = Prefix + head + "/" if Delimiter and slash else key
            if Delimiter and slash and entry <= after:
                continue
            if entry not in seen:
                seen.append(entry)
        page, more = seen[: self.page_keys], len(seen) > self.page_keys
        last = page[-1] if page else ""
        return {
            "CommonPrefixes": [{"Prefix": e} for e in page if Delimiter and e.endswith("/")],
            "Contents": [
                {"Key": e, "Size": len(e), "LastModified": NOON, "ETag": f'"{e}"'}
                for e in page
                if not (Delimiter and e.endswith("/"))
            ],
            "IsTruncated": more,
            "NextContinuationToken": last + "￿" if Delimiter else last,
        }


KEYS = [f"{name}/{number}.log" for name in ("a-0", "a-1", "a-10", "b-0") for number in range(4)]


@pytest.mark.parametrize("prefix", ["", "backup/kafka/"], ids=["whole bucket", "below a prefix"])
def test_directories_come_from_pages_with_a_delimiter(prefix):
    bucket = Bucket([*KEYS, "meta.properties"], prefix)
    assert sorted(S3Listing(bucket).directories()) == ["a-0", "a-1", "a-10", "b-0"]
    assert len(bucket.requests) == 2


@pytest.mark.parametrize("prefix", ["", "backup/kafka/"], ids=["whole bucket", "below a prefix"])
def test_files_of_neighbouring_directories_share_flat_pages(prefix):
    bucket = Bucket(KEYS, prefix, page_keys=8)
    found = dict(S3Listing(bucket).files(["a-0", "a-1"]))
    assert {name: [file.name for file in files] for name, files in found.items()} == {
        "a-0": ["0.log", "1.log", "2.log", "3.log"],
        "a-1": ["0.log", "1.log", "2.log", "3.log"],
    }
    assert len(bucket.requests) <= 2
    key = f"{prefix}a-0/0.log"
    assert found["a-0"][0] == ListedFile("0.log", len(key), 1_767_355_200_000, key)
    assert found["a-0"][0].modified_ms == int(NOON.timestamp() * 1000)


def test_a_run_of_directories_ends_with_the_page_that_passes_it():
    bucket = Bucket([f"t-{n:03}/{k}.log" for n in range(100) for k in range(3)], page_keys=3)
    found = dict(S3Listing(bucket).files([f"t-{n:03}" for n in range(10, 14)]))
    assert [len(files) for files in found.values()] == [3, 3, 3, 3]
    assert len(bucket.requests) <= 5


def test_a_directory_without_files_is_there_without_files():
    assert dict(S3Listing(Bucket(KEYS)).files(["a-0", "a-00"]))["a-00"] == []


def test_what_lies_deeper_and_names_that_lead_elsewhere_are_left_out():
    keys = ["a-0/1.log", "a-0/..", "a-0/x/y.log", "a-0/b\\c", "a-0/", "../x", "a-0/n\nl"]
    listing = S3Listing(Bucket(keys, page_keys=100))
    assert [f.name for f in dict(listing.files(["a-0"]))["a-0"]] == ["1.log"]
    assert list(listing.directories()) == ["a-0"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "\n", "a\x7f"])
def test_a_name_that_would_not_stay_one_name_is_not_plain(name):
    assert not is_plain_name(name)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "lost+found", "a b", "é", "..."])
def test_any_other_name_is_plain(name):
    assert is_plain_name(name)


def test_directories_sort_as_their_keys_do():
    names = ["a-1", "a-10", "a-1.x", "a-1-2"]
    ordered = sorted(names, key=key_order)
    assert ordered == [key.rpartition("/")[0] for key in sorted(name + "/" for name in names)]
    assert ordered != sorted(names)


def test_a_store_without_flat_pages_is_asked_once_a_directory():
    store = MemoryObjectStore("memory://test-listing/root")
    for key in [*KEYS, "meta.properties", "a-0/deeper/x.log"]:
        store.put(key, key.encode())
    try:
        listing = FolderListing(store)
        assert sorted(listing.directories()) == ["a-0", "a-1", "a-10", "b-0"]
        found = dict(listing.files(["a-0", "b-0"]))
        assert [file.name for file in found["a-0"]] == ["0.log", "1.log", "2.log", "3.log"]
        assert found["b-0"][3].size_bytes == len("b-0/3.log")
        assert found["b-0"][3].etag
    finally:
        forget_memory("memory://test-listing")


def test_what_a_library_raises_names_the_root():
    class Broken(Bucket):
        def call(self, *args, **kwargs):
            raise RuntimeError("SlowDown")

    with pytest.raises(StorageError, match=r"s3://bucket: cannot be listed: SlowDown"):
        list(S3Listing(Broken([])).directories())
