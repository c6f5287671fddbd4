"""The starts of many files, read together: as each would be, or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.kernels.file_starts import BY_ENTRY, ENTRY_BYTES, MOST_BYTES, POSITION
from storage_core.records import file_starts
from storage_core.records.file_starts import (
    EPOCHS,
    LOG,
    METADATA,
    OFFSET_INDEX,
    FolderFiles,
    Folders,
    read_starts,
)
from storage_core.store import LocalStore

CONTENTS = {"a": b"0123456789", "b": b"", "c": b"xyz"}


def read(folder: Path, *, most_bytes: int) -> tuple[list[int] | None, bytes]:
    """Read the starts of files a, b and c into room for so many bytes of each."""
    room = np.zeros(len(CONTENTS) * most_bytes, np.uint8)
    bounds = np.arange(len(CONTENTS) + 1) * most_bytes
    sizes = read_starts(LocalStore(folder), list(CONTENTS), room, bounds)
    return None if sizes is None else sizes.tolist(), room.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_each_file_is_read_as_far_as_there_is_room(folder: Path):
    assert read(folder, most_bytes=4) == ([10, 0, 3], b"0123" + bytes(4) + b"xyz\0")


def test_a_second_name_of_the_folders_owner_is_read(folder: Path):
    (folder / "other").hardlink_to(folder / "a")
    assert read(folder, most_bytes=1) == ([10, 0, 3], b"0\0x")


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda path: path.symlink_to("a"), id="a link"),
        pytest.param(lambda path: path.mkdir(), id="a folder"),
        pytest.param(os.mkfifo, id="a FIFO"),
        pytest.param(lambda _: None, id="nothing"),
    ],
)
def test_what_is_no_file_is_left_to_who_opens_each(folder: Path, put: Callable[[Path], object]):
    (folder / "b").unlink()
    put(folder / "b")
    assert read(folder, most_bytes=4)[0] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="files of two users")
def test_another_users_file_of_two_names_is_left_to_who_opens_each(folder: Path):
    (folder / "other").hardlink_to(folder / "b")
    os.chown(folder / "b", 12345, -1)
    assert read(folder, most_bytes=4)[0] is None


def test_a_folder_that_is_gone_is_left_to_who_opens_each(folder: Path):
    assert read(folder / "gone", most_bytes=4)[0] is None


# Of a partition directory; the second log begins at the largest offset.
LAST_OFFSET = 2**63 - 1
ENTRIES = np.array([(1, 3), (2, 5)], OFFSET_INDEX_ENTRY).tobytes()
PLAIN = {
    f"{0:020}.log": b"0123456789",
    f"{0:020}.index": b"",
    f"{LAST_OFFSET:020}.log": b"abcdefgh",
    f"{LAST_OFFSET:020}.index": ENTRIES + b"torn",
    "leader-epoch-checkpoint": b"0",
}


@pytest.fixture
def partitions(tmp_path: Path) -> list[Path]:
    """Write three equal partition directories."""
    folders = [tmp_path / f"t-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        for name, content in PLAIN.items():
            (folder / name).write_bytes(content)
    return folders


def list_files(folders: list[Path]) -> FolderFiles:
    return Folders([str(folder) for folder in folders]).list_files()


def test_folders_are_listed_by_kind_and_offset(partitions: list[Path]):
    files = list_files(partitions)
    assert files.is_listed.tolist() == [True] * 3
    assert files.folders.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    kinds, offsets = files.kinds[:5].tolist(), files.offsets[:5].tolist()
    assert kinds == [EPOCHS, OFFSET_INDEX, OFFSET_INDEX, LOG, LOG]
    assert offsets == [0, 0, LAST_OFFSET, 0, LAST_OFFSET]
    assert files.is_newest[:5].tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    "name",
    [
        f"{LAST_OFFSET + 1:020}.log",  # no offset
        f"{0:019}.log",
        f"{0:021}.log",
        f"{0:020}.log.deleted",
        f"{0:020}.lo",
        f"-{0:019}.log",
        ".lock",
        "partition.metadata2",
        "x" * 255,
    ],
)
def test_a_folder_with_another_name_is_left_to_who_knows_all(partitions: list[Path], name: str):
    (partitions[1] / name).touch()
    files = list_files(partitions)
    assert files.is_listed.tolist() == [True, False, True]
    assert set(files.folders.tolist()) == {0, 2}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("other")])
def test_a_folder_with_no_file_is_left_to_who_knows_all(
    partitions: list[Path], make: Callable[[Path], object]
):
    make(partitions[1] / "partition.metadata")
    assert list_files(partitions).is_listed.tolist() == [True, False, True]


def test_a_link_and_what_is_gone_are_left_to_who_knows_all(partitions: list[Path], tmp_path: Path):
    (tmp_path / "link").symlink_to(partitions[0])
    folders = [tmp_path / "link", tmp_path / "gone", *partitions]
    assert list_files(folders).is_listed.tolist() == [False, False, True, True, True]


def test_folders_with_more_files_than_there_is_room_for_at_once_are_listed(
    partitions: list[Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_starts, "_MOST_FILES", 7)
    assert len(list_files(partitions).folders) == 15
    monkeypatch.setattr(file_starts, "_MOST_FILES", 4)
    assert not list_files(partitions).is_listed.any()


def test_parts_of_many_folders_are_read(partitions: list[Path]):
    folders = Folders([str(folder) for folder in partitions])
    files = folders.list_files()
    parts = files.parts(most_bytes=4)
    # The last whole entry of an index, and the log from the position in it on.
    parts[ENTRY_BYTES, files.kinds == OFFSET_INDEX] = OFFSET_INDEX_ENTRY.itemsize
    parts[MOST_BYTES, files.kinds == OFFSET_INDEX] = OFFSET_INDEX_ENTRY.itemsize
    parts[POSITION, files.is_newest & (files.kinds == LOG)] = BY_ENTRY
    parts[MOST_BYTES, ~files.is_newest & (files.kinds == LOG)] = 0
    shuffled = np.random.default_rng(1).permutation(len(files.kinds))
    shuffled = shuffled[np.argsort(files.kinds[shuffled] == LOG, kind="stable")]
    found = folders.read(np.ascontiguousarray(parts[:, shuffled]), most_of_folder=100)
    told = {row: found.content(place) for place, row in enumerate(shuffled.tolist())}
    of_one = [b"0", b"", ENTRIES[8:], b"", b"fgh"]
    assert [told[row] for row in range(15)] == of_one * 3
    sizes = dict(zip(shuffled.tolist(), found.sizes.tolist(), strict=True))
    assert [sizes[row] for row in range(5)] == [1, 0, 20, 10, 8]


def test_no_more_is_read_of_a_folder_than_it_may_have(partitions: list[Path]):
    folders = Folders([str(folder) for folder in partitions])
    files = folders.list_files()
    found = folders.read(files.parts(most_bytes=100), most_of_folder=31)
    assert found.lengths.tolist() == [1, 0, 20, 10, -1] * 3


def swap_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("partition.metadata")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(swap_for_link, id="a link"),
        pytest.param(lambda path: (path.unlink(), os.mkfifo(path)), id="a FIFO"),
        pytest.param(lambda path: path.unlink(), id="nothing"),
        pytest.param(lambda path: os.chown(path, 12345, -1), id="another user's of two names"),
    ],
)
def test_what_was_a_file_when_it_was_listed_is_left_to_who_opens_each(
    partitions: list[Path], change: Callable[[Path], object]
):
    if os.geteuid() != 0:
        pytest.skip("files of two users")
    file = partitions[1] / f"{0:020}.log"
    (partitions[1].parent / "other").hardlink_to(file)
    folders = Folders([str(folder) for folder in partitions])
    files = folders.list_files()
    change(file)
    found = folders.read(files.parts(most_bytes=1), most_of_folder=100)
    assert found.lengths.tolist() == [1, 0, 1, 1, 1, 1, 0, 1, -1, 1, 1, 0, 1, 1, 1]


def test_a_file_of_a_folder_that_is_gone_is_left_to_who_opens_each(partitions: list[Path]):
    folders = Folders([str(folder) for folder in partitions])
    files = folders.list_files()
    partitions[0].rename(partitions[0].with_name("away"))
    found = folders.read(files.parts(most_bytes=1), most_of_folder=100)
    assert (found.lengths < 0).tolist() == [True] * 5 + [False] * 10


def test_without_the_functions_every_folder_is_left_to_who_knows_all(
    partitions: list[Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_starts, "_LISTING", None)
    monkeypatch.setattr(file_starts, "_FUNCTIONS", None)
    assert not list_files(partitions).is_listed.any()
    assert METADATA not in list_files(partitions).kinds
