"""Operations over managed roots: the bytes that a broker's directory gets, under a lease."""

import shutil
from dataclasses import replace

import pytest

from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.options import HighWatermarkSource, JobOptions, RunLimits, Strategy
from pylog_spark.run.guards import check_roots
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.open_root import LogRoot
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS,
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    read_points,
)
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin

pytestmark = pytest.mark.spark

# As in the tests of retention over a broker's directory.
BY_START_AND_SIZE = [
    "retain-empty-s501",
    "retain-logstart-end-s501",
    "retain-logstart-mid-s501",
    "retain-size-exact-s501",
    "retain-size-hw-s501",
    "retain-size-s501",
    "retain-size-zero-s501",
]
BY_AGE = ["retain-time-all-s501", "retain-time-hw-s501", "retain-future-s501", "retain-both-s501"]
SOME_TIME = 1_700_000_000_000
ANYTHING_MAY_GO = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))


def clock_of(name: str) -> int:
    return int(Golden(name).case["clock_ms"])


def steps_of(report) -> list[tuple]:
    """Return what a report says of each partition, by topic."""
    names = ["topic", "status", "reason", "bytes_after", "segments_after"]
    rows = report.results.select(names).to_pylist()
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.fixture(scope="module", params=["first rounds", "later rounds"])
def brokers(request, spark, tmp_path_factory):
    """A broker's directory as it was, the same compacted, and what was said of that.

    Its bytes are those of Kafka's cleaner, whatever the strategy: test_compact.py.
    """
    names, now_ms = {
        "first rounds": (FIRST_ROUNDS, FIRST_ROUNDS_MS),
        "later rounds": (LATER_ROUNDS, LATER_ROUNDS_MS),
    }[request.param]
    before = broker_directory(tmp_path_factory.mktemp("brokers") / "log", names)
    root = before.copy(before.path.with_name("compacted"))
    expected = compact(spark, [root.path], root.options(now_ms))
    assert [row["error"] for row in expected.results.to_pylist() if row["error"]] == []
    assert expected.exit_code == 0
    return before, root, expected, now_ms


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("brokers", "strategy"),
    [*(("first rounds", strategy) for strategy in Strategy), ("later rounds", Strategy.BROADCAST)],
    ids=[*Strategy, "later rounds, compressed, with transactions"],
    indirect=["brokers"],
)
def test_a_managed_root_ends_with_the_bytes_of_a_brokers_directory(
    spark, tmp_path, brokers, strategy
):
    before, root, expected, now_ms = brokers
    names = list(before.configs)
    twin = managed_twin(before, tmp_path / "managed")
    report = compact(spark, [twin.location], twin.options(now_ms), strategy=strategy)

    assert [row["error"] for row in report.results.to_pylist() if row["error"]] == []
    assert report.exit_code == 0
    points = read_points(root.path)
    for name in names:
        assert twin.tree(name) == read_tree(root.path / f"{name}-0"), name
        point = twin.store(name).checkpoints.cleaner_offset
        assert point == points.get(TopicPartition(name, 0)), name
    assert steps_of(report) == steps_of(expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [
        (BY_START_AND_SIZE, SOME_TIME),
        (BY_AGE[:1], clock_of(BY_AGE[0])),
        (BY_AGE[3:], clock_of(BY_AGE[3])),
    ],
    ids=["by start and size", "by age", "by both"],
)
def test_retention_leaves_what_it_leaves_in_a_brokers_directory(spark, tmp_path, names, now_ms):
    root = broker_directory(tmp_path / "log", names)
    twin = managed_twin(root, tmp_path / "managed")
    expected = retain(spark, [root.path], root.options(now_ms, limits=ANYTHING_MAY_GO))
    report = retain(spark, [twin.location], twin.options(now_ms, limits=ANYTHING_MAY_GO))

    for each in (expected, report):
        assert [row["error"] for row in each.results.to_pylist() if row["error"]] == []
    assert (report.exit_code, expected.exit_code) == (0, 0)
    for name in names:
        assert twin.tree(name) == read_tree(root.path / f"{name}-0"), name
        kafkas = Golden(name).case["expected"]
        first = min(offset for offset, _ in kafkas["segments"])
        assert max(twin.store(name).checkpoints.log_start_offset or 0, first) == kafkas["log_start"]
    assert steps_of(report) == steps_of(expected)
    again = retain(spark, [twin.location], twin.options(now_ms, limits=ANYTHING_MAY_GO))
    assert {row["reason"] for row in again.results.to_pylist()} == {"NOTHING_TO_RETAIN"}


def test_a_dry_run_over_a_mirror_says_what_would_be_done_and_a_real_one_is_refused(spark, tmp_path):
    names = ["clean-headers-none-s101", "retain-size-s501"]
    root = broker_directory(tmp_path / "log", names)
    expected = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS, dry_run=True))
    would_go = retain(spark, [root.path], root.options(FIRST_ROUNDS_MS, dry_run=True))
    as_mirror = root.options(FIRST_ROUNDS_MS, role=Role.MIRROR)
    before = read_tree(root.path)
    for operation, wanted in ((compact, expected), (retain, would_go)):
        report = operation(spark, [root.path], replace(as_mirror, dry_run=True))
        assert steps_of(report) == steps_of(wanted)
        assert "planned" in {row["status"] for row in report.results.to_pylist()}
        with pytest.raises(GuardRefusedError, match="ROLE_IS_READ_ONLY"):
            operation(spark, [root.path], as_mirror)
    assert read_tree(root.path) == before


def test_recovery_of_a_managed_root_is_reported_and_cuts_nothing(spark, tmp_path):
    name = "clean-headers-none-s101"
    root = broker_directory(tmp_path / "log", [name, "clean-hw-none-s161"])
    twin = managed_twin(root, tmp_path / "managed")
    store = twin.store(name)
    log = next(file.name for file in store.list_files() if file.name.endswith(".log"))
    data = bytearray(store.read_file(log, limit_bytes=1 << 30))
    data[len(data) // 2] ^= 0xFF
    store.write_file(log, bytes(data))
    store.publish(run_id="damage")
    before = {key.key: key.etag for key in twin.objects.list()}
    report = recover(spark, [twin.location], twin.options(FIRST_ROUNDS_MS))
    assert report.dry_run
    assert "a managed root is only reported on" in report.notes[0]
    assert log in {cut["file"].rpartition("/")[2] for cut in report.cuts.to_pylist()}
    cutting = twin.options(FIRST_ROUNDS_MS, allow_truncate=True, salvage=str(tmp_path / "salvage"))
    with pytest.raises(GuardRefusedError, match="RECOVERY_IS_REPORT_ONLY"):
        recover(spark, [twin.location], cutting)
    assert {key.key: key.etag for key in twin.objects.list()} == before


def test_a_second_run_over_a_managed_root_is_refused_with_the_holders_name(spark, tmp_path):
    root = broker_directory(tmp_path / "log", ["clean-headers-none-s101"])
    twin = managed_twin(root, tmp_path / "managed")
    with (
        HeldManagedRoot(twin.location, run_id="the-first-one"),
        pytest.raises(GuardRefusedError, match=r"LEASE_HELD.*run the-first-one on"),
    ):
        run_nightly(spark, [twin.location], twin.options(FIRST_ROUNDS_MS))
    assert twin.store("clean-headers-none-s101").manifest.generation == 1


def test_a_topic_whose_config_nobody_said_is_left_alone(spark, tmp_path):
    root = broker_directory(tmp_path / "log", ["clean-headers-none-s101"])
    twin = managed_twin(root, tmp_path / "managed")
    options = twin.options(FIRST_ROUNDS_MS, topic_configs={})
    report = compact(spark, [twin.location], options)
    assert {row["reason"] for row in report.results.to_pylist()} == {"CONFIG_UNKNOWN"}
    assert twin.store("clean-headers-none-s101").manifest.generation == 1


def test_a_clock_before_the_last_run_over_a_managed_root_is_refused(tmp_path):
    twin = managed_twin(broker_directory(tmp_path / "log", []), tmp_path / "managed")
    with HeldManagedRoot(twin.location, run_id="before"):
        pass
    root = LogRoot(location=twin.location, role=Role.MANAGED, is_said=True)
    early = JobOptions(now_ms=FIRST_ROUNDS_MS, role=Role.MANAGED)
    with pytest.raises(GuardRefusedError, match="CLOCK_BEFORE_CHECKPOINT"):
        check_roots([root], early)
    check_roots([root], replace(early, now_is_said=True))


def test_a_url_is_never_a_brokers_directory():
    root = LogRoot(location="memory://logs", role=Role.BROKER, is_said=True)
    with pytest.raises(ConfigError, match="no directory of this host"):
        check_roots([root], JobOptions(now_ms=FIRST_ROUNDS_MS, dry_run=True))


@pytest.mark.thorough
def test_a_sync_that_keeps_writing_its_mirror_changes_nothing_in_the_managed_root(spark, tmp_path):
    names = ["clean-headers-none-s101", "clean-hw-none-s161"]
    root = broker_directory(tmp_path / "log", names)
    mirror, managed = tmp_path / "mirror", tmp_path / "managed"
    shutil.copytree(root.path, mirror)
    options = replace(
        root.options(FIRST_ROUNDS_MS, role=None), high_watermark=HighWatermarkSource.LOG_END
    )
    rules = IngestRules(sync_has_stopped=True, settle_ms=0)
    taken = ingest(spark, str(mirror), str(managed), options, rules=rules)
    assert taken.exit_code == 0
    nightly = replace(options, role=Role.MANAGED)
    first = run_nightly(spark, [managed], nightly)
    assert {row["status"] for row in first.results.to_pylist()} >= {"done"}
    twin = ManagedTwin(str(managed), root)
    before = {name: (twin.store(name).manifest, twin.tree(name)) for name in names}

    for path in sorted(mirror.rglob("*.log")):
        path.write_bytes(b"written by the sync meanwhile" * 100)
    for path in sorted(mirror.rglob("*.index")):
        path.unlink()
    second = run_nightly(spark, [managed], nightly)
    assert {row["status"] for row in second.results.to_pylist()} == {"skipped"}
    assert {name: (twin.store(name).manifest, twin.tree(name)) for name in names} == before
