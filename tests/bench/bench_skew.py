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

import argparse
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.filenames import LOG_SUFFIX
from tests.bench.bench_many_keys import CACHE, run_watched
from tests.bench.generated_columns import Topic, copy_root, generated_root
from tests.bench.simulated_slots import Rates, Simulated, simulate
from tests.bench.stage_times import Split, TaskTime, only, read_tasks, split_of

SLOTS: Final = 2
MANY_SLOTS: Final = 32
MIB: Final = 1024 * 1024
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
            f"planned for {MANY_SLOTS} slots: wall {self.simulated.wall_s:.2f} s, work "
            f"{self.simulated.work_s:.2f} s, ideal {self.simulated.ideal_s:.2f} s: "
            f"{100 * self.simulated.excess:.1f} % above"
        )


def topics_of(*, megabytes: int, small: int) -> list[Topic]:
    """Return the topics of a skewed directory."""
    return [
        Topic(
            name="big",
            partitions=1,
            records=megabytes * 1_000_000 // RECORD_BYTES,
            keys=megabytes * 1000,
            value_bytes=VALUE_BYTES,
            segment_bytes=64 * MIB,
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


def measure(*, megabytes: int = 2000, small: int = 500, strategy: str = "auto") -> Report:
    """Compact a copy of the directory."""
    topics = topics_of(megabytes=megabytes, small=small)
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
    if said["statuses"] != ["done"]:
        raise RuntimeError(f"{said['statuses']}: {said['errors']}")
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
        simulated=simulate(sizes, [small_bytes] * small, rates, slots=MANY_SLOTS),
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compaction of a skewed directory.")
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--small", type=int, default=500)
    parser.add_argument("--strategy", default="auto")
    arguments = parser.parse_args()
    report = measure(
        megabytes=arguments.megabytes, small=arguments.small, strategy=arguments.strategy
    )
    print("\n".join(report.lines()))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
