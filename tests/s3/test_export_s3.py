"""``pylog export --out s3://...``: complete with its ``_SUCCESS``, or taken for nothing."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.operations import export as operation
from storage_core import kafka_log
from storage_core.clock import SystemClock
from storage_core.filenames import LEASE_FILE
from storage_core.store.lease import acquire_lease
from storage_core.store.s3_objects import S3ObjectStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for topic, count in (("orders", 40), ("clicks", 7)):
        records = tuple(RecordSpec(key=b"k", value=b"%d" % n) for n in range(count))
        batch = BatchSpec(base_offset=0, records=records)
        write_partition(
            tmp_path / "logs" / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])]
        )
    return tmp_path / "logs"


def keys_of(objects: S3ObjectStore) -> list[str]:
    return [info.key for info in objects.list()]


def command(root: Path, url: str, to: str, *topics: str) -> list[object]:
    words = [word for topic in topics for word in ("--topic", topic)]
    return ["export", root, *words, "--to", to, "--out", url, "--engine", "local"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", ["parquet", "jsonl", "csv"])
def test_parts_come_first_and_success_last(pylog, objects: S3ObjectStore, root, to):
    row = pylog.row(*command(root, objects.url, to, "orders"))
    assert (row["records"], row["files"], row["out"]) == (40, 1, objects.url)
    success, part = keys_of(objects)
    assert success == "_SUCCESS"
    data = objects.get(part)
    assert row["size_bytes"] == len(data)
    if to == "parquet":
        table = pq.read_table(pa.BufferReader(data))
        expected = kafka_log.open_logs(root).read("orders").to_table()
        assert table.cast(expected.schema).equals(expected)
    else:
        assert data.count(b"\n") == 40 + (to == "csv")
    times = {info.key: info.modified_ms for info in objects.list()}
    assert times[success] >= times[part]


@pytest.mark.thorough
def test_several_topics_have_a_prefix_each(pylog, objects: S3ObjectStore, root):
    row = pylog.row(*command(root, objects.url, "jsonl", "*"))
    assert [each["out"] for each in row["topics"]] == [
        f"{objects.url}/clicks",
        f"{objects.url}/orders",
    ]
    success, *parts = keys_of(objects)
    assert success == "_SUCCESS"
    assert [part.partition("/")[0] for part in parts] == ["clicks", "orders"]


def test_a_prefix_with_objects_is_refused(pylog, objects: S3ObjectStore, root):
    objects.put("of/another", b"1")
    refused = pylog(*command(root, objects.url, "jsonl", "orders"))
    assert refused.exit_code == ExitCode.USAGE
    assert "has objects already, such as of/another" in refused.stderr
    assert keys_of(objects) == ["of/another"]
    inside = pylog("export", objects.url, *command(root, f"{objects.url}/x", "csv", "orders")[2:])
    assert inside.exit_code == ExitCode.USAGE


@pytest.mark.thorough
def test_a_second_export_to_the_same_place_is_refused(pylog, objects: S3ObjectStore, root):
    words = command(root, objects.url, "jsonl", "orders")
    pylog.done(*words)
    before = keys_of(objects)
    again = pylog(*words)
    assert (again.exit_code, "such as _SUCCESS" in again.stderr) == (ExitCode.USAGE, True)
    assert keys_of(objects) == before


@pytest.mark.thorough
def test_a_failed_part_leaves_nothing(pylog, objects: S3ObjectStore, root):
    flip(root / "orders-0" / "00000000000000000000.log")
    failed = pylog(*command(root, objects.url, "jsonl", "*"))
    assert failed.exit_code == ExitCode.PARTLY_FAILED
    assert keys_of(objects) == []


@pytest.mark.thorough
def test_a_killed_export_is_replaced_once_its_lease_has_ended(
    pylog, objects: S3ObjectStore, root, monkeypatch
):
    part = f"part-00000-{os.urandom(8).hex()}.jsonl"
    objects.put(part, b"left")
    claims = S3ObjectStore(f"{objects.url}/_pylog-export")
    words = command(root, objects.url, "jsonl", "orders")
    unclaimed = pylog(*words)
    assert (unclaimed.exit_code, keys_of(objects)) == (ExitCode.USAGE, [part])
    acquire_lease(claims, holder="export on a dead host, process 7", ttl_ms=600_000)
    alive = pylog(*words)
    assert alive.exit_code == ExitCode.REFUSED
    assert "export on a dead host, process 7" in alive.stderr
    assert part in keys_of(objects)
    stale = json.loads(claims.get(LEASE_FILE))
    ended = stale | {"expires_ms": SystemClock().now_ms() - 1}
    claims.put(LEASE_FILE, json.dumps(ended).encode())
    pylog.done(*words)
    success, only = keys_of(objects)
    assert (success, only != part) == ("_SUCCESS", True)


@pytest.mark.thorough
def test_an_export_that_lost_its_place_writes_no_success(
    pylog, objects: S3ObjectStore, root, monkeypatch
):
    write = operation._write_parts

    def lose(*arguments):
        parts = write(*arguments)
        S3ObjectStore(f"{objects.url}/_pylog-export").delete([LEASE_FILE])
        return parts

    monkeypatch.setattr(operation, "_write_parts", lose)
    lost = pylog(*command(root, objects.url, "jsonl", "orders"))
    assert (lost.exit_code, "lease" in lost.stderr) == (ExitCode.REFUSED, True)
    assert "_SUCCESS" not in keys_of(objects)


def test_a_dry_run_writes_nothing(pylog, objects: S3ObjectStore, root):
    row = pylog.row(*command(root, objects.url, "parquet", "orders"), "--dry-run")
    assert (row["type"], row["most_records"]) == ("export_plan", 40)
    assert keys_of(objects) == []
