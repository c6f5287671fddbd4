"""A million batches of one record each, a slow topic's, by each way through them, beside its peer.

    python -m tests.bench.bench_single_records [--rounds 6] [--records 1000000] [--keys 200000]
        [--codecs none lz4] [--works compaction recovery dump Arrow] [--keep]

Whoever sends a record now and then has it in a batch of its own: 61 bytes of header before 135 of
record. So every cost of a batch counts 120 times as much as in the other benches, and compressed
batches have a stream each. All figures are of processor seconds and of one thread: Kafka's cleaner
and loader by the time of the thread that runs them, in a JVM that stays, without that of its
garbage collector and its compilers; the dumps are whole programs.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.bench import bench_arrow, bench_dump
from tests.bench.bench_compaction import COMPARED, clean_here, fresh_copy, kafka_process
from tests.bench.figures import Figure, keep
from tests.bench.generated_partition import CONFIG, NOW_MS, Size, generated_partition
from tests.bench.orders import helper
from tests.bench.shared import CACHE, run_with_options

KAFKA: Final = "Kafka"
OURS: Final = "ours"
WORKS: Final = ("compaction", "recovery", "dump", "Arrow")
TARGETS: Final = {"compaction": {KAFKA: 6}, "recovery": {KAFKA: 4}}
# Of each side, by its name, one a round.
Rates = dict[str, list[float]]
SCRATCH: Final = CACHE / "single-records"


def measure(
    *,
    records: int = 1_000_000,
    keys: int = Size().keys,
    codecs: tuple[str, ...] = ("none", "lz4"),
    works: tuple[str, ...] = WORKS,
    rounds: int = 6,
) -> Iterator[Figure]:
    """Yield what each kind of work takes, by codec.

    Args:
        rounds: At least 2; the first one warms up and does not count.
    """
    for codec in codecs:
        size = Size(records=records, keys=keys, codec=codec, batch_records=1)
        source = generated_partition(CACHE, size)
        for work in works:
            rates = _RATES[work](source, records / 1e3, rounds)
            yield Figure(
                work=(
                    f"batches of one record, {'uncompressed' if codec == 'none' else codec}: "
                    f"{work}, processor seconds"
                ),
                unit="thousand batches/s",
                ours=rates.pop(OURS),
                theirs=rates,
                targets=TARGETS.get(work, {}),
            )


def _compact(source: Path, thousands: float, rounds: int) -> Rates:
    """Clean copies by both, in turns."""
    seconds: dict[str, list[float]] = {OURS: [], KAFKA: []}
    with kafka_process() as kafka:
        for _ in range(rounds):
            theirs = kafka(fresh_copy(source, SCRATCH), CONFIG)
            ours, answer = clean_here(fresh_copy(source, SCRATCH), time.process_time)
            for name in COMPARED:
                assert answer[name] == theirs["answer"][name], (name, answer, theirs)
            seconds[OURS].append(ours)
            seconds[KAFKA].append(theirs["clean_cpu_seconds"])
    shutil.rmtree(SCRATCH)
    return {side: [thousands / each for each in some[1:]] for side, some in seconds.items()}


def _recover(source: Path, thousands: float, rounds: int) -> Rates:
    """Load copies as after a crash, in turns."""
    seconds: dict[str, list[float]] = {OURS: [], KAFKA: []}
    with (
        helper("tests.bench.recovery_side", "kafka", "1") as kafka,
        helper("tests.bench.recovery_side", "ours", "1") as ours,
    ):
        for _ in range(rounds):
            ends = set()
            for side, ask in ((KAFKA, kafka), (OURS, ours)):
                copy = fresh_copy(source, SCRATCH)
                answer = ask({"directories": [str(copy)], "config": CONFIG, "now_ms": NOW_MS})
                seconds[side].append(answer["load_cpu_seconds"])
                ends.add(tuple(answer["log_end_offsets"]))
            assert len(ends) == 1, ends
    shutil.rmtree(SCRATCH)
    return {side: [thousands / each for each in some[1:]] for side, some in seconds.items()}


def _dump(source: Path, thousands: float, rounds: int) -> Rates:
    taken = bench_dump.dump_by_both(source, rounds=rounds)
    return {side: [thousands / spent for _, spent in some[1:]] for side, some in taken.items()}


def _to_arrow(source: Path, _thousands: float, rounds: int) -> Rates:
    millions = bench_arrow.rates(source, rounds=rounds)
    return {side: [1e3 * each for each in some] for side, some in millions.items()}


_RATES: Final = dict(zip(WORKS, (_compact, _recover, _dump, _to_arrow), strict=True))


if __name__ == "__main__":
    run_with_options(measure, lambda figures, **_: keep("single_records", figures))
