import gzip
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from pylog_spark.schemas import LISTED_DIRECTORY, PARTITION
from pylog_spark.tasks.inventory import (
    InventoryPart,
    InventoryRoot,
    find_parts,
    partition_rows,
    read_part,
)
from pylog_spark.tasks.listing import (
    LISTING_COLUMNS,
    RUN_DIRECTORIES,
    ListingRun,
    list_partitions,
    list_run_partitions,
    list_runs,
    listed_files,
    listing_columns,
    open_partition,
    plan_runs,
    rows_of,
    segment_rows,
)
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ConfigError, StorageError
from storage_core.store import FileInfo
from storage_core.store.listing import ListedFile, key_order


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


# Runs of directories: what is listed together, and what becomes of a root that fails.


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


# Inventories: the same rows from every kind of table, and nothing that is not below the root.


ROOT = InventoryRoot(location="s3://bucket/backup/kafka", role="mirror")
LOG = "00000000000000000000.log"
NOON_MS = 1_767_355_200_000
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
FILES = [
    ("backup/kafka/orders-0/" + LOG, 100, "aa"),
    ("backup/kafka/orders-0/00000000000000000007.log", 50, "bb"),
    ("backup/kafka/orders-1/" + LOG, 10, "cc"),
    ("backup/kafka/pay.ments-0/" + LOG, 20, "dd"),
    ("backup/kafka/replication-offset-checkpoint", 5, "ee"),
    ("backup/kafka/orders-0/deeper/" + LOG, 5, "ff"),
    ("backup/kafka/orders-0/..", 5, "gg"),
    ("backup/other/orders-0/" + LOG, 5, "hh"),
    ("orders-0/" + LOG, 5, "ii"),
]


def read(path, root=ROOT, topics=EVERY_TOPIC):
    rows = []
    for part in find_parts(str(path)):
        for batch in read_part(part, [root], topics):
            assert batch.schema == LISTED_DIRECTORY
            rows += batch.to_pylist()
    return {
        (row["directory"], file.name): {
            "size_bytes": file.size_bytes,
            "modified_ms": file.modified_ms,
            "etag": file.etag,
        }
        for row in rows
        for file in listed_files(row)
    }


def expected():
    return {
        (key.split("/")[2], key.split("/")[3]): (size, NOON_MS, etag)
        for key, size, etag in FILES[:4]
    }


def facts(rows):
    return {
        name: (row["size_bytes"], row["modified_ms"], row["etag"]) for name, row in rows.items()
    }


def table(mtime):
    keys, sizes, tags = zip(*FILES, strict=True)
    return pa.table({"key": keys, "size": sizes, "mtime": [mtime] * len(keys), "etag": tags})


def test_a_parquet_file_is_read_by_row_groups(tmp_path):
    parquet.write_table(table(NOON), tmp_path / "files.parquet", row_group_size=2)
    assert len(find_parts(str(tmp_path / "files.parquet"))) == 5
    assert facts(read(tmp_path / "files.parquet")) == expected()


@pytest.mark.parametrize(
    "mtime", [str(NOON_MS), "2026-01-02T12:00:00.000Z", "2026-01-02T12:00:00Z"]
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_csv_file_has_a_header_and_times_in_two_forms(tmp_path, mtime, suffix):
    path = tmp_path / f"files{suffix}"
    with gzip.open(path, "wb") if suffix.endswith("gz") else path.open("wb") as file:
        csv.write_csv(table(mtime), file)
    assert facts(read(path)) == expected()


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".jsonl.gz"])
def test_json_lines_are_read_block_by_block(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("pylog_spark.tasks.inventory._BLOCK_BYTES", 100)
    path = tmp_path / f"files{suffix}"
    lines = "".join(json.dumps(row) + "\n" for row in table(NOON_MS).to_pylist()).rstrip("\n")
    with gzip.open(path, "wb") if suffix.endswith("gz") else path.open("wb") as file:
        file.write(lines.encode())
    assert facts(read(path)) == expected()


def test_a_folder_of_files_is_one_inventory(tmp_path):
    parquet.write_table(table(NOON).slice(0, 2), tmp_path / "part-0.parquet")
    parquet.write_table(table(NOON).slice(2), tmp_path / "part-1.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert facts(read(tmp_path)) == expected()


def test_an_inventory_of_s3_is_read_by_its_manifest(tmp_path):
    """Its CSV files have no header, percent-encoded keys, old versions and deletion markers."""
    rows = [
        ("bucket", "backup/kafka/orders%2D0/" + LOG, "true", "false", "100", "aa"),
        ("bucket", "backup/kafka/orders-0/" + LOG, "false", "false", "99", "old"),
        ("bucket", "backup/kafka/orders-1/" + LOG, "true", "true", "", ""),
        ("another", "backup/kafka/orders-2/" + LOG, "true", "false", "1", "no"),
    ]
    lines = [
        ",".join(f'"{value}"' for value in (*row[:5], "2026-01-02T12:00:00.000Z", row[5]))
        for row in rows
    ]
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / "1.csv.gz", "wb") as file:
        file.write("\n".join(lines).encode())
    part = InventoryPart(
        location=str(tmp_path / "data" / "1.csv.gz"),
        columns=(
            "Bucket",
            "Key",
            "IsLatest",
            "IsDeleteMarker",
            "Size",
            "LastModifiedDate",
            "ETag",
        ),
        is_escaped=True,
    )
    (batch,) = read_part(part, [ROOT], TopicFilter())
    (row,) = batch.to_pylist()
    assert row["directory"] == "orders-0"
    assert listed_files(row) == [ListedFile(LOG, 100, NOON_MS, "aa")]


def test_the_manifest_of_an_s3_inventory_names_files_of_its_bucket():
    system = fsspec.filesystem("memory")
    manifest = {
        "sourceBucket": "bucket",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, LastModifiedDate, ETag",
        "files": [{"key": "inv/data/1.csv.gz", "size": 7}],
    }
    system.pipe_file("/lists/inv/manifest.json", json.dumps(manifest).encode())
    (part,) = find_parts("memory://lists/inv/manifest.json")
    assert part.location.endswith("lists/inv/data/1.csv.gz")
    assert part.columns == ("Bucket", "Key", "Size", "LastModifiedDate", "ETag")
    assert part.is_escaped


def test_a_downloaded_inventory_of_s3_keeps_its_layout(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "2026-01-02T01-00Z").mkdir()
    parquet.write_table(table(NOON), tmp_path / "data" / "1.parquet")
    manifest = {
        "fileFormat": "Parquet",
        "fileSchema": "message s3.inventory { ... }",
        "files": [{"key": "somewhere/data/1.parquet"}],
    }
    path = tmp_path / "2026-01-02T01-00Z" / "manifest.json"
    path.write_text(json.dumps(manifest))
    assert facts(read(path)) == expected()


def test_only_the_topics_that_are_asked_for_are_kept(tmp_path):
    parquet.write_table(table(NOON), tmp_path / "files.parquet")
    found = read(tmp_path / "files.parquet", topics=TopicFilter(topics=("pay*",)))
    assert list(found) == [("pay.ments-0", LOG)]


@pytest.mark.parametrize(
    ("location", "prefix"),
    [
        ("s3://bucket", ""),
        ("/var/mirror", "/var/mirror/"),
        ("s3://bucket/backup", "s3://bucket/backup/"),
    ],
    ids=["a whole bucket", "a path", "keys as URLs"],
)
def test_keys_are_those_of_the_root_in_whatever_form(tmp_path, location, prefix):
    rows = pa.table({"Key": [prefix + "t-0/" + LOG], "Size": [1], "LastModified": [NOON]})
    parquet.write_table(rows, tmp_path / "files.parquet")
    found = read(tmp_path / "files.parquet", InventoryRoot(location=location, role="mirror"))
    assert list(found) == [("t-0", LOG)]
    assert found["t-0", LOG]["etag"] == ""


def test_a_table_without_the_columns_is_refused(tmp_path):
    parquet.write_table(pa.table({"path": ["a"]}), tmp_path / "files.parquet")
    with pytest.raises(ConfigError, match="expected the columns key, size, mtime"):
        find_parts(str(tmp_path / "files.parquet"))


def test_a_size_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "files.csv").write_text("key,size,mtime\nbackup/kafka/t-0/x.log,big,1\n")
    with pytest.raises(ConfigError, match="not of its kind"):
        find_parts(str(tmp_path / "files.csv"))


@pytest.mark.parametrize("column", ["size", "mtime"])
def test_a_number_below_nothing_is_refused(tmp_path, column):
    path = tmp_path / "files.jsonl"
    rows = table(NOON_MS).to_pylist()
    rows[1][column] = -1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=f"{column} from 0 on, found -1"):
        read(path)


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("pylog_spark.tasks.inventory._BLOCK_BYTES", 1000)
    path = tmp_path / "files.jsonl"
    path.write_text('{"key": "' + "x" * 9000)
    with pytest.raises(ConfigError, match="a line of more than"):
        read(path)


def test_a_manifest_of_any_size_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("pylog_spark.tasks.inventory._MANIFEST_BYTES", 1000)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"fileSchema": "x" * 1000}))
    with pytest.raises(ConfigError, match="more than 1000 bytes"):
        find_parts(str(path))


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet"])
def test_an_inventory_that_is_not_there_is_an_error(tmp_path, name):
    with pytest.raises((ConfigError, StorageError), match="absent"):
        find_parts(str(tmp_path / name))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "files.txt").touch()
    with pytest.raises(ConfigError, match=r"ends with \.parquet"):
        find_parts(str(tmp_path / "files.txt"))


def test_the_stretches_of_a_directory_are_joined_in_the_order_of_names():
    stretch = pa.struct([PARTITION.field(name) for name in LISTING_COLUMNS])
    schema = pa.schema(
        [
            ("root", pa.string()),
            ("role", pa.string()),
            ("directory", pa.string()),
            ("stretches", pa.list_(stretch)),
        ]
    )

    def files(*names):
        return listing_columns(ListedFile(name, len(name), 2, name * 2) for name in names)

    place = {"root": "s3://b/r", "role": "mirror"}
    batch = pa.RecordBatch.from_pylist(
        [
            place | {"directory": "u-0", "stretches": [files("x")]},
            place | {"directory": "t-3", "stretches": [files("c", "a"), files(), files("bb")]},
            place | {"directory": "lost+found", "stretches": []},
        ],
        schema=schema,
    )
    for rows in (batch, batch.slice(1)):
        (out,) = partition_rows(iter([rows]))
        assert out.schema.names == PARTITION.names
        first, second = list(rows_of([out]))[-2:]
        assert (first["topic"], first["partition"], first["kind"]) == ("t", 3, "partition")
        assert first["directory"] == "s3://b/r/t-3"
        assert listed_files(first) == [
            ListedFile("a", 1, 2, "aa"),
            ListedFile("bb", 2, 2, "bbbb"),
            ListedFile("c", 1, 2, "cc"),
        ]
        assert (second["kind"], listed_files(second)) == ("foreign", [])
