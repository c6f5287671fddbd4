"""Verification of one partition in MB/s: headers and checksums, and every record; caches warm.

    python -m tests.bench.bench_verify [--directory DIR] [--rounds 5] [--processes 1 2]

The partition is that of the compaction bench, made by Kafka's classes and kept under ``build/``, or
any other one. Segments are the units, as they are on Spark; several processes take them in turns.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import crc32c
import numpy as np

from storage_core.catalog.roles import Role
from storage_core.formats.batch_v2 import CRC_START
from storage_core.maintenance.verification.files import PartitionFiles, sort_files
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.maintenance.verification.partition import verify_segments
from storage_core.records.reader import scan_windows
from storage_core.store import LocalStore
from tests.bench.figures import Figure
from tests.bench.generated_partition import NOW_MS, Size, generated_partition
from tests.bench.shared import (
    CACHE,
    MEMORY,
    Way,
    memory_way,
    processor_rates,
    run_with_options,
)

PACKAGE: Final = "crc32c package"
READING: Final = "reading alone"
_READ_BYTES: Final = 1 << 20
SURROUNDINGS: Final = DirectoryContext(role=Role.BROKER, is_clean=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one way of looking was."""

    name: str
    log_bytes: int  # bytes of the log
    seconds: tuple[float, ...]  # one a round, the first one, cold, first

    @property
    def bytes_per_second(self) -> float:
        """The median of the rounds after the first."""
        return self.log_bytes / statistics.median(self.seconds[1:])

    def line(self) -> str:
        """Return the rate as text."""
        return (
            f"{self.name:<28} {self.bytes_per_second / 1e6:8.0f} MB/s "
            f"(first round {self.log_bytes / self.seconds[0] / 1e6:.0f} MB/s)"
        )


def look(directory: Path, bases: Sequence[int], *, is_deep: bool) -> int:
    """Verify some segments and return how many batches they have; nothing may be found."""
    store = LocalStore(directory)
    files = sort_files(store.list_files())
    segments = [segment for segment in files.segments if segment.base_offset in bases]
    options = VerifyOptions(now_ms=NOW_MS, is_deep=is_deep)
    facts, found = verify_segments(store, files, segments, SURROUNDINGS, options)
    bad = [finding for finding in found if finding.severity.rank > 1]
    if bad:
        raise AssertionError(f"the sample is damaged: {bad[0]}")
    return sum(segment.batches for segment in facts)


def measure(
    *,
    directory: str = "",
    records: int = Size().records,
    rounds: int = 4,
    processes: tuple[int, ...] = (1, 2),
) -> Iterator[Rate | Figure]:
    """Yield the rates of all ways of looking; of no directory, at a generated one.

    Args:
        rounds: At least 2; the first one warms up.
    """
    place = Path(directory) if directory else generated_partition(CACHE, Size(records=records))
    files = sort_files(LocalStore(place).list_files())
    bases = [segment.base_offset for segment in files.segments]
    for is_deep in (False, True):
        for count in processes:
            shares = [bases[number::count] for number in range(count)]
            with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
                seconds = []
                for _ in range(rounds):
                    started = time.perf_counter()
                    jobs = [pool.submit(look, place, s, is_deep=is_deep) for s in shares]
                    for job in jobs:
                        job.result()
                    seconds.append(time.perf_counter() - started)
            name = f"{'every record' if is_deep else 'headers, CRC, indexes'}, {count} processes"
            yield Rate(name=name, log_bytes=files.size_bytes, seconds=tuple(seconds))
    yield beside_package(place, rounds=2 * rounds)


def beside_package(directory: Path, *, rounds: int) -> Figure:
    """Return how fast a core verifies, beside the ``crc32c`` package, in turns.

    The package gets what has been read already, a call a batch, and does nothing else. What counts
    are processor seconds; ours read the files, too, which takes what reading alone does, and that
    no less than the memory does.
    """
    files = sort_files(LocalStore(directory).list_files())
    bases = [segment.base_offset for segment in files.segments]
    log = max(directory.glob("*.log"), key=lambda path: path.stat().st_size)
    with closing(LocalStore(directory).open_file(log.name)) as reader:
        (window,) = scan_windows(reader, window_bytes=reader.size_bytes)
    starts = (window.batches.position + CRC_START).tolist()
    ends = (window.batches.position + window.batches.size).tolist()
    batches = [window.data[start:end].data for start, end in zip(starts, ends, strict=True)]
    ways: dict[str, Way] = {
        "ours": (files.size_bytes / 1e6, lambda: look(directory, bases, is_deep=False)),
        PACKAGE: (window.data.size / 1e6, lambda: [crc32c.crc32c(batch) for batch in batches]),
        READING: (files.size_bytes / 1e6, lambda: _read(LocalStore(directory), files)),
        MEMORY: memory_way(),
    }
    warm = processor_rates(ways, rounds=rounds)
    return Figure(
        work="verify: headers, CRC, indexes, a core",
        unit="MB/s",
        ours=warm.pop("ours"),
        theirs=warm,
        targets={PACKAGE: 0.5, READING: 0.6},
        least=7000,
    )


def _read(store: LocalStore, files: PartitionFiles) -> None:
    """Read the .log files into a buffer that stays in the cache, and do nothing else."""
    buffer = np.empty(_READ_BYTES, np.uint8)
    for segment in files.segments:
        with closing(store.open_file(segment.log.name)) as reader:
            for position in range(0, reader.size_bytes, _READ_BYTES):
                reader.read_into(position, buffer)


if __name__ == "__main__":
    run_with_options(measure)
