"""Topics and their copies in another cluster, by tasks on any engine and on the command line."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli.program import run
from pylog_spark.cluster.copies import CopyReport, list_copy_differences
from pylog_spark.cluster.differences import DIFFERENCE_KEYS
from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from pylog_spark.options import JobOptions
from storage_core import kafka_log
from storage_core.cluster import alignment
from storage_core.errors import ConfigError, InconsistentClusterIdError
from tests.cluster.storage.test_differences import write_replica
from tests.kit.bound_rights import bound_rights
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.golden_broker import unpack_broker

NOW_MS = 1_800_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS)
MAP = "topic,partition,upstream_offset,downstream_offset\n"
CLUSTERS = {"one": "QUFBQUFBQUFBQUFBQUFBQQ", "two": "QkJCQkJCQkJCQkJCQkJCQg"}
RECORDS = [
    RecordSpec(key=b"k%d" % number, value=b"v%d" % number, timestamp=NOW_MS + number)
    for number in range(1000)
]


def write_broker(
    folder: Path,
    cluster: str,
    records: Sequence[RecordSpec],
    *,
    broker: int = 1,
    topic: str = "t",
    size: int = 10,
) -> Path:
    """Write a broker's log directory with one partition."""
    batches = [
        BatchSpec(records=tuple(records[at : at + size]), base_offset=at)
        for at in range(0, len(records), size)
    ]
    directory = write_replica(folder / cluster, broker, batches)
    root = directory.parent
    (root / "meta.properties").write_text(
        f"version=1\nnode.id={broker}\ncluster.id={CLUSTERS[cluster]}\n"
    )
    directory.rename(root / f"{topic}-0")
    return root


def told(report: CopyReport) -> list[tuple]:
    return [
        (row["topic"], row["partition"], row["kind"], row["records"], row["first_offset"])
        for row in report.rows.to_pylist()
    ]


def with_errors() -> list[RecordSpec]:
    """Return a copy that lacks ten records, has one in another form, twenty twice; 100 are due."""
    other = replace(RECORDS[500], value=b"x")
    return [*RECORDS[:100], *RECORDS[110:500], other, *RECORDS[501:800], *RECORDS[780:900]]


ERRORS = [
    ("t", 0, "missing", 10, 100),
    ("t", 0, "different", 1, 500),
    ("t", 0, "doubled", 20, 780),
    ("t", 0, "behind", 100, 900),
]


def write_map(folder: Path, text: str) -> Path:
    file = folder / "map.csv"
    file.write_text(MAP + text)
    return file


@pytest.mark.item("ERR-13")
def test_two_clusters_are_compared_only_as_original_and_copy(tmp_path: Path, capsys):
    original = write_broker(tmp_path, "one", RECORDS)
    copy = write_broker(tmp_path, "two", RECORDS[:900], size=33)
    with pytest.raises(InconsistentClusterIdError):
        LogDirectory.for_path(Local(1), original).audit(copy)
    report = LogDirectory.for_path(Local(1), original).copy_differences(copy)
    assert told(report) == [("t", 0, "behind", 100, 900)]
    # Both sides are one cluster each.
    other = write_broker(tmp_path / "third", "two", RECORDS)
    with pytest.raises(InconsistentClusterIdError):
        list_copy_differences(Local(1), [original, other], [copy], OPTIONS)
    with pytest.raises(InconsistentClusterIdError):
        list_copy_differences(
            Local(1), [original], [copy, write_broker(tmp_path / "f", "one", [])], OPTIONS
        )
    with pytest.raises(ConfigError, match="is the same directory"):
        list_copy_differences(Local(1), [original], [original], OPTIONS)
    assert run(["copies", str(original), "--copy", str(copy), "--engine", "local"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "As far as they go, the copies of 1 partition are complete." in text
    assert "not copied yet: the last 100 records of 1 partition" in text


def test_errors_are_named_with_a_map_and_with_a_prefix(tmp_path: Path):
    original = write_broker(tmp_path, "one", RECORDS)
    copy = write_broker(tmp_path, "two", with_errors(), topic="one.t", size=7)
    offsets = write_map(tmp_path, "t,0,0,0\nt,0,400,390\nother,0,1,1\n")
    report = list_copy_differences(
        Local(2), [original], [copy], OPTIONS, prefix="one.", offset_map=offsets
    )
    assert told(report) == ERRORS
    assert report.offset_map == f"offsets by {offsets}, 3 pairs"
    assert report.count_differences() == 3
    # Without the prefix there is no copy of the topic.
    report = list_copy_differences(Local(2), [original], [copy], OPTIONS)
    assert [row[:3] for row in told(report)] == [("t", 0, "missing")]
    assert "no such partition" in report.rows["message"][0].as_py()


def test_the_longest_replica_is_compared(tmp_path: Path):
    originals = [
        write_broker(tmp_path, "one", RECORDS[:count], broker=broker)
        for broker, count in ((1, 400), (2, 1000), (3, 700))
    ]
    copy = write_broker(tmp_path, "two", RECORDS)
    report = list_copy_differences(Local(2), originals, [copy], OPTIONS)
    assert told(report) == []
    assert report.total("records") == 1000


def test_a_copy_without_a_segment_has_no_record_yet(tmp_path: Path):
    original, copy = (write_broker(tmp_path, cluster, RECORDS[:20]) for cluster in ("one", "two"))
    for file in (copy / "t-0").glob("0*"):
        file.unlink()
    assert told(list_copy_differences(Local(1), [original], [copy], OPTIONS)) == [
        ("t", 0, "behind", 20, 0)
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,0,1\n", "line 2: expected 4 cells, found 3"),
        ("u,0,1,2\nw,0,1,2\n", r"expected lines of topics that are compared \(t\), found u, w"),
        ("", r"expected lines of topics that are compared \(t\), found none"),
    ],
)
def test_a_wrong_map_is_refused(tmp_path: Path, text: str, reason: str):
    roots = [write_broker(tmp_path, cluster, RECORDS[:10]) for cluster in ("one", "two")]
    with pytest.raises(ConfigError, match=reason):
        list_copy_differences(
            Local(1), roots[:1], roots[1:], OPTIONS, offset_map=write_map(tmp_path, text)
        )


def test_a_map_that_is_not_there_or_no_topic_is_refused(tmp_path: Path):
    roots = [write_broker(tmp_path, cluster, RECORDS[:10]) for cluster in ("one", "two")]
    for path in (tmp_path / "none.csv", tmp_path, roots[0] / "t-0"):
        with pytest.raises(ConfigError, match=str(path)):
            list_copy_differences(Local(1), roots[:1], roots[1:], OPTIONS, offset_map=path)


def test_what_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path):
    original = write_broker(tmp_path, "one", RECORDS)
    copy = write_broker(tmp_path, "two", RECORDS)
    for root in (original, copy):
        other = write_broker(tmp_path / "more", root.parent.name, RECORDS, topic="u")
        (other / "u-0").rename(root / "u-0")
    broken = copy / "u-0" / "partition.metadata"
    broken.write_bytes(b"lies")
    report = list_copy_differences(Local(1), [original], [copy], OPTIONS)
    assert [row[:3] for row in told(report)] == [("u", 0, "unreadable")]
    assert "partition.metadata" in report.rows["message"][0].as_py()
    assert report.total("records") == 1000


def test_where_a_directory_cannot_be_read_nothing_counts_as_missing(pylog: Any, tmp_path: Path):
    original = write_broker(tmp_path, "one", RECORDS)
    copies = [write_broker(tmp_path, "two", RECORDS, broker=broker, topic="u") for broker in (1, 2)]
    copies[1].chmod(0)
    words = ["copies", original, "--copy", copies[0], "--copy", copies[1], "--engine", "local"]
    with bound_rights():
        report = list_copy_differences(Local(1), [original], copies, OPTIONS)
        shown = pylog(*words)
    copies[1].chmod(0o755)
    assert told(report) == []
    assert list(report.unread) == [str(copies[1])]
    assert shown.exit_code == 4
    assert str(copies[1]) in shown.stdout.replace("\n", "").replace(" ", "")


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_answers_as_this_machine_does(spark, tmp_path: Path):
    original = write_broker(tmp_path, "one", RECORDS)
    copy = write_broker(tmp_path, "two", with_errors(), size=7)
    offsets = write_map(tmp_path, "t,0,0,0\n")
    here, there = (
        list_copy_differences(place, [original], [copy], OPTIONS, offset_map=offsets)
        for place in (Local(2), spark)
    )
    assert here.rows == there.rows
    assert told(there) == ERRORS
    assert there.frame(spark).count() == len(ERRORS)
    assert (here.engine, there.engine) == ("local", "spark")


@pytest.mark.thorough
def test_the_command_lists_rows_for_people_and_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    original = write_broker(tmp_path, "one", RECORDS)
    copy = write_broker(tmp_path, "two", with_errors(), size=7)
    offsets = write_map(tmp_path, "t,0,0,0\n")
    words = ["copies", str(original), "--copy", str(copy), "--offset-map", str(offsets)]
    words += ["--engine", "local"]
    assert run([*words, "--output", "json"]) == 1
    told_first = capsys.readouterr().out
    assert run(["audit", *words[1:], "--output", "json"]) == 1
    assert capsys.readouterr().out == told_first
    *rows, last = [json.loads(line) for line in told_first.splitlines()]
    assert all(set(row) == {"type", *DIFFERENCE_KEYS} for row in rows)
    assert (last["differences"], last["behind_partitions"], last["behind_records"]) == (3, 1, 100)
    assert last["records"] == 889
    doubled = next(row for row in rows if row["kind"] == "doubled")
    assert (doubled["copy_first_offset"], doubled["copy_last_offset"]) == (790, 809)
    assert doubled["timestamp_ms"] == NOW_MS + 780
    assert doubled["directory"] == str(copy / "t-0")
    assert doubled["other_directory"] == str(original / "t-0")
    assert run([*words, "--output", "csv"]) == 1
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["kind"] for row in table] == [row["kind"] for row in rows]
    assert run(words) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "3 differences between 1 partition and the copies." in text
    assert "not the same: value" in text


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--copy", "{}", "--level", "bytes"], "--level"),
        (["--copy", "{}", "--timeline"], "--timeline"),
        (["--copy", "{}", "--up", "1"], "--up"),
        (["--copy-prefix", "a."], "--copy"),
        (["--offset-map", "map.csv"], "--copy"),
    ],
)
def test_words_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], option: str
):
    roots = [str(write_broker(tmp_path, cluster, RECORDS[:10])) for cluster in ("one", "two")]
    assert run(["audit", roots[0], *(word.format(roots[1]) for word in words)]) == 2
    assert option in capsys.readouterr().err


def test_what_is_only_counted_is_a_difference_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(alignment, "_MOST_GAPS", 0)
    roots = [write_broker(tmp_path, "one", RECORDS), write_broker(tmp_path, "two", RECORDS[5:])]
    offsets = write_map(tmp_path, "t,0,5,0\n")
    words = ["copies", str(roots[0]), "--copy", str(roots[1]), "--offset-map", str(offsets)]
    assert run([*words, "--engine", "local"]) == 1
    text = capsys.readouterr().out
    assert "0 differences between" in text
    assert "1 more range differ" in text


@pytest.mark.thorough
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_honest_copy_of_a_real_broker_is_complete(
    tmp_path: Path, isolation: Any, compression: Any
):
    broker = unpack_broker(tmp_path / "broker")
    read = kafka_log.open_logs(broker).read(isolation=isolation)
    copy = tmp_path / "copy"
    # Other offsets, batches and codecs, and no transactions.
    count = kafka_log.write(copy, read.to_table(), compression=compression, batch_bytes=1500)
    offsets = write_map(tmp_path, "orders-by-id,0,0,0\n")
    report = list_copy_differences(Local(2), [broker], [copy], OPTIONS, offset_map=offsets)
    assert told(report) == []
    assert report.failed == 0
    own = sum(topic.startswith("__") for topic in read.to_table()["topic"].to_pylist())
    assert 10_000 < report.total("records") <= count - own
    if isolation == "read_committed":
        assert report.total("records") == count - own
