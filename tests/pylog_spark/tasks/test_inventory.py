"""Inventories: the same rows from every kind of table, and nothing that is not below the root."""

import gzip
import json
from datetime import UTC, datetime

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
    listed_files,
    listing_columns,
    rows_of,
)
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ConfigError, StorageError
from storage_core.store.listing import ListedFile

ROOT = InventoryRoot(location="s3://bucket/backup/kafka", role="mirror")
EVERY_TOPIC = TopicFilter()
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
