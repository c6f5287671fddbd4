"""A partition as a load would leave it, whatever is being renamed meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.filenames import log_file, segment_file
from storage_core.log import settled_store
from storage_core.log.settled_store import SettledStore, settle, settled_files
from storage_core.store.base import FileInfo
from storage_core.store.local import LocalStore
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, write_partition

LOG = log_file(0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_partition(
        tmp_path / "t-0",
        [SegmentSpec(base_offset=n, batches=some_batches(count=2, base_offset=n)) for n in (0, 2)],
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(settled_store, "_PAUSES", (0.0,) * 4)


class Listed(LocalStore):
    """A directory in which something happens after each of its first listings."""

    def __init__(self, directory: Path, *then: Callable[[], object]) -> None:
        super().__init__(directory)
        self._then = list(then)

    def list_files(self) -> list[FileInfo]:
        files = super().list_files()
        if self._then:
            self._then.pop(0)()
        return files


def test_a_directory_at_rest_is_what_its_listing_says(directory):
    store = LocalStore(directory)
    assert settle(store).list_files() == store.list_files()
    assert settle(store).removed == frozenset()
    with pytest.raises(errors.PartitionNotFoundError):
        settle(LocalStore(directory / "nowhere"))


def test_a_name_that_one_listing_missed_is_looked_for_again(directory):
    swap = directory / f"{LOG}.swap"

    content = (directory / LOG).read_bytes()
    away = directory.parent / "between-two-names"
    (directory / LOG).rename(away)
    # The first listing has neither name, as one that a rename overtakes; the next ones have.
    found = settle(Listed(directory, lambda: away.rename(swap)))
    assert found.files[LOG].name == swap.name
    assert found.read_file(LOG, limit_bytes=1 << 20) == content


def test_a_directory_that_never_stands_still_is_refused_by_name(directory):
    def add(number: int) -> Callable[[], object]:
        return lambda: (directory / f"new-{number}").write_bytes(b"")

    with pytest.raises(errors.ChangedWhileReadError, match="stands still") as refused:
        settle(Listed(directory, *map(add, range(99))))
    assert str(directory) in str(refused.value)


def test_a_file_is_found_under_the_names_of_a_swap_and_no_other_is_taken_for_it(directory):
    settled = settle(LocalStore(directory))
    content = (directory / LOG).read_bytes()
    (directory / LOG).rename(directory / f"{LOG}.deleted")
    (directory / LOG).write_bytes(b"x" * len(content))
    assert settled.read_file(LOG, limit_bytes=1 << 20) == content
    (directory / f"{LOG}.deleted").unlink()
    with pytest.raises(errors.ChangedWhileReadError, match=LOG):
        settled.open_file(LOG)


@pytest.mark.parametrize(("name", "may_grow"), [(LOG, False), (log_file(2), True)])
def test_only_the_active_log_may_have_grown_and_none_have_shrunk(directory, name, may_grow):
    settled = settle(LocalStore(directory))
    content = (directory / name).read_bytes()
    with (directory / name).open("ab") as log:
        log.write(b"more")
    if may_grow:
        assert settled.read_file(name, limit_bytes=1 << 20) == content
    else:
        with pytest.raises(errors.ChangedWhileReadError):
            settled.open_file(name)
    with (directory / name).open("r+b") as log:
        log.truncate(len(content) - 1)
    with pytest.raises(errors.ChangedWhileReadError):
        settled.open_file(name)


def test_indexes_of_the_active_segment_may_be_cut_to_their_entries_by_a_roll(directory):
    for base in (0, 2):
        with (directory / segment_file(base, ".index")).open("r+b") as index:
            index.truncate(10 << 20)
    settled = settle(LocalStore(directory))
    for base in (0, 2):
        with (directory / segment_file(base, ".index")).open("r+b") as index:
            index.truncate(8)
    assert len(settled.read_file(segment_file(2, ".index"), limit_bytes=1 << 30)) == 8
    with pytest.raises(errors.ChangedWhileReadError):
        settled.open_file(segment_file(0, ".index"))


def test_what_is_not_there_is_no_file_and_what_is_long_is_not_read(directory):
    settled = settle(LocalStore(directory))
    with pytest.raises(errors.StorageError, match="No such file"):
        settled.open_file("other")
    with pytest.raises(errors.StorageError, match="longer than the 3 bytes"):
        settled.read_file(LOG, limit_bytes=3)


def test_nothing_is_written_through_it(directory):
    with pytest.raises(errors.ReadOnlyStoreError):
        settle(LocalStore(directory)).delete(LOG)


def test_a_listing_without_unfinished_files_is_taken_as_it_is(directory):
    store = LocalStore(directory)
    listing = store.list_files()
    assert settled_files(store, listing) is listing
    (directory / "00000000000000000002.log.deleted").write_bytes(b"")
    (directory / "pylog-scratch-x").write_bytes(b"")
    assert settled_files(store, store.list_files()) == listing


def test_a_store_that_knows_no_identities_is_read_by_names(directory):
    store = LocalStore(directory)
    plain = {f.name: FileInfo(f.name, f.size_bytes, f.modified_ms) for f in store.list_files()}
    content = (directory / LOG).read_bytes()
    assert SettledStore(store, plain).read_file(LOG, limit_bytes=1 << 20) == content
