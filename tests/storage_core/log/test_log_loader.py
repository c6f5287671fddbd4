"""Logs loaded after a clean shutdown: by hand, and as Kafka left them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storage_core import errors
from storage_core.commit import DeleteFile, SyncDirectory, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.records.reader import scan_windows
from storage_core.store.local import LocalStore
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    end_txn_marker,
    log_with,
    some_batches,
)
from tests.kit.compare import read_tree
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    encode_producer_snapshot,
    write_partition,
)
from tests.kit.golden_cleaning import cleaning_of
from tests.kit.golden_data import Golden, Side, goldens

EMPTY_SNAPSHOT = bytes.fromhex("000148674bc700000000")
DAY_MS = 86_400_000
P = 1000


def segment(base: int, **fields: Any) -> SegmentSpec:
    """Ten offsets a segment, in batches of five."""
    plain = some_batches(count=2, records=5, base_offset=base)
    return SegmentSpec(**{"base_offset": base, "batches": plain} | fields)


def three_segments(directory: Path, **of_the_last: Any) -> Path:
    """Segments at 0, 10 and 20; the log ends at 30 with an empty snapshot."""
    last = {"producers": []} | of_the_last
    parts = [segment(0), segment(10, producers=[]), segment(20, **last)]
    write_partition(directory, parts)
    (directory / snapshot_file(30)).write_bytes(EMPTY_SNAPSHOT)
    return directory


def load(directory: Path, **settings: Any) -> LoadedLog:
    defaults = {
        "config": LogConfig.from_topic_overrides({"cleanup.policy": "compact"}),
        "cleaner": CleanerConfig(),
        "now_ms": SOME_TIME_MS,
    }
    return load_log(LocalStore(directory), **defaults | settings)


def load_and_commit(directory: Path, **settings: Any) -> LoadedLog:
    log = load(directory, **settings)
    commit(log.plan, LocalStore(directory))
    return log


def changed_names(log: LoadedLog) -> list[str]:
    return [operation.name for operation in log.operations if hasattr(operation, "name")]


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.snapshot"))


def producer_batch(base_offset: int, *, sequence: int, **fields: Any) -> BatchSpec:
    settings = {"producer_id": P, "producer_epoch": 0, "base_sequence": sequence} | fields
    return BatchSpec(
        records=(RecordSpec(key=b"k", value=b"v"),), base_offset=base_offset, **settings
    )


@pytest.mark.item("SEG-11")
def test_a_log_at_rest_is_seen_whole_and_needs_no_change(tmp_path):
    log = load(three_segments(tmp_path / "t-0"))
    assert [s.base_offset for s in log.segments] == [0, 10, 20]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 30, 30)
    assert log.last_stable_offset == 30
    assert log.operations == ()
    assert log.snapshot_offsets == {10, 20, 30}
    assert log.active_segment is log.segments[-1]
    assert log.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.log"))


def test_a_segment_says_its_sizes_times_and_files(tmp_path):
    parts = [segment(0, modified_ms=SOME_TIME_MS + 5), segment(10)]
    directory = write_partition(tmp_path / "t-0", parts, index_interval_bytes=1)
    first = load(directory).segments[0]
    assert first.size_bytes == (directory / log_file(0)).stat().st_size
    assert first.offset_index_bytes == 8
    assert first.time_index_bytes == 12
    assert first.modified_ms == SOME_TIME_MS + 5
    assert first.max_timestamp == SOME_TIME_MS + 9
    assert (first.has_txn_index, first.aborted) == (False, ())


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        pytest.param({"cleanup.policy": "compact"}, [False, True], id="of the active segment"),
        pytest.param(
            {"cleanup.policy": "compact", "max.compaction.lag.ms": "9"}, [True, True], id="of all"
        ),
        pytest.param({"max.compaction.lag.ms": "9"}, [False, False], id="of none"),
    ],
)
def test_the_first_batch_is_read_where_its_time_counts(tmp_path, overrides, asked):
    parts = [segment(0), segment(10)]
    directory = write_partition(tmp_path / "t-0", parts, index_interval_bytes=1)
    log = load(directory, config=LogConfig.from_topic_overrides(overrides))
    times = [each.first_batch_timestamp for each in log.segments]
    assert times == [SOME_TIME_MS + 4 if is_asked else NO_TIMESTAMP for is_asked in asked]


@pytest.mark.item("SEG-10")
def test_a_segment_whose_time_index_says_nothing_is_as_old_as_its_file(tmp_path):
    parts = [SegmentSpec(base_offset=0, modified_ms=123_000)]
    only = load(write_partition(tmp_path / "t-0", parts)).segments[0]
    assert (only.max_timestamp, only.modified_ms) == (-1, 123_000)
    assert only.first_batch_timestamp == -1


@pytest.mark.parametrize("golden", goldens("clean-*"), ids=lambda golden: golden.name)
def test_what_kafka_closed_is_loaded_without_a_change(golden: Golden, tmp_path):
    """After a clean close nothing is left to do at the same clock."""
    directory = golden.unpack(tmp_path, Side.AFTER)
    log = cleaning_of(golden).load(LocalStore(directory))
    expected = golden.case["expected"]
    assert log.operations == ()
    assert [[s.base_offset, s.size_bytes] for s in log.segments] == expected["segments"]
    assert log.log_end_offset == expected["leo"]
    assert log.log_start_offset == expected["log_start"]
    assert log.high_watermark == expected["hw"]
    assert log.last_stable_offset == expected["lso"]
    assert {str(p.producer_id) for p in log.producers} == set(expected["producers"])


@pytest.mark.parametrize("golden", goldens("clean-*"), ids=lambda golden: golden.name)
def test_loading_twice_changes_nothing_the_second_time(golden: Golden, tmp_path):
    directory = golden.unpack(tmp_path)
    cleaning = cleaning_of(golden)
    log = cleaning.load(LocalStore(directory))
    commit(log.plan, LocalStore(directory))
    again = cleaning.load(LocalStore(directory))
    assert again == dataclasses.replace(log, operations=())


# --- segments and indexes


@pytest.mark.item("REC-07")
def test_indexes_without_a_log_go(tmp_path):
    directory = three_segments(tmp_path / "t-0")
    before = read_tree(directory)
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        (directory / segment_file(15, suffix)).write_bytes(b"orphan")
    log = load_and_commit(directory)
    assert read_tree(directory) == before
    kinds = [type(operation) for operation in log.operations]
    assert kinds == [DeleteFile, DeleteFile, DeleteFile, SyncDirectory]


@pytest.mark.parametrize("base", [0, 20], ids=["closed segment", "active segment"])
def test_a_missing_offset_index_asks_for_recovery(tmp_path, base):
    directory = three_segments(tmp_path / "t-0")
    (directory / segment_file(base, OFFSET_INDEX_SUFFIX)).unlink()
    before = read_tree(directory)
    with pytest.raises(errors.RecoveryRequiredError, match=f"{base:020d}.index is missing"):
        load(directory)
    assert read_tree(directory) == before


def test_a_transaction_index_is_read(tmp_path):
    entry = AbortedTxnSpec(producer_id=P, first_offset=11, last_offset=14, last_stable_offset=15)
    parts = [segment(0), segment(10, aborted=[entry]), segment(20)]
    middle = load(write_partition(tmp_path / "t-0", parts)).segments[1]
    assert middle.has_txn_index
    assert middle.aborted == (
        AbortedTxn(producer_id=P, first_offset=11, last_offset=14, last_stable_offset=15),
    )


def test_an_empty_transaction_index_counts_as_one(tmp_path):
    directory = three_segments(tmp_path / "t-0")
    (directory / segment_file(0, TXN_INDEX_SUFFIX)).write_bytes(b"")
    assert load(directory).segments[0].has_txn_index


def test_a_transaction_index_of_an_unknown_version_is_refused_with_its_place(tmp_path):
    directory = three_segments(tmp_path / "t-0")
    name = segment_file(10, TXN_INDEX_SUFFIX)
    (directory / name).write_bytes(b"\0\7" + bytes(32))
    with pytest.raises(errors.CorruptIndexError, match="expected version 0, found 7") as caught:
        load(directory)
    assert (caught.value.file, caught.value.position) == (name, 0)


def test_a_directory_without_segments_asks_for_recovery(tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    with pytest.raises(errors.RecoveryRequiredError, match="no segment"):
        load(directory)


def test_no_directory_is_an_error_of_its_own(tmp_path):
    with pytest.raises(errors.PartitionNotFoundError):
        load(tmp_path / "t-0")


def test_a_log_file_that_is_not_named_as_kafka_names_them_asks_for_recovery(tmp_path):
    directory = three_segments(tmp_path / "t-0")
    for suffix in SEGMENT_SUFFIXES[:3]:
        (directory / segment_file(10, suffix)).rename(directory / f"10{suffix}")
    with pytest.raises(errors.RecoveryRequiredError, match="expected the name"):
        load(directory)


# --- the end of the log


@pytest.mark.parametrize("tail", [1, 11, 17, 60, 80])
def test_a_torn_tail_does_not_count_and_stays(tmp_path, tail):
    directory = three_segments(tmp_path / "t-0")
    path = directory / log_file(20)
    data = log_with(batches=2, records=5, base_offset=20, torn_tail=tail)
    path.write_bytes(data)
    log = load_and_commit(directory)
    assert log.log_end_offset == 30
    assert log.operations == ()
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("zeros", "is_refused"),
    [
        pytest.param(7, False, id="fewer zeros than a header's first fields"),
        pytest.param(17, False, id="as many as Kafka reads before it believes in a batch"),
        pytest.param(18, True, id="one more"),
        pytest.param(4096, True, id="a page of zeros"),
    ],
)
def test_zeros_after_the_last_batch_are_refused_as_soon_as_they_look_like_one(
    tmp_path, zeros, is_refused
):
    directory = three_segments(tmp_path / "t-0")
    path = directory / log_file(20)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(zeros))
    if not is_refused:
        assert load(directory).log_end_offset == 30
        return
    with pytest.raises(errors.CorruptRecordError) as caught:
        load(directory)
    assert (caught.value.file, caught.value.position) == (log_file(20), size)


@pytest.mark.item("REC-24")
@pytest.mark.parametrize(
    ("checkpoint", "start"), [(0, 200), (150, 200), (200, 200), (205, 205), (210, 210)]
)
def test_the_log_starts_at_the_checkpoint_but_not_before_its_first_segment(
    tmp_path, checkpoint, start
):
    directory = write_partition(tmp_path / "t-0", [segment(200)])
    log = load(directory, log_start_checkpoint=checkpoint, high_watermark=0)
    assert log.log_start_offset == start
    assert log.high_watermark == start


def test_a_log_start_beyond_the_end_asks_for_recovery(tmp_path):
    directory = write_partition(tmp_path / "t-0", [segment(200)])
    with pytest.raises(errors.RecoveryRequiredError, match=r"ends at offset 210, below .* 211"):
        load(directory, log_start_checkpoint=211)


@pytest.mark.item("REC-29")
@pytest.mark.parametrize(
    ("checkpoint", "high_watermark"),
    [
        pytest.param(None, 30, id="none said"),
        pytest.param(3, 5, id="below the log start"),
        pytest.param(5, 5, id="at the log start"),
        pytest.param(17, 17, id="inside"),
        pytest.param(30, 30, id="at the end"),
        pytest.param(99, 30, id="above the end"),
    ],
)
def test_the_high_watermark_is_clamped_into_the_log(tmp_path, checkpoint, high_watermark):
    directory = three_segments(tmp_path / "t-0")
    log = load(directory, log_start_checkpoint=5, high_watermark=checkpoint)
    assert log.high_watermark == log.last_stable_offset == high_watermark


@pytest.mark.item("PRD-05", "REC-29")
@pytest.mark.parametrize(
    ("high_watermark", "stable"),
    [
        pytest.param(21, 21, id="high watermark before the transaction"),
        pytest.param(24, 22, id="its marker not below the high watermark"),
        pytest.param(25, 25, id="its marker below the high watermark"),
        pytest.param(None, 26, id="another one still open"),
    ],
)
def test_the_last_stable_offset_waits_for_transactions(tmp_path, high_watermark, stable):
    batches = [
        *some_batches(count=2, base_offset=20),
        producer_batch(22, sequence=0, is_transactional=True),
        producer_batch(23, sequence=1, is_transactional=True),
        end_txn_marker(base_offset=24, producer_id=P, producer_epoch=0),
        *some_batches(count=1, base_offset=25),
        producer_batch(26, sequence=2, is_transactional=True),
    ]
    directory = three_segments(tmp_path / "t-0", batches=batches)
    (directory / snapshot_file(30)).unlink()
    log = load(directory, high_watermark=high_watermark)
    assert log.log_end_offset == 27
    assert log.last_stable_offset == stable


# --- leader epochs


@pytest.mark.item("CKP-09", "CKP-13")
@pytest.mark.parametrize(
    ("before", "log_start", "epochs", "after"),
    [
        pytest.param(
            "5 10\n3 5\n4 20", 0, [(3, 5), (4, 20)], "5 10\n3 5\n4 20", id="out of order, left"
        ),
        # Kafka writes the file whenever an entry was at or below the log start, changed or not.
        pytest.param(
            "0 0\n5 10\n3 5\n4 20",
            0,
            [(0, 0), (3, 5), (4, 20)],
            "0 0\n3 5\n4 20",
            id="out of order, touched by the log start",
        ),
    ],
)
def test_an_epoch_file_out_of_order_is_read_by_its_rules(
    tmp_path, before, log_start, epochs, after
):
    directory = three_segments(tmp_path / "t-0")
    assert load_epochs(directory, before, log_start_checkpoint=log_start) == (epochs, after)


@pytest.mark.item("REC-23")
def test_epochs_go_by_the_checkpoint_and_not_by_the_first_segment(tmp_path):
    directory = write_partition(tmp_path / "t-0", [segment(200)])
    assert load_epochs(directory, "0 0\n1 150") == ([(0, 0), (1, 150)], "0 0\n1 150")


def load_epochs(directory: Path, lines: str, **settings: Any) -> tuple[list[tuple[int, int]], str]:
    """Load a log with these lines in its epoch file; return its epochs, and the lines then."""
    path = directory / LEADER_EPOCH_FILE
    path.write_text(f"0\n{len(lines.splitlines())}\n{lines}\n")
    log = load_and_commit(directory, **settings)
    version, count, *left = path.read_text().splitlines()
    assert (version, count) == ("0", str(len(left)))
    return [(e.epoch, e.start_offset) for e in log.epochs], "\n".join(left)


# --- producer snapshots


@pytest.mark.item("REC-27")
@pytest.mark.parametrize(
    ("log_start", "left"), [(0, [10, 20, 30]), (10, [20, 30]), (9, [10, 20, 30]), (25, [30])]
)
def test_snapshots_outside_of_the_log_go(tmp_path, log_start, left):
    directory = three_segments(tmp_path / "t-0")
    (directory / snapshot_file(31)).write_bytes(EMPTY_SNAPSHOT)
    load_and_commit(directory, log_start_checkpoint=log_start)
    assert snapshots(directory) == left


@pytest.mark.item("REC-26", "REC-27")
@pytest.mark.parametrize(
    ("strays", "left"),
    [
        pytest.param([13], [10, 20, 30], id="one below the last segment"),
        pytest.param([13, 17], [10, 20, 30], id="two below the last segment"),
        pytest.param([23], [10, 20, 23, 30], id="one inside the last segment"),
        pytest.param([13, 23, 26], [10, 20, 26, 30], id="of several, the newest"),
        pytest.param([300, 9999], [10, 20, 30], id="beyond the log"),
    ],
)
def test_of_stray_snapshots_the_newest_stays_unless_it_is_buried(tmp_path, strays, left):
    directory = three_segments(tmp_path / "t-0")
    (directory / snapshot_file(30)).unlink()
    for offset in strays:
        (directory / snapshot_file(offset)).write_bytes(EMPTY_SNAPSHOT)
    load_and_commit(directory)
    assert snapshots(directory) == left


@pytest.mark.item("PRD-14")
@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param([], 7, id="none"),
        pytest.param([30], 6, id="the newest"),
        pytest.param([30, 20], 5, id="the two newest"),
        pytest.param([30, 20, 10], None, id="all three"),
    ],
)
def test_a_corrupt_snapshot_goes_and_the_next_older_one_counts(tmp_path, bad, expected):
    directory = three_segments(tmp_path / "t-0")
    for offset, sequence in ((10, 5), (20, 6), (30, 7)):
        known = ProducerSpec(
            producer_id=P, last_sequence=sequence, last_offset=1, last_timestamp=SOME_TIME_MS
        )
        data = encode_producer_snapshot([known])
        broken = data[:-1] if offset in bad else data
        (directory / snapshot_file(offset)).write_bytes(broken)
    log = load_and_commit(directory)
    sequences = [p.last_sequence for p in log.producers]
    assert sequences == ([] if expected is None else [expected])
    # The replay writes those that it passes anew.
    assert snapshots(directory) == [10, 20, 30]
    assert load(directory).operations == ()


def test_a_file_that_is_written_anew_is_compared_with_what_is_there_once(tmp_path):
    """On an object store every look at it is a request."""
    directory = three_segments(tmp_path / "t-0")
    name = snapshot_file(30)
    (directory / name).write_bytes(bytes(len(EMPTY_SNAPSHOT)))
    reads = []

    class Store(LocalStore):
        def read_file(self, name: str, *, limit_bytes: int) -> bytes:
            reads.append(name)
            return super().read_file(name, limit_bytes=limit_bytes)

    log = load_log(
        Store(directory), config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS
    )
    assert changed_names(log) == [name]
    parsed_and_compared = 2
    assert reads.count(name) == parsed_and_compared


@pytest.mark.item("PRD-15")
@pytest.mark.parametrize(("age_ms", "count"), [(DAY_MS - 1, 2), (DAY_MS, 1)])
def test_the_same_directory_has_fewer_producers_at_a_later_clock(tmp_path, age_ms, count):
    directory = three_segments(tmp_path / "t-0")
    known = [
        ProducerSpec(producer_id=1, last_offset=8, last_timestamp=SOME_TIME_MS),
        ProducerSpec(producer_id=2, last_timestamp=0, current_txn_first_offset=10),
    ]
    (directory / snapshot_file(30)).write_bytes(encode_producer_snapshot(known))
    log = load(directory, now_ms=SOME_TIME_MS + age_ms)
    assert len(log.producers) == count
    assert log.last_stable_offset == 10


@pytest.mark.item("PRD-15")
def test_the_expiration_is_a_setting(tmp_path):
    directory = three_segments(tmp_path / "t-0")
    known = ProducerSpec(producer_id=1, last_offset=8, last_timestamp=SOME_TIME_MS)
    (directory / snapshot_file(30)).write_bytes(encode_producer_snapshot([known]))
    settings = {"now_ms": SOME_TIME_MS + 50}
    assert load(
        directory, cleaner=CleanerConfig(producer_id_expiration_ms=51), **settings
    ).producers
    assert not load(
        directory, cleaner=CleanerConfig(producer_id_expiration_ms=50), **settings
    ).producers


def test_an_empty_log_is_loaded(tmp_path):
    log = load_and_commit(write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0)]))
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (0, 0, 0)
    assert log.operations == ()


def test_a_swap_in_the_middle_is_settled_and_read_where_it_lies(tmp_path):
    """The files of the swap are read under the names they have, and known by those they get."""
    directory = three_segments(tmp_path / "t-0")
    (directory / snapshot_file(10)).unlink()
    for suffix in SEGMENT_SUFFIXES[:3]:
        source = directory / segment_file(0, suffix)
        (directory / (source.name + ".swap")).write_bytes(source.read_bytes())
    merged = log_with(batches=4, records=5)
    (directory / (log_file(0) + ".swap")).write_bytes(merged)
    log = load(directory)
    assert [(s.base_offset, s.log_file, s.size_bytes) for s in log.segments] == [
        (0, log_file(0) + ".swap", len(merged)),
        (20, log_file(20), (directory / log_file(20)).stat().st_size),
    ]
    load_and_commit(directory)
    assert (directory / f"{0:020d}{LOG_SUFFIX}").read_bytes() == merged
    assert load(directory).operations == ()


@pytest.mark.item("SEG-04")
def test_a_segment_may_begin_above_its_base_offset(tmp_path):
    batches = some_batches(count=3, base_offset=15)
    parts = [SegmentSpec(base_offset=10, batches=batches), SegmentSpec(base_offset=18)]
    directory = write_partition(tmp_path / "t-0", parts)
    loaded = load(directory)
    assert [segment.base_offset for segment in loaded.segments] == [10, 18]
    assert loaded.active_segment.base_offset == 18
    [window] = scan_windows(LocalStore(directory).open_file(loaded.segments[0].log_file))
    assert window.batches.base_offset.tolist() == [15, 16, 17]
