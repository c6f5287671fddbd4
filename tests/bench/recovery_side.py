"""One side of the benchmark of recovery: a process of its own, bound to so many cores.

    python -m tests.bench.recovery_side kafka|ours CORES

A helper process (``orders``): ``{"directories": [...], "config": ..., "now_ms": ...}`` gives
``{"load_seconds": ..., "load_cpu_seconds": ..., "whole_seconds": ..., "log_end_offsets": [...]}``.
load_seconds is what it takes to load every log as after a crash: Kafka's loader, with one thread a
core as a broker has; our plan. load_cpu_seconds is the processor time of the threads that load,
without the JVM's own. whole_seconds goes on to the end of a clean close, or of our commit. Ours
says besides how long it takes to read the same files and check nothing but their checksums:
``checksum_seconds``.
"""

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.bench.orders import Order, serve


def timed(
    order: Order, cores: int, load: Callable[[Path], Any], close: Callable[[Any], int]
) -> Order:
    """Load all directories, then close them, and say how long it took."""

    def timed_load(directory: str) -> tuple[Any, float]:
        before = time.thread_time()
        return load(Path(directory)), time.thread_time() - before

    with ThreadPoolExecutor(cores) as pool:
        begin = time.perf_counter()
        loaded = list(pool.map(timed_load, order["directories"]))
        load_seconds = time.perf_counter() - begin
        ends = list(pool.map(close, [log for log, _ in loaded]))
    return {
        "load_seconds": load_seconds,
        "load_cpu_seconds": sum(seconds for _, seconds in loaded),
        "whole_seconds": time.perf_counter() - begin,
        "log_end_offsets": ends,
    }


def kafka_side(cores: int) -> Callable[[Order], Order]:
    """Return Kafka's loader."""
    from tests.oracle.jvm import start_jvm  # noqa: PLC0415 - this side alone has a JVM
    from tests.oracle.kafka import Kafka  # noqa: PLC0415
    from tests.oracle.partition import OpenPartition  # noqa: PLC0415

    start_jvm(heap="2g")

    def recover(order: Order) -> Order:
        kafka = Kafka(now_ms=order["now_ms"])

        def load(directory: Path) -> OpenPartition:
            return kafka.open_partition(directory, config=order["config"], clean_shutdown=False)

        def close(partition: OpenPartition) -> int:
            end = partition.log_end_offset
            partition.close()
            return end

        return timed(order, cores, load, close)

    return recover


def our_side(cores: int) -> Callable[[Order], Order]:
    """Return ours: its plan, and the commit of it."""
    from storage_core.commit import commit  # noqa: PLC0415
    from storage_core.config import CleanerConfig, LogConfig  # noqa: PLC0415 - nor has Kafka's Numba
    from storage_core.log.loaded_log import LoadedLog  # noqa: PLC0415
    from storage_core.maintenance.recovery.partition import plan_recovery  # noqa: PLC0415
    from storage_core.records.checked_headers import scan_checked_headers  # noqa: PLC0415
    from storage_core.store import LocalStore  # noqa: PLC0415

    def recover(order: Order) -> Order:
        texts = {key: str(value) for key, value in order["config"].items()}
        config = LogConfig.from_topic_overrides(texts)

        def load(directory: Path) -> tuple[LocalStore, LoadedLog]:
            store = LocalStore(directory, is_ours=True)
            cleaner = CleanerConfig()
            log = plan_recovery(store, config=config, cleaner=cleaner, now_ms=order["now_ms"])
            return store, log

        def close(loaded: tuple[LocalStore, LoadedLog]) -> int:
            store, log = loaded
            commit(log.plan, store)
            return log.log_end_offset

        def check(directory: Path) -> None:
            store = LocalStore(directory)
            for log in directory.glob("*.log"):
                with closing(store.open_file(log.name)) as reader:
                    assert all(w.batches.crc_ok.all() for w in scan_checked_headers(reader))

        answer = timed(order, cores, load, close)
        with ThreadPoolExecutor(cores) as pool:
            begin = time.perf_counter()
            list(pool.map(check, map(Path, order["directories"])))
            return answer | {"checksum_seconds": time.perf_counter() - begin}

    return recover


def main() -> None:
    """Serve orders of a side, bound to so many cores."""
    side, cores = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    serve({"kafka": kafka_side, "ours": our_side}[side](cores))


if __name__ == "__main__":
    main()
