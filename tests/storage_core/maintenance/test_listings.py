"""Listings as arrays: what is decided over them is what is decided partition by partition."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    MAX_OFFSET,
    PARTITION_METADATA_FILE,
    kind_of,
    offset_of,
    segment_file,
)
from storage_core.filenames import SEGMENT_FILE_SUFFIXES as SUFFIXES
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.maintenance.listings import (
    CheckpointColumns,
    DirectoryLook,
    Listings,
    look_at,
    parse_file_names,
)
from storage_core.maintenance.partition_state import PartitionState, UnobservedError
from storage_core.maintenance.retention.partition import plan_steps
from storage_core.maintenance.retention.plan import (
    HOLDS,
    NO_LIMIT,
    RetentionFacts,
    RetentionRules,
    find_kept_logs,
    plan_retention,
)
from storage_core.store.base import FileInfo

NOW = 1_700_000_000_000
EDGES = [0, 1, 9, 10, 2**31, 2**53 + 1, 2**62, MAX_OFFSET - 1, MAX_OFFSET]

numbers = st.integers(0, 40) | st.sampled_from(EDGES)
canonical_names = st.builds(segment_file, numbers, st.sampled_from(SUFFIXES))
hostile_names = st.sampled_from(
    [
        "", ".log", "x.log", "1.log", "00000000000000000001.LOG", "00000000000000000001.log.swap",
        "00000000000000000001.log.deleted", "00000000000000000001.index.cleaned", "\udcff.log",
        "99999999999999999999.log", "09223372036854775808.index", "09223372036854775807.timeindex",
        "0000000000000000000a.log", "\uff100000000000000000001.log", "000000000000000000010.log",
        "-0000000000000000001.log", "00000000000000000001.logs", "00000000000000000001.logtimex",
        "00000000000000000001-0000000001.checkpoint", "pylog-off", "notes.txt", ".deleted",
        "00000000000000000001.snapshot", "00000000000000000001txnindex", "leader-epoch-checkpoin",
    ]
)  # fmt: skip


@given(st.lists(canonical_names | hostile_names | st.text(max_size=31), max_size=12))
def test_many_names_are_read_as_one_by_one(names):
    offsets, kinds = parse_file_names(names)
    for name, offset, kind in zip(names, offsets.tolist(), kinds.tolist(), strict=True):
        base, suffix = offset_of(name), kind_of(name)
        is_canonical = suffix is not None and name == segment_file(base, suffix)
        assert (kind >= 0) is is_canonical
        if is_canonical:
            assert (offset, SUFFIXES[kind]) == (base, suffix)


# --- which directories take part


def look_of(
    bases: Sequence[int], more: Sequence[str] = (), *, without: Sequence[str] = ()
) -> DirectoryLook:
    """A directory of whole segments, with more files, or without some."""
    names = [segment_file(base, suffix) for base in bases for suffix in SUFFIXES[:3]]
    names = [name for name in (*names, *more) if name not in without]
    logs = {name: (100, NOW) for name in names if name.endswith(".log")}
    return DirectoryLook(logs=logs, others=[name for name in names if name not in logs])


PLAIN = look_of([0, 10])


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(None, id="not listed"),
        pytest.param(DirectoryLook(logs={}), id="empty"),
        pytest.param(replace(PLAIN, are_files=False), id="a link or a directory in it"),
        pytest.param(look_of([0], ["1.log"]), id="a short number"),
        pytest.param(look_of([0], ["x.log"]), id="a log without a number"),
        pytest.param(look_of([0], ["99999999999999999999.log"]), id="a number too large"),
        pytest.param(look_of([0, 9], without=[segment_file(9, ".index")]), id="no index"),
        pytest.param(look_of([0, 9], without=[segment_file(0, ".timeindex")]), id="no time index"),
        pytest.param(look_of([0], [segment_file(9, ".index")]), id="an index without a log"),
        pytest.param(
            look_of([0, 9], [segment_file(8, ".index")], without=[segment_file(9, ".index")]),
            id="the index of another",
        ),
        pytest.param(look_of([0], [segment_file(9, ".txnindex")]), id="transactions without a log"),
        pytest.param(look_of([0], [segment_file(0, ".log.swap")]), id="a swap"),
        pytest.param(look_of([0], [segment_file(0, ".log.cleaned")]), id="a cleaning"),
        pytest.param(look_of([0], [segment_file(0, ".index.deleted")]), id="a deletion"),
        pytest.param(look_of([0], ["pylog-off"]), id="switched off"),
        pytest.param(look_of([0], ["\udcff.log"]), id="no text"),
        pytest.param(
            replace(look_of([0]), logs={segment_file(0, ".log"): (2**31, 0)}), id="a huge log"
        ),
    ],
)
def test_what_is_unusual_takes_no_part(look):
    listings = Listings.of_looks([PLAIN, look, PLAIN])
    assert listings.places.tolist() == [0, 2]
    assert listings.base_offsets.tolist() == [0, 10, 0, 10]


def test_what_kafka_keeps_beside_segments_is_usual():
    more = [LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, segment_file(3, ".snapshot")]
    look = look_of([10, 0], [*more, segment_file(10, ".txnindex")])
    listings = Listings.of_looks([look, look])
    assert listings.base_offsets.tolist() == [0, 10, 0, 10]
    assert (listings.counts.tolist(), listings.total_bytes.tolist()) == ([2, 2], [200, 200])


def test_a_look_reads_the_oldest_age_and_the_topic_id_and_follows_no_link(tmp_path: Path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name in PLAIN.logs:
        (directory / name).write_bytes(b"12345")
    for name in PLAIN.others:
        (directory / name).touch()
    entry = np.array([(7, 1)], TIME_INDEX_ENTRY).tobytes()
    (directory / segment_file(0, ".timeindex")).write_bytes(bytes(12) + entry + b"torn")
    (directory / PARTITION_METADATA_FILE).write_bytes(b"version: 0")
    look = look_at(directory, needs_age=True, needs_topic_id=True)
    assert look is not None
    assert (look.oldest_entry, look.metadata, look.are_files) == (entry, b"version: 0", True)
    assert [size for size, _ in look.logs.values()] == [5, 5]
    assert Listings.of_looks([look]).oldest_timestamps.tolist() == [7]
    plain = look_at(directory, needs_age=False, needs_topic_id=False)
    assert plain is not None
    assert (plain.oldest_entry, plain.metadata) == (None, None)
    assert not plain.has_deleted
    (directory / "x.deleted").symlink_to(directory / LEADER_EPOCH_FILE)
    linked = look_at(directory, needs_age=False, needs_topic_id=False)
    assert linked is not None
    assert (linked.are_files, linked.has_deleted) == (False, True)
    (tmp_path / "link-0").symlink_to(directory)
    assert look_at(tmp_path / "link-0", needs_age=False, needs_topic_id=False) is None
    assert look_at(tmp_path / "gone-0", needs_age=False, needs_topic_id=False) is None


# --- decisions

offsets = st.integers(0, 60) | st.sampled_from(EDGES)
times = st.integers(NOW - 50, NOW + 20) | st.sampled_from([NO_TIMESTAMP, 0, 2**60])
limits = st.integers(0, 400) | st.just(NO_LIMIT)


@st.composite
def partitions(draw):
    """Sorted (base offset, size, modified_ms) of some segments, and the oldest's last entry."""
    bases = sorted(draw(st.sets(offsets, min_size=1, max_size=5)))
    sizes = st.integers(0, 200) | st.just(2**31 - 1)
    segments = [(base, draw(sizes), draw(times.map(lambda at: max(at, 0)))) for base in bases]
    return segments, draw(times)


def listed(partition) -> tuple[DirectoryLook, PartitionState]:
    segments, at = partition
    look = look_of([base for base, _, _ in segments])
    entry = np.array([(at, 0)], TIME_INDEX_ENTRY).tobytes() if at > NO_TIMESTAMP else b""
    logs = {segment_file(base, ".log"): (size, ms) for base, size, ms in segments}
    look = replace(look, logs=logs, oldest_entry=entry)
    files = [
        *(FileInfo(name, size, ms) for name, (size, ms) in look.logs.items()),
        *(FileInfo(name, 12, 0) for name in look.others),
    ]
    state = PartitionState.of_listing(
        "t-0",
        files,
        max_timestamps={segments[0][0]: at},
    )
    return look, state


def with_checkpoints(state: PartitionState, log_start: int, mark: int | None) -> PartitionState:
    start = max(log_start, state.segments[0].base_offset)
    lifted = None if mark is None else max(mark, start)
    return replace(state, log_start_offset=start, high_watermark=lifted)


def ones(values: list) -> np.ndarray:
    return np.array(values, np.int64)


@given(st.lists(st.tuples(partitions(), limits, limits, offsets, st.none() | offsets), max_size=6))
def test_what_retention_keeps_is_what_it_keeps_of_each(cases):
    pairs = [listed(case[0]) for case in cases]
    facts = RetentionFacts.of_listings(
        Listings.of_looks([look for look, _ in pairs]),
        CheckpointColumns.of(
            [
                PartitionCheckpoints(log_start_offset=start, high_watermark=mark)
                for *_, start, mark in cases
            ]
        ),
        size_limits=ones([case[1] for case in cases]),
        age_limits_ms=ones([case[2] for case in cases]),
    )
    kept = find_kept_logs(facts, now_ms=NOW)
    for n, (_, size_limit, age_limit, log_start, mark) in enumerate(cases):
        state = with_checkpoints(pairs[n][1], log_start, mark)
        rules = RetentionRules(deletes=True, retention_bytes=size_limit, retention_ms=age_limit)
        try:
            plan = plan_retention(state, rules, now_ms=NOW)
        except UnobservedError:
            assert not kept.is_kept[n]  # something goes, or the log has to be asked
            continue
        assert kept.is_kept[n] == (not plan.removals)
        if plan.removals:
            continue
        assert plan_steps(state, plan) == ()
        block = plan.blocked_by
        assert HOLDS[kept.holds[n]] is block.hold
        assert kept.log_starts[n] == plan.log_start_offset == plan.old_log_start_offset
        assert (int(kept.timestamps[n]) if kept.has_timestamp[n] else None) == block.timestamp
        assert (int(kept.waits_ms[n]) if kept.has_wait[n] else None) == block.wait_ms
        assert block.base_offset == state.segments[0].base_offset


@pytest.mark.parametrize("age_limit", [2**61, MAX_OFFSET])
def test_times_that_do_not_fit_are_left_to_numbers_that_grow(age_limit):
    look, _ = listed(([(0, 1, NOW), (5, 1, NOW)], NOW))
    checkpoints, no_limit = CheckpointColumns.of([PartitionCheckpoints()]), ones([NO_LIMIT])
    facts = RetentionFacts.of_listings(
        Listings.of_looks([look]),
        checkpoints,
        size_limits=no_limit,
        age_limits_ms=ones([age_limit]),
    )
    assert not find_kept_logs(facts, now_ms=NOW).is_kept[0]
    unread = Listings.of_looks([replace(look, oldest_entry=None)])
    facts = RetentionFacts.of_listings(
        unread, checkpoints, size_limits=no_limit, age_limits_ms=ones([5])
    )
    assert not find_kept_logs(facts, now_ms=NOW).is_kept[0]
