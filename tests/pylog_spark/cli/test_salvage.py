"""``pylog salvage``: what was cut is shown beside its log, and goes back into it."""

import json
import os
from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
)
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from storage_core.log.log_loader import load_log
from storage_core.log.unified_log import UnifiedLog
from storage_core.roots.open_root import root_checkpoints
from storage_core.store.local import LocalStore
from tests.kit.builders import encode_batch
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.legacy import LegacyMessage, LegacySet, encode_any
from tests.kit.program import lines_of
from tests.storage_core.maintenance.recovery.test_plan import SETTINGS
from tests.storage_core.maintenance.verification.log_root import (
    NOW_MS,
    ONLY_BROKER,
    PARTITION,
    LogRoot,
    batch,
    log_root,
)

CLOCK = ("--now-ms", NOW_MS)
# Behind the bad batch, offsets 20 to 24, lie 25 to 39.
FIRST, LAST, KEPT = 25, 39, 15


@pytest.fixture
def root(tmp_path: Path, pylog) -> LogRoot:
    """A log directory whose log was cut at offset 20, and what was cut beside it."""
    made = log_root(tmp_path / "log")
    cut(pylog, made)
    return made


def cut(pylog, root: LogRoot) -> None:
    """Damage the log at offset 20, and let a recovery cut it there."""
    root.change(root.file(20), len(encode_batch(batch(20, leader_epoch=3))) - 1, b"\x55")
    words = ("--role", "broker", "--from-start", "--allow-truncate", "--engine", "local", *CLOCK)
    pylog.done("recover", root.path, *words, "--salvage", salvage_of(root))


def salvage_of(root: LogRoot) -> Path:
    return root.path.with_name("log-salvage")


def show(pylog, root: LogRoot, *words: object) -> dict:
    [row] = pylog.rows("salvage", "show", salvage_of(root), *words)
    return row


def replay(pylog, root: LogRoot, *words: object):
    return pylog(
        "salvage", "replay", salvage_of(root), root.path, "--role", "broker", *CLOCK, *words
    )


def records_of(pylog, place: Path) -> list[dict]:
    return pylog.rows("cat", "t", "--root", place)


def append(root: LogRoot, count: int, *, leader_epoch: int = 3) -> None:
    """Let the log go on, as under a broker that was started too early."""
    with UnifiedLog.open(root.partition) as log:
        for _ in range(count):
            log.append_as_leader(encode_batch(batch(0, 1)), leader_epoch=leader_epoch)


def test_what_was_cut_is_shown_beside_the_log_with_the_reason(pylog, root):
    row = show(pylog, root)
    assert (row["type"], row["topic"], row["partition"]) == ("salvaged", "t", 0)
    assert (row["first_offset"], row["last_offset"], row["records"]) == (FIRST, LAST, KEPT)
    assert (row["doubled_records"], row["free_records"], row["passed_records"]) == (0, KEPT, 0)
    assert (row["cut_from"], row["log_end_offset"]) == (str(root.partition), 20)
    assert [cut["file"] for cut in row["cuts"]] == [root.file(20).name, root.file(30).name]
    assert "checksum" in row["cuts"][0]["why"].lower() or "crc" in row["cuts"][0]["why"].lower()
    said = pylog("salvage", "show", salvage_of(root)).stdout
    assert f"pylog salvage replay {salvage_of(root)} {root.path} --role broker --dry-run" in said


@pytest.mark.thorough
def test_a_dry_run_says_what_the_replay_does_and_writes_nothing(pylog, root):
    before = {path: path.read_bytes() for path in root.path.rglob("*") if path.is_file()}
    said = replay(pylog, root, "--dry-run", "--output", "json")
    assert {path: path.read_bytes() for path in root.path.rglob("*") if path.is_file()} == before
    done = replay(pylog, root, "--output", "json")
    assert (said.exit_code, done.exit_code) == (ExitCode.DONE, ExitCode.DONE), done.output
    planned, ran = json.loads(said.stdout), json.loads(done.stdout)
    assert (planned.pop("status"), ran.pop("status")) == ("planned", "done")
    assert (planned.pop("log_end_offset"), ran.pop("log_end_offset")) == (20, LAST + 1)
    assert planned == ran
    assert (ran["appended_records"], ran["old_log_end_offset"]) == (KEPT, 20)


@pytest.mark.thorough
def test_a_dry_run_says_that_there_is_no_undo_and_what_is_a_way_back(pylog, root):
    said = " ".join(replay(pylog, root, "--dry-run").stdout.split())
    assert "a replay has no undo: for a way back copy the partition directories first" in said


def old(offset: int, magic: int) -> LegacyMessage:
    return LegacyMessage(offset=offset, key=b"k", value=b"v%d" % offset, magic=magic)


def old_set(first: int, end: int, magic: int) -> LegacySet:
    messages = tuple(old(offset, magic) for offset in range(first, end))
    return LegacySet(messages=messages, magic=magic)


@pytest.mark.thorough
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("gone_past", [0, 3], ids=["whole", "the log went on"])
def test_messages_of_old_formats_go_back_but_for_sets_that_the_log_reaches_into(
    pylog, tmp_path, magic, gone_past
):
    """A compressed set has one offset in its header, that of its last message."""
    made = LogRoot(path=tmp_path / "log")
    first = [old(0, magic), old_set(1, 10, magic)]
    damaged = [old(10, magic), old_set(11, 15, magic), old(15, magic), batch(16, 2)]
    segments = [SegmentSpec(base_offset=0, batches=first)]
    segments.append(SegmentSpec(base_offset=10, batches=damaged))
    segments.append(SegmentSpec(base_offset=18, batches=[old_set(18, 22, magic)]))
    write_partition(made.partition, segments)
    (made.path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a\n")
    (made.path / CLEAN_SHUTDOWN_FILE).write_text('{"version":0}')
    before = records_of(pylog, made.path)
    made.change(made.file(10), len(encode_any(damaged[0])) - 1, b"\x55")
    words = ("--role", "broker", "--from-start", "--allow-truncate", "--engine", "local", *CLOCK)
    pylog.done("recover", made.path, *words, "--salvage", salvage_of(made))
    append(made, gone_past, leader_epoch=0)
    ours = records_of(pylog, made.path)[10:]
    row = show(pylog, made)
    # What is free: all that follows the bad message, or what follows the set.
    free = range(11, 22) if not gone_past else range(15, 22)
    assert (row["first_offset"], row["records"]) == (11, 11)
    assert (row["free_records"], row["passed_records"]) == (len(free), 11 - len(free))
    sent = replay(pylog, made, "--as-records", "-f", "%o\n")
    assert list(map(int, sent.stdout.split())) == list(range(11, 22))
    result = replay(pylog, made, "--output", "json")
    assert result.exit_code == (ExitCode.FINDINGS if gone_past else ExitCode.DONE)
    assert json.loads(result.stdout)["appended_records"] == len(free)
    expected = [*before[:10], *ours, *(each for each in before if each["offset"] in free)]
    assert records_of(pylog, made.path) == expected


@pytest.mark.thorough
def test_records_go_back_with_the_offsets_that_they_had_and_the_log_is_closed(pylog, root):
    # What consumers could read but for the bad batch.
    kept = [r for r in records_of(pylog, salvaged_partition(root)) if r["offset"] >= FIRST]
    assert replay(pylog, root).exit_code == ExitCode.DONE
    assert [r for r in records_of(pylog, root.path) if r["offset"] >= 20] == kept
    log = load_log(LocalStore(root.partition), **SETTINGS)
    assert log.log_end_offset == LAST + 1
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    points = root_checkpoints(str(root.path), (RECOVERY_POINT_FILE,))
    assert points.of(PARTITION).recovery_point == LAST + 1
    assert ask(pylog, root, "--deep")["advice"] == "start-broker"
    # What is there is doubled now: a second time nothing goes back.
    assert show(pylog, root)["doubled_records"] == KEPT
    again = replay(pylog, root, "--output", "json")
    row = json.loads(again.stdout)
    assert (again.exit_code, row["status"], row["appended_records"]) == (0, "skipped", 0)
    assert row["doubled_records"] == KEPT


@pytest.mark.thorough
def test_the_doctor_sends_nobody_to_a_start_before_the_way_back(pylog, root):
    """A start would give the offsets of what was cut to new records."""
    dry_run = f"pylog salvage replay {salvage_of(root)} {root.path} --role broker --dry-run"
    answer = ask(pylog, root)
    assert answer["advice"] == "look-before-start"
    assert f"{KEPT} readable records" in answer["headline"]
    assert answer["commands"] == [dry_run]
    assert f"{salvage_of(root)} keeps {KEPT} readable records" in answer["reasons"][0]
    # A log that was not closed is recovered first: nothing goes back into it.
    (root.path / CLEAN_SHUTDOWN_FILE).unlink()
    answer = ask(pylog, root)
    assert answer["commands"] == [
        f"pylog recover {root.path} --role broker --salvage {salvage_of(root)}",
        dry_run,
    ]


@pytest.mark.thorough
def test_who_took_the_offsets_already_may_start(pylog, root):
    append(root, 20)
    assert ask(pylog, root)["advice"] == "start-broker"


@pytest.mark.thorough
def test_the_recovery_names_the_way_back(pylog, tmp_path):
    made = log_root(tmp_path / "log")
    made.change(made.file(20), len(encode_batch(batch(20, leader_epoch=3))) - 1, b"\x55")
    words = ("--role", "broker", "--from-start", "--allow-truncate", "--engine", "local", *CLOCK)
    words += ("--salvage", salvage_of(made), "--wide")
    way = f"before you start the broker: pylog salvage replay {salvage_of(made)} {made.path} "
    planned = " ".join(pylog("recover", made.path, *words, "--dry-run").stdout.split())
    assert f"after the run, {way}" in planned
    done = " ".join(pylog("recover", made.path, *words).stdout.split())
    assert f"what gives them back, {way}" in done


def ask(pylog, root: LogRoot, *words: object) -> dict:
    """Return the doctor's answer."""
    result = pylog(
        "doctor", root.path, *CLOCK, *ONLY_BROKER, "--engine", "local", "--output", "json", *words
    )
    return json.loads(result.stdout)


def salvaged_partition(root: LogRoot) -> Path:
    [path] = salvage_of(root).rglob("t-0")
    return path


@pytest.mark.thorough
def test_what_the_log_has_gone_past_is_left_to_a_producer(pylog, root):
    append(root, 7)
    row = show(pylog, root)
    assert (row["free_records"], row["passed_records"]) == (KEPT - 5, 5)
    result = replay(pylog, root)
    assert result.exit_code == ExitCode.FINDINGS
    assert "5 records left out whose offsets or leader epoch" in result.stdout
    assert [r["offset"] for r in records_of(pylog, root.path)][-10:] == list(range(30, 40))
    sent = replay(pylog, root, "--as-records", "-f", "%o\\n")
    assert (sent.exit_code, sent.stdout.split()) == (0, [str(n) for n in range(25, 30)])
    assert "left out: 10 records that the log has" in sent.stderr


@pytest.mark.thorough
def test_records_of_a_former_epoch_are_left_to_a_producer(pylog, root):
    """Another leader began at the cut: these offsets are its own, the first one at least."""
    append(root, 1, leader_epoch=50)
    before = (root.partition / LEADER_EPOCH_FILE).read_bytes()
    row = show(pylog, root)
    assert (row["free_records"], row["passed_records"]) == (0, KEPT)
    result = replay(pylog, root, "--output", "json")
    row = json.loads(result.stdout)
    assert result.exit_code == ExitCode.FINDINGS, result.output
    assert (row["appended_records"], row["passed_records"], row["log_end_offset"]) == (0, KEPT, 21)
    assert (root.partition / LEADER_EPOCH_FILE).read_bytes() == before
    assert b"50 20" in before
    assert ask(pylog, root)["advice"] == "start-broker"


@pytest.mark.thorough
def test_an_epoch_that_only_the_epoch_file_or_only_a_batch_has_counts(pylog, root):
    append(root, 1, leader_epoch=50)
    epochs = root.partition / LEADER_EPOCH_FILE
    epochs.write_bytes(b"0\n2\n0 0\n3 15\n")
    append(root, 1, leader_epoch=50)
    epochs.write_bytes(b"0\n2\n0 0\n3 15\n")
    assert show(pylog, root)["free_records"] == 0
    root.file(20).write_bytes(b"")
    assert show(pylog, root)["free_records"] == KEPT
    epochs.write_bytes(b"0\n3\n0 0\n3 15\n50 20\n")
    assert show(pylog, root)["free_records"] == 0


def make_again(root: LogRoot) -> None:
    (root.partition / PARTITION_METADATA_FILE).write_text(
        "version: 0\ntopic_id: M0MvcLLmQMWGnCcvBQnZYw"
    )


def move_to_another_cluster(root: LogRoot) -> None:
    properties = root.path / META_PROPERTIES_FILE
    properties.write_text(properties.read_text().replace("cluster.id=", "cluster.id=z"))


def write_other_epochs(root: LogRoot) -> None:
    """Let another replica's log be here, which a later leader has written from offset 7 on."""
    (root.partition / LEADER_EPOCH_FILE).write_bytes(b"0\n2\n0 0\n2 7\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "reason", "found"),
    [
        (
            make_again,
            "INCONSISTENT_TOPIC_ID",
            "partition.metadata: expected topic id 3BBfqQbWRHy_3kC4SIuLMw, found",
        ),
        (
            move_to_another_cluster,
            "INCONSISTENT_CLUSTER_ID",
            "expected cluster id V3CHegy_ZdcmiWckVUA0FQ, found zV3CHegy_ZdcmiWckVUA0FQ",
        ),
        (
            write_other_epochs,
            "INCONSISTENT_EPOCHS",
            "expected leader epoch 0 at offset 7, found 2",
        ),
    ],
)
def test_records_do_not_go_into_another_log(pylog, root, change, reason, found):
    change(root)
    before = {path: path.read_bytes() for path in root.path.rglob("*") if path.is_file()}
    row = show(pylog, root)
    assert (row["free_records"], row["passed_records"]) == (0, KEPT)
    assert found in row["other_log"]
    result = replay(pylog, root, "--output", "json")
    row = json.loads(result.stdout)
    assert (result.exit_code, row["status"], row["reason"]) == (
        ExitCode.REFUSED,
        "skipped",
        reason,
    )
    assert row["appended_records"] == 0
    assert found in row["error"]
    assert {path: path.read_bytes() for path in root.path.rglob("*") if path.is_file()} == before
    assert not any("replay" in each for each in ask(pylog, root)["commands"])


@pytest.mark.thorough
def test_a_folder_of_a_former_version_goes_back_with_a_word(pylog, root):
    """It does not say whose log it is: offsets and epochs are all there is to compare."""
    cuts = salvaged_partition(root) / "cuts.json"
    values = json.loads(cuts.read_text())
    assert values.pop("identity")
    assert values.pop("epoch_starts")
    cuts.write_text(json.dumps(values))
    said = " ".join(replay(pylog, root, "--dry-run").stdout.split())
    assert "does not say of which topic id and cluster id it is" in said
    result = replay(pylog, root)
    assert result.exit_code == ExitCode.DONE
    assert f"{KEPT} records appended" in result.stdout


@pytest.mark.thorough
def test_a_batch_whose_epoch_is_not_believed_does_not_go_back(pylog, tmp_path):
    """A flipped bit outside of the checksum: appended, it would be the log's epoch for good."""
    root = log_root(tmp_path / "log")
    root.change(root.file(30), LEADER_EPOCH_AT, (1_000_000).to_bytes(4))
    cut(pylog, root)
    row = show(pylog, root)
    assert (row["free_records"], row["passed_records"]) == (KEPT - 5, 5)
    assert replay(pylog, root).exit_code == ExitCode.FINDINGS
    assert b"1000000" not in (root.partition / LEADER_EPOCH_FILE).read_bytes()


@pytest.mark.thorough
def test_records_for_a_producer_are_written_as_cat_writes_them(pylog, root):
    sent = replay(pylog, root, "--as-records", "--output", "json")
    rows = lines_of(sent)
    assert rows == records_of(pylog, salvaged_partition(root))
    assert [row["offset"] for row in rows] == list(range(FIRST, LAST + 1))


@pytest.mark.thorough
def test_a_directory_that_is_held_or_was_not_closed_is_refused(pylog, root):
    with LogDirectoryLock(root.path):
        result = replay(pylog, root)
        assert (result.exit_code, "LOG_DIRECTORY_IN_USE" in result.stderr) == (3, True)
    (root.path / CLEAN_SHUTDOWN_FILE).unlink()
    result = replay(pylog, root)
    assert result.exit_code == ExitCode.REFUSED
    assert "UNCLEAN_SHUTDOWN" in result.stderr
    assert "pylog recover" in result.stderr


@pytest.mark.thorough
def test_a_log_that_is_in_no_root_is_a_failed_row(pylog, root):
    root.partition.rename(root.path / "t-7")
    result = replay(pylog, root, "--output", "json")
    row = json.loads(result.stdout)
    assert (result.exit_code, row["status"]) == (ExitCode.PARTLY_FAILED, "failed")
    assert "t-0 is in none of the log directories" in row["error"]


@pytest.mark.thorough
def test_a_log_that_cannot_be_opened_leaves_the_directory_unclean(pylog, root):
    root.file(10, ".index").unlink()
    result = replay(pylog, root, "--output", "json")
    row = json.loads(result.stdout)
    assert (result.exit_code, row["status"]) == (ExitCode.PARTLY_FAILED, "failed")
    assert not (root.path / CLEAN_SHUTDOWN_FILE).exists()


@pytest.mark.thorough
def test_what_is_no_salvage_is_wrong_usage_or_not_there(pylog, root, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "absent"):
        result = pylog("salvage", "show", tmp_path / place)
        assert result.exit_code != ExitCode.DONE
        assert "--salvage of a recovery named" in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", [".", "cuts.json", "*.log"])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.chmod(0o777), id="anybody may write"),
        pytest.param(
            lambda path: os.chown(path, 12345, -1),
            id="another user's",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root"),
        ),
    ],
)
def test_what_another_user_may_have_salvaged_does_not_go_into_a_log(pylog, root, name, spoil):
    (folder,) = {path.parent for path in salvage_of(root).rglob("cuts.json")}
    spoil(folder if name == "." else next(folder.glob(name)))
    before = records_of(pylog, root.path)
    result = replay(pylog, root, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED, result.output
    (row,) = lines_of(result)
    assert "SALVAGE_OF_ANOTHER_USER" in row["error"]
    assert "expected" in row["error"]
    assert records_of(pylog, root.path) == before


@pytest.mark.thorough
def test_what_the_group_of_a_log_may_write_goes_into_it(pylog, root):
    """As a broker with umask 002 has it."""
    (folder,) = {path.parent for path in salvage_of(root).rglob("cuts.json")}
    for path in (root.partition, folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode | 0o020)
    assert replay(pylog, root).exit_code == ExitCode.DONE
