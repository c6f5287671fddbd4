"""Listings of partitions: as arrays, as the state of one, and a survey of many."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanupPolicy, LogConfig
from storage_core.config.values import LONG_MAX
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    MAX_OFFSET,
    PARTITION_METADATA_FILE,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.filenames import SEGMENT_FILE_SUFFIXES as SUFFIXES
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.maintenance.compaction.plan import (
    CleanRequest,
    NotDue,
    choose_range,
    rule_out_round,
)
from storage_core.maintenance.listings import (
    CheckpointColumns,
    DirectoryLook,
    Listings,
    list_logs,
    look_at,
    parse_file_names,
)
from storage_core.maintenance.partition_state import (
    Fact,
    ObservedSegment,
    PartitionState,
    UnobservedError,
)
from storage_core.maintenance.retention.partition import plan_steps
from storage_core.maintenance.retention.plan import (
    HOLDS,
    NO_LIMIT,
    Predicate,
    RetentionFacts,
    RetentionRules,
    plan_retention,
    sweep_logs,
)
from storage_core.maintenance.survey import observe_segments, segment_states, survey_partition
from storage_core.reading.inspection import inspect_partition, inspect_root
from storage_core.store.base import FileInfo
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.storage_core.maintenance.compaction.states import compacted
from tests.storage_core.maintenance.retention.states import rules

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
    assert (look.oldest_entry, look.metadata, look.are_files) == (entry, b"version: 0", True)
    assert [size for size, _ in look.logs.values()] == [5, 5]
    assert Listings.of_looks([look]).oldest_timestamps.tolist() == [7]
    plain = look_at(directory, needs_age=False, needs_topic_id=False)
    assert (plain.oldest_entry, plain.metadata) == (None, None)
    assert not plain.has_deleted
    (directory / "x.deleted").symlink_to(directory / LEADER_EPOCH_FILE)
    linked = look_at(directory, needs_age=False, needs_topic_id=False)
    assert (linked.are_files, linked.has_deleted) == (False, True)
    (tmp_path / "link-0").symlink_to(directory)
    assert look_at(tmp_path / "link-0", needs_age=False, needs_topic_id=False) is None
    assert look_at(tmp_path / "gone-0", needs_age=False, needs_topic_id=False) is None


def test_logs_of_plain_directories_are_listed_together(tmp_path: Path):
    plain, odd, empty = (tmp_path / name for name in ("t-0", "t-1", "t-2"))
    for directory in (plain, odd, empty):
        directory.mkdir()
    for directory in (plain, odd):
        for base, size in ((7, 3), (0, 5)):
            (directory / log_file(base)).write_bytes(bytes(size))
    (odd / "x.deleted").touch()
    (tmp_path / "link-0").symlink_to(plain)
    names = ("t-0", "t-1", "t-2", "link-0", "gone-0")
    listed = list_logs([str(tmp_path / name) for name in names])
    assert listed == {str(plain): ((0, 7), (5, 3)), str(empty): ((), ())}


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
def test_what_retention_takes_of_many_is_what_it_takes_of_each(cases):
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
    answers = facts.decide(now_ms=NOW)
    logs = sweep_logs(facts, answers, now_ms=NOW)
    for n, (_, size_limit, age_limit, log_start, mark) in enumerate(cases):
        state = with_checkpoints(pairs[n][1], log_start, mark)
        rules = RetentionRules(deletes=True, retention_bytes=size_limit, retention_ms=age_limit)
        try:
            plan = plan_retention(state, rules, now_ms=NOW)
        except UnobservedError:
            assert not logs.is_sure[n]  # a fact is missing
            continue
        assert logs.is_sure[n] == (plan.roll_offset is None)
        if plan.roll_offset is not None:
            continue
        assert logs.is_due[n] == bool(plan.removals)
        if not plan.removals:
            assert plan_steps(state, plan) == ()
        removed = zip(logs.removed[:, n].tolist(), logs.removed_bytes[:, n].tolist(), strict=True)
        assert list(removed) == [plan.counts(predicate) for predicate in Predicate]
        assert logs.first_base_offsets[n] == state.segments[len(plan.removals)].base_offset
        block = plan.blocked_by
        assert HOLDS[logs.holds[n]] is block.hold
        assert logs.log_starts[n] == plan.log_start_offset
        assert logs.old_log_starts[n] == plan.old_log_start_offset
        assert (int(logs.timestamps[n]) if logs.has_timestamp[n] else None) == block.timestamp
        assert (int(logs.waits_ms[n]) if logs.has_wait[n] else None) == block.wait_ms
        assert block.base_offset == logs.blocked_offsets[n]


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
    assert not sweep_logs(facts, facts.decide(now_ms=NOW), now_ms=NOW).is_sure[0]
    unread = Listings.of_looks([replace(look, oldest_entry=None)])
    facts = RetentionFacts.of_listings(
        unread, checkpoints, size_limits=no_limit, age_limits_ms=ones([5])
    )
    assert not sweep_logs(facts, facts.decide(now_ms=NOW), now_ms=NOW).is_sure[0]


CLOCK = 1_800_000_000_000
BASES = (0, 10, 20)
FILES = [
    *(FileInfo(log_file(base), 100 + base, CLOCK - base) for base in BASES),
    *(FileInfo(segment_file(base, ".index"), 8, CLOCK) for base in BASES),
    FileInfo("00000000000000000000.log.deleted", 7, CLOCK),
    FileInfo("leader-epoch-checkpoint", 8, CLOCK),
]


def state_of(
    *, log_start: int | None = None, high_watermark: int | None = None, **timestamps: int
) -> PartitionState:
    return PartitionState.of_listing(
        "/t-0",
        FILES,
        checkpoints=PartitionCheckpoints(log_start_offset=log_start, high_watermark=high_watermark),
        max_timestamps={int(base[1:]): at for base, at in timestamps.items()},
    )


def request(**checkpoints: int) -> CleanRequest:
    return CleanRequest(now_ms=CLOCK, checkpoints=PartitionCheckpoints(**checkpoints))


def test_a_listing_tells_sizes_and_times_of_segments_and_all_names():
    state = state_of()
    assert state.segments == tuple(
        ObservedSegment(base_offset=base, size_bytes=100 + base, modified_ms=CLOCK - base)
        for base in BASES
    )
    assert state.names == {file.name for file in FILES}
    assert state.size_bytes == 330


@pytest.mark.parametrize(
    ("log_start", "high_watermark", "expected"),
    [
        pytest.param(None, None, (0, None), id="no checkpoints"),
        pytest.param(5, 15, (5, 15), id="in the log"),
        pytest.param(5, 3, (5, 5), id="a high watermark below the log start"),
    ],
)
def test_a_high_watermark_lies_in_the_log(log_start, high_watermark, expected):
    state = state_of(log_start=log_start, high_watermark=high_watermark)
    assert (state.log_start_offset, state.high_watermark) == expected


def test_a_listing_without_segments_starts_at_the_checkpoint():
    checkpoints = PartitionCheckpoints(log_start_offset=7)
    state = PartitionState.of_listing("/t-0", [], checkpoints=checkpoints)
    assert (state.segments, state.log_start_offset) == ((), 7)


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        (lambda state: state.log_end_offset, Fact.LOG_END),
        (lambda state: state.last_stable_offset, Fact.STABLE_OFFSET),
        (lambda state: state.segments[-1].largest_timestamp, Fact.TIMESTAMP),
        (lambda state: state.segments[-1].first_batch_timestamp, Fact.FIRST_BATCH),
        (lambda state: replace(state, file_names=None).names, Fact.NAMES),
    ],
    ids=lambda value: value.name if isinstance(value, Fact) else "",
)
def test_a_question_above_the_level_is_an_error_that_names_segment_and_level(question, fact):
    with pytest.raises(UnobservedError, match="of segment 20 was not observed") as caught:
        question(state_of())
    assert caught.value.fact is fact
    assert fact.level.name.lower().replace("_", " ") in str(caught.value)


def test_a_segment_without_timestamps_is_as_old_as_its_file_once_that_was_observed():
    state = state_of(_0=-1, _10=5, _20=-1)
    assert [one.largest_timestamp for one in state.segments] == [CLOCK, 5, CLOCK - 20]


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        pytest.param(compacted(), Fact.STABLE_OFFSET, id="where it is stable"),
        pytest.param(
            compacted({"min.compaction.lag.ms": 1}), Fact.TIMESTAMP, id="how young its records are"
        ),
        pytest.param(
            compacted({"max.compaction.lag.ms": 1}), Fact.FIRST_BATCH, id="how old they are"
        ),
    ],
)
def test_compaction_asks_only_what_its_config_asks(config: LogConfig, fact: Fact):
    state = state_of()
    if fact is not Fact.STABLE_OFFSET:
        state = replace(state, stable_end=20)
    with pytest.raises(UnobservedError) as caught:
        choose_range(state, config, request())
    assert caught.value.fact is fact
    enough = replace(state_of(), stable_end=20)
    assert choose_range(enough, compacted(), request()).cleanable_bytes == 210


def test_compaction_asks_where_the_log_ends_only_for_a_checkpoint():
    with pytest.raises(UnobservedError) as caught:
        choose_range(state_of(), compacted(), request(cleaner_offset=10))
    assert caught.value.fact is Fact.LOG_END


def test_retention_asks_no_age_where_none_counts():
    state = state_of(log_start=20)
    assert plan_retention(state, rules(), now_ms=CLOCK).removed_base_offsets == (0, 10)
    with pytest.raises(UnobservedError):
        plan_retention(state, rules(retention_ms=1), now_ms=CLOCK)


# --- what stands in for what was not observed
@pytest.mark.parametrize(
    ("overrides", "fields", "recovery_point", "answer"),
    [
        pytest.param({}, {"cleaner_offset": 20}, None, NotDue.NOTHING_TO_CLEAN, id="all clean"),
        pytest.param({}, {"high_watermark": 9}, None, NotDue.NOTHING_TO_CLEAN, id="not replicated"),
        pytest.param({}, {}, None, None, id="all dirty"),
        pytest.param({}, {"cleaner_offset": 25}, None, None, id="a point above the last base"),
        pytest.param(
            {},
            {"cleaner_offset": 25},
            25,
            NotDue.NOTHING_TO_CLEAN,
            id="a point that the log is known to reach",
        ),
        pytest.param(
            {"min.compaction.lag.ms": 1}, {"cleaner_offset": 10}, None, None, id="ages unknown"
        ),
        pytest.param(
            {"min.compaction.lag.ms": 1},
            {"cleaner_offset": 20},
            None,
            NotDue.NOTHING_TO_CLEAN,
            id="no age counts",
        ),
        pytest.param(
            {"max.compaction.lag.ms": 9, "min.cleanable.dirty.ratio": 1},
            {"cleaner_offset": 10},
            None,
            None,
            id="it may have waited too long",
        ),
        pytest.param(
            {"min.cleanable.dirty.ratio": 1},
            {"cleaner_offset": 10},
            None,
            NotDue.RATIO_BELOW_MINIMUM,
            id="nothing waits too long",
        ),
    ],
)
def test_a_round_is_ruled_out_only_where_no_record_could_change_that(
    overrides, fields, recovery_point, answer
):
    wanted = request(**fields)
    state = state_of(high_watermark=wanted.checkpoints.high_watermark)
    found = rule_out_round(state, compacted(overrides), wanted, recovery_point=recovery_point)
    assert (None if found is None else found.not_due) is answer


def test_a_survey_lets_the_time_of_a_file_stand_for_its_records():
    config = LogConfig.from_topic_overrides({"cleanup.policy": "delete", "retention.ms": "9"})
    found = survey_partition(state_of(_20=CLOCK), config, request())
    assert found.cleanable is None
    # The oldest file was written now, the next one ten milliseconds ago.
    assert found.retention.removals == ()
    known = survey_partition(state_of(_0=1, _20=CLOCK), config, request())
    assert known.retention.removed_base_offsets == (0, 10)


def test_a_survey_leaves_open_how_long_records_have_waited_and_where_the_log_ends():
    config = compacted({"max.compaction.lag.ms": 1, "min.cleanable.dirty.ratio": 1})
    assert config.max_compaction_lag_ms < LONG_MAX
    found = survey_partition(state_of(), config, request(cleaner_offset=500)).cleanable
    assert (found.first_dirty_offset, found.checkpoint_is_invalid) == (500, False)
    assert found.not_due is NotDue.NOTHING_TO_CLEAN
    dirty = survey_partition(state_of(), config, request()).cleanable
    assert (dirty.cleanable_bytes, dirty.max_compaction_delay_ms) == (210, 0)
    assert dirty.not_due is NotDue.RATIO_BELOW_MINIMUM


NOW_MS = 1_000_000
# A segment every hundred offsets, the last one active.
SIZES = (1000, 1000, 1000, 1000)


def states_of(
    config: LogConfig | None,
    *,
    timestamps: tuple[int, ...] = (100, 200, 300, 400),
    cleaner_offset: int | None = None,
) -> list[str]:
    bases = [number * 100 for number in range(len(SIZES))]
    files = [
        FileInfo(f"{base:020}.log", size, 900_000) for base, size in zip(bases, SIZES, strict=True)
    ]
    checkpoints = PartitionCheckpoints(high_watermark=400, cleaner_offset=cleaner_offset)
    state = PartitionState.of_listing(
        "/logs/t-0",
        files,
        checkpoints=checkpoints,
        max_timestamps=dict(zip(bases, timestamps, strict=True)),
    )
    request = CleanRequest(now_ms=NOW_MS, checkpoints=checkpoints)
    return [str(found) for found in segment_states(state, config, request)]


COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def deleted(**settings: int) -> LogConfig:
    policy = frozenset({CleanupPolicy.DELETE})
    return LogConfig(
        cleanup_policy=policy, **({"retention_bytes": -1, "retention_ms": -1} | settings)
    )


@pytest.mark.parametrize(
    ("config", "checkpoint", "expected"),
    [
        (None, None, ["kept", "kept", "kept", "active"]),
        (None, 200, ["clean", "clean", "dirty", "active"]),
        (deleted(), 200, ["kept", "kept", "kept", "active"]),
        (deleted(retention_bytes=2000), None, ["expired", "expired", "kept", "active"]),
        (deleted(retention_ms=NOW_MS - 250), None, ["expired", "expired", "kept", "active"]),
        (COMPACTED, None, ["dirty", "dirty", "dirty", "active"]),
        (COMPACTED, 200, ["clean", "clean", "dirty", "active"]),
        (COMPACTED, 199, ["clean", "dirty", "dirty", "active"]),
        (COMPACTED, 300, ["clean", "clean", "clean", "active"]),
    ],
    ids=[
        "nobody says the config",
        "nobody says it, but it was compacted",
        "no limit, and no longer compacted",
        "too large",
        "too old",
        "never cleaned",
        "cleaned to a segment's base",
        "cleaned to inside of a segment",
        "clean",
    ],
)
def test_the_first_that_holds_is_the_state(config, checkpoint, expected):
    assert states_of(config, cleaner_offset=checkpoint) == expected


def test_of_a_segment_without_a_timestamp_the_age_of_the_file_counts():
    config = deleted(retention_ms=NOW_MS - 250)
    assert states_of(config, timestamps=(NO_TIMESTAMP, 200, 300, 400))[0] == "kept"


def test_of_a_segment_without_a_time_index_the_age_of_the_file_counts(tmp_path: Path):
    segments = [
        SegmentSpec(base_offset=base, batches=some_batches(count=1, records=10, base_offset=base))
        for base in (0, 10)
    ]
    path = write_partition(tmp_path / "orders-0", segments)
    path.joinpath(f"{0:020}.timeindex").unlink()
    view = inspect_root(tmp_path)
    (entry,) = view.entries
    written_ms = path.joinpath(f"{0:020}.log").stat().st_mtime_ns // 1_000_000
    found = {}
    for age_ms in (1_000, 10_000):
        rows = observe_segments(
            view,
            entry,
            entry.topic_partition,
            config=deleted(retention_ms=5_000),
            now_ms=written_ms + age_ms,
        )
        found[age_ms] = [(row["newest_timestamp"], row["state"]) for row in rows]
    assert [rows[0] for rows in found.values()] == [(None, "kept"), (None, "expired")]


def test_which_segments_of_a_tiered_topic_were_uploaded_is_not_guessed():
    config = deleted(retention_bytes=0, remote_storage_enable=True)
    assert states_of(config) == ["kept", "kept", "kept", "active"]


@pytest.mark.thorough
@pytest.mark.parametrize("hours", [1, 24 * 40])
def test_a_brokers_directory_is_as_retain_and_inspect_say(pylog, tmp_path: Path, hours: int):
    root = unpack_broker(tmp_path / "log")
    now_ms = int(broker_origin()["clock_ms"]) + hours * 3_600_000
    options = ("--role", "broker", "--now-ms", now_ms, "--engine", "local", "--output", "json")
    lines = map(json.loads, pylog("retain", root, *options, "--dry-run").stdout.splitlines())
    removed = {
        (line["topic"], line["partition"]): line["deleted_segments"]
        for line in lines
        if line["type"] == "retention"
    }
    view = inspect_root(root)
    seen = set()
    for entry in view.entries:
        if entry.kind is not DirectoryKind.PARTITION:
            continue
        partition = entry.topic_partition
        config = view.catalog.config_for(partition.topic)
        rows = observe_segments(view, entry, partition, config=config, now_ms=now_ms)
        states = [row["state"] for row in rows]
        seen |= set(states)
        # A topic that is compacted is swept after its round, not by this command.
        if not config.is_compacted:
            assert states.count("expired") == removed.get((partition.topic, partition.partition), 0)
        inspected = inspect_partition(view, entry, now_ms=now_ms)
        if inspected["dirty_bytes"] is not None and "expired" not in states:
            dirty = sum(row["size_bytes"] for row in rows if row["state"] == "dirty")
            assert dirty == inspected["dirty_bytes"]
    assert {"active", "dirty", "expired"} <= seen
