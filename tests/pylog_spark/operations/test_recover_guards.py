"""What recovery may not do without being asked, what it sets aside, and when it marks."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.recover.waves import RecoveryStages
from pylog_spark.options import Tuning
from pylog_spark.outcomes import Reason
from pylog_spark.run.run import RunBudget
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    log_file,
)
from storage_core.log.segment_scan import scan_segment
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.pylog_spark.broker_roots import read_points, state_of
from tests.pylog_spark.crashed_roots import (
    MARKER_OF_OURS,
    NOW_MS,
    crashed_directory,
    forget_high_watermarks,
    killed_broker,
    logs_of,
    tear,
)

pytestmark = pytest.mark.spark

TORN, WHOLE = "clean-group-all-s211", "clean-epochs-mixed-s151"
OTHER = "clean-hw-none-s161"
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1)


def row_of(report, topic=TORN) -> dict:
    return next(row for row in report.results.to_pylist() if row["topic"] == topic)


@pytest.fixture
def root(tmp_path):
    """Two logs, one of them torn in its last segment; nothing says what was acknowledged."""
    made = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(made.path)
    tear(made.path / f"{TORN}-0")
    return made


def corrupt(log, position: int) -> None:
    flip(log, position)


def assert_refused(report, root, before, reason: str) -> None:
    """The torn log is as it was and listed; the other one was recovered; exit status 3."""
    row = row_of(report)
    assert (row["status"], row["reason"]) == ("skipped", reason)
    assert "override: --" in row["error"]
    assert report.exit_code == 3
    assert row_of(report, WHOLE)["status"] == "done"
    assert state_of(root.path / f"{TORN}-0") == before
    assert list(read_points(root.path, RECOVERY_POINT_FILE)) == [TopicPartition(WHOLE, 0)]
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    [note] = [note for note in report.notes if "not marked as cleanly shut down" in note]
    assert "1 of its logs were not recovered" in note


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
@pytest.mark.parametrize("is_torn", [False, True], ids=["zeros", "a torn batch and zeros"])
def test_zeros_at_the_end_are_no_bytes_of_records(tmp_path, tuning, is_torn):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(root.path)
    log = max((root.path / f"{TORN}-0").glob("*.log"))
    size, torn = log.stat().st_size, b"torn" * 10 if is_torn else b""
    with log.open("ab") as file:
        file.write(torn)
    os.truncate(log, 1 << 30)
    salvage = tmp_path / "salvage"
    allowed = {"tuning": tuning, "max_truncate_bytes": len(torn)}
    options = root.with_options(**allowed, salvage=str(salvage))
    report = recover(Local(), [root.path], options)
    assert row_of(report)["status"] == "done"
    assert log.stat().st_size == size
    assert report.cuts.num_rows == is_torn
    kept = list(salvage.rglob("*.raw")) if salvage.exists() else []
    assert len(kept) == is_torn
    for path in kept:
        assert path.stat().st_size == (1 << 30) - size
        assert path.stat().st_blocks < 100
        with path.open("rb") as file:
            assert file.read(len(torn) + 1) == torn + b"\0"


@pytest.mark.thorough
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_a_log_that_would_lose_more_than_is_allowed_is_left_alone_and_listed(spark, root, tuning):
    before = state_of(root.path / f"{TORN}-0")
    options = root.with_options(tuning=tuning, max_truncate_bytes=10)
    said = recover(spark, [root.path], root.with_options(max_truncate_bytes=10, dry_run=True))
    assert (row_of(said)["status"], row_of(said)["reason"]) == ("skipped", "CUTS_TOO_MUCH")
    assert said.exit_code == 3
    report = recover(spark, [root.path], options)
    assert_refused(report, root, before, "CUTS_TOO_MUCH")
    [cut] = report.cuts.to_pylist()
    assert cut["status"] == "skipped"
    assert f"--max-truncate-bytes {cut['size_bytes']})" in row_of(report)["error"]
    enough = root.with_options(tuning=tuning, max_truncate_bytes=cut["size_bytes"])
    assert row_of(recover(spark, [root.path], enough))["status"] == "done"
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS


@pytest.mark.thorough
def test_a_cut_below_the_checkpointed_high_watermark_waits_for_a_word(spark, tmp_path):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    tear(root.path / f"{TORN}-0")
    before = state_of(root.path / f"{TORN}-0")
    report = recover(spark, [root.path], root.options)
    assert_refused(report, root, before, "CUTS_BELOW_HIGH_WATERMARK")
    assert sum("start the brokers" in note for note in report.notes) == 1
    [low] = [note for note in report.notes if "1 log would end below the checkpointed" in note]
    assert f"high watermark; nothing was done to them: {TORN}-0" in low
    report = recover(spark, [root.path], root.with_options(allow_truncate=True))
    assert (report.exit_code, row_of(report)["status"]) == (0, "done")
    [low] = [note for note in report.notes if "1 log ended below the checkpointed" in note]
    assert f"high watermark, which was lowered to the end: {TORN}-0" in low
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    end = read_points(root.path, RECOVERY_POINT_FILE)[TopicPartition(TORN, 0)]
    marks = read_points(root.path, "replication-offset-checkpoint")
    assert (
        marks[TopicPartition(TORN, 0)] == end < root.facts.high_watermarks[TopicPartition(TORN, 0)]
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("allowed", "status"), [(False, 1), (True, 0)], ids=["unsaid", "allowed"])
def test_a_log_that_ends_low_by_itself_is_recovered_and_the_start_order_advised(
    spark, tmp_path, allowed, status
):
    """Its tail is missing, which is a finding unless somebody said that it may be."""
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    *_, last = [log for log in logs_of(root.path / f"{TORN}-0") if log.stat().st_size]
    for name in [last.name, *(log.name for log in logs_of(root.path / f"{TORN}-0"))]:
        if name >= last.name:
            (root.path / f"{TORN}-0" / name).unlink(missing_ok=True)
    report = recover(spark, [root.path], root.with_options(allow_truncate=allowed))
    assert (report.exit_code, row_of(report)["status"]) == (status, "done")
    assert report.cuts.num_rows == 0
    [low] = [note for note in report.notes if "lowered to the end" in note]
    assert f"{TORN}-0 at {int(last.stem)} instead of" in low
    assert (root.path / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
def test_readable_records_wait_for_a_word_where_no_high_watermark_is_known(spark, root, tmp_path):
    directory = root.path / f"{TORN}-0"
    corrupt(logs_of(directory)[1], 40)
    before = state_of(directory)
    said = recover(spark, [root.path], root.with_options(dry_run=True))
    report = recover(spark, [root.path], root.options)
    assert_refused(report, root, before, "CUTS_READABLE_RECORDS")
    assert (said.exit_code, row_of(said)["error"]) == (3, row_of(report)["error"])
    records = sum(cut["records"] for cut in report.cuts.to_pylist())
    assert row_of(report)["error"].startswith(f"{records} records that can still be read would be")
    salvage = tmp_path / "salvage"
    options = root.with_options(allow_truncate=True, salvage=str(salvage))
    said = recover(spark, [root.path], replace(options, dry_run=True))
    report = recover(spark, [root.path], options)
    assert (report.exit_code, row_of(report)["status"]) == (0, "done")
    of_records = f"{records} records that can be read"
    where = f"{TORN}-0; {salvage} keeps them; what gives them back,"
    replay = (
        f"before you start the broker: pylog salvage replay {salvage} {root.path} --role broker"
    )
    assert f"{of_records} were cut: {where} {replay}" in report.notes
    assert f"{of_records} would be cut: {where} after the run, {replay}" in said.notes


@pytest.mark.thorough
@pytest.mark.item("REC-15", "REC-16")
def test_a_log_of_which_nothing_would_be_left_waits_for_a_word(spark, root):
    log = logs_of(root.path / f"{TORN}-0")[0]
    corrupt(log, 40)
    before = state_of(root.path / f"{TORN}-0")
    report = recover(spark, [root.path], root.options)
    assert_refused(report, root, before, "CUTS_WHOLE_LOG")
    report = recover(spark, [root.path], root.with_options(allow_truncate=True))
    assert (report.exit_code, row_of(report)["bytes_after"]) == (0, 0)


@pytest.mark.thorough
@pytest.mark.item("REC-19", "FLT-06")
def test_a_log_that_ends_below_its_log_start_waits_for_a_word(spark, root):
    starts = {TopicPartition(TORN, 0): 5_000}
    (root.path / LOG_START_FILE).write_bytes(encode_offset_checkpoint(starts))
    before = state_of(root.path / f"{TORN}-0")
    report = recover(spark, [root.path], root.options)
    assert_refused(report, root, before, "CUTS_WHOLE_LOG")
    report = recover(spark, [root.path], root.with_options(allow_truncate=True))
    assert (report.exit_code, row_of(report)["status"]) == (0, "done")
    assert [log.name for log in logs_of(root.path / f"{TORN}-0")] == [log_file(5_000)]


@pytest.mark.thorough
def test_a_copy_is_reported_on_and_not_touched(spark, root):
    before = state_of(root.path.parent)
    said = recover(spark, [root.path], root.with_options(dry_run=True))
    for changes in ({"dry_run": True}, {}):
        report = recover(spark, [root.path], root.with_options(role=Role.MIRROR, **changes))
        assert report.dry_run
        assert report.cuts.equals(said.cuts)
        assert report.cuts.num_rows == 1
        assert state_of(root.path.parent) == before
    report = recover(spark, [root.path], root.with_options(role=Role.MIRROR, allow_truncate=True))
    assert report.dry_run
    assert "a mirror root is only reported on" in report.notes[0]
    assert state_of(root.path.parent) == before


def test_a_role_that_was_only_guessed_is_enough_to_look(spark, root):
    with pytest.raises(GuardRefusedError, match="ROLE_NOT_SAID"):
        recover(spark, [root.path], root.with_options(role=None))
    report = recover(spark, [root.path], root.with_options(role=None, dry_run=True))
    assert report.cuts.num_rows == 1


@pytest.mark.thorough
def test_a_mirror_is_cut_where_that_is_allowed_and_salvaged_but_never_marked(spark, root, tmp_path):
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    options = root.with_options(
        role=Role.MIRROR, allow_truncate=True, salvage=str(tmp_path / "salvage")
    )
    report = recover(spark, [root.path], options)
    assert (report.exit_code, report.dry_run, report.summary.done) == (0, False, 2)
    assert root.trees() == twin.trees()
    assert report.cuts["salvaged_to"].to_pylist() != [None]
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
@pytest.mark.item("FLT-02")
@pytest.mark.parametrize("tuning", [Tuning(), SPREAD], ids=["whole logs", "segments apart"])
def test_what_is_cut_is_set_aside_first_as_it_was_and_as_segments_that_open(
    spark, tmp_path, tuning
):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(root.path)
    directory = root.path / f"{TORN}-0"
    # In the middle of the second segment: it is cut there, and all that follow go.
    corrupt(logs_of(directory)[1], logs_of(directory)[1].stat().st_size // 2)
    before = read_tree(directory)
    options = root.with_options(
        tuning=tuning, allow_truncate=True, salvage=str(tmp_path / "salvage")
    )
    report = recover(spark, [root.path], options)
    cuts = report.cuts.to_pylist()
    assert [cut["is_whole_segment"] for cut in cuts] == [False] + [True] * (len(cuts) - 1)
    [place] = {cut["salvaged_to"] for cut in cuts}
    store = LocalStore(tmp_path / "salvage" / report.run_id / directory.relative_to("/"))
    assert str(store.directory) == place

    for cut in cuts:
        raw = store.directory / f"cut-{cut['file'][:-4]}-{cut['position']}.raw"
        assert raw.read_bytes() == before[cut["file"]][cut["position"] :]
    log = plan_recovery(
        store,
        config=LogConfig.from_topic_overrides(root.facts.configs[TORN]),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
    )
    assert not log.repairs.cuts
    assert log.log_end_offset == root.facts.high_watermarks[TopicPartition(TORN, 0)]
    assert records_in(store) == sum(cut["records"] for cut in cuts) > 0
    # The run's cuts and what it kept are all that there was.
    kept = read_points(root.path, RECOVERY_POINT_FILE)[TopicPartition(TORN, 0)]
    assert kept == cuts[0]["first_offset"]


def records_in(store: LocalStore) -> int:
    total = 0
    for log in logs_of(store.directory):
        with closing(store.open_file(log.name)) as reader:
            scan = scan_segment(
                reader, int(log.stem), index_interval_bytes=4096, max_index_bytes=1 << 20
            )
        total += scan.records
    return total


@pytest.mark.thorough
def test_a_later_run_leaves_what_an_earlier_one_set_aside(spark, root, tmp_path):
    options = root.with_options(salvage=str(tmp_path / "salvage"))
    recover(spark, [root.path], options)
    first = {p: p.read_bytes() for p in (tmp_path / "salvage").rglob("*") if p.is_file()}
    assert first
    (root.path / CLEAN_SHUTDOWN_FILE).unlink()
    tear(root.path / f"{TORN}-0")
    recover(spark, [root.path], options)
    after = {p: p.read_bytes() for p in (tmp_path / "salvage").rglob("*") if p.is_file()}
    assert first.items() < after.items()


@pytest.mark.thorough
@pytest.mark.item("DIR-03")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mark_clean": False}, None),
        ({"include": ("clean-*",)}, "--topics or --exclude left logs out"),
        ({"exclude": ("other",)}, "--topics or --exclude left logs out"),
        (
            {"broker_settings": {"log.dirs": "/a/b, /nowhere/else"}},
            "the broker's log directory /nowhere/else was not given",
        ),
    ],
    ids=["no-mark-clean", "topics", "exclude", "server.properties"],
)
def test_a_directory_is_not_marked_where_the_claim_could_be_false(spark, root, changes, reason):
    if "broker_settings" in changes:
        others = changes["broker_settings"]["log.dirs"]
        changes = {"broker_settings": {"log.dirs": f"{root.path}, {others}"}}
    report = recover(spark, [root.path], root.with_options(**changes))
    assert (report.exit_code, report.summary.done) == (0, 2)
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert [reason in note for note in report.notes] == ([True] if reason else [])


@pytest.mark.thorough
@pytest.mark.item("DIR-03")
def test_a_broker_whose_other_directory_was_not_given_is_not_marked(spark, tmp_path):
    root = killed_broker(tmp_path)
    forget_high_watermarks(root.path)
    properties = root.path / "meta.properties"
    lines = properties.read_text().splitlines()
    own = next(line.partition("=")[2] for line in lines if line.startswith("directory.id"))
    # The cluster's metadata registers a directory whose id nobody of those given has.
    other = ["directory.id=qWJtEzNdQ0iZ2gXjWmBv3A" if own in line else line for line in lines]
    properties.write_text("\n".join(other) + "\n")
    report = recover(spark, [root.path], root.options)
    assert report.exit_code == 0
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert any(f"directories of the broker were not given: {own}" in n for n in report.notes)


HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
    "print('held', flush=True); sys.stdin.read()"
)


@contextmanager
def held_by_another_process(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
    finally:
        holder.communicate()


@pytest.mark.thorough
@pytest.mark.item("DIR-02", "FLT-10")
def test_a_directory_in_use_is_refused_and_its_holder_named_but_can_be_looked_at(spark, root):
    with held_by_another_process(root.path) as pid:
        before = read_tree(root.path)
        with pytest.raises(GuardRefusedError, match=rf"LOG_DIRECTORY_IN_USE.*process {pid}:"):
            recover(spark, [root.path], root.options)
        assert read_tree(root.path) == before
        assert recover(spark, [root.path], root.with_options(dry_run=True)).cuts.num_rows == 1


@pytest.mark.thorough
@pytest.mark.item("DIR-03", "REC-30")
def test_what_the_time_of_a_run_does_not_reach_is_left_to_the_next_and_not_marked(
    spark, tmp_path, monkeypatch
):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(root.path)
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    answers = iter([None])
    spent = (Reason.BUDGET_SPENT, "--max-duration 90 ms: 91 ms had passed before it")
    monkeypatch.setattr(RunBudget, "refusal", lambda _: next(answers, spent))
    options = root.with_options(tuning=Tuning(wave_max_bytes=1))
    report = recover(spark, [root.path], options)
    rows = sorted((row["status"], row["reason"]) for row in report.results.to_pylist())
    assert rows == [("done", None), ("skipped", "BUDGET_SPENT")]
    assert any("1 of its logs were not recovered" in note for note in report.notes)
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    [done] = [row["topic"] for row in report.results.to_pylist() if row["status"] == "done"]
    assert [point.topic for point in read_points(root.path, RECOVERY_POINT_FILE)] == [done]
    monkeypatch.undo()
    assert recover(spark, [root.path], options).exit_code == 0
    assert (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert root.trees() == twin.trees()


@pytest.mark.thorough
@pytest.mark.item("DIR-03", "REC-30")
def test_a_run_that_ends_between_waves_keeps_what_it_did_and_can_be_made_again(
    spark, tmp_path, monkeypatch
):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(root.path)
    tear(root.path / f"{TORN}-0")
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    run, waves = RecoveryStages.work, []

    def interrupted(self, due, *arguments, **named):
        waves.append(due)
        if len(waves) > 1:
            raise KeyboardInterrupt
        return run(self, due, *arguments, **named)

    monkeypatch.setattr(RecoveryStages, "work", interrupted)
    options = root.with_options(tuning=Tuning(wave_max_bytes=1))
    with pytest.raises(KeyboardInterrupt):
        recover(spark, [root.path], options)
    first = waves[0][0].ref.partition
    assert list(read_points(root.path, RECOVERY_POINT_FILE)) == [first]
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    assert not (root.path / ".lock").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "twin"]
    monkeypatch.undo()
    assert recover(spark, [root.path], root.options).exit_code == 0
    assert root.trees() == twin.trees()
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS


@pytest.mark.thorough
@pytest.mark.item("DIR-09")
def test_directories_of_one_broker_are_one_run_and_a_partition_in_two_of_them_fails(
    spark, tmp_path
):
    first = crashed_directory(tmp_path / "a", [TORN])
    second = crashed_directory(tmp_path / "b", [WHOLE])
    options = first.with_options(
        topic_configs={**first.options.topic_configs, **second.options.topic_configs}
    )
    both = [first.path, second.path]
    report = recover(spark, both, options)
    assert (report.exit_code, report.summary.done) == (0, 2)
    assert all((path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS for path in both)
    for path in both:
        (path / CLEAN_SHUTDOWN_FILE).unlink()
    shutil.copytree(first.path / f"{TORN}-0", second.path / f"{TORN}-0")
    before = [state_of(path / f"{TORN}-0") for path in both]
    report = recover(spark, both, options)
    rows = [row for row in report.results.to_pylist() if row["topic"] == TORN]
    assert {(row["status"], row["reason"]) for row in rows} == {("failed", "DUPLICATE_PARTITION")}
    assert (report.exit_code, row_of(report, WHOLE)["status"]) == (4, "done")
    assert [state_of(path / f"{TORN}-0") for path in both] == before
    assert not any((path / CLEAN_SHUTDOWN_FILE).exists() for path in both)


@pytest.mark.thorough
@pytest.mark.item("DIR-12", "FLT-09")
@pytest.mark.parametrize("had_marker", [False, True], ids=["crashed", "closed"])
def test_a_commit_that_the_disk_stops_half_way_is_a_failed_row_and_can_be_made_again(
    spark, root, tmp_path, had_marker
):
    directory = root.path / f"{TORN}-0"
    for index in directory.glob("*.index"):
        index.unlink()
    if had_marker:
        (root.path / CLEAN_SHUTDOWN_FILE).write_bytes(b'{"version":0,"brokerEpoch":11}')
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    # No file can be written under this name, because a directory has its temporary one.
    obstacle = logs_of(directory)[2].with_suffix(".index.tmp")
    obstacle.mkdir()
    report = recover(spark, [root.path], root.options)
    row = row_of(report)
    assert (report.exit_code, row["status"], row["error_class"]) == (4, "failed", "StorageError")
    assert obstacle.name.removesuffix(".tmp") in row["error"]
    # Half done: nobody may claim that this directory was closed.
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()
    obstacle.rmdir()
    report = recover(spark, [root.path], root.options)
    assert (report.exit_code, row_of(report)["status"]) == (0, "done")
    assert root.trees()[directory.name] == twin.trees()[directory.name]
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS


@pytest.mark.thorough
def test_an_inventory_takes_the_place_of_listing_a_mirror_and_of_nothing_else(spark, tmp_path):
    root = crashed_directory(tmp_path / "log", [TORN, WHOLE, OTHER])
    listed = [TORN, WHOLE]
    inventory = tmp_path / "inventory.jsonl"
    rows = [
        {"key": str(path), "size": path.stat().st_size, "mtime": path.stat().st_mtime_ns // 10**6}
        for name in listed
        for path in sorted((root.path / f"{name}-0").iterdir())
    ]
    inventory.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = root.with_options(role=Role.MIRROR, file_list=str(inventory))
    report = recover(spark, [root.path], options)
    assert report.dry_run
    found = {row["topic"]: row["segments_before"] for row in report.results.to_pylist()}
    assert found == {name: len(list((root.path / f"{name}-0").glob("*.log"))) for name in listed}
    with pytest.raises(ConfigError, match="none of the roots is one"):
        recover(spark, [root.path], replace(options, role=Role.BROKER))
