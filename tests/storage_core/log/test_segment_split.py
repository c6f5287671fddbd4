"""Segments whose offsets do not fit them: the parts that they are split into."""

import shutil
from pathlib import Path

import pytest

from storage_core.commit import CommitPlan, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import CorruptRecordError
from storage_core.filenames import INDEX_SUFFIXES, TXN_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.control import ControlType
from storage_core.index.segment_indexes import OffsetIndex, parse_transaction_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.segment_recovery import SegmentSplit, find_parts, split_segment
from storage_core.log.settled_store import plan_settling
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from storage_core.store.object_files import BytesReader
from tests.kit import builders
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.one_partition import recover_partition
from tests.kit.power_loss import Disk, Loss
from tests.storage_core.maintenance.verification.log_root import (
    ABORTS,
    NOW_MS,
    marker,
    transactional,
)

FAR = 2**31
ONE = builders.RecordSpec(key=b"k", value=b"v")
LIMITS = Limits(max_record_bytes=1024, max_batch_bytes=1024)


def batch(base_offset: int, last_offset_delta: int = 0) -> builders.BatchSpec:
    return builders.BatchSpec(
        records=(ONE,), base_offset=base_offset, last_offset_delta=last_offset_delta
    )


def parts_of(*batches: builders.BatchSpec) -> SegmentSplit:
    return find_parts(
        BytesReader("segment", b"".join(map(builders.encode_batch, batches))),
        batches[0].base_offset if batches else 0,
        index_interval_bytes=1,
        max_index_bytes=1024,
        limits=LIMITS,
    )


def test_a_part_ends_before_the_first_batch_that_does_not_fit_it():
    """One that ends 2^31 - 1 above its part's base does, one above that does not."""
    batches = [batch(3), batch(7), batch(FAR, 2), batch(FAR + 3), batch(FAR + 4)]
    size = len(builders.encode_batch(batches[0]))
    split = parts_of(*batches)
    assert [(part.base_offset, part.start, part.size_bytes) for part in split.parts] == [
        (3, 0, 3 * size),
        (FAR + 3, 3 * size, 2 * size),
    ]
    assert split.base_offsets == [3, FAR + 3]
    second = OffsetIndex.parse(FAR + 3, split.parts[1].offset_index)
    assert (second.last_offset, second.look_up(FAR + 4)) == (FAR + 4, size)


def test_the_lowest_and_the_highest_offset_are_those_of_any_header():
    split = parts_of(batch(10), batch(FAR + 20, 7), batch(15))
    assert (split.lowest_offset, split.highest_offset) == (10, FAR + 27)


@pytest.mark.parametrize(
    ("batches", "position"),
    [([], 0), ([batch(0), batch(FAR), batch(0)], 2 * len(builders.encode_batch(batch(0))))],
    ids=["no batch", "two parts of one name"],
)
def test_what_is_no_segment_to_be_split_is_refused_with_its_place(batches, position):
    with pytest.raises(CorruptRecordError) as caught:
        parts_of(*batches)
    assert caught.value.position == position


def test_a_log_is_not_loaded_whose_segment_comes_back_to_where_a_part_begins(tmp_path: Path):
    batches = [batch(0), batch(FAR), batch(0), batch(FAR + 1)]
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    before = read_tree(directory)
    with pytest.raises(CorruptRecordError, match="found a second one at 0"):
        recover_partition(
            directory, config=LogConfig(), cleaner=CleanerConfig(), now_ms=builders.SOME_TIME_MS
        )
    assert read_tree(directory) == before


def test_the_first_part_of_a_split_keeps_what_was_aborted_in_it(tmp_path):
    """Of a closed log without indexes: nothing else would tell of those transactions again."""
    directory = tmp_path / "t-0"
    first = SegmentSpec(
        base_offset=0,
        batches=(transactional(0, ABORTS), marker(4, ABORTS, ControlType.ABORT)),
        producers=(),
    )
    write_partition(directory, [first])
    with (directory / log_file(0)).open("ab") as file:
        file.write(builders.encode_batch(batch(FAR)))
    for suffix in INDEX_SUFFIXES:
        (directory / segment_file(0, suffix)).unlink(missing_ok=True)
    recover_partition(
        directory,
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        recovery_point=FAR + 5,
        clean_shutdown=True,
    )
    assert sorted(path.name for path in directory.glob("*.log")) == [log_file(0), log_file(FAR)]
    [txn_index] = directory.glob(f"*{TXN_INDEX_SUFFIX}")
    assert txn_index.name == segment_file(0, TXN_INDEX_SUFFIX)
    [aborted] = parse_transaction_index(txn_index.name, 0, txn_index.read_bytes())
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (ABORTS, 0, 4)


@pytest.mark.thorough
def test_a_segment_or_all_of_its_parts_count_when_the_power_fails(tmp_path):
    """Names that were not synced are kept in no order."""
    disk, directory = tmp_path / "disk", tmp_path / "disk" / "t-0"
    directory.mkdir(parents=True)
    content = b"".join(builders.encode_batch(batch(base)) for base in (0, 2 * FAR, 4 * FAR))
    (directory / log_file(0)).write_bytes(content)
    copy, store = shutil.copytree(disk, tmp_path / "copy"), LocalStore(directory)

    def split() -> None:
        view = DirectoryView(store)
        split_segment(view, 0, index_interval_bytes=1, max_index_bytes=1024, limits=LIMITS)
        commit(CommitPlan(location=store.location, operations=tuple(view.operations)), store)

    watched, was_stopped, number, counts = Disk(disk), True, 0, set()
    while was_stopped:
        for seed in range(8):
            shutil.rmtree(disk)
            shutil.copytree(copy, disk)
            was_stopped = watched.run(split, stop_at=number)
            watched.leave(Loss.SOME_NAMES, seed=8 * number + seed)
            commit(plan_settling(store), store)
            logs = sorted(directory.glob("*.log"))
            assert b"".join(path.read_bytes() for path in logs) == content, f"{number}, {seed}"
            counts.add(len(logs))
        number += 1
    assert counts == {1, 3}
