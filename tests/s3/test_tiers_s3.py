"""Tiers (KIP-405) in a bucket: read by few requests, and by the version that was listed."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.source.registration import register
from storage_core.coordinators.coordinator_log import replay_partition
from storage_core.coordinators.remote_log import RemoteLog
from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.filenames import REMOTE_LOG_TOPIC
from storage_core.kafka_log import open_logs
from storage_core.store.local import LocalStore
from storage_core.store.object_store import UnfinishedUpload
from storage_core.store.requests import REQUESTS, Requests
from storage_core.store.s3_objects import S3ObjectStore
from tests.kit.program import lines_of
from tests.kit.source_disk import write_properties
from tests.kit.tier_archives import TierCase, unpack_tier
from tests.s3.fault_proxy import FaultProxy


@pytest.fixture(params=["aiven_aes", pytest.param("plain", marks=pytest.mark.thorough)])
def case(request: pytest.FixtureRequest, tmp_path, objects: S3ObjectStore) -> TierCase:
    """A situation, whose tier is in the bucket, too."""
    case = unpack_tier(request.param, tmp_path)
    for path in sorted(case.archive.rglob("*")):
        if path.is_file():
            objects.put(path.relative_to(case.archive).as_posix(), path.read_bytes())
    return case


@pytest.mark.sampled(1)
def test_a_bucket_gives_the_records_of_the_folder(case, objects, pylog):
    there = open_logs(objects.url, decryption_key=case.key)
    here = open_logs(case.archive, decryption_key=case.key)
    assert there.topics() == here.topics()
    assert there.read().to_table() == here.read().to_table()
    key = [] if case.key is None else ["--decryption-key", case.key]
    assert pylog("inspect", objects.url, *key).exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_an_object_that_is_written_again_is_no_mixture(case, objects):
    records = open_logs(objects.url, decryption_key=case.key).read()
    key = next(info.key for info in objects.list() if info.key.endswith(".log"))
    objects.put(key, objects.get(key)[:-1] + b"\0")
    with pytest.raises(ChangedWhileReadError):
        records.to_table()


def operations(server: FaultProxy) -> Counter[str]:
    """Count what the server was asked for: listings, and reads by the kind of object."""
    return Counter(
        request.key.rpartition(".")[2] if request.operation == "GET" else request.operation
        for request in server.requests
    )


@pytest.mark.thorough
def test_a_plan_lists_a_folder_once_and_a_task_lists_none(objects, server, tmp_path):
    case = unpack_tier("plain", tmp_path)
    for path in sorted(case.archive.rglob("*")):
        if path.is_file():
            objects.put(path.relative_to(case.archive).as_posix(), path.read_bytes())
    segments = len(case.truth["archive_segments"])
    folders = len({row["partition"] for row in case.truth["archive_segments"]})
    server.reset()
    logs = open_logs(objects.url)
    records = logs.read()
    planned = operations(server)
    # Opening and planning each ask what it is, and for its partitions; then for each partition.
    assert planned["LIST"] == 6 + folders
    # The end of its index, and of its log; the epochs of a partition's segments, once.
    assert (planned["index"], planned["log"]) == (segments, segments)
    assert planned["leader_epoch_checkpoint"] == folders
    server.reset()
    assert records.to_table().num_rows
    assert operations(server) == {"log": segments}


@pytest.mark.thorough
def test_chunks_that_follow_each_other_come_by_one_request(objects, server, tmp_path):
    case = unpack_tier("aiven_zstd", tmp_path)
    for path in sorted(case.archive.rglob("*")):
        if path.is_file():
            objects.put(path.relative_to(case.archive).as_posix(), path.read_bytes())
    records = open_logs(objects.url).read()
    server.reset()
    assert records.to_table().num_rows
    logs = [
        request
        for request in server.requests
        if request.operation == "GET" and request.key.endswith(".log")
    ]
    # A broker asks for each chunk of 16 KiB: eight in such a segment. A third was promised.
    assert len(logs) == len(case.truth["archive_segments"])
    chunks = sum(-(-row["size_bytes"] // (16 << 10)) for row in case.truth["archive_segments"])
    assert 3 * len(logs) <= chunks
    # What counts was decided before: a task asks for its segments alone.
    assert not [request for request in server.requests if request.key.endswith(".indexes")]


@pytest.mark.thorough
def test_a_tier_in_a_bucket_is_given_to_a_new_cluster(case, objects, pylog, tmp_path):
    said = []
    for number, archive in enumerate((str(case.archive), objects.url)):
        disk = tmp_path / f"disk{number}"
        disk.mkdir()
        write_properties(disk, 1)
        words = ["--into", disk, "--metadata-partitions", "1"]
        words += [] if case.key is None else ["--decryption-key", case.key]
        result = pylog("attach", archive, *words)
        assert result.exit_code == ExitCode.DONE, result.stderr
        log = RemoteLog()
        folder = disk / f"{REMOTE_LOG_TOPIC}-0"
        log.replay(replay_partition(LocalStore(folder), REMOTE_LOG_TOPIC))
        said.append(log.segments())
    here, there = said
    same = [replace(each, event_ms=0, custom=None) for each in here]
    assert [replace(each, event_ms=0, custom=None) for each in there] == same
    # The plugin's keys begin with the bucket, not with the folder that was named.
    prefix = objects.url.partition("://")[2].partition("/")[2].encode()
    if case.key is not None:
        assert prefix
        assert all(prefix + b"/enc/" in (each.custom or b"") for each in there)
    else:
        assert {each.custom for each in there} == {None}


@pytest.mark.thorough
def test_a_scrub_asks_for_uploads_that_were_not_ended(case, objects, pylog):
    folder = min(info.key for info in objects.list()).rpartition("/")[0]
    key = f"{objects.url.removeprefix('s3://').partition('/')[2]}/{folder}/part.log"
    objects.call("create_multipart_upload", Key=key)
    disk = case.folder / "local" / "b1"
    words = ("scrub", objects.url, "--root", disk, "--engine", "local", "--recheck", "0s")
    young = pylog.done(*words, "--now-ms", 1000)
    assert "nothing found" in young.stdout
    result = pylog.done(*words, "--grace", "0s", "--now-ms", 2**42, "--output", "json")
    (finding,) = lines_of(result, "finding")
    assert finding["code"] == "TIER_UPLOAD_UNFINISHED"
    assert finding["file"] == f"{objects.url}/{folder}/part.log"


@pytest.mark.thorough
def test_a_store_that_lists_no_uploads_is_scrubbed_all_the_same(case, objects, pylog, monkeypatch):
    def refuse(_: S3ObjectStore) -> Iterator[UnfinishedUpload]:
        raise StorageError(objects.url, "AccessDenied")

    monkeypatch.setattr(S3ObjectStore, "list_uploads", refuse)
    key = [] if case.key is None else ["--decryption-key", case.key]
    words = ("scrub", objects.url, "--deep", "--engine", "local", *key)
    result = pylog.done(*words)
    assert "nothing found" in result.stdout
    assert "unfinished uploads cannot be listed" in " ".join(result.stdout.split())


def key_of(case: TierCase) -> list[str]:
    return [] if case.key is None else ["--decryption-key", str(case.key)]


@contextmanager
def counting(server: FaultProxy) -> Iterator[Requests]:
    """Give what was asked of the server within a block, as the process counts it, once that is
    left; the server has counted as many."""
    counted = Requests()
    before = REQUESTS.copy()
    server.reset()
    yield counted
    counted.add(REQUESTS.since(before))
    asked = Counter(request.operation for request in server.requests)
    listed = asked["LIST"] + asked["GET prefix"]  # of objects, of unfinished uploads
    assert (counted.listings, counted.reads) == (listed, asked["GET"])
    assert min(counted.listings, counted.reads, counted.read_bytes) > 0


def said(requests: Requests) -> str:
    return f"S3: {requests.listings:,} listings, {requests.reads:,} reads of "


@pytest.mark.thorough
def test_a_command_says_what_it_asked_of_the_bucket(case, objects, server, pylog):
    topic = open_logs(objects.url, decryption_key=case.key).topics()[0]
    with counting(server):
        result = pylog.done("cat", objects.url, "--topic", topic, *key_of(case))
    assert said(REQUESTS) in result.stderr
    with counting(server):
        result = pylog.done("inspect", objects.url, *key_of(case))
    assert said(REQUESTS) in result.stderr


@pytest.mark.parametrize(
    "processes", ["here", "local", pytest.param("spark", marks=pytest.mark.spark)]
)
@pytest.mark.parametrize("case", ["aiven_aes"], indirect=True)
@pytest.mark.thorough
def test_what_tasks_ask_of_the_bucket_is_counted(
    processes, case, objects, server, pylog, request, tmp_path
):
    if processes == "spark":
        request.getfixturevalue("workers")
    engine = "local" if processes == "here" else processes
    # Text is made by Python, in processes of their own; what is copied by threads of this one.
    to = "parquet" if processes == "here" else "jsonl"
    topic = open_logs(objects.url, decryption_key=case.key).topics()[0]
    words = (objects.url, "--engine", engine, *key_of(case))
    for command in (
        ("export", *words, "--topic", topic, "--out", tmp_path / "out", "--to", to),
        ("verify", *words, "--deep"),
        ("scrub", *words, "--deep"),
    ):
        with counting(server):
            result = pylog.done(*command)
        assert said(REQUESTS) in result.stderr


@pytest.mark.parametrize("case", ["aiven_aes"], indirect=True)
@pytest.mark.spark
@pytest.mark.thorough
def test_plan_and_tasks_of_a_query_log_what_they_asked_of_the_bucket(
    case, objects, server, workers
):
    if not hasattr(workers.tvf, "python_worker_logs"):
        pytest.skip("Spark 4.1 and later keep what its Python processes log")
    register(workers)
    workers.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        query = workers.read.format("kafka-log").option("decryptionKey", str(case.key))
        server.reset()
        assert query.load(objects.url).count() > 0
        asked = Counter(request.operation for request in server.requests)
        logs = workers.tvf.python_worker_logs().collect()
    finally:
        workers.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    told = [
        (found[1], int(found[2]), int(found[3]))
        for row in logs
        if (
            found := re.fullmatch(
                r"(.+): S3: (\d+) listings?, (\d+) reads of [\d,]+ bytes?", row.msg
            )
        )
    ]
    assert {who for who, _, _ in told} == {
        f"{what} of kafka-log" for what in ("the options", "the plan", "a task")
    }
    assert sum(listings for _, listings, _ in told) == asked["LIST"]
    assert sum(reads for _, _, reads in told) == asked["GET"]
