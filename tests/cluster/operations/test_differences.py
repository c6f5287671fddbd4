"""Differences between replicas of whole log directories, by tasks on any engine."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cli.program import run
from pylog_spark.cluster.differences import (
    DIFFERENCE_KEYS,
    DifferenceReport,
    list_differences,
)
from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import Level
from storage_core.errors import ConfigError
from tests.cluster.storage.test_differences import flip, write_replica
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.cluster_truth import Cluster

NOW_MS = 1_800_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS)
# Every partition is a big one.
BY_DIGESTS = replace(OPTIONS, tuning=replace(OPTIONS.tuning, unit_min_bytes=1, unit_max_bytes=1))
LOG = "00000000000000000000.log"
COUNT = 100
SIZE = len(encode_batch(BatchSpec(records=(RecordSpec(key=b"0000", value=bytes(4000)),))))


def write_brokers(folder: Path) -> list[Path]:
    """Write three brokers with a partition each; in the third one byte is flipped."""
    batches = [
        BatchSpec(
            records=(RecordSpec(key=b"%04d" % number, value=bytes(4000)),), base_offset=number
        )
        for number in range(COUNT)
    ]
    roots = []
    for broker in (1, 2, 3):
        directory = write_replica(folder, broker, batches, rolls=(20 * broker,))
        root = directory.parent
        (root / "meta.properties").write_text(
            f"version=1\nnode.id={broker}\ncluster.id=QUFBQUFBQUFBQUFBQUFBQQ\n"
        )
        roots.append(root)
    flip(roots[2] / "t-0" / LOG, 30 * SIZE + 100)
    return roots


def told(report: DifferenceReport) -> list[tuple]:
    return [
        (row["kind"], row["code"], row["first_offset"], row["broker"], row["position"])
        for row in report.rows.to_pylist()
    ]


@pytest.mark.thorough
@pytest.mark.item("REP-12")
def test_a_big_partition_is_compared_by_digests(tmp_path: Path):
    roots = write_brokers(tmp_path)
    whole = list_differences(Local(2), roots, OPTIONS, level=Level.BYTES)
    digested = list_differences(Local(2), roots, BY_DIGESTS, level=Level.BYTES)
    assert sorted(told(digested), key=str) == sorted(told(whole), key=str)
    assert told(digested) == [("bytes", None, 30, 3, 30 * SIZE)]
    assert whole.total("crossed_bytes") == 0
    assert 0 < 1000 * digested.total("crossed_bytes") <= digested.total("read_bytes")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", list(Level))
def test_a_cluster_is_compared_alike_whole_or_by_digests(tmp_path: Path, level: Level):
    cluster = Cluster("flipped", tmp_path)
    reports = [
        list_differences(Local(2), cluster.roots, options, level=level)
        for options in (OPTIONS, BY_DIGESTS)
    ]
    assert sorted(told(reports[0]), key=str) == sorted(told(reports[1]), key=str)
    assert [report.failed for report in reports] == [0, 0]
    assert any(kind == "bytes" for kind, *_ in told(reports[0])) == (level is not Level.OFFSETS)


@pytest.mark.thorough
@pytest.mark.item("REP-12")
@pytest.mark.parametrize("name", ["clean", "compacted"])
def test_kafkas_own_clusters_are_alike(tmp_path: Path, name: str):
    cluster = Cluster(name, tmp_path)
    expected = {"clean": [], "compacted": [("missing", None, 315, 3)]}[name]
    for level in Level:
        report = list_differences(Local(2), cluster.roots, OPTIONS, level=level)
        # One follower was away for the end.
        assert [row[:4] for row in told(report)] == expected


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("options", [OPTIONS, BY_DIGESTS], ids=["whole", "by digests"])
def test_spark_answers_as_this_machine_does(spark, tmp_path: Path, options: JobOptions):
    cluster = Cluster("flipped", tmp_path)
    here, there = (
        list_differences(place, cluster.roots, options, level=Level.BYTES)
        for place in (Local(2), spark)
    )
    columns = [name for name in here.rows.column_names if name != "duration_ms"]
    rows = [sorted(map(str, each.rows.select(columns).to_pylist())) for each in (here, there)]
    assert rows[0] == rows[1]
    assert there.frame(spark).count() == len(here.rows)
    directory = LogDirectory.for_path(spark, str(cluster.roots[0]))
    answer = directory.differences(*cluster.roots[1:], level="offsets")
    assert answer.level is Level.OFFSETS


def test_what_one_replica_cannot_give_is_named_and_the_others_go_on(tmp_path: Path):
    roots = write_brokers(tmp_path)
    broken = roots[1] / "t-0" / "partition.metadata"
    broken.write_bytes(b"lies")
    report = list_differences(Local(1), roots, OPTIONS, level=Level.BYTES)
    (row,) = (row for row in report.rows.to_pylist() if row["kind"] == "unreadable")
    assert (row["broker"], row["directory"]) == (2, str(broken.parent))
    assert "partition.metadata" in row["message"]
    # The two others are compared.
    assert ("bytes", 30, 3) in [(each[0], *each[2:4]) for each in told(report)]


@pytest.mark.parametrize("level", list(Level))
def test_a_directory_without_its_metadata_file_is_compared_and_a_finding(
    tmp_path: Path, level: Level
):
    roots = write_brokers(tmp_path)
    (roots[2] / "t-0" / "partition.metadata").unlink()
    report = list_differences(Local(1), roots, OPTIONS, level=level)
    assert ("finding", "PARTITION_METADATA_MISSING", None, 3, None) in told(report)
    assert ("bytes" in {each[0] for each in told(report)}) == (level is Level.BYTES)


def test_the_same_root_twice_is_refused_by_its_name(tmp_path: Path):
    roots = write_brokers(tmp_path)
    with pytest.raises(ConfigError, match=str(roots[0])):
        list_differences(Local(1), [roots[0], roots[0]], OPTIONS)


@pytest.mark.thorough
def test_the_command_lists_differences_and_says_what_it_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    roots = [str(root) for root in write_brokers(tmp_path)]
    words = ["differences", *roots, "--level", "bytes", "--engine", "local"]
    assert run([*words, "--output", "json"]) == 1
    told_first = capsys.readouterr().out
    assert run(["audit", *words[1:], "--output", "json"]) == 1
    assert capsys.readouterr().out == told_first
    rows = [json.loads(line) for line in told_first.splitlines()]
    *differences, last = rows
    assert (last["type"], last["differences"], last["level"]) == ("compared", 1, "bytes")
    assert last["read_bytes"] > 3 * COUNT * 4000
    assert all(set(row) == {"type", *DIFFERENCE_KEYS} for row in differences)
    assert run([*words, "--output", "csv"]) == 1
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["kind"] for row in table] == [row["kind"] for row in differences]
    assert run(words) == 1
    text = capsys.readouterr().out
    assert "1 difference between the replicas of 1 partition" in text
    assert "the checksum is wrong at broker 3" in " ".join(text.split())
    assert run(["differences", *roots[:2], "--level", "headers", "--engine", "local"]) == 0
    assert "are alike, as far as their headers tell" in capsys.readouterr().out
