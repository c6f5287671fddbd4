"""A count over a thousand partitions: by Spark through ``kafka-log``, and read in process.

    python -m tests.bench.bench_count [--partitions 1000] [--records 4000] [--rounds 6]

Both read the columns that a DataFrame has where nobody says others. What is told is processor time,
of all processes: of Spark the JVM, the planning and the workers, from the call of ``count`` to its
answer in a session that has begun; in process, from the opening of the directory to its last
record. The first round of Spark starts its workers, and the JVM compiles what it runs in the
rounds after it, too.

What of it is Spark's own is told by a source that reads nothing: as many tasks hand over as many
rows of the same columns, from one Arrow batch that is made before. Spark prunes no column of a
source in Python, so a count carries keys and values to the JVM, a row each; ``columns`` is the
option that does not.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from storage_core.kafka_log import COLUMNS, open_logs
from tests.bench.generated_columns import TEXT_BYTES, Topic, generated_root
from tests.bench.process_watch import Watched
from tests.bench.shared import CACHE, in_a_process, run_with_options

TOPIC: Final = "counted"
# About as many as the source plans for a thousand partitions.
PREMADE_TASKS: Final = 8
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Processor seconds of all rounds."""

    records: int  # how many there are
    seconds: Mapping[str, Sequence[float]]  # by way of counting, see ``_WAYS``

    def ratio(self, way: str = "spark") -> float:
        """Return how many times as much a way takes as reading in process does, at best."""
        return min(self.seconds[way]) / min(self.seconds["in-process"])

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield f"{self.records:,} records: processor seconds of each round, the best to in-process"
        for way, seconds in self.seconds.items():
            rounds = "".join(f"{each:8.2f}" for each in seconds)
            yield f"{way:<14}{rounds}{self.ratio(way):8.2f} x"


def measure(*, partitions: int = 1_000, records: int = 4_000, rounds: int = 10) -> Counted:
    """Count the records of a root both ways, in processes of their own."""
    topic = Topic(
        name=TOPIC,
        partitions=partitions,
        records=records,
        keys=records,
        value_bytes=TEXT_BYTES,
        segment_bytes=_GIB,
        has_texts=True,
    )
    root = str(generated_root(CACHE, [topic], copy=os.link))
    times = {}
    for way in _WAYS:
        counts, times[way] = in_a_process(_time, way, root, topic, rounds)
        if counts != [partitions * records] * rounds:
            raise AssertionError(f"{way} counts {counts}")
    return Counted(records=partitions * records, seconds=times)


def _count_by_spark(
    root: str, _topic: Topic, source: str = "kafka-log", **options: object
) -> Callable[[], int]:
    # Only the processes that count by Spark need it.
    from pylog_spark.session import build_session  # noqa: PLC0415
    from pylog_spark.source import register  # noqa: PLC0415
    from tests.bench.premade_source import PremadeSource  # noqa: PLC0415

    spark = build_session("local[2]", {"spark.ui.enabled": "false"}, app_name="bench")
    register(spark)
    spark.dataSource.register(PremadeSource)
    spark.range(2).count()
    count: Callable[[], int] = (
        spark.read.format(source).options(subscribe=TOPIC, **options).load(root).count
    )
    return count


def _count_premade(root: str, topic: Topic) -> Callable[[], int]:
    each = topic.partitions // PREMADE_TASKS
    return _count_by_spark(
        root, topic, "premade", tasks=PREMADE_TASKS, batches=each, rows=topic.records
    )


def _count_in_process(root: str, _topic: Topic) -> Callable[[], int]:
    columns = [name for name in COLUMNS if name != "headers"]
    return lambda: sum(batch.num_rows for batch in open_logs(root).read(TOPIC, columns=columns))


_WAYS: Final[dict[str, Callable[[str, Topic], Callable[[], int]]]] = {
    "spark": _count_by_spark,
    "spark-offsets": partial(_count_by_spark, columns="offset"),
    "spark-premade": _count_premade,
    "in-process": _count_in_process,
}


def _time(way: str, root: str, topic: Topic, rounds: int) -> tuple[list[int], list[float]]:
    """Count some times; return the counts, and processor seconds of this process and its own."""
    count = _WAYS[way](root, topic)
    seen = Watched()
    counts, seconds = [], []
    for _ in range(rounds):
        seen.sample(os.getpid())
        before = seen.cpu_seconds
        counts.append(count())
        seen.sample(os.getpid())
        seconds.append(seen.cpu_seconds - before)
    return counts, seconds


if __name__ == "__main__":
    run_with_options(measure)
