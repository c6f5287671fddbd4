"""A skewed log directory, one partition of 2 GB and 500 of 1 MB, compacted on two slots.

    python -m tests.bench.bench_skew [--megabytes 2000] [--small 500] [--strategy auto]

Spark's event log says when each task ran. *Work* is the sum of the times of all tasks of
compaction, from pass one to the commits; the *ideal split* is that over two, no slot ever idle;
*wall* is from the launch of the first of these tasks to the finish of the last one, with all that
lies between the stages: the driver's own work, scheduling, the way of the rows.

The same work is then planned for 32 slots by the functions that the job itself uses, with the
rates that were measured, and played: a task goes to the slot that is free first, stages that run
beside each other share the slots, and a stage begins when the one that it needs has ended.
"""

import heapq
import itertools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pylog_spark.operations.compact.driver import COMMIT_BYTES
from pylog_spark.options import Tuning
from pylog_spark.run import planning
from storage_core.filenames import LOG_SUFFIX
from tests.bench.bench_many_keys import run_watched
from tests.bench.generated_columns import Topic, copy_root, generated_root
from tests.bench.shared import CACHE, run_with_options

SLOTS: Final = 2
SIMULATED_SLOTS: Final = 32
MIB: Final = 1024 * 1024
SEGMENT_BYTES: Final = 64 * MIB  # of the large partition
# A key of 8, a value of 110: about what a record takes.
VALUE_BYTES: Final = 110
RECORD_BYTES: Final = 126
WHAT: Final = {
    "pass one and merge": "pass one and merge",
    "pass two": "pass two",
    "both passes": "both passes by shuffle",
    "commit": "commit",
    "clean": "small partitions, whole",
}


_DESCRIPTION: Final = "spark.job.description"
# Stages, one after the other, each the seconds of its tasks.
Job = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTime:
    """One task that ended well, in milliseconds."""

    stage: int  # number of its stage
    description: str  # of its Spark job
    begin_ms: int  # when it was launched
    end_ms: int  # when it had finished

    @property
    def spent_ms(self) -> int:
        """How long it took."""
        return self.end_ms - self.begin_ms


def read_tasks(folder: Path) -> list[TaskTime]:
    """Return the tasks of the one application whose event log lies in a folder."""
    descriptions: dict[int, str] = {}
    tasks = []
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                said = event.get("Properties", {}).get(_DESCRIPTION, "")
                descriptions |= dict.fromkeys(event["Stage IDs"], said)
            elif event["Event"] == "SparkListenerTaskEnd":
                info = event["Task Info"]
                tasks.append(
                    TaskTime(
                        stage=event["Stage ID"],
                        description=descriptions.get(event["Stage ID"], ""),
                        begin_ms=info["Launch Time"],
                        end_ms=info["Finish Time"],
                    )
                )
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How well some tasks used the slots."""

    wall_ms: int  # from the first launch to the last finish, gaps between stages included
    work_ms: int  # sum of the tasks' times
    slots: int  # how many ran at once, at most

    @property
    def ideal_ms(self) -> float:
        """What it would take if no slot were ever idle."""
        return self.work_ms / self.slots

    @property
    def excess(self) -> float:
        """By which share the wall time is above the ideal."""
        return self.wall_ms / self.ideal_ms - 1


def split_of(tasks: Iterable[TaskTime], *, slots: int) -> Split:
    """Return how well tasks used the slots."""
    listed = list(tasks)
    return Split(
        wall_ms=max(t.end_ms for t in listed) - min(t.begin_ms for t in listed),
        work_ms=sum(t.spent_ms for t in listed),
        slots=slots,
    )


def only(tasks: Iterable[TaskTime], wanted: Callable[[str], bool]) -> list[TaskTime]:
    """Return the tasks of jobs whose description is wanted."""
    return [task for task in tasks if wanted(task.description)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast one slot is, in bytes a second, and what is not by bytes."""

    pass_one: float  # of pass one
    pass_two: float  # of pass two
    whole: float  # of cleaning a small partition in one task, commit included
    merge_s: float  # seconds of merging the big partition's map
    commit_s: float  # seconds of its commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of it."""

    wall_s: float  # seconds until the last task had ended
    work_s: float  # seconds of all tasks together
    slots: int  # how many there were

    @property
    def ideal_s(self) -> float:
        """Seconds if no slot were ever idle."""
        return self.work_s / self.slots

    @property
    def excess(self) -> float:
        """By which share the wall time is above the ideal."""
        return self.wall_s / self.ideal_s - 1


def simulate(
    segments: Sequence[int], small: Sequence[int], rates: Rates, *, slots: int
) -> Simulated:
    """Play the compaction of one big partition and some small ones.

    Args:
        segments: Sizes of the big one's segments, each a group of its own.
    """
    # With many slots keys are exchanged: of the merge each bucket's task gets its share.
    mergers = slots if slots >= planning.MANY_SLOTS else 1
    first = [
        _costs(segments, rates.pass_one, slots),
        [rates.merge_s / mergers] * mergers,
        _costs(segments, rates.pass_two, slots),
    ]
    big = [first, [[rates.commit_s]]] if mergers > 1 else [first[:2], first[2:], [[rates.commit_s]]]
    beside, left = [], list(small)
    for count in planning.cut_beside([size + COMMIT_BYTES for size in small], slots=slots):
        job = [size + COMMIT_BYTES for size in left[:count]]
        beside.append([_costs(job, rates.whole, slots, less=COMMIT_BYTES)])
        del left[:count]
    wall = _play(big, beside, slots)
    work = sum(sum(stage) for job in [*big, *beside] for stage in job)
    return Simulated(wall_s=wall, work_s=work, slots=slots)


def _costs(sizes: Sequence[int], rate: float, slots: int, *, less: int = 0) -> list[float]:
    """Return the seconds of each unit, the longest first."""
    tuning = Tuning()
    unit_bytes = planning.choose_unit_bytes(
        sum(sizes),
        slots=slots,
        least_bytes=tuning.unit_min_bytes,
        most_bytes=tuning.unit_max_bytes,
    )
    items = [planning.WorkItem(value=n, size_bytes=size) for n, size in enumerate(sizes)]
    units = planning.pack_units(items, unit_bytes=unit_bytes)
    return [sum(item.size_bytes - less for item in unit.items) / rate for unit in units]


class _Job:
    """A Spark job under way: stages one after the other, each of tasks."""

    def __init__(self, number: int, stages: Job, line: int) -> None:
        self.number, self.line = number, line
        self._stages = [list(stage) for stage in stages]
        self.running = 0

    def next_task(self) -> float | None:
        """Return the seconds of a task that may begin now, and take it."""
        while self._stages and not self._stages[0] and not self.running:
            del self._stages[0]
        return self._stages[0].pop(0) if self._stages and self._stages[0] else None

    @property
    def has_ended(self) -> bool:
        """Whether all of its tasks have."""
        return not self.running and not any(self._stages)


def _play(big: Sequence[Job], beside: Sequence[Job], slots: int) -> float:
    """Return when all tasks have ended.

    The jobs of the big partition follow each other; of those beside it two are under way. A slot
    that is free goes to the job that was started first, of those that have a task for it.
    """
    lines = [deque(big), deque(beside)]
    numbers = itertools.count()
    jobs = [_Job(next(numbers), lines[line].popleft(), line) for line in (0, 1, 1) if lines[line]]
    running: list[tuple[float, int, _Job]] = []
    now = 0.0
    while True:
        for job in sorted(jobs, key=lambda job: job.number):
            while len(running) < slots and (seconds := job.next_task()) is not None:
                job.running += 1
                heapq.heappush(running, (now + seconds, next(numbers), job))
        if not running:
            return now
        now, _, job = heapq.heappop(running)
        job.running -= 1
        if job.has_ended:
            jobs.remove(job)
            if lines[job.line]:
                jobs.append(_Job(next(numbers), lines[job.line].popleft(), job.line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One compaction of the directory."""

    log_bytes: int  # of all segments
    seconds: float  # the whole run, planning and recording included
    split: Split  # of its tasks
    parts: dict[str, Split]  # of the tasks of each kind of stage
    simulated: Simulated  # the same work on more slots
    rates: Rates  # that were measured

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield f"{self.log_bytes / 1e6:.0f} MB, {SLOTS} slots: {self.seconds:.1f} s in all"
        yield (
            f"stages: wall {self.split.wall_ms / 1000:.2f} s, work {self.split.work_ms / 1000:.2f} "
            f"s, ideal {self.split.ideal_ms / 1000:.2f} s: {100 * self.split.excess:.1f} % above"
        )
        for name, part in self.parts.items():
            yield f"  {name}: work {part.work_ms / 1000:.2f} s, wall {part.wall_ms / 1000:.2f} s"
        yield (
            f"planned for {SIMULATED_SLOTS} slots: wall {self.simulated.wall_s:.2f} s, work "
            f"{self.simulated.work_s:.2f} s, ideal {self.simulated.ideal_s:.2f} s: "
            f"{100 * self.simulated.excess:.1f} % above"
        )


def topics_of(*, megabytes: int, small: int, segment_bytes: int) -> list[Topic]:
    """Return the topics of a skewed directory."""
    return [
        Topic(
            name="big",
            partitions=1,
            records=megabytes * 1_000_000 // RECORD_BYTES,
            keys=megabytes * 1000,
            value_bytes=VALUE_BYTES,
            segment_bytes=segment_bytes,
        ),
        Topic(
            name="small",
            partitions=small,
            records=1_250_000 // RECORD_BYTES,
            keys=1000,
            value_bytes=VALUE_BYTES,
            segment_bytes=256 * 1024,
            seed=2,
        ),
    ]


def measure(
    *,
    megabytes: int = 2000,
    small: int = 500,
    strategy: str = "auto",
    segment_bytes: int = SEGMENT_BYTES,
) -> Report:
    """Compact a copy of the directory."""
    topics = topics_of(megabytes=megabytes, small=small, segment_bytes=segment_bytes)
    source = generated_root(CACHE, topics)
    scratch = CACHE / "scratch"
    events = scratch / "events"
    shutil.rmtree(events, ignore_errors=True)
    events.mkdir(parents=True)
    root = copy_root(source, scratch / "skew")
    order: dict[str, Any] = {
        "root": str(root),
        "master": f"local[{SLOTS}]",
        "conf": {
            "spark.driver.memory": "2g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.sql.shuffle.partitions": str(SLOTS),
        },
        "topics": {topic.name: topic.config for topic in topics},
        "strategy": strategy,
        "tuning": {},
    }
    said, _ = run_watched(order)
    tasks = read_tasks(events)
    parts = {
        name: split_of(found, slots=SLOTS)
        for ending, name in WHAT.items()
        if (found := only(tasks, lambda said, ending=ending: _is(said, ending)))
    }
    chosen = only(tasks, lambda said: any(_is(said, ending) for ending in WHAT))
    sizes = closed_segments(source / "big-0")
    small_bytes = sum(closed_segments(source / "small-0"))
    rates = measured_rates(tasks, sum(sizes), small_bytes * small)
    return Report(
        log_bytes=sum(path.stat().st_size for path in source.glob("*/*.log")),
        seconds=said["seconds"],
        split=split_of(chosen, slots=SLOTS),
        parts=parts,
        simulated=simulate(sizes, [small_bytes] * small, rates, slots=SIMULATED_SLOTS),
        rates=rates,
    )


def closed_segments(directory: Path) -> list[int]:
    """Return the sizes of a partition's segments but for the active one."""
    logs = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    return [path.stat().st_size for path in logs[:-1]]


def measured_rates(tasks: Sequence[TaskTime], big_bytes: int, small_bytes: int) -> Rates:
    """Return how fast tasks were, in bytes a second of one slot."""

    def seconds(ending: str) -> list[float]:
        stages = only(tasks, lambda said: _is(said, ending))
        return [task.spent_ms / 1000 for task in stages]

    first = only(tasks, lambda said: _is(said, "pass one and merge"))
    merge_stage = max((task.stage for task in first), default=-1)
    merging = sum(task.spent_ms for task in first if task.stage == merge_stage) / 1000
    indexing = sum(task.spent_ms for task in first) / 1000 - merging
    return Rates(
        pass_one=big_bytes / max(indexing, 1e-3),
        pass_two=big_bytes / max(sum(seconds("pass two")), 1e-3),
        whole=small_bytes / max(sum(seconds("clean")), 1e-3),
        merge_s=merging,
        commit_s=sum(seconds("commit")),
    )


def _is(description: str, ending: str) -> bool:
    return description.partition(": ")[2].startswith(ending)


if __name__ == "__main__":
    run_with_options(measure)
