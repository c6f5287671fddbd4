"""What a crash inside a swap leaves, settled: one directory by hand for every rule."""

import os
import shutil
from pathlib import Path

import pytest

from storage_core.commit import CommitPlan, RenameFile, commit
from storage_core.filenames import SEGMENT_SUFFIXES, segment_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.settled_store import settle_leftovers
from storage_core.store.local import LocalStore
from tests.kit.builders import log_with
from tests.kit.hostile_names import FILES_NOT_UTF8
from tests.kit.power_loss import Disk, Loss

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


@pytest.mark.item("REC-02")
def test_deleted_files_go_but_for_those_of_a_metadata_snapshot(tmp_path):
    checkpoint = {"00000000000000000030-0000000001.checkpoint.deleted": b""}
    gone = segment(0, ".deleted") | {segment_file(0, ".snapshot.deleted"): b""}
    assert settled(tmp_path, gone | checkpoint | ACTIVE) == checkpoint | ACTIVE


@pytest.mark.item("REC-03")
@pytest.mark.item("REC-06")
def test_only_cleaned_files_leave_the_old_segments(tmp_path):
    assert settled(tmp_path, OLD_ONES | ACTIVE | segment(0, ".cleaned")) == OLD_ONES | ACTIVE


@pytest.mark.item("REC-03")
@pytest.mark.parametrize(
    ("cleaned_at", "is_dropped"),
    [
        pytest.param(0, True, id="at the lowest cleaned file"),
        pytest.param(10, False, id="below it"),
    ],
)
def test_a_swap_counts_only_below_the_lowest_cleaned_file(tmp_path, cleaned_at, is_dropped):
    left = settled(tmp_path, OLD_ONES | ACTIVE | SWAP | segment(cleaned_at, ".cleaned"))
    assert left == (OLD_ONES | ACTIVE if is_dropped else NEW | ACTIVE)


@pytest.mark.item("REC-03")
def test_a_swap_above_the_lowest_cleaned_file_goes_too(tmp_path):
    swap = segment(30, ".swap", log_with(batches=1, base_offset=30))
    left = settled(tmp_path, OLD_ONES | ACTIVE | swap | segment(10, ".cleaned"))
    assert left == OLD_ONES | ACTIVE


@pytest.mark.item("REC-03")
@pytest.mark.item("REC-06")
@pytest.mark.parametrize("renamed", [1, 2], ids=["the first file renamed", "all but one renamed"])
def test_a_mix_of_cleaned_and_swap_files_of_one_segment_leaves_the_old_ones(tmp_path, renamed):
    names = list(segment(0))
    half = {
        name + (".swap" if number < renamed else ".cleaned"): SWAP[f"{name}.swap"]
        for number, name in enumerate(names)
    }
    assert settled(tmp_path, OLD_ONES | ACTIVE | half) == OLD_ONES | ACTIVE


@pytest.mark.item("REC-04")
@pytest.mark.item("REC-06")
def test_a_swap_replaces_what_lies_in_its_range_snapshots_included(tmp_path):
    files = OLD_ONES | snapshot(10) | snapshot(20) | ACTIVE | SWAP | OTHERS
    assert settled(tmp_path, files) == NEW | ACTIVE | OTHERS


@pytest.mark.item("REC-04")
def test_the_transaction_indexes_of_replaced_segments_go(tmp_path):
    txn_indexes = {segment_file(base, TXN): b"x" for base in (0, 20)}
    assert settled(tmp_path, OLD_ONES | txn_indexes | ACTIVE | SWAP) == NEW | ACTIVE


@pytest.mark.item("REC-04")
def test_the_range_ends_with_the_last_batch_of_the_swap(tmp_path):
    """Compaction removed the last offsets: what begins above them is not in the range."""
    short = segment(0, ".swap", log_with(batches=2, records=10))
    left = settled(tmp_path, OLD_ONES | ACTIVE | short)
    assert left == segment(0, log=log_with(batches=2, records=10)) | segment(20) | ACTIVE


@pytest.mark.item("REC-04")
def test_an_empty_swap_replaces_nothing_but_its_namesakes(tmp_path):
    empty = segment(10, ".swap", b"")
    left = settled(tmp_path, OLD_ONES | ACTIVE | empty)
    assert left == segment(0) | segment(10, log=b"") | segment(20) | ACTIVE


@pytest.mark.item("REC-04")
def test_everything_between_two_swaps_goes(tmp_path):
    first = segment(0, ".swap", log_with(batches=1, records=10))
    second = segment(20, ".swap", log_with(batches=1, records=10, base_offset=20))
    left = settled(tmp_path, OLD_ONES | snapshot(10) | ACTIVE | first | second)
    assert left == ACTIVE | {
        name.removesuffix(".swap"): data for name, data in (first | second).items()
    }


@pytest.mark.item("REC-04")
def test_a_torn_last_batch_of_a_swap_does_not_count(tmp_path):
    torn = log_with(batches=2, records=10, torn_tail=20)
    left = settled(tmp_path, OLD_ONES | ACTIVE | segment(0, ".swap", torn))
    assert left == segment(0, log=torn) | segment(20) | ACTIVE


@pytest.mark.item("REC-05")
def test_indexes_whose_log_is_in_place_already_lose_the_suffix(tmp_path):
    log = {segment_file(0, LOG): NEW[segment_file(0, LOG)]}
    indexes = {name: data for name, data in SWAP.items() if LOG not in name}
    assert settled(tmp_path, log | indexes | ACTIVE) == NEW | ACTIVE


@pytest.mark.item("REC-05")
@pytest.mark.item("REC-06")
def test_an_offset_index_alone_replaces_the_old_one(tmp_path):
    alone = {segment_file(20, INDEX) + ".swap": b"new index"}
    left = settled(tmp_path, OLD_ONES | ACTIVE | alone)
    assert left == OLD_ONES | ACTIVE | {segment_file(20, INDEX): b"new index"}


@pytest.mark.item("REC-06")
def test_old_segments_that_are_renamed_already_go_with_the_others(tmp_path):
    files = segment(0) | segment(10) | segment(20, ".deleted") | ACTIVE | SWAP
    assert settled(tmp_path, files) == NEW | ACTIVE


def test_logs_lose_the_suffix_before_their_indexes(tmp_path):
    """A load that dies in between finds a log in place, whose indexes are still to be renamed."""
    second = segment(20, ".swap", log_with(batches=1, records=10, base_offset=20))
    for name, content in (segment(0, ".swap", log_with(batches=1)) | second).items():
        (tmp_path / name).write_bytes(content)
    view = DirectoryView(LocalStore(tmp_path))
    settle_leftovers(view)
    renamed = [step.target for step in view.operations if isinstance(step, RenameFile)]
    assert [LOG in name for name in renamed] == [True] * 2 + [False] * 4


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


def test_scratch_files_of_a_run_that_was_killed_go(tmp_path):
    scratch = {f"pylog-scratch-7-{name}.part": b"" for name in segment(0)}
    assert settled(tmp_path, OLD_ONES | ACTIVE | scratch) == OLD_ONES | ACTIVE


def test_names_without_a_leading_number_are_left_alone(tmp_path):
    strange = {"notes.txt": b"", "x.log": b"", ".hidden": b"", "12": b""}
    assert settled(tmp_path, strange | SWAP | ACTIVE) == strange | NEW | ACTIVE


def test_a_directory_at_rest_needs_nothing(tmp_path):
    files = OLD_ONES | ACTIVE | OTHERS
    assert settled(tmp_path, files) == files


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
