"""Runs of directories: what is listed together, and what becomes of a root that fails."""

from dataclasses import dataclass

import pytest

from pylog_spark.schemas import PARTITION
from pylog_spark.tasks.listing import (
    RUN_DIRECTORIES,
    ListingRun,
    list_run_partitions,
    list_runs,
    listed_files,
    open_partition,
    plan_runs,
    rows_of,
)
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import StorageError
from storage_core.store.listing import ListedFile, key_order

EVERY_TOPIC = TopicFilter()
NAMES = ["a-0", "a-1", "b-0", "c-0", "__cluster_metadata-0", "remote-log-index-cache", "lost+found"]


@dataclass(frozen=True)
class Listing:
    """A root in memory."""

    fails: bool = False

    def directories(self):
        if self.fails:
            raise StorageError("s3://b/root", "cannot be listed: AccessDenied")
        return iter(NAMES)

    def files(self, directories):
        for name in directories:
            yield name, [ListedFile(f"{name}.log", 7, 1_000, "tag")]


def opener(root):
    return Listing()


def list_all(topics=EVERY_TOPIC, role="mirror", opener=opener):
    runs = list(list_runs(("s3://b/root", role), topics, opener))
    found = list(list_run_partitions(runs, opener))
    assert all(batch.schema.names == PARTITION.names for batch in found)
    return runs, list(rows_of(found))


def test_neighbouring_directories_are_one_run_and_a_gap_ends_it():
    names = ["a-0", "a-1", "a-2", "b-0"]
    assert plan_runs(names, frozenset(names)) == [names]
    assert plan_runs(names, frozenset({"a-0", "a-2", "b-0"})) == [["a-0"], ["a-2", "b-0"]]
    assert plan_runs(names, frozenset()) == []


def test_a_run_is_bounded():
    names = [f"t-{number}" for number in range(3 * RUN_DIRECTORIES + 1)]
    runs = plan_runs(names, frozenset(names))
    assert [len(run) for run in runs] == [RUN_DIRECTORIES] * 3 + [1]
    assert [name for run in runs for name in run] == sorted(names, key=key_order)


def test_a_mirrors_partitions_come_with_their_files():
    runs, rows = list_all()
    assert len(runs) == 1
    assert {row["directory"] for row in rows} == {
        f"s3://b/root/{name}" for name in NAMES if name != "remote-log-index-cache"
    }
    by_name = {row["directory"].rpartition("/")[2]: row for row in rows}
    assert by_name["a-1"]["topic"] == "a"
    assert listed_files(by_name["a-1"]) == [ListedFile("a-1.log", 7, 1_000, "tag")]
    assert by_name["lost+found"]["kind"] == "foreign"
    assert listed_files(by_name["lost+found"]) is None


def test_only_the_topics_that_are_asked_for_are_listed():
    _, rows = list_all(TopicFilter(topics=("a", "c")))
    assert sorted(row["directory"] for row in rows) == [
        "s3://b/root/a-0",
        "s3://b/root/a-1",
        "s3://b/root/c-0",
    ]


def test_partitions_of_a_managed_root_have_no_files_and_a_location_of_their_own():
    _, rows = list_all(role="managed")
    assert {row["file_names"] for row in rows} == {None}
    assert "managed+s3://b/root/a-0" in {row["directory"] for row in rows}
    assert "foreign" not in {row["kind"] for row in rows}


def test_a_root_that_cannot_be_listed_is_a_row_with_its_error():
    _, (row,) = list_all(opener=lambda _: Listing(fails=True))
    assert (row["root"], row["error_class"]) == ("s3://b/root", "StorageError")
    assert "AccessDenied" in row["error"]
    assert row["topic"] is None


def test_a_run_that_cannot_be_listed_is_an_error_of_each_of_its_partitions():
    class Torn(Listing):
        def files(self, directories):
            raise StorageError("s3://b/root", "cannot be listed: SlowDown")
            yield

    _, rows = list_all(opener=lambda _: Torn())
    failed = [row for row in rows if row["error_class"]]
    assert {row["topic"] for row in failed if row["topic"]} >= {"a", "b", "c"}
    assert all(row["error"] == "s3://b/root: cannot be listed: SlowDown" for row in failed)


def test_a_partition_that_was_listed_is_opened_without_another_listing():
    _, rows = list_all(TopicFilter(topics=("b",)))
    store = open_partition(rows[0] | {"directory": "memory://nowhere/b-0"})
    assert [(file.name, file.size_bytes) for file in store.list_files()] == [("b-0.log", 7)]


@pytest.mark.parametrize("count", [0, 1, 700])
def test_every_run_is_listed_once_however_many_there_are(count):
    runs = (
        ListingRun(root="s3://b/root", role="mirror", directories=(f"t-{number}",))
        for number in range(count)
    )
    rows = list(rows_of(list_run_partitions(runs, opener)))
    assert [row["partition"] for row in rows] == list(range(count))


def test_a_link_among_the_directories_of_a_disk_is_its_own_row_alone(tmp_path):
    for name in ("a-0", "a-2"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / f"{0:020d}.log").write_bytes(b"1")
    (tmp_path / "root" / "a-1").symlink_to(tmp_path / "root" / "a-2")
    runs = list_runs((str(tmp_path / "root"), "mirror"), EVERY_TOPIC)
    rows = list(rows_of(list_run_partitions(runs)))
    assert [(row["partition"], row["error_class"]) for row in rows] == [
        (0, None),
        (1, "StorageError"),
        (2, None),
    ]
    assert "a-1: is a link, expected a directory" in rows[1]["error"]
    assert [len(row["file_names"] or ()) for row in rows] == [1, 0, 1]
