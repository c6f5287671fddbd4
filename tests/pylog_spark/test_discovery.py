from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from pylog_spark.discovery import (
    _directory_rows,
    discover_partitions,
    discover_segments,
    resolve_roots,
)
from pylog_spark.engines.choice import Local, open_engine
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.schemas import LISTED_DIRECTORY, PARTITION, SEGMENT
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from tests.kit.golden_data import Golden


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.spark), "local"])
def engine(request) -> Iterator[AnyEngine]:
    """Each engine in turn."""
    place = Local(2) if request.param == "local" else request.getfixturevalue("spark")
    with open_engine(place, tag="discovery") as opened:
        yield opened


NO_FILTER = TopicFilter()


@pytest.mark.thorough
def test_a_brokers_directory_becomes_partitions_and_segments(engine, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    roots = resolve_roots([path], role=None)
    partitions = discover_partitions(engine, roots, NO_FILTER)
    rows = engine.collect(partitions, PARTITION, "partitions").to_pylist()
    assert len(rows) == 14
    assert {row["role"] for row in rows} == {"broker"}
    assert {row["kind"] for row in rows if row["topic"] == "__cluster_metadata"} == {"metadata"}

    segments = discover_segments(partitions)
    found = {
        (row["topic"], row["partition"], row["base_offset"], row["size_bytes"])
        for row in engine.collect(segments, SEGMENT, "segments").to_pylist()
    }
    expected = Golden("broker-dir").case["expected"]
    for name in ("compacted-0", "events-1", "payments.txn-1"):
        topic, _, number = name.rpartition("-")
        mine = {row[2:] for row in found if row[:2] == (topic, int(number))}
        assert mine == {tuple(pair) for pair in expected[name]["expected"]["segments"]}


@pytest.mark.thorough
def test_several_roots_are_listed_by_their_own_tasks(engine, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    (tmp_path / "b" / "lost+found").mkdir()
    roots = resolve_roots([tmp_path / "a", tmp_path / "b"], role=Role.MIRROR)
    partitions = discover_partitions(engine, roots, NO_FILTER)
    rows = engine.collect(partitions, PARTITION, "partitions").to_pylist()
    found = sorted((row["root"], row["kind"]) for row in rows)
    assert found == [
        (str(tmp_path / "a"), "partition"),
        (str(tmp_path / "b"), "foreign"),
        (str(tmp_path / "b"), "partition"),
    ]


@pytest.mark.sampled(1)
@pytest.mark.item("DIR-12")
def test_a_root_that_cannot_be_listed_is_a_row_and_the_others_are_listed(engine, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    roots = resolve_roots([tmp_path / "a", tmp_path / "b"], role=Role.MIRROR)
    (tmp_path / "a" / "t-0").rmdir()
    (tmp_path / "a").rmdir()
    partitions = discover_partitions(engine, roots, NO_FILTER)
    rows = engine.collect(partitions, PARTITION, "partitions").to_pylist()
    failed = [row for row in rows if row["error_class"]]
    assert [row["root"] for row in failed] == [str(tmp_path / "a")]
    assert [row["topic"] for row in rows if not row["error_class"]] == ["t"]


def listed(*files: tuple[str, str]) -> pa.RecordBatch:
    """Return rows of an inventory, sorted: a directory and one file of it each."""
    rows = [
        {
            "root": "s3://b/k",
            "role": "mirror",
            "directory": directory,
            "file_names": [name],
            "file_bytes": [1],
            "file_times_ms": [2],
            "file_etags": [""],
        }
        for directory, name in files
    ]
    return pa.RecordBatch.from_pylist(rows, LISTED_DIRECTORY)


@pytest.mark.parametrize("cuts", [(), (1,), (2, 3), (1, 2, 3, 4, 5)])
def test_what_several_parts_say_of_a_directory_is_one_row(cuts):
    whole = listed(
        ("a-0", "2"), ("a-0", "1"), ("b-0", "1"), ("b-0", "3"), ("b-0", "2"), ("c-0", "1")
    )
    edges = [0, *cuts, whole.num_rows]
    batches = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    rows = [row for batch in _directory_rows(iter(batches)) for row in batch.to_pylist()]
    assert [(row["topic"], row["file_names"]) for row in rows] == [
        ("a", ["1", "2"]),
        ("b", ["1", "2", "3"]),
        ("c", ["1"]),
    ]
