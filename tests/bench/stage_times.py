"""What Spark's own event log says of the stages of a run: which task ran when, and for what."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTION = "spark.job.description"


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
