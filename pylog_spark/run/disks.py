"""The local disks of a run: of one only so many tasks at once may be at work (``--per-disk``).

Spark's scheduler knows slots, no disks. But it cannot run more tasks at once than a stage has, so
all that a stage does on one disk is dealt out to that many of its tasks. Nobody waits in a slot,
and nothing has to be agreed upon between tasks; the price is that a task gets more to do, which a
retry does again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

from pylog_spark.run.dispatch import Dispatcher
from pylog_spark.run.planning import count_look_tasks
from storage_core.catalog.roles import local_path
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import storage_errors

_UNIT: Final = "unit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """Which root lies on which disk, and how many tasks may be at one of them.

    Attributes:
        per_disk: How many at once; None for as many as there are slots.
        by_root: The disk of each local root, a number; none without a limit, or of a URL.
    """

    per_disk: int | None = None
    by_root: Mapping[str, int] = field(default_factory=dict)

    def of(self, root: str) -> int | None:
        """Return the disk of a root; None where it does not matter."""
        return self.by_root.get(root)

    def most_at_once(self, counts: Mapping[str, int]) -> int:
        """Return how many pieces of work may be done at once, were there slots for all of them.

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
        dispatcher: Dispatcher,
        frame: DataFrame,
        *,
        key: str = "directory",
        rows: int | None = None,
    ) -> DataFrame:
        """Spread rows about partitions over the tasks that look at them.

        Args:
            dispatcher: Starts the stages.
            frame: Rows with root and key.
            key: With a limit, rows of one root and key are in one task.
            rows: How many there are, about; None where nobody knows.
        """
        tasks = count_look_tasks(rows, slots=dispatcher.slots)
        if self.per_disk is None:
            return frame.repartition(tasks)
        unit, units = self._units(F.col(key), self.per_disk, tasks)
        return dispatcher.to_units(frame.withColumn(_UNIT, unit), units).drop(_UNIT)

    def _units(self, key: Column, per_disk: int, tasks: int) -> tuple[Column, int]:
        """Return the task of a row, and how many tasks there are: each disk's, then all others'."""
        disks = sorted(set(self.by_root.values()))
        first_of = {disk: number * per_disk for number, disk in enumerate(disks)}
        beyond = len(disks) * per_disk
        unit = F.lit(beyond) + F.pmod(F.hash(key), F.lit(tasks))
        for root, disk in self.by_root.items():
            share = F.lit(first_of[disk]) + F.pmod(F.hash(key), F.lit(per_disk))
            unit = F.when(F.col("root") == root, share).otherwise(unit)
        return unit, beyond + tasks


def find_disks(roots: Sequence[LogRoot], per_disk: int | None) -> Disks:
    """Return the disks of some roots, as the filesystem numbers them.

    Args:
        roots: Local directories and URLs.
        per_disk: How many tasks may be at one disk at once; None for no limit.

    Raises:
        StorageError: A directory cannot be looked at.
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
    """Return the number of the device that a path lies on.

    Raises:
        StorageError: It cannot be looked at.
    """
    with storage_errors(path):
        return path.stat().st_dev
