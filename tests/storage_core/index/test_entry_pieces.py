"""Index files that are much longer than their entries: those of a hole are zeros."""

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pylog_spark.cli.dump_segment import parser_of
from storage_core.errors import IndexVersionError, StorageError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.index import segment_indexes
from storage_core.index.segment_indexes import OffsetIndex, read_entries, read_used
from storage_core.log import committed_view as offset_search
from storage_core.log.batch_search import ListedSegment
from storage_core.store.local import LocalStore

LONG = 64 << 20
MOST = 10 << 20
INDEX, TIMES = segment_file(0, OFFSET_INDEX_SUFFIX), segment_file(0, TIME_INDEX_SUFFIX)
SEGMENT = ListedSegment(base_offset=0, size_bytes=1, has_offset_index=True, has_time_index=True)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A partition with two indexes of one entry, and of a hole."""
    for name, entry in ((INDEX, struct.pack(">ii", 5, 70)), (TIMES, struct.pack(">qi", 90, 5))):
        (tmp_path / name).write_bytes(entry)
        os.truncate(tmp_path / name, LONG)
    return LocalStore(tmp_path)


@contextmanager
def at_most(size_bytes: int) -> Iterator[None]:
    """Refuse a block that holds more memory at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size_bytes


def _opened(store: LocalStore) -> OffsetIndex:
    return OffsetIndex.of_file(0, partial(store.open_file, INDEX), INDEX, limit_bytes=LONG)


LOOKS: dict[str, tuple[Callable[[LocalStore], object], object]] = {
    "a search by offset": (lambda store: _opened(store).look_up(5), 0),  # as Kafka's
    "an audit": (
        lambda store: read_used(store, INDEX, OFFSET_INDEX_ENTRY, limit_bytes=LONG),
        (struct.pack(">ii", 5, 70), LONG),
    ),
    "a search by time": (lambda store: offset_search._look_up(store, SEGMENT, 100), (90, 5)),
    "a dump of offsets": (
        lambda store: list(parser_of(INDEX)(store, INDEX)),
        [("index", {"offset": 5, "position": 70})],
    ),
    "a dump of times": (
        lambda store: list(parser_of(TIMES)(store, TIMES)),
        [("timeindex", {"timestamp": 90, "offset": 5})],
    ),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_holds_no_more_of_it_than_a_piece(look: str, store: LocalStore):
    find, expected = LOOKS[look]
    with at_most(MOST):
        found = find(store)
    assert found == expected


def test_what_has_to_be_read_whole_is_held_once(store: LocalStore):
    with at_most(LONG + MOST):
        assert len(store.read_file(INDEX, limit_bytes=LONG)) == LONG


def test_one_that_is_longer_than_any_can_be_is_refused_unread(store: LocalStore):
    pieces = read_entries(store, TIMES, TIME_INDEX_ENTRY, limit_bytes=LONG - 1)
    with pytest.raises(StorageError, match="is longer than the"):
        next(pieces)


@pytest.mark.thorough
def test_a_dump_of_transactions_holds_no_more_of_them_than_a_piece(tmp_path: Path):
    name = segment_file(0, TXN_INDEX_SUFFIX)
    (tmp_path / name).write_bytes(bytes(200_000 * TXN_INDEX_ENTRY.itemsize) + b"\0\t" + bytes(32))
    entries = parser_of(name)(LocalStore(tmp_path), name)
    with (
        at_most(MOST),
        pytest.raises(IndexVersionError, match=f"position {200_000 * 34}: expected version 0"),
    ):
        for _ in entries:
            pass


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_pieces_say_the_same_as_the_whole(count: int, tmp_path: Path, monkeypatch):
    entries = [(90, 1), (80, 2), (0, 3), (95, 4), (120, 5), (0, 6), (0, 7)]
    data = b"".join(struct.pack(">qi", *entry) for entry in entries)
    (tmp_path / TIMES).write_bytes(data + b"torn")
    monkeypatch.setattr(segment_indexes, "_PIECE_BYTES", count * 12 + 5)
    store = LocalStore(tmp_path)
    pieces = read_entries(store, TIMES, TIME_INDEX_ENTRY, limit_bytes=1 << 20)
    assert [entry for piece in pieces for entry in piece.tolist()] == entries
    looks = [offset_search._look_up(store, SEGMENT, target) for target in (1, 85, 91, 110, 200)]
    assert looks == [(120, 3), (120, 3), (120, 3), (120, 4), (120, 5)]


def test_a_file_that_shrinks_within_an_entry_ends_before_that(tmp_path: Path, monkeypatch):
    data = b"".join(struct.pack(">qi", number, number) for number in range(5))
    (tmp_path / TIMES).write_bytes(data)
    monkeypatch.setattr(segment_indexes, "_PIECE_BYTES", 24)
    pieces = read_entries(LocalStore(tmp_path), TIMES, TIME_INDEX_ENTRY, limit_bytes=1 << 20)
    assert next(pieces).tolist() == [(0, 0), (1, 1)]
    os.truncate(tmp_path / TIMES, 40)
    assert next(pieces).tolist() == [(2, 2)]
    assert list(pieces) == []
