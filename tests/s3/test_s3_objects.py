"""S3 as an object store: the contract, through a proxy that breaks nothing yet."""

import re
from pathlib import Path

import pytest

from storage_core.errors import StorageError
from storage_core.store import open_object_store
from storage_core.store.garbage import delete_leftovers
from storage_core.store.object_store import require_conditional_writes
from storage_core.store.s3_objects import S3ObjectStore
from tests.kit.object_store_contract import KEY, ObjectStoreContract

pytestmark = pytest.mark.usefixtures("every_race")


class TestS3Objects(ObjectStoreContract):
    @pytest.fixture
    def objects(self, bucket):
        return open_object_store(f"{bucket}/some/root")


def test_a_url_says_bucket_and_prefix(objects):
    assert isinstance(objects, S3ObjectStore)
    objects.put("a/b", b"content")
    bucket = objects.url.split("/")[2]
    assert (objects.bucket, objects.url) == (bucket, f"s3://{bucket}/some/root")
    assert open_object_store(f"s3a://{bucket}/some/root/").get("a/b") == b"content"
    assert open_object_store(f"managed+s3://{bucket}").get("some/root/a/b") == b"content"


def test_listings_go_on_after_a_page(objects, server, monkeypatch):
    for number in range(7):
        objects.put(f"t-{number}/manifest.json", b"")
    call = S3ObjectStore.call
    monkeypatch.setattr(
        S3ObjectStore,
        "call",
        lambda self, method, **arguments: call(
            self, method, **arguments | ({"MaxKeys": 3} if method == "list_objects_v2" else {})
        ),
    )
    server.reset()
    assert [info.key for info in objects.list()] == [f"t-{n}/manifest.json" for n in range(7)]
    assert server.counts() == {("LIST", "other"): 3}
    assert list(objects.list_folders()) == [f"t-{n}" for n in range(7)]
    server.reset()
    stretch = [info.key for info in objects.list_stretch("t-1/", "t-3/")]
    assert stretch == [f"t-{n}/manifest.json" for n in (1, 2, 3)]
    assert server.counts() == {("LIST", "other"): 2}  # its page was full: the next one says the end


def test_a_bucket_that_is_missing_is_told(objects):
    with pytest.raises(StorageError, match="missing-bucket"):
        list(S3ObjectStore("s3://missing-bucket/root").list())
    with pytest.raises(StorageError, match="missing-bucket"):
        S3ObjectStore("s3://missing-bucket/root").put(KEY, b"")


def test_one_request_each(objects, server):
    etag = objects.put_if_absent(KEY, b"first")
    objects.put_if_match(KEY, b"second", etag)
    objects.get_with_etag(KEY)
    objects.get_range(KEY, 1, 2)
    objects.head(KEY)
    list(objects.list())
    objects.delete([KEY, f"{KEY}2"])
    assert server.counts() == {
        ("PUT_IF", "data"): 2,
        ("GET", "data"): 2,
        ("HEAD", "data"): 1,
        ("LIST", "other"): 1,
        ("DELETE_MANY", "other"): 1,
    }


@pytest.mark.thorough
def test_the_probe_takes_as_many_requests_as_the_documents_say(objects, server):
    require_conditional_writes(objects)
    text = (Path(__file__).parents[2] / "docs" / "object-storage.md").read_text()
    [row] = re.findall(r"^\| try the conditions of writes, .*$", text, re.MULTILINE)
    said = [int(number or 0) for number in re.findall(r"\| (\d*) ?(?=\|)", row)]
    counts = server.counts()
    assert said == [
        sum(number for (operation, _), number in counts.items() if operation == kind)
        for kind in ("LIST", "GET", "HEAD", "PUT_IF", "DELETE_MANY")
    ]
    assert sum(counts.values()) == sum(said)


def test_parts_of_a_killed_upload_are_dropped_when_they_are_old(objects):
    created = objects.call("create_multipart_upload", Key="some/root/t-0/data/a/1.log")
    other = objects.call("create_multipart_upload", Key="other/1.log")
    assert objects.abort_uploads(before_ms=1_200_000_000_000) == 0
    delete_leftovers(objects, grace_start_ms=2**50)
    left = objects.call("list_multipart_uploads").get("Uploads", [])
    assert [upload["UploadId"] for upload in left] == [other["UploadId"]]
    assert created["UploadId"] != other["UploadId"]
