"""A partition as a load would leave it; what it leaves of swaps as Kafka does: golden loads."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.commit import CommitPlan, RenameFile, commit
from storage_core.filenames import SEGMENT_SUFFIXES, log_file, segment_file
from storage_core.log import settled_store
from storage_core.log.directory_view import DirectoryView
from storage_core.log.settled_store import SettledStore, settle, settle_leftovers, settled_files
from storage_core.store.base import FileInfo
from storage_core.store.local import LocalStore
from tests.kit.builders import log_with, some_batches
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.hostile_names import FILES_NOT_UTF8
from tests.kit.power_loss import Disk, Loss

FIRST_LOG = log_file(0)


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
    swap = directory / f"{FIRST_LOG}.swap"

    content = (directory / FIRST_LOG).read_bytes()
    away = directory.parent / "between-two-names"
    (directory / FIRST_LOG).rename(away)
    # The first listing has neither name, as one that a rename overtakes; the next ones have.
    found = settle(Listed(directory, lambda: away.rename(swap)))
    assert found.files[FIRST_LOG].name == swap.name
    assert found.read_file(FIRST_LOG, limit_bytes=1 << 20) == content


def test_a_directory_that_never_stands_still_is_refused_by_name(directory):
    def add(number: int) -> Callable[[], object]:
        return lambda: (directory / f"new-{number}").write_bytes(b"")

    with pytest.raises(errors.ChangedWhileReadError, match="stands still") as refused:
        settle(Listed(directory, *map(add, range(99))))
    assert str(directory) in str(refused.value)


def test_a_file_is_found_under_the_names_of_a_swap_and_no_other_is_taken_for_it(directory):
    settled = settle(LocalStore(directory))
    content = (directory / FIRST_LOG).read_bytes()
    (directory / FIRST_LOG).rename(directory / f"{FIRST_LOG}.deleted")
    (directory / FIRST_LOG).write_bytes(b"x" * len(content))
    assert settled.read_file(FIRST_LOG, limit_bytes=1 << 20) == content
    (directory / f"{FIRST_LOG}.deleted").unlink()
    with pytest.raises(errors.ChangedWhileReadError, match=FIRST_LOG):
        settled.open_file(FIRST_LOG)


@pytest.mark.parametrize(("name", "may_grow"), [(FIRST_LOG, False), (log_file(2), True)])
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
        settled.read_file(FIRST_LOG, limit_bytes=3)


def test_nothing_is_written_through_it(directory):
    with pytest.raises(errors.ReadOnlyStoreError):
        settle(LocalStore(directory)).delete(FIRST_LOG)


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
    content = (directory / FIRST_LOG).read_bytes()
    assert SettledStore(store, plain).read_file(FIRST_LOG, limit_bytes=1 << 20) == content


LOG, INDEX, TIME, TXN = SEGMENT_SUFFIXES
OLD = b"old"


def settled(directory: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write files, settle them, and return what is there then."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    store = LocalStore(directory)
    view = DirectoryView(store)
    settle_leftovers(view)
    planned = view.names
    commit(CommitPlan(location=store.location, operations=tuple(view.operations)), store)
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert sorted(left) == planned
    return left


def segment(base: int, transient: str = "", log: bytes = OLD) -> dict[str, bytes]:
    """The files of a segment; log is long enough to be asked for its end where it is a swap."""
    contents = {LOG: log, INDEX: b"", TIME: b"t"}
    return {segment_file(base, kind) + transient: data for kind, data in contents.items()}


def snapshot(offset: int) -> dict[str, bytes]:
    return {segment_file(offset, ".snapshot"): b"snapshot"}


# Offsets 0 to 29; the segments at 0, 10 and 20 become the one at 0.
SWAP = segment(0, ".swap", log_with(batches=3, records=10))
NEW = segment(0, log=log_with(batches=3, records=10))
OLD_ONES = segment(0) | segment(10) | segment(20)
ACTIVE = segment(30) | snapshot(30)
OTHERS = {"leader-epoch-checkpoint": b"0\n0\n", "partition.metadata": b"version: 0"}


# What a swap may look like whose last offsets compaction has removed, or that a crash has torn.
SHORT = log_with(batches=2, records=10)


CHECKPOINT = {"00000000000000000030-0000000001.checkpoint.deleted": b""}
STRANGE = {"notes.txt": b"", "x.log": b"", ".hidden": b"", "12": b""}
KEPT, SWAPPED = OLD_ONES | ACTIVE, NEW | ACTIVE


@pytest.mark.item("REC-02", "REC-03", "REC-04", "REC-05", "REC-06")
@pytest.mark.parametrize(
    ("files", "left"),
    [
        pytest.param(
            segment(0, ".deleted") | {segment_file(0, ".snapshot.deleted"): b""} | CHECKPOINT,
            CHECKPOINT,
            id="deleted files go, but for those of a metadata snapshot",
        ),
        pytest.param(
            KEPT | SWAP | segment(0, ".cleaned"), KEPT, id="a swap at the lowest cleaned file"
        ),
        pytest.param(
            KEPT | snapshot(10) | snapshot(20) | SWAP | OTHERS,
            SWAPPED | OTHERS,
            id="a swap replaces its range, snapshots included",
        ),
        pytest.param(
            KEPT | {segment_file(base, TXN): b"x" for base in (0, 20)} | SWAP,
            SWAPPED,
            id="transaction indexes of replaced segments",
        ),
        pytest.param(
            KEPT | segment(0, ".swap", SHORT),
            segment(0, log=SHORT) | segment(20) | ACTIVE,
            id="the range ends with the last batch",
        ),
        pytest.param(
            KEPT | segment(10, ".swap", b""),
            segment(0) | segment(10, log=b"") | segment(20) | ACTIVE,
            id="an empty swap replaces its namesakes",
        ),
        pytest.param(
            KEPT | {f"pylog-scratch-7-{name}.part": b"" for name in segment(0)},
            KEPT,
            id="scratch files of a run that was killed",
        ),
        pytest.param(STRANGE | SWAP, STRANGE | NEW, id="names without a leading number stay"),
        pytest.param(KEPT | OTHERS, KEPT | OTHERS, id="at rest"),
    ],
)
def test_a_load_settles_what_a_crash_left(tmp_path, files, left):
    assert settled(tmp_path, files | ACTIVE) == left | ACTIVE


def test_logs_lose_the_suffix_before_their_indexes(tmp_path):
    """A load that dies in between finds a log in place, whose indexes are still to be renamed."""
    second = segment(20, ".swap", log_with(batches=1, records=10, base_offset=20))
    for name, content in (segment(0, ".swap", log_with(batches=1)) | second).items():
        (tmp_path / name).write_bytes(content)
    view = DirectoryView(LocalStore(tmp_path))
    settle_leftovers(view)
    renamed = [step.target for step in view.operations if isinstance(step, RenameFile)]
    assert [LOG in name for name in renamed] == [True] * 2 + [False] * 4


@pytest.mark.thorough
def test_swaps_replace_none_of_their_own_when_the_power_fails(tmp_path):
    """Names that were not synced are kept in no order."""
    disk, watched = tmp_path / "disk", Disk(tmp_path / "disk")
    disk.mkdir()
    logs = {
        segment_file(base, LOG): log_with(batches=1, records=10, base_offset=base)
        for base in (0, 10, 20)
    }
    was_stopped, number = True, 0
    while was_stopped:
        for seed in range(6):
            shutil.rmtree(disk)
            disk.mkdir()
            for name, content in logs.items():
                (disk / f"{name}.swap").write_bytes(content)
            was_stopped = watched.run(lambda: settled(disk, {}), stop_at=number)
            watched.leave(Loss.SOME_NAMES, seed=6 * number + seed)
            assert settled(disk, {}) == logs, f"{number}, {seed}"
        number += 1


def test_nothing_is_written_while_it_is_planned(tmp_path):
    for name, content in (SWAP | OLD_ONES | segment(10, ".deleted")).items():
        (tmp_path / name).write_bytes(content)
    before = sorted(path.name for path in tmp_path.iterdir())
    view = DirectoryView(LocalStore(tmp_path))
    settle_leftovers(view)
    assert view.operations
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert all(operation.reason for operation in view.operations)


def test_what_kafka_does_not_see_is_neither_settled_nor_refused(tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name in FILES_NOT_UTF8:
        (directory / os.fsdecode(name)).touch()
    store = LocalStore(directory)
    view = DirectoryView(store)
    settle_leftovers(view)
    assert view.names == []
    assert list(view.operations) == []
    assert sorted(map(os.fsencode, store.list_unseen())) == sorted(FILES_NOT_UTF8)
