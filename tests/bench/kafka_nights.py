"""Kafka's half of a night: its own LogCleaner, with the threads of a broker, over a log directory.

A helper process (``orders``): ``{"root": ..., "config": ...}`` gives ``{"seconds": ...}``, with
``"names"`` for some directories alone: all files of their logs are open meanwhile. It is the time
from the start of the cleaner to the moment when the last partition is clean. Opening and closing
the logs, which a broker does at other times, are not counted, nor is the removal of what was
replaced: Kafka does that a minute later. Clock and scheduler are Java's, so that nothing waits for
Python.
"""

import sys
import time
from pathlib import Path
from typing import Any, Final

import jpype

from tests.bench.orders import Order, serve
from tests.oracle.jvm import java, java_file, kafka_failures, start_jvm
from tests.oracle.kafka import Kafka
from tests.oracle.partition import LOG

# A broker's defaults: the map is shared by all threads.
MAP_BYTES: Final = 134_217_728
LOAD_FACTOR: Final = 0.9
IO_BUFFER_BYTES: Final = 524_288
MAX_MESSAGE_BYTES: Final = 1_048_588
NO_LIMIT: Final = float(2**60)
BACKOFF_MS: Final = 15_000
MOST_MS: Final = 3_600_000


def clean(order: Order, threads: int) -> Order:
    """Have a cleaner clean every partition of a directory up to its active segment."""
    root = Path(order["root"])
    kafka: Any = Kafka(now_ms=0)
    kafka.time = java("org.apache.kafka.common.utils.Time").SYSTEM
    kafka.scheduler = java("org.apache.kafka.server.util.KafkaScheduler")(1)
    kafka.scheduler.startup()
    partitions = [
        kafka.open_partition(directory, config=order["config"])
        for directory in sorted(path for path in root.iterdir() if path.is_dir())
        if directory.name in order.get("names", [directory.name])
    ]
    logs = java("java.util.concurrent.ConcurrentHashMap")()
    for partition in partitions:
        partition.set_high_watermark()
        logs.put(partition.log.topicPartition(), partition.log)
    with kafka_failures():
        cleaner = java(LOG + "LogCleaner")(
            java(LOG + "CleanerConfig")(
                threads,
                jpype.JLong(MAP_BYTES),
                LOAD_FACTOR,
                IO_BUFFER_BYTES,
                MAX_MESSAGE_BYTES,
                NO_LIMIT,
                jpype.JLong(BACKOFF_MS),
                True,
            ),
            java("java.util.List").of(java_file(root)),
            logs,
            kafka.failure_channel,
            kafka.time,
        )
        begin = time.perf_counter()
        cleaner.startup()
        for partition in partitions:
            end = partition.log.activeSegment().baseOffset()
            is_done = cleaner.awaitCleaned(
                partition.log.topicPartition(), jpype.JLong(end), jpype.JLong(MOST_MS)
            )
            if not is_done:
                raise AssertionError(f"{partition.directory} is not clean after an hour")
        seconds = time.perf_counter() - begin
        cleaner.shutdown()
    for partition in partitions:
        partition.close()
    kafka.scheduler.shutdown()
    return {"seconds": seconds}


def main() -> None:
    """Serve orders with so many threads."""
    threads = int(sys.argv[1])
    start_jvm(heap="2g")
    serve(lambda order: clean(order, threads))


if __name__ == "__main__":
    main()
