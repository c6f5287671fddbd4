"""Rounds with several threads: the same bytes, the same errors, as with one."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig
from storage_core.errors import CorruptRecordError, StorageError
from storage_core.filenames import SCRATCH_PREFIX, log_file
from storage_core.formats.batch_v2 import Codec
from storage_core.maintenance.compaction import pass_one, rewrite
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.survival import SegmentFilter
from storage_core.store.local import LocalStore
from storage_core.store.syncing import Unsynced
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import Cleaning
from tests.storage_core.maintenance.compaction.hand_made import batch, cleaning, record, write_log

THREADS = pytest.mark.parametrize("threads", [1, 2, 4])
WINDOW_BYTES = 600
BATCHES = 60
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4)


def long_log(directory: Path, codecs: tuple[Codec, ...] = CODECS) -> Path:
    """Two segments of many windows, some batches compressed."""
    dice = np.random.default_rng(5)

    def batches(first: int) -> list:
        return [
            batch(
                3 * number,
                *[record(b"%d" % dice.integers(40), dice.bytes(30)) for _ in range(3)],
                codec=codecs[number % len(codecs)],
            )
            for number in range(first, first + BATCHES)
        ]

    return write_log(directory, batches(0), batches(BATCHES))


def damage(file: Path) -> None:
    """Change the last byte of a file, and nothing that its stat tells."""
    facts, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def round_of(*, groups: int = 1, **cleaner: int) -> Cleaning:
    return cleaning(
        overrides={"internal.segment.bytes": 1 << 20 if groups == 1 else 100},
        cleaner=CleanerConfig(window_bytes=WINDOW_BYTES, **cleaner),
    )


@pytest.fixture(scope="module", params=[1, 2])
def expected(tmp_path_factory, request) -> tuple[int, object, dict[str, bytes]]:
    """The groups of a round, and what comes of it."""
    directory = long_log(tmp_path_factory.mktemp("one") / "t-0")
    whole = round_of(groups=request.param).with_cleaner(window_bytes=1 << 25)
    return request.param, whole.clean(directory, threads=1), read_tree(directory)


@THREADS
def test_a_round_makes_the_same_bytes_with_any_number_of_threads(tmp_path, expected, threads):
    directory = long_log(tmp_path / "t-0")
    groups, *made = expected
    result = round_of(groups=groups).clean(directory, threads=threads)
    assert [result, read_tree(directory)] == made


def test_a_group_is_filtered_while_the_one_before_it_ends(tmp_path, monkeypatch):
    directory = long_log(tmp_path / "t-0")
    is_next_there = threading.Event()
    observe, add = SegmentFilter.observe, Unsynced.add
    ended = []

    def observed(self, window, notes, discard):
        if window.file == log_file(3 * BATCHES):
            is_next_there.set()
        return observe(self, window, notes, discard)

    def waits(unsynced, *files):
        assert ended or is_next_there.wait(30)
        ended.append(files)
        add(unsynced, *files)

    monkeypatch.setattr(SegmentFilter, "observe", observed)
    monkeypatch.setattr(Unsynced, "add", waits)
    result = round_of(groups=2).clean(directory, threads=2)
    assert result.segments == 3
    assert len(ended) == 2


def test_two_threads_are_used_for_what_has_several_windows_and_no_more(tmp_path, monkeypatch):
    readers: set[str] = set()
    check = pass_one.check_batches

    def noted(window):
        readers.add(threading.current_thread().name.split("_")[0])
        check(window)

    monkeypatch.setattr(pass_one, "check_batches", noted)
    round_of().clean(long_log(tmp_path / "several" / "t-0"), threads=2)
    assert readers == {"pylog-beside"}
    readers.clear()
    cleaning().clean(long_log(tmp_path / "one" / "t-0"), threads=2)
    assert readers == {threading.current_thread().name}


@THREADS
def test_windows_looked_at_at_once_are_no_more_than_four(tmp_path, monkeypatch, threads):
    asked: list[int] = []
    scan = pass_one.scan_windows

    def noted(reader, **arguments):
        asked.append(arguments["window_bytes"] * len(arguments["rooms"]))
        return scan(reader, **arguments)

    monkeypatch.setattr(pass_one, "scan_windows", noted)
    monkeypatch.setattr(rewrite, "scan_windows", noted)
    round_of().clean(long_log(tmp_path / "t-0"), threads=threads)
    assert asked
    assert max(asked) <= WINDOW_BYTES * (1 if threads == 1 else 4)


@pytest.mark.parametrize("plain", [1, BATCHES - 1, BATCHES])
def test_keys_hashed_without_a_table_of_batches_are_noted_as_with_one(tmp_path, plain):
    codecs = (Codec.NONE,) * plain + (Codec.LZ4,) * (BATCHES - plain)
    store = LocalStore(long_log(tmp_path / "t-0", codecs))
    round_ = round_of()
    without = replace(round_.plan(round_.load(store)), first_dirty_offset=10)
    # Where a map might be full, every batch has to be known.
    one, other = (index_round(store, replace(without, max_keys=limit)) for limit in (None, 2**40))
    for name in ("columns", "flags", "legacy_counts"):
        assert (getattr(one.segments, name) == getattr(other.segments, name)).all(), name
    assert (one.words == other.words).all()
    assert (one.stats, one.end_offset) == (other.stats, other.end_offset)
    assert one.stats.keys > 0


@pytest.fixture
def full_map(tmp_path) -> tuple[Path, Cleaning]:
    """A log of which a map takes a part, and damage behind that part."""
    directory = long_log(tmp_path / "t-0")
    damage(directory / log_file(0))
    return directory, round_of(dedupe_buffer_bytes=24 * 30, load_factor=1.0)


@THREADS
def test_what_is_read_ahead_of_a_full_map_counts_for_nothing(full_map, threads):
    directory, few = full_map
    store = LocalStore(directory)
    plan = few.plan(few.load(store))
    one, other = (index_round(store, plan, threads=count) for count in (1, threads))
    assert one.stats == other.stats
    assert one.end_offset == other.end_offset < 3 * BATCHES
    assert one.stats.keys == 30


@THREADS
def test_what_pass_one_did_not_reach_is_checked_by_pass_two(full_map, threads):
    directory, few = full_map
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        few.clean(directory, threads=threads)


@THREADS
@pytest.mark.parametrize("groups", [1, 2])
def test_a_damaged_batch_stops_the_round_and_nothing_is_left(tmp_path, threads, groups):
    directory = long_log(tmp_path / "t-0")
    file = directory / log_file(3 * BATCHES)
    damage(file)
    before = read_tree(directory)
    alive = threading.active_count()
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        round_of(groups=groups).clean(directory, threads=threads)
    assert read_tree(directory) == before
    assert threading.active_count() == alive


@pytest.mark.sampled(4)
@THREADS
@pytest.mark.parametrize(("groups", "fails_at"), [(1, 1), (1, 3), (2, 1), (2, 3), (2, 5)])
def test_a_full_disk_is_told_and_no_scratch_file_stays(
    tmp_path, monkeypatch, threads, groups, fails_at
):
    directory = long_log(tmp_path / "t-0")
    before = read_tree(directory)
    calls = 0

    def refuse(_descriptor):
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(rewrite.os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        round_of(groups=groups).clean(directory, threads=threads)
    monkeypatch.undo()
    assert read_tree(directory) == before
    assert not list(directory.glob(f"{SCRATCH_PREFIX}*"))
