"""Indexes are read when somebody asks, once."""

from pathlib import Path

import pytest

from storage_core.errors import StorageError
from storage_core.store.local import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.log_reader import LazyIndexes

LIMIT_BYTES = 1 << 20


@pytest.fixture
def indexes(tmp_path: Path) -> LazyIndexes:
    batches = [BatchSpec(base_offset=i, records=(RecordSpec(timestamp=i),)) for i in range(5)]
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)], index_interval_bytes=0
    )
    store = LocalStore(directory)
    names = frozenset(file.name for file in store.list_files())
    return LazyIndexes(store, names, limit_bytes=LIMIT_BYTES)


@pytest.mark.item("IDX-22")
def test_nothing_is_read_before_it_is_needed_and_nothing_twice(indexes: LazyIndexes):
    assert indexes.opened == 0
    assert indexes.offset_index(0).last_offset == 4
    assert indexes.offset_index(0).look_up(2) > 0
    assert indexes.opened == 1
    assert indexes.time_index(0).last_entry == (4, 4)
    assert indexes.opened == 2


@pytest.mark.item("IDX-22")
def test_what_was_released_is_read_again(indexes: LazyIndexes):
    indexes.offset_index(0)
    indexes.release()
    assert indexes.offset_index(0).last_offset == 4
    assert indexes.opened == 2


def test_a_missing_index_is_as_an_empty_one(indexes: LazyIndexes):
    assert indexes.offset_index(77).last_offset == 77
    assert indexes.time_index(77).last_entry == (-1, 77)
    assert indexes.opened == 0


def test_an_index_beyond_the_limit_is_refused(tmp_path: Path):
    (tmp_path / "00000000000000000000.index").write_bytes(bytes(800))
    names = frozenset({"00000000000000000000.index"})
    with pytest.raises(StorageError):
        LazyIndexes(LocalStore(tmp_path), names, limit_bytes=799).offset_index(0)
