"""How segments are renamed, deleted and dated by what cleans a log."""

import os

import pytest

from storage_core.commit import DeleteFile, RenameFile, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.log_loader import load_log
from storage_core.maintenance.compaction import partition as compaction
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.records.reader import scan_windows
from storage_core.store.local import LocalStore
from tests.kit.builders import SOME_TIME_MS, some_batches
from tests.kit.directories import SegmentSpec, write_partition

SUFFIXES = [".log", ".index", ".timeindex"]
DAY_MS = 86_400_000


def partition(directory):
    batches = some_batches(count=30, records=2)
    return write_partition(
        directory / "t-0",
        [
            SegmentSpec(base_offset=base, batches=batches[base // 2 : base // 2 + 10], producers=[])
            for base in (0, 20, 40)
        ],
    )


@pytest.fixture
def plans(monkeypatch):
    """The plans that cleaning commits."""
    noted = []

    def commit_noted(plan, store):
        noted.append(plan)
        commit(plan, store)

    monkeypatch.setattr(compaction, "commit", commit_noted)
    return noted


def clean(directory):
    compaction.clean_and_load(
        directory,
        config=LogConfig.from_topic_overrides({"cleanup.policy": "compact"}),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=SOME_TIME_MS + DAY_MS, first_dirty_offset=0),
    )


@pytest.mark.item("SEG-08", "SEG-09")
def test_a_replaced_segment_is_renamed_log_first_and_then_unlinked(plans, tmp_path):
    directory = partition(tmp_path)
    clean(directory)
    [plan] = plans
    renamed = [
        step.source
        for step in plan.operations
        if isinstance(step, RenameFile) and step.target == step.source + ".deleted"
    ]
    swapped = [
        step.target
        for step in plan.operations
        if isinstance(step, RenameFile) and step.source == step.target + ".swap"
    ]
    deleted = [step.name for step in plan.operations if isinstance(step, DeleteFile)]
    assert renamed == [f"{base:020d}{suffix}" for base in (0, 20) for suffix in SUFFIXES]
    assert swapped == [f"{0:020d}{suffix}" for suffix in SUFFIXES]
    assert [name for name in deleted if name.endswith(".deleted")] == [
        name + ".deleted" for name in renamed
    ]
    assert not [path for path in directory.iterdir() if path.suffix in {".deleted", ".swap"}]


@pytest.mark.item("SEG-10")
def test_a_cleaned_segment_takes_over_the_time_of_the_last_one_that_it_replaces(tmp_path):
    directory = partition(tmp_path)
    times = {0: 1_600_000_000, 20: 1_600_000_777, 40: 1_600_009_999}
    for base, seconds in times.items():
        for suffix in SUFFIXES:
            os.utime(directory / f"{base:020d}{suffix}", (seconds, seconds))
    clean(directory)
    for suffix in SUFFIXES:
        assert (directory / f"{0:020d}{suffix}").stat().st_mtime == times[20]
        assert (directory / f"{40:020d}{suffix}").stat().st_mtime == times[40]


@pytest.mark.item("SEG-10", "SEG-11")
def test_age_comes_from_the_file_where_no_record_tells_it_and_size_from_the_logs(tmp_path):
    directory = partition(tmp_path)
    (directory / f"{20:020d}.timeindex").write_bytes(b"")
    os.utime(directory / f"{20:020d}.log", (1_600_000_000, 1_600_000_000))
    loaded = load_log(
        LocalStore(directory), config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS
    )
    assert loaded.segments[1].largest_timestamp == 1_600_000_000_000
    assert loaded.segments[0].largest_timestamp == SOME_TIME_MS + 19
    assert loaded.size_bytes == sum(path.stat().st_size for path in directory.glob("*.log"))


@pytest.mark.item("SEG-04")
def test_a_segment_may_begin_above_its_base_offset(tmp_path):
    batches = some_batches(count=3, base_offset=15)
    directory = write_partition(
        tmp_path / "t-0",
        [
            SegmentSpec(base_offset=10, batches=batches),
            SegmentSpec(base_offset=18, producers=[]),
        ],
    )
    store = LocalStore(directory)
    loaded = load_log(store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS)
    assert [segment.base_offset for segment in loaded.segments] == [10, 18]
    assert loaded.active_segment.base_offset == 18
    [window] = scan_windows(store.open_file(loaded.segments[0].log_file))
    assert window.batches.base_offset.tolist() == [15, 16, 17]
