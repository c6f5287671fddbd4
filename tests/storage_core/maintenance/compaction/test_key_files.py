import numpy as np
import pytest

from storage_core.errors import StorageError
from storage_core.maintenance.compaction.partial import (
    BLOCK_ROWS,
    FiledTable,
    StreamWriter,
    map_set,
    map_table,
    read_stream,
    write_set,
)


def test_a_stream_gives_back_its_rows_by_columns_and_blocks(tmp_path):
    path = tmp_path / "a.keys"
    low = np.arange(BLOCK_ROWS + 3, dtype=np.uint64)
    rank = -np.arange(BLOCK_ROWS + 3, dtype=np.int64)
    with StreamWriter(path, 2) as stream:
        stream.append(low[:5], rank[:5])
        stream.append(low[5:], rank[5:])
    blocks = list(read_stream(path, 2))
    assert [block.shape for block in blocks] == [(2, BLOCK_ROWS), (2, 3)]
    assert np.array_equal(np.concatenate([block[0] for block in blocks]), low)
    assert np.array_equal(np.concatenate([block[1].view(np.int64) for block in blocks]), rank)
    assert all(block[0].flags.c_contiguous and block.flags.writeable for block in blocks)


def test_an_empty_stream_has_no_rows(tmp_path):
    with StreamWriter(tmp_path / "a.keys", 3):
        pass
    assert sum(block.shape[1] for block in read_stream(tmp_path / "a.keys", 3)) == 0


def test_a_set_gives_back_facts_and_arrays_of_every_kind(tmp_path):
    arrays = {
        "flags": np.arange(5, dtype=np.uint8),
        "none": np.empty(0, np.int64),
        "words": np.arange(7, dtype=np.uint64),
        "rows": np.arange(6, dtype=np.int64).reshape(2, 3),
    }
    write_set(tmp_path / "a.partial", {"base_offset": 7, "path": None}, arrays)
    facts, found = map_set(tmp_path / "a.partial")
    assert facts == {"base_offset": 7, "path": None}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert type(found[name]) is np.ndarray


def test_a_change_of_a_mapped_array_reaches_nobody_else(tmp_path):
    write_set(tmp_path / "a.partial", {}, {"words": np.zeros(4, np.uint64)})
    map_set(tmp_path / "a.partial")[1]["words"][0] = 9
    assert map_set(tmp_path / "a.partial")[1]["words"][0] == 0


def test_a_table_is_zeroed_and_keeps_what_is_put_into_it(tmp_path):
    with FiledTable(tmp_path / "t", 3) as memory:
        table = memory.extend(8)
        assert table.shape == (8, 3)
        assert not table.any()
        table[5, 1] = 77
        table = memory.extend(16)
    assert table.shape == (16, 3)
    assert table[5, 1] == 77
    table[5, 1] = 0
    assert not table.any()
    table[15, 2] = 78
    assert map_table(tmp_path / "t", 3)[15, 2] == 78


def test_a_missing_file_is_an_error_of_the_storage(tmp_path):
    for read in (map_set, lambda path: map_table(path, 3), lambda path: list(read_stream(path, 3))):
        with pytest.raises(StorageError, match="No such file"):
            read(tmp_path / "missing")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_storage(tmp_path):
    with pytest.raises(StorageError):
        StreamWriter(tmp_path / "missing" / "a.keys", 3)
    with pytest.raises(StorageError):
        write_set(tmp_path / "missing" / "a.partial", {}, {})
