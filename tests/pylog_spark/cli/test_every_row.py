"""A program gets every row of every command; a person is told how many are not shown."""

import csv
import io
import json
from pathlib import Path
from typing import Final

import pytest

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.operations.verify.driver import ORDERED_FINDINGS
from pylog_spark.text_table import SHOWN_ROWS
from storage_core.local_files import folder_names
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.program import lines_of

# More than any bound on rows that a command has.
_FINDINGS: Final = ORDERED_FINDINGS + 50
_ROWS: Final = SHOWN_ROWS + 50
_PARTITIONS: Final = 4
_ENGINE: Final = ("--now-ms", 2 * 10**12, "--engine", "local")
_JOB: Final = ("{}", "--role", "broker", "--dry-run", *_ENGINE)
# By command: its words, and the kind of its rows in JSON.
_COMMANDS: Final = {
    "inspect": (("inspect", "{}"), "partition"),
    "explain": (("explain", "{}", "--now-ms", 2 * 10**12), "explanation"),
    "survey": (("survey", "{}", *_ENGINE), "survey"),
    "verify": (("verify", "{}", *_ENGINE), "finding"),
    "run": (("run", *_JOB), "result"),
}


def _crowd(root: Path, rows: int) -> Path:
    """Make a log directory with very many sub-directories that are no partitions."""
    for number in range(rows):
        (root / f"noise{number:05}").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    assert len(folder_names(root)) == rows
    return root


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than is put in one order."""
    return _crowd(tmp_path_factory.mktemp("crowded") / "log", _FINDINGS)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than a table shows."""
    return _crowd(tmp_path_factory.mktemp("long") / "log", _ROWS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", _COMMANDS)
def test_json_has_every_row(pylog, long: Path, command: str):
    words, kind = _COMMANDS[command]
    result = pylog(*(str(word).format(long) for word in words), "--output", "json")
    rows = lines_of(result)
    assert sum(row["type"] == kind for row in rows) >= _ROWS, result.stderr
    text = json.dumps(rows)
    assert all(f"noise{number:05}" in text for number in (0, _ROWS // 2, _ROWS - 1))


@pytest.mark.thorough
def test_csv_has_every_row(pylog, crowded: Path):
    result = pylog("verify", crowded, *_ENGINE, "--output", "csv")
    assert len(list(csv.reader(io.StringIO(result.stdout)))) >= _FINDINGS + 1


@pytest.mark.thorough
def test_the_doctors_one_object_has_every_finding(pylog, crowded: Path):
    result = pylog("doctor", crowded, *_ENGINE, "--output", "json")
    (told,) = lines_of(result)
    foreign = [each for each in told["findings"] if each["code"] == "DIRECTORY_FOREIGN"]
    assert len({each["file"] for each in foreign}) == _FINDINGS
    assert len(told["findings"]) == sum(each["count"] for each in told["counts"])
    ranks = [("fatal", "error", "warn", "harmless", "info").index(e["severity"]) for e in foreign]
    assert ranks == sorted(ranks)
    few = json.loads(pylog("doctor", crowded, *_ENGINE, "--output", "json", "--show", 3).stdout)
    assert len(few["findings"]) == 3


@pytest.mark.thorough
def test_a_terminal_says_how_many_more_there_are(pylog, long: Path):
    for command in ("verify", "doctor"):
        result = pylog(command, long, "--role", "broker", *_ENGINE, "--show", 7)
        assert f"{_ROWS - 7:,} more; --show N prints more" in " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def littered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions in which there is more than is put in one order: their tasks find it."""
    root = tmp_path_factory.mktemp("littered") / "log"
    batch = BatchSpec(records=(RecordSpec(),))
    for number in range(_FINDINGS):
        directory = root / f"t-{number % _PARTITIONS}"
        if number < _PARTITIONS:
            write_partition(directory, [SegmentSpec(base_offset=0, batches=[batch])])
        (directory / f"noise{number:05}.{'txt' if number % 3 else 'log'}").touch()
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    return root


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("output", ["json", "csv"])
def test_spark_gives_every_row_and_its_driver_never_has_them_all(
    spark, pylog, littered: Path, monkeypatch, output: str
):
    del spark
    collected: list[int] = []
    streamed: list[int] = []
    compute, stream = SparkEngine._compute, SparkEngine.stream

    def counting_compute(*words, **options):
        table = compute(*words, **options)
        collected.append(table.num_rows)
        return table

    def counting_stream(*words):
        for batch in stream(*words):
            streamed.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(SparkEngine, "_compute", counting_compute)
    monkeypatch.setattr(SparkEngine, "stream", counting_stream)
    words = (*("verify", littered), *_ENGINE[:2], "--engine", "spark", "--output", output)
    result = pylog(*words)
    assert result.exit_code == 1, result.stderr
    if output == "json":
        rows = lines_of(result)
        rows = [row for row in rows if row["type"] == "finding"]
    else:
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
    files = {Path(row["file"]).name for row in rows if "noise" in row["file"]}
    assert len(files) == _FINDINGS
    assert [row["severity"] for row in rows] == sorted(
        (row["severity"] for row in rows),
        key=("fatal", "error", "warn", "harmless", "info").index,
    )
    assert sum(streamed) == len(rows)
    assert max(collected) <= ORDERED_FINDINGS < len(rows)
    assert max(streamed) <= 1000
