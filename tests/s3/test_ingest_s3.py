"""Into and out of a managed root on S3: copies by the store itself, pages, requests counted."""

import json

import pytest

from storage_core.errors import ChangedWhileReadError
from storage_core.filenames import TOPIC_CONFIGS_FILE, log_file
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.store.copying import copy_object, is_server_side
from storage_core.store.listing import open_listing
from storage_core.store.s3_objects import S3ObjectStore
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.golden_data import Golden
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    segment,
    sync,
    target_of,
    write_files,
)

IN_PLACE = IngestRules(sync_has_stopped=True, in_place=True)


@pytest.fixture
def mirror(bucket):
    return S3ObjectStore(f"{bucket}/backup/kafka")


@pytest.mark.sampled(1)
def test_records_are_copied_by_the_store_itself(mirror, objects, tmp_path):
    directory = write_files(tmp_path, segment(0), segment(6), segment(12))
    sync(directory, mirror)
    assert is_server_side(mirror, objects)
    planned, _ = ingest(mirror, objects)
    assert (planned.cost.copy_requests, planned.cost.copied_bytes) == (2, planned.plan.record_bytes)
    store = target_of(objects)
    for name in (log_file(0), log_file(6)):
        content = store.read_file(name, limit_bytes=1 << 20)
        assert content == (directory / name).read_bytes()
    assert not ingest(mirror, objects)[0].has_work


def test_a_copy_of_another_version_than_was_planned_is_refused(mirror, objects):
    etag = mirror.put("t-0/a", b"first")
    assert copy_object(mirror, "t-0/a", etag, objects, "t-0/data/x/a")
    mirror.put("t-0/a", b"second")
    with pytest.raises(ChangedWhileReadError):
        copy_object(mirror, "t-0/a", etag, objects, "t-0/data/x/b")


@pytest.mark.thorough
def test_objects_of_a_bucket_are_adopted_where_they_are(mirror, objects, tmp_path):
    directory = write_files(tmp_path, segment(0), segment(6))
    sync(directory, mirror)
    ingest(mirror, objects, rules=IN_PLACE)
    entry = target_of(objects).manifest.files[log_file(0)]
    assert entry.key == f"{mirror.url}/orders-0/{log_file(0)}"
    content = target_of(objects).read_file(log_file(0), limit_bytes=1 << 20)
    assert content == (directory / log_file(0)).read_bytes()


@pytest.mark.thorough
def test_a_bucket_is_listed_by_pages_and_begins_in_the_middle(mirror):
    names = [f"t-{number}" for number in range(12)]
    for name in names:
        for number in range(3):
            mirror.put(f"{name}/{number}.log", name.encode())
    mirror.put("meta.properties", b"version=1")
    listing = open_listing(mirror.url)
    assert sorted(listing.directories()) == sorted(names)
    found = dict(listing.files(["t-10", "t-11", "t-2"]))
    assert {name: len(files) for name, files in found.items()} == {"t-10": 3, "t-11": 3, "t-2": 3}
    assert found["t-2"][1].etag == mirror.head("t-2/1.log").etag


@pytest.mark.thorough
@pytest.mark.spark
def test_a_broker_directory_goes_through_a_bucket_and_back(
    workers, pylog, mirror, objects, tmp_path
):
    broker = Golden("broker-dir").unpack(tmp_path)
    for path in broker.rglob("*"):
        if path.is_file():
            mirror.put(path.relative_to(broker).as_posix(), path.read_bytes())
    out = tmp_path / "out"
    options = ["--output", "json"]
    sync_ended = ["--settle", "0s", "--sync-stopped"]
    taken = pylog("ingest", mirror.url, objects.url, *sync_ended, *options)
    written = pylog("materialize", objects.url, out, *options)
    assert (taken.exit_code, written.exit_code) == (0, 0), taken.stderr
    lines = [json.loads(line) for line in taken.stdout.splitlines()]
    done = [line for line in lines if line["type"] == "ingest" and line["status"] == "done"]
    assert sum(line["copied_bytes"] for line in done) == sum(line["taken_bytes"] for line in done)
    assert sum(line["moved_bytes"] for line in done) > 0
    for name in ("events-1", "compacted-0", "payments.txn-1"):
        found = {path.name: path.read_bytes() for path in (out / name).iterdir()}
        assert found == {path.name: path.read_bytes() for path in (broker / name).iterdir()}


@pytest.mark.thorough
def test_the_configs_of_a_mirror_in_a_bucket_go_along(pylog, bucket, tmp_path):
    origin, mirror = unpack_broker(tmp_path / "log"), S3ObjectStore(f"{bucket}/mirror")
    for folder in ("__cluster_metadata-0", "orders-by-id-0"):
        for path in (origin / folder).iterdir():
            mirror.put_file(f"{folder}/{path.name}", str(path))
    words = ("--sync-stopped", "--settle", "0s", "--engine", "local", "--high-watermark", "log-end")
    result = pylog("ingest", mirror.url, f"{bucket}/managed", *words)
    assert result.exit_code == 0, result.stderr
    content = S3ObjectStore(f"{bucket}/managed").get(TOPIC_CONFIGS_FILE)
    topics = json.loads(content)["topics"]
    own = broker_origin()["topics"]["orders-by-id"]["config"]
    assert own.items() <= topics["orders-by-id"].items()
    assert topics.keys() == {"orders-by-id"}
