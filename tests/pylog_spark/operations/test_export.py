"""``pylog export``: all records or none, in every format."""

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pylog_spark.engines.choice import Local
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations import export as export_operation
from pylog_spark.operations.export import choose_range_bytes, export
from pylog_spark.operations.export_out import new_out
from pylog_spark.operations.export_task import ExportRequest, export_parts
from pylog_spark.options.choices import BytesFormat, ExportFormat
from pylog_spark.run.progress import Progress, progress_text
from storage_core import kafka_log
from storage_core.errors import ConfigError
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip
from tests.kit.program import run_to_end

HEADERS = (("trace", b"\x01"), ("none", None))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions of ``orders`` with 40 records each, one of them empty; values are JSON."""
    made = tmp_path_factory.mktemp("logs")
    for number in range(3):
        batches = [
            BatchSpec(
                base_offset=base,
                records=tuple(
                    RecordSpec(
                        key=None if n == 5 else b"k%d" % n,
                        value=None if n == 7 else b'{"n":%d,"q":"a\\"b,\\nc"}' % n,
                        timestamp=SOME_TIME_MS + n,
                        headers=HEADERS if n == 9 else (),
                    )
                    for n in range(base, base + 10)
                ),
            )
            for base in range(0, 40, 10)
        ]
        write_partition(
            made / f"orders-{number}",
            [SegmentSpec(base_offset=0, batches=batches if number < 2 else [])],
        )
    return made


@pytest.fixture(scope="module")
def expected(root: Path) -> pa.Table:
    return kafka_log.open_logs(root).read("orders").to_table()


def pylog_export(pylog, root: Path, out: Path, to: str, *words: object) -> Any:
    return pylog("export", "orders", out, "--root", root, "--to", to, *words)


@pytest.mark.parametrize("to", ["parquet", "delta"])
def test_tables_have_every_record_in_its_place(pylog, root, expected, tmp_path, to):
    before = read_tree(root)
    result = pylog_export(pylog, root, tmp_path / "out", to, "--output", "json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["type"], told["records"], told["format"]) == ("export", 80, to)
    if to == "delta":
        table = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    else:
        table = pq.read_table(tmp_path / "out")
    assert (
        table.cast(expected.schema)
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        .equals(expected)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert read_tree(root) == before
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert told["size_bytes"] == sum(path.stat().st_size for path in files)


@pytest.mark.thorough
def test_topic_and_folder_are_options_as_well(pylog, root, tmp_path):
    words = ("--topic", "orders", "--to", "jsonl")
    done = pylog.done("export", root, *words, "--out", tmp_path / "a")
    aborted = "records of aborted transactions are among them if there are any"
    assert aborted in done.stdout
    committed = ("--isolation", "read_committed")
    assert aborted not in pylog("export", root, *words, "--out", tmp_path / "b", *committed).stdout
    refused = pylog("export", root, *words)
    assert refused.exit_code == 2
    assert "expected ROOT... --topic TOPIC --out DIR" in refused.stderr


def test_csv_has_texts_and_nothing_for_null(pylog, root, expected, tmp_path):
    assert pylog_export(pylog, root, tmp_path / "out", "csv").exit_code == 0
    rows = [
        row
        for path in sorted((tmp_path / "out").iterdir())
        for row in csv.DictReader(io.StringIO(path.read_text()))
    ]
    told = [(int(row["partition"]), int(row["offset"]), row["key"], row["value"]) for row in rows]
    assert told == [
        (
            row["partition"],
            row["offset"],
            (row["key"] or b"").decode(),
            (row["value"] or b"").decode(),
        )
        for row in expected.to_pylist()
    ]
    assert json.loads(rows[9]["headers"]) == [["trace", "\x01"], ["none", None]]
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert text.count('\n"",') == 0  # a key that is null is no empty one


def test_progress_counts_the_bytes_of_all_parts(root, tmp_path):
    steps: list[Progress] = []
    out = tmp_path / "out"
    export(Local(), reader_of(root), out, parquet_request(), on_progress=steps.append)
    logs = sum(path.stat().st_size for path in root.rglob("*.log"))
    assert {step.total_bytes for step in steps} == {logs}
    assert steps[-1].done_bytes == logs
    assert "segments" not in progress_text(steps[-1])


def test_json_lines_are_those_of_cat(pylog, root, tmp_path):
    words = ("--key-format", "text", "--value-format", "json")
    assert pylog_export(pylog, root, tmp_path / "out", "jsonl", *words).exit_code == 0
    written = "".join(path.read_text() for path in sorted((tmp_path / "out").iterdir()))
    assert written == pylog("cat", "orders", "--root", root, "--output", "json", *words).stdout


def test_what_is_chosen_is_written(pylog, root, tmp_path):
    words = ("-p", 1, "--from", 10, "--until", 12, "--column", "offset", "--column", "value")
    result = pylog_export(
        pylog, root, tmp_path / "out", "parquet", *words, "--value-format", "text"
    )
    assert result.exit_code == 0, result.stderr
    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["offset", "value"]
    assert table.schema.field("value").type == pa.string()
    assert table["offset"].to_pylist() == [10, 11]
    assert json.loads(table["value"][0].as_py())["n"] == 10


@pytest.mark.parametrize("to", list(ExportFormat))
def test_without_a_record_there_is_an_empty_table(pylog, root, tmp_path, to):
    result = pylog_export(pylog, root, tmp_path / "out", to.value, "-p", 2)
    assert result.exit_code == 0, result.stderr
    if to is ExportFormat.DELTA:
        assert DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows == 0
    elif to is ExportFormat.PARQUET:
        table = pq.read_table(tmp_path / "out")
        assert (table.num_rows, table.schema.names) == (0, list(kafka_log.COLUMNS))
    else:
        (path,) = (tmp_path / "out").iterdir()
        assert path.read_text().count("\n") == (to is ExportFormat.CSV)


def test_many_small_partitions_are_few_files_and_large_ones_several(root):
    records = kafka_log.open_logs(root).read("orders")
    assert len(records.parts()) == 1
    assert [part.to_table().num_rows for part in records.parts(1)] == [40, 40]
    assert sum(part.to_table().num_rows for part in records.parts(1 << 30)) == 80


def test_a_part_that_fails_leaves_nothing(pylog, root, tmp_path):
    copy = tmp_path / "logs"
    for directory in sorted(root.iterdir()):
        (copy / directory.name).mkdir(parents=True)
        for path in directory.iterdir():
            (copy / directory.name / path.name).write_bytes(path.read_bytes())
    log = copy / "orders-1" / "00000000000000000000.log"
    flip(log)
    result = pylog_export(pylog, copy, tmp_path / "out", "parquet")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert log.name in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_what_is_no_json_is_named_and_nothing_is_left(pylog, tmp_path):
    batch = BatchSpec(base_offset=3, records=(RecordSpec(value=b"no"),))
    write_partition(tmp_path / "l" / "orders-0", [SegmentSpec(base_offset=3, batches=[batch])])
    words = ("--value-format", "json")
    result = pylog_export(pylog, tmp_path / "l", tmp_path / "out", "parquet", *words)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "offset 3 of orders-0" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_task_that_runs_twice_leaves_its_records_once(root, tmp_path, monkeypatch):
    def twice(items, request):
        items = list(items)
        list(export_parts(items, request))
        yield from export_parts(items, request)

    class Engine:
        slots = 2

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            return None

        def ask(self, units, work, kind, title, *, is_look):
            return [part for unit in units for part in twice(unit, work.keywords["request"])]

    monkeypatch.setattr(export_operation, "open_engine", lambda *_place, **_tag: Engine())
    done = export(Local(), reader_of(root), tmp_path / "out", parquet_request())
    assert (done.records, pq.read_table(tmp_path / "out").num_rows) == (80, 80)
    assert len(list((tmp_path / "out").iterdir())) == done.files == 1


def reader_of(root: Path | str) -> Callable[..., kafka_log.Records]:
    return partial(kafka_log.open_logs(root).read, "orders")


def parquet_request(folder: str = "") -> ExportRequest:
    raw = BytesFormat.RAW
    return ExportRequest(
        folder=folder, to=ExportFormat.PARQUET, columns=kafka_log.COLUMNS, keys=raw, values=raw
    )


def test_what_threads_of_this_process_write_others_write_alike(root, tmp_path, monkeypatch):
    request = parquet_request()
    export(Local(2), reader_of(root), tmp_path / "threads", request)
    monkeypatch.setattr(export_operation, "_MOST_WRITTEN_HERE", 0)
    export(Local(2), reader_of(root), tmp_path / "processes", request)
    tables = [pq.read_table(tmp_path / name) for name in ("threads", "processes")]
    assert tables[0].num_rows == 80
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("size", "slots", "parts"),
    [
        pytest.param(595 << 20, 2, 6, id="three rounds on two slots"),
        pytest.param(143 << 20, 2, 2, id="one round on two slots"),
        pytest.param(143 << 20, 8, 8, id="one round on eight slots"),
        pytest.param(143 << 20, 64, 18, id="no part is smaller than it need be"),
        pytest.param(1_000, 4, 1, id="next to nothing"),
        pytest.param(0, 4, 0, id="nothing"),
        pytest.param(100 << 30, 2, 800, id="so many rounds that the last one is no matter"),
    ],
)
def test_parts_are_as_many_as_slots_can_share(size, slots, parts):
    share = choose_range_bytes(size, slots)
    assert -(-size // share) == parts
    assert share <= DEFAULT_RANGE_BYTES


def test_row_groups_gather_what_comes_in_small_batches(root, tmp_path):
    records = kafka_log.open_logs(root).read("orders")
    (part,) = export_parts([(0, "", records)], parquet_request(str(tmp_path)))
    (path,) = tmp_path.iterdir()
    assert part.file == path.name
    assert pq.ParquetFile(path).metadata.num_row_groups == 1


KILLED = """
import os, sys
from pathlib import Path
from pylog_spark.engines.choice import Local
from pylog_spark.operations import export as operation
from tests.pylog_spark.operations.test_export import parquet_request, reader_of

write = operation._write_parts

def die(*arguments):
    write(*arguments)
    os._exit(9)

operation._write_parts = die
operation.export(Local(1), reader_of(sys.argv[1]), Path(sys.argv[2]), parquet_request())
"""


@pytest.mark.thorough
def test_what_a_killed_export_leaves_is_removed_by_the_next_one(pylog, root, tmp_path):
    command = [sys.executable, "-c", KILLED, str(root), str(tmp_path / "out")]
    done = run_to_end(command)
    assert done.returncode == 9, done.stderr
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.pylog-export-")
    assert list(left.iterdir())
    assert pylog_export(pylog, root, tmp_path / "out", "parquet").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_exports_at_a_time_the_slower_one_is_refused(tmp_path):
    out = tmp_path / "out"
    with new_out(str(out)) as slow:
        with new_out(str(out)) as fast:
            Path(fast.folder, "part").touch()
            fast.publish()
        with pytest.raises(ConfigError, match="out: is there already"):
            slow.publish()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "part"]


def test_nothing_of_others_is_taken_for_remains(pylog, root, tmp_path):
    others = [tmp_path / ".other.pylog-export-1", tmp_path / "kept"]
    for folder in others:
        folder.mkdir()
        (folder / "file").touch()
    (tmp_path / ".o*.pylog-export-2").symlink_to(tmp_path / "kept")
    assert pylog_export(pylog, root, tmp_path / "o*", "parquet").exit_code == 0
    assert all((folder / "file").exists() for folder in others)


@pytest.mark.thorough
def test_a_place_that_cannot_be_is_refused_before_anything_is_read(pylog, root, tmp_path):
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "there", tmp_path / "no" / "out", root / "orders-0" / "out"):
        result = pylog_export(pylog, root, out, "parquet")
        assert result.exit_code == ExitCode.USAGE, out
    for url, to in (("gs://bucket/out", "parquet"), ("s3://bucket/out", "delta")):
        refused = pylog("export", "orders", url, "--root", root, "--to", to)
        assert refused.exit_code == ExitCode.USAGE
    for words in (("csv", "--key-format", "raw"), ("jsonl", "--column", "key"), ("excel",)):
        assert pylog_export(pylog, root, tmp_path / "out", *words).exit_code == ExitCode.USAGE
    wrong = pylog_export(pylog, root, tmp_path / "out", "parquet", "--column", "kye")
    assert wrong.exit_code == ExitCode.USAGE
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics, one without a record."""
    made = tmp_path_factory.mktemp("topics")
    for topic, count in (("orders-eu", 3), ("orders-us", 5), ("orders-zz", 0)):
        records = tuple(RecordSpec(value=b"%d" % n) for n in range(count))
        batches = [BatchSpec(base_offset=0, records=records)] if records else []
        write_partition(made / f"{topic}-0", [SegmentSpec(base_offset=0, batches=batches)])
    return made


@pytest.mark.parametrize("to", ["parquet", "delta", "jsonl"])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["orders-*"], id="pattern"),
        pytest.param(["orders-us", "orders-eu", "orders-zz"], id="names"),
    ],
)
def test_several_topics_have_a_folder_each(pylog, topics, tmp_path, to, names):
    words = [word for name in names for word in ("--topic", name)]
    row = pylog.row("export", topics, *words, "--to", to, "--out", tmp_path / "out")
    counts = {"orders-eu": 3, "orders-us": 5, "orders-zz": 0}
    assert {each["topic"]: each["records"] for each in row["topics"]} == counts
    assert (row["records"], row["files"]) == (8, 3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(counts)
    for each in row["topics"]:
        assert each["out"] == str(tmp_path / "out" / each["topic"])
        if to == "delta":
            found = DeltaTable(each["out"]).to_pyarrow_table().num_rows
        elif to == "parquet":
            found = pq.read_table(each["out"]).num_rows
        else:
            found = sum(len(path.read_text().splitlines()) for path in Path(each["out"]).iterdir())
        assert found == each["records"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pattern_has_folders_whatever_it_matches(pylog, topics, tmp_path):
    words = ("--topic", "orders-e*", "--to", "jsonl")
    row = pylog.row("export", topics, *words, "--out", tmp_path / "out")
    assert [each["topic"] for each in row["topics"]] == ["orders-eu"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["orders-eu"]


def test_one_topic_of_several_that_fails_leaves_nothing(pylog, topics, tmp_path):
    copy = tmp_path / "logs"
    shutil.copytree(topics, copy)
    flip(copy / "orders-us-0" / "00000000000000000000.log")
    result = pylog(
        *("export", copy, "--topic", "orders-*", "--to", "parquet", "--out", tmp_path / "out")
    )
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_dry_run_estimates_and_writes_nothing(pylog, topics, root, tmp_path):
    words = ("export", topics, "--topic", "orders-*", "--to", "parquet", "--out", tmp_path / "out")
    row = pylog.row(*words, "--dry-run")
    logs = {path.parent.name[:-2]: path.stat().st_size for path in topics.rglob("*.log")}
    assert row["type"] == "export_plan"
    assert (row["most_records"], row["read_bytes"]) == (8, sum(logs.values()))
    assert {each["topic"]: each["read_bytes"] for each in row["topics"]} == logs
    assert list(tmp_path.iterdir()) == []
    assert row["files"] == pylog.row(*words)["files"] == 3
    text = pylog.done(
        *("export", root, "--topic", "orders", "--to", "csv", "--out", tmp_path / "o"),
        *("--from", 10, "-p", 0, "--dry-run"),
    ).stdout
    assert "at most 30 records of orders" in text
    assert "estimated by offsets" in text
    assert not (tmp_path / "o").exists()


@pytest.mark.spark
def test_executors_write_the_same_records(spark, root, expected, tmp_path):
    done = export(spark, reader_of(root), tmp_path / "out", parquet_request())
    assert done.records == 80
    table = pq.read_table(tmp_path / "out").cast(expected.schema)
    assert table.sort_by([("partition", "ascending"), ("offset", "ascending")]).equals(expected)
