"""Whole rounds on one partition: their answers, files, numbers, commit and repetition."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from storage_core.commit import (
    DeleteFile,
    DeleteFiles,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    WriteFile,
    commit,
)
from storage_core.commit.plan import changed_names, digest_files
from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.errors import ChangedWhileReadError, OffsetOverflowError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    SCRATCH_PREFIX,
    SWAP_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.control import ControlType
from storage_core.json_values import to_json
from storage_core.log import segment_recovery as segment_split
from storage_core.log.loaded_log import LoadChanges
from storage_core.maintenance.compaction import partition
from storage_core.maintenance.compaction.commit import (
    LoadWrites,
    changes_since_plan,
    plan_commit,
    plan_split,
    verify_inputs,
)
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.partition import CleanedLog, CleanerStats, total_of
from storage_core.maintenance.compaction.plan import map_slots
from storage_core.maintenance.compaction.rewrite import RewriteStats
from storage_core.records.reader import Window, scan_windows
from storage_core.store.base import FileReader
from storage_core.store.local import LocalStore
from tests.kit.builders import end_txn_marker
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.directories import AbortedTxnSpec, ProducerSpec
from tests.kit.golden_cleaning import cleaning_of, prepare
from tests.kit.golden_data import Golden, Side, goldens
from tests.kit.partition_views import data_records
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    P,
    bases_in,
    batch,
    clean,
    cleaning,
    produced,
    record,
    records_in,
    write_log,
)

BOTH_RESULTS = [pytest.param(0, id="nothing to clean"), pytest.param(1, id="cleaned")]


def small_log(directory: Path) -> Path:
    return write_log(
        directory,
        [batch(0, record(b"a"), record(b"b"))],
        [batch(2, record(b"a"))],
        [batch(3, record(b"b"))],
    )


# --- answers


@pytest.mark.parametrize("is_due", BOTH_RESULTS)
def test_the_answer_has_exactly_these_keys(tmp_path, is_due):
    directory = small_log(tmp_path / "t-0")
    result = clean(directory, overrides={"min.cleanable.dirty.ratio": 1 - is_due})
    assert list(json.loads(to_json(result))) == [
        "next_offset",
        "messages_read",
        "messages_written",
        "bytes_read",
        "bytes_written",
        "map_messages_read",
        "invalid_messages_read",
        "segments",
        "size",
        "cleaner_checkpoint",
        "nothing_to_clean",
    ]
    assert "\n" not in to_json(result)


def test_the_numbers_are_those_of_the_log(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"b"))],
        [batch(2, record(b"a")), batch(3, record(b"b"))],
        [batch(4, record(None), record(b"c"))],
    )
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    result = clean(directory)
    assert result.map_messages_read == result.messages_read == 6
    assert result.messages_written == 3
    assert result.invalid_messages_read == 1
    assert result.bytes_read == size
    assert result.bytes_written == result.size == (directory / log_file(0)).stat().st_size
    assert (result.segments, result.next_offset, result.cleaner_checkpoint) == (2, 6, 6)


def test_records_of_batches_dropped_whole_are_not_read_but_their_bytes_are(tmp_path):
    lost = produced(0, record(b"a"), record(b"b"), is_transactional=True)
    abort = end_txn_marker(
        base_offset=2, producer_id=P, producer_epoch=0, control_type=ControlType.ABORT
    )
    entry = AbortedTxnSpec(producer_id=P, first_offset=0, last_offset=2, last_stable_offset=3)
    log = [lost, abort, batch(3, record(b"a"))]
    directory = write_log(tmp_path / "t-0", log, aborted={0: [entry]})
    size = (directory / log_file(0)).stat().st_size
    result = clean(directory)
    assert (result.map_messages_read, result.messages_read, result.messages_written) == (4, 2, 2)
    assert result.bytes_read == size


@pytest.mark.item("CMP-02")
@pytest.mark.parametrize(
    ("checkpoint", "answered"),
    [
        pytest.param(None, None, id="no checkpoint stays none"),
        pytest.param(4, 4, id="a checkpoint stays"),
        pytest.param(5, 0, id="one above the log becomes the log start"),
    ],
)
def test_a_checkpoint_outside_of_the_log_is_replaced_even_if_nothing_is_cleaned(
    tmp_path, checkpoint, answered
):
    directory = small_log(tmp_path / "t-0")
    result = clean(directory, cleaner_offset=checkpoint, overrides={"min.cleanable.dirty.ratio": 1})
    assert result.nothing_to_clean
    assert result.cleaner_checkpoint == answered


def test_a_range_that_was_asked_for_leaves_the_checkpoint(tmp_path):
    directory = small_log(tmp_path / "t-0")
    assert clean(directory, first_dirty_offset=2, cleaner_offset=1).cleaner_checkpoint == 1


# --- keys


@pytest.mark.item("CMP-11")
@pytest.mark.parametrize(
    ("kind", "offsets"),
    [
        pytest.param(OffsetMapHash.MD5, [4, 5, 6], id="md5 takes them for one key, as Kafka does"),
        pytest.param(OffsetMapHash.SIPHASH, [3, 4, 5, 6], id="the default tells them apart"),
    ],
)
def test_two_keys_of_one_md5(tmp_path, kind, offsets):
    golden = Golden("md5-collision")
    directory = golden.unpack(tmp_path)
    live = golden.case["live_before"]
    before = {offset: key for offset, key, _ in records_in(directory)}
    assert before[live["A"]] != before[live["B"]]
    round_ = cleaning_of(golden).with_cleaner(offset_map_hash=kind)
    result = round_.clean(directory)
    kept = [offset for offset, _, _ in records_in(directory)]
    if kind is OffsetMapHash.MD5:
        after = golden.unpack(tmp_path / "after", Side.AFTER)
        assert read_tree(directory) == read_tree(after)
        assert live["A"] not in kept
    else:
        assert {live["A"], live["B"]} <= set(kept)
        assert result.messages_written == golden.case["expected"]["messages_written"] + 1


def test_the_default_hash_is_not_md5():
    assert CleanerConfig().offset_map_hash is OffsetMapHash.SIPHASH


# --- files


@pytest.mark.item("CMP-17")
def test_small_segments_merge_only_in_the_next_round(tmp_path):
    """Five segments of 330 bytes, first at most 800 a group: three rounds make one of them."""
    segments = [
        [batch(2 * n, record(b"k", b"x" * 100), record(b"%d" % n, b"y" * 120))] for n in range(5)
    ]
    directory = write_log(tmp_path / "t-0", *segments)
    overrides = {"internal.segment.bytes": 800}
    assert max(path.stat().st_size for path in directory.glob("*.log")) <= 350
    clean(directory, overrides=overrides)
    assert bases_in(directory) == [0, 4, 8, 10]
    clean(directory, overrides=overrides, first_dirty_offset=0)
    assert bases_in(directory) == [0, 8, 10]
    overrides = {"internal.segment.bytes": 7000}
    clean(directory, overrides=overrides, first_dirty_offset=0)
    assert bases_in(directory) == [0, 10]
    assert [offset for offset, _, _ in records_in(directory)] == [1, 3, 5, 7, 8, 9]


@pytest.mark.item("CMP-17")
def test_the_first_source_names_the_cleaned_segment_though_its_records_are_gone(tmp_path):
    directory = small_log(tmp_path / "t-0")
    clean(directory)
    assert bases_in(directory) == [0, 4]
    assert [offset for offset, _, _ in records_in(directory)] == [2, 3]


@pytest.mark.item("CMP-38")
def test_snapshots_at_bases_that_no_segment_has_any_more_go(tmp_path):
    directory = small_log(tmp_path / "t-0")
    for offset in (2, 3):
        (directory / snapshot_file(offset)).write_bytes((directory / snapshot_file(4)).read_bytes())
    clean(directory)
    assert sorted(int(path.stem) for path in directory.glob("*.snapshot")) == [4]


@pytest.mark.item("CMP-34", "SEG-10")
def test_the_cleaned_segment_is_as_old_as_its_last_source(tmp_path):
    directory = small_log(tmp_path / "t-0")
    for path in directory.glob("0*.*"):
        os.utime(path, (1_600_000_000 + int(path.stem), 1_600_000_000 + int(path.stem)))
    clean(directory)
    for suffix in (".log", ".index", ".timeindex"):
        assert (directory / segment_file(0, suffix)).stat().st_mtime == 1_600_000_003
        assert (directory / segment_file(4, suffix)).stat().st_mtime == 1_600_000_004


@pytest.mark.item("CMP-34")
@pytest.mark.parametrize("golden", goldens("clean-*-s1[05]1*"), ids=lambda golden: golden.name)
def test_cleaned_files_are_as_old_as_kafkas(golden: Golden, tmp_path):
    directory = golden.unpack(tmp_path / "before")
    cleaning_of(golden).clean(directory)
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    for path in after.glob("*.log"):
        found = (directory / path.name).stat().st_mtime_ns
        assert found // 10**9 == path.stat().st_mtime_ns // 10**9, path.name


@pytest.mark.parametrize("mode", [0o600, 0o640], ids=oct)
def test_cleaned_files_may_be_read_by_those_who_could_read_the_old_ones(tmp_path, mode):
    directory = small_log(tmp_path / "t-0")
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(mode)
    clean(directory)
    assert {oct(path.stat().st_mode & 0o777) for path in directory.glob("0*0.*")} == {oct(mode)}


@pytest.mark.item("CMP-35")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=str)
def test_a_batch_far_larger_than_every_buffer_gives_the_same_output(tmp_path, codec):
    large = os.urandom(2_500_000)
    trees = []
    for window_bytes in (1024, 1 << 26):
        directory = write_log(
            tmp_path / str(window_bytes) / "t-0",
            [batch(0, record(b"s"), record(b"gone", b"x"))],
            [batch(2, record(b"large", large), record(b"gone"), record(b"l2", large), codec=codec)],
            [batch(5, record(b"gone"), record(b"s"))],
        )
        cleaner = CleanerConfig(
            window_bytes=window_bytes, io_buffer_bytes=1024, max_io_buffer_bytes=1024
        )
        clean(directory, cleaner=cleaner)
        trees.append(read_tree(directory))
    assert compare_partitions(*trees, Exactness.BYTES) == []
    assert [record[0] for record in records_in(directory)] == [2, 4, 5, 6]


def test_a_round_that_meets_an_overflowed_segment_splits_it_and_is_given_up(tmp_path):
    golden = Golden("overflow-clean-s491")
    directory = golden.unpack(tmp_path / "before")
    with pytest.raises(OffsetOverflowError, match="does not fit a segment with base offset 0"):
        cleaning_of(golden).clean(directory)
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    trees = (read_tree(directory), read_tree(after))
    assert compare_partitions(*trees, Exactness.BYTES) == []
    assert cleaning_of(golden).clean(directory).next_offset is not None


# Too far above the first offset for one segment.
FAR = 2**31 + 50


def overflowing_log(directory: Path) -> Path:
    """The first segment reaches too far; nothing has to be repaired, a deletion to be finished."""
    write_log(
        directory,
        [batch(0, record(b"k", b"old"), record(b"a")), batch(FAR, record(b"k"))],
        [batch(FAR + 1, record(b"b"))],
    )
    (directory / (segment_file(7, ".index") + DELETED_SUFFIX)).write_bytes(b"")
    return directory


def test_an_overflowed_segment_is_read_once_for_its_split(tmp_path, monkeypatch):
    scans = []

    def scan(reader: FileReader, **options: Any) -> Iterator[Window]:
        scans.append(reader.name)
        return scan_windows(reader, **options)

    monkeypatch.setattr(segment_split, "scan_windows", scan)
    directory = overflowing_log(tmp_path / "t-0")
    with pytest.raises(OffsetOverflowError):
        clean(directory)
    assert scans == [log_file(0)]
    assert bases_in(directory) == [0, FAR, FAR + 1, FAR + 2]
    assert not list(directory.glob("*" + DELETED_SUFFIX))
    clean(directory)
    assert records_in(directory) == [(1, b"a", b"v"), (FAR, b"k", b"v"), (FAR + 1, b"b", b"v")]


def test_an_overflowed_segment_whose_swap_was_not_finished_is_split_under_its_own_name(tmp_path):
    """It is met as a ``.swap``, and has lost that suffix when its turn to be split has come."""
    directory = overflowing_log(tmp_path / "t-0")
    for suffix in (".log", ".index", ".timeindex"):
        path = directory / segment_file(0, suffix)
        path.rename(path.with_name(path.name + SWAP_SUFFIX))
    with pytest.raises(OffsetOverflowError, match=re.escape(log_file(0) + SWAP_SUFFIX)):
        clean(directory)
    assert bases_in(directory) == [0, FAR, FAR + 1, FAR + 2]
    assert not list(directory.glob("*" + SWAP_SUFFIX))
    assert [found[0] for found in records_in(directory)] == [0, 1, FAR, FAR + 1]


def test_a_split_beside_an_unfinished_swap_and_scratch_files_settles_the_swap(tmp_path):
    """As tasks plan it, which load no log before; a run's own scratch files are still needed."""
    directory, round_ = overflowing_log(tmp_path / "t-0"), cleaning()
    store = LocalStore(directory)
    for suffix in (".log", ".index", ".timeindex"):
        path = directory / segment_file(0, suffix)
        path.rename(path.with_name(path.name + SWAP_SUFFIX))
    (directory / log_file(0)).write_bytes(b"of the segments that the swap replaces")
    plan = round_.plan(round_.load(store))
    (directory / f"{SCRATCH_PREFIX}run-0").write_bytes(b"")
    # Higher than the swap, which else would not be complete; lower than a part of the split.
    (directory / (segment_file(FAR - 1, ".txnindex") + CLEANED_SUFFIX)).write_bytes(b"")
    commit(plan_split(store, plan, log_file(0) + SWAP_SUFFIX), store)
    assert bases_in(directory) == [0, FAR, FAR + 1, FAR + 2]
    assert [found[0] for found in records_in(directory)] == [0, 1, FAR, FAR + 1]
    strange = {path.name for path in directory.iterdir() if kind_of(path.name) is None}
    assert strange == {f"{SCRATCH_PREFIX}run-0", LEADER_EPOCH_FILE}


# --- repetition


@pytest.mark.item("CMP-47")
@pytest.mark.parametrize("golden", goldens("clean-*"), ids=lambda golden: golden.name)
def test_a_clean_result_is_clean_and_loads_as_it_was(golden: Golden, tmp_path):
    directory = golden.unpack(tmp_path)
    cleaning_ = cleaning_of(golden)
    before = cleaning_.load(LocalStore(directory))
    result = cleaning_.clean(directory)
    tree = read_tree(directory)
    log = cleaning_.load(LocalStore(directory))
    assert log.operations == ()
    for what in ("log_start_offset", "log_end_offset", "high_watermark", "epochs", "producers"):
        assert getattr(log, what) == getattr(before, what)
    assert log.active_segment == before.active_segment
    checkpoints = cleaning_.request.checkpoints
    again = cleaning_.with_request(
        checkpoints=replace(checkpoints, cleaner_offset=result.cleaner_checkpoint)
    )
    if result.cleaner_checkpoint is None or golden.case["params"].get("map.bytes"):
        return
    assert again.clean(directory).nothing_to_clean
    assert read_tree(directory) == tree


@pytest.mark.item("CMP-47")
@pytest.mark.parametrize("golden", goldens("clean-*none*"), ids=lambda golden: golden.name)
def test_a_further_round_over_the_same_range_leaves_the_same_data(golden: Golden, tmp_path):
    directory = golden.unpack(tmp_path)
    cleaning_ = cleaning_of(golden)
    result = cleaning_.clean(directory)
    if result.nothing_to_clean:
        return
    once = data_records(directory)
    again = cleaning_.with_request(
        first_dirty_offset=golden.case["expected"]["first_dirty"],
        first_uncleanable_offset=golden.case["expected"]["first_uncleanable"],
    )
    again.clean(directory)
    if not golden.case["params"].get("map.bytes"):
        assert data_records(directory) == once


def test_nothing_to_clean_changes_no_file(tmp_path):
    directory = small_log(tmp_path / "t-0")
    before = read_tree(directory)
    result = clean(directory, cleaner_offset=4)
    assert result.nothing_to_clean
    assert read_tree(directory) == before


def test_what_the_loader_changes_is_changed_even_if_nothing_is_to_be_cleaned(tmp_path):
    directory = small_log(tmp_path / "t-0")
    (directory / (log_file(0) + ".deleted")).write_bytes(b"")
    clean(directory, cleaner_offset=4)
    assert not list(directory.glob("*.deleted"))


def test_a_round_that_was_killed_while_it_wrote_is_simply_made_again(tmp_path):
    """Its scratch files lie in the way, under names that the new round might choose."""
    killed = small_log(tmp_path / "killed" / "t-0")
    whole = small_log(tmp_path / "whole" / "t-0")
    _leave_scratch_files_of_a_killed_round(killed)
    assert list(killed.glob("pylog-scratch-*"))
    assert clean(killed) == clean(whole)
    assert read_tree(killed) == read_tree(whole)


def _leave_scratch_files_of_a_killed_round(directory: Path) -> None:
    """As a kill -9 between the passes and the commit would."""
    keep = {path.name for path in directory.iterdir()}
    before = {name: (directory / name).read_bytes() for name in keep}
    original = LocalStore.promote

    class KilledError(BaseException): ...

    def killed(*_):
        raise KilledError

    LocalStore.promote = killed  # type: ignore[method-assign]
    try:
        with pytest.raises(KilledError):
            clean(directory)
    finally:
        LocalStore.promote = original  # type: ignore[method-assign]
    for name, content in before.items():
        assert (directory / name).read_bytes() == content


def test_a_missing_index_is_made_anew_before_the_round(tmp_path):
    whole, lacking = small_log(tmp_path / "whole" / "t-0"), small_log(tmp_path / "lacking" / "t-0")
    (lacking / segment_file(2, ".index")).unlink()
    assert clean(lacking) == clean(whole)
    assert read_tree(lacking) == read_tree(whole)


def test_the_clock_of_the_request_is_the_only_one(tmp_path):
    """The same round at the same clock, years later, gives the same bytes."""
    trees = []
    for name in ("now", "then"):
        log = [produced(0, record(b"a"), record(b"t", None)), batch(2, record(b"a"))]
        known = ProducerSpec(producer_id=1000, last_offset=1, last_timestamp=NOW)
        directory = write_log(tmp_path / name / "t-0", log, producers=[known])
        cleaning(now_ms=NOW + 1).clean(directory)
        trees.append(read_tree(directory))
    assert trees[0] == trees[1]


INDEX = IndexStats(bytes_read=900, messages_read=90, keys=30)
REWRITE = RewriteStats(
    messages_read=100,
    messages_written=25,
    bytes_read=1000,
    bytes_written=400,
    invalid_messages_read=3,
)


def stats(*, slots: int | None = 40, elapsed: float = 2.5) -> CleanerStats:
    return CleanerStats.of(INDEX, REWRITE, slots=slots, elapsed_secs=elapsed)


def log(
    ratio: float = 0.5, *, delay_ms: int = 0, failed: bool = False, of: CleanerStats | None = None
) -> CleanedLog:
    return CleanedLog(
        cleanable_ratio=ratio,
        cleanable_bytes=700,
        compaction_delay_ms=delay_ms,
        has_failed=failed,
        stats=of,
    )


@pytest.mark.item("CMP-46")
def test_both_passes_make_one_set_of_numbers():
    said = stats()
    assert (said.map_bytes_read, said.map_messages_read, said.keys) == (900, 90, 30)
    assert (said.bytes_read, said.bytes_written) == (1000, 400)
    assert (said.messages_read, said.messages_written, said.invalid_messages_read) == (100, 25, 3)
    assert said.buffer_utilization == 0.75
    assert (round(said.size_reduction, 3), said.message_reduction) == (0.6, 0.75)
    assert CleanerStats.from_json(said.to_json()) == said


@pytest.mark.item("CMP-46")
def test_a_map_without_a_limit_has_no_fill():
    assert stats(slots=None).buffer_utilization is None


@pytest.mark.item("CMP-46")
def test_slots_are_those_of_one_threads_share():
    # Kafka 4.4: 128 MiB over one thread, 24 bytes a slot.
    assert map_slots(CleanerConfig(dedupe_buffer_bytes=134_217_728)) == 5_592_405
    assert map_slots(CleanerConfig(dedupe_buffer_bytes=134_217_728, threads=2)) == 2_796_202
    assert map_slots(CleanerConfig()) is None


@pytest.mark.item("CMP-46")
def test_an_empty_round_divides_by_nothing():
    empty = CleanerStats.of(
        IndexStats(bytes_read=0, messages_read=0, keys=0), RewriteStats(), slots=1, elapsed_secs=0
    )
    assert (empty.size_reduction, empty.message_reduction) == (0.0, 0.0)


@pytest.mark.item("CMP-46", "CMP-43")
def test_the_totals_of_a_run_are_whole_percents_and_seconds_as_kafkas_gauges():
    totals = total_of(
        [
            log(0.999, of=stats(elapsed=61.9)),
            log(0.2, delay_ms=7999, of=stats(slots=31)),
            log(0.3, delay_ms=1, failed=True),
        ]
    )
    assert totals.max_dirty_percent == 99
    assert totals.cleaner_recopy_percent == 40
    assert totals.max_buffer_utilization_percent == 96
    assert totals.max_clean_time_secs == 61
    assert totals.max_compaction_delay_secs == 7
    assert (totals.cleanable_partitions, totals.delayed_partitions) == (3, 2)
    assert (totals.uncleanable_partitions_count, totals.uncleanable_bytes) == (1, 700)


@pytest.mark.item("CMP-46")
def test_a_run_with_nothing_due_has_totals_of_zero():
    totals = total_of([])
    assert (totals.max_dirty_percent, totals.cleaner_recopy_percent) == (0, 0)
    assert totals.uncleanable_partitions_count == 0


SETTINGS = {"overrides": {"internal.segment.bytes": 200}}
KINDS = ("log", "index", "timeindex")


def two_groups(directory: Path) -> Path:
    """Segments at 0, 2, 4 and 6, two a group, and the active one at 8."""
    write_log(directory, *[[batch(n, record(b"a"), record(b"%d" % n))] for n in (0, 2, 4, 6)])
    empty = (directory / snapshot_file(8)).read_bytes()
    for offset in (2, 4, 6):
        (directory / snapshot_file(offset)).write_bytes(empty)
    return directory


def steps(operation: Operation) -> list[str]:
    """An operation in a few words a file; files of a segment by base offset and suffix."""

    def short(name: str) -> str:
        return name.lstrip("0") if not name.startswith("0" * 20) else "0" + name[20:]

    match operation:
        case PromoteFile(name=name):
            return [f"promote {short(name)}"]
        case RenameFile(source=source, target=target):
            return [f"rename {short(source)} to {short(target)}"]
        case DeleteFile() | DeleteFiles():
            return [f"delete {short(name)}" for name in changed_names(operation)]
        case SyncDirectory():
            return ["sync"]
    raise AssertionError(operation)


@pytest.mark.item("CMP-37", "SEG-08", "SEG-09")
def test_a_group_counts_when_the_one_before_it_has_its_names(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    assert list(chain.from_iterable(map(steps, prepared.commit_of().operations))) == [
        *(f"promote {base}.{kind}.cleaned" for base in (0, 4) for kind in KINDS),
        "sync",
        *(f"rename 0.{kind}.cleaned to 0.{kind}.swap" for kind in KINDS),
        "sync",
        *(f"delete {base}.{kind}" for base in (0, 2) for kind in KINDS),
        "sync",
        *(f"rename 0.{kind}.swap to 0.{kind}" for kind in KINDS),
        *(f"rename 4.{kind}.cleaned to 4.{kind}.swap" for kind in KINDS),
        "sync",
        "delete 2.snapshot",
        *(f"delete {base}.{kind}" for base in (4, 6) for kind in KINDS),
        "sync",
        *(f"rename 4.{kind}.swap to 4.{kind}" for kind in KINDS),
        "sync",
        "delete 6.snapshot",
    ]


@pytest.mark.item("CMP-37")
def test_swaps_with_a_segment_between_them_that_stays_are_never_there_together(tmp_path):
    """A loader deletes all that lies between the first and the last of them."""
    directory = write_log(
        tmp_path / "t-0",
        *[[batch(n, record(b"a"), record(b"%d" % n))] for n in range(0, 12, 2)],
    )
    prepared = prepare(directory, cleaning(**SETTINGS))
    groups = list(prepared.groups)
    assert len(groups) == 3
    groups[1] = replace(groups[1], files=())
    plan = plan_commit(prepared.log, prepared.plan, groups)
    swaps, together = set(), []
    for operation in plan.operations:
        match operation:
            case RenameFile(source=source, target=target):
                # A filesystem that keeps names in no order may have it under both.
                swaps |= {offset_of(name) for name in (source, target) if name.endswith(".swap")}
            case SyncDirectory():
                together.append(sorted(swaps))
                swaps = set()
            case _:
                pass
    assert together == [[], [0], [], [0], [8], [], [8]]


def test_every_step_says_why(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    plan = prepared.commit_of()
    assert all(operation.reason for operation in plan.operations)
    assert plan.peak_extra_bytes == sum(
        file.size_bytes for group in prepared.groups for file in group.files
    )
    assert {row["operation"] for row in plan.describe()} == {
        "PromoteFile",
        "RenameFile",
        "DeleteFile",
        "SyncDirectory",
    }


def test_the_loads_own_changes_come_first_and_are_synced(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    (directory / (log_file(0) + ".deleted")).write_bytes(b"")
    operations = prepare(directory, cleaning(**SETTINGS)).commit_of().operations
    assert [steps(each) for each in operations[:2]] == [["delete 0.log.deleted"], ["sync"]]


def test_a_file_that_the_load_writes_syncs_what_it_did_before(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    (directory / (log_file(0) + ".deleted")).write_bytes(b"")
    (directory / snapshot_file(8)).unlink()
    operations = prepare(directory, cleaning(**SETTINGS)).commit_of().operations
    kinds = [type(operation) for operation in operations]
    assert kinds[kinds.index(WriteFile) + 1] is PromoteFile
    assert SyncDirectory not in kinds[: kinds.index(WriteFile)]


def test_a_round_without_groups_has_no_steps(tmp_path):
    prepared = prepare(two_groups(tmp_path / "t-0"), cleaning(**SETTINGS))
    assert plan_commit(prepared.log, prepared.plan, []).is_empty


def test_inputs_that_are_as_they_were_pass(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    verify_inputs(LocalStore(directory), prepare(directory, cleaning(**SETTINGS)).plan)


@pytest.mark.parametrize("base", [0, 6, 8], ids=["oldest", "newest", "active"])
@pytest.mark.parametrize("change", ["appended", "cut", "touched", "gone"])
def test_a_segment_that_changed_meanwhile_is_named(tmp_path, base, change):
    directory = two_groups(tmp_path / "t-0")
    plan = prepare(directory, cleaning(**SETTINGS)).plan
    path = directory / log_file(base)
    if change == "cut" and base == 8:
        pytest.skip("the active segment is empty")
    match change:
        case "appended":
            path.write_bytes(path.read_bytes() + b"x")
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "touched":
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
        case _:
            path.unlink()
    with pytest.raises(ChangedWhileReadError) as caught:
        verify_inputs(LocalStore(directory), plan)
    assert caught.value.file == log_file(base)
    assert ("no such file" in str(caught.value)) == (change == "gone")


@pytest.fixture
def planned(tmp_path):
    """A directory, and the digest of its files as a round is planned."""
    directory = two_groups(tmp_path / "t-0")
    return directory, digest_files(LocalStore(directory))


def test_files_as_they_were_loaded_change_by_no_other_load(planned):
    directory, loaded_files = planned
    (directory / f"{SCRATCH_PREFIX}of-the-round").touch()
    again = cleaning(**SETTINGS).load(LocalStore(directory))
    writes = to_json(LoadWrites(writes=()))
    changes = changes_since_plan(LocalStore(directory), loaded_files, writes)
    assert changes == LoadChanges(operations=(), snapshot_offsets=again.snapshot_offsets)
    assert changes.snapshot_offsets


def test_what_a_load_writes_is_known_at_the_commit_without_another_load(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    log = cleaning(**SETTINGS).load(LocalStore(directory))
    assert log.operations
    changes = changes_since_plan(
        LocalStore(directory), digest_files(LocalStore(directory)), LoadWrites.encode(log)
    )
    assert changes == LoadChanges(operations=log.operations, snapshot_offsets=log.snapshot_offsets)


def test_what_a_load_removes_or_writes_at_length_is_found_by_another_load(planned):
    directory, loaded_files = planned
    log = cleaning(**SETTINGS).load(LocalStore(directory))
    removal = DeleteFile(name="x", reason="")
    assert LoadWrites.encode(replace(log, operations=(removal,))) is None
    many = WriteFile(name="x", content=bytes(5000), reason="")
    assert LoadWrites.encode(replace(log, operations=(many,))) is None
    assert changes_since_plan(LocalStore(directory), loaded_files, None) is None


@pytest.mark.parametrize("change", ["touched", "gone", "new", "replaced"])
def test_files_that_changed_since_are_loaded_again(planned, change):
    directory, loaded_files = planned
    path = directory / LEADER_EPOCH_FILE
    facts = path.stat()
    match change:
        case "touched":
            os.utime(path, ns=(0, facts.st_mtime_ns + 1))
        case "gone":
            path.unlink()
        case "new":
            (directory / "x").touch()
        case _:
            former = path.rename(directory.parent / "former")
            path.write_bytes(former.read_bytes())
            os.utime(path, ns=(0, facts.st_mtime_ns))
    writes = to_json(LoadWrites(writes=()))
    assert changes_since_plan(LocalStore(directory), loaded_files, writes) is None


def test_a_partition_that_is_written_to_while_it_is_cleaned_is_left_as_it_is(tmp_path, monkeypatch):
    directory = two_groups(tmp_path / "t-0")
    active = directory / log_file(8)
    original = partition.verify_inputs

    def after_an_append(*arguments):
        active.write_bytes(b"appended by somebody else")
        original(*arguments)

    monkeypatch.setattr(partition, "verify_inputs", after_an_append)
    before = read_tree(directory)
    with pytest.raises(ChangedWhileReadError, match=log_file(8)):
        cleaning(**SETTINGS).clean(directory)
    assert read_tree(directory) == before | {log_file(8): b"appended by somebody else"}


def test_snapshots_of_segments_that_stay_are_kept(tmp_path):
    directory = two_groups(tmp_path / "t-0")
    cleaning(**SETTINGS).clean(directory)
    assert sorted(path.name for path in directory.glob("*.snapshot")) == [
        segment_file(4, ".snapshot"),
        segment_file(8, ".snapshot"),
    ]
