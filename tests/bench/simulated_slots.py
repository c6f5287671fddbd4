"""The stages of a compaction played on any number of slots: planning alone, with measured rates.

Units are those that the job's own planning makes for so many slots. Of two stages that run beside
each other the one that was started first gets a free slot first, as Spark's scheduler has it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pylog_spark.config import Tuning
from pylog_spark.operations.rounds import COMMIT_BYTES
from pylog_spark.planning import WorkItem, choose_unit_bytes, pack_units

# Places in the chain of the stages of its first Spark job.
_STARTED_FIRST: Final = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast one slot is, in bytes a second, and what is not by bytes.

    Attributes:
        pass_one: Of pass one.
        pass_two: Of pass two.
        whole: Of cleaning a small partition in one task, commit included.
        merge_s: Seconds of merging the big partition's map.
        commit_s: Seconds of its commit.
    """

    pass_one: float
    pass_two: float
    whole: float
    merge_s: float
    commit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of it.

    Attributes:
        wall_s: Seconds until the last task had ended.
        work_s: Seconds of all tasks together.
        slots: How many there were.
    """

    wall_s: float
    work_s: float
    slots: int

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
        small: Sizes of the small ones.
        rates: How fast one slot is.
        slots: How many tasks run at once.
    """
    first = _costs(segments, rates.pass_one, slots)
    second = _costs(segments, rates.pass_two, slots)
    beside = _costs([size + COMMIT_BYTES for size in small], rates.whole, slots, less=COMMIT_BYTES)
    chain = [first, [rates.merge_s], second, [rates.commit_s]]
    wall = _play(chain, beside, slots)
    work = sum(sum(stage) for stage in chain) + sum(beside)
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
    items = [WorkItem(ordinal=n, number=0, size_bytes=size) for n, size in enumerate(sizes)]
    units = pack_units(items, unit_bytes=unit_bytes)
    return [sum(item.size_bytes - less for item in unit.items) / rate for unit in units]


def _play(chain: Sequence[Sequence[float]], beside: Sequence[float], slots: int) -> float:
    """Return when all tasks have ended.

    Pass one and the merge are one Spark job, started before the one beside it; pass two and the
    commit are started later, so the job beside goes first there.
    """
    running: list[tuple[float, bool]] = []  # (when it ends, whether it is of the chain)
    waiting, stages = list(beside), [list(stage) for stage in chain]
    number, under_way, now = 0, 0, 0.0
    while True:
        while number < len(stages) and not stages[number] and not under_way:
            number += 1
        own = stages[number] if number < len(stages) else []
        while len(running) < slots and (own or waiting):
            is_own = bool(own) and (number in _STARTED_FIRST or not waiting)
            seconds = (own if is_own else waiting).pop(0)
            under_way += is_own
            heapq.heappush(running, (now + seconds, is_own))
        if not running:
            return now
        now, was_own = heapq.heappop(running)
        under_way -= was_own
