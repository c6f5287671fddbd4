from collections.abc import Iterator

import pytest

from pylog_spark.discovery import discover_partitions, discover_segments, resolve_roots
from pylog_spark.engines.choice import Local, open_engine
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.schemas import PARTITION, SEGMENT
from pylog_spark.tasks.listing import TopicFilter
from storage_core.catalog.roles import Role
from tests.kit.golden_data import Golden


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.spark), "local"])
def engine(request) -> Iterator[AnyEngine]:
    """Each engine in turn."""
    place = Local(2) if request.param == "local" else request.getfixturevalue("spark")
    with open_engine(place, tag="discovery") as opened:
        yield opened


NO_FILTER = TopicFilter()


def test_a_brokers_directory_becomes_partitions_and_segments(engine, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    roots = resolve_roots([path], said=None)
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


def test_several_roots_are_listed_by_their_own_tasks(engine, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    (tmp_path / "b" / "lost+found").mkdir()
    roots = resolve_roots([tmp_path / "a", tmp_path / "b"], said=Role.MIRROR)
    partitions = discover_partitions(engine, roots, NO_FILTER)
    rows = engine.collect(partitions, PARTITION, "partitions").to_pylist()
    found = sorted((row["root"], row["kind"]) for row in rows)
    assert found == [
        (str(tmp_path / "a"), "partition"),
        (str(tmp_path / "b"), "foreign"),
        (str(tmp_path / "b"), "partition"),
    ]


@pytest.mark.item("DIR-12")
def test_a_root_that_cannot_be_listed_is_a_row_and_the_others_are_listed(engine, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    roots = resolve_roots([tmp_path / "a", tmp_path / "b"], said=Role.MIRROR)
    (tmp_path / "a" / "t-0").rmdir()
    (tmp_path / "a").rmdir()
    partitions = discover_partitions(engine, roots, NO_FILTER)
    rows = engine.collect(partitions, PARTITION, "partitions").to_pylist()
    failed = [row for row in rows if row["error_class"]]
    assert [row["root"] for row in failed] == [str(tmp_path / "a")]
    assert [row["topic"] for row in rows if not row["error_class"]] == ["t"]
