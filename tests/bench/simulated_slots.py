"""The stages of a compaction played on any number of slots: planning alone, with measured rates.

Units are those that the job's own planning makes for so many slots, and so are the jobs that run
beside the big partition. Of two jobs the one that was started first gets a free slot first, as
Spark's scheduler has it.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pylog_spark.operations.compact.waves import COMMIT_BYTES
from pylog_spark.options import Tuning
from pylog_spark.run.planning import (
    MANY_SLOTS,
    WorkItem,
    choose_unit_bytes,
    cut_beside,
    pack_units,
)

# Stages, one after the other, each the seconds of its tasks.
Job = Sequence[Sequence[float]]


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
    mergers = slots if slots >= MANY_SLOTS else 1
    first = [
        _costs(segments, rates.pass_one, slots),
        [rates.merge_s / mergers] * mergers,
        _costs(segments, rates.pass_two, slots),
    ]
    big = [first, [[rates.commit_s]]] if mergers > 1 else [first[:2], first[2:], [[rates.commit_s]]]
    beside, left = [], list(small)
    for count in cut_beside([size + COMMIT_BYTES for size in small], slots=slots):
        job = [size + COMMIT_BYTES for size in left[:count]]
        beside.append([_costs(job, rates.whole, slots, less=COMMIT_BYTES)])
        del left[:count]
    wall = _play(big, beside, slots)
    work = sum(sum(stage) for job in [*big, *beside] for stage in job)
    return Simulated(wall_s=wall, work_s=work, slots=slots)


def _costs(sizes: Sequence[int], rate: float, slots: int, *, less: int = 0) -> list[float]:
    """Return the seconds of each unit, the longest first."""
    tuning = Tuning()
    unit_bytes = choose_unit_bytes(
        sum(sizes),
        slots=slots,
        least_bytes=tuning.unit_min_bytes,
        most_bytes=tuning.unit_max_bytes,
    )
    items = [WorkItem(value=n, size_bytes=size) for n, size in enumerate(sizes)]
    units = pack_units(items, unit_bytes=unit_bytes)
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
