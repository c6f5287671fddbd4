"""The most memory that all processes of a command have at once, of many commands.

    python -m tests.bench.bench_memory [--rounds 2] [--scale 1] [--beside FOLDER] [--keep]

Memory is what `process_watch` counts, looked at every 10 ms: anonymous pages, those that several
processes share once. Commands are whole programs, on fresh directories, which lie in memory, too.
FOLDER is a checkout of another commit, whose program is run in turns with this one's, by the same
Python. What both have is a median of the rounds.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.clock import SystemClock
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE
from tests.bench import bench_nightly, bench_tiny
from tests.bench.bench_many import LOOKS
from tests.bench.bench_real_size import CASES
from tests.bench.bench_tiny import ONE_IN, THREE, TINY, Shape, words_of, write_root, write_template
from tests.bench.figures import keep, table_row
from tests.bench.generated_columns import Topic, copy_root, generated_root
from tests.bench.generated_partition import IncrementalSize, Size, generated_partition
from tests.bench.linked_root import NOTHING_DUE, write_linked_root
from tests.bench.process_watch import run_program
from tests.bench.shared import CACHE, ROOT, run_with_options

OURS: Final = "ours"
LOCAL: Final = ("--engine", "local")
_MIB: Final = 1 << 20
# Makes a directory in a folder, and returns the words of a command.
Make = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What one command takes."""

    what: str
    ours: Sequence[int]  # bytes, one number a round
    # The same of another build, by its commit
    theirs: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def line(self) -> str:
        """Return the row of the table."""
        beside = [f"{name} {_mib(sizes)}" for name, sizes in self.theirs.items()]
        return table_row(self.what, _mib(self.ours), ", ".join(beside))


def measure(*, rounds: int = 2, scale: float = 1.0, beside: str = "") -> Iterator[Peak]:
    """Yield what each command takes.

    Args:
        scale: How large directories are, of those that the figures are of.
        beside: Folder of another checkout; its kernels are compiled first.
    """
    builds = {OURS: ROOT}
    if beside:
        command = ["git", "-C", beside, "rev-parse", "--short=8", "HEAD"]
        builds[subprocess.check_output(command, text=True).strip()] = Path(beside).resolve()
        run_program(["warmup"], build=Path(beside).resolve())
    for what, make in _commands(scale):
        sizes: dict[str, list[int]] = {name: [] for name in builds}
        for _ in range(rounds):
            for name, build in builds.items():
                with bench_tiny.folder_in("memory") as folder:
                    words = make(folder)
                    status, _, seen = run_program(words, every_seconds=0.01, build=build)
                assert status in {ExitCode.DONE, ExitCode.FINDINGS}, words
                sizes[name].append(seen.all_bytes)
        yield Peak(what=what, ours=sizes.pop(OURS), theirs=sizes)


def _commands(scale: float) -> Iterator[tuple[str, Make]]:
    def scaled(count: int) -> int:
        return max(round(count * scale), 2)

    for count in (200, 1000):
        what = f"`compact`, {count:,} partitions of 51 tiny segments"
        yield what, partial(_many, "compact", TINY, 1, scaled(count))
    what, many = "1,000 partitions of three segments", scaled(1000)
    yield f"`compact`, {what}, one in twenty due", partial(_many, "compact", THREE, ONE_IN, many)
    yield f"`retain`, {what}, one of each expired", partial(_many, "retain", THREE, 1, many)
    for what in LOOKS:
        yield f"`{what}`, 3,000 partitions", partial(_look, what, scaled(3000))
    yield "`compact`, 204 MB", partial(_one, "compact", Size(records=scaled(1_500_000)))
    for codec in ("none", "zstd"):
        later = IncrementalSize(records=scaled(1_500_000), hot=False, codec=codec)
        yield f"`compact`, the next round of any keys, {codec}", partial(_one, "compact", later)
    single = Size(records=scaled(1_000_000), batch_records=1)
    for what in ("compact", "recover", "dump"):
        yield f"`{what}`, a million batches of one record", partial(_one, what, single)
    segment = CASES["segment"].topic
    if scale != 1:
        of_segment = scaled(segment.segment_bytes)
        records = scaled(segment.records)
        segment = replace(segment, name="small-segment", records=records, segment_bytes=of_segment)
    for what in ("compact", "recover", "verify"):
        yield f"`{what}`, a segment of 1 GiB", partial(_one, what, segment)
    yield "`run`, a night of 2 GB in 50 partitions on Spark", partial(_night, 2 * scale, scaled(50))


def _many(command: str, shape: Shape, due: int, count: int, folder: Path) -> list[str]:
    """Make partitions of which one in so many is due."""
    template = write_template(folder / "template", shape)
    clean = [number for number in range(count) if number % due]
    root = write_root(folder, template, range(count), clean=clean)
    config = bench_tiny.RETENTION if command == "retain" else bench_tiny.CONFIG
    return [*words_of(command, root, config), *LOCAL]


def _look(what: str, count: int, folder: Path) -> list[str]:
    now_ms, kinds = SystemClock().now_ms(), NOTHING_DUE
    root = write_linked_root(folder / "log", count, segments=6, now_ms=now_ms, kinds=kinds)
    return [*LOOKS[what], str(root)]


def _one(command: str, log: Size | IncrementalSize | Topic, folder: Path) -> list[str]:
    if isinstance(log, Topic):
        source = generated_root(CACHE, [log]) / f"{log.name}-0"
    else:
        source = generated_partition(CACHE, log)
    cleaned_to = log.first_dirty_offset if isinstance(log, IncrementalSize) else 0
    root = write_root(folder, source, range(1), clean=[0], cleaned_to=cleaned_to, end=log.records)
    if command == "dump":
        return [command, str(root / f"{bench_tiny.TOPIC}-0"), "--output", "json"]
    if command == "recover":  # as after a crash
        (root / CLEAN_SHUTDOWN_FILE).unlink()
        (root / RECOVERY_POINT_FILE).write_bytes(encode_offset_checkpoint({}))
    return [*words_of(command, root, log.config), *LOCAL]


def _night(gigabytes: float, partitions: int, folder: Path) -> list[str]:
    size = bench_nightly.Size(gigabytes=gigabytes, partitions=partitions, name="memory-night")
    root = copy_root(generated_root(CACHE, [size.topic]), folder / "log")
    words = words_of("run", root, size.topic.config, topic=size.topic.name)
    return [*words, "--engine", "spark"]


def _mib(sizes: Sequence[int]) -> str:
    return f"{statistics.median(sizes) / _MIB:.0f}"


if __name__ == "__main__":
    run_with_options(measure, lambda peaks, **_: keep("memory", peaks, table="memory"))
