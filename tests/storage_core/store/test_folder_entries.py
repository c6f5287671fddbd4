"""A listing by machine code: what the standard library tells of each entry, whatever lies there."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_core.local_files import Entry, open_folder, scan_open
from storage_core.store import folder_entries
from storage_core.store.folder_entries import FolderEntries

# A second before the epoch, and one that has no room in 64 bits of nanoseconds.
EARLY, LATE = -1_000_000_001, 10_000_000_000 * 1_000_000_000
FACTS = [
    "st_mode",
    "st_ino",
    "st_dev",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_size",
    "st_mtime_ns",
    "st_ctime_ns",
]


def told(entries: Iterator[Entry]) -> list[tuple[object, ...]]:
    """Return all that a listing tells; no time of access."""
    return [(name, *(getattr(facts, each) for each in FACTS)) for name, facts in entries]


@pytest.fixture(params=["machine code", "the standard library"])
def listed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], FolderEntries]:
    if request.param != "machine code":
        monkeypatch.setattr(folder_entries, "_FUNCTIONS", None)

    def listed(path: Path) -> FolderEntries:
        with open_folder(path) as folder:
            found = FolderEntries.of_folder(folder)
            assert told(iter(found)) == told(iter(scan_open(folder)))
            assert told(iter(FolderEntries.of_folder(folder))) == told(iter(found))
        return found

    return listed


def test_nothing_is_listed_of_an_empty_folder(tmp_path: Path, listed):
    assert list(listed(tmp_path)) == []


def test_entries_of_all_kinds_are_listed_with_their_own_facts(tmp_path: Path, listed):
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").symlink_to("nowhere")
    (tmp_path / "d").hardlink_to(tmp_path / "b")
    (tmp_path / "c").mkdir(mode=0o711)
    os.mkfifo(tmp_path / "e")
    for name in (".hidden", "...", "x" * 255, "\N{SNOWMAN}", os.fsdecode(b"\xff\xfe")):
        (tmp_path / name).touch()
    os.utime(tmp_path / "b", ns=(0, EARLY))
    found = listed(tmp_path)
    assert found.names == sorted(os.listdir(tmp_path))  # noqa: PTH208  # names, not paths
    assert found.sizes[found.names.index("b")] == 5
    assert found.modified_ns[found.names.index("b")] == EARLY
    assert found[1:3] == [found[1], found[2]]


@pytest.mark.thorough
def test_a_folder_of_many_entries_is_listed_whole(tmp_path: Path, listed):
    for number in range(2500):
        (tmp_path / f"{number:0120}").touch()
    assert len(listed(tmp_path)) == 2500


def test_a_time_beyond_64_bits_is_told_as_it_is(tmp_path: Path, listed):
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", ns=(0, LATE))
    if (tmp_path / "a").stat().st_mtime_ns != LATE:
        pytest.skip("this filesystem has no such time")
    assert listed(tmp_path).modified_ns == [LATE]


def test_a_folder_that_is_gone_is_an_error_of_the_system(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    with open_folder(gone) as folder:
        gone.rmdir()
        assert list(FolderEntries.of_folder(folder)) == []
        with open_folder(tmp_path) as other:
            os.dup2(os.open(os.devnull, os.O_RDONLY), other)
            with pytest.raises(NotADirectoryError):
                FolderEntries.of_folder(other)
