"""Files are durable when ``sync`` returns, whoever else syncs at the same time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage_core.store import syncing

THREADS = 8
SECONDS = 20


class Disk:
    """Notes what is synced; its first sync lasts until all others have asked for theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, whole: bool = True) -> None:
        self.whole = whole
        self.alone, self.together = [], []
        self.may_end = threading.Event()
        monkeypatch.setattr(syncing, "way_of", lambda *_: syncing.Way.TOGETHER)
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(syncing, "sync_filesystem", self.sync_filesystem)
        monkeypatch.setattr(syncing, "_unwritten_bytes", lambda: 0)
        gathering = syncing._Gathering()
        monkeypatch.setattr(syncing, "_gathering", lambda *_: gathering)

    def sync(self, descriptor: int) -> None:
        self.alone.append(descriptor)
        assert self.may_end.wait(SECONDS)

    def sync_filesystem(self, descriptor: int) -> bool:
        self.together.append(descriptor)
        return self.whole


@pytest.fixture
def files(tmp_path: Path):
    opened = [(tmp_path / str(number)).open("wb") for number in range(THREADS)]
    yield [file.fileno() for file in opened]
    for file in opened:
        file.close()


def sync_all(disk: Disk, files: list[int]) -> None:
    """The first of them syncs; while it does, the others ask."""
    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(syncing.sync, files[0])
        gathering = syncing._gathering(0, 0)
        wait_until(lambda: disk.alone == files[:1])
        others = [pool.submit(syncing.sync, file) for file in files[1:]]
        wait_until(lambda: len(gathering._next.descriptors) == len(others))
        disk.may_end.set()
        for each in (first, *others):
            each.result(SECONDS)


def wait_until(is_so) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError


def test_what_is_asked_for_during_a_sync_is_one_sync_of_the_filesystem(monkeypatch, files):
    disk = Disk(monkeypatch)
    sync_all(disk, files)
    assert disk.alone == files[:1]
    assert len(disk.together) == 1


def test_each_file_is_synced_where_the_filesystem_refuses(monkeypatch, files):
    disk = Disk(monkeypatch, whole=False)
    sync_all(disk, files)
    assert sorted(disk.alone) == sorted(files)


def test_a_file_whose_bytes_did_not_get_to_the_disk_is_synced_alone(monkeypatch, files):
    disk = Disk(monkeypatch)
    monkeypatch.setattr(syncing, "_is_written", lambda file: file != files[3])
    sync_all(disk, files)
    assert disk.alone == [files[0], files[3]]


def test_each_file_is_synced_where_much_of_others_is_unwritten(monkeypatch, files):
    disk = Disk(monkeypatch)
    monkeypatch.setattr(syncing, "_unwritten_bytes", lambda: 2 << 30)
    sync_all(disk, files)
    assert sorted(disk.alone) == sorted(files)
    assert disk.together == []


def test_each_file_is_synced_where_nobody_says_what_is_unwritten(monkeypatch, files, tmp_path):
    ask = syncing._unwritten_bytes
    disk = Disk(monkeypatch)
    monkeypatch.setattr(syncing, "_unwritten_bytes", ask)
    monkeypatch.setattr(syncing, "_MEMORY_FACTS", tmp_path / "meminfo")
    sync_all(disk, files)
    assert sorted(disk.alone) == sorted(files)
    assert disk.together == []


def test_each_file_is_synced_where_a_sync_of_all_takes_longer_and_all_are_tried_again(
    monkeypatch, files
):
    disk = Disk(monkeypatch)
    disk.may_end.set()
    gathering = syncing._gathering(0, 0)
    gathering._one, gathering._all = 0.001, 1.0
    for _ in range(30):
        syncing.sync(*files)
    assert disk.alone[:THREADS] == files
    assert disk.together


def test_an_error_is_that_of_the_file(monkeypatch, files):
    def refuse(descriptor: int) -> None:
        if descriptor == files[1]:
            raise OSError(5, "Input/output error")

    disk = Disk(monkeypatch, whole=False)
    monkeypatch.setattr(os, "fsync", refuse)
    syncing.sync(files[0], files[2])
    with pytest.raises(OSError, match="Input/output"):
        syncing.sync(files[0], files[1])
    assert disk.together


def test_a_network_filesystem_is_synced_file_by_file(monkeypatch, files):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(syncing, "way_of", lambda *_: syncing.Way.ALONE)
    syncing.sync(*files)
    assert synced == files


def test_files_that_are_closed_meanwhile_are_synced_when_it_is_asked_for(monkeypatch, tmp_path):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    monkeypatch.setattr(syncing, "way_of", lambda *_: syncing.Way.ALONE)
    expected = []
    before = len(list(Path("/proc/self/fd").iterdir()))
    with syncing.Unsynced() as unsynced:
        for number in range(syncing._MOST_UNSYNCED + 1):
            with (tmp_path / str(number)).open("wb") as file:
                expected.append(os.fstat(file.fileno()).st_ino)
                unsynced.add(file.fileno())
        assert synced == expected[:-1]  # very many are not kept open
        unsynced.sync()
        assert synced == expected
        with (tmp_path / "0").open("rb") as file:
            unsynced.add(file.fileno())
    assert synced == expected  # after an error nothing is waited for
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_this_kernel_syncs_what_it_says(monkeypatch, files):
    monkeypatch.undo()
    for file in files:
        os.write(file, b"x")
    syncing.sync(*files)
    assert syncing._unwritten_bytes() >= 0
    assert all(map(syncing._is_written, files))
    is_gathered = syncing.way_of(os.fstat(files[0]).st_dev, files[0]) is syncing.Way.TOGETHER
    if is_gathered and syncing._unwritten_bytes() <= syncing._MOST_UNWRITTEN:
        assert syncing.sync_filesystem(files[0])


def test_nothing_is_synced_in_memory(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a sync"))
    file = os.memfd_create("x")
    monkeypatch.setattr(syncing, "_ways", {})
    syncing.sync(file)
    os.close(file)
