"""How time and memory grow with bytes, with segments and with partitions: a line, or more.

    python -m tests.bench.bench_growth [--gigabytes 0.1 0.3 1 3] [--keep]

Each point is a process of its own over directories made by our own appends: verification, the plan
of a recovery, a cleaning, and all records read as Arrow. It tells processor seconds of the work
alone, warm, and the largest memory of the process. The fit is a straight line through the
logarithms: its slope is 1 where twice the work takes twice as long, 0 where it does not matter.
``--keep`` writes table and picture into docs, as ``make bench`` does: with ``0.1 1 10`` for a log
of ten gigabytes, which takes that room twice on the disk of the checkout.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig
from storage_core.kafka_log import open_logs
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.store import LocalStore
from tests.bench.figures import DOCS, FOLDER, keep, table_row
from tests.bench.generated_columns import NOW_MS, Topic, write_partition
from tests.bench.shared import CACHE, in_a_process, run_with_options
from tests.kit.one_partition import clean_partition, verify_partition

SCRATCH: Final = CACHE / "growth"
TOPIC: Final = "grown"
VALUE_BYTES: Final = 100
# Of a record with its share of the batch's header.
RECORD_BYTES: Final = 118
MIB: Final = 1 << 20
GIGABYTES: Final = (0.1, 0.3, 1.0, 3.0)
# Of the segments, where their number grows; of each partition, where that of partitions does.
FIXED_BYTES: Final = 300 * 10**6
PARTITION_BYTES: Final = 10**6
SEGMENTS: Final = (10, 100, 1000)
PARTITIONS: Final = (10, 30, 100, 300)
WARM_UP_BYTES: Final = 2 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One process."""

    size: float  # bytes, segments or partitions
    seconds: float  # of processors, for the work
    memory_bytes: int  # largest resident memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How one kind of work grows with one kind of size."""

    work: str
    of: str
    points: Sequence[Point]  # from the smallest size on, at least two

    @property
    def time_slope(self) -> float:
        """The slope of the time's logarithm over the size's."""
        return _slope([(point.size, point.seconds) for point in self.points])

    @property
    def memory_slope(self) -> float:
        """The same of the memory."""
        return _slope([(point.size, point.memory_bytes) for point in self.points])

    def line(self) -> str:
        """Return a row of the report."""
        seconds = ", ".join(f"{point.seconds:.2f}" for point in self.points)
        memory = ", ".join(f"{point.memory_bytes / MIB:.0f}" for point in self.points)
        slopes = (f"{slope:.2f}" for slope in (self.time_slope, self.memory_slope))
        return table_row(self.work, self.of, seconds, next(slopes), memory, next(slopes))


def _slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the pairs' logarithms."""
    xs = [math.log(x) for x, _ in pairs]
    ys = [math.log(max(y, 1e-3)) for _, y in pairs]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


def measure(
    *,
    gigabytes: tuple[float, ...] = GIGABYTES,
    segments: tuple[int, ...] = SEGMENTS,
    partitions: tuple[int, ...] = PARTITIONS,
) -> Iterator[Growth]:
    """Yield how each kind of work grows.

    Args:
        gigabytes: Sizes of a log in segments of 64 MiB, rising; none leaves these out.
        segments: Numbers of segments of a log, likewise.
        partitions: Numbers of partitions, likewise.
    """
    for of, sizes in (
        ("GB in segments of 64 MiB", gigabytes),
        (f"segments of {FIXED_BYTES // 10**6} MB in all", segments),
        ("partitions of 1 MB in four segments", partitions),
    ):
        points: dict[str, list[Point]] = {work: [] for work in _WORK if sizes}
        for size in sizes:
            root = _made(of, size)
            for work, found in points.items():
                seconds, memory_bytes = in_a_process(_work, work, root)
                found.append(Point(size=size, seconds=seconds, memory_bytes=memory_bytes))
            shutil.rmtree(root)
        for work, found in points.items():
            yield Growth(work=work, of=of, points=found)


def keep_growth(growths: Sequence[Growth], *, docs: Path = DOCS) -> None:
    """Write the table and the picture into docs/performance.md."""
    # The helper processes of this module need no library that draws.
    from tests.bench.growth_picture import draw_growth  # noqa: PLC0415

    keep("growth", growths, table="growth", docs=docs)
    draw_growth(growths, docs / FOLDER)


def _made(of: str, size: float) -> Path:
    """Make a directory of partitions."""
    if of.startswith("GB"):
        return _partitions(1, log_bytes=int(size * 1e9), segment_bytes=64 * MIB)
    if of.startswith("segments"):
        return _partitions(1, log_bytes=FIXED_BYTES, segment_bytes=FIXED_BYTES // int(size))
    return _partitions(int(size), log_bytes=PARTITION_BYTES, segment_bytes=PARTITION_BYTES // 4)


def _partitions(count: int, *, log_bytes: int, segment_bytes: int) -> Path:
    root = SCRATCH / TOPIC
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    topic = _topic(log_bytes, segment_bytes)
    write_partition(root / f"{TOPIC}-0", topic)
    for number in range(1, count):
        shutil.copytree(root / f"{TOPIC}-0", root / f"{TOPIC}-{number}")
    return root


def _topic(log_bytes: int, segment_bytes: int) -> Topic:
    records = log_bytes // RECORD_BYTES
    return Topic(
        name=TOPIC,
        partitions=1,
        records=records,
        # As many rounds of the same keys, however long the log is: what is kept grows as it does.
        keys=max(records // 8, 1),
        value_bytes=VALUE_BYTES,
        segment_bytes=segment_bytes,
    )


def _verify(directory: Path) -> None:
    _, findings = verify_partition(
        LocalStore(directory),
        DirectoryContext(role=Role.BROKER, is_clean=True),
        VerifyOptions(now_ms=NOW_MS),
        PartitionCheckpoints(),
    )
    if any(finding.severity.rank > 1 for finding in findings):
        raise AssertionError(findings)


def _recover(directory: Path) -> None:
    plan_recovery(
        LocalStore(directory),
        config=LogConfig.from_topic_overrides({}),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
    )


def _read(directory: Path) -> None:
    for _ in open_logs(directory).read():
        pass


def _clean(directory: Path) -> None:
    topic = _topic(WARM_UP_BYTES, 64 * MIB)
    clean_partition(
        directory,
        config=LogConfig.from_topic_overrides(topic.config),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=NOW_MS, first_dirty_offset=0),
    )


# The last one changes the directory.
_WORK: Final[dict[str, Callable[[Path], None]]] = {
    "verify": _verify,
    "recover": _recover,
    "read as Arrow": _read,
    "compact": _clean,
}


def _work(name: str, root: Path) -> tuple[float, int]:
    """Do one kind of work on all partitions; return processor seconds and peak memory."""
    warm = SCRATCH / f"warm-{name.split(maxsplit=1)[0]}" / f"{TOPIC}-0"
    shutil.rmtree(warm, ignore_errors=True)
    write_partition(warm, _topic(WARM_UP_BYTES, WARM_UP_BYTES // 4))
    _WORK[name](warm)
    shutil.rmtree(warm)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = time.process_time()
    for directory in sorted(root.iterdir()):
        _WORK[name](directory)
    seconds = time.process_time() - before
    facts = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in facts if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) * 1024


if __name__ == "__main__":
    run_with_options(measure, lambda growths, **_: keep_growth(growths))
