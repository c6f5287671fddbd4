"""Objects read by range, ahead of a reader; a partition as one listing of them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import errors
from storage_core.filenames import COMPANIONS_SUFFIX
from storage_core.records.reader import scan_windows
from storage_core.store import ObjectDirectory, object_files, open_store
from storage_core.store.generations import FileEntry
from storage_core.store.object_files import (
    BLOCKS_AHEAD,
    BytesReader,
    EntryReader,
    KeptStretches,
    ObjectFileReader,
)
from tests.kit.builders import log_with
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.wrapped_objects import CountingObjects

BLOCK = 1 << 20
CONTENT = np.random.default_rng(3).integers(0, 256, 10 * BLOCK + 123, np.uint8)


class NotedReads(MemoryObjectStore):
    """Notes what was asked for, and how much at once."""

    def __init__(self, content: bytes = CONTENT.tobytes()) -> None:
        super().__init__("memory://reader")
        self.etag = self.put("key", content)
        self.reads: list[tuple[int, int]] = []
        self.most_at_once = 0
        self._now = 0
        self._noting = threading.Lock()
        self.seconds = 0.0

    def read_into(self, key, start, target, *, etag=""):
        with self._noting:
            self.reads.append((start, target.size))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(self.seconds)
        count = super().read_into(key, start, target, etag=etag)
        with self._noting:
            self._now -= 1
        return count


def open_reader(objects: NotedReads, **more) -> ObjectFileReader:
    size = more.pop("size_bytes", CONTENT.size)
    reader = ObjectFileReader(
        objects, "key", name="x.log", size_bytes=size, etag=objects.etag, **more
    )
    reader.block_bytes = BLOCK
    return reader


def read(reader: ObjectFileReader | BytesReader, position: int, size: int) -> bytes:
    target = np.empty(size, np.uint8)
    return target[: reader.read_into(position, target)].tobytes()


def test_a_sequential_reader_gets_each_byte_once_and_in_time():
    objects = NotedReads()
    objects.seconds = 0.002
    reader = open_reader(objects)
    window, position, parts = BLOCK, 0, []
    while position < CONTENT.size:
        parts.append(read(reader, position, window))
        position += len(parts[-1])
    assert b"".join(parts) == CONTENT.tobytes()
    # The first window as it was asked for, then whole blocks, none twice. Threads read ahead: the
    # first may be noted behind others.
    reads = sorted(objects.reads)
    assert reads[0] == (0, window)
    assert [start for start, _ in reads[1:]] == [number * BLOCK for number in range(1, 11)]
    assert 1 < objects.most_at_once <= BLOCKS_AHEAD + 1
    reader.close()


def test_windows_that_overlap_are_not_fetched_twice():
    objects = NotedReads()
    reader = open_reader(objects)
    position = 0
    while position + 1000 < CONTENT.size:
        part = read(reader, position, BLOCK)
        assert part == CONTENT[position : position + BLOCK].tobytes()
        position += len(part) - 1000
    assert len(objects.reads) <= 12
    assert len(reader._blocks) <= BLOCKS_AHEAD + 2


def test_blocks_that_were_passed_are_dropped():
    reader = open_reader(NotedReads())
    for position in range(0, 8 * BLOCK, BLOCK):
        read(reader, position, BLOCK)
        assert len(reader._blocks) <= BLOCKS_AHEAD + 2
    reader.close()
    assert not reader._blocks


def test_small_reads_here_and_there_are_asked_for_as_they_are():
    objects = NotedReads()
    reader = open_reader(objects)
    places = [(CONTENT.size - 12, 12), (0, 61), (5 * BLOCK, 100), (61, 61), (122, 61)]
    for position, size in places:
        assert read(reader, position, size) == CONTENT[position : position + size].tobytes()
    assert objects.reads == places


def test_a_large_read_is_cut_into_ranges_side_by_side():
    objects = NotedReads()
    objects.seconds = 0.01
    reader = open_reader(objects)
    assert read(reader, 5, 4 * BLOCK) == CONTENT[5 : 5 + 4 * BLOCK].tobytes()
    assert sorted(objects.reads) == [(5 + number * BLOCK, BLOCK) for number in range(4)]
    assert objects.most_at_once > 1
    assert not reader._blocks


def test_a_stretch_of_an_object_is_a_file():
    objects = NotedReads()
    reader = open_reader(objects, start=1000, size_bytes=5000)
    assert read(reader, 0, 10_000) == CONTENT[1000:6000].tobytes()
    assert read(reader, 4999, 10) == CONTENT[5999:6000].tobytes()
    assert read(reader, 5000, 10) == read(reader, 9999, 10) == b""


def test_a_read_ahead_that_fails_is_told_to_who_needs_it():
    class Failing(NotedReads):
        def read_into(self, key, start, target, *, etag=""):
            if start >= 5 * BLOCK:
                raise errors.StorageError(key, "503")
            return super().read_into(key, start, target, etag=etag)

    reader = open_reader(Failing())
    for position in range(0, 5 * BLOCK, BLOCK):
        read(reader, position, BLOCK)
    with pytest.raises(errors.StorageError, match="503"):
        read(reader, 5 * BLOCK, BLOCK)


@given(
    st.lists(st.tuples(st.integers(0, CONTENT.size + 10), st.integers(0, 3 * BLOCK)), max_size=12)
)
def test_any_reads_give_the_objects_bytes(places: list[tuple[int, int]]):
    reader = open_reader(NotedReads())
    for position, size in places:
        assert read(reader, position, size) == CONTENT[position : position + size].tobytes()
    reader.close()


def test_a_segment_is_scanned_through_it():
    log = log_with(batches=200)
    objects = NotedReads(bytes(log))
    reader = ObjectFileReader(objects, "key", name="x.log", size_bytes=len(log), etag=objects.etag)
    reader.block_bytes = 4096
    found = [len(window.batches.position) for window in scan_windows(reader, window_bytes=3000)]
    assert sum(found) == 200


def test_bytes_in_memory_are_a_file():
    reader = BytesReader("x", b"0123456789")
    assert (read(reader, 8, 4), read(reader, 10, 1), read(reader, 99, 1)) == (b"89", b"", b"")
    reader.close()


def test_an_object_that_ends_within_a_file_of_the_manifest_is_an_error():
    objects = NotedReads(b"0123456789")
    entry = FileEntry(key="key", start=4, size_bytes=6, etag=objects.etag, modified_ms=0)
    assert EntryReader(objects).read("a", entry) == b"456789"
    longer = FileEntry(key="key", start=4, size_bytes=7, etag=objects.etag, modified_ms=0)
    with pytest.raises(
        errors.StorageError, match="ends after 10 bytes, but a lies in it up to byte 11"
    ):
        EntryReader(objects).read("a", longer)


def test_threads_share_a_reader_of_more_objects_than_it_keeps(hasty_threads):
    objects = MemoryObjectStore("memory://entries")
    keys = [f"{number}{COMPANIONS_SUFFIX}" for number in range(12)]
    etags = {key: objects.put(key, key.encode()) for key in keys}
    entries = {
        key: FileEntry(key=key, start=0, size_bytes=len(key), etag=etags[key], modified_ms=0)
        for key in keys
    }
    reader = EntryReader(objects)
    reader.note(entries.values())

    def read_all(first: int) -> list[bytes]:
        order = keys[first:] + keys[:first]
        return [reader.read(key, entries[key]) for _ in range(200) for key in order]

    with ThreadPoolExecutor(8) as pool:
        for first, found in enumerate(pool.map(read_all, range(8))):
            assert found == [key.encode() for key in keys[first:] + keys[:first]] * 200


def kept_reader(objects: NotedReads, kept: KeptStretches, **more) -> ObjectFileReader:
    return open_reader(objects, cache=kept, **more)


def test_the_same_small_read_is_asked_for_once():
    objects, kept = NotedReads(), KeptStretches()
    for _ in range(3):
        reader = kept_reader(objects, kept)
        assert read(reader, 70_000, 4096) == CONTENT[70_000:74_096].tobytes()
        reader.close()
    assert objects.reads == [(70_000, 4096)]


def test_a_small_file_is_read_whole_by_the_first_read_of_it():
    objects, kept = NotedReads(), KeptStretches()
    for position, size in ((40, 10), (0, 61), (990, 30)):
        reader = kept_reader(objects, kept, start=5, size_bytes=1000)
        end = min(position + size, 1000)
        assert read(reader, position, size) == CONTENT[5 + position : 5 + end].tobytes()
    assert objects.reads == [(5, 1000)]


def test_a_file_that_is_shorter_than_its_manifest_says_ends_where_it_ends():
    objects, kept = NotedReads(b"0123456789"), KeptStretches()
    reader = kept_reader(objects, kept, start=4, size_bytes=20)
    assert [read(reader, 0, 20), read(reader, 4, 4), read(reader, 7, 5)] == [b"456789", b"89", b""]


def test_what_is_kept_of_one_version_is_not_read_of_another():
    objects, kept = NotedReads(b"first"), KeptStretches()
    assert read(kept_reader(objects, kept, size_bytes=5), 0, 5) == b"first"
    objects.etag = objects.put("key", b"other")
    assert read(kept_reader(objects, kept, size_bytes=5), 0, 5) == b"other"


def test_large_reads_are_not_kept_and_small_ones_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(object_files, "_KEPT_BYTES", 10_000)
    objects, kept = NotedReads(), KeptStretches()
    reader = kept_reader(objects, kept)
    for _ in range(2):
        read(reader, 0, 100_000)
        for position in (200_000, 300_000, 400_000):
            read(reader, position, 4096)
    # Of three stretches two have room: each is gone when it is asked for again.
    assert len(objects.reads) == 8
    read(reader, 400_000, 4096)
    assert len(objects.reads) == 8


LOG = "00000000000000000000.log"


@pytest.fixture
def objects():
    store = MemoryObjectStore("memory://mirror/kafka")
    store.put(f"topic-0/{LOG}", b"0123456789")
    store.put("topic-0/leader-epoch-checkpoint", b"0\n0\n")
    store.put("topic-0/folder/inside.log", b"not a file of the partition")
    store.put("topic-01/other.log", b"not of this one")
    yield CountingObjects(store)
    forget_memory("memory://mirror")


def test_files_are_those_directly_in_the_folder(objects):
    found = open_store("memory://mirror/kafka/topic-0").list_files()
    assert [(info.name, info.size_bytes) for info in found] == [
        (LOG, 10),
        ("leader-epoch-checkpoint", 4),
    ]


def test_one_listing_serves_all(objects):
    directory = ObjectDirectory(objects, "topic-0")
    for _ in range(3):
        directory.list_files()
    file = directory.open_file(LOG)
    target = np.empty(4, np.uint8)
    assert file.read_into(8, target) == 2
    assert directory.read_file("leader-epoch-checkpoint", limit_bytes=9) == b"0\n0\n"
    assert objects.count("list") == 1
    assert objects.count("head") == 0
    assert objects.count("get") == 2


def test_a_listing_of_many_folders_saves_even_that(objects):
    listing = list(objects.list_folder("topic-0/"))
    directory = ObjectDirectory(objects, "topic-0", listing)
    assert len(directory.list_files()) == 2
    assert objects.count("list") == 1


def test_a_file_that_changed_since_the_listing_is_not_mixed(objects):
    directory = ObjectDirectory(objects, "topic-0")
    directory.list_files()
    file = directory.open_file(LOG)
    objects.put(f"topic-0/{LOG}", b"a newer content")
    with pytest.raises(errors.ChangedWhileReadError, match=LOG):
        file.read_into(0, np.empty(4, np.uint8))
    fresh = ObjectDirectory(objects, "topic-0").open_file(LOG)
    assert fresh.size_bytes == 15


def test_a_file_is_opened_in_one_version_or_not_at_all(objects):
    directory = ObjectDirectory(objects, "topic-0")
    (old,) = (file.identity for file in directory.list_files() if file.name == LOG)
    assert directory.open_identified(LOG, old).size_bytes == 10
    new = objects.put(f"topic-0/{LOG}", b"a newer content")
    assert directory.open_identified(LOG, new).size_bytes == 15
    assert ObjectDirectory(objects, "topic-0").open_identified(LOG, old) is None
    assert directory.open_identified("none.log", old) is None


def test_what_is_missing_is_told(objects):
    with pytest.raises(errors.PartitionNotFoundError, match="topic-9"):
        ObjectDirectory(objects, "topic-9").list_files()
    with pytest.raises(errors.StorageError, match=r"none\.log"):
        ObjectDirectory(objects, "topic-0").open_file("none.log")
    with pytest.raises(errors.StorageError, match="longer than the 3 bytes"):
        ObjectDirectory(objects, "topic-0").read_file("leader-epoch-checkpoint", limit_bytes=3)


@pytest.mark.item("DIR-15")
def test_a_mirror_is_never_written(objects):
    directory = ObjectDirectory(objects, "topic-0")
    before = [(info.key, info.etag) for info in objects.list()]
    for change in (
        lambda: directory.write_file(LOG, b""),
        lambda: directory.copy_range(LOG, 0, 1, "x", modified_ms=0),
        lambda: directory.create_empty("x"),
        lambda: directory.promote("/scratch", LOG),
        lambda: directory.rename(LOG, "x"),
        lambda: directory.delete(LOG),
        lambda: directory.truncate(LOG, 0),
        lambda: directory.sync_file(LOG),
        directory.sync_directory,
    ):
        with pytest.raises(errors.ReadOnlyStoreError, match="only read"):
            change()
    assert [(info.key, info.etag) for info in objects.list()] == before
