"""The commit of a round, stopped at every single change that it makes to the directory.

What a killed process or a loss of power leaves is loaded again; nothing acknowledged may be
missing, nothing that was superseded may be back, and a new round ends where the one that was not
interrupted did. A loss of power may come while the cleaned segments are written, too.
``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden directory, and stops the loads that
follow a crash at every change as well.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_core.commit import Plan, commit
from storage_core.errors import IndexFullError
from storage_core.filenames import SCRATCH_PREFIX, TEMPORARY_SUFFIX, segment_file
from storage_core.formats.control import ControlType
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, each_way, is_end
from tests.kit.builders import end_txn_marker
from tests.kit.compare import read_tree
from tests.kit.directories import AbortedTxnSpec, ProducerSpec
from tests.kit.faulty_store import Moment
from tests.kit.golden_cleaning import Cleaning, PreparedRound, cleaning_of, prepare
from tests.kit.golden_data import Golden, goldens
from tests.kit.partition_views import committed_values, data_records
from tests.kit.power_loss import Disk, Loss
from tests.oracle.kafka import Kafka
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    P,
    Q,
    batch,
    cleaning,
    produced,
    record,
    write_log,
)

# Of how many crashes one is followed by crashes of the loads after it, or shown to Kafka.
LOADS_STRIDE = 1 if ALL else 11
KAFKA_STRIDE = 1 if ALL else 5
# Of how many points one is tried at which the power may fail; of golden rounds always.
POWER_STRIDE = 1 if ALL else 11
GOLDEN_POWER_STRIDE = 5
# Where names are kept in no order: of how many points one, and how many ways of it.
UNORDERED_STRIDE = 1 if ALL else 3
UNORDERED_SEEDS = 40 if ALL else 12
KAFKA_POWER_STRIDE = 5 if ALL else 23
pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]

Tree = dict[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class Case:
    """A directory and a round over it; golden None for the one made by hand."""

    golden: Golden | None

    @property
    def name(self) -> str:
        return self.golden.name if self.golden else "three-groups-by-hand"

    @property
    def is_bounded(self) -> bool:
        """Whether a round that is made again may reach further: the map holds other keys then."""
        return self.golden is not None and "map.bytes" in self.golden.case["params"]

    @property
    def has_tiny_indexes(self) -> bool:
        """Whether an index of this log may be full before its segment is."""
        return "segment.index.bytes" in self.overrides

    @property
    def overrides(self) -> dict[str, Any]:
        """The topic's settings."""
        if self.golden is None:
            return {"cleanup.policy": "compact", "internal.segment.bytes": 520}
        settings = dict(self.golden.case["config"])
        if "segment.bytes" in settings:  # smaller than a topic may say
            settings["internal.segment.bytes"] = settings.pop("segment.bytes")
        return settings

    def make(self, into: Path) -> tuple[Path, Cleaning]:
        if self.golden:
            return self.golden.unpack(into), cleaning_of(self.golden)
        return three_groups(into / "t-0"), cleaning(overrides=self.overrides)


def three_groups(directory: Path) -> Path:
    """Segments of 230 to 260 bytes, two a group; and something to do for the loader.

    Among them are a value whose tombstone is past its horizon, transactions that end in another
    group than they began in, an aborted one, a batch that stays empty for its producer, and one
    group of which nothing is left.
    """

    def in_txn(base_offset: int, *records: Any, **fields: Any) -> Any:
        return produced(base_offset, *records, is_transactional=True, **fields)

    def marker(base_offset: int, producer_id: int, kind: ControlType) -> Any:
        return end_txn_marker(
            base_offset=base_offset, producer_id=producer_id, producer_epoch=0, control_type=kind
        )

    pad = b"x" * 60
    expired = {"delete_horizon_ms": NOW}
    write_log(
        directory,
        [batch(0, record(b"gone", pad), record(b"a", pad)), in_txn(2, record(b"b"))],
        [in_txn(3, record(b"c", pad), producer_id=Q), marker(4, P, ControlType.COMMIT)],
        [batch(5, record(b"gone", b"later"), record(b"e", pad)), batch(7, record(b"e", pad))],
        [batch(8, record(b"gone", None), **expired), batch(9, record(b"e", pad), record(None))],
        [marker(11, Q, ControlType.ABORT), produced(12, record(b"a", pad), record(b"e"))],
        [batch(14, record(b"a"), record(b"d")), batch(16, record(b"t", None), record(b"z", pad))],
        aborted={
            4: [
                AbortedTxnSpec(producer_id=Q, first_offset=3, last_offset=11, last_stable_offset=12)
            ]
        },
        producers=[ProducerSpec(producer_id=P, last_offset=13, last_timestamp=NOW)],
    )
    snapshot = (directory / segment_file(18, ".snapshot")).read_bytes()
    for offset in (8, 14):
        (directory / segment_file(offset, ".snapshot")).write_bytes(snapshot)
    # What the loader settles: a stray snapshot, a deletion that waits, an orphan, a missing and a
    # ragged index, an epoch beyond the end.
    (directory / segment_file(6, ".snapshot")).write_bytes(snapshot)
    (directory / segment_file(0, ".log.deleted")).write_bytes(b"old")
    (directory / segment_file(7, ".timeindex")).write_bytes(b"")
    (directory / segment_file(5, ".timeindex")).unlink()
    (directory / segment_file(18, ".index")).write_bytes(b"\0\0\0")
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 40\n")
    # Left by somebody else's cleaner: as long as it is there, no swap at or above it counts.
    for name in (segment_file(0, ".txnindex.cleaned"), segment_file(3, ".log.cleaned")):
        (directory / name).write_bytes(b"foreign")
    return directory


def one_group(directory: Path) -> Path:
    """A value and its tombstone, past its horizon, in two segments that go together."""
    pad = b"x" * 10
    write_log(
        directory,
        [batch(0, record(b"a", pad))],
        [batch(2, record(b"gone"))],
        [batch(4, record(b"gone", None), delete_horizon_ms=NOW)],
        [batch(6, record(b"b", pad))],
    )
    return directory


SOME = ["clean-everything-none-s101-3", "clean-vanish-s231-3", "clean-txn-gzip-s111-3"]
# The round takes what lies below its first dirty offset to be cleaned, and none ever did that: the
# tombstone of a value goes that stays.
NEVER_CLEANED = "clean-legacy1-snappy-s312-horizon"
CASES = [
    Case(None),
    *(
        Case(golden)
        for golden in goldens("clean-*")
        if (ALL or golden.name in SOME)
        and golden.name != NEVER_CLEANED
        and not golden.case["expected"].get("nothing_to_clean")
        and golden.case["expected"].get("messages_read") != 0  # a map of no slot
    ),
]

# The few golden rounds of the default only rename and delete: no kill leaves a change by half.
COMMITS = [
    pair
    for pair in each_way(CASES, KILLS[:2])
    if ALL or pair.values[0].golden is None or pair.values[1].way is not Moment.TORN
]


def keep(directory: Path) -> Tree:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def restore(directory: Path, tree: Tree) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, (content, modified_ns) in tree.items():
        (directory / name).write_bytes(content)
        os.utime(directory / name, ns=(modified_ns, modified_ns))


def settle(directory: Path, round_: Cleaning, store: Any = None) -> LoadedLog:
    """Load the log and make the changes that loading asks for."""
    log = round_.load(LocalStore(directory))
    operations = Plan(location=log.location, operations=log.operations)
    commit(operations, store or LocalStore(directory))
    return log


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the uninterrupted round, and the directory before it, look like.

    Attributes:
        start: The directory with the scratch files of both passes, before the commit.
        prefixes: The directory with the first 0, 1, 2, ... groups swapped.
        times: For each of these the modification times of the segments.
        log: The log as it was.
        values: The newest committed value of every key.
        before: All data records before the round.
        after: All data records after it.
    """

    start: Tree
    prefixes: list[dict[str, bytes]]
    times: list[dict[str, int]]
    log: LoadedLog
    values: Any
    before: list[Any]
    after: list[Any]


def expect(directory: Path, round_: Cleaning, prepared: PreparedRound) -> Expected:
    start = keep(directory)
    before = data_records(directory)
    prefixes, times = [], []
    for count in range(len(prepared.groups) + 1):
        restore(directory, start)
        commit(prepared.commit_of(count), LocalStore(directory))
        log = settle(directory, round_)
        prefixes.append(read_tree(directory))
        times.append(times_of(directory))
    return Expected(
        start=start,
        prefixes=prefixes,
        times=times,
        log=log,
        values=committed_values(directory, log.last_stable_offset),
        before=before,
        after=data_records(directory),
    )


def times_of(directory: Path) -> dict[str, int]:
    """Return the modification times of the segments, milliseconds."""
    return {path.name: path.stat().st_mtime_ns // 1_000_000 for path in directory.glob("*.log")}


def check_loaded(directory: Path, round_: Cleaning, expected: Expected, where: str) -> None:
    """After a crash and a load: a state on the way, with all that consumers are owed."""
    log = settle(directory, round_)
    again = round_.load(LocalStore(directory))
    assert again.operations == (), where
    for what in ("log_start_offset", "log_end_offset", "last_stable_offset", "epochs"):
        assert getattr(log, what) == getattr(expected.log, what), f"{where}: {what}"
    assert set(log.producers) == set(expected.log.producers), where
    assert committed_values(directory, log.last_stable_offset) == expected.values, where
    tree = read_tree(directory)
    if tree in expected.prefixes:
        assert times_of(directory) in expected.times, where
    else:
        # A swap whose last batch lies below old segments of its group lets those come back.
        found = set(data_records(directory))
        assert set(expected.after) <= found <= set(expected.before), where
    assert not [name for name in tree if name.startswith(SCRATCH_PREFIX)], where


def check_rerun(directory: Path, case: Case, round_: Cleaning, expected: Expected, where: str):
    """The same round, made again: byte for byte, unless some groups were in place already."""
    was_untouched = read_tree(directory) == expected.prefixes[0]
    try:
        round_.clean(directory)
    except IndexFullError:
        # Groups are others now. With indexes of four entries a group may not fit any more; Kafka's
        # cleaner fails at the same place.
        assert case.has_tiny_indexes, where
        assert not was_untouched, where
        return
    if was_untouched:
        assert read_tree(directory) == expected.prefixes[-1], where
    elif not case.is_bounded:
        assert data_records(directory) == expected.after, where
    log = settle(directory, round_)
    assert committed_values(directory, log.last_stable_offset) == expected.values, where


def stride_of(case: Case, way: Interruption) -> int:
    """Return of how many points of a way one is tried."""
    if not way.is_of_power:
        return 1
    return GOLDEN_POWER_STRIDE if case.golden else POWER_STRIDE


@pytest.mark.item("CMP-37", "REC-06", "FLT-08")
@pytest.mark.parametrize(("case", "way"), COMMITS)
def test_a_commit_may_stop_anywhere(case: Case, way: Interruption, tmp_path: Path):
    directory, round_ = case.make(tmp_path)
    before = keep(directory)
    prepared = prepare(directory, round_)
    expected = expect(directory, round_, prepared)

    def work(store: Any) -> None:
        again = prepare(directory, round_) if way.is_of_power else prepared
        commit(again.commit_of(), store)

    seen, tried = set(), 0
    strikes = way.strikes(
        work,
        directory,
        reset=lambda: restore(directory, before if way.is_of_power else expected.start),
        stride=stride_of(case, way),
    )
    for where in strikes:
        crashed = keep(directory)
        is_small = case.golden is None
        if tried % LOADS_STRIDE == 0 and (is_small or (ALL and not way.is_of_power)):
            loads = (way if way.is_of_power else KILLS[0]).strikes(
                lambda store: settle(directory, round_, store),
                directory,
                reset=lambda tree=crashed: restore(directory, tree),
            )
            for then in loads:
                check_loaded(directory, round_, expected, f"{where}, then loading: {then}")
            restore(directory, crashed)
        check_loaded(directory, round_, expected, where)
        tree = read_tree(directory)
        seen |= {i for i, prefix in enumerate(expected.prefixes) if prefix == tree}
        assert tree == expected.prefixes[-1] or not is_end(where), where
        check_rerun(directory, case, round_, expected, where)
        tried += 1
    assert tried or (way.way is Moment.TORN and ALL)
    if way in KILLS[:1] or (way.is_of_power and ALL and case.golden is None):
        assert seen == set(range(len(expected.prefixes)))


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_mode_of_a_cleaned_log_survives_a_loss_of_power_as_its_bytes_do(way, tmp_path):
    """A broker that may not open a file takes its log directory offline."""
    directory, round_ = one_group(tmp_path / "t-0"), cleaning(overrides=Case(None).overrides)
    for path in directory.glob("*.log"):
        path.chmod(0o640)
    disk = Disk(directory)
    disk.run(lambda: commit(prepare(directory, round_).commit_of(), LocalStore(directory)))
    assert disk.changes.count("fsync") < 20
    disk.leave(way.way)
    found = {path.name: path.stat().st_mode & 0o777 for path in directory.glob("*.log")}
    assert len(found) == 2
    assert set(found.values()) == {0o640}


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("make", [one_group, three_groups] if ALL else [one_group])
def test_names_that_are_kept_in_no_order_bring_nothing_back_that_was_superseded(make, tmp_path):
    """On a filesystem that keeps of some files the newest names, and of others the former ones."""
    directory, round_ = make(tmp_path / "t-0"), cleaning(overrides=Case(None).overrides)
    settle(directory, round_)
    before = keep(directory)
    prepared = prepare(directory, round_)
    expected = expect(directory, round_, prepared)
    assert len(prepared.groups[0].base_offsets) >= 2
    number, is_over = 0, False
    while not is_over:
        restore(directory, before)
        disk = Disk(directory)
        is_over = not disk.run(
            lambda: commit(prepare(directory, round_).commit_of(), LocalStore(directory)),
            stop_at=number,
        )
        for seed in range(UNORDERED_SEEDS):
            disk.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            where = f"before change {number}, seed {seed}"
            # Without a marker: such a directory is recovered.
            loader = LogLoader(
                LocalStore(directory),
                config=round_.config,
                cleaner=round_.cleaner,
                now_ms=round_.request.now_ms,
                clean_shutdown=False,
            )
            log = loader.load().close()
            commit(Plan(location=log.location, operations=log.operations), LocalStore(directory))
            assert log.log_end_offset == expected.log.log_end_offset, where
            values = committed_values(directory, expected.log.last_stable_offset)
            assert values == expected.values, where
            found = set(data_records(directory))
            assert set(expected.after) <= found <= set(expected.before), where
        number += UNORDERED_STRIDE


def test_the_case_by_hand_has_groups_and_work_for_the_loader(tmp_path: Path):
    directory, round_ = Case(None).make(tmp_path)
    prepared = prepare(directory, round_)
    assert [len(group.base_offsets) for group in prepared.groups] == [2, 2, 2]
    kinds = {type(operation).__name__ for operation in prepared.log.operations}
    # The foreign files are synced away before anything else.
    assert kinds == {
        "DeleteFile",
        "SyncDirectory",
        "CreateEmptyFile",
        "TruncateFile",
        "WriteFile",
    }
    assert [group.stats.messages_written for group in prepared.groups][1] == 0


def settled(directory: Path) -> dict[str, bytes]:
    """Return all files but what the next write of a name replaces."""
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(TEMPORARY_SUFFIX)}


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("REC-06")
@pytest.mark.parametrize(("case", "way"), each_way(CASES, KILLS[:1]))
def test_kafka_makes_the_same_of_what_a_crash_left(case: Case, way: Interruption, tmp_path: Path):
    directory, round_ = case.make(tmp_path / "ours")
    prepared = prepare(directory, round_)
    expected = expect(directory, round_, prepared)
    kafka = Kafka(now_ms=round_.request.now_ms)
    kafkas = tmp_path / "kafkas" / directory.name
    tried = 0
    for where in way.strikes(
        lambda store: commit(prepared.commit_of(), store),
        directory,
        reset=lambda: restore(directory, expected.start),
        stride=KAFKA_POWER_STRIDE if way.is_of_power else KAFKA_STRIDE,
    ):
        for path in directory.glob(f"{SCRATCH_PREFIX}*"):
            path.unlink()
        for clean_shutdown in (False, True):
            restore(kafkas, keep(directory))
            with kafka.open_partition(
                kafkas,
                config=case.overrides,
                log_start_offset=round_.request.log_start_offset or 0,
                clean_shutdown=clean_shutdown,
            ) as partition:
                assert partition.log_end_offset == expected.log.log_end_offset, where
            values = committed_values(kafkas, expected.log.last_stable_offset)
            assert values == expected.values, where
        settle(directory, round_)
        assert settled(kafkas) == settled(directory), where
        tried += 1
    assert tried > 1
