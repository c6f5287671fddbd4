"""Windows over a segment: always the same batches, and every lie is told with its place."""

import os
import tracemalloc
from collections import deque
from contextlib import closing
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import HEADER_BYTES, HEADER_UP_TO_MAGIC_BYTES, Codec
from storage_core.kernels import batch_scan
from storage_core.records import payload
from storage_core.records.reader import (
    LEAST_MAPPED_BYTES,
    CrcCheck,
    Tail,
    Window,
    WindowRoom,
    check_crc,
    find_zeros,
    join_files,
    scan_windows,
)
from storage_core.store.base import MappedReader
from storage_core.store.local import LocalFileReader, LocalStore
from tests.kit.builders import (
    BatchSpec,
    encode_batch,
    end_txn_marker,
    log_with,
    segment_bytes,
    some_batches,
)
from tests.kit.damage import truncated, with_lying_length, with_wrong_crc
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.strategies import hostile_batches, segments
from tests.storage_core.records.memory_file import FILE, MemoryFile, only_window_of, windows_of

LOG = log_with(batches=7)
BATCH = len(LOG) // 7
NOT_A_POSITION = [
    column for column in range(batch_scan.COLUMN_COUNT) if column != batch_scan.POSITION
]


def seen(window: Window) -> list[tuple[int, bytes, list[int]]]:
    """Return position in the file, bytes and header of every batch of a window."""
    batches = window.batches
    return [
        (
            window.position_of(row),
            window.data[batches.position[row] :][: batches.size[row]].tobytes(),
            batches.columns[NOT_A_POSITION, row].tolist(),
        )
        for row in range(len(batches))
    ]


def all_seen(data: bytes, **how: object) -> list[tuple[int, bytes, list[int]]]:
    return [batch for window in windows_of(data, **how) for batch in seen(window)]


def test_windows_of_every_size_hold_the_same_batches():
    specs = [*some_batches(count=3), *some_batches(count=2, records=20, base_offset=3)]
    log = segment_bytes([*specs, end_txn_marker(base_offset=43, producer_id=1, producer_epoch=0)])
    whole = all_seen(log)
    assert b"".join(data for _, data, _ in whole) == log
    for window_bytes in range(1, len(log) + 2):
        assert all_seen(log, window_bytes=window_bytes) == whole


@pytest.mark.thorough
@given(specs=segments(), window_bytes=st.integers(1, 2000))
def test_any_segment_is_the_same_in_any_windows(specs, window_bytes):
    log = segment_bytes(specs)
    found = all_seen(log, window_bytes=window_bytes, crc=CrcCheck.NOTE)
    assert b"".join(data for _, data, _ in found) == log
    assert found == all_seen(log, crc=CrcCheck.NOTE)


@pytest.mark.parametrize("window_bytes", [61, BATCH, 2 * BATCH, 2 * BATCH + 1, 5 * BATCH])
def test_a_window_holds_what_was_asked_for_or_one_batch(window_bytes):
    file = MemoryFile(LOG)
    sizes = [window.data.size for window in scan_windows(file, window_bytes=window_bytes)]
    assert sum(sizes) == len(LOG)
    assert max(sizes) <= max(window_bytes, BATCH)
    assert file.largest_read <= max(window_bytes, BATCH)


def test_a_window_has_room_for_any_number_of_batches():
    log = segment_bytes([BatchSpec(base_offset=7)]) * 5000
    window = only_window_of(log)
    assert len(window.batches) == 5000
    assert window.position_of(4999) == 4999 * HEADER_BYTES
    assert (window.batches.base_offset == 7).all()


def test_a_part_of_a_file_is_read():
    positions = [position for position, _, _ in all_seen(LOG, start=2 * BATCH, end=5 * BATCH)]
    assert positions == [2 * BATCH, 3 * BATCH, 4 * BATCH]
    assert all_seen(LOG, start=7 * BATCH) == []
    assert all_seen(LOG, start=BATCH, end=BATCH) == []
    assert len(all_seen(LOG, end=100 * BATCH)) == 7
    assert all_seen(b"") == []


@pytest.mark.item("FMT-28")
@pytest.mark.parametrize("tail", range(21), ids=lambda tail: f"{tail} bytes")
@pytest.mark.parametrize("window_bytes", [61, BATCH + 3, 1000])
def test_a_torn_tail_ends_the_reading_or_is_corruption(tail, window_bytes):
    log = log_with(batches=2, torn_tail=tail)
    found = all_seen(log, tail=Tail.STOP, window_bytes=window_bytes)
    assert [position for position, _, _ in found] == [0, BATCH]
    if tail:
        with pytest.raises(CorruptRecordError) as caught:
            all_seen(log, window_bytes=window_bytes)
        assert (caught.value.file, caught.value.position) == (FILE, 2 * BATCH)


@pytest.mark.parametrize("tail", [Tail.STOP, Tail.RAISE])
def test_an_end_inside_of_a_batch_makes_it_a_tail(tail):
    if tail is Tail.RAISE:
        with pytest.raises(CorruptRecordError, match=f"has {BATCH} bytes; expected 26 to 70"):
            all_seen(LOG, end=2 * BATCH + 70, tail=tail)
    else:
        assert len(all_seen(LOG, end=2 * BATCH + 70, tail=tail)) == 2


@pytest.mark.item("FMT-28")
@pytest.mark.parametrize("tail", Tail)
@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_an_impossible_length_is_corruption_even_in_the_tail(length, tail):
    log = LOG[:BATCH] + with_lying_length(LOG[BATCH:], length)
    with pytest.raises(CorruptRecordError, match=f"has {length + 12} bytes") as caught:
        all_seen(log, tail=tail)
    assert (caught.value.file, caught.value.position) == (FILE, BATCH)
    assert caught.value.kafka_code == 2


def test_a_length_past_the_end_takes_no_memory():
    log = LOG[:BATCH] + with_lying_length(LOG[BATCH:], 2**31 - 13)
    tracemalloc.start()
    with pytest.raises(CorruptRecordError, match=f"expected 26 to {6 * BATCH}"):
        all_seen(log, window_bytes=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def test_a_length_that_swallows_the_next_batches_fails_their_crc():
    log = with_lying_length(LOG, 3 * BATCH - 12)
    with pytest.raises(CorruptRecordError, match="CRC-32C of the batch at offset 0 is wrong"):
        all_seen(log)


@pytest.mark.item("FMT-02")
def test_a_wrong_crc_is_raised_noted_or_not_looked_at():
    batches = [LOG[i * BATCH :][:BATCH] for i in range(3)]
    log = batches[0] + with_wrong_crc(batches[1]) + batches[2]
    stored = int.from_bytes(batches[1][17:21], "big")
    with pytest.raises(CorruptRecordError, match=rf"offset 1 is wrong: stored {stored:#010x}") as e:
        all_seen(log)
    assert (e.value.file, e.value.position) == (FILE, BATCH)
    (noted,) = windows_of(log, crc=CrcCheck.NOTE)
    assert noted.batches.crc_ok.tolist() == [1, 0, 1]
    (skipped,) = windows_of(log, crc=CrcCheck.SKIP)
    assert (skipped.batches.crc_ok == batch_scan.CRC_NOT_CHECKED).all()
    (later,) = windows_of(log, crc=CrcCheck.LATER)
    assert (later.batches.crc_ok == batch_scan.CRC_NOT_CHECKED).all()
    with pytest.raises(CorruptRecordError) as told:
        check_crc(later)
    assert str(told.value) == str(e.value)


@pytest.mark.item("FMT-15", "FMT-28")
@pytest.mark.parametrize("window_bytes", [61, 100, 4096])
def test_formats_may_be_mixed_in_a_file(window_bytes):
    plain = LegacyMessage(offset=7, magic=0)
    packed = LegacySet(messages=(LegacyMessage(offset=8), LegacyMessage(offset=9)))
    old = [encode_entry(plain), encode_entry(packed)]
    windows = windows_of(LOG[:BATCH] + b"".join(old) + LOG[:BATCH], window_bytes=window_bytes)
    found = [
        (int(magic), int(base), int(last), int(count), int(ok))
        for window in windows
        for magic, base, last, count, ok in window.batches.columns[
            [
                batch_scan.MAGIC,
                batch_scan.BASE_OFFSET,
                batch_scan.LAST_OFFSET,
                batch_scan.RECORD_COUNT,
                batch_scan.CRC_OK,
            ]
        ].T
    ]
    assert found == [(2, 0, 0, 1, 1), (0, 7, 7, -1, 1), (1, 9, 9, -1, 1), (2, 0, 0, 1, 1)]
    with pytest.raises(CorruptRecordError, match="CRC-32 of the batch at offset 9 is wrong") as e:
        all_seen(LOG[:BATCH] + old[0] + with_wrong_crc(old[1]), window_bytes=window_bytes)
    assert (e.value.file, e.value.position) == (FILE, BATCH + len(old[0]))


@pytest.mark.item("FMT-28")
@pytest.mark.parametrize("magic", [3, 127])
def test_a_magic_above_2_is_read_as_v2(magic):
    # It lies outside of the CRC, so nothing but the magic itself can tell.
    (window,) = windows_of(LOG[:BATCH] + encode_batch(BatchSpec(base_offset=5, magic=magic)))
    assert window.batches.magic.tolist() == [2, magic]
    assert window.batches.base_offset.tolist() == [0, 5]
    assert window.batches.crc_ok.tolist() == [1, 1]
    assert window.batches.is_legacy.tolist() == [False, False]


@pytest.mark.item("FMT-28")
@pytest.mark.parametrize("magic", [-1, -128])
def test_a_negative_magic_is_read_as_an_old_entry(magic):
    entry = encode_entry(LegacyMessage(offset=5, timestamp=99, magic=magic))
    (window,) = windows_of(LOG[:BATCH] + entry)
    assert window.batches.is_legacy.tolist() == [False, True]
    assert window.batches.max_timestamp[1] == 99
    assert window.batches.crc_ok.tolist() == [1, 1]


@pytest.mark.item("FMT-28")
def test_a_batch_smaller_than_its_header_is_never_valid():
    log = LOG[:BATCH] + with_lying_length(LOG[BATCH:], 48)[:60] + LOG[:BATCH]
    with pytest.raises(CorruptRecordError, match="fewer than a header's 61") as caught:
        all_seen(log)
    assert (caught.value.file, caught.value.position) == (FILE, BATCH)
    for crc in (CrcCheck.NOTE, CrcCheck.SKIP):
        (window,) = windows_of(log, crc=crc)
        assert window.batches.crc_ok[1] == 0
        assert window.batches.size.tolist() == [BATCH, 60, BATCH]


@pytest.mark.parametrize("window_bytes", [BATCH, 10 * BATCH])
def test_a_file_that_shrinks_while_it_is_read_is_told(window_bytes):
    file = MemoryFile(LOG[: 2 * BATCH + 5], size_bytes=len(LOG))
    with pytest.raises(CorruptRecordError, match=f"it had {len(LOG)} bytes") as caught:
        list(scan_windows(file, window_bytes=window_bytes))
    assert caught.value.position == 2 * BATCH + 5


@pytest.mark.item("FMT-23")
def test_headers_of_compressed_batches_are_read_without_their_codecs(monkeypatch):
    specs = [spec for codec in Codec for spec in some_batches(count=1, records=5, codec=codec)]

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("a codec was called")

    log = segment_bytes(specs)
    monkeypatch.setattr(payload, "decompress", refuse)
    window = only_window_of(log)
    assert window.batches.codec.tolist() == [0, 1, 2, 3, 4]
    assert (window.batches.record_count == 5).all()
    assert (window.batches.last_offset == 4).all()


@pytest.mark.item("FMT-12")
def test_control_batches_are_known_by_their_type():
    marker = end_txn_marker(base_offset=1, producer_id=4, producer_epoch=2, coordinator_epoch=6)
    window = only_window_of(segment_bytes([*some_batches(count=1), marker]))
    assert window.batches.is_control.tolist() == [False, True]
    assert window.batches.control_type.tolist() == [batch_scan.NOT_CONTROL, 1]
    assert window.batches.coordinator_epoch.tolist() == [-1, 6]


@pytest.mark.thorough
@given(batch=hostile_batches(), window_bytes=st.sampled_from([1, 100, 4096]))
def test_hostile_batches_are_read_or_refused_with_their_place(batch, window_bytes):
    log = LOG[: 2 * BATCH] + batch
    for tail in Tail:
        error = None
        try:
            found = all_seen(log, tail=tail, window_bytes=window_bytes)
        except CorruptRecordError as refusal:
            error = refusal
        if error is None:
            assert log.startswith(b"".join(data for _, data, _ in found))
        else:
            assert error.file == FILE
            assert 2 * BATCH <= error.position <= len(log)


def test_a_torn_header_is_a_tail_at_every_byte():
    for size in range(1, BATCH):
        log = LOG[:BATCH] + truncated(LOG[:BATCH], size)
        assert len(all_seen(log, tail=Tail.STOP)) == 1
        with pytest.raises(CorruptRecordError):
            all_seen(log)


def test_windows_share_their_bytes():
    windows = windows_of(LOG, window_bytes=BATCH)
    first = next(windows)
    second = next(windows)
    assert np.shares_memory(first.data, second.data)


class MappedFile(MemoryFile, MappedReader):
    """Bytes that need not be copied; knows which were looked at as they are."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.mapped: list[int] = []
        self._bytes = np.frombuffer(bytearray(data), np.uint8)

    def map(self, position: int, size_bytes: int) -> np.ndarray:
        self.mapped.append(size_bytes)
        return self._bytes[position : position + size_bytes]


def test_windows_of_a_file_that_may_be_mapped_are_copied_where_they_are_small():
    log = LOG * (3 * LEAST_MAPPED_BYTES // len(LOG))
    for data, least in ((LOG, 0), (log, 2)):
        file = MappedFile(data)
        windows = list(scan_windows(file, window_bytes=LEAST_MAPPED_BYTES))
        assert sum(window.data.size for window in windows) == len(data)
        assert file.mapped == [LEAST_MAPPED_BYTES] * max(len(windows) - 1, 0)
        assert len(file.mapped) >= least


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at_once", [1, 2, 3])
@given(specs=segments(), window_bytes=st.integers(1, 500))
def test_as_many_windows_as_there_are_rooms_stay_as_they_are(at_once, specs, window_bytes):
    log = segment_bytes(specs)
    how = {"window_bytes": window_bytes, "crc": CrcCheck.NOTE}
    expected = [seen(window) for window in windows_of(log, **how)]
    windows: list[Window] = []
    rooms = deque(WindowRoom() for _ in range(at_once))
    # Another scan goes on in the rooms of the first one.
    scans = (scan_windows(MemoryFile(log), rooms=rooms, **how) for _ in range(2))
    for number, window in enumerate(chain.from_iterable(scans)):
        windows.append(window)
        for each in range(max(0, number + 1 - at_once), number + 1):
            assert seen(windows[each]) == expected[each % len(expected)]


def test_where_zeros_fill_the_rest_they_are_the_end_to_who_reads_and_damage_to_who_loads():
    for zeros in (1, 11, 12, 17, 18, 4096, 3 << 20):
        data = LOG + bytes(zeros)
        assert all_seen(data, tail=Tail.ZEROS) == all_seen(LOG)
        assert all_seen(data, tail=Tail.ZEROS, window_bytes=BATCH + 5) == all_seen(LOG)
        if zeros > HEADER_UP_TO_MAGIC_BYTES:
            with pytest.raises(CorruptRecordError, match=f"position {len(LOG)}"):
                all_seen(data, tail=Tail.STOP)
    for behind in (b"x", LOG):
        with pytest.raises(CorruptRecordError, match=f"position {len(LOG)}"):
            all_seen(LOG + bytes(3 << 20) + behind, tail=Tail.ZEROS)


@given(st.lists(st.tuples(st.sampled_from([b"\0", b"x"]), st.integers(0, 3000)), max_size=6))
def test_zeros_begin_behind_the_last_byte_that_is_none(parts):
    data = b"".join(letter * count for letter, count in parts)
    reader = MemoryFile(data)
    for start in {0, len(data) // 3, len(data)}:
        expected = max(start, len(data.rstrip(b"\0")))
        assert find_zeros(reader, start, len(data)) == expected


@pytest.mark.parametrize("size", [5, 5000, (1 << 30) + 7])
def test_a_hole_at_the_end_of_a_file_is_not_read(tmp_path, monkeypatch, size):
    (tmp_path / FILE).write_bytes(LOG)
    os.truncate(tmp_path / FILE, len(LOG) + size)
    read = []
    read_into = LocalFileReader.read_into

    def counted(self, position, target):
        read.append(len(target))
        return read_into(self, position, target)

    monkeypatch.setattr(LocalFileReader, "read_into", counted)
    with closing(LocalStore(tmp_path).open_file(FILE)) as reader:
        assert find_zeros(reader, 0, reader.size_bytes) == len(LOG.rstrip(b"\0"))
    assert sum(read) <= 2 << 20


def joined(
    folder: Path, *contents: bytes, sizes: list[int] | None = None
) -> tuple[Window | None, deque[WindowRoom]]:
    """Write files 0, 1 ... and read them as one window."""
    names = [str(number) for number in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    rooms = deque([WindowRoom()])
    sizes = sizes or [len(content) for content in contents]
    return join_files(LocalStore(folder), names, sizes, rooms), rooms


def test_files_of_one_window_are_told_apart(tmp_path):
    window, _ = joined(
        tmp_path, LOG[: 2 * BATCH], b"", LOG[2 * BATCH : 5 * BATCH], LOG[5 * BATCH :]
    )
    assert window is not None
    assert window.data.tobytes() == LOG
    assert window.batches.columns[NOT_A_POSITION].T.tolist() == [
        header for _, _, header in seen(next(windows_of(LOG, crc=CrcCheck.LATER)))
    ]
    assert window.row_bounds().tolist() == [0, 2, 2, 5, 7]
    assert window.begins.tolist() == [0, 2 * BATCH, 2 * BATCH, 5 * BATCH]
    places = [window.place_of(row) for row in range(7)]
    assert places == [
        *[("0", BATCH * row) for row in range(2)],
        *[("2", BATCH * row) for row in range(3)],
        *[("3", BATCH * row) for row in range(2)],
    ]


def test_a_window_of_one_file_is_its_own_place():
    first, second = windows_of(LOG, window_bytes=4 * BATCH)
    assert (first.row_bounds().tolist(), first.begins.tolist()) == ([0, 4], [0])
    assert (second.row_bounds().tolist(), second.begins.tolist()) == ([0, 3], [-4 * BATCH])
    assert second.place_of(2) == (FILE, 6 * BATCH)


@pytest.mark.parametrize(
    ("contents", "sizes"),
    [
        pytest.param([LOG, LOG[:-1]], None, id="a cut at the end"),
        pytest.param([LOG[:-1], LOG], None, id="a cut before another file"),
        # The second file would go on with what the first one has begun.
        pytest.param([LOG[:100], LOG[100:]], None, id="a batch over both"),
        pytest.param([LOG[: BATCH + 8], LOG[BATCH + 8 :]], None, id="a header over both"),
        pytest.param([b"", b""], None, id="nothing"),
        pytest.param([LOG, LOG], [len(LOG), len(LOG) - BATCH], id="longer than listed"),
        pytest.param([LOG, LOG], [len(LOG), len(LOG) + BATCH], id="shorter than listed"),
    ],
)
def test_files_that_are_not_whole_batches_are_not_joined(tmp_path, contents, sizes):
    window, rooms = joined(tmp_path, *contents, sizes=sizes)
    assert window is None
    assert rooms[0].joined is None


def test_a_window_that_lies_there_already_is_handed_out_once(tmp_path, monkeypatch):
    window, rooms = joined(tmp_path, LOG, LOG)
    store, sizes = LocalStore(tmp_path), [len(LOG), len(LOG)]
    with monkeypatch.context() as unread:
        unread.delattr(LocalStore, "open_file")
        assert join_files(store, ["0", "1"], sizes, rooms) is window
    again = join_files(store, ["0", "1"], sizes, rooms)
    assert again is not window
    # What is read into the same room takes its place.
    with closing(store.open_file("0")) as reader:
        next(scan_windows(reader, rooms=rooms))
    assert rooms[0].joined is None


def test_rooms_take_turns(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(LOG)
    rooms = deque([WindowRoom(), WindowRoom()])
    store = LocalStore(tmp_path)
    first = join_files(store, ["a", "b"], [len(LOG)] * 2, rooms)
    second = join_files(store, ["a"], [len(LOG)], rooms)
    assert first is not None
    assert second is not None
    assert not np.shares_memory(first.data, second.data)
    assert rooms[0].joined is first
