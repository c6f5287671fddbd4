"""How a run brings partitions to their end: wave by wave.

A wave takes as many of them, in their order, as its budget and the disks allow. What an operation
does with the partitions of a wave are its stages (``WaveStages``); what is the same for all of them
is here: a directory whose disk has failed gets no tasks, nothing is begun once the run's budget is
spent, nobody may commit before the root says so, and what a wave has finished stays, whatever
becomes of later ones.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pylog_spark.outcomes import Reason
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.planning import Demand, device_of, plan_rounds
from pylog_spark.run.run import Run
from pylog_spark.tasks.run_context import PartitionRef
from storage_core.catalog.roles import local_path
from storage_core.errors import StorageError
from storage_core.roots.root import HeldRoot

# With more partitions than this, the rows of one wave weigh on the driver.
MOST_PARTITIONS: Final = 5000
NO_LIMIT: Final = Demand(
    map_bytes=sys.maxsize, disk_bytes=sys.maxsize, read_bytes=sys.maxsize, tasks=sys.maxsize
)

# By ordinal.
Outcomes = dict[int, Outcome]


class Due(Protocol):
    """A partition for which something is due."""

    @property
    def ref(self) -> PartitionRef:
        """Which one it is."""
        ...

    @property
    def loaded_files(self) -> str | None:
        """What ``digest_files`` said of it in this run; None where nobody asked."""
        ...


D = TypeVar("D", bound=Due)
D_contra = TypeVar("D_contra", bound=Due, contravariant=True)


class WaveStages(Protocol[D_contra]):
    """What an operation does with the partitions of a wave."""

    def demand(self, each: D_contra) -> Demand:
        """Return what a partition needs while its wave runs."""
        ...

    def title(self, due: Sequence[D_contra]) -> str:
        """Return what the wave does, for Spark's user interface."""
        ...

    def prepare(self, root: HeldRoot, due: Sequence[D_contra]) -> None:
        """Prepare a root for commits to its partitions. What has to stand in the root is written
        before any of them may be committed."""
        ...

    def work(self, due: Sequence[D_contra], title: str) -> Outcomes:
        """Run the stages; return what became of every partition."""
        ...

    def settle(
        self, root: HeldRoot, due: Sequence[D_contra], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Take note in a root of what its partitions are now."""
        ...


def run_waves(
    run: Run, stages: WaveStages[D], due: Sequence[D], *, budget: Demand = NO_LIMIT
) -> Iterator[Outcomes]:
    """Bring partitions to their end.

    Args:
        run: The run; its dry run has no roots to prepare and settle.
        due: The partitions, in the order in which they are begun.
        budget: What one wave may need, but for disk space: what is free decides about that.

    Yields:
        What became of the partitions of each wave, once their roots are settled.
    """
    for root in _roots_of(run, due):
        digests = {Path(each.ref.directory).name: each.loaded_files for each in _members(root, due)}
        root.begin_writing({name: digest for name, digest in digests.items() if digest})
    ended = _failed(run, due)
    if ended:
        yield ended
        due = _rest(due, ended)
    demands = {each.ref.ordinal: stages.demand(each) for each in due}
    disks = _disks(run, due)
    waves = plan_rounds(
        list(demands.values()),
        budget=budget,
        most_partitions=MOST_PARTITIONS,
        disks=[disks[each.ref.root] for each in due],
        room=_room(run, due, demands, disks),
    )
    for number, positions in enumerate(waves, 1):
        members = [due[position] for position in positions]
        ended = _not_begun(run, members, demands, disks)
        if ended:
            yield ended
            members = _rest(members, ended)
        if members:
            place = f" (wave {number} of {len(waves)})" if len(waves) > 1 else ""
            yield run_wave(run, stages, members, f"{stages.title(members)}{place}")
            run.engine.release()


def run_wave(run: Run, stages: WaveStages[D], due: Sequence[D], title: str) -> Outcomes:
    """Finish the partitions of one wave; return the outcome of each."""
    for root in _roots_of(run, due):
        members = _members(root, due)
        stages.prepare(root, members)
        root.allow_commits(each.ref.directory for each in members)
    # Where that failed no task could commit what it made.
    outcomes = _failed(run, due)
    due = _rest(due, outcomes)
    if due:
        outcomes |= stages.work(due, title)
        for root in _roots_of(run, due):
            stages.settle(root, _members(root, due), outcomes)
    return outcomes


def _not_begun(
    run: Run, due: Sequence[D], demands: Mapping[int, Demand], disks: Mapping[str, str]
) -> Outcomes:
    """Return the outcomes of partitions not begun any more. Their disk failed or is full, or the
    budget is spent.

    Somebody else may write there, and what former waves put into the trash is not free yet.
    """
    room = _room(run, due, demands, disks)
    ended = _failed(run, due)
    spent = run.budget.refusal()
    for each in _rest(due, ended):
        needed = demands[each.ref.ordinal].disk_bytes
        disk = disks[each.ref.root]
        free = room.get(disk, sys.maxsize)
        if spent is not None:
            ended[each.ref.ordinal] = Outcome.refused(*spent)
        elif needed > free:
            why = f"{each.ref.root}: cleaning needs up to {needed} bytes more, {free} may be used"
            ended[each.ref.ordinal] = Outcome.refused(Reason.NO_SPACE, why)
        else:
            room[disk] = free - needed
    return ended


def _disks(run: Run, due: Iterable[D]) -> dict[str, str]:
    """Return a name for the disk of each root. A root that cannot be read counts as a disk of its
    own. What lies at a URL is, too."""
    disks = {}
    for place in {each.ref.root for each in due}:
        path = local_path(place)
        disks[place] = place
        if path is not None and place in run.roots:
            with suppress(StorageError):
                disks[place] = str(device_of(path))
    return disks


def _room(
    run: Run, due: Iterable[D], demands: Mapping[int, Demand], disks: Mapping[str, str]
) -> dict[str, int]:
    """Return the usable space of each disk with space needs of partitions."""
    room: dict[str, int] = {}
    for place in sorted({each.ref.root for each in due if demands[each.ref.ordinal].disk_bytes}):
        usable = run.budget.usable_of(run.roots[place].free_bytes())
        if place not in run.failures:
            room[disks[place]] = min(usable, room.get(disks[place], usable))
    return room


def _failed(run: Run, due: Iterable[D]) -> Outcomes:
    """Return the outcomes of partitions in log directories with failed disks. Such a directory
    is out of the run."""
    failures = run.failures
    return {
        each.ref.ordinal: Outcome.failed(failures[each.ref.root])
        for each in due
        if each.ref.root in failures
    }


def _rest(due: Iterable[D], ended: Mapping[int, Outcome]) -> list[D]:
    return [each for each in due if each.ref.ordinal not in ended]


def _roots_of(run: Run, due: Iterable[D]) -> list[HeldRoot]:
    """Return the roots of some partitions; none in a dry run."""
    return [run.roots[place] for place in sorted({each.ref.root for each in due} & set(run.roots))]


def _members(root: HeldRoot, due: Iterable[D]) -> list[D]:
    return [each for each in due if each.ref.root == root.location]
