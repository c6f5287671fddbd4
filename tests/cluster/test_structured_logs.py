"""Log lines as JSON: what each says, in the driver, its threads, local processes and executors."""

import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.cluster import copies_task as copies
from pylog_spark.cluster import differences_task as differences
from pylog_spark.cluster.audit import task as audits
from pylog_spark.cluster.audit.task import audit_partitions
from pylog_spark.cluster.copies_task import CopyTarget, compare_copies
from pylog_spark.cluster.differences_task import (
    DigestTarget,
    compare_partitions,
    digest_replicas,
)
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.engines.local_engine import LocalEngine
from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.operations import ingest_task as ingestion
from pylog_spark.operations import materialize_task as materialization
from pylog_spark.operations.doctor import task as forecasts
from pylog_spark.operations.doctor.task import forecast_partition
from pylog_spark.operations.ingest_task import IngestContext, compare_with_manifests
from pylog_spark.operations.materialize_task import MaterializeContext, write_partitions
from pylog_spark.operations.purge_task import purge_stretches
from pylog_spark.operations.recover import task as recovery
from pylog_spark.operations.recover.task import observe_recovery
from pylog_spark.operations.undo_task import undo_partitions
from pylog_spark.operations.verify import task as verification
from pylog_spark.operations.verify.task import Stretch, Target, verify_stretch
from pylog_spark.options import HighWatermarkSource
from pylog_spark.options.choices import Level
from pylog_spark.outcomes import Status
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import PARTITION, Failure
from pylog_spark.structured_logs import (
    LogFormat,
    TaskLogs,
    is_json_logged,
    log_fields,
    use_log_format,
)
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.message import PartitionCommit, TaskMessage, attempt
from pylog_spark.tasks.run_context import PartitionRef
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.places import PartitionPlaces
from storage_core.errors import CorruptRecordError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.verification.findings import DirectoryContext
from storage_core.roots.root import PartitionPurge, PartitionUndo
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

LINE = pa.schema([pa.field("pid", pa.int64()), pa.field("line", pa.string())])
GOOD, BAD = "clean-headers-none-s101", "clean-hw-none-s161"
REF = PartitionRef(
    ordinal=0, root="/log", directory="/log/a-b-7", partition=TopicPartition("a-b", 7)
)


@pytest.fixture
def as_json() -> Iterator[None]:
    """Log lines are JSON."""
    use_log_format(LogFormat.JSON)
    yield
    use_log_format(LogFormat.TEXT)


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("as_json")
def test_a_line_has_time_level_logger_message_and_what_is_known_there(capsys):
    with log_fields(run_id="r", topic=None), log_fields(step="compact"):
        logging.getLogger("storage_core.x").info("%d files", 3)
    logging.getLogger("storage_core.x").warning("after")
    first, second = parsed(capsys.readouterr().err)
    assert list(first) == ["time", "level", "logger", "message", "run_id", "step"]
    assert first["time"].endswith("Z")
    assert (first["level"], first["logger"]) == ("INFO", "storage_core.x")
    assert (first["message"], first["run_id"], first["step"]) == ("3 files", "r", "compact")
    assert list(second) == ["time", "level", "logger", "message"]


@pytest.mark.usefixtures("as_json")
def test_no_line_shows_a_secret_or_steers_a_terminal_or_breaks_in_two(capsys, caplog, monkeypatch):
    # pytest keeps what is logged, as it was said; between its processes only UTF-8 travels.
    root = logging.getLogger()
    kept = [each for each in root.handlers if not isinstance(each, type(caplog.handler))]
    monkeypatch.setattr(root, "handlers", kept)
    name = "\x1b[31mred\nnext\udcff"
    with log_fields(topic=name, root="s3://me:hunter2@b/x"):
        logging.getLogger("pylog_spark.x").warning("https://u:hunter2@host/?token=hunter3 %s", name)
    text = capsys.readouterr().err
    (line,) = parsed(text)
    assert "hunter" not in text
    assert text.rstrip("\n").isprintable()
    assert line["topic"] == "\x1b[31mred\nnext\\xff"
    assert line["root"] == "s3://me:***@b/x"


@pytest.mark.usefixtures("as_json")
def test_others_say_warnings_only_and_pythons_own_are_lines_too(capsys):
    logging.getLogger("py4j.x").info("chatter")
    logging.getLogger("py4j.x").warning("gone")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        use_log_format(LogFormat.TEXT)
        use_log_format(LogFormat.JSON)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert [line["logger"] for line in parsed(capsys.readouterr().err)] == ["py4j.x", "py.warnings"]


def test_text_stays_as_it_is(capsys):
    logger = logging.getLogger("pylog_spark.x")
    use_log_format(LogFormat.JSON)
    use_log_format(LogFormat.TEXT)
    assert not is_json_logged()
    assert not logger.isEnabledFor(logging.INFO)
    with log_fields(run_id="r"):
        logger.info("nobody hears of it")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("as_json")
def test_what_a_task_says_of_a_failure_names_the_partition_and_the_place_in_the_code(capsys):
    head = PartitionCommit(ordinal=0, touched=False)

    def fail(_head: PartitionCommit) -> PartitionCommit:
        error = CorruptRecordError("0.log", 17, "CRC 1, expected 2")
        error.directory = "/log/a-b-7"
        raise error

    with log_fields(step="compact"):
        commit = attempt(head, fail, REF.name)
        attempt(head, lambda _: replace(head, operations=json.dumps([{}, {}])), REF.name)
        attempt(head, lambda _: head, REF.name)
    failed, committed = parsed(capsys.readouterr().err)
    assert failed["message"] == commit.failure.error
    assert (failed["topic"], failed["partition"], failed["root"]) == ("a-b", 7, "/log")
    assert (failed["error_class"], failed["directory"]) == ("CorruptRecordError", "/log/a-b-7")
    assert "in fail" in failed["exception"]
    assert (committed["message"], committed["operations"]) == ("committed", 2)
    assert committed["step"] == "compact"


def fail(*_arguments: Any, **_options: Any) -> Any:
    raise ZeroDivisionError


PLACES = PartitionPlaces(
    topic="a-b", partition=7, topic_id=None, state=None, replicas=(), beside=(), unseen=()
)
TARGET = Target(
    ordinal=0,
    root="/log",
    directory="/log/a-b-7",
    partition=REF.partition,
    context=DirectoryContext(role=Role.BROKER, is_clean=True),
    checkpoints=PartitionCheckpoints(),
    roots=(),
)
LISTED = rows_to_batch(PARTITION, [asdict(REF.name) | {"directory": "/log/a-b-7"}])
INGEST_CONTEXT = IngestContext(
    run_id="run",
    mirror="/mirror",
    root="/log",
    rules=IngestRules(),
    high_watermark=HighWatermarkSource.CHECKPOINT,
    lease=None,
)


@pytest.mark.usefixtures("as_json")
@pytest.mark.parametrize(
    ("work", "root"),
    [
        pytest.param(
            lambda: verify_stretch(Stretch(target=TARGET, size_bytes=0), None), "/log", id="verify"
        ),
        pytest.param(
            lambda: verify_stretch(Stretch(target=TARGET, first_offset=1, size_bytes=0), None),
            "/log",
            id="stretch",
        ),
        pytest.param(lambda: [forecast_partition(TARGET, None, None)], "/log", id="doctor"),
        pytest.param(lambda: audit_partitions([PLACES], None), None, id="audit"),
        pytest.param(
            lambda: digest_replicas(
                [DigestTarget(ordinal=0, replica=0, places=PLACES, ranges=None)]
            ),
            None,
            id="digest",
        ),
        pytest.param(lambda: compare_partitions([PLACES], Level.BYTES), None, id="differences"),
        pytest.param(
            lambda: compare_copies(
                [CopyTarget(topic="a-b", original=PLACES, copy=PLACES, syncs=None)]
            ),
            None,
            id="copies",
        ),
        pytest.param(
            lambda: write_partitions(
                [(REF.partition, 0)],
                MaterializeContext(root="/log", directory="/nowhere", present={}),
            ),
            "/log",
            id="materialize",
        ),
        pytest.param(
            lambda: undo_partitions(
                [PartitionUndo(location="/log/a-b-7", partition=REF.partition)],
                fail,
                Status.DONE,
                in_turns=True,
            ),
            None,
            id="undo",
        ),
        pytest.param(
            lambda: purge_stretches(
                [[PartitionPurge(location="/log/a-b-7", partition=REF.partition)]],
                lambda stretch: stretch,
                fail,
                is_here=True,
                dry_run=False,
            ),
            None,
            id="purge",
        ),
        pytest.param(lambda: observe_recovery(iter([LISTED]), None), "/log", id="recover"),
        pytest.param(
            lambda: compare_with_manifests(iter([LISTED]), INGEST_CONTEXT), "/log", id="ingest"
        ),
    ],
)
def test_what_a_task_says_of_a_failure_names_the_partition_in_every_operation(
    capsys, monkeypatch, work, root
):
    for task, step in (
        (verification, "_verify"),
        (forecasts, "_forecast"),
        (audits, "_audit"),
        (differences, "_digest"),
        (differences, "find_differences"),
        (copies, "_choose"),
        (materialization, "_write"),
        (recovery, "_look"),
        (ingestion, "_look"),
    ):
        monkeypatch.setattr(task, step, fail)
    list(work())
    (line,) = parsed(capsys.readouterr().err)
    assert (line["error_class"], line["topic"], line["partition"]) == (
        "ZeroDivisionError",
        "a-b",
        7,
    )
    assert line.get("root") == root


@pytest.mark.usefixtures("as_json")
def test_threads_that_look_ahead_say_the_same(capsys):
    def work(item: int) -> int:
        logging.getLogger("pylog_spark.x").warning("%d", item)
        return item

    with log_fields(run_id="r"):
        assert list(map_ahead(work, range(40), at_once=2)) == list(range(40))
    assert {line["run_id"] for line in parsed(capsys.readouterr().err)} == {"r"}


def warn_in_task(unit: int) -> Iterator[pa.RecordBatch]:
    """Yield the process, and what it writes to standard error."""
    said = StringIO()
    with redirect_stderr(said):
        failure = Failure(error_class="E", error=f"unit {unit}")
        head = TaskMessage(ordinal=unit)
        attempt(head, lambda head: replace(head, failure=failure), REF.name)
        logging.getLogger("storage_core.x").warning("unit %d", unit)
    yield pa.RecordBatch.from_pylist([{"pid": os.getpid(), "line": said.getvalue()}], LINE)


def lines_of_tasks(engine: AnyEngine, *, is_look: bool) -> list[dict[str, Any]]:
    with engine, log_fields(run_id="r"), log_fields(step="observe"):
        rows = engine.each([0, 1], warn_in_task, LINE)
        table = engine.collect(rows, LINE, "test", is_look=is_look)
    assert (os.getpid() in table["pid"].to_pylist()) == is_look
    return [line for text in table["line"].to_pylist() for line in parsed(text)]


def holds(lines: list[dict[str, Any]]) -> None:
    assert [line["message"] for line in lines] == ["unit 0"] * 2 + ["unit 1"] * 2
    assert {(line["run_id"], line["step"]) for line in lines} == {("r", "observe")}
    assert [(line.get("topic"), line.get("partition")) for line in lines] == [
        ("a-b", 7),
        (None, None),
    ] * 2


@pytest.mark.thorough
@pytest.mark.usefixtures("as_json")
def test_processes_of_the_local_engine_say_the_run_and_the_partition():
    holds(lines_of_tasks(LocalEngine(1), is_look=False))


@pytest.mark.usefixtures("as_json")
def test_threads_of_the_local_engine_say_the_run_and_the_partition():
    holds(lines_of_tasks(LocalEngine(1), is_look=True))


@pytest.mark.thorough
@pytest.mark.spark
def test_executors_say_the_run_and_the_partition_and_only_where_json_is_asked_for(spark):
    use_log_format(LogFormat.JSON)
    try:
        holds(lines_of_tasks(SparkEngine(spark, tag="logs"), is_look=False))
    finally:
        use_log_format(LogFormat.TEXT)
    # The same workers, in another run.
    with SparkEngine(spark, tag="logs") as engine, log_fields(run_id="r"):
        table = engine.collect(engine.each([0, 1], warn_in_task, LINE), LINE, "test")
    assert sorted(table["line"].to_pylist()) == ["unit 0\n", "unit 1\n"]


def test_what_travels_with_a_task_is_a_value():
    logs = TaskLogs(LogFormat.JSON, {"run_id": "r"})
    assert pickle.loads(pickle.dumps(logs)) == logs
    thread = threading.Thread(target=logs.begin)
    thread.start()
    thread.join()
    assert is_json_logged()
    assert TaskLogs.of_driver().fields == {}
    TaskLogs(LogFormat.TEXT).begin()
    assert not is_json_logged()


@pytest.mark.thorough
def test_a_run_in_json_says_all_of_it_in_json(tmp_path: Path):
    root = broker_directory(tmp_path / "log", [GOOD, BAD])
    root.write_metadata()
    (segment, *_) = sorted((root.path / f"{BAD}-0").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[70] ^= 0xFF
    times = segment.stat()
    segment.write_bytes(content)
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))
    shutil.rmtree(root.path / "unpacked", ignore_errors=True)
    arguments = ["--log-format", "json", "compact", str(root.path), "--role", "broker"]
    arguments += ["--engine", "local", "--now-ms", str(FIRST_ROUNDS_MS), "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "pylog_spark", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    lines = parsed(done.stderr)
    run = parsed(done.stdout)[-1]
    assert {line["run_id"] for line in lines} == {run["run_id"]}
    (begins, *_), (*_, ends) = lines, lines
    assert (begins["message"], begins["roots"]) == ("the run begins", [str(root.path)])
    assert (ends["message"], ends["level"]) == ("the run has ended", "ERROR")
    assert {name: ends[name] for name in ("done", "failed", "exit_code")} == {
        "done": run["done"],
        "failed": 1,
        "exit_code": 4,
    }
    (committed,) = [line for line in lines if line["message"] == "committed"]
    assert (committed["topic"], committed["partition"], committed["step"]) == (GOOD, 0, "compact")
    failed = [line for line in lines if line.get("error_class") == "CorruptRecordError"]
    # At once from the task; as an error from the driver.
    assert [line["level"] for line in failed] == ["INFO", "ERROR"]
    assert {(line["topic"], line["partition"], line["step"]) for line in failed} == {
        (BAD, 0, "compact")
    }


def test_an_error_that_ends_a_command_is_a_line_as_well(pylog, tmp_path, monkeypatch):
    result = pylog("--log-format", "json", "inspect", tmp_path / "none")
    (line,) = parsed(result.stderr)
    assert result.exit_code == 2
    assert (line["level"], line["logger"], line["error_class"]) == ("ERROR", "pylog", "ConfigError")
    assert str(tmp_path / "none") in line["message"]
    monkeypatch.setenv("PYLOG_LOG_FORMAT", "json")
    (line,) = parsed(pylog("inspect", "--bogus").stderr)
    assert "--bogus" in line["message"]
    assert pylog("--log-format", "text", "inspect", tmp_path / "none").stderr.startswith("pylog: ")
    use_log_format(LogFormat.TEXT)
