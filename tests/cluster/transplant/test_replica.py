"""A replica has the source's bytes, the target's epoch and id, and nothing that is open."""

import itertools
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints, read_checkpoints
from storage_core.cluster.transplant import replica
from storage_core.cluster.transplant.replica import build_replicas, scratch_folder
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    ChangedWhileReadError,
    CorruptRecordError,
    GuardRefusedError,
    StorageError,
)
from storage_core.filenames import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, log_file
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.store.local import LocalStore
from tests.cluster.transplant.clusters import LEADER_EPOCH, Target, coordinators_of
from tests.kit.builders import BatchSpec, RecordSpec, in_a_row, some_batches
from tests.kit.compare import read_tree
from tests.kit.decode import decode_segment
from tests.kit.directories import SegmentSpec
from tests.kit.source_disk import (
    BATCHES,
    CLOSED_PRODUCER,
    END,
    LOG_START,
    NOW_MS,
    OPEN,
    OPEN_PRODUCER,
    ORDERS,
    SEGMENTS,
    write_source,
    write_states,
)
from tests.storage_core.catalog import metadata_bytes as md


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    write_source(root)
    return root


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(folder=tmp_path / "target")


def replicas(target: Target) -> list[Path]:
    """Return all folders on the target's disks."""
    return [path for disk in target.disks for path in disk.iterdir() if path.is_dir()]


def load(directory: Path, *, is_clean: bool) -> LoadedLog:
    own = read_checkpoints(BrokerRoot(directory.parent)).of(ORDERS)
    loader = LogLoader(
        LocalStore(directory),
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        log_start_checkpoint=own.log_start_offset or 0,
        recovery_point=own.recovery_point or 0,
        clean_shutdown=is_clean,
    )
    return loader.load().close()


def stamped(content: bytes, positions: Iterable[int]) -> bytes:
    data = np.frombuffer(content, np.uint8).copy()
    for at in positions:
        data[at + LEADER_EPOCH_AT : at + LEADER_EPOCH_AT + 4] = list(LEADER_EPOCH.to_bytes(4))
    return data.tobytes()


def test_every_replica_has_the_bytes_of_the_source_with_the_targets_epoch(source, target: Target):
    (plan,) = target.plan(source)
    assert plan.homes == tuple(target.disks)
    plan.write()
    for disk in target.disks:
        for segment in SEGMENTS:
            name = log_file(segment.base_offset)
            content = (source / "orders-0" / name).read_bytes()
            decoded, _ = decode_segment(content)
            wanted = stamped(content, [batch.position for batch in decoded])
            assert (disk / "orders-0" / name).read_bytes() == wanted
            assert (disk / "orders-0" / name).stat().st_mtime_ns == segment.modified_ms * 10**6
        metadata = (disk / "orders-0" / PARTITION_METADATA_FILE).read_text()
        assert metadata == f"version: 0\ntopic_id: {md.ID_A}"
        epochs = (disk / "orders-0" / LEADER_EPOCH_FILE).read_text()
        assert epochs == f"0\n1\n{LEADER_EPOCH} {LOG_START}\n"
        own = read_checkpoints(BrokerRoot(disk)).of(ORDERS)
        assert own == PartitionCheckpoints(
            log_start_offset=LOG_START, recovery_point=END + 1, high_watermark=END + 1
        )
        assert {path.name for path in disk.iterdir() if path.is_dir()} == {"orders-0"}


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_a_start_finds_a_whole_log_without_open_transactions(source, target, is_clean: bool):
    (plan,) = target.plan(source)
    plan.write()
    for disk in target.disks:
        log = load(disk / "orders-0", is_clean=is_clean)
        assert (log.log_start_offset, log.log_end_offset) == (LOG_START, END + 1)
        assert (log.last_stable_offset, log.producers, log.repairs.cuts) == (END + 1, (), ())
        assert log.active_segment.base_offset == END + 1
        (aborted,) = [each for segment in log.segments for each in segment.aborted]
        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (
            OPEN_PRODUCER,
            BATCHES[-1].base_offset,
            END,
        )
        (marker,), _ = decode_segment((disk / "orders-0" / log_file(END)).read_bytes())
        assert marker.header["producer_epoch"] == OPEN.producer_epoch
        assert marker.records[0].value == struct.pack(">hi", 0, OPEN.coordinator_epoch)


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_a_commit_that_was_decided_is_written(source, target: Target, is_clean: bool):
    write_states(source, {})
    _, plan = target.plan(source, coordinators=coordinators_of(source))
    plan.write()
    for disk in target.disks:
        log = load(disk / "orders-0", is_clean=is_clean)
        assert (log.last_stable_offset, log.log_end_offset) == (END + 1, END + 1)
        assert not any(segment.aborted for segment in log.segments)
        (marker,), _ = decode_segment((disk / "orders-0" / log_file(END)).read_bytes())
        assert marker.header["producer_epoch"] == OPEN.producer_epoch
        assert marker.header["max_timestamp"] == OPEN.last_timestamp


@pytest.mark.thorough
def test_a_repeat_at_another_time_writes_the_same_bytes(source, target: Target, tmp_path: Path):
    """One replica is of this call, the other of the next; a marker of another kind is refused."""
    (plan,) = target.plan(source, keeps_producers=True)
    plan.write()
    there, other = (disk / "orders-0" for disk in target.disks)
    first = read_tree(there)
    shutil.rmtree(other)
    (again,) = target.plan(source, keeps_producers=True, now_ms=NOW_MS + 10_000)
    assert again.homes == (target.disks[1],)
    again.write()
    assert read_tree(other) == read_tree(there) == first
    write_states(source, {})
    _, refusal = target.plan(source, keeps_producers=True, coordinators=coordinators_of(source))
    assert refusal.reason == "TARGET_HAS_RECORDS"


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_producers_that_are_to_go_on_are_remembered(source, target: Target, is_clean: bool):
    (plan,) = target.plan(source, keeps_producers=True)
    plan.write()
    log = load(target.disks[1] / "orders-0", is_clean=is_clean)
    by_id = {each.producer_id: each for each in log.producers}
    assert by_id.keys() == {OPEN_PRODUCER, CLOSED_PRODUCER}
    producer = by_id[OPEN_PRODUCER]
    assert (producer.producer_epoch, producer.last_sequence) == (2, 5)
    assert (producer.current_txn_first_offset, producer.coordinator_epoch) == (-1, 4)


@pytest.mark.thorough
def test_a_log_that_was_not_closed_is_taken_as_its_recovery_leaves_it(tmp_path: Path, target):
    root = tmp_path / "unclean"
    directory = write_source(root, SEGMENTS, is_clean=False)
    last = directory / log_file(SEGMENTS[1].base_offset)
    (directory / log_file(END)).unlink()
    last.write_bytes(last.read_bytes()[:-7])
    (plan,) = target.plan(root)
    plan.write()
    log = load(target.disks[0] / "orders-0", is_clean=True)
    assert log.log_end_offset == BATCHES[-1].base_offset
    assert plan.cut_bytes > 0


@pytest.mark.thorough
def test_an_empty_log_keeps_its_offset(tmp_path: Path, target: Target):
    root = tmp_path / "empty"
    write_source(root, [SegmentSpec(base_offset=40)])
    (plan,) = target.plan(root)
    plan.write()
    log = load(target.disks[0] / "orders-0", is_clean=False)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (40, 40, 0)


@pytest.mark.thorough
def test_an_empty_directory_of_the_target_is_replaced_and_records_are_not(source, target: Target):
    empty = target.disks[0] / "orders-0"
    empty.mkdir()
    (empty / log_file(0)).touch()
    (empty / LEADER_EPOCH_FILE).write_text("0\n0\n")
    (plan,) = target.plan(source)
    log = plan.open()
    (empty / log_file(0)).write_bytes(b"a broker started")
    with pytest.raises(GuardRefusedError, match="has records"):
        plan.write(log)
    assert (empty / log_file(0)).read_bytes() == b"a broker started"
    (empty / log_file(0)).write_bytes(b"")
    plan.write()
    assert load(empty, is_clean=True).log_end_offset == END + 1


@pytest.mark.thorough
def test_what_has_been_written_is_left_alone_until_a_broker_starts_on_it(source, target: Target):
    (plan,) = target.plan(source)
    plan.write()
    (again,) = target.plan(source)
    assert (again.is_done, again.homes, again.reason) == (True, (), None)
    values = [
        *(md.topic("orders", md.ID_A), md.partition(0, md.ID_A, replicas=(1, 2))),
        *[md.partition_change(0, md.ID_A, {1: md.int32(2)})] * 2,
    ]
    later = Target(folder=target.folder / "later", values=values)
    (refusal,) = target.plan(source, metadata=later.metadata)
    assert refusal.reason == "TARGET_HAS_RECORDS"
    (target.disks[0] / "orders-0" / log_file(END + 1)).write_bytes(b"a record")
    (refusal,) = target.plan(source)
    assert refusal.reason == "TARGET_HAS_RECORDS"


@pytest.mark.thorough
def test_other_records_of_equal_size_are_not_taken_for_a_former_calls(tmp_path: Path, target):
    roots = []
    for value in (b"one", b"two"):
        batches = in_a_row([BatchSpec(records=(RecordSpec(value=value),))] * 3)
        roots.append(tmp_path / value.decode())
        write_source(roots[-1], [SegmentSpec(base_offset=0, batches=batches)])
    one, two = roots
    target.plan(one)[0].write()
    assert target.plan(one)[0].is_done
    (refusal,) = target.plan(two)
    assert (refusal.reason, refusal.is_done) == ("TARGET_HAS_RECORDS", False)


def test_records_in_the_midst_of_a_swap_are_not_replaced(source: Path, target: Target):
    there = target.disks[0] / "orders-0"
    there.mkdir()
    (there / f"{log_file(0)}.swap").write_bytes(b"records")
    (refusal,) = target.plan(source)
    assert refusal.reason == "TARGET_HAS_RECORDS"


@pytest.mark.thorough
def test_a_source_that_has_changed_meanwhile_is_not_taken(source: Path, target: Target):
    (plan,) = target.plan(source)
    log = plan.open()
    (source / "orders-0" / log_file(END)).write_bytes(b"a broker has started, and a record came")
    with pytest.raises(ChangedWhileReadError, match=rf"orders-0/{log_file(END)}: changed"):
        plan.write(log)
    assert replicas(target) == []


@pytest.mark.thorough
def test_the_lock_is_asked_right_before_each_replica_gets_its_name(
    source: Path, target: Target, monkeypatch
):
    (plan,) = target.plan(source)
    first, second = (disk / "orders-0" for disk in target.disks)
    seen = set()
    for last in range(1, 40):
        asked = itertools.count(1)

        def validate(_: object, last: int = last, asked: Iterator[int] = asked) -> None:
            if next(asked) == last:
                raise GuardRefusedError("LOCK_LOST", "somebody else has it")

        with monkeypatch.context() as patch, suppress(GuardRefusedError):
            patch.setattr(HeldBrokerRoot, "validate", validate)
            plan.write()
        seen.add((first.is_dir(), second.is_dir()))
        for disk in target.disks:
            shutil.rmtree(disk)
            disk.mkdir()
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.mark.thorough
def test_no_replica_is_there_before_the_checkpoints_of_all(
    source: Path, target: Target, monkeypatch
):
    (plan,) = target.plan(source)
    true_write = LocalStore.write_file

    def write_file(store: LocalStore, name: str, content: bytes, **more: object) -> None:
        if store.location == str(target.disks[1]):
            raise StorageError(f"{store.location}/{name}", "Input/output error")
        true_write(store, name, content, **more)

    monkeypatch.setattr(LocalStore, "write_file", write_file)
    with pytest.raises(StorageError, match="Input/output error"):
        plan.write()
    assert replicas(target) == []


def test_of_two_attempts_on_one_log_one_is_taken(source: Path, target: Target):
    (plan,) = target.plan(source)
    with ExitStack() as stack:
        scratches = [stack.enter_context(scratch_folder(home)) for home in plan.homes]
        for _ in range(2):
            build_replicas(plan.open(), scratches)
        assert [path.name for scratch in scratches for path in scratch.iterdir()] == [
            "orders-0",
            "orders-0",
        ]


@pytest.mark.thorough
def test_damage_that_comes_up_while_it_is_copied_leaves_no_replica(source, target: Target):
    (plan,) = target.plan(source)
    log = source / "orders-0" / log_file(0)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        plan.write()
    assert replicas(target) == []


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["rename", "fsync", "utime"])
def test_a_kill_at_any_moment_leaves_nothing_or_a_whole_log(
    source, target: Target, monkeypatch, call: str
):
    true_call = getattr(os, call)
    before = target.disks[0] / "orders-0"
    before.mkdir()
    (before / log_file(0)).touch()

    def killed_at(number: int) -> Callable[..., object]:
        calls = itertools.count(1)

        def count(*words: object, **names: object) -> object:
            if next(calls) == number:
                raise KeyboardInterrupt
            return true_call(*words, **names)

        return count

    stop = 0
    for stop in range(1, 99):
        (plan,) = target.plan(source)
        if plan.is_done:
            break
        with monkeypatch.context() as patch:
            # A kill removes nothing.
            patch.setattr(replica.shutil, "rmtree", lambda *_, **__: None)
            patch.setattr(replica.os, call, killed_at(stop))
            with suppress(KeyboardInterrupt):
                plan.write()
        for disk in target.disks:
            names = {path.name for path in disk.iterdir() if path.is_dir()}
            others = names - {"orders-0"}
            assert all(name.endswith("-delete") for name in others)
            if "orders-0" in names and any((disk / "orders-0").glob("*.snapshot")):
                log = load(disk / "orders-0", is_clean=False)
                assert (log.log_start_offset, log.log_end_offset) == (LOG_START, END + 1)
    assert stop > 2
    with ExitStack() as stack:
        for disk in target.disks:
            stack.enter_context(scratch_folder(disk))
    assert {p.name for p in target.disks[0].iterdir() if p.is_dir()} == {"orders-0"}
    assert target.plan(source)[0].is_done


@pytest.mark.thorough
def test_a_disk_that_fails_names_the_file(source, target: Target, monkeypatch):
    (plan,) = target.plan(source)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replica.os, "write", fail)
        with pytest.raises(StorageError, match=r"disk1.*\.log: No space left on device"):
            plan.write()
    assert replicas(target) == []
    plan.write()


@pytest.mark.thorough
def test_a_replica_is_the_owners_of_its_log_directory(source, target: Target):
    owner = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for disk in target.disks:
        disk.chmod(0o750)
        os.chown(disk, *owner)
    (plan,) = target.plan(source)
    plan.write()
    folder = target.disks[0] / "orders-0"
    paths = [folder, *folder.iterdir()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {owner}
    assert {path.stat().st_mode & 0o777 for path in paths[1:]} == {0o640}


def test_what_a_kill_leaves_is_the_owners_of_its_log_directory(target: Target):
    """A broker of another user that cannot look into it does not start."""
    owner = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    disk = target.disks[0]
    disk.chmod(0o750)
    os.chown(disk, *owner)
    with scratch_folder(disk) as scratch:
        facts = scratch.stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (*owner, 0o750)


def test_a_log_directory_may_be_named_by_a_link(target: Target):
    link = target.folder / "link"
    link.symlink_to(target.disks[0])
    with scratch_folder(link) as killed:
        (killed / "orders-0").mkdir()
        with scratch_folder(link):
            assert not killed.exists()
    assert replicas(target) == []


@pytest.mark.thorough
def test_the_batches_of_a_log_may_be_larger_than_a_window(tmp_path: Path, target: Target):
    """Positions count from the window, not from the file."""
    root = tmp_path / "large"
    batches = some_batches(count=3000, records=1)
    write_source(root, [SegmentSpec(base_offset=0, batches=batches)])
    (plan,) = target.plan(root)
    with pytest.MonkeyPatch.context() as patch:
        true_scan = replica.scan_windows
        patch.setattr(
            replica, "scan_windows", lambda reader: true_scan(reader, window_bytes=1 << 14)
        )
        plan.write()
    content = (target.disks[0] / "orders-0" / log_file(0)).read_bytes()
    decoded, _ = decode_segment(content)
    assert {each.header["partition_leader_epoch"] for each in decoded} == {LEADER_EPOCH}
