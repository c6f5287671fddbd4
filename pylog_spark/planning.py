"""Work units: which task does what, in which order, and what is published together.

Pure functions over sizes; nothing here knows Spark or a file. An *item* is the smallest piece that
one task can do (a segment in pass one, a group in pass two, a whole partition), a *unit* is what
one task gets: a big item alone, or several small ones together. Units are started longest first,
so that a big one never begins when all the others are done.
"""

import enum
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# Opening a file, or asking Spark for a row, costs about what reading this many bytes does
# (0.2 ms at 1 GB/s): without it, ten thousand empty segments would land in one unit.
ITEM_OVERHEAD_BYTES: Final = 256 * 1024

# Beside its records a batch has 61 bytes, a record at least 7; logs of real topics, compressed
# ones included, have far fewer than one record in 16 bytes of file.
LEAST_RECORD_BYTES: Final = 16
MAP_ENTRY_BYTES: Final = 24


class Strategy(enum.StrEnum):
    """How the tasks of one partition share its offset map."""

    AUTO = "auto"
    BROADCAST = "broadcast"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """The smallest piece of work.

    Attributes:
        ordinal: Number of the partition in the run's table of plans.
        number: Number of the segment or group in its partition; 0 for a whole partition.
        size_bytes: Bytes to be read for it.
    """

    ordinal: int
    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """What one task does.

    Attributes:
        items: In the order in which they are done; never empty.
    """

    items: tuple[WorkItem, ...]

    @property
    def cost_bytes(self) -> int:
        """Bytes to be read, with a fixed charge for each item."""
        return sum(item.size_bytes + ITEM_OVERHEAD_BYTES for item in self.items)


def choose_strategy(
    *,
    asked: Strategy,
    partition_bytes: int,
    map_bytes: int,
    unit_bytes: int,
    budget_bytes: int,
    can_broadcast: bool,
) -> Strategy:
    """Choose how one partition is cleaned.

    A partition that fits in one unit gains nothing from two passes over several tasks; one whose
    map alone is above the budget, or a session that cannot broadcast, leaves no choice.

    Args:
        asked: What the caller wants; AUTO leaves it to the sizes.
        partition_bytes: Bytes of the segments that are cleaned.
        map_bytes: Upper bound of the merged map.
        unit_bytes: Bytes that one task is given.
        budget_bytes: Bytes of maps that may be published together.
        can_broadcast: Whether the session has broadcast variables.

    Returns:
        BROADCAST or WHOLE.
    """
    if not can_broadcast or map_bytes > budget_bytes or asked is Strategy.WHOLE:
        return Strategy.WHOLE
    if asked is Strategy.AUTO and partition_bytes <= unit_bytes:
        return Strategy.WHOLE
    return Strategy.BROADCAST


def estimate_map_bytes(*, offset_span: int, dirty_bytes: int, capacity: int | None) -> int:
    """Return an upper bound of a merged map's size: its keys, and a bit for each record.

    Args:
        offset_span: Offsets that the dirty section spans, gaps included.
        dirty_bytes: Bytes of the dirty section.
        capacity: Keys that the map may hold, None without a limit.
    """
    records = min(offset_span, dirty_bytes // LEAST_RECORD_BYTES)
    keys = records if capacity is None else min(records, capacity)
    return keys * MAP_ENTRY_BYTES + records // 8


def choose_unit_bytes(total_bytes: int, *, slots: int, least_bytes: int, most_bytes: int) -> int:
    """Return how many bytes one task should be given: about three tasks a slot, within bounds.

    Args:
        total_bytes: Bytes of all items together.
        slots: Tasks that run at the same time, at least 1.
        least_bytes: Below this, starting a task costs more than it brings.
        most_bytes: Above this, a retry costs too much.
    """
    return max(least_bytes, min(most_bytes, total_bytes // (3 * max(slots, 1))))


def pack_units(items: Iterable[WorkItem], *, unit_bytes: int) -> list[WorkUnit]:
    """Give each big item a unit of its own and pack the small ones together.

    Items in falling size, each into the emptiest unit: no unit with more than one item costs more
    than unit_bytes, and any two units together do.

    Args:
        items: In any order.
        unit_bytes: What a unit may cost, item charges included.

    Returns:
        The units, most expensive first; equal ones in the order of their first item.
    """
    ordered = sorted(items, key=lambda item: (-item.size_bytes, item.ordinal, item.number))
    bins: list[list[WorkItem]] = []
    open_bins: list[tuple[int, int]] = []  # (cost so far, bin): the emptiest bin on top
    for item in ordered:
        cost = item.size_bytes + ITEM_OVERHEAD_BYTES
        if open_bins and open_bins[0][0] + cost <= unit_bytes:
            used, target = heapq.heappop(open_bins)
            bins[target].append(item)
            heapq.heappush(open_bins, (used + cost, target))
        else:
            bins.append([item])
            if cost < unit_bytes:
                heapq.heappush(open_bins, (cost, len(bins) - 1))
    units = [WorkUnit(items=tuple(content)) for content in bins]
    return sorted(units, key=lambda unit: -unit.cost_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a partition needs while its round runs.

    Attributes:
        map_bytes: Upper bound of its offset map, 0 if none is published.
        disk_bytes: Upper bound of the disk space for its new segments.
    """

    map_bytes: int
    disk_bytes: int

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(
            map_bytes=self.map_bytes + other.map_bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
        )

    def fits(self, budget: "Demand") -> bool:
        """Whether the budget is enough for this."""
        return self.map_bytes <= budget.map_bytes and self.disk_bytes <= budget.disk_bytes


def plan_rounds(
    demands: Sequence[Demand], *, budget: Demand, most_partitions: int
) -> list[list[int]]:
    """Cut partitions into successive rounds, each of which stays within a budget.

    The order is kept: the partition that needs cleaning most is in the first round. A partition
    above the budget gets a round of its own; the caller treats such a one otherwise.

    Args:
        demands: What each partition needs, in the order of their urgency.
        budget: What one round may use.
        most_partitions: Partitions that one round may hold, at least 1.

    Returns:
        Positions in demands, round by round; none of the rounds is empty.
    """
    rounds: list[list[int]] = []
    used = Demand(map_bytes=0, disk_bytes=0)
    for position, demand in enumerate(demands):
        if rounds and (used + demand).fits(budget) and len(rounds[-1]) < most_partitions:
            rounds[-1].append(position)
            used += demand
        else:
            rounds.append([position])
            used = demand
    return rounds
