"""The starts of many files, read together: as each would be, or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage_core.records.file_starts import read_starts
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
