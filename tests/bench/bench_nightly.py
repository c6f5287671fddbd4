"""A night over many partitions with all processors, beside Kafka's cleaner with as many threads.

    python -m tests.bench.bench_nightly [--gigabytes 8] [--partitions 200] [--rounds 3]
        [--codec uncompressed] [--keep]

Each round works on fresh copies of the same partitions, warm, in turns:

- Kafka's own LogCleaner in a JVM that stays, from its start to its last partition;
- ``pylog run ROOT --role broker --ledger ...``, a process as a user starts it: its Python, its JVM,
  its workers, locks, ledger, report and all, after ``pylog warmup``;
- the same night by a Spark session that stays, without a ledger.

One round before them is not counted: Kafka's JIT and our session get warm in it. What the three
made of a partition in twenty is compared, byte for byte where nothing is compressed. The copies are
written back before anybody is timed. ``--keep`` writes the figures into docs/performance.md, as
``make bench`` does.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from storage_core.filenames import DELETED_SUFFIX, LOG_SUFFIX
from storage_core.threads import count_processors
from tests.bench.figures import Figure, keep
from tests.bench.generated_columns import TEXT_BYTES, Topic, generated_root
from tests.bench.orders import Order, helper
from tests.bench.shared import CACHE, ROOT, run_with_options
from tests.jobs.spark_programs import plain_environment
from tests.kit.compare import Exactness, compare_partitions, read_tree

VALUE_BYTES: Final = 100
# Of a record with its share of the batch's header.
RECORD_BYTES: Final = 118
SEGMENTS: Final = 4
ROUNDS_OF_A_KEY: Final = 8
COMPARED: Final = 20
UNCOMPRESSED: Final = "uncompressed"
WARM_UP_PARTITIONS: Final = 10
TARGETS: Final = {"all counted": 3.0, "session and ledger not counted": 4.0}
# Of one partition Kafka's cleaner uses one thread; a start is most of a night of it.
TARGETS_OF_ONE: Final = {"session and ledger not counted": 8.0}
KAFKA: Final = "Kafka"

Ask = Callable[[Order], Order]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the night is."""

    gigabytes: float = 8.0  # of all logs, before they are cleaned
    partitions: int = 200
    codec: str = UNCOMPRESSED  # as ``compression.type``, or ``uncompressed``
    name: str = "night"  # of the topic

    @property
    def targets(self) -> dict[str, float]:
        """How many times as fast as Kafka a night of this size is to be, by what is counted."""
        return TARGETS if self.partitions > 1 else TARGETS_OF_ONE

    @property
    def kept_as(self) -> str:
        """The name of its figures."""
        return f"nightly-{self.codec}{'' if self.partitions > 1 else '-one-partition'}"

    @property
    def warm_up(self) -> "Size":
        """A few of such partitions."""
        count = min(WARM_UP_PARTITIONS, self.partitions)
        share = self.gigabytes * count / self.partitions
        return replace(self, gigabytes=share, partitions=count, name=f"{self.name}-before")

    @property
    def topic(self) -> Topic:
        """What is in the partitions, about: closed segments, and an active one of a tenth."""
        log_bytes = int(self.gigabytes * 1e9) // self.partitions
        is_packed = self.codec != UNCOMPRESSED
        # Texts are packed to about a fourth.
        records = log_bytes // (RECORD_BYTES if not is_packed else TEXT_BYTES // 4)
        return Topic(
            name=self.name,
            partitions=self.partitions,
            records=records,
            keys=max(records // ROUNDS_OF_A_KEY, 1),
            value_bytes=VALUE_BYTES,
            segment_bytes=log_bytes * 10 // (SEGMENTS * 10 + 1),
            compression=self.codec,
            has_texts=is_packed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """Seconds of one round."""

    kafka: float
    counted: float
    warm: float


def measure(
    *,
    gigabytes: float = Size().gigabytes,
    partitions: int = Size().partitions,
    rounds: int = 3,
    codec: str = UNCOMPRESSED,
    cold: bool = False,
) -> list[Figure]:
    """Return what nights take, beside Kafka's cleaner; the sides have to leave the same bytes.

    Args:
        cold: Whether to leave out ``pylog warmup`` before.
    """
    if not cold:
        subprocess.check_call(
            [sys.executable, "-m", "pylog_spark", "warmup"], cwd=ROOT, env=plain_environment()
        )
    size = Size(gigabytes=gigabytes, partitions=partitions, codec=codec)
    return figures(size, list(measure_nights(size, rounds)))


def keep_nights(rows: list[Figure], *, rounds: int = 3, cold: bool = False, **size: Any) -> None:
    """Keep the figures of nights of a size."""
    del rounds, cold
    keep(Size(**size).kept_as, rows)


def measure_nights(size: Size, rounds: int) -> Iterator[tuple[int, Night]]:
    """Yield the bytes of the logs and the seconds of each round."""
    scratch = CACHE / "scratch" / "nightly"
    threads = count_processors()
    sources = []
    for some in (size.warm_up, size):
        _say(f"making {some.gigabytes:g} GB in {some.partitions} partitions, {some.codec}")
        sources.append(generated_root(CACHE, [some.topic]))
    log_bytes = sum(path.stat().st_size for path in sources[1].glob(f"*/*{LOG_SUFFIX}"))
    with (
        helper("tests.bench.kafka_nights", str(threads)) as kafka,
        helper(
            "tests.bench.warm_nights", f"local[{threads}]", environment=plain_environment()
        ) as warm,
    ):
        for number in range(rounds + 1):
            source, topic = sources[min(number, 1)], (size if number else size.warm_up).topic
            begin = time.perf_counter()
            night = _round(source, topic, scratch, kafka, warm)
            _say(
                f"round {number}{'' if number else ', not counted'}: Kafka {night.kafka:.2f} s, "
                f"all counted {night.counted:.2f} s, session and ledger not counted "
                f"{night.warm:.2f} s; {time.perf_counter() - begin:.0f} s with copies"
            )
            if number:
                yield log_bytes, night
    for path in (scratch, *sources):
        shutil.rmtree(path)


def figures(size: Size, found: Sequence[tuple[int, Night]]) -> list[Figure]:
    """Return the rows of the table."""
    megabytes = [log_bytes / 1e6 for log_bytes, _ in found]
    kafka = [size_mb / night.kafka for size_mb, (_, night) in zip(megabytes, found, strict=True)]
    ours = {
        "all counted": [night.counted for _, night in found],
        "session and ledger not counted": [night.warm for _, night in found],
    }
    return [
        Figure(
            work=(
                f"night over {size.gigabytes:g} GB in {size.partitions} "
                f"partition{'s' if size.partitions > 1 else ''}, {size.codec}, "
                f"{count_processors()} cores, {what}"
            ),
            unit="MB/s",
            ours=[mb / s for mb, s in zip(megabytes, seconds, strict=True)],
            theirs={KAFKA: kafka},
            targets={KAFKA: size.targets[what]} if what in size.targets else {},
        )
        for what, seconds in ours.items()
    ]


def _round(source: Path, topic: Topic, scratch: Path, kafka: Ask, warm: Ask) -> Night:
    root = _copy(source, scratch)
    kafkas = kafka({"root": str(root), "config": topic.config})
    expected = sample(root)
    root = _copy(source, scratch)
    counted = _run(root, topic, scratch)
    exactness = Exactness.BYTES if topic.compression == UNCOMPRESSED else Exactness.RECORDS
    compare(expected, sample(root), exactness)
    root = _copy(source, scratch)
    ours = warm({"root": str(root), "configs": {topic.name: topic.config}})
    assert (ours["status"], ours["done"]) == (0, topic.partitions), ours
    compare(expected, sample(root), exactness)
    return Night(kafka=kafkas["seconds"], counted=counted, warm=ours["seconds"])


def _copy(source: Path, scratch: Path) -> Path:
    """Make a fresh copy, in memory as a whole, and written back at once, so that nobody pays for
    either later."""
    shutil.rmtree(scratch, ignore_errors=True)
    os.sync()
    root = scratch / "log"
    shutil.copytree(source, root, copy_function=_copy_file)
    os.sync()
    return root


def _copy_file(source: str, target: str) -> None:
    """Copy a file, and give back the memory that its source takes: both together would drive the
    first copies out."""
    shutil.copy2(source, target)
    with open(source, "rb") as file:  # noqa: PTH123 - names, as copytree has them
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(root: Path, topic: Topic, scratch: Path) -> float:
    """Work a night as a user does; return its seconds."""
    config = scratch / "config.yaml"
    config.write_text(yaml.safe_dump({"topics": {topic.name: topic.config}}))
    command = [sys.executable, "-m", "pylog_spark", "run", str(root), "--role", "broker"]
    command += ["--engine", "spark"]
    command += ["--config", str(config), "--ledger", str(scratch / "ledger")]
    begin = time.perf_counter()
    with (scratch / "output").open("w") as output, (scratch / "errors").open("w") as errors:
        status = subprocess.call(
            command, cwd=ROOT, env=plain_environment(), stdout=output, stderr=errors
        )
    seconds = time.perf_counter() - begin
    assert status == 0, (scratch / "errors").read_text()[-2000:]
    return seconds


def sample(root: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of some partitions, but for those that only wait for their end."""
    directories = sorted(path for path in root.iterdir() if path.is_dir())
    return {
        directory.name: {
            name: data
            for name, data in read_tree(directory).items()
            if not name.endswith(DELETED_SUFFIX)
        }
        for directory in directories[::COMPARED]
    }


def compare(
    expected: dict[str, dict[str, bytes]],
    found: dict[str, dict[str, bytes]],
    exactness: Exactness,
) -> None:
    assert expected.keys() == found.keys()
    for name, tree in expected.items():
        differences = compare_partitions(tree, found[name], exactness)
        assert not differences, (name, [str(difference) for difference in differences[:3]])


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a run of minutes says how far it is


if __name__ == "__main__":
    run_with_options(measure, keep_nights)
