"""Compaction of many tiny partitions by the whole program, beside Kafka's cleaner with one thread.

    python -m tests.bench.bench_tiny [--partitions 200 1000] [--places memory disk] [--rounds 6]
        [--keep]

A partition has 51 segments of 9 KB, as a quiet topic of short segments has, and is dirty from its
start. Each round works on fresh copies, in turns: Kafka's own LogCleaner in a JVM that stays, from
its start to its last partition, and ``pylog compact`` as a user starts it, with two workers. Kafka
removes what it has replaced a minute later: on a disk that counts. What the two made of a partition
in twenty is compared byte for byte.

Beside the disk's figures stands how many files a second it takes that are synced one by one. The
last figures are of partitions of an active and two closed segments of 64 KiB: of which one in
twenty is due, beside a directory that has only these, and of which the oldest segment has expired.
"""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.clock import SystemClock
from storage_core.filenames import (
    CLEANER_FILE,
    DELETED_SUFFIX,
    LOG_START_FILE,
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from tests.bench.bench_nightly import compare, sample
from tests.bench.figures import Figure, keep
from tests.bench.orders import helper
from tests.bench.process_watch import run_program
from tests.bench.shared import CACHE, run_with_options
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.compare import Exactness
from tests.kit.directories import SegmentSpec, write_partition

TOPIC: Final = "tiny"
CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.5}
# Of three segments, each an hour older than the next, the first one expires.
RETENTION: Final = {"cleanup.policy": "delete", "retention.ms": 9_000_000}
KAFKA: Final = "Kafka"
DUE_ALONE: Final = "those alone"
SYNCS: Final = "files synced one by one"
TARGETS: Final = {"memory": 3.0, "disk": 2.5}
LEAST: Final = 125.0  # partitions in a processor second: 8 ms each
LEAST_SWEPT: Final = 770.0  # the same: a thousand in 1.3 s
ONE_IN: Final = 20
OPEN_PARTITIONS: Final = 30  # of 103 open files each
SYNCED_FILES: Final = 200
FILE_BYTES: Final = 20_000
_KEYS: Final = 1000


class Shape(NamedTuple):
    """What a partition has."""

    segments: int  # with the active one
    batches: int  # of a segment
    records: int  # of a batch
    value_bytes: int


TINY: Final = Shape(segments=51, batches=5, records=13, value_bytes=115)
THREE: Final = Shape(segments=3, batches=8, records=1, value_bytes=8000)


def measure(
    *,
    partitions: tuple[int, ...] = (200, 1000),
    places: tuple[str, ...] = ("memory", "disk"),
    rounds: int = 6,
) -> Iterator[Figure]:
    """Yield rates by the clock and by processor seconds.

    Args:
        places: ``memory`` is a file system in memory.
        rounds: At least 2; the first one warms up and does not count.
    """
    for place in places:
        with folder_in(place) as folder, helper("tests.bench.kafka_nights", "1") as kafka:
            template = write_template(folder / "template", TINY)
            for count in partitions:
                clock: dict[str, list[float]] = {"ours": [], KAFKA: []}
                processor = []
                for _ in range(rounds):
                    root = write_root(folder, template, range(count))
                    seconds = sum(
                        kafka({"root": str(root), "config": CONFIG, "names": names})["seconds"]
                        for names in _in_parts(root)
                    )
                    expected = sample(root)
                    if place == "disk":
                        seconds += _remove_replaced(root)
                    clock[KAFKA].append(count / seconds)
                    root = write_root(folder, template, range(count))
                    seconds, spent = _run("compact", root, CONFIG)
                    compare(expected, sample(root), Exactness.BYTES)
                    clock["ours"].append(count / seconds)
                    processor.append(count / spent)
                work = f"{count:,} partitions of 51 tiny segments compacted, {place}"
                theirs = {KAFKA: clock[KAFKA][1:]}
                if place == "disk":
                    theirs[SYNCS] = [_synced_files(folder) for _ in theirs[KAFKA]]
                yield Figure(
                    work=f"{work}, the whole program by the clock",
                    unit="partitions/s",
                    ours=clock["ours"][1:],
                    theirs=theirs,
                    targets={KAFKA: TARGETS[place]},
                )
                yield Figure(
                    work=f"{work}, the whole program by processor seconds",
                    unit="partitions/s",
                    ours=processor[1:],
                    least=LEAST,
                )
    with folder_in(places[0]) as folder:
        template = write_template(folder / "template", THREE)
        count = max(partitions)
        runs: dict[str, list[float]] = {"ours": [], DUE_ALONE: []}
        for _ in range(rounds):
            for side, numbers in (
                ("ours", range(count)),
                (DUE_ALONE, range(0, count, ONE_IN)),
            ):
                clean = [number for number in numbers if number % ONE_IN]
                root = write_root(folder, template, numbers, clean=clean)
                runs[side].append(60 / _run("compact", root, CONFIG)[1])
        yield Figure(
            work=f"{count:,} partitions of three segments, one in twenty due, processor seconds",
            unit="rounds a minute",
            ours=runs.pop("ours")[1:],
            theirs={side: rates[1:] for side, rates in runs.items()},
        )
        yield from _sweeps(folder, template, range(count), rounds)


def _sweeps(folder: Path, template: Path, numbers: range, rounds: int) -> Iterator[Figure]:
    rates, processor = [], []
    for _ in range(rounds):
        root = write_root(folder, template, numbers)
        seconds, spent = _run("retain", root, RETENTION)
        assert len(list(root.glob(f"*/*{LOG_SUFFIX}"))) == 2 * len(numbers)
        rates.append(len(numbers) / seconds)
        processor.append(len(numbers) / spent)
    work = f"{len(numbers):,} partitions of three segments, the oldest one expired, retained"
    yield Figure(
        work=f"{work}, the whole program by the clock", unit="partitions/s", ours=rates[1:]
    )
    yield Figure(
        work=f"{work}, the whole program by processor seconds",
        unit="partitions/s",
        ours=processor[1:],
        least=LEAST_SWEPT,
    )


@contextmanager
def folder_in(place: str) -> Iterator[Path]:
    above = Path("/dev/shm") if place == "memory" else CACHE  # noqa: S108  # not a file's name
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pylog-tiny-", dir=above) as folder:
        yield Path(folder)


def write_template(directory: Path, shape: Shape) -> Path:
    """Write one partition; the active segment is as large as the others."""
    dice = random.Random(1)
    now_ms = SystemClock().now_ms()
    specs, offset = [], 0
    for number in range(shape.segments):
        at = now_ms - (shape.segments - number) * 3_600_000
        base, of_segment = offset, []
        for _ in range(shape.batches):
            some = tuple(
                RecordSpec(
                    key=b"key-%06d" % dice.randrange(_KEYS),
                    value=dice.randbytes(shape.value_bytes),
                    timestamp=at,
                )
                for _ in range(shape.records)
            )
            of_segment.append(BatchSpec(records=some, base_offset=offset))
            offset += shape.records
        specs.append(SegmentSpec(base_offset=base, batches=tuple(of_segment), modified_ms=at))
    write_partition(directory, specs)
    return directory


def write_root(
    folder: Path,
    template: Path,
    numbers: range,
    *,
    clean: Sequence[int] = (),
    cleaned_to: int | None = None,
    end: int | None = None,
) -> Path:
    """Make a directory of copies, as a broker leaves it, and write it back.

    Args:
        clean: Those that were cleaned up to an offset.
        cleaned_to: That offset; None for where the active segment begins.
        end: Where they end; None if segments are as long as each other.
    """
    root = folder / "log"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    bases = sorted(int(path.stem) for path in template.glob(f"*{LOG_SUFFIX}"))
    end = bases[-1] + bases[1] if end is None else end
    cleaned_to = bases[-1] if cleaned_to is None else cleaned_to
    for number in numbers:
        shutil.copytree(template, root / f"{TOPIC}-{number}")
    ends = {TopicPartition(TOPIC, number): end for number in numbers}
    for name, offsets in {
        RECOVERY_POINT_FILE: ends,
        REPLICATION_FILE: ends,
        LOG_START_FILE: {},
        CLEANER_FILE: {TopicPartition(TOPIC, number): cleaned_to for number in clean},
    }.items():
        (root / name).write_bytes(encode_offset_checkpoint(offsets))
    (root / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
    )
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')
    os.sync()
    return root


def _in_parts(root: Path) -> Iterator[list[str]]:
    """Yield partitions, as many as Kafka can have open."""
    names = [path.name for path in root.iterdir() if path.is_dir()]
    for first in range(0, len(names), OPEN_PARTITIONS):
        yield names[first : first + OPEN_PARTITIONS]


def words_of(
    command: str, root: Path, config: Mapping[str, object], *, topic: str = TOPIC
) -> list[str]:
    """Return the words of a command; the topic's settings go to a file beside the root."""
    file = root.parent / "config.yaml"
    file.write_text(yaml.safe_dump({"topics": {topic: dict(config)}}))
    return [command, str(root), "--role", "broker", "--config", str(file)]


def _run(command: str, root: Path, config: Mapping[str, object]) -> tuple[float, float]:
    """Return the seconds that the program takes, by the clock and of processors."""
    words = [*words_of(command, root, config), "--engine", "local"]
    status, seconds, seen = run_program(words, every_seconds=0.02, memory=False)
    assert status == 0, root
    return seconds, seen.cpu_seconds


def _remove_replaced(root: Path) -> float:
    """Do what Kafka does after a minute; return its seconds."""
    begin = time.perf_counter()
    for path in root.glob(f"*/*{DELETED_SUFFIX}"):
        path.unlink()
    return time.perf_counter() - begin


def _synced_files(folder: Path) -> float:
    """Return how many new files a second are synced one after the other."""
    begin = time.perf_counter()
    for number in range(SYNCED_FILES):
        with (folder / f"synced-{number}").open("wb") as file:
            file.write(bytes(FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    return SYNCED_FILES / (time.perf_counter() - begin)


if __name__ == "__main__":
    run_with_options(measure, lambda figures, **_: keep("tiny", figures))
