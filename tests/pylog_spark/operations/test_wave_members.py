"""Which partitions a wave works on, and at what rate: without Spark."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pylog_spark.operations.compact.driver import CompactionStages
from pylog_spark.operations.compact.pass_stages import CompactionLimits, DueCompaction
from pylog_spark.operations.recover.task import RecoveryWork
from pylog_spark.operations.recover.waves import DueRecovery, RecoveryStages
from pylog_spark.operations.retain.driver import SweepStages
from pylog_spark.operations.retain.task import SweepWork
from pylog_spark.options import RunLimits, Strategy, Tuning
from pylog_spark.run import waves as run_waves_module
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.planning import Demand, Disks
from pylog_spark.run.run import Run, RunBudget
from pylog_spark.run.waves import NO_LIMIT, Outcomes, run_wave, run_waves
from pylog_spark.schemas import PLAN
from pylog_spark.tasks.message import MOST_CELL_BYTES, PartitionCommit
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition
from storage_core.roots import broker
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.root import failures_of

EIO = OSError(5, "Input/output error")
GOOD, BAD = TopicPartition("good", 0), TopicPartition("bad", 0)
ANY: Any = None


class Failures(Mapping[str, StorageError]):
    """What disks have failed with by now."""

    def __init__(self, roots: Mapping[str, HeldBrokerRoot]) -> None:
        self._roots = roots

    def __getitem__(self, place: str) -> StorageError:
        return failures_of(self._roots)[place]

    def __iter__(self) -> Iterator[str]:
        return iter(failures_of(self._roots))

    def __len__(self) -> int:
        return len(failures_of(self._roots))


class Disk:
    """Two log directories under their locks; the disk of one can fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = {name: folder / name / "log" for name in ("good", "bad")}
        self.has_failed = False
        for place in self.places.values():
            (place / f"{place.parent.name}-0").mkdir(parents=True)
        self.roots = {
            str(place): HeldBrokerRoot(str(place), run_id="run", mark_clean=True, is_alone=False)
            for place in self.places.values()
        }
        usage, claim = shutil.disk_usage, broker.create_claim
        failure = StorageError("a claim", "Input/output error")
        monkeypatch.setattr(shutil, "disk_usage", self._failing(usage, EIO))
        monkeypatch.setattr(broker, "create_claim", self._failing(claim, failure))

    def _failing(self, original, error):
        def touch(path):
            if self.has_failed and Path(path).is_relative_to(self.places["bad"].parent):
                raise error
            return original(path)

        return touch

    def root(self, partition: TopicPartition) -> str:
        return str(self.places[partition.topic])

    def ref(self, ordinal: int, partition: TopicPartition) -> PartitionRef:
        root = self.places[partition.topic]
        return PartitionRef(
            ordinal=ordinal,
            root=str(root),
            directory=str(root / str(partition)),
            partition=partition,
        )

    def run(self, engine: Any = None, **limits: Any) -> Any:
        """A run over the two directories: all that waves ask of it."""
        run = SimpleNamespace(
            roots=self.roots,
            failures=Failures(self.roots),
            budget=RunBudget(RunLimits(**limits)),
            disks=Disks(),
            job=SimpleNamespace(
                title="pylog", places="log", options=SimpleNamespace(tuning=Tuning(), trash=None)
            ),
            engine=engine
            or SimpleNamespace(release=lambda: None, threads_of=lambda tasks: 100 + tasks),
            write_context=lambda _: WriteContext(
                run=ANY, roots={place: root.access for place, root in self.roots.items()}
            ),
        )
        run.unit_bytes = partial(Run.unit_bytes, run)
        return run


@pytest.fixture
def disk(tmp_path: Path, monkeypatch) -> Iterator[Disk]:
    disk = Disk(tmp_path, monkeypatch)
    with ExitStack() as stack:
        for root in disk.roots.values():
            stack.enter_context(root)
        yield disk


def due(disk: Disk, ordinal: int, partition: TopicPartition, **changes: Any) -> DueCompaction:
    given = {"segment_bytes": (), "strategy": Strategy.WHOLE, "plan_bytes": 0} | changes
    return DueCompaction(
        ref=disk.ref(ordinal, partition),
        plans=PLAN.empty_table(),
        loaded_files=None,
        size_bytes=1000,
        extra_bytes=1000,
        map_bytes=100,
        **given,
    )


LIMITS = CompactionLimits(
    least_unit_bytes=1,
    most_unit_bytes=1,
    budget_bytes=2**30,
    slots=16,
    can_broadcast=True,
    max_keys=None,
)


def compact(
    disk: Disk, listed: Sequence[DueCompaction], limits: CompactionLimits = LIMITS, **spent: Any
) -> Iterator[Outcomes]:
    run = disk.run(**spent)
    budget = Demand(
        map_bytes=limits.budget_bytes,
        disk_bytes=NO_LIMIT.disk_bytes,
        read_bytes=limits.wave_bytes,
        tasks=limits.wave_tasks,
    )
    return run_waves(run, CompactionStages(run, ANY, limits), listed, budget=budget)


def compact_wave(
    disk: Disk, members: Sequence[DueCompaction], limits: CompactionLimits = LIMITS
) -> Outcomes:
    for root in disk.roots.values():
        root.begin_writing()
    run = disk.run()
    return run_wave(run, CompactionStages(run, ANY, limits), members, "compact")


def says_why(outcome: Outcome) -> bool:
    columns = outcome.columns
    return (columns["status"], columns["error_class"]) == ("failed", "StorageError") and (
        "Input/output error" in columns["error"]
    )


@pytest.fixture
def waves(monkeypatch, disk):
    """What each wave of a compaction was given: the partitions, and the context of its tasks."""
    given: list[tuple[list[TopicPartition], Any]] = []

    def clean(_self, partitions, wave):
        given.append(([each.ref.partition for each in partitions], wave.context))
        for each in partitions:
            wave.outcomes[each.ref.ordinal].columns = {"status": "done"}

    monkeypatch.setattr(CompactionStages, "_clean_whole", clean)
    monkeypatch.setattr(CompactionStages, "_clean_spread", clean)
    return given


@pytest.mark.sampled(1)
@pytest.mark.item("DIR-12")
@pytest.mark.parametrize("fails_at", ["begin", "between two waves", "its own wave"])
def test_a_compaction_gives_no_tasks_to_a_directory_whose_disk_failed(
    disk, waves, monkeypatch, fails_at
):
    disk.has_failed = fails_at == "begin"
    listed = [due(disk, n, name) for n, name in enumerate([GOOD, BAD, GOOD])]
    limits = LIMITS if fails_at == "its own wave" else replace(LIMITS, wave_tasks=1)
    if fails_at == "its own wave":
        # Where free space is asked for it still answers.
        monkeypatch.setattr(HeldBrokerRoot, "free_bytes", lambda _: 10**9)
        disk.has_failed = True
    outcomes: dict[int, Outcome] = {}
    for ended in compact(disk, listed, limits):
        outcomes |= ended
        disk.has_failed = True
    assert {partition for members, _ in waves for partition in members} == {GOOD}
    assert [outcomes[n].columns["status"] for n in range(3)] == ["done", "failed", "done"]
    assert says_why(outcomes[1])
    assert [root.failure is None for root in disk.roots.values()] == [True, False]


def test_what_a_full_disk_and_a_spent_budget_refuse_is_said_of_no_failed_one(
    disk, waves, monkeypatch
):
    listed = [due(disk, 0, BAD), due(disk, 1, GOOD)]
    disk.has_failed = True
    waves_of = compact(disk, listed, max_bytes=0)
    outcomes = {n: each for ended in waves_of for n, each in ended.items()}
    assert says_why(outcomes[0])
    assert outcomes[1].columns["reason"] == "BUDGET_SPENT"
    assert waves == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("is_shared", "expected"),
    [
        pytest.param(False, [[GOOD, GOOD, BAD, GOOD], [BAD]], id="a disk each"),
        pytest.param(True, [[GOOD], [GOOD], [BAD], [GOOD], [BAD]], id="one disk"),
    ],
)
def test_a_wave_fits_on_each_disk_and_a_full_one_makes_no_other_wait(
    disk, waves, monkeypatch, is_shared, expected
):
    full = disk.root(BAD)
    free = {str(place): 1500 if is_shared or str(place) == full else 10**9 for place in disk.roots}
    monkeypatch.setattr(HeldBrokerRoot, "free_bytes", lambda root: free[root.location])
    devices = {Path(place): 0 if is_shared else number for number, place in enumerate(disk.roots)}
    monkeypatch.setattr(run_waves_module, "device_of", devices.__getitem__)
    listed = [due(disk, n, name) for n, name in enumerate([GOOD, GOOD, BAD, GOOD, BAD])]
    list(compact(disk, listed))
    assert [members for members, _ in waves] == expected


@pytest.mark.thorough
def test_plans_that_travel_inside_of_closures_bound_a_wave(disk, waves, monkeypatch):
    listed = [due(disk, n, GOOD, plan_bytes=5 << 20) for n in range(3)]
    monkeypatch.setattr(HeldBrokerRoot, "free_bytes", lambda _: 10**9)
    limits = replace(LIMITS, can_broadcast=False, budget_bytes=MOST_CELL_BYTES)
    assert len(list(compact(disk, listed, limits))) == 3
    assert [len(members) for members, _ in waves] == [1, 1, 1]


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_disk_that_does_not_say_what_is_free_has_failed(tmp_path, monkeypatch, is_alone):
    def usage(_):
        raise EIO

    monkeypatch.setattr(shutil, "disk_usage", usage)
    root = HeldBrokerRoot(str(tmp_path), run_id="run", mark_clean=True, is_alone=is_alone)
    if is_alone:
        with pytest.raises(StorageError, match="Input/output error"):
            root.free_bytes()
    else:
        assert root.free_bytes() == 0
        assert "Input/output error" in str(root.failure)


@pytest.mark.thorough
@pytest.mark.item("CMP-43")
@pytest.mark.parametrize(
    ("per_disk", "disks", "expected"),
    [(None, (), 7), (1, (1, 1), 1), (1, (1, 2), 2), (2, (1, 2), 4), (1, (1,), 4), (9, (1, 1), 7)],
)
def test_tasks_share_the_bytes_a_second_with_as_many_as_run_at_once(
    disk, waves, per_disk, disks, expected
):
    """Three segments and a whole partition in one root, three segments in the other."""
    by_root = dict(zip(disk.roots, disks, strict=False))
    limits = replace(LIMITS, disks=Disks(per_disk=per_disk, by_root=by_root))
    spread = {"segment_bytes": (300, 300, 400), "strategy": Strategy.BROADCAST}
    members = [due(disk, 0, GOOD, **spread), due(disk, 1, GOOD), due(disk, 2, BAD, **spread)]
    if per_disk is None:
        # Small partitions beside big ones have their own threads, which are not of interest.
        members[1] = due(disk, 1, GOOD, segment_bytes=(1000,), strategy=Strategy.BROADCAST)
    compact_wave(disk, members, limits)
    assert {context.tasks_at_once for _, context in waves} == {expected}
    assert {context.threads for _, context in waves} == {100 + expected}  # as the engine says
    compact_wave(disk, members, replace(limits, slots=1))
    assert waves[-1][1].tasks_at_once == 1


@pytest.mark.thorough
@pytest.mark.item("DIR-12")
@pytest.mark.parametrize(
    ("fails_at", "limits"),
    [("before", {}), ("before", {"max_bytes": 0}), ("its own wave", {})],
)
def test_a_sweep_gives_no_tasks_to_a_directory_whose_disk_failed(
    disk, monkeypatch, fails_at, limits
):
    listed = [
        SweepWork(
            ref=disk.ref(n, name),
            log_start_checkpoint=0,
            high_watermark=None,
            removed=(0,),
            loaded_files=None,
            log_end=None,
            log_start_offset=5,
            first_base_offset=5,
            is_replicated=True,
            by_log_start_segments=1,
            by_size_segments=0,
            by_time_segments=0,
            rolls=False,
            bytes_after=0,
            segments_after=1,
        )
        for n, name in enumerate([BAD, GOOD])
    ]
    disk.has_failed = True
    if fails_at == "before":
        disk.roots[disk.root(BAD)].free_bytes()
    given: list[list[SweepWork]] = []

    def ask(units, *_):
        given.append([work for unit in units for work in unit])
        return [PartitionCommit(ordinal=work.ref.ordinal, touched=False) for work in given[-1]]

    engine = SimpleNamespace(slots=2, release=lambda: None, ask=ask)
    run = disk.run(engine, **limits)
    context: Any = SimpleNamespace(run=ANY)
    outcomes: dict[int, Outcome] = {}
    for ended in run_waves(run, SweepStages(run, context), listed):
        outcomes |= ended
    assert says_why(outcomes[0])
    is_spent = bool(limits)
    assert outcomes[1].columns["status"] == ("skipped" if is_spent else "done")
    names = [[work.ref.partition.topic for work in works] for works in given]
    assert names == ([] if is_spent else [["good"]])


@pytest.mark.thorough
@pytest.mark.item("DIR-12")
def test_a_recovery_gives_no_tasks_to_a_directory_whose_disk_failed(disk):
    work = RecoveryWork(
        ref=disk.ref(3, BAD),
        is_clean=False,
        checkpoints=PartitionCheckpoints(),
    )
    listed = [DueRecovery(work=work, scan_offsets=(0,), scan_bytes=(9,))]
    disk.has_failed = True
    disk.roots[disk.root(BAD)].free_bytes()
    run = disk.run(ANY)  # nobody is asked to start a stage
    stages = RecoveryStages(run, ANY, may_write=True)
    (ended,) = run_waves(run, stages, listed)
    assert says_why(ended[3])
    assert not ended[3].was_touched
