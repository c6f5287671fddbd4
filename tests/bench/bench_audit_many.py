"""An audit of three brokers with very many partitions, beside an inspection of each of them.

    python -m tests.bench.bench_audit_many [--partitions 1000 3000 10000]

Directories are made of hard links (``linked_root``). Programs run in turns, each from its start to
its end, without Spark. What counts is processor time, of the user and of the system: a machine
that does other work, too, moves it little.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.figures import table_row
from tests.bench.generated_partition import NOW_MS
from tests.bench.linked_root import (
    METADATA,
    NOTHING_DUE,
    PARTITIONS_A_TOPIC,
    topic_id,
    topic_name,
    write_linked_root,
)
from tests.bench.process_watch import run_program
from tests.bench.shared import CACHE, run_with_options
from tests.storage_core.catalog import metadata_bytes as md

PARTITIONS: Final = (1_000, 3_000, 10_000)
SEGMENTS: Final = 2
BROKERS: Final = (1, 2, 3)
INSPECT: Final = "inspect, three times"
OFFSETS: Final = "differences"
AUDIT: Final = "audit"
ELECTIONS: Final = "audit --up 1,2,3"
_NOW: Final = ("--now-ms", str(NOW_MS))
WAYS: Final = {
    OFFSETS: ("differences",),
    AUDIT: ("audit", *_NOW),
    ELECTIONS: ("audit", "--up", "1,2,3", *_NOW),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one way to look at all partitions took, program starts included."""

    seconds: float  # by the clock
    processor_seconds: float  # of all its processes
    memory_bytes: int  # largest sum of the anonymous memory of all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a way took, for rising numbers of partitions."""

    way: str
    partitions: Sequence[int]  # how many, of each broker
    costs: Sequence[Cost]
    inspected: Sequence[Cost]  # costs of the inspections beside them

    @property
    def ratio(self) -> float:
        """How many times the processor time of inspections the most partitions take."""
        return self.costs[-1].processor_seconds / self.inspected[-1].processor_seconds

    def line(self) -> str:
        """Return the row of the table."""
        more = self.partitions[-1] - self.partitions[0]
        work = self.costs[-1].processor_seconds - self.costs[0].processor_seconds
        return table_row(
            self.way,
            ", ".join(f"{count:,}" for count in self.partitions),
            ", ".join(f"{cost.seconds:.1f}" for cost in self.costs),
            ", ".join(f"{cost.processor_seconds:.1f}" for cost in self.costs),
            f"{1e3 * work / more:.2f} ms",
            f"{self.ratio:.1f} times {INSPECT}",
            ", ".join(f"{cost.memory_bytes / (1 << 20):.0f}" for cost in self.costs),
        )


def write_brokers(folder: Path, partitions: int) -> list[Path]:
    """Write the directories of three brokers of which each has a replica of every partition."""
    values = [md.register_broker(broker) for broker in BROKERS]
    for topic in range(-(-partitions // PARTITIONS_A_TOPIC)):
        values.append(md.topic(topic_name(topic, NOTHING_DUE), topic_id(topic)))
        values += [
            md.partition(number, topic_id(topic), replicas=BROKERS)
            for number in range(PARTITIONS_A_TOPIC)
        ]
    roots = []
    for broker in BROKERS:
        root = write_linked_root(
            folder / f"b{broker}" / "log",
            partitions,
            segments=SEGMENTS,
            now_ms=NOW_MS,
            kinds=NOTHING_DUE,
        )
        md.write_segment(root / METADATA, [md.batch(*values)])
        properties = f"version=1\nnode.id={broker}\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
        (root / "meta.properties").write_text(properties)
        roots.append(root)
    return roots


def measure(
    *, partitions: tuple[int, ...] = PARTITIONS, ways: tuple[str, ...] = tuple(WAYS)
) -> Iterator[Costs]:
    """Yield what each way takes, in turns with inspections.

    Args:
        partitions: How many, rising, at least two numbers.
    """
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    inspected: dict[str, list[Cost]] = {way: [] for way in ways}
    for count in partitions:
        folder = CACHE / "scratch" / "audit_many"
        shutil.rmtree(folder, ignore_errors=True)
        roots = write_brokers(folder, count)
        for way in ways:
            each = [_run("inspect", str(root)) for root in roots]
            inspected[way].append(
                Cost(
                    seconds=sum(cost.seconds for cost in each),
                    processor_seconds=sum(cost.processor_seconds for cost in each),
                    memory_bytes=max(cost.memory_bytes for cost in each),
                )
            )
            costs[way].append(_run(*WAYS[way], *map(str, roots), "--engine", "local"))
            print(count, way, costs[way][-1], inspected[way][-1], flush=True)  # noqa: T201 - how far it is
        shutil.rmtree(folder)
    for way in ways:
        yield Costs(way=way, partitions=partitions, costs=costs[way], inspected=inspected[way])


def _run(*words: str) -> Cost:
    command = [*words, "--output", "json"]
    status, seconds, seen = run_program(command)
    assert status in {0, 1}, command
    return Cost(seconds=seconds, processor_seconds=seen.cpu_seconds, memory_bytes=seen.all_bytes)


if __name__ == "__main__":
    run_with_options(measure)
