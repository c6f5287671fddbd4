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

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
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
    RECORDS_PER_BATCH,
    Size,
    generated_partition,
)
from tests.kit.one_partition import clean_partition

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "bench"
COMPARED: Final = ("next_offset", "messages_read", "messages_written", "bytes_written")
# By codec, how many times as fast as Kafka's Cleaner; or how near to the codec alone.
TARGETS: Final = {"none": 8, "lz4": 5, "zstd": 4, "snappy": 4, "gzip": 4}
NEAR_CODEC: Final = 0.8
# Snappy finds other matches than Kafka's does: batches that are rebuilt have other sizes.
COMPARED_SNAPPY: Final = COMPARED[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds of one round; of the start, which is the same in all of them, the median."""

    kafka_clean: float
    kafka_whole: float
    ours: float
    ours_process: float
    ours_start: float
    codec_alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rounds, the first one, cold, first."""

    log_bytes: int
    rounds: tuple[Timings, ...]

    def median(self, seconds: Callable[[Timings], float]) -> float:
        """Return the median over the rounds after the first."""
        return statistics.median(seconds(timings) for timings in self.rounds[1:])

    def figures(self, codec: str) -> list[Figure]:
        """Return the rates of the warm rounds."""
        theirs = {"Kafka": self._rates(_kafka_clean)}
        targets = {"Kafka": TARGETS[codec]}
        kind = "uncompressed" if codec == "none" else codec
        alone = {} if codec == "none" else {"codec alone": self._rates(_codec_alone)}
        return [
            Figure(
                work=f"compaction, {kind}: the program less its start",
                unit="MB/s",
                ours=self._rates(_less_start),
                theirs=theirs | alone,
                targets=targets | dict.fromkeys(alone, NEAR_CODEC),
            ),
            Figure(
                work=f"compaction, {kind}: in process, one thread, open to commit",
                unit="MB/s",
                ours=self._rates(_ours),
                theirs=theirs,
            ),
        ]

    def _rates(self, seconds: Callable[[Timings], float]) -> list[float]:
        return [self.log_bytes / 1e6 / seconds(timings) for timings in self.rounds[1:]]

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        megabytes = self.log_bytes / 1e6
        yield f"{megabytes:.0f} MB, {len(self.rounds)} rounds in turns, warm cache"
        yield f"{'':36}{'first s':>9}{'median s':>10}{'MB/s':>8}{'min s':>8}{'max s':>8}"
        for name, seconds in SIDES.items():
            warm = [seconds(timings) for timings in self.rounds[1:]]
            middle = self.median(seconds)
            if not middle:
                continue
            yield (
                f"{name:36}{seconds(self.rounds[0]):9.2f}{middle:10.2f}{megabytes / middle:8.0f}"
                f"{min(warm):8.2f}{max(warm):8.2f}"
            )
        for name, (theirs, ours) in RATIOS.items():
            ratio = statistics.median(theirs(t) / ours(t) for t in self.rounds[1:])
            if ratio:
                yield f"{name}: {ratio:.2f} x"


def _kafka_clean(timings: Timings) -> float:
    return timings.kafka_clean


def _kafka_whole(timings: Timings) -> float:
    return timings.kafka_whole


def _ours(timings: Timings) -> float:
    return timings.ours


def _ours_process(timings: Timings) -> float:
    return timings.ours_process


def _less_start(timings: Timings) -> float:
    return timings.ours_process - timings.ours_start


def _codec_alone(timings: Timings) -> float:
    return timings.codec_alone


SIDES: Final[dict[str, Callable[[Timings], float]]] = {
    "Kafka, Cleaner.doClean": _kafka_clean,
    "Kafka, open to clean close": _kafka_whole,
    "ours, open to commit": _ours,
    "ours, pylog partition clean": _ours_process,
    "ours, the same less its start": _less_start,
    "the codec alone": _codec_alone,
}
RATIOS: Final = {
    "in process, against Kafka open to close": (_kafka_whole, _ours),
    "in process, against Cleaner.doClean": (_kafka_clean, _ours),
    "whole process, against Kafka in process": (_kafka_whole, _ours_process),
    "whole process less its start, against Cleaner.doClean": (_kafka_clean, _less_start),
    "in process, against the codec alone": (_codec_alone, _ours),
}


def measure(size: Size, rounds: int) -> Report:
    """Clean copies of a generated partition, first by Kafka, then by us, then again."""
    source = generated_partition(CACHE, size)
    tiny = generated_partition(CACHE, replace(size, records=RECORDS_PER_BATCH))
    scratch = CACHE / "scratch"
    codec = Codec[size.codec.upper()]
    timings = []
    with kafka_process() as kafka:
        for _ in range(rounds):
            theirs = kafka(fresh_copy(source, scratch), CONFIG)
            start_seconds = _clean_by_command(fresh_copy(tiny, scratch))
            process_seconds = _clean_by_command(fresh_copy(source, scratch))
            copy = fresh_copy(source, scratch)
            ours_seconds, answer = _clean_here(copy)
            for name in COMPARED_SNAPPY if codec is Codec.SNAPPY else COMPARED:
                assert answer[name] == theirs["answer"][name], (name, answer, theirs)
            timings.append(
                Timings(
                    kafka_clean=theirs["clean_seconds"],
                    kafka_whole=theirs["whole_seconds"],
                    ours=ours_seconds,
                    ours_process=process_seconds,
                    ours_start=start_seconds,
                    codec_alone=_run_codec(codec, source, copy),
                )
            )
    shutil.rmtree(scratch)
    log_bytes = sum(file.stat().st_size for file in source.glob("*.log"))
    # A start that came late in one round must not make that round's work look short.
    start_seconds = statistics.median(timing.ours_start for timing in timings[1:])
    rounds_of_it = (replace(timing, ours_start=start_seconds) for timing in timings)
    return Report(log_bytes=log_bytes, rounds=tuple(rounds_of_it))


def _run_codec(codec: Codec, source: Path, cleaned: Path) -> float:
    """Return how long the codec takes for what a round needs at least, none for no codec."""
    if codec is Codec.NONE:
        return 0.0
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
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.kafka_side"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None

        def clean(
            directory: Path, config: dict[str, object], first_dirty_offset: int = 0
        ) -> dict[str, Any]:
            order = {
                "directory": str(directory),
                "config": config,
                "now_ms": NOW_MS,
                "first_dirty_offset": first_dirty_offset,
            }
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            return dict(json.loads(answers.readline()))

        yield clean
        orders.close()


def _clean_here(directory: Path) -> tuple[float, dict[str, int]]:
    begin = time.perf_counter()
    result = clean_partition(
        directory,
        config=LogConfig.from_topic_overrides({key: str(value) for key, value in CONFIG.items()}),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=NOW_MS, first_dirty_offset=0),
        threads=1,
    )
    seconds = time.perf_counter() - begin
    return seconds, {name: getattr(result, name) for name in COMPARED}


def _clean_by_command(directory: Path) -> float:
    command = [sys.executable, "-m", "pylog_spark", "partition", "clean", str(directory)]
    command += ["--now-ms", str(NOW_MS), "--first-dirty-offset", "0"]
    for key, value in CONFIG.items():
        command += ["--set", f"{key}={value}"]
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Kafka's cleaner and ours, in turns.")
    parser.add_argument("--rounds", type=int, default=6, help="the first one counts as cold")
    parser.add_argument("--records", type=int, default=Size().records)
    parser.add_argument("--keys", type=int, default=Size().keys)
    names = [codec.name.lower() for codec in Codec]
    parser.add_argument("--codec", choices=names, default=Size().codec)
    arguments = parser.parse_args()
    size = Size(records=arguments.records, keys=arguments.keys, codec=arguments.codec)
    report = measure(size, arguments.rounds)
    print("\n".join(report.lines()))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
