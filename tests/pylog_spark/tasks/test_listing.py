from pathlib import Path

import pytest

from pylog_spark.tasks.listing import list_partitions, segment_rows
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.store import FileInfo


@pytest.fixture
def root(tmp_path: Path) -> Path:
    names = ["b-0", "a-1", "a-0", "remote-log-index-cache", "lost+found", "__cluster_metadata-0"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    return tmp_path


@pytest.mark.item("DIR-05")
def test_a_listing_has_every_directory_but_the_cache_of_remote_indexes(root):
    rows = list_partitions(str(root), "broker", TopicFilter())
    assert [(row["topic"], row["partition"], row["kind"]) for row in rows] == [
        ("__cluster_metadata", 0, "metadata"),
        ("a", 0, "partition"),
        ("a", 1, "partition"),
        ("b", 0, "partition"),
        (None, None, "foreign"),
    ]
    assert rows[1]["directory"] == str(root / "a-0")
    assert {row["role"] for row in rows} == {"broker"}


def test_topic_globs_choose_and_exclude(root):
    rows = list_partitions(str(root), "broker", TopicFilter(topics=("a", "b*"), exclude=("b",)))
    assert [(row["topic"], row["partition"]) for row in rows] == [("a", 0), ("a", 1)]


@pytest.mark.parametrize(
    ("topics", "exclude", "topic", "admitted"),
    [
        ((), (), "a", True),
        ((), (), None, True),
        (("a",), (), None, False),
        (("a*",), (), "abc", True),
        (("a?",), (), "abc", False),
        (("A",), (), "a", False),
        ((), ("a",), "a", False),
        (("a",), ("*",), "a", False),
    ],
)
def test_a_topic_filter_needs_one_match_and_no_exclusion(topics, exclude, topic, admitted):
    assert TopicFilter(topics=topics, exclude=exclude).admits(topic) is admitted


@pytest.mark.item("DIR-12")
def test_a_directory_that_cannot_be_listed_is_a_row_with_its_error(tmp_path):
    (row,) = list_partitions(str(tmp_path / "absent"), "broker", TopicFilter())
    assert row["error_class"] == "FileNotFoundError"
    assert "absent" in row["error"]


def test_segments_are_told_from_a_listing():
    names = {
        "00000000000000000000.log": 10,
        "00000000000000000000.index": 8,
        "00000000000000000000.timeindex": 12,
        "00000000000000000007.log": 20,
        "00000000000000000007.txnindex": 34,
        "00000000000000000007.log.swap": 1,
        "00000000000000000007.snapshot": 1,
        "leader-epoch-checkpoint": 1,
    }
    files = [FileInfo(name, size, 1_000) for name, size in sorted(names.items())]
    first, last = segment_rows(files)
    assert first == {
        "base_offset": 0,
        "size_bytes": 10,
        "modified_ms": 1_000,
        "index_bytes": 8,
        "time_index_bytes": 12,
        "txn_index_bytes": None,
        "is_active": False,
    }
    assert (last["base_offset"], last["txn_index_bytes"], last["is_active"]) == (7, 34, True)
