"""The next round over a log of which nine tenths are clean: Kafka's cleaner and ours, in turns.

    python -m tests.bench.bench_incremental [--rounds 6] [--records 1500000] [--codec none|zstd|...]
        [--keys hot|any]

Timings of a round on a copy of its own, one thread each, warm cache: Kafka's ``Cleaner.doClean``
alone, in a child process that stays; ours in this process, from opening to the end of the commit,
without key sidecars and with those that the round before has left. That round, over the clean part
alone, is not counted. All three must answer with the same numbers and leave the same bytes.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.config import CleanerConfig, LogConfig
from storage_core.formats.batch_v2 import Codec
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.maintenance.compaction.plan import CleanRequest
from tests.bench.bench_compaction import (
    COMPARED,
    COMPARED_SNAPPY,
    find_memory,
    fresh_copy,
    kafka_process,
)
from tests.bench.figures import Figure
from tests.bench.generated_partition import CONFIG, NOW_MS, IncrementalSize, generated_partition
from tests.bench.shared import CACHE, run_with_options
from tests.kit.compare import read_tree
from tests.kit.one_partition import clean_partition

TARGETS: Final = {"without": 5.0, "with": 15.0}
# If keys change anywhere, every clean batch loses records: sidecars save the hashing alone.
TARGETS_OF_ANY: Final = {"without": 5.0, "with": 8.0}
TARGETS_OF_ANY_COMPRESSED: Final = {"without": 3.5, "with": 3.5}
_SCRATCH: Final = CACHE / "scratch-incremental"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds of one round."""

    kafka: float
    without: float
    with_sidecars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rounds, the first one, cold, first."""

    size: IncrementalSize
    log_bytes: int
    sidecar_bytes: int
    rounds: tuple[Timings, ...]

    def figures(self) -> Iterator[Figure]:
        """Yield a row without sidecars and one with them; the first round does not count."""
        warm = self.rounds[1:]
        megabytes = self.log_bytes / 1e6
        keys = "new values of keys that change often" if self.size.hot else "new values of any keys"
        codec = "uncompressed" if self.size.codec == "none" else self.size.codec
        targets = TARGETS
        if not self.size.hot:
            targets = TARGETS_OF_ANY if self.size.codec == "none" else TARGETS_OF_ANY_COMPRESSED
        theirs = {"Kafka": [megabytes / timings.kafka for timings in warm]}
        for kind, seconds in (
            ("without", [timings.without for timings in warm]),
            ("with", [timings.with_sidecars for timings in warm]),
        ):
            yield Figure(
                work=f"next round, 90 % clean, {keys}, {codec}, {kind} key sidecars",
                unit="MB/s",
                ours=[megabytes / each for each in seconds],
                theirs=theirs,
                targets={"Kafka": targets[kind]},
            )

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        share = self.sidecar_bytes / self.log_bytes
        yield f"{self.log_bytes / 1e6:.0f} MB, sidecars of {share:.1%} of that"
        yield from (f"{timings}" for timings in self.rounds)
        yield from (figure.line() for figure in self.figures())


def measure(
    *,
    rounds: int = 6,
    records: int = IncrementalSize().records,
    keys: str = "hot",
    codec: str = IncrementalSize().codec,
) -> Report:
    """Make the round by Kafka, by us without key sidecars and with them, then again.

    Args:
        rounds: The first one counts as cold.
        keys: ``hot`` or ``any``.
    """
    size = IncrementalSize(records=records, hot=keys == "hot", codec=codec)
    source = generated_partition(CACHE, size)
    compared = COMPARED_SNAPPY if size.codec == Codec.SNAPPY.name.lower() else COMPARED
    timings = []
    sidecar_bytes = 0
    with kafka_process() as kafka:
        for _ in range(rounds):
            theirs = kafka(fresh_copy(source, _SCRATCH), CONFIG, size.first_dirty_offset)
            copy = fresh_copy(source, _SCRATCH)
            without, answer = _clean(copy, size)
            left = read_tree(copy)
            copy = fresh_copy(source, _SCRATCH)
            folder = _SCRATCH / "keys"
            _clean(copy, size, folder, is_first=True)
            os.sync()
            # That round used what the fresh copy had found.
            find_memory(2 * sum(file.stat().st_size for file in copy.iterdir()))
            with_sidecars, same = _clean(copy, size, folder)
            assert same == answer, (same, answer)
            assert read_tree(copy) == left
            for name in compared:
                assert getattr(answer, name) == theirs["answer"][name], (name, answer, theirs)
            sidecar_bytes = sum(file.stat().st_size for file in folder.rglob("*.keys"))
            timings.append(
                Timings(kafka=theirs["clean_seconds"], without=without, with_sidecars=with_sidecars)
            )
    shutil.rmtree(_SCRATCH)
    return Report(
        size=size,
        log_bytes=sum(file.stat().st_size for file in source.glob("*.log")),
        sidecar_bytes=sidecar_bytes,
        rounds=tuple(timings),
    )


def _clean(
    directory: Path, size: IncrementalSize, folder: Path | None = None, *, is_first: bool = False
) -> tuple[float, CleanResult]:
    request = CleanRequest(now_ms=NOW_MS, first_dirty_offset=size.first_dirty_offset)
    if is_first:
        request = CleanRequest(
            now_ms=NOW_MS,
            first_dirty_offset=0,
            first_uncleanable_offset=size.first_dirty_offset,
        )
    begin = time.perf_counter()
    result = clean_partition(
        directory,
        config=LogConfig.from_topic_overrides({key: str(value) for key, value in CONFIG.items()}),
        cleaner=CleanerConfig(key_sidecars="" if folder is None else str(folder)),
        request=request,
        threads=1,
    )
    return time.perf_counter() - begin, result


if __name__ == "__main__":
    run_with_options(measure)
