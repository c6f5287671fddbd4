"""A write from its beginning to its commit: all of it, once, whoever is killed when."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.checkpoint.checkpoints import PartitionCheckpoints, parse_leader_epochs
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LEADER_EPOCH_FILE, TopicPartition
from storage_core.log.unified_log import UnifiedLog
from storage_core.records.new_records import NewRecords
from storage_core.roots.open_root import root_checkpoints
from storage_core.writing import publication
from storage_core.writing.publication import abort_write, commit_write
from storage_core.writing.staging import WriteTransaction, stage_records
from tests.kit.builders import SOME_TIME_MS
from tests.kit.compare import read_tree
from tests.kit.one_partition import load_partition
from tests.reference.hashes import partition_for_key
from tests.storage_core.log.append_logs import batch
from tests.storage_core.writing.writes import (
    SMALL,
    NoLock,
    begin,
    numbers_of,
    records_of,
    request_of,
    stage,
    values_of,
    write,
)

pytestmark = pytest.mark.usefixtures("unlocked")

ONCE = WriteTransaction(app_id="app", version=0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "logs"


def beside(directory: Path) -> list[str]:
    """Return what lies beside a directory."""
    return sorted(path.name for path in directory.parent.iterdir() if path != directory)


def test_records_get_offsets_in_the_order_of_tasks_by_the_partition_of_their_key(directory):
    write(request_of(directory), records_of(range(300)), records_of(range(300, 500)))
    expected: dict[str, list[int]] = {"t-0": [], "t-1": []}
    for number in range(500):
        expected[f"t-{partition_for_key(b'key-%d' % (number % 10), 2)}"].append(number)
    assert values_of(directory) == expected
    assert beside(directory) == []
    for name, numbers in expected.items():
        marks = root_checkpoints(str(directory), strict=True).of(TopicPartition("t", int(name[-1])))
        assert marks.high_watermark == len(numbers)


def test_what_is_written_is_what_the_append_path_writes(directory, tmp_path):
    request = request_of(directory, partitions=1, config={"compression.type": "zstd"})
    write(request, records_of(range(400)), records_of(range(400, 700)))
    config = LogConfig.from_topic_overrides(SMALL | {"compression.type": "zstd"})
    clock = ManualClock(SOME_TIME_MS + 1_000_000)
    with UnifiedLog.open(tmp_path / "t-0", config=config, clock=clock) as log:
        for numbers in (range(400), range(400, 700)):
            log.append_columns(NewRecords.from_arrow(records_of(numbers)))
    assert read_tree(directory / "t-0") == read_tree(tmp_path / "t-0")


def test_a_second_write_goes_on_in_new_segments_and_touches_no_file(directory, tmp_path):
    write(request_of(directory, partitions=1), records_of(range(100)))
    first = read_tree(directory / "t-0")
    write(request_of(directory, partitions=None), records_of(range(100, 150)))
    both = read_tree(directory / "t-0")
    assert first.items() <= both.items()
    assert values_of(directory) == {"t-0": list(range(150))}
    config = LogConfig.from_topic_overrides(SMALL)
    clock = ManualClock(SOME_TIME_MS + 1_000_000)
    with UnifiedLog.open(tmp_path / "t-0", config=config, clock=clock) as log:
        log.append_columns(NewRecords.from_arrow(records_of(range(100))))
    with UnifiedLog.open(tmp_path / "t-0", config=config, clock=clock) as log:
        log.roll()
        log.append_columns(NewRecords.from_arrow(records_of(range(100, 150))))
    assert both == read_tree(tmp_path / "t-0")
    assert len(parse_leader_epochs(both[LEADER_EPOCH_FILE], file="x")) == 1


def test_a_partition_that_was_empty_gets_its_first_records(directory):
    only_first = records_of(range(5), partition=[0] * 5)
    write(request_of(directory, partitions=3), only_first)
    assert sorted(path.name for path in directory.glob("t-*")) == ["t-0", "t-1", "t-2"]
    assert (directory / "t-1" / "00000000000000000000.log").read_bytes() == b""
    write(request_of(directory, partitions=3), records_of(range(5, 9), partition=[1] * 4))
    assert values_of(directory) == {"t-0": [0, 1, 2, 3, 4], "t-1": [5, 6, 7, 8]}
    for name in ("t-0", "t-1", "t-2"):
        log = load_partition(directory / name, config=LogConfig.from_topic_overrides(SMALL))
        assert log.operations == ()


def test_an_overwrite_takes_the_place_of_everything(directory):
    write(request_of(directory), records_of(range(100)), records_of([7], topic=["other"]))
    write(request_of(directory, is_overwrite=True, partitions=None), records_of(range(5)))
    assert numbers_of(directory) == list(range(5))
    assert sorted(path.name for path in directory.glob("*-*[0-9]")) == ["t-0", "t-1"]
    checkpoints = root_checkpoints(str(directory))
    assert checkpoints.of(TopicPartition("other", 0)) == PartitionCheckpoints()
    write(request_of(directory, is_overwrite=True))
    assert sorted(path.name for path in directory.glob("*-*[0-9]")) == []
    assert beside(directory) == []


def test_only_the_attempt_that_the_driver_knows_of_counts(directory):
    run = begin(request_of(directory))
    batch = records_of(range(50))
    # Killed in the middle, run twice, run twice at a time: they all leave files.
    with pytest.raises(ZeroDivisionError):
        stage_records(run, (1 / 0 if n else batch for n in range(2)), task_id=0)
    attempts = [None, None]

    def attempt(number: int) -> None:
        attempts[number] = stage_records(run, [batch], task_id=0)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late = stage_records(run, [batch], task_id=0)
    assert len({late.name, *(each.name for each in attempts)}) == 3
    commit_write(run, [attempts[1]])
    assert numbers_of(directory) == list(range(50))
    assert beside(directory) == []


def test_a_second_commit_changes_nothing(directory):
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(50))])
    commit_write(run, staged)
    before = read_tree(directory.parent)
    commit_write(run, staged)
    abort_write(run)
    assert read_tree(directory.parent) == before


def test_nothing_is_decided_once_the_lock_is_lost(directory, monkeypatch):
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(50))])

    def lost(_: object) -> None:
        raise errors.GuardRefusedError("LOCK_LOST", "its holder is gone")

    with monkeypatch.context() as patched:
        patched.setattr(NoLock, "validate_held", lost)
        with pytest.raises(errors.GuardRefusedError, match="holder is gone"):
            commit_write(run, staged)
    assert not list(directory.glob("t-*"))
    commit_write(run, staged)
    assert numbers_of(directory) == list(range(50))


def test_a_marker_of_a_clean_shutdown_does_not_outlive_a_write(directory):
    write(request_of(directory), records_of(range(5)))
    marker = directory / CLEAN_SHUTDOWN_FILE
    marker.write_text('{"version":0,"brokerEpoch":-1}')
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(5))])
    assert marker.exists()
    commit_write(run, staged)
    assert not marker.exists()


def stage_on(run):
    """Stage records as a task does that nobody has ended yet."""
    with suppress(errors.GuardRefusedError, errors.StorageError):
        while True:
            stage(run, [records_of(range(3))])


def test_an_abort_beside_a_task_that_still_runs_leaves_nothing(directory, hasty_threads):
    """Spark aborts a write when it has told the other tasks to end, not when they have ended."""
    for _ in range(20):
        run = begin(request_of(directory))
        task = threading.Thread(target=stage_on, args=(run,))
        task.start()
        abort_write(run)
        task.join()
        assert beside(directory) == []


def test_an_aborted_write_leaves_nothing(directory):
    write(request_of(directory), records_of(range(50)))
    before = read_tree(directory.parent)
    run = begin(request_of(directory))
    stage(run, [records_of(range(50, 60))])
    abort_write(run)
    abort_write(run)
    assert read_tree(directory.parent) == before
    assert beside(directory) == []


def test_a_later_write_takes_the_place_of_one_that_was_killed_and_of_its_tasks(directory):
    killed = begin(request_of(directory))
    staged = stage(killed, [records_of(range(50))])
    write(request_of(directory), records_of(range(50)))
    for zombie in (
        lambda: commit_write(killed, staged),
        lambda: stage_records(killed, [records_of([1])], task_id=1),
    ):
        with pytest.raises(errors.GuardRefusedError, match="a later write") as caught:
            zombie()
        assert caught.value.code == "WRITE_SUPERSEDED"
    abort_write(killed)
    assert numbers_of(directory) == list(range(50))
    assert beside(directory) == []


def test_a_task_that_is_overtaken_in_its_middle_fails_by_name(directory):
    killed = begin(request_of(directory))

    def batches():
        yield records_of(range(5))
        begin(request_of(directory))
        yield records_of(range(5))

    with pytest.raises(errors.GuardRefusedError) as caught:
        stage_records(killed, batches(), task_id=0)
    assert caught.value.code == "WRITE_SUPERSEDED"


def test_a_transaction_is_written_once_for_each_version(directory):
    def versions(*numbers: int) -> list[bool]:
        return [
            write(
                request_of(directory, transaction=WriteTransaction(app_id="a", version=number)),
                records_of([number]),
            ).is_done
            for number in numbers
        ]

    assert versions(3, 3, 4, 2, 4, 5) == [False, True, False, True, True, False]
    other = WriteTransaction(app_id="b", version=3)
    write(request_of(directory, transaction=other), records_of([99]))
    assert numbers_of(directory) == [3, 4, 5, 99]


def test_a_folder_that_a_killed_write_left_empty_goes(directory):
    """It was killed behind the removal of its own, before that of the one above."""
    request = request_of(directory, transaction=ONCE)
    write(request, records_of(range(5)))
    (directory.parent / "pylog-write-logs").mkdir()
    assert write(request, records_of(range(5))).is_done
    assert beside(directory) == []


def test_two_runs_of_one_transaction_are_one_write(directory):
    """One is overtaken between its look at the directory and its commit: it has no folder."""
    first = begin(request_of(directory, transaction=ONCE))
    staged = stage(first, [records_of(range(5))])
    write(request_of(directory, transaction=ONCE), records_of(range(5)))
    with pytest.raises(errors.GuardRefusedError, match="a later write"):
        commit_write(first, staged)
    assert numbers_of(directory) == list(range(5))


def test_a_log_that_somebody_else_has_written_to_is_left_alone(directory):
    write(request_of(directory, partitions=1), records_of(range(5)))
    with UnifiedLog.open(directory / "t-0", config=LogConfig()) as log:
        log.append_as_leader(batch(leader_epoch=-1), leader_epoch=4)
    run = begin(request_of(directory, partitions=1))
    with pytest.raises(errors.GuardRefusedError, match="other leader epochs") as caught:
        commit_write(run, stage(run, [records_of(range(5))]))
    assert caught.value.code == "LOG_CHANGED"


def test_a_decided_write_does_not_go_on_where_a_log_was_changed(directory, monkeypatch):
    write(request_of(directory, partitions=1), records_of(range(5)))
    run = begin(request_of(directory, partitions=1))
    staged = stage(run, [records_of(range(5, 9))])

    def fail(*_: object) -> None:
        raise errors.StorageError("/disk", "is gone")

    with monkeypatch.context() as patched:
        patched.setattr(publication, "_promote", fail)
        with pytest.raises(errors.StorageError) as caught:
            commit_write(run, staged)
    assert "the next write" in caught.value.__notes__[0]
    abort_write(run)  # which Spark calls then: what was decided stays
    with UnifiedLog.open(directory / "t-0", config=LogConfig()) as log:
        log.roll()
        log.append_as_leader(batch(leader_epoch=-1), leader_epoch=0)
        log.roll()
        log.append_as_leader(batch(leader_epoch=-1), leader_epoch=0)
    with pytest.raises(errors.GuardRefusedError) as refused:
        begin(request_of(directory, partitions=1))
    assert refused.value.code == "LOG_CHANGED"


def test_a_log_that_was_not_closed_is_refused_and_nothing_is_done(directory):
    write(request_of(directory, partitions=1), records_of(range(5)))
    log = directory / "t-0" / "00000000000000000000.log"
    (directory / "t-0" / "00000000000000000000.index").unlink()
    log.write_bytes(log.read_bytes() + b"torn")
    run = begin(request_of(directory, partitions=1))
    before = read_tree(directory)
    with pytest.raises(errors.RecoveryRequiredError):
        commit_write(run, stage(run, [records_of(range(5))]))
    assert read_tree(directory) == before


def test_a_damaged_staged_file_is_found_before_anything_is_done(directory):
    write(request_of(directory), records_of(range(5)))
    before = read_tree(directory)
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(5))])
    path = Path(run.staging) / staged[0].name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Exception, match="CRC"):
        commit_write(run, staged)
    path.write_bytes(content[:-1])
    with pytest.raises(errors.StorageError, match="ends after"):
        commit_write(run, staged)
    assert read_tree(directory) == before


def test_too_little_room_is_refused_before_anything_is_done(directory, monkeypatch):
    run = begin(request_of(directory))
    staged = stage(run, [records_of(range(5))])
    usage = type("Usage", (), {"free": staged[0].size_bytes - 1})
    monkeypatch.setattr(publication.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(errors.GuardRefusedError) as caught:
        commit_write(run, staged)
    assert caught.value.code == "NO_SPACE"


@pytest.mark.parametrize(
    ("config", "columns", "error"),
    [
        ({"max.message.bytes": "100"}, {"value": [b"v" * 200]}, errors.RecordTooLargeError),
        ({"cleanup.policy": "compact"}, {"key": [None]}, errors.RecordValidationError),
    ],
    ids=["too large", "no key in a compacted topic"],
)
def test_what_a_topic_does_not_take_is_refused_by_name(directory, config, columns, error):
    run = begin(request_of(directory, config=config))
    with pytest.raises(error):
        stage(run, [records_of([1], **columns)])


def test_a_partition_that_somebody_made_meanwhile_is_not_replaced(directory, monkeypatch):
    run = begin(request_of(directory, partitions=1))
    staged = stage(run, [records_of(range(5))])

    def fail(*_: object) -> None:
        raise errors.StorageError("/disk", "is gone")

    with monkeypatch.context() as patched:
        patched.setattr(publication, "_move", fail)
        with pytest.raises(errors.StorageError):
            commit_write(run, staged)
    (directory / "t-0").mkdir()
    (directory / "t-0" / "mine").write_text("x")
    with pytest.raises(errors.GuardRefusedError) as refused:
        begin(request_of(directory, partitions=1))
    assert refused.value.code == "LOG_CHANGED"
    (directory / "t-0" / "mine").unlink()
    (directory / "t-0").rmdir()
    begin(request_of(directory, partitions=1))
    assert numbers_of(directory) == list(range(5))


def test_a_record_of_a_commit_is_not_believed(directory):
    write(request_of(directory, partitions=1), records_of(range(5)))
    run = begin(request_of(directory))
    record = {
        "run_id": run.run_id,
        "removed": [],
        "changes": [
            {
                "partition": "t-0",
                "is_new": False,
                "first_offset": 5,
                "end_offset": 6,
                "files": [{"name": "5/../../../x.log", "size_bytes": 1}],
            }
        ],
    }
    for change in (
        {},
        {"removed": ["../t-0"]},
        {"changes": [], "version": 2},
        {"changes": "none"},
    ):
        path = Path(run.staging) / "commit.json"
        path.write_text(json.dumps(record | change))
        with pytest.raises(errors.StorageError, match=r"commit\.json"):
            begin(request_of(directory))
    assert values_of(directory) == {"t-0": list(range(5))}


@pytest.mark.skipif(os.geteuid() != 0, reason="folders are given away by root")
def test_what_another_user_may_have_decided_is_not_done(directory):
    killed = begin(request_of(directory))
    home = Path(killed.staging).parent
    os.chown(home, 12345, -1)
    with pytest.raises(errors.StorageError, match=r"belongs to user 12345 .*expected user 0"):
        begin(request_of(directory))
    os.chown(directory, 12345, -1)
    begin(request_of(directory))
