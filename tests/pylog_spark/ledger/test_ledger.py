"""The ledger, as Spark's executors, Spark's driver and this machine write and read it."""

import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from pylog_spark.engines.choice import Local, Place
from pylog_spark.ledger import LedgerTable, last_limits, open_ledger, spark_ledger
from pylog_spark.ledger.spark_ledger import SparkLedger, driver_reaches, format_at, read_table
from pylog_spark.ledger.tables import SCHEMAS, LedgerFormat, local_folder
from pylog_spark.operations.compact.driver import compact
from pylog_spark.rows import rows_to_batch, spark_frame
from pylog_spark.run.recording import Recorder
from pylog_spark.schemas import RESULT
from storage_core.clock import ManualClock, SystemClock
from storage_core.errors import ConfigError, GuardRefusedError, StorageError
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

pytestmark = pytest.mark.spark

NAME = "clean-hw-none-s161"


@pytest.fixture
def without_driver(monkeypatch):
    """Spark alone writes and reads, as it does where the driver cannot."""
    monkeypatch.setattr(spark_ledger, "driver_reaches", lambda *_: False)


def delta_rows(location, table: LedgerTable) -> list[dict]:
    """Return the rows as a client without Spark reads them."""
    return deltalake.DeltaTable(f"{location}/{table}").to_pyarrow_table().to_pylist()


def result_rows(*topics: str) -> pa.Table:
    rows = [{"run_id": "r", "topic": topic, "partition": 0} for topic in topics]
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)])


@dataclass(frozen=True)
class Written:
    """A ledger that Spark alone has written, as it does where the driver cannot.

    Attributes:
        location: Its folder, whose name is a pattern to Spark.
        opened: Copy of it, under a plain name, from before the first row.
        copy: The same of what it is now.
    """

    location: str
    opened: Path
    copy: Path


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory) -> Written:
    """A run appends three rows, those of its first append twice, and another run appends one."""
    folder = tmp_path_factory.mktemp("written")
    ledger = Written(str(folder / "led[g]er {1,2}*?\\"), folder / "opened", folder / "copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_ledger, "driver_reaches", lambda *_: False)
        first = SparkLedger.open(spark, ledger.location, run_id="r")
        assert first.format is LedgerFormat.DELTA
        shutil.copytree(ledger.location, ledger.opened)
        for _ in range(2):
            first.append(LedgerTable.RESULTS, result_rows("a", "b"), number=0)
        first.append(LedgerTable.RESULTS, result_rows("c"), number=1)
        other = SparkLedger.open(spark, ledger.location, run_id="another")
        other.append(LedgerTable.RESULTS, result_rows("d"), number=0)
    shutil.copytree(ledger.location, ledger.copy)
    return ledger


@pytest.mark.thorough
def test_tables_are_there_before_the_first_row_with_their_columns_and_comments(written):
    for table in LedgerTable:
        delta = deltalake.DeltaTable(str(written.opened / table))
        assert [field.name for field in delta.schema().fields] == SCHEMAS[table].names
        assert delta.schema().fields[0].metadata["comment"]
        assert delta.metadata().configuration["delta.appendOnly"] == "true"
        assert delta.to_pyarrow_table().num_rows == 0


@pytest.mark.thorough
def test_both_engines_make_the_same_tables(written, tmp_path):
    open_ledger(Local(), str(tmp_path / "local"), run_id="r")
    tables = [
        [
            (made.schema(), made.metadata().configuration, made.protocol())
            for made in (deltalake.DeltaTable(str(place / table)) for table in LedgerTable)
        ]
        for place in (tmp_path / "local", written.opened)
    ]
    assert tables[0] == tables[1]


def test_an_append_that_is_made_again_adds_nothing(written):
    topics = sorted(row["topic"] for row in delta_rows(written.copy, LedgerTable.RESULTS))
    assert topics == ["a", "b", "c", "d"]


@pytest.mark.thorough
def test_a_ledger_may_lie_where_the_name_is_a_pattern_to_spark(spark, written):
    rows = read_table(spark, written.location, LedgerTable.RESULTS).toArrow().to_pylist()
    assert sorted(row["topic"] for row in rows) == ["a", "b", "c", "d"]


def test_the_ledgers_settings_do_not_reach_the_session(spark, written):
    for session in (spark, SparkSession.active()):
        assert session.conf.get("spark.sql.shuffle.partitions") == "2"


@pytest.mark.usefixtures("without_driver")
def test_a_ledger_of_delta_tables_never_turns_into_parquet(spark, written, monkeypatch):
    folder = Path(written.location)
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(
        "pylog_spark.ledger.spark_ledger.ledger_format", lambda _: LedgerFormat.PARQUET
    )
    with pytest.raises(ConfigError, match="this session has no Delta"):
        SparkLedger.open(spark, written.location, run_id="third")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.thorough
def test_without_delta_the_ledger_is_parquet_and_that_is_said(spark, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(
        "pylog_spark.ledger.spark_ledger.ledger_format", lambda _: LedgerFormat.PARQUET
    )
    location = str(tmp_path / "led[g]er {1,2}*?\\")
    SparkLedger.open(spark, location, run_id="r").append(
        LedgerTable.RESULTS, result_rows("a"), number=0
    )
    assert not list(tmp_path.rglob("_delta_log"))
    (warning,) = caplog.messages
    assert location in warning
    assert "this session has no Delta" in warning
    rows = read_table(spark, location, LedgerTable.RESULTS).toArrow().to_pylist()
    assert [row["topic"] for row in rows] == ["a"]


@pytest.mark.thorough
def test_a_ledger_of_parquet_files_goes_on_as_that_in_a_session_with_delta(
    spark, tmp_path, monkeypatch, caplog
):
    location = str(tmp_path / "ledger")
    with monkeypatch.context() as patch:
        patch.setattr(
            "pylog_spark.ledger.spark_ledger.ledger_format", lambda _: LedgerFormat.PARQUET
        )
        SparkLedger.open(spark, location, run_id="r").append(
            LedgerTable.RESULTS, result_rows("a"), number=0
        )
    caplog.clear()
    other = SparkLedger.open(spark, location, run_id="another")
    other.append(LedgerTable.RESULTS, result_rows("b"), number=0)
    assert not list(tmp_path.rglob("_delta_log"))
    assert [location in text and "begun as Parquet" in text for text in caplog.messages] == [True]
    rows = read_table(spark, location, LedgerTable.RESULTS).toArrow().to_pylist()
    assert sorted(row["topic"] for row in rows) == ["a", "b"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    "name",
    [
        "led[g]er",
        "{ledger,x}",
        "l*r",
        "ledge?",
        "led\\ger",
        "]",
        "^",
        "-",
        "\\",
        "a:b",
        "50%20 #,ü",
    ],
)
def test_what_a_ledger_is_stored_as_is_found_under_any_name(spark, tmp_path, name, scheme):
    (tmp_path / "ledger" / "runs").mkdir(parents=True)
    pq.write_table(result_rows("a"), tmp_path / "ledger" / "runs" / "part-0.parquet")
    place = tmp_path / name
    assert format_at(spark, f"{scheme}{place}") is LedgerFormat.DELTA  # nothing is there
    shutil.copytree(tmp_path / "ledger", place)
    assert format_at(spark, f"{scheme}{place}") is LedgerFormat.PARQUET
    (place / "runs" / "_delta_log").mkdir()
    assert format_at(spark, f"{scheme}{place}") is LedgerFormat.DELTA


@pytest.mark.thorough
@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize("ledger_format", LedgerFormat)
def test_a_ledger_of_an_older_version_gets_the_columns_that_came_since(
    spark, tmp_path, monkeypatch, ledger_format
):
    monkeypatch.setattr("pylog_spark.ledger.spark_ledger.ledger_format", lambda _: ledger_format)
    location = str(tmp_path / "ledger")
    older = pa.schema([field for field in RESULT if not field.name.startswith("retention_")])
    with monkeypatch.context() as patch:
        patch.setitem(SCHEMAS, LedgerTable.RESULTS, older)
        ledger = SparkLedger.open(spark, location, run_id="r1")
        ledger.append(LedgerTable.RESULTS, result_rows("a").select(older.names), number=0)
    known = {"run_id": "r2", "topic": "b", "partition": 0, "retention_ms": 7}
    newer = pa.Table.from_batches([rows_to_batch(RESULT, [known])])
    SparkLedger.open(spark, location, run_id="r2").append(LedgerTable.RESULTS, newer, number=0)
    rows = read_table(spark, location, LedgerTable.RESULTS).toArrow().to_pylist()
    assert {row["topic"]: row["retention_ms"] for row in rows} == {"a": None, "b": 7}


def place_of(name: str, spark) -> Place:
    return Local() if name == "local" else spark


@pytest.mark.thorough
@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize(("first", "then"), [("spark", "local"), ("local", "spark")])
def test_each_engine_goes_on_with_the_ledger_of_the_other(spark, tmp_path, first, then):
    location = str(tmp_path / "a ledger")
    ledger = open_ledger(place_of(first, spark), location, run_id="r")
    ledger.append(LedgerTable.RESULTS, result_rows("a"), number=0)
    made = deltalake.DeltaTable(f"{location}/results")
    other = open_ledger(place_of(then, spark), location, run_id="r")
    # What the other engine has written of this run is not written again.
    other.append(LedgerTable.RESULTS, result_rows("a"), number=0)
    other.append(LedgerTable.RESULTS, result_rows("b"), number=1)
    ledger.append(LedgerTable.RESULTS, result_rows("b"), number=1)
    ledger.append(LedgerTable.RESULTS, result_rows("c"), number=2)
    for rows in (
        delta_rows(location, LedgerTable.RESULTS),
        read_table(spark, location, LedgerTable.RESULTS).toArrow().to_pylist(),
    ):
        assert sorted(row["topic"] for row in rows) == ["a", "b", "c"]
    # Row for row what one engine alone would have written.
    alone = pa.concat_tables([result_rows("a"), result_rows("b"), result_rows("c")])
    assert_df_equality(
        read_table(spark, location, LedgerTable.RESULTS),
        spark_frame(spark, alone),
        ignore_row_order=True,
        ignore_metadata=True,
    )
    left = deltalake.DeltaTable(f"{location}/results")
    assert left.transaction_version("r/results") == 2
    assert left.schema() == made.schema()
    assert left.metadata().configuration == made.metadata().configuration
    # Nothing that a client of any age does not read.
    assert left.protocol().min_reader_version == made.protocol().min_reader_version == 1
    assert left.protocol().min_writer_version == made.protocol().min_writer_version == 2


def test_what_the_driver_has_is_appended_without_a_job_of_spark(spark, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("Spark is asked")

    location = str(tmp_path / "ledger")
    with monkeypatch.context() as patch:
        for name in ("createDataFrame", "read"):
            patch.setattr(SparkSession, name, refuse)
        ledger = SparkLedger.open(spark, location, run_id="r")
        for _ in range(2):
            ledger.append(LedgerTable.RESULTS, result_rows("a"), number=0)
    assert ledger.format is LedgerFormat.DELTA
    assert [row["topic"] for row in delta_rows(location, LedgerTable.RESULTS)] == ["a"]


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/a b/c", "/a b/c"),
        ("file:/a%20b", "/a%20b"),
        ("file:///a", "/a"),
        ("file:a", str(Path("file:a").absolute())),
        ("s3a://bucket/a", None),
        ("hdfs://host/a", None),
    ],
)
def test_the_driver_reaches_what_is_a_path_of_its_machine(spark, location, folder):
    assert local_folder(location) == (None if folder is None else Path(folder))
    assert driver_reaches(spark, location) == (folder is not None)


def test_the_driver_leaves_to_spark_what_only_spark_goes_on_with(spark, tmp_path, monkeypatch):
    location = str(tmp_path / "ledger")
    assert driver_reaches(spark, location)
    with monkeypatch.context() as patch:
        patch.setattr(spark_ledger, "ledger_format", lambda _: LedgerFormat.PARQUET)
        assert not driver_reaches(spark, location)
    assert not driver_reaches(spark, f"{location}[1]")
    files = spark.sparkContext._jsc.hadoopConfiguration()
    usual = files.get("fs.defaultFS")
    try:
        files.set("fs.defaultFS", "hdfs://host")
        assert not driver_reaches(spark, location)
    finally:
        files.set("fs.defaultFS", usual)
    (tmp_path / "ledger" / "runs").mkdir(parents=True)
    pq.write_table(result_rows("a"), tmp_path / "ledger" / "runs" / "part-0.parquet")
    assert not driver_reaches(spark, location)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["spark", "driver", "local"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_what_retention_topics_had_is_read_by_all(spark, tmp_path, monkeypatch, name, scheme):
    if name == "spark":
        monkeypatch.setattr(spark_ledger, "driver_reaches", lambda *_: False)
    location = f"{scheme}{tmp_path / 'ledger'}"
    place = place_of(name, spark)
    day_ms = 86_400_000
    rows = [
        ("r", "t", "1", "retain", "NOTHING_TO_RETAIN", 30 * day_ms, -1),
        ("r", "t", "2", "retain", "NOTHING_TO_RETAIN", 5, -1),
        ("r", "t", "2", "retain", "DELETES_TOO_MUCH", 5, -1),
        ("r", "other", "2", "retain", None, 7, 8),
        ("r", "other", "1", "retain", None, 90 * day_ms, -1),
        ("s", "other", "1", "retain", None, 3, None),
        # Of the run that asks, of another topic, of no retention.
        ("r", "other", "4", "retain", None, 1, 1),
        ("r", "third", "1", "retain", None, 1, 1),
        ("r", "t", "3", "compact", None, None, None),
    ]
    names = ("root", "topic", "run_id", "action", "reason", "retention_ms", "retention_bytes")
    asked = {"run_id": "4", "may_be_missing": True}
    assert last_limits(place, location, {"t", "other"}, **asked) == []
    listed = [dict(zip(names, row, strict=True)) for row in rows]
    table = pa.Table.from_batches([rows_to_batch(RESULT, listed)])
    open_ledger(Local(), location, run_id="r").append(LedgerTable.RESULTS, table, number=0)
    found = last_limits(place, location, {"t", "other"}, **asked)
    assert sorted(tuple(row[n] for n in (*names[:3], *names[5:])) for row in found) == [
        ("r", "other", "2", 7, 8),
        ("r", "t", "1", 30 * day_ms, -1),
        ("s", "other", "1", 3, None),
    ]


def test_a_ledger_that_only_spark_goes_on_with_is_refused_here(spark, tmp_path):
    spark.range(1).write.parquet(str(tmp_path / "old" / "runs"))
    for name, why in {"old": "it was begun as Parquet", "[1]": r"understands no \[ \]"}.items():
        with pytest.raises(ConfigError, match=why):
            open_ledger(Local(), str(tmp_path / name), run_id="r")
    assert not (tmp_path / "[1]").exists()


def test_a_place_that_cannot_be_written_is_an_error_of_storage(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the ledger: "):
        open_ledger(Local(), str(tmp_path / "file"), run_id="r")


@pytest.mark.thorough
@pytest.mark.usefixtures("without_driver")
def test_a_run_leaves_its_start_its_end_its_results_and_its_operations(spark, tmp_path):
    root = broker_directory(tmp_path / "log", [NAME, "clean-ratio-none-s191-2"])
    location = str(tmp_path / "ledger")
    clock = ManualClock(1_700_000_123_456)
    options = root.options(FIRST_ROUNDS_MS, ledger=location, spark_conf={"secret": "word"})
    report = compact(spark, [root.path], options, clock=clock)

    start, end = sorted(
        delta_rows(location, LedgerTable.RUNS), key=lambda row: row["event"], reverse=True
    )
    at = datetime.fromtimestamp(1_700_000_123.456, tz=UTC)
    assert (start["event"], start["at"], start["exit_code"]) == ("START", at, None)
    assert (end["event"], end["exit_code"], end["partitions_done"]) == ("END", 0, 1)
    assert end["partitions_skipped"] == 1
    assert end["bytes_after"] == report.summary.bytes_after < end["bytes_before"]
    assert start["roots"] == [str(root.path)]
    assert '"now_ms": 1700000000000' in start["options"]
    assert "secret" not in start["options"]
    assert "hash_key" not in str(start)

    results = delta_rows(location, LedgerTable.RESULTS)
    assert {(row["topic"], row["status"], row["reason"]) for row in results} == {
        (NAME, "done", None),
        ("clean-ratio-none-s191-2", "skipped", "RATIO_BELOW_MINIMUM"),
    }
    operations = delta_rows(location, LedgerTable.OPERATIONS)
    assert [row["step"] for row in sorted(operations, key=lambda row: row["step"])] == list(
        range(len(operations))
    )
    assert {"PromoteFile", "RenameFile", "DeleteFile"} <= {row["operation"] for row in operations}
    assert {row["run_id"] for row in [start, end, *results, *operations]} == {report.run_id}
    mine = read_table(spark, location, LedgerTable.RESULTS, run_id=report.run_id)
    assert mine.count() == 2
    assert read_table(spark, location, LedgerTable.RESULTS, run_id="x").count() == 0


@pytest.mark.thorough
def test_a_run_that_an_error_ended_says_so(tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", [NAME])
    location = str(tmp_path / "ledger")

    def refuse(*arguments):
        raise GuardRefusedError("NO", "not today")

    monkeypatch.setattr("pylog_spark.run.job.build_catalogs", refuse)
    with pytest.raises(GuardRefusedError):
        compact(Local(), [root.path], root.options(FIRST_ROUNDS_MS, ledger=location))
    rows = {row["event"]: row for row in delta_rows(location, LedgerTable.RUNS)}
    assert rows["END"]["error_class"] == "GuardRefusedError"
    assert "not today" in rows["END"]["error"]
    assert (root.path / ".kafka_cleanshutdown").exists()


@pytest.mark.thorough
def test_the_query_of_the_document_finds_runs_that_began_and_did_not_end(spark, tmp_path):
    document = (Path(__file__).parents[3] / "docs" / "schedulers.md").read_text()
    (query,) = re.findall(r"^```sql\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    long_ago = ManualClock(FIRST_ROUNDS_MS)
    for run_id, clock, has_ended in (
        ("died", long_ago, False),
        ("ended", long_ago, True),
        ("runs", SystemClock(), False),
    ):
        ledger = open_ledger(Local(), str(tmp_path), run_id=run_id)
        facts = {"run_id": run_id, "action": "run", "roots": ["/srv/kafka"]}
        recorder = Recorder(ledger=ledger, clock=clock, facts=facts)
        recorder.start()
        if has_ended:
            recorder.fail(KeyboardInterrupt())
    found = spark.sql(query.replace("/srv/ledger", str(tmp_path))).collect()
    assert [(row.run_id, row.action, row.roots) for row in found] == [
        ("died", "run", ["/srv/kafka"])
    ]
    assert found[0]["at"].timestamp() * 1000 == FIRST_ROUNDS_MS
