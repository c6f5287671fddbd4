"""Kafka's half of a benchmark: a process of its own that cleans what it is told to.

A helper process (``orders``): ``{"directory": ..., "config": ..., "now_ms": ...,
"first_dirty_offset": ...}`` gives ``{"clean_seconds": ..., "clean_cpu_seconds": ...,
"whole_seconds": ..., "answer": ...}``. clean_seconds is Cleaner.doClean alone, clean_cpu_seconds
the processor time of its thread, without the JVM's own threads; whole_seconds goes from opening the
log to the end of a clean close.
"""

import time
from dataclasses import asdict
from pathlib import Path

from tests.bench.orders import Order, serve
from tests.oracle.cleaner import clean_range
from tests.oracle.jvm import start_jvm
from tests.oracle.kafka import Kafka


def clean(order: Order) -> Order:
    """Clean everything below the active segment and say how long it took."""
    kafka = Kafka(now_ms=order["now_ms"])
    begin = time.perf_counter()
    with kafka.open_partition(Path(order["directory"]), config=order["config"]) as partition:
        partition.set_high_watermark()
        opened, cpu_before = time.perf_counter(), time.thread_time()
        outcome = clean_range(kafka, partition, first_dirty_offset=order["first_dirty_offset"])
        cleaned, cpu_after = time.perf_counter(), time.thread_time()
    return {
        "clean_seconds": cleaned - opened,
        "clean_cpu_seconds": cpu_after - cpu_before,
        "whole_seconds": time.perf_counter() - begin,
        "answer": asdict(outcome),
    }


if __name__ == "__main__":
    start_jvm(heap="2g")
    serve(clean)
