"""Verification on Spark finds what it finds in process, however it is spread."""

import json
import logging
import os
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pylog_spark.discovery import list_few, resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.ledger import LedgerTable
from pylog_spark.ledger.spark_ledger import read_table
from pylog_spark.operations.doctor.driver import diagnose
from pylog_spark.operations.verify import driver
from pylog_spark.operations.verify.driver import (
    VerifyReport,
    VerifyRequest,
    cut_partition,
    observe_roots,
    verify,
)
from pylog_spark.operations.verify.task import (
    Stretch,
    Target,
    finding_rows,
    fold_verified,
    verify_stretch,
    verify_stretches,
)
from pylog_spark.options import JobOptions, Tuning
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.planning import ITEM_OVERHEAD_BYTES
from pylog_spark.run.run import exit_code_of, is_as_bad
from pylog_spark.schemas import FINDING, RECORDED_FINDING, RESULT
from pylog_spark.upkeep_directory import UpkeepDirectory
from storage_core.catalog import metadata_image
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_dump import TopicDump
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.verdict import Advice
from storage_core.messages.fields import FieldReader
from tests.bench.linked_root import NOTHING_DUE, write_linked_root
from tests.kit.golden_data import Golden
from tests.storage_core.maintenance.verification.log_root import NOW_MS, LogRoot, log_root

OPTIONS = JobOptions(now_ms=NOW_MS, now_is_said=True)


def damaged(path: Path) -> LogRoot:
    """Return a log directory with something of every severity."""
    root = log_root(path)
    root.change(root.file(20), -1, b"\x55")
    root.file(10, ".txnindex").unlink()
    (root.partition / "foo.log").touch()
    (root.partition / "foo.txt").touch()
    (root.partition / "00000000000000000077.index").touch()
    root.file(30, ".index").unlink()
    return root


def rows_in_process(path: Path, **options) -> list[tuple]:
    roots = observe_roots([(str(path), Role.BROKER)], TopicFilter(), is_live=False)
    rows = list(roots.rows)
    for target in roots.targets:
        rows += verify_stretch(
            Stretch(target=target, size_bytes=0), VerifyOptions(now_ms=NOW_MS, **options)
        )
    return sorted(
        (astuple(row.finding) for row in rows if row.row == "finding"),
        key=str,
    )


def target(directory: str = "/logs/t-0") -> Target:
    return Target(
        ordinal=3,
        root="/logs",
        directory=directory,
        partition=TopicPartition("t", 0),
        context=DirectoryContext(role=Role.BROKER, is_clean=True),
        checkpoints=PartitionCheckpoints(),
        roots=(),
    )


def test_a_partition_is_cut_at_segments_and_nothing_of_it_is_lost():
    offsets, sizes = [100, 200, 300, 400, 500], [10, 10, 25, 1, 1]
    cut = cut_partition(target(), offsets, sizes, unit_bytes=20)
    assert [size for _, size in cut] == [20, 25, 2]
    stretches = [stretch for stretch, _ in cut]
    assert [[base for base in offsets if s.holds(base)] for s in stretches] == [
        [100, 200],
        [300],
        [400, 500],
    ]
    # Segments that appear or go meanwhile belong to one of them as well.
    assert [sum(s.holds(base) for s in stretches) for base in (0, 250, 10**9)] == [1, 1, 1]
    assert not any(stretch.is_whole for stretch in stretches)
    [(whole, size)] = cut_partition(target(), offsets, sizes, unit_bytes=100)
    assert whole.is_whole
    assert size == 47 + 5 * ITEM_OVERHEAD_BYTES
    assert cut_partition(target(), [], [], unit_bytes=1)[0][0].is_whole


@pytest.mark.parametrize(
    ("failed", "worst", "fail_on", "status"),
    [
        (0, None, Severity.INFO, 0),
        (0, Severity.WARN, Severity.ERROR, 0),
        (0, Severity.ERROR, Severity.ERROR, 1),
        (0, Severity.FATAL, Severity.ERROR, 1),
        (0, Severity.FATAL, None, 0),
        (1, None, None, 4),
        (1, Severity.FATAL, Severity.INFO, 4),
    ],
)
def test_exit_statuses(failed, worst, fail_on, status):
    statuses = ["done", *["failed"] * failed]
    rows = [{"root": "/logs", "topic": "t", "status": each} for each in statuses]
    results = pa.Table.from_batches([rows_to_batch(RESULT, rows)])
    code = exit_code_of(results, action="verify", has_findings=is_as_bad(worst, fail_on))
    assert code == status


def test_a_finding_names_its_file_whole_and_says_what_to_run():
    found = Finding(code=Code.OFFSET_INDEX_WRONG, severity=Severity.ERROR, message="m", file="x")
    [row] = finding_rows(target(), [found])
    assert row.finding.file == "/logs/t-0/x"
    assert row.finding.fix.startswith(
        "rebuild it: pylog partition recover /logs/t-0 --no-truncate --now-ms "
    )
    entry = replace(found, file="replication-offset-checkpoint")
    [row] = finding_rows(target(), [entry])
    assert row.finding.file == "/logs/replication-offset-checkpoint"


def test_a_partition_that_vanished_is_a_row_and_a_finding(tmp_path):
    gone = target(str(tmp_path / "t-0"))
    for is_live, severity in ((False, "warn"), (True, "info")):
        options = VerifyOptions(now_ms=0, is_live=is_live)
        first, partition = verify_stretch(Stretch(target=gone, size_bytes=0), options)
        assert (first.finding.code, first.finding.severity) == ("CHANGED_WHILE_READ", severity)
        assert partition.row == "partition"


def test_an_error_of_the_program_fails_its_partition_only(tmp_path, monkeypatch, caplog):
    root = log_root(tmp_path / "log")
    roots = observe_roots([(str(root.path), Role.BROKER)], TopicFilter(), is_live=False)
    module = "pylog_spark.operations.verify.task.verify_segments"

    def fail(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr(module, fail)
    options = VerifyOptions(now_ms=NOW_MS)
    [row] = verify_stretch(Stretch(target=roots.targets[0], size_bytes=0), options)
    assert (row.row, row.failure.error_class) == ("partition", "ZeroDivisionError")
    parts = [
        Stretch(target=roots.targets[0], end_offset=20, size_bytes=0),
        Stretch(target=roots.targets[0], first_offset=20, size_bytes=0),
    ]
    facts = list(verify_stretches(parts, options))
    # Each stretch has said so; the partition does not say it once more.
    caplog.set_level(logging.INFO, "pylog_spark")
    [folded] = fold_verified(facts, {0: roots.targets[0]}, options)
    assert (folded.row, folded.failure.error_class) == ("partition", "ZeroDivisionError")
    assert caplog.records == []


UNITS = pytest.mark.parametrize("unit_bytes", [1, 1 << 30], ids=["a unit a segment", "whole"])


def check_findings(place: Place, path: Path, unit_bytes: int, ledger: str | None) -> VerifyReport:
    """Verify a directory with something of every severity; return the report."""
    root = damaged(path)
    tuning = Tuning(unit_min_bytes=unit_bytes, unit_max_bytes=unit_bytes)
    options = replace(OPTIONS, role=Role.BROKER, tuning=tuning, ledger=ledger)
    report = verify(place, [root.path], options)
    found = [tuple(row[name] for name in FINDING.names) for row in report.findings]
    assert sorted(found, key=str) == rows_in_process(root.path)
    assert {row[0] for row in found} == {"fatal", "error", "warn", "harmless", "info"}
    ranks = [Severity(row[0]).rank for row in found]
    assert ranks == sorted(ranks, reverse=True)
    assert sum(count.count for count in report.counts) == len(found)
    [result] = report.results.to_pylist()
    assert (result["status"], result["segments_before"]) == ("done", 4)
    assert result["records_before"] == 35  # the batch that is damaged has five more
    assert report.exit_code == 1
    return report


@pytest.mark.thorough
@pytest.mark.spark
@UNITS
def test_findings_are_those_of_the_process_however_segments_are_spread(spark, tmp_path, unit_bytes):
    report = check_findings(spark, tmp_path / "log", unit_bytes, ledger=None)
    frame = report.findings_frame().toArrow().to_pylist()
    expected = rows_in_process(tmp_path / "log")
    assert sorted((tuple(row.values()) for row in frame), key=str) == expected
    report.release()


@pytest.mark.thorough
@UNITS
@pytest.mark.parametrize("most_here", [0, 1 << 30], ids=["processes", "here"])
def test_so_they_are_on_this_machine_and_all_are_recorded(
    tmp_path, monkeypatch, unit_bytes, most_here
):
    monkeypatch.setattr("pylog_spark.run.planning.MOST_READ_HERE", most_here)
    ledger = tmp_path / "ledger"
    report = check_findings(Local(2), tmp_path / "log", unit_bytes, str(ledger))
    rows = DeltaTable(ledger / LedgerTable.FINDINGS).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=str) == sorted(report.findings, key=str)


def test_directories_that_were_listed_are_not_listed_again(tmp_path, monkeypatch):
    root = damaged(tmp_path / "log")
    roots = resolve_roots([root.path], role=Role.BROKER)
    listed = list_few(roots, TopicFilter(), most_partitions=9, most_bytes=1 << 30)
    assert listed
    monkeypatch.setattr(driver, "_ask_for_sizes", None)
    report = verify(Local(1, listed), [root.path], replace(OPTIONS, role=Role.BROKER))
    found = [tuple(row[name] for name in FINDING.names) for row in report.findings]
    assert sorted(found, key=str) == rows_in_process(root.path)


def test_of_many_findings_the_worst_are_shown(tmp_path):
    root = damaged(tmp_path / "log")
    all_of_them, some = (
        verify(Local(1), [root.path], OPTIONS, VerifyRequest(shown=n)).findings for n in (1000, 3)
    )
    names = FINDING.names
    assert [[row[name] for name in names] for row in some] == [
        [row[name] for name in names] for row in all_of_them[:3]
    ]


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.item("DIR-05")
def test_all_partitions_of_a_broker_at_once_with_a_ledger(spark, tmp_path):
    path = Golden("broker-dir").unpack(tmp_path / "broker")
    (path / "lost+found").mkdir()
    broken = min((path / "events-0").glob("*.log"))
    broken.write_bytes(broken.read_bytes()[:-1])
    ledger = str(tmp_path / "ledger")
    dump = TopicDump(file="/exports/topics.json", taken_ms=7, topics={})
    options = replace(OPTIONS, now_ms=1_795_251_360_000, ledger=ledger, topic_dump=dump)
    report = verify(spark, [path], options, VerifyRequest(is_deep=True, shown=2))
    assert len(report.findings) == 2
    assert report.findings[0]["code"] == "DIRECTORY_FOREIGN"
    assert report.summary.done == 14
    found = read_table(spark, ledger, LedgerTable.FINDINGS).toArrow().to_pylist()
    assert len(found) == sum(count.count for count in report.counts)
    assert list(found[0]) == RECORDED_FINDING.names
    assert {row["run_id"] for row in found} == {report.run_id}
    codes = {row["code"] for row in found if row["severity"] in {"error", "fatal"}}
    assert codes >= {"DIRECTORY_FOREIGN", "TORN_SEGMENT"}
    assert {row["topic"] for row in found if row["severity"] == "error"} == {"events"}
    runs = read_table(spark, ledger, LedgerTable.RUNS).toArrow().to_pylist()
    assert sorted(run["event"] for run in runs) == ["END", "START"]
    assert {run["action"] for run in runs} == {"verify"}
    [said] = {run["options"] for run in runs}
    recorded = json.loads(said)
    assert recorded["topic_dump"] == [dump.file, dump.taken_ms]
    assert (recorded["is_deep"], recorded["shown"], recorded["fail_on"]) == (True, 2, "error")
    only = verify(spark, [path], replace(OPTIONS, include=("compacted*",)))
    assert {row["topic"] for row in only.results.to_pylist()} == {"compacted", "compacted-delete"}


@pytest.mark.thorough
@pytest.mark.spark
def test_the_public_face_returns_findings_as_rows(spark, tmp_path):
    root = damaged(tmp_path / "log")
    directory = UpkeepDirectory.for_path(spark, root.path, options=OPTIONS)
    frame = directory.verify()
    assert frame.columns == FINDING.names
    assert frame.where("severity = 'fatal'").count() == 1
    assert directory.verify(live=True).where("code = 'BATCH_CRC_WRONG'").count() == 1


@pytest.mark.thorough
@pytest.mark.spark
def test_a_log_directory_without_partitions_has_nothing_wrong_but_its_owner(spark, tmp_path):
    (tmp_path / "log" / "remote-log-index-cache").mkdir(parents=True)
    report = verify(spark, [tmp_path / "log"], OPTIONS)
    assert [count.code for count in report.counts] == ["META_PROPERTIES_MISSING"]
    assert report.results.num_rows == 0
    assert report.exit_code == 0


@pytest.mark.thorough
@pytest.mark.spark
def test_the_doctor_says_the_same_on_both_engines(spark, tmp_path):
    path = Golden("broker-dir-unclean").unpack(tmp_path / "broker")
    now_ms = Golden("broker-dir-unclean").case["clock_ms"]
    options = replace(OPTIONS, now_ms=now_ms)
    found = {
        place: diagnose(place, [path], options, VerifyRequest(), broker_threads=2)
        for place in (spark, Local(2))
    }
    on_spark, here = found.values()
    assert on_spark.verdict.advice is Advice.START_BROKER
    timed = {"engine": "", "pace": None, "forecasts": (), "start": None, "verdict": None}
    assert replace(on_spark, **timed) == replace(here, **timed)
    # Spark takes longer to begin, which is said, and changes nothing else.
    assert here.start.our_seconds < on_spark.start.our_seconds
    assert replace(on_spark.start, our_seconds=0) == replace(here.start, our_seconds=0)
    assert replace(on_spark.verdict, reasons=()) == replace(here.verdict, reasons=())
    assert (on_spark.engine, here.engine) == ("spark", "local")
    untimed = [[{**row, "duration_ms": 0} for row in each.forecasts] for each in (on_spark, here)]
    assert untimed[0] == untimed[1]


@pytest.mark.thorough
def test_the_commands_of_the_doctor_are_those_of_all_findings_however_few_are_shown(tmp_path):
    root = damaged(tmp_path / "log")
    few, many = (
        diagnose(Local(1), [root.path], OPTIONS, VerifyRequest(shown=n), broker_threads=2)
        for n in (0, 1000)
    )
    assert few.verdict.commands
    assert (few.verdict, few.findings) == (many.verdict, many.findings)


def test_sound_logs_cost_the_doctor_one_decoding_of_metadata_and_no_question_a_file(
    tmp_path, monkeypatch
):
    root = write_linked_root(
        tmp_path / "log", 4, segments=2, now_ms=OPTIONS.now_ms, kinds=NOTHING_DUE
    )
    decoded: Counter[bytes] = Counter()
    asked: list[str] = []
    access = os.access

    def count(value: bytes) -> FieldReader:
        decoded[value] += 1
        return FieldReader(value)

    def ask(path: str, *arguments: int, **options: bool) -> bool:
        asked.append(path)
        return access(path, *arguments, **options)

    monkeypatch.setattr(metadata_image, "FieldReader", count)
    monkeypatch.setattr(os, "access", ask)
    options = replace(OPTIONS, role=Role.BROKER)
    found = diagnose(Local(1), [root], options, VerifyRequest(), broker_threads=2)
    assert len(found.forecasts) == 4
    assert set(decoded.values()) == {1}
    folders = [str(path) for path in root.iterdir() if path.is_dir()]
    metadata = root / CLUSTER_METADATA_DIRECTORY
    assert sorted(asked) == sorted([*folders, *map(str, metadata.iterdir())])
