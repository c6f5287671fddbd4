"""Indexes that are longer than their entries: who looks reads no more than it looks at."""

import os
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pylog_spark.cli.dump_segment import parser_of
from pylog_spark.operations.doctor.task import ForecastRow, forecast_partition
from pylog_spark.operations.verify.task import Target
from pylog_spark.rows import row_writer
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import IndexVersionError, StorageError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.index import segment_indexes
from storage_core.index.segment_indexes import OffsetIndex, read_entries, read_last_entry, read_used
from storage_core.log import committed_view as offset_search
from storage_core.log.batch_search import ListedSegment, find_start_position
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.verification.findings import Code, DirectoryContext, VerifyOptions
from storage_core.reading.inspection import inspect_partition, inspect_root
from storage_core.store.local import LocalFileReader, LocalStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.one_partition import verify_partition

NOW_MS = 1_700_000_000_000
INDEX_BYTES, TIME_INDEX_BYTES = 10_485_760, 10_485_756
STEM = "0" * 20
LONG_INDEX = STEM + OFFSET_INDEX_SUFFIX
PLACE = TopicPartition("t", 0)
BATCHES = 40
# Of both indexes together, in each look: two pages or so, of 20 MiB.
MOST_READ = 4 * (64 << 10)


def preallocate(directory: Path, *, with_holes: bool = True) -> Path:
    """Make the indexes of a partition as long as a broker does that has not closed them."""
    for suffix, size in ((OFFSET_INDEX_SUFFIX, INDEX_BYTES), (TIME_INDEX_SUFFIX, TIME_INDEX_BYTES)):
        path = directory / (STEM + suffix)
        if with_holes:
            os.truncate(path, size)
        else:
            path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    return directory


def partition(root: Path, batches: int) -> Path:
    """Write a partition of one segment with an index entry a batch."""
    specs = [
        BatchSpec(base_offset=n, records=(RecordSpec(timestamp=NOW_MS + n),))
        for n in range(batches)
    ]
    segment = SegmentSpec(base_offset=0, batches=specs)
    return write_partition(root / str(PLACE), [segment], index_interval_bytes=0)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that are read of each file."""
    counts: Counter[str] = Counter()
    read_into, read_file = LocalFileReader.read_into, LocalStore.read_file

    def counted_read(reader: LocalFileReader, position: int, target: NDArray[np.uint8]) -> int:
        filled = read_into(reader, position, target)
        counts[reader.name] += filled
        return filled

    def counted_file(store: LocalStore, name: str, *, limit_bytes: int) -> bytes:
        content = read_file(store, name, limit_bytes=limit_bytes)
        counts[name] += len(content)
        return content

    monkeypatch.setattr(LocalFileReader, "read_into", counted_read)
    monkeypatch.setattr(LocalStore, "read_file", counted_file)
    return counts


def inspected(directory: Path) -> dict[str, Any]:
    view = inspect_root(directory.parent)
    return inspect_partition(view, view.entries[0], now_ms=NOW_MS)


UNCLEAN = DirectoryContext(role=Role.BROKER, is_clean=False)


def verified(directory: Path) -> list[Code]:
    options = VerifyOptions(now_ms=NOW_MS)
    _, findings = verify_partition(LocalStore(directory), UNCLEAN, options, PartitionCheckpoints())
    return sorted(finding.code for finding in findings)


def foretold(directory: Path) -> dict[str, Any]:
    target = Target(
        ordinal=0,
        root=str(directory.parent),
        directory=str(directory),
        partition=PLACE,
        checkpoints=PartitionCheckpoints(),
        context=UNCLEAN,
        roots=(),
    )
    return row_writer(ForecastRow)(forecast_partition(target, NOW_MS, LogConfig()))


def recovered(directory: Path) -> int:
    store = LocalStore(directory)
    config, cleaner = LogConfig(), CleanerConfig()
    return plan_recovery(store, config=config, cleaner=cleaner, now_ms=NOW_MS).log_end_offset


def sought(directory: Path) -> int:
    size = (directory / f"{STEM}.log").stat().st_size
    segment = ListedSegment(
        base_offset=0, size_bytes=size, has_offset_index=True, has_time_index=True
    )
    return find_start_position(LocalStore(directory), segment, BATCHES // 2)


LOOKS: dict[str, Callable[[Path], Any]] = {
    "inspect": inspected,
    "verify": verified,
    "forecast": foretold,
    "recover": recovered,
    "a read from an offset": sought,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("batches", [0, BATCHES], ids=["empty", "with records"])
def test_a_look_does_not_read_the_hole_of_an_index(look, batches, tmp_path, bytes_read):
    LOOKS[look](preallocate(partition(tmp_path, batches)))
    read = sum(count for name, count in bytes_read.items() if "index" in name)
    assert read <= MOST_READ


@pytest.mark.parametrize("look", sorted(LOOKS.keys() - {"verify"}))
def test_zeros_that_were_written_are_searched_through(look, tmp_path, bytes_read):
    LOOKS[look](preallocate(partition(tmp_path, BATCHES), with_holes=False))
    read = sum(count for name, count in bytes_read.items() if "index" in name)
    assert read <= 4 * MOST_READ


@pytest.mark.parametrize("look", LOOKS)
def test_holes_written_zeros_and_no_zeros_give_one_answer(look: str, tmp_path: Path):
    answers = []
    for name, lay in {
        "hole": preallocate,
        "zeros": partial(preallocate, with_holes=False),
        "cut": lambda directory: directory,
    }.items():
        answer = LOOKS[look](lay(partition(tmp_path / name, BATCHES)))
        if isinstance(answer, dict):
            for of_the_place in ("root", "directory", "index_bytes", "duration_ms"):
                answer.pop(of_the_place, None)
        if look == "verify":
            answer = [code for code in answer if code is not Code.INDEX_PREALLOCATED]
        answers.append(answer)
    assert answers[0] == answers[1] == answers[2]


def test_an_inspection_takes_the_last_entry_before_the_zeros(tmp_path, bytes_read):
    directory = preallocate(partition(tmp_path, BATCHES))
    row = inspected(directory)
    assert row["log_end_offset"] == BATCHES
    assert row["newest_timestamp"] == NOW_MS + BATCHES - 1
    assert row["error"] is None


def test_a_read_begins_at_the_entry_and_not_at_the_front_of_the_log(tmp_path: Path):
    directory = preallocate(partition(tmp_path, BATCHES))
    batch_bytes = (directory / f"{STEM}.log").stat().st_size // BATCHES
    assert sought(directory) == (BATCHES // 2) * batch_bytes


entry_lists = st.lists(
    st.tuples(st.integers(-3, 40), st.integers(-3, 40)) | st.just((0, 0)), max_size=60
)


@settings(deadline=None, max_examples=60)
@given(entries=entry_lists, page_entries=st.integers(1, 9), zeros=st.integers(0, 30))
def test_a_search_page_by_page_answers_as_in_the_whole_file(
    entries: list[tuple[int, int]], page_entries: int, zeros: int, tmp_path_factory: Any
):
    folder = tmp_path_factory.mktemp("pages")
    data = b"".join(struct.pack(">ii", *entry) for entry in entries) + bytes(8 * zeros) + b"torn"
    (folder / LONG_INDEX).write_bytes(data)
    store = LocalStore(folder)
    whole = OffsetIndex.parse(7, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_indexes, "_WHOLE_BYTES", 0)
        patch.setattr(segment_indexes, "_PAGE_BYTES", page_entries * 8)
        paged = OffsetIndex.of_file(
            7, partial(store.open_file, LONG_INDEX), LONG_INDEX, limit_bytes=1 << 20
        )
        assert paged.last_offset == whole.last_offset
        for target in range(60):
            assert paged.look_up(target) == whole.look_up(target)
            assert paged.find_offset_at(target) == whole.find_offset_at(target)


@settings(deadline=None, max_examples=40)
@given(
    data=st.lists(st.sampled_from([0, 0, 0, 1]), max_size=200).map(bytes),
    hole=st.integers(0, 40_000),
    piece_bytes=st.integers(1, 90),
)
def test_what_is_used_is_all_but_the_zeros_at_the_end(data, hole, piece_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("used")
    (folder / LONG_INDEX).write_bytes(data)
    os.truncate(folder / LONG_INDEX, len(data) + hole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_indexes, "_PIECE_BYTES", piece_bytes)
        used = read_used(LocalStore(folder), LONG_INDEX, OFFSET_INDEX_ENTRY, limit_bytes=1 << 20)
    assert used.file_bytes == len(data) + hole
    whole = data + bytes(hole)
    end = -(-len(data.rstrip(b"\0")) // 8) * 8
    assert used.content == whole[: min(end, len(whole))]


def test_the_last_entry_of_a_closed_index_is_its_last_whatever_it_is(tmp_path: Path):
    name = STEM + TIME_INDEX_SUFFIX
    (tmp_path / name).write_bytes(struct.pack(">qi", 90, 5) + bytes(24) + b"torn")
    reader = LocalStore(tmp_path).open_file(name)
    assert read_last_entry(reader, TIME_INDEX_ENTRY) == bytes(12)
    assert read_last_entry(reader, TIME_INDEX_ENTRY, is_closed=False) == struct.pack(">qi", 90, 5)
    reader.close()


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


SMALL_LOOKS: dict[str, tuple[Callable[[LocalStore], object], object]] = {
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


@pytest.mark.parametrize("look", SMALL_LOOKS)
def test_a_look_holds_no_more_of_it_than_a_piece(look: str, store: LocalStore):
    find, expected = SMALL_LOOKS[look]
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
