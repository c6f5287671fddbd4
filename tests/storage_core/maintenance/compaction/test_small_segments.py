"""Small segments are read together, once for both passes, and nothing else tells that they were."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig
from storage_core.errors import BadBytesError, OffsetOverflowError
from storage_core.filenames import LOG_SUFFIX, log_file
from storage_core.formats.batch_v2 import HEADER_BYTES, Codec
from storage_core.formats.control import ControlType
from storage_core.kernels import key_scan
from storage_core.log import batch_search
from storage_core.log.open_transactions import TransactionTracker
from storage_core.maintenance.compaction import survival
from storage_core.maintenance.compaction.index import BASE_OFFSET
from storage_core.maintenance.compaction.partition import (
    load_for_round,
    refuse_negative_timestamps,
)
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import group_segments
from storage_core.maintenance.compaction.rewrite import measure_groups
from storage_core.records import reader
from storage_core.records.reader import LEAST_MAPPED_BYTES
from storage_core.store.local import LocalStore
from tests.kit.builders import encode_batch, end_txn_marker
from tests.kit.compare import read_tree
from tests.kit.directories import AbortedTxnSpec
from tests.kit.golden_cleaning import Cleaning
from tests.storage_core.maintenance.compaction.hand_made import (
    P,
    batch,
    cleaning,
    produced,
    record,
    write_log,
)

SEGMENTS = 12
# Each segment is larger: all are read alone.
ALONE = {"window_bytes": 100}
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4)


def small_log(directory: Path, *, aborts: bool = False) -> Path:
    """Segments of two batches, ten offsets each: keys that come back, tombstones, a transaction."""
    control_type = ControlType.ABORT if aborts else ControlType.COMMIT
    of_it = AbortedTxnSpec(producer_id=P, first_offset=33, last_offset=63, last_stable_offset=64)
    segments = []
    for number in range(SEGMENTS):
        first = 10 * number
        own = batch(
            first,
            record(b"%d" % (number % 5)),
            record(b"all", b"x" * 20),
            record(b"gone-%d" % number, None),
            codec=CODECS[number % len(CODECS)],
        )
        if number == 3:
            other = produced(first + 3, record(b"txn"), record(b"all"), is_transactional=True)
        elif number == 6:
            other = end_txn_marker(
                base_offset=first + 3,
                producer_id=P,
                producer_epoch=0,
                control_type=control_type,
            )
        else:
            other = batch(first + 3, record(b"own-%d" % number), record(b"%d" % (number % 3)))
        segments.append([own, other])
    return write_log(directory, *segments, aborted={6: [of_it]} if aborts else None)


def round_with(*, first_dirty_offset: int | None = None, **cleaner: object) -> Cleaning:
    return cleaning(cleaner=CleanerConfig(**cleaner), cleaner_offset=first_dirty_offset)


def counted(monkeypatch, owner: object, name: str, calls: Counter) -> None:
    whole = getattr(owner, name)

    def call(*arguments, **options):
        calls[name] += 1
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def test_both_passes_open_a_small_segment_once_and_call_kernels_once_for_all(tmp_path, monkeypatch):
    store = LocalStore(small_log(tmp_path / "t-0"))
    plan = (round_ := round_with()).plan(round_.load(store))
    calls: Counter = Counter()
    open_file, read_starts = LocalStore.open_file, reader.read_starts

    def opened(self, name):
        calls[name] += name.endswith(LOG_SUFFIX)
        return open_file(self, name)

    def read_together(store, files, *room):
        calls.update(files)
        calls["read_starts"] += 1
        return read_starts(store, files, *room)

    monkeypatch.setattr(LocalStore, "open_file", opened)
    monkeypatch.setattr(reader, "read_starts", read_together)
    counted(monkeypatch, key_scan, "hash_keys", calls)
    for kernel in ("note_batches", "judge_batches", "filter_records"):
        counted(monkeypatch, survival, kernel, calls)
    index = index_round(store, plan)
    groups = group_segments(plan, index.end_offset)
    assert len(list(measure_groups(store, plan, index, groups, TransactionTracker()))) == 1
    assert set(calls.values()) == {1}
    assert len(calls) == SEGMENTS + 5


@pytest.mark.parametrize(("lag_ms", "is_read"), [(0, False), (1, True)])
def test_a_load_for_a_round_reads_the_time_indexes_that_tell_its_range(
    tmp_path, monkeypatch, lag_ms, is_read
):
    directory = small_log(tmp_path / "t-0")
    round_ = cleaning(overrides={"min.compaction.lag.ms": lag_ms})
    opened: set[str] = set()
    open_file = LocalStore.open_file

    def noted(self, name):
        opened.add(name)
        return open_file(self, name)

    monkeypatch.setattr(LocalStore, "open_file", noted)
    load_for_round(LocalStore(directory), round_.config, round_.cleaner, round_.request)
    bases = {int(name.partition(".")[0]) for name in opened}
    closed = set(range(0, 10 * SEGMENTS, 10))
    assert bases - closed
    assert bases & closed == (closed if is_read else set())


def test_a_look_for_negative_timestamps_reads_a_header_of_each_segment(tmp_path, monkeypatch):
    store = LocalStore(small_log(tmp_path / "t-0"))
    plan = (round_ := round_with()).plan(round_.load(store))
    reads: Counter = Counter()
    read_starts = batch_search.read_starts

    def read(store, files, room, bounds):
        reads.update(zip(files, np.diff(bounds).tolist(), strict=True))
        return read_starts(store, files, room, bounds)

    def opened(self, name):
        raise AssertionError(name)

    monkeypatch.setattr(batch_search, "read_starts", read)
    monkeypatch.setattr(LocalStore, "open_file", opened)
    refuse_negative_timestamps(store, plan)
    assert reads == {(log_file(10 * number), HEADER_BYTES): 1 for number in range(SEGMENTS)}


@pytest.mark.sampled(21)
@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("first_dirty_offset", [None, 30, 34, 10 * SEGMENTS - 10])
@pytest.mark.parametrize("map_keys", [None, 1, 4, 5, 6, 9, 13, 25])
def test_together_and_alone_are_the_same(tmp_path, aborts, first_dirty_offset, map_keys):
    limit = {} if map_keys is None else {"dedupe_buffer_bytes": 24 * map_keys, "load_factor": 1.0}
    results = []
    for name, how in (("together", {}), ("alone", ALONE)):
        directory = small_log(tmp_path / name / "t-0", aborts=aborts)
        round_ = round_with(first_dirty_offset=first_dirty_offset, **limit, **how)
        store = LocalStore(directory)
        index = index_round(store, round_.plan(round_.load(store)))
        facts = [index.end_offset, index.stats, index.segments.columns[BASE_OFFSET].tolist()]
        results.append([facts, round_.clean(directory), read_tree(directory)])
    assert results[0] == results[1]


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped, id="a checksum"),
        pytest.param(lambda content: content[:-1], id="a cut"),
        pytest.param(lambda content: content + b"\0", id="a byte too many"),
        pytest.param(lambda content: content[:8] + b"\0\1\0\0" + content[12:], id="a length"),
        # So that what follows in the window seems to belong to it.
        pytest.param(lambda content: content + content[:80], id="half a batch"),
        pytest.param(lambda content: content[:16] + b"\7" + content[17:], id="a format"),
    ],
)
def test_damage_is_told_as_if_its_segment_had_been_read_alone(tmp_path, damage):
    told = []
    for name, how in (("together", {}), ("alone", ALONE)):
        directory = small_log(tmp_path / name / "t-0")
        file = directory / log_file(50)
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(BadBytesError) as caught:
            round_with(**how).clean(directory)
        told.append((type(caught.value), caught.value.file, caught.value.position))
        assert not list(directory.glob("*.part"))
    assert told[0] == told[1]
    assert told[0][1] == log_file(50)


def test_an_offset_that_does_not_fit_is_told_of_its_own_segment(tmp_path):
    first, bad = batch(10, record(b"b")), batch(2**40, record(b"c"))
    directory = write_log(
        tmp_path / "t-0", [batch(0, record(b"a"))], [first, bad], [batch(20, record(b"d"))]
    )
    with pytest.raises(OffsetOverflowError) as caught:
        cleaning().clean(directory)
    assert caught.value.file == log_file(10)
    assert caught.value.position == len(encode_batch(first))


def test_where_a_transaction_was_aborted_each_segment_is_read_alone(tmp_path):
    store = LocalStore(small_log(tmp_path / "t-0", aborts=True))
    plan = (round_ := round_with()).plan(round_.load(store))
    runs = plan.runs_of(plan.round_segments, 1 << 20)
    bases = [[segment.base_offset for segment in run] for run in runs]
    assert bases == [[0, 10, 20], [30], [40], [50], [60], [70, 80, 90, 100, 110]]


def test_what_is_not_small_is_read_alone(tmp_path):
    large = batch(10, record(b"large", b"x" * LEAST_MAPPED_BYTES))
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"))],
        [batch(5, record(b"b"))],
        [large],
        [batch(20, record(b"c"))],
        [batch(25, record(b"d"))],
    )
    round_ = cleaning()
    plan = round_.plan(round_.load(LocalStore(directory)))
    segments = plan.round_segments

    def bases(most_bytes: int) -> list[list[int]]:
        runs = plan.runs_of(segments, most_bytes)
        return [[segment.base_offset for segment in run] for run in runs]

    assert bases(1 << 20) == [[0, 5], [10], [20, 25]]
    assert bases(100) == [[0], [5], [10], [20], [25]]
