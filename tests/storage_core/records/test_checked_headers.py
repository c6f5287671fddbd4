"""Headers alone, every checksum checked: as with records, up to any damage, and sought in it."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError, PylogError, StorageError
from storage_core.kernels import batch_scan
from storage_core.records import checked_headers
from storage_core.records.checked_headers import guess_batch_start, scan_checked_headers
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    log_with,
    segment_bytes,
    some_batches,
)
from tests.kit.damage import truncated, with_lying_length, with_wrong_crc
from tests.kit.strategies import hostile_batches
from tests.storage_core.records.memory_file import (
    DescriptorFile,
    MemoryFile,
    SharedMemoryFile,
)

SPECS = [
    *some_batches(count=3),
    *some_batches(count=40, records=20, base_offset=3),
    end_txn_marker(base_offset=803, producer_id=1, producer_epoch=0),
    *some_batches(count=9, base_offset=804),
]
LOG = segment_bytes(SPECS)


def damaged_log(damage: Callable[[bytes], bytes]) -> bytes:
    """Return the log with one batch in its middle damaged."""
    before, after = segment_bytes(SPECS[:20]), segment_bytes(SPECS[21:])
    return before + damage(encode_batch(SPECS[20])) + after


def with_impossible_length(batch: bytes) -> bytes:
    return with_lying_length(batch, -1)


def rows_of(windows: list[Window]) -> NDArray[np.int64]:
    """Return the headers of all windows with positions in the file, one column a batch."""
    parts = [np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)]
    for window in windows:
        part = window.batches.columns.copy()
        part[batch_scan.POSITION] += window.file_position
        parts.append(part)
    return np.concatenate(parts, axis=1)


def scanned(
    scan: Any, data: bytes, file_of: Any = SharedMemoryFile, **how: Any
) -> tuple[NDArray[np.int64], str]:
    """Return what a scan gives, and the error with which it ends."""
    windows, error = [], ""
    try:
        with closing(file_of(data)) as file:
            for window in scan(file, **how):
                columns = window.batches.columns.copy()
                window = Window(  # noqa: PLW2901 - the next window may overwrite it
                    window.file, window.file_position, window.data, type(window.batches)(columns)
                )
                windows.append(window)
    except PylogError as caught:
        error = str(caught)
    return rows_of(windows), error


def with_records(data: bytes, **how: Any) -> tuple[NDArray[np.int64], str]:
    how = {"large": Large.HEADER, **how}
    return scanned(scan_windows, data, crc=CrcCheck.NOTE, tail=Tail.STOP, **how)


def assert_same(data: bytes, **how: Any) -> None:
    expected, expected_error = with_records(data)
    for file_of in (SharedMemoryFile, DescriptorFile):
        rows, error = scanned(scan_checked_headers, data, file_of, **how)
        assert error == expected_error
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("window_bytes", [1, 700, 4000, 8 << 20])
def test_pieces_and_windows_of_any_size_give_the_same_headers(
    monkeypatch, piece_bytes, window_bytes
):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", piece_bytes)
    assert_same(LOG, window_bytes=window_bytes)


def test_pieces_are_read_in_turn_and_handed_on_together(monkeypatch):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", 2000)
    file = MemoryFile(LOG)
    (window,) = scan_checked_headers(file)
    assert file.largest_read <= 2000
    assert (window.size_bytes, window.data.size, window.is_whole) == (len(LOG), 0, False)
    assert window.batches.crc_ok.tolist() == [1] * 53


@pytest.mark.parametrize(("limit", "most"), [("MOST_ROWS", 10), ("MOST_BYTES", 5000)])
def test_no_more_than_so_much_is_handed_on_at_once(monkeypatch, limit, most):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", 500)
    monkeypatch.setattr(checked_headers, limit, most)
    windows = list(scan_checked_headers(MemoryFile(LOG)))
    assert len(windows) > 3
    assert_same(LOG)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(damaged_log(with_wrong_crc), id="wrong checksum"),
        pytest.param(truncated(LOG, len(LOG) - 5), id="torn last batch"),
        pytest.param(truncated(LOG, 30), id="nothing whole"),
        pytest.param(b"", id="empty"),
        pytest.param(damaged_log(with_impossible_length), id="impossible length"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [300, 1 << 20])
def test_damage_is_told_as_it_is_with_records(monkeypatch, damaged, piece_bytes):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", piece_bytes)
    assert_same(damaged)


def test_all_before_an_impossible_length_comes_before_the_error(monkeypatch):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", 600)
    damaged = damaged_log(with_impossible_length)
    windows = scan_checked_headers(MemoryFile(damaged))
    assert len(next(windows).batches) == 20
    with pytest.raises(CorruptRecordError):
        next(windows)


@given(data=hostile_batches(), piece_bytes=st.integers(1, 400))
def test_hostile_bytes_end_as_they_do_with_records(data, piece_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_headers, "_PIECE_BYTES", piece_bytes)
        assert_same(data)


def test_a_large_batch_is_left_out_or_read_as_asked(monkeypatch):
    monkeypatch.setattr("storage_core.records.reader.LARGE_BATCH_BYTES", 1000)
    data = log_with(batches=2) + log_with(batches=1, records=200) + log_with(batches=2)
    for large in Large:
        for file_of in (SharedMemoryFile, DescriptorFile):
            rows, error = scanned(scan_checked_headers, data, file_of, large=large)
            assert error == ""
            np.testing.assert_array_equal(rows, with_records(data, large=large)[0])


def test_machine_code_reads_all_pieces_of_an_open_file(monkeypatch):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", 2000)
    with closing(DescriptorFile(LOG)) as file:
        (window,) = scan_checked_headers(file)
    assert file.largest_read == 0
    assert (window.size_bytes, window.data.size, window.is_whole) == (len(LOG), 0, False)


def test_a_batch_larger_than_a_piece_is_read_alone(monkeypatch):
    monkeypatch.setattr(checked_headers, "_PIECE_BYTES", 1000)
    small, large = log_with(batches=2), log_with(batches=1, records=200)
    with closing(DescriptorFile(small + large + small)) as file:
        windows = list(scan_checked_headers(file))
    assert [len(window.batches) for window in windows] == [2, 1, 2]
    assert file.largest_read == len(large)


def test_a_file_that_was_cut_while_it_is_read_fails_with_its_error():
    with closing(DescriptorFile(LOG)) as file:
        file.size_bytes += 100
        with pytest.raises(CorruptRecordError, match="the file ends here while it is read"):
            list(scan_checked_headers(file))


@pytest.mark.usefixtures("short_stretches")
def test_threads_take_memory_for_as_many_as_work_at_the_same_time(monkeypatch):
    made = []
    monkeypatch.setattr(
        checked_headers, "read_checked", lambda *args: made.append(id(args[5])) or read(*args)
    )
    read = batch_scan.read_checked
    with closing(DescriptorFile(LOG)) as file:
        list(scan_checked_headers(file, threads=2))
    assert len(made) > 4
    assert len(set(made)) <= 2


@pytest.fixture
def short_stretches(monkeypatch):
    """Let threads take stretches of a few batches."""
    monkeypatch.setattr(checked_headers, "_STRETCH_BYTES", 3000)


DAMAGES = [
    pytest.param(LOG, id="none"),
    pytest.param(damaged_log(with_wrong_crc), id="wrong checksum"),
    pytest.param(truncated(LOG, len(LOG) - 5), id="torn last batch"),
    pytest.param(damaged_log(with_impossible_length), id="impossible length"),
    pytest.param(damaged_log(lambda batch: batch[:-7]), id="bytes missing"),
    pytest.param(damaged_log(lambda batch: batch + bytes(5000)), id="zeros between"),
    pytest.param(LOG + bytes(9000), id="zeros behind"),
    pytest.param(bytes(20_000), id="zeros alone"),
]


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("data", DAMAGES)
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_find_what_one_finds_and_end_with_its_error(data, threads):
    assert_same(data, threads=threads)


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("most_bytes", [1, 7000, 64 << 20], ids=lambda most: f"{most} together")
def test_stretches_are_checked_by_threads_and_none_is_read_again(monkeypatch, most_bytes):
    monkeypatch.setattr(checked_headers, "MOST_BYTES", most_bytes)
    scanned_by = []
    scan = checked_headers._scan

    def noted(reader, *, start, end, **how):
        scanned_by.append((start, end, threading.current_thread().name))
        return scan(reader, start=start, end=end, **how)

    monkeypatch.setattr(checked_headers, "_scan", noted)
    list(scan_checked_headers(SharedMemoryFile(LOG), threads=2))
    *stretches, rest = sorted(scanned_by)
    assert len(stretches) > 3
    assert [start for start, _, _ in stretches] == [0, *(end for _, end, _ in stretches[:-1])]
    assert all(name.startswith("pylog-beside") for _, _, name in stretches)
    assert rest[:2] == (len(LOG), len(LOG))


@pytest.mark.usefixtures("short_stretches")
def test_batches_in_the_value_of_a_record_are_no_place_to_begin():
    inner = segment_bytes(some_batches(count=60, base_offset=10_000))
    outer = [
        BatchSpec(records=(RecordSpec(key=b"k", value=inner),), base_offset=offset)
        for offset in range(6)
    ]
    data = segment_bytes(outer)
    places = [guess_batch_start(MemoryFile(data), at, len(data)) for at in (3000, 9000)]
    starts = rows_of(list(scan_checked_headers(MemoryFile(data))))[batch_scan.POSITION]
    assert not set(places) & set(starts.tolist())
    assert_same(data, threads=2)


@pytest.mark.usefixtures("short_stretches")
def test_a_thread_that_finds_too_many_batches_leaves_the_rest(monkeypatch):
    monkeypatch.setattr(checked_headers, "MOST_ROWS", 2)
    monkeypatch.setattr(checked_headers, "_STRETCH_ROWS", 3)
    assert_same(LOG, threads=2)


@pytest.mark.usefixtures("short_stretches")
def test_a_file_that_cannot_be_read_to_its_end_fails_after_all_before_it():
    class Bad(SharedMemoryFile):
        def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
            if position + len(target) > len(LOG) * 3 // 4:
                raise StorageError(self.name, "the disk failed")
            return super().read_into(position, target)

    def ended(threads: int) -> tuple[int, str]:
        rows = 0
        try:
            for window in scan_checked_headers(Bad(LOG), window_bytes=500, threads=threads):
                rows += len(window.batches)
        except StorageError as error:
            return rows, str(error)
        raise AssertionError("nothing failed")

    assert ended(2) == ended(1)


@pytest.mark.usefixtures("short_stretches")
def test_of_a_file_that_threads_cannot_share_one_reads():
    class Alone(MemoryFile):
        def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
            assert threading.current_thread() is threading.main_thread()
            return super().read_into(position, target)

    windows = scan_checked_headers(Alone(LOG), threads=2)
    np.testing.assert_array_equal(rows_of(list(windows)), with_records(LOG)[0])


@pytest.mark.usefixtures("short_stretches")
def test_threads_end_with_whoever_asked_for_windows(monkeypatch):
    monkeypatch.setattr(checked_headers, "_STRETCH_BYTES", 500)
    before = threading.active_count()
    with closing(scan_checked_headers(SharedMemoryFile(LOG), threads=3)) as windows:
        next(windows)
    assert threading.active_count() == before


@pytest.mark.thorough
@given(data=hostile_batches(), stretch_bytes=st.integers(1, 400), threads=st.integers(2, 4))
def test_hostile_bytes_are_the_same_to_threads(data, stretch_bytes, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_headers, "_STRETCH_BYTES", stretch_bytes)
        assert_same(data, threads=threads)


SOUGHT = segment_bytes(some_batches(count=30, records=8))


def guess(data: bytes, position: int) -> int | None:
    return guess_batch_start(MemoryFile(data), position, len(data))


def starts_of(data: bytes) -> list[int]:
    (window,) = scan_windows(MemoryFile(data))
    return [int(position) for position in window.batches.position]


def test_the_next_batch_is_found_from_every_place():
    starts = np.array(starts_of(SOUGHT))
    for position in range(starts[-2] + 1):
        assert guess(SOUGHT, position) == starts[np.searchsorted(starts, position)]


def test_the_last_batch_is_no_place_to_begin_as_none_follows():
    assert guess(SOUGHT, starts_of(SOUGHT)[-2] + 1) is None


def test_nothing_behind_the_stop_counts():
    starts = starts_of(SOUGHT)
    assert guess_batch_start(MemoryFile(SOUGHT), 1, starts[3]) == starts[1]
    assert guess_batch_start(MemoryFile(SOUGHT), 1, starts[3] - 1) is None


def test_batches_that_are_large_are_found_in_a_larger_look():
    value = bytes(200_000)
    specs = [
        BatchSpec(records=(RecordSpec(key=b"k", value=value),), base_offset=offset)
        for offset in range(4)
    ]
    data = segment_bytes(specs)
    assert guess(data, 1000) == starts_of(data)[1]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(100_000), id="zeros"),
        pytest.param(bytes([2, 0]) * 50_000, id="bytes like those of headers"),
        pytest.param(encode_batch(some_batches(count=1)[0]) * 9, id="offsets that do not rise"),
        pytest.param(
            b"".join(with_lying_length(encode_batch(spec), 7) for spec in some_batches(count=9)),
            id="lengths that lie",
        ),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_no_batch_is_no_place_to_begin(data):
    assert guess(data, 0) is None
