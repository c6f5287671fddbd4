"""The store that dies."""

import pytest

from storage_core.store.local import LocalStore
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash


def change_everything(store: FaultyStore, scratch: str) -> None:
    store.write_file("written", b"content")
    store.create_empty("empty")
    store.promote(scratch, "promoted")
    store.rename("written", "renamed")
    store.delete("empty")
    store.truncate("renamed", 3)
    store.sync_directory()


AFTER_EACH = [
    {"scratch": b"s"},
    {"scratch": b"s", "written": b"content"},
    {"scratch": b"s", "written": b"content", "empty": b""},
    {"promoted": b"s", "written": b"content", "empty": b""},
    {"promoted": b"s", "renamed": b"content", "empty": b""},
    {"promoted": b"s", "renamed": b"content"},
    {"promoted": b"s", "renamed": b"con"},
    {"promoted": b"s", "renamed": b"con"},
]


def run(directory, **settings):
    (directory / "scratch").write_bytes(b"s")
    store = FaultyStore(LocalStore(directory), **settings)
    change_everything(store, str(directory / "scratch"))
    return store


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER], ids=lambda m: m.value)
def test_it_does_what_comes_before_and_nothing_that_comes_after(tmp_path, number, moment):
    with pytest.raises(SimulatedCrash, match=f"{moment.value} change {number}"):
        run(tmp_path, stop_at=number, moment=moment)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == AFTER_EACH[number + (moment is Moment.AFTER)]


def test_a_torn_write_leaves_half_of_its_temporary_file(tmp_path):
    with pytest.raises(SimulatedCrash):
        run(tmp_path, stop_at=0, moment=Moment.TORN)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {"scratch": b"s", "written.tmp": b"con"}


def test_it_counts_when_it_does_not_stop(tmp_path):
    store = run(tmp_path)
    assert len(store.changes) == 7
    assert [info.name for info in store.list_files()] == ["promoted", "renamed"]
    assert store.read_file("renamed", limit_bytes=10) == b"con"
    assert store.open_file("renamed").size_bytes == 3
    assert store.location == str(tmp_path)


def test_no_handler_of_errors_catches_the_crash():
    assert not issubclass(SimulatedCrash, Exception)
