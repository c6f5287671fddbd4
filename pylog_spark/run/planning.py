"""Plan the work units of tasks and the maps published together. Units say which task does what, and
in which order.

Pure functions over sizes; nothing here knows Spark or a file. An *item* is the smallest piece that
one task can do (a segment in pass one, a group in pass two, a whole partition), a *unit* is what
one task gets: a big item alone, or several small ones together. Units are started longest first,
so that a big one never begins when all the others are done.
"""

import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.options import Strategy
from storage_core.catalog.roles import local_path
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import storage_errors

# Opening a file, or asking Spark for a row, costs about what reading this many bytes does
# (0.2 ms at 1 GB/s): without it, ten thousand empty segments would land in one unit.
ITEM_OVERHEAD_BYTES: Final = 256 * 1024

# Beside its records a batch has 61 bytes, a record at least 7; logs of real topics, compressed
# ones included, have far fewer than one record in 16 bytes of file.
LEAST_RECORD_BYTES: Final = 16
MAP_ENTRY_BYTES: Final = 24
LEAST_BUCKET_BYTES: Final = 1024 * 1024
# To merge a key costs one task about what pass one costs for its record. With so many slots that
# would be most of the time of a big partition, unless its map is small.
MANY_SLOTS: Final = 8
# Small partitions beside big ones: how many jobs they make, and how many of them a slot gets.
MOST_JOBS_BESIDE: Final = 16
LEAST_UNITS_BESIDE: Final = 2
MOST_MERGED_BYTES: Final = 64 * 1024 * 1024
# Looking at a partition is some small reads. So many of them are worth a task; and a slot has
# several, so that one which meets slow ones does not hold up the stage.
LOOKS_PER_TASK: Final = 16
LOOK_TASKS_PER_SLOT: Final = 4
# So many partitions are looked at about as soon as processes have started that could do it.
MOST_LOOKS_HERE: Final = 2000
# While so many are looked at, these processes may start: some of them will have work.
LEAST_TO_PREPARE_FOR: Final = 100
# The same of bytes that are read and checked.
MOST_READ_HERE: Final = 128 * 1024 * 1024
# So many partitions that a listing does not settle are worth processes.
LEAST_TO_SPREAD: Final = 64
# A map that is published lies on the heap several times while it is.
_LEAST_HEAP_PER_MAP: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem(Generic[T]):
    """The smallest piece of work."""

    value: T
    size_bytes: int
    # The disk that it lies on, where only so many tasks may be at one; else None.
    disk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit(Generic[T]):
    """What one task does."""

    items: tuple[WorkItem[T], ...]  # in the order in which they are done; never empty

    @property
    def values(self) -> list[T]:
        """What the task is told, item by item."""
        return [item.value for item in self.items]

    @property
    def size_bytes(self) -> int:
        """Bytes to be read."""
        return sum(item.size_bytes for item in self.items)

    @property
    def cost_bytes(self) -> int:
        """Bytes to be read, with a fixed charge for each item."""
        return self.size_bytes + ITEM_OVERHEAD_BYTES * len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBudgets:
    """The largest offset map for each way to share it."""

    broadcast_bytes: int  # bytes of maps that may be published together
    task_bytes: int  # bytes of a map that one task may build
    can_broadcast: bool = True  # whether the session has broadcast variables
    # Tasks that run at the same time: many of them would all wait for one that merges.
    slots: int = 1


def choose_strategy(
    *,
    asked: Strategy,
    is_one_unit: bool,
    map_bytes: int,
    budgets: MapBudgets,
    is_bounded: bool = False,
) -> Strategy:
    """Choose how one partition is cleaned; the result is the same.

    What is one unit gains nothing from two passes over several tasks. What is asked for holds
    wherever it is possible; a map that cannot be broadcast is shuffled.

    Args:
        asked: What the caller wants; AUTO, or FILES of former releases, leaves it to the sizes.
        is_one_unit: Whether it has one segment alone, or fits in what one task gets.
        map_bytes: Upper bound of the merged map.
        budgets: What maps may take.
        is_bounded: Whether the map holds a limited number of keys: such a round ends at a record
            that only a task which sees all of them in order can find.

    Returns:
        WHOLE, BROADCAST or SHUFFLE.
    """
    if is_bounded or asked is Strategy.WHOLE:
        return Strategy.WHOLE
    is_auto = asked in {Strategy.AUTO, Strategy.FILES}
    if is_auto and is_one_unit and map_bytes <= budgets.task_bytes:
        return Strategy.WHOLE
    is_wide = budgets.slots >= MANY_SLOTS and map_bytes > MOST_MERGED_BYTES
    can_broadcast = budgets.can_broadcast and map_bytes <= budgets.broadcast_bytes
    if asked is Strategy.SHUFFLE or not can_broadcast or (is_auto and is_wide):
        return Strategy.SHUFFLE
    return Strategy.BROADCAST


def broadcast_budget(most_bytes: int, *, heap_bytes: int) -> int:
    """Return how many bytes of maps may be published together.

    Args:
        most_bytes: What the owner allows.
        heap_bytes: What they pass through.
    """
    return min(most_bytes, heap_bytes // _LEAST_HEAP_PER_MAP)


def count_look_tasks(rows: int | None, *, slots: int) -> int:
    """Return the number of tasks to look at partitions. It depends on the number of partitions, up
    to what the slots need.

    Args:
        rows: How many partitions there may be, None where that is not known before they are listed.
        slots: Tasks that run at the same time.
    """
    most = LOOK_TASKS_PER_SLOT * slots
    return most if rows is None else max(1, min(most, -(-rows // LOOKS_PER_TASK)))


def are_looked_at_here(partitions: int | None) -> bool:
    """Return whether to look at partitions in this process. A few are looked at before other
    processes have even started.

    Args:
        partitions: How many there are at most; None where that is not known.
    """
    return partitions is not None and partitions <= MOST_LOOKS_HERE


def are_read_here(items: Iterable[WorkItem[T]]) -> bool:
    """Return whether to read items in this process. A few are read before other processes have
    even started."""
    return sum(item.size_bytes + ITEM_OVERHEAD_BYTES for item in items) <= MOST_READ_HERE


def choose_buckets(*, entry_bytes: int, bucket_bytes: int, slots: int) -> int:
    """Return the number of buckets for dealing out keys.

    Each bucket fits a task; there is one for each slot unless that is too small for a task.

    Args:
        entry_bytes: Upper bound of the bytes of all entries.
        slots: Tasks that run at the same time.
    """
    needed = -(-entry_bytes // bucket_bytes)
    return max(1, needed, min(slots, entry_bytes // LEAST_BUCKET_BYTES))


def estimate_map_bytes(*, offset_span: int, dirty_bytes: int, capacity: int | None) -> int:
    """Return an upper bound of a merged map's size. The map has its keys, and a bit for each
    record.

    Args:
        offset_span: Offsets that the dirty section spans, gaps included.
        capacity: Keys that the map may hold, None without a limit.
    """
    records = count_records_at_most(offset_span=offset_span, size_bytes=dirty_bytes)
    keys = records if capacity is None else min(records, capacity)
    return keys * MAP_ENTRY_BYTES + records // 8


def count_records_at_most(*, offset_span: int, size_bytes: int) -> int:
    """Return an upper bound of the records in some segments. Offsets and bytes give the bound."""
    return min(offset_span, size_bytes // LEAST_RECORD_BYTES)


def choose_unit_bytes(total_bytes: int, *, slots: int, least_bytes: int, most_bytes: int) -> int:
    """Return one task's bytes: about three tasks a slot, within bounds.

    Args:
        total_bytes: Bytes of all items together.
        slots: Tasks that run at the same time, at least 1.
        least_bytes: Below this, starting a task costs more than it brings.
        most_bytes: Above this, a retry costs too much.
    """
    return max(least_bytes, min(most_bytes, total_bytes // (3 * max(slots, 1))))


def cut_beside(sizes: Sequence[int], *, slots: int) -> list[int]:
    """Cut small partitions into jobs of about equal cost. The jobs run beside the stages of big
    partitions.

    Spark serves jobs in the order in which they were started: what a big partition needs next
    waits for the jobs beside it that were started before, so these have to be short.

    Args:
        sizes: Costs of the small partitions, in their order.
        slots: Tasks that run at the same time.

    Returns:
        How many consecutive ones each job has; none has none.
    """
    jobs = max(1, min(MOST_JOBS_BESIDE, len(sizes) // (LEAST_UNITS_BESIDE * max(1, slots))))
    share, cost = sum(sizes) / jobs, 0
    counts = [0]
    for size in sizes:
        if cost >= share * len(counts):
            counts.append(0)
        cost += size
        counts[-1] += 1
    return counts if sizes else []


def pack_units(
    items: Iterable[WorkItem[T]], *, unit_bytes: int, per_disk: int | None = None
) -> list[WorkUnit[T]]:
    """Pack small items into units; give big items their own.

    Items in falling size, each into the emptiest unit: no unit with more than one item costs more
    than unit_bytes, and any two units together do. What lies on a disk is dealt out to so many
    units as may be at work there at once, whatever they cost.

    Args:
        items: Equal ones stay in their order.
        unit_bytes: What a unit may cost, item charges included.
        per_disk: How many units the items of one disk make at most; None leaves it to their bytes.

    Returns:
        The units, most expensive first; equal ones in the order of their first item.
    """
    ordered = sorted(items, key=lambda item: -item.size_bytes)
    by_disk: dict[int | None, list[WorkItem[T]]] = {}
    for item in ordered:
        by_disk.setdefault(None if per_disk is None else item.disk, []).append(item)
    bins = _pack(by_disk.pop(None, []), unit_bytes)
    for of_disk in by_disk.values():
        bins += _deal_out(of_disk, per_disk or 1)
    units = [WorkUnit(items=tuple(content)) for content in bins]
    return sorted(units, key=lambda unit: -unit.cost_bytes)


def level_units(units: Sequence[WorkUnit[T]], *, slots: int) -> list[WorkUnit[T]]:
    """Deal the items of units out again, so that all slots end at about the same time.

    Of more units than slots some slots get one more than the others, and the last one packed may be
    nearly empty. Evenly dealt to a multiple of the slots, equal items leave no slot idle.

    Args:
        units: As ``pack_units`` makes them; stay as they are where the longest would get longer.
        slots: Tasks that run at the same time.
    """
    if len(units) <= slots:
        return list(units)
    items = sorted((item for unit in units for item in unit.items), key=lambda i: -i.size_bytes)
    dealt = _deal_out(items, -(-len(units) // slots) * slots)
    level = sorted((WorkUnit(items=tuple(each)) for each in dealt), key=lambda u: -u.cost_bytes)
    return min(list(units), level, key=lambda some: some[0].cost_bytes)


def count_busy(units: Sequence[WorkUnit[Any]]) -> int:
    """Return how many units are mostly busy at the same time.

    It counts as if there were slots for all. Small ones are done long before the largest is: they
    keep no processor from it.
    """
    costs = [unit.cost_bytes for unit in units]
    return round(sum(costs) / max(costs)) if costs else 0


def _deal_out(items: Sequence[WorkItem[T]], lanes: int) -> list[list[WorkItem[T]]]:
    """Deal items out, each to the lane with the least work."""
    dealt: list[list[WorkItem[T]]] = [[] for _ in range(min(lanes, len(items)))]
    costs = [(0, lane) for lane in range(len(dealt))]
    for item in items:
        cost, lane = costs[0]
        dealt[lane].append(item)
        heapq.heapreplace(costs, (cost + item.size_bytes + ITEM_OVERHEAD_BYTES, lane))
    return dealt


def _pack(items: Sequence[WorkItem[T]], unit_bytes: int) -> list[list[WorkItem[T]]]:
    """Pack items in their order, up to a unit's cost."""
    bins: list[list[WorkItem[T]]] = []
    open_bins: list[tuple[int, int]] = []  # (cost so far, bin): the emptiest bin on top
    for item in items:
        cost = item.size_bytes + ITEM_OVERHEAD_BYTES
        if open_bins and open_bins[0][0] + cost <= unit_bytes:
            used, target = heapq.heappop(open_bins)
            bins[target].append(item)
            heapq.heappush(open_bins, (used + cost, target))
        else:
            bins.append([item])
            if cost < unit_bytes:
                heapq.heappush(open_bins, (cost, len(bins) - 1))
    return bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a partition needs while its round runs."""

    # Upper bound of its offset map, if that is published, and of whatever else is part of a plan of
    # Spark's for its sake.
    map_bytes: int = 0
    disk_bytes: int = 0  # upper bound of the disk space for its new segments
    read_bytes: int = 0
    tasks: int = 0  # upper bound of its tasks in one stage

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(
            map_bytes=self.map_bytes + other.map_bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            read_bytes=self.read_bytes + other.read_bytes,
            tasks=self.tasks + other.tasks,
        )

    def fits(self, budget: "Demand") -> bool:
        """Whether the budget is enough for this."""
        return (
            self.map_bytes <= budget.map_bytes
            and self.disk_bytes <= budget.disk_bytes
            and self.read_bytes <= budget.read_bytes
            and self.tasks <= budget.tasks
        )


def plan_rounds(
    demands: Sequence[Demand],
    *,
    budget: Demand,
    most_partitions: int,
    disks: Sequence[str] = (),
    room: Mapping[str, int] = MappingProxyType({}),
) -> list[list[int]]:
    """Cut partitions into successive rounds, each of which stays within a budget.

    The order is kept: the partition that needs cleaning most is in the first round. A partition
    above the budget gets a round of its own; the caller treats such a one otherwise.

    Args:
        demands: What each partition needs, in the order of their urgency.
        budget: What one round may use.
        most_partitions: Partitions that one round may hold, at least 1.
        disks: The disk of each partition; empty where disks do not matter.
        room: How many bytes one round may use of each disk; without a limit where it is not named.

    Returns:
        Positions in demands, round by round; none of the rounds is empty.
    """
    rounds: list[list[int]] = []
    used, filled = Demand(), Counter[str]()
    for position, demand in enumerate(demands):
        disk = disks[position] if disks else ""
        has_room = filled[disk] + demand.disk_bytes <= room.get(disk, sys.maxsize)
        if (
            rounds
            and (used + demand).fits(budget)
            and has_room
            and len(rounds[-1]) < most_partitions
        ):
            rounds[-1].append(position)
            used += demand
        else:
            rounds.append([position])
            used, filled = demand, Counter[str]()
        filled[disk] += demand.disk_bytes
    return rounds


# Limit the tasks at work on one local disk (``--per-disk``).
#
# An engine knows slots, no disks. But it cannot run more tasks at once than a stage has, so all
# that a stage does on one disk is dealt out to that many of its tasks. Nobody waits in a slot, and
# nothing has to be agreed upon between tasks; the price is that a task gets more to do, which a
# retry does again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """The disk of each root, and the most tasks per disk."""

    per_disk: int | None = None  # how many at once; None for as many as there are slots
    # The disk of each local root, a number; none without a limit, or of a URL.
    by_root: Mapping[str, int] = field(default_factory=dict)

    def of(self, root: str) -> int | None:
        """Return the disk of a root; None where it does not matter."""
        return self.by_root.get(root)

    def most_at_once(self, counts: Mapping[str, int]) -> int:
        """Return the most pieces of work at once, given enough slots.

        Args:
            counts: How many pieces there are in each root, in one stage.
        """
        if self.per_disk is None:
            return sum(counts.values())
        by_disk: Counter[int | None] = Counter()
        for root, count in counts.items():
            by_disk[self.of(root)] += count
        beyond = by_disk.pop(None, 0)
        return beyond + sum(min(self.per_disk, count) for count in by_disk.values())

    def deal_out(
        self,
        engine: Engine[RowsT],
        rows: RowsT,
        *,
        key: str = "directory",
        count: int | None = None,
    ) -> RowsT:
        """Spread rows about partitions over the tasks that look at them.

        Args:
            count: How many rows there are, about; None where nobody knows.
        """
        tasks = count_look_tasks(count, slots=engine.slots)
        if self.per_disk is None:
            return rows.deal_out(tasks)
        # Each disk has tasks of its own, and what lies elsewhere the others.
        disks = sorted(set(self.by_root.values()))
        lanes = {
            root: range(disks.index(disk) * self.per_disk, (disks.index(disk) + 1) * self.per_disk)
            for root, disk in self.by_root.items()
        }
        return rows.deal_by([key], len(disks) * self.per_disk + tasks, lanes=lanes)


def find_disks(roots: Sequence[LogRoot], per_disk: int | None) -> Disks:
    """Return the disks of some roots, as the filesystem numbers them.

    Args:
        roots: Local directories and URLs.
        per_disk: How many tasks may be at one disk at once; None for no limit.
    """
    if per_disk is None:
        return Disks()
    return Disks(
        per_disk=per_disk,
        by_root={
            root.location: device_of(path)
            for root in roots
            if (path := local_path(root.location)) is not None
        },
    )


def device_of(path: Path) -> int:
    """Return the number of the device that a path lies on."""
    with storage_errors(path):
        return path.stat().st_dev
