"""A commit that keeps what it takes away, and its undo, stopped at every single change.

By a kill or a loss of power. What a stopped commit leaves is what it leaves without a trash, and
nothing is gone that the trash does not have. What a stopped undo leaves is
loaded, by us and by Kafka, as the state before the run or the one after it, and the undo, made
again, ends with the bytes from before the run. ``PYLOG_CRASH_ALL=1`` (``make crash``) takes every
golden round and sweep.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_core.commit import Plan, commit
from storage_core.commit.keep import with_trash
from storage_core.commit.trash import commit_folder, commit_folders
from storage_core.commit.undo import undo_partition
from storage_core.errors import ChangedWhileReadError, GuardRefusedError
from storage_core.filenames import SCRATCH_PREFIX, TEMPORARY_SUFFIX, log_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leftovers import plan_settling
from storage_core.log.log_loader import load_log
from storage_core.log.segment_split import split_segment
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, each_way, is_end
from tests.crash.test_compaction_crash import CASES, Case, Tree, keep, restore, settle
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_cleaning import Cleaning, prepare
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.golden_retention import offsets_of, sweep_golden
from tests.kit.partition_views import committed_values, data_records
from tests.kit.power_loss import Disk, Loss
from tests.oracle.kafka import Kafka
from tests.pylog_spark.overflowing_roots import FAR, overflowing_root

KAFKA_STRIDE = 1 if ALL else 5
KAFKA_POWER_STRIDE = 5 if ALL else 23
# Of how many changes one is tried; every one of the case by hand.
STRIDE = 1 if ALL else 5
POWER_STRIDE = 1 if ALL else 13
GOLDEN_POWER_STRIDE = 5
# How often it is tried which names are kept.
UNORDERED_SEEDS = 16 if ALL else 4
pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A partition that was cleaned with a trash beside it.

    Attributes:
        directory: The partition.
        round_: The round that cleaned it.
        place: The run's trash.
        plan: The commit.
        prepared: The directory and the trash before the commit: scratch files lie there.
        before: The directory as a load leaves it.
        after: The directory as the commit leaves it.
        cleaned: The same with times, and the trash.
        disk: What both lie on.
    """

    disk: Path
    directory: Path
    round_: Cleaning
    place: Path
    plan: Plan
    prepared: Tree
    before: dict[str, bytes]
    after: dict[str, bytes]
    cleaned: Path

    @property
    def folders(self) -> list[Path]:
        """The trash of the commits on the partition."""
        return commit_folders(self.place, self.directory)

    def reset(self) -> None:
        """Bring back the directory and the trash as the commit left them."""
        shutil.rmtree(self.directory)
        shutil.rmtree(self.place)
        shutil.copytree(self.cleaned / "log", self.directory)
        shutil.copytree(self.cleaned / "trash", self.place)

    def tree(self) -> dict[str, bytes]:
        """Return the directory's files, scratch files left out."""
        return {
            name: data
            for name, data in read_tree(self.directory).items()
            if not name.startswith(SCRATCH_PREFIX) and not name.endswith(TEMPORARY_SUFFIX)
        }


def clean(case: Case, tmp_path: Path) -> Cleaned:
    directory, round_ = case.make(tmp_path / "disk" / "log")
    settle(directory, round_)
    before = read_tree(directory)
    prepared_round = prepare(directory, round_)
    place = tmp_path / "disk" / "trash" / "run"
    plan = with_trash(prepared_round.commit_of(), LocalStore(directory), place, action="compact")
    prepared = keep(directory)
    commit(plan, LocalStore(directory))
    after = read_tree(directory)
    if after == before:
        pytest.skip("the round leaves every byte as it was")
    copy = tmp_path / "cleaned"
    shutil.copytree(directory, copy / "log")
    shutil.copytree(place, copy / "trash")
    return Cleaned(
        disk=tmp_path / "disk",
        directory=directory,
        round_=round_,
        place=place,
        plan=plan,
        prepared=prepared,
        before=before,
        after=after,
        cleaned=copy,
    )


def step_of(case: Case, way: Interruption) -> int:
    if way.is_of_power:
        return GOLDEN_POWER_STRIDE if case.golden else POWER_STRIDE
    return STRIDE if case.golden else 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_commit_that_keeps_leaves_the_same_and_is_undone_to_the_byte(case, tmp_path):
    cleaned = clean(case, tmp_path)
    assert cleaned.after != cleaned.before
    undone = undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
    assert cleaned.tree() == cleaned.before
    assert sum(plan.peak_extra_bytes for plan in undone.plans) == 0
    assert (
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling).steps
        == 0
    )
    assert cleaned.round_.load(LocalStore(cleaned.directory)).operations == ()


@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_commit_that_keeps_may_stop_anywhere(case, moment, tmp_path):
    """It is finished by another attempt, as a commit's claim does it: from the step it was at."""
    cleaned = clean(case, tmp_path)
    shutil.rmtree(cleaned.place)
    number = 0
    while True:
        restore(cleaned.directory, cleaned.prepared)
        done = 0
        store = FaultyStore(LocalStore(cleaned.directory), stop_at=number, moment=moment)
        try:
            for step in cleaned.plan.operations:
                commit(Plan(location=cleaned.plan.location, operations=(step,)), store)
                done += 1
        except SimulatedCrash:
            kind = type(cleaned.plan.operations[done]).__name__
        else:
            break
        if moment is not Moment.AFTER or kind not in {"RenameFile", "PromoteFile"}:
            left = Plan(location=cleaned.plan.location, operations=cleaned.plan.operations[done:])
            commit(left, LocalStore(cleaned.directory))
            assert cleaned.tree() == cleaned.after, f"{moment.value} {number}: {kind}"
            undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
            assert cleaned.tree() == cleaned.before, f"{moment.value} {number}: {kind}"
        shutil.rmtree(cleaned.place, ignore_errors=True)
        number += step_of(case, KILLS[0])
    assert number >= len(cleaned.plan.operations)


@pytest.fixture
def _trash_is_elsewhere(monkeypatch):
    """Let the trash be on another filesystem: what is kept is copied."""
    for place in ("keep", "undo"):
        name = f"storage_core.commit.{place}.is_same_filesystem"
        monkeypatch.setattr(name, lambda *_: False)


@pytest.mark.usefixtures("_trash_is_elsewhere")
@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_what_a_commit_took_is_in_the_trash_of_another_filesystem_too(way, tmp_path):
    test_what_a_commit_took_is_in_the_trash_when_the_power_is_back(Case(None), way, tmp_path)


@pytest.mark.parametrize(("case", "way"), each_way(CASES, []))
def test_what_a_commit_took_is_in_the_trash_when_the_power_is_back(case, way, tmp_path):
    cleaned = clean(case, tmp_path)

    def reset():
        shutil.rmtree(cleaned.place)
        restore(cleaned.directory, cleaned.prepared)

    ends = set()
    for where in way.strikes(
        lambda store: commit(cleaned.plan, store),
        cleaned.directory,
        reset=reset,
        root=cleaned.disk,
        stride=step_of(case, way),
    ):
        there = cleaned.tree()
        kept = [read_tree(path) for path in cleaned.place.rglob("kept")]
        for name, data in cleaned.before.items():
            assert there.get(name) == data or any(data == tree.get(name) for tree in kept), where
        log = settle(cleaned.directory, cleaned.round_)
        if cleaned.folders and (cleaned.folders[0] / "left.json").exists():
            undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
            assert cleaned.tree() == cleaned.before, where
        ends.add(log.log_end_offset)
        cleaned.place.mkdir(parents=True, exist_ok=True)
    assert len(ends) == 1


@pytest.mark.parametrize(("case", "way"), each_way(CASES, KILLS))
def test_an_undo_may_stop_anywhere(case, way, tmp_path):
    cleaned = clean(case, tmp_path)
    end = settle(cleaned.directory, cleaned.round_).last_stable_offset
    values = committed_values(cleaned.directory, end)
    records = set(data_records(cleaned.directory))
    seen = set()
    for where in way.strikes(
        lambda store: undo_partition(store, cleaned.folders, settling=plan_settling),
        cleaned.directory,
        reset=cleaned.reset,
        root=cleaned.disk,
        stride=step_of(case, way),
    ):
        assert cleaned.tree() == cleaned.before or not is_end(where), where
        left, trash = keep(cleaned.directory), tmp_path / "trash-left"
        shutil.copytree(cleaned.place, trash)
        # Made again at once.
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
        assert cleaned.tree() == cleaned.before, where
        # Loaded first: one state or the other, and then made again.
        restore(cleaned.directory, left)
        shutil.rmtree(cleaned.place)
        trash.rename(cleaned.place)
        log = settle(cleaned.directory, cleaned.round_)
        assert log.last_stable_offset == end
        assert committed_values(cleaned.directory, end) == values, where
        assert records <= set(data_records(cleaned.directory)), where
        logs = {name: data for name, data in cleaned.tree().items() if name.endswith(".log")}
        sides = [
            {name: data for name, data in side.items() if name.endswith(".log")}
            for side in (cleaned.before, cleaned.after)
        ]
        assert logs in sides, where
        seen.add(sides.index(logs))
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
        assert cleaned.tree() == cleaned.before, where
    assert seen == {0, 1} or way.way is Moment.TORN


@pytest.mark.usefixtures("_trash_is_elsewhere")
@pytest.mark.parametrize("way", [*KILLS, *POWER], ids=lambda way: way.name)
def test_an_undo_from_another_filesystem_may_stop_anywhere(way, tmp_path):
    cleaned = clean(Case(None), tmp_path)
    (kept,) = {path.stat().st_nlink for path in cleaned.cleaned.rglob("kept/*.log")}
    assert kept == 1
    assert cleaned.plan.copied_away_bytes > 1000
    tried = 0
    for where in way.strikes(
        lambda store: undo_partition(store, cleaned.folders, settling=plan_settling),
        cleaned.directory,
        reset=cleaned.reset,
        root=cleaned.disk,
        stride=step_of(Case(None), way),
    ):
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
        assert cleaned.tree() == cleaned.before, where
        tried += 1
    assert tried > len(cleaned.before) or way not in KILLS[:1]
    cleaned.reset()
    undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
    assert cleaned.tree() == cleaned.before


@pytest.mark.item("FLT-08")
def test_names_that_are_kept_in_no_order_put_no_part_of_a_segment_beside_the_whole(tmp_path):
    """As for the commit of a round, on a filesystem that keeps some of the newest names."""
    disk, done = tmp_path / "disk", tmp_path / "split"
    disk.mkdir()
    directory = overflowing_root(disk / "log").path / "t-0"
    store, before = LocalStore(directory), read_tree(directory)
    place = disk / "trash" / "run"
    view = DirectoryView(store)
    limits = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
    split_segment(view, 0, index_interval_bytes=4096, max_index_bytes=1 << 20, limits=limits)
    plan = Plan(location=store.location, operations=tuple(view.operations))
    commit(with_trash(plan, store, place, action="compact"), store)
    folders = [commit_folder(place, directory, 0)]
    shutil.copytree(disk, done)
    whole, part = log_file(0), log_file(FAR)
    number, is_over, states = 0, False, set()
    while not is_over:
        shutil.rmtree(disk)
        shutil.copytree(done, disk)
        lossy = Disk(disk)
        is_over = not lossy.run(
            lambda: undo_partition(store, folders, settling=plan_settling), stop_at=number
        )
        for seed in range(UNORDERED_SEEDS):
            lossy.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            there = read_tree(directory)
            state = (there.get(whole) == before[whole], part in there)
            assert state != (True, True), f"before change {number}, seed {seed}"
            states.add(state)
        number += 1
    assert states == {(False, True), (False, False), (True, False)}
    assert there == before


def test_a_foreign_file_is_named_and_nothing_is_undone(tmp_path):
    cleaned = clean(Case(None), tmp_path)
    foreign = cleaned.directory / "00000000000000000000.log.cleaned"
    foreign.write_bytes(b"somebody else's")
    after = read_tree(cleaned.directory)
    with pytest.raises(ChangedWhileReadError, match=r"0\.log\.cleaned"):
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)
    assert read_tree(cleaned.directory) == after
    foreign.unlink()
    (cleaned.folders[0] / "left.json").unlink()
    with pytest.raises(GuardRefusedError, match="RUN_NOT_ENDED"):
        undo_partition(LocalStore(cleaned.directory), cleaned.folders, settling=plan_settling)


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.parametrize(("case", "way"), each_way(CASES, KILLS[:1]))
def test_kafka_opens_what_a_stopped_undo_left(case, way, tmp_path):
    cleaned = clean(case, tmp_path)
    log = settle(cleaned.directory, cleaned.round_)
    values = committed_values(cleaned.directory, log.last_stable_offset)
    kafka = Kafka(now_ms=cleaned.round_.request.now_ms)
    kafkas = tmp_path / "kafkas" / cleaned.directory.name
    tried = 0
    for where in way.strikes(
        lambda store: undo_partition(store, cleaned.folders, settling=plan_settling),
        cleaned.directory,
        reset=cleaned.reset,
        root=cleaned.disk,
        stride=KAFKA_POWER_STRIDE if way.is_of_power else KAFKA_STRIDE,
    ):
        for clean_shutdown in (False, True):
            restore(kafkas, keep(cleaned.directory))
            with kafka.open_partition(
                kafkas,
                config=case.overrides,
                log_start_offset=cleaned.round_.request.log_start_offset or 0,
                clean_shutdown=clean_shutdown,
            ) as partition:
                assert partition.log_end_offset == log.log_end_offset, where
            found = committed_values(kafkas, log.last_stable_offset)
            assert found == values, where
        tried += 1
    assert tried > 1


SWEPT = [
    golden
    for golden in goldens("retain-*")
    if golden.case["expected"]["deleted"]
    and not golden.case["params"].get("keep")
    and (ALL or golden.name in {"retain-both-s501", "retain-time-all-s501"})
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A partition that retention swept with a trash beside it; trees as of ``Cleaned``."""

    golden: Golden
    disk: Path
    directory: Path
    place: Path
    before: dict[str, bytes]
    after: dict[str, bytes]
    copy: Path

    @property
    def folders(self) -> list[Path]:
        return commit_folders(self.place, self.directory)

    def reset(self) -> None:
        shutil.rmtree(self.directory)
        shutil.rmtree(self.place)
        shutil.copytree(self.copy / "log", self.directory)
        shutil.copytree(self.copy / "trash", self.place)


def sweep(golden: Golden, tmp_path: Path) -> Swept:
    directory = golden.unpack(tmp_path / "disk" / "log")
    before = read_tree(directory)
    store = LocalStore(directory)
    entry = offsets_of(golden)["log_start_offset"] or 0
    steps = sweep_golden(golden, store, log_start_checkpoint=entry).steps
    place = tmp_path / "disk" / "trash" / "run"
    commit(with_trash(steps, store, place, action="retain"), store)
    copy = tmp_path / "swept"
    shutil.copytree(directory, copy / "log")
    shutil.copytree(place, copy / "trash")
    return Swept(
        golden=golden,
        disk=tmp_path / "disk",
        directory=directory,
        place=place,
        before=before,
        after=read_tree(directory),
        copy=copy,
    )


def logs_of(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Return the segments with bytes: an empty one at the end is no difference to anybody."""
    return {name: data for name, data in tree.items() if name.endswith(".log") and data}


@pytest.mark.parametrize(("golden", "way"), each_way(SWEPT, KILLS))
def test_an_undo_of_retention_may_stop_anywhere(golden, way, tmp_path):
    swept = sweep(golden, tmp_path)
    assert swept.after != swept.before
    seen = set()
    for where in way.strikes(
        lambda store: undo_partition(store, swept.folders, settling=plan_settling),
        swept.directory,
        reset=swept.reset,
        root=swept.disk,
        stride=STRIDE,
    ):
        left = keep(swept.directory)
        undo_partition(LocalStore(swept.directory), swept.folders, settling=plan_settling)
        assert read_tree(swept.directory) == swept.before, where
        restore(swept.directory, left)
        log = load_log(LocalStore(swept.directory), **settings_of(golden))
        commit(Plan(location=log.location, operations=log.operations), LocalStore(swept.directory))
        logs = logs_of(read_tree(swept.directory))
        assert logs in (logs_of(swept.before), logs_of(swept.after)), where
        seen.add(logs == logs_of(swept.before))
    assert seen == {True, False} or way.way is Moment.TORN
    swept.reset()
    undo_partition(LocalStore(swept.directory), swept.folders, settling=plan_settling)
    assert read_tree(swept.directory) == swept.before


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.parametrize(("golden", "way"), each_way(SWEPT, KILLS[:1]))
def test_kafka_opens_what_a_stopped_undo_of_retention_left(golden, way, tmp_path):
    swept = sweep(golden, tmp_path)
    end = load_log(LocalStore(swept.directory), **settings_of(golden)).log_end_offset
    overrides = dict(golden.case["config"])
    if "segment.bytes" in overrides:  # smaller than a topic may say
        overrides["internal.segment.bytes"] = overrides.pop("segment.bytes")
    kafka = Kafka(now_ms=golden.case["clock_ms"])
    kafkas = tmp_path / "kafkas" / swept.directory.name
    tried = 0
    for where in way.strikes(
        lambda store: undo_partition(store, swept.folders, settling=plan_settling),
        swept.directory,
        reset=swept.reset,
        root=swept.disk,
        stride=KAFKA_POWER_STRIDE if way.is_of_power else KAFKA_STRIDE,
    ):
        for clean_shutdown in (False, True):
            restore(kafkas, keep(swept.directory))
            with kafka.open_partition(
                kafkas, config=overrides, clean_shutdown=clean_shutdown
            ) as partition:
                assert partition.log_end_offset == end, where
            logs = logs_of(read_tree(kafkas))
            assert logs in (logs_of(swept.before), logs_of(swept.after)), where
        tried += 1
    assert tried > 1
