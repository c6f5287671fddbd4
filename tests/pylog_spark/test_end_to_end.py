"""The nightly over the directory of a real broker, by the command of ``make run``.

Apache Kafka judges what it leaves: its loader, its cleaner on a copy of the same directory, and a
broker that starts on it. What a consumer got while the broker ran says which records must be there.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylog_spark.operations.nightly import run_nightly
from pylog_spark.options import JobOptions
from pylog_spark.source import register
from storage_core.catalog.roles import Role
from storage_core.filenames import CLEANER_FILE
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_broker import broker_consumed, broker_origin, unpack_broker
from tests.kit.program import lines_of, run_to_end
from tests.kit.spark_classes import FEW_ROWS
from tests.oracle.broker import Broker
from tests.oracle.broker_clients import consume_topics
from tests.oracle.cleaner import read_cleaner_checkpoint
from tests.oracle.directory_cleaner import clean_log_directory
from tests.oracle.fixtures import kafka_jvm
from tests.oracle.log_directory import LoadedDirectory, consumed_records, load_log_directory
from tests.oracle.records import ReadRecord

__all__ = ["kafka_jvm"]

pytestmark = [pytest.mark.spark, pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

HOUR_MS = 3_600_000
FOREIGN_ID = 4711
FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
RUN_TIMEOUT_S = 280
# A run that finds nothing to do lists the partitions and looks at each; it starts no pass.
FEW_JOBS = 6
QUICK_S = 120
MARKER = ".kafka_cleanshutdown"
METADATA = "__cluster_metadata-0"
EMPTY = "__consumer_offsets-0"
# Without a compressed batch: Kafka's own bytes are expected.
UNCOMPRESSED = ("__consumer_offsets", "__transaction_state", "orders-by-id", "clickstream")
# What a starting broker says of partitions that it repairs instead of only loading them.
REPAIRS = ("Recovering", "Deleting segment", "interrupted swap", "Split segment")
# Warnings of every broker whose cleaner is off and whose controller is this same node.
KNOWN_WARNINGS = ("`log.cleaner.enable` is deprecated", "Performing controller activation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """A run over the broker's directory.

    before: the directory as the broker left it; after: as the run left it; both only to look at.
    errors: what it wrote to standard error.
    """

    before: Path
    after: Path
    now_ms: int
    rows: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any]
    errors: str

    @property
    def topics(self) -> dict[str, dict[str, str]]:
        return {name: topic["config"] for name, topic in broker_origin()["topics"].items()}

    def load(self, directory: Path) -> LoadedDirectory:
        return load_log_directory(directory, now_ms=self.now_ms, topics=self.topics)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    """What ``make run`` does, but for the clock, the form of the answer and settings of Spark's."""
    folder = tmp_path_factory.mktemp("nightly")
    before = unpack_broker(folder / "before")
    give_away(before)
    after = copy_of(before, folder / "broker")
    now_ms = broker_origin()["clock_ms"] + HOUR_MS
    # For a minute's run Java's optimising compiler costs more than it gains.
    quick = FEW_ROWS | {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    config = folder / "spark.yaml"
    config.write_text(yaml.safe_dump({"spark": quick}))
    ended = run_to_end(
        [
            *(sys.executable, "-m", "pylog_spark", "run", after, "--role", "broker"),
            *("--ledger", folder / "ledger", "--now-ms", str(now_ms), "--output", "json"),
            *("--config", config, "--engine", "spark"),
        ],
        cwd=REPOSITORY,
        env=environment(ledger=True),
        timeout=RUN_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = lines_of(ended)
    return Nightly(
        before=before,
        after=after,
        now_ms=now_ms,
        rows={f"{r['topic']}-{r['partition']}": r for r in lines if r["type"] == "result"},
        summary=next(line for line in lines if line["type"] == "run"),
        errors=ended.stderr,
    )


@pytest.fixture(scope="module")
def compacted(nightly: Nightly) -> set[str]:
    return {
        name
        for name in broker_consumed()
        if "compact" in nightly.topics[name.rpartition("-")[0]]["cleanup.policy"]
    }


@pytest.fixture(scope="module")
def retained(nightly: Nightly) -> dict[str, int]:
    """Where logs start of which the oldest segments have expired, by partition."""
    starts = {
        path.parent.name: int(path.stem)
        for path in sorted(nightly.after.glob("*/*.log"), reverse=True)
    }
    deleted = {
        name
        for name in broker_consumed()
        if nightly.topics[name.rpartition("-")[0]]["cleanup.policy"] == "delete"
    }
    return {name: starts[name] for name in deleted}


@dataclass(frozen=True, slots=True)
class Kafkas:
    """What Kafka's own cleaner and deletion make of the same directory; its cleaner points."""

    after: Path
    points: Mapping[tuple[str, int], int]


@pytest.fixture(scope="module")
def kafkas(nightly: Nightly, tmp_path_factory: pytest.TempPathFactory) -> Kafkas:
    theirs = copy_of(nightly.before, tmp_path_factory.mktemp("kafkas") / "broker")
    points = clean_log_directory(theirs, now_ms=nightly.now_ms, topics=nightly.topics)
    return Kafkas(theirs, points)


def test_make_run_is_this_command_over_this_directory():
    # Under "make test" this is a make within a make, which would say so in between.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    shown = run_to_end(
        ["make", "--dry-run", "--no-print-directory", "run"],
        cwd=REPOSITORY,
        env=variables,
        check=True,
    ).stdout.splitlines()
    assert "tests/golden/broker-uncleaned/before.tar.gz" in shown[-2]
    assert shown[-1].endswith(
        ' -m pylog_spark run "$place/broker" --role broker --ledger "$place/ledger" --engine spark'
    )


@pytest.mark.thorough
def test_every_partition_shrinks_and_the_rows_say_by_how_much(nightly, compacted, retained):
    done = {name: row["action"] for name, row in nightly.rows.items() if row["status"] == "done"}
    assert done == dict.fromkeys(compacted, "compact") | dict.fromkeys(retained, "retain")
    assert set(retained) == {"clickstream-0", "clickstream-1"}
    for name in done:
        row = nightly.rows[name]
        assert row["bytes_before"] == log_bytes(nightly.before / name), name
        assert row["bytes_after"] == log_bytes(nightly.after / name), name
        assert row["bytes_after"] < row["bytes_before"], name
        if name in compacted:
            assert row["bytes_after"] < row["bytes_before"] / 2, name
            assert row["records_after"] < row["records_before"] / 2, name
    others = {name: row["reason"] for name, row in nightly.rows.items() if name not in done}
    assert others == {
        METADATA: "INTERNAL_METADATA",
        EMPTY: "NOTHING_TO_CLEAN",
    }
    assert (nightly.summary["done"], nightly.summary["failed"]) == (len(done), 0)
    for name in others:
        assert state_of(nightly.after / name) == state_of(nightly.before / name), name


@pytest.mark.thorough
def test_standard_error_has_nothing_of_the_jvms_nor_of_sparks(nightly):
    assert nightly.errors == ""


@pytest.mark.thorough
@pytest.mark.item("DIR-14", "DIR-03")
def test_kafka_loads_the_result_as_cleanly_shut_down_and_changes_nothing(nightly, kafkas):
    loaded = nightly.load(nightly.after)
    assert loaded.had_clean_shutdown
    assert loaded.errors == {}
    # A log without records whose file has an epoch: Kafka takes the epoch out, run or no run. Of
    # what it deleted from itself it tidies up when it loads the log the next time.
    epochs = f"{EMPTY}/leader-epoch-checkpoint"
    assert {*loaded.changed_files} == {epochs, *nightly.load(kafkas.after).changed_files}
    assert (nightly.after / MARKER).read_bytes() == (nightly.before / MARKER).read_bytes()
    assert not (nightly.after / ".lock").exists()
    assert sorted(p.name for p in nightly.after.parent.iterdir()) == [
        *("before", "broker", "ledger", "spark.yaml")
    ]


@pytest.mark.thorough
@pytest.mark.item("CMP-47")
def test_log_ends_log_starts_epochs_and_the_active_segment_stay(nightly, retained):
    before, after = nightly.load(nightly.before), nightly.load(nightly.after)
    assert set(before.partitions) == set(after.partitions)
    for name, then in before.partitions.items():
        now = after.partitions[name]
        assert now.log_end_offset == then.log_end_offset, name
        assert now.log_start_offset == retained.get(name, then.log_start_offset), name
        assert now.last_stable_offset == then.last_stable_offset, name
        # An epoch that began below the log start begins there now.
        epochs = [(e, max(start, retained.get(name, 0))) for e, start in then.epochs]
        assert list(now.epochs) == epochs, name
        assert now.producers == then.producers, name
        assert now.segments[-1] == then.segments[-1], name
    unchanged = [p.name for p in nightly.before.iterdir() if p.is_file()]
    assert {name: (nightly.after / name).read_bytes() for name in unchanged} == {
        name: (nightly.before / name).read_bytes() for name in unchanged
    }


@pytest.mark.thorough
@pytest.mark.item("CMP-47")
def test_every_record_that_a_consumer_may_count_on_survives(nightly, compacted, retained):
    survived = consumed_records(nightly.after, now_ms=nightly.now_ms)
    consumed = broker_consumed()
    assert sum(map(len, consumed.values())) == broker_origin()["consumed"]
    for name, records in consumed.items():
        kept = {at: record for at, record in records.items() if at >= retained.get(name, 0)}
        assert_survival(name, kept, survived[name], is_compacted=name in compacted)


@pytest.mark.thorough
@pytest.mark.item("CMP-34", "CMP-36", "CMP-39", "RET-13")
def test_kafka_makes_the_same_of_the_same_directory(nightly, compacted, retained, kafkas):
    theirs = kafkas.after
    assert read_cleaner_checkpoint(nightly.after) == kafkas.points
    assert {f"{topic}-{number}" for topic, number in kafkas.points} == compacted
    for name in {*compacted, *retained}:
        is_exact = name.startswith(UNCOMPRESSED)
        exactness = Exactness.BYTES if is_exact else Exactness.RECORDS
        expected, ours = read_tree(theirs / name), read_tree(nightly.after / name)
        assert compare_partitions(expected, ours, exactness) == [], name
        assert log_times(nightly.after / name) == log_times(theirs / name), name


@pytest.mark.thorough
def test_a_second_run_reads_no_data_and_does_nothing_quickly(nightly, spark, tmp_path):
    root = copy_of(nightly.after, tmp_path / "broker")
    blank_closed_segments(root)
    before = state_of(root)
    options = JobOptions(now_ms=nightly.now_ms + HOUR_MS, now_is_said=True, role=Role.BROKER)
    jobs = jobs_of(spark)
    report = run_nightly(spark, [root], options)
    assert jobs_of(spark) - jobs <= FEW_JOBS
    assert report.summary.duration_ms < QUICK_S * 1000
    assert report.exit_code == 0
    rows = report.results.to_pylist()
    assert {row["status"] for row in rows} == {"skipped"}
    assert {row["reason"] for row in rows} == {
        "INTERNAL_METADATA",
        "NOTHING_TO_CLEAN",
        "NOTHING_TO_RETAIN",
    }
    assert state_of(root) == before


@pytest.mark.thorough
def test_the_data_source_reads_what_a_consumer_got(nightly, spark):
    register(spark)
    frame = (
        spark.read.format("kafka-log")
        .option("subscribePattern", "(?!__cluster_metadata).*")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load(str(nightly.before))
    )
    wanted = ["topic", "partition", "offset", "key", "value", "headers"]
    rows = frame.selectExpr(*wanted, "unix_millis(timestamp) AS ms").toArrow().to_pylist()
    got: dict[str, dict[int, tuple[Any, ...]]] = {}
    for row in rows:
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        record = (row["key"], row["value"], row["ms"], headers)
        got.setdefault(f"{row['topic']}-{row['partition']}", {})[row["offset"]] = record
    assert got == broker_consumed()


def test_owner_and_mode_of_every_file_stay(nightly):
    mine = (FOREIGN_ID, FOREIGN_ID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for path in [nightly.after, *nightly.after.rglob("*")]:
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == mine, path
        assert facts.st_mode & 0o7777 == (DIRECTORY_MODE if path.is_dir() else FILE_MODE), path
    assert (nightly.after / CLEANER_FILE).exists()


@pytest.mark.thorough
@pytest.mark.item("DIR-14")
def test_a_real_broker_starts_on_the_result_without_repair_and_serves_it(
    nightly, compacted, retained, tmp_path
):
    origin = broker_origin()
    partitions = {name: topic["partitions"] for name, topic in origin["topics"].items()}
    root = copy_of(nightly.after, tmp_path / "broker")
    with Broker(root, scratch=tmp_path, settings=origin["broker"]) as broker:
        broker.start()
        consumed = consume_topics(broker.bootstrap_servers, partitions)
        broker.stop()
    lines = broker.log_lines()
    assert [line for line in lines if is_bad_news(line)] == []
    skipped = f"Skipping recovery of {sum(partitions.values())} logs from {root}"
    assert [line for line in lines if skipped in line], "every log counts as cleanly shut down"
    for name, records in broker_consumed().items():
        topic, _, number = name.rpartition("-")
        got = consumed[topic, int(number)]
        kept = {at: record for at, record in records.items() if at >= retained.get(name, 0)}
        assert_survival(name, kept, got, is_compacted=name in compacted)
    assert (root / MARKER).exists()


def jobs_of(spark: Any) -> int:
    """Return how many Spark jobs a session has started so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def assert_survival(
    name: str,
    consumed: Mapping[int, tuple[Any, ...]],
    survived: Sequence[ReadRecord],
    *,
    is_compacted: bool,
) -> None:
    """Of a compacted partition the latest record of each key is there, of another one all are."""
    got = {r.offset: (r.key, r.value, r.timestamp, r.headers) for r in survived}
    assert got.items() <= consumed.items(), f"{name}: a consumer gets what nobody committed"
    if not is_compacted:
        assert got == consumed, name
        return
    latest = {record[0]: offset for offset, record in sorted(consumed.items())}
    latest_got = {record[0]: offset for offset, record in sorted(got.items())}
    alive = {key for key, offset in latest.items() if consumed[offset][1] is not None}
    assert alive, f"{name}: nothing to lose"
    assert alive <= latest_got.keys(), f"{name}: a key is lost"
    for key, offset in latest_got.items():
        assert offset == latest[key], f"{name}: {key!r} has an older record than it had"


def is_bad_news(line: str) -> bool:
    """Whether a broker's log line is a warning, an error or a repair of a partition."""
    if " WARN " in line:
        return not any(known in line for known in KNOWN_WARNINGS)
    is_repair = any(word in line for word in REPAIRS) and METADATA not in line
    return is_repair or " ERROR " in line or " FATAL " in line


def give_away(directory: Path) -> None:
    """Set modes, and an owner if that is allowed, that no program would choose by itself."""
    for path in [directory, *directory.rglob("*")]:
        path.chmod(DIRECTORY_MODE if path.is_dir() else FILE_MODE)
    give_to_foreigner(directory)


def give_to_foreigner(directory: Path) -> None:
    if os.geteuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, FOREIGN_ID, FOREIGN_ID)


def copy_of(directory: Path, to: Path) -> Path:
    shutil.copytree(directory, to)
    give_to_foreigner(to)
    return to


def blank_closed_segments(root: Path) -> None:
    """Put zeros for the bytes of every segment but the active ones; sizes and times stay."""
    for partition in (p for p in root.iterdir() if p.is_dir() and p.name != METADATA):
        for log in sorted(partition.glob("*.log"))[:-1]:
            facts = log.stat()
            log.write_bytes(bytes(facts.st_size))
            os.utime(log, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def log_bytes(partition: Path) -> int:
    return sum(path.stat().st_size for path in partition.glob("*.log"))


def log_times(partition: Path) -> dict[str, int]:
    """Return the modification times of the segments, in milliseconds as Kafka keeps them."""
    return {path.name: path.stat().st_mtime_ns // 1_000_000 for path in partition.glob("*.log")}


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return time and content of every file of a tree."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
