"""Limit the tasks at work on one local disk (``--per-disk``).

An engine knows slots, no disks. But it cannot run more tasks at once than a stage has, so
all that a stage does on one disk is dealt out to that many of its tasks. Nobody waits in a slot,
and nothing has to be agreed upon between tasks; the price is that a task gets more to do, which a
retry does again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.run.planning import count_look_tasks
from storage_core.catalog.roles import local_path
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import storage_errors


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
