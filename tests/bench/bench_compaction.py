"""Kafka's cleaner and ours on copies of one partition, in turns, warm cache.

    python -m tests.bench.bench_compaction [--rounds 5] [--records 1500000] [--keys 200000]
        [--codec none|gzip|snappy|lz4|zstd]

Timings of a round: Kafka's ``Cleaner.doClean`` alone, and from opening the log to the end of a
clean close, both in a child process that stays, so that its JIT warms up from round to round; ours
in this process with one thread, from opening to the end of the commit; the whole process of
``pylog partition clean``, which uses all processors, and one that has next to nothing to clean,
which is its start. With a codec also what the codec alone takes: every batch expanded once, and
the batches that were rebuilt compressed. Ours reads and syncs as it always does. The partition is
kept under ``build/``. Both sides must answer with the same numbers.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from storage_core.config import CleanerConfig, LogConfig
from storage_core.formats.batch_v2 import HEADER_BYTES, MAX_BATCH_BYTES, Codec
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.records.codecs import (
    Arena,
    Blocks,
    compress_blocks,
    decompress,
    decompress_blocks,
)
from storage_core.records.reader import CrcCheck, scan_windows
from storage_core.store.local import LocalStore
from tests.bench.figures import Figure
from tests.bench.generated_partition import (
    CONFIG,
    NOW_MS,
    Size,
    generated_partition,
)
from tests.bench.orders import helper
from tests.bench.shared import CACHE, run_with_options, time_program
from tests.kit.one_partition import clean_partition

COMPARED: Final = ("next_offset", "messages_read", "messages_written", "bytes_written")
# By codec, how many times as fast as Kafka's Cleaner; or how near to the codec alone.
TARGETS: Final = {"none": 8, "lz4": 5, "zstd": 4, "snappy": 4, "gzip": 4}
NEAR_CODEC: Final = 0.8
# Snappy finds other matches than Kafka's does: batches that are rebuilt have other sizes.
COMPARED_SNAPPY: Final = COMPARED[:-1]


KAFKA_CLEAN: Final = "Kafka, Cleaner.doClean"
KAFKA_WHOLE: Final = "Kafka, open to clean close"
OURS: Final = "ours, open to commit"
PROCESS: Final = "ours, pylog partition clean"
LESS_START: Final = "ours, the same less its start"
CODEC_ALONE: Final = "the codec alone"
RATIOS: Final = {
    "in process, against Kafka open to close": (KAFKA_WHOLE, OURS),
    "in process, against Cleaner.doClean": (KAFKA_CLEAN, OURS),
    "whole process, against Kafka in process": (KAFKA_WHOLE, PROCESS),
    "whole process less its start, against Cleaner.doClean": (KAFKA_CLEAN, LESS_START),
    "in process, against the codec alone": (CODEC_ALONE, OURS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Seconds of all rounds, by side; the first one, cold, first."""

    codec: Codec
    log_bytes: int
    seconds: dict[str, list[float]]

    def median(self, side: str) -> float:
        """Return the median over the rounds after the first."""
        return statistics.median(self.seconds[side][1:])

    def figures(self) -> list[Figure]:
        """Return the rates of the warm rounds."""
        kind, codec = "uncompressed", self.codec.name.lower()
        theirs = {"Kafka": self._rates(KAFKA_CLEAN)}
        targets: dict[str, float] = {"Kafka": TARGETS[codec]}
        alone = {}
        if self.codec is not Codec.NONE:
            kind, alone = codec, {"codec alone": self._rates(CODEC_ALONE)}
        return [
            Figure(
                work=f"compaction, {kind}: the program less its start",
                unit="MB/s",
                ours=self._rates(LESS_START),
                theirs=theirs | alone,
                targets=targets | dict.fromkeys(alone, NEAR_CODEC),
            ),
            Figure(
                work=f"compaction, {kind}: in process, one thread, open to commit",
                unit="MB/s",
                ours=self._rates(OURS),
                theirs=theirs,
            ),
        ]

    def _rates(self, side: str) -> list[float]:
        return [self.log_bytes / 1e6 / seconds for seconds in self.seconds[side][1:]]

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        megabytes = self.log_bytes / 1e6
        rounds = len(self.seconds[OURS])
        yield f"{self.codec.name.lower()}, {megabytes:.0f} MB, {rounds} rounds in turns, warm cache"
        yield f"{'':36}{'first s':>9}{'median s':>10}{'MB/s':>8}{'min s':>8}{'max s':>8}"
        for name, (cold, *warm) in self.seconds.items():
            middle = self.median(name)
            yield (
                f"{name:36}{cold:9.2f}{middle:10.2f}{megabytes / middle:8.0f}"
                f"{min(warm):8.2f}{max(warm):8.2f}"
            )
        for name, sides in RATIOS.items():
            if sides[0] in self.seconds:
                theirs, ours = (self.seconds[side][1:] for side in sides)
                ratio = statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
                yield f"{name}: {ratio:.2f} x"


def measure(
    *,
    rounds: int = 6,
    records: int = Size().records,
    keys: int = Size().keys,
    codec: str = Size().codec,
) -> Report:
    """Clean copies of a generated partition, first by Kafka, then by us, then again.

    Args:
        rounds: The first one counts as cold.
    """
    size = Size(records=records, keys=keys, codec=codec)
    source = generated_partition(CACHE, size)
    tiny = generated_partition(CACHE, replace(size, records=size.batch_records))
    scratch = CACHE / "scratch" / "compaction"
    kind = Codec[codec.upper()]
    seconds: dict[str, list[float]] = {}
    with kafka_process() as kafka:
        for _ in range(rounds):
            theirs = kafka(fresh_copy(source, scratch), CONFIG)
            start = _clean_by_command(fresh_copy(tiny, scratch))
            process = _clean_by_command(fresh_copy(source, scratch))
            copy = fresh_copy(source, scratch)
            ours, answer = clean_here(copy)
            for name in COMPARED_SNAPPY if kind is Codec.SNAPPY else COMPARED:
                assert answer[name] == theirs["answer"][name], (name, answer, theirs)
            taken = {
                KAFKA_CLEAN: theirs["clean_seconds"],
                KAFKA_WHOLE: theirs["whole_seconds"],
                OURS: ours,
                PROCESS: process,
                LESS_START: start,
            }
            if kind is not Codec.NONE:
                taken[CODEC_ALONE] = _run_codec(kind, source, copy)
            for side, each in taken.items():
                seconds.setdefault(side, []).append(each)
    shutil.rmtree(scratch)
    log_bytes = sum(file.stat().st_size for file in source.glob("*.log"))
    # A start that came late in one round must not make that round's work look short.
    start = statistics.median(seconds[LESS_START][1:])
    seconds[LESS_START] = [each - start for each in seconds[PROCESS]]
    return Report(codec=kind, log_bytes=log_bytes, seconds=seconds)


def _run_codec(codec: Codec, source: Path, cleaned: Path) -> float:
    """Return how long the codec takes for what a round needs at least."""
    before, after = _payloads(source), _payloads(cleaned)
    records = Arena()
    rebuilt = _expand(codec, _blocks(after - before), records)
    packed, arena = _blocks(before), Arena()
    begin = time.perf_counter()
    for part in _parts(packed):
        arena.clear()
        _expand(codec, part, arena)
    for part in _parts(rebuilt):
        arena.clear()
        compress_blocks(codec, part, arena)
    return time.perf_counter() - begin


def _parts(blocks: Blocks) -> Iterator[Blocks]:
    """Yield blocks, some at a time: what becomes of them stays in a CPU's cache."""
    for first in range(0, blocks.start.size, 64):
        some = slice(first, first + 64)
        yield Blocks(blocks.data, blocks.start[some], blocks.end[some])


def _blocks(payloads: Iterable[bytes]) -> Blocks:
    pieces = list(payloads)
    end = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    start = np.concatenate([end[:1] * 0, end[:-1]])
    return Blocks(np.frombuffer(bytearray().join(pieces), np.uint8), start, end)


def _expand(codec: Codec, blocks: Blocks, arena: Arena) -> Blocks:
    """Expand blocks into an arena; return where their contents lie."""
    ends = np.empty(blocks.start.size, np.int64)
    first = 0
    while first < ends.size:
        first = decompress_blocks(
            codec,
            blocks,
            first,
            arena,
            ends,
            limit_bytes=MAX_BATCH_BYTES,
            budget_bytes=MAX_BATCH_BYTES,
        )
        if first < ends.size:
            arena.add(decompress(codec, blocks.view(first), limit_bytes=MAX_BATCH_BYTES))
            ends[first] = arena.used
            first += 1
    return Blocks(arena.content, np.concatenate([ends[:1] * 0, ends[:-1]]), ends)


def _payloads(directory: Path) -> set[bytes]:
    """Return what follows the headers of all batches."""
    payloads = set()
    for file in sorted(directory.glob("*.log")):
        with closing(LocalStore(directory).open_file(file.name)) as reader:
            for window in scan_windows(reader, crc=CrcCheck.SKIP):
                start = window.batches.position + HEADER_BYTES
                end = window.batches.position + window.batches.size
                spans = zip(start.tolist(), end.tolist(), strict=True)
                payloads |= {window.data[first:last].tobytes() for first, last in spans}
    return payloads


def fresh_copy(source: Path, scratch: Path) -> Path:
    """Make a fresh copy; written back at once, so that nobody pays for syncing it later."""
    shutil.rmtree(scratch, ignore_errors=True)
    copy = scratch / source.name
    shutil.copytree(source, copy)
    os.sync()
    find_memory(2 * sum(path.stat().st_size for path in copy.iterdir()))
    return copy


def find_memory(size_bytes: int) -> None:
    """Have so much free memory in this machine as is there at once.

    A virtual machine gives back to its host what nobody has used for seconds. Whoever needs it then
    waits for the host, 2 ms a mebibyte: as long as everything else that is measured here.
    """
    np.ones(size_bytes, np.uint8)


@contextmanager
def kafka_process() -> Iterator[Callable[..., dict[str, Any]]]:
    """Start a process that cleans by Kafka; yield who asks it.

    By directory, configuration, and where it says so from a first dirty offset on.
    """
    with helper("tests.bench.kafka_side") as ask:
        yield lambda directory, config, first_dirty_offset=0: ask(
            {
                "directory": str(directory),
                "config": config,
                "now_ms": NOW_MS,
                "first_dirty_offset": first_dirty_offset,
            }
        )


def clean_here(
    directory: Path, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, dict[str, int]]:
    """Clean a partition in this process with one thread; return seconds, and what was COMPARED."""
    begin = clock()
    result = clean_partition(
        directory,
        config=LogConfig.from_topic_overrides({key: str(value) for key, value in CONFIG.items()}),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=NOW_MS, first_dirty_offset=0),
        threads=1,
    )
    seconds = clock() - begin
    return seconds, {name: getattr(result, name) for name in COMPARED}


def _clean_by_command(directory: Path) -> float:
    words = ["partition", "clean", str(directory), "--now-ms", str(NOW_MS)]
    words += ["--first-dirty-offset", "0"]
    for key, value in CONFIG.items():
        words += ["--set", f"{key}={value}"]
    return time_program(words)


if __name__ == "__main__":
    run_with_options(measure)
